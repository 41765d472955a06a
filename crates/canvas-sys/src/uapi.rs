//! Sizes of the structures that system calls read and write, from the kernel's headers for x86-64.
//!
//! A test compares them with the headers of this system.

macro_rules! structures {
    ($($header:literal { $($name:ident = $spelling:literal, $bytes:literal;)* })*) => {
        $($(
            #[doc = concat!("Bytes of `", $spelling, "`.")]
            pub const $name: usize = $bytes;
        )*)*
        /// Header of each structure, its C name, and its bytes.
        pub const ALL: &[(&str, &str, usize)] = &[$($(($header, $spelling, $bytes),)*)*];
    };
}

structures! {
    "asm/stat.h" { STAT = "struct stat", 144; }
    "linux/stat.h" { STATX = "struct statx", 256; }
    "asm/statfs.h" { STATFS = "struct statfs", 120; }
    "linux/types.h" {
        NUMBER = "__u32", 4;
        WORD = "__u64", 8;
        FILE_OFFSET = "__kernel_loff_t", 8;
        TIMER = "__kernel_timer_t", 4;
    }
    "linux/posix_types.h" { FD_SET_WORD = "__kernel_ulong_t", 8; }
    "linux/time_types.h" {
        TIMESPEC = "struct __kernel_timespec", 16;
        ITIMERSPEC = "struct __kernel_itimerspec", 32;
        TIMEVAL = "struct __kernel_old_timeval", 16;
        ITIMERVAL = "struct __kernel_old_itimerval", 32;
    }
    "linux/time.h" { TIMEZONE = "struct timezone", 8; }
    "linux/timex.h" { TIMEX = "struct __kernel_timex", 208; }
    "linux/poll.h" { POLLFD = "struct pollfd", 8; }
    "linux/eventpoll.h" { EPOLL_EVENT = "struct epoll_event", 12; }
    "linux/fcntl.h" { FLOCK = "struct flock", 32; }
    "asm/signal.h" {
        SIGSET = "sigset_t", 8;
        SIGALTSTACK = "stack_t", 24;
    }
    "asm/siginfo.h" {
        SIGINFO = "siginfo_t", 128;
        SIGEVENT = "struct sigevent", 64;
    }
    "linux/resource.h" {
        RUSAGE = "struct rusage", 144;
        RLIMIT = "struct rlimit64", 16;
    }
    "linux/utsname.h" { UTSNAME = "struct new_utsname", 390; }
    "linux/sem.h" {
        SEMBUF = "struct sembuf", 6;
        SEMID = "struct semid64_ds", 104;
    }
    "linux/shm.h" { SHMID = "struct shmid64_ds", 112; }
    "linux/msg.h" { MSQID = "struct msqid64_ds", 120; }
    "linux/sysinfo.h" { SYSINFO = "struct sysinfo", 112; }
    "linux/times.h" { TMS = "struct tms", 32; }
    "linux/capability.h" {
        CAP_HEADER = "struct __user_cap_header_struct", 8;
        CAP_DATA = "struct __user_cap_data_struct [2]", 24;
    }
    "linux/sched.h" { CLONE_ARGS = "struct clone_args", 88; }
    "linux/mqueue.h" { MQ_ATTR = "struct mq_attr", 64; }
    "linux/uio.h" { IOVEC = "struct iovec", 16; }
    "linux/filter.h" { SOCK_FPROG = "struct sock_fprog", 16; }
    "linux/quota.h" { DQBLK = "struct if_nextdqblk", 72; }
    "linux/dqblk_xfs.h" {
        DISK_QUOTA = "struct fs_disk_quota", 112;
        QUOTA_STATV = "struct fs_quota_statv", 160;
    }
    "linux/futex.h" { FUTEX_WAITV = "struct futex_waitv", 24; }
    "sys/socket.h" {
        MSGHDR = "struct msghdr", 56;
        MMSGHDR = "struct mmsghdr", 64;
        SOCKADDR = "struct sockaddr_storage", 128;
    }
    "utime.h" { UTIMBUF = "struct utimbuf", 16; }
}

// libc's structures that are passed to the kernel as its own.
const _: () = assert!(
    size_of::<libc::stat>() == STAT
        && size_of::<libc::timespec>() == TIMESPEC
        && size_of::<libc::pollfd>() == POLLFD
        && size_of::<libc::flock>() == FLOCK
        && size_of::<libc::stack_t>() == SIGALTSTACK
        && size_of::<libc::siginfo_t>() == SIGINFO
        && size_of::<libc::sysinfo>() == SYSINFO
        && size_of::<libc::iovec>() == IOVEC
);

/// Bytes of `struct file_handle` with the longest handle (MAX_HANDLE_SZ).
pub const FILE_HANDLE: usize = 8 + 128;
