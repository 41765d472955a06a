//! Ring of faults for a reader in the program: keeps the newest [`FAULTS`]; the oldest are lost if nobody reads.
//!
//! Each cell has a number that is odd while the cell is written, and says which fault it holds. A faulting thread never
//! waits for a reader or for another fault, and a reader never gets half of a record.

use canvas_types::sync::{AtomicU64, Ordering};

/// Faults that are kept.
pub const FAULTS: usize = 1024;

/// A fault beside which nothing was prefetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Fault {
    /// The address that was touched, or its page's if only that is known.
    pub address: u64,
    /// Address of the instruction; 0 if unknown.
    pub ip: u64,
    /// The thread.
    pub tid: u32,
    /// The thread's kind as declared by the program; 0 if not declared.
    pub kind: u32,
    /// Time by CLOCK_MONOTONIC.
    pub time_ns: u64,
}

struct FaultCell {
    /// `2n + 1` while fault number n is written, `2n + 2` when it is complete.
    state: AtomicU64,
    words: [AtomicU64; 4],
}

/// The ring. About 40 KiB, usable as a static.
pub struct Ring {
    cells: [FaultCell; FAULTS],
    /// Number of the next fault.
    next: AtomicU64,
    /// Number of the next fault to read.
    read: AtomicU64,
    dropped: AtomicU64,
}

impl FaultCell {
    const fn new() -> FaultCell {
        FaultCell {
            state: AtomicU64::new(0),
            words: [
                AtomicU64::new(0),
                AtomicU64::new(0),
                AtomicU64::new(0),
                AtomicU64::new(0),
            ],
        }
    }
}
impl Ring {
    /// Creates an empty ring.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Ring {
        Ring {
            cells: [const { FaultCell::new() }; FAULTS],
            next: AtomicU64::new(0),
            read: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds a fault.
    pub fn push(&self, fault: Fault) {
        let n = self.next.fetch_add(1, Ordering::AcqRel);
        let cell = &self.cells[n as usize % FAULTS];
        let before = cell.state.load(Ordering::Acquire);
        let mine = before.is_multiple_of(2)
            && before <= 2 * n
            && cell
                .state
                .compare_exchange(before, 2 * n + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        // Otherwise another thread was stopped in the middle of writing for a whole round: this fault is lost, and its
        // number shows the gap.
        if mine {
            let ids = u64::from(fault.tid) << 32 | u64::from(fault.kind);
            let words = [fault.address, fault.ip, ids, fault.time_ns];
            for (to, word) in cell.words.iter().zip(words) {
                to.store(word, Ordering::Release);
            }
            cell.state.store(2 * n + 2, Ordering::Release);
        }
    }

    /// Takes the oldest faults; returns how many. One reader at a time.
    pub fn take(&self, out: &mut [Fault]) -> usize {
        let (mut got, mut lost) = (0, 0);
        let next = self.next.load(Ordering::Acquire);
        let mut at = self.read.load(Ordering::Relaxed);
        let oldest = next.saturating_sub(FAULTS as u64);
        if at < oldest {
            (lost, at) = (oldest - at, oldest);
        }
        while at < next && got < out.len() {
            match self.read_one(at) {
                Ok(fault) => {
                    out[got] = fault;
                    got += 1;
                }
                // The fault is being written, or never will be, because its thread found the cell taken.
                Err(true) if next - at < FAULTS as u64 / 2 => break,
                Err(_) => lost += 1,
            }
            at += 1;
        }
        self.read.store(at, Ordering::Relaxed);
        self.dropped.fetch_add(lost, Ordering::Relaxed);
        got
    }

    /// Reads fault number `n`; an error says whether it is still to come.
    fn read_one(&self, n: u64) -> Result<Fault, bool> {
        let cell = &self.cells[n as usize % FAULTS];
        let state = cell.state.load(Ordering::Acquire);
        if state != 2 * n + 2 {
            return Err(state < 2 * n + 2);
        }
        let [address, ip, ids, time_ns] =
            core::array::from_fn(|i| cell.words[i].load(Ordering::Acquire));
        let fault = Fault {
            address,
            ip,
            tid: (ids >> 32) as u32,
            kind: ids as u32,
            time_ns,
        };
        match cell.state.load(Ordering::Acquire) == state {
            true => Ok(fault),
            false => Err(false),
        }
    }

    /// Skips all faults so far without counting them as lost, for a reader that starts.
    pub fn skip_all(&self) {
        let next = self.next.load(Ordering::Acquire);
        self.read.store(next, Ordering::Relaxed);
    }

    /// Number of faults ever, and how many of them no reader got.
    pub fn counts(&self) -> (u64, u64) {
        let came = self.next.load(Ordering::Relaxed);
        (came, self.dropped.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_testing::random::sized;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::collections::VecDeque;
    use std::vec;

    fn fault(n: u64) -> Fault {
        Fault {
            address: n << 12,
            ip: !n,
            tid: n as u32,
            kind: n as u32 % 5,
            time_ns: n * n,
        }
    }

    proptest! {
        /// Compared with a queue that drops its oldest element.
        #[test]
        fn behaves_like_a_bounded_queue(ops in proptest::collection::vec((0..1500u64, 0..1200usize), 1..30)) {
            let ring = Box::new(Ring::new());
            let (mut oracle, mut n, mut dropped) = (VecDeque::new(), 0, 0);
            for (pushed, asked) in ops {
                for _ in 0..pushed {
                    ring.push(fault(n));
                    oracle.push_back(fault(n));
                    n += 1;
                }
                while oracle.len() > FAULTS {
                    oracle.pop_front();
                    dropped += 1;
                }
                let mut out = vec![Fault::default(); asked];
                let got = ring.take(&mut out);
                prop_assert!(out[..got].iter().copied().eq(oracle.drain(..asked.min(oracle.len()))));
                prop_assert_eq!(ring.counts(), (n, dropped));
            }
        }
    }

    #[test]
    fn no_reader_gets_half_of_a_fault_or_one_twice() {
        const EACH: u64 = sized(50_000, 500);
        let ring = Box::new(Ring::new());
        let ended = AtomicU64::new(0);
        let mut seen = [0u64; 4];
        std::thread::scope(|s| {
            let (ring, ended) = (&ring, &ended);
            for t in 0..4u64 {
                s.spawn(move || {
                    (0..EACH).for_each(|i| ring.push(fault(t << 24 | (i + 1))));
                    ended.fetch_add(1, Ordering::Release);
                });
            }
            let mut out = [Fault::default(); 100];
            loop {
                let last = ended.load(Ordering::Acquire) == 4;
                let got = ring.take(&mut out);
                for f in &out[..got] {
                    let n = f.address >> 12;
                    assert_eq!(*f, fault(n));
                    let (thread, i) = ((n >> 24) as usize, n & 0xff_ffff);
                    assert!(i > seen[thread], "in order, each once");
                    seen[thread] = i;
                }
                if last && got == 0 {
                    break;
                }
            }
        });
        assert_eq!(ring.counts().0, 4 * EACH);
    }
}
