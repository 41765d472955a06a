//! `canvas doctor`: what this kernel and user allow, which mode `canvas run` chooses, and why.
//!
//! Facts are gathered in one place ([`Facts::gather`]), judged in another ([`choose`], [`advice`]),
//! so that the judgement can be tested without the kernels that it is about.

use std::io::{self, Write};

use canvas_shm::Mode;
use canvas_sys::uffd::{Probe, feature, probe};
use canvas_types::exit;
use nix::errno::Errno;
use serde::Serialize;
use serde_json::json;

use crate::args::ModeArg;
use crate::facts::{Facts, Seccomp};
use crate::stats::mode_name;

/// Address space that a managed process reserves, in bytes: the window, its mirror, the page words.
const RESERVED_BYTES: u64 = {
    use canvas_types::layout::{WINDOW_BYTES, WINDOW_PAGES};
    (2 * WINDOW_BYTES + 8 * WINDOW_PAGES) as u64
};
/// Mappings that a large threaded program may need.
const MAPS_COMFORT: u64 = 65_530;
/// Descriptors below which our own get in the way.
const NOFILE_COMFORT: u64 = 256;

/// A mode and the reason for it.
pub type Choice = (Mode, &'static str);

/// Does signal mode work, and if not, why not?
fn signal_works(p: &Probe, seccomp: &Seccomp) -> Result<(), String> {
    if p.user_mode_errno != 0 {
        return Err(match Errno::from_raw(p.user_mode_errno) {
            Errno::ENOSYS => "this kernel has no userfaultfd (CONFIG_USERFAULTFD)".into(),
            Errno::EPERM => {
                "userfaultfd is forbidden here, as Docker's default seccomp profile does".into()
            }
            Errno::EINVAL => {
                "this kernel is older than 5.11 and has no user-mode userfaultfd".into()
            }
            e => format!("userfaultfd fails: {}", e.desc()),
        });
    }
    if p.features & feature::SIGBUS == 0 {
        return Err(
            "this kernel's userfaultfd has no SIGBUS feature (4.14 and later have it)".into(),
        );
    }
    if !seccomp.trap {
        return Err("seccomp filters that trap are not available (CONFIG_SECCOMP_FILTER)".into());
    }
    Ok(())
}

/// Does thread mode work, and if not, why not?
fn thread_works(p: &Probe) -> Result<(), String> {
    if p.full_errno == 0 || p.device_errno == 0 {
        return Ok(());
    }
    Err("thread mode needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd".into())
}

/// The mode that `canvas run --mode wanted` uses, and why; one sentence when none works.
pub fn choose(wanted: ModeArg, facts: &Facts) -> Result<Choice, String> {
    let p = &facts.probe;
    if let Some(limit) = facts.limits.address_space_bytes
        && limit < RESERVED_BYTES
    {
        return Err(format!(
            "the limit on address space (ulimit -v) is {} KiB, and canvas reserves {} TiB of addresses; raise it with `ulimit -v unlimited`",
            limit >> 10,
            RESERVED_BYTES >> 40,
        ));
    }
    let signal = signal_works(p, &facts.seccomp);
    let thread = thread_works(p);
    match (wanted, signal, thread) {
        (ModeArg::Auto, Ok(()), _) => Ok((
            Mode::Signal,
            "user-mode userfaultfd with SIGBUS works, and needs no privilege",
        )),
        (ModeArg::Signal, Ok(()), _) => Ok((Mode::Signal, "it was asked for, and works")),
        (ModeArg::Thread, _, Ok(())) => Ok((Mode::Thread, "it was asked for, and works")),
        (ModeArg::Auto, Err(_), Ok(())) => Ok((
            Mode::Thread,
            "signal mode does not work here, and this user may handle all faults",
        )),
        (ModeArg::Auto, Err(s), Err(t)) => Err(format!(
            "no mode works here: {s}, and {t}; see `canvas doctor`"
        )),
        (ModeArg::Signal, Err(s), _) => Err(format!(
            "signal mode does not work here: {s}; see `canvas doctor`"
        )),
        (ModeArg::Thread, _, Err(t)) => {
            Err(format!("{t}; use --mode signal or see `canvas doctor`"))
        }
    }
}

/// One line for each limit that stands in the way, or will.
pub fn advice(f: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |line: String| lines.push(line);
    match Errno::from_raw(f.probe.user_mode_errno) {
        _ if f.probe.user_mode_errno == 0 => {}
        Errno::EPERM => say("userfaultfd is forbidden: in Docker, run with a seccomp profile that allows userfaultfd, or with --security-opt seccomp=unconfined".into()),
        Errno::ENOSYS => say("userfaultfd is missing: use a kernel with CONFIG_USERFAULTFD, 5.15 or later".into()),
        _ => say("user-mode userfaultfd is missing: use a kernel of 5.15 or later".into()),
    }
    if f.probe.user_mode_errno == 0 && f.probe.features & feature::PAGEFAULT_FLAG_WP == 0 {
        say("userfaultfd cannot write-protect: use a kernel of 5.15 or later".into());
    }
    if thread_works(&f.probe).is_err() {
        say("thread mode is closed to this user: for programs that signal mode cannot serve, allow /dev/userfaultfd or set vm.unprivileged_userfaultfd=1".into());
    }
    if !f.seccomp.trap {
        say("seccomp filters are missing: use a kernel with CONFIG_SECCOMP_FILTER".into());
    }
    match f.limits.address_space_bytes {
        Some(bytes) if bytes < RESERVED_BYTES => {
            say(format!(
                "the address space is limited to {} KiB: run `ulimit -v unlimited` first",
                bytes >> 10
            ));
        }
        _ => {}
    }
    if f.limits.descriptors.is_some_and(|n| n < NOFILE_COMFORT) {
        say(format!(
            "few file descriptors are allowed: canvas keeps some in each process; raise `ulimit -n` to {NOFILE_COMFORT} or more"
        ));
    }
    if f.max_map_count.is_some_and(|n| n < MAPS_COMFORT) {
        say(format!(
            "few mappings are allowed a process: set vm.max_map_count={MAPS_COMFORT} or more"
        ));
    }
    if f.overcommit == Some(2) {
        say("vm.overcommit_memory=2 counts memory that is far as if it were local: set it to 0, or raise vm.overcommit_ratio".into());
    }
    if f.glibc.is_none() {
        say(
            "this system's C library is not glibc: programs linked to another one run unmanaged"
                .into(),
        );
    }
    if f.library_bytes == 0 {
        say(
            "this binary was built without its library: build it again without CANVAS_SKIP_PRELOAD"
                .into(),
        );
    }
    lines
}

fn errno_name(n: i32) -> Option<String> {
    (n != 0).then(|| format!("{:?}", Errno::from_raw(n)))
}

#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    ok: bool,
    mode: Option<&'static str>,
    why: &'a str,
    advice: &'a [String],
    canvas_version: &'static str,
    library_bytes: usize,
    kernel: &'a str,
    machine: &'a str,
    glibc: Option<&'a str>,
    userfaultfd: serde_json::Value,
    seccomp: &'a Seccomp,
    limits: serde_json::Value,
    memory: serde_json::Value,
}

fn feature_names(bits: u64) -> Vec<&'static str> {
    feature::NAMES
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| *name)
        .collect()
}

fn to_json(f: &Facts, choice: &Result<Choice, String>, advice: &[String]) -> String {
    let (mode, why) = match choice {
        Ok((mode, why)) => (Some(mode_name(*mode)), *why),
        Err(why) => (None, why.as_str()),
    };
    let way = |errno: i32| json!({ "ok": errno == 0, "errno": errno, "error": errno_name(errno) });
    let json = Json {
        schema: "canvas-doctor/1",
        ok: mode.is_some(),
        mode,
        why,
        advice,
        canvas_version: env!("CARGO_PKG_VERSION"),
        library_bytes: f.library_bytes,
        kernel: &f.kernel,
        machine: &f.machine,
        glibc: f.glibc.as_deref(),
        userfaultfd: json!({
            "user_mode": way(f.probe.user_mode_errno),
            "full": way(f.probe.full_errno),
            "device": way(f.probe.device_errno),
            "unprivileged_sysctl": f.unprivileged_userfaultfd,
            "cap_sys_ptrace": f.cap_sys_ptrace,
            "features_mask": f.probe.features,
            "features": feature_names(f.probe.features),
        }),
        seccomp: &f.seccomp,
        limits: json!({
            "overcommit_memory": f.overcommit,
            "max_map_count": f.max_map_count,
            "address_space_bytes": f.limits.address_space_bytes,
            "descriptors": f.limits.descriptors,
            "locked_bytes": f.limits.locked_bytes,
        }),
        memory: json!({
            "total_bytes": f.ram_bytes,
            "available_bytes": f.available_bytes,
            "swap_total_bytes": f.swap_bytes,
        }),
    };
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}

fn yes(errno: i32) -> String {
    errno_name(errno).map_or_else(|| "yes".into(), |e| format!("no ({e})"))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn limit(value: Option<u64>, unit: &str) -> String {
    value.map_or_else(|| "unlimited".into(), |v| format!("{v}{unit}"))
}

fn to_text(f: &Facts, choice: &Result<Choice, String>, advice: &[String]) -> String {
    let number = |n: Option<u64>| n.map_or_else(|| "unknown".into(), |n| n.to_string());
    let features = feature_names(f.probe.features).join(" ");
    let rows = [
        (
            "canvas",
            format!(
                "{}, library of {} KiB",
                env!("CARGO_PKG_VERSION"),
                f.library_bytes >> 10
            ),
        ),
        ("kernel", format!("{} {}", f.kernel, f.machine)),
        (
            "glibc",
            f.glibc.clone().unwrap_or_else(|| "not found".into()),
        ),
        (
            "memory",
            format!(
                "{}, {} available, swap {}",
                mib(f.ram_bytes),
                mib(f.available_bytes),
                mib(f.swap_bytes)
            ),
        ),
        ("userfaultfd, user mode", yes(f.probe.user_mode_errno)),
        ("userfaultfd, all faults", yes(f.probe.full_errno)),
        ("/dev/userfaultfd", yes(f.probe.device_errno)),
        (
            "vm.unprivileged_userfaultfd",
            number(f.unprivileged_userfaultfd),
        ),
        (
            "CAP_SYS_PTRACE",
            if f.cap_sys_ptrace { "yes" } else { "no" }.into(),
        ),
        ("features", format!("{:#x} {features}", f.probe.features)),
        (
            "seccomp",
            match (f.seccomp.trap, f.seccomp.needs_no_new_privs) {
                (false, _) => "no".into(),
                (true, true) => {
                    "yes, with no_new_privs (set-user-ID children lose their rights)".into()
                }
                (true, false) => "yes".into(),
            },
        ),
        ("vm.overcommit_memory", number(f.overcommit)),
        ("vm.max_map_count", number(f.max_map_count)),
        (
            "address space (ulimit -v)",
            limit(f.limits.address_space_bytes.map(|b| b >> 10), " KiB"),
        ),
        ("descriptors (ulimit -n)", limit(f.limits.descriptors, "")),
        (
            "locked memory (ulimit -l)",
            limit(f.limits.locked_bytes.map(|b| b >> 10), " KiB"),
        ),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        text += &format!("{name:<28} {value}\n");
    }
    match choice {
        Ok((mode, why)) => text += &format!("{:<28} {}: {why}\n", "mode", mode_name(*mode)),
        Err(why) => text += &format!("{:<28} none: {why}\n", "mode"),
    }
    for line in advice {
        text += &format!("{:<28} {line}\n", "advice");
    }
    text
}

/// `canvas doctor`; returns the exit code.
pub fn run(as_json: bool) -> i32 {
    let facts = Facts::gather(probe()).with_glibc();
    let choice = choose(ModeArg::Auto, &facts).and_then(|choice| {
        if facts.library_bytes == 0 {
            return Err("this binary was built without its library".into());
        }
        Ok(choice)
    });
    let advice = advice(&facts);
    let text = if as_json {
        to_json(&facts, &choice, &advice)
    } else {
        to_text(&facts, &choice, &advice)
    };
    // A closed pipe is the reader's choice.
    let _ = io::stdout().write_all(text.as_bytes());
    if choice.is_ok() {
        exit::OK
    } else {
        exit::NEGATIVE
    }
}

#[cfg(test)]
mod tests;
