//! `canvas doctor`: what this kernel and user allow, which mode `canvas run` chooses, and why.
//!
//! [`Facts::gather`] collects facts; [`choose`] and [`advice`] evaluate them, so that the
//! evaluation can be tested without the kernels in question.

use std::io::{self, Write};

use canvas_sys::clmul::Width;
use canvas_sys::trial::{Call, Refusal};
use canvas_sys::uffd::feature;
use canvas_types::exit;
use nix::errno::Errno;
use serde::Serialize;
use serde_json::json;

use crate::args::DoctorArgs;
use canvas_runner::container::{self, Container, Runtime, refusal_name};
use canvas_runner::facts::{Facts, Rdma, Seccomp, probe_userfaultfd};
use canvas_runner::mode::{Choice, ModeError, RESERVED_BYTES, choose, thread_works};
use canvas_runner::mode_name;
use canvas_runner::numa::Node;

/// Mappings that a large threaded program may need.
const MAPS_COMFORT: u64 = 65_530;
/// With fewer descriptors than this, canvas's own get in the way.
const NOFILE_COMFORT: u64 = 256;

/// Memory that a client's RDMA link pins, with some for its queues.
const RDMA_LOCKED_BYTES: u64 = 4 << 20;

/// Why `canvas run` manages nothing here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum ChoiceError {
    /// No mode works.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// There is no library to load into a program.
    #[error("this binary was built without its library")]
    NoLibrary,
}

/// How to allow userfaultfd where it is refused, in one line.
fn how_to_allow(f: &Facts) -> String {
    match &f.container {
        Some(c) if f.seccomp.filtered && c.runtime != Runtime::Other => format!(
            "to allow userfaultfd in {}: `{}`, then `{}`",
            c.runtime.name(),
            c.runtime.prepare(),
            c.runtime.allow()
        ),
        _ if f.seccomp.filtered => "to allow userfaultfd: start this with another seccomp profile; `canvas doctor --containers` has the lines for Docker, Podman and Kubernetes".into(),
        _ => "to allow userfaultfd: ask the security module of this host (SELinux, AppArmor, a BPF program) for it".into(),
    }
}

/// Whether a filter refuses the call, as opposed to a kernel without it.
fn is_filters(f: &Facts, refusal: Refusal) -> bool {
    f.seccomp.filtered || refusal != Refusal::Error(Errno::ENOSYS as i32)
}

/// One line of advice for each limit that is, or will be, a problem.
pub fn advice(f: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |line: String| lines.push(line);
    match Errno::from_raw(f.probe.user_mode_errno) {
        _ if f.probe.user_mode_errno == 0 => {}
        _ if f.userfaultfd_is_refused() => say(how_to_allow(f)),
        Errno::ENOSYS => say(
            "userfaultfd is missing: use a kernel with CONFIG_USERFAULTFD, 5.15 or later".into(),
        ),
        _ => say("user-mode userfaultfd is missing: use a kernel of 5.15 or later".into()),
    }
    if f.probe.user_mode_errno == 0 && f.probe.features & feature::PAGEFAULT_FLAG_WP == 0 {
        say("userfaultfd cannot write-protect: use a kernel of 5.15 or later".into());
    }
    for (call, refusal) in &f.refused {
        if *call != Call::Userfaultfd && is_filters(f, *refusal) {
            let (_, without) = container::purpose(*call);
            say(format!(
                "{} is refused ({}): {without}; see `canvas doctor --containers`",
                container::name(*call),
                refusal_name(*refusal)
            ));
        }
    }
    if thread_works(&f.probe).is_err() && !f.userfaultfd_is_refused() {
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
            "few mappings are allowed per process: set vm.max_map_count={MAPS_COMFORT} or more"
        ));
    }
    if let Some(why) = &f.rdma.error
        && !f.rdma.kernel_devices.is_empty()
    {
        say(format!("this host has an RDMA device, but: {why}"));
    }
    if f.rdma.ok && f.limits.locked_bytes.is_some_and(|b| b < RDMA_LOCKED_BYTES) {
        say(format!(
            "RDMA pins memory, and little may be locked: raise `ulimit -l` to {} KiB or more for each donor that is used, without a limit for `canvas serve --rdma`",
            RDMA_LOCKED_BYTES >> 10
        ));
    }
    if f.page_hash.is_none() {
        say("this processor shows no PCLMULQDQ, so the hash of each page that is evicted or comes back takes about 6 us longer: in a virtual machine, give the guest the flag `pclmulqdq` (and `avx2`, `vpclmulqdq`)".into());
    }
    if f.overcommit == Some(2) {
        say("vm.overcommit_memory=2 counts far memory as if it were local: set it to 0, or raise vm.overcommit_ratio".into());
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
    why: String,
    advice: &'a [String],
    canvas_version: &'static str,
    library_bytes: usize,
    kernel: &'a str,
    machine: &'a str,
    page_hash: Option<&'static str>,
    glibc: Option<&'a str>,
    userfaultfd: serde_json::Value,
    seccomp: &'a Seccomp,
    limits: serde_json::Value,
    memory: serde_json::Value,
    nodes: &'a [Node],
    rdma: &'a Rdma,
    container: serde_json::Value,
    refused: Vec<serde_json::Value>,
}

/// The width's name for programs.
fn page_hash_name(by: Width) -> &'static str {
    match by {
        Width::Bits512 => "vpclmulqdq-avx512",
        Width::Bits256 => "vpclmulqdq-avx2",
        Width::Bits128 => "pclmulqdq",
    }
}

fn feature_names(bits: u64) -> Vec<&'static str> {
    feature::NAMES
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| *name)
        .collect()
}

fn to_json(f: &Facts, choice: &Result<Choice, ChoiceError>, advice: &[String]) -> String {
    let (mode, why) = match choice {
        Ok((mode, why)) => (Some(mode_name(*mode)), (*why).to_owned()),
        Err(e) => (None, e.to_string()),
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
        page_hash: f.page_hash.map(page_hash_name),
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
        nodes: &f.nodes,
        rdma: &f.rdma,
        container: json!({
            "runtime": f.container.as_ref().map(|c| c.runtime.name()),
            "evidence": f.container.as_ref().map(|c| &c.evidence),
        }),
        refused: refused_json(f),
    };
    serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
}

/// Refused calls, for programs.
fn refused_json(f: &Facts) -> Vec<serde_json::Value> {
    let one = |(call, refusal): &(Call, Refusal)| {
        let (what, without) = container::purpose(*call);
        json!({
            "call": container::name(*call), "error": refusal_name(*refusal),
            "for": what, "without": without,
        })
    };
    f.refused.iter().map(one).collect()
}

/// Refused calls, for users.
fn refused_text(f: &Facts) -> String {
    let one = |(call, refusal): &(Call, Refusal)| {
        format!("{} ({})", container::name(*call), refusal_name(*refusal))
    };
    let all: Vec<_> = f.refused.iter().map(one).collect();
    if all.is_empty() {
        "none of those that canvas makes".into()
    } else {
        all.join(", ")
    }
}

fn container_text(container: Option<&Container>) -> String {
    container.map_or_else(
        || "none found".into(),
        |c| format!("{} ({})", c.runtime.name(), c.evidence),
    )
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

/// The instructions used for the hash of pages, for users.
fn page_hash(by: Option<Width>) -> &'static str {
    match by {
        Some(Width::Bits512) => "VPCLMULQDQ with AVX-512",
        Some(Width::Bits256) => "VPCLMULQDQ with AVX2",
        Some(Width::Bits128) => "PCLMULQDQ",
        None => "no instruction for it",
    }
}

/// Candidates for `--numa`: nodes with memory but no processor.
fn memory_nodes(nodes: &[Node]) -> String {
    let alone = nodes.iter();
    let alone = alone.filter(|n| !n.has_processors && n.memory_bytes > 0);
    let all: Vec<_> = alone
        .map(|n| format!("{} ({})", n.node, mib(n.memory_bytes)))
        .collect();
    match all.is_empty() {
        true => "none (--numa)".into(),
        false => format!("{} (--numa)", all.join(", ")),
    }
}

fn rdma(rdma: &Rdma) -> String {
    match &rdma.error {
        Some(why) => format!("no: {why}"),
        None => format!("yes, {}", rdma.devices.join(", ")),
    }
}

fn to_text(f: &Facts, choice: &Result<Choice, ChoiceError>, advice: &[String]) -> String {
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
        ("page hash", page_hash(f.page_hash).into()),
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
        ("memory nodes", memory_nodes(&f.nodes)),
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
        ("container", container_text(f.container.as_ref())),
        (
            "filter on this process",
            if f.seccomp.filtered { "yes" } else { "no" }.into(),
        ),
        ("refused system calls", refused_text(f)),
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
        ("RDMA", rdma(&f.rdma)),
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

/// Prints what was asked for.
fn print(text: &str) -> i32 {
    // A closed pipe is the reader's choice.
    let _ = io::stdout().write_all(text.as_bytes());
    exit::OK
}

/// The mode that `canvas run` chooses here, and why.
fn chosen(f: &Facts) -> Result<Choice, ChoiceError> {
    Ok(choose(None, f)?)
}

/// `canvas doctor`; returns the exit code.
pub fn run(args: &DoctorArgs) -> i32 {
    if let Some(runtime) = args.seccomp {
        return print(Runtime::from(runtime).profile());
    }
    match (args.containers, args.json) {
        (true, false) => return print(&container::matrix_text()),
        (true, true) => return print(&format!("{:#}\n", container::matrix_json())),
        _ => {}
    }
    let facts = Facts::gather(probe_userfaultfd())
        .with_glibc()
        .with_trials()
        .with_rdma();
    let choice = chosen(&facts).and_then(|choice| {
        if facts.library_bytes == 0 {
            return Err(ChoiceError::NoLibrary);
        }
        Ok(choice)
    });
    let advice = advice(&facts);
    print(&if args.json {
        to_json(&facts, &choice, &advice)
    } else {
        to_text(&facts, &choice, &advice)
    });
    if choice.is_ok() {
        exit::OK
    } else {
        exit::NEGATIVE
    }
}

#[cfg(test)]
mod tests;
