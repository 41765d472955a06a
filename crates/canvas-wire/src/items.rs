//! Lists inside frames, read without copying them.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};

/// An element of a list, of a fixed size.
pub trait Item: Copy + PartialEq + fmt::Debug {
    /// Size of an element in bytes.
    const BYTES: usize;
    /// Most elements in one list.
    const COUNT_MAX: usize;
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Option<Self>;
    #[doc(hidden)]
    fn write(&self, put: &mut dyn FnMut(&[u8]));
}

/// A list: the sender's own elements, or bytes that came over the wire.
#[derive(Clone, Copy)]
pub struct Items<'a, T>(Form<'a, T>);

#[derive(Clone, Copy)]
enum Form<'a, T> {
    Slice(&'a [T]),
    /// A whole number of elements, each already checked.
    Wire(&'a [u8]),
}

impl<'a, T> From<&'a [T]> for Items<'a, T> {
    fn from(slice: &'a [T]) -> Items<'a, T> {
        Items(Form::Slice(slice))
    }
}

impl<'a, T: Item> Items<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Slice(s) => s.len(),
            Form::Wire(b) => b.len() / T::BYTES,
        }
    }
    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The elements in order; those that came over the wire are decoded one by one.
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

/// A range of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Start of the range, in bytes from the slab's start.
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

/// A client's name for a slab: the tenant and the slab's number in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlabKey {
    /// Random number that the tenant draws for each run.
    pub tenant: [u8; 16],
    /// Number of the slab in the tenant's far memory. For a donor that holds only a part of the
    /// slab, the top byte is the number of parts ([`SlabKey::part`]).
    pub slab: u32,
}

/// Bits of the slab's number.
const NUMBER_BITS: u32 = 24;
/// Most parts of a slab.
const PARTS_MAX: u32 = 8;
/// Parts of an extent end at multiples of this.
const PART_GRAIN: usize = 64;

impl SlabKey {
    /// Key for one of `parts` (2 to 8) equal parts of a tenant's slab. A donor has at most one part
    /// of a slab.
    pub fn part(tenant: [u8; 16], slab: u32, parts: usize) -> SlabKey {
        debug_assert!(slab >> NUMBER_BITS == 0 && parts as u32 <= PARTS_MAX);
        SlabKey {
            tenant,
            slab: slab | (parts as u32) << NUMBER_BITS,
        }
    }

    /// Bytes lent under this key: a slab, or one part of each of its extents. Donors that do not
    /// know parts lend a whole slab.
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

/// A slab lent to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// The client's name for it.
    pub key: SlabKey,
    /// The donor's handle for it.
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

/// How much a slab was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// The slab's handle at this donor.
    pub handle: u64,
    /// Operations on the slab since the last query, or since it was lent. Operations that the
    /// client's own buffers and caches absorbed are not counted.
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

/// The value of a slab to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Valued {
    /// The slab's handle at this donor.
    pub handle: u64,
    /// 2: other copies remain, whose donors were told a higher value. 1: there are other copies,
    /// which count on this one. Any other value: no other copy is known, as for a slab whose value
    /// was never sent.
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
