//! Handmade frames, at least one of each type, with the names of their golden files; and frames
//! made from numbers.
#![allow(dead_code)]

use canvas_wire::error::ErrorCode;
use canvas_wire::frame::*;

const QUEUE_PAIR: QueuePair = QueuePair {
    number: 0x0001_0203,
    psn: 0x00ff_fffe,
    gid: *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x05",
    lid: 7,
    mtu: 3,
    reads: 16,
};

/// Calls `with` with each frame of a client: name, id, frame.
pub fn client_frames(with: &mut dyn FnMut(&str, u64, FromClient<'_>)) {
    use Request::*;
    let mut request = |name: &str, id: u64, r: Request<'_>| with(name, id, FromClient::Request(r));
    request(
        "hello",
        0,
        Hello(canvas_wire::frame::Hello {
            version_min: 1,
            version_max: 1,
            client_id: *b"client-id-16-byt",
            link: 2,
            lease_ms: 30_000,
        }),
    );
    let key = SlabKey {
        tenant: *b"tenant-id-16-byt",
        slab: 0x0102_0304,
    };
    request("alloc", 1, Alloc(key));
    let handle = 0x1122_3344_5566_7788;
    request(
        "write",
        2,
        Write {
            handle,
            offset: 0x0003_2000,
            data: b"sixteen bytes....",
        },
    );
    request(
        "write_empty",
        3,
        Write {
            handle,
            offset: 0,
            data: b"",
        },
    );
    let range = Range {
        offset: 4096,
        len: 2048,
    };
    request("read", 4, Read { handle, range });
    let ranges = [
        range,
        Range { offset: 0, len: 0 },
        Range {
            offset: u32::MAX,
            len: 1,
        },
    ];
    request(
        "read_many",
        u64::MAX,
        ReadMany {
            handle,
            ranges: Items::from(&ranges[..]),
        },
    );
    request("free", 6, Free { handle });
    request("list", 7, List { after: handle });
    request("ping", 8, Ping);
    request("join", 9, Join(QUEUE_PAIR));
    request("expose", 10, Expose { handle });
    let rate = canvas_wire::frame::LaneRate {
        rate_bytes: 125_000_000,
        burst_bytes: 128 << 10,
    };
    let lane = canvas_wire::frame::Lane {
        tenant: *b"tenant-id-16-byt",
        secret: *b"a secret of thirty-two bytes, so",
        rate,
    };
    request("lane", 11, Lane(lane));
    request("lane_rate", 12, LaneRate { lane: 3, rate });
    request("lane_end", 13, LaneEnd { lane: 3 });
    let valued = [0, 1, 2].map(|worth| Valued { handle, worth });
    let slabs = Items::from(&valued[..]);
    request("worth", 14, Worth { slabs });
    let used = [
        Used { handle, ops: 12 },
        Used {
            handle: 1,
            ops: u64::MAX,
        },
    ];
    with(
        "activity",
        9,
        FromClient::Reply(Reply::Activity(Items::from(&used[..]))),
    );
    with(
        "evict_done",
        10,
        FromClient::Reply(Reply::EvictDone { handle }),
    );
}

/// Calls `with` with each frame of a donor: name, id, frame.
pub fn donor_frames(with: &mut dyn FnMut(&str, u64, FromDonor<'_>)) {
    let mut answer = |name: &str, id: u64, a: Answer<'_>| with(name, id, FromDonor::Answer(a));
    answer(
        "welcome",
        0,
        Answer::Welcome(Welcome {
            version: 1,
            lease_ms: 30_000,
            donor_id: *b"donor-id-16-byte",
            slab_bytes: 64 << 20,
            memory_bytes: 32 << 30,
            free_bytes: 31 << 30,
        }),
    );
    let handle = 0x1122_3344_5566_7788;
    answer("allocated", 1, Answer::Allocated { handle });
    answer("done", 2, Answer::Done);
    answer("data", 4, Answer::Data(b"what was stored"));
    let lent = [Lent {
        key: SlabKey {
            tenant: *b"tenant-id-16-byt",
            slab: 5,
        },
        handle,
    }];
    answer(
        "handles",
        7,
        Answer::Handles {
            more: true,
            slabs: Items::from(&lent[..]),
        },
    );
    answer(
        "pong",
        8,
        Answer::Pong(Pong {
            free_bytes: 1 << 30,
            lent_bytes: 3 << 30,
            pressure: true,
        }),
    );
    answer("joined", 9, Answer::Joined(QUEUE_PAIR));
    answer(
        "exposed",
        10,
        Answer::Exposed(Exposed {
            address: 0x7f00_0000_1000,
            key: 0x0a0b_0c0d,
        }),
    );
    answer(
        "ticket",
        11,
        Answer::Ticket {
            lane: 3,
            ticket: *b"ticket-16-bytes.",
        },
    );
    answer(
        "lane_used",
        12,
        Answer::LaneUsed {
            reads: 1000,
            bytes: 1_700_000,
        },
    );
    for code in canvas_wire::error::ERROR_CODES {
        let name = format!("error_{}", code.name().replace('-', "_"));
        answer(&name, 9, Answer::Error { code, text: "why" });
    }
    let handles = [handle, 7];
    let handles = Items::from(&handles[..]);
    with(
        "evict_query",
        1,
        FromDonor::Call(Call::EvictQuery { handles }),
    );
    with(
        "evict_stop",
        2,
        FromDonor::Call(Call::EvictStop {
            deadline_ms: 10_000,
            handles,
        }),
    );
}

/// The code with this number, modulo the number of codes.
pub fn some_code(n: u16) -> ErrorCode {
    let all = canvas_wire::error::ERROR_CODES;
    all[usize::from(n) % all.len()]
}

/// What every decoder must do with any bytes: not panic; and re-encode what it decodes to the same
/// bytes, so that each frame has only one encoding.
pub fn decode_any(bytes: &[u8]) {
    let mut out = vec![0; canvas_wire::FRAME_BYTES_MAX];
    if let Ok((id, frame)) = FromClient::decode(bytes) {
        let len = frame
            .encode(id, &mut out)
            .expect("what decodes can be encoded");
        assert!(out[..len] == *bytes, "{frame:?}");
    }
    if let Ok((id, frame)) = FromDonor::decode(bytes) {
        let len = frame
            .encode(id, &mut out)
            .expect("what decodes can be encoded");
        assert!(out[..len] == *bytes, "{frame:?}");
    }
}

/// What a session must do with any bytes: refuse them. The first byte selects the point at which
/// they come.
pub fn session_any(bytes: &[u8]) {
    use canvas_wire::key::ClusterKey;
    use canvas_wire::session::{Initiator, respond};
    use canvas_wire::stream::Incoming;

    let (Some(&point), rest) = (bytes.first(), bytes.get(1..).unwrap_or_default()) else {
        return;
    };
    let key = ClusterKey::from_bytes([5; 32]);
    let mut out = Vec::new();
    match point % 4 {
        0 => {
            assert!(respond(&key, rest, &mut out).is_err());
            assert!(out.is_empty(), "a stranger was answered");
        }
        1 => {
            let initiator = Initiator::start(&key, &mut out).unwrap();
            assert!(initiator.finish(rest).is_err());
        }
        2 => {
            let initiator = Initiator::start(&key, &mut out).unwrap();
            let mut answer = Vec::new();
            let mut donor = respond(&key, &out[2..], &mut answer).unwrap();
            let mut client = initiator.finish(&answer[2..]).unwrap();
            let mut plain = Vec::new();
            assert!(donor.open(rest, &mut plain).is_err());
            assert!(client.open(rest, &mut plain).is_err());
            assert!(plain.is_empty());
        }
        _ => {
            // In pieces of this size, to test the splitting of the stream.
            let piece = usize::from(point / 4) + 1;
            let mut incoming = Incoming::new();
            let mut messages = Vec::new();
            let mut fed = rest;
            while !fed.is_empty() {
                let space = incoming.space();
                let n = piece.min(fed.len()).min(space.len());
                assert!(n > 0, "no space left");
                space[..n].copy_from_slice(&fed[..n]);
                incoming.filled(n);
                fed = &fed[n..];
                loop {
                    let none = incoming.holds_no_message();
                    let Some(message) = incoming.message() else {
                        assert!(none);
                        break;
                    };
                    assert!(!none);
                    messages.push(message.to_vec());
                }
            }
            let mut left = rest;
            let mut expected = Vec::new();
            while let [a, b, tail @ ..] = left {
                let len = usize::from(u16::from_le_bytes([*a, *b]));
                let Some(message) = tail.get(..len) else {
                    break;
                };
                expected.push(message.to_vec());
                left = &tail[len..];
            }
            assert_eq!(messages, expected);
        }
    }
}

/// What reading a key must do with any text: give a key that writes the same line, or refuse it.
pub fn key_any(bytes: &[u8]) {
    use canvas_wire::key::ClusterKey;
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(key) = ClusterKey::from_line(text)
    {
        assert_eq!(*key.to_line(), text.trim_end().to_ascii_lowercase());
    }
}
