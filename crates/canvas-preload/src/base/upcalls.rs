//! What a room calls of one above it: functions that start-up puts here, before anything can call them.

use std::sync::OnceLock;

use crate::base::call::Call;

/// The way of libc's calls to [`Dispatch`]: a jump there with the registers of a call, and in rcx where to go on.
pub type Entry = unsafe extern "C" fn();

/// Makes, or stands in for, a system call of the program.
pub type Dispatch = unsafe extern "C" fn(*mut Call) -> isize;

static START_RECLAIMER: OnceLock<fn()> = OnceLock::new();
static DISPATCH: OnceLock<Dispatch> = OnceLock::new();
static ENTRY: OnceLock<Entry> = OnceLock::new();

/// Sets them. Once, by start-up, while there is one thread.
pub fn set(start: fn(), dispatch: Dispatch, entry: Entry) {
    let _ = START_RECLAIMER.set(start);
    let _ = DISPATCH.set(dispatch);
    let _ = ENTRY.set(entry);
}

/// Starts the reclaim thread of this process, unless it runs.
pub fn start_reclaimer() {
    if let Some(start) = START_RECLAIMER.get() {
        start();
    }
}

/// Where libc's calls come by.
pub fn entry() -> Option<Entry> {
    ENTRY.get().copied()
}

/// Where the program's system calls are judged; set before the filter that traps them.
pub fn dispatch() -> Option<Dispatch> {
    DISPATCH.get().copied()
}
