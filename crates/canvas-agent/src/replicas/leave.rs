//! A tenant's end: donors get their slabs back at once, and not when the lease is over.

use std::thread::sleep;
use std::time::{Duration, Instant};

use canvas_wire::frame::Request;

use super::{Call, Replicas};

/// Between two looks for answers.
const LOOK: Duration = Duration::from_micros(200);

impl Replicas {
    /// Frees all slabs at the donors that can be reached, and waits for their answers, at most for `patience`.
    pub(super) fn leave(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        // Nobody waits for the rest any more. What is being lent is freed once its handle is known.
        self.calls
            .retain(|_, sent| matches!(sent.call, Call::Alloc(_)));
        for slab in std::mem::take(&mut self.map).into_values() {
            let lent = slab.replicas.iter().map(|copy| (copy.donor, copy.handle));
            self.useless.extend(lent);
        }
        while !(self.useless.is_empty() && self.calls.is_empty()) && Instant::now() < until {
            // A link that is full takes the rest later; to a donor that is away nothing can be told.
            let mut useless = std::mem::take(&mut self.useless);
            useless.retain(|&(donor, handle)| {
                !self.submit(donor, Call::Garbage, &Request::Free { handle })
                    && !self.donors[donor].links.is_empty()
            });
            self.useless = useless;
            for donor in 0..self.donors.len() {
                self.poll_donor(donor, true);
            }
            if !self.calls.is_empty() {
                sleep(LOOK);
            }
        }
    }
}
