//! One process of a tenant reads another's memory, or writes into it, by a kernel copy (process_vm_readv) from or to
//! the pages that are present. From checking them to the end of the copy no page may be evicted: a write into a page
//! that was unmapped meanwhile would be lost.
//!
//! The asker puts a [`Request`] into the owner's [`Place`]. At stage [`Stage::Used`] the owner's reclaim skips these
//! pages. Each side publishes its own action before it checks the other's: the asker puts its request there and then
//! waits until no batch is under way, and the owner starts a batch and then checks for a request. So one of the two
//! sees the other, and the owner need not answer as long as the pages are present. Where they are not, its reclaim
//! thread is asked to bring them in ([`Stage::Posted`]).

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Most pages of a range.
pub const PAGES_MAX: u32 = 256;

/// A request, as its word encodes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request(u64);

/// The requester: the index of its process's slot, and a thread number, of which few bits count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Index in [`crate::Segment::procs`].
    pub process: u32,
    /// Keeps two threads of one process from taking each other's request for their own.
    pub thread: u32,
}

/// Progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The owner is to make the pages present, and has not seen the request.
    Posted,
    /// The owner makes the pages present.
    Taken,
    /// The pages are present, until the asker removes the request, or the owner loses patience.
    Ready,
    /// None of the pages could be made present.
    Nothing,
    /// The kernel copies: the owner evicts none of the present pages until the asker removes the request or has died.
    Used,
}

const STAGES: [Stage; 5] = [
    Stage::Posted,
    Stage::Taken,
    Stage::Ready,
    Stage::Nothing,
    Stage::Used,
];
const COUNT_SHIFT: u32 = 32;
const PROCESS_SHIFT: u32 = 41;
const THREAD_SHIFT: u32 = 51;
const STAGE_SHIFT: u32 = 61;
const _: () = assert!(PAGES_MAX < 1 << (PROCESS_SHIFT - COUNT_SHIFT));
const _: () = assert!(crate::segment::PROCS_MAX <= 1 << (THREAD_SHIFT - PROCESS_SHIFT));

impl Request {
    /// A request for `count` pages from `first` on, at most [`PAGES_MAX`].
    pub fn of(asker: Asker, first: u32, count: u32) -> Request {
        let count = count.clamp(1, PAGES_MAX);
        let process = asker.process & ((1 << (THREAD_SHIFT - PROCESS_SHIFT)) - 1);
        let thread = asker.thread & ((1 << (STAGE_SHIFT - THREAD_SHIFT)) - 1);
        Request(
            u64::from(first)
                | u64::from(count) << COUNT_SHIFT
                | u64::from(process) << PROCESS_SHIFT
                | u64::from(thread) << THREAD_SHIFT,
        )
    }
    /// Decodes a word, which any process of the tenant can have written.
    fn of_word(word: u64) -> Option<Request> {
        let request = Request(word);
        let is_valid = (1..=PAGES_MAX).contains(&request.count())
            && ((word >> STAGE_SHIFT) as usize) < STAGES.len();
        is_valid.then_some(request)
    }
    fn bits(self, from: u32, to: u32) -> u32 {
        (self.0 >> from) as u32 & ((1 << (to - from)) - 1)
    }
    /// The first page.
    pub fn first(self) -> u32 {
        self.0 as u32
    }
    /// Number of pages.
    pub fn count(self) -> u32 {
        self.bits(COUNT_SHIFT, PROCESS_SHIFT)
    }
    /// The index of the asker's slot.
    pub fn process(self) -> u32 {
        self.bits(PROCESS_SHIFT, THREAD_SHIFT)
    }
    /// Its stage.
    pub fn stage(self) -> Stage {
        STAGES[(self.0 >> STAGE_SHIFT) as usize]
    }
    /// This request at another stage.
    pub fn at(self, stage: Stage) -> Request {
        let number = STAGES.iter().position(|s| *s == stage).unwrap_or(0) as u64;
        Request(self.0 & ((1 << STAGE_SHIFT) - 1) | number << STAGE_SHIFT)
    }
    /// Whether it is this request, at whatever stage.
    pub fn is_same(self, other: Request) -> bool {
        self.at(Stage::Posted) == other.at(Stage::Posted)
    }
}

/// Where other processes put requests to this process, one at a time; all zeros means empty.
#[derive(Debug)]
#[repr(C)]
pub struct Place {
    request: AtomicU64,
    /// Batches of the owner's reclaim under way.
    batches: AtomicU32,
}

/// A batch of the owner's reclaim, until dropped.
pub struct Batch<'a>(&'a Place);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.0.batches.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Batch<'_> {
    /// The pages that must stay: the first one, and one past the last.
    pub fn stays(&self) -> Option<(u32, u32)> {
        let request = self.0.request().filter(|r| r.stage() == Stage::Used)?;
        let first = request.first();
        Some((first, first.saturating_add(request.count())))
    }
}

impl Place {
    /// An empty one.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Place {
        Place {
            request: AtomicU64::new(0),
            batches: AtomicU32::new(0),
        }
    }
    /// The current request.
    pub fn request(&self) -> Option<Request> {
        Request::of_word(self.request.load(Ordering::SeqCst))
    }
    fn change(&self, old: u64, new: u64) -> bool {
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        (self.request)
            .compare_exchange(old, new, success, failure)
            .is_ok()
    }
    /// Puts a request there, if the place is free.
    pub fn put(&self, new: Request) -> bool {
        self.change(0, new.0)
    }
    /// Replaces `old` by `new`; false when `old` is not there any more.
    pub fn replace(&self, old: Request, new: Request) -> bool {
        self.change(old.0, new.0)
    }
    /// Removes a request, if it is there.
    pub fn take_away(&self, request: Request) -> bool {
        self.change(request.0, 0)
    }
    /// Whether a batch of the owner's reclaim is under way. A batch that starts after a request reached [`Stage::Used`]
    /// skips its pages.
    pub fn is_in_batch(&self) -> bool {
        self.batches.load(Ordering::SeqCst) != 0
    }
    /// The owner starts to unmap the pages of a batch.
    pub fn batch(&self) -> Batch<'_> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        Batch(self)
    }
    /// The process with this index has died: removes its request.
    pub fn forget(&self, process: u32) {
        if let Some(request) = self.request().filter(|r| r.process() == process) {
            self.take_away(request);
        }
    }
    /// The owner has died: empties the place.
    pub fn clear(&self) {
        self.request.store(0, Ordering::Relaxed);
        self.batches.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const ASKER: Asker = Asker {
        process: crate::segment::PROCS_MAX as u32 - 1,
        thread: u32::MAX,
    };

    #[test]
    fn a_request_says_what_and_how_far() {
        let r = Request::of(ASKER, 0x7fff_fffe, 1000);
        assert_eq!(
            (r.first(), r.count(), r.process(), r.stage()),
            (0x7fff_fffe, PAGES_MAX, ASKER.process, Stage::Posted)
        );
        for stage in STAGES {
            let at = r.at(stage);
            assert_eq!(
                (at.first(), at.count(), at.process(), at.stage()),
                (r.first(), r.count(), r.process(), stage)
            );
            assert!(at.is_same(r));
            assert_eq!(Request::of_word(at.0), Some(at));
        }
        let other = Asker { thread: 1, ..ASKER };
        assert!(!r.is_same(Request::of(other, 0x7fff_fffe, 1000)));
        for wrong in [0, 5, u64::MAX, u64::from(PAGES_MAX + 1) << COUNT_SHIFT] {
            assert_eq!(Request::of_word(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn pages_stay_while_a_request_is_used() {
        let place = Place::new();
        let used = Request::of(ASKER, 7, 3).at(Stage::Used);
        assert!(place.put(used) && !place.put(used));
        let batch = place.batch();
        assert!(place.is_in_batch());
        assert_eq!(batch.stays(), Some((7, 10)));
        assert!(place.replace(used, used.at(Stage::Ready)));
        assert_eq!(batch.stays(), None, "kept by the owner's pins");
        drop(batch);
        assert!(!place.is_in_batch());
        place.forget(ASKER.process - 1);
        assert!(place.request().is_some_and(|r| r.is_same(used)));
        place.forget(ASKER.process);
        assert_eq!(place.request(), None);
    }
}
