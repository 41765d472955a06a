//! The format of an ELF core dump (core(5), elf(5)) for x86-64: header, program headers, notes. The
//! memory follows, with each mapping aligned to pages.

use canvas_types::PAGE_SIZE;

use super::maps::{Keep, Map};
use super::stop::Thread;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// Most program headers of a core: their number has 16 bits, and the highest value is special.
const PROGRAM_HEADERS_MAX: usize = 0xfffe;

const NT_PRSTATUS: u32 = 1;
const NT_PRFPREG: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;

/// Data of the process besides its memory and threads.
pub struct About {
    /// Its pid.
    pub pid: u32,
    /// Its parent's pid.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its user and group ids.
    pub owner: (u32, u32),
    /// Its name, 15 bytes at most.
    pub name: Vec<u8>,
    /// Its arguments, separated by blanks.
    pub arguments: Vec<u8>,
    /// The auxiliary vector.
    pub auxv: Vec<u8>,
}

/// A mapping's place in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its first address.
    pub start: usize,
    /// Offset in the file.
    pub at: u64,
    /// Number of bytes.
    pub bytes: usize,
}

/// The start of a core, and the places of memory after it.
pub struct Plan {
    /// Everything before the memory.
    pub head: Vec<u8>,
    /// Mappings with bytes.
    pub pieces: Vec<Piece>,
    /// Size of the whole file.
    pub file_bytes: u64,
}

/// Lays out a core. `None` if there are more mappings than a core can have.
pub fn plan(about: &About, threads: &[Thread], maps: &[Map]) -> Option<Plan> {
    let kept: Vec<(&Map, usize)> = maps
        .iter()
        .filter_map(|m| match m.keep() {
            Keep::Nothing => None,
            Keep::Bytes(n) => Some((m, n)),
        })
        .collect();
    if kept.len() + 1 > PROGRAM_HEADERS_MAX {
        return None;
    }
    let notes = notes(about, threads, maps);
    let notes_at = HEADER_BYTES + (kept.len() + 1) * PROGRAM_HEADER_BYTES;
    let mut at = (notes_at + notes.len()).next_multiple_of(PAGE_SIZE) as u64;
    let mut head = header(kept.len() as u16 + 1);
    let note = [0, 0, notes.len() as u64, 0, 4];
    program_header(&mut head, PT_NOTE, 0, notes_at as u64, note);
    let mut pieces = Vec::new();
    for (map, bytes) in kept {
        let [read, write, execute] = map.prot.map(u32::from);
        let flags = read << 2 | write << 1 | execute;
        let memory = (map.end - map.start) as u64;
        let rest = [map.start as u64, 0, bytes as u64, memory, PAGE_SIZE as u64];
        program_header(&mut head, PT_LOAD, flags, at, rest);
        if bytes > 0 {
            let start = map.start;
            pieces.push(Piece { start, at, bytes });
        }
        at += bytes as u64;
    }
    head.extend(notes);
    Some(Plan {
        head,
        pieces,
        file_bytes: at,
    })
}

fn header(program_headers: u16) -> Vec<u8> {
    let mut h = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // A core, of x86-64, version 1.
    h.extend([4u16, 62].map(u16::to_le_bytes).concat());
    h.extend(1u32.to_le_bytes());
    h.extend([0, HEADER_BYTES as u64, 0].map(u64::to_le_bytes).concat());
    h.extend(0u32.to_le_bytes());
    let sizes = [
        HEADER_BYTES as u16,
        PROGRAM_HEADER_BYTES as u16,
        program_headers,
        0,
        0,
        0,
    ];
    h.extend(sizes.map(u16::to_le_bytes).concat());
    h
}

/// `rest`: address, physical address, bytes in the file, bytes in memory, alignment.
fn program_header(to: &mut Vec<u8>, kind: u32, flags: u32, offset: u64, rest: [u64; 5]) {
    to.extend([kind, flags].map(u32::to_le_bytes).concat());
    to.extend(offset.to_le_bytes());
    to.extend(rest.map(u64::to_le_bytes).concat());
}

fn notes(about: &About, threads: &[Thread], maps: &[Map]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, thread) in threads.iter().enumerate() {
        note(&mut out, NT_PRSTATUS, &status(about, thread));
        if i == 0 {
            // In the kernel's order: after the first thread's state.
            note(&mut out, NT_PRPSINFO, &process(about));
            note(&mut out, NT_AUXV, &about.auxv);
            note(&mut out, NT_FILE, &files(maps));
        }
        if let Some(floats) = &thread.floats {
            note(&mut out, NT_PRFPREG, floats);
        }
    }
    out
}

fn note(to: &mut Vec<u8>, kind: u32, content: &[u8]) {
    to.extend(
        [5, content.len() as u32, kind]
            .map(u32::to_le_bytes)
            .concat(),
    );
    to.extend(b"CORE\0\0\0\0");
    to.extend(content);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// `struct elf_prstatus`.
fn status(about: &About, thread: &Thread) -> Vec<u8> {
    let mut s = vec![0; 32];
    s.extend(
        [thread.tid, about.parent, about.group, 0]
            .map(u32::to_le_bytes)
            .concat(),
    );
    s.resize(112, 0);
    s.extend(thread.registers.map(u64::to_le_bytes).concat());
    s.extend(u32::from(thread.floats.is_some()).to_le_bytes());
    s.resize(336, 0);
    s
}

/// `struct elf_prpsinfo`.
fn process(about: &About) -> Vec<u8> {
    let mut p = vec![0, b't', 0, 0];
    p.resize(16, 0);
    let (user, group) = about.owner;
    let numbers = [user, group, about.pid, about.parent, about.group, 0];
    p.extend(numbers.map(u32::to_le_bytes).concat());
    for (text, bytes) in [(&about.name, 16), (&about.arguments, 80)] {
        let end = p.len() + bytes;
        p.extend(&text[..text.len().min(bytes - 1)]);
        p.resize(end, 0);
    }
    p
}

/// The note with mapped files, for debuggers.
fn files(maps: &[Map]) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let mapped: Vec<&Map> = maps
        .iter()
        .filter(|m| m.inode != 0 && m.name.is_absolute() && m.keep() != Keep::Nothing)
        .collect();
    let mut numbers = vec![mapped.len() as u64, PAGE_SIZE as u64];
    let mut names = Vec::new();
    for m in mapped {
        numbers.extend([m.start as u64, m.end as u64, m.offset / PAGE_SIZE as u64]);
        names.extend(m.name.as_os_str().as_bytes());
        names.push(0);
    }
    let mut out: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    out.extend(names);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::maps::parse;

    fn about() -> About {
        About {
            pid: 7,
            parent: 1,
            group: 7,
            owner: (1000, 1000),
            name: b"name".to_vec(),
            arguments: b"name -x".to_vec(),
            auxv: vec![0; 32],
        }
    }

    fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
        let mut eight = [0; 8];
        eight[..N].copy_from_slice(&bytes[at..at + N]);
        u64::from_le_bytes(eight)
    }

    #[test]
    fn headers_name_what_follows() {
        let maps = parse(
            b"1000-3000 rw-p 00000000 00:00 0 [heap]\n\
              5000-9000 r-xp 00001000 08:01 5 /bin/x\n\
              a000-c000 rw-p 00000000 00:00 0 [stack]\n",
        );
        let thread = Thread {
            tid: 7,
            registers: std::array::from_fn(|i| i as u64 + 100),
            floats: Some(vec![9; 512]),
        };
        let plan = plan(&about(), &[thread], &maps).unwrap();
        let h = &plan.head;
        assert_eq!((&h[..4], h.len() <= PAGE_SIZE), (&b"\x7fELF"[..], true));
        assert_eq!(number::<2>(h, 56), 4, "a note and three mappings");
        let field = |i: usize, at| number::<8>(h, 64 + i * 56 + at);
        // Address, bytes in the file, bytes in memory.
        let got: Vec<_> = (1..4)
            .map(|i| (field(i, 16), field(i, 32), field(i, 40)))
            .collect();
        let want = [
            (0x1000, 0x2000, 0x2000),
            (0x5000, 0, 0x4000),
            (0xa000, 0x2000, 0x2000),
        ];
        assert_eq!(got, want);
        assert_eq!(plan.pieces.len(), 2);
        assert_eq!(
            (plan.pieces[1].at, plan.file_bytes),
            (field(3, 8), field(3, 8) + 0x2000)
        );
        assert!(field(1, 8).is_multiple_of(4096));
        let notes = field(0, 8) as usize;
        assert_eq!(field(0, 32) as usize, h.len() - notes);
        let of_status = &h[notes + 20..];
        assert_eq!(
            (number::<4>(h, notes + 4), number::<4>(of_status, 32)),
            (336, 7)
        );
        assert_eq!(
            number::<8>(of_status, 112 + 16 * 8),
            116,
            "the program counter"
        );
    }

    #[test]
    fn names_are_cut_and_ended() {
        let long = About {
            name: vec![b'n'; 40],
            arguments: vec![b'a'; 400],
            ..about()
        };
        let p = process(&long);
        assert_eq!((p.len(), p[40 + 15], p[56 + 79]), (136, 0, 0));
    }
}
