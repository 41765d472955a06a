//! The agent: keeps extents in a map, and answers in any order, with any status, or never.

use std::collections::HashMap;

use canvas_core::swap::classes::HEADER_BYTES;
use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_shm::mailbox::{Kind, REQUESTS, RequestFields, Status};
use canvas_types::ExtentRef;

use super::World;

/// What it does by itself when a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// Answers all, the newest first.
    Well,
    /// Answers nothing.
    Away,
    /// Answers some, with some failures.
    Odd,
    /// Answers all with this status.
    Says(Status),
}

pub struct Agent {
    extents: HashMap<u32, Box<[u8; EXTENT_BYTES]>>,
    /// Requests taken and not answered.
    at_work: Vec<(usize, RequestFields)>,
    pub mood: Mood,
    seed: u64,
}

impl Agent {
    pub fn new() -> Agent {
        Agent {
            extents: HashMap::new(),
            at_work: Vec::new(),
            mood: Mood::Well,
            seed: 1,
        }
    }

    fn random(&mut self, n: usize) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.seed >> 33) as usize % n
    }

    /// Takes the posted requests.
    pub fn collect(&mut self, w: &World) {
        let (posted, _) = w.mailbox.take_new();
        for i in (0..REQUESTS).filter(|i| posted & 1 << i != 0) {
            if let Some((ask, _)) = w.mailbox.take(i) {
                self.at_work.push((i, ask));
            }
        }
    }

    /// The extent of request `i`, if a thread waits for it; an answer that nobody has seen yet counts.
    pub fn at_work_on(&self, w: &World, i: usize) -> Option<u32> {
        let at = self.at_work.iter().find(|(k, _)| *k == i);
        match at {
            Some((_, ask)) => w.mailbox.is_awaited(i).then_some(ask.extent),
            None if w.mailbox.ended(i).is_some() => {
                Some(w.answered[i].load(std::sync::atomic::Ordering::Relaxed))
            }
            None => None,
        }
    }

    /// The bytes of a record.
    pub fn record(&self, place: ExtentRef) -> Option<Vec<u8>> {
        let at = place.offset as usize;
        let len = HEADER_BYTES + place.len as usize;
        Some(self.extents.get(&place.extent)?[at..at + len].to_vec())
    }

    /// Answers one of its requests, if there is any.
    pub fn answer(&mut self, w: &World, which: usize, status: Status) {
        self.collect(w);
        if self.at_work.is_empty() {
            return;
        }
        let (i, ask) = self.at_work.remove(which % self.at_work.len());
        {
            let mut buffer = w.buffers[i].try_lock().expect("the agent's alone");
            let (from, to) = (ask.offset as usize, (ask.offset + ask.len) as usize);
            match (ask.kind, status) {
                (Kind::Write, Status::Ok) => {
                    self.extents.insert(ask.extent, buffer.clone());
                }
                // Half of it may have been written.
                (Kind::Write, _) => {
                    self.extents
                        .insert(ask.extent, Box::new([0xee; EXTENT_BYTES]));
                }
                (Kind::Read, Status::Ok) => {
                    let extent = self
                        .extents
                        .get(&ask.extent)
                        .expect("what is read was written");
                    buffer[from..to].copy_from_slice(&extent[from..to]);
                }
                (Kind::Read, _) => buffer[from..to].fill(0xdd),
            }
        }
        w.answered[i].store(ask.extent, std::sync::atomic::Ordering::Relaxed);
        w.mailbox.complete(i, status);
    }

    /// Time passes while a thread waits.
    pub fn step(&mut self, w: &World) {
        self.collect(w);
        let last = self.at_work.len().saturating_sub(1);
        match self.mood {
            Mood::Well => self.answer(w, last, Status::Ok),
            Mood::Away => {}
            Mood::Says(status) => self.answer(w, last, status),
            Mood::Odd => {
                let which = self.random(64);
                let status = match self.random(8) {
                    0 => Status::Unreachable,
                    1 => Status::NoRoom,
                    2 => Status::Corrupt,
                    3 => return,
                    _ => Status::Ok,
                };
                self.answer(w, which, status);
            }
        }
    }
}
