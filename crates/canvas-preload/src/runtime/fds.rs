//! Canvas's descriptors in the program. Each has a place here, and the program cannot close any of them.

use canvas_shm::segment::shared_fd;
use canvas_sys::pagemap::Pagemap;
use canvas_sys::{descriptors, proc};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// What a descriptor of canvas is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fd {
    Segment,
    /// The library, for programs that this one starts.
    Library,
    Uffd,
    /// This process, for process_madvise.
    Pidfd,
    Trace,
    /// /proc/self/pagemap.
    Pagemap,
    /// A connection to a donor, one of [`LANES`].
    Lane(usize),
    /// Of the device that direct read channels use, one of [`DEVICES`].
    Device(usize),
    /// A file of shared memory, by [`shared_fd`].
    Shared(usize),
}

/// Maximum connections of a process to donors.
pub const LANES: usize = 8;
/// Descriptors of a device: for commands, and for events.
pub const DEVICES: usize = 2;
/// Places before those of direct read channels.
const LANE: usize = 6;
/// Places before those of a device.
const DEVICE: usize = LANE + LANES;
/// Places before those of shared memory.
const OWN: usize = DEVICE + DEVICES;

impl Fd {
    fn place(self) -> usize {
        match self {
            Fd::Segment => 0,
            Fd::Library => 1,
            Fd::Uffd => 2,
            Fd::Pidfd => 3,
            Fd::Trace => 4,
            Fd::Pagemap => 5,
            Fd::Lane(which) => LANE + which,
            Fd::Device(which) => DEVICE + which,
            Fd::Shared(which) => OWN + which,
        }
    }
}

state! {
    /// The program's descriptors that are canvas's, and who has a table without the program's.
    static DESCRIPTORS: Descriptors {
        /// By their place; -1 for none.
        ours: [AtomicI32; OWN + shared_fd::COUNT] =
            [const { AtomicI32::new(-1) }; OWN + shared_fd::COUNT],
        /// A filter of the program forbids what [`leave_the_programs`] does.
        forbidden: AtomicBool = AtomicBool::new(false),
        /// The thread with a table of its own; 0 for none.
        left: AtomicU32 = AtomicU32::new(0),
    }
}

/// Protects a descriptor from the program; -1 if it no longer exists.
pub fn guard(what: Fd, fd: i32) {
    DESCRIPTORS.ours[what.place()].store(fd, Ordering::Relaxed);
}

/// The descriptor for `what`, if there is one.
pub fn get(what: Fd) -> Option<i32> {
    let fd = DESCRIPTORS.ours[what.place()].load(Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// This process's pidfd, or -1 (the kernel's PIDFD_SELF is used then).
pub fn pidfd() -> i32 {
    get(Fd::Pidfd).unwrap_or(-1)
}

/// This process's pagemap, which is never closed; `None` without /proc.
pub fn pagemap() -> Option<ManuallyDrop<Pagemap>> {
    get(Fd::Pagemap).map(Pagemap::of)
}

/// All of canvas's descriptors.
pub fn ours() -> impl Iterator<Item = i32> {
    DESCRIPTORS
        .ours
        .iter()
        .map(|o| o.load(Ordering::Relaxed))
        .filter(|fd| *fd >= 0)
}

/// Whether the descriptor is canvas's.
pub fn is_ours(fd: usize) -> bool {
    ours().any(|o| o == fd as i32)
}

/// Records that a filter of the program forbids close_range: threads started from now on share the program's
/// descriptors.
pub fn forbid_leaving() {
    DESCRIPTORS.forbidden.store(true, Ordering::Relaxed);
}

/// Whether this thread has a descriptor table of its own.
pub fn has_its_own() -> bool {
    let thread = DESCRIPTORS.left.load(Ordering::Relaxed);
    thread != 0 && thread == proc::tid()
}

/// In a fork's child: no thread of it has a table of its own yet, and its threads may have the numbers of the parent's.
pub fn after_fork_in_child() {
    DESCRIPTORS.left.store(0, Ordering::Relaxed);
}

/// Gives this thread a descriptor table of its own that contains only canvas's descriptors. A file that it opens then
/// never gets the number that the program would get next: a shell that closes its input and opens a file relies on
/// that. Changes nothing if the kernel lacks the call.
pub fn leave_the_programs() {
    if DESCRIPTORS.forbidden.load(Ordering::Relaxed) {
        return;
    }
    let (mut from, mut flags) = (0, libc::CLOSE_RANGE_UNSHARE as usize);
    loop {
        let next = ours().filter(|fd| *fd as u32 >= from).min();
        let to = next.map_or(u32::MAX, |fd| fd as u32 - 1);
        // Two of canvas's descriptors may have adjacent numbers.
        if from <= to {
            // SAFETY: the call takes no address. The first one gives this thread a table of its own, so that no other
            // thread loses a descriptor; if that fails there is no second.
            let closed = unsafe {
                canvas_sys::sys3(libc::SYS_close_range, from as usize, to as usize, flags)
            };
            if closed.is_err() {
                return;
            }
            flags = 0;
            DESCRIPTORS.left.store(proc::tid(), Ordering::Relaxed);
        }
        match next {
            Some(fd) => from = fd as u32 + 1,
            None => return,
        }
    }
}

/// Connections to donors get this number or above, so that programs can rely on getting the lowest ones.
pub fn floor() -> i32 {
    descriptors::floor()
}
