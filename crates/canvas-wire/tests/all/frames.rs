//! Frames: what is encoded decodes to the same frame, and nothing else decodes.

use crate::common;
use canvas_wire::error::{DecodeError, EncodeError};
use canvas_wire::frame::*;
use canvas_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn encode(frame: &FromClient<'_>) -> Result<Vec<u8>, EncodeError> {
    let mut out = vec![0; FRAME_BYTES_MAX];
    frame.encode(3, &mut out).map(|len| out[..len].to_vec())
}

fn encode_donor(frame: &FromDonor<'_>) -> Result<Vec<u8>, EncodeError> {
    let mut out = vec![0; FRAME_BYTES_MAX];
    frame.encode(3, &mut out).map(|len| out[..len].to_vec())
}

/// Valid about half of the time.
fn queue_pair(a: u64, b: u32, c: u32, gid: [u8; 16]) -> QueuePair {
    QueuePair {
        number: b % (1 << 25),
        psn: c % ((1 << 24) + (1 << 20)),
        gid,
        lid: a as u16,
        mtu: (a >> 16) as u8 % 7,
        reads: (a >> 24) as u8,
    }
}

fn is_within(end: &QueuePair) -> bool {
    end.number <= 0xff_ffff && end.psn <= 0xff_ffff && end.mtu != 0 && end.mtu <= 5
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn client_frames_come_back(
        id: u64, a: u64, b: u32, c: u32, key in any::<[u8; 16]>(),
        data in vec(any::<u8>(), 0..DATA_BYTES_MAX + 2),
        ranges in vec((any::<u32>(), 0u32..2000), 0..READ_MANY_MAX + 2),
        used in vec((any::<u64>(), any::<u64>()), 0..EVICT_MAX + 2),
    ) {
        let ranges: Vec<Range> = ranges.iter().map(|&(offset, len)| Range { offset, len }).collect();
        let used: Vec<Used> = used.iter().map(|&(handle, ops)| Used { handle, ops }).collect();
        let valued: Vec<Valued> = used.iter().map(|u| Valued { handle: u.handle, worth: u.ops }).collect();
        let total: u64 = ranges.iter().map(|r| u64::from(r.len)).sum();
        let request = FromClient::Request;
        let frames = [
            (request(Request::Hello(Hello { version_min: b as u16, version_max: c as u16, client_id: key, link: b, lease_ms: c })), true),
            (request(Request::Alloc(SlabKey { tenant: key, slab: b })), true),
            (request(Request::Write { handle: a, offset: b, data: &data }), data.len() <= DATA_BYTES_MAX),
            (request(Request::Read { handle: a, range: Range { offset: b, len: c } }), c as usize <= DATA_BYTES_MAX),
            (request(Request::Read { handle: a, range: Range { offset: b, len: c % 40_000 } }), c as usize % 40_000 <= DATA_BYTES_MAX),
            (request(Request::ReadMany { handle: a, ranges: Items::from(&ranges[..]) }), ranges.len() <= READ_MANY_MAX && total <= READ_MANY_BYTES_MAX as u64),
            (request(Request::Free { handle: a }), true),
            (request(Request::List { after: a }), true),
            (request(Request::Ping), true),
            (request(Request::Join(queue_pair(a, b, c, key))), is_within(&queue_pair(a, b, c, key))),
            (request(Request::Expose { handle: a }), true),
            (request(Request::Lane(Lane { tenant: key, secret: [b as u8; 32], rate: LaneRate { rate_bytes: a, burst_bytes: c } })), true),
            (request(Request::LaneRate { lane: a, rate: LaneRate { rate_bytes: a, burst_bytes: b } }), true),
            (request(Request::LaneEnd { lane: a }), true),
            (request(Request::Worth { slabs: Items::from(&valued[..]) }), valued.len() <= EVICT_MAX),
            (FromClient::Reply(Reply::Activity(Items::from(&used[..]))), used.len() <= EVICT_MAX),
            (FromClient::Reply(Reply::EvictDone { handle: a }), true),
        ];
        let mut out = vec![0; FRAME_BYTES_MAX];
        for (frame, fits) in frames {
            match frame.encode(id, &mut out) {
                Ok(len) => {
                    prop_assert!(fits);
                    prop_assert_eq!(FromClient::decode(&out[..len]), Ok((id, frame)));
                    prop_assert!(FromDonor::decode(&out[..len]).is_err(), "a donor sends no such thing");
                    // One byte less or more is not a frame.
                    prop_assert!(FromClient::decode(&out[..len - 1]).is_err());
                    let mut longer = out[..len].to_vec();
                    longer.push(0);
                    prop_assert_eq!(FromClient::decode(&longer), Err(DecodeError::Length));
                    let mut short = vec![0; len - 1];
                    prop_assert_eq!(frame.encode(id, &mut short), Err(EncodeError::Space));
                }
                Err(e) => {
                    prop_assert_eq!(e, EncodeError::Limit);
                    prop_assert!(!fits);
                }
            }
        }
    }

    #[test]
    fn donor_frames_come_back(
        id: u64, a: u64, b: u32, c: u64, d: u64, key in any::<[u8; 16]>(), flag: bool,
        data in vec(any::<u8>(), 0..READ_MANY_BYTES_MAX + 2),
        text in "\\PC{0,120}",
        handles in vec(any::<u64>(), 0..EVICT_MAX + 2),
        lent in vec((any::<[u8; 16]>(), any::<u32>(), any::<u64>()), 0..LIST_MAX + 2),
    ) {
        let lent: Vec<Lent> = lent.iter().map(|&(tenant, slab, handle)| Lent { key: SlabKey { tenant, slab }, handle }).collect();
        let handles = Items::from(&handles[..]);
        let answer = FromDonor::Answer;
        let frames = [
            (answer(Answer::Welcome(Welcome { version: b as u16, lease_ms: b, donor_id: key, slab_bytes: a, memory_bytes: c, free_bytes: d })), true),
            (answer(Answer::Allocated { handle: a }), true),
            (answer(Answer::Done), true),
            (answer(Answer::Data(&data)), data.len() <= READ_MANY_BYTES_MAX),
            (answer(Answer::Handles { more: flag, slabs: Items::from(&lent[..]) }), lent.len() <= LIST_MAX),
            (answer(Answer::Pong(Pong { free_bytes: a, lent_bytes: c, pressure: flag })), true),
            (answer(Answer::Joined(queue_pair(a, b, c as u32, key))), is_within(&queue_pair(a, b, c as u32, key))),
            (answer(Answer::Exposed(Exposed { address: a, key: b })), true),
            (answer(Answer::Ticket { lane: a, ticket: key }), true),
            (answer(Answer::LaneUsed { reads: a, bytes: c }), true),
            (answer(Answer::Error { code: common::some_code(b as u16), text: &text }), text.len() <= TEXT_BYTES_MAX),
            (FromDonor::Call(Call::EvictQuery { handles }), handles.len() <= EVICT_MAX),
            (FromDonor::Call(Call::EvictStop { deadline_ms: b, handles }), handles.len() <= EVICT_MAX),
        ];
        let mut out = vec![0; FRAME_BYTES_MAX];
        for (frame, fits) in frames {
            match frame.encode(id, &mut out) {
                Ok(len) => {
                    prop_assert!(fits);
                    prop_assert_eq!(FromDonor::decode(&out[..len]), Ok((id, frame)));
                    prop_assert!(FromClient::decode(&out[..len]).is_err(), "a client sends no such thing");
                    prop_assert!(FromDonor::decode(&out[..len - 1]).is_err());
                }
                Err(e) => {
                    prop_assert_eq!(e, EncodeError::Limit);
                    prop_assert!(!fits);
                }
            }
        }
        if data.len() <= READ_MANY_BYTES_MAX {
            let whole = encode_donor(&answer(Answer::Data(&data))).unwrap();
            prop_assert_eq!(&data_header(3, data.len()).unwrap()[..], &whole[..HEADER_BYTES]);
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        common::decode_any(&bytes);
        common::session_any(&bytes);
        common::key_any(&bytes);
    }
}

#[test]
fn reserved_fields_are_refused() {
    let ping = encode(&FromClient::Request(Request::Ping)).unwrap();
    for at in [1, 2, 3] {
        let mut bad = ping.clone();
        bad[at] = 1;
        assert_eq!(
            FromClient::decode(&bad),
            Err(DecodeError::Reserved),
            "byte {at}"
        );
    }
    let pong = encode_donor(&FromDonor::Answer(Answer::Pong(Pong {
        free_bytes: 0,
        lent_bytes: 0,
        pressure: true,
    })))
    .unwrap();
    for (at, value) in [(HEADER_BYTES + 16, 2), (HEADER_BYTES + 17, 1)] {
        let mut bad = pong.clone();
        bad[at] = value;
        assert_eq!(
            FromDonor::decode(&bad),
            Err(DecodeError::Reserved),
            "byte {at}"
        );
    }
    let mut error = encode_donor(&FromDonor::Answer(Answer::Error {
        code: canvas_wire::error::ErrorCode::NoRoom,
        text: "x",
    }))
    .unwrap();
    error[HEADER_BYTES] = 0xff;
    assert_eq!(FromDonor::decode(&error), Err(DecodeError::Text));
    error[2] = 99;
    assert_eq!(FromDonor::decode(&error), Err(DecodeError::UnknownCode(99)));
}

#[test]
fn the_largest_frames_fit_a_message() {
    let data = vec![1; DATA_BYTES_MAX];
    let write = FromClient::Request(Request::Write {
        handle: 1,
        offset: 0,
        data: &data,
    });
    assert!(encode(&write).is_ok());
    let data = vec![1; READ_MANY_BYTES_MAX];
    assert!(encode_donor(&FromDonor::Answer(Answer::Data(&data))).is_ok());
    let lent = vec![
        Lent {
            key: SlabKey {
                tenant: [1; 16],
                slab: 1
            },
            handle: 1
        };
        LIST_MAX
    ];
    let handles = FromDonor::Answer(Answer::Handles {
        more: false,
        slabs: Items::from(&lent[..]),
    });
    assert!(encode_donor(&handles).is_ok());
}
