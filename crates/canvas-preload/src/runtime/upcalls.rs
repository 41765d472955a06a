//! Functions of higher modules that lower ones call. Start-up sets them before anything can call them.

use std::sync::OnceLock;

use crate::runtime::call::Call;

/// Path of libc's calls to [`Dispatch`]: to be jumped to with the registers of a call, and the return address in rcx.
pub type Entry = unsafe extern "C" fn();

/// Makes, or emulates, a system call of the program.
pub type Dispatch = unsafe extern "C" fn(*mut Call) -> isize;

struct Upcalls {
    start_reclaimer: fn(),
    dispatch: Dispatch,
    entry: Entry,
}

static UPCALLS: OnceLock<Upcalls> = OnceLock::new();

/// Sets the functions. Called once, by start-up, while there is one thread.
pub fn set(start_reclaimer: fn(), dispatch: Dispatch, entry: Entry) {
    let _ = UPCALLS.set(Upcalls {
        start_reclaimer,
        dispatch,
        entry,
    });
}

/// Starts the reclaim thread of this process, unless it runs.
pub fn start_reclaimer() {
    if let Some(to) = UPCALLS.get() {
        (to.start_reclaimer)();
    }
}

/// The entry point of libc's calls.
pub fn entry() -> Option<Entry> {
    UPCALLS.get().map(|to| to.entry)
}

/// The function that handles the program's system calls; set before the filter that traps them.
pub fn dispatch() -> Option<Dispatch> {
    UPCALLS.get().map(|to| to.dispatch)
}
