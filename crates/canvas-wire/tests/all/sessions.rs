//! Sessions: only peers with the same key can talk, and only sealed messages open, once and in
//! order.

use canvas_wire::FRAME_BYTES_MAX;
use canvas_wire::key::ClusterKey;
use canvas_wire::session::{
    HANDSHAKE_BYTES, Initiator, OVERHEAD_BYTES, Session, SessionError, respond,
};
use canvas_wire::stream::{Incoming, Outgoing};
use proptest::prelude::*;
use std::collections::VecDeque;

fn key(n: u8) -> ClusterKey {
    ClusterKey::from_bytes([n; 32])
}

fn pair() -> (Session, Session) {
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let initiator = Initiator::start(&key(1), &mut out).unwrap();
    assert_eq!(out.len(), 2 + HANDSHAKE_BYTES);
    let donor = respond(&key(1), &out[2..], &mut back).unwrap();
    assert_eq!(back.len(), 2 + HANDSHAKE_BYTES);
    (initiator.finish(&back[2..]).unwrap(), donor)
}

#[test]
fn frames_pass_both_ways() {
    let (mut client, mut donor) = pair();
    for len in [0, 1, 16, 4096, FRAME_BYTES_MAX] {
        let frame: Vec<u8> = (0..len).map(|n| n as u8).collect();
        for _ in 0..2 {
            let (mut wire, mut plain) = (vec![9], vec![8]);
            client.seal(&frame, &mut wire).unwrap();
            assert_eq!(wire.len(), 1 + len + OVERHEAD_BYTES);
            assert!(
                len < 16 || !wire.windows(16).any(|w| w == &frame[..16]),
                "sent in clear"
            );
            assert_eq!(donor.open(&wire[3..], &mut plain), Ok(len));
            assert_eq!(plain[1..], frame);
            std::mem::swap(&mut client, &mut donor);
        }
    }
    let mut wire = Vec::new();
    let long = vec![0; FRAME_BYTES_MAX + 1];
    assert_eq!(client.seal(&long, &mut wire), Err(SessionError::Limit));
    assert!(wire.is_empty());
}

#[test]
fn another_key_gets_nothing() {
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let _initiator = Initiator::start(&key(1), &mut out).unwrap();
    assert_eq!(
        respond(&key(2), &out[2..], &mut back).err(),
        Some(SessionError::Handshake)
    );
    assert!(back.is_empty());
    // The donor is an impostor: it cannot make an answer that the client accepts.
    let initiator = Initiator::start(&key(1), &mut Vec::new()).unwrap();
    let mut other = Vec::new();
    let _ = Initiator::start(&key(2), &mut other).unwrap();
    assert_eq!(
        initiator.finish(&other[2..]).err(),
        Some(SessionError::Handshake)
    );
}

#[test]
fn changed_repeated_left_out_and_moved_messages_do_not_open() {
    for deed in 0..4 {
        let (mut client, mut donor) = pair();
        let mut messages = Vec::new();
        for n in 0..3u8 {
            let mut wire = Vec::new();
            client.seal(&[n; 40], &mut wire).unwrap();
            messages.push(wire[2..].to_vec());
        }
        let mut plain = Vec::new();
        donor.open(&messages[0], &mut plain).unwrap();
        let bad = match deed {
            0 => {
                messages[1][7] ^= 0x40;
                &messages[1]
            }
            1 => &messages[0],
            2 => &messages[2],
            // Reflected to its sender.
            _ => {
                plain.clear();
                assert_eq!(
                    client.open(&messages[0], &mut plain),
                    Err(SessionError::Message)
                );
                continue;
            }
        };
        plain.clear();
        assert_eq!(
            donor.open(bad, &mut plain),
            Err(SessionError::Message),
            "deed {deed}"
        );
        assert!(plain.is_empty());
    }
}

#[test]
fn a_recorded_handshake_opens_no_old_session() {
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let _initiator = Initiator::start(&key(1), &mut out).unwrap();
    let mut first = respond(&key(1), &out[2..], &mut back).unwrap();
    let mut second = respond(&key(1), &out[2..], &mut back).unwrap();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    first.seal(b"the same words", &mut a).unwrap();
    second.seal(b"the same words", &mut b).unwrap();
    assert_ne!(a, b, "two sessions with the same keys");
}

#[test]
fn a_stream_in_pieces() {
    let mut wire = Vec::new();
    let lens = [0usize, 1, 65535, 300, 65535, 65535, 2, 65535, 65535, 65535];
    for (n, &len) in lens.iter().enumerate() {
        wire.extend_from_slice(&(len as u16).to_le_bytes());
        wire.extend(std::iter::repeat_n(n as u8, len));
    }
    for piece in [1, 7, 1000, 65537, wire.len()] {
        let mut incoming = Incoming::new();
        let mut seen = 0;
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let space = incoming.space();
            let n = piece.min(rest.len()).min(space.len());
            assert!(n > 0, "no space");
            space[..n].copy_from_slice(&rest[..n]);
            incoming.filled(n);
            rest = &rest[n..];
            while let Some(message) = incoming.message() {
                assert_eq!(message.len(), lens[seen]);
                assert!(message.iter().all(|&b| b == seen as u8));
                seen += 1;
            }
        }
        assert_eq!(seen, lens.len());
    }
}

proptest! {
    /// A peer that reads slowly gets every byte once and in order, and sent bytes are dropped.
    #[test]
    fn what_is_sent_does_not_stay(
        steps in prop::collection::vec((0..60_000usize, 0..60_000usize), 1..50),
    ) {
        const BACKLOG_MAX: usize = 256 << 10;
        let mut outgoing = Outgoing::new();
        let mut waits = VecDeque::new();
        let mut next = 0u8;
        for (put, sent) in steps {
            if outgoing.backlog() <= BACKLOG_MAX {
                for _ in 0..put {
                    outgoing.end().push(next);
                    waits.push_back(next);
                    next = next.wrapping_mul(5).wrapping_add(3);
                }
            }
            // The kernel never takes all bytes at once.
            let sent = sent.min(outgoing.backlog().saturating_sub(1));
            prop_assert!(outgoing.unsent()[..sent].iter().eq(waits.iter().take(sent)));
            outgoing.sent(sent);
            waits.drain(..sent);
            prop_assert_eq!(outgoing.backlog(), waits.len());
            prop_assert_eq!(outgoing.is_empty(), waits.is_empty());
            let most = 2 * ((BACKLOG_MAX + 60_000) * 5 / 4 + (64 << 10));
            prop_assert!(outgoing.held_bytes() <= most, "{}", outgoing.held_bytes());
        }
        prop_assert!(outgoing.unsent().iter().eq(waits.iter()));
        outgoing.sent(usize::MAX);
        prop_assert!(outgoing.is_empty() && outgoing.unsent().is_empty());
    }
}
