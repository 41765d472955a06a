//! Ends of connections between RDMA devices, and exposed memory, as the two sides describe them to each other.

/// Bytes of an encoded [`QueuePair`].
pub const QUEUE_PAIR_BYTES: usize = 28;

/// One end of a connection between RDMA devices, in the device's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePair {
    /// The queue pair's number.
    pub number: u32,
    /// Number of the first packet that it sends (24 bits).
    pub psn: u32,
    /// The port's address.
    pub gid: [u8; 16],
    /// The port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Largest payload of a packet: 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// Reads that it serves at one time.
    pub reads: u8,
}

/// A slab as a queue pair reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exposed {
    /// Address of the slab's first byte.
    pub address: u64,
    /// The key for it (`rkey`), valid as long as the slab, and the link or direct read channel, exist.
    pub key: u32,
}

impl QueuePair {
    /// Encodes it: number, first packet, address, local identifier, payload, reads; little endian.
    pub fn to_bytes(&self) -> [u8; QUEUE_PAIR_BYTES] {
        let mut bytes = [0; QUEUE_PAIR_BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        (bytes[26], bytes[27]) = (self.mtu, self.reads);
        bytes
    }

    /// Decodes it; `None` if the bytes are no queue pair.
    pub fn from_bytes(bytes: &[u8; QUEUE_PAIR_BYTES]) -> Option<QueuePair> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[8..24]);
        let end = QueuePair {
            number: number(0),
            psn: number(4),
            gid,
            lid: u16::from_le_bytes([bytes[24], bytes[25]]),
            mtu: bytes[26],
            reads: bytes[27],
        };
        end.is_within().then_some(end)
    }

    /// Whether the numbers fit 24 bits, and the MTU is one of five.
    pub fn is_within(&self) -> bool {
        self.number < 1 << 24 && self.psn < 1 << 24 && (1..=5).contains(&self.mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_comes_as_it_was_sent_or_not_at_all() {
        let end = QueuePair {
            number: 0xff_fffe,
            psn: 0xff_ffff,
            gid: core::array::from_fn(|i| i as u8),
            lid: 0x1234,
            mtu: 5,
            reads: 16,
        };
        assert_eq!(QueuePair::from_bytes(&end.to_bytes()), Some(end));
        for (at, byte) in [(3, 1), (7, 1), (26, 0), (26, 6)] {
            let mut bytes = end.to_bytes();
            bytes[at] = byte;
            assert_eq!(QueuePair::from_bytes(&bytes), None, "byte {at}");
        }
    }
}
