//! How much a donor lends: the decision of Infiniswap's daemon.
//!
//! The daemon of Infiniswap (NSDI'17, §4.3) watches its host's free memory as an exponentially weighted moving average,
//! evicts slabs when that falls below its headroom, and offers new ones when it is well above it for some time. Here
//! the average decides too, but a single low sample already stops lending, because the reserve must hold at every
//! moment and not on average.
//!
//! ```text
//!      0        reserve       evict below        expand above          available memory
//!      ├───────────┼───────────────┼──────────────────┼──────────────────────►
//!       never       evict           hold               after `expand_hits` samples: lend more
//! ```

use canvas_types::controller::ewma;

use crate::in_a_row;

/// The constants of the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Most that is ever lent.
    pub memory_bytes: u64,
    /// Memory always left to the host.
    pub reserve_bytes: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Below this average, memory is reclaimed. At least `reserve_bytes`.
    pub evict_below_bytes: u64,
    /// Above this average, more may be lent. At least `evict_below_bytes`.
    pub expand_above_bytes: u64,
    /// Consecutive averages below `evict_below_bytes` that cause an eviction (Infiniswap's: 1).
    pub evict_hits: u32,
    /// Consecutive averages above `expand_above_bytes` that cause an expansion (Infiniswap's: 20).
    pub expand_hits: u32,
    /// Most slabs of one eviction.
    pub evict_slabs_max: u32,
    /// Slabs of one expansion.
    pub expand_slabs: u32,
}

impl Config {
    /// Default distances: reclaims memory below a quarter above the reserve, and lends more from a half above it; both
    /// at least two slabs apart, so that one slab lent or freed does not turn one decision into the other.
    pub fn new(memory_bytes: u64, reserve_bytes: u64, slab_bytes: u64) -> Config {
        let step = (reserve_bytes / 4).max(2 * slab_bytes);
        Config {
            memory_bytes,
            reserve_bytes,
            slab_bytes,
            evict_below_bytes: reserve_bytes.saturating_add(step),
            expand_above_bytes: reserve_bytes.saturating_add(2 * step),
            evict_hits: 1,
            expand_hits: 20,
            evict_slabs_max: 16,
            expand_slabs: 16,
        }
    }
}

/// One measurement of the host and the donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Memory available to the host (`MemAvailable`).
    pub available_bytes: u64,
    /// Lent slabs, at full size.
    pub lent_bytes: u64,
    /// Memory that they take: a slab takes memory where it was written.
    pub touched_bytes: u64,
    /// Memory that slabs take that are being evicted.
    pub leaving_bytes: u64,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Do nothing.
    Hold,
    /// Reclaim this many slabs.
    Evict {
        /// At least 1.
        slabs: u32,
    },
    /// The limit on lending was raised.
    Expand,
}

/// Watches one host's memory.
#[derive(Clone, Debug)]
pub struct Headroom {
    config: Config,
    average_bytes: Option<u64>,
    last: Sample,
    low: u32,
    high: u32,
    limit_bytes: u64,
}

impl Headroom {
    /// Lends nothing before the first sample.
    pub fn new(config: Config) -> Headroom {
        Headroom {
            config,
            average_bytes: None,
            last: Sample::default(),
            low: 0,
            high: 0,
            limit_bytes: config.memory_bytes,
        }
    }

    /// Adds a sample and decides.
    pub fn observe(&mut self, sample: Sample) -> Decision {
        let c = &self.config;
        let average = match self.average_bytes {
            None => sample.available_bytes,
            // Infiniswap's weight.
            Some(before) => ewma::<7, 10>(before, sample.available_bytes),
        };
        self.average_bytes = Some(average);
        self.last = sample;
        self.low = in_a_row(self.low, average < c.evict_below_bytes);
        self.high = in_a_row(self.high, average > c.expand_above_bytes);
        if self.low >= c.evict_hits.max(1) {
            // Lends nothing more until the next expansion, evicted slabs or not.
            self.limit_bytes = self.limit_bytes.min(sample.lent_bytes);
            return self.evict(average);
        }
        if self.high >= c.expand_hits.max(1) && self.limit_bytes < c.memory_bytes {
            self.high = 0;
            let step = u64::from(c.expand_slabs.max(1)).saturating_mul(c.slab_bytes);
            self.limit_bytes = self
                .limit_bytes
                .max(sample.lent_bytes)
                .saturating_add(step)
                .min(c.memory_bytes);
            return Decision::Expand;
        }
        Decision::Hold
    }

    /// Evicts as many slabs as raise the average half the way to where lending begins again, less what is leaving
    /// already.
    fn evict(&mut self, average: u64) -> Decision {
        let c = &self.config;
        let target = c.evict_below_bytes + (c.expand_above_bytes - c.evict_below_bytes) / 2;
        let missing = target
            .saturating_sub(average)
            .saturating_sub(self.last.leaving_bytes);
        let staying = self
            .last
            .touched_bytes
            .saturating_sub(self.last.leaving_bytes);
        if missing == 0 || staying == 0 || c.slab_bytes == 0 {
            return Decision::Hold;
        }
        self.low = 0;
        let slabs = missing
            .min(staying)
            .div_ceil(c.slab_bytes)
            .min(u64::from(c.evict_slabs_max.max(1)));
        Decision::Evict {
            slabs: slabs as u32,
        }
    }

    /// What may be lent beyond `lent_bytes` now, in whole slabs: below the limit, and such that the host stays above
    /// the eviction threshold even when all lent memory is written.
    pub fn free_bytes(&self, lent_bytes: u64) -> u64 {
        let slab = self.config.slab_bytes.max(1);
        self.room_bytes(lent_bytes) / slab * slab
    }

    /// As [`Headroom::free_bytes`], to the byte.
    fn room_bytes(&self, lent_bytes: u64) -> u64 {
        let c = &self.config;
        let Some(average) = self.average_bytes else {
            return 0;
        };
        let available = average.min(self.last.available_bytes);
        let unwritten = lent_bytes.saturating_sub(self.last.touched_bytes);
        let by_host = available
            .saturating_sub(c.evict_below_bytes)
            .saturating_sub(unwritten);
        let by_limit = self.limit_bytes.saturating_sub(lent_bytes);
        by_host.min(by_limit)
    }

    /// Whether `bytes` more, a part of a slab, may be lent now.
    pub fn admits_bytes(&self, lent_bytes: u64, bytes: u64) -> bool {
        self.room_bytes(lent_bytes) >= bytes.max(1)
    }

    /// Whether one more slab may be lent now.
    pub fn admits(&self, lent_bytes: u64) -> bool {
        self.free_bytes(lent_bytes) >= self.config.slab_bytes.max(1)
    }

    /// Whether the host is short of memory: below the eviction threshold.
    pub fn pressure(&self) -> bool {
        self.average_bytes
            .is_none_or(|a| a.min(self.last.available_bytes) < self.config.evict_below_bytes)
    }

    /// The average of the host's available memory.
    pub fn average_bytes(&self) -> u64 {
        self.average_bytes.unwrap_or(0)
    }

    /// The current limit on lending, at most `memory_bytes`.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

#[cfg(test)]
mod tests;
