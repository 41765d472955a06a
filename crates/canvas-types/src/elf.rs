//! Just enough of ELF to tell whether a program can be managed.

/// A file that can be read at any offset.
pub trait Bytes {
    /// Reads from offset `at` into `buf`; returns how many bytes there were.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> usize;
}

impl Bytes for [u8] {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> usize {
        let there = usize::try_from(at).ok().and_then(|at| self.get(at..));
        let n = there.unwrap_or_default().len().min(buf.len());
        buf[..n].copy_from_slice(&there.unwrap_or_default()[..n]);
        n
    }
}

/// Kind of an executable file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Image<'a> {
    /// A program for this processor that its loader (PT_INTERP) links at start.
    Dynamic {
        /// The loader's path.
        loader: &'a [u8],
    },
    /// A program for this processor without a loader.
    Static,
    /// A program for another processor, or a 32-bit one.
    Foreign,
    /// Begins with `#!`.
    Script {
        /// The interpreter's path.
        interpreter: &'a [u8],
    },
    /// Anything else: the kernel decides (binfmt_misc) or refuses.
    Unknown,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;
/// Bytes of an ELF64 file header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of an ELF64 program header.
pub const PROGRAM_HEADER_BYTES: usize = 56;
/// The kernel reads this much of a `#!` line (BINPRM_BUF_SIZE).
const SCRIPT_LINE_BYTES: usize = 256;
/// How many levels of interpreters the kernel follows.
pub const INTERPRETERS_MAX: usize = 5;
/// Bytes of the longest path (PATH_MAX).
pub const PATH_BYTES: usize = 4096;

/// ELF number of x86-64.
pub const MACHINE: u16 = 62;

/// The little-endian number at offset `at`, which must be in bounds.
pub fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
/// The little-endian number at offset `at`, which must be in bounds.
pub fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
/// The little-endian number at offset `at`, which must be in bounds.
pub fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

/// Whether `head` begins a file for this processor.
pub fn is_ours(head: &[u8]) -> bool {
    head.len() >= HEADER_BYTES
        && head.starts_with(b"\x7fELF")
        && head[4] == ELFCLASS64
        && head[5] == ELFDATA2LSB
        && u16_at(head, 18) == MACHINE
}

/// What kind of executable `file` is; `room` is for a path. A damaged file is [`Image::Unknown`]: the kernel's answer
/// to it is the one that matters.
pub fn inspect<'a>(file: &(impl Bytes + ?Sized), room: &'a mut [u8; PATH_BYTES]) -> Image<'a> {
    let mut head = [0; SCRIPT_LINE_BYTES];
    let len = file.read_at(0, &mut head);
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line, room);
    }
    if head.len() < HEADER_BYTES || !head.starts_with(b"\x7fELF") {
        return Image::Unknown;
    }
    if !is_ours(head) {
        return Image::Foreign;
    }
    let Some(headers) = ProgramHeaders::of(file, head) else {
        return Image::Unknown;
    };
    for i in 0..headers.count {
        let Some(entry) = headers.get(i) else {
            return Image::Unknown;
        };
        if u32_at(&entry, 0) == PT_INTERP {
            let bytes = u64_at(&entry, 32).min(PATH_BYTES as u64) as usize;
            let n = file.read_at(u64_at(&entry, 8), &mut room[..bytes]);
            let end = room[..n].iter().position(|b| *b == 0).unwrap_or(n);
            return Image::Dynamic {
                loader: &room[..end],
            };
        }
    }
    Image::Static
}

/// The interpreter of a `#!` line, cut off where the kernel cuts it.
fn script<'a>(line: &[u8], room: &'a mut [u8; PATH_BYTES]) -> Image<'a> {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let word = line
        .split(|b| *b == b' ' || *b == b'\t' || *b == 0)
        .find(|w| !w.is_empty());
    match word {
        Some(word) => {
            room[..word.len()].copy_from_slice(word);
            Image::Script {
                interpreter: &room[..word.len()],
            }
        }
        None => Image::Unknown,
    }
}

/// Whether this is the path of glibc's loader. Debian's is ld-linux-x86-64.so.2; unusual prefixes (Nix, Guix) keep the
/// name.
pub fn is_glibc_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-linux") || (name.starts_with(b"ld-2.") && name.ends_with(b".so"))
}

struct ProgramHeaders<'a, F: ?Sized> {
    file: &'a F,
    table: u64,
    count: u64,
}

impl<'a, F: Bytes + ?Sized> ProgramHeaders<'a, F> {
    /// Finds the program headers; `head` is the file's header.
    fn of(file: &'a F, head: &[u8]) -> Option<ProgramHeaders<'a, F>> {
        (usize::from(u16_at(head, 54)) == PROGRAM_HEADER_BYTES).then(|| ProgramHeaders {
            file,
            table: u64_at(head, 32),
            count: u16_at(head, 56).into(),
        })
    }
    fn get(&self, i: u64) -> Option<[u8; PROGRAM_HEADER_BYTES]> {
        let mut entry = [0; PROGRAM_HEADER_BYTES];
        let at = self.table.checked_add(i * PROGRAM_HEADER_BYTES as u64)?;
        (self.file.read_at(at, &mut entry) == entry.len()).then_some(entry)
    }
    fn all(&self) -> impl Iterator<Item = [u8; PROGRAM_HEADER_BYTES]> {
        (0..self.count).map_while(|i| self.get(i))
    }
    /// Offset in the file of what is loaded at `address`.
    fn offset(&self, address: u64) -> Option<u64> {
        self.all().find_map(|ph| {
            let within = address.checked_sub(u64_at(&ph, 16))?;
            let is_there = u32_at(&ph, 0) == PT_LOAD && within < u64_at(&ph, 32);
            is_there.then(|| u64_at(&ph, 8).checked_add(within))?
        })
    }
}

/// A sanitizer, the libraries of its runtime, and a symbol of a runtime that is linked into the program.
const SANITIZERS: [(&str, &[&str], &str); 5] = [
    (
        "AddressSanitizer",
        &["libasan.", "libclang_rt.asan"],
        "__asan_init",
    ),
    (
        "ThreadSanitizer",
        &["libtsan.", "libclang_rt.tsan"],
        "__tsan_init",
    ),
    ("MemorySanitizer", &["libclang_rt.msan"], "__msan_init"),
    (
        "HWAddressSanitizer",
        &["libhwasan.", "libclang_rt.hwasan"],
        "__hwasan_init",
    ),
    (
        "LeakSanitizer",
        &["liblsan.", "libclang_rt.lsan"],
        "__lsan_init",
    ),
];

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// The sanitizer that the program in `file` is built with, if any: such a program places its own memory and must be the
/// first of all libraries.
pub fn sanitizer(file: &(impl Bytes + ?Sized)) -> Option<&'static str> {
    let mut head = [0; HEADER_BYTES];
    file.read_at(0, &mut head);
    if !is_ours(&head) {
        return None;
    }
    let headers = ProgramHeaders::of(file, &head)?;
    let dynamic = headers.all().find(|ph| u32_at(ph, 0) == PT_DYNAMIC)?;
    let (start, bytes) = (u64_at(&dynamic, 8), u64_at(&dynamic, 32));
    // Pairs of tag and value; a tag of 0 ends them.
    let entries = || {
        (0..bytes / 16).map_while(move |i| {
            let mut entry = [0; 16];
            let n = file.read_at(start.checked_add(i * 16)?, &mut entry);
            let (tag, value) = (u64_at(&entry, 0), u64_at(&entry, 8));
            (n == 16 && tag != 0).then_some((tag, value))
        })
    };
    let table = |wanted| {
        let (_, address) = entries().find(|(tag, _)| *tag == wanted)?;
        headers.offset(address)
    };
    let names = table(DT_STRTAB)?;
    for (_, name) in entries().filter(|(tag, _)| *tag == DT_NEEDED) {
        let mut text = [0; 32];
        file.read_at(names.checked_add(name)?, &mut text);
        let is_it = |libraries: &[&str]| libraries.iter().any(|l| text.starts_with(l.as_bytes()));
        if let Some((name, ..)) = SANITIZERS.iter().find(|(_, libraries, _)| is_it(libraries)) {
            return Some(name);
        }
    }
    let hash = table(DT_GNU_HASH)?;
    let symbols = Symbols {
        file,
        hash,
        table: table(DT_SYMTAB)?,
        names,
    };
    let built_in = SANITIZERS.iter().find(|(_, _, init)| symbols.has(init));
    built_in.map(|(name, ..)| *name)
}

/// The symbols that a program exports.
struct Symbols<'a, F: ?Sized> {
    file: &'a F,
    hash: u64,
    table: u64,
    names: u64,
}

impl<F: Bytes + ?Sized> Symbols<'_, F> {
    fn word(&self, at: u64) -> Option<u32> {
        let mut word = [0; 4];
        (self.file.read_at(at, &mut word) == 4).then(|| u32::from_le_bytes(word))
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Searches the GNU hash table: a header of four numbers, the filter, the buckets, the chains.
    fn find(&self, name: &str) -> Option<()> {
        let hash = name
            .bytes()
            .fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(b.into()));
        let [buckets, first, filter] = [0, 1, 2].map(|i| self.word(self.hash + 4 * i));
        let (buckets, first) = (u64::from(buckets?).max(1), u64::from(first?));
        let at = self.hash + 16 + 8 * u64::from(filter?);
        let chains = at + 4 * buckets;
        let mut index = u64::from(self.word(at + 4 * (u64::from(hash) % buckets))?);
        while let Some(chain) = index.checked_sub(first) {
            let there = self.word(chains + 4 * chain)?;
            if there | 1 == hash | 1 && self.is_called(index, name) {
                return Some(());
            }
            if there & 1 != 0 {
                return None;
            }
            index += 1;
        }
        None
    }

    fn is_called(&self, index: u64, name: &str) -> bool {
        /// Bytes of a symbol.
        const SYMBOL: u64 = 24;
        let mut text = [0; 32];
        let at = self.word(self.table + index * SYMBOL);
        at.is_some_and(|at| {
            self.file.read_at(self.names + u64::from(at), &mut text);
            text.strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{vec, vec::Vec};

    fn of(bytes: &[u8], wanted: Image) -> bool {
        inspect(bytes, &mut [0; PATH_BYTES]) == wanted
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
        assert!(of(&dynamic, Image::Dynamic { loader: b"/lib/x" }));
        entry[0] = 1;
        let mut no_loader = header(ELFCLASS64, MACHINE, 1);
        no_loader.extend(&entry);
        assert!(of(&no_loader, Image::Static));
        assert!(of(&header(1, MACHINE, 0), Image::Foreign));
        assert!(of(&header(ELFCLASS64, 0xfff0, 0), Image::Foreign));
        let interpreter = b"/bin/sh";
        assert!(of(b"#! /bin/sh -e\necho", Image::Script { interpreter }));
        assert!(of(b"#!/bin/sh", Image::Script { interpreter }));
        assert!(of(b"#!\n/bin/sh", Image::Unknown));
        assert!(of(b"echo hello", Image::Unknown));
        assert!(of(b"", Image::Unknown));
    }

    #[test]
    fn damaged_files_are_unknown_not_a_panic() {
        assert!(of(&header(ELFCLASS64, MACHINE, 9), Image::Unknown));
        let mut far = header(ELFCLASS64, MACHINE, 2);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(of(&far, Image::Unknown));
        assert!(of(&header(ELFCLASS64, MACHINE, 0)[..40], Image::Unknown));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the program is Miri")]
    fn a_program_is_known_by_the_symbols_of_a_sanitizer() {
        let me = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(sanitizer(&me[..]), None);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|l| l.contains("/libc.so.6")).unwrap();
        let libc = std::fs::read(&line[line.find('/').unwrap()..]).unwrap();
        assert_eq!(sanitizer(&libc[..]), None);
        // The hash table covers what is there: libc has all of them.
        let mut renamed = libc.clone();
        let name = b"\0malloc_usable_size\0";
        assert!(renamed.windows(name.len()).any(|w| w == name));
        // Cut anywhere, a file is read as far as it goes.
        for cut in [0, 3, 63, 64, 1000, 5000, libc.len() / 2, libc.len() - 1] {
            renamed.truncate(libc.len() - cut);
            let _ = sanitizer(&renamed[..]);
            let _ = sanitizer(&libc[..cut]);
        }
    }
}
