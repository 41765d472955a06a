//! A tenant's end: donors get their slabs back at once, and not when the lease is over.

use std::thread::sleep;
use std::time::{Duration, Instant};

use canvas_link::Completion;
use canvas_wire::frame::{Answer, Request};

use super::{Call, Copies};

/// Between two looks for answers.
const LOOK: Duration = Duration::from_micros(200);

impl Copies {
    /// Frees all slabs at the donors that can be reached, and waits for their answers, at most for `patience`.
    pub(super) fn leave(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        // Nobody waits for the rest any more. What is being lent is freed once its handle is known.
        self.calls
            .retain(|_, sent| matches!(sent.call, Call::Alloc(_)));
        let mut lent: Vec<(usize, u64)> = std::mem::take(&mut self.map)
            .values()
            .flat_map(|slab| &slab.copies)
            .map(|copy| (copy.donor, copy.handle))
            .collect();
        while !(lent.is_empty() && self.calls.is_empty()) && Instant::now() < until {
            // A link that is full takes the rest later; to a donor that is away nothing can be told.
            lent.retain(|&(donor, handle)| {
                !self.submit(donor, Call::Garbage, &Request::Free { handle })
                    && !self.donors[donor].links.is_empty()
            });
            for donor in 0..self.donors.len() {
                self.hear_last(donor, &mut lent);
            }
            if !self.calls.is_empty() {
                sleep(LOOK);
            }
        }
    }

    /// Takes a donor's answers; slabs that it has lent meanwhile are added to `lent`.
    fn hear_last(&mut self, donor: usize, lent: &mut Vec<(usize, u64)>) {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let mut broken = false;
        for link in &mut self.donors[donor].links {
            broken |= link.poll(&mut completions, Duration::ZERO).is_err();
        }
        for completion in completions.iter() {
            let (tag, answer) = match completion {
                Completion::Answer { tag, answer } => (tag, Some(answer)),
                Completion::TimedOut { tag } | Completion::Lost { tag } => (tag, None),
                Completion::Call { .. } => continue,
            };
            if let Some(sent) = self.calls.remove(&tag)
                && let (Call::Alloc(_), Some(Answer::Allocated { handle })) = (sent.call, answer)
            {
                lent.push((donor, handle));
            }
        }
        self.completions = completions;
        if broken || self.donors[donor].links.is_empty() {
            self.donors[donor].links.clear();
            self.calls.retain(|_, sent| sent.donor != donor);
        }
    }
}
