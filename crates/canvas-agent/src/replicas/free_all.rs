//! A tenant's end: returns slabs to the donors at once instead of when the lease expires.

use std::thread::sleep;
use std::time::{Duration, Instant};

use canvas_wire::frame::Request;

use super::{Purpose, Replicas};

/// Pause between two polls for answers.
const POLL_PAUSE: Duration = Duration::from_micros(200);

impl Replicas {
    /// Frees all slabs at reachable donors, and waits at most `patience` for their answers.
    pub(super) fn free_all(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        // Nobody waits for the other answers any more. A slab that is being allocated is freed once its handle is
        // known.
        self.calls
            .retain(|_, sent| matches!(sent.purpose, Purpose::Alloc(_)));
        for slab in std::mem::take(&mut self.map).into_values() {
            let lent = slab.replicas.iter().map(|copy| (copy.donor, copy.handle));
            self.useless.extend(lent);
        }
        while !(self.useless.is_empty() && self.calls.is_empty()) && Instant::now() < until {
            // A full link takes the rest later; an unreachable donor gets no message.
            let mut useless = std::mem::take(&mut self.useless);
            useless.retain(|&(donor, handle)| {
                !self.submit(donor, Purpose::Garbage, &Request::Free { handle })
                    && !self.donors[donor].links.is_empty()
            });
            self.useless = useless;
            for donor in 0..self.donors.len() {
                self.poll_donor(donor, true);
            }
            if !self.calls.is_empty() {
                sleep(POLL_PAUSE);
            }
        }
    }
}
