//! All system calls that canvas handles, in one table: which arguments point to the program's memory, and whether there
//! is a hook.
//!
//! The table tells the patched code of libc whether canvas handles a call, which pages to pin for it
//! ([`crate::memory::args`]), and which hook serves it (`capture/hooks.rs`); the seccomp filter is generated from it.
//! Calls that are not in it go to the kernel unchanged.

use canvas_sys::seccomp;
use canvas_sys::uapi::*;

use crate::runtime::call::NR_MAX;

/// What a pointer argument points to.
#[derive(Clone, Copy)]
pub enum To {
    /// This many bytes: a structure, by its name in [`canvas_sys::uapi`].
    N(usize),
    /// As many bytes as this argument says.
    A(u8),
    /// As many elements as the first argument says, each of the second number of bytes.
    AN(u8, usize),
    /// A socket address, as long as this argument says.
    Address(u8),
    /// A System V message: its type, and as many bytes as this argument says.
    Message(u8),
    /// A set of as many bits as this argument says, in words.
    Bits(u8),
    /// As many bytes as the number at this offset of the structure says.
    Sized(usize),
    /// A C string.
    Str,
    /// An array of as many iovecs as this argument says.
    Iov(u8),
    /// An array of as many iovecs as this argument says, of the process that argument 0 names.
    Remote(u8),
    /// A msghdr.
    Msg,
    /// An array of as many mmsghdrs as this argument says.
    Mmsg(u8),
    /// An array of as many futex_waitvs as this argument says.
    Waitv(u8),
    /// As many bytes as the u32 says that this argument points to (socklen_t).
    Len(u8),
    /// As many bytes as this argument says, whose first words may be pointers.
    Blob(u8),
    /// pselect6's { sigset, size } pair.
    SigPair,
    /// Depends on the command of the `ioctl`.
    Ioctl,
    /// Depends on the command of the `semctl`.
    Semctl,
    /// Depends on the option of the `prctl`.
    Prctl,
    /// Depends on the request of the `ptrace`.
    Ptrace,
    /// Nothing to pin for the call: its hook takes care of it, or it is an address rather than a pointer.
    There,
}
use To::*;

/// The hook of a call that needs more than pins: `capture/hooks.rs` has an arm for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    Memory(Memory),
    Signal(Signal),
    /// About processes, threads, descriptors and users.
    Process(Process),
}

/// Calls about memory that have a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    Mmap,
    Munmap,
    Mremap,
    Mprotect,
    Mseal,
    Madvise,
    ProcessMadvise,
    Brk,
    Mincore,
    Msync,
    Mlock,
    Mlock2,
    Munlock,
    Mlockall,
    Munlockall,
}

/// Calls about signals that have a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    Action,
    Mask,
    Stack,
    WaitMask,
    Pending,
    TimedWait,
}

/// The other calls that have a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    Ioctl,
    Prctl,
    /// Calls by which programs find out which descriptors exist: canvas's seem not to.
    OfDescriptor,
    Close,
    DupOnto,
    CloseRange,
    /// `getdents64`: omits canvas's descriptors.
    List,
    Clone,
    Clone3,
    Fork,
    Exec,
    ExecAt,
    Unshare,
    Setns,
    GetLimit,
    SetLimit,
    Limit,
    Seccomp,
    ChangeUser,
    OthersMemory,
    Seek,
    Trace,
    ThreadBegins,
    Exit,
    ExitGroup,
    Refused,
}

/// A row of the table.
pub struct Row {
    pub nr: i64,
    /// The hook; `None`: the kernel serves the call, with the pages of its arguments pinned.
    pub hook: Option<Hook>,
    /// Its pointer arguments, in the order in which they are pinned.
    pub arguments: &'static [(u8, To)],
    /// Answered by ENOSYS in signal mode, wherever it comes from: the kernel would access far memory outside of any
    /// call.
    pub is_refused: bool,
}

const fn pins(nr: i64, arguments: &'static [(u8, To)]) -> Row {
    Row {
        nr,
        hook: None,
        arguments,
        is_refused: false,
    }
}

const fn hook(nr: i64, hook: Hook, arguments: &'static [(u8, To)]) -> Row {
    Row {
        nr,
        hook: Some(hook),
        arguments,
        is_refused: false,
    }
}

const fn refused(nr: i64) -> Row {
    Row {
        nr,
        hook: Some(Hook::Process(Process::Refused)),
        arguments: &[],
        is_refused: true,
    }
}

pub static ROWS: [Row; COUNT] = TABLE;

const TABLE: [Row; COUNT] = [
    pins(libc::SYS_read, &[(1, A(2))]),
    pins(libc::SYS_write, &[(1, A(2))]),
    pins(libc::SYS_pread64, &[(1, A(2)), (3, A(2))]),
    pins(libc::SYS_pwrite64, &[(1, A(2)), (3, A(2))]),
    pins(libc::SYS_readv, &[(1, Iov(2))]),
    pins(libc::SYS_writev, &[(1, Iov(2))]),
    pins(libc::SYS_preadv, &[(1, Iov(2))]),
    pins(libc::SYS_pwritev, &[(1, Iov(2))]),
    pins(libc::SYS_preadv2, &[(1, Iov(2))]),
    pins(libc::SYS_pwritev2, &[(1, Iov(2))]),
    pins(libc::SYS_vmsplice, &[(1, Iov(2))]),
    hook(
        libc::SYS_process_vm_readv,
        Hook::Process(Process::OthersMemory),
        &[(1, Iov(2)), (3, Remote(4))],
    ),
    hook(
        libc::SYS_process_vm_writev,
        Hook::Process(Process::OthersMemory),
        &[(1, Iov(2)), (3, Remote(4))],
    ),
    pins(libc::SYS_open, &[(0, Str)]),
    pins(libc::SYS_openat, &[(1, Str)]),
    pins(libc::SYS_openat2, &[(1, Str), (2, A(3))]),
    pins(libc::SYS_creat, &[(0, Str)]),
    pins(libc::SYS_stat, &[(0, Str), (1, N(STAT))]),
    pins(libc::SYS_lstat, &[(0, Str), (1, N(STAT))]),
    hook(
        libc::SYS_fstat,
        Hook::Process(Process::OfDescriptor),
        &[(1, N(STAT))],
    ),
    hook(
        libc::SYS_newfstatat,
        Hook::Process(Process::OfDescriptor),
        &[(1, Str), (2, N(STAT))],
    ),
    hook(
        libc::SYS_statx,
        Hook::Process(Process::OfDescriptor),
        &[(1, Str), (4, N(STATX))],
    ),
    pins(libc::SYS_statfs, &[(0, Str), (1, N(STATFS))]),
    pins(libc::SYS_fstatfs, &[(1, N(STATFS))]),
    pins(libc::SYS_access, &[(0, Str)]),
    pins(libc::SYS_faccessat, &[(1, Str)]),
    pins(libc::SYS_faccessat2, &[(1, Str)]),
    pins(libc::SYS_poll, &[(0, AN(1, POLLFD))]),
    pins(
        libc::SYS_select,
        &[(1, Bits(0)), (2, Bits(0)), (3, Bits(0)), (4, N(TIMEVAL))],
    ),
    hook(
        libc::SYS_ioctl,
        Hook::Process(Process::Ioctl),
        &[(2, Ioctl)],
    ),
    hook(
        libc::SYS_fcntl,
        Hook::Process(Process::OfDescriptor),
        &[(2, N(FLOCK))],
    ),
    hook(libc::SYS_dup, Hook::Process(Process::OfDescriptor), &[]),
    pins(libc::SYS_pipe, &[(0, N(2 * NUMBER))]),
    pins(libc::SYS_pipe2, &[(0, N(2 * NUMBER))]),
    pins(libc::SYS_nanosleep, &[(0, N(TIMESPEC)), (1, N(TIMESPEC))]),
    pins(
        libc::SYS_clock_nanosleep,
        &[(2, N(TIMESPEC)), (3, N(TIMESPEC))],
    ),
    pins(libc::SYS_clock_gettime, &[(1, N(TIMESPEC))]),
    pins(libc::SYS_clock_settime, &[(1, N(TIMESPEC))]),
    pins(libc::SYS_clock_getres, &[(1, N(TIMESPEC))]),
    pins(libc::SYS_gettimeofday, &[(0, N(TIMEVAL)), (1, N(TIMEZONE))]),
    pins(libc::SYS_time, &[(0, N(WORD))]),
    pins(libc::SYS_getitimer, &[(1, N(ITIMERVAL))]),
    pins(libc::SYS_setitimer, &[(1, N(ITIMERVAL)), (2, N(ITIMERVAL))]),
    pins(libc::SYS_timer_create, &[(1, N(SIGEVENT)), (2, N(TIMER))]),
    pins(
        libc::SYS_timer_settime,
        &[(2, N(ITIMERSPEC)), (3, N(ITIMERSPEC))],
    ),
    pins(libc::SYS_timer_gettime, &[(1, N(ITIMERSPEC))]),
    pins(
        libc::SYS_timerfd_settime,
        &[(2, N(ITIMERSPEC)), (3, N(ITIMERSPEC))],
    ),
    pins(libc::SYS_timerfd_gettime, &[(1, N(ITIMERSPEC))]),
    pins(libc::SYS_sendfile, &[(2, N(FILE_OFFSET))]),
    pins(
        libc::SYS_splice,
        &[(1, N(FILE_OFFSET)), (3, N(FILE_OFFSET))],
    ),
    pins(
        libc::SYS_copy_file_range,
        &[(1, N(FILE_OFFSET)), (3, N(FILE_OFFSET))],
    ),
    pins(libc::SYS_connect, &[(1, Address(2))]),
    pins(libc::SYS_bind, &[(1, Address(2))]),
    pins(libc::SYS_accept, &[(2, N(NUMBER)), (1, Len(2))]),
    pins(libc::SYS_accept4, &[(2, N(NUMBER)), (1, Len(2))]),
    pins(libc::SYS_getsockname, &[(2, N(NUMBER)), (1, Len(2))]),
    pins(libc::SYS_getpeername, &[(2, N(NUMBER)), (1, Len(2))]),
    pins(libc::SYS_sendto, &[(1, A(2)), (4, Address(5))]),
    pins(
        libc::SYS_recvfrom,
        &[(1, A(2)), (5, N(NUMBER)), (4, Len(5))],
    ),
    pins(libc::SYS_sendmsg, &[(1, Msg)]),
    pins(libc::SYS_recvmsg, &[(1, Msg)]),
    pins(libc::SYS_sendmmsg, &[(1, Mmsg(2))]),
    pins(libc::SYS_recvmmsg, &[(1, Mmsg(2)), (4, N(TIMESPEC))]),
    pins(libc::SYS_socketpair, &[(3, N(2 * NUMBER))]),
    pins(libc::SYS_setsockopt, &[(3, Blob(4))]),
    pins(libc::SYS_getsockopt, &[(4, N(NUMBER)), (3, Len(4))]),
    pins(libc::SYS_wait4, &[(1, N(NUMBER)), (3, N(RUSAGE))]),
    pins(libc::SYS_waitid, &[(2, N(SIGINFO)), (4, N(RUSAGE))]),
    pins(libc::SYS_uname, &[(0, N(UTSNAME))]),
    pins(libc::SYS_semop, &[(1, AN(2, SEMBUF))]),
    pins(
        libc::SYS_semtimedop,
        &[(1, AN(2, SEMBUF)), (3, N(TIMESPEC))],
    ),
    pins(libc::SYS_semctl, &[(3, Semctl)]),
    pins(libc::SYS_shmctl, &[(2, N(SHMID))]),
    pins(libc::SYS_msgctl, &[(2, N(MSQID))]),
    pins(libc::SYS_msgsnd, &[(1, Message(2))]),
    pins(libc::SYS_msgrcv, &[(1, Message(2))]),
    pins(libc::SYS_truncate, &[(0, Str)]),
    pins(libc::SYS_getdents, &[(1, A(2))]),
    hook(
        libc::SYS_getdents64,
        Hook::Process(Process::List),
        &[(1, A(2))],
    ),
    pins(libc::SYS_getcwd, &[(0, A(1))]),
    pins(libc::SYS_chdir, &[(0, Str)]),
    pins(libc::SYS_chroot, &[(0, Str)]),
    pins(libc::SYS_rename, &[(0, Str), (1, Str)]),
    pins(libc::SYS_renameat, &[(1, Str), (3, Str)]),
    pins(libc::SYS_renameat2, &[(1, Str), (3, Str)]),
    pins(libc::SYS_mkdir, &[(0, Str)]),
    pins(libc::SYS_mkdirat, &[(1, Str)]),
    pins(libc::SYS_rmdir, &[(0, Str)]),
    pins(libc::SYS_mknod, &[(0, Str)]),
    pins(libc::SYS_mknodat, &[(1, Str)]),
    pins(libc::SYS_link, &[(0, Str), (1, Str)]),
    pins(libc::SYS_linkat, &[(1, Str), (3, Str)]),
    pins(libc::SYS_symlink, &[(0, Str), (1, Str)]),
    pins(libc::SYS_symlinkat, &[(0, Str), (2, Str)]),
    pins(libc::SYS_unlink, &[(0, Str)]),
    pins(libc::SYS_unlinkat, &[(1, Str)]),
    pins(libc::SYS_readlink, &[(0, Str), (1, A(2))]),
    pins(libc::SYS_readlinkat, &[(1, Str), (2, A(3))]),
    pins(libc::SYS_chmod, &[(0, Str)]),
    pins(libc::SYS_fchmodat, &[(1, Str)]),
    pins(libc::SYS_chown, &[(0, Str)]),
    pins(libc::SYS_lchown, &[(0, Str)]),
    pins(libc::SYS_fchownat, &[(1, Str)]),
    pins(libc::SYS_utime, &[(0, Str), (1, N(UTIMBUF))]),
    pins(libc::SYS_utimes, &[(0, Str), (1, N(2 * TIMEVAL))]),
    pins(libc::SYS_utimensat, &[(1, Str), (2, N(2 * TIMESPEC))]),
    pins(libc::SYS_futimesat, &[(1, Str), (2, N(2 * TIMEVAL))]),
    pins(libc::SYS_getrusage, &[(1, N(RUSAGE))]),
    pins(libc::SYS_sysinfo, &[(0, N(SYSINFO))]),
    pins(libc::SYS_times, &[(0, N(TMS))]),
    pins(libc::SYS_syslog, &[(1, A(2))]),
    pins(libc::SYS_getgroups, &[(1, AN(0, NUMBER))]),
    pins(libc::SYS_setgroups, &[(1, AN(0, NUMBER))]),
    pins(
        libc::SYS_getresuid,
        &[(0, N(NUMBER)), (1, N(NUMBER)), (2, N(NUMBER))],
    ),
    pins(
        libc::SYS_getresgid,
        &[(0, N(NUMBER)), (1, N(NUMBER)), (2, N(NUMBER))],
    ),
    pins(libc::SYS_capget, &[(0, N(CAP_HEADER)), (1, N(CAP_DATA))]),
    pins(libc::SYS_capset, &[(0, N(CAP_HEADER)), (1, N(CAP_DATA))]),
    hook(
        libc::SYS_rt_sigpending,
        Hook::Signal(Signal::Pending),
        &[(0, N(SIGSET))],
    ),
    hook(
        libc::SYS_rt_sigtimedwait,
        Hook::Signal(Signal::TimedWait),
        &[(0, N(SIGSET)), (1, N(SIGINFO)), (2, N(TIMESPEC))],
    ),
    pins(libc::SYS_rt_sigqueueinfo, &[(2, N(SIGINFO))]),
    pins(libc::SYS_rt_tgsigqueueinfo, &[(3, N(SIGINFO))]),
    pins(libc::SYS_signalfd, &[(1, N(SIGSET))]),
    pins(libc::SYS_signalfd4, &[(1, N(SIGSET))]),
    pins(libc::SYS_sched_setparam, &[(1, N(NUMBER))]),
    pins(libc::SYS_sched_getparam, &[(1, N(NUMBER))]),
    pins(libc::SYS_sched_setscheduler, &[(2, N(NUMBER))]),
    pins(libc::SYS_sched_rr_get_interval, &[(1, N(TIMESPEC))]),
    pins(libc::SYS_sched_setattr, &[(1, Sized(0))]),
    pins(libc::SYS_sched_getattr, &[(1, A(2))]),
    pins(libc::SYS_sched_setaffinity, &[(2, A(1))]),
    pins(libc::SYS_sched_getaffinity, &[(2, A(1))]),
    pins(libc::SYS_getcpu, &[(0, N(NUMBER)), (1, N(NUMBER))]),
    hook(
        libc::SYS_prctl,
        Hook::Process(Process::Prctl),
        &[(1, Prctl), (2, There), (4, There)],
    ),
    pins(libc::SYS_mount, &[(0, Str), (1, Str), (2, Str), (4, Str)]),
    pins(libc::SYS_umount2, &[(0, Str)]),
    pins(libc::SYS_sethostname, &[(0, A(1))]),
    pins(libc::SYS_setxattr, &[(0, Str), (1, Str), (2, A(3))]),
    pins(libc::SYS_lsetxattr, &[(0, Str), (1, Str), (2, A(3))]),
    pins(libc::SYS_fsetxattr, &[(1, Str), (2, A(3))]),
    pins(libc::SYS_getxattr, &[(0, Str), (1, Str), (2, A(3))]),
    pins(libc::SYS_lgetxattr, &[(0, Str), (1, Str), (2, A(3))]),
    pins(libc::SYS_fgetxattr, &[(1, Str), (2, A(3))]),
    pins(libc::SYS_listxattr, &[(0, Str), (1, A(2))]),
    pins(libc::SYS_llistxattr, &[(0, Str), (1, A(2))]),
    pins(libc::SYS_flistxattr, &[(1, A(2))]),
    pins(libc::SYS_removexattr, &[(0, Str), (1, Str)]),
    pins(libc::SYS_lremovexattr, &[(0, Str), (1, Str)]),
    pins(libc::SYS_fremovexattr, &[(1, Str)]),
    pins(
        libc::SYS_futex,
        &[(0, N(NUMBER)), (3, N(TIMESPEC)), (4, N(NUMBER))],
    ),
    pins(libc::SYS_epoll_wait, &[(1, AN(2, EPOLL_EVENT))]),
    pins(libc::SYS_epoll_ctl, &[(3, N(EPOLL_EVENT))]),
    pins(libc::SYS_inotify_add_watch, &[(1, Str)]),
    pins(libc::SYS_getrandom, &[(0, A(1))]),
    pins(libc::SYS_memfd_create, &[(0, Str)]),
    pins(libc::SYS_rseq, &[(0, A(1))]),
    pins(libc::SYS_arch_prctl, &[(1, N(WORD))]),
    pins(libc::SYS_quotactl, &[(1, Str), (3, N(QUOTA_STATV))]),
    pins(
        libc::SYS_name_to_handle_at,
        &[(1, Str), (2, N(FILE_HANDLE)), (3, N(WORD))],
    ),
    pins(libc::SYS_mq_open, &[(0, Str), (3, N(MQ_ATTR))]),
    pins(libc::SYS_mq_unlink, &[(0, Str)]),
    pins(libc::SYS_mq_timedsend, &[(1, A(2)), (4, N(TIMESPEC))]),
    pins(
        libc::SYS_mq_timedreceive,
        &[(1, A(2)), (3, N(NUMBER)), (4, N(TIMESPEC))],
    ),
    pins(libc::SYS_add_key, &[(0, Str), (1, Str), (2, A(3))]),
    pins(libc::SYS_perf_event_open, &[(0, Sized(4))]),
    pins(libc::SYS_bpf, &[(1, Blob(2))]),
    hook(
        libc::SYS_pselect6,
        Hook::Signal(Signal::WaitMask),
        &[
            (1, Bits(0)),
            (2, Bits(0)),
            (3, Bits(0)),
            (4, N(TIMESPEC)),
            (5, SigPair),
        ],
    ),
    hook(
        libc::SYS_ppoll,
        Hook::Signal(Signal::WaitMask),
        &[(0, AN(1, POLLFD)), (2, N(TIMESPEC)), (3, N(SIGSET))],
    ),
    hook(
        libc::SYS_epoll_pwait,
        Hook::Signal(Signal::WaitMask),
        &[(1, AN(2, EPOLL_EVENT)), (4, N(SIGSET))],
    ),
    hook(
        libc::SYS_epoll_pwait2,
        Hook::Signal(Signal::WaitMask),
        &[(1, AN(2, EPOLL_EVENT)), (3, N(TIMESPEC)), (4, N(SIGSET))],
    ),
    pins(libc::SYS_set_mempolicy, &[(1, Bits(2))]),
    pins(libc::SYS_mbind, &[(3, Bits(4))]),
    pins(libc::SYS_get_mempolicy, &[(0, N(NUMBER)), (1, Bits(2))]),
    pins(libc::SYS_ustat, &[(1, N(4 * WORD))]),
    pins(libc::SYS_setdomainname, &[(0, A(1))]),
    pins(libc::SYS_open_by_handle_at, &[(1, N(FILE_HANDLE))]),
    pins(libc::SYS_mq_notify, &[(1, N(SIGEVENT))]),
    pins(libc::SYS_mq_getsetattr, &[(1, N(MQ_ATTR)), (2, N(MQ_ATTR))]),
    pins(libc::SYS_request_key, &[(0, Str), (1, Str), (2, Str)]),
    pins(libc::SYS_keyctl, &[(1, There), (2, A(3))]),
    pins(libc::SYS_fchmodat2, &[(1, Str)]),
    pins(libc::SYS_settimeofday, &[(0, N(TIMEVAL)), (1, N(TIMEZONE))]),
    pins(libc::SYS_adjtimex, &[(0, N(TIMEX))]),
    pins(libc::SYS_clock_adjtime, &[(1, N(TIMEX))]),
    pins(libc::SYS_acct, &[(0, Str)]),
    pins(libc::SYS_swapon, &[(0, Str)]),
    pins(libc::SYS_swapoff, &[(0, Str)]),
    pins(libc::SYS_pivot_root, &[(0, Str), (1, Str)]),
    pins(libc::SYS_fanotify_mark, &[(4, Str)]),
    pins(libc::SYS_open_tree, &[(1, Str)]),
    pins(libc::SYS_move_mount, &[(1, Str), (3, Str)]),
    pins(libc::SYS_fsopen, &[(0, Str)]),
    pins(libc::SYS_fspick, &[(1, Str)]),
    pins(libc::SYS_fsconfig, &[(2, Str), (3, Str)]),
    pins(libc::SYS_mount_setattr, &[(1, Str), (3, A(4))]),
    pins(libc::SYS_landlock_create_ruleset, &[(0, A(1))]),
    pins(libc::SYS_landlock_add_rule, &[(2, N(2 * WORD))]),
    pins(libc::SYS_futex_waitv, &[(0, Waitv(1)), (3, N(TIMESPEC))]),
    pins(libc::SYS_pidfd_send_signal, &[(2, N(SIGINFO))]),
    pins(libc::SYS_migrate_pages, &[(2, Bits(1)), (3, Bits(1))]),
    pins(
        libc::SYS_move_pages,
        &[(2, AN(1, WORD)), (3, AN(1, NUMBER)), (4, AN(1, NUMBER))],
    ),
    pins(libc::SYS_get_robust_list, &[(1, N(WORD)), (2, N(WORD))]),
    pins(libc::SYS_modify_ldt, &[(1, A(2))]),
    hook(
        libc::SYS_ptrace,
        Hook::Process(Process::Trace),
        &[(3, Ptrace)],
    ),
    hook(libc::SYS_lseek, Hook::Process(Process::Seek), &[]),
    // Calls about managed memory, or about canvas itself.
    hook(libc::SYS_mmap, Hook::Memory(Memory::Mmap), &[(0, There)]),
    hook(
        libc::SYS_munmap,
        Hook::Memory(Memory::Munmap),
        &[(0, There)],
    ),
    hook(
        libc::SYS_mremap,
        Hook::Memory(Memory::Mremap),
        &[(0, There), (4, There)],
    ),
    hook(
        libc::SYS_mprotect,
        Hook::Memory(Memory::Mprotect),
        &[(0, There)],
    ),
    hook(
        libc::SYS_pkey_mprotect,
        Hook::Memory(Memory::Mprotect),
        &[(0, There)],
    ),
    hook(libc::SYS_mseal, Hook::Memory(Memory::Mseal), &[(0, There)]),
    hook(
        libc::SYS_madvise,
        Hook::Memory(Memory::Madvise),
        &[(0, There)],
    ),
    hook(
        libc::SYS_process_madvise,
        Hook::Memory(Memory::ProcessMadvise),
        &[(1, There)],
    ),
    hook(libc::SYS_brk, Hook::Memory(Memory::Brk), &[(0, There)]),
    hook(
        libc::SYS_mincore,
        Hook::Memory(Memory::Mincore),
        &[(0, There), (2, There)],
    ),
    hook(libc::SYS_msync, Hook::Memory(Memory::Msync), &[(0, There)]),
    hook(libc::SYS_mlock, Hook::Memory(Memory::Mlock), &[(0, There)]),
    hook(
        libc::SYS_mlock2,
        Hook::Memory(Memory::Mlock2),
        &[(0, There)],
    ),
    hook(
        libc::SYS_munlock,
        Hook::Memory(Memory::Munlock),
        &[(0, There)],
    ),
    hook(libc::SYS_mlockall, Hook::Memory(Memory::Mlockall), &[]),
    hook(libc::SYS_munlockall, Hook::Memory(Memory::Munlockall), &[]),
    hook(
        libc::SYS_rt_sigaction,
        Hook::Signal(Signal::Action),
        &[(1, There), (2, There)],
    ),
    hook(
        libc::SYS_rt_sigprocmask,
        Hook::Signal(Signal::Mask),
        &[(1, There), (2, There)],
    ),
    hook(
        libc::SYS_sigaltstack,
        Hook::Signal(Signal::Stack),
        &[(0, There), (1, There)],
    ),
    hook(libc::SYS_close, Hook::Process(Process::Close), &[]),
    hook(libc::SYS_dup2, Hook::Process(Process::DupOnto), &[]),
    hook(libc::SYS_dup3, Hook::Process(Process::DupOnto), &[]),
    hook(
        libc::SYS_close_range,
        Hook::Process(Process::CloseRange),
        &[],
    ),
    hook(libc::SYS_clone, Hook::Process(Process::Clone), &[]),
    hook(libc::SYS_clone3, Hook::Process(Process::Clone3), &[]),
    hook(libc::SYS_fork, Hook::Process(Process::Fork), &[]),
    hook(
        libc::SYS_execve,
        Hook::Process(Process::Exec),
        &[(0, There), (1, There), (2, There)],
    ),
    hook(
        libc::SYS_execveat,
        Hook::Process(Process::ExecAt),
        &[(1, There), (2, There), (3, There)],
    ),
    hook(libc::SYS_unshare, Hook::Process(Process::Unshare), &[]),
    hook(libc::SYS_setns, Hook::Process(Process::Setns), &[]),
    hook(
        libc::SYS_getrlimit,
        Hook::Process(Process::GetLimit),
        &[(1, There)],
    ),
    hook(
        libc::SYS_setrlimit,
        Hook::Process(Process::SetLimit),
        &[(1, There)],
    ),
    hook(
        libc::SYS_prlimit64,
        Hook::Process(Process::Limit),
        &[(2, There), (3, There)],
    ),
    hook(
        libc::SYS_seccomp,
        Hook::Process(Process::Seccomp),
        &[(2, There)],
    ),
    hook(libc::SYS_setuid, Hook::Process(Process::ChangeUser), &[]),
    hook(libc::SYS_setreuid, Hook::Process(Process::ChangeUser), &[]),
    hook(libc::SYS_setresuid, Hook::Process(Process::ChangeUser), &[]),
    hook(
        libc::SYS_set_robust_list,
        Hook::Process(Process::ThreadBegins),
        &[],
    ),
    hook(libc::SYS_exit, Hook::Process(Process::Exit), &[]),
    hook(libc::SYS_exit_group, Hook::Process(Process::ExitGroup), &[]),
    hook(
        libc::SYS_rt_sigsuspend,
        Hook::Signal(Signal::WaitMask),
        &[(0, N(SIGSET))],
    ),
    refused(libc::SYS_io_uring_setup),
    refused(libc::SYS_io_setup),
];

const COUNT: usize = 247;

/// Index of each call's row, plus one; 0 for calls without a row.
static INDEX: [u16; NR_MAX] = index();

const fn index() -> [u16; NR_MAX] {
    let mut index = [0; NR_MAX];
    let mut i = 0;
    while i < COUNT {
        let nr = TABLE[i].nr as usize;
        assert!(index[nr] == 0, "a call has two rows");
        index[nr] = i as u16 + 1;
        i += 1;
    }
    index
}

/// Nonzero for calls that have a row: what the stub checks first.
pub static WANTED: [u8; NR_MAX] = {
    let (mut wanted, index, mut i) = ([0; NR_MAX], index(), 0);
    while i < NR_MAX {
        wanted[i] = (index[i] != 0) as u8;
        i += 1;
    }
    wanted
};

/// The row of a call.
pub fn row(nr: usize) -> Option<&'static Row> {
    let at = *INDEX.get(nr)?;
    ROWS.get((at as usize).checked_sub(1)?)
}

const fn mask(row: &Row) -> u8 {
    let (mut mask, mut i) = (0, 0);
    while i < row.arguments.len() {
        assert!(row.arguments[i].0 < 6);
        mask |= 1 << row.arguments[i].0;
        i += 1;
    }
    mask
}

const fn filtered(row: &Row) -> seccomp::Filtered {
    let nr = row.nr as u32;
    if row.is_refused {
        seccomp::Filtered::Refused(nr)
    } else if row.nr == libc::SYS_process_madvise {
        seccomp::Filtered::Hints(nr, mask(row))
    } else {
        seccomp::Filtered::Pointers(nr, mask(row))
    }
}

/// What the seccomp filter of signal mode does with each call of the table.
pub static FILTERED: [seccomp::Filtered; COUNT] = {
    let mut all = [seccomp::Filtered::Refused(0); COUNT];
    let mut i = 0;
    while i < COUNT {
        all[i] = filtered(&TABLE[i]);
        i += 1;
    }
    all
};
const _: () = assert!(COUNT <= seccomp::CALLS_MAX);

const fn changes_memory(row: &Row) -> bool {
    matches!(row.hook, Some(Hook::Memory(_))) && mask(row) != 0
}

const MEMORY_COUNT: usize = {
    let (mut count, mut i) = (0, 0);
    while i < COUNT {
        count += changes_memory(&TABLE[i]) as usize;
        i += 1;
    }
    count
};

/// What the filter of thread mode does: far pages come back without help, but changes of the managed range must be
/// seen.
pub static FILTERED_OF_MEMORY: [seccomp::Filtered; MEMORY_COUNT] = {
    let mut all = [seccomp::Filtered::Refused(0); MEMORY_COUNT];
    let (mut n, mut i) = (0, 0);
    while i < COUNT {
        if changes_memory(&TABLE[i]) {
            all[n] = filtered(&TABLE[i]);
            n += 1;
        }
        i += 1;
    }
    all
};
