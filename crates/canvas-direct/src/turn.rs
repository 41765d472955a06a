//! Whose a queue pair is: of who has claimed its lane, or of the one thread that makes, connects and ends them all. Neither
//! waits for the other.

use canvas_types::sync::{AtomicBool, AtomicU32, Ordering};

/// States in which who has claimed the lane has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Claimers {
    /// There is none.
    None = 0,
    /// It is as the peer must know it.
    Made = 1,
    /// It is connected.
    Ready = 2,
    /// It is of no use.
    Failed = 3,
}

/// What the thread is to do, and until it has it is the thread's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Threads {
    /// It is to be made.
    Make = 16,
    /// It is to be connected.
    Connect = 17,
    /// It is to be ended.
    End = 18,
}

/// One queue pair's.
pub struct Turn {
    state: AtomicU32,
    /// It is to be ended when the thread gives it back.
    unwanted: AtomicBool,
}

impl Turn {
    /// There is none.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> Turn {
        Turn {
            state: AtomicU32::new(Claimers::None as u32),
            unwanted: AtomicBool::new(false),
        }
    }

    /// There is none.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> Turn {
        Turn {
            state: AtomicU32::new(Claimers::None as u32),
            unwanted: AtomicBool::new(false),
        }
    }

    /// Claimer: its state, or `None` while it is the thread's. `Err` when it was to be ended and is the thread's for that
    /// from now on: the thread is to be told.
    pub fn claimers(&self) -> Result<Option<Claimers>, Changed> {
        let state = match self.state.load(Ordering::Acquire) {
            0 => Claimers::None,
            1 => Claimers::Made,
            2 => Claimers::Ready,
            3 => Claimers::Failed,
            _ => return Ok(None),
        };
        // Of the claimer's alone.
        if self.unwanted.load(Ordering::Relaxed) {
            self.unwanted.store(false, Ordering::Relaxed);
            if state != Claimers::None {
                self.give(Threads::End);
                return Err(Changed);
            }
        }
        Ok(Some(state))
    }

    /// Claimer, who has it: the thread is to do this, and to be told.
    pub fn give(&self, what: Threads) {
        self.state.store(what as u32, Ordering::Release);
    }

    /// Claimer: it is to be ended, whoever has it. `Err` when the thread is to be told.
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

    /// Thread: what it is to do, if it is the thread's.
    pub fn threads(&self) -> Option<Threads> {
        match self.state.load(Ordering::Acquire) {
            16 => Some(Threads::Make),
            17 => Some(Threads::Connect),
            18 => Some(Threads::End),
            _ => None,
        }
    }

    /// Thread, which has it: done.
    pub fn give_back(&self, state: Claimers) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// In a fork's child, with one thread: there is none.
    pub fn forget(&self) {
        self.unwanted.store(false, Ordering::Relaxed);
        self.give_back(Claimers::None);
    }
}

/// The thread has something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed;
