//! libibverbs, opened when it is first needed: one binary serves hosts with and without it.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library;

use crate::abi::Functions;

/// Why the library cannot be used. The text is one sentence that says what to install.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The library is not there.
    #[error(
        "RDMA needs {0}, which is not installed (Debian packages libibverbs1 and \
         ibverbs-providers)"
    )]
    NotInstalled(String),
    /// The library is there, and does not become part of this process.
    #[error("RDMA needs {name}, which cannot be loaded: {}", reason(.source))]
    Load {
        /// The library.
        name: String,
        /// What the loader says.
        source: libloading::Error,
    },
    /// The library cannot be loaded beside what the process has.
    #[error("RDMA needs {name}, which cannot be loaded in a namespace of its own: {why}")]
    Apart {
        /// The library.
        name: String,
        /// What the loader says.
        why: String,
    },
    /// The library lacks a function.
    #[error("RDMA needs a newer {name}, which has {symbol} (rdma-core 28 or later)")]
    Old {
        /// The library.
        name: String,
        /// The function.
        symbol: &'static str,
    },
}

const NAME: &str = "libibverbs.so.1";

/// Opened once and never closed: devices' drivers keep threads and maps.
static LIBRARY: OnceLock<(Functions, Library)> = OnceLock::new();

/// The library's functions. Where it is missing the next call looks again.
pub fn library() -> Result<&'static Functions, LibraryError> {
    if let Some((functions, _)) = LIBRARY.get() {
        return Ok(functions);
    }
    let opened = open(NAME)?;
    // Of two that opened it at once the first one's is kept; the second only gives back a count.
    Ok(&LIBRARY.get_or_init(|| opened).0)
}

/// Loads the library, and all that it needs, apart from what the process has already: with a C library, and a heap, of its
/// own (dlmopen(3)). In a program whose heap is managed a device's driver cannot stand on that heap: its structures would
/// have to be brought back by itself. To be called before anything else here, by a thread of the C library's.
///
/// # Errors
///
/// The library is not there, is too old, or cannot be loaded so.
pub fn load_apart() -> Result<(), LibraryError> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
    let name = c"libibverbs.so.1";
    // SAFETY: what runs when libibverbs is loaded only prepares the library itself; the name is a C string.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), flags) };
    if handle.is_null() {
        // SAFETY: what the loader says of this thread's last call is a C string until the next one, or null.
        let said = NonNull::new(unsafe { libc::dlerror() });
        // SAFETY: as above.
        let said = said.map(|s| unsafe { CStr::from_ptr(s.as_ptr()) }.to_string_lossy());
        let why = said.unwrap_or_default().into_owned();
        let name = NAME.to_owned();
        return Err(LibraryError::Apart { name, why });
    }
    // SAFETY: the loader's handle, used once.
    let library = unsafe { libloading::os::unix::Library::from_raw(handle) }.into();
    let found = functions(NAME, library)?;
    // One that was loaded before stays: nothing of the other was used yet.
    LIBRARY.get_or_init(|| found);
    Ok(())
}

fn open(name: &str) -> Result<(Functions, Library), LibraryError> {
    // SAFETY: what runs when libibverbs is loaded and unloaded only prepares the library itself.
    let library = unsafe { Library::new(name) }.map_err(|e| why(name, e))?;
    functions(name, library)
}

fn functions(name: &str, library: Library) -> Result<(Functions, Library), LibraryError> {
    // SAFETY: it has the name of libibverbs and of its version 1, and is kept with the functions.
    match unsafe { Functions::find(&library) } {
        Ok(functions) => Ok((functions, library)),
        Err(symbol) => Err(LibraryError::Old {
            name: name.to_owned(),
            symbol,
        }),
    }
}

/// What the loader says; [`libloading::Error`] keeps it as its source.
fn reason(e: &libloading::Error) -> String {
    match std::error::Error::source(e) {
        Some(source) => source.to_string(),
        None => e.to_string(),
    }
}

fn why(name: &str, source: libloading::Error) -> LibraryError {
    let missing = format!("{name}: cannot open shared object file: No such file");
    let name = name.to_owned();
    if reason(&source).starts_with(&missing) {
        LibraryError::NotInstalled(name)
    } else {
        LibraryError::Load { name, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named_with_its_packages() {
        let why = open("libibverbs-that-is-missing.so.1")
            .err()
            .unwrap()
            .to_string();
        assert_eq!(
            why,
            "RDMA needs libibverbs-that-is-missing.so.1, which is not installed (Debian packages \
             libibverbs1 and ibverbs-providers)"
        );
    }

    /// Any library of this process stands for one that lacks the functions.
    #[test]
    fn a_library_without_the_functions_is_told_apart() {
        let why = open("libc.so.6").err().unwrap().to_string();
        assert_eq!(
            why,
            "RDMA needs a newer libc.so.6, which has ibv_get_device_list (rdma-core 28 or later)"
        );
    }

    #[test]
    fn a_library_that_cannot_be_loaded_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libibverbs.so.1");
        std::fs::write(&path, "not ELF").unwrap();
        let why = open(path.to_str().unwrap()).err().unwrap().to_string();
        assert!(
            why.contains("cannot be loaded: ") && why.contains("too short"),
            "{why}"
        );
    }
}
