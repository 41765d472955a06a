//! Processes, threads, time, descriptors and /proc, by raw calls.

use crate::gate::{Errno, sys0, sys1, sys2, sys3, sys4, sys6};
use crate::uapi;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of the calling process (getpid).
pub fn pid() -> u32 {
    // SAFETY: the call takes no address.
    unsafe { sys0(libc::SYS_getpid) }.unwrap_or(0) as u32
}
/// Number of the calling thread (gettid).
pub fn tid() -> u32 {
    // SAFETY: the call takes no address.
    unsafe { sys0(libc::SYS_gettid) }.unwrap_or(0) as u32
}
/// Fills `buf` with unpredictable random bytes. Early at boot it waits for the kernel's generator.
pub fn random_bytes(buf: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        let rest = &mut buf[done..];
        // SAFETY: the kernel writes `rest` only.
        match unsafe {
            sys3(
                libc::SYS_getrandom,
                rest.as_mut_ptr() as usize,
                rest.len(),
                0,
            )
        } {
            Ok(n) => done += n,
            Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Monotonic time in ns, by system call (the fault path asks the vDSO instead).
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}
/// CPU time of this thread, in ns.
pub fn thread_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}
/// CPU time of this process, in ns.
pub fn process_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}
/// Time of `clock`, in ns.
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = [0i64; 2];
    // SAFETY: the kernel writes `t` only.
    let _ = unsafe { sys2(libc::SYS_clock_gettime, clock as usize, &raw mut t as usize) };
    t[0] as u64 * 1_000_000_000 + t[1] as u64
}
/// Time stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, which reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}
/// Whether two processes share their memory, as a vfork child and its parent do until exec. Also false if one of them
/// is gone or may not be inspected (kcmp(2)).
pub fn same_memory(pid: u32, other: u32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: the call takes no address.
    let order = unsafe { sys4(libc::SYS_kcmp, pid as usize, other as usize, KCMP_VM, 0) };
    order == Ok(0)
}
/// Number of CPUs on which this thread may run; 1 if the kernel does not say.
#[inline(never)]
pub fn processors() -> u32 {
    let mut mask = [0u64; 128];
    let (len, at) = (size_of_val(&mask), mask.as_mut_ptr() as usize);
    // SAFETY: the kernel writes at most `len` bytes to `mask`.
    let filled = unsafe { sys3(libc::SYS_sched_getaffinity, 0, len, at) };
    filled.map_or(1, |_| mask.iter().map(|word| word.count_ones()).sum())
}
/// Sleeps for `ns` nanoseconds, or until a signal comes.
pub fn sleep_ns(ns: u64) {
    let t = [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64];
    // SAFETY: the kernel reads `t` only.
    let _ = unsafe { sys2(libc::SYS_nanosleep, &raw const t as usize, 0) };
}
/// Waits while `*word == expected`, up to `timeout_ns`. The word may be in shared memory.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, timeout_ns: u64) {
    let t = [
        (timeout_ns / 1_000_000_000) as i64,
        (timeout_ns % 1_000_000_000) as i64,
    ];
    // SAFETY: the word and the timeout live across the call.
    let _ = unsafe {
        sys4(
            libc::SYS_futex,
            word as *const _ as usize,
            libc::FUTEX_WAIT as usize,
            expected as usize,
            &raw const t as usize,
        )
    };
}
/// Words that [`futex_wait_any`] can wait for at one time: the kernel's FUTEX_WAITV_MAX.
pub const WAIT_ANY_MAX: usize = 128;

/// One word of [`futex_wait_any`]: the kernel's `struct futex_waitv` (futex2 in the kernel's documentation).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WaitOn<'a> {
    expected: u64,
    word: u64,
    flags: u32,
    reserved: u32,
    lives: core::marker::PhantomData<&'a AtomicU32>,
}
const _: () = assert!(size_of::<WaitOn>() == uapi::FUTEX_WAITV);

impl<'a> WaitOn<'a> {
    /// Waits while `*word == expected`. The word may be in shared memory.
    pub fn new(word: &'a AtomicU32, expected: u32) -> WaitOn<'a> {
        /// FUTEX_32; without the private flag, so that words shared with other processes work.
        const SIZE_U32: u32 = 2;
        WaitOn {
            expected: expected.into(),
            word: word as *const _ as u64,
            flags: SIZE_U32,
            reserved: 0,
            lives: core::marker::PhantomData,
        }
    }
}

/// Waits while each of the words has its value, up to `timeout_ns`. An error if the kernel lacks the call (before 5.16)
/// or there are more than [`WAIT_ANY_MAX`] words.
pub fn futex_wait_any(words: &[WaitOn], timeout_ns: u64) -> Result<(), Errno> {
    // Unlike futex(2)'s, this timeout is a point in time.
    let until = now_ns().saturating_add(timeout_ns);
    let t = [
        (until / 1_000_000_000) as i64,
        (until % 1_000_000_000) as i64,
    ];
    // SAFETY: the array, the words and the timeout live across the call, which only reads them.
    let waited = unsafe {
        sys6(
            libc::SYS_futex_waitv,
            words.as_ptr() as usize,
            words.len(),
            0,
            &raw const t as usize,
            libc::CLOCK_MONOTONIC as usize,
            0,
        )
    };
    match waited {
        Err(Errno(libc::ENOSYS | libc::EINVAL | libc::EPERM)) => waited.map(|_| ()),
        _ => Ok(()),
    }
}
/// Wakes up to `n` waiters.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, n: u32) {
    // SAFETY: the kernel does not access the word, whose address names the waiters.
    let _ = unsafe {
        sys3(
            libc::SYS_futex,
            word as *const _ as usize,
            libc::FUTEX_WAKE as usize,
            n as usize,
        )
    };
}
/// Reads from a descriptor where the last read ended; removes exactly that from a pipe.
pub fn read(fd: usize, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into `buf` only.
    unsafe { sys3(libc::SYS_read, fd, buf.as_mut_ptr() as usize, buf.len()) }
}
/// Reads from byte `at` of a file on; returns how much there was.
pub(crate) fn read_at(fd: usize, at: usize, buf: &mut [u8]) -> Result<usize, Errno> {
    let (to, bytes) = (buf.as_mut_ptr() as usize, buf.len());
    // SAFETY: the kernel writes into `buf` only.
    unsafe { sys4(libc::SYS_pread64, fd, to, bytes, at) }
}
/// A file open for reading; closed when dropped.
pub struct File(usize);

impl File {
    /// Opens a file; exec closes it.
    pub fn open(path: &core::ffi::CStr) -> Result<File, Errno> {
        // SAFETY: the path lives across the call.
        unsafe {
            sys3(
                libc::SYS_openat,
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
            )
        }
        .map(File)
    }
    /// Opens the file at the path at address `path`, relative to directory `dir`, for reading, without blocking. A bad
    /// address is an error.
    pub fn open_at(dir: usize, path: usize) -> Result<File, Errno> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the kernel only reads the path, and answers EFAULT where it cannot.
        unsafe { sys3(libc::SYS_openat, dir, path, flags as usize) }.map(File)
    }
    /// Continues to read where the last read ended; 0 at the end.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        read(self.0, buf)
    }
    /// Reads from byte `at` on; returns how much there was.
    pub fn read_at(&self, at: usize, buf: &mut [u8]) -> Result<usize, Errno> {
        read_at(self.0, at, buf)
    }
    /// Reads eight-byte entries from entry `first` on; returns how many there were.
    pub fn read_entries(&self, first: usize, entries: &mut [u64]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes into `entries` only.
        let bytes = unsafe {
            sys4(
                libc::SYS_pread64,
                self.0,
                entries.as_mut_ptr() as usize,
                size_of_val(entries),
                first * 8,
            )
        };
        bytes.map(|n| n / 8)
    }
    /// The file that is open as `fd`.
    pub(crate) fn of(fd: usize) -> File {
        File(fd)
    }
    /// Its descriptor, which stays open.
    pub(crate) fn into_fd(self) -> usize {
        core::mem::ManuallyDrop::new(self).0
    }
    /// Its descriptor.
    pub fn fd(&self) -> usize {
        self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        close(self.0 as i32);
    }
}

/// "/proc/PID/NAME" and its terminator. NAME has at most 8 bytes.
pub fn path_of(pid: u32, name: &[u8]) -> [u8; 32] {
    let mut path = [0u8; 32];
    path[..6].copy_from_slice(b"/proc/");
    let (mut digits, mut n, mut rest) = ([0u8; 10], 0, pid);
    while n == 0 || rest > 0 {
        digits[n] = b'0' + (rest % 10) as u8;
        (n, rest) = (n + 1, rest / 10);
    }
    for (i, d) in digits[..n].iter().rev().enumerate() {
        path[6 + i] = *d;
    }
    path[6 + n] = b'/';
    path[7 + n..][..name.len()].copy_from_slice(name);
    path
}

/// "/proc/self/DIR/FD" and its terminator. DIR has at most 8 bytes.
pub fn path_of_own(directory: &[u8], fd: i32) -> [u8; 32] {
    let mut path = [0u8; 32];
    let of_process = path_of(fd.max(0) as u32, b"");
    let digits = &of_process[6..];
    let n = digits.iter().position(|b| *b == b'/').unwrap_or(0);
    let at = 11 + directory.len();
    path[..11].copy_from_slice(b"/proc/self/");
    path[11..at].copy_from_slice(directory);
    path[at] = b'/';
    path[at + 1..at + 1 + n].copy_from_slice(&digits[..n]);
    path
}

/// Random numbers from the kernel; just after boot, waits for its generator.
pub fn random<const N: usize>() -> Result<[u64; N], Errno> {
    let mut numbers = [0u64; N];
    for n in &mut numbers {
        let mut bytes = [0; 8];
        random_bytes(&mut bytes)?;
        *n = u64::from_ne_bytes(bytes);
    }
    Ok(numbers)
}

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: the call takes no address.
    unsafe { sys0(libc::SYS_geteuid) }.unwrap_or(0) as u32
}

/// Reads a small file from the start; returns the bytes read.
pub fn read_file(path: &core::ffi::CStr, buf: &mut [u8]) -> Result<usize, Errno> {
    let file = File::open(path)?;
    let mut n = 0;
    while n < buf.len() {
        match file.read(&mut buf[n..]) {
            Ok(0) | Err(_) => break,
            Ok(k) => n += k,
        }
    }
    Ok(n)
}
/// Reads the name of a thread of this process, as the kernel stores it; returns its length.
pub fn thread_name(tid: u32, name: &mut [u8; 16]) -> Option<usize> {
    let path = path_of(tid, b"comm");
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let n = read_file(path, name).ok()?;
    Some(name[..n].iter().position(|b| *b == b'\n').unwrap_or(n))
}
/// Memory and swap of the host, in bytes.
pub fn ram_and_swap_bytes() -> Option<u64> {
    let mut info = core::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills the structure ([`uapi`] has its size), in which any bits are valid.
    let info = unsafe {
        sys1(libc::SYS_sysinfo, info.as_mut_ptr() as usize).ok()?;
        info.assume_init()
    };
    let units = info.totalram.saturating_add(info.totalswap);
    Some(units.saturating_mul(u64::from(info.mem_unit)))
}
/// A limit of the kernel's, as `struct rlimit64`; `u64::MAX` for none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// What holds now.
    pub soft: u64,
    /// What the soft one may be raised to.
    pub hard: u64,
}
/// The limit of process `pid` (0: this one) on a resource. `new` replaces it, if there is one.
pub fn limit(pid: u32, resource: u32, new: Option<&Limit>) -> Result<Limit, Errno> {
    let mut old = Limit { soft: 0, hard: 0 };
    let new = new.map_or(0, |new| core::ptr::from_ref(new) as usize);
    let (pid, resource, at) = (pid as usize, resource as usize, &raw mut old as usize);
    // SAFETY: the kernel reads `new`, if it is there, and writes `old`.
    unsafe { sys4(libc::SYS_prlimit64, pid, resource, new, at) }.map(|_| old)
}
/// Minor faults of this process so far, of all its threads; 0 if the kernel does not say.
pub fn minor_faults() -> u64 {
    minor_faults_of(libc::RUSAGE_SELF)
}
/// Minor faults of this thread so far; 0 if the kernel does not say.
pub fn minor_faults_of_thread() -> u64 {
    minor_faults_of(libc::RUSAGE_THREAD)
}
fn minor_faults_of(whom: i32) -> u64 {
    // struct rusage: two timevals, then maxrss, ixrss, idrss, isrss, minflt, and nine more longs.
    let mut usage = [0u64; uapi::RUSAGE / 8];
    // SAFETY: the kernel writes a `struct rusage`, for which `usage` has room.
    let r = unsafe {
        crate::sys2(
            libc::SYS_getrusage,
            whom as usize,
            usage.as_mut_ptr() as usize,
        )
    };
    if r.is_ok() { usage[8] } else { 0 }
}
/// Writes all of `bytes`; ignores errors (there is no way to report them).
pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads `bytes` only.
        match unsafe {
            sys3(
                libc::SYS_write,
                fd as usize,
                bytes.as_ptr() as usize,
                bytes.len(),
            )
        } {
            Ok(n) if n > 0 => bytes = &bytes[n..],
            Err(Errno(libc::EINTR)) => {}
            _ => return,
        }
    }
}
#[repr(align(64))]
struct Tls([AtomicUsize; 64]);

/// Starts a thread that shares everything with its creator, with its own stack and no thread-local storage of its own:
/// it must not call libc. All signals are blocked in it.
///
/// # Safety
///
/// `stack_top` must be the 16-aligned end of memory that nothing else uses; `entry` must not return and must not touch
/// thread-local data.
pub unsafe fn spawn_bare(stack_top: usize, entry: extern "C" fn() -> !) -> Result<u32, Errno> {
    // An empty thread-local block: x86-64 keeps its address at its own start.
    static TLS: Tls = Tls([const { AtomicUsize::new(0) }; 64]);
    let tls = &raw const TLS.0[32] as usize;
    TLS.0[32].store(tls, Ordering::Relaxed);
    let flags = libc::CLONE_SETTLS
        | libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let old = crate::signal::set_mask(u64::MAX);
    let ret: isize;
    // SAFETY: the child starts on its own stack and jumps to `entry`, which never returns; the parent sees an ordinary
    // system call. The `syscall` is inline because the child cannot return through the gate: its stack is empty.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r12",
            "ud2",
            "2:",
            in("r12") entry,
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags as usize,
            in("rsi") stack_top,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") tls,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    crate::signal::set_mask(old);
    crate::gate::check(ret).map(|t| t as u32)
}
/// Whether this process has CAP_SYS_RESOURCE.
pub fn may_raise_limits() -> bool {
    /// _LINUX_CAPABILITY_VERSION_3: two words each for the effective, permitted and inheritable sets.
    const VERSION: u32 = 0x2008_0522;
    const SYS_RESOURCE: u32 = 24;
    let head = [VERSION, 0];
    let mut sets = [0u32; 6];
    let (head, at) = (head.as_ptr() as usize, sets.as_mut_ptr() as usize);
    // SAFETY: the kernel reads `head`, and writes three words for each of two sets to `sets`.
    let r = unsafe { sys2(libc::SYS_capget, head, at) };
    r.is_ok() && sets[0] & (1 << SYS_RESOURCE) != 0
}
/// Address to which the kernel writes 0 when the calling thread ends; 0 if there is none, or the kernel does not say.
pub fn cleared_at_exit() -> usize {
    /// PR_GET_TID_ADDRESS.
    const GET_TID_ADDRESS: i32 = 40;
    let mut at = 0usize;
    // SAFETY: the kernel writes an address to `at`, and nothing else.
    let r = unsafe { prctl(GET_TID_ADDRESS, &raw mut at as usize, 0, 0, 0) };
    r.map_or(0, |_| at)
}
/// Ends the calling thread.
///
/// # Safety
///
/// [`spawn_bare`] must have made the thread, and nothing may need what is on its stack.
pub unsafe fn exit_thread() -> ! {
    loop {
        // SAFETY: ends a thread that libc does not know of; its stack is no longer needed, the caller's promise.
        let _ = unsafe { sys1(libc::SYS_exit, 0) };
    }
}
/// Ends the whole process at once.
pub fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: the call takes no address, and no code of this process runs after it.
        let _ = unsafe { sys1(libc::SYS_exit_group, code as usize) };
    }
}
/// Sends `signal` to this thread.
pub fn raise(signal: i32) {
    // SAFETY: the call takes no address.
    let _ = unsafe {
        sys3(
            libc::SYS_tgkill,
            pid() as usize,
            tid() as usize,
            signal as usize,
        )
    };
}
/// Whether the thread `tid` of this process exists.
pub fn is_thread(tid: u32) -> bool {
    // SAFETY: the call takes no address; signal 0 is none.
    let asked = unsafe { sys3(libc::SYS_tgkill, pid() as usize, tid as usize, 0) };
    asked != Err(Errno(libc::ESRCH))
}
/// Whether a process with this pid exists (also as a zombie).
pub fn alive(pid: u32) -> bool {
    // SAFETY: the call takes no address; signal 0 is none.
    !matches!(
        unsafe { sys2(libc::SYS_kill, pid as usize, 0) },
        Err(Errno(libc::ESRCH))
    )
}
/// A pidfd of this process, for process_madvise on kernels without PIDFD_SELF.
pub fn pidfd_self() -> Result<i32, Errno> {
    // SAFETY: the call takes no address.
    unsafe { sys2(libc::SYS_pidfd_open, pid() as usize, 0) }.map(|fd| fd as i32)
}
/// Whether this descriptor refers to this process. Decided by /proc, and false without it; the kernel's own special
/// numbers for the caller do refer to it.
pub fn is_pidfd_of_own(fd: i32) -> bool {
    const SELF_THREAD: i32 = -10000;
    const SELF_PROCESS: i32 = -10001;
    if fd < 0 {
        return fd == SELF_PROCESS || (fd == SELF_THREAD && tid() == pid());
    }
    let mut path = *b"/proc/self/fdinfo/0000000000\0";
    let mut number = fd as u32;
    for digit in path.iter_mut().rev().skip(1).take(10) {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // The kernel accepts no leading zeros.
    let prefix = path.len() - 11;
    let zeros = path[prefix..prefix + 9]
        .iter()
        .take_while(|d| **d == b'0')
        .count();
    path.copy_within(prefix + zeros.., prefix);
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else {
        return false;
    };
    let mut text = [0u8; 512];
    let Ok(n) = read_file(path, &mut text) else {
        return false;
    };
    let mut lines = text[..n].split(|b| *b == b'\n');
    let named = lines.find_map(|l| {
        core::str::from_utf8(l.strip_prefix(b"Pid:")?)
            .ok()?
            .trim()
            .parse()
            .ok()
    });
    named == Some(pid())
}
/// A copy of the descriptor `fd` of the process behind `pidfd`, usually this one: the table is that of its first
/// thread. Since Linux 5.6.
pub fn descriptor_of(pidfd: i32, fd: i32) -> Result<i32, Errno> {
    // SAFETY: the call takes no address.
    unsafe { sys3(libc::SYS_pidfd_getfd, pidfd as usize, fd as usize, 0) }.map(|fd| fd as i32)
}
/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    // SAFETY: the call takes no address.
    let _ = unsafe { sys1(libc::SYS_close, fd as usize) };
}
/// `prctl`-like call with up to five plain arguments.
///
/// # Safety
///
/// As for the call itself.
pub unsafe fn prctl(op: i32, a: usize, b: usize, c: usize, d: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { sys6(libc::SYS_prctl, op as usize, a, b, c, d, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_is_told_by_the_process_that_it_names() {
        let own = pidfd_self().unwrap();
        assert!(is_pidfd_of_own(own) && is_pidfd_of_own(-10001));
        // SAFETY: the call takes no address.
        let parents =
            unsafe { sys0(libc::SYS_getppid).and_then(|pid| sys2(libc::SYS_pidfd_open, pid, 0)) };
        let parents = parents.unwrap() as i32;
        assert!(
            ![parents, -1, i32::MAX]
                .iter()
                .any(|fd| is_pidfd_of_own(*fd))
        );
        close(parents);
        close(own);
    }

    #[test]
    fn random_numbers_differ() {
        let [a, b]: [u64; 2] = random().unwrap();
        assert_ne!(a, b);
    }

    #[test]
    fn paths_of_processes_end_with_a_zero() {
        let is = |pid, name: &[u8], text: &core::ffi::CStr| {
            let path = path_of(pid, name);
            core::ffi::CStr::from_bytes_until_nul(&path) == Ok(text)
        };
        assert!(is(0, b"stat", c"/proc/0/stat"));
        assert!(is(u32::MAX, b"smaps567", c"/proc/4294967295/smaps567"));
    }
}
