//! A store on files of this host: each far directory has one sparse unnamed file, in which extent `n` is at offset `n`
//! x 32 KiB, if that file has it.
//!
//! | module | what it does |
//! |---|---|
//! | [`path`] | one file: its threads, which read, write and free |
//!
//! An extent is in one file. With several files, [`canvas_place::paths`] chooses where a new extent goes, by the loaded
//! latencies of the directories; an extent that is rewritten stays where it is while that directory accepts writes. The
//! files themselves record which of them has an extent: a range that was never written, or was freed, is a hole. A file
//! that could not take an extent may have part of it, which is freed before the extent is written to another file.

mod path;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use canvas_place::paths::{Closed, PATHS_MAX, Paths};
use canvas_shm::Far;
use canvas_shm::far::SLAB_EXTENTS;
use canvas_types::units::Amount;

use crate::block::Block;
use crate::dispatch::IoLink;
use crate::idle::Waker;
use crate::notifier::PollNotifier;
use crate::store::LogTopic;
use crate::store::{Event, Outcome, Store, TRANSFER_COST, place};
use path::{Done, Job, Path};
pub use path::{create, default_dir};

/// No file has the extent.
const NOWHERE: u8 = u8::MAX;

/// By extent of a slab, the index of its file.
type Homes = Box<[u8; SLAB_EXTENTS]>;

/// An operation under way.
enum Op {
    Read {
        path: usize,
    },
    Write {
        extent: u32,
        path: usize,
        /// Files that could not take it, a bit each.
        tried: u32,
    },
    /// Frees another file's version of an extent before writing it to this one, so that only one file has it.
    Moves {
        extent: u32,
        block: Block,
        from: usize,
        to: usize,
        /// Files that could not take it, a bit each.
        tried: u32,
    },
}

/// The store.
pub struct Disk {
    paths: Vec<Path>,
    choice: Paths,
    homes: HashMap<u32, Homes>,
    /// Other files that have something of an extent, a bit each: an earlier agent ended while it wrote there. They are
    /// read after the first one, and freed when the extent is rewritten.
    others: HashMap<u32, u32>,
    ops: HashMap<u32, (Op, Instant)>,
    /// The file of each operation that waits for its turn.
    turns: HashMap<u32, usize>,
    /// Slabs being freed, and the number of answers awaited.
    freeing: HashMap<u32, usize>,
    /// Events of operations that ended without any I/O.
    ended: Vec<Event>,
    done: Vec<Done>,
    started: Instant,
    far: &'static Far,
    /// Notified when an operation has ended.
    notifier: Arc<PollNotifier>,
}

impl Disk {
    /// A store over `files`, which [`create`] made, each on a disk of its own. `reserve` stays free on each of these
    /// disks, whatever tenants write. `waker` is woken when an operation has ended.
    ///
    /// # Errors
    ///
    /// A thread could not be started, there is no file, or there are more than [`PATHS_MAX`].
    pub fn new(files: Vec<File>, reserve: Option<Amount>, waker: Waker) -> io::Result<Disk> {
        if !(1..=PATHS_MAX).contains(&files.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (mut homes, mut others) = (HashMap::new(), HashMap::new());
        if files.len() > 1 {
            for (path, file) in files.iter().enumerate() {
                for extent in path::written(file)? {
                    match home_of(&homes, extent) {
                        None => set_home(&mut homes, extent, path),
                        Some(_) => *others.entry(extent).or_default() |= 1 << path,
                    }
                }
            }
        }
        let choice = Paths::new(files.len());
        let notifier = Arc::new(PollNotifier::new()?);
        let paths = files
            .into_iter()
            .map(|file| Path::new(file, reserve, waker, notifier.clone()));
        Ok(Disk {
            paths: paths.collect::<io::Result<_>>()?,
            choice,
            homes,
            others,
            ops: HashMap::new(),
            turns: HashMap::new(),
            freeing: HashMap::new(),
            ended: Vec::new(),
            done: Vec::new(),
            started: Instant::now(),
            far: waker.0,
            notifier,
        })
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Whether reads or writes are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Notified when an operation has ended, for a thread that also waits for other things. [`Store::is_ready`] says
    /// whether one has.
    pub(crate) fn notifier(&self) -> &PollNotifier {
        &self.notifier
    }

    /// The file that has an extent, if any.
    fn home(&self, extent: u32) -> Option<usize> {
        if self.paths.len() == 1 {
            return Some(0);
        }
        home_of(&self.homes, extent)
    }

    /// The file that has an extent, if any, and then other files with something of it.
    fn holders(&self, extent: u32) -> impl Iterator<Item = usize> + use<> {
        let others = self.others.get(&extent).copied().unwrap_or(0);
        let others = (0..self.paths.len()).filter(move |path| others & 1 << path != 0);
        self.home(extent).into_iter().chain(others)
    }

    /// The link of the file that has an extent.
    pub fn link_of(&self, extent: u32) -> IoLink {
        IoLink::Disk(self.home(extent).unwrap_or(0) as u8)
    }

    /// The file to write an extent to: the one that has it, while that accepts writes. `None`: all were tried.
    fn choose(&mut self, extent: u32, tried: u32) -> Option<usize> {
        let now_ns = self.now_ns();
        let is_one = self.paths.len() == 1;
        let stays = self.home(extent).filter(|path| {
            tried & 1 << path == 0 && (is_one || self.choice.is_open(*path, now_ns))
        });
        stays.or_else(|| self.choice.choose(tried, now_ns))
    }

    /// Writes an extent to a file, after freeing it in the other files that have it.
    fn write_to(&mut self, id: u32, extent: u32, block: Block, path: usize, tried: u32) {
        let op = match self.holders(extent).find(|holder| *holder != path) {
            Some(from) => {
                self.paths[from].put(Job::Punch(id, extent));
                Op::Moves {
                    extent,
                    block,
                    from,
                    to: path,
                    tried: tried | 1 << path,
                }
            }
            None => {
                self.paths[path].put(Job::Write(id, extent, block));
                Op::Write {
                    extent,
                    path,
                    tried: tried | 1 << path,
                }
            }
        };
        self.ops.insert(id, (op, Instant::now()));
    }

    /// An operation on a file has ended; returns its event, unless the operation continues elsewhere.
    fn ended(&mut self, id: u32, outcome: Outcome, block: Block) -> Option<Event> {
        let Some((op, since)) = self.ops.remove(&id) else {
            return Some(Event::Ended { id, outcome, block });
        };
        let took_ns = since.elapsed().as_nanos() as u64;
        match op {
            Op::Read { path } if outcome == Outcome::Done => self.choice.took(path, took_ns),
            Op::Read { .. } | Op::Moves { .. } => {}
            Op::Write {
                extent,
                path,
                tried,
            } => {
                let why = match outcome {
                    Outcome::Done => {
                        self.choice.took(path, took_ns);
                        if self.paths.len() > 1 {
                            set_home(&mut self.homes, extent, path);
                        }
                        return Some(Event::Ended { id, outcome, block });
                    }
                    Outcome::NoRoom => Closed::Full,
                    _ => Closed::Broken,
                };
                self.choice.close(path, why, self.now_ns());
                if self.paths.len() > 1 {
                    // It may have part of the extent, which must not be taken for the extent later.
                    set_home(&mut self.homes, extent, path);
                }
                let Some(path) = self.choose(extent, tried) else {
                    return Some(Event::Ended { id, outcome, block });
                };
                self.write_to(id, extent, block, path, tried);
                return None;
            }
        }
        Some(Event::Ended { id, outcome, block })
    }

    /// An extent was freed in the file that had it; writes it to its new file.
    fn punched(&mut self, id: u32, ok: bool) -> Option<Event> {
        let (op, _) = self.ops.remove(&id)?;
        let Op::Moves {
            extent,
            block,
            from,
            to,
            tried,
        } = op
        else {
            debug_assert!(false, "only moving extents are freed this way");
            return None;
        };
        if !ok {
            let outcome = Outcome::Lost;
            return Some(Event::Ended { id, outcome, block });
        }
        if self.home(extent) == Some(from) {
            set_home(&mut self.homes, extent, NOWHERE.into());
        }
        if let Some(others) = self.others.get_mut(&extent) {
            *others &= !(1 << from);
            if *others == 0 {
                self.others.remove(&extent);
            }
        }
        self.write_to(id, extent, block, to, tried);
        None
    }

    fn full(&self, why: &str) -> String {
        match self.paths.len() {
            1 => format!(
                "the far directory takes no more ({why}); pages stay in the pool until it has room"
            ),
            _ => format!("a far directory takes no more ({why}); the other directories are used"),
        }
    }

    /// A file has freed its part of a slab; returns an event after the last one.
    fn freed(&mut self, slab: u32) -> Option<Event> {
        let left = self.freeing.get_mut(&slab)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.freeing.remove(&slab);
        Some(Event::Freed(slab))
    }
}

impl Store for Disk {
    fn is_quiet(&self) -> bool {
        self.paths.iter().all(Path::is_quiet)
    }

    fn link(&mut self, id: u32, extent: u32, writes: bool) -> (IoLink, u32) {
        if !writes || self.paths.len() == 1 {
            return (self.link_of(extent), TRANSFER_COST);
        }
        let path = self.choose(extent, 0).unwrap_or(0);
        self.turns.insert(id, path);
        (IoLink::Disk(path as u8), TRANSFER_COST)
    }

    fn write(&mut self, id: u32, extent: u32, block: Block, _: usize) {
        let waited_for = self.turns.remove(&id);
        match waited_for.or_else(|| self.choose(extent, 0)) {
            Some(path) => self.write_to(id, extent, block, path, 0),
            None => {
                let outcome = Outcome::Lost;
                self.ended.push(Event::Ended { id, outcome, block });
            }
        }
    }

    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, copy: usize, block: Block) {
        // An extent that no file has reads as zeros and does not verify.
        let path = match self.holders(extent).nth(copy) {
            None if copy > 0 => {
                let outcome = Outcome::NoCopy;
                self.ended.push(Event::Ended { id, outcome, block });
                return;
            }
            holder => holder.unwrap_or(0),
        };
        self.paths[path].put(Job::Read(id, extent, range, block));
        self.ops.insert(id, (Op::Read { path }, Instant::now()));
    }

    fn free(&mut self, slab: u32) {
        self.homes.remove(&slab);
        self.others.retain(|extent, _| place(*extent).0 != slab);
        self.freeing.insert(slab, self.paths.len());
        for path in &self.paths {
            path.put(Job::Free(slab));
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.ended);
        let mut done = std::mem::take(&mut self.done);
        for path in &self.paths {
            path.take(&mut done);
        }
        for done in done.drain(..) {
            events.extend(match done {
                Done::Ended { id, outcome, block } => self.ended(id, outcome, block),
                Done::Punched { id, ok } => self.punched(id, ok),
                Done::Freed(slab) => self.freed(slab),
                Done::Full(why) => Some(Event::Log(LogTopic::Full, self.full(&why))),
                Done::Broken(what, why) => Some(Event::Log(
                    LogTopic::Disk,
                    format!("the backing file cannot be {what}: {why}"),
                )),
            });
        }
        self.done = done;
        self.choice.tick(self.now_ns());
        let width = self.paths.iter_mut().map(Path::tick).max().unwrap_or(0);
        self.far.stats.disk_width.store(width as u64, Relaxed);
    }

    fn is_ready(&self) -> bool {
        !self.ended.is_empty() || self.paths.iter().any(Path::is_ready)
    }
}

fn home_of(homes: &HashMap<u32, Homes>, extent: u32) -> Option<usize> {
    let (slab, within) = place(extent);
    let home = homes.get(&slab)?[within];
    (home != NOWHERE).then_some(home.into())
}

fn set_home(homes: &mut HashMap<u32, Homes>, extent: u32, path: usize) {
    let (slab, within) = place(extent);
    let homes = homes
        .entry(slab)
        .or_insert_with(|| Box::new([NOWHERE; SLAB_EXTENTS]));
    homes[within] = path as u8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::far::EXTENT_BYTES;
    use canvas_shm::{Far, Segment};
    use std::collections::BTreeMap;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn waker() -> Waker {
        let (fd, _) = Segment::create(true).unwrap();
        Waker(Far::map(&fd).unwrap())
    }

    /// The store, and its expected content.
    struct Rig {
        disk: Disk,
        files: Vec<File>,
        next: u32,
        oracle: BTreeMap<u32, u8>,
        said: Vec<String>,
    }

    impl Rig {
        fn new(files: Vec<File>) -> Rig {
            let mut rig = Rig {
                disk: over(&files),
                files,
                next: 0,
                oracle: BTreeMap::new(),
                said: Vec::new(),
            };
            rig.said.clear();
            rig
        }

        /// The next event other than log lines.
        fn event(&mut self) -> Vec<Event> {
            let until = Instant::now() + PATIENCE;
            loop {
                let mut events = Vec::new();
                self.disk.poll(&mut events);
                events.retain(|event| match event {
                    Event::Log(_, line) => {
                        self.said.push(line.clone());
                        false
                    }
                    _ => true,
                });
                if !events.is_empty() {
                    return events;
                }
                assert!(Instant::now() < until, "nothing ends");
                std::thread::sleep(Duration::from_micros(50));
            }
        }

        /// Writes extents concurrently; returns how each ended.
        fn write(&mut self, extents: &[(u32, u8)]) -> Vec<Outcome> {
            let mut ids = BTreeMap::new();
            for (extent, fill) in extents {
                let mut block = Block::new();
                block.fill(*fill);
                ids.insert(self.next, (*extent, *fill));
                self.disk.write(self.next, *extent, block, EXTENT_BYTES);
                self.next += 1;
            }
            let mut outcomes = Vec::new();
            while !ids.is_empty() {
                for event in self.event() {
                    let Event::Ended { id, outcome, block } = event else {
                        panic!("{event:?}");
                    };
                    let (extent, fill) = ids.remove(&id).expect("each ends once");
                    assert!(block.iter().all(|b| *b == fill));
                    if outcome == Outcome::Done {
                        self.oracle.insert(extent, fill);
                    }
                    outcomes.push(outcome);
                }
            }
            outcomes
        }

        fn free(&mut self, slab: u32) {
            self.disk.free(slab);
            let freed = self.event();
            assert!(
                matches!(freed[..], [Event::Freed(s)] if s == slab),
                "{freed:?}"
            );
            self.oracle.retain(|extent, _| place(*extent).0 != slab);
        }

        /// All written extents are there, each in one file.
        fn check(&mut self) {
            for (extent, fill) in self.oracle.clone() {
                let (id, range) = (self.next, 100..EXTENT_BYTES);
                self.next += 1;
                self.disk.read(id, extent, range.clone(), 0, Block::new());
                let events = self.event();
                let [Event::Ended { outcome, block, .. }] = &events[..] else {
                    panic!("{events:?}");
                };
                assert_eq!(*outcome, Outcome::Done);
                assert!(block[range].iter().all(|b| *b == fill), "extent {extent}");
            }
            let mut there: Vec<u32> = Vec::new();
            for file in &self.files {
                there.extend(path::written(file).unwrap());
            }
            there.sort_unstable();
            let all: Vec<u32> = self.oracle.keys().copied().collect();
            assert_eq!(there, all);
        }

        /// The next agent starts from the files alone.
        fn taken_over(&mut self) {
            self.disk = over(&self.files);
        }
    }

    fn over(files: &[File]) -> Disk {
        let files = files.iter().map(|file| file.try_clone().unwrap());
        // No reserve: the machine's disk may be nearly full.
        let none = Amount::Size(canvas_types::units::Size::from_bytes(0));
        Disk::new(files.collect(), Some(none), waker()).unwrap()
    }

    fn files(n: usize) -> Vec<File> {
        // An unnamed file outlives its directory.
        let dir = tempfile::tempdir().unwrap();
        (0..n).map(|_| create(dir.path()).unwrap()).collect()
    }

    #[test]
    fn what_is_written_to_several_directories_is_there_for_the_next_agent_too() {
        let seed = canvas_testing::random::seed();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = Rig::new(files(3));
        let used = |file: &&File| !path::written(file).unwrap().is_empty();
        // At the end, chance and the speed of each file may have left all extents in one.
        let mut used_max = 0;
        for _ in 0..40 {
            match rng.u32(0..10) {
                0 => rig.taken_over(),
                1 => rig.free(rng.u32(0..3)),
                2 => {
                    // It accepts nothing for a while: extents that it has move when they are rewritten.
                    let now_ns = rig.disk.now_ns();
                    rig.disk.choice.close(rng.usize(0..3), Closed::Full, now_ns);
                }
                _ => {
                    let mut extents: BTreeMap<u32, u8> = BTreeMap::new();
                    for _ in 0..rng.usize(1..20) {
                        let extent = rng.u32(0..3) * SLAB_EXTENTS as u32 + rng.u32(0..12);
                        extents.insert(extent, rng.u8(1..));
                    }
                    let extents: Vec<_> = extents.into_iter().collect();
                    let outcomes = rig.write(&extents);
                    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "seed {seed}");
                    used_max = used_max.max(rig.files.iter().filter(used).count());
                }
            }
        }
        rig.check();
        assert!(used_max > 1, "seed {seed}");
    }

    #[test]
    fn what_one_directory_cannot_take_goes_to_another() {
        let mut all = files(2);
        // The first file fails.
        let by_name = std::os::fd::AsRawFd::as_raw_fd(&all[0]);
        all[0] = File::open(format!("/proc/self/fd/{by_name}")).unwrap();
        let mut rig = Rig::new(all);
        let extents: Vec<_> = (0..20).map(|extent| (extent, 7)).collect();
        assert_eq!(rig.write(&extents), [Outcome::Done; 20]);
        rig.check();
        assert!(
            rig.said
                .iter()
                .all(|line| line.contains("cannot be written"))
        );
        // The failing file is not tried each time.
        let before = rig.said.len();
        assert!((1..20).contains(&before), "{:?}", rig.said);
        assert_eq!(rig.write(&extents), [Outcome::Done; 20]);
        assert_eq!(rig.said.len(), before);
    }

    /// A write that fails half way leaves nothing that the next agent would take for the extent.
    #[test]
    fn what_arrived_half_is_in_one_directory_alone() {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        for small_at in [0, 1] {
            let mut all = files(2);
            // It has room for two and a half extents.
            let small = memfd_create(c"small", MFdFlags::MFD_ALLOW_SEALING).unwrap();
            let small = File::from(small);
            small.set_len(5 * EXTENT_BYTES as u64 / 2).unwrap();
            fcntl(&small, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
            all[small_at] = small;
            let mut rig = Rig::new(all);
            let now_ns = rig.disk.now_ns();
            rig.disk.choice.close(1 - small_at, Closed::Full, now_ns);
            assert_eq!(rig.write(&[(2, 7)]), [Outcome::Done]);
            rig.check();
            rig.taken_over();
            rig.check();
        }
    }

    /// An agent that ended before it freed a partial extent: both files are read, and the next write leaves one.
    #[test]
    fn what_two_directories_have_is_read_from_both() {
        use std::os::unix::fs::FileExt;
        for half_at in [0, 1] {
            let all = files(2);
            let at = 3 * EXTENT_BYTES as u64;
            let (mut good, mut half) = (Block::new(), Block::new());
            good.fill(7);
            half.fill(9);
            let half = &half[..EXTENT_BYTES / 2];
            all[1 - half_at].write_all_at(&good, at).unwrap();
            all[half_at].write_all_at(half, at).unwrap();
            let mut rig = Rig::new(all);
            let mut found = [false; 3];
            for (copy, is_good) in found.iter_mut().enumerate() {
                let range = 0..EXTENT_BYTES;
                rig.disk.read(copy as u32, 3, range, copy, Block::new());
                let events = rig.event();
                let [Event::Ended { outcome, block, .. }] = &events[..] else {
                    panic!("{events:?}");
                };
                assert_eq!(*outcome == Outcome::NoCopy, copy == 2);
                *is_good = block.iter().all(|b| *b == 7);
            }
            assert!(found[0] || found[1]);
            assert_eq!(rig.write(&[(3, 8)]), [Outcome::Done]);
            rig.check();
        }
    }

    #[test]
    fn where_none_takes_it_that_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let file = create(dir.path()).unwrap();
            let by_name = std::os::fd::AsRawFd::as_raw_fd(&file);
            File::open(format!("/proc/self/fd/{by_name}")).unwrap()
        };
        let mut rig = Rig::new(vec![open(), open()]);
        assert_eq!(rig.write(&[(1, 1)]), [Outcome::Lost]);
        assert!(Disk::new(Vec::new(), None, waker()).is_err());
        assert!(Disk::new(files(PATHS_MAX + 1), None, waker()).is_err());
    }
}
