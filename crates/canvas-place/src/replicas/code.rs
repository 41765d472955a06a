//! Erasure codes: an extent is stored as k + m shards on as many donors, and any k of them restore it.
//!
//! The extent is the code word, so what is encoded together is written, freed and verified together. Its first k shards
//! are its bytes in order: a read of one page of a healthy extent needs one donor, or two where the page crosses from
//! one shard into the next. A shard that is unreachable, or silent for longer than its donor usually is, is computed
//! from k others ([`Gather`]).

use std::fmt;
use std::ops::Range;

use super::Donors;
use super::map::Slab;

/// Data shards, at least and at most.
pub const DATA: (usize, usize) = (2, 8);
/// Parity shards, at least and at most.
pub const PARITY: (usize, usize) = (1, 2);
/// Most shards of an extent.
pub const SHARDS_MAX: usize = DATA.1 + PARITY.1;
/// Shards begin and end at multiples of this.
pub const GRAIN: usize = 64;

/// An erasure code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    data: u8,
    parity: u8,
}

impl Code {
    /// The code with `data` and `parity` shards; `None` outside [`DATA`] and [`PARITY`].
    pub const fn new(data: usize, parity: usize) -> Option<Code> {
        if data < DATA.0 || data > DATA.1 || parity < PARITY.0 || parity > PARITY.1 {
            return None;
        }
        Some(Code {
            data: data as u8,
            parity: parity as u8,
        })
    }

    /// Parses a code such as `4+2`.
    pub fn named(name: &str) -> Option<Code> {
        let digit = |s: &str| match s.as_bytes() {
            [digit @ b'1'..=b'9'] => Some(usize::from(digit - b'0')),
            _ => None,
        };
        let (data, parity) = name.split_once('+')?;
        Code::new(digit(data)?, digit(parity)?)
    }

    /// Data shards: any this many shards are enough.
    pub const fn data(self) -> usize {
        self.data as usize
    }

    /// Parity shards: this many shards may be lost.
    pub const fn parity(self) -> usize {
        self.parity as usize
    }

    /// All shards, each on a donor of its own.
    pub const fn shards(self) -> usize {
        self.data() + self.parity()
    }

    /// Bytes of a shard of `bytes`. The last data shard may end with zeros.
    pub const fn shard_bytes(self, bytes: usize) -> usize {
        bytes.div_ceil(self.data()).next_multiple_of(GRAIN)
    }

    /// How far each shard is written when the first `to` of an extent's `bytes` may be.
    pub const fn shard_to(self, bytes: usize, to: usize) -> usize {
        let shard = self.shard_bytes(bytes);
        if to >= bytes {
            return shard;
        }
        to * shard / bytes / GRAIN * GRAIN
    }

    /// Where a range of an extent's `bytes` is: shards, and a range of each.
    pub fn shard_ranges(
        self,
        bytes: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = ShardRange> {
        let shard = self.shard_bytes(bytes);
        let shards = range.start / shard..range.end.div_ceil(shard);
        shards.map(move |n| {
            let from = range.start.max(n * shard);
            let to = range.end.min((n + 1) * shard);
            ShardRange {
                shard: n,
                range: from - n * shard..to - n * shard,
            }
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

/// A range of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardRange {
    /// The shard.
    pub shard: usize,
    /// The range within it.
    pub range: Range<usize>,
}

/// A donor to ask for a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The donor.
    pub donor: usize,
    /// Its handle for the slab.
    pub handle: u64,
    /// The shard that it has.
    pub shard: usize,
}

/// State of a request to a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its answer is awaited.
    Waits,
    /// Its answer is awaited for longer than usual, and not counted on.
    Late,
    /// It did not deliver.
    Failed,
    /// Its bytes have arrived.
    Got,
}

/// Gathers one range of several shards until the wanted ones are there or can be computed.
///
/// A wanted shard is requested from its own donor. Where that one is unreachable, suspect or late, others are asked so
/// that k + 1 answers are expected (late binding): the first k that arrive are used. For a whole extent one more is
/// asked from the beginning.
#[derive(Clone, Debug)]
pub struct Gather {
    code: Code,
    /// Wanted shards, a bit each.
    wants: u32,
    /// All donors that may have something are asked, and all answers awaited.
    thorough: bool,
    asked: Vec<(usize, usize, State)>,
}

impl Gather {
    /// For these shards, a bit each.
    pub fn new(code: Code, wants: u32) -> Gather {
        Gather {
            code,
            wants,
            thorough: false,
            asked: Vec::new(),
        }
    }

    /// For all shards that any donor has, including donors that are thought to lack theirs but may have it. The caller
    /// verifies what arrives.
    pub fn thorough(code: Code) -> Gather {
        Gather {
            thorough: true,
            ..Gather::new(code, (1 << code.shards()) - 1)
        }
    }

    fn shards(&self, is: impl Fn(State) -> bool) -> u32 {
        let those = self.asked.iter().filter(|(.., state)| is(*state));
        those.fold(0, |bits, (_, shard, _)| bits | 1 << shard)
    }

    /// Whether an answer may still arrive.
    pub fn waits(&self) -> bool {
        let mut all = self.asked.iter();
        all.any(|(.., state)| matches!(state, State::Waits | State::Late))
    }

    /// Whether the donor's answer is awaited, and no replacement requested.
    pub fn waits_for(&self, donor: usize) -> bool {
        let mut all = self.asked.iter();
        all.any(|(d, _, state)| *d == donor && *state == State::Waits)
    }

    /// Whether the wanted shards are there or can be computed. A thorough gathering waits for all that were asked.
    pub fn is_ready(&self) -> bool {
        let got = self.shards(|state| state == State::Got);
        match self.thorough {
            true => !self.waits(),
            false => self.wants & !got == 0 || got.count_ones() as usize >= self.code.data(),
        }
    }

    /// Whether a shard must be computed, now that it is ready.
    pub fn is_computed(&self) -> bool {
        self.wants & !self.shards(|state| state == State::Got) != 0
    }

    /// The next holder to ask; after `None` nobody else need be asked now.
    pub fn next(
        &self,
        slab: &Slab,
        extent: usize,
        donors: &(impl Donors + ?Sized),
    ) -> Option<Holder> {
        let is_new = |donor| self.asked.iter().all(|(d, ..)| *d != donor);
        let may = |c: &&super::Replica| is_new(c.donor) && donors.view(c.donor).is_up();
        let holder = |c: &super::Replica| Holder {
            donor: c.donor,
            handle: c.handle,
            shard: c.shard,
        };
        let all = slab.replicas.iter().filter(may);
        if self.thorough {
            return all.map(holder).next();
        }
        if self.is_ready() {
            return None;
        }
        let got = self.shards(|state| state == State::Got);
        let expected = got | self.shards(|state| state == State::Waits);
        let has = all.filter(|c| c.has(extent) && expected & 1 << c.shard == 0);
        let prompt = has.clone().filter(|c| !donors.view(c.donor).suspect);
        let short = self.wants & !expected;
        let is_own = |c: &&super::Replica| short & 1 << c.shard != 0;
        if let Some(own) = prompt.clone().find(is_own) {
            return Some(holder(own));
        }
        let data = self.code.data();
        let is_wide = self.wants.count_ones() as usize >= data;
        if short == 0 && !is_wide {
            return None;
        }
        let there = expected.count_ones() as usize;
        let others = prompt.map(holder).next();
        match there {
            n if n < data => others.or_else(|| has.map(holder).next()),
            n if n == data => others,
            _ => None,
        }
    }

    /// A holder was asked, or could not be.
    pub fn on_sent(&mut self, holder: Holder, sent: bool) {
        let state = if sent { State::Waits } else { State::Failed };
        self.asked.push((holder.donor, holder.shard, state));
    }

    /// A donor has answered, or (not `ok`) never will. Returns the shard, if its bytes are of use.
    pub fn on_answer(&mut self, donor: usize, ok: bool) -> Option<usize> {
        let mut all = self.asked.iter_mut();
        let open = |state: State| matches!(state, State::Waits | State::Late);
        let (_, shard, state) = all.find(|(d, _, state)| *d == donor && open(*state))?;
        *state = if ok { State::Got } else { State::Failed };
        ok.then_some(*shard)
    }

    /// A donor has been silent for longer than usual: it is not counted on any more.
    pub fn late(&mut self, donor: usize) {
        let mut all = self.asked.iter_mut();
        if let Some((.., state)) = all.find(|(d, _, s)| *d == donor && *s == State::Waits) {
            *state = State::Late;
        }
    }

    /// Whether any donor did not deliver.
    pub fn failed(&self) -> bool {
        self.asked.iter().any(|(.., s)| *s == State::Failed)
    }

    /// Donors that did not deliver may be asked again.
    pub fn retry(&mut self) {
        self.asked.retain(|(.., state)| *state != State::Failed);
    }
}

#[cfg(test)]
mod tests;
