//! While CMD runs: its signals, its stops, its end, and the sweep of the tenant's slots.
//!
//! One thread, no signal handler: the signals are blocked and read from a signalfd, so nothing here
//! can interrupt anything else here.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::fd::AsFd;

use crate::busy::Processors;
use crate::control::tenant::Tenant;
use crate::far::Keeper;
use crate::offload::Offload;
use crate::sweep::Peaks;
use crate::tree::Tree;
use canvas_agent::members::{proc_state, release_dead};
use canvas_control::peers::Peers;

/// Time between two sweeps of the slots.
const SWEEP: Duration = Duration::from_millis(100);

/// Signals that are passed on to CMD when another process sends them to us.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// How CMD ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal; the second field tells whether it dumped core.
    Signal(Signal, bool),
}

impl End {
    /// The exit code that a shell would show.
    pub fn code(self) -> i32 {
        match self {
            End::Exit(code) => code,
            End::Signal(signal, _) => canvas_types::exit::SIGNAL_BASE + signal as i32,
        }
    }
}

/// Our signals while CMD runs.
pub struct Signals {
    fd: SignalFd,
    /// The mask before, which CMD gets.
    pub before: SigSet,
}

impl Signals {
    /// Blocks the signals that matter here and opens the descriptor that they are read from.
    pub fn open() -> Result<Signals, Errno> {
        // If our parent ignored SIGCHLD, the kernel would throw CMD's exit status away.
        canvas_sys::signal::set_default(Signal::SIGCHLD as i32);
        let set: SigSet = PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect();
        let before = set.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { fd, before })
    }
}

/// Waits for CMD's end. `unlimited` looks at processes that charge nothing themselves; the agent is
/// replaced when it dies; `peers` are answered between two looks.
pub fn supervise(
    child: Pid,
    signals: &Signals,
    peaks: &mut Peaks,
    mut unlimited: Option<Tree>,
    mut agent: Option<&mut Keeper>,
    tenant: &Tenant,
    peers: &mut Peers,
) -> Result<End, Errno> {
    let segment = tenant.segment;
    let mut next_sweep = Instant::now() + SWEEP;
    let mut offload = Offload::new();
    let mut processors = Processors::new();
    loop {
        if let Some(agent) = &mut agent {
            agent.tend();
        }
        if let Some(end) = look_at_child(child)? {
            return Ok(end);
        }
        let due = agent.as_ref().and_then(|a| a.due());
        let until = due.map_or(next_sweep, |due| due.min(next_sweep));
        let wait = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(wait.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let own = PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN);
        let agents = agent.as_ref().and_then(|a| a.poll_fd());
        let mut fds: Vec<_> = [own]
            .into_iter()
            .chain(agents)
            .chain(peers.poll_fds())
            .collect();
        let ready = match poll(&mut fds, timeout) {
            Ok(ready) => ready > 0,
            Err(Errno::EINTR) => false,
            Err(e) => return Err(e),
        };
        drop(fds);
        if ready || peers.any() {
            peers.serve(|asked| tenant.answer(asked, agent.as_deref_mut()));
        }
        while let Some(info) = signals.fd.read_signal()? {
            pass_on(&info, child);
        }
        if Instant::now() >= next_sweep {
            if let Some(pages) = unlimited.as_mut().and_then(Tree::anon_pages) {
                segment.note_unlimited(pages);
                peaks.uncharged_pages = pages;
            }
            peaks.sample(segment, tenant.sides.look(agent.as_deref()));
            processors.look(segment);
            if let Some(book) = &tenant.book {
                book.look(&segment.recordings);
            }
            offload.look(segment, tenant.mode);
            release_dead(segment, agent.as_ref().map(|a| a.far()));
            next_sweep = Instant::now() + SWEEP;
        }
    }
}

/// CMD's end, if it has ended; stops with it when it has stopped.
fn look_at_child(child: Pid) -> Result<Option<End>, Errno> {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(Some(End::Exit(code))),
            Ok(WaitStatus::Signaled(_, signal, core)) => {
                return Ok(Some(End::Signal(signal, core)));
            }
            Ok(WaitStatus::Stopped(_, signal)) => stop_too(signal),
            Ok(_) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Stops this process as the terminal stopped CMD, so that the shell sees the job stop.
///
/// Only for job control: a debugger or an administrator who stops CMD continues CMD and not us.
fn stop_too(signal: Signal) {
    let job_control = matches!(signal, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU);
    if job_control && std::fs::File::open("/dev/tty").is_ok() {
        // Returns when someone continues us; that SIGCONT is then read like any other.
        let _ = raise(Signal::SIGSTOP);
    }
}

/// Passes a signal on to CMD unless CMD has it already.
fn pass_on(info: &siginfo, child: Pid) {
    let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else {
        return;
    };
    if signal == Signal::SIGCONT {
        // `fg` continues the whole group; then CMD runs already, and need not hear of it twice.
        if proc_state(child.as_raw() as u32).is_some_and(|s| s.state == b'T') {
            let _ = kill(child, signal);
        }
        return;
    }
    // A positive code is the kernel's: a terminal sends to the whole group, CMD included. And what
    // CMD itself sent (to its group, for example) it does not want back.
    let from_kernel = info.ssi_code > 0;
    if signal != Signal::SIGCHLD && !from_kernel && info.ssi_pid as i32 != child.as_raw() {
        let _ = kill(child, signal);
    }
}
