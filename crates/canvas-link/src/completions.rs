//! Results that a link returns.

use canvas_wire::frame::{Answer, Call, FromDonor};
use canvas_wire::session::Session;

use crate::error::LinkError;
use crate::pending::Arrival;

/// An event on a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Completion<'a> {
    /// The donor answered. The answer fits the request: `Data` has exactly the bytes requested.
    Answer {
        /// The tag given to [`crate::Link::submit`].
        tag: u64,
        /// The answer, or the donor's error.
        answer: Answer<'a>,
    },
    /// No answer came in time. The link stays up; a late answer is dropped.
    TimedOut {
        /// The tag given to [`crate::Link::submit`].
        tag: u64,
    },
    /// The connection broke before the answer came.
    Lost {
        /// The tag given to [`crate::Link::submit`].
        tag: u64,
    },
    /// The donor sent a request of its own.
    Call {
        /// Identifies the call in [`crate::Link::reply`].
        id: u64,
        /// The request.
        call: Call<'a>,
    },
}

#[derive(Clone, Copy)]
enum Entry {
    Answer {
        tag: u64,
        start: usize,
        end: usize,
    },
    Call {
        id: u64,
        start: usize,
        end: usize,
    },
    /// Data that arrived without a frame.
    Data {
        tag: u64,
        start: usize,
        end: usize,
    },
    Done {
        tag: u64,
    },
    TimedOut {
        tag: u64,
    },
    Lost {
        tag: u64,
    },
}

impl Entry {
    /// Tag of the request that it completes; `None` for a call.
    fn tag(&self) -> Option<u64> {
        match *self {
            Entry::Answer { tag, .. }
            | Entry::Data { tag, .. }
            | Entry::Done { tag }
            | Entry::TimedOut { tag }
            | Entry::Lost { tag } => Some(tag),
            Entry::Call { .. } => None,
        }
    }
}

/// Completions with the bytes that they refer to. Meant to be reused: clearing keeps the memory.
#[derive(Default)]
pub struct Completions {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

impl Completions {
    /// An empty list for [`crate::Link::poll`].
    pub fn new() -> Completions {
        Completions::default()
    }

    /// Removes all completions.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    /// Number of completions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no completions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The completion with this index.
    pub fn get(&self, index: usize) -> Option<Completion<'_>> {
        Some(match *self.entries.get(index)? {
            Entry::TimedOut { tag } => Completion::TimedOut { tag },
            Entry::Lost { tag } => Completion::Lost { tag },
            Entry::Done { tag } => Completion::Answer {
                tag,
                answer: Answer::Done,
            },
            Entry::Data { tag, start, end } => Completion::Answer {
                tag,
                answer: Answer::Data(self.bytes.get(start..end)?),
            },
            Entry::Answer { tag, start, end } => {
                // It decoded when it arrived.
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

    /// All completions, in the order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = Completion<'_>> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Index of the first completion with this tag, from `from` on.
    pub(crate) fn find(&self, from: usize, wanted: u64) -> Option<usize> {
        (from..self.len()).find(|&i| self.entries[i].tag() == Some(wanted))
    }

    /// Passes to `see`, from index `from` on, the completions with an `own` tag, which it removes,
    /// and the donor's calls, which stay.
    pub(crate) fn sift(
        &mut self,
        from: usize,
        own: impl Fn(u64) -> bool,
        mut see: impl FnMut(Completion<'_>),
    ) {
        let mut kept = from;
        for i in from..self.entries.len() {
            let entry = self.entries[i];
            let is_own = entry.tag().is_some_and(&own);
            if (is_own || matches!(entry, Entry::Call { .. }))
                && let Some(completion) = self.get(i)
            {
                see(completion);
            }
            if !is_own {
                self.entries[kept] = entry;
                kept += 1;
            }
        }
        self.entries.truncate(kept);
    }

    /// Adds the answer to a read, whose bytes `put` appends.
    pub(crate) fn data(&mut self, tag: u64, put: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        put(&mut self.bytes);
        let end = self.bytes.len();
        self.entries.push(Entry::Data { tag, start, end });
    }

    /// Adds the completion of a write.
    pub(crate) fn done(&mut self, tag: u64) {
        self.entries.push(Entry::Done { tag });
    }

    pub(crate) fn timed_out(&mut self, tag: u64) {
        self.entries.push(Entry::TimedOut { tag });
    }

    pub(crate) fn lost(&mut self, tag: u64) {
        self.entries.push(Entry::Lost { tag });
    }

    /// Opens a message into the buffer, and keeps it if `arrived` has a use for it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sifting_takes_out_what_is_own_and_keeps_the_order() {
        let mut c = Completions::new();
        c.lost(8);
        c.done(1);
        c.data(9, |b| b.extend_from_slice(b"own"));
        c.data(2, |b| b.extend_from_slice(b"theirs"));
        c.timed_out(9);
        let mut seen = 0;
        c.sift(
            1,
            |tag| tag >= 8,
            |completion| {
                seen += 1;
                assert!(matches!(
                    completion,
                    Completion::TimedOut { tag: 9 }
                        | Completion::Answer {
                            tag: 9,
                            answer: Answer::Data(b"own")
                        }
                ));
            },
        );
        assert_eq!(seen, 2);
        let left: Vec<Completion<'_>> = c.iter().collect();
        let answer = |tag, answer| Completion::Answer { tag, answer };
        assert_eq!(
            left,
            [
                Completion::Lost { tag: 8 },
                answer(1, Answer::Done),
                answer(2, Answer::Data(b"theirs"))
            ]
        );
    }
}
