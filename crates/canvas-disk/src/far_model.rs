//! A disk with far memory compared with plain memory: a real agent keeps what a far too small pool
//! demotes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use canvas_agent::daemon::tenant::begin_far;
use canvas_agent::disk::Disk;
use canvas_agent::dispatch::Dispatch;
use canvas_agent::idle::Waker;
use canvas_agent::journal::Journal;
use canvas_agent::numbers::SealNumbers;
use canvas_agent::share::LiveShare;
use canvas_agent::{Agent, Setup};
use canvas_core::swap::Record;
use canvas_shm::far::{Slab, slab_state};
use canvas_shm::mailbox::{DEMANDS, WRITES};
use canvas_shm::{Far, Segment};
use canvas_testing::random::{run_until, seed};
use canvas_types::{Codec, PAGE_SIZE};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::far::{ProcessEntry, Tenant};
use crate::file::DiskFile;
use crate::model::{PAGES, Seen, compare, op, page_of};
use crate::pool::{POOL_BYTES_MIN, entry_of};
use crate::recover_model::{compare_servers, kill_again_and_again};
use crate::{DiskError, DiskMemory, PageStore, PoolStore, Scratch, span};

/// Bits of an entry's word below its value: the tag.
const TAG_BITS: u32 = 4;
/// Part of the pool above which pages are demoted, in percent.
const SPILL_AT: u64 = 30;

/// Ends an agent when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Calls a function with a tenant whose agent keeps far memory in a file.
fn with_agent<R>(
    slabs: usize,
    on: impl FnOnce(BorrowedFd<'_>, &'static Segment, &'static Far) -> R,
) -> R {
    let (fd, segment) = Segment::create(true).unwrap();
    let far = Far::map(&fd).unwrap();
    begin_far(far, slabs, SPILL_AT, 10_000).unwrap();
    (segment.config.pool_bytes).store(POOL_BYTES_MIN, Relaxed);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let journal = Journal::create().unwrap();
            let setup = Setup {
                far,
                tenant: far.tenant(),
                name: "disk".to_owned(),
                key: journal.key().unwrap(),
                numbers: SealNumbers::new(journal),
                slabs: Box::new(move || slabs),
                spin: Duration::ZERO,
                share: LiveShare::new(Default::default()),
            };
            let file = tempfile::tempfile().unwrap();
            let disk = Disk::new(vec![file], None, Waker(far)).unwrap();
            Agent::new(setup, disk).serve(Dispatch::new(), || over.load(Relaxed));
        });
        // Also when a check fails.
        let _ends = Ends(&over);
        on(fd.as_fd(), segment, far)
    })
}

fn memory(fd: BorrowedFd<'_>, segment: &'static Segment, far: &'static Far) -> Box<DiskMemory> {
    let tenant = Tenant::enter(fd, segment, far).unwrap();
    let memory = DiskMemory::new(PAGES, POOL_BYTES_MIN).unwrap();
    memory.with_tenant(tenant)
}

#[test]
fn a_disk_with_far_memory_is_a_disk() {
    let seen = Seen::default();
    let case = |ops: Vec<_>| {
        let stats = with_agent(4, |fd, segment, far| {
            let memory = memory(fd, segment, far);
            let stats = compare(&memory, &ops, &seen)?;
            memory.leave();
            // The space of its extents is free, except the slab that is being filled.
            prop_assert!(far.slabs_used.load(Relaxed) <= 1);
            Ok(stats)
        })?;
        prop_assert_eq!(stats.refused, 0, "there is room beyond the pool");
        if stats.far_reads > 0 {
            seen.borrow_mut().insert("far");
        }
        Ok(())
    };
    let plan = prop::collection::vec(op(), 1..1500);
    let complete = || seen.borrow().contains("far");
    run_until(5, &plan, case, complete);
    assert!(complete(), "{:?}", seen.borrow());
}

/// Writes all pages, the first `random_bytes` of each random.
fn fill(store: &PoolStore<'_>, random_bytes: usize, scratch: &mut Scratch) {
    for n in 0..PAGES {
        store.write(n, &page_of(n, random_bytes), scratch).unwrap();
    }
}

/// This process's entry, as its next server takes it over.
fn here(fd: BorrowedFd<'_>, segment: &'static Segment, far: &'static Far) -> ProcessEntry {
    ProcessEntry::take_from(fd, segment, far, std::process::id()).unwrap()
}

/// After the last process that had it is gone.
fn all_is_free_in_the_end(fd: BorrowedFd<'_>, segment: &'static Segment, far: &'static Far) {
    here(fd, segment, far).leave();
    assert_eq!(segment.pool_bytes.load(Relaxed), 0);
    // As the next process does.
    far.mailboxes[0].reset();
    let began = Instant::now();
    let in_use = |slab: &Slab| slab.state.load(Relaxed) != slab_state::FREE;
    while far.slabs.iter().any(in_use)
        || far.slabs_used.load(Relaxed) != 0
        || far.mailboxes[0].in_use() != 0
    {
        let waited = began.elapsed();
        assert!(
            waited < Duration::from_secs(20),
            "something is in use still"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Servers are killed at any point, also while they demote or promote.
#[test]
fn a_killed_server_loses_nothing_beyond_the_pool() {
    with_agent(6, |fd, segment, far| {
        // It is passed from one server to the next.
        ProcessEntry::take(fd, segment, far).unwrap();
        let test = "far_model::a_killed_server_loses_nothing_beyond_the_pool";
        kill_again_and_again(test, Some(fd));
        let stats = &far.stats;
        assert!(stats.extents_out.load(Relaxed) > 100 && stats.reads.load(Relaxed) > 100);
        all_is_free_in_the_end(fd, segment, far);
    });
}

/// An invalid place beyond the pool damages only its page.
#[test]
fn entries_that_name_no_extent_are_damage() {
    with_agent(4, |fd, segment, far| {
        let file = DiskFile::create(PAGES, POOL_BYTES_MIN).unwrap();
        let mut place = Some(ProcessEntry::take(fd, segment, far).unwrap());
        let mut serve = || {
            let taken = place.take().unwrap_or_else(|| here(fd, segment, far));
            let memory = DiskMemory::of_file(&file).unwrap();
            let memory = Box::leak(memory.with_tenant(Tenant::at(taken).unwrap()));
            PoolStore::new(memory, Codec::Lz4)
        };
        let mut scratch = Box::<Scratch>::default();
        let page = |n: u64| page_of(n, 3000);
        let store = serve();
        fill(&store, 3000, &mut scratch);
        while store.pool.extent_ref(entry_of(8)).is_none() {
            store.background_round();
        }
        let entries = file.entries().unwrap();
        let word = |page: u32| &entries.all()[page as usize + 1];
        // In a slab of no process, in no slab, too long, and beyond the end of its extent.
        let wrong = [
            (3, 6144 << TAG_BITS),
            (4, 0xffff_ffff << TAG_BITS),
            (5, 0x1fff << (TAG_BITS + 43)),
            (6, 0x7ff << (TAG_BITS + 32)),
        ];
        for (n, bits) in wrong {
            assert!(matches!(
                Record::decode(word(n).load(Relaxed)),
                Record::InFarTier(_)
            ));
            word(n).fetch_or(bits, Relaxed);
        }
        let store = serve();
        assert_eq!((store.found().stored, store.found().lost), (PAGES, 4));
        let mut out = [0; PAGE_SIZE];
        for n in 0..PAGES {
            let read = store.read(n, &mut out, &mut scratch);
            match (3..7).contains(&n) {
                true => assert_eq!(read, Err(DiskError::Damaged), "page {n}"),
                false => assert!(read == Ok(()) && out == page(n), "page {n}"),
            }
            store.discard(n).unwrap();
        }
        assert_eq!(store.stats().stored_pages, 0);
        all_is_free_in_the_end(fd, segment, far);
    });
}

/// Its servers are killed with requests under way, and the agent goes on.
#[test]
fn a_disk_with_far_memory_goes_on_where_its_last_server_ended() {
    let seen = Seen::default();
    let case = |servers: Vec<Vec<_>>| {
        let file = DiskFile::create(PAGES, POOL_BYTES_MIN).unwrap();
        let stats = with_agent(6, |fd, segment, far| {
            let mut place = Some(ProcessEntry::take(fd, segment, far).unwrap());
            let stats = compare_servers(&servers, &seen, || {
                let taken = place.take();
                let place = taken.unwrap_or_else(|| here(fd, segment, far));
                let memory = DiskMemory::of_file(&file).unwrap();
                memory.with_tenant(Tenant::at(place).unwrap())
            })?;
            all_is_free_in_the_end(fd, segment, far);
            Ok::<_, TestCaseError>(stats)
        })?;
        prop_assert_eq!(stats.refused, 0, "there is room beyond the pool");
        if stats.far_reads > 0 {
            seen.borrow_mut().insert("far");
        }
        Ok(())
    };
    let plan = prop::collection::vec(prop::collection::vec(op(), 1..600), 1..5);
    let complete = || seen.borrow().contains("far");
    run_until(4, &plan, case, complete);
    assert!(complete(), "{:?}", seen.borrow());
}

/// When far memory is full, too, writes without room are refused, and nothing is lost.
#[test]
fn far_memory_that_is_full_refuses_and_keeps() {
    with_agent(0, |fd, segment, far| {
        let memory = memory(fd, segment, far);
        let store = PoolStore::new(&memory, Codec::None);
        let mut scratch = Box::<Scratch>::default();
        let page = |n: u64| page_of(n, PAGE_SIZE);
        let refused = (0..PAGES)
            .filter(|n| store.write(*n, &page(*n), &mut scratch).is_err())
            .count() as u64;
        assert!(refused > PAGES / 2, "{refused}");
        assert_eq!(store.stats().stored_pages, PAGES - refused);
        let mut out = [0; PAGE_SIZE];
        for n in 0..PAGES {
            store.read(n, &mut out, &mut scratch).unwrap();
            assert!(out == page(n) || out == [0; PAGE_SIZE], "page {n}");
        }
    });
}

/// A server and its agent died: until the next agent releases their requests, writes wait.
#[test]
fn writes_wait_for_requests_that_the_dead_have_left() {
    with_agent(4, |fd, segment, far| {
        let memory = memory(fd, segment, far);
        let store = PoolStore::new(&memory, Codec::None);
        let requests = &far.mailboxes[0];
        let left: Vec<_> = std::iter::from_fn(|| requests.claim(WRITES)).collect();
        assert!(!left.is_empty());
        let mut scratch = Box::<Scratch>::default();
        let released = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                released.store(true, Relaxed);
                left.iter().for_each(|i| requests.release(*i));
            });
            fill(&store, PAGE_SIZE, &mut scratch);
            assert!(released.load(Relaxed), "the pool has room for all");
        });
        assert_eq!(store.stats().refused, 0);
    });
}

/// A dead agent has kept all requests for reads: a read ends when the tenant wants to wait no longer.
#[test]
fn reads_do_not_wait_for_ever_for_requests_that_the_dead_have_left() {
    with_agent(4, |fd, segment, far| {
        let memory = memory(fd, segment, far);
        let store = PoolStore::new(&memory, Codec::None);
        let mut scratch = Box::<Scratch>::default();
        fill(&store, PAGE_SIZE, &mut scratch);
        let is_far = |n: &u64| store.pool.extent_ref(entry_of(*n as u32)).is_some();
        let page = (0..PAGES).find(is_far).unwrap();
        let requests = &far.mailboxes[0];
        let left: Vec<_> = std::iter::from_fn(|| requests.claim(DEMANDS)).collect();
        let wait_ms = far.wait_ms_max.swap(50, Relaxed);
        let mut out = [0; PAGE_SIZE];
        let read = store.read(page, &mut out, &mut scratch);
        assert_eq!(read, Err(DiskError::Unreachable));
        left.iter().for_each(|i| requests.release(*i));
        far.wait_ms_max.store(wait_ms, Relaxed);
        store.read(page, &mut out, &mut scratch).unwrap();
        assert!(out == page_of(page, PAGE_SIZE));
    });
}

/// Threads write, read and discard, each its own pages, while another demotes them.
#[test]
fn threads_meet_the_one_that_moves_pages() {
    let base = seed();
    with_agent(4, |fd, segment, far| {
        let memory = memory(fd, segment, far);
        let store = PoolStore::new(&memory, Codec::Lz4);
        let over = AtomicBool::new(false);
        let work = |thread: u64| {
            let mut scratch = Box::<Scratch>::default();
            let mut out = [0; PAGE_SIZE];
            let mut versions = vec![None; PAGES as usize];
            for step in 0..6000u64 {
                let at = base.wrapping_mul(step + 1).rotate_left(17) ^ step;
                let page = at % (PAGES / 3) * 3 + thread;
                let version = &mut versions[page as usize];
                match at >> 40 & 7 {
                    0..3 => {
                        let random = (at >> 20) as usize % (PAGE_SIZE + 1);
                        let data = page_of(step ^ base, random);
                        store.write(page, &data, &mut scratch).unwrap();
                        *version = Some((step ^ base, random));
                    }
                    3 => {
                        store.discard(page).unwrap();
                        *version = None;
                    }
                    _ => {
                        // Alone, or with others, which are prefetched.
                        let n = ((at >> 50) % 6 + 1).min(PAGES - page) as usize;
                        let mut some = vec![0; n * PAGE_SIZE];
                        let start = page * PAGE_SIZE as u64;
                        span::read(&store, start, &mut some, &mut scratch).unwrap();
                        out.copy_from_slice(&some[..PAGE_SIZE]);
                        let want = version.map_or([0; PAGE_SIZE], |(seed, n)| page_of(seed, n));
                        assert!(out == want, "page {page} in step {step}");
                    }
                }
            }
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Relaxed) {
                    std::thread::sleep(store.background_round().min(Duration::from_micros(100)));
                }
            });
            let work = &work;
            let threads = [0, 1, 2].map(|thread| s.spawn(move || work(thread)));
            let ended = threads.map(|t| t.join());
            over.store(true, Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        let stats = store.stats();
        assert_eq!((stats.damaged, stats.unreachable, stats.refused), (0, 0, 0));
        assert!(stats.far_reads > 100, "{stats:?}");
    });
}
