//! Slabs in shards (`--copies 4+2`): reading and repairing slabs of which no donor has a full copy.
//!
//! Each extent is encoded separately ([`crate::erasure`]), so writes work as for copies ([`super::write`]), except that
//! each donor gets another part of the encoded bytes. This module has what differs.

mod read;
mod repair;

pub(super) use read::Reads;
pub(super) use repair::Gathering;

use std::sync::Arc;

use canvas_place::replicas::Code;
use canvas_shm::far::{EXTENT_BYTES, SLAB_BYTES, SLAB_EXTENTS};

use super::Replicas;
use crate::erasure::{Coder, Piece};
use crate::store::Event;
use crate::store::LogTopic;

/// Bytes that a donor lends for a slab.
pub(super) fn lent_bytes(code: Option<Code>) -> u64 {
    let shard = code.map(|code| code.shard_bytes(EXTENT_BYTES) * SLAB_EXTENTS);
    shard.unwrap_or(SLAB_BYTES) as u64
}

impl Replicas {
    /// The slab's erasure code, if it is in shards.
    pub(super) fn code_of(&self, slab: u32) -> Option<Code> {
        self.map.get(&slab).and_then(|entry| entry.code)
    }

    /// The encoder of this code.
    pub(super) fn coder(&mut self, code: Code) -> Arc<Coder> {
        if let Some(coder) = self.coders.iter().find(|c| c.code() == code) {
            return Arc::clone(coder);
        }
        let coder = Arc::new(Coder::new(code));
        self.coders.push(Arc::clone(&coder));
        coder
    }

    /// Whether the donor has its shard of this extent, as far as is known.
    fn has_shard(&self, slab: u32, donor: usize, within: usize) -> bool {
        let replicas = self.map.get(&slab).map(|entry| &entry.replicas);
        let mut all = replicas.into_iter().flatten();
        all.any(|c| c.donor == donor && c.has(within))
    }

    /// Whether a donor that is down may have a shard of this extent. Without `certain`, donors that lack it as far as
    /// is known count as well.
    fn is_shard_away(&self, slab: u32, within: usize, certain: bool) -> bool {
        let replicas = self.map.get(&slab).map(|entry| &entry.replicas);
        let mut all = replicas.into_iter().flatten();
        all.any(|c| !self.donors[c.donor].is_up() && (!certain || c.has(within)))
    }

    /// Sorts pieces of an extent, some of which may be damaged or old: those that should be good come first, and blank
    /// pieces from donors that should have nothing are dropped.
    fn judge_pieces(&self, slab: u32, within: usize, mut pieces: Vec<Piece>) -> Vec<Piece> {
        let is_blank = |p: &Piece| p.bytes.iter().all(|b| *b == 0);
        pieces.retain(|p| self.has_shard(slab, p.donor, within) || !is_blank(p));
        pieces.sort_by_key(|p| !self.has_shard(slab, p.donor, within));
        pieces
    }

    /// The extent's correct shards are known in this range: a donor with other bytes lacks its shard. True when all
    /// donors that were relied on were right.
    fn blame(&mut self, slab: u32, within: usize, right: &[&[u8]], pieces: &[Piece]) -> bool {
        let mut all_right = true;
        for piece in pieces {
            if right[piece.shard] != piece.bytes && self.has_shard(slab, piece.donor, within) {
                all_right = false;
                self.lacks(slab, piece.donor, within);
                let text = format_args!("its shard {} of an extent is damaged or old", piece.shard);
                self.line(LogTopic::Corrupt, piece.donor, text);
            }
        }
        all_right
    }

    /// Logs that no combination of shards gives the extent.
    fn log_unrepairable(&mut self, extent: u32) {
        let line = format!("the shards of extent {extent} that can be read do not restore it");
        self.events.push(Event::Log(LogTopic::Corrupt, line));
    }
}
