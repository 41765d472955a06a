//! System calls whose arguments point into far memory.
//!
//! In signal mode the kernel's own access to an absent page fails with EFAULT. So before such a
//! call its pages are made present and *pinned* (a count in the page word that reclaim respects),
//! and unpinned after it. A table says for each call which arguments are pointers, and to how much.

use canvas_pager::word;
use canvas_sys::{gate, mem, probe, proc};
use canvas_types::layout::{self, in_partition, in_window, may_be_far};
use canvas_types::{PAGE_SIZE, PageId};

use crate::base::{areas, call, freeze, regions, state};
use crate::memory::uaccess;
use crate::paging::devices;
use crate::paging::fault::{self, Resolved};
use crate::shared::pins;

/// What a pointer argument points to.
#[derive(Clone, Copy)]
enum To {
    /// So many bytes.
    N(usize),
    /// As many bytes as this argument says.
    A(u8),
    /// As many elements as this argument says, of so many bytes.
    AN(u8, usize),
    /// A C string.
    Str,
    /// An array of iovecs, as many as this argument says.
    Iov(u8),
    /// A msghdr.
    Msg,
    /// An array of mmsghdrs, as many as this argument says.
    Mmsg(u8),
    /// As many bytes as the u32 that this argument points to (socklen_t).
    Len(u8),
    /// A struct sigevent-like or unknown object: to the end of the page at least.
    Unknown,
    /// pselect6's { sigset, size } pair.
    SigPair,
}
use To::*;

type Spec = (i64, &'static [(u8, To)]);

const STAT: usize = 144;
const TS: usize = 16;
const SOCKADDR: usize = 128;

/// The table. Calls without pointers, or with their own hook, are not in it.
static SPECS: &[Spec] = &[
    (libc::SYS_read, &[(1, A(2))]),
    (libc::SYS_write, &[(1, A(2))]),
    (libc::SYS_pread64, &[(1, A(2))]),
    (libc::SYS_pwrite64, &[(1, A(2))]),
    (libc::SYS_readv, &[(1, Iov(2))]),
    (libc::SYS_writev, &[(1, Iov(2))]),
    (libc::SYS_preadv, &[(1, Iov(2))]),
    (libc::SYS_pwritev, &[(1, Iov(2))]),
    (libc::SYS_preadv2, &[(1, Iov(2))]),
    (libc::SYS_pwritev2, &[(1, Iov(2))]),
    (libc::SYS_vmsplice, &[(1, Iov(2))]),
    (libc::SYS_process_vm_readv, &[(1, Iov(2)), (3, AN(4, 16))]),
    (libc::SYS_process_vm_writev, &[(1, Iov(2)), (3, AN(4, 16))]),
    (libc::SYS_open, &[(0, Str)]),
    (libc::SYS_openat, &[(1, Str)]),
    (libc::SYS_openat2, &[(1, Str), (2, A(3))]),
    (libc::SYS_creat, &[(0, Str)]),
    (libc::SYS_stat, &[(0, Str), (1, N(STAT))]),
    (libc::SYS_lstat, &[(0, Str), (1, N(STAT))]),
    (libc::SYS_fstat, &[(1, N(STAT))]),
    (libc::SYS_newfstatat, &[(1, Str), (2, N(STAT))]),
    (libc::SYS_statx, &[(1, Str), (4, N(256))]),
    (libc::SYS_statfs, &[(0, Str), (1, N(120))]),
    (libc::SYS_fstatfs, &[(1, N(120))]),
    (libc::SYS_access, &[(0, Str)]),
    (libc::SYS_faccessat, &[(1, Str)]),
    (libc::SYS_faccessat2, &[(1, Str)]),
    (libc::SYS_poll, &[(0, AN(1, 8))]),
    (
        libc::SYS_select,
        &[
            (1, N(SOCKADDR)),
            (2, N(SOCKADDR)),
            (3, N(SOCKADDR)),
            (4, N(TS)),
        ],
    ),
    (libc::SYS_ioctl, &[(2, Unknown)]),
    (libc::SYS_fcntl, &[(2, N(32))]),
    (libc::SYS_pipe, &[(0, N(8))]),
    (libc::SYS_pipe2, &[(0, N(8))]),
    (libc::SYS_nanosleep, &[(0, N(TS)), (1, N(TS))]),
    (libc::SYS_clock_nanosleep, &[(2, N(TS)), (3, N(TS))]),
    (libc::SYS_clock_gettime, &[(1, N(TS))]),
    (libc::SYS_clock_settime, &[(1, N(TS))]),
    (libc::SYS_clock_getres, &[(1, N(TS))]),
    (libc::SYS_gettimeofday, &[(0, N(TS)), (1, N(8))]),
    (libc::SYS_time, &[(0, N(8))]),
    (libc::SYS_getitimer, &[(1, N(32))]),
    (libc::SYS_setitimer, &[(1, N(32)), (2, N(32))]),
    (libc::SYS_timer_create, &[(1, N(64)), (2, N(8))]),
    (libc::SYS_timer_settime, &[(2, N(32)), (3, N(32))]),
    (libc::SYS_timer_gettime, &[(1, N(32))]),
    (libc::SYS_timerfd_settime, &[(2, N(32)), (3, N(32))]),
    (libc::SYS_timerfd_gettime, &[(1, N(32))]),
    (libc::SYS_sendfile, &[(2, N(8))]),
    (libc::SYS_splice, &[(1, N(8)), (3, N(8))]),
    (libc::SYS_copy_file_range, &[(1, N(8)), (3, N(8))]),
    (libc::SYS_connect, &[(1, A(2))]),
    (libc::SYS_bind, &[(1, A(2))]),
    (libc::SYS_accept, &[(2, N(4)), (1, Len(2))]),
    (libc::SYS_accept4, &[(2, N(4)), (1, Len(2))]),
    (libc::SYS_getsockname, &[(2, N(4)), (1, Len(2))]),
    (libc::SYS_getpeername, &[(2, N(4)), (1, Len(2))]),
    (libc::SYS_sendto, &[(1, A(2)), (4, A(5))]),
    (libc::SYS_recvfrom, &[(1, A(2)), (5, N(4)), (4, Len(5))]),
    (libc::SYS_sendmsg, &[(1, Msg)]),
    (libc::SYS_recvmsg, &[(1, Msg)]),
    (libc::SYS_sendmmsg, &[(1, Mmsg(2))]),
    (libc::SYS_recvmmsg, &[(1, Mmsg(2)), (4, N(TS))]),
    (libc::SYS_socketpair, &[(3, N(8))]),
    (libc::SYS_setsockopt, &[(3, A(4))]),
    (libc::SYS_getsockopt, &[(4, N(4)), (3, Len(4))]),
    (libc::SYS_wait4, &[(1, N(4)), (3, N(STAT))]),
    (libc::SYS_waitid, &[(2, N(SOCKADDR)), (4, N(STAT))]),
    (libc::SYS_uname, &[(0, N(390))]),
    (libc::SYS_semop, &[(1, AN(2, 6))]),
    (libc::SYS_semtimedop, &[(1, AN(2, 6)), (3, N(TS))]),
    (libc::SYS_semctl, &[(3, Unknown)]),
    (libc::SYS_shmctl, &[(2, N(SOCKADDR))]),
    (libc::SYS_msgctl, &[(2, N(SOCKADDR))]),
    (libc::SYS_msgsnd, &[(1, A(2)), (1, N(8))]),
    (libc::SYS_msgrcv, &[(1, A(2)), (1, N(8))]),
    (libc::SYS_truncate, &[(0, Str)]),
    (libc::SYS_getdents, &[(1, A(2))]),
    (libc::SYS_getdents64, &[(1, A(2))]),
    (libc::SYS_getcwd, &[(0, A(1))]),
    (libc::SYS_chdir, &[(0, Str)]),
    (libc::SYS_chroot, &[(0, Str)]),
    (libc::SYS_rename, &[(0, Str), (1, Str)]),
    (libc::SYS_renameat, &[(1, Str), (3, Str)]),
    (libc::SYS_renameat2, &[(1, Str), (3, Str)]),
    (libc::SYS_mkdir, &[(0, Str)]),
    (libc::SYS_mkdirat, &[(1, Str)]),
    (libc::SYS_rmdir, &[(0, Str)]),
    (libc::SYS_mknod, &[(0, Str)]),
    (libc::SYS_mknodat, &[(1, Str)]),
    (libc::SYS_link, &[(0, Str), (1, Str)]),
    (libc::SYS_linkat, &[(1, Str), (3, Str)]),
    (libc::SYS_symlink, &[(0, Str), (1, Str)]),
    (libc::SYS_symlinkat, &[(0, Str), (2, Str)]),
    (libc::SYS_unlink, &[(0, Str)]),
    (libc::SYS_unlinkat, &[(1, Str)]),
    (libc::SYS_readlink, &[(0, Str), (1, A(2))]),
    (libc::SYS_readlinkat, &[(1, Str), (2, A(3))]),
    (libc::SYS_chmod, &[(0, Str)]),
    (libc::SYS_fchmodat, &[(1, Str)]),
    (libc::SYS_chown, &[(0, Str)]),
    (libc::SYS_lchown, &[(0, Str)]),
    (libc::SYS_fchownat, &[(1, Str)]),
    (libc::SYS_utime, &[(0, Str), (1, N(16))]),
    (libc::SYS_utimes, &[(0, Str), (1, N(32))]),
    (libc::SYS_utimensat, &[(1, Str), (2, N(32))]),
    (libc::SYS_futimesat, &[(1, Str), (2, N(32))]),
    (libc::SYS_getrusage, &[(1, N(STAT))]),
    (libc::SYS_sysinfo, &[(0, N(112))]),
    (libc::SYS_times, &[(0, N(32))]),
    (libc::SYS_syslog, &[(1, A(2))]),
    (libc::SYS_getgroups, &[(1, AN(0, 4))]),
    (libc::SYS_setgroups, &[(1, AN(0, 4))]),
    (libc::SYS_getresuid, &[(0, N(4)), (1, N(4)), (2, N(4))]),
    (libc::SYS_getresgid, &[(0, N(4)), (1, N(4)), (2, N(4))]),
    (libc::SYS_capget, &[(0, N(8)), (1, N(24))]),
    (libc::SYS_capset, &[(0, N(8)), (1, N(24))]),
    (libc::SYS_rt_sigpending, &[(0, N(8))]),
    (
        libc::SYS_rt_sigtimedwait,
        &[(0, N(8)), (1, N(SOCKADDR)), (2, N(TS))],
    ),
    (libc::SYS_rt_sigqueueinfo, &[(2, N(SOCKADDR))]),
    (libc::SYS_rt_tgsigqueueinfo, &[(3, N(SOCKADDR))]),
    (libc::SYS_signalfd, &[(1, N(8))]),
    (libc::SYS_signalfd4, &[(1, N(8))]),
    (libc::SYS_sched_setparam, &[(1, N(4))]),
    (libc::SYS_sched_getparam, &[(1, N(4))]),
    (libc::SYS_sched_setscheduler, &[(2, N(4))]),
    (libc::SYS_sched_rr_get_interval, &[(1, N(TS))]),
    (libc::SYS_sched_setattr, &[(1, N(56))]),
    (libc::SYS_sched_getattr, &[(1, A(2))]),
    (libc::SYS_sched_setaffinity, &[(2, A(1))]),
    (libc::SYS_sched_getaffinity, &[(2, A(1))]),
    (libc::SYS_getcpu, &[(0, N(4)), (1, N(4))]),
    (libc::SYS_prctl, &[(1, Unknown)]),
    (libc::SYS_mount, &[(0, Str), (1, Str), (2, Str), (4, Str)]),
    (libc::SYS_umount2, &[(0, Str)]),
    (libc::SYS_sethostname, &[(0, A(1))]),
    (libc::SYS_setxattr, &[(0, Str), (1, Str), (2, A(3))]),
    (libc::SYS_lsetxattr, &[(0, Str), (1, Str), (2, A(3))]),
    (libc::SYS_fsetxattr, &[(1, Str), (2, A(3))]),
    (libc::SYS_getxattr, &[(0, Str), (1, Str), (2, A(3))]),
    (libc::SYS_lgetxattr, &[(0, Str), (1, Str), (2, A(3))]),
    (libc::SYS_fgetxattr, &[(1, Str), (2, A(3))]),
    (libc::SYS_listxattr, &[(0, Str), (1, A(2))]),
    (libc::SYS_llistxattr, &[(0, Str), (1, A(2))]),
    (libc::SYS_flistxattr, &[(1, A(2))]),
    (libc::SYS_removexattr, &[(0, Str), (1, Str)]),
    (libc::SYS_lremovexattr, &[(0, Str), (1, Str)]),
    (libc::SYS_fremovexattr, &[(1, Str)]),
    (libc::SYS_futex, &[(0, N(4)), (3, N(TS)), (4, N(4))]),
    (libc::SYS_epoll_wait, &[(1, AN(2, 12))]),
    (libc::SYS_epoll_ctl, &[(3, N(12))]),
    (libc::SYS_inotify_add_watch, &[(1, Str)]),
    (libc::SYS_getrandom, &[(0, A(1))]),
    (libc::SYS_memfd_create, &[(0, Str)]),
    (libc::SYS_rseq, &[(0, N(32))]),
    (libc::SYS_arch_prctl, &[(1, N(8))]),
    (libc::SYS_quotactl, &[(1, Str), (3, Unknown)]),
    (
        libc::SYS_name_to_handle_at,
        &[(1, Str), (2, N(136)), (3, N(4))],
    ),
    (libc::SYS_mq_open, &[(0, Str), (3, N(64))]),
    (libc::SYS_mq_unlink, &[(0, Str)]),
    (libc::SYS_mq_timedsend, &[(1, A(2)), (4, N(TS))]),
    (
        libc::SYS_mq_timedreceive,
        &[(1, A(2)), (3, N(4)), (4, N(TS))],
    ),
    (libc::SYS_add_key, &[(0, Str), (1, Str), (2, A(3))]),
    (libc::SYS_perf_event_open, &[(0, N(128))]),
    (libc::SYS_bpf, &[(1, A(2))]),
    (
        libc::SYS_pselect6,
        &[
            (1, N(SOCKADDR)),
            (2, N(SOCKADDR)),
            (3, N(SOCKADDR)),
            (4, N(TS)),
            (5, SigPair),
        ],
    ),
    (libc::SYS_ppoll, &[(0, AN(1, 8)), (2, N(TS)), (3, N(8))]),
    (libc::SYS_epoll_pwait, &[(1, AN(2, 12)), (4, N(8))]),
    (
        libc::SYS_epoll_pwait2,
        &[(1, AN(2, 12)), (3, N(TS)), (4, N(8))],
    ),
    (libc::SYS_sigaltstack, &[(0, N(24)), (1, N(24))]),
    (libc::SYS_set_mempolicy, &[(1, N(128))]),
    (libc::SYS_mbind, &[(3, N(128))]),
    (libc::SYS_get_mempolicy, &[(0, N(4)), (1, N(128))]),
];

/// Calls of the table for each number, plus one; filled by [`init`].
static INDEX: [core::sync::atomic::AtomicU8; call::NR_MAX] =
    [const { core::sync::atomic::AtomicU8::new(0) }; call::NR_MAX];

/// Fills the index and tells which calls are in the table.
pub fn init(mut wanted: impl FnMut(usize)) {
    const { assert!(SPECS.len() < 255) };
    for (i, s) in SPECS.iter().enumerate() {
        INDEX[s.0 as usize].store(i as u8 + 1, core::sync::atomic::Ordering::Relaxed);
        wanted(s.0 as usize);
    }
}

/// Each call of the table with the mask of its pointer arguments, for the seccomp filter.
pub fn pointer_masks() -> impl Iterator<Item = (u32, u8)> {
    SPECS.iter().map(|(nr, spec)| {
        (
            *nr as u32,
            spec.iter().fold(0u8, |m, (arg, _)| m | 1 << arg),
        )
    })
}

fn spec(nr: usize) -> &'static [(u8, To)] {
    match INDEX[nr].load(core::sync::atomic::Ordering::Relaxed) {
        0 => &[],
        i => SPECS[i as usize - 1].1,
    }
}

/// Elements of a vector that are read at once.
const IOVECS: usize = 64;
/// Ranges of one call that need no memory of their own.
const PINS: usize = 64;
/// Ranges of a block of the rest (a vector of a thousand buffers): one mapping, touched lazily.
const BLOCK_RANGES: usize = 8190;

#[repr(C)]
struct Block {
    next: *mut Block,
    n: usize,
    ranges: [(u32, u32); BLOCK_RANGES],
}

/// Pinned pages of one call.
pub struct Pins {
    ranges: [(u32, u32); PINS],
    n: usize,
    more: *mut Block,
    shared: pins::Pin,
}

impl Pins {
    /// None yet.
    pub fn new() -> Pins {
        Pins {
            ranges: [(0, 0); PINS],
            n: 0,
            more: core::ptr::null_mut(),
            shared: pins::Pin::new(),
        }
    }
    /// Remembers a range for [`Pins::drop`]. False when there is no memory to do so.
    fn note(&mut self, range: (u32, u32)) -> bool {
        if self.n < PINS {
            self.ranges[self.n] = range;
            self.n += 1;
            return true;
        }
        // SAFETY: null, or a block that `map_lazy` gave, which only this `Pins` knows until it is dropped.
        let full = unsafe { self.more.as_ref() }.is_none_or(|b| b.n == BLOCK_RANGES);
        if full {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let Ok(at) = mem::map_lazy(0, core::mem::size_of::<Block>(), rw) else {
                return false;
            };
            let block = at as *mut Block;
            // SAFETY: fresh zeroed memory, which is a valid empty block.
            unsafe { (*block).next = self.more };
            self.more = block;
        }
        // SAFETY: not null any more; as just said, nobody else refers to the block.
        let block = unsafe { &mut *self.more };
        block.ranges[block.n] = range;
        block.n += 1;
        true
    }
    /// Pins `addr..addr+bytes` as far as it lies in the window and is mapped; the kernel finds out
    /// about the rest itself.
    pub fn pin(&mut self, addr: usize, bytes: usize) {
        if in_partition(addr) {
            self.shared.pin(addr, bytes);
            return;
        }
        if bytes == 0 || !in_window(addr) {
            return;
        }
        let last = addr.saturating_add(bytes - 1).min(layout::window_end() - 1);
        let (first, last) = (PageId::of_addr(addr).0, PageId::of_addr(last).0);
        let mut from = first;
        while from <= last {
            let mut page = from;
            while page <= last && pin_page(PageId(page)) {
                page += 1;
            }
            if page > from && !self.note((from, page)) {
                unpin_range((from, page));
                return;
            }
            if page > last {
                return;
            }
            // A file or shared mapping inside the window is the kernel's own; behind it we go on.
            match regions::native_until(PageId(page)) {
                Some(end) => from = end.0,
                None => return,
            }
        }
    }
    fn pin_string(&mut self, addr: usize) {
        let mut at = addr;
        while may_be_far(at) && at - addr < 2 * PAGE_SIZE {
            let end = (at & !(PAGE_SIZE - 1)) + PAGE_SIZE;
            self.pin(at, end - at);
            if !probe::is_readable(at & !(probe::BYTES - 1)) {
                return;
            }
            while at < end {
                let mut piece = [0u8; 64];
                let n = piece.len().min(end - at);
                // SAFETY: within a page that can be read, as was just asked; copied, because other threads of the
                // program may write to it meanwhile.
                unsafe { core::ptr::copy_nonoverlapping(at as *const u8, piece.as_mut_ptr(), n) };
                if piece[..n].contains(&0) {
                    return;
                }
                at += n;
            }
        }
    }
    fn pin_iovecs(&mut self, addr: usize, n: usize) {
        let n = n.min(1024);
        self.pin(addr, n * 16);
        // Several at once: outside of the window each look is a call to the kernel.
        let mut words = [0usize; IOVECS * 2];
        for first in (0..n).step_by(IOVECS) {
            let words = &mut words[..(n - first).min(IOVECS) * 2];
            if uaccess::get_words(addr + first * 16, words).is_err() {
                return;
            }
            for iovec in words.as_chunks::<2>().0 {
                self.pin(iovec[0], iovec[1]);
            }
        }
    }
    fn pin_msghdr(&mut self, addr: usize) {
        self.pin(addr, 56);
        let mut words = [0usize; 7];
        if uaccess::get_words(addr, &mut words).is_err() {
            return;
        }
        let [name, name_len, iov, iov_n, control, control_len, _] = words;
        self.pin(name, name_len as u32 as usize);
        self.pin_iovecs(iov, iov_n);
        self.pin(control, control_len);
    }
    fn pin_spec(&mut self, a: &[usize; 6], arg: u8, to: To) {
        let at = a[arg as usize];
        match to {
            N(n) => self.pin(at, n),
            A(i) => self.pin(at, a[i as usize]),
            AN(i, n) => self.pin(at, (a[i as usize] as u32 as usize).saturating_mul(n)),
            Str => self.pin_string(at),
            Iov(i) => self.pin_iovecs(at, a[i as usize]),
            Msg => self.pin_msghdr(at),
            Mmsg(i) => {
                for k in 0..(a[i as usize] as u32 as usize).min(1024) {
                    self.pin(at + k * 64, 64);
                    self.pin_msghdr(at + k * 64);
                }
            }
            Len(i) => {
                // SAFETY: a number.
                if let Ok(len) = unsafe { uaccess::get::<u32>(a[i as usize]) } {
                    self.pin(at, len as usize);
                }
            }
            Unknown => self.pin(at, PAGE_SIZE - (at & (PAGE_SIZE - 1))),
            SigPair => {
                self.pin(at, 16);
                let mut pair = [0usize; 2];
                if uaccess::get_words(at, &mut pair).is_ok() {
                    self.pin(pair[0], 8);
                }
            }
        }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for range in &self.ranges[..self.n] {
            unpin_range(*range);
        }
        while !self.more.is_null() {
            let at = self.more;
            // SAFETY: a block of ours, unmapped once, after its last use.
            unsafe {
                for range in &(&(*at).ranges)[..(*at).n] {
                    unpin_range(*range);
                }
                self.more = (*at).next;
                let _ = mem::unmap(at as usize, core::mem::size_of::<Block>());
            }
        }
    }
}

fn unpin_range((first, end): (u32, u32)) {
    for page in PageId::each(first..end) {
        word::unpin(areas::word(page));
    }
}

/// Makes a page present and pins it; false when it cannot be made present.
fn pin_page(page: PageId) -> bool {
    let w = areas::word(page);
    loop {
        if word::pin(w) {
            return true;
        }
        let _inside = freeze::enter();
        if fault::resolve(page, true) != Resolved::Present {
            return false;
        }
        state::count(canvas_shm::Counter::FaultSyscall, 1);
        // Pinned while inside: a batch of reclaim may have it again before the next round.
        if word::pin(w) {
            return true;
        }
    }
}

/// Pins the pages of `addr..addr+bytes` until the result is dropped.
pub fn pin_range(addr: usize, bytes: usize) -> Pins {
    let mut p = Pins::new();
    p.pin(addr, bytes);
    p
}

/// Does clone3 with these arguments, present and pinned, make a process with its own memory that
/// goes on where this one stands?
pub fn clone3_is_fork(clone_args: usize) -> bool {
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack
    let mut words = [0usize; 6];
    uaccess::get_words(clone_args, &mut words).is_ok()
        && words[0] & libc::CLONE_VM as usize == 0
        && words[5] == 0
}

/// A new thread's stack lies in the window (`pthread_attr_setstack`): its top is made present and
/// stays so until the thread is long running. `clone_args` as clone3 takes them.
pub fn hold_new_stack(clone_args: usize) {
    /// Tops held, as page + 1; the oldest is let go.
    static HELD: [core::sync::atomic::AtomicU32; 16] =
        [const { core::sync::atomic::AtomicU32::new(0) }; 16];
    static NEXT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    use core::sync::atomic::Ordering::Relaxed;
    let mut words = [0usize; 2];
    if uaccess::get_words(clone_args.wrapping_add(40), &mut words).is_err() {
        return;
    }
    let [stack, bytes] = words;
    let top = stack.wrapping_add(bytes).wrapping_sub(1);
    if !in_window(stack) || !in_window(top) {
        return;
    }
    let last = PageId::of_addr(top).0;
    // The thread's descriptor and the first frames: four pages.
    for page in (PageId::of_addr(stack).0.max(last.saturating_sub(3)))..=last {
        if pin_page(PageId(page)) {
            let i = NEXT.fetch_add(1, Relaxed) as usize % HELD.len();
            let old = HELD[i].swap(page + 1, Relaxed);
            if old != 0 {
                word::unpin(areas::word(PageId(old - 1)));
            }
        }
    }
}

/// Makes present (not pinned) what a string points to, for exec, which retries.
pub fn touch_string(addr: usize) {
    let mut p = Pins::new();
    p.pin_string(addr);
}

/// Bytes of one pinned piece of a long transfer.
const PIECE: usize = 1 << 20;

/// Is the descriptor a regular file or block device, where a transfer is done to its end?
fn transfers_fully(fd: usize) -> bool {
    let regular = |mode: u32| matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK);
    proc::file_facts(fd as i32).is_ok_and(|f| regular(f.mode))
}

/// Runs a call of the table, its pages pinned.
///
/// # Safety
/// `nr` and `a` must be a system call that the program makes, and none that could reach memory of ours: those have
/// a hook.
#[inline]
pub unsafe fn run(nr: usize, a: &[usize; 6]) -> isize {
    let _held = (nr as i64 == libc::SYS_ioctl).then(|| devices::before_ioctl(a));
    let spec = spec(nr);
    let nested = |to: &To| matches!(to, Iov(_) | Msg | Mmsg(_) | SigPair);
    let direct =
        |arg: &u8, to: &To| may_be_far(a[*arg as usize]) || (nested(to) && a[*arg as usize] != 0);
    if !spec.iter().any(|(arg, to)| direct(arg, to)) {
        // SAFETY: the program's call, the caller's promise.
        return unsafe { gate::raw(nr, *a) };
    }
    let plain = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
    ]
    .contains(&(nr as i64));
    if plain && a[2] > PIECE {
        // SAFETY: the caller's promise.
        return unsafe { run_in_pieces(nr, a) };
    }
    let mut pins = Pins::new();
    for (arg, to) in spec {
        pins.pin_spec(a, *arg, *to);
    }
    // SAFETY: the program's call, as it is.
    let r = unsafe { gate::raw(nr, *a) };
    drop(pins);
    r
}

/// A long read or write, so that it never pins more than a piece. Files transfer to the end;
/// on anything else a shorter transfer is what any program must expect, and writes go on.
///
/// # Safety
/// As for [`run`].
unsafe fn run_in_pieces(nr: usize, a: &[usize; 6]) -> isize {
    let writes = nr as i64 == libc::SYS_write || nr as i64 == libc::SYS_pwrite64;
    let full = writes || transfers_fully(a[0]);
    let mut done = 0usize;
    while done < a[2] {
        let piece = (a[2] - done).min(PIECE);
        let mut b = *a;
        b[1] = a[1] + done;
        b[2] = piece;
        b[3] = a[3] + done;
        let pins = pin_range(b[1], piece);
        // SAFETY: a part of the program's call.
        let r = unsafe { gate::raw(nr, b) };
        drop(pins);
        if r < 0 {
            return if done > 0 { done as isize } else { r };
        }
        done += r as usize;
        if r as usize != piece || !full {
            break;
        }
    }
    done as isize
}
