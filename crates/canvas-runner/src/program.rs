//! Finds CMD, and checks whether it can be managed.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::AtFlags;
use nix::unistd::{AccessFlags, faccessat, getgid, getuid};

use crate::elf::OnDisk;
use crate::error::RunError;
use canvas_types::elf::{self, INTERPRETERS_MAX, Image, PATH_BYTES};

/// Search path when PATH is not set, as in execvp(3).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a program cannot be managed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unmanaged {
    /// It has no loader that could load the library.
    Static,
    /// It runs with another user's rights, so the loader ignores LD_PRELOAD.
    SetId,
    /// It is for another processor, or 32-bit.
    Foreign,
    /// Its loader belongs to another C library.
    OtherLibc(PathBuf),
    /// It is built with this sanitizer.
    Sanitizer(&'static str),
}

impl Unmanaged {
    /// Whether the loader of such a program would complain about the library, so that it must not
    /// be in the environment. (Otherwise it stays there, because the program's children can be
    /// managed.)
    pub fn chokes_on_preload(&self) -> bool {
        match self {
            Unmanaged::Foreign | Unmanaged::OtherLibc(_) | Unmanaged::Sanitizer(_) => true,
            Unmanaged::Static | Unmanaged::SetId => false,
        }
    }
}

impl fmt::Display for Unmanaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unmanaged::Static => write!(f, "is statically linked"),
            Unmanaged::SetId => write!(f, "is set-user-ID or set-group-ID"),
            Unmanaged::Foreign => write!(f, "is built for another processor or for 32 bits"),
            Unmanaged::OtherLibc(loader) => {
                write!(
                    f,
                    "uses a C library other than glibc ({})",
                    loader.display()
                )
            }
            Unmanaged::Sanitizer(name) => write!(f, "is built with {name}"),
        }
    }
}

fn may_execute(path: &Path) -> bool {
    faccessat(
        nix::fcntl::AT_FDCWD,
        path,
        AccessFlags::X_OK,
        AtFlags::AT_EACCESS,
    )
    .is_ok()
}

/// The file that `name` means: itself if it contains a slash, else the first executable in `path`
/// (PATH). 126 if there is only a file that may not be executed, 127 if there is none.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, RunError> {
    let cannot = |file: &Path, why| RunError::CannotExecute {
        file: file.to_owned(),
        why,
    };
    if name.is_empty() {
        return Err(RunError::NoName);
    }
    let refusal = |file: &Path| match file.metadata() {
        Ok(m) if m.is_dir() => Some("it is a directory"),
        Ok(_) if !may_execute(file) => Some("permission denied"),
        _ => None,
    };
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match file.metadata() {
            Ok(_) => match refusal(&file) {
                Some(why) => Err(cannot(&file, why)),
                None => Ok(file),
            },
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(cannot(&file, "permission denied"))
            }
            Err(_) => Err(RunError::NoProgram(file)),
        };
    }
    let path = path.map_or_else(|| OsString::from(DEFAULT_PATH), OsStr::to_owned);
    let mut refused = None;
    for dir in path.as_bytes().split(|b| *b == b':') {
        // An empty element means the working directory.
        let dir = if dir.is_empty() {
            Path::new(".")
        } else {
            Path::new(OsStr::from_bytes(dir))
        };
        let file = dir.join(name);
        match file.metadata() {
            Ok(m) if m.is_dir() => {}
            Ok(_) => match refusal(&file) {
                Some(why) => refused = refused.or(Some(cannot(&file, why))),
                None => return Ok(file),
            },
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| RunError::NotInPath(name.into())))
}

/// Why the loader cannot load the library into this program; `None` if it can, as far as the file
/// shows.
pub fn unmanaged(program: &Path) -> Option<Unmanaged> {
    let mut file = program.to_path_buf();
    for _ in 0..INTERPRETERS_MAX {
        // A program may be executable but not readable: then only running it tells.
        let opened = OnDisk(File::open(&file).ok()?);
        let mut room = [0; PATH_BYTES];
        match elf::inspect(&opened, &mut room) {
            Image::Script { interpreter } => file = OsStr::from_bytes(interpreter).into(),
            Image::Foreign => return Some(Unmanaged::Foreign),
            // A loader that is run as a program honours LD_PRELOAD for the program that it loads.
            Image::Static if is_glibc_loader(&file.canonicalize().ok()?) => return None,
            Image::Static => return Some(Unmanaged::Static),
            Image::Dynamic { loader } if !elf::is_glibc_loader(loader) => {
                return Some(Unmanaged::OtherLibc(OsStr::from_bytes(loader).into()));
            }
            Image::Dynamic { .. } if changes_user(&opened.0) => return Some(Unmanaged::SetId),
            Image::Dynamic { .. } => return elf::sanitizer(&opened).map(Unmanaged::Sanitizer),
            Image::Unknown => return None,
        }
    }
    None
}

fn is_glibc_loader(path: &Path) -> bool {
    elf::is_glibc_loader(path.as_os_str().as_bytes())
}

/// Whether the kernel will change the user or group for this program. (Bits on scripts have no
/// effect, so the caller only asks about the last interpreter.)
fn changes_user(file: &File) -> bool {
    if nix::sys::prctl::get_no_new_privs().unwrap_or(false) {
        return false;
    }
    let Ok(m) = file.metadata() else { return false };
    let mode = m.permissions().mode();
    let set_user = mode & 0o4000 != 0 && m.uid() != getuid().as_raw();
    // Without the group's execute bit, set-group-ID means mandatory locking.
    let set_group = mode & 0o2010 == 0o2010 && m.gid() != getgid().as_raw();
    set_user || set_group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_searched_in_order_and_empty_elements_are_here() {
        let found = find(
            OsStr::new("sh"),
            Some(OsStr::new("/nonexistent:/bin:/usr/bin")),
        )
        .unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
        assert_eq!(find(OsStr::new("sh"), None).unwrap(), Path::new("/bin/sh"));
        // Tests run in the crate's directory.
        let here = find(OsStr::new("Cargo.toml"), Some(OsStr::new(":/bin"))).unwrap_err();
        assert_eq!(
            (here.code(), here.to_string().as_str()),
            (126, "./Cargo.toml cannot be executed: permission denied")
        );
    }

    #[test]
    fn what_is_not_there_is_127() {
        for name in ["", "no-such-program", "/no/such/program", "/bin/sh/x"] {
            assert_eq!(
                find(OsStr::new(name), None).unwrap_err().code(),
                127,
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_directory_is_126() {
        assert_eq!(find(OsStr::new("/bin"), None).unwrap_err().code(), 126);
    }

    #[test]
    fn dynamic_programs_and_their_scripts_are_manageable() {
        assert_eq!(unmanaged(Path::new("/bin/sh")), None);
        assert_eq!(unmanaged(Path::new("/usr/bin/ldd")), None, "a script");
        assert_eq!(
            unmanaged(Path::new("/lib64/ld-linux-x86-64.so.2")),
            None,
            "the loader itself"
        );
    }

    #[test]
    fn programs_with_the_rights_of_another_user_are_not() {
        if nix::sys::prctl::get_no_new_privs().unwrap() {
            return assert_eq!(
                unmanaged(Path::new("/bin/su")),
                None,
                "the bits have no effect"
            );
        }
        if !getuid().is_root() {
            return assert_eq!(unmanaged(Path::new("/bin/su")), Some(Unmanaged::SetId));
        }
        let copy = std::env::temp_dir().join(format!("canvas-setid-test-{}", std::process::id()));
        std::fs::copy("/bin/true", &copy).unwrap();
        let mut answers = Vec::new();
        // Root's own bits change nothing for root; those of another user or group do.
        for (uid, gid, mode) in [
            (0, 0, 0o4755),
            (1, 0, 0o4755),
            (1, 0, 0o755),
            (0, 1, 0o2755),
            (0, 1, 0o2745),
        ] {
            std::os::unix::fs::chown(&copy, Some(uid), Some(gid)).unwrap();
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).unwrap();
            answers.push(unmanaged(&copy).is_some());
        }
        std::fs::remove_file(&copy).unwrap();
        assert_eq!(answers, [false, true, false, true, false]);
    }
}
