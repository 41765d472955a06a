//! One process of a tenant reads another's memory, or writes into it, by a kernel copy (process_vm_readv) from or to
//! the pages that are present. From checking them to the end of the copy no page may be evicted: a write into a page
//! that was unmapped meanwhile would be lost.
//!
//! The requester puts a [`CopyRequest`] into the owner's [`RequestCell`]. At stage [`Stage::Copying`] the owner's
//! reclaim skips these pages. Each side publishes its own action before it checks the other's: the requester puts its
//! request there and then waits until no batch is under way, and the owner starts a batch and then checks for a
//! request. So one of the two sees the other, and the owner need not answer as long as the pages are present. Where
//! they are not, its reclaim thread is asked to bring them in ([`Stage::Posted`]).

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Most pages of a range.
pub const PAGES_MAX: u32 = 256;

/// A request, as its word encodes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRequest(u64);

/// The requester: the index of its process's slot, and a thread number, of which few bits count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requester {
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
    Fetching,
    /// The pages are present, until the requester removes the request, or the owner loses patience.
    Ready,
    /// None of the pages could be made present.
    Failed,
    /// The kernel copies: the owner evicts none of the present pages until the requester removes the request or has
    /// died.
    Copying,
}

const STAGES: [Stage; 5] = [
    Stage::Posted,
    Stage::Fetching,
    Stage::Ready,
    Stage::Failed,
    Stage::Copying,
];
const COUNT_SHIFT: u32 = 32;
const PROCESS_SHIFT: u32 = 41;
const THREAD_SHIFT: u32 = 51;
const STAGE_SHIFT: u32 = 61;
const _: () = assert!(PAGES_MAX < 1 << (PROCESS_SHIFT - COUNT_SHIFT));
const _: () = assert!(crate::segment::PROCS_MAX <= 1 << (THREAD_SHIFT - PROCESS_SHIFT));

impl CopyRequest {
    /// A request for `count` pages from `first` on, at most [`PAGES_MAX`].
    pub fn of(requester: Requester, first: u32, count: u32) -> CopyRequest {
        let count = count.clamp(1, PAGES_MAX);
        let process = requester.process & ((1 << (THREAD_SHIFT - PROCESS_SHIFT)) - 1);
        let thread = requester.thread & ((1 << (STAGE_SHIFT - THREAD_SHIFT)) - 1);
        CopyRequest(
            u64::from(first)
                | u64::from(count) << COUNT_SHIFT
                | u64::from(process) << PROCESS_SHIFT
                | u64::from(thread) << THREAD_SHIFT,
        )
    }
    /// Decodes a word, which any process of the tenant can have written.
    fn of_word(word: u64) -> Option<CopyRequest> {
        let request = CopyRequest(word);
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
    /// The index of the requester's slot.
    pub fn process(self) -> u32 {
        self.bits(PROCESS_SHIFT, THREAD_SHIFT)
    }
    /// Its stage.
    pub fn stage(self) -> Stage {
        STAGES[(self.0 >> STAGE_SHIFT) as usize]
    }
    /// This request at another stage.
    pub fn at(self, stage: Stage) -> CopyRequest {
        let number = STAGES.iter().position(|s| *s == stage).unwrap_or(0) as u64;
        CopyRequest(self.0 & ((1 << STAGE_SHIFT) - 1) | number << STAGE_SHIFT)
    }
    /// Whether it is this request, at whatever stage.
    pub fn is_same(self, other: CopyRequest) -> bool {
        self.at(Stage::Posted) == other.at(Stage::Posted)
    }
}

/// Where other processes put requests to this process, one at a time; all zeros means empty.
#[derive(Debug)]
#[repr(C)]
pub struct RequestCell {
    request: AtomicU64,
    /// Batches of the owner's reclaim under way.
    batches: AtomicU32,
}

/// A batch of the owner's reclaim, until dropped.
pub struct Batch<'a>(&'a RequestCell);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.0.batches.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Batch<'_> {
    /// The pages that must stay: the first one, and one past the last.
    pub fn kept_pages(&self) -> Option<(u32, u32)> {
        let request = self.0.request().filter(|r| r.stage() == Stage::Copying)?;
        let first = request.first();
        Some((first, first.saturating_add(request.count())))
    }
}

impl RequestCell {
    /// An empty one.
    #[allow(clippy::new_without_default)]
    pub fn new() -> RequestCell {
        RequestCell {
            request: AtomicU64::new(0),
            batches: AtomicU32::new(0),
        }
    }
    /// The current request.
    pub fn request(&self) -> Option<CopyRequest> {
        CopyRequest::of_word(self.request.load(Ordering::SeqCst))
    }
    fn change(&self, old: u64, new: u64) -> bool {
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        (self.request)
            .compare_exchange(old, new, success, failure)
            .is_ok()
    }
    /// Puts a request there, if the cell is free.
    pub fn put(&self, new: CopyRequest) -> bool {
        self.change(0, new.0)
    }
    /// Replaces `old` by `new`; false when `old` is not there any more.
    pub fn replace(&self, old: CopyRequest, new: CopyRequest) -> bool {
        self.change(old.0, new.0)
    }
    /// Removes a request, if it is there.
    pub fn remove(&self, request: CopyRequest) -> bool {
        self.change(request.0, 0)
    }
    /// Whether a batch of the owner's reclaim is under way. A batch that starts after a request reached
    /// [`Stage::Copying`] skips its pages.
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
            self.remove(request);
        }
    }
    /// The owner has died: empties the cell.
    pub fn clear(&self) {
        self.request.store(0, Ordering::Relaxed);
        self.batches.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const REQUESTER: Requester = Requester {
        process: crate::segment::PROCS_MAX as u32 - 1,
        thread: u32::MAX,
    };

    #[test]
    fn a_request_says_what_and_how_far() {
        let r = CopyRequest::of(REQUESTER, 0x7fff_fffe, 1000);
        assert_eq!(
            (r.first(), r.count(), r.process(), r.stage()),
            (0x7fff_fffe, PAGES_MAX, REQUESTER.process, Stage::Posted)
        );
        for stage in STAGES {
            let at = r.at(stage);
            assert_eq!(
                (at.first(), at.count(), at.process(), at.stage()),
                (r.first(), r.count(), r.process(), stage)
            );
            assert!(at.is_same(r));
            assert_eq!(CopyRequest::of_word(at.0), Some(at));
        }
        let other = Requester {
            thread: 1,
            ..REQUESTER
        };
        assert!(!r.is_same(CopyRequest::of(other, 0x7fff_fffe, 1000)));
        for wrong in [0, 5, u64::MAX, u64::from(PAGES_MAX + 1) << COUNT_SHIFT] {
            assert_eq!(CopyRequest::of_word(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn pages_stay_while_a_request_is_used() {
        let cell = RequestCell::new();
        let used = CopyRequest::of(REQUESTER, 7, 3).at(Stage::Copying);
        assert!(cell.put(used) && !cell.put(used));
        let batch = cell.batch();
        assert!(cell.is_in_batch());
        assert_eq!(batch.kept_pages(), Some((7, 10)));
        assert!(cell.replace(used, used.at(Stage::Ready)));
        assert_eq!(batch.kept_pages(), None, "kept by the owner's pins");
        drop(batch);
        assert!(!cell.is_in_batch());
        cell.forget(REQUESTER.process - 1);
        assert!(cell.request().is_some_and(|r| r.is_same(used)));
        cell.forget(REQUESTER.process);
        assert_eq!(cell.request(), None);
    }
}
