//! One sparse unnamed file, in which extent `n` is at offset `n` x 32 KiB.
//!
//! Threads do the I/O, as many as pay off ([`canvas_place::width`]). They use direct I/O where the file system allows
//! it: far pages must not occupy the memory that moving them out has freed.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::take;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, park};
use std::time::{Duration, Instant};

use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_place::width::Width;
use canvas_shm::far::SLAB_BYTES;
use canvas_types::units::Amount;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{Whence, lseek};

use crate::block::{ALIGN, Block};
use crate::idle::Waker;
use crate::notifier::PollNotifier;
use crate::store::Outcome;

/// Default reserve of free space on the disk, for all of its other uses: this fraction of it,
const RESERVE_PARTS: u128 = 20;
/// but no more than this.
const RESERVE_BYTES_MAX: u128 = 1 << 30;

/// Threads that read and write, at first and at most ([`canvas_place::width`]), and the number of those that only read.
const THREADS: usize = 4;
const THREADS_MAX: usize = 32;
const READERS: usize = 1;
/// Time between two checks whether more threads would pay off.
const PERIOD: Duration = Duration::from_secs(1);

/// A job for a file. Operation numbers come first.
pub enum Job {
    /// Reads this range of an extent.
    Read(u32, u32, Range<usize>, Block),
    /// Writes an extent.
    Write(u32, u32, Block),
    /// Frees an extent for an operation.
    Punch(u32, u32),
    /// Frees a slab.
    Free(u32),
}

/// A finished job.
pub enum Done {
    /// A read or write has ended.
    Ended {
        /// The operation's number.
        id: u32,
        /// Its result.
        outcome: Outcome,
        /// The buffer.
        block: Block,
    },
    /// An extent was freed, or (not `ok`) is still there.
    Punched {
        /// The operation's number.
        id: u32,
        /// Whether the extent was freed.
        ok: bool,
    },
    /// A slab was freed.
    Freed(u32),
    /// The disk is full; the reason.
    Full(String),
    /// The file has failed: the kind of operation, and the error.
    Broken(&'static str, String),
}

/// How many jobs in a row may overtake one that waits: reads overtake others, and writes overtake frees. Without a
/// bound nothing would leave the pool while reads keep coming.
const BEFORE_MAX: u32 = 8;

/// Queued jobs: reads before writes before frees.
#[derive(Default)]
struct Jobs {
    reads: VecDeque<Job>,
    writes: VecDeque<Job>,
    frees: VecDeque<Job>,
    /// Reads in a row that overtook other jobs, and writes that overtook frees.
    reads_before: u32,
    writes_before: u32,
    end: bool,
    /// Whether each thread sleeps and was not woken yet.
    asleep: Vec<bool>,
    /// Threads that may work.
    width: usize,
    /// In this period: jobs that arrived, those that found no sleeping thread, and those that were finished.
    came: u64,
    waited: u64,
    ended: u64,
    /// Jobs that threads are working on.
    running: usize,
}

impl Jobs {
    /// Queues a job; returns the thread to wake, if one that can do it sleeps. Read-only threads are preferred.
    fn add(&mut self, job: Job) -> Option<usize> {
        let from = match job {
            Job::Read(..) => 0,
            _ => READERS,
        };
        match job {
            Job::Read(..) => self.reads.push_back(job),
            // A write waits for the freed space.
            Job::Write(..) | Job::Punch(..) => self.writes.push_back(job),
            Job::Free(_) => self.frees.push_back(job),
        }
        let may_work = self.width.min(self.asleep.len());
        self.came += 1;
        let wakes = (from..may_work).find(|i| self.asleep[*i]);
        match wakes {
            Some(thread) => self.asleep[thread] = false,
            None => self.waited += 1,
        }
        wakes
    }

    /// The next job for a thread.
    fn take(&mut self, thread: usize) -> Option<Job> {
        let job = self.next(thread);
        self.running += usize::from(job.is_some());
        job
    }

    fn next(&mut self, thread: usize) -> Option<Job> {
        if thread >= self.width {
            return None;
        }
        if thread < READERS {
            return self.reads.pop_front();
        }
        let others_wait = !(self.writes.is_empty() && self.frees.is_empty());
        let is_their_turn = others_wait && self.reads_before >= BEFORE_MAX;
        if !is_their_turn && let Some(read) = self.reads.pop_front() {
            self.reads_before += u32::from(others_wait);
            return Some(read);
        }
        self.reads_before = 0;
        let frees_wait = !self.frees.is_empty();
        if !(frees_wait && self.writes_before >= BEFORE_MAX)
            && let Some(write) = self.writes.pop_front()
        {
            self.writes_before += u32::from(frees_wait);
            return Some(write);
        }
        self.writes_before = 0;
        self.frees.pop_front()
    }
}

struct Shared {
    file: File,
    reserve: Option<Amount>,
    jobs: Mutex<Jobs>,
    done: Mutex<Vec<Done>>,
    any_done: AtomicBool,
    waker: Waker,
    notifier: Arc<PollNotifier>,
}

/// The file and its threads.
pub struct Path {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    width: Width,
    looked: Instant,
}

/// Creates an unnamed file in `dir` for one tenant; it is gone when its last descriptor is closed.
pub fn create(dir: &std::path::Path) -> io::Result<File> {
    let open = |more: OFlag| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags((OFlag::O_TMPFILE | more).bits())
            .open(dir)
    };
    // tmpfs before 6.6 and some other file systems have no O_DIRECT.
    match open(OFlag::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => open(OFlag::empty()),
        other => other,
    }
}

impl Path {
    /// Starts the threads for `file`, which [`create`] made. `reserve` stays free on its disk, whatever tenants write.
    /// When a job has ended, `waker` is woken and `notifier` notified.
    pub(crate) fn new(
        file: File,
        reserve: Option<Amount>,
        waker: Waker,
        notifier: Arc<PollNotifier>,
    ) -> io::Result<Path> {
        let shared = Arc::new(Shared {
            file,
            reserve,
            jobs: Mutex::default(),
            done: Mutex::default(),
            any_done: AtomicBool::new(false),
            waker,
            notifier,
        });
        let mut path = Path {
            shared,
            threads: Vec::new(),
            width: Width::new(THREADS, THREADS_MAX),
            looked: Instant::now(),
        };
        path.widen(THREADS)?;
        Ok(path)
    }

    /// Sets how many threads work; surplus threads sleep.
    fn widen(&mut self, width: usize) -> io::Result<()> {
        lock(&self.shared.jobs).width = width;
        for i in self.threads.len()..width {
            lock(&self.shared.jobs).asleep.push(false);
            let shared = self.shared.clone();
            let thread = Builder::new()
                .name(format!("disk-{i}"))
                .spawn(move || work(&shared, i));
            match thread {
                Ok(thread) => self.threads.push(thread),
                Err(e) => {
                    lock(&self.shared.jobs).asleep.pop();
                    return Err(e);
                }
            }
        }
        for thread in &self.threads {
            thread.thread().unpark();
        }
        Ok(())
    }

    /// Checks, once in a while, whether more operations at a time would pay off; returns how many there may be.
    pub fn tick(&mut self) -> usize {
        if self.looked.elapsed() < PERIOD {
            return self.width.get();
        }
        self.looked = Instant::now();
        let mut jobs = lock(&self.shared.jobs);
        let (came, waited) = (take(&mut jobs.came), take(&mut jobs.waited));
        let ended = take(&mut jobs.ended);
        drop(jobs);
        let before = self.width.get();
        let now = self.width.step(ended, came, waited);
        // With fewer threads than wanted it does as well as it can.
        if now != before && self.widen(now).is_err() {
            lock(&self.shared.jobs).width = self.threads.len();
        }
        now
    }

    /// Queues a job.
    pub fn put(&self, job: Job) {
        let wakes = lock(&self.shared.jobs).add(job);
        if let Some(thread) = wakes {
            self.threads[thread].thread().unpark();
        }
    }

    /// Appends the finished jobs to `done`.
    pub fn take(&self, done: &mut Vec<Done>) {
        if self.shared.any_done.swap(false, Ordering::SeqCst) {
            done.append(&mut lock(&self.shared.done));
        }
    }

    /// Whether no job is left.
    pub fn is_quiet(&self) -> bool {
        let jobs = lock(&self.shared.jobs);
        let waiting = jobs.reads.len() + jobs.writes.len() + jobs.frees.len();
        waiting + jobs.running == 0
    }

    /// Whether there are finished jobs.
    pub fn is_ready(&self) -> bool {
        self.shared.any_done.load(Ordering::SeqCst)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        lock(&self.shared.jobs).end = true;
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn at(extent: u32) -> u64 {
    u64::from(extent) * EXTENT_BYTES as u64
}

/// A panic of a thread ends the process, so a poisoned lock still guards consistent values.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(shared: &Shared, thread: usize) {
    let mut done = Vec::new();
    while let Some(job) = next(shared, thread) {
        match job {
            Job::Read(id, extent, range, mut block) => {
                let range = range.start / ALIGN * ALIGN..range.end.next_multiple_of(ALIGN);
                let at = at(extent);
                let read = shared
                    .file
                    .read_exact_at(&mut block[range.clone()], at + range.start as u64);
                let outcome = match read {
                    Ok(()) => Outcome::Done,
                    // The file is shorter: the missing bytes do not verify.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Outcome::Done,
                    Err(e) => {
                        done.push(trouble("read", &e));
                        Outcome::Lost
                    }
                };
                done.push(Done::Ended { id, outcome, block });
            }
            Job::Write(id, extent, block) => {
                let at = at(extent);
                let written = leave(&shared.file, shared.reserve, at)
                    .and_then(|()| shared.file.write_all_at(&block, at));
                let outcome = match written {
                    Ok(()) => Outcome::Done,
                    Err(e) => {
                        done.push(trouble("written", &e));
                        if is_full(&e) {
                            Outcome::NoRoom
                        } else {
                            Outcome::Lost
                        }
                    }
                };
                done.push(Done::Ended { id, outcome, block });
            }
            Job::Punch(id, extent) => {
                let at = at(extent);
                let punched = punch(&shared.file, at, EXTENT_BYTES);
                let ok = punched.is_ok() || has_nothing(&shared.file, at);
                let why = punched.err().filter(|_| !ok);
                done.extend(why.map(|e| trouble("made smaller", &e)));
                done.push(Done::Punched { id, ok });
            }
            Job::Free(slab) => {
                let from = u64::from(slab) * SLAB_BYTES as u64;
                if let Err(e) = punch(&shared.file, from, SLAB_BYTES) {
                    done.push(trouble("made smaller", &e));
                }
                done.push(Done::Freed(slab));
            }
        }
        lock(&shared.done).append(&mut done);
        let mut jobs = lock(&shared.jobs);
        (jobs.ended, jobs.running) = (jobs.ended + 1, jobs.running - 1);
        drop(jobs);
        shared.any_done.store(true, Ordering::SeqCst);
        shared.waker.wake();
        shared.notifier.notify();
    }
}

fn next(shared: &Shared, thread: usize) -> Option<Job> {
    loop {
        let mut jobs = lock(&shared.jobs);
        // The waker has already cleared it; but the thread may have woken by itself.
        jobs.asleep[thread] = false;
        let job = jobs.take(thread);
        if job.is_some() || jobs.end {
            return job;
        }
        jobs.asleep[thread] = true;
        drop(jobs);
        park();
    }
}

/// Frees `bytes` bytes from `from` on.
fn punch(file: &File, from: u64, bytes: usize) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let from = i64::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(fallocate(file, mode, from, bytes as i64)?)
}

/// The extents that have data in a file.
pub fn written(file: &File) -> io::Result<Vec<u32>> {
    const BYTES: i64 = EXTENT_BYTES as i64;
    let mut extents = Vec::new();
    let mut from = 0;
    loop {
        from = match lseek(file, from, Whence::SeekData) {
            Ok(data) => data / BYTES * BYTES,
            // No data from there on.
            Err(Errno::ENXIO) => return Ok(extents),
            Err(e) => return Err(e.into()),
        };
        let hole = lseek(file, from, Whence::SeekHole)?.max(from + 1);
        // If it begins in a hole, the data are further on.
        let hole = match lseek(file, from, Whence::SeekData)? {
            data if data >= hole => lseek(file, data, Whence::SeekHole)?,
            _ => hole,
        };
        let to = (hole + BYTES - 1) / BYTES * BYTES;
        extents.extend((from / BYTES..to / BYTES).filter_map(|e| u32::try_from(e).ok()));
        from = to;
    }
}

/// Fails as a full disk does when there is no room for an extent beside the reserve. An extent that is already
/// allocated needs no room.
fn leave(file: &File, reserve: Option<Amount>, at: u64) -> io::Result<()> {
    let disk = fstatvfs(file)?;
    let bytes = |blocks: u64| u128::from(blocks) * u128::from(disk.fragment_size());
    let reserve = match reserve {
        None => (bytes(disk.blocks()) / RESERVE_PARTS).min(RESERVE_BYTES_MAX),
        Some(Amount::Size(size)) => u128::from(size.bytes),
        Some(Amount::Share(share)) => bytes(disk.blocks()) * u128::from(share.ppm()) / 1_000_000,
    };
    // A file system without a size has no room to reserve.
    if disk.blocks() == 0
        || bytes(disk.blocks_available()) >= reserve + EXTENT_BYTES as u128
        || is_there(file, at)
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::StorageFull,
        format!(
            "-o far-reserve keeps {} MiB of its disk free",
            reserve >> 20
        ),
    ))
}

/// Whether the disk has nothing of the extent.
fn has_nothing(file: &File, at: u64) -> bool {
    let Ok(from) = i64::try_from(at) else {
        return true;
    };
    match lseek(file, from, Whence::SeekData) {
        Ok(data) => data >= from + EXTENT_BYTES as i64,
        Err(e) => e == Errno::ENXIO,
    }
}

/// Whether the whole extent is allocated on the disk.
fn is_there(file: &File, at: u64) -> bool {
    let Ok(from) = i64::try_from(at) else {
        return false;
    };
    // Nobody uses the file's position.
    lseek(file, from, Whence::SeekData) == Ok(from)
        && lseek(file, from, Whence::SeekHole).is_ok_and(|hole| hole >= from + EXTENT_BYTES as i64)
}

fn is_full(e: &io::Error) -> bool {
    if e.kind() == io::ErrorKind::StorageFull {
        return true;
    }
    let full = [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG];
    full.iter().any(|f| e.raw_os_error() == Some(*f as i32))
}

fn trouble(what: &'static str, e: &io::Error) -> Done {
    let why = e
        .raw_os_error()
        .map_or_else(|| e.to_string(), |n| Errno::from_raw(n).desc().to_owned());
    match is_full(e) {
        true => Done::Full(why),
        false => Done::Broken(what, why),
    }
}

/// Default far directory: `$XDG_CACHE_HOME/canvas/far`, or `~/.cache/canvas/far`; in /var/tmp without a home.
pub fn default_dir() -> PathBuf {
    let set = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    match set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))) {
        Some(cache) => cache.join("canvas/far"),
        None => "/var/tmp".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_types::units::{Share, Size};

    fn size(bytes: u64) -> Option<Amount> {
        Some(Amount::Size(Size { bytes }))
    }

    #[test]
    fn a_job_wakes_one_thread_that_can_do_it() {
        let mut jobs = Jobs {
            asleep: vec![true; THREADS],
            width: THREADS,
            ..Jobs::default()
        };
        let read = || Job::Read(0, 0, 0..1, Block::default());
        assert_eq!(jobs.add(read()), Some(0), "the one that only reads");
        assert_eq!(
            jobs.add(read()),
            Some(READERS),
            "the first one is woken already"
        );
        assert_eq!(jobs.add(Job::Free(1)), Some(READERS + 1));
        jobs.asleep = vec![false; THREADS];
        jobs.asleep[0] = true;
        assert_eq!(jobs.add(Job::Write(1, 1, Block::default())), None);
        // Reads go first, and a read-only thread does nothing else.
        assert!(matches!(jobs.take(0), Some(Job::Read(..))));
        assert!(matches!(jobs.take(READERS), Some(Job::Read(..))));
        assert!(jobs.take(0).is_none());
        jobs.width = 2;
        assert!(jobs.take(2).is_none(), "it is one too many");
        assert!(matches!(jobs.take(1), Some(Job::Write(..))));
        assert!(matches!(jobs.take(1), Some(Job::Free(_))));
        assert_eq!((jobs.came, jobs.waited), (4, 1));
    }

    #[test]
    fn writes_and_frees_have_their_turn_though_reads_never_end() {
        let mut jobs = Jobs {
            asleep: vec![false; THREADS],
            width: THREADS,
            ..Jobs::default()
        };
        let mut reads = 0;
        for n in 0..4 {
            jobs.add(Job::Write(n, n, Block::default()));
        }
        jobs.add(Job::Free(1));
        while !(jobs.writes.is_empty() && jobs.frees.is_empty()) {
            jobs.add(Job::Read(0, 0, 0..1, Block::default()));
            reads += u32::from(matches!(jobs.take(READERS), Some(Job::Read(..))));
            assert!(reads <= 5 * BEFORE_MAX, "they starve");
        }
        assert_eq!(reads, 5 * BEFORE_MAX, "reads go first all the same");
        // Frees do not starve behind writes either.
        jobs.add(Job::Free(2));
        let writes = std::iter::repeat_with(|| {
            jobs.add(Job::Write(0, 0, Block::default()));
            jobs.reads.clear();
            jobs.take(READERS)
        });
        let writes = writes.take_while(|job| !matches!(job, Some(Job::Free(2))));
        assert_eq!(writes.take(100).count(), BEFORE_MAX as usize);
    }

    #[test]
    fn a_path_that_is_full_becomes_wider_and_everything_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let (fd, _) = canvas_shm::Segment::create(true).unwrap();
        let waker = Waker(canvas_shm::Far::map(&fd).unwrap());
        let notifier = Arc::new(PollNotifier::new().unwrap());
        let mut path = Path::new(create(dir.path()).unwrap(), size(0), waker, notifier).unwrap();
        path.widen(9).unwrap();
        path.widen(2).unwrap();
        for round in 0..3 {
            for n in 0..64 {
                path.put(Job::Write(n, n, Block::default()));
            }
            let (mut done, mut n) = (Vec::new(), 0);
            while n < 64 {
                path.take(&mut done);
                n += done.drain(..).count();
                std::thread::sleep(Duration::from_micros(100));
            }
            path.widen(1 << (round + 1)).unwrap();
        }
        assert_eq!(path.threads.len(), 9);
    }

    #[test]
    fn a_file_tells_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(dir.path()).unwrap();
        assert!(written(&file).unwrap().is_empty());
        let block = Block::default();
        for extent in [3, 4, 9, 2048] {
            file.write_all_at(&block, at(extent)).unwrap();
        }
        // Of one only the end was written.
        file.write_all_at(&block[..4096], at(12) + EXTENT_BYTES as u64 - 4096)
            .unwrap();
        assert_eq!(written(&file).unwrap(), [3, 4, 9, 12, 2048]);
        punch(&file, at(4), EXTENT_BYTES).unwrap();
        assert_eq!(written(&file).unwrap(), [3, 9, 12, 2048]);
    }

    #[test]
    fn the_reserve_is_left_and_what_has_its_place_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(dir.path()).unwrap();
        let whole = size(1 << 62);
        let full = |e: io::Error| is_full(&e);
        assert!(leave(&file, size(0), 0).is_ok());
        assert!(leave(&file, whole, 0).is_err_and(full));
        let all = Share::from_ppm(1_000_000).map(Amount::Share);
        assert!(leave(&file, all, 0).is_err_and(full));
        let block = Block::default();
        file.write_all_at(&block, at(3)).unwrap();
        file.sync_all().unwrap();
        assert!(leave(&file, whole, at(3)).is_ok(), "it takes no more");
        for extent in [0, 2, 4, 9] {
            assert!(leave(&file, whole, at(extent)).is_err_and(full), "{extent}");
        }
    }
}
