//! Prepares patched code of libc and the loader for all processes of a run: those that canvas
//! itself is loaded with, which most programs of the host use. Programs with other libraries patch
//! their own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use canvas_sys::patch::prepared::{Identity, Source, append};

use crate::elf::{self, Library};

/// Appends the prepared code to the library, if libc's can be prepared.
pub fn append_prepared(library: &mut Vec<u8>) {
    let read: Vec<_> = loaded().iter().filter_map(|p| Loaded::read(p)).collect();
    let sources: Vec<_> = read.iter().flat_map(Loaded::sources).collect();
    if !sources.is_empty() {
        append(library, &sources);
    }
}

/// Paths of the loaded libraries whose calls are patched.
fn loaded() -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_patched = |path: &&Path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        ["libc.so.6", "ld-linux", "libpthread.so"]
            .iter()
            .any(|p| name.starts_with(p))
    };
    let path = |line: &'_ str| line.find('/').map(|at| line[at..].to_owned());
    maps.lines()
        .filter_map(path)
        .filter(|p| is_patched(&Path::new(p)))
        .map(PathBuf::from)
        .collect()
}

/// A library as it is on disk.
struct Loaded {
    identity: Identity,
    bytes: Vec<u8>,
    library: Library,
    /// Offsets that must not be patched, by text segment.
    never: Vec<Vec<usize>>,
}

impl Loaded {
    /// `None` if the file changes meanwhile or is not as expected.
    fn read(path: &Path) -> Option<Loaded> {
        let mut file = File::open(path).ok()?;
        let before = identity(&file)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        if identity(&file)? != before {
            return None;
        }
        let library = elf::library(&bytes)?;
        let calls = ["clone", "vfork"].map(|name| library.symbol(&bytes, name));
        let is_libc = path.file_name()?.to_str()?.starts_with("libc.so.6");
        if is_libc && calls.contains(&None) {
            // The offsets that must not be patched are unknown.
            return None;
        }
        let offsets = |text: &elf::Text| {
            let offset = |at: usize| at.wrapping_sub(text.address);
            calls.iter().flatten().map(|at| offset(*at)).collect()
        };
        let never = library.texts.iter().map(offsets).collect();
        Some(Loaded {
            identity: before,
            bytes,
            library,
            never,
        })
    }

    fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.library
            .texts
            .iter()
            .zip(&self.never)
            .filter_map(|(text, never)| {
                let end = text.offset.checked_add(text.bytes.next_multiple_of(4096))?;
                Some(Source {
                    identity: self.identity,
                    address: text.address,
                    pages: self.bytes.get(text.offset..end)?,
                    text_bytes: text.bytes,
                    never,
                })
            })
    }
}

/// The identity by which the library in a program looks for it.
fn identity(file: &File) -> Option<Identity> {
    let stat = canvas_sys::file::stat(file.as_raw_fd());
    stat.ok().map(|s| Identity::of(&s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_sys::patch::prepared::{DIRECTORY_BYTES, Patch, directory};

    #[test]
    fn libc_and_the_loader_are_prepared() {
        let mut file = b"library".to_vec();
        append_prepared(&mut file);
        let page = &file[file.len() - DIRECTORY_BYTES..];
        let texts: Vec<_> = directory(page, file.len()).unwrap().collect();
        assert_eq!(texts.len(), loaded().len());
        let calls = |t: &canvas_sys::patch::prepared::Prepared| {
            let patches = Patch::read_all(&file[t.patches()]);
            patches.filter_map(|p| p.known).collect::<Vec<_>>()
        };
        let most = texts.iter().map(calls).max_by_key(Vec::len).unwrap();
        // mmap, munmap, brk, mremap, execve: memory management needs these.
        for nr in [9, 11, 12, 25, 59] {
            assert!(most.contains(&nr), "call {nr}");
        }
        // vfork and the return from a signal handler must not be among them.
        assert!(!most.contains(&58) && !most.contains(&15));
    }
}
