//! Numbers of system calls that patching treats apart (x86-64).

/// Highest system call number that can have a hook.
pub const NR_MAX: usize = 512;

/// Not a call of the kernel's: libc is about to make clone3, with the arguments given.
pub const BEFORE_CLONE3: usize = NR_MAX - 1;

pub(crate) const CLONE3: i32 = 435;
pub(crate) const RT_SIGRETURN: i32 = 15;
pub(crate) const VFORK: i32 = 58;
