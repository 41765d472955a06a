//! Encodes a slab's replicas as a line of the journal.

use canvas_place::replicas::map::{Gaps, REPLICAS_MAX};
use canvas_place::replicas::worth::ReportedWorth;
use canvas_place::replicas::{Code, Replica, Slab};

/// Bytes of a slab's line in the journal.
pub const LINE_BYTES: usize = 32 * REPLICAS_MAX;

/// Index in a line of the disk's state: 0 for all that was written, or a constant below.
const DISK: usize = 4;
/// Index in a replica's part of its shard number.
const SHARD: usize = 5;
/// Index in a line of the slab's erasure code.
const CODE: usize = 6;
/// The disk lacks some extents.
const DISK_LACKS: u8 = 1;
/// The disk has nothing.
const DISK_EMPTY: u8 = 2;

/// Encodes a slab: all zeros when it has no replica and the disk lacks nothing.
pub fn to_line(slab: &Slab) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    for (part, replica) in line.chunks_exact_mut(32).zip(&slab.replicas) {
        part[0] = 1;
        part[1] = replica.missing.is_none().into();
        part[SHARD] = replica.shard as u8;
        part[2..4].copy_from_slice(&(replica.donor as u16).to_le_bytes());
        part[8..16].copy_from_slice(&replica.handle.to_le_bytes());
        part[16..].copy_from_slice(&replica.run);
    }
    line[DISK] = match slab.may_be_on_disk {
        _ if slab.disk.is_none() => 0,
        true => DISK_LACKS,
        false => DISK_EMPTY,
    };
    line[CODE] = slab.code.map_or(0, |c| (c.data() << 4 | c.parity()) as u8);
    line
}

/// Decodes a slab; a copy that is not known to be complete lacks everything.
pub fn from_line(line: &[u8; LINE_BYTES]) -> Slab {
    let mut slab = Slab::default();
    for part in line.as_chunks::<32>().0.iter().filter(|p| p[0] == 1) {
        let mut replica = Replica::whole(
            u16::from_le_bytes([part[2], part[3]]).into(),
            *part[16..].first_chunk().expect("16 bytes"),
            u64::from_le_bytes(*part[8..].first_chunk().expect("8 bytes")),
        );
        replica.shard = part[SHARD].into();
        replica.reported = ReportedWorth::unknown();
        if part[1] == 0 {
            replica.lacks_all();
        }
        slab.replicas.push(replica);
    }
    let code = usize::from(line[CODE]);
    slab.code = Code::new(code >> 4, code & 15);
    let shards = slab.code.map_or(1, Code::shards);
    slab.replicas.retain(|c| c.shard < shards);
    slab.may_be_on_disk = line[DISK] != DISK_EMPTY;
    if line[DISK] != 0 {
        slab.disk = Gaps::all();
    }
    slab
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The journal does not keep what the donor was sent.
    fn replica(donor: usize) -> Replica {
        Replica {
            reported: ReportedWorth::unknown(),
            ..Replica::whole(donor, [donor as u8; 16], 77 + donor as u64)
        }
    }

    #[test]
    fn the_journal_brings_shards_back() {
        let code = Code::new(8, 2);
        let shard = |n| Replica {
            shard: n,
            ..replica(11 - n)
        };
        let slab = Slab {
            code,
            replicas: (0..10).map(shard).collect(),
            ..Slab::default()
        };
        let again = from_line(&to_line(&slab));
        assert_eq!((again.code, again.replicas), (code, slab.replicas));
        // The code of a slab without shards is kept as well.
        let empty = Slab {
            code,
            ..Slab::default()
        };
        assert_eq!(from_line(&to_line(&empty)).code, code);
    }

    #[test]
    fn the_journal_brings_replicas_back() {
        let mut slab = Slab {
            replicas: vec![replica(0), replica(3)],
            ..Slab::default()
        };
        slab.replicas[1].lacks(9);
        let again = from_line(&to_line(&slab));
        slab.replicas[1].lacks_all();
        assert_eq!(again.replicas, slab.replicas);
        assert!(again.disk.is_none());
        slab.disk.add(3);
        slab.may_be_on_disk = true;
        let again = from_line(&to_line(&slab));
        assert!(again.disk == Gaps::all() && again.may_be_on_disk);
        slab.may_be_on_disk = false;
        let again = from_line(&to_line(&slab));
        assert!(again.disk == Gaps::all() && !again.may_be_on_disk);
        slab.replicas.clear();
        assert_eq!(from_line(&to_line(&slab)).disk, Gaps::all());
        assert_eq!(to_line(&Slab::default()), [0; LINE_BYTES]);
        assert!(from_line(&[0; LINE_BYTES]).replicas.is_empty());
    }
}
