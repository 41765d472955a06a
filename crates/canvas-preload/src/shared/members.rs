//! How this process joins those that share the partition, forks among them, and leaves.

use canvas_shm::segment::shared_fd;
use canvas_shm::shared::{self as layout, Proc};
use canvas_sys::{Errno, file, mem, proc};
use canvas_types::layout::{SHARED_BYTES, shared_base};
use canvas_types::procfs::Stat;
use core::sync::atomic::Ordering;

use crate::far_tier::keys;
use crate::paging::{freeze, regions};
use crate::report;
use crate::runtime::{fds, fds::Fd, state, state::uffd};
use crate::shared::{
    lock::{bury, bury_dead, collect, holder_of, lock, lock_word},
    mapping,
    partition::{Held, MEMBER, control, fd, is_on, map, me, my_proc},
};
use crate::tenant::life;

/// Number of a process that has none yet.
const VISITOR: usize = layout::PROCS;

/// Joins the tenant's shared memory; does nothing without `--shared`.
///
/// # Safety
///
/// To be called once, by start-up, after the areas are mapped and before anything here is used.
pub unsafe fn start() {
    let config = &state::seg().config;
    let fds = &config.shared_fds;
    let control = fds[shared_fd::CONTROL].load(Ordering::Relaxed) as i32;
    // Programs of another run of the tenant do not have it: their shared memory is native.
    let wanted = config.shared_inode.load(Ordering::Relaxed);
    let is_there = || file::stat(control).is_ok_and(|s| s.st_ino == wanted);
    if control == 0 || !is_there() {
        return;
    }
    for (i, fd) in fds.iter().enumerate() {
        fds::guard(Fd::Shared(i), fd.load(Ordering::Relaxed) as i32);
    }
    let joined =
        mem::map_shared(control, 0, layout::CONTROL_BYTES, mem::READ_WRITE).and_then(|at| {
            MEMBER.control.store(at, Ordering::Release);
            // SAFETY: called once, after the areas are mapped (the caller's promise); nothing hashes shared pages yet.
            unsafe { keys::init_shared(map()) };
            join()
        });
    match joined {
        Ok(()) => MEMBER.on.store(true, Ordering::Release),
        Err(e) => report!(
            "this program's shared memory cannot be managed (error {}): it stays native",
            e.0
        ),
    }
}

/// Maps the partition, inaccessible, registers it with our userfaultfd, and takes a number.
fn join() -> Result<(), Errno> {
    // Writes to the store would end the program by SIGXFSZ.
    if proc::limit(0, libc::RLIMIT_FSIZE, None).map(|limit| limit.soft) != Ok(u64::MAX) {
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    // SAFETY: never replaces a mapping; nothing of Rust's lies in the partition. The advices discard nothing.
    unsafe {
        canvas_sys::sys6(
            libc::SYS_mmap,
            shared_base(),
            SHARED_BYTES,
            libc::PROT_NONE as usize,
            flags as usize,
            fd(shared_fd::PARTITION) as usize,
            0,
        )?;
        // A fork's child must have no partition, or a registered one: else it would read zeros.
        mem::advise(shared_base(), SHARED_BYTES, libc::MADV_DONTFORK)?;
        mem::advise(shared_base(), SHARED_BYTES, libc::MADV_NOHUGEPAGE)?;
        let _ = mem::advise(shared_base(), SHARED_BYTES, libc::MADV_DONTDUMP);
    }
    // SAFETY: the partition that was mapped just now; its faults come to `resolve`.
    unsafe { uffd().register(shared_base(), SHARED_BYTES, false) }?;
    // Last: a process that takes over from a dead one may have to put pages back.
    take_number()
}

/// Takes a number among the processes. Until it has one, this process holds the lock as a visitor.
fn take_number() -> Result<(), Errno> {
    let c = control();
    let id = life::id();
    MEMBER.lock.store(lock_word(id, VISITOR), Ordering::Relaxed);
    for _ in 0..2 {
        let free = |p: &Proc| {
            p.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(i) = c.procs.iter().position(free) {
            c.procs_end.fetch_max(i as u32 + 1, Ordering::SeqCst);
            MEMBER.number.store(i, Ordering::Relaxed);
            MEMBER.lock.store(lock_word(id, i), Ordering::Relaxed);
            return Ok(());
        }
        bury_dead(&lock());
    }
    Err(Errno(libc::EAGAIN))
}

/// Settles everything of process `i`, none of whose threads works on pages any more, and frees its number.
fn leave(held: &Held, i: usize) {
    bury(held, i);
    control().procs[i].id.store(0, Ordering::SeqCst);
    collect(held);
}

/// Called when the process is about to end. No other thread is inside `freeze::enter`, and none enters any more.
pub fn before_exit() {
    if !is_on() || state::PROCESS.is_vfork_child() {
        return;
    }
    // Other threads could write to pages that are another process's by then: such a process is buried like one that was
    // killed. (Canvas's own thread writes nowhere.)
    let ours = u64::from(state::PROCESS.reclaimer.load(Ordering::Relaxed) != 0);
    if own_threads().is_some_and(|threads| threads <= 1 + ours) {
        let _ = canvas_sys::signal::set_mask(u64::MAX);
        if let Some(frozen) = freeze::freeze() {
            core::mem::forget(frozen);
            leave(&lock(), me());
        }
    }
}

/// Called before exec, which ends all other threads wherever they are: none of them may be in a step that others only
/// take over from a dead process.
pub fn before_exec() -> Option<freeze::Frozen> {
    // A vfork child's exec ends no thread.
    if !is_on() || state::PROCESS.is_vfork_child() {
        return None;
    }
    let mask = canvas_sys::signal::set_mask(u64::MAX);
    let frozen = freeze::freeze_for_exec();
    canvas_sys::signal::set_mask(mask);
    frozen
}

/// In a fork's child: takes a part of what its parent shares. The parent waits until this is done.
pub fn after_fork_in_child(lists: &mut regions::Lists) -> Result<(), Errno> {
    if !is_on() {
        return Ok(());
    }
    let parent = my_proc();
    let parents = fork_mark(holder_of(MEMBER.lock.load(Ordering::Relaxed)).0);
    let joined = join().and_then(|()| mapping::inherit(&lock(), lists));
    if joined.is_err() {
        MEMBER.on.store(false, Ordering::Release);
    }
    // If the parent was killed, its place may be another process's by now.
    let waits = parent
        .forking
        .compare_exchange(parents, 0, Ordering::SeqCst, Ordering::Relaxed);
    if waits.is_ok() {
        proc::futex_wake(&parent.forking, 1);
    }
    // A child without regions of its parent does not need the partition.
    if mapping::has_any() { joined } else { Ok(()) }
}

/// Called before a fork; returns whether [`wait_for_child`] must be called.
pub fn before_fork() -> bool {
    let waits = is_on() && mapping::has_any();
    if waits {
        let mark = fork_mark(life::id());
        my_proc().forking.store(mark, Ordering::SeqCst);
    }
    waits
}

/// In the parent: waits until the child has its part of all regions, so that none can end in between. `is_there` is
/// false if there is no child.
pub fn wait_for_child(id: u64, is_there: bool) {
    let p = my_proc();
    if !is_there {
        p.forking.store(0, Ordering::SeqCst);
        return;
    }
    loop {
        let waits = p.forking.load(Ordering::SeqCst);
        if waits == 0 {
            return;
        }
        proc::futex_wait(&p.forking, waits, 2_000_000);
        if life::is_gone(id) {
            p.forking.store(0, Ordering::SeqCst);
        }
    }
}

/// Value of [`Proc::forking`] while this process forks.
fn fork_mark(id: u64) -> u32 {
    id as u32 | 1 << 31
}

/// How many threads this process has; `None` without /proc.
pub fn own_threads() -> Option<u64> {
    let mut buf = [0u8; 1024];
    let n = proc::read_file(c"/proc/self/stat", &mut buf).ok()?;
    Stat::parse(&buf[..n]).map(|s| s.threads)
}
