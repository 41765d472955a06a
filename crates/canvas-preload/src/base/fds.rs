//! Descriptors of ours in the program: each has a place of its own here, and none is the program's to close.

use canvas_shm::segment::shared_fd;
use canvas_sys::pagemap::Pagemap;
use canvas_sys::{descriptors, proc};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// What a descriptor of ours is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fd {
    /// The tenant segment.
    Segment,
    /// The library, for programs that this one starts.
    Library,
    /// The userfaultfd.
    Uffd,
    /// This process, for process_madvise.
    Pidfd,
    /// The trace's file.
    Trace,
    /// /proc/self/pagemap.
    Pagemap,
    /// A connection to a donor, one of [`LANES`].
    Lane(usize),
    /// Of the device that lanes read by, one of [`DEVICES`].
    Device(usize),
    /// One of shared memory's, by [`shared_fd`].
    Shared(usize),
}

/// Connections to donors that a process has at most.
pub const LANES: usize = 8;
/// Descriptors of a device: for what is asked of it, and for what it tells.
pub const DEVICES: usize = 2;
/// Places before those of lanes.
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

static OURS: [AtomicI32; OWN + shared_fd::COUNT] =
    [const { AtomicI32::new(-1) }; OWN + shared_fd::COUNT];

/// Keeps a descriptor from the program; -1 when there is none any more.
pub fn guard(what: Fd, fd: i32) {
    OURS[what.place()].store(fd, Ordering::Relaxed);
}

/// The descriptor that is there for `what`.
pub fn get(what: Fd) -> Option<i32> {
    let fd = OURS[what.place()].load(Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// This process's pagemap, which is open for good; `None` without /proc.
pub fn pagemap() -> Option<ManuallyDrop<Pagemap>> {
    get(Fd::Pagemap).map(Pagemap::of)
}

/// All that there are.
pub fn ours() -> impl Iterator<Item = i32> {
    OURS.iter()
        .map(|o| o.load(Ordering::Relaxed))
        .filter(|fd| *fd >= 0)
}

/// Is it one of ours?
pub fn is_ours(fd: usize) -> bool {
    ours().any(|o| o == fd as i32)
}

/// Whether a filter of the program's forbids what [`leave_the_programs`] does.
static SHARED_FOR_EVER: AtomicBool = AtomicBool::new(false);

/// A filter of the program's forbids close_range: threads that begin from now on share its descriptors.
pub fn forbid_leaving() {
    SHARED_FOR_EVER.store(true, Ordering::Relaxed);
}

/// The thread that has a table of its own; 0 for none.
static ITS_OWN: AtomicU32 = AtomicU32::new(0);

/// Has this thread descriptors of its own, which others do not see?
pub fn has_its_own() -> bool {
    let thread = ITS_OWN.load(Ordering::Relaxed);
    thread != 0 && thread == proc::tid()
}

/// Gives this thread a table of descriptors of its own, in which there are only ours. A file that it opens
/// then never has the number that the program would get next: a shell that closes its input and opens a file
/// relies on that. Where the kernel has no such call, all stays as it is, and this is false.
pub fn leave_the_programs() -> bool {
    if SHARED_FOR_EVER.load(Ordering::Relaxed) {
        return false;
    }
    let (mut from, mut flags) = (0, libc::CLOSE_RANGE_UNSHARE as usize);
    loop {
        let next = ours().filter(|fd| *fd as u32 >= from).min();
        let to = next.map_or(u32::MAX, |fd| fd as u32 - 1);
        // Two of ours may have neighbouring numbers.
        if from <= to {
            // SAFETY: the table is this thread's own from the first call on; when that fails, there is no second.
            let closed = unsafe {
                canvas_sys::sys3(libc::SYS_close_range, from as usize, to as usize, flags)
            };
            if closed.is_err() {
                return flags == 0;
            }
            flags = 0;
        }
        match next {
            Some(fd) => from = fd as u32 + 1,
            None => {
                ITS_OWN.store(proc::tid(), Ordering::Relaxed);
                return true;
            }
        }
    }
}

/// Connections to donors lie at or above this number, out of the way of programs that count on getting the lowest
/// ones.
pub fn floor() -> i32 {
    descriptors::floor()
}
