//! What a link gives back.

use canvas_wire::frame::{Answer, Call, FromDonor};
use canvas_wire::session::Session;

use crate::error::LinkError;
use crate::pending::Arrival;

/// One thing that a link has to say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Completion<'a> {
    /// The donor answered. The answer fits the request: `Data` has as many bytes as were asked for.
    Answer {
        /// What [`crate::Link::submit`] was given.
        tag: u64,
        /// The answer, or the donor's error.
        answer: Answer<'a>,
    },
    /// No answer came in time. The link goes on; a late answer is thrown away.
    TimedOut {
        /// What [`crate::Link::submit`] was given.
        tag: u64,
    },
    /// The connection broke before the answer came.
    Lost {
        /// What [`crate::Link::submit`] was given.
        tag: u64,
    },
    /// The donor asks.
    Call {
        /// For [`crate::Link::reply`].
        id: u64,
        /// What it asks.
        call: Call<'a>,
    },
}

#[derive(Clone, Copy)]
enum Entry {
    Answer { tag: u64, start: usize, end: usize },
    Call { id: u64, start: usize, end: usize },
    TimedOut { tag: u64 },
    Lost { tag: u64 },
}

/// Completions with the bytes that they refer to. Made once and used again and again: it keeps its
/// memory when it is cleared.
#[derive(Default)]
pub struct Completions {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

impl Completions {
    /// None yet.
    pub fn new() -> Completions {
        Completions::default()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The completion of this index.
    pub fn get(&self, index: usize) -> Option<Completion<'_>> {
        Some(match *self.entries.get(index)? {
            Entry::TimedOut { tag } => Completion::TimedOut { tag },
            Entry::Lost { tag } => Completion::Lost { tag },
            Entry::Answer { tag, start, end } => {
                // It decoded when it came.
                let (_, FromDonor::Answer(answer)) =
                    FromDonor::decode(self.bytes.get(start..end)?).ok()?
                else {
                    return None;
                };
                Completion::Answer { tag, answer }
            }
            Entry::Call { id, start, end } => {
                let (_, FromDonor::Call(call)) =
                    FromDonor::decode(self.bytes.get(start..end)?).ok()?
                else {
                    return None;
                };
                Completion::Call { id, call }
            }
        })
    }

    /// All of them, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = Completion<'_>> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// The first completion of this tag from `from` on.
    pub(crate) fn find(&self, from: usize, wanted: u64) -> Option<usize> {
        let is = |e: &Entry| match *e {
            Entry::Answer { tag, .. } | Entry::TimedOut { tag } | Entry::Lost { tag } => {
                tag == wanted
            }
            Entry::Call { .. } => false,
        };
        (from..self.len()).find(|&i| is(&self.entries[i]))
    }

    pub(crate) fn timed_out(&mut self, tag: u64) {
        self.entries.push(Entry::TimedOut { tag });
    }

    pub(crate) fn lost(&mut self, tag: u64) {
        self.entries.push(Entry::Lost { tag });
    }

    /// Opens a message into our bytes, and keeps it when `arrived` finds a use for it.
    pub(crate) fn accept(
        &mut self,
        message: &[u8],
        session: &mut Session,
        arrived: impl FnOnce(u64, FromDonor<'_>) -> Result<Arrival, LinkError>,
    ) -> Result<(), LinkError> {
        let start = self.bytes.len();
        session
            .open(message, &mut self.bytes)
            .map_err(LinkError::Session)?;
        let end = self.bytes.len();
        let (id, frame) = FromDonor::decode(&self.bytes[start..end]).map_err(LinkError::Decode)?;
        match arrived(id, frame)? {
            Arrival::Answer(tag) => self.entries.push(Entry::Answer { tag, start, end }),
            Arrival::Call => self.entries.push(Entry::Call { id, start, end }),
            Arrival::Late => self.bytes.truncate(start),
        }
        Ok(())
    }
}
