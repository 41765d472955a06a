//! Which slabs a donor frees at once, because its host runs out of memory before clients can move them.
//!
//! An eviction ([`crate::headroom`]) gives clients seconds. Where the host's own programs grow faster than clients
//! move, that is too long: the kernel kills the donor, and all slabs are lost. So the donor frees slabs earlier the
//! sooner memory runs out, in three steps:
//!
//! ```text
//!      0      an eighth        a quarter          half            reserve     available memory
//!      ├──────────┼────────────────┼────────────────┼────────────────┼──────────────►
//!       all slabs   not sole copies   spare copies     clients have time to move
//! ```
//!
//! Each mark is compared with the memory expected after a while ([`STEPS`]) at the current rate of decline.

/// What a slab is worth to its client, as the client reported; without a report it is [`Worth::Sole`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Worth {
    /// Other copies stay, and their donors know that theirs are worth more.
    Spare = 2,
    /// There are other copies, and the client relies on this one.
    Kept = 1,
    /// No other copy is known.
    #[default]
    Sole = 0,
}

impl Worth {
    /// Decodes a number in a frame; an unknown number is [`Worth::Sole`].
    pub fn of_number(number: u64) -> Worth {
        match number {
            2 => Worth::Spare,
            1 => Worth::Kept,
            _ => Worth::Sole,
        }
    }

    /// Encodes it for a frame.
    pub fn number(self) -> u64 {
        self as u64
    }
}

/// When slabs of one worth are freed.
struct Step {
    worth: Worth,
    /// The mark is the reserve divided by this,
    part: u64,
    /// and is compared with the memory expected this long from now.
    ahead_ms: u64,
}

/// The slabs that are worth least go first.
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
/// Freeing a slab that takes less memory helps nobody.
pub const GAIN_BYTES_MIN: u64 = 1 << 20;
/// Length of a sample of the rate of decline.
pub const SAMPLE_MS: u64 = 100;
/// Samples kept. A single one proves nothing: a program that takes much at once may need no more.
const SAMPLES: usize = 5;
/// How long an unchanged figure counts as older than the last freeing of slabs.
const STALE_MS: u64 = 200;

/// The state of a host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostSample {
    /// Memory available without swapping.
    pub available_bytes: u64,
    /// Free swap space: the kernel kills no process while it can swap.
    pub swap_free_bytes: u64,
    /// Memory to leave to the host.
    pub reserve_bytes: u64,
    /// Rate at which available memory declines, in bytes a second.
    pub fall_bytes_s: u64,
}

/// A lent slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent<T> {
    /// The caller's name for it.
    pub slab: T,
    /// Memory that it takes.
    pub bytes: u64,
    /// Its worth to its client.
    pub worth: Worth,
    /// Its client has been asked to move it.
    pub is_leaving: bool,
    /// Its recent use.
    pub ops: u64,
}

impl HostSample {
    /// Bytes missing at a step's mark.
    fn missing_bytes(&self, step: &Step) -> u64 {
        let mark = (self.reserve_bytes / step.part).max(MARK_BYTES_MIN);
        let falls = u128::from(self.fall_bytes_s) * u128::from(step.ahead_ms) / 1000;
        // A sole copy is worth more than the time that swapping costs the host.
        let left = match step.worth {
            Worth::Sole => self.available_bytes.saturating_add(self.swap_free_bytes),
            Worth::Kept | Worth::Spare => self.available_bytes,
        };
        let needed = u128::from(mark) + falls;
        u64::try_from(needed.saturating_sub(u128::from(left))).unwrap_or(u64::MAX)
    }

    /// Whether anything must be freed, if anything can be.
    pub fn is_short(&self) -> bool {
        STEPS.iter().any(|step| self.missing_bytes(step) > 0)
    }

    /// Whether memory will be below the reserve in a second, so that it must be checked more often.
    pub fn is_near(&self) -> bool {
        self.available_bytes.saturating_sub(self.fall_bytes_s) < self.reserve_bytes
            || self.is_short()
    }

    /// The slabs to free now, until nothing is missing: of those that may go, first the ones that are leaving already,
    /// then the least used.
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

/// Keeps earlier measurements.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Start of the current sample: time and available memory.
    since: Option<(u64, u64)>,
    /// Bytes freed for the host since then.
    freed_bytes: u64,
    falls_bytes_s: [u64; SAMPLES],
    at: usize,
    /// When slabs were last freed, and the memory available before.
    acted: Option<(u64, u64)>,
}

impl Watch {
    /// Adds a measurement. Times are in milliseconds of the caller's clock.
    pub fn sample(&mut self, now_ms: u64, available_bytes: u64) {
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

    /// Rate at which available memory declines: the median of the last samples.
    pub fn fall_bytes_s(&self) -> u64 {
        let mut falls = self.falls_bytes_s;
        falls.sort_unstable();
        falls[SAMPLES / 2]
    }

    /// Whether this figure is probably older than the last freeing of slabs.
    pub fn is_stale(&self, now_ms: u64, available_bytes: u64) -> bool {
        self.acted.is_some_and(|(when_ms, before)| {
            before == available_bytes && now_ms.saturating_sub(when_ms) < STALE_MS
        })
    }

    /// Records that slabs of `bytes` were freed after this measurement.
    pub fn freed(&mut self, now_ms: u64, available_bytes: u64, bytes: u64) {
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
        self.acted = Some((now_ms, available_bytes));
    }
}

#[cfg(test)]
mod tests;
