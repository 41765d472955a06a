//! The memory of one slab.
//!
//! A mapping of its own: memory is taken as it is written, and all of it goes back to the kernel
//! when the slab is freed. So a slab that is lent again starts as zeros, whoever had it before.
//!
//! A slab can be exposed to RDMA devices. Then all of it takes memory, and devices read and write
//! it without this code; before it is freed, devices are cut off.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use canvas_rdma::{Access, Domain, RdmaError, Region};
use canvas_wire::SLAB_BYTES;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Exposed, Range, SlabKey};

/// Granularity of counting written memory.
const PAGE_BYTES: usize = 4096;
const WORDS: usize = SLAB_BYTES / PAGE_BYTES / 64;

/// Memory that may be taken from the host until the next sample. Writes use it up; the watchdog
/// refills it.
#[derive(Debug, Default)]
pub struct Budget(AtomicI64);

impl Budget {
    /// Sets the remaining amount.
    pub fn set(&self, bytes: u64) {
        self.0
            .store(i64::try_from(bytes).unwrap_or(i64::MAX), Relaxed);
    }

    /// Takes `bytes`, if that much is left.
    pub fn take(&self, bytes: u64) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.0
            .fetch_update(Relaxed, Relaxed, |left| {
                (left >= bytes).then(|| left - bytes)
            })
            .is_ok()
    }
}

struct Memory {
    /// Devices' access to it. Dropped before the mapping: each holds the mapping, too.
    regions: Vec<(Arc<Domain>, Region)>,
    map: Arc<canvas_rdma::Memory>,
    /// A bit for each page that was written.
    written: Box<[u64; WORDS]>,
}

/// Why a slab cannot be exposed.
#[derive(Debug)]
pub enum Refusal {
    /// The slab is freed or being evicted, or memory is short.
    Code(ErrorCode),
    /// The device fails.
    Device(RdmaError),
}

impl Memory {
    fn region_of(&self, domain: &Arc<Domain>) -> Option<&(Arc<Domain>, Region)> {
        self.regions.iter().find(|(d, _)| Arc::ptr_eq(d, domain))
    }
}

/// A slab that is or was lent.
pub struct Slab {
    /// The donor's handle.
    pub handle: u64,
    /// The client's name for it.
    pub key: SlabKey,
    /// `None` once it is freed.
    memory: RwLock<Option<Memory>>,
    /// Number of reads and writes since it was lent.
    ops: AtomicU64,
    /// Bytes written at least once.
    touched_bytes: AtomicU64,
    /// Set during eviction: it may be read but not written.
    read_only: std::sync::atomic::AtomicBool,
}

impl Slab {
    /// Maps a slab, or a part of one, which takes no memory yet. The error is the system's.
    pub fn new(handle: u64, key: SlabKey) -> std::io::Result<Slab> {
        let map = Arc::new(canvas_rdma::Memory::new(key.bytes())?);
        Ok(Slab {
            handle,
            key,
            memory: RwLock::new(Some(Memory {
                regions: Vec::new(),
                map,
                written: Box::new([0; WORDS]),
            })),
            ops: AtomicU64::new(0),
            touched_bytes: AtomicU64::new(0),
            read_only: false.into(),
        })
    }

    /// Frees the memory. Waits for reads and writes under way, which take microseconds. Devices are
    /// cut off before: their further requests fail.
    pub fn release(&self) {
        let memory = self
            .memory
            .write()
            .expect("no thread panics while it holds a slab")
            .take();
        if let Some(Memory { regions, map, .. }) = memory {
            drop(regions);
            drop(map);
        }
        self.touched_bytes.store(0, Relaxed);
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.key.bytes() as u64
    }

    /// Memory that it occupies, in bytes.
    pub fn touched_bytes(&self) -> u64 {
        self.touched_bytes.load(Relaxed)
    }

    /// Number of reads and writes since it was lent.
    pub fn ops(&self) -> u64 {
        self.ops.load(Relaxed)
    }

    /// Refuses writes from now on.
    pub fn make_read_only(&self) {
        self.read_only.store(true, Relaxed);
    }

    /// Lets queue pairs of a domain read, or read and write, the slab. From then on all of it takes
    /// memory, from `budget` as in [`Slab::write`]. Pinning takes milliseconds, during which the
    /// slab is not locked.
    pub fn expose(
        &self,
        (domain, access): (&Arc<Domain>, Access),
        budget: &Budget,
        more: impl FnOnce(),
    ) -> Result<Exposed, Refusal> {
        let map = {
            let mut guard = self
                .memory
                .write()
                .expect("no thread panics while it holds a slab");
            let memory = guard
                .as_mut()
                .ok_or(Refusal::Code(ErrorCode::UnknownHandle))?;
            if let Some((_, region)) = memory.region_of(domain) {
                return Ok(region.exposed());
            }
            if self.read_only.load(Relaxed) {
                return Err(Refusal::Code(ErrorCode::Evicting));
            }
            let fresh_bytes = self.bytes() - self.touched_bytes();
            if !budget.take(fresh_bytes) {
                more();
                if !budget.take(fresh_bytes) {
                    return Err(Refusal::Code(ErrorCode::NoRoom));
                }
            }
            memory.written.fill(u64::MAX);
            self.touched_bytes.fetch_add(fresh_bytes, Relaxed);
            Arc::clone(&memory.map)
        };
        let region = Region::expose(domain, &map, access).map_err(Refusal::Device)?;
        let mut guard = self
            .memory
            .write()
            .expect("no thread panics while it holds a slab");
        // It was freed meanwhile: the region is dropped here, and the mapping with it.
        let memory = guard
            .as_mut()
            .ok_or(Refusal::Code(ErrorCode::UnknownHandle))?;
        let exposed = region.exposed();
        memory.regions.push((Arc::clone(domain), region));
        Ok(exposed)
    }

    /// Revokes what [`Slab::expose`] did for this domain.
    pub fn hide(&self, domain: &Arc<Domain>) {
        let mut guard = self
            .memory
            .write()
            .expect("no thread panics while it holds a slab");
        if let Some(memory) = guard.as_mut() {
            memory.regions.retain(|(d, _)| !Arc::ptr_eq(d, domain));
        }
    }

    /// Stores `data`. Pages written for the first time are taken from `budget`; if it is too small,
    /// calls `more`, which may refill it, or stores nothing.
    pub fn write(
        &self,
        offset: u32,
        data: &[u8],
        budget: &Budget,
        more: impl FnOnce(),
    ) -> Result<(), ErrorCode> {
        let range = self
            .bounds(offset as usize, data.len())
            .ok_or(ErrorCode::OutOfRange)?;
        let mut guard = self
            .memory
            .write()
            .expect("no thread panics while it holds a slab");
        let memory = guard.as_mut().ok_or(ErrorCode::UnknownHandle)?;
        if self.read_only.load(Relaxed) {
            return Err(ErrorCode::Evicting);
        }
        if data.is_empty() {
            return Ok(());
        }
        let pages = range.start / PAGE_BYTES..(range.end - 1) / PAGE_BYTES + 1;
        let is_new = |page: &usize| memory.written[page / 64] & 1 << (page % 64) == 0;
        let fresh_bytes = (pages.clone().filter(is_new).count() * PAGE_BYTES) as u64;
        if fresh_bytes > 0 {
            if !budget.take(fresh_bytes) {
                more();
                if !budget.take(fresh_bytes) {
                    return Err(ErrorCode::NoRoom);
                }
            }
            for page in pages {
                memory.written[page / 64] |= 1 << (page % 64);
            }
            self.touched_bytes.fetch_add(fresh_bytes, Relaxed);
        }
        memory.map.write(range.start, data);
        self.ops.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Appends the bytes of these ranges to `out`. Bytes that were never written are zeros, and
    /// reading them takes no memory.
    pub fn read(
        &self,
        ranges: impl Iterator<Item = Range>,
        out: &mut Vec<u8>,
    ) -> Result<(), ErrorCode> {
        let guard = self
            .memory
            .read()
            .expect("no thread panics while it holds a slab");
        let memory = guard.as_ref().ok_or(ErrorCode::UnknownHandle)?;
        for range in ranges {
            let bytes = self
                .bounds(range.offset as usize, range.len as usize)
                .ok_or(ErrorCode::OutOfRange)?;
            memory.map.append_to(bytes, out);
        }
        self.ops.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Slab {
    /// The range, if it lies in the slab.
    fn bounds(&self, offset: usize, len: usize) -> Option<std::ops::Range<usize>> {
        let end = offset.checked_add(len)?;
        (end <= self.key.bytes()).then_some(offset..end)
    }
}

#[cfg(test)]
impl Slab {
    /// Blocks readers and writers of the slab until this is dropped.
    pub fn hold(&self) -> impl Drop + '_ {
        self.memory
            .write()
            .expect("no thread panics while it holds a slab")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: SlabKey = SlabKey {
        tenant: [1; 16],
        slab: 0,
    };

    fn slab() -> Slab {
        Slab::new(1, KEY).unwrap()
    }

    fn budget(bytes: u64) -> Budget {
        let b = Budget::default();
        b.set(bytes);
        b
    }

    fn read(slab: &Slab, offset: u32, len: u32) -> Result<Vec<u8>, ErrorCode> {
        let mut out = Vec::new();
        slab.read([Range { offset, len }].into_iter(), &mut out)
            .map(|()| out)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        /// Compared with a plain vector: contents, counting of written pages, and the budget.
        #[test]
        fn as_a_vector(
            ops in prop::collection::vec((0u32..70_000, 0usize..9000, any::<u8>()), 1..40),
            limit in 0u64..200_000,
        ) {
            let slab = slab();
            let budget = budget(limit);
            let mut oracle = vec![0u8; 80_000];
            let mut written = std::collections::BTreeSet::new();
            for (offset, len, byte) in ops {
                let data = vec![byte; len];
                let at = offset as usize;
                let mut then = written.clone();
                then.extend((at..at + len).map(|b| b / PAGE_BYTES));
                let fits = (then.len() * PAGE_BYTES) as u64 <= limit;
                let result = slab.write(offset, &data, &budget, || {});
                prop_assert_eq!(result, if fits { Ok(()) } else { Err(ErrorCode::NoRoom) });
                if fits {
                    written = then;
                    oracle[at..at + len].fill(byte);
                }
                prop_assert_eq!(slab.touched_bytes(), (written.len() * PAGE_BYTES) as u64);
            }
            prop_assert_eq!(read(&slab, 0, 80_000).unwrap(), oracle);
        }
    }

    #[test]
    fn ends() {
        let slab = slab();
        let b = budget(u64::MAX);
        let end = SLAB_BYTES as u32;
        assert_eq!(slab.write(end - 1, &[7], &b, || {}), Ok(()));
        assert_eq!(
            slab.write(end - 1, &[7, 7], &b, || {}),
            Err(ErrorCode::OutOfRange)
        );
        assert_eq!(
            slab.write(u32::MAX, &[7], &b, || {}),
            Err(ErrorCode::OutOfRange)
        );
        assert_eq!(slab.write(end, &[], &b, || {}), Ok(()));
        assert_eq!(read(&slab, end - 1, 1).unwrap(), [7]);
        assert_eq!(read(&slab, end, 1), Err(ErrorCode::OutOfRange));
        assert_eq!(read(&slab, u32::MAX, u32::MAX), Err(ErrorCode::OutOfRange));
    }

    #[test]
    fn a_part_of_a_slab_ends_where_the_part_does() {
        let part = SlabKey::part([1; 16], 5, 4);
        let slab = Slab::new(1, part).unwrap();
        let (b, end) = (budget(u64::MAX), slab.bytes() as u32);
        assert_eq!(slab.bytes(), SLAB_BYTES as u64 / 4);
        assert_eq!(slab.write(end - 1, &[7], &b, || {}), Ok(()));
        assert_eq!(read(&slab, end - 1, 1).unwrap(), [7]);
        let too_far = Err(ErrorCode::OutOfRange);
        assert_eq!(slab.write(end, &[7], &b, || {}), too_far);
        assert_eq!(read(&slab, end - 1, 2), Err(ErrorCode::OutOfRange));
    }

    #[test]
    fn a_short_budget_is_filled_once() {
        let slab = slab();
        let b = budget(0);
        assert_eq!(slab.write(0, &[1], &b, || b.set(4096)), Ok(()));
        // Written already, so it takes nothing.
        assert_eq!(slab.write(1, &[1], &b, || panic!("asked again")), Ok(()));
        assert_eq!(slab.write(5000, &[1], &b, || {}), Err(ErrorCode::NoRoom));
    }

    #[test]
    fn evicted_slabs_can_be_read_and_freed_ones_cannot() {
        let slab = slab();
        let b = budget(u64::MAX);
        slab.write(0, &[9], &b, || {}).unwrap();
        slab.make_read_only();
        assert_eq!(slab.write(0, &[1], &b, || {}), Err(ErrorCode::Evicting));
        assert_eq!(read(&slab, 0, 1).unwrap(), [9]);
        slab.release();
        assert_eq!(read(&slab, 0, 1), Err(ErrorCode::UnknownHandle));
        assert_eq!(
            slab.write(0, &[1], &b, || {}),
            Err(ErrorCode::UnknownHandle)
        );
        assert_eq!(slab.touched_bytes(), 0);
    }
}
