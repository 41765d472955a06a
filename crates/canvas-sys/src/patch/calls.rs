//! Numbers of system calls that patching treats specially (x86-64).

/// Highest system call number that can have a hook.
pub const NR_MAX: usize = 512;

/// Bytes of the `syscall` instruction just before the address at which a trampoline continues after the call.
pub const NATIVE_BYTES: usize = 2;

pub(crate) const CLONE: i32 = 56;
pub(crate) const EXIT: i32 = 60;
pub(crate) const RT_SIGRETURN: i32 = 15;
pub(crate) const VFORK: i32 = 58;
