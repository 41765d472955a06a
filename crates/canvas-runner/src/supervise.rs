//! Supervises CMD: its signals, stops and end, and the sweep of the tenant's slots.
//!
//! Uses one thread and no signal handler: signals are blocked and read from a signalfd, so nothing
//! here is interrupted.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use std::cell::Cell;
use std::os::fd::AsFd;

use crate::busy::Processors;
use crate::control::tenant::Tenant;
use crate::far::Keeper;
use crate::notify::Notify;
use crate::offload::Offload;
use crate::sweep::Peaks;
use crate::tree::Tree;
use canvas_agent::members::{proc_state, release_dead};
use canvas_control::peers::Peers;
use canvas_sys::child::{self, State};

/// Interval of sweeps over the slots.
const SWEEP: Duration = Duration::from_millis(100);

/// How CMD ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By the signal with this number; the second field tells whether it dumped core.
    Signal(i32, bool),
}

impl End {
    /// The exit code that a shell would show.
    pub fn code(self) -> i32 {
        match self {
            End::Exit(code) => code,
            End::Signal(signal, _) => canvas_types::exit::SIGNAL_BASE + signal,
        }
    }
}

/// This process's signals while CMD runs.
pub struct Signals {
    fd: SignalFd,
    /// The original signal mask, one bit per signal, which CMD gets.
    pub before: u64,
    /// Whether the caller ignored SIGCHLD, so that CMD does, too.
    pub ignores_children: bool,
    /// Whether a job control stop was passed on: when CMD stops, this process stops, too.
    passed_stop: Cell<bool>,
}

impl Signals {
    /// Blocks all signals and opens the descriptor to read them from.
    pub fn open() -> Result<Signals, Errno> {
        let ignores_children = child::ignores(libc::SIGCHLD);
        // With SIGCHLD ignored, the kernel would discard CMD's exit status.
        canvas_sys::signal::set_default(libc::SIGCHLD);
        let before = canvas_sys::signal::set_mask(u64::MAX);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&SigSet::all(), flags)?;
        Ok(Signals {
            fd,
            before,
            ignores_children,
            passed_stop: Cell::new(false),
        })
    }
}

/// CMD, and its connections to its caller.
pub struct Cmd {
    /// Its pid.
    pub pid: u32,
    /// Signals sent to this process.
    pub signals: Signals,
    /// Its messages to the service manager.
    pub notify: Option<Notify>,
}

/// Waits for CMD's end. `unlimited` measures processes that do not account for memory themselves;
/// an agent that dies is replaced; clients in `peers` are served meanwhile.
pub fn supervise(
    cmd: &Cmd,
    peaks: &mut Peaks,
    mut unlimited: Option<Tree>,
    mut agent: Option<&mut Keeper>,
    tenant: &Tenant,
    peers: &mut Peers,
) -> Result<End, Errno> {
    let Cmd {
        pid: child,
        signals,
        notify,
    } = cmd;
    let child = *child;
    let segment = tenant.segment;
    let mut next_sweep = Instant::now() + SWEEP;
    let mut offload = Offload::new();
    let mut processors = Processors::new();
    loop {
        if let Some(agent) = &mut agent {
            agent.tend();
        }
        let end = look_at_child(child, signals)?;
        if let Some(notify) = notify {
            notify.pass_on(child);
        }
        if let Some(end) = end {
            return Ok(end);
        }
        let of_agent = agent.as_ref().and_then(|a| a.process());
        child::reap_all_but(&[child, of_agent.unwrap_or(0)]);
        let due = agent.as_ref().and_then(|a| a.due());
        let until = due.map_or(next_sweep, |due| due.min(next_sweep));
        let wait = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(wait.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let own = PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN);
        let agents = agent.as_ref().and_then(|a| a.poll_fd());
        let mut fds: Vec<_> = [own]
            .into_iter()
            .chain(agents)
            .chain(notify.as_ref().map(Notify::poll_fd))
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
            pass_on(&info, child, signals);
        }
        if Instant::now() >= next_sweep {
            if let Some(pages) = unlimited.as_mut().and_then(Tree::anon_pages) {
                segment.note_unlimited(pages);
                peaks.uncharged_pages = pages;
            }
            let lives = tenant.sides.lives();
            peaks.sample(lives, segment, tenant.sides.look(agent.as_deref()));
            processors.look(segment);
            if let Some(book) = &tenant.book {
                book.look(&segment.recordings);
            }
            offload.look(lives, segment, tenant.mode);
            release_dead(lives, segment, agent.as_ref().map(|a| a.far()));
            next_sweep = Instant::now() + SWEEP;
        }
    }
}

/// Returns CMD's end, if it has ended; if it has stopped, stops this process.
fn look_at_child(pid: u32, signals: &Signals) -> Result<Option<End>, Errno> {
    loop {
        match child::look(pid).map_err(|e| Errno::from_raw(e.0))? {
            Some(State::Exited(code)) => return Ok(Some(End::Exit(code))),
            Some(State::Killed(signal, core)) => return Ok(Some(End::Signal(signal, core))),
            Some(State::Stopped(signal)) => stop_too(signal, signals),
            None => return Ok(None),
        }
    }
}

/// Stops this process as job control stopped CMD, so that the shell sees the job stop.
///
/// Only after a stop from a terminal or by a signal to canvas: a debugger or an administrator who
/// stops CMD will continue CMD, not canvas.
fn stop_too(signal: i32, signals: &Signals) {
    if !STOPS.contains(&signal) {
        return;
    }
    if signals.passed_stop.take() || std::fs::File::open("/dev/tty").is_ok() {
        // Returns when somebody continues this process; that SIGCONT is then read like any signal.
        child::stop();
    }
}

/// Job control's stop signals.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Of the kernel's signals, those meant for this process alone: timers set by the caller, and
/// events on descriptors. All others come from a terminal, which signals the whole group including
/// CMD, or were caused by this process.
const FROM_KERNEL: [i32; 6] = [
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGURG,
    libc::SIGPWR,
];

/// Passes a signal on to CMD, unless CMD has got it already.
fn pass_on(info: &siginfo, pid: u32, signals: &Signals) {
    let signal = info.ssi_signo as i32;
    // A positive code marks the kernel's signals. When a terminal hangs up, only the session leader
    // is signalled.
    if info.ssi_code > 0 && !FROM_KERNEL.contains(&signal) {
        let hang_up = signal == libc::SIGHUP && child::leads_session();
        if !hang_up && signal != libc::SIGCONT {
            return;
        }
    }
    // A signal from CMD itself (to its group, for example) is not passed back; SIGPIPE is canvas's
    // own, when nobody reads its output.
    if [pid, std::process::id()].contains(&info.ssi_pid) {
        return;
    }
    // `fg` continues the whole group; if CMD is already running, it needs no second SIGCONT.
    if signal == libc::SIGCONT && proc_state(pid).is_none_or(|s| s.state != b'T') {
        return;
    }
    signals.passed_stop.set(STOPS.contains(&signal));
    child::pass(pid, signal, info);
}
