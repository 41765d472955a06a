//! Numbers for descriptors that the program did not open: above its limit, so that it can open as many as without
//! canvas.

use crate::gate::{Errno, sys2, sys3};
use crate::proc::{self, Limit};

/// The kernel's descriptor table reaches up to the highest number, and each fork copies it: no number above a larger
/// limit than this is used.
const LIMIT_MAX: u64 = 4096;
/// Where these descriptors go within a larger limit.
const WITHIN: i32 = 1008;
/// Numbers above the limit.
pub const ROOM: u64 = 64;

fn limit(new: Option<&Limit>) -> Result<Limit, Errno> {
    proc::limit(0, libc::RLIMIT_NOFILE, new)
}

/// The limit was raised; dropping this restores it.
struct Raised(Limit);

impl Drop for Raised {
    fn drop(&mut self) {
        let _ = limit(Some(&self.0));
    }
}

/// Raises the soft limit to [`ROOM`] above itself or `least`, and the hard one if that is necessary and permitted.
fn raise(least: u64) -> Option<Raised> {
    let now = limit(None).ok()?;
    let soft = now.soft.max(least).checked_add(ROOM)?;
    let hard = now.hard.max(soft);
    let kept = Limit {
        soft: soft.min(now.hard),
        hard: now.hard,
    };
    let higher = limit(Some(&Limit { soft, hard })).is_ok()
        || kept.soft > now.soft && limit(Some(&kept)).is_ok();
    higher.then_some(Raised(now))
}

/// Makes a descriptor of ours by `make`, which gets the lowest number that it should have and fails like the kernel if
/// there is none. For some microseconds, other threads can open more files than they may.
pub fn out_of_the_way<T>(mut make: impl FnMut(i32) -> Result<T, Errno>) -> Result<T, Errno> {
    let soft = limit(None).map_or(0, |l| l.soft);
    if soft <= LIMIT_MAX {
        // A program that lowered its limit may still use numbers that it opened above: stay out of their way, too.
        for least in [soft.max(WITHIN as u64), soft] {
            if let Some(_raised) = raise(least)
                && let Ok(made) = make(least as i32)
            {
                return Ok(made);
            }
        }
    }
    make(within(soft)).or_else(|_| make(3))
}

fn within(soft: u64) -> i32 {
    (soft.min(LIMIT_MAX) as i32 - 16).clamp(10, WITHIN)
}

/// A number near the end of those that the program may have.
pub fn floor() -> i32 {
    within(limit(None).map_or(0, |l| l.soft))
}

/// Calls `open`, which opens something that is closed again at once, even if the program has opened as many files as it
/// may.
pub fn with_room<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match open() {
        Err(Errno(libc::EMFILE)) => match raise(0) {
            Some(_raised) => open(),
            None => Err(Errno(libc::EMFILE)),
        },
        opened => opened,
    }
}

/// Moves a descriptor out of the program's way; exec closes it if `cloexec`. The old number is free in any case.
pub fn moved(fd: i32, cloexec: bool) -> Result<i32, Errno> {
    let command = match cloexec {
        true => libc::F_DUPFD_CLOEXEC,
        false => libc::F_DUPFD,
    };
    let new = out_of_the_way(|least| {
        // SAFETY: the call takes no address.
        unsafe {
            sys3(
                libc::SYS_fcntl,
                fd as usize,
                command as usize,
                least as usize,
            )
        }
    });
    // SAFETY: the call takes no address; the caller gives the descriptor away.
    let _ = unsafe { sys2(libc::SYS_close, fd as usize, 0) };
    new.map(|new| new as i32)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn ours_lie_above_the_limit_which_stays() {
        let before = limit(None).unwrap();
        let file = std::fs::File::open("/proc/self/stat")
            .unwrap()
            .into_raw_fd();
        let new = moved(file, true).unwrap();
        assert!(limit(None).unwrap() == before);
        if before.soft <= LIMIT_MAX && before.hard > before.soft {
            assert!(new as u64 >= before.soft, "{new}");
        }
        crate::proc::close(new);
    }
}
