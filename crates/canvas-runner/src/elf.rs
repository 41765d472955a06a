//! Just enough of ELF to tell whether a program can be managed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// What kind of executable a file is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Image {
    /// A program for this processor that its loader (PT_INTERP) links at start.
    Dynamic {
        /// The loader's path.
        loader: PathBuf,
    },
    /// A program for this processor without a loader.
    Static,
    /// A program for another processor, or a 32-bit one.
    Foreign,
    /// Begins with `#!`.
    Script {
        /// The interpreter's path.
        interpreter: PathBuf,
    },
    /// Anything else: the kernel decides (binfmt_misc) or refuses.
    Unknown,
}

const PT_INTERP: u32 = 3;
const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;
/// Bytes of an ELF64 file header.
const HEADER_BYTES: usize = 64;
/// Bytes of an ELF64 program header.
const PROGRAM_HEADER_BYTES: usize = 56;
/// The kernel reads this much of a `#!` line (BINPRM_BUF_SIZE).
const SCRIPT_LINE_BYTES: usize = 256;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Reads as much as there is, up to the buffer's size. Where no file reaches, there is nothing.
fn read_up_to(file: &File, at: u64, buf: &mut [u8]) -> io::Result<usize> {
    if at > i64::MAX as u64 - buf.len() as u64 {
        return Ok(0);
    }
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

/// What kind of executable `file` is. A damaged file is [`Image::Unknown`]: the kernel's answer to
/// it is the one that counts.
pub fn inspect(file: &File) -> io::Result<Image> {
    let mut head = [0; SCRIPT_LINE_BYTES];
    let len = read_up_to(file, 0, &mut head)?;
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    if head.len() < HEADER_BYTES || !head.starts_with(b"\x7fELF") {
        return Ok(Image::Unknown);
    }
    if head[4] != ELFCLASS64 || head[5] != ELFDATA2LSB || u16_at(head, 18) != MACHINE {
        return Ok(Image::Foreign);
    }
    let (table, entry_bytes, entries) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56));
    if usize::from(entry_bytes) != PROGRAM_HEADER_BYTES {
        return Ok(Image::Unknown);
    }
    let mut entry = [0; PROGRAM_HEADER_BYTES];
    for i in 0..u64::from(entries) {
        let Some(at) = table.checked_add(i * PROGRAM_HEADER_BYTES as u64) else {
            return Ok(Image::Unknown);
        };
        if read_up_to(file, at, &mut entry)? < entry.len() {
            return Ok(Image::Unknown);
        }
        if u32_at(&entry, 0) == PT_INTERP {
            let mut path = vec![0; u64_at(&entry, 32).min(4096) as usize];
            let n = read_up_to(file, u64_at(&entry, 8), &mut path)?;
            path.truncate(n);
            let end = path.iter().position(|b| *b == 0).unwrap_or(path.len());
            return Ok(Image::Dynamic {
                loader: OsStr::from_bytes(&path[..end]).into(),
            });
        }
    }
    Ok(Image::Static)
}

/// Executable code of a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// Where it begins in the file.
    pub offset: usize,
    /// Where it is loaded, from the library's own beginning on.
    pub address: usize,
    /// Its bytes.
    pub bytes: usize,
}

/// A shared library for this processor.
pub struct Library {
    /// Its executable segments that are loaded as they are in the file.
    pub texts: Vec<Text>,
    /// Symbols and their names, in the file.
    symbols: Range<usize>,
    names: Range<usize>,
}

const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
const SHT_DYNSYM: u32 = 11;
/// Bytes of an ELF64 section header, and of a symbol.
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

/// Reads a library. `None` when `file` is none, or damaged.
pub fn library(file: &[u8]) -> Option<Library> {
    let head = file.get(..HEADER_BYTES)?;
    let is_ours = head.starts_with(b"\x7fELF")
        && head[4] == ELFCLASS64
        && head[5] == ELFDATA2LSB
        && u16_at(head, 18) == MACHINE;
    if !is_ours || usize::from(u16_at(head, 54)) != PROGRAM_HEADER_BYTES {
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

/// The entries of a table in the file, up to its end.
fn entries(file: &[u8], at: usize, bytes: usize, count: u16) -> impl Iterator<Item = &[u8]> {
    let table = file.get(at..).unwrap_or_default();
    table.chunks_exact(bytes).take(count.into())
}

impl Library {
    /// Address of the function or object called `name`, from the library's beginning on.
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

/// The interpreter of a `#!` line, cut off where the kernel cuts it.
fn script(line: &[u8]) -> Image {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let word = line
        .split(|b| *b == b' ' || *b == b'\t' || *b == 0)
        .find(|w| !w.is_empty());
    match word {
        Some(word) => Image::Script {
            interpreter: OsStr::from_bytes(word).into(),
        },
        None => Image::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn of(bytes: &[u8]) -> Image {
        let fd = nix::sys::memfd::memfd_create(c"elf", nix::sys::memfd::MFdFlags::empty()).unwrap();
        let mut file = File::from(fd);
        file.write_all(bytes).unwrap();
        inspect(&file).unwrap()
    }

    fn header(class: u8, machine: u16, entries: u16) -> Vec<u8> {
        let mut h = vec![0; HEADER_BYTES];
        h[..4].copy_from_slice(b"\x7fELF");
        (h[4], h[5]) = (class, ELFDATA2LSB);
        h[18..20].copy_from_slice(&machine.to_le_bytes());
        h[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
        h[54..56].copy_from_slice(&(PROGRAM_HEADER_BYTES as u16).to_le_bytes());
        h[56..58].copy_from_slice(&entries.to_le_bytes());
        h
    }

    #[test]
    fn kinds_of_files() {
        let mut dynamic = header(ELFCLASS64, MACHINE, 1);
        let mut entry = vec![0; PROGRAM_HEADER_BYTES];
        entry[0] = PT_INTERP as u8;
        entry[8] = (HEADER_BYTES + PROGRAM_HEADER_BYTES) as u8;
        entry[32] = 7;
        dynamic.extend(&entry);
        dynamic.extend(b"/lib/x\0");
        assert_eq!(
            of(&dynamic),
            Image::Dynamic {
                loader: "/lib/x".into()
            }
        );
        entry[0] = 1;
        let mut no_loader = header(ELFCLASS64, MACHINE, 1);
        no_loader.extend(&entry);
        assert_eq!(of(&no_loader), Image::Static);
        assert_eq!(of(&header(1, MACHINE, 0)), Image::Foreign);
        assert_eq!(of(&header(ELFCLASS64, 0xfff0, 0)), Image::Foreign);
        assert_eq!(
            of(b"#! /bin/sh -e\necho"),
            Image::Script {
                interpreter: "/bin/sh".into()
            }
        );
        assert_eq!(
            of(b"#!/bin/sh"),
            Image::Script {
                interpreter: "/bin/sh".into()
            }
        );
        assert_eq!(of(b"#!\n/bin/sh"), Image::Unknown);
        assert_eq!(of(b"echo hello"), Image::Unknown);
        assert_eq!(of(b""), Image::Unknown);
    }

    #[test]
    fn damaged_files_are_unknown_not_a_panic() {
        assert_eq!(of(&header(ELFCLASS64, MACHINE, 9)), Image::Unknown);
        let mut far = header(ELFCLASS64, MACHINE, 2);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&far), Image::Unknown);
        assert_eq!(of(&header(ELFCLASS64, MACHINE, 0)[..40]), Image::Unknown);
    }

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
        // Cut anywhere, it is read as far as it goes, or not at all.
        for cut in [0, 3, 63, 64, 1000, 5000, file.len() / 2, file.len() - 1] {
            let _ = library(&file[..cut]).map(|l| l.symbol(&file[..cut], "clone"));
        }
    }

    #[test]
    fn this_test_is_dynamic() {
        let me = File::open("/proc/self/exe").unwrap();
        assert!(matches!(inspect(&me).unwrap(), Image::Dynamic { .. }));
    }
}
