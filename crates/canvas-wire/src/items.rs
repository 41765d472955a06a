//! Lists inside of frames, seen without copying them.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};

/// One element of a list, of a fixed number of bytes.
pub trait Item: Copy + PartialEq + fmt::Debug {
    /// Bytes of one.
    const BYTES: usize;
    /// Most of them in one list.
    const COUNT_MAX: usize;
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Option<Self>;
    #[doc(hidden)]
    fn write(&self, put: &mut dyn FnMut(&[u8]));
}

/// A list: of the sender's own elements, or as it came over the wire.
#[derive(Clone, Copy)]
pub struct Items<'a, T>(Form<'a, T>);

#[derive(Clone, Copy)]
enum Form<'a, T> {
    Slice(&'a [T]),
    /// A whole number of elements, each of which can be read.
    Wire(&'a [u8]),
}

impl<'a, T> From<&'a [T]> for Items<'a, T> {
    fn from(slice: &'a [T]) -> Items<'a, T> {
        Items(Form::Slice(slice))
    }
}

impl<'a, T: Item> Items<'a, T> {
    /// How many elements.
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Slice(s) => s.len(),
            Form::Wire(b) => b.len() / T::BYTES,
        }
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The elements in order, decoded one by one where they came over the wire.
    pub fn iter(&self) -> impl Iterator<Item = T> + 'a {
        let (slice, wire): (&[T], &[u8]) = match self.0 {
            Form::Slice(s) => (s, &[]),
            Form::Wire(b) => (&[], b),
        };
        let wire = wire.chunks_exact(T::BYTES).filter_map(T::read);
        slice.iter().copied().chain(wire)
    }

    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Items<'a, T>, DecodeError> {
        let bytes = reader.rest();
        if !bytes.len().is_multiple_of(T::BYTES) || bytes.len() / T::BYTES > T::COUNT_MAX {
            return Err(DecodeError::Limit);
        }
        Ok(Items(Form::Wire(bytes)))
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        if self.len() > T::COUNT_MAX {
            return Err(EncodeError::Limit);
        }
        let mut result = Ok(());
        for item in self.iter() {
            item.write(&mut |bytes| {
                if result.is_ok() {
                    result = writer.put(bytes);
                }
            });
        }
        result
    }
}

impl<T: Item> PartialEq for Items<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Item> fmt::Debug for Items<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Item for u64 {
    const BYTES: usize = 8;
    const COUNT_MAX: usize = crate::EVICT_MAX;
    fn read(bytes: &[u8]) -> Option<u64> {
        Reader(bytes).u64().ok()
    }
    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.to_le_bytes());
    }
}

/// Part of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Where it begins, in bytes from the slab's beginning.
    pub offset: u32,
    /// Length of the range in bytes.
    pub len: u32,
}

impl Item for Range {
    const BYTES: usize = 8;
    const COUNT_MAX: usize = crate::READ_MANY_MAX;
    fn read(bytes: &[u8]) -> Option<Range> {
        let mut r = Reader(bytes);
        Some(Range {
            offset: r.u32().ok()?,
            len: r.u32().ok()?,
        })
    }
    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.offset.to_le_bytes());
        put(&self.len.to_le_bytes());
    }
}

/// Names a slab to its client: a tenant's slab of this number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlabKey {
    /// Random number of the tenant, drawn for each run.
    pub tenant: [u8; 16],
    /// Number of the slab in the tenant's far space; in its top byte, into how many parts the slab is divided
    /// where a donor gets a part of it only ([`SlabKey::part`]).
    pub slab: u32,
}

/// Bits of a number that name a slab.
const NUMBER_BITS: u32 = 24;
/// Parts of a slab, at most.
const PARTS_MAX: u32 = 8;
/// A part of an extent ends at a multiple of it.
const PART_GRAIN: usize = 64;

impl SlabKey {
    /// A part of a tenant's slab, which is divided into `parts` (2 to 8) as large as each other. A donor has
    /// one part of a slab at most.
    pub fn part(tenant: [u8; 16], slab: u32, parts: usize) -> SlabKey {
        debug_assert!(slab >> NUMBER_BITS == 0 && parts as u32 <= PARTS_MAX);
        SlabKey {
            tenant,
            slab: slab | (parts as u32) << NUMBER_BITS,
        }
    }

    /// Bytes that are lent under this key: a slab, or the same part of each of its extents. Donors that know
    /// of no parts lend a slab.
    pub fn bytes(&self) -> usize {
        match self.slab >> NUMBER_BITS {
            parts @ 2..=PARTS_MAX => {
                let part = crate::EXTENT_BYTES.div_ceil(parts as usize);
                crate::SLAB_EXTENTS * part.next_multiple_of(PART_GRAIN)
            }
            _ => crate::SLAB_BYTES,
        }
    }
}

/// A slab that a client has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// What the client called it.
    pub key: SlabKey,
    /// What the donor calls it.
    pub handle: u64,
}

impl Item for Lent {
    const BYTES: usize = 28;
    const COUNT_MAX: usize = crate::LIST_MAX;
    fn read(bytes: &[u8]) -> Option<Lent> {
        let mut r = Reader(bytes);
        Some(Lent {
            key: SlabKey {
                tenant: r.array().ok()?,
                slab: r.u32().ok()?,
            },
            handle: r.u64().ok()?,
        })
    }
    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.key.tenant);
        put(&self.key.slab.to_le_bytes());
        put(&self.handle.to_le_bytes());
    }
}

/// How much a slab is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// The slab's handle at this donor.
    pub handle: u64,
    /// Operations on it since it was last asked for, or since it was lent. What the client's own
    /// buffers and caches absorbed is not among them.
    pub ops: u64,
}

impl Item for Used {
    const BYTES: usize = 16;
    const COUNT_MAX: usize = crate::EVICT_MAX;
    fn read(bytes: &[u8]) -> Option<Used> {
        let mut r = Reader(bytes);
        Some(Used {
            handle: r.u64().ok()?,
            ops: r.u64().ok()?,
        })
    }
    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.handle.to_le_bytes());
        put(&self.ops.to_le_bytes());
    }
}

/// What a slab here is worth to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Valued {
    /// The slab's handle at this donor.
    pub handle: u64,
    /// 2: other copies stay, whose donors were told that they are worth more. 1: there are others,
    /// which count on this one. All else: no other copy is known, as of a slab of which nothing was told.
    pub worth: u64,
}

impl Item for Valued {
    const BYTES: usize = 16;
    const COUNT_MAX: usize = crate::EVICT_MAX;
    fn read(bytes: &[u8]) -> Option<Valued> {
        let mut r = Reader(bytes);
        Some(Valued {
            handle: r.u64().ok()?,
            worth: r.u64().ok()?,
        })
    }
    fn write(&self, put: &mut dyn FnMut(&[u8])) {
        put(&self.handle.to_le_bytes());
        put(&self.worth.to_le_bytes());
    }
}
