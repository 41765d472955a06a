use canvas_types::Codec;
use proptest::prelude::*;
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueOwnedT};
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::ram::RamStore;
use crate::{DiskMemory, PoolStore};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const MEMORY: u64 = 4 << 20;
const PAGES: u64 = 64;
/// Addresses of heads, data and status in the guest.
const HEAD: u64 = 0x1_0000;
const DATA: u64 = 0x10_0000;
const LAST: u64 = 0x2_0000;

fn guest() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap()
}

fn put_head(guest: &GuestMemoryMmap, kind: u32, sector: u64) {
    let head = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
    guest.write_slice(&head, GuestAddress(HEAD)).unwrap();
    guest.write_slice(&[9], GuestAddress(LAST)).unwrap();
}

/// Address, length, flags and next of a descriptor.
type Given = (u64, u32, u16, u16);

/// Serves the chain that starts with the first of these; returns the length written, and the
/// status.
fn serve_raw(guest: &GuestMemoryMmap, store: &impl PageStore, given: &[Given]) -> (u32, u8) {
    let ring = MockSplitQueue::new(guest, 16);
    for (i, (addr, len, flags, next)) in (0..).zip(given) {
        let one = RawDescriptor::from(Descriptor::new(*addr, *len, *flags, *next));
        ring.desc_table().store(i, one).unwrap();
    }
    ring.avail().ring().ref_at(0).unwrap().store(0);
    ring.avail().idx().store(1);
    let mut queue: Queue = ring.create_queue().unwrap();
    let chain = queue.iter(guest).unwrap().next().unwrap();
    let written = serve(chain, guest, store, &mut Work::new());
    let mut last = [0];
    guest.read_slice(&mut last, GuestAddress(LAST)).unwrap();
    (written, last[0])
}

/// Serves a valid request whose data are in adjacent parts of these lengths.
fn serve_parts(
    guest: &GuestMemoryMmap,
    store: &impl PageStore,
    (kind, sector): (u32, u64),
    parts: &[u32],
) -> (u32, u8) {
    put_head(guest, kind, sector);
    let to_guest = matches!(kind, kind::IN | kind::GET_ID);
    let flags = NEXT | if to_guest { WRITE } else { 0 };
    let mut given = vec![(HEAD, 16, NEXT, 1)];
    let mut at = DATA;
    for len in parts {
        given.push((at, *len, flags, given.len() as u16 + 1));
        at += u64::from(*len);
    }
    given.push((LAST, 1, WRITE, 0));
    serve_raw(guest, store, &given)
}

fn data(guest: &GuestMemoryMmap, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    guest.read_slice(&mut out, GuestAddress(DATA)).unwrap();
    out
}

#[test]
fn pages_go_out_and_come_back_in_any_parts() {
    let memory = DiskMemory::new(PAGES, 1 << 20).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    let guest = guest();
    let bytes: Vec<u8> = (0..3 * 4096u32).map(|i| (i / 5) as u8).collect();
    guest.write_slice(&bytes, GuestAddress(DATA)).unwrap();
    let out = serve_parts(&guest, &store, (kind::OUT, 16), &[100, 4096, 8092]);
    assert_eq!(out, (1, Status::Ok as u8));
    assert_eq!(store.stats().stored_pages, 3);
    guest.write_slice(&[7; 12288], GuestAddress(DATA)).unwrap();
    let back = serve_parts(&guest, &store, (kind::IN, 16), &[4096, 8000, 192]);
    assert_eq!(back, (12289, Status::Ok as u8));
    assert_eq!(data(&guest, 12288), bytes);
    // Sectors of half a kilobyte, in the middle of a page.
    let back = serve_parts(&guest, &store, (kind::IN, 17), &[1024]);
    assert_eq!(
        (back, &data(&guest, 1024)[..]),
        ((1025, 0), &bytes[512..1536])
    );
    // One range is discarded; the middle of the other becomes zeros.
    let ranges = |ranges: &[(u64, u32, u32)]| -> Vec<u8> {
        let one = |(sector, count, flags): &(u64, u32, u32)| {
            [
                &sector.to_le_bytes()[..],
                &count.to_le_bytes(),
                &flags.to_le_bytes(),
            ]
            .concat()
        };
        ranges.iter().flat_map(one).collect()
    };
    let all = ranges(&[(16, 8, 0), (40, 8, 1)]);
    guest.write_slice(&all, GuestAddress(DATA)).unwrap();
    assert_eq!(
        serve_parts(&guest, &store, (kind::DISCARD, 0), &[32]),
        (1, 2)
    );
    let all = ranges(&[(16, 8, 0)]);
    guest.write_slice(&all, GuestAddress(DATA)).unwrap();
    assert_eq!(
        serve_parts(&guest, &store, (kind::DISCARD, 0), &[16]),
        (1, 0)
    );
    assert_eq!(store.stats().stored_pages, 2);
    let all = ranges(&[(25, 8, 1)]);
    guest.write_slice(&all, GuestAddress(DATA)).unwrap();
    let zeroed = serve_parts(&guest, &store, (kind::WRITE_ZEROES, 0), &[16]);
    assert_eq!(zeroed, (1, 0));
    let back = serve_parts(&guest, &store, (kind::IN, 16), &[12288]);
    assert_eq!(back, (12289, 0));
    let mut want = bytes.clone();
    want[..4096].fill(0);
    want[4608..8704].fill(0);
    assert!(data(&guest, 12288) == want);
    assert_eq!(
        serve_parts(&guest, &store, (kind::GET_ID, 0), &[20]),
        (21, 0)
    );
    assert_eq!(&data(&guest, 20), ID);
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let guest = guest();
    let store = RamStore::new(PAGES);
    let end = PAGES * 8;
    for (kind, sector, len, want) in [
        (kind::IN, end, 512, Status::IoError),
        (kind::IN, end - 1, 1024, Status::IoError),
        (kind::IN, u64::MAX, 512, Status::IoError),
        (kind::IN, u64::MAX / 512, 512, Status::IoError),
        (kind::IN, 0, 513, Status::IoError),
        (kind::OUT, 0, 100, Status::IoError),
        (kind::OUT, end, 512, Status::IoError),
        (kind::DISCARD, 0, 15, Status::IoError),
        (kind::DISCARD, 0, 16 * 257, Status::IoError),
        (4, 0, 0, Status::Unsupported),
        (99, 0, 512, Status::Unsupported),
    ] {
        let (_, last) = serve_parts(&guest, &store, (kind, sector), &[len]);
        assert_eq!(last, want as u8, "{kind} {sector} {len}");
    }
    // A read into memory that cannot be written is refused, and writes nothing.
    guest.write_slice(&[5; 4096], GuestAddress(DATA)).unwrap();
    serve_parts(&guest, &store, (kind::OUT, end - 4), &[4096]);
    assert_eq!(store.page(PAGES - 1), [0; 4096]);
}

#[test]
fn crafted_chains_are_given_back() {
    let guest = guest();
    let store = RamStore::new(PAGES);
    put_head(&guest, kind::IN, 0);
    let head = (HEAD, 16, NEXT, 1);
    for (what, given, want) in [
        ("no room for a status", vec![(HEAD, 16, 0, 0)], (0, 9)),
        (
            "data outside of the memory",
            vec![head, (MEMORY, 512, NEXT | WRITE, 2), (LAST, 1, WRITE, 0)],
            (0, 9),
        ),
        (
            "data over its end",
            vec![
                head,
                (MEMORY - 8, 512, NEXT | WRITE, 2),
                (LAST, 1, WRITE, 0),
            ],
            (0, 9),
        ),
        (
            "data over the end of addresses",
            vec![
                head,
                (u64::MAX - 8, 512, NEXT | WRITE, 2),
                (LAST, 1, WRITE, 0),
            ],
            (0, 9),
        ),
        (
            "no head",
            vec![(HEAD, 0, NEXT, 1), (LAST, 1, WRITE, 0)],
            (1, 1),
        ),
        (
            "half a head",
            vec![(HEAD, 8, NEXT, 1), (LAST, 1, WRITE, 0)],
            (1, 1),
        ),
        ("a status alone", vec![(LAST, 1, WRITE, 0)], (1, 1)),
        (
            "parts of no length",
            vec![head, (DATA, 0, NEXT | WRITE, 2), (LAST, 1, WRITE, 0)],
            (1, 0),
        ),
        (
            "an indirect table of half an entry",
            vec![(HEAD, 24, INDIRECT, 0)],
            (0, 9),
        ),
        (
            "an indirect table outside",
            vec![(MEMORY + 4096, 32, INDIRECT, 0)],
            (0, 9),
        ),
    ] {
        put_head(&guest, kind::IN, 0);
        assert_eq!(serve_raw(&guest, &store, &given), want, "{what}");
    }
    // A loop ends after as many descriptors as the table has.
    put_head(&guest, kind::IN, 0);
    let looped = [
        head,
        (DATA, 512, NEXT | WRITE, 2),
        (DATA, 512, NEXT | WRITE, 1),
    ];
    let (written, _) = serve_raw(&guest, &store, &looped);
    assert!(written <= 16 * 512, "{written}");
    // More data than a request may have.
    let huge: Vec<Given> = (1..15)
        .map(|i| (DATA, 3 << 20, NEXT | WRITE, i + 1))
        .collect();
    let huge = [&[head][..], &huge, &[(LAST, 1, WRITE, 0)]].concat();
    put_head(&guest, kind::IN, 0);
    assert_eq!(serve_raw(&guest, &RamStore::new(1 << 20), &huge), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]
    /// Whatever is in the ring, nothing panics, and a valid request works afterwards.
    #[test]
    fn no_ring_does_harm(
        kind in prop_oneof![0..14u32, any::<u32>()],
        sector in prop_oneof![0..PAGES * 8 + 2, any::<u64>()],
        given in prop::collection::vec((
            prop_oneof![
                Just(HEAD), Just(DATA), Just(LAST), 0..MEMORY + 100, any::<u64>()
            ],
            prop_oneof![Just(16u32), Just(512), Just(4096), Just(1), any::<u32>()],
            prop_oneof![Just(NEXT), Just(NEXT | WRITE), 0..8u16, any::<u16>()],
            prop_oneof![0..16u16, any::<u16>()],
        ), 1..16),
    ) {
        let guest = guest();
        let store = RamStore::new(PAGES);
        guest.write_slice(&[3; 1 << 20], GuestAddress(DATA)).unwrap();
        put_head(&guest, kind, sector);
        serve_raw(&guest, &store, &given);
        let (written, last) = serve_parts(&guest, &store, (kind::IN, 0), &[4096]);
        prop_assert_eq!((written, last), (4097, 0));
        prop_assert_eq!(data(&guest, 4096), store.page(0).to_vec());
    }
}
