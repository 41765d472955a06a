//! Containers: the runtime of this process, and what the runtimes' default seccomp profiles refuse
//! (docs/CONTAINERS.md).

use std::fs;
use std::path::Path;

use canvas_sys::trial::{CALLS, Call, Refusal, refusal};
use nix::errno::Errno;
use serde_json::{Value, json};

/// A container runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runtime {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Kubernetes with any runtime.
    Kubernetes,
    /// Another runtime.
    Other,
}

impl Runtime {
    /// Its name for users.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Docker => "Docker",
            Runtime::Podman => "Podman",
            Runtime::Kubernetes => "Kubernetes",
            Runtime::Other => "another runtime",
        }
    }

    /// The runtime's default profile with what canvas needs allowed.
    pub fn profile(self) -> &'static str {
        match self {
            Runtime::Podman => include_str!("../../../etc/seccomp/podman.json"),
            Runtime::Kubernetes => include_str!("../../../etc/seccomp/kubernetes.json"),
            Runtime::Docker | Runtime::Other => include_str!("../../../etc/seccomp/docker.json"),
        }
    }

    /// Name of the profile that the runtime uses by default.
    pub fn default_profile(self) -> &'static str {
        match self {
            Runtime::Docker => "Docker's default profile",
            Runtime::Podman => "Podman's default profile",
            Runtime::Kubernetes => "Kubernetes' RuntimeDefault",
            Runtime::Other => "a container's default profile",
        }
    }

    /// The line that allows what canvas needs; `canvas.json` is [`Runtime::profile`].
    pub fn allow(self) -> &'static str {
        match self {
            Runtime::Docker => "docker run --security-opt seccomp=canvas.json ...",
            Runtime::Podman => "podman run --security-opt seccomp=canvas.json ...",
            Runtime::Kubernetes => {
                "securityContext: {seccompProfile: {type: Localhost, localhostProfile: canvas.json}}"
            }
            Runtime::Other => "allow userfaultfd in the seccomp profile",
        }
    }

    /// The command that makes `canvas.json`.
    pub fn prepare(self) -> &'static str {
        match self {
            Runtime::Docker => "canvas doctor --seccomp docker > canvas.json",
            Runtime::Podman => "canvas doctor --seccomp podman > canvas.json",
            Runtime::Kubernetes => {
                "canvas doctor --seccomp kubernetes > /var/lib/kubelet/seccomp/canvas.json # on each node"
            }
            Runtime::Other => "canvas doctor --containers",
        }
    }
}

/// The container of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Container {
    /// Its runtime.
    pub runtime: Runtime,
    /// The sign by which it was recognized.
    pub evidence: String,
}

impl Container {
    /// Looks for signs of a container below `root` and in the environment `env`.
    pub fn detect(root: &Path, env: impl Fn(&str) -> Option<String>) -> Option<Container> {
        let found = |runtime, evidence: String| Some(Container { runtime, evidence });
        let is_there = |path: &str| root.join(path.trim_start_matches('/')).exists();
        // Kubernetes first: the runtimes below it leave their own files.
        if env("KUBERNETES_SERVICE_HOST").is_some() {
            return found(Runtime::Kubernetes, "KUBERNETES_SERVICE_HOST".into());
        }
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let in_group = |word: &str| groups.contains(word);
        if in_group("kubepods") {
            return found(Runtime::Kubernetes, "kubepods in /proc/self/cgroup".into());
        }
        // A variable of this process is a stronger sign than a file.
        let told = env("container").filter(|name| !name.is_empty());
        match told.as_deref() {
            Some("podman") => return found(Runtime::Podman, "container=podman".into()),
            Some("docker") => return found(Runtime::Docker, "container=docker".into()),
            _ => {}
        }
        for (path, runtime) in [
            ("/run/.containerenv", Runtime::Podman),
            ("/.dockerenv", Runtime::Docker),
        ] {
            if is_there(path) {
                return found(runtime, path.into());
            }
        }
        for (word, runtime) in [
            ("libpod", Runtime::Podman),
            ("docker", Runtime::Docker),
            ("containerd", Runtime::Other),
            ("lxc", Runtime::Other),
        ] {
            if groups
                .split(['/', '\n'])
                .any(|part| part.starts_with(word) && !part.ends_with(".service"))
            {
                return found(runtime, format!("{word} in /proc/self/cgroup"));
            }
        }
        found(Runtime::Other, format!("container={}", told?))
    }
}

/// The call's purpose, and the effect of its absence.
pub fn purpose(call: Call) -> (&'static str, &'static str) {
    match call {
        Call::Userfaultfd => ("faults", "nothing is managed"),
        Call::MemfdCreate => ("library, counters", "nothing is managed"),
        Call::Seccomp => (
            "calls from outside of libc",
            "such calls fail with EFAULT on far buffers, and lose far pages of memory that they move or drop",
        ),
        Call::ProcessMadvise => ("eviction", "a TLB flush for each range"),
        Call::PidfdOpen => ("eviction before Linux 6.14", "a TLB flush for each range"),
        Call::FutexWaitv => ("host agents asleep", "an agent polls its tenants"),
        Call::ProcessVmReadv => ("debuggers", "they cannot read its memory"),
        Call::Ptrace => ("debuggers", "they cannot attach"),
    }
}

/// The kernel's name for the call.
pub fn name(call: Call) -> &'static str {
    match call {
        Call::Userfaultfd => "userfaultfd",
        Call::MemfdCreate => "memfd_create",
        Call::Seccomp => "seccomp",
        Call::ProcessMadvise => "process_madvise",
        Call::PidfdOpen => "pidfd_open",
        Call::FutexWaitv => "futex_waitv",
        Call::ProcessVmReadv => "process_vm_readv",
        Call::Ptrace => "ptrace",
    }
}

/// Tries the calls and returns those that are refused.
pub fn refused_here() -> Vec<(Call, Refusal)> {
    let tried = CALLS.into_iter();
    tried
        .filter_map(|call| Some((call, refusal(call)?)))
        .collect()
}

/// Name of a refusal for users and programs.
pub fn refusal_name(refusal: Refusal) -> String {
    match refusal {
        Refusal::Error(errno) => format!("{:?}", Errno::from_raw(errno)),
        Refusal::Killed => "SIGSYS".into(),
    }
}

/// The runtimes in the matrix, with the version of their profile.
pub const MATRIX: [(Runtime, &str); 3] = [
    (Runtime::Docker, "moby/profiles seccomp 0.2.4"),
    (Runtime::Podman, "containers-common 0.66 (CRI-O's as well)"),
    (
        Runtime::Kubernetes,
        "RuntimeDefault by containerd 2.1; Unconfined refuses nothing",
    ),
];

/// The error of a runtime's default profile for the call, in a container without capabilities of
/// its own; `None` if the call is allowed.
pub fn default_refusal(runtime: Runtime, call: Call) -> Option<Errno> {
    let refused = match call {
        Call::Userfaultfd | Call::ProcessMadvise => true,
        Call::FutexWaitv => runtime == Runtime::Podman,
        _ => false,
    };
    refused.then_some(Errno::EPERM)
}

/// Output of `canvas doctor --containers`.
pub fn matrix_text() -> String {
    let answer = |runtime, call| {
        default_refusal(runtime, call).map_or_else(|| "yes".into(), |e| format!("{e:?}"))
    };
    let mut text = format!(
        "{:<17} {:<8} {:<8} {:<11} {:<11} {:<27} without it\n",
        "call", "Docker", "Podman", "Kubernetes", "Unconfined", "for"
    );
    for call in CALLS {
        let (what, without) = purpose(call);
        text += &format!(
            "{:<17} {:<8} {:<8} {:<11} {:<11} {what:<27} {without}\n",
            name(call),
            answer(Runtime::Docker, call),
            answer(Runtime::Podman, call),
            answer(Runtime::Kubernetes, call),
            "yes",
        );
    }
    for (runtime, profile) in MATRIX {
        text += &format!(
            "\n{} ({profile})\n  profile  {}\n  allow    {}\n",
            runtime.name(),
            runtime.prepare(),
            runtime.allow()
        );
    }
    text
}

/// Output of `canvas doctor --containers --json`.
pub fn matrix_json() -> Value {
    let of = |(runtime, profile): (Runtime, &str)| {
        let refuses = |call: &Call| {
            let errno = default_refusal(runtime, *call)?;
            let (what, without) = purpose(*call);
            Some(json!({
                "call": name(*call), "error": format!("{errno:?}"), "for": what, "without": without,
            }))
        };
        json!({
            "runtime": runtime.name(),
            "profile": profile,
            "refuses": CALLS.iter().filter_map(refuses).collect::<Vec<_>>(),
            "prepare": runtime.prepare(),
            "allow": runtime.allow(),
        })
    };
    json!({ "schema": "canvas-containers/1", "profiles": MATRIX.map(of) })
}

#[cfg(test)]
mod tests;
