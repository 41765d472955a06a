//! Who owns a queue pair: the thread that has claimed its channel, or the one thread that creates, connects and ends
//! all of them. Neither waits for the other.

use canvas_types::sync::{AtomicBool, AtomicU32, Ordering};

/// States in which the claimer of the channel owns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Claimers {
    /// There is none.
    None = 0,
    /// It is created, and not connected.
    Made = 1,
    /// It is connected.
    Ready = 2,
    /// It is unusable.
    Failed = 3,
}

/// Commands for the thread, which owns it until the command is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Threads {
    /// Create it.
    Make = 16,
    /// Connect it.
    Connect = 17,
    /// End it.
    End = 18,
}

/// Ownership of one queue pair.
pub struct Turn {
    state: AtomicU32,
    /// It must be ended when the thread returns it.
    unwanted: AtomicBool,
}

impl Turn {
    /// There is no queue pair.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Turn {
        Turn {
            state: AtomicU32::new(Claimers::None as u32),
            unwanted: AtomicBool::new(false),
        }
    }

    /// Claimer: its state, or `None` while the thread owns it. `Err` when it was to be ended and now goes to the thread
    /// for that: the thread must be notified.
    pub fn claimers(&self) -> Result<Option<Claimers>, Changed> {
        let state = match self.state.load(Ordering::Acquire) {
            0 => Claimers::None,
            1 => Claimers::Made,
            2 => Claimers::Ready,
            3 => Claimers::Failed,
            _ => return Ok(None),
        };
        // Only the claimer uses this flag.
        if self.unwanted.load(Ordering::Relaxed) {
            self.unwanted.store(false, Ordering::Relaxed);
            if state != Claimers::None {
                self.give(Threads::End);
                return Err(Changed);
            }
        }
        Ok(Some(state))
    }

    /// Claimer, as its owner: passes it to the thread with this command; the thread must be notified.
    pub fn give(&self, what: Threads) {
        self.state.store(what as u32, Ordering::Release);
    }

    /// Claimer: ends it, whoever owns it. `Err` when the thread must be notified.
    pub fn let_go(&self) -> Result<(), Changed> {
        match self.claimers()? {
            Some(Claimers::None) => Ok(()),
            Some(_) => {
                self.give(Threads::End);
                Err(Changed)
            }
            None => {
                if self.state.load(Ordering::Relaxed) != Threads::End as u32 {
                    self.unwanted.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    /// Thread: its command, if it owns the queue pair.
    pub fn threads(&self) -> Option<Threads> {
        match self.state.load(Ordering::Acquire) {
            16 => Some(Threads::Make),
            17 => Some(Threads::Connect),
            18 => Some(Threads::End),
            _ => None,
        }
    }

    /// Thread, as its owner: the command is done.
    pub fn give_back(&self, state: Claimers) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// In a fork's child, with one thread: there is no queue pair.
    pub fn forget(&self) {
        self.unwanted.store(false, Ordering::Relaxed);
        self.give_back(Claimers::None);
    }
}

/// The thread has something to do, and must be notified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed;
