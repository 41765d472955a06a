//! Reads extents from beyond the pool through the agent, by requests in the program's own mailbox.
//! Claiming a request is a compare-and-swap, as for the program's threads, so it works while they
//! run and while they are stopped.

use std::time::{Duration, Instant};

use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_shm::mailbox::{DEMANDS, Kind, RequestFields, Status};
use canvas_shm::{Far, Mailbox};
use canvas_sys::proc;
use canvas_types::ExtentRef;
use std::sync::atomic::Ordering::Relaxed;

use super::target::Target;

/// Why an extent cannot be read, as the end of a sentence.
pub type Why = &'static str;

/// How long to wait for a free request while the program uses all of them.
const CLAIM_WAIT: Duration = Duration::from_secs(2);
/// Length of one sleep; the agent wakes the sleeper earlier.
const SLICE_NS: u64 = 20_000_000;

/// Reads extents of a tenant, one at a time.
pub struct Extents<'t> {
    far: &'static Far,
    mailbox: &'static Mailbox,
    target: &'t Target,
    /// The extent read last.
    last: Option<u32>,
    bytes: Vec<u8>,
    /// The agent did not answer in time, so it is not asked again.
    silent: bool,
}

impl<'t> Extents<'t> {
    /// For a process; `None` if it has no far memory beyond the pool.
    pub fn of(target: &'t Target) -> Option<Extents<'t>> {
        let far = target.far?;
        Some(Extents {
            far,
            mailbox: &far.mailboxes[target.index],
            target,
            last: None,
            bytes: vec![0; EXTENT_BYTES],
            silent: false,
        })
    }

    /// The bytes of a record, not verified yet.
    pub fn record(&mut self, place: ExtentRef) -> Result<&[u8], Why> {
        if self.last != Some(place.extent) {
            self.last = None;
            self.read(place.extent)?;
            self.last = Some(place.extent);
        }
        let begin = place.offset as usize;
        let end = begin + canvas_core::swap::classes::HEADER_BYTES + usize::from(place.len);
        self.bytes
            .get(begin..end)
            .ok_or("its record is outside its extent")
    }

    /// Drops the cached extent, which may have been rewritten.
    pub fn forget(&mut self) {
        self.last = None;
    }

    fn read(&mut self, extent: u32) -> Result<(), Why> {
        let i = self.claim()?;
        let ask = RequestFields {
            kind: Kind::Read,
            extent,
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        self.mailbox.post(i, ask, proc::now_ns());
        if self.far.notify(self.target.index) {
            proc::futex_wake(&self.far.asleep, 1);
        }
        let status = self.wait(i);
        if status == Some(Status::Ok) {
            self.far.copy_out(self.target.index, i, 0, &mut self.bytes);
        }
        match status {
            Some(_) => self.mailbox.release(i),
            None => self.mailbox.abandon(i),
        }
        match status {
            Some(Status::Ok) => Ok(()),
            Some(Status::Corrupt) => Err("no copy of it beyond the pool verifies"),
            Some(Status::Lost) => Err("no copy of it is left beyond the pool"),
            Some(Status::Refused) => Err("the agent does not know its extent"),
            Some(_) => Err("no copy of it beyond the pool can be reached now"),
            None => Err("the agent does not answer"),
        }
    }

    fn claim(&self) -> Result<usize, Why> {
        let begun = Instant::now();
        loop {
            if let Some(i) = self.mailbox.claim(DEMANDS) {
                return Ok(i);
            }
            if begun.elapsed() > CLAIM_WAIT {
                return Err("all requests of the program are in use");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait(&mut self, i: usize) -> Option<Status> {
        let most = Duration::from_millis(self.far.wait_ms_max.load(Relaxed).min(60_000));
        let begun = Instant::now();
        loop {
            if let Some(status) = self.mailbox.ended(i) {
                return Some(status);
            }
            if self.silent || begun.elapsed() > most {
                self.silent = true;
                return self.mailbox.ended(i);
            }
            if let Some((word, value)) = self.mailbox.about_to_sleep(i) {
                proc::futex_wait(word, value, SLICE_NS);
            }
        }
    }
}
