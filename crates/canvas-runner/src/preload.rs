//! The preload library that is embedded in this binary.

use std::ffi::OsString;
use std::fs;

use crate::error::RunError;

/// Environment variable that names another library, for development.
pub const ENV_PRELOAD_SO: &str = "CANVAS_PRELOAD_SO";

/// `libcanvas_preload.so` as built by build.rs; empty if that was skipped.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcanvas_preload.so"));

/// The library's bytes.
pub fn library(replacement: Option<OsString>) -> Result<std::borrow::Cow<'static, [u8]>, RunError> {
    if let Some(path) = replacement {
        let bytes = fs::read(&path).map_err(|source| RunError::LibraryUnreadable {
            path: path.into(),
            source,
        })?;
        return Ok(bytes.into());
    }
    if EMBEDDED.is_empty() {
        return Err(RunError::NoLibrary);
    }
    Ok(EMBEDDED.into())
}

/// Size of the embedded library; 0 if there is none.
pub fn embedded_bytes() -> usize {
    EMBEDDED.len()
}
