//! System calls whose arguments point into far memory.
//!
//! In signal mode the kernel's own access to an absent page fails with EFAULT. So before such a call its pages are made
//! present and *pinned* (a count in the page word that reclaim respects), and unpinned after it. The table of calls
//! ([`crate::memory::calls`]) says which arguments are pointers, and to how much.

use canvas_core::pager::word;
use canvas_sys::{file, gate, probe, uapi};
use canvas_types::layout::{in_window, may_be_far};
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::memory::{
    calls::{self, To, To::*},
    others,
    pins::{self, Pins},
    uaccess,
};
use crate::own_memory::areas;
use crate::paging::devices;

/// Elements of a vector that are read at once.
const IOVECS: usize = 64;
/// Words of a structure that are searched for pointers.
const POINTERS: usize = 16;
/// Bytes that are pinned of a buffer of unknown length.
const POINTED_BYTES: usize = 4 * PAGE_SIZE;
/// Bytes that are pinned for an `ioctl` argument of unknown length: the longest is HDIO_GET_IDENTITY's.
const IOCTL_BYTES: usize = 512;
/// Bits of a set: as many descriptors as a process can usually have (fs.nr_open).
const BITS_MAX: usize = 1 << 20;
impl Pins {
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
                // SAFETY: within a page that the kernel could read just now. Other threads of the program may write to
                // it meanwhile: then any bytes are copied.
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
        self.pin(addr, n * uapi::IOVEC);
        // Several at once: outside the managed range each read is a call to the kernel.
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
        self.pin(addr, uapi::MSGHDR);
        let mut words = [0usize; 7];
        if uaccess::get_words(addr, &mut words).is_err() {
            return;
        }
        let [name, name_len, iov, iov_n, control, control_len, _] = words;
        self.pin(name, name_len as u32 as usize);
        self.pin_iovecs(iov, iov_n);
        self.pin(control, control_len);
    }
    /// Pins the managed memory that pointers among a structure's words point to, as many bytes as such buffers usually
    /// have.
    fn pin_pointed(&mut self, addr: usize, bytes: usize) {
        let mut words = [0usize; POINTERS];
        let words = &mut words[..(bytes / size_of::<usize>()).min(POINTERS)];
        if addr == 0 || uaccess::get_words(addr, words).is_err() {
            return;
        }
        for word in words.iter().filter(|w| may_be_far(**w)) {
            self.pin(*word, POINTED_BYTES);
        }
    }
    fn pin_ioctl(&mut self, command: usize, at: usize) {
        // As _IOC encodes it: direction, size, type, number. Older commands have no size.
        let (is_sized, bytes) = (command >> 30 & 3 != 0, command >> 16 & 0x3fff);
        let bytes = match (is_sized, command >> 8 & 0xff) {
            (true, _) => bytes,
            // SIOCGIFCONF and the like: ifconf, ifreq.
            (false, 0x89) => 40,
            // SG_IO: sg_io_hdr.
            (false, 0x22) => 88,
            _ => return self.pin(at, IOCTL_BYTES),
        };
        self.pin(at, bytes);
        self.pin_pointed(at, bytes);
    }
    fn pin_semctl(&mut self, a: &[usize; 6]) {
        const GETALL: i32 = 13;
        const SETALL: i32 = 17;
        const PLACE_OF_COUNT: usize = 10;
        /// The kernel's bound on semaphores of a set (SEMMSL).
        const COUNT_MAX: usize = 32_000;
        if !matches!(a[2] as i32, GETALL | SETALL) {
            return self.pin(a[3], uapi::SEMID);
        }
        let mut about = [0usize; uapi::SEMID / 8];
        let to = about.as_mut_ptr() as usize;
        // SAFETY: the kernel writes a semid64_ds, for which `about` has room.
        let asked =
            unsafe { canvas_sys::sys4(libc::SYS_semctl, a[0], 0, libc::IPC_STAT as usize, to) };
        let count = asked.map_or(COUNT_MAX, |_| about[PLACE_OF_COUNT]);
        self.pin(a[3], count * size_of::<u16>());
    }
    fn pin_prctl(&mut self, a: &[usize; 6]) {
        /// No option without a case below has a longer structure.
        const OTHERS_BYTES: usize = 16;
        const GET_AUXV: i32 = 0x4155_5856;
        match a[0] as i32 {
            libc::PR_SET_MM => self.pin(a[2], a[3].min(PAGE_SIZE)),
            libc::PR_SET_VMA => self.pin_string(a[4]),
            libc::PR_SCHED_CORE => self.pin(a[4], uapi::WORD),
            GET_AUXV => self.pin(a[1], a[2].min(PAGE_SIZE)),
            _ => self.pin(a[1], OTHERS_BYTES),
        }
    }
    fn pin_ptrace(&mut self, request: usize, at: usize) {
        /// The largest structure without an iovec: floating point registers.
        const REGISTERS_BYTES: usize = 512;
        const GETREGSET: usize = 0x4204;
        const SETREGSET: usize = 0x4205;
        match request {
            GETREGSET | SETREGSET => self.pin_iovecs(at, 1),
            _ => self.pin(at, REGISTERS_BYTES),
        }
    }
    fn pin_argument(&mut self, a: &[usize; 6], arg: u8, to: To) {
        let at = a[arg as usize];
        let count = |i: u8| a[i as usize] as u32 as usize;
        match to {
            N(n) => self.pin(at, n),
            A(i) => self.pin(at, a[i as usize]),
            AN(i, n) => self.pin(at, count(i).saturating_mul(n)),
            Address(i) => self.pin(at, count(i).min(uapi::SOCKADDR)),
            Message(i) => self.pin(at, a[i as usize].saturating_add(uapi::WORD)),
            Bits(i) => {
                let bits = (a[i as usize] as i32).max(0) as usize;
                self.pin(at, bits.min(BITS_MAX).div_ceil(64) * uapi::FD_SET_WORD);
            }
            Sized(offset) => {
                if let Ok(bytes) = uaccess::get::<u32>(at.wrapping_add(offset)) {
                    self.pin(at, (bytes as usize).min(PAGE_SIZE));
                }
            }
            Str => self.pin_string(at),
            Iov(i) => self.pin_iovecs(at, a[i as usize]),
            Remote(i) if others::is_own(a[0] as u32) => self.pin_iovecs(at, a[i as usize]),
            Remote(i) => self.pin(at, count(i).saturating_mul(uapi::IOVEC)),
            Msg => self.pin_msghdr(at),
            Mmsg(i) => {
                for k in 0..count(i).min(1024) {
                    self.pin(at + k * uapi::MMSGHDR, uapi::MMSGHDR);
                    self.pin_msghdr(at + k * uapi::MMSGHDR);
                }
            }
            Waitv(i) => {
                /// The kernel's maximum (FUTEX_WAITV_MAX).
                const WAITS: usize = 128;
                let waits = count(i).min(WAITS);
                self.pin(at, waits * uapi::FUTEX_WAITV);
                for wait in (0..waits).map(|k| at.wrapping_add(k * uapi::FUTEX_WAITV)) {
                    let mut value_and_word = [0usize; 2];
                    if uaccess::get_words(wait, &mut value_and_word).is_ok() {
                        self.pin(value_and_word[1], uapi::NUMBER);
                    }
                }
            }
            Len(i) => {
                if let Ok(len) = uaccess::get::<u32>(a[i as usize]) {
                    self.pin(at, len as usize);
                }
            }
            Blob(i) => {
                self.pin(at, count(i));
                self.pin_pointed(at, count(i));
            }
            SigPair => {
                self.pin(at, 2 * uapi::WORD);
                let mut pair = [0usize; 2];
                if uaccess::get_words(at, &mut pair).is_ok() {
                    self.pin(pair[0], uapi::SIGSET);
                }
            }
            Ioctl => self.pin_ioctl(a[1], at),
            Semctl => self.pin_semctl(a),
            Prctl => self.pin_prctl(a),
            Ptrace => self.pin_ptrace(a[0], at),
            There => {}
        }
    }
}

/// Makes memory present that a call needs after its hook has ended, or that does not return. The memory stays until it
/// is certainly no longer needed.
pub fn hold(addr: usize, bytes: usize) {
    /// Pages held, plus one; the oldest is released.
    static HELD: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let last = addr.wrapping_add(bytes).wrapping_sub(1);
    if bytes == 0 || !in_window(addr) || !in_window(last) {
        return;
    }
    for page in PageId::each(PageId::of_addr(addr).0..PageId::of_addr(last).0 + 1) {
        if pins::pin_page(page) {
            let i = NEXT.fetch_add(1, Relaxed) as usize % HELD.len();
            let old = HELD[i].swap(page.0 + 1, Relaxed);
            if old != 0 {
                word::unpin(areas::word(PageId(old - 1)));
            }
        }
    }
}

/// Makes the string at `addr` present (not pinned), for exec, which retries.
pub fn touch_string(addr: usize) {
    let mut p = Pins::new();
    p.pin_string(addr);
}

/// Bytes of one pinned piece of a long transfer.
const PIECE: usize = 1 << 20;

/// Whether the descriptor is a regular file or block device, which completes every transfer.
fn transfers_fully(fd: usize) -> bool {
    let regular = |mode: u32| matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK);
    file::stat(fd as i32).is_ok_and(|f| regular(f.st_mode))
}

/// How to make a call of the program once its pages are present.
#[derive(Clone, Copy)]
pub enum Make {
    AsItIs,
    /// By this function, so that pthread_cancel ends it. It asks of its caller what [`gate::raw`] asks.
    Cancelled(unsafe fn(usize, &[usize; 6]) -> isize),
}

impl Make {
    /// # Safety
    ///
    /// As for [`gate::raw`].
    unsafe fn call(self, nr: usize, a: &[usize; 6]) -> isize {
        match self {
            // SAFETY: for the call the caller answers.
            Make::AsItIs => unsafe { gate::raw(nr, *a) },
            // SAFETY: for the call the caller answers.
            Make::Cancelled(call) => unsafe { call(nr, a) },
        }
    }
}

/// Whether this is a `send` or `recv` that a shorter transfer may answer. Messages are whole.
fn is_on_a_stream(nr: usize, a: &[usize; 6]) -> bool {
    let known = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
    matches!(nr as i64, libc::SYS_recvfrom | libc::SYS_sendto)
        && a[4] == 0
        && a[3] as i32 & !known == 0
        && is_stream(a[0])
}

/// Whether the descriptor is a stream socket, without message boundaries.
fn is_stream(fd: usize) -> bool {
    let (mut kind, mut bytes) = (0i32, size_of::<i32>() as u32);
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_TYPE as usize);
    let to = [&raw mut kind as usize, &raw mut bytes as usize];
    let call = [fd, level, name, to[0], to[1], 0];
    // SAFETY: the kernel writes numbers to `kind` and `bytes`, and nothing else.
    let done = unsafe { gate::raw(libc::SYS_getsockopt as usize, call) };
    done == 0 && kind == libc::SOCK_STREAM
}

/// Pins what the arguments of a call in the table point to.
pub fn pinned(nr: usize, a: &[usize; 6]) -> Pins {
    let mut pins = Pins::new();
    for (arg, to) in calls::row(nr).map_or(&[][..], |row| row.arguments) {
        pins.pin_argument(a, *arg, *to);
    }
    pins
}

/// Runs a call of the table with its pages pinned.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
#[inline]
pub unsafe fn run(nr: usize, a: &[usize; 6], make: Make) -> isize {
    let _held = (nr as i64 == libc::SYS_ioctl).then(|| devices::before_ioctl(a));
    let arguments = calls::row(nr).map_or(&[][..], |row| row.arguments);
    let nested = |to: &To| {
        matches!(
            to,
            Iov(_)
                | Remote(_)
                | Msg
                | Mmsg(_)
                | Waitv(_)
                | Blob(_)
                | SigPair
                | Ioctl
                | Prctl
                | Ptrace
        )
    };
    let direct =
        |arg: &u8, to: &To| may_be_far(a[*arg as usize]) || (nested(to) && a[*arg as usize] != 0);
    let stream = matches!(nr as i64, libc::SYS_read | libc::SYS_write);
    // SAFETY: the program's call (the caller's promise).
    if let Some(r) = unsafe { others::write_file(nr, a, NOTHING_READ) } {
        return r;
    }
    if !arguments.iter().any(|(arg, to)| direct(arg, to)) {
        // SAFETY: the program's call (the caller's promise).
        return match unsafe { make.call(nr, a) } {
            // SAFETY: the program's call (the caller's promise).
            NOTHING_READ if stream => unsafe { again_from_memory(nr, a) },
            r => r,
        };
    }
    let plain = stream || matches!(nr as i64, libc::SYS_pread64 | libc::SYS_pwrite64);
    if a[2] > PIECE && (plain || is_on_a_stream(nr, a)) {
        // SAFETY: the program's call (the caller's promise).
        return unsafe { run_in_pieces(nr, a, make) };
    }
    let pins = pinned(nr, a);
    // SAFETY: the program's call (the caller's promise).
    let r = unsafe { make.call(nr, a) };
    if r == NOTHING_READ && plain {
        // SAFETY: the program's call (the caller's promise).
        return unsafe { again_from_memory(nr, a) };
    }
    drop(pins);
    r
}

/// What /proc/PID/mem answers for a far page.
const NOTHING_READ: isize = -(libc::EIO as isize);

/// Repeats a `read` or `write` that failed, with pages made present, if the file position is an address of managed
/// memory, as in /proc/PID/mem.
///
/// # Safety
///
/// As for [`run`].
#[cold]
unsafe fn again_from_memory(nr: usize, a: &[usize; 6]) -> isize {
    let at = match nr as i64 {
        libc::SYS_pread64 | libc::SYS_pwrite64 => Ok(a[3]),
        // SAFETY: the call takes no address.
        _ => unsafe { canvas_sys::sys3(libc::SYS_lseek, a[0], 0, libc::SEEK_CUR as usize) },
    };
    let Some(at) = at.ok().filter(|at| may_be_far(*at)) else {
        return NOTHING_READ;
    };
    let mut pins = pins::pin_range(at, a[2].min(PIECE));
    pins.pin(a[1], a[2].min(PIECE));
    // SAFETY: the program's call (the caller's promise).
    match unsafe { gate::raw(nr, *a) } {
        // SAFETY: the program's call (the caller's promise).
        NOTHING_READ => unsafe { others::file(nr, a, at, NOTHING_READ) },
        r => r,
    }
}

/// Runs a long transfer in pieces, so that it never pins more than one. Transfers of files are completed; on other
/// descriptors any program must expect a shorter transfer, but writes continue.
///
/// # Safety
///
/// As for [`run`].
#[inline(never)]
unsafe fn run_in_pieces(nr: usize, a: &[usize; 6], make: Make) -> isize {
    let writes = matches!(
        nr as i64,
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto
    );
    let has_place = matches!(nr as i64, libc::SYS_pread64 | libc::SYS_pwrite64);
    let full = writes || transfers_fully(a[0]);
    let mut done = 0usize;
    while done < a[2] {
        let piece = (a[2] - done).min(PIECE);
        let mut b = *a;
        b[1] = a[1] + done;
        b[2] = piece;
        let mut pins = pins::pin_range(b[1], piece);
        if has_place {
            b[3] = a[3] + done;
            // /proc/self/mem.
            pins.pin(b[3], piece);
        }
        // SAFETY: a part of the program's call (the caller's promise).
        let r = unsafe { make.call(nr, &b) };
        drop(pins);
        let r = match r {
            // SAFETY: a part of the program's call (the caller's promise).
            NOTHING_READ => unsafe { again_from_memory(nr, &b) },
            r => r,
        };
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
