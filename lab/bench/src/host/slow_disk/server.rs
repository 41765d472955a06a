//! The server process of the slow disk: holds the bytes, and delays the answer to each read.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::set_timerslack;
use nix::sys::signal::SigSet;
use nix::sys::time::TimeSpec;
use nix::unistd::{getpid, gettid};

use super::fuse::{self, Asked, Request};

/// Bytes are stored in chunks of this size, allocated at the first write.
const CHUNK: usize = 256 << 10;

/// Contents of the disk.
struct Store {
    bytes: u64,
    chunks: Vec<Option<Box<[u8]>>>,
}

impl Store {
    fn new(bytes: u64) -> Store {
        let count = bytes.div_ceil(CHUNK as u64) as usize;
        Store {
            bytes,
            chunks: (0..count).map(|_| None).collect(),
        }
    }

    /// Whether the range is within the disk.
    fn has(&self, offset: u64, bytes: usize) -> bool {
        offset
            .checked_add(bytes as u64)
            .is_some_and(|end| end <= self.bytes)
    }

    /// Splits a range at chunk boundaries: number of the chunk, offset in it, length.
    fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut at = offset;
        let end = offset + bytes as u64;
        std::iter::from_fn(move || {
            let (chunk, within) = ((at / CHUNK as u64) as usize, (at % CHUNK as u64) as usize);
            let length = (CHUNK - within).min((end - at) as usize);
            at += length as u64;
            (length > 0).then_some((chunk, within, length))
        })
    }

    fn read(&self, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(bytes);
        if !self.has(offset, bytes) {
            return None;
        }
        for (chunk, within, length) in Store::pieces(offset, bytes) {
            match &self.chunks[chunk] {
                Some(chunk) => all.extend(&chunk[within..within + length]),
                None => all.resize(all.len() + length, 0),
            }
        }
        Some(all)
    }

    fn write(&mut self, offset: u64, mut data: &[u8]) -> Option<()> {
        if !self.has(offset, data.len()) {
            return None;
        }
        for (chunk, within, length) in Store::pieces(offset, data.len()) {
            let chunk = self.chunks[chunk].get_or_insert_with(|| vec![0; CHUNK].into());
            chunk[within..within + length].copy_from_slice(&data[..length]);
            data = &data[length..];
        }
        Some(())
    }
}

/// The disk and its delayed answers.
struct Disk {
    store: Store,
    /// Delay from a read's arrival to its answer.
    wait: Duration,
    /// Due time of each delayed answer. All have the same delay, so the first is due first.
    later: VecDeque<(Instant, Vec<u8>)>,
}

impl Disk {
    /// Processes a request; returns its answer, or `None` if it is delayed or has no answer.
    fn answer(&mut self, request: &Request<'_>, now: Instant) -> Option<Vec<u8>> {
        let unique = request.unique;
        Some(match request.asked {
            Asked::Init => fuse::begun(unique),
            Asked::Attributes => fuse::attributes(unique, self.store.bytes),
            Asked::Open => fuse::opened(unique),
            Asked::Read { offset, bytes } => {
                let data = self.store.read(offset, bytes as usize);
                let answer = data.map(|data| fuse::data(unique, &data));
                let answer = answer.unwrap_or_else(|| fuse::no_such_place(unique));
                self.later.push_back((now + self.wait, answer));
                return None;
            }
            Asked::Write { offset, data } => match self.store.write(offset, data) {
                Some(()) => fuse::written(unique, data.len() as u32),
                None => fuse::no_such_place(unique),
            },
            Asked::Nothing => fuse::done(unique),
            Asked::Silence => return None,
            Asked::Unknown => fuse::unknown(unique),
        })
    }

    /// The next answer that is due.
    fn due(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.later.front().filter(|(at, _)| *at <= now)?;
        self.later.pop_front().map(|(_, answer)| answer)
    }
}

/// Mounts the file system over the file `place`, in a mount namespace of this process; returns the kernel's
/// end.
fn mounted(place: &Path) -> io::Result<File> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(super::FUSE)?;
    let options = format!(
        "fd={},rootmode={:o},user_id=0,group_id=0",
        device.as_raw_fd(),
        fuse::ROOT_MODE
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("canvas-bench"),
        place,
        Some("fuse"),
        flags,
        Some(options.as_str()),
    )?;
    Ok(device)
}

/// Waits for input from either file, or until a time.
fn wait(
    device: &File,
    control: Option<&io::Stdin>,
    until: Option<Instant>,
) -> io::Result<[bool; 2]> {
    let mut all = vec![PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    all.extend(control.map(|c| PollFd::new(c.as_fd(), PollFlags::POLLIN)));
    let left =
        until.map(|at| TimeSpec::from_duration(at.saturating_duration_since(Instant::now())));
    match ppoll(&mut all, left, None) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e.into()),
    }
    let has = |n: usize| all.get(n).is_some_and(|p| p.any().unwrap_or(false));
    Ok([has(0), has(1)])
}

/// Serves requests until the file system is unmounted. Each line of standard input is a delay in ns, and is
/// confirmed by a line.
fn serve(device: &mut File, disk: &mut Disk) -> io::Result<()> {
    let mut request = vec![0; fuse::REQUEST_MAX];
    let stdin = io::stdin();
    let mut control = Some(&stdin);
    loop {
        let until = disk.later.front().map(|(at, _)| *at);
        let [asked, told] = wait(device, control, until)?;
        while let Some(answer) = disk.due(Instant::now()) {
            put(device, &answer)?;
        }
        if asked {
            match device.read(&mut request) {
                Ok(n) => {
                    let now = Instant::now();
                    let answer = Request::parse(&request[..n]).and_then(|r| disk.answer(&r, now));
                    if let Some(answer) = answer {
                        put(device, &answer)?;
                    }
                }
                Err(e) if e.raw_os_error() == Some(Errno::ENODEV as i32) => return Ok(()),
                // The request was cancelled before it was read, or a signal arrived.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::NotFound | ErrorKind::WouldBlock | ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e),
            }
        }
        if told {
            let mut line = String::new();
            // Standard input is closed; the server goes on, since swap may still be on.
            if stdin.read_line(&mut line)? == 0 {
                control = None;
            } else if let Ok(ns) = line.trim().parse() {
                disk.wait = Duration::from_nanos(ns);
                println!("{ns}");
            }
        }
    }
}

/// Writes an answer; the requester may be gone.
fn put(device: &mut File, answer: &[u8]) -> io::Result<()> {
    match device.write(answer) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    }
}

/// Serves a disk of `bytes` over the file `place` until it is killed. Returns an exit code.
pub fn run(place: &Path, bytes: u64) -> i32 {
    // The disk holds swapped pages: the server ignores signals until the bench kills it, and locks its own
    // memory.
    let _ = SigSet::all().thread_block();
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let begun = || -> io::Result<()> {
        set_timerslack(1)?;
        let mut device = mounted(place)?;
        mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)?;
        let mut disk = Disk {
            store: Store::new(bytes),
            wait: Duration::ZERO,
            later: VecDeque::new(),
        };
        // Mount namespace of this thread, which may not be the process's first.
        println!(
            "{}/proc/{}/task/{}/ns/mnt",
            super::READY,
            getpid(),
            gettid()
        );
        serve(&mut device, &mut disk)
    };
    match begun() {
        Ok(()) => 0,
        Err(e) => {
            // The reader may be gone.
            let _ = writeln!(io::stdout(), "{e}");
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(
            writes in proptest::collection::vec((0u64..700_000, 1usize..300_000, any::<u8>()), 1..8)
        ) {
            const BYTES: u64 = 1 << 20;
            let mut store = Store::new(BYTES);
            let mut plain = vec![0; BYTES as usize];
            for (offset, length, value) in writes {
                store.write(offset, &vec![value; length]).unwrap();
                plain[offset as usize..][..length].fill(value);
            }
            prop_assert!(store.read(0, BYTES as usize).unwrap() == plain);
            prop_assert!(store.read(300_000, 300_000).unwrap() == plain[300_000..600_000]);
        }
    }

    #[test]
    fn there_is_nothing_past_the_end() {
        let mut store = Store::new(8192);
        assert_eq!(store.read(4096, 4096).unwrap().len(), 4096);
        assert_eq!(store.read(4096, 4097), None);
        assert_eq!(store.read(u64::MAX, 2), None);
        assert_eq!(store.write(8192, &[1]), None);
    }

    /// Each read is delayed by itself; writes are not.
    #[test]
    fn reads_are_answered_when_their_time_has_come() {
        let mut disk = Disk {
            store: Store::new(8192),
            wait: Duration::from_micros(80),
            later: VecDeque::new(),
        };
        let began = Instant::now();
        let at = |us| began + Duration::from_micros(us);
        let ask = |unique, asked| Request { unique, asked };
        let data = &[7; 4096];
        let write = ask(1, Asked::Write { offset: 4096, data });
        assert_eq!(disk.answer(&write, at(0)), Some(fuse::written(1, 4096)));
        for (unique, us) in [(2, 0), (3, 50)] {
            let (offset, bytes) = (4096, 4096);
            let read = ask(unique, Asked::Read { offset, bytes });
            assert_eq!(disk.answer(&read, at(us)), None);
        }
        assert_eq!(disk.due(at(79)), None);
        assert_eq!(disk.due(at(80)), Some(fuse::data(2, data)));
        assert_eq!(disk.due(at(129)), None);
        assert_eq!(disk.due(at(130)), Some(fuse::data(3, data)));
        assert_eq!(disk.due(at(1000)), None);
    }
}
