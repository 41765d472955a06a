//! Datagrams that only holders of the cluster key can read or make. No I/O, no clock.
//!
//! ```text
//! version u8 | salt [16] | counter u64 | sealed: message u32, part u8, parts u8, bytes | tag [16]
//! ```
//!
//! * The gossip key is HKDF-SHA256 of the cluster key. Each process draws a salt; its own key is
//!   HKDF-SHA256 of the gossip key with that salt, and its nonces count up from 0. So no nonce is
//!   used twice under one key, however many processes there are and however long they run, and
//!   nothing is negotiated.
//! * AES-256-GCM (NIST SP 800-38D); the bytes before the sealed part are authenticated, too.
//! * A counter that was seen before, or is far behind the sender's highest, is refused: replays
//!   have no effect. The counters of the latest [`SENDERS_MAX`] senders are remembered.
//! * A message too large for one sealed datagram goes in parts; a lost part loses the message, and
//!   gossip repeats what is lost.

use std::collections::{HashMap, VecDeque};

use canvas_wire::key::{ClusterKey, RandomError, random_bytes};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, Nonce, UnboundKey};
use ring::hkdf;

/// Name under which the gossip key is derived, with the version of the format.
const INFO: &str = "canvas-gossip/1";
const VERSION: u8 = 1;
const SALT_BYTES: usize = 16;
const HEADER_BYTES: usize = 1 + SALT_BYTES + 8;
const PART_HEADER_BYTES: usize = 6;
/// Most message bytes in one datagram: fits UDP's 65,507 with all overhead.
pub const PART_BYTES_MAX: usize = 48 << 10;
/// Most parts of a message.
const PARTS_MAX: usize = 4;
/// Number of senders whose counters are remembered.
pub const SENDERS_MAX: usize = 4096;

/// Why a datagram is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Too short, or of another version.
    Format,
    /// Sealed with another key, or changed.
    Seal,
    /// Seen before, or older than what is remembered.
    Replay,
}

type Salt = [u8; SALT_BYTES];

/// Derives the key of one sender.
fn sender_key(gossip: &[u8; 32], salt: &Salt) -> LessSafeKey {
    let mut key = [0; 32];
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(gossip)
        .expand(&[INFO.as_bytes()], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut key))
        .expect("HKDF gives as many bytes as its hash has");
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("a key of 32 bytes"))
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Seals this process's messages.
pub struct Sealer {
    key: LessSafeKey,
    salt: Salt,
    counter: u64,
    message: u32,
}

impl Sealer {
    /// Draws a salt and derives this process's key.
    pub fn new(key: &ClusterKey) -> Result<Sealer, RandomError> {
        let salt = random_bytes()?;
        Ok(Sealer {
            key: sender_key(&key.derive(INFO), &salt),
            salt,
            counter: 0,
            message: 0,
        })
    }

    /// The datagrams of a message; none if it does not fit into four of them.
    pub fn seal(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        let parts = message.len().div_ceil(PART_BYTES_MAX).max(1);
        if parts > PARTS_MAX {
            return Vec::new();
        }
        self.message = self.message.wrapping_add(1);
        (0..parts)
            .map(|part| {
                let from = part * PART_BYTES_MAX;
                let bytes = &message[from..message.len().min(from + PART_BYTES_MAX)];
                let mut plain = Vec::with_capacity(PART_HEADER_BYTES + bytes.len() + MAX_TAG_LEN);
                plain.extend(self.message.to_le_bytes());
                plain.extend([part as u8, parts as u8]);
                plain.extend(bytes);
                self.seal_one(plain)
            })
            .collect()
    }

    /// Seals one part: header and bytes as in the table above, which are not checked.
    pub fn seal_one(&mut self, mut plain: Vec<u8>) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(HEADER_BYTES + plain.len() + MAX_TAG_LEN);
        datagram.push(VERSION);
        datagram.extend(self.salt);
        datagram.extend(self.counter.to_le_bytes());
        self.key
            .seal_in_place_append_tag(nonce(self.counter), Aad::from(&datagram[..]), &mut plain)
            .expect("less than 64 GiB");
        // 2^64 datagrams are never sent.
        self.counter += 1;
        datagram.extend(plain);
        datagram
    }
}

/// State of a sender.
struct Sender {
    key: LessSafeKey,
    /// The highest counter, and a bit for each of the 64 counters up to it that was seen.
    highest: u64,
    seen: u64,
    /// Number of the message of which some parts are missing.
    message: u32,
    parts: Vec<Option<Vec<u8>>>,
}

impl Sender {
    fn is_new(&self, counter: u64) -> bool {
        match self.highest.checked_sub(counter) {
            None => true,
            Some(behind) => behind < 64 && self.seen & 1 << behind == 0,
        }
    }

    fn note(&mut self, counter: u64) {
        if let Some(ahead) = counter.checked_sub(self.highest).filter(|a| *a > 0) {
            self.seen = if ahead < 64 { self.seen << ahead } else { 0 };
            self.highest = counter;
        }
        self.seen |= 1 << (self.highest - counter);
    }

    /// Adds a part; returns the message once it is complete.
    fn gather(&mut self, plain: &[u8]) -> Option<Vec<u8>> {
        let (head, bytes) = plain.split_first_chunk::<PART_HEADER_BYTES>()?;
        let number = u32::from_le_bytes(*head.first_chunk()?);
        let (part, parts) = (usize::from(head[4]), usize::from(head[5]));
        if part >= parts || parts > PARTS_MAX {
            return None;
        }
        if parts == 1 {
            return Some(bytes.to_vec());
        }
        if self.message != number || self.parts.len() != parts {
            self.message = number;
            self.parts = vec![None; parts];
        }
        self.parts[part] = Some(bytes.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        Some(
            std::mem::take(&mut self.parts)
                .into_iter()
                .flatten()
                .flatten()
                .collect(),
        )
    }
}

/// Opens messages of other processes.
pub struct Opener {
    gossip: [u8; 32],
    senders: HashMap<Salt, Sender>,
    /// Senders in the order in which they were first heard.
    order: VecDeque<Salt>,
}

impl Opener {
    /// An opener for holders of this cluster key.
    pub fn new(key: &ClusterKey) -> Opener {
        Opener {
            gossip: key.derive(INFO),
            senders: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Opens a datagram in place; returns the message if this part completed it.
    pub fn open(&mut self, datagram: &mut [u8]) -> Result<Option<Vec<u8>>, Bad> {
        let (header, sealed) = datagram
            .split_at_mut_checked(HEADER_BYTES)
            .ok_or(Bad::Format)?;
        if header[0] != VERSION {
            return Err(Bad::Format);
        }
        let salt: Salt = *header[1..].first_chunk().ok_or(Bad::Format)?;
        let counter = u64::from_le_bytes(*header.last_chunk().ok_or(Bad::Format)?);
        let known = self.senders.get(&salt);
        if known.is_some_and(|s| !s.is_new(counter)) {
            return Err(Bad::Replay);
        }
        let stranger = known.is_none().then(|| sender_key(&self.gossip, &salt));
        let key = stranger
            .as_ref()
            .or(known.map(|s| &s.key))
            .ok_or(Bad::Seal)?;
        let plain = key
            .open_in_place(nonce(counter), Aad::from(&*header), sealed)
            .map_err(|_| Bad::Seal)?;
        // The sender has the key; only now anything is remembered of it.
        if let Some(key) = stranger {
            self.meet(salt, key, counter);
        }
        let sender = self.senders.get_mut(&salt).ok_or(Bad::Seal)?;
        sender.note(counter);
        Ok(sender.gather(plain))
    }

    fn meet(&mut self, salt: Salt, key: LessSafeKey, counter: u64) {
        if self.order.len() >= SENDERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.senders.remove(&oldest);
        }
        self.order.push_back(salt);
        let sender = Sender {
            key,
            highest: counter,
            seen: 0,
            message: 0,
            parts: Vec::new(),
        };
        self.senders.insert(salt, sender);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_bytes([byte; 32])
    }

    fn pair() -> (Sealer, Opener) {
        (Sealer::new(&key(1)).unwrap(), Opener::new(&key(1)))
    }

    #[test]
    fn a_replay_is_refused_and_what_was_late_is_not() {
        let (mut sealer, mut opener) = pair();
        let sent: Vec<Vec<u8>> = (0..200u8).flat_map(|n| sealer.seal(&[n])).collect();
        let mut open = |n: usize| opener.open(&mut sent[n].clone());
        assert_eq!(open(5), Ok(Some(vec![5])));
        assert_eq!(open(5), Err(Bad::Replay));
        assert_eq!(open(3), Ok(Some(vec![3])));
        assert_eq!(open(3), Err(Bad::Replay));
        assert_eq!(open(68), Ok(Some(vec![68])));
        assert_eq!(
            open(4),
            Err(Bad::Replay),
            "too late to be told from a replay"
        );
        assert_eq!(open(6), Ok(Some(vec![6])));
        assert_eq!(open(199), Ok(Some(vec![199])));
        assert_eq!(open(68), Err(Bad::Replay));
    }

    #[test]
    fn another_key_opens_nothing_and_leaves_nothing_behind() {
        let mut sealer = Sealer::new(&key(2)).unwrap();
        let (_, mut opener) = pair();
        for datagram in sealer.seal(b"hello") {
            assert_eq!(opener.open(&mut datagram.clone()), Err(Bad::Seal));
        }
        assert!(opener.senders.is_empty());
    }

    #[test]
    fn nothing_of_a_message_can_be_seen() {
        let (mut sealer, _) = pair();
        let (a, b) = (sealer.seal(&[7; 100]), sealer.seal(&[7; 100]));
        assert!(!a[0].windows(4).any(|w| w == [7; 4]));
        assert_ne!(a[0][HEADER_BYTES..], b[0][HEADER_BYTES..]);
    }

    #[test]
    fn of_many_senders_the_last_are_remembered() {
        let (_, mut opener) = pair();
        for _ in 0..SENDERS_MAX + 10 {
            let mut sealer = Sealer::new(&key(1)).unwrap();
            for mut datagram in sealer.seal(b"x") {
                opener.open(&mut datagram).unwrap();
            }
        }
        assert_eq!(opener.senders.len(), SENDERS_MAX);
        assert_eq!(opener.order.len(), SENDERS_MAX);
    }

    proptest! {
        #[test]
        fn messages_of_all_sizes_come_whole(
            len in prop_oneof![0..2000usize, 0..PARTS_MAX * PART_BYTES_MAX + 10],
            swap: bool,
        ) {
            let (mut sealer, mut opener) = pair();
            let message: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut datagrams = sealer.seal(&message);
            prop_assert_eq!(datagrams.is_empty(), len > PARTS_MAX * PART_BYTES_MAX);
            if swap {
                datagrams.reverse();
            }
            let mut got = None;
            for mut d in datagrams {
                prop_assert!(d.len() <= 65_507);
                prop_assert!(got.is_none());
                got = opener.open(&mut d).unwrap();
            }
            prop_assert_eq!(got.is_some(), len <= PARTS_MAX * PART_BYTES_MAX);
            prop_assert!(got.is_none_or(|m| m == message));
        }

        /// Any bytes are refused without harm.
        #[test]
        fn any_bytes_are_judged(mut bytes in prop::collection::vec(any::<u8>(), 0..200), version: bool) {
            let (mut sealer, mut opener) = pair();
            if version && !bytes.is_empty() {
                bytes[0] = VERSION;
            }
            prop_assert!(opener.open(&mut bytes).is_err());
            let mut good = sealer.seal(b"still here").remove(0);
            prop_assert_eq!(opener.open(&mut good), Ok(Some(b"still here".to_vec())));
        }

        /// Holders of the key may send invalid parts, too.
        #[test]
        fn any_part_is_judged(parts in prop::collection::vec(prop::collection::vec(0..6u8, 0..20), 1..30)) {
            let (mut sealer, mut opener) = pair();
            for part in parts {
                let mut datagram = sealer.seal_one(part.clone());
                let got = opener.open(&mut datagram).unwrap();
                let bytes = part.len().saturating_sub(PART_HEADER_BYTES);
                prop_assert!(got.is_none_or(|m| m.len() >= bytes && m.len() <= PARTS_MAX * 14));
            }
            let mut good = sealer.seal(b"still here").remove(0);
            prop_assert_eq!(opener.open(&mut good), Ok(Some(b"still here".to_vec())));
        }

        #[test]
        fn no_bit_can_be_changed(at in 0..80usize, bit in 0..8u8) {
            let (mut sealer, mut opener) = pair();
            let mut datagram = sealer.seal(&[9; 40]).remove(0);
            let at = at % datagram.len();
            datagram[at] ^= 1 << bit;
            prop_assert!(opener.open(&mut datagram).is_err());
        }
    }
}
