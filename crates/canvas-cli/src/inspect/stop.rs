//! Stops a process's threads for a dump (ptrace(2)), and reads their registers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{user_fpregs_struct, user_regs_struct};
use nix::sys::ptrace::{self, Options, regset::NT_PRFPREG};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::target::proc_path;
use crate::error::Failure;

/// A thread.
pub struct Thread {
    /// Its thread id.
    pub tid: u32,
    /// Its registers, in the order of the kernel's notes. When a debugger holds the process, all
    /// are zero except stack pointer and program counter.
    pub registers: [u64; 27],
    /// The floating-point registers, as in the kernel's notes.
    pub floats: Option<Vec<u8>>,
}

/// Most time for all threads of a process to stop. Threads that wait in the kernel for a disk, a
/// network file system or a child of vfork do not react before that wait is over.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// A stopped process; dropping this resumes it.
pub struct Stopped {
    pid: u32,
    /// Threads that did not stop in time. They will stop before they return to user mode.
    late: BTreeSet<u32>,
    until: Instant,
    /// Threads stopped here, each with a signal that must still be delivered.
    held: BTreeMap<u32, Option<Signal>>,
    /// All threads, the main thread first.
    pub threads: Vec<Thread>,
}

impl Stopped {
    /// Stops all threads of a process.
    pub fn new(pid: u32) -> Result<Stopped, Failure> {
        let mut stopped = Stopped {
            pid,
            late: BTreeSet::new(),
            until: Instant::now() + PATIENCE,
            held: BTreeMap::new(),
            threads: Vec::new(),
        };
        if is_traced(pid) {
            return stopped.held_by_another();
        }
        // New threads may appear while others are being stopped.
        loop {
            let new: Vec<u32> = tids(pid)
                .into_iter()
                .filter(|tid| !stopped.held.contains_key(tid) && !stopped.late.contains(tid))
                .collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                stopped.stop(tid)?;
            }
        }
        for tid in stopped.held.keys() {
            stopped.threads.extend(registers(*tid));
        }
        for tid in &stopped.late {
            stopped.threads.push(place_only(*tid));
        }
        stopped.threads.sort_by_key(|t| (t.tid != pid, t.tid));
        Ok(stopped)
    }

    /// Whether it was stopped here, not by another tracer.
    pub fn is_ours(&self) -> bool {
        !self.held.is_empty() || !self.late.is_empty()
    }

    fn stop(&mut self, tid: u32) -> Result<(), Failure> {
        let thread = Pid::from_raw(tid as i32);
        match ptrace::seize(thread, Options::empty()) {
            Ok(()) => {}
            // The thread has ended.
            Err(Errno::ESRCH) => return Ok(()),
            Err(e) => {
                return Err(Failure::usage(format!(
                    "process {} cannot be stopped ({}); this takes the rights of a debugger (ptrace(2); kernel.yama.ptrace_scope)",
                    self.pid,
                    e.desc()
                )));
            }
        }
        let _ = ptrace::interrupt(thread);
        loop {
            match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                // It stopped for a signal, which is delivered when it is resumed.
                Ok(WaitStatus::Stopped(_, signal)) => {
                    self.held.insert(tid, Some(signal));
                }
                Ok(WaitStatus::PtraceEvent(..)) => {
                    self.held.insert(tid, None);
                }
                Ok(WaitStatus::StillAlive) if Instant::now() < self.until => {
                    sleep(PAUSE);
                    continue;
                }
                Ok(WaitStatus::StillAlive) => {
                    self.late.insert(tid);
                }
                _ => {}
            }
            return Ok(());
        }
    }

    /// Another process traces it, so it must be stopped already.
    fn held_by_another(mut self) -> Result<Stopped, Failure> {
        for tid in tids(self.pid) {
            if state(tid) != Some(b't') {
                return Err(Failure::usage(format!(
                    "process {} is traced by another process and runs; stop it there first (gdb: Ctrl-C)",
                    self.pid
                )));
            }
            self.threads.push(place_only(tid));
        }
        let pid = self.pid;
        self.threads.sort_by_key(|t| (t.tid != pid, t.tid));
        Ok(self)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (tid, signal) in &self.held {
            let _ = ptrace::detach(Pid::from_raw(*tid as i32), *signal);
        }
        // If some still have not stopped, the kernel detaches them at the end of this process.
        for tid in &self.late {
            let thread = Pid::from_raw(*tid as i32);
            let stopped = waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
            let signal = match stopped {
                Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
                _ => None,
            };
            let _ = ptrace::detach(thread, signal);
        }
    }
}

fn tids(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(proc_path(pid, "task"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whether all threads of the process are stopped, by a signal or a tracer.
pub fn is_still(pid: u32) -> bool {
    let tids = tids(pid);
    let stopped = |tid: &u32| matches!(state(*tid), Some(b'T' | b't'));
    !tids.is_empty() && tids.iter().all(stopped)
}

/// The letter of a thread's state in /proc.
fn state(tid: u32) -> Option<u8> {
    let stat = fs::read(proc_path(tid, "stat")).ok()?;
    canvas_types::procfs::Stat::parse(&stat).map(|s| s.state)
}

fn is_traced(pid: u32) -> bool {
    let status = fs::read(proc_path(pid, "status")).unwrap_or_default();
    let line = status
        .split(|b| *b == b'\n')
        .find_map(|l| l.strip_prefix(b"TracerPid:"));
    line.is_some_and(|l| l.trim_ascii() != b"0")
}

fn registers(tid: u32) -> Option<Thread> {
    let thread = Pid::from_raw(tid as i32);
    let r: user_regs_struct = ptrace::getregs(thread).ok()?;
    let floats = ptrace::getregset::<NT_PRFPREG>(thread).ok();
    Some(Thread {
        tid,
        registers: [
            r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx,
            r.rdx, r.rsi, r.rdi, r.orig_rax, r.rip, r.cs, r.eflags, r.rsp, r.ss, r.fs_base,
            r.gs_base, r.ds, r.es, r.fs, r.gs,
        ],
        floats: floats.as_ref().map(bytes_of),
    })
}

/// Indexes of program counter and stack pointer among the registers.
const RIP: usize = 16;
const RSP: usize = 19;

/// What the kernel reports of a stopped thread to a process that does not trace it: `... 0xSP
/// 0xPC`.
fn place_only(tid: u32) -> Thread {
    let text = fs::read_to_string(proc_path(tid, "syscall")).unwrap_or_default();
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut last = text.split_whitespace().rev().map(hex);
    let mut registers = [0; 27];
    registers[RIP] = last.next().flatten().unwrap_or(0);
    registers[RSP] = last.next().flatten().unwrap_or(0);
    Thread {
        tid,
        registers,
        floats: None,
    }
}

/// In the layout of FXSAVE, 512 bytes.
fn bytes_of(f: &user_fpregs_struct) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    for half in [f.cwd, f.swd, f.ftw, f.fop] {
        out.extend(half.to_ne_bytes());
    }
    for long in [f.rip, f.rdp] {
        out.extend(long.to_ne_bytes());
    }
    let words = [f.mxcsr, f.mxcr_mask]
        .into_iter()
        .chain(f.st_space)
        .chain(f.xmm_space);
    for word in words {
        out.extend(word.to_ne_bytes());
    }
    out.resize(512, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{kill, killpg};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn who_is_stopped_is_still() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        assert!(!is_still(child.id()));
        kill(pid, Signal::SIGSTOP).unwrap();
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
        assert!(is_still(child.id()));
        kill(pid, Signal::SIGCONT).unwrap();
        waitpid(pid, Some(WaitPidFlag::WCONTINUED)).unwrap();
        assert!(!is_still(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_still(child.id()));
    }

    /// Its only thread waits in the kernel for a child of vfork, and no tracer can interrupt that.
    #[test]
    fn a_thread_that_does_not_stop_holds_nobody_up() {
        let vfork = "import ctypes, time; ctypes.CDLL(None).syscall(56, 0x4000 | 17, 0, 0, 0, 0); time.sleep(600)";
        let mut child = Command::new("python3")
            .args(["-c", vfork])
            .process_group(0)
            .spawn()
            .unwrap();
        while state(child.id()) != Some(b'D') {
            assert!(child.try_wait().unwrap().is_none());
            sleep(PAUSE);
        }
        let stopped = Stopped::new(child.id()).unwrap();
        assert!(stopped.is_ours());
        let tids: Vec<u32> = stopped.threads.iter().map(|t| t.tid).collect();
        assert_eq!(tids, [child.id()]);
        assert_ne!(stopped.threads[0].registers[RSP], 0);
        drop(stopped);
        killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
    }
}
