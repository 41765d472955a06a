//! Starts a program as its caller would have started it, and reports how it ends. For the command, which has std; the
//! library does not use this.

extern crate std;

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU32, Ordering};
use std::vec::Vec;

use crate::gate::{Errno, sys1, sys2, sys3, sys4, sys6};
use crate::proc;
use crate::signal::{self, KernelSigaction};

/// What Rust's runtime changes before `main`: which of the standard streams the caller had closed, one bit each (the
/// runtime opens /dev/null there), and whether the caller ignored SIGPIPE.
static CALLERS: AtomicU32 = AtomicU32::new(0);
const STREAMS: i32 = 3;
const PIPE_IGNORED: u32 = 1 << STREAMS;

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note_callers;

extern "C" fn note_callers() {
    #[cfg(not(canvas_sanitizer))]
    crate::compat::keep();
    let mut found = 0;
    for fd in 0..STREAMS {
        // SAFETY: this command takes no address.
        let flags = unsafe { sys2(libc::SYS_fcntl, fd as usize, libc::F_GETFD as usize) };
        found |= u32::from(flags.is_err()) << fd;
    }
    if ignores(libc::SIGPIPE) {
        found |= PIPE_IGNORED;
    }
    CALLERS.store(found, Ordering::Relaxed);
}

/// Whether this process ignores `signal`.
pub fn ignores(signal: i32) -> bool {
    let mut now = KernelSigaction::default();
    let at = &raw mut now as usize;
    // SAFETY: the kernel writes the action to `now`; without a new one nothing changes.
    let asked = unsafe { sys4(libc::SYS_rt_sigaction, signal as usize, 0, at, 8) };
    asked.is_ok() && now.handler == libc::SIG_IGN
}

/// A program to start.
pub struct Start<'a> {
    /// Its file.
    pub program: &'a CStr,
    /// Its arguments, the name first.
    pub argv: &'a [&'a CStr],
    /// Its environment, "NAME=value".
    pub env: &'a [&'a CStr],
    /// Variables of `env` that are set to the number of the new process.
    pub pids: &'a [&'a str],
    /// Signals that it starts with blocked, one bit each.
    pub mask: u64,
    /// Whether it ignores SIGCHLD.
    pub ignores_children: bool,
}

/// Bytes of the largest process number and a terminator.
const DIGITS: usize = 11;

impl Start<'_> {
    /// Starts it with the standard streams and the SIGPIPE action that this process got from its own caller. Returns
    /// the number of the new process, or the kernel's error.
    pub fn spawn(&self) -> Result<u32, Errno> {
        let mut named: Vec<(usize, Vec<u8>)> = Vec::new();
        for (i, var) in self.env.iter().enumerate() {
            let text = var.to_bytes();
            let name = text.split(|b| *b == b'=').next().unwrap_or(text);
            if self.pids.iter().any(|p| p.as_bytes() == name) {
                let mut var = [name, b"="].concat();
                var.extend([0; DIGITS]);
                named.push((i, var));
            }
        }
        let pointers = |texts: &[&CStr]| {
            let all = texts.iter().map(|t| t.as_ptr());
            all.chain([core::ptr::null()])
                .collect::<Vec<*const c_char>>()
        };
        let (argv, mut env) = (pointers(self.argv), pointers(self.env));
        for (i, var) in &named {
            env[*i] = var.as_ptr().cast();
        }
        let mut pipe = [0i32; 2];
        let at = pipe.as_mut_ptr() as usize;
        // SAFETY: the kernel writes two descriptors to `pipe`.
        unsafe { sys2(libc::SYS_pipe2, at, libc::O_CLOEXEC as usize) }?;
        // By libc's fork, as an outer `canvas run` expects of a program.
        // SAFETY: the child continues here on a copy of all memory, and only does what is safe in a signal handler.
        let forked = match unsafe { libc::fork() } {
            // SAFETY: libc returns the address of the calling thread's errno.
            -1 => Err(Errno(unsafe { *libc::__errno_location() })),
            pid => Ok(pid as usize),
        };
        if forked == Ok(0) {
            self.become_it(&argv, &env, &mut named, pipe[1]);
        }
        proc::close(pipe[1]);
        let answer = forked.and_then(|pid| {
            let mut error = 0i32;
            let at = &raw mut error as usize;
            // SAFETY: the kernel writes at most 4 bytes to `error`.
            let n = unsafe { sys3(libc::SYS_read, pipe[0] as usize, at, 4) };
            if n == Ok(4) {
                // SAFETY: no address is passed; the child is this function's, and nobody else waits for it.
                let _ = unsafe { sys4(libc::SYS_wait4, pid, 0, 0, 0) };
                return Err(Errno(error));
            }
            Ok(pid as u32)
        });
        proc::close(pipe[0]);
        answer
    }

    /// In the child: other threads of the parent may have held any lock, so nothing here allocates.
    fn become_it(
        &self,
        argv: &[*const c_char],
        env: &[*const c_char],
        named: &mut [(usize, Vec<u8>)],
        pipe: i32,
    ) -> ! {
        let callers = CALLERS.load(Ordering::Relaxed);
        for fd in (0..STREAMS).filter(|fd| callers & (1 << fd) != 0) {
            proc::close(fd);
        }
        if callers & PIPE_IGNORED == 0 {
            signal::set_default(libc::SIGPIPE);
        }
        if self.ignores_children {
            signal::set_ignored(libc::SIGCHLD);
        }
        for (_, var) in named {
            let room = var.len() - DIGITS;
            write_number(&mut var[room..], proc::pid());
        }
        signal::set_mask(self.mask);
        // SAFETY: a path and two vectors of C strings, which live and end with null; libc returns the address of the
        // calling thread's errno.
        let error = unsafe {
            libc::execve(self.program.as_ptr(), argv.as_ptr(), env.as_ptr());
            *libc::__errno_location()
        };
        proc::write_all(pipe, &error.to_ne_bytes());
        proc::exit_group(canvas_types::exit::RUN_FAILED)
    }
}

/// Writes a number and a terminator; `room` has [`DIGITS`] bytes.
fn write_number(room: &mut [u8], mut number: u32) {
    let mut at = room.len() - 1;
    room[at] = 0;
    while number != 0 || at == room.len() - 1 {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    room.copy_within(at.., 0);
}

/// State of a child, as reported by wait4(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has exited with this code.
    Exited(i32),
    /// It was ended by this signal; the second field says whether it dumped core.
    Killed(i32, bool),
    /// It was stopped by this signal.
    Stopped(i32),
}

/// The new state of the child `pid`; `None` if nothing has changed.
pub fn look(pid: u32) -> Result<Option<State>, Errno> {
    let mut status = 0i32;
    let (at, flags) = (&raw mut status as usize, libc::WNOHANG | libc::WUNTRACED);
    // SAFETY: the kernel writes a number to `status`.
    let found = unsafe { sys4(libc::SYS_wait4, pid as usize, at, flags as usize, 0) }?;
    let state = match status {
        s if libc::WIFEXITED(s) => State::Exited(libc::WEXITSTATUS(s)),
        s if libc::WIFSIGNALED(s) => State::Killed(libc::WTERMSIG(s), libc::WCOREDUMP(s)),
        s => State::Stopped(libc::WSTOPSIG(s)),
    };
    Ok((found != 0).then_some(state))
}

/// Reaps children that have ended, except those that other code waits for: the work of init, and of a process that
/// exec'ed this program while it had children.
pub fn reap_all_but(waited_for: &[u32]) {
    const ID_ALL: usize = libc::P_ALL as usize;
    let flags = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) as usize;
    loop {
        // The kernel's siginfo_t; the child's number comes after three numbers and a gap.
        let mut info = [0i32; 32];
        let at = info.as_mut_ptr() as usize;
        // SAFETY: the kernel writes a siginfo_t, 128 bytes, to `info`.
        let found = unsafe { sys6(libc::SYS_waitid, ID_ALL, 0, at, flags, 0, 0) };
        let pid = info[4] as u32;
        if found.is_err() || info[0] == 0 || waited_for.contains(&pid) {
            return;
        }
        // SAFETY: no address is passed; the child has ended, and nobody waits for it.
        let _ = unsafe { sys4(libc::SYS_wait4, pid as usize, 0, libc::WNOHANG as usize, 0) };
    }
}

/// Forwards `signal` to `pid`, with the value that its sender queued, if any.
pub fn pass(pid: u32, signal: i32, info: &libc::signalfd_siginfo) {
    if info.ssi_code == libc::SI_QUEUE {
        // The kernel's siginfo_t: signal, error, code, a gap, sender, user, value.
        let mut words = [0i32; 32];
        words[0] = signal;
        words[2] = libc::SI_QUEUE;
        words[4] = info.ssi_pid as i32;
        words[5] = info.ssi_uid as i32;
        words[6] = info.ssi_ptr as i32;
        words[7] = (info.ssi_ptr >> 32) as i32;
        let at = words.as_ptr() as usize;
        // SAFETY: the kernel reads a siginfo_t, 128 bytes, from `words`.
        if unsafe { sys3(libc::SYS_rt_sigqueueinfo, pid as usize, signal as usize, at) }.is_ok() {
            return;
        }
    }
    // SAFETY: the call takes no address.
    let _ = unsafe { sys2(libc::SYS_kill, pid as usize, signal as usize) };
}

/// Ends this process by `signal`, without a core dump of its own. Returns if the signal does not end it: in the first
/// process of a namespace, or if the signal's default action is not to end it.
pub fn end_by(signal: i32) {
    // SAFETY: this option takes no address.
    let _ = unsafe { proc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    signal::set_default(signal);
    signal::set_mask(!signal::bit(signal));
    proc::raise(signal);
}

/// Stops this process until it is continued.
pub fn stop() {
    // SAFETY: the call takes no address.
    let _ = unsafe { sys2(libc::SYS_kill, proc::pid() as usize, libc::SIGSTOP as usize) };
}

/// Whether this process is its session's leader, so that it alone gets SIGHUP when the terminal hangs up.
pub fn leads_session() -> bool {
    // SAFETY: the call takes no address.
    unsafe { sys1(libc::SYS_getsid, 0) }.is_ok_and(|session| session == proc::pid() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_room() {
        for (number, text) in [
            (0, "0"),
            (7, "7"),
            (4_194_304, "4194304"),
            (u32::MAX, "4294967295"),
        ] {
            let mut room = [b'x'; DIGITS];
            write_number(&mut room, number);
            assert_eq!(
                CStr::from_bytes_until_nul(&room).unwrap().to_str(),
                Ok(text)
            );
        }
    }

    fn start(env: &[&CStr], script: &CStr) -> Result<Option<State>, Errno> {
        let start = Start {
            program: c"/bin/sh",
            argv: &[c"sh", c"-c", script],
            env,
            pids: &["LISTEN_PID"],
            mask: 0,
            ignores_children: false,
        };
        let pid = start.spawn()?;
        loop {
            match look(pid)? {
                None => proc::sleep_ns(1_000_000),
                ended => return Ok(ended),
            }
        }
    }

    #[test]
    fn a_variable_has_the_number_of_the_process_that_reads_it() {
        let env = [c"A=1", c"LISTEN_PID=12", c"LISTEN_PIDS=12"];
        let script = c"test $LISTEN_PID.$LISTEN_PIDS.$A = $$.12.1 && exit 3";
        assert_eq!(start(&env, script), Ok(Some(State::Exited(3))));
    }

    #[test]
    fn every_signal_that_ends_a_program_is_told() {
        assert_eq!(
            start(&[], c"kill -37 $$"),
            Ok(Some(State::Killed(37, false)))
        );
    }

    #[test]
    fn what_cannot_be_started_says_why() {
        let start = Start {
            program: c"/nonexistent",
            argv: &[c"x"],
            env: &[],
            pids: &[],
            mask: 0,
            ignores_children: false,
        };
        assert_eq!(start.spawn(), Err(Errno(libc::ENOENT)));
    }
}
