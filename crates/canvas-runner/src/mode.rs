//! Chooses the mode of delivering faults.

use canvas_shm::Mode;
use canvas_sys::uffd::{Probe, feature};
use nix::errno::Errno;

use crate::facts::Facts;

/// Address space that a managed process reserves, in bytes: the managed range, its mirror, the page
/// words.
pub const RESERVED_BYTES: u64 = {
    use canvas_types::layout::{WINDOW_BYTES, WINDOW_PAGES};
    (2 * WINDOW_BYTES + 8 * WINDOW_PAGES) as u64
};

/// A mode, and the reason for it.
pub type Choice = (Mode, &'static str);

/// Why signal mode does not work here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SignalModeError {
    /// A container's seccomp filter refuses userfaultfd, as the named default profile does.
    #[error("this container's seccomp filter refuses userfaultfd, as does {0}")]
    Container(&'static str),
    /// A seccomp filter refuses userfaultfd.
    #[error("a seccomp filter refuses userfaultfd, which this process inherited")]
    Filter,
    /// It is refused although there is no filter.
    #[error("a security module of this host refuses userfaultfd")]
    SecurityModule,
    /// The kernel was built without it.
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD)")]
    NoUserfaultfd,
    /// The kernel has it only for privileged users.
    #[error("this kernel is older than 5.11 and has no user-mode userfaultfd")]
    NoUserMode,
    /// Another error.
    #[error("userfaultfd fails: {}", .0.desc())]
    Fails(Errno),
    /// Faults cannot be delivered as signals.
    #[error("this kernel's userfaultfd has no SIGBUS feature (4.14 and later have it)")]
    NoSigbus,
    /// Calls from outside libc could not be caught.
    #[error("seccomp filters that trap are not available (CONFIG_SECCOMP_FILTER)")]
    NoTrap,
}

/// Why thread mode does not work here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "thread mode needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd"
)]
pub struct ThreadModeError;

/// Why the requested mode, or any mode, does not work here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModeError {
    /// The limit on address space is too low.
    #[error(
        "the limit on address space (ulimit -v) is {} KiB, and canvas reserves {} TiB of addresses; raise it with `ulimit -v unlimited`",
        .limit_bytes >> 10,
        RESERVED_BYTES >> 40
    )]
    AddressSpace {
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// Userfaultfd is refused, so thread mode fails for the same reason.
    #[error("no mode works here: {0}; `canvas doctor` says how to allow it")]
    Refused(SignalModeError),
    /// Neither works, for different reasons.
    #[error("no mode works here: {signal}, and {thread}; see `canvas doctor`")]
    Neither {
        /// The reason for signal mode.
        signal: SignalModeError,
        /// The reason for thread mode.
        thread: ThreadModeError,
    },
    /// Signal mode was requested.
    #[error("signal mode does not work here: {0}; see `canvas doctor`")]
    Signal(SignalModeError),
    /// Thread mode was requested.
    #[error("{0}; use --mode signal or see `canvas doctor`")]
    Thread(ThreadModeError),
}

/// Determines who refuses userfaultfd.
fn who_refuses(f: &Facts) -> SignalModeError {
    match (&f.container, f.seccomp.filtered) {
        (Some(c), true) => SignalModeError::Container(c.runtime.default_profile()),
        (None, true) => SignalModeError::Filter,
        (_, false) => SignalModeError::SecurityModule,
    }
}

/// Checks whether signal mode works.
fn signal_works(f: &Facts) -> Result<(), SignalModeError> {
    let (p, seccomp) = (&f.probe, &f.seccomp);
    if f.userfaultfd_is_refused() {
        return Err(who_refuses(f));
    }
    if p.user_mode_errno != 0 {
        return Err(match Errno::from_raw(p.user_mode_errno) {
            Errno::ENOSYS => SignalModeError::NoUserfaultfd,
            Errno::EINVAL => SignalModeError::NoUserMode,
            e => SignalModeError::Fails(e),
        });
    }
    if p.features & feature::SIGBUS == 0 {
        return Err(SignalModeError::NoSigbus);
    }
    if !seccomp.trap {
        return Err(SignalModeError::NoTrap);
    }
    Ok(())
}

/// Checks whether thread mode works.
pub fn thread_works(p: &Probe) -> Result<(), ThreadModeError> {
    if p.full_errno == 0 || p.device_errno == 0 {
        return Ok(());
    }
    Err(ThreadModeError)
}

/// The mode of a run that requests `wanted`, or none in particular, and the reason.
pub fn choose(wanted: Option<Mode>, facts: &Facts) -> Result<Choice, ModeError> {
    if let Some(limit_bytes) = facts.limits.address_space_bytes
        && limit_bytes < RESERVED_BYTES
    {
        return Err(ModeError::AddressSpace { limit_bytes });
    }
    let signal = signal_works(facts);
    let thread = thread_works(&facts.probe);
    match (wanted, signal, thread) {
        (None, Ok(()), _) => Ok((
            Mode::Signal,
            "user-mode userfaultfd with SIGBUS works, and needs no privilege",
        )),
        (Some(Mode::Signal), Ok(()), _) => Ok((Mode::Signal, "it was requested, and works")),
        (Some(Mode::Thread), _, Ok(())) => Ok((Mode::Thread, "it was requested, and works")),
        (None, Err(_), Ok(())) => Ok((
            Mode::Thread,
            "signal mode does not work here, and this user may handle all faults",
        )),
        // Thread mode would fail for the same reason.
        (_, Err(s), Err(_)) if facts.userfaultfd_is_refused() => Err(ModeError::Refused(s)),
        (None, Err(signal), Err(thread)) => Err(ModeError::Neither { signal, thread }),
        (Some(Mode::Signal), Err(s), _) => Err(ModeError::Signal(s)),
        (Some(Mode::Thread), _, Err(t)) => Err(ModeError::Thread(t)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Seccomp;

    const ALL: u64 = feature::SIGBUS | feature::PAGEFAULT_FLAG_WP;
    const EPERM: i32 = Errno::EPERM as i32;

    fn facts(user_mode_errno: i32, full_errno: i32, features: u64) -> Facts {
        Facts {
            probe: Probe {
                user_mode_errno,
                full_errno,
                device_errno: full_errno,
                features,
            },
            seccomp: Seccomp {
                trap: true,
                ..Seccomp::default()
            },
            ..Facts::default()
        }
    }

    fn mode(wanted: Option<Mode>, f: &Facts) -> Result<Mode, ModeError> {
        choose(wanted, f).map(|(mode, _)| mode)
    }

    #[test]
    fn an_ordinary_user_gets_signal_mode() {
        let f = facts(0, EPERM, ALL);
        assert_eq!(mode(None, &f), Ok(Mode::Signal));
        assert_eq!(mode(Some(Mode::Signal), &f), Ok(Mode::Signal));
        let refused = mode(Some(Mode::Thread), &f).unwrap_err().to_string();
        assert!(
            refused.contains("CAP_SYS_PTRACE") && refused.contains("--mode signal"),
            "{refused}"
        );
    }

    #[test]
    fn without_sigbus_a_privileged_user_gets_thread_mode() {
        let f = facts(0, 0, feature::MOVE);
        assert_eq!(mode(None, &f), Ok(Mode::Thread));
        let refused = mode(Some(Mode::Signal), &f).unwrap_err().to_string();
        assert!(refused.contains("SIGBUS"), "{refused}");
    }

    #[test]
    fn the_device_is_enough_for_thread_mode() {
        let mut f = facts(EPERM, EPERM, ALL);
        f.probe.device_errno = 0;
        assert_eq!(mode(None, &f), Ok(Mode::Thread));
    }
}
