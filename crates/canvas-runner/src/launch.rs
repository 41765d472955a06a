//! Starts CMD: descriptors that survive exec, the environment, the spawn.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use canvas_shm::segment::{ENV_PRELOAD_FD, ENV_SEGMENT_FD};
use canvas_sys::child;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::SigSet;
use nix::unistd::Pid;

use crate::error::RunError;
use crate::supervise::Signals;

/// The loader's variable.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// Moves `fd` to a number that CMD is unable or unlikely to use, makes it inheritable, and returns
/// the number.
///
/// It stays open as long as this process lives: every process of the tenant finds the number in its
/// environment or in the segment.
pub fn inherit(fd: OwnedFd) -> Result<RawFd, Errno> {
    canvas_sys::descriptors::moved(fd.into_raw_fd(), false).map_err(|e| Errno::from_raw(e.0))
}

/// Checks that files of `bytes` bytes can be made. The kernel would kill this process for exceeding
/// its limit.
pub fn check_limits(bytes: u64) -> Result<(), RunError> {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((soft, _)) if soft < bytes => Err(RunError::FileLimit(bytes.div_ceil(1 << 20))),
        _ => Ok(()),
    }
}

/// Flags of memfd_create(2) that nix lacks. Kernels before 6.3 refuse both, and allow execution
/// without them.
const MFD_EXEC: u32 = 0x10;
/// See [`MFD_EXEC`]. The only kind that `vm.memfd_noexec=2` allows; the loader can still map the
/// library, because mapping a file for execution does not need permission to execute it.
const MFD_NOEXEC_SEAL: u32 = 0x8;

/// The library in a sealed memfd, opened for reading.
///
/// All processes of the tenant inherit it and share its pages, including those that drop
/// privileges.
pub fn library_file(bytes: &[u8]) -> Result<OwnedFd, RunError> {
    let fail = RunError::LibraryFile;
    let common = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let create =
        |more: u32| memfd_create(c"canvas-preload", common | MFdFlags::from_bits_retain(more));
    let fd = create(MFD_EXEC)
        .or_else(|_| create(0))
        .or_else(|_| create(MFD_NOEXEC_SEAL))
        .map_err(|e| fail(e.into()))?;
    let mut file = File::from(fd);
    file.write_all(bytes).map_err(fail)?;
    let seals = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|e| fail(e.into()))?;
    // The loader finds the library through /proc, so without /proc the file is useless.
    let path = library_path(OsStr::new(&file.as_raw_fd().to_string()));
    let read_only = File::open(path).map_err(fail)?;
    Ok(read_only.into())
}

/// The environment of CMD: `vars`, with the numbers of the segment's and the library's descriptors.
/// If `preload` is false, the loader does not load the library, but children can still find it.
pub fn environment(
    vars: impl Iterator<Item = (OsString, OsString)>,
    segment: RawFd,
    library: RawFd,
    preload: bool,
) -> Vec<(OsString, OsString)> {
    let mut vars: Vec<_> = vars.collect();
    let get = |vars: &[(OsString, OsString)], name: &str| {
        vars.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    };
    // A `canvas run` inside a `canvas run` makes its own tenant: two libraries in one process would
    // fight over the same managed range.
    let outer = get(&vars, ENV_PRELOAD_FD).map(|n| library_path(&n));
    let before = get(&vars, LD_PRELOAD).unwrap_or_default();
    let mut preloads: Vec<&OsStr> = before
        .as_bytes()
        .split(|b| *b == b':' || *b == b' ')
        .map(OsStr::from_bytes)
        .filter(|p| !p.is_empty() && outer.as_deref() != Some(*p))
        .collect();
    let ours = library_path(OsStr::new(&library.to_string()));
    if preload {
        preloads.insert(0, &ours);
    }
    let joined = preloads.join(OsStr::new(":"));
    vars.retain(|(n, _)| {
        ![LD_PRELOAD, ENV_SEGMENT_FD, ENV_PRELOAD_FD]
            .iter()
            .any(|ours| n == ours)
    });
    if !joined.is_empty() {
        vars.push((LD_PRELOAD.into(), joined));
    }
    if preload {
        vars.push((ENV_SEGMENT_FD.into(), segment.to_string().into()));
        vars.push((ENV_PRELOAD_FD.into(), library.to_string().into()));
    }
    vars
}

/// Path of the library behind the descriptor with this number.
fn library_path(number: &OsStr) -> OsString {
    let mut path = OsString::from("/proc/self/fd/");
    path.push(number);
    path
}

/// Variables with the pid that a service manager means. If they name canvas, CMD gets its own pid
/// instead.
const PID_VARIABLES: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// Variables that identify that process in another way (since systemd 259); they are optional.
const PIDFD_VARIABLES: [&str; 2] = ["LISTEN_PIDFDID", "MAINPIDFDID"];

/// Starts `program` with `argv` and `env`, and with the signal state of this process's caller;
/// returns the kernel's error if it refuses.
pub fn spawn(
    program: &Path,
    argv: &[OsString],
    mut env: Vec<(OsString, OsString)>,
    signals: &Signals,
) -> Result<u32, Errno> {
    let own = OsString::from(std::process::id().to_string());
    let means_us = |name: &&str| env.iter().any(|(n, v)| n == name && *v == own);
    let pids: Vec<&str> = PID_VARIABLES.into_iter().filter(means_us).collect();
    if !pids.is_empty() {
        env.retain(|(n, _)| !PIDFD_VARIABLES.iter().any(|ours| n == ours));
    }
    let path = c(program.as_os_str().as_bytes().to_vec())?;
    let (argv, env) = (argv_of(argv)?, env_of(&env)?);
    let start = child::Start {
        program: &path,
        argv: &argv.iter().map(CString::as_c_str).collect::<Vec<_>>(),
        env: &env.iter().map(CString::as_c_str).collect::<Vec<_>>(),
        pids: &pids,
        mask: signals.before,
        ignores_children: signals.ignores_children,
    };
    start.spawn().map_err(|e| Errno::from_raw(e.0))
}

/// Starts this program again with `argv`, the environment `env`, no signal blocked, and `fds` under
/// the given numbers.
pub fn spawn_self(
    argv: &[OsString],
    env: &[(OsString, OsString)],
    fds: &[(OwnedFd, RawFd)],
) -> Result<Pid, Errno> {
    let (argv, env) = (argv_of(argv)?, env_of(env)?);
    let mut attr = PosixSpawnAttr::init()?;
    attr.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)?;
    attr.set_sigmask(&SigSet::empty())?;
    let mut actions = PosixSpawnFileActions::init()?;
    for (fd, to) in fds {
        actions.add_dup2(fd.as_raw_fd(), *to)?;
    }
    posix_spawn(c"/proc/self/exe", &actions, &attr, &argv, &env)
}

fn c(bytes: Vec<u8>) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

fn argv_of(argv: &[OsString]) -> Result<Vec<CString>, Errno> {
    argv.iter().map(|a| c(a.as_bytes().to_vec())).collect()
}

fn env_of(env: &[(OsString, OsString)]) -> Result<Vec<CString>, Errno> {
    env.iter()
        .map(|(n, v)| c([n.as_bytes(), b"=", v.as_bytes()].concat()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)], preload: bool) -> Vec<String> {
        let vars = pairs
            .iter()
            .map(|(n, v)| (OsString::from(n), OsString::from(v)));
        let env = environment(vars, 960, 961, preload);
        env.iter()
            .map(|(n, v)| format!("{}={}", n.display(), v.display()))
            .collect()
    }

    #[test]
    fn the_library_comes_first_and_the_rest_stays() {
        let got = env(
            &[("A", "1"), ("LD_PRELOAD", "libx.so liby.so"), ("B", "2")],
            true,
        );
        let want = [
            "A=1",
            "B=2",
            "LD_PRELOAD=/proc/self/fd/961:libx.so:liby.so",
            "CANVAS_SEGMENT_FD=960",
            "CANVAS_PRELOAD_FD=961",
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn an_outer_canvas_run_is_replaced() {
        let outer = [
            ("LD_PRELOAD", "/proc/self/fd/900:libx.so"),
            ("CANVAS_SEGMENT_FD", "899"),
            ("CANVAS_PRELOAD_FD", "900"),
        ];
        assert_eq!(env(&outer, true)[0], "LD_PRELOAD=/proc/self/fd/961:libx.so");
        assert_eq!(env(&outer, true).len(), 3);
        assert_eq!(env(&outer, false), ["LD_PRELOAD=libx.so"]);
        assert_eq!(
            env(&outer[..1], false),
            ["LD_PRELOAD=/proc/self/fd/900:libx.so"],
            "not ours"
        );
    }

    #[test]
    fn nobody_can_write_to_the_library_any_more() {
        use std::io::ErrorKind;
        use std::os::unix::fs::FileExt;
        let fd = library_file(b"library").unwrap();
        let inherited = File::from(fd);
        assert!(inherited.write_at(b"L", 0).is_err(), "opened for reading");
        let path = library_path(OsStr::new(&inherited.as_raw_fd().to_string()));
        // Root and its user can open it for writing, but cannot write.
        let opened = File::options().read(true).write(true).open(path).unwrap();
        let refused = |r: std::io::Result<()>| {
            assert_eq!(r.unwrap_err().kind(), ErrorKind::PermissionDenied);
        };
        refused(opened.write_at(b"L", 0).map(drop));
        refused(opened.set_len(0));
        refused(opened.set_len(8));
        assert!(fcntl(&opened, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
        let mut bytes = [0; 7];
        inherited.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"library");
    }

    #[test]
    fn inherited_descriptors_are_high_and_survive_exec() {
        let n = inherit(library_file(b"x").unwrap()).unwrap();
        assert!(n >= 200, "{n}");
        let flags = std::fs::read_to_string(format!("/proc/self/fdinfo/{n}")).unwrap();
        let octal = flags
            .lines()
            .find_map(|l| l.strip_prefix("flags:"))
            .unwrap()
            .trim();
        assert_eq!(
            u32::from_str_radix(octal, 8).unwrap() & 0o2000000,
            0,
            "O_CLOEXEC is not set"
        );
    }
}
