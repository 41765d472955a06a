//! What an agent must do with arbitrary bytes from outside.

use std::os::unix::fs::FileExt;

use canvas_agent::journal::Journal;
use canvas_agent::replicas::line::{from_line, to_line};
use canvas_agent::seal::Sealer;
use canvas_control::status::AgentStatus;
use canvas_core::swap::extent::{EXTENT_BYTES, TAG_BYTES, directory_bytes, line, records};

/// Offset of the agent's status in its journal.
const STATUS: u64 = 64 << 20;
/// Bytes of both status entries.
const STATUS_BYTES: u64 = 16 << 10;

/// The first byte says what the others are: a journal from its beginning, a status entry, or its body.
pub fn journal_any(bytes: &[u8]) {
    let Some((&what, rest)) = bytes.split_first() else {
        return;
    };
    if what % 3 == 2 {
        if let Some(status) = AgentStatus::decode(rest) {
            assert!(AgentStatus::decode(&status.encode()) == Some(status));
        }
        return;
    }
    let journal = Journal::create().unwrap();
    let at = if what % 3 == 0 { 0 } else { STATUS };
    journal.file().write_all_at(rest, at).unwrap();
    if at == STATUS {
        // Write to the end of both entries, as in a file where both were written: a hole reads as zeros, and could
        // complete a truncated entry.
        journal.file().set_len(STATUS + STATUS_BYTES).unwrap();
        let _ = journal.status();
        // Whatever is there, a new agent's status is read.
        let said = AgentStatus {
            pid: 7,
            ..AgentStatus::default()
        };
        journal.put_status(&said);
        assert_eq!(journal.status(), Some(said));
        return;
    }
    let Ok(journal) = Journal::open(journal.file().try_clone().unwrap().into()) else {
        return;
    };
    let _ = (journal.key(), journal.client(), journal.slabs_max());
    if let Some(line) = journal.cluster_key() {
        let _ = canvas_wire::key::ClusterKey::from_line(&line);
    }
    for (i, donor) in journal.donors().into_iter().enumerate() {
        journal.put_donor(i, donor);
        assert_eq!(journal.donors()[i], donor);
    }
    for (slab, line) in journal.lines() {
        let held = from_line(&line);
        journal.put(slab, &to_line(&held));
        let again = from_line(&to_line(&held));
        assert_eq!(again.replicas, held.replicas, "slab {slab}");
    }
}

/// The first byte says who produced the others, an extent: the program, which is not trusted, or a donor.
pub fn extent_any(bytes: &[u8]) {
    let Some((&who, rest)) = bytes.split_first() else {
        return;
    };
    let sealer = Sealer::new(&[5; 32], *b"tenant-id-16-byt");
    let mut extent = rest[..rest.len().min(EXTENT_BYTES)].to_vec();
    if who % 2 == 1 {
        // Nothing that a donor makes up can be opened.
        assert!(sealer.open_extent(7, 1, &mut extent.clone()).is_err());
        assert!(sealer.open_record(7, 1, 16, &mut extent).is_err());
        return;
    }
    extent.resize(EXTENT_BYTES, 0);
    let clear = extent.clone();
    if sealer.seal(7, 1, &mut extent).is_err() {
        assert!(extent == clear, "it stays as it is");
        return;
    }
    // A sealed extent opens, record by record and as a whole; all else is zero.
    let n = records(&clear).expect("it was sealed");
    let mut whole = extent.clone();
    sealer.open_extent(7, 1, &mut whole).unwrap();
    let mut want = vec![0; EXTENT_BYTES];
    want[..directory_bytes(n)].copy_from_slice(&clear[..directory_bytes(n)]);
    for i in 0..n {
        let range = line(&clear, n, i).expect("it was sealed").range();
        let body = range.start..range.end - TAG_BYTES;
        want[body.clone()].copy_from_slice(&clear[body.clone()]);
        let mut record = extent[range.clone()].to_vec();
        sealer.open_record(7, 1, range.start, &mut record).unwrap();
        assert!(record[..body.len()] == clear[body]);
        // Another version of it does not verify.
        let mut record = extent[range.clone()].to_vec();
        assert!(sealer.open_record(7, 2, range.start, &mut record).is_err());
    }
    assert!(whole == want);
}
