//! The program's signal actions, as it set them.
//!
//! The kernel has other actions: SIGBUS and SIGSYS ([`beliefs::ours`]) lead to canvas, no mask contains them, and a
//! handler that must not run where the kernel put its frame is behind an entry of canvas.

use canvas_sys::Errno;
use canvas_sys::signal::{self, Handler, KernelSigaction, bit};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::OnceLock;

use crate::paging::freeze;
use crate::process::{beliefs, cancel};
use crate::runtime::state;

/// Signals that the kernel removes from every mask.
const NEVER_BLOCKED: u64 = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
/// One past the highest signal number.
const SIGNALS: usize = 65;

state! {
    static TABLE: Table {
        /// Entry points for the kernel: before handlers of the program, and for canvas's signals.
        entries: OnceLock<[Handler; 2]> = OnceLock::new(),
        /// The program's actions.
        actions: [Action; SIGNALS] = [const {
            Action {
                seq: AtomicU32::new(0),
                value: [const { AtomicU64::new(0) }; 4],
            }
        }; SIGNALS],
        /// A stack of the program lies in managed memory, where the kernel cannot push a signal frame.
        stacks_in_window: AtomicBool = AtomicBool::new(false),
    }
}

/// Sets the entry points, at start-up before any action is set.
pub fn enter_by(of_program: Handler, of_canvas: Handler) {
    let _ = TABLE.entries.set([of_program, of_canvas]);
}

fn entries() -> [usize; 2] {
    let entries = TABLE.entries.get();
    entries.map_or([0; 2], |all| all.map(|entry| entry as *const () as usize))
}

/// One action, with a sequence number that is odd while it is changed.
struct Action {
    seq: AtomicU32,
    /// Handler, flags, restorer, mask; all 0 for the default action.
    value: [AtomicU64; 4],
}

impl Action {
    /// The action, of which parts may be older than others while it is changed.
    fn read(&self) -> KernelSigaction {
        let part = |i: usize| self.value[i].load(Ordering::Relaxed);
        KernelSigaction {
            handler: part(0) as usize,
            flags: part(1),
            restorer: part(2) as usize,
            mask: part(3),
        }
    }

    fn get(&self) -> KernelSigaction {
        loop {
            let before = self.seq.load(Ordering::Acquire);
            let v = self.read();
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.seq.load(Ordering::Relaxed) == before {
                return v;
            }
            canvas_sys::gate::yield_now();
        }
    }

    /// Changes the action. Inside `freeze::enter`, so that no fork copies it half changed, and with all signals
    /// blocked.
    fn change<R>(
        &self,
        _inside: &freeze::Inside,
        change: impl FnOnce(&mut KernelSigaction) -> R,
    ) -> R {
        let claimed = |s: u32| {
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            s & 1 == 0
                && self
                    .seq
                    .compare_exchange(s, s + 1, success, failure)
                    .is_ok()
        };
        let mut seq = self.seq.load(Ordering::Relaxed);
        while !claimed(seq) {
            canvas_sys::gate::yield_now();
            seq = self.seq.load(Ordering::Relaxed);
        }
        // The odd sequence makes us the only writer; readers see it before any part of the new value.
        fence(Ordering::Release);
        let mut new = self.read();
        let r = change(&mut new);
        let parts = [new.handler as u64, new.flags, new.restorer as u64, new.mask];
        for (to, part) in self.value.iter().zip(parts) {
            to.store(part, Ordering::Relaxed);
        }
        self.seq.store(seq.wrapping_add(2), Ordering::Release);
        r
    }
}

/// The program's action for `sig`.
pub fn get(sig: i32) -> KernelSigaction {
    TABLE.actions[sig as usize].get()
}

/// Installs canvas's handler for `sig`, one of its signals, with `flags` besides its own; returns the previous action.
pub fn take(sig: i32, flags: u64) -> Result<KernelSigaction, Errno> {
    let [_, of_canvas] = TABLE.entries.get().ok_or(Errno(libc::EINVAL))?;
    // SAFETY: the entry serves any signal wherever it interrupts: what is not canvas's goes to the program's handler.
    unsafe { signal::install(sig, *of_canvas, flags) }
}

/// After the program has set `action` for `sig`, one of canvas's signals: makes interrupted calls restart, or not, as
/// the action says.
fn install_for(sig: i32, action: &KernelSigaction) {
    let restart = match action.handler {
        libc::SIG_DFL | libc::SIG_IGN => libc::SA_RESTART as u64,
        _ => action.flags & libc::SA_RESTART as u64,
    };
    let _ = take(sig, restart);
}

/// While it lives, those of canvas's signals are ignored in the kernel that the program ignores, because exec inherits
/// that.
pub struct Ignored(());

impl Ignored {
    /// `None` if the program ignores none, or if not `is_safe`: a fault of another thread would end the process
    /// meanwhile.
    pub fn where_safe(is_safe: impl FnOnce() -> bool) -> Option<Ignored> {
        ignored().next().filter(|_| is_safe())?;
        ignored().for_each(|(sig, _)| signal::set_ignored(sig));
        Some(Ignored(()))
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        ignored().for_each(|(sig, action)| install_for(sig, &action));
    }
}

/// Canvas's signals that the program ignores.
fn ignored() -> impl Iterator<Item = (i32, KernelSigaction)> {
    let ours = [libc::SIGBUS, libc::SIGSYS].into_iter();
    ours.filter(|sig| beliefs::ours() & bit(*sig) != 0)
        .map(|sig| (sig, get(sig)))
        .filter(|(_, action)| action.handler == libc::SIG_IGN)
}

/// Records, at start-up, the action that was there before canvas's.
///
/// # Safety
///
/// It must be the kernel's: its handler runs when such a signal is the program's.
pub unsafe fn note(sig: i32, action: KernelSigaction) {
    let inside = freeze::enter();
    TABLE.actions[sig as usize].change(&inside, |mine| *mine = action);
}

/// Resets the table in a child whose handlers the kernel has reset (CLONE_CLEAR_SIGHAND), including canvas's. The
/// caller has all signals blocked and is not inside `freeze::enter`.
pub fn were_cleared() {
    let inside = freeze::enter_masked();
    for sig in 1..SIGNALS as i32 {
        let action = TABLE.actions[sig as usize].change(&inside, |mine| {
            if mine.handler != libc::SIG_IGN {
                *mine = KernelSigaction::DEFAULT;
            }
            *mine
        });
        if beliefs::ours() & bit(sig) != 0 {
            install_for(sig, &action);
        }
    }
}

/// Begins a handler of `action`: like the kernel, resets it with SA_RESETHAND. Returns false if the action has changed.
/// The caller has all signals blocked and is not inside `freeze::enter`.
pub fn begin(sig: i32, action: &KernelSigaction) -> bool {
    if action.flags & libc::SA_RESETHAND as u64 == 0 {
        return true;
    }
    let inside = freeze::enter_masked();
    TABLE.actions[sig as usize].change(&inside, |mine| {
        let still = mine.handler == action.handler;
        if still {
            mine.handler = libc::SIG_DFL;
        }
        still
    })
}

/// Whether the handler of `action` may have to move to another stack.
fn moves(sig: i32, action: &KernelSigaction) -> bool {
    action.handler > libc::SIG_IGN
        && (matches!(sig, libc::SIGSEGV | cancel::SIGNAL)
            || action.mask & beliefs::ours() != 0
            || (!state::PROCESS.in_thread_mode()
                && (action.flags & libc::SA_ONSTACK as u64 != 0
                    || TABLE.stacks_in_window.load(Ordering::Relaxed))))
}

/// The action to install in the kernel for `action`.
fn installed(sig: i32, action: &KernelSigaction) -> KernelSigaction {
    let mut k = *action;
    k.mask &= !beliefs::ours();
    if moves(sig, action) {
        k.handler = match action.mask & beliefs::ours() {
            0 => entries()[0],
            // Until the handler returns, the thread believes that it has them blocked.
            _ => entries()[1],
        };
        k.flags |= libc::SA_SIGINFO as u64;
        if TABLE.stacks_in_window.load(Ordering::Relaxed) {
            k.flags |= libc::SA_ONSTACK as u64;
        }
        // Block everything until the handler runs on its proper stack.
        k.mask = !beliefs::ours() & !NEVER_BLOCKED;
    }
    k
}

/// The action to report to the program, which set `mine`, when the kernel has `there`.
fn seen(sig: i32, mine: &KernelSigaction, there: &KernelSigaction) -> KernelSigaction {
    let ours = installed(sig, mine);
    let same = there.restorer == ours.restorer && there.mask == ours.mask;
    if entries().contains(&there.handler) || (same && there.handler == ours.handler) {
        *mine
    } else if same && there.handler == libc::SIG_DFL {
        // The kernel applied SA_RESETHAND.
        KernelSigaction {
            handler: libc::SIG_DFL,
            ..*mine
        }
    } else {
        *there
    }
}

/// `rt_sigaction` for a signal that can have an action: sets `wanted`, returns the previous action.
///
/// # Safety
///
/// `wanted` must be what the program passed: its handler runs when such a signal is the program's.
pub unsafe fn exchange(sig: i32, wanted: Option<KernelSigaction>) -> KernelSigaction {
    // As the kernel does.
    let wanted = wanted.map(|w| KernelSigaction {
        mask: w.mask & !NEVER_BLOCKED,
        ..w
    });
    let inside = freeze::enter();
    // A vfork child's actions are its own, but the table is not.
    let borrowed = state::PROCESS.is_vfork_child();
    let before = TABLE.actions[sig as usize].change(&inside, |mine| {
        let before = *mine;
        if beliefs::ours() & bit(sig) != 0 {
            // The kernel keeps canvas's action: it only adopts whether interrupted calls are restarted.
            if let Some(w) = wanted.filter(|_| !borrowed) {
                *mine = w;
                install_for(sig, &w);
            }
            return before;
        }
        let set = wanted.map(|w| match borrowed {
            true => KernelSigaction {
                mask: w.mask & !beliefs::ours(),
                ..w
            },
            false => installed(sig, &w),
        });
        // SAFETY: a handler of the program's (the caller's promise), or an entry of ours, which serves any signal and
        // leads to that handler.
        let there = unsafe { signal::exchange(sig, set.as_ref()) }.unwrap_or_default();
        if let Some(w) = wanted.filter(|_| !borrowed) {
            *mine = w;
        }
        seen(sig, &before, &there)
    });
    drop(inside);
    if wanted.is_some_and(|w| w.handler == libc::SIG_IGN) {
        beliefs::discard(sig);
    }
    before
}

/// Called when a thread runs on a stack in managed memory: from now on all handlers begin on the threads' signal
/// stacks. The caller has all signals blocked and is not inside `freeze::enter`.
#[cold]
pub fn stack_in_window() {
    if TABLE.stacks_in_window.load(Ordering::Relaxed) {
        return;
    }
    let inside = freeze::enter_masked();
    for sig in (1..SIGNALS as i32).filter(|s| beliefs::ours() & bit(*s) == 0) {
        TABLE.actions[sig as usize].change(&inside, |mine| {
            // SAFETY: without a new action nothing changes.
            let there = unsafe { signal::exchange(sig, None) }.unwrap_or_default();
            // Before the first action is changed, earlier ones must be read by the old rule.
            *mine = seen(sig, mine, &there);
        });
    }
    TABLE.stacks_in_window.store(true, Ordering::Relaxed);
    for sig in (1..SIGNALS as i32).filter(|s| beliefs::ours() & bit(*s) == 0) {
        TABLE.actions[sig as usize].change(&inside, |mine| {
            if mine.handler > libc::SIG_IGN {
                // SAFETY: the program's handler, which the kernel had, or an entry of ours, which serves any signal and
                // leads to that handler.
                let _ = unsafe { signal::exchange(sig, Some(&installed(sig, mine))) };
            }
        });
    }
}

/// Whether [`stack_in_window`] has been called.
pub fn stacks_in_window() -> bool {
    TABLE.stacks_in_window.load(Ordering::Relaxed)
}
