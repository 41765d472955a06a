//! Patched code that `canvas run` has prepared, stored behind the library in its sealed file. Mapped over the text of
//! libc and the loader, it saves each process the search for sites, and the memory of its own patched pages.
//!
//! The file is the one that this very code was loaded from, and cannot be changed either. Parts that do not fit exactly
//! are not used; that text is then patched here, as if nothing had been prepared.

use canvas_sys::patch::prepared::{
    self, AREA_BEFORE_TEXT, AREA_HEAD_BYTES, DIRECTORY_BYTES, Identity, Patch, Prepared,
};
use canvas_sys::{file, mem};
use core::ffi::CStr;
use core::ops::Range;

use crate::capture::stub;
use crate::runtime::{fds, fds::Fd};

const READ: i32 = libc::PROT_READ;
const READ_EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// An executable segment of a loaded library.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    pub start: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// Its address in the library, independent of where that was loaded.
    pub address: usize,
    pub path: &'static CStr,
}

/// The library's file.
pub struct File {
    fd: i32,
    directory: Part,
    bytes: usize,
}

/// A part of the file mapped into memory, until dropped.
struct Part {
    at: usize,
    bytes: usize,
}

impl Part {
    fn map(fd: i32, range: Range<usize>) -> Option<Part> {
        let at = mem::map_file(fd, range.start, range.len(), READ).ok()?;
        Some(Part {
            at,
            bytes: range.len(),
        })
    }
    fn as_slice(&self) -> &[u8] {
        // SAFETY: `map` has mapped all of it, until this value is dropped; the file is sealed, so nobody changes or
        // cuts it.
        unsafe { core::slice::from_raw_parts(self.at as *const u8, self.bytes) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made; what borrows from it has borrowed from `self`.
        let _ = unsafe { mem::unmap(self.at, self.bytes) };
    }
}

/// The patches of a text.
pub struct Patches {
    all: Part,
    /// Where the trampolines lie.
    pub area: Range<usize>,
}

impl Patches {
    fn all(&self) -> impl Iterator<Item = Patch> {
        Patch::read_all(self.all.as_slice())
    }
    /// Number of patched sites.
    pub fn len(&self) -> usize {
        self.all().count()
    }
    /// Numbers of the patched calls, as far as they are known.
    pub fn calls(&self) -> impl Iterator<Item = i32> {
        self.all().filter_map(|p| p.known)
    }
}

impl File {
    /// Opens the prepared code; `None` if there is none, or if the file could still be written.
    pub fn open() -> Option<File> {
        let fd = fds::get(Fd::Library)?;
        let sealed = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if file::seals(fd).ok()? & sealed != sealed {
            return None;
        }
        let bytes = file::stat_filtered(fd).ok()?.st_size as usize;
        let last = bytes.checked_sub(DIRECTORY_BYTES)?;
        if !last.is_multiple_of(4096) {
            return None;
        }
        let directory = Part::map(fd, last..bytes)?;
        let _whole = prepared::directory(directory.as_slice(), bytes)?;
        Some(File {
            fd,
            directory,
            bytes,
        })
    }

    /// Maps the prepared code of a text over it. `None`: it does not fit, and nothing was changed.
    ///
    /// # Safety
    ///
    /// `text` must be an executable segment of a loaded library that is never unloaded, and the process run one thread
    /// of the program.
    pub unsafe fn map_over(&self, text: &Text) -> Option<Patches> {
        let identity = Identity::of(&file::stat_of(text.path).ok()?);
        let fits = |p: &Prepared| {
            p.identity == identity && p.address == text.address && p.text_bytes == text.bytes
        };
        let what = prepared::directory(self.directory.as_slice(), self.bytes)?.find(fits)?;
        let patches = Part::map(self.fd, what.patches())?;
        // SAFETY: an executable segment of a loaded library (the caller's promise) is mapped and readable, and nobody
        // writes to it while `loaded` is used.
        let loaded = unsafe { core::slice::from_raw_parts(text.start as *const u8, text.bytes) };
        if !Patch::read_all(patches.as_slice()).all(|p| p.fits(loaded)) {
            return None;
        }
        let area = self.map_area(text, &what)?;
        let code = what.code();
        // SAFETY: takes the place of the text's own pages, of which these are a copy (`fits`) but for whole
        // instructions that became jumps into the area, and that no jump enters; the program has one thread, which is
        // here (the caller's promise).
        let done =
            unsafe { mem::map_file_over(text.start, self.fd, code.start, code.len(), READ_EXEC) };
        if done.is_err() {
            // SAFETY: `map_area` has just mapped it; as the text is unchanged, nothing leads there.
            let _ = unsafe { mem::unmap(area.start, area.len()) };
            return None;
        }
        Some(Patches { all: patches, area })
    }

    /// Maps the trampolines at their fixed distance before the text.
    fn map_area(&self, text: &Text, what: &Prepared) -> Option<Range<usize>> {
        let start = text.start.checked_sub(AREA_BEFORE_TEXT)?;
        let trampolines = what.trampolines();
        let area = start..start + AREA_HEAD_BYTES + trampolines.len();
        let write = libc::PROT_READ | libc::PROT_WRITE;
        // Replaces nothing: if something is mapped there, this fails.
        let at = mem::map_lazy(area.start, area.len(), write).ok()?;
        if at != area.start {
            // This kernel takes the address as a hint only.
            // SAFETY: mapped just now; nobody else knows it.
            let _ = unsafe { mem::unmap(at, area.len()) };
            return None;
        }
        // SAFETY: the area's first bytes, which were mapped just now, writable, and start on a page.
        unsafe { (area.start as *mut usize).write(stub::entry as *const () as usize) };
        // SAFETY: replaces the rest of the area, in which nothing lies yet; the address in its first page is only read
        // from here on.
        let done = unsafe {
            let after = area.start + AREA_HEAD_BYTES;
            mem::map_file_over(
                after,
                self.fd,
                trampolines.start,
                trampolines.len(),
                READ_EXEC,
            )
            .and_then(|()| mem::protect(area.start, AREA_HEAD_BYTES, READ))
        };
        if done.is_err() {
            // SAFETY: mapped above; no code leads there yet.
            let _ = unsafe { mem::unmap(area.start, area.len()) };
            return None;
        }
        Some(area)
    }
}
