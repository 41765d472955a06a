//! Who owns a queue pair: the thread that has claimed its channel, or the one thread that creates, connects and ends
//! all of them. Neither waits for the other.

use canvas_types::sync::{AtomicBool, AtomicU32, Ordering};

/// States in which the claimer of the channel owns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ClaimerState {
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
pub enum ThreadCommand {
    /// Create it.
    Make = 16,
    /// Connect it.
    Connect = 17,
    /// End it.
    End = 18,
}

/// Ownership of one queue pair.
pub struct Handoff {
    state: AtomicU32,
    /// It must be ended when the thread returns it.
    unwanted: AtomicBool,
}

impl Handoff {
    /// There is no queue pair.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Handoff {
        Handoff {
            state: AtomicU32::new(ClaimerState::None as u32),
            unwanted: AtomicBool::new(false),
        }
    }

    /// Claimer: its state, or `None` while the thread owns it. `Err` when it was to be ended and now goes to the thread
    /// for that: the thread must be notified.
    pub fn claimer_state(&self) -> Result<Option<ClaimerState>, NotifyThread> {
        let state = match self.state.load(Ordering::Acquire) {
            0 => ClaimerState::None,
            1 => ClaimerState::Made,
            2 => ClaimerState::Ready,
            3 => ClaimerState::Failed,
            _ => return Ok(None),
        };
        // Only the claimer uses this flag.
        if self.unwanted.load(Ordering::Relaxed) {
            self.unwanted.store(false, Ordering::Relaxed);
            if state != ClaimerState::None {
                self.hand_over(ThreadCommand::End);
                return Err(NotifyThread);
            }
        }
        Ok(Some(state))
    }

    /// Claimer, as its owner: passes it to the thread with this command; the thread must be notified.
    pub fn hand_over(&self, what: ThreadCommand) {
        self.state.store(what as u32, Ordering::Release);
    }

    /// Claimer: ends it, whoever owns it. `Err` when the thread must be notified.
    pub fn end(&self) -> Result<(), NotifyThread> {
        match self.claimer_state()? {
            Some(ClaimerState::None) => Ok(()),
            Some(_) => {
                self.hand_over(ThreadCommand::End);
                Err(NotifyThread)
            }
            None => {
                if self.state.load(Ordering::Relaxed) != ThreadCommand::End as u32 {
                    self.unwanted.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    /// Thread: its command, if it owns the queue pair.
    pub fn command(&self) -> Option<ThreadCommand> {
        match self.state.load(Ordering::Acquire) {
            16 => Some(ThreadCommand::Make),
            17 => Some(ThreadCommand::Connect),
            18 => Some(ThreadCommand::End),
            _ => None,
        }
    }

    /// Thread, as its owner: the command is done.
    pub fn complete(&self, state: ClaimerState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// In a fork's child, with one thread: there is no queue pair.
    pub fn reset(&self) {
        self.unwanted.store(false, Ordering::Relaxed);
        self.complete(ClaimerState::None);
    }
}

/// The thread has something to do, and must be notified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotifyThread;
