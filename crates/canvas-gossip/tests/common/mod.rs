//! What gossip must do with any bytes.

use canvas_gossip::seal::{Opener, PART_BYTES_MAX, Sealer};
use canvas_wire::key::ClusterKey;
use chitchat::{ChitchatMessage, Deserializable};

/// The first byte selects what the other bytes are: a raw datagram, a message, or parts of messages
/// (each after a byte with its length). The last two come from a holder of the key, who may err.
pub fn gossip_any(bytes: &[u8]) {
    let Some((&how, rest)) = bytes.split_first() else {
        return;
    };
    let key = ClusterKey::from_bytes([5; 32]);
    let mut sealer = Sealer::new(&key).unwrap();
    let mut opener = Opener::new(&key);
    match how % 3 {
        0 => {
            let came = opener.open(&mut rest.to_vec());
            decode(came.ok().flatten());
            // Repeated, it is a replay, if it was accepted at all.
            assert!(opener.open(&mut rest.to_vec()).is_err());
        }
        1 => {
            let rest = &rest[..rest.len().min(4 * PART_BYTES_MAX)];
            let mut came = None;
            for mut datagram in sealer.seal(rest) {
                assert!(came.is_none());
                came = opener.open(&mut datagram).unwrap();
            }
            assert!(came.as_deref() == Some(rest));
            decode(came);
        }
        _ => {
            let mut parts = rest;
            while let Some((&len, tail)) = parts.split_first() {
                let (part, tail) = tail.split_at(tail.len().min(len.into()));
                parts = tail;
                let mut datagram = sealer.seal_one(part.to_vec());
                let came = opener.open(&mut datagram).unwrap();
                assert!(came.is_none_or(|m| m.len() <= 4 * PART_BYTES_MAX));
            }
        }
    }
    // In any case others are still heard.
    let mut good = sealer.seal(b"still here").remove(0);
    assert_eq!(opener.open(&mut good), Ok(Some(b"still here".to_vec())));
}

/// Decodes as the socket does. (The result is not encoded again: chitchat cannot encode a message
/// that it would have compressed differently.)
fn decode(message: Option<Vec<u8>>) {
    if let Some(message) = message {
        let _ = ChitchatMessage::deserialize(&mut &message[..]);
    }
}
