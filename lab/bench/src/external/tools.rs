//! Programs of the host: finds them, or names the Debian package.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use super::error::WorkloadError;

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The first program of this name in `path` (a value of PATH).
fn find_on(path: &str, name: &str) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|dir| dir.join(name))
        .find(|p| is_program(p))
}

/// The first program of this name in PATH, or in the directories of servers.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    find_on(&format!("{path}:/usr/bin:/usr/sbin"), name)
}

/// A program; fails with the name of its Debian package if it is not installed.
pub fn need(name: &str, package: &str) -> Result<PathBuf, WorkloadError> {
    find(name).ok_or_else(|| WorkloadError::NotInstalled {
        program: name.to_owned(),
        package: package.to_owned(),
    })
}

/// The error if a program is not installed.
pub fn missing(name: &str, package: &str) -> Option<WorkloadError> {
    need(name, package).err()
}

/// Home of a Java whose version is in `versions`, with a compiler if needed: tries JAVA_HOME, `java` in PATH,
/// then /usr/lib/jvm.
pub fn java_home(
    versions: std::ops::RangeInclusive<u32>,
    with_compiler: bool,
) -> Result<PathBuf, WorkloadError> {
    let mut homes: Vec<PathBuf> = env::var_os("JAVA_HOME")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    if let Some(java) = find("java").and_then(|j| fs::canonicalize(j).ok()) {
        homes.extend(java.ancestors().nth(2).map(Path::to_owned));
    }
    let mut others: Vec<PathBuf> = fs::read_dir("/usr/lib/jvm")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    others.sort();
    homes.extend(others);
    let fits = |home: &&PathBuf| {
        is_program(&home.join("bin/java"))
            && (!with_compiler || is_program(&home.join("bin/javac")))
            && fs::read_to_string(home.join("release"))
                .ok()
                .and_then(|text| java_version(&text))
                .is_some_and(|v| versions.contains(&v))
    };
    let (what, package) = match with_compiler {
        true => ("compiler", "jdk"),
        false => ("runtime", "jre"),
    };
    let none = WorkloadError::NoJava {
        what,
        first: *versions.start(),
        last: *versions.end(),
        package,
    };
    homes.iter().find(fits).cloned().ok_or(none)
}

/// 17 from `JAVA_VERSION="17.0.2"`, 8 from `JAVA_VERSION="1.8.0_392"`.
fn java_version(release: &str) -> Option<u32> {
    let line = release
        .lines()
        .find_map(|l| l.strip_prefix("JAVA_VERSION="))?;
    let mut numbers = line.trim_matches('"').split(['.', '_', '-', '+']);
    match numbers.next()?.parse().ok()? {
        1 => numbers.next()?.parse().ok(),
        v => Some(v),
    }
}

/// A Python from 3.9 to 3.12 (the pinned packages have wheels for these) that can create environments.
pub fn python() -> Result<PathBuf, WorkloadError> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let probe =
        "import sys, venv, ensurepip; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 12))";
    let works = |exe: &PathBuf| {
        Command::new(exe)
            .args(["-c", probe])
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|o| o.status.success())
    };
    let names = [
        "python3",
        "/usr/bin/python3",
        "python3.11",
        "python3.12",
        "python3.10",
        "python3.9",
    ];
    FOUND
        .get_or_init(|| names.iter().filter_map(|n| find(n)).find(works))
        .clone()
        .ok_or(WorkloadError::NoPython)
}

/// A port of 127.0.0.1 that nothing listens on, and that this process has not returned before.
pub fn free_port() -> Result<u16, WorkloadError> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(|e| e.into_inner());
    let given = given.get_or_insert_with(HashSet::new);
    for _ in 0..1000 {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .map_err(WorkloadError::Listen)?
            .port();
        if given.insert(port) {
            return Ok(port);
        }
    }
    Err(WorkloadError::NoPort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_java() {
        assert_eq!(
            java_version("IMPLEMENTOR=\"Debian\"\nJAVA_VERSION=\"17.0.21.1\"\n"),
            Some(17)
        );
        assert_eq!(java_version("JAVA_VERSION=\"1.8.0_392\""), Some(8));
        assert_eq!(java_version("JAVA_VERSION=\"25\""), Some(25));
        assert_eq!(java_version("OS_NAME=\"Linux\""), None);
        assert_eq!(java_version("JAVA_VERSION=\"\""), None);
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert!(missing("sh", "dash").is_none());
        assert_eq!(
            missing("no-such-server", "no-such-package")
                .unwrap()
                .to_string(),
            "no-such-server is not installed: install it (Debian's package no-such-package)"
        );
        let e = java_home(3..=4, true).unwrap_err().to_string();
        assert!(
            e.contains("3 to 4") && e.contains("openjdk-17-jdk-headless"),
            "{e}"
        );
    }

    #[test]
    fn only_programs_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("tool");
        fs::write(&text, "x").unwrap();
        let path = dir.path().to_str().unwrap();
        assert_eq!(find_on(path, "tool"), None);
        fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_on(&format!("/nowhere:{path}"), "tool"), Some(text));
    }

    #[test]
    fn ports_differ() {
        let ports: HashSet<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 50);
    }
}
