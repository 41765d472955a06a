//! A tenant is one trust domain: processes that change their user stay in it. That is reported once.
//!
//! Any process with the segment's descriptor can read and write what the tenant's processes exchange with the agent,
//! and all shared memory. The descriptor cannot be taken from a process that pages, whichever user it runs as.

use canvas_sys::{file, proc};
use core::sync::atomic::Ordering;

use crate::report;
use crate::runtime::{fds, fds::Fd, state};

/// The user who created the tenant.
fn tenants() -> Option<u32> {
    let segment = file::stat(fds::get(Fd::Segment)?);
    segment.ok().map(|s| s.st_uid)
}

fn first_time() -> bool {
    state::seg().told_user.swap(1, Ordering::Relaxed) == 0
}

/// Checks the user, at start-up and after a call that may have changed it.
pub fn look() {
    let (now, Some(tenants)) = (proc::user(), tenants()) else {
        return;
    };
    if now != tenants && first_time() {
        report!(
            "a process of this run runs as user {now} now: it can still read and change the memory that the run \
             keeps for user {tenants}; to keep users apart, give each a run of its own"
        );
    }
}

/// Checks, before the program's exec of a file (as for `newfstatat`), whether that changes the user: the new image
/// inherits the descriptors.
pub fn before_exec(dir: usize, path: usize, flags: usize) {
    let Ok(file) = file::stat_at(dir, path, flags) else {
        return;
    };
    if file.st_mode & libc::S_ISUID == 0 || file.st_uid == proc::user() {
        return;
    }
    // SAFETY: this option takes no address.
    let kept = unsafe { proc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    if kept == Ok(0) && first_time() {
        report!(
            "this run starts a program that changes to user {}, which inherits descriptors of the run's memory; to \
             keep users apart, give each a run of its own",
            file.st_uid
        );
    }
}
