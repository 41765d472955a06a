//! Sealing of a tenant's records: the agent seals them, and the agent or, over a direct read channel, the program opens
//! them.
//!
//! AES-256-GCM (NIST SP 800-38D), one key for each tenant. The nonce is the seal number (8 bytes) and the offset in the
//! extent / 16 (4 bytes). Associated data are the tenant and the extent, and for the extent's directory also its
//! header.

use super::Bound;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

/// Bytes of an extent's header.
pub const HEADER_BYTES: usize = 16;

/// The bytes are damaged, or are not the last ones written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

/// Seals and opens one tenant's records.
pub struct RecordKey {
    key: LessSafeKey,
    tenant: [u8; 16],
}

impl RecordKey {
    /// With a key, and the tenant that is authenticated with each record.
    pub fn new(key: &[u8; 32], tenant: [u8; 16]) -> RecordKey {
        // Fails only for a key of another length.
        let key = UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes");
        RecordKey {
            key: LessSafeKey::new(key),
            tenant,
        }
    }

    /// Seals bytes at `offset` of the extent; `header` is authenticated as well. No two ranges of bytes may be sealed
    /// with one number and offset.
    pub fn seal(
        &self,
        (extent, seal): (u32, u64),
        offset: usize,
        header: &[u8],
        bytes: &mut [u8],
    ) -> Tag {
        self.key
            .seal_in_place_separate_tag(nonce(seal, offset), self.bound(extent, header), bytes)
            .expect("less than 64 GiB")
    }

    /// Opens bytes in place: they end with their tag, which becomes zero.
    pub fn open(
        &self,
        (extent, seal): (u32, u64),
        offset: usize,
        header: &[u8],
        bytes: &mut [u8],
    ) -> Result<(), Damaged> {
        let n = self
            .key
            .open_in_place(nonce(seal, offset), self.bound(extent, header), bytes)
            .map_err(|_| Damaged)?
            .len();
        bytes[n..].fill(0);
        Ok(())
    }

    fn bound(&self, extent: u32, header: &[u8]) -> Aad<Bound<{ 20 + HEADER_BYTES }>> {
        Bound::of(&[&self.tenant, &extent.to_le_bytes(), header])
    }
}

fn nonce(seal: u64, offset: usize) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&seal.to_le_bytes());
    bytes[8..].copy_from_slice(&((offset / 16) as u32).to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}
