//! A disk whose servers end between requests, compared with plain memory; and servers killed at any
//! instruction, with several threads, each of which records what was acknowledged.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use canvas_core::swap::Record;
use canvas_shm::Segment;
use canvas_shm::map::inherited;
use canvas_testing::random::{run_until, scaled, seed};
use canvas_types::{Codec, PAGE_SIZE, PageBuf};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::far::{ProcessEntry, Tenant};
use crate::file::DiskFile;
use crate::model::{Op, PAGES, Pair, Seen, op, page_of};
use crate::pool::{POOL_BYTES_MIN, entry_of};
use crate::ram::RamStore;
use crate::sys::lazy::{LazyArray, Part};
use crate::{DiskError, DiskMemory, DiskStats, PageStore, PoolStore, Scratch, span};

/// Far memory keeps exactly what entries name.
fn check_extents(store: &PoolStore<'_>) {
    let Some(tenant) = store.tenant else {
        return;
    };
    let entries = (0..store.pages() as u32).map(entry_of);
    let place = |entry| store.pool.extent_ref(entry).or(store.pool.home_ref(entry));
    let named: BTreeSet<u32> = entries.filter_map(place).map(|p| p.extent).collect();
    assert_eq!(tenant.kept_extents(), named.len() as u64);
}

/// Successive servers of a disk, compared with plain memory; `take` makes each one's memory.
pub fn compare_servers(
    servers: &[Vec<Op>],
    seen: &Seen,
    mut take: impl FnMut() -> Box<DiskMemory>,
) -> Result<DiskStats, TestCaseError> {
    let mut ram = RamStore::new(PAGES);
    let mut before = None;
    let mut last = DiskStats::default();
    for ops in servers {
        // A killed server frees nothing.
        let memory: &'static DiskMemory = Box::leak(take());
        let mut pair = Pair {
            store: PoolStore::new(memory, Codec::Lz4),
            ram,
            scratch: Box::default(),
        };
        let now = pair.store.stats();
        let sums = (now.stored_pages, now.same_pages, now.stored_bytes);
        prop_assert!(
            before.is_none_or(|before| before == sums),
            "{before:?} {sums:?}"
        );
        let found = pair.store.found();
        prop_assert_eq!((found.stored, found.lost), (now.stored_pages, 0));
        check_extents(&pair.store);
        for op in ops {
            seen.borrow_mut().insert(pair.apply(op)?);
        }
        pair.check_all()?;
        last = pair.store.stats();
        before = Some((last.stored_pages, last.same_pages, last.stored_bytes));
        ram = pair.ram;
    }
    Ok(last)
}

#[test]
fn a_disk_goes_on_where_its_last_server_ended() {
    let seen = Seen::default();
    let case = |servers: Vec<Vec<Op>>| {
        let file = DiskFile::create(PAGES, POOL_BYTES_MIN).unwrap();
        compare_servers(&servers, &seen, || DiskMemory::of_file(&file).unwrap()).map(drop)
    };
    let plan = prop::collection::vec(prop::collection::vec(op(), 1..500), 1..6);
    let all = ["full", "span full", "zeros", "trimmed", "touched"];
    let complete = || all.iter().all(|what| seen.borrow().contains(what));
    run_until(6, &plan, case, complete);
    assert!(complete(), "{:?}", seen.borrow());
}

/// Whatever the file contains, each page is right or an error.
#[test]
fn entries_that_name_nothing_or_one_slot_twice_are_damage_and_never_another_page() {
    let file = DiskFile::create(64, 2 << 20).unwrap();
    let mut scratch = Box::<Scratch>::default();
    let write = |pages: std::ops::Range<u64>, scratch: &mut Scratch| {
        let memory = DiskMemory::of_file(&file).unwrap();
        let store = PoolStore::new(&memory, Codec::Lz4);
        for page in pages {
            store.write(page, &page_of(page, 4096), scratch).unwrap();
        }
        store.found()
    };
    write(0..64, &mut scratch);
    let entries = file.entries().unwrap();
    let word = |page: u32| &entries.all()[page as usize + 1];
    // Raw pages: if one names another's slot, it would read as that page.
    word(3).store(word(7).load(Relaxed), Relaxed);
    // Words that no server writes: an invalid one, a slab out of range, a payload that is too long,
    // a slab of another class.
    word(9).store(8 | 5 << 4, Relaxed);
    word(10).store(word(10).load(Relaxed) | 0xff_ffff << 12, Relaxed);
    word(11).store(word(11).load(Relaxed) | 0x1fff << 44, Relaxed);
    word(12).store(word(12).load(Relaxed) & !(31 << 39), Relaxed);
    let memory = DiskMemory::of_file(&file).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    let damaged = [3, 7, 9, 10, 11, 12];
    assert_eq!((store.found().stored, store.found().lost), (64, 6));
    let mut out = [0; PAGE_SIZE];
    for page in 0..64 {
        let read = store.read(page, &mut out, &mut scratch);
        if damaged.contains(&page) {
            assert_eq!(read, Err(DiskError::Damaged), "page {page}");
            assert_eq!(store.pool.record(entry_of(page as u32)), Record::Lost);
        } else {
            assert_eq!(
                (read, out == page_of(page, 4096)),
                (Ok(()), true),
                "page {page}"
            );
        }
    }
    // Part of such a page cannot be written, a whole page can, and a discarded one reads as zeros.
    let part = store.write_part(3, 0, &[1], &mut scratch);
    assert_eq!(part, Err(DiskError::Damaged));
    for page in damaged {
        store
            .write(page, &page_of(page + 1000, 2000), &mut scratch)
            .unwrap();
        store.read(page, &mut out, &mut scratch).unwrap();
        assert!(out == page_of(page + 1000, 2000));
    }
    for page in 0..64 {
        store.discard(page).unwrap();
    }
    store.trim();
    let stats = store.stats();
    assert_eq!(
        (stats.stored_pages, stats.stored_bytes, stats.pool_bytes),
        (0, 0, 0)
    );
}

/// A complete note of an interrupted write is followed, an incomplete one is not.
#[test]
fn what_was_being_written_over_an_old_copy_is_ended() {
    let file = DiskFile::create(8, 1 << 20).unwrap();
    let mut scratch = Box::<Scratch>::default();
    let (old, new) = (page_of(1, 4096), page_of(2, 4096));
    let serve = |page: Option<&PageBuf>, scratch: &mut Scratch| {
        let memory = DiskMemory::of_file(&file).unwrap();
        let store = PoolStore::new(&memory, Codec::Lz4);
        if let Some(page) = page {
            store.write(0, page, scratch).unwrap();
        }
        let mut out = [0; PAGE_SIZE];
        store.read(0, &mut out, scratch).map(|()| out)
    };
    serve(Some(&old), &mut scratch).unwrap();
    let journal = file.journal().unwrap();
    assert_eq!(journal.all()[0].load(Relaxed), 0);
    // It was written in place, so its note is still there.
    serve(Some(&new), &mut scratch).unwrap();
    assert_eq!(
        (
            journal.all()[0].load(Relaxed),
            journal.all()[1].load(Relaxed)
        ),
        (0, 1)
    );
    let slots = file.slots().unwrap();
    let spoil = || slots.copy_in(700, &[0; 99]);
    spoil();
    assert_eq!(serve(None, &mut scratch), Err(DiskError::Damaged));
    journal.all()[0].store(1, Relaxed);
    assert_eq!(serve(None, &mut scratch), Err(DiskError::Damaged));
    assert_eq!(journal.all()[0].load(Relaxed), 0);
    journal.all()[0].store(2, Relaxed);
    assert!(serve(None, &mut scratch).unwrap() == new);
    assert_eq!(journal.all()[0].load(Relaxed), 0);
    // A note that belongs to another page, or to none, changes nothing.
    for (at, value) in [(1, 5), (1, 99), (2, 0), (2, u64::MAX)] {
        let before = journal.all()[at].swap(value, Relaxed);
        journal.all()[0].store(2, Relaxed);
        spoil();
        assert_eq!(
            serve(None, &mut scratch),
            Err(DiskError::Damaged),
            "{at}: {value}"
        );
        journal.all()[at].store(before, Relaxed);
        journal.all()[0].store(2, Relaxed);
        assert!(serve(None, &mut scratch).unwrap() == new);
    }
}

/// Pages of the disk whose servers are killed; in the first ones each sector is written separately.
const KILLED_PAGES: u64 = 420;
const IN_SECTORS: u64 = 40;
const SECTORS: u64 = 8;
const THREADS: u64 = 3;
/// Passes the descriptors of file and log, and the seed, to the server.
const SERVE: &str = "CANVAS_TEST_DISK_SERVE";

/// For each page, or sector of a page: the version being written, and the last one acknowledged.
struct Log(LazyArray<AtomicU64>);

impl Log {
    fn of(file: i32) -> Log {
        let words = (KILLED_PAGES + IN_SECTORS * SECTORS) as usize * 2;
        let part = Part {
            fd: file,
            offset: 0,
        };
        Log(LazyArray::of_file(part, words).unwrap())
    }
    fn of_page(&self, page: u64) -> &[AtomicU64] {
        &self.0.all()[2 * page as usize..][..2]
    }
    fn of_sector(&self, page: u64, sector: u64) -> &[AtomicU64] {
        self.of_page(KILLED_PAGES + page * SECTORS + sector)
    }
}

/// Contents of a version of a page.
fn version(page: u64, version: u64) -> PageBuf {
    match (version, version % 9) {
        (0, _) | (_, 0) => [0; PAGE_SIZE],
        (_, 1) => [(version % 255) as u8 + 1; PAGE_SIZE],
        // Of equal size, so that it overwrites the one before; later versions change a few words.
        (_, 2..=4) => page_of((page << 32) | version, 4096),
        (_, 5 | 6) => {
            let mut few = page_of((page << 32) | (version / 9), 2000);
            few[100..108].copy_from_slice(&version.to_le_bytes());
            few
        }
        _ => page_of(
            (page << 32) | version,
            (page * 37 + version * 501) as usize % 4000,
        ),
    }
}

fn sector(version: u64) -> [u8; 512] {
    let bytes = version.to_le_bytes();
    core::array::from_fn(|i| {
        if version == 0 {
            0
        } else {
            bytes[i % 8] ^ (i / 8) as u8
        }
    })
}

/// The tenant that a server takes over from another process.
pub struct Far {
    /// Its segment.
    pub fd: OwnedFd,
    /// The process that has it.
    pub from: u32,
}

/// The disk in the file, with its far memory. It is never freed.
fn taken_over(file: &DiskFile, far: Option<&Far>) -> PoolStore<'static> {
    let mut memory = DiskMemory::of_file(file).unwrap();
    if let Some(Far { fd, from }) = far {
        let (segment, area) = (Segment::map(fd).unwrap(), canvas_shm::Far::map(fd).unwrap());
        let place = ProcessEntry::take_from(fd, segment, area, *from).unwrap();
        memory = memory.with_tenant(Tenant::at(place).unwrap());
    }
    PoolStore::new(Box::leak(memory), Codec::Lz4)
}

/// A server that works until it is killed.
fn serve_until_killed(file: i32, log: i32, seed: u64, far: Option<Far>) -> ! {
    let file = DiskFile::open(inherited(file, 3).unwrap()).unwrap();
    let log = Log::of(log);
    let store = taken_over(&file, far.as_ref());
    std::thread::scope(|s| {
        if far.is_some() {
            s.spawn(|| {
                loop {
                    std::thread::sleep(store.background_round().min(Duration::from_micros(100)));
                }
            });
        }
        for thread in 0..THREADS {
            let (store, log) = (&store, &log);
            s.spawn(move || {
                let mut scratch = Box::<Scratch>::default();
                let mut random = seed ^ (thread << 60);
                loop {
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let page = (random >> 33) % KILLED_PAGES / THREADS * THREADS + thread;
                    if page < KILLED_PAGES {
                        serve_one(store, log, page, random, &mut scratch);
                    }
                    if (random >> 40).is_multiple_of(200) {
                        store.trim();
                    }
                }
            });
        }
    });
    unreachable!("its threads do not end")
}

/// A request about one page, which belongs to the calling thread alone.
fn serve_one(store: &PoolStore<'_>, log: &Log, page: u64, random: u64, scratch: &mut Scratch) {
    let part = page < IN_SECTORS;
    let which = (random >> 20) % SECTORS;
    let words = if part {
        log.of_sector(page, which)
    } else {
        log.of_page(page)
    };
    let last = words[1].load(SeqCst);
    if (random >> 50).is_multiple_of(3) {
        // With neighbours, which are prefetched.
        let mut out = [0; 3 * PAGE_SIZE];
        let pages = (KILLED_PAGES - page).min(3) as usize;
        let out = &mut out[..pages * PAGE_SIZE];
        span::read(store, page * PAGE_SIZE as u64, out, scratch).unwrap();
        assert!(
            part || out[..PAGE_SIZE] == version(page, last),
            "page {page}"
        );
        return;
    }
    let next = last + 1;
    words[0].store(next, SeqCst);
    let done = if part {
        store.write_part(page, which as usize * 512, &sector(next), scratch)
    } else if next.is_multiple_of(9) && page.is_multiple_of(2) {
        store.discard(page)
    } else {
        store.write(page, &version(page, next), scratch)
    };
    match done {
        Ok(()) => words[1].store(next, SeqCst),
        Err(DiskError::Full) => words[0].store(last, SeqCst),
        Err(e) => panic!("page {page}: {e}"),
    }
}

/// Reads everything as the next server does: each version must be the acknowledged one, or the one
/// being written.
fn judge(store: &PoolStore<'_>, log: &Log) -> (u64, u64) {
    assert_eq!(store.found().lost, 0);
    check_extents(store);
    let mut scratch = Box::<Scratch>::default();
    let mut out = [0; PAGE_SIZE];
    let (mut acknowledged, mut cut) = (0, 0);
    let mut settle = |words: &[AtomicU64], is: &dyn Fn(u64) -> bool, what: &str| {
        let [next, last] = [0, 1].map(|i| words[i].load(SeqCst));
        assert!(next == last || next == last + 1);
        let now = [last, next].into_iter().find(|v| is(*v));
        let now = now.unwrap_or_else(|| panic!("{what} is neither version {last} nor {next}"));
        acknowledged += last;
        cut += u64::from(next != last);
        for word in words {
            word.store(now, SeqCst);
        }
    };
    for page in 0..KILLED_PAGES {
        store
            .read(page, &mut out, &mut scratch)
            .unwrap_or_else(|e| panic!("page {page}: {e}"));
        if page < IN_SECTORS {
            for which in 0..SECTORS {
                let now = &out[which as usize * 512..][..512];
                let is = |v| now == sector(v);
                settle(
                    log.of_sector(page, which),
                    &is,
                    &format!("sector {which} of page {page}"),
                );
            }
        } else {
            settle(
                log.of_page(page),
                &|v| out == version(page, v),
                &format!("page {page}"),
            );
        }
    }
    (acknowledged, cut)
}

/// Kills servers of one disk, which the test of this name starts, again and again at any point. The
/// last process that had the disk is this one.
pub fn kill_again_and_again(test: &str, far: Option<BorrowedFd<'_>>) {
    let number = |n: u64| i32::try_from(n).unwrap();
    if let Ok(words) = std::env::var(SERVE) {
        let words: Vec<u64> = words.split(' ').map(|w| w.parse().unwrap()).collect();
        let far = words.get(3).map(|fd| Far {
            fd: inherited(number(*fd), 3).unwrap(),
            from: words[4] as u32,
        });
        serve_until_killed(number(words[0]), number(words[1]), words[2], far);
    }
    // So small that it is usually full: pages are overwritten.
    let file = DiskFile::create(KILLED_PAGES, POOL_BYTES_MIN).unwrap();
    let log_file = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC).unwrap());
    ftruncate(&log_file, 1 << 20).unwrap();
    let log = Log::of(log_file.as_raw_fd());
    for fd in [file.fd(), log_file.as_fd()].into_iter().chain(far) {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    }
    let more = far.map_or(String::new(), |fd| {
        format!(" {} {}", fd.as_raw_fd(), std::process::id())
    });
    let (base, mut kills, mut cuts, mut last) = (seed(), 0, 0, 0);
    while kills < u64::from(scaled(20)) {
        let [file_fd, log_fd] = [file.fd().as_raw_fd(), log_file.as_raw_fd()];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SERVE, format!("{file_fd} {log_fd} {}{more}", base ^ kills))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Some work, and then on to any instruction.
        let sum = || -> u64 {
            log.0
                .all()
                .iter()
                .skip(1)
                .step_by(2)
                .map(|w| w.load(SeqCst))
                .sum()
        };
        let start = sum();
        while sum() < start + 200 {
            assert_eq!(
                child.try_wait().unwrap(),
                None,
                "the server ended by itself"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(
            (base ^ kills).wrapping_mul(0x9e37_79b9) >> 8 & 0x7ff,
        ));
        child.kill().unwrap();
        child.wait().unwrap();
        let taken = far.map(|fd| Far {
            fd: fd.try_clone_to_owned().unwrap(),
            from: child.id(),
        });
        let (acknowledged, cut) = judge(&taken_over(&file, taken.as_ref()), &log);
        assert!(acknowledged >= last);
        (last, cuts, kills) = (acknowledged, cuts + cut, kills + 1);
    }
    assert!(
        cuts > kills / 8,
        "{cuts} requests were cut by {kills} kills"
    );
}

/// Everything acknowledged is there, and everything else is unchanged or as requested.
#[test]
fn a_killed_server_loses_nothing_that_it_acknowledged() {
    let test = "recover_model::a_killed_server_loses_nothing_that_it_acknowledged";
    kill_again_and_again(test, None);
}
