//! Pages of the partition of shared memory (`canvas run --shared`), read from its files.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use canvas_pager::shared::word::{State, Word};
use canvas_shm::shared::{Control, VICTIMS, WORDS};
use canvas_swap::classes::HEADER_BYTES;
use canvas_swap::units::Place;
use canvas_sys::lz4;
use canvas_types::{PAGE_SIZE, PageBuf, layout};

use super::pages::{self, Problem};
use super::target::Target;

/// Looks at a page that changes.
const LOOKS: u32 = 200;

/// The partition's files, as a process has them open.
pub struct Partition {
    control: File,
    pages: File,
    store: File,
    key: PageBuf,
}

impl Partition {
    /// Those of a process; `None` when it has no shared memory that is managed.
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

    /// The page at `addr` of the partition.
    pub fn look(&self, addr: usize, out: &mut PageBuf) -> Result<(), Problem> {
        let page = (addr - layout::shared_base()) / PAGE_SIZE;
        let mut why = Problem::Busy;
        for _ in 0..LOOKS {
            let before = self.word(page)?;
            match self.attempt(page, before, out) {
                Ok(()) if self.word(page)? == before => return Ok(()),
                Ok(()) => why = Problem::Busy,
                Err(e) => why = e,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(why)
    }

    /// Is an eviction under way? While it is, some of its pages lie where only the process that evicts them
    /// can read them.
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

    fn attempt(&self, page: usize, word: Word, out: &mut PageBuf) -> Result<(), Problem> {
        match word.state() {
            // What no page of the file is for reads as zeros.
            State::Resident | State::Untouched | State::FillingNew => {
                let at = (page * PAGE_SIZE) as u64;
                self.pages.read_exact_at(out, at).or(Err(Problem::Gone))
            }
            // Its copy stays while it is brought in.
            State::Far | State::FillingFar if !word.entry().is_some() => {
                out.fill(0);
                Ok(())
            }
            State::Far | State::FillingFar => {
                let place = Place::of(word.entry().0);
                if place.bytes > PAGE_SIZE {
                    return Err(Problem::Damaged);
                }
                let mut record = vec![0; HEADER_BYTES + place.bytes];
                let read = self.store.read_exact_at(&mut record, place.offset() as u64);
                read.or(Err(Problem::Gone))?;
                pages::decode(&self.key, &record, out, |from, to| {
                    lz4::decompress(from, to)
                })
                .then_some(())
                .ok_or(Problem::Damaged)
            }
            State::Evicting => Err(Problem::Busy),
            State::Poisoned => Err(Problem::Damaged),
        }
    }
}
