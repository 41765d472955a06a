//! Functions of glibc under symbol versions that glibc 2.31 also has.
//!
//! A linker binds to the newest version of each function in the C library that it links with, and the loader of an
//! older system refuses such a program or library. glibc 2.33 introduced symbols for stat(2) and the like; 2.34 moved
//! the threads and dlopen(3) into libc with new versions. Here each function gets its old version, or is implemented by
//! the system call; only the name that the loader looks up differs. (`portable` in tests/e2e checks the rest.)
//!
//! Each function is hidden: nothing outside sees it, least of all the program that loads the library. Functions that older
//! systems have in separate libraries are weak: canvas's library never calls them, and can be loaded without them.

use core::arch::global_asm;
use core::ffi::{c_char, c_int};

use crate::gate::sys4;

/// Defines NAME, which jumps to NAME@VERSION, or returns `$missing` if that does not exist.
macro_rules! old {
    ($($name:literal, $version:literal, $missing:literal;)*) => {
        $(global_asm!(
            concat!(".pushsection .text.compat_", $name, ",\"ax\",@progbits"),
            concat!(".weak canvas_old_", $name),
            concat!(".symver canvas_old_", $name, ", ", $name, "@", $version),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            concat!("mov rax, [rip + canvas_old_", $name, "@GOTPCREL]"),
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            concat!("mov eax, ", $missing),
            "ret",
            ".popsection",
        );)*
    };
}

// 38 is ENOSYS.
old! {
    "dlclose", "GLIBC_2.2.5", "1";
    "dlerror", "GLIBC_2.2.5", "0";
    "dlmopen", "GLIBC_2.3.4", "0";
    "dlopen", "GLIBC_2.2.5", "0";
    "dlsym", "GLIBC_2.2.5", "0";
    "pthread_attr_setstacksize", "GLIBC_2.2.5", "38";
    "pthread_create", "GLIBC_2.2.5", "38";
    "pthread_detach", "GLIBC_2.2.5", "38";
    "pthread_key_create", "GLIBC_2.2.5", "38";
    "pthread_key_delete", "GLIBC_2.2.5", "38";
    "pthread_setname_np", "GLIBC_2.12", "38";
    "pthread_setspecific", "GLIBC_2.2.5", "38";
}

#[cfg(feature = "command")]
old! {
    "hypotf", "GLIBC_2.2.5", "0";
    "pthread_attr_getguardsize", "GLIBC_2.2.5", "38";
    "pthread_attr_getstack", "GLIBC_2.2.5", "38";
    "pthread_getattr_np", "GLIBC_2.2.5", "38";
    "pthread_join", "GLIBC_2.2.5", "38";
    "pthread_sigmask", "GLIBC_2.2.5", "38";
}

// The program's start. Since glibc 2.34 crt1.o passes no `init`, through which older versions run the constructors:
// then ours runs them.
#[cfg(feature = "command")]
global_asm!(
    ".pushsection .text.compat_start,\"ax\",@progbits",
    ".symver canvas_old_start, __libc_start_main@GLIBC_2.2.5",
    ".globl __libc_start_main",
    ".hidden __libc_start_main",
    ".type __libc_start_main,@function",
    "__libc_start_main:",
    "test rcx, rcx",
    "jnz 2f",
    "lea rcx, [rip + {init}]",
    "2:",
    "jmp [rip + canvas_old_start@GOTPCREL]",
    ".popsection",
    init = sym constructors,
);

#[cfg(feature = "command")]
unsafe extern "C" {
    static __init_array_start: [Constructor; 0];
    static __init_array_end: [Constructor; 0];
}

#[cfg(feature = "command")]
type Constructor = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char);

#[cfg(feature = "command")]
extern "C" fn constructors(count: c_int, arguments: *mut *mut c_char, vars: *mut *mut c_char) {
    let first = &raw const __init_array_start as *const Constructor;
    let end = &raw const __init_array_end as *const Constructor;
    let mut at = first;
    while at != end {
        // SAFETY: between the two ends, which the linker sets, lie pointers to constructors; each is called once, with
        // the arguments that the C library passes to them.
        unsafe {
            (*at)(count, arguments, vars);
            at = at.add(1);
        }
    }
}

/// Defines a hidden function in front of one of ours.
macro_rules! ours {
    ($($name:literal = $function:path;)*) => {
        $(global_asm!(
            concat!(".pushsection .text.compat_", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            "jmp {function}",
            ".popsection",
            function = sym $function,
        );)*
    };
}

ours! {
    "stat64" = stat;
    "lstat64" = lstat;
    "fstat64" = fstat;
    "fstat" = fstat;
    "fstatat64" = fstatat;
}

// The library avoids what only newer systems have, so that on older ones it can still report why it stays out.
#[cfg(not(feature = "command"))]
ours! {
    "gettid" = gettid;
    "statx" = statx;
    "__cxa_thread_atexit_impl" = at_thread_exit;
}

#[cfg(not(feature = "command"))]
extern "C" fn gettid() -> c_int {
    crate::proc::tid() as c_int
}

#[cfg(not(feature = "command"))]
extern "C" fn statx(_: c_int, _: *const c_char, _: c_int, _: u32, _: usize) -> c_int {
    fail(libc::ENOSYS)
}

/// Nothing of the library must run when a thread of the program ends.
#[cfg(not(feature = "command"))]
extern "C" fn at_thread_exit(_: usize, _: usize, _: usize) -> c_int {
    0
}

fn fail(error: c_int) -> c_int {
    // SAFETY: libc returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// # Safety
///
/// `to` is the caller's to write a structure to; the kernel's is the same as libc's ([`crate::uapi`]).
unsafe extern "C" fn fstatat(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    let (dir, flags) = (dir as usize, flags as usize);
    // SAFETY: the kernel reads the path, and answers EFAULT where it cannot; it writes `to`, the caller's promise.
    let done = unsafe { sys4(libc::SYS_newfstatat, dir, path as usize, to as usize, flags) };
    done.map_or_else(|e| fail(e.0), |_| 0)
}

/// # Safety
///
/// As for [`fstatat`].
unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise for `to`.
    unsafe { fstatat(libc::AT_FDCWD, path, to, 0) }
}

/// # Safety
///
/// As for [`fstatat`].
unsafe extern "C" fn lstat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise for `to`.
    unsafe { fstatat(libc::AT_FDCWD, path, to, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
///
/// As for [`fstatat`].
unsafe extern "C" fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise for `to`.
    unsafe { fstatat(fd, c"".as_ptr(), to, libc::AT_EMPTY_PATH) }
}

/// Makes the linker include this module; its functions would otherwise be seen too late to be linked.
#[inline(never)]
pub fn keep() {
    core::hint::black_box(());
}
