//! Facts about this host, kernel and user.

use std::fs;
use std::path::Path;

use canvas_sys::clmul::{self, Width};
use canvas_sys::trial::{self, Call, Refusal};
use canvas_sys::uffd::{self, Probe};
use canvas_types::procfs;
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde::Serialize;

use crate::container::{self, Container};
use crate::numa::{self, Node};
use crate::preload;

/// Bit of CAP_SYS_PTRACE in /proc/PID/status.
const CAP_SYS_PTRACE: u32 = 19;
/// Bit of CAP_SYS_ADMIN.
const CAP_SYS_ADMIN: u32 = 21;

/// System call filters.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Seccomp {
    /// Filters can deliver SIGSYS.
    pub trap: bool,
    /// Installing a filter needs no_new_privs (which canvas sets, and which is permanent).
    pub needs_no_new_privs: bool,
    /// no_new_privs is set already.
    pub no_new_privs: bool,
    /// This process runs under a filter already.
    pub filtered: bool,
}

/// Resource limits of this process; `None` for unlimited.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Hard limit RLIMIT_AS in bytes: the library raises the soft limit, and observes it itself.
    pub address_space_bytes: Option<u64>,
    /// RLIMIT_NOFILE, soft.
    pub descriptors: Option<u64>,
    /// RLIMIT_MEMLOCK in bytes, soft.
    pub locked_bytes: Option<u64>,
}

/// RDMA: far memory by `rdma://`, and `canvas serve --rdma`.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Rdma {
    /// Whether a device can be used.
    pub ok: bool,
    /// Devices with a port that is up.
    pub devices: Vec<String>,
    /// Devices that the kernel has, usable or not.
    pub kernel_devices: Vec<String>,
    /// One sentence: what is missing, and what to install.
    pub error: Option<String>,
}

impl Rdma {
    fn look() -> Rdma {
        let found = canvas_rdma::check();
        Rdma {
            ok: found.is_ok(),
            kernel_devices: canvas_rdma::kernel_devices(),
            error: found.as_ref().err().map(ToString::to_string),
            devices: found.unwrap_or_default(),
        }
    }
}

/// The facts.
#[derive(Default)]
pub struct Facts {
    /// Kernel release.
    pub kernel: String,
    /// Processor.
    pub machine: String,
    /// Version of the glibc of this binary; only [`Facts::with_glibc`] determines it.
    pub glibc: Option<String>,
    /// The instructions used for the hash of pages; `None` if the processor has, or shows, none.
    pub page_hash: Option<Width>,
    /// What userfaultfd allows.
    pub probe: Probe,
    /// vm.unprivileged_userfaultfd.
    pub unprivileged_userfaultfd: Option<u64>,
    /// Whether CAP_SYS_PTRACE is in the effective set.
    pub cap_sys_ptrace: bool,
    /// System call filters.
    pub seccomp: Seccomp,
    /// vm.overcommit_memory.
    pub overcommit: Option<u64>,
    /// vm.max_map_count.
    pub max_map_count: Option<u64>,
    /// Resource limits.
    pub limits: Limits,
    /// Memory of the host.
    pub ram_bytes: u64,
    /// Memory available without swapping.
    pub available_bytes: u64,
    /// Swap space of the host.
    pub swap_bytes: u64,
    /// Size of the library in this binary.
    pub library_bytes: usize,
    /// Only [`Facts::with_rdma`] determines it.
    pub rdma: Rdma,
    /// NUMA nodes.
    pub nodes: Vec<Node>,
    /// The container of this process.
    pub container: Option<Container>,
    /// System calls that are refused here; only [`Facts::with_trials`] tries them.
    pub refused: Vec<(Call, Refusal)>,
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Tries userfaultfd: in a child first, where a filter may kill the caller.
pub fn probe_userfaultfd() -> Probe {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_filtered(&status) && trial::refusal(Call::Userfaultfd) == Some(Refusal::Killed) {
        let refused = Errno::EPERM as i32;
        return Probe {
            user_mode_errno: refused,
            full_errno: refused,
            device_errno: refused,
            features: 0,
        };
    }
    uffd::probe()
}

/// Whether the process with this status has a seccomp filter.
fn is_filtered(status: &str) -> bool {
    field(status, "Seccomp").is_some_and(|v| v != "0")
}

/// The value of `key:` in a text of such lines.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim)
}

/// A figure of /proc/meminfo in bytes.
fn meminfo_bytes(text: &str, key: &str) -> u64 {
    procfs::memory_bytes(text.as_bytes(), key).unwrap_or(0)
}

/// Memory of this host in bytes.
pub fn ram_bytes() -> u64 {
    meminfo_bytes(
        &fs::read_to_string("/proc/meminfo").unwrap_or_default(),
        "MemTotal",
    )
}

/// A limit, soft and hard.
fn limits_of(resource: Resource) -> [Option<u64>; 2] {
    let bounded = |limit| Some(limit).filter(|l| *l != RLIM_INFINITY);
    getrlimit(resource).map_or([None, None], |(soft, hard)| [soft, hard].map(bounded))
}

/// Finds the version in the text that every glibc contains.
fn glibc_version() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .split_whitespace()
        .find(|w| w.ends_with("/libc.so.6") || w.contains("/libc-2."))?;
    let bytes = fs::read(path).ok()?;
    version_in(&bytes)
}

fn version_in(libc: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"release version ";
    let start = libc.windows(BEFORE.len()).position(|w| w == BEFORE)? + BEFORE.len();
    let digits = libc[start..]
        .iter()
        .take(12)
        .take_while(|b| b.is_ascii_digit() || **b == b'.');
    let text: String = digits.map(|b| char::from(*b)).collect();
    Some(text.trim_end_matches('.').to_owned()).filter(|v| !v.is_empty())
}

impl Facts {
    /// Collects the facts from the kernel and the host.
    pub fn gather(probe: Probe) -> Facts {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let caps = field(&status, "CapEff")
            .and_then(|v| u64::from_str_radix(v, 16).ok())
            .unwrap_or(0);
        let no_new_privs = field(&status, "NoNewPrivs") == Some("1");
        let actions =
            fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
        let uname = nix::sys::utsname::uname().ok();
        let text = |of: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
            uname
                .as_ref()
                .map(|u| of(u).to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Facts {
            kernel: text(|u| u.release()),
            machine: text(|u| u.machine()),
            glibc: None,
            page_hash: clmul::widest(),
            probe,
            unprivileged_userfaultfd: number("/proc/sys/vm/unprivileged_userfaultfd"),
            cap_sys_ptrace: caps >> CAP_SYS_PTRACE & 1 == 1,
            seccomp: Seccomp {
                trap: actions.split_whitespace().any(|a| a == "trap"),
                needs_no_new_privs: caps >> CAP_SYS_ADMIN & 1 == 0,
                no_new_privs,
                filtered: is_filtered(&status),
            },
            overcommit: number("/proc/sys/vm/overcommit_memory"),
            max_map_count: number("/proc/sys/vm/max_map_count"),
            limits: Limits {
                address_space_bytes: limits_of(Resource::RLIMIT_AS)[1],
                descriptors: limits_of(Resource::RLIMIT_NOFILE)[0],
                locked_bytes: limits_of(Resource::RLIMIT_MEMLOCK)[0],
            },
            ram_bytes: meminfo_bytes(&meminfo, "MemTotal"),
            available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
            swap_bytes: meminfo_bytes(&meminfo, "SwapTotal"),
            nodes: numa::nodes(),
            library_bytes: preload::embedded_bytes(),
            rdma: Rdma::default(),
            container: Container::detect(Path::new("/"), |name| std::env::var(name).ok()),
            refused: Vec::new(),
        }
    }

    /// Whether a filter or a security module refuses userfaultfd, although this kernel has it.
    pub fn userfaultfd_is_refused(&self) -> bool {
        let errno = self.probe.user_mode_errno;
        errno == Errno::EPERM as i32
            || errno == Errno::ENOSYS as i32 && self.unprivileged_userfaultfd.is_some()
    }

    /// Also tries the system calls that canvas needs.
    pub fn with_trials(self) -> Facts {
        Facts {
            refused: container::refused_here(),
            ..self
        }
    }

    /// Also determines glibc's version: a search through the library, for which `canvas run` need
    /// not wait.
    pub fn with_glibc(self) -> Facts {
        Facts {
            glibc: glibc_version(),
            ..self
        }
    }

    /// Also checks RDMA, which loads libibverbs and opens every device.
    pub fn with_rdma(self) -> Facts {
        Facts {
            rdma: Rdma::look(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_keys_and_values() {
        let text = "MemTotal:       24689412 kB\nSwapTotal: 0 kB\nMemTotalX: 1 kB\n";
        assert_eq!(meminfo_bytes(text, "MemTotal"), 24_689_412 << 10);
        assert_eq!(meminfo_bytes(text, "SwapTotal"), 0);
        assert_eq!(meminfo_bytes(text, "Absent"), 0);
        assert_eq!(
            field("CapEff:\t000001ffffffffff\n", "CapEff"),
            Some("000001ffffffffff")
        );
    }

    #[test]
    fn the_version_in_a_glibc() {
        let text = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(version_in(text).as_deref(), Some("2.36"));
        assert_eq!(version_in(b"musl"), None);
        assert_eq!(version_in(b"release version "), None);
    }

    #[test]
    fn this_host_has_a_kernel_and_memory() {
        let f = Facts::gather(Probe::default());
        assert!(
            !f.kernel.is_empty() && f.ram_bytes > 0,
            "{} {}",
            f.kernel,
            f.ram_bytes
        );
        assert_eq!(f.ram_bytes, ram_bytes());
    }
}
