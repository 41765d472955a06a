//! Finds out which of the system calls that canvas makes are refused here, by making them.
//!
//! A container's seccomp profile, or a sandbox, refuses calls by their numbers. Each trial makes a call with arguments
//! for which the kernel itself has an answer other than EPERM and ENOSYS, and which change nothing. Some filters kill
//! the caller of a refused call, so each trial runs in a child of its own.

use crate::gate::{Errno, sys2, sys3, sys4, sys6};
use crate::proc;

/// A call that canvas, or a tool that watches its programs, makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// User-mode faults by userfaultfd.
    Userfaultfd,
    /// Memory files: the library, the tenant segment, journals.
    MemfdCreate,
    /// Canvas's own filters.
    Seccomp,
    /// Discarding many ranges at once.
    ProcessMadvise,
    /// A descriptor of this process for process_madvise, before Linux 6.14.
    PidfdOpen,
    /// Waiting for many words at once.
    FutexWaitv,
    /// Reading another process: debuggers.
    ProcessVmReadv,
    /// Stopping another process: debuggers.
    Ptrace,
}

/// All calls; those that canvas cannot do without come first.
pub const CALLS: [Call; 8] = [
    Call::Userfaultfd,
    Call::MemfdCreate,
    Call::Seccomp,
    Call::ProcessMadvise,
    Call::PidfdOpen,
    Call::FutexWaitv,
    Call::ProcessVmReadv,
    Call::Ptrace,
];

/// How a refused call ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It fails with this error.
    Error(i32),
    /// A signal kills its process.
    Killed,
}

/// Makes the call for a trial, with arguments that change nothing.
fn make(call: Call) -> Result<usize, Errno> {
    /// `SECCOMP_GET_ACTION_AVAIL` and `SECCOMP_RET_TRAP`.
    const GET_ACTION_AVAIL: usize = 2;
    const RET_TRAP: u32 = 0x0003_0000;
    /// Higher than any process number.
    const NOBODY: usize = i32::MAX as usize;
    let own = proc::pid() as usize;
    // SAFETY: the kernel reads `name` and `action`, which live, and no other memory: all lengths are 0.
    unsafe {
        match call {
            Call::Userfaultfd => {
                let flags = libc::O_CLOEXEC as usize | crate::uffd::USER_MODE_ONLY;
                sys2(libc::SYS_userfaultfd, flags, 0)
            }
            Call::MemfdCreate => {
                let name = c"canvas-trial";
                sys2(libc::SYS_memfd_create, name.as_ptr() as usize, 0)
            }
            Call::Seccomp => {
                let action = RET_TRAP;
                let at = &raw const action as usize;
                sys3(libc::SYS_seccomp, GET_ACTION_AVAIL, 0, at)
            }
            // There is no such descriptor: EBADF.
            Call::ProcessMadvise => {
                let advice = libc::MADV_DONTNEED as usize;
                sys6(libc::SYS_process_madvise, usize::MAX, 0, 0, advice, 0, 0)
            }
            Call::PidfdOpen => sys2(libc::SYS_pidfd_open, own, 0),
            // Nothing to wait for: EINVAL.
            Call::FutexWaitv => sys6(libc::SYS_futex_waitv, 0, 0, 0, 0, 0, 0),
            Call::ProcessVmReadv => sys6(libc::SYS_process_vm_readv, own, 0, 0, 0, 0, 0),
            // There is no such process: ESRCH.
            Call::Ptrace => sys4(libc::SYS_ptrace, libc::PTRACE_CONT as usize, NOBODY, 0, 0),
        }
    }
}

/// Whether and how the call is refused; `None` also if no child can be made to find out. A kernel that lacks the call
/// also answers ENOSYS.
pub fn refusal(call: Call) -> Option<Refusal> {
    let status = in_child(|| make(call).err().map_or(0, |e| e.0))?;
    if libc::WIFSIGNALED(status) {
        return Some(Refusal::Killed);
    }
    match libc::WEXITSTATUS(status) {
        error @ (libc::EPERM | libc::EACCES | libc::ENOSYS) => Some(Refusal::Error(error)),
        _ => None,
    }
}

/// Runs `f` in a child, which exits with its result; returns the status of waitpid(2). The child sends no signal when
/// it ends, and no other code can wait for it.
fn in_child(f: impl Fn() -> i32) -> Option<i32> {
    // SAFETY: a fork. The child uses its copy of this thread's stack, makes system calls only, and ends; whatever locks
    // other threads held at the fork it does not touch.
    let child = unsafe { sys6(libc::SYS_clone, 0, 0, 0, 0, 0, 0) }.ok()?;
    if child == 0 {
        proc::exit_group(f());
    }
    let mut status = 0i32;
    loop {
        // SAFETY: the kernel writes a number to `status`; nobody else waits for the child.
        let waited = unsafe {
            sys4(
                libc::SYS_wait4,
                child,
                &raw mut status as usize,
                libc::__WCLONE as usize,
                0,
            )
        };
        match waited {
            Err(Errno(libc::EINTR)) => {}
            Err(_) => return None,
            Ok(_) => return Some(status),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_child_tells_how_its_call_ended() {
        let exit = |code| in_child(move || code).map(|s| libc::WEXITSTATUS(s));
        assert_eq!(exit(0), Some(0));
        assert_eq!(exit(libc::ENOSYS), Some(libc::ENOSYS));
        let killed = in_child(|| {
            proc::raise(libc::SIGKILL);
            0
        });
        assert!(killed.is_some_and(|s| libc::WIFSIGNALED(s)), "{killed:?}");
    }

    #[test]
    fn an_unfiltered_process_is_refused_nothing() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        if !status.lines().any(|l| l == "Seccomp:\t0") {
            // Make the calls anyway: none may end this process.
            return CALLS.iter().for_each(|call| {
                let _ = refusal(*call);
            });
        }
        for call in CALLS {
            let kernel_is_older = refusal(call) == Some(Refusal::Error(libc::ENOSYS));
            assert!(
                refusal(call).is_none() || kernel_is_older,
                "{call:?}: {:?}",
                refusal(call)
            );
        }
    }
}
