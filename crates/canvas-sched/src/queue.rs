//! One tenant's requests that wait for one link, and which of its classes goes next.
//!
//! * A demand always goes before a prefetch, because a thread waits for it. A prefetch that waits long because of that
//!   is dropped for its lateness, or escalated by a thread that needs it.
//! * A write goes when there is no demand, and alternates with prefetches by bytes. But it must not starve behind
//!   demands, because reclaim that cannot write stops the program as well: while demands go, one byte in
//!   [`SWAP_OUT_PACE`] is for writes, and one in [`SWAP_OUT_PACE_PRESSED`] when [`SWAP_OUT_PRESSED`] of them wait. So a
//!   demand waits for at most one write of its own tenant, and rarely for that.

use crate::Class;
use crate::bucket::Bucket;

/// Bytes of demands that go for each byte of writes that wait behind them.
pub const SWAP_OUT_PACE: u64 = 16;
/// As [`SWAP_OUT_PACE`], when writes press.
pub const SWAP_OUT_PACE_PRESSED: u64 = 4;
/// Writes press when this many of a tenant wait for a link: as many as the mailbox of one process has, whose reclaim is
/// then blocked.
pub const SWAP_OUT_PRESSED: u32 = 8;

/// In place of a slot's number: none.
pub(crate) const NONE: u32 = u32::MAX;

/// Slots in order of arrival, linked through the slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
    pub(crate) bytes: u64,
}

impl Default for List {
    fn default() -> List {
        List {
            head: NONE,
            tail: NONE,
            len: 0,
            bytes: 0,
        }
    }
}

/// One tenant's requests for one link.
#[derive(Clone, Default, Debug)]
pub(crate) struct Flow {
    /// Waiting requests, by class.
    pub(crate) lists: [List; 3],
    /// Virtual finish of the last sent request.
    pub(crate) finish: u128,
    /// Bytes of demands sent while a write waited.
    owed: u64,
    /// Bytes of prefetches minus those of writes, since both wait.
    lead: i64,
    /// Bytes sent.
    pub(crate) sent_bytes: u64,
    /// The last decision was a drop: a demand goes first now, so that drops do not delay it.
    pub(crate) dropped: bool,
}

/// What a flow would do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    Send(Class),
    /// Its limits forbid everything that it has, until this time.
    Wait(u64),
}

impl Flow {
    pub(crate) fn list(&self, class: Class) -> &List {
        &self.lists[class as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(|l| l.len == 0)
    }

    pub(crate) fn len(&self) -> u32 {
        self.lists.iter().map(|l| l.len).sum()
    }

    /// The class to serve. `head` has the size of the first request of each class (0: none waits).
    pub(crate) fn choose(
        &self,
        head: [u32; 3],
        reads: &Bucket,
        writes: &Bucket,
        now: u64,
    ) -> Choice {
        let [demand, prefetch, out] = head;
        let out_due = (out > 0).then(|| writes.due_ns(out, now));
        let read_class = if demand > 0 {
            Class::Demand
        } else {
            Class::Prefetch
        };
        let read = demand.max(if demand > 0 { 0 } else { prefetch });
        let read_due = (read > 0).then(|| reads.due_ns(read, now));
        match (read_due, out_due) {
            (Some(r), Some(o)) if r <= now && o <= now => {
                let out_first = if demand > 0 {
                    self.owed >= self.pace() * u64::from(out)
                } else {
                    self.lead > 0
                };
                Choice::Send(if out_first {
                    Class::SwapOut
                } else {
                    read_class
                })
            }
            (Some(r), _) if r <= now => Choice::Send(read_class),
            (_, Some(o)) if o <= now => Choice::Send(Class::SwapOut),
            (r, o) => Choice::Wait(r.unwrap_or(u64::MAX).min(o.unwrap_or(u64::MAX))),
        }
    }

    fn pace(&self) -> u64 {
        if self.list(Class::SwapOut).len >= SWAP_OUT_PRESSED {
            SWAP_OUT_PACE_PRESSED
        } else {
            SWAP_OUT_PACE
        }
    }

    /// A request of this class was taken from its list to be sent.
    pub(crate) fn sent(&mut self, class: Class, bytes: u32) {
        self.dropped = false;
        self.sent_bytes += u64::from(bytes);
        let bytes = i64::from(bytes);
        match class {
            Class::Demand => self.owed += bytes as u64,
            Class::Prefetch => self.lead += bytes,
            Class::SwapOut => {
                self.owed = 0;
                self.lead -= bytes;
            }
        }
        self.settle();
    }

    /// After any list became shorter: resets what counts only while others wait.
    pub(crate) fn settle(&mut self) {
        if self.list(Class::SwapOut).len == 0 {
            self.owed = 0;
            self.lead = 0;
        } else if self.list(Class::Prefetch).len == 0 {
            self.lead = 0;
        }
    }
}
