//! Code that is prepared once: the patched pages of libc and the loader, and their trampolines, stored behind the
//! library in its sealed file.
//!
//! All processes of a run map these pages instead of each patching its own. The file is made before the program starts,
//! and then nobody can write to it, not even the tenant's processes. Its last page is the *directory*: what was
//! prepared, and where in the file it lies. Prepared code is used only for the very file that it was prepared from,
//! unchanged since ([`Identity`]), and only if all patched bytes are as they were then ([`Patch`]).
//!
//! Trampolines lie at a fixed distance before their text, so that the code fits wherever the loader puts it. Their area
//! begins with a page that is private to each process and starts with the address to jump to.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::sites::{Code, JUMP_BYTES, TRAMPOLINE_BYTES};

const PAGE_BYTES: usize = 4096;
/// Bytes of the directory, which ends the file.
pub const DIRECTORY_BYTES: usize = PAGE_BYTES;
/// Distance from the start of the trampolines' area to its text: usually beyond all libraries.
pub const AREA_BEFORE_TEXT: usize = 1 << 30;
/// Offset of the trampolines in their area.
pub const AREA_HEAD_BYTES: usize = PAGE_BYTES;
/// Bytes of an encoded [`Patch`].
const PATCH_BYTES: usize = 16;
/// Maximum number of texts.
const TEXTS_MAX: usize = 8;

const MAGIC: u64 = u64::from_le_bytes(*b"canvcode");
const VERSION: u64 = 1;
/// Numbers before the texts: magic, version, checksum, count.
const HEAD_WORDS: usize = 4;
const TEXT_WORDS: usize = 13;
const _: () = assert!((HEAD_WORDS + TEXTS_MAX * TEXT_WORDS) * 8 <= DIRECTORY_BYTES);

/// Identifies a file and its state: device, inode, size, and the times of its last change of content and of anything
/// (seconds, then nanoseconds).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Identity(pub [u64; 7]);

impl Identity {
    /// That of the file that the kernel describes so.
    pub fn of(s: &libc::stat) -> Identity {
        Identity([
            s.st_dev,
            s.st_ino,
            s.st_size as u64,
            s.st_mtime as u64,
            s.st_mtime_nsec as u64,
            s.st_ctime as u64,
            s.st_ctime_nsec as u64,
        ])
    }
}

/// Where in the file the prepared code of one text lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prepared {
    /// The library that it belongs to.
    pub identity: Identity,
    /// Address of the text in its library, a whole number of pages.
    pub address: usize,
    /// Bytes of the text.
    pub text_bytes: usize,
    /// Offset of the patched pages in the file.
    code_at: usize,
    /// Offset of the trampolines.
    trampolines_at: usize,
    /// Offset of the patches.
    patches_at: usize,
    /// Number of patches.
    patches: usize,
}

impl Prepared {
    /// Range of the patched pages in the file.
    pub fn code(&self) -> Range<usize> {
        self.code_at..self.code_at + self.text_bytes.next_multiple_of(PAGE_BYTES)
    }
    /// Range of the trampolines in the file: whole pages.
    pub fn trampolines(&self) -> Range<usize> {
        let bytes = (self.patches * TRAMPOLINE_BYTES).next_multiple_of(PAGE_BYTES);
        self.trampolines_at..self.trampolines_at + bytes
    }
    /// Range of the patches in the file; [`Patch::read_all`] reads them.
    pub fn patches(&self) -> Range<usize> {
        self.patches_at..self.patches_at + self.patches * PATCH_BYTES
    }

    fn encode(&self) -> [u64; TEXT_WORDS] {
        let mut words = [0; TEXT_WORDS];
        words[..7].copy_from_slice(&self.identity.0);
        let rest = [
            self.address,
            self.text_bytes,
            self.code_at,
            self.trampolines_at,
            self.patches_at,
            self.patches,
        ];
        for (word, value) in words[7..].iter_mut().zip(rest) {
            *word = value as u64;
        }
        words
    }

    /// Decodes an entry; `None` if it does not fit a file of `file_bytes` bytes.
    fn decode(words: &[u64], file_bytes: usize) -> Option<Prepared> {
        let mut identity = Identity::default();
        identity.0.copy_from_slice(words.get(..7)?);
        let small = |i: usize| usize::try_from(words[i]).ok().filter(|n| *n <= file_bytes);
        let p = Prepared {
            identity,
            address: usize::try_from(words[7]).ok()?,
            text_bytes: small(8)?,
            code_at: small(9)?,
            trampolines_at: small(10)?,
            patches_at: small(11)?,
            patches: small(12)?,
        };
        let fits = |r: Range<usize>| r.start.is_multiple_of(PAGE_BYTES) && r.end <= file_bytes;
        let ok = p.address.is_multiple_of(PAGE_BYTES)
            && p.text_bytes > 0
            && p.patches > 0
            && fits(p.code())
            && fits(p.trampolines())
            && fits(p.patches());
        ok.then_some(p)
    }
}

/// Reads the directory of a file of `file_bytes` bytes. `None` if there is none, or it is damaged.
pub fn directory(page: &[u8], file_bytes: usize) -> Option<impl Iterator<Item = Prepared> + use<>> {
    if page.len() != DIRECTORY_BYTES {
        return None;
    }
    let mut words = [0u64; DIRECTORY_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(page.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    let count = usize::try_from(words[3]).ok().filter(|n| *n <= TEXTS_MAX)?;
    if words[0] != MAGIC || words[1] != VERSION || words[2] != checksum(&words[3..]) {
        return None;
    }
    let all = move |i| {
        let at = HEAD_WORDS + i * TEXT_WORDS;
        Prepared::decode(&words[at..at + TEXT_WORDS], file_bytes)
    };
    let all_good = (0..count).all(|i| all(i).is_some());
    all_good.then(|| (0..count).filter_map(all))
}

/// Protects against accidents, not against forgers: nobody can write to the file.
fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        (sum ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
    })
}

/// A jump that was written into a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Offset in the text.
    pub from: usize,
    /// Number of the call, if the code shows it.
    pub known: Option<i32>,
    /// The bytes before patching.
    pub before: [u8; JUMP_BYTES],
}

impl Patch {
    fn encode(&self) -> [u8; PATCH_BYTES] {
        let mut bytes = [0; PATCH_BYTES];
        bytes[..4].copy_from_slice(&(self.from as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.known.unwrap_or(-1).to_le_bytes());
        bytes[8..8 + JUMP_BYTES].copy_from_slice(&self.before);
        bytes
    }
    /// Decodes the patches in `bytes`, the file's contents at [`Prepared::patches`].
    pub fn read_all(bytes: &[u8]) -> impl Iterator<Item = Patch> {
        bytes.chunks_exact(PATCH_BYTES).map(|b| {
            let number = |at: usize| i32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
            let mut before = [0; JUMP_BYTES];
            before.copy_from_slice(&b[8..8 + JUMP_BYTES]);
            Patch {
                from: number(0) as u32 as usize,
                known: Some(number(4)).filter(|nr| *nr >= 0),
                before,
            }
        })
    }
    /// Whether the text still has the bytes from before patching.
    pub fn fits(&self, text: &[u8]) -> bool {
        text.get(self.from..self.from + JUMP_BYTES) == Some(&self.before)
    }
}

/// A text to prepare.
pub struct Source<'a> {
    /// The library that it belongs to.
    pub identity: Identity,
    /// Its address in the library, a whole number of pages.
    pub address: usize,
    /// The text, and whatever follows in the file on its last page.
    pub pages: &'a [u8],
    /// Bytes of the text alone.
    pub text_bytes: usize,
    /// Offsets of functions that must not be patched ([`Code::new`]).
    pub never: &'a [usize],
}

/// Appends the prepared code of `sources`, and the directory, to a library's file.
///
/// # Panics
///
/// If a source's pages are not whole, or shorter than its text.
pub fn append(file: &mut Vec<u8>, sources: &[Source<'_>]) {
    let mut texts = Vec::new();
    for source in sources.iter().take(TEXTS_MAX) {
        texts.extend(append_text(file, source));
    }
    let mut words = [0u64; DIRECTORY_BYTES / 8];
    (words[0], words[1], words[3]) = (MAGIC, VERSION, texts.len() as u64);
    for (i, text) in texts.iter().enumerate() {
        let at = HEAD_WORDS + i * TEXT_WORDS;
        words[at..at + TEXT_WORDS].copy_from_slice(&text.encode());
    }
    words[2] = checksum(&words[3..]);
    start_page(file);
    file.extend(words.iter().flat_map(|w| w.to_le_bytes()));
}

/// Starts a new page of the file; returns its offset.
fn start_page(file: &mut Vec<u8>) -> usize {
    file.resize(file.len().next_multiple_of(PAGE_BYTES), 0);
    file.len()
}

fn append_text(file: &mut Vec<u8>, source: &Source<'_>) -> Option<Prepared> {
    assert!(source.pages.len() == source.text_bytes.next_multiple_of(PAGE_BYTES));
    assert!(source.address.is_multiple_of(PAGE_BYTES));
    let code = &source.pages[..source.text_bytes];
    let mut marks = vec![0; Code::marks_for(code.len())];
    // Any addresses will do, as long as both fit.
    let text = 1usize << 40;
    let area = text - AREA_BEFORE_TEXT;
    let mut patched = source.pages.to_vec();
    let (mut patches, mut trampolines) = (Vec::new(), Vec::new());
    Code::new(code, &mut marks, source.never).each(|site| {
        let Ok(new) = site else { return };
        let (from, at) = (new.from(), area + AREA_HEAD_BYTES + trampolines.len());
        let place = &mut patched[from..from + JUMP_BYTES];
        let mut before = [0; JUMP_BYTES];
        before.copy_from_slice(place);
        place.copy_from_slice(&new.jump(text, at));
        trampolines.extend_from_slice(new.trampoline(code, text, at, area).bytes());
        trampolines.resize(trampolines.len().next_multiple_of(TRAMPOLINE_BYTES), 0);
        patches.push(Patch {
            from,
            known: new.known(),
            before,
        });
    });
    if patches.is_empty() {
        return None;
    }
    let mut add = |bytes: &[u8]| {
        let at = start_page(file);
        file.extend_from_slice(bytes);
        at
    };
    let records: Vec<u8> = patches.iter().flat_map(Patch::encode).collect();
    Some(Prepared {
        identity: source.identity,
        address: source.address,
        text_bytes: source.text_bytes,
        code_at: add(&patched),
        trampolines_at: add(&trampolines),
        patches_at: add(&records),
        patches: patches.len(),
    })
}
