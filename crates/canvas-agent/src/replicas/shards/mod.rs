//! Slabs that lie in shards (`--copies 4+2`): reading and repairing what no donor has whole.
//!
//! Each extent is coded by itself ([`crate::erasure`]), so writes and their ends are those of copies
//! ([`super::write`]), but that each donor gets another part of the extent's bytes. What differs is here.

mod read;
mod repair;

pub(super) use read::Reads;
pub(super) use repair::Gathering;

use std::sync::Arc;

use canvas_place::replicas::Code;
use canvas_shm::far::{EXTENT_BYTES, SLAB_BYTES, SLAB_EXTENTS};

use super::Replicas;
use crate::erasure::{Coder, Piece};
use crate::log::About;
use crate::store::Event;

/// What a donor lends for a slab.
pub(super) fn lent_bytes(code: Option<Code>) -> u64 {
    let shard = code.map(|code| code.shard_bytes(EXTENT_BYTES) * SLAB_EXTENTS);
    shard.unwrap_or(SLAB_BYTES) as u64
}

impl Replicas {
    /// The code by which a slab lies in shards, if it does.
    pub(super) fn code_of(&self, slab: u32) -> Option<Code> {
        self.map.get(&slab).and_then(|entry| entry.code)
    }

    /// What computes this code's shards.
    pub(super) fn coder(&mut self, code: Code) -> Arc<Coder> {
        if let Some(coder) = self.coders.iter().find(|c| c.code() == code) {
            return Arc::clone(coder);
        }
        let coder = Arc::new(Coder::new(code));
        self.coders.push(Arc::clone(&coder));
        coder
    }

    /// Has the donor this extent's shard, as far as is known?
    fn has_shard(&self, slab: u32, donor: usize, within: usize) -> bool {
        let replicas = self.map.get(&slab).map(|entry| &entry.replicas);
        let mut all = replicas.into_iter().flatten();
        all.any(|c| c.donor == donor && c.has(within))
    }

    /// May a donor that does not serve now have a shard of this extent? Without `certain` also one that lacks
    /// it, as far as is known.
    fn is_shard_away(&self, slab: u32, within: usize, certain: bool) -> bool {
        let replicas = self.map.get(&slab).map(|entry| &entry.replicas);
        let mut all = replicas.into_iter().flatten();
        all.any(|c| !self.donors[c.donor].is_up() && (!certain || c.has(within)))
    }

    /// Pieces of an extent of which some may be damaged or old: those first that should be good, without those that
    /// look as if nothing had ever been written where nothing should have been.
    fn judge_pieces(&self, slab: u32, within: usize, mut pieces: Vec<Piece>) -> Vec<Piece> {
        let is_blank = |p: &Piece| p.bytes.iter().all(|b| *b == 0);
        pieces.retain(|p| self.has_shard(slab, p.donor, within) || !is_blank(p));
        pieces.sort_by_key(|p| !self.has_shard(slab, p.donor, within));
        pieces
    }

    /// What the extent's shards are in this range is known: who has another thing lacks it. True when all that
    /// was counted on was right.
    fn blame(&mut self, slab: u32, within: usize, right: &[&[u8]], pieces: &[Piece]) -> bool {
        let mut all_right = true;
        for piece in pieces {
            if right[piece.shard] != piece.bytes && self.has_shard(slab, piece.donor, within) {
                all_right = false;
                self.lacks(slab, piece.donor, within);
                let text = format_args!("its shard {} of an extent is damaged or old", piece.shard);
                self.line(About::Corrupt, piece.donor, text);
            }
        }
        all_right
    }

    /// No choice of shards gives the extent.
    fn tell_unrepairable(&mut self, extent: u32) {
        let line = format!("the shards of extent {extent} that can be had do not give it");
        self.events.push(Event::Line(About::Corrupt, line));
    }
}
