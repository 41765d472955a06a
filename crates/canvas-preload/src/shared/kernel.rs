//! Implements the kernel and the store of shared memory for the page states.

use canvas_core::far::fetch::Lost;
use canvas_core::pager::shared::word::Entry;
use canvas_core::pager::shared::{Fill, Kernel};
use canvas_core::swap::classes::HEADER_BYTES;
use canvas_core::swap::codec::{self, Content, Lz};
use canvas_core::swap::hash::{self, Hash};
use canvas_core::swap::units::{FarCopy, StoreRef, Units, units_of};
use canvas_shm::segment::shared_fd;
use canvas_shm::shared as layout;
use canvas_sys::gate::{self, give_way};
use canvas_sys::{Errno, proc, shmem};
use canvas_types::{Codec, ExtentRef, PAGE_SIZE, PageBuf};
use core::sync::atomic::Ordering;

use crate::far_tier::{keys, pool::Lz4, tier};
use crate::own_memory::areas;
use crate::paging::context;
use crate::report;
use crate::runtime::{state, state::uffd};
use crate::shared::{
    extents,
    partition::{addr_of, control, fd, map},
    pins,
};

/// The kernel and the store.
pub struct Here;

fn units() -> Units<'static> {
    Units {
        used: map().units(),
        next: &control().next_unit,
    }
}

/// Copies a page in unless it is present.
fn copy(page: u32, src: usize) -> bool {
    let mut tries = 0u32;
    loop {
        // SAFETY: this process has the page's word busy, and absent pages of the partition are filled by such copies
        // alone; `src` is a staging page, or zeros, which are present.
        let p = unsafe { uffd().copy(addr_of(page), src, PAGE_SIZE, false) };
        match p.stopped {
            None | Some(Errno(libc::EEXIST)) => return true,
            Some(Errno(libc::EAGAIN)) | Some(Errno(libc::EINTR)) => give_way(),
            Some(Errno(libc::ENOMEM)) if tries < 10_000 => {
                tries += 1;
                proc::sleep_ns(100_000);
            }
            Some(_) => return false,
        }
    }
}

impl Kernel for Here {
    fn splice(&self, page: u32, n: u32) -> u32 {
        let (from, want) = (page as usize * PAGE_SIZE, n as usize * PAGE_SIZE);
        let mut done = 0;
        loop {
            match shmem::splice(
                fd(shared_fd::PARTITION),
                from + done,
                want - done,
                fd(shared_fd::PIPE_IN),
            ) {
                Ok(bytes) if bytes > 0 => done += bytes,
                Err(Errno(libc::EINTR)) => continue,
                _ if done.is_multiple_of(PAGE_SIZE) => break,
                _ => {
                    // Half a page cannot be taken back. Exit: the next lock holder discards the pipe's contents.
                    report!("internal error: a page was cut in two on its way to the pipe");
                    proc::exit_group(canvas_types::exit::RUN_FAILED);
                }
            }
            if done == want || done.is_multiple_of(PAGE_SIZE) {
                break;
            }
        }
        (done / PAGE_SIZE) as u32
    }
    fn punch(&self, page: u32, n: u32) {
        let (at, bytes) = (page as usize * PAGE_SIZE, n as usize * PAGE_SIZE);
        // SAFETY: the pager has the pages busy, and their contents in the pipe; nothing of Rust's lies in the
        // partition.
        while unsafe { shmem::punch(fd(shared_fd::PARTITION), at, bytes) }.is_err() {
            gate::yield_now();
        }
    }
    fn in_pipe(&self) -> usize {
        loop {
            if let Ok(bytes) = shmem::readable(fd(shared_fd::PIPE_OUT)) {
                return bytes;
            }
            gate::yield_now();
        }
    }
    fn read_pipe(&self, place: usize, offset: usize) -> usize {
        let map = map();
        // SAFETY: the pager calls this under the shared lock; no other reference to the page is alive here.
        let page = unsafe { map.staging(place) };
        proc::read(fd(shared_fd::PIPE_OUT) as usize, &mut page[offset..]).unwrap_or(0)
    }
    fn drain(&self) {
        let map = map();
        // SAFETY: the pager calls this under the shared lock, before it has taken pages out, so nothing in the buffer
        // is needed; no other reference to the page is alive here.
        let page = unsafe { map.staging(0) };
        while self.in_pipe() > 0 {
            let _ = proc::read(fd(shared_fd::PIPE_OUT) as usize, page);
        }
    }
    fn is_pinned(&self, page: u32) -> bool {
        pins::is_pinned(page)
    }
    fn save(&self, number: u32, place: usize, old: Entry) -> Option<Entry> {
        let map = map();
        // SAFETY: the pager calls this under the shared lock; no other reference to the page is alive here.
        let page: &PageBuf = unsafe { map.staging(place) };
        if codec::classify(page) == Content::Zero {
            return Some(Entry::NONE);
        }
        let hash = keys::shared().of(page);
        if old.is_some() && hash_of_copy(number, old).is_some_and(|of| hash::same(&of, &hash)) {
            return Some(old);
        }
        let store = fd(shared_fd::STORE);
        let seg = state::seg();
        let pages = shmem::pages(store).map_or(usize::MAX, |n| n as usize);
        let used = seg.pool_bytes.load(Ordering::Relaxed).max(0) as usize;
        let most = seg.pool_bound() as usize;
        // A record lies in two pages at most.
        if pages.saturating_add(2).saturating_mul(PAGE_SIZE) + used > most {
            return None;
        }
        let mut ctx = context::fill();
        let ctx = &mut *ctx;
        let room = ctx.staging.as_flattened_mut();
        let header = HEADER_BYTES;
        room[..header].copy_from_slice(&hash);
        let packed = match seg.config.codec() {
            Codec::Lz4 => {
                let most = canvas_core::swap::classes::COMPRESSED_MAX;
                Lz4.compress(page, &mut room[header..header + most], &mut ctx.scratch.lz)
            }
            Codec::None => None,
        };
        let bytes = packed.unwrap_or_else(|| {
            room[header..header + PAGE_SIZE].copy_from_slice(page);
            PAGE_SIZE
        });
        // A little more than is used: free units are found quickly, and the file stays dense.
        let end = (pages + pages / 4 + 256).min(layout::STORE_PAGES);
        control().store_end.fetch_max(end as u32, Ordering::SeqCst);
        let unit = units().take(units_of(bytes), end)?;
        let new = StoreRef { unit, bytes };
        if !shmem::write_at(store, new.offset(), &room[..header + bytes]) {
            free(new);
            return None;
        }
        Some(Entry(FarCopy::Stored(new).number()))
    }
    fn freed(&self, entry: Entry) {
        match FarCopy::of(entry.0) {
            FarCopy::Stored(place) => free(place),
            FarCopy::InExtent(place) => extents::unhold(place.extent),
        }
    }
    fn put_back(&self, page: u32, place: usize) {
        let map = map();
        // SAFETY: the pager calls this under the shared lock; no other reference to the page is alive here.
        let content: &PageBuf = unsafe { map.staging(place) };
        while !copy(page, content.as_ptr() as usize) {
            gate::yield_now();
        }
    }
    fn fill_new(&self, page: u32) -> Fill {
        if copy(page, areas::zeros()) {
            Fill::Present
        } else {
            Fill::Failed
        }
    }
    fn fill_far(&self, page: u32, entry: Entry) -> Fill {
        if !entry.is_some() {
            return self.fill_new(page);
        }
        let mut ctx = context::fill();
        let ctx = &mut *ctx;
        let decoded = match FarCopy::of(entry.0) {
            FarCopy::Stored(place) => {
                let (to, room) = ctx.staging.split_at_mut(1);
                let record = &mut room.as_flattened_mut()[..HEADER_BYTES + place.bytes];
                if !shmem::read_at(fd(shared_fd::STORE), place.offset(), record) {
                    return Fill::Failed;
                }
                decode(record, None, &mut to[0])
            }
            FarCopy::InExtent(place) => {
                let to = &mut ctx.staging[0];
                let want = extents::hash_of(page);
                let read = tier::read(place, &mut ctx.stored, |record| {
                    decode(record, Some(&want), to)
                });
                match read {
                    Ok(()) => true,
                    Err(Lost::Damaged) => false,
                    Err(Lost::Unreachable) => return Fill::Unreachable,
                    Err(Lost::Gone) => return Fill::Lost,
                }
            }
        };
        if !decoded {
            return Fill::Damaged;
        }
        if copy(page, ctx.staging.as_ptr() as usize) {
            Fill::Present
        } else {
            Fill::Failed
        }
    }
    fn is_present(&self, page: u32) -> bool {
        loop {
            match shmem::has_page(fd(shared_fd::PARTITION), page as usize * PAGE_SIZE) {
                Ok(there) => return there,
                Err(_) => gate::yield_now(),
            }
        }
    }
    fn forget_entries(&self) {
        units().forget(control().store_end.load(Ordering::SeqCst) as usize);
        extents::recover();
    }
    fn keep(&self, entry: Entry) {
        match FarCopy::of(entry.0) {
            FarCopy::Stored(place) => units().mark(place.unit, place.units()),
            FarCopy::InExtent(place) => extents::hold(place.extent),
        }
    }
}

/// Bytes of a record's hash and payload.
pub fn stored_bytes(place: ExtentRef) -> usize {
    HEADER_BYTES + usize::from(place.len)
}

/// Makes a page present from the record of its copy beyond the pool, decoded to `to`.
pub fn bring(page: u32, record: &[u8], to: &mut PageBuf) -> Fill {
    let want = extents::hash_of(page);
    if !decode(record, Some(&want), to) {
        return Fill::Damaged;
    }
    if copy(page, to.as_ptr() as usize) {
        Fill::Present
    } else {
        Fill::Failed
    }
}

/// The hash of the content of a page's copy.
fn hash_of_copy(page: u32, copy: Entry) -> Option<Hash> {
    match FarCopy::of(copy.0) {
        FarCopy::Stored(place) => {
            let mut header = Hash::default();
            shmem::read_at(fd(shared_fd::STORE), place.offset(), &mut header).then_some(header)
        }
        FarCopy::InExtent(_) => Some(extents::hash_of(page)),
    }
}

/// Decodes a page from its record (hash and payload); returns false if it does not verify. `want` is the expected hash
/// if it is known from elsewhere.
fn decode(record: &[u8], want: Option<&Hash>, to: &mut PageBuf) -> bool {
    let Some((head, payload)) = record.split_first_chunk::<HEADER_BYTES>() else {
        return false;
    };
    let decoded = match payload.first_chunk::<PAGE_SIZE>() {
        Some(raw) => {
            *to = *raw;
            true
        }
        None => Lz4.decompress(payload, to),
    };
    decoded && hash::same(&keys::shared().of(to), want.unwrap_or(head))
}

fn free(place: StoreRef) {
    units().free(place.unit, place.units(), |page| {
        // SAFETY: no unit of the page is in use, and none is taken meanwhile: this runs under the shared lock. The
        // store is read by copies only.
        let _ = unsafe { shmem::punch(fd(shared_fd::STORE), page * PAGE_SIZE, PAGE_SIZE) };
    });
}
