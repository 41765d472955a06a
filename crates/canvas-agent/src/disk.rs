//! A store on a file of this host: extent `n` lies at `n` x 32 KiB of one sparse file without a name.
//!
//! Threads do the I/O. It bypasses the page cache where the file system allows that: what is far
//! must not take the memory that it makes room in.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use canvas_shm::far::SLAB_BYTES;
use canvas_swap::extent::EXTENT_BYTES;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};

use crate::block::{ALIGN, Block};
use crate::idle::Waker;
use crate::lanes::Lane;
use crate::log::About;
use crate::store::{Event, Outcome, Store};

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
    /// Over `file`, which [`create`] made; `waker` is told when something has ended.
    pub fn new(file: File, waker: Waker) -> io::Result<Disk> {
        let shared = Arc::new(Shared {
            file,
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
                let outcome = match shared.file.write_all_at(&block, at) {
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

fn is_full(e: &io::Error) -> bool {
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
