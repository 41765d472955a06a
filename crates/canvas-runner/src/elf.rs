//! Code and symbols of shared libraries, and programs as files.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use canvas_types::elf::{self, Bytes, HEADER_BYTES, PROGRAM_HEADER_BYTES, u16_at, u32_at, u64_at};

/// A file in which a read error counts as the end.
pub struct OnDisk(pub File);

impl Bytes for OnDisk {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(from) = at
                .checked_add(done as u64)
                .filter(|at| *at <= i64::MAX as u64)
            else {
                break;
            };
            match self.0.read_at(&mut buf[done..], from) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }
}

/// Executable code of a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// Offset in the file.
    pub offset: usize,
    /// Address relative to the library's start.
    pub address: usize,
    /// Size in bytes.
    pub bytes: usize,
}

/// A shared library for this processor.
pub struct Library {
    /// Its executable segments that are loaded unchanged from the file.
    pub texts: Vec<Text>,
    /// Symbols and their names, in the file.
    symbols: Range<usize>,
    names: Range<usize>,
}

const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
const SHT_DYNSYM: u32 = 11;
/// Sizes of an ELF64 section header and of a symbol.
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

/// Parses a library. `None` if `file` is not one or is damaged.
pub fn library(file: &[u8]) -> Option<Library> {
    let head = file.get(..HEADER_BYTES)?;
    if !elf::is_ours(head) || usize::from(u16_at(head, 54)) != PROGRAM_HEADER_BYTES {
        return None;
    }
    let number = |b: &[u8], at| usize::try_from(u64_at(b, at)).ok();
    let mut texts = Vec::new();
    for ph in entries(
        file,
        number(head, 32)?,
        PROGRAM_HEADER_BYTES,
        u16_at(head, 56),
    ) {
        let (offset, address) = (number(ph, 8)?, number(ph, 16)?);
        let (bytes, in_memory) = (number(ph, 32)?, number(ph, 40)?);
        if u32_at(ph, 0) == PT_LOAD
            && u32_at(ph, 4) & PF_X != 0
            && bytes == in_memory
            && (offset | address) % 4096 == 0
        {
            texts.push(Text {
                offset,
                address,
                bytes,
            });
        }
    }
    let sections = || {
        entries(
            file,
            number(head, 40).unwrap_or(0),
            SECTION_BYTES,
            u16_at(head, 60),
        )
    };
    let place = |s: &[u8]| {
        let start = number(s, 24)?;
        Some(start..start.checked_add(number(s, 32)?)?)
    };
    let symbols = sections().find(|s| u32_at(s, 4) == SHT_DYNSYM);
    let names = symbols.and_then(|s| sections().nth(u32_at(s, 40) as usize));
    Some(Library {
        texts,
        symbols: symbols.and_then(place).unwrap_or(0..0),
        names: names.and_then(place).unwrap_or(0..0),
    })
}

/// The entries of a table in the file, up to the file's end.
fn entries(file: &[u8], at: usize, bytes: usize, count: u16) -> impl Iterator<Item = &[u8]> {
    let table = file.get(at..).unwrap_or_default();
    table.chunks_exact(bytes).take(count.into())
}

impl Library {
    /// Address of the function or object `name`, relative to the library's start.
    pub fn symbol(&self, file: &[u8], name: &str) -> Option<usize> {
        let names = file.get(self.names.clone())?;
        let is_called = |s: &&[u8]| {
            let name_at = names.get(u32_at(s, 0) as usize..).unwrap_or_default();
            name_at
                .strip_prefix(name.as_bytes())
                .is_some_and(|r| r.first() == Some(&0))
        };
        let symbol = file
            .get(self.symbols.clone())?
            .chunks_exact(SYMBOL_BYTES)
            .find(is_called)?;
        usize::try_from(u64_at(symbol, 8)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_code_and_symbols() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|l| l.contains("/libc.so.6")).unwrap();
        let file = std::fs::read(&line[line.find('/').unwrap()..]).unwrap();
        let libc = library(&file).unwrap();
        assert_eq!(libc.texts.len(), 1);
        let text = &libc.texts[0];
        for name in ["clone", "vfork", "mmap"] {
            let at = libc.symbol(&file, name).unwrap();
            assert!(
                (text.address..text.address + text.bytes).contains(&at),
                "{name}"
            );
        }
        assert_eq!(libc.symbol(&file, "clon"), None);
        // A truncated file is parsed as far as possible, or not at all.
        for cut in [0, 3, 63, 64, 1000, 5000, file.len() / 2, file.len() - 1] {
            let _ = library(&file[..cut]).map(|l| l.symbol(&file[..cut], "clone"));
        }
    }

    #[test]
    fn this_test_is_dynamic() {
        let me = OnDisk(File::open("/proc/self/exe").unwrap());
        let mut room = [0; elf::PATH_BYTES];
        assert!(matches!(
            elf::inspect(&me, &mut room),
            elf::Image::Dynamic { .. }
        ));
    }
}
