//! A process of the tenant that uses far memory as the library does. Contents follow from place and
//! version, so that every byte can be checked.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use canvas_core::swap::extent::{Line, Packer};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS, slab_state};
use canvas_shm::mailbox::{DEMANDS, Kind, RequestFields, Status, WRITES};
use canvas_shm::segment::ENV_SEGMENT_FD;
use canvas_shm::{Far, Segment, lives};
use canvas_sys::proc::{futex_wait, futex_wake, now_ns};
use canvas_types::SwapEntry;

/// A process of the tenant.
pub struct Client {
    pub far: &'static Far,
    pub proc: usize,
}

impl Client {
    /// Joins the tenant that the environment names.
    pub fn join() -> Client {
        let number = std::env::var(ENV_SEGMENT_FD).unwrap().parse().unwrap();
        let fd = canvas_shm::map::inherited(number, 3).unwrap();
        let segment = Segment::map(&fd).unwrap();
        let far = Far::map(&fd).unwrap();
        let id = lives::live(&fd, segment).unwrap();
        let proc = segment.procs.iter().position(|p| p.take(id)).unwrap();
        segment.procs[proc].pid.store(std::process::id(), SeqCst);
        far.mailboxes[proc].reset();
        Client { far, proc }
    }

    fn bell(&self) {
        if self.far.notify(self.proc) {
            futex_wake(&self.far.asleep, 1);
        }
    }

    /// Posts a request and waits; `fill` prepares the buffer, `look` reads it afterwards.
    pub fn ask(
        &self,
        ask: RequestFields,
        fill: impl FnOnce(&Far, usize),
        look: impl FnOnce(&Far, usize),
    ) -> Status {
        let mailbox = &self.far.mailboxes[self.proc];
        let among = match ask.kind {
            Kind::Read => DEMANDS,
            Kind::Write => WRITES,
        };
        let i = loop {
            match mailbox.claim(among) {
                Some(i) => break i,
                None => std::thread::yield_now(),
            }
        };
        fill(self.far, i);
        mailbox.post(i, ask, now_ns());
        self.bell();
        let until = Instant::now() + Duration::from_secs(60);
        while let Some((word, value)) = mailbox.about_to_sleep(i) {
            futex_wait(word, value, 1_000_000_000);
            assert!(Instant::now() < until, "no answer to {ask:?}");
        }
        let status = mailbox.ended(i).unwrap();
        if status == Status::Ok {
            look(self.far, i);
        }
        mailbox.release(i);
        status
    }

    /// Writes version `version` of an extent.
    pub fn write(&self, extent: u32, version: u64) -> Status {
        let (bytes, _) = contents(extent, version);
        let ask = RequestFields {
            kind: Kind::Write,
            extent,
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        self.ask(
            ask,
            |far, i| far.copy_in(self.proc, i, 0, &bytes),
            |_, _| (),
        )
    }

    /// Reads a range and checks it against `version`.
    pub fn read(&self, extent: u32, version: u64, range: std::ops::Range<usize>) -> Status {
        let (bytes, _) = contents(extent, version);
        let ask = RequestFields {
            kind: Kind::Read,
            extent,
            offset: range.start as u32,
            len: range.len() as u32,
        };
        self.ask(
            ask,
            |_, _| (),
            |far, i| {
                let mut got = vec![0; range.len()];
                far.copy_out(self.proc, i, range.start, &mut got);
                assert!(
                    got == bytes[range.clone()],
                    "extent {extent} version {version} {range:?}"
                );
            },
        )
    }

    /// Reads one record, or (beyond the last) the whole extent.
    pub fn read_record(&self, extent: u32, version: u64, record: usize) -> Status {
        let (_, lines) = contents(extent, version);
        let range = lines
            .get(record)
            .map_or(0..EXTENT_BYTES, |line| line.range());
        self.read(extent, version, range)
    }

    /// A new slab's first extent.
    pub fn take_slab(&self) -> Option<u32> {
        Some(self.far.take_slab(self.proc)? * SLAB_EXTENTS as u32)
    }

    /// Releases a slab, and waits until it is free, or another program of the tenant has it.
    pub fn drop_slab(&self, first: u32) {
        let slab = first / SLAB_EXTENTS as u32;
        if self.far.drop_slab(slab, self.proc) {
            self.bell();
        }
        let until = Instant::now() + Duration::from_secs(60);
        while self.far.slabs[slab as usize].state.load(Relaxed) == slab_state::RELEASED {
            assert!(Instant::now() < until, "slab {slab} is not freed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Contents of version `version` of an extent.
pub fn contents(extent: u32, version: u64) -> (Vec<u8>, Vec<Line>) {
    let mut rng = fastrand::Rng::with_seed(u64::from(extent) << 32 ^ version);
    let mut bytes = Box::new([0; EXTENT_BYTES]);
    let mut packer = Packer::new(&mut bytes);
    let mut lines = Vec::new();
    loop {
        let len = rng.u16(0..=4096);
        let mut fill = rng.fork();
        let n = lines.len() as u32;
        match packer.add(n, SwapEntry(n + 1), len, |b| fill.fill(b)) {
            Some(line) => lines.push(line),
            None => break,
        }
    }
    packer.finish();
    (bytes.to_vec(), lines)
}
