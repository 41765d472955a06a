//! Reads pages of managed shared memory (`canvas run --shared`) from its files.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use canvas_core::pager::shared::word::{State, Word};
use canvas_core::swap::classes::HEADER_BYTES;
use canvas_core::swap::hash::Hash;
use canvas_core::swap::units::FarCopy;
use canvas_shm::shared::{Control, HASHES, VICTIMS, WORDS};
use canvas_sys::lz4;
use canvas_types::{PAGE_SIZE, PageBuf, layout};

use super::far::{Extents, Why};
use super::pages::{self, Problem};
use super::read::reason;
use super::target::Target;

/// Tries for a page that is changing.
const LOOKS: u32 = 200;

/// The files of shared memory, as a process has them open.
pub struct Partition {
    control: File,
    pages: File,
    store: File,
    key: PageBuf,
}

impl Partition {
    /// For a process; `None` if it has no managed shared memory.
    pub fn of(target: &Target) -> Option<Partition> {
        let open = |name| File::open(target.files(name).first()?).ok();
        let control = open("/memfd:canvas-shared-control")?;
        let mut key = [0; PAGE_SIZE];
        let at = offset_of!(Control, page_key) as u64;
        control.read_exact_at(&mut key, at).ok()?;
        Some(Partition {
            control,
            key,
            pages: open("/memfd:canvas-shared")?,
            store: open("/memfd:canvas-shared-store")?,
        })
    }

    /// Reads the page at `addr`; pages beyond the pool are read by `extents`.
    pub fn look(
        &self,
        addr: usize,
        mut extents: Option<&mut Extents<'_>>,
        out: &mut PageBuf,
    ) -> Result<(), Why> {
        let page = (addr - layout::shared_base()) / PAGE_SIZE;
        let mut why = reason(Problem::Busy);
        for _ in 0..LOOKS {
            let before = self.word(page).map_err(reason)?;
            let beyond = extents.as_deref_mut();
            match self.attempt(page, before, beyond, out) {
                Ok(()) if self.word(page).map_err(reason)? == before => return Ok(()),
                Ok(()) => why = reason(Problem::Busy),
                Err(e) => why = e,
            }
            // The page came back or was rewritten meanwhile.
            if let Some(extents) = extents.as_deref_mut() {
                extents.forget();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(why)
    }

    /// Whether an eviction is under way, during which only the evicting process can read some of
    /// its pages.
    pub fn has_busy_pages(&self) -> bool {
        let mut count = [0; 4];
        let mut pages = [0; VICTIMS * 4];
        let read = self
            .control
            .read_exact_at(&mut count, offset_of!(Control, victims) as u64)
            .and_then(|()| {
                self.control
                    .read_exact_at(&mut pages, offset_of!(Control, pages) as u64)
            });
        let listed = u32::from_ne_bytes(count) as usize;
        let is_evicting = |page: &[u8; 4]| {
            let word = self.word(u32::from_ne_bytes(*page) as usize);
            word.is_ok_and(|w| w.state() == State::Evicting)
        };
        read.is_ok()
            && pages
                .as_chunks::<4>()
                .0
                .iter()
                .take(listed)
                .any(is_evicting)
    }

    fn word(&self, page: usize) -> Result<Word, Problem> {
        let mut bytes = [0; 8];
        let at = (WORDS + page * 8) as u64;
        self.control
            .read_exact_at(&mut bytes, at)
            .or(Err(Problem::Gone))?;
        Ok(Word(u64::from_ne_bytes(bytes)).unreferenced())
    }

    fn attempt(
        &self,
        page: usize,
        word: Word,
        extents: Option<&mut Extents<'_>>,
        out: &mut PageBuf,
    ) -> Result<(), Why> {
        match word.state() {
            // Pages missing from the file read as zeros.
            State::Resident | State::Untouched | State::FillingNew => {
                let at = (page * PAGE_SIZE) as u64;
                let read = self.pages.read_exact_at(out, at);
                read.or(Err(reason(Problem::Gone)))
            }
            // Its copy stays while it is brought in.
            State::Far | State::FillingFar if !word.entry().is_some() => {
                out.fill(0);
                Ok(())
            }
            State::Far | State::FillingFar => self.far(page, word, extents, out),
            State::Evicting => Err(reason(Problem::Busy)),
            State::Poisoned => Err(reason(Problem::Damaged)),
        }
    }

    /// Reads the page from its far copy.
    fn far(
        &self,
        page: usize,
        word: Word,
        extents: Option<&mut Extents<'_>>,
        out: &mut PageBuf,
    ) -> Result<(), Why> {
        let mut bytes;
        let record = match FarCopy::of(word.entry().0) {
            FarCopy::Stored(place) if place.bytes > PAGE_SIZE => {
                return Err(reason(Problem::Damaged));
            }
            FarCopy::Stored(place) => {
                bytes = vec![0; HEADER_BYTES + place.bytes];
                let read = self.store.read_exact_at(&mut bytes, place.offset() as u64);
                read.or(Err(reason(Problem::Gone)))?;
                &bytes[..]
            }
            FarCopy::InExtent(place) => {
                let extents = extents.ok_or("its far copy cannot be found")?;
                let record = extents.record(place)?;
                // A record of earlier contents does not count as damage.
                if record.first_chunk() != Some(&self.hash(page)?) {
                    return Err(reason(Problem::Busy));
                }
                record
            }
        };
        let expand = |from: &[u8], to: &mut PageBuf| lz4::decompress(from, to);
        pages::decode(&self.key, record, out, expand)
            .then_some(())
            .ok_or(reason(Problem::Damaged))
    }

    /// The hash of a page whose copy is beyond the pool.
    fn hash(&self, page: usize) -> Result<Hash, Why> {
        let mut hash = Hash::default();
        let at = (HASHES + page * HEADER_BYTES) as u64;
        let read = self.control.read_exact_at(&mut hash, at);
        read.map(|()| hash).or(Err(reason(Problem::Gone)))
    }
}
