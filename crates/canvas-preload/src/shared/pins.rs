//! Pins the pages of shared memory that system calls need, by ranges that every evicting process checks.

use canvas_core::pager::shared::word::{State, load};
use canvas_shm::Counter;
use canvas_shm::shared::{PINS, Proc};
use canvas_types::layout::shared_end;
use core::sync::atomic::{AtomicBool, Ordering, fence};

use crate::paging::fault::Resolved;
use crate::paging::freeze;
use crate::runtime::state::count;
use crate::shared::pages::{self, control, is_on, me, page_of, partition, resolve};

/// Pages of the partition that a system call needs, until dropped: one range that covers all that it named.
pub struct Pin {
    range: (u32, u32),
    /// Which of this process's ranges; [`PINS`] if none was free.
    at: Option<usize>,
    /// This process's number at that time: a fork's child has pinned nothing.
    owner: usize,
}

impl Pin {
    /// Pins nothing.
    pub const fn new() -> Pin {
        Pin {
            range: (0, 0),
            at: None,
            owner: 0,
        }
    }
    /// Makes the pages of `addr..addr+bytes` present, and pins them.
    pub fn pin(&mut self, addr: usize, bytes: usize) -> bool {
        if !is_on() || bytes == 0 {
            return false;
        }
        let last = addr.saturating_add(bytes - 1).min(shared_end() - 1);
        let (first, end) = (page_of(addr), page_of(last) + 1);
        self.note(first, end);
        for page in first..end {
            while load(&partition().words[page as usize]).state() != State::Resident {
                let _inside = freeze::enter();
                match resolve(page) {
                    Resolved::Present => {}
                    Resolved::NoMemory => {
                        say_full();
                        return false;
                    }
                    _ => return false,
                }
                count(Counter::FaultSyscall, 1);
            }
        }
        true
    }
    fn note(&mut self, first: u32, end: u32) {
        let p = pages::my_proc();
        self.range = match self.at {
            None => (first, end),
            Some(_) => (self.range.0.min(first), self.range.1.max(end)),
        };
        self.owner = me();
        let at = *self.at.get_or_insert_with(|| {
            let i = take_bit(p).unwrap_or(PINS);
            if i == PINS {
                p.pin_all.fetch_add(1, Ordering::SeqCst);
            }
            i
        });
        if at < PINS {
            let (first, end) = self.range;
            p.pins[at].store(u64::from(first) << 32 | u64::from(end), Ordering::SeqCst);
        }
        // An evicting process marks its victims before it checks this range: at least one of the two sees the other.
        fence(Ordering::SeqCst);
    }
}

/// Reports full memory, once. A fault that fails ends the program with a message; a failing call needs one, too.
#[cold]
fn say_full() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        crate::report!(
            "shared and far memory are both full (raise --pool or --shared); a system call fails with EFAULT"
        );
    }
}

fn take_bit(p: &Proc) -> Option<usize> {
    for (i, word) in p.used.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != u64::MAX {
            let free = bits.trailing_ones();
            match word.compare_exchange(bits, bits | 1 << free, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return Some(i * 64 + free as usize),
                Err(now) => bits = now,
            }
        }
    }
    None
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Some(at) = self.at.filter(|_| self.owner == me()) else {
            return;
        };
        let p = pages::my_proc();
        if at == PINS {
            p.pin_all.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        p.pins[at].store(0, Ordering::SeqCst);
        p.used[at / 64].fetch_and(!(1 << (at % 64)), Ordering::SeqCst);
    }
}

/// Whether any process needs the page.
pub fn is_pinned(page: u32) -> bool {
    let c = control();
    c.procs[..c.procs_end.load(Ordering::SeqCst) as usize]
        .iter()
        .any(|p| has_pinned(p, page))
}

fn has_pinned(p: &Proc, page: u32) -> bool {
    if p.id.load(Ordering::Relaxed) == 0 {
        return false;
    }
    if p.pin_all.load(Ordering::SeqCst) > 0 {
        return true;
    }
    p.used.iter().enumerate().any(|(i, used)| {
        let mut bits = used.load(Ordering::SeqCst);
        while bits != 0 {
            let range = p.pins[i * 64 + bits.trailing_zeros() as usize].load(Ordering::SeqCst);
            bits &= bits - 1;
            if ((range >> 32) as u32..range as u32).contains(&page) {
                return true;
            }
        }
        false
    })
}
