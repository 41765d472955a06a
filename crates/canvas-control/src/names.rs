//! Names of tenants and runs.

use std::fmt;
use std::path::Path;

/// Most characters of a tenant's name.
pub const NAME_MAX: usize = 64;

/// Suffix of a socket's name.
const END: &str = ".sock";

/// Most characters of a tenant's name that is made from its program's: leaves room for a point and
/// a process id.
const NAME_OF_MAX: usize = NAME_MAX - 11;

/// The default name of a tenant: its program's name, with invalid characters replaced.
pub fn name_of(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let fit = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "._-".contains(c) => c,
        _ => '_',
    };
    let name: String = name.chars().take(NAME_OF_MAX).map(fit).collect();
    match judge_name(&name) {
        Ok(()) => name,
        Err(_) => "program".to_owned(),
    }
}

/// The name is not valid for a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "it is not a tenant's name; write 1 to {} letters, digits, '.', '_' and '-'",
    NAME_MAX
)]
pub struct NameError;

/// Checks a tenant's name.
pub fn judge_name(name: &str) -> Result<(), NameError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(NameError)
}

/// A run, and its socket in a [`crate::place::Place`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name {
    /// The tenant.
    pub tenant: String,
    /// The listening process.
    pub pid: u32,
    /// Distinguishes processes with the same pid in different PID namespaces: 0 for the first.
    pub namesake: u32,
}

/// As commands print and parse it: `TENANT.PID`, or `TENANT.PID-N` if the pid is ambiguous.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tenant, self.pid)?;
        match self.namesake {
            0 => Ok(()),
            n => write!(f, "-{n}"),
        }
    }
}

impl Name {
    pub(crate) fn file(&self) -> String {
        format!("{self}{END}")
    }
    pub(crate) fn parse(file: &str) -> Option<Name> {
        let (tenant, number) = file.strip_suffix(END)?.rsplit_once('.')?;
        let (pid, namesake) = number.split_once('-').unwrap_or((number, "0"));
        Some(Name {
            tenant: judge_name(tenant).is_ok().then(|| tenant.to_owned())?,
            pid: pid.parse().ok()?,
            namesake: namesake.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(tenant: &str, pid: u32) -> Name {
        Name {
            tenant: tenant.to_owned(),
            pid,
            namesake: 0,
        }
    }

    #[test]
    fn names_of_tenants() {
        for good in ["a", "redis-7.2_x", &"x".repeat(64)] {
            assert!(judge_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(judge_name(bad).is_err(), "{bad}");
        }
        assert_eq!(name_of(Path::new("/usr/bin/redis-server")), "redis-server");
        assert_eq!(name_of(Path::new("./a b\u{e9}")), "a_b_");
        assert_eq!(name_of(Path::new("/")), "program");
        assert_eq!(name_of(Path::new(&"y".repeat(100))).len(), 53);
        let longest = name(&name_of(Path::new(&"y".repeat(100))), u32::MAX);
        assert!(judge_name(&longest.to_string()).is_ok(), "{longest}");
    }

    #[test]
    fn a_tenants_name_may_have_points() {
        assert_eq!(Name::parse("a.b.12.sock"), Some(name("a.b", 12)));
        let second = Name {
            namesake: 2,
            ..name("a-1", 12)
        };
        assert_eq!(Name::parse(&second.file()), Some(second));
        for other in [".12", "a.sock", "a.x.sock", ".1.sock", "a.1", "a b.1.sock"] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
