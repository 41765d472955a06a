//! A store on a file of this host: extent `n` lies at `n` x 32 KiB of one sparse file without a name.
//!
//! Threads do the I/O. It bypasses the page cache where the file system allows that: what is far
//! must not take the memory that it makes room in.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use canvas_shm::far::SLAB_BYTES;
use canvas_swap::extent::EXTENT_BYTES;
use canvas_types::units::Amount;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{Whence, lseek};

use crate::block::{ALIGN, Block};
use crate::dispatch::Lane;
use crate::idle::Waker;
use crate::log::About;
use crate::store::{Event, Outcome, Store};

/// What stays free on the disk unless somebody says otherwise, for all of its other uses: this part of it,
const RESERVE_PARTS: u128 = 20;
/// and no more than this.
const RESERVE_BYTES_MAX: u128 = 1 << 30;

/// Threads that read and write, and those of them that only read.
const THREADS: usize = 4;
const READERS: usize = 1;

enum Job {
    Read(u32, u64, Range<usize>, Block),
    Write(u32, u64, Block),
    Free(u32),
}

/// What is to do: reads before writes before frees.
#[derive(Default)]
struct Jobs {
    reads: VecDeque<Job>,
    writes: VecDeque<Job>,
    frees: VecDeque<Job>,
    end: bool,
}

struct Shared {
    file: File,
    reserve: Option<Amount>,
    jobs: Mutex<Jobs>,
    /// For all threads.
    more: Condvar,
    done: Mutex<Vec<Event>>,
    any_done: AtomicBool,
    waker: Waker,
}

/// The store.
pub struct Disk {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// A file without a name in `dir`, for one tenant: it is gone when nobody has it open any more.
pub fn create(dir: &Path) -> io::Result<File> {
    let open = |more: OFlag| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags((OFlag::O_TMPFILE | more).bits())
            .open(dir)
    };
    // tmpfs before 6.6 and some others take no O_DIRECT.
    match open(OFlag::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => open(OFlag::empty()),
        other => other,
    }
}

impl Disk {
    /// Over `file`, which [`create`] made; `reserve` stays free on its disk, whatever tenants write. `waker` is
    /// told when something has ended.
    pub fn new(file: File, reserve: Option<Amount>, waker: Waker) -> io::Result<Disk> {
        let shared = Arc::new(Shared {
            file,
            reserve,
            jobs: Mutex::default(),
            more: Condvar::new(),
            done: Mutex::default(),
            any_done: AtomicBool::new(false),
            waker,
        });
        let threads = (0..THREADS)
            .map(|i| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("disk-{i}"))
                    .spawn(move || work(&shared, i < READERS))
            })
            .collect::<io::Result<_>>()?;
        Ok(Disk { shared, threads })
    }

    fn put(&self, to: impl FnOnce(&mut Jobs)) {
        to(&mut lock(&self.shared.jobs));
        // A thread that only reads must not swallow the call for a write.
        self.shared.more.notify_all();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.put(|jobs| jobs.end = true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Store for Disk {
    fn lane(&self, _writes: bool) -> (Lane, u32) {
        (Lane::Disk, 1)
    }

    fn write(&mut self, id: u32, extent: u32, block: Block, _: usize) {
        self.put(|jobs| jobs.writes.push_back(Job::Write(id, at(extent), block)));
    }

    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, copy: usize, block: Block) {
        if copy > 0 {
            let outcome = Outcome::NoCopy;
            lock(&self.shared.done).push(Event::Ended { id, outcome, block });
            self.shared.any_done.store(true, Ordering::SeqCst);
            return;
        }
        let range = range.start / ALIGN * ALIGN..range.end.next_multiple_of(ALIGN);
        self.put(|jobs| {
            jobs.reads
                .push_back(Job::Read(id, at(extent), range, block))
        });
    }

    fn free(&mut self, slab: u32) {
        self.put(|jobs| jobs.frees.push_back(Job::Free(slab)));
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        if self.shared.any_done.swap(false, Ordering::SeqCst) {
            events.append(&mut lock(&self.shared.done));
        }
    }

    fn is_ready(&self) -> bool {
        self.shared.any_done.load(Ordering::SeqCst)
    }
}

fn at(extent: u32) -> u64 {
    u64::from(extent) * EXTENT_BYTES as u64
}

/// A thread that panicked ended the process: the lock guards whole values.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(shared: &Shared, reads_only: bool) {
    let mut events = Vec::new();
    while let Some(job) = next(shared, reads_only) {
        match job {
            Job::Read(id, at, range, mut block) => {
                let read = shared
                    .file
                    .read_exact_at(&mut block[range.clone()], at + range.start as u64);
                let outcome = match read {
                    Ok(()) => Outcome::Done,
                    // Cut off: what is there instead does not verify.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Outcome::Done,
                    Err(e) => {
                        events.push(trouble("read", &e));
                        Outcome::Lost
                    }
                };
                events.push(Event::Ended { id, outcome, block });
            }
            Job::Write(id, at, block) => {
                let written = leave(&shared.file, shared.reserve, at)
                    .and_then(|()| shared.file.write_all_at(&block, at));
                let outcome = match written {
                    Ok(()) => Outcome::Done,
                    Err(e) => {
                        events.push(trouble("written", &e));
                        if is_full(&e) {
                            Outcome::NoRoom
                        } else {
                            Outcome::Lost
                        }
                    }
                };
                events.push(Event::Ended { id, outcome, block });
            }
            Job::Free(slab) => {
                let mode =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let from = i64::from(slab) * SLAB_BYTES as i64;
                if let Err(e) = fallocate(&shared.file, mode, from, SLAB_BYTES as i64) {
                    events.push(trouble("made smaller", &e.into()));
                }
                events.push(Event::Freed(slab));
            }
        }
        lock(&shared.done).append(&mut events);
        shared.any_done.store(true, Ordering::SeqCst);
        shared.waker.wake();
    }
}

fn next(shared: &Shared, reads_only: bool) -> Option<Job> {
    let mut jobs = lock(&shared.jobs);
    loop {
        let job = jobs.reads.pop_front().or_else(|| {
            if reads_only {
                return None;
            }
            jobs.writes.pop_front().or_else(|| jobs.frees.pop_front())
        });
        if job.is_some() {
            return job;
        }
        if jobs.end {
            return None;
        }
        jobs = shared
            .more
            .wait(jobs)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Is there room for an extent beside the reserve? One that has its place on the disk takes no more; the others
/// are told as by a disk that is full.
fn leave(file: &File, reserve: Option<Amount>, at: u64) -> io::Result<()> {
    let disk = fstatvfs(file)?;
    let bytes = |blocks: u64| u128::from(blocks) * u128::from(disk.fragment_size());
    let reserve = match reserve {
        None => (bytes(disk.blocks()) / RESERVE_PARTS).min(RESERVE_BYTES_MAX),
        Some(Amount::Size(size)) => u128::from(size.bytes),
        Some(Amount::Share(share)) => bytes(disk.blocks()) * u128::from(share.ppm()) / 1_000_000,
    };
    // A file system without a size has no room to leave.
    if disk.blocks() == 0
        || bytes(disk.blocks_available()) >= reserve + EXTENT_BYTES as u128
        || is_there(file, at)
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::StorageFull,
        format!("{} MiB of its disk stay free, --far-reserve", reserve >> 20),
    ))
}

/// Has the extent its place on the disk?
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

fn trouble(what: &str, e: &io::Error) -> Event {
    let why = e
        .raw_os_error()
        .map_or_else(|| e.to_string(), |n| Errno::from_raw(n).desc().to_owned());
    if is_full(e) {
        Event::Line(
            About::Full,
            format!(
                "the far directory takes no more ({why}); pages stay in the pool until there is room"
            ),
        )
    } else {
        Event::Line(
            About::Disk,
            format!("the backing file cannot be {what}: {why}"),
        )
    }
}

/// `~/.cache/canvas/far`, or where XDG_CACHE_HOME points; /var/tmp without a home.
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
