//! Written bytes are read back unchanged.

use canvas_link::{Completion, Completions};
use canvas_wire::frame::{Answer, Items, Range, Request};

use super::*;

const AREA: usize = 1 << 20;
const ROUNDS: u64 = 20;

/// A small random generator (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A client with two links on two slabs, compared with two plain vectors. Writes complete before
/// the next round, whose reads use both links.
fn client(donor: &Donor, id: u8, seed: u64) {
    let mut rng = Rng(seed ^ u64::from(id) << 32);
    let mut links = [0, 1].map(|link| connect(donor, LinkConfig { link, ..config(id) }));
    let handles = [alloc(&mut links[0], 0), alloc(&mut links[1], 1)];
    let mut oracle = [vec![0u8; AREA], vec![0u8; AREA]];
    let mut c = Completions::new();
    for _ in 0..ROUNDS {
        for link in &mut links {
            // Writes must not overlap, because their order is undefined.
            let mut at = rng.below(4096);
            let slab = rng.below(2);
            while at + 40_000 < AREA && link.outstanding() < 24 {
                let len = 1 + rng.below(canvas_wire::DATA_BYTES_MAX);
                let data: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                let request = Request::Write {
                    handle: handles[slab],
                    offset: at as u32,
                    data: &data,
                };
                link.submit(0, &request).unwrap();
                oracle[slab][at..at + len].copy_from_slice(&data);
                at += len + rng.below(9000);
            }
            while link.outstanding() > 0 {
                c.clear();
                link.poll(&mut c, LONG).unwrap();
                for done in c.iter() {
                    assert!(
                        matches!(
                            done,
                            Completion::Answer {
                                answer: Answer::Done,
                                ..
                            }
                        ),
                        "{done:?}"
                    );
                }
            }
        }
        for link in &mut links {
            let mut asked: Vec<(usize, Vec<Range>)> = Vec::new();
            for tag in 0..24 {
                let slab = rng.below(2);
                let many = rng.below(4) == 0;
                let mut ranges = Vec::new();
                for _ in 0..if many { 1 + rng.below(64) } else { 1 } {
                    let len_max = if many {
                        960
                    } else {
                        canvas_wire::DATA_BYTES_MAX
                    };
                    let len = rng.below(len_max + 1);
                    ranges.push(Range {
                        offset: rng.below(AREA - len) as u32,
                        len: len as u32,
                    });
                }
                let handle = handles[slab];
                let request = if many {
                    Request::ReadMany {
                        handle,
                        ranges: Items::from(ranges.as_slice()),
                    }
                } else {
                    Request::Read {
                        handle,
                        range: ranges[0],
                    }
                };
                link.submit(tag, &request).unwrap();
                asked.push((slab, ranges));
            }
            while link.outstanding() > 0 {
                c.clear();
                link.poll(&mut c, LONG).unwrap();
                for done in c.iter() {
                    let Completion::Answer {
                        tag,
                        answer: Answer::Data(bytes),
                    } = done
                    else {
                        panic!("{done:?}");
                    };
                    let (slab, ranges) = &asked[tag as usize];
                    let expected: Vec<u8> = ranges
                        .iter()
                        .flat_map(|r| &oracle[*slab][r.offset as usize..][..r.len as usize])
                        .copied()
                        .collect();
                    assert!(
                        bytes == expected,
                        "client {id}: {ranges:?} of slab {slab} differ"
                    );
                }
            }
        }
    }
}

#[test]
fn several_clients_at_once() {
    let donor = Donor::start(&["--memory", "2G"]);
    let seed = std::env::var("CANVAS_TEST_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) << 20 | 0x5eed);
    println!("CANVAS_TEST_SEED={seed}");
    std::thread::scope(|s| {
        for id in 1..=4 {
            let donor = &donor;
            s.spawn(move || client(donor, id, seed));
        }
    });
    let state = donor.wait_state("all slabs and reads", |s| {
        s["slabs"] == 8 && s["counters"]["reads"] == 4 * ROUNDS * 2 * 24
    });
    assert_eq!(state["lent_bytes"], (8u64 * 64) << 20);
    let touched = state["touched_bytes"].as_u64().unwrap();
    assert!(touched > 0 && touched <= 8 * AREA as u64, "{state}");
}

#[test]
fn slabs_belong_to_their_client_and_freed_ones_come_back_as_zeros() {
    let donor = Donor::start(&["--memory", "128M"]);
    let mut ours = connect(&donor, config(1));
    let mut theirs = connect(&donor, config(2));
    let handle = alloc(&mut ours, 7);
    assert_eq!(alloc(&mut ours, 7), handle, "the same key again");
    write(&mut ours, handle, 100, b"secret").unwrap();
    assert_eq!(
        refused(read(&mut theirs, handle, 100, 6)),
        ErrorCode::UnknownHandle
    );
    assert_eq!(
        refused(write(&mut theirs, handle, 100, b"x")),
        ErrorCode::UnknownHandle
    );
    let mut c = Completions::new();
    assert_eq!(
        refused(theirs.ask(&Request::Free { handle }, &mut c)),
        ErrorCode::UnknownHandle
    );
    // The same key of another client names another slab.
    let other = alloc(&mut theirs, 7);
    assert_ne!(other, handle);
    assert_eq!(refused(try_alloc(&mut ours, 8)), ErrorCode::NoRoom);

    let listed = ours.ask(&Request::List { after: 0 }, &mut c).unwrap();
    let Answer::Handles { more: false, slabs } = listed else {
        panic!("{listed:?}");
    };
    let slabs: Vec<_> = slabs.iter().collect();
    assert_eq!(slabs.len(), 1);
    assert_eq!((slabs[0].handle, slabs[0].key), (handle, key(7)));

    assert_eq!(read(&mut ours, handle, 100, 6).unwrap(), b"secret");
    ours.ask(&Request::Free { handle }, &mut c).unwrap();
    assert_eq!(
        refused(read(&mut ours, handle, 100, 6)),
        ErrorCode::UnknownHandle
    );
    let again = alloc(&mut theirs, 8);
    assert_eq!(read(&mut theirs, again, 100, 6).unwrap(), [0; 6]);
}

#[test]
fn what_does_not_lie_in_the_slab_is_refused_and_the_link_goes_on() {
    let donor = Donor::start(&["--memory", "64M"]);
    let mut link = connect(&donor, config(1));
    let handle = alloc(&mut link, 0);
    let end = canvas_wire::SLAB_BYTES as u32;
    assert_eq!(
        refused(read(&mut link, handle, end - 1, 2)),
        ErrorCode::OutOfRange
    );
    assert_eq!(
        refused(write(&mut link, handle, u32::MAX, b"x")),
        ErrorCode::OutOfRange
    );
    write(&mut link, handle, end - 1, b"x").unwrap();
    assert_eq!(read(&mut link, handle, end - 1, 1).unwrap(), b"x");
}
