//! Decides whether new memory is granted: by the program's own limits, the far limit, and what could ever be held.

use canvas_core::pager::regions::{Attr, kind};
use canvas_core::vm::{locked, reclaim};
use canvas_shm::Counter;
use canvas_sys::{Errno, proc};
use canvas_types::PAGE_SIZE;
use core::sync::atomic::Ordering;

use crate::memory::lock;
use crate::paging::regions::Lists;
use crate::runtime::{
    state,
    state::{PROCESS, count},
};
use crate::tenant::far_area;

/// Requests for fewer pages (64 MiB) are not compared with the host's memory.
const LARGE_PAGES: u64 = 16 << 10;

/// Refuses memory that would exceed the program's own limits, that could never be held or locked, or that comes after
/// the far limit is reached.
pub(crate) fn admit(g: &Lists, new_pages: u64, attr: Attr) -> Result<(), Errno> {
    let is_writable = i32::from(attr.prot) & libc::PROT_WRITE != 0;
    let total = (g.window.pages() + new_pages).saturating_mul(PAGE_SIZE as u64);
    if total > PROCESS.address_space.soft.load(Ordering::Relaxed)
        || (is_writable && total > PROCESS.data.soft.load(Ordering::Relaxed))
        || (is_writable && attr.kind & kind::NORESERVE == 0 && never_fits(new_pages))
    {
        return Err(Errno(libc::ENOMEM));
    }
    let is_filled = attr.kind & kind::LOCKED != 0 && attr.is_readable() && lock::future_fills();
    if is_filled && !locked::has_room(state::seg(), new_pages as i64) {
        return Err(Errno(libc::EAGAIN));
    }
    if new_pages > 0 && is_writable && reclaim::far_limit_reached(&PROCESS) {
        count(Counter::MmapRefused, 1);
        return Err(Errno(libc::ENOMEM));
    }
    Ok(())
}

/// The kernel's heuristic for one request (`vm.overcommit_memory=0`), which it does not apply to canvas's reservation:
/// refuses more than the host's memory and swap plus the pool, whose pages are compressed, and far memory.
pub(crate) fn never_fits(pages: u64) -> bool {
    if pages < LARGE_PAGES {
        return false;
    }
    let Some(host_bytes) = proc::ram_and_swap_bytes() else {
        return false;
    };
    let pool_bytes = state::seg().config.pool_bytes.load(Ordering::Relaxed);
    let slabs = far_area::far().map_or(0, |f| f.slabs_max.load(Ordering::Relaxed));
    let far_bytes = slabs.saturating_mul(canvas_shm::far::SLAB_BYTES as u64);
    let all = host_bytes
        .saturating_add(pool_bytes.min(host_bytes))
        .saturating_add(far_bytes);
    pages.saturating_mul(PAGE_SIZE as u64) > all && overcommit() != Some(b'1')
}

/// The digit in `vm.overcommit_memory`.
pub(crate) fn overcommit() -> Option<u8> {
    let mut text = [0u8; 4];
    let read = proc::read_file(c"/proc/sys/vm/overcommit_memory", &mut text);
    (read.ok()? > 0).then_some(text[0])
}
