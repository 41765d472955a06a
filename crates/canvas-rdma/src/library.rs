//! libibverbs, loaded on first use, so that one binary serves hosts with and without it.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library;

use crate::abi::Functions;

/// Why the library cannot be used. The text is one sentence that says what to install.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The library is not installed.
    #[error(
        "RDMA needs {0}, which is not installed (Debian packages libibverbs1 and \
         ibverbs-providers)"
    )]
    NotInstalled(String),
    /// The library cannot be loaded.
    #[error("RDMA needs {name}, which cannot be loaded: {}", reason(.source))]
    Load {
        /// The library.
        name: String,
        /// The loader's error.
        source: libloading::Error,
    },
    /// The library cannot be loaded in a namespace of its own.
    #[error("RDMA needs {name}, which cannot be loaded in a namespace of its own: {why}")]
    Apart {
        /// The library.
        name: String,
        /// The loader's error.
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

/// Loaded once and never unloaded: drivers of devices keep threads and mappings.
static LIBRARY: OnceLock<(Functions, Library)> = OnceLock::new();

/// The library's functions. If the library is missing, the next call tries again.
pub fn library() -> Result<&'static Functions, LibraryError> {
    if let Some((functions, _)) = LIBRARY.get() {
        return Ok(functions);
    }
    let opened = open(NAME)?;
    // If two threads loaded it at once, the first result is kept; dropping the second only
    // decrements a count.
    Ok(&LIBRARY.get_or_init(|| opened).0)
}

/// Loads the library and its dependencies in a namespace of their own, with their own C library and
/// heap (dlmopen(3)). In a program with a managed heap, a driver cannot use that heap: to fault in
/// its own structures it would need itself. Must be called before anything else here, on a thread
/// of the C library.
///
/// # Errors
///
/// The library is missing, too old, or cannot be loaded in a namespace of its own.
pub fn load_apart() -> Result<(), LibraryError> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
    let name = c"libibverbs.so.1";
    // SAFETY: loading libibverbs runs code that only prepares the library itself; the name is a C
    // string.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), flags) };
    if handle.is_null() {
        // SAFETY: the loader's error for this thread's last call is null, or a C string until the
        // next call.
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
    // A library that was loaded before is kept: nothing of this one was used yet.
    LIBRARY.get_or_init(|| found);
    Ok(())
}

fn open(name: &str) -> Result<(Functions, Library), LibraryError> {
    // SAFETY: loading and unloading libibverbs runs code that only prepares the library itself.
    let library = unsafe { Library::new(name) }.map_err(|e| why(name, e))?;
    functions(name, library)
}

fn functions(name: &str, library: Library) -> Result<(Functions, Library), LibraryError> {
    // SAFETY: it has the name and version of libibverbs.so.1, and is kept together with the
    // functions.
    match unsafe { Functions::find(&library) } {
        Ok(functions) => Ok((functions, library)),
        Err(symbol) => Err(LibraryError::Old {
            name: name.to_owned(),
            symbol,
        }),
    }
}

/// The loader's error text, which [`libloading::Error`] keeps as its source.
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

    /// Any library of this process can stand for one that lacks the functions.
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
