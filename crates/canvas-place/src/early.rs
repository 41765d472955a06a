//! Which slabs a donor frees at once, because its host's memory ends before clients can move them.
//!
//! An eviction ([`crate::headroom`]) gives clients seconds. Where the host's own programs grow faster
//! than clients move, those seconds are too many: the kernel kills the donor, and all slabs are gone.
//! So what is lent goes earlier the nearer that end is, in three steps:
//!
//! ```text
//!      0      an eighth        a quarter          half            reserve     available memory
//!      ├──────────┼────────────────┼────────────────┼────────────────┼──────────────►
//!       all slabs   not sole copies   spare copies     clients have their time
//! ```
//!
//! Each mark is where memory will be after a while ([`STEPS`]) at the rate at which it falls now.

/// What a slab is worth to its client, as that has said; a slab of which it has said nothing is the
/// [`Worth::Sole`] one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Worth {
    /// Other copies stay, whose donors were told that they are worth more.
    Spare = 2,
    /// There are other copies, which count on this one.
    Kept = 1,
    /// No other copy is known.
    #[default]
    Sole = 0,
}

impl Worth {
    /// The one of this number in a frame; what is unknown is worth the most.
    pub fn of_number(number: u64) -> Worth {
        match number {
            2 => Worth::Spare,
            1 => Worth::Kept,
            _ => Worth::Sole,
        }
    }

    /// Its number in a frame.
    pub fn number(self) -> u64 {
        self as u64
    }
}

/// When slabs of which worth go.
struct Step {
    worth: Worth,
    /// The mark is the reserve by this,
    part: u64,
    /// and is looked at so far ahead.
    ahead_ms: u64,
}

/// What is worth least goes first.
const STEPS: [Step; 3] = [
    Step {
        worth: Worth::Spare,
        part: 2,
        ahead_ms: 1000,
    },
    Step {
        worth: Worth::Kept,
        part: 4,
        ahead_ms: 500,
    },
    Step {
        worth: Worth::Sole,
        part: 8,
        ahead_ms: 250,
    },
];

/// No mark is lower, however small the reserve is.
pub const MARK_BYTES_MIN: u64 = 32 << 20;
/// A slab that takes less saves nobody.
pub const GAIN_BYTES_MIN: u64 = 1 << 20;
/// The rate is taken over this time, each.
pub const SAMPLE_MS: u64 = 100;
/// So many of them are remembered. One alone says nothing: a program that takes much at once may have
/// what it wants.
const SAMPLES: usize = 5;
/// A figure that has not changed since slabs were freed is one of before, for so long.
const STALE_MS: u64 = 200;

/// How a host is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// What it could still use without swapping.
    pub available_bytes: u64,
    /// What it could swap out: the kernel kills nobody while it can.
    pub swap_free_bytes: u64,
    /// What is to be left to it.
    pub reserve_bytes: u64,
    /// What it has less every second.
    pub fall_bytes_s: u64,
}

/// A slab that is lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent<T> {
    /// By the caller's name for it.
    pub slab: T,
    /// What of it takes memory.
    pub bytes: u64,
    /// What it is worth to its client.
    pub worth: Worth,
    /// Its client was told to move it.
    pub is_leaving: bool,
    /// How much it was used of late.
    pub ops: u64,
}

impl Look {
    /// What is missing at a step's mark.
    fn missing_bytes(&self, step: &Step) -> u64 {
        let mark = (self.reserve_bytes / step.part).max(MARK_BYTES_MIN);
        let falls = u128::from(self.fall_bytes_s) * u128::from(step.ahead_ms) / 1000;
        // What is the only copy is worth more than the host's time to swap.
        let left = match step.worth {
            Worth::Sole => self.available_bytes.saturating_add(self.swap_free_bytes),
            Worth::Kept | Worth::Spare => self.available_bytes,
        };
        let needed = u128::from(mark) + falls;
        u64::try_from(needed.saturating_sub(u128::from(left))).unwrap_or(u64::MAX)
    }

    /// Must anything be freed, if anything can be?
    pub fn is_short(&self) -> bool {
        STEPS.iter().any(|step| self.missing_bytes(step) > 0)
    }

    /// Will it be below the reserve in a second? Then it is looked at more often.
    pub fn is_near(&self) -> bool {
        self.available_bytes.saturating_sub(self.fall_bytes_s) < self.reserve_bytes
            || self.is_short()
    }

    /// The slabs to free now: of those that may go what was told to go first, then what is used least,
    /// until nothing is missing.
    pub fn due<T: Copy>(&self, lent: &[Lent<T>]) -> Vec<Lent<T>> {
        let mut order: Vec<&Lent<T>> = lent.iter().filter(|s| s.bytes >= GAIN_BYTES_MIN).collect();
        order.sort_by_key(|s| (std::cmp::Reverse(s.worth.number()), !s.is_leaving, s.ops));
        let mut left = order.into_iter().peekable();
        let (mut due, mut freed) = (Vec::new(), 0u64);
        for step in &STEPS {
            let missing = self.missing_bytes(step);
            while freed < missing
                && let Some(s) = left.next_if(|s| s.worth.number() >= step.worth.number())
            {
                freed += s.bytes;
                due.push(*s);
            }
        }
        due
    }
}

/// What is remembered of earlier looks.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The start of the present sample: when, and what was available.
    since: Option<(u64, u64)>,
    /// What was freed for the host's sake since.
    freed_bytes: u64,
    falls_bytes_s: [u64; SAMPLES],
    at: usize,
    /// When slabs were freed, and what was available before.
    acted: Option<(u64, u64)>,
}

impl Watch {
    /// Takes a look in. Times are milliseconds of the caller's.
    pub fn look(&mut self, now_ms: u64, available_bytes: u64) {
        let Some((since_ms, before)) = self.since else {
            self.since = Some((now_ms, available_bytes));
            return;
        };
        let ms = now_ms.saturating_sub(since_ms);
        if ms < SAMPLE_MS {
            return;
        }
        let had = before.saturating_add(self.freed_bytes);
        let fell = u128::from(had.saturating_sub(available_bytes));
        let rate = u64::try_from(fell * 1000 / u128::from(ms)).unwrap_or(u64::MAX);
        self.falls_bytes_s[self.at] = rate;
        self.at = (self.at + 1) % SAMPLES;
        self.since = Some((now_ms, available_bytes));
        self.freed_bytes = 0;
    }

    /// What the host has less every second: the median of the last samples.
    pub fn fall_bytes_s(&self) -> u64 {
        let mut falls = self.falls_bytes_s;
        falls.sort_unstable();
        falls[SAMPLES / 2]
    }

    /// Is the figure one of before slabs were freed?
    pub fn is_stale(&self, now_ms: u64, available_bytes: u64) -> bool {
        self.acted.is_some_and(|(when_ms, before)| {
            before == available_bytes && now_ms.saturating_sub(when_ms) < STALE_MS
        })
    }

    /// Slabs of so many bytes were freed after this look.
    pub fn freed(&mut self, now_ms: u64, available_bytes: u64, bytes: u64) {
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
        self.acted = Some((now_ms, available_bytes));
    }
}

#[cfg(test)]
mod tests;
