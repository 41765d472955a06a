//! The calls of `canvas.h`, which a program finds through one symbol, `canvas_calls`.
//!
//! They run in the program's context, like calls of any library: they access its memory outside of [`freeze`], where a
//! fault is an ordinary one.

use canvas_core::pager::api::faults::Fault;
use canvas_core::pager::api::kinds::Kind;
use canvas_core::pager::api::refs::{Content, Declaration};
use canvas_shm::Counter;
use canvas_sys::proc;
use canvas_types::layout::{window_base, window_end};
use canvas_types::{PAGE_SIZE, PageId};
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::api::{faults, told};
use crate::memory::advice;
use crate::paging::{freeze, hints, regions};
use crate::runtime::{state, time};

/// The version of these calls: CANVAS_API_VERSION.
const VERSION: u32 = 0x1_0000;
/// Maximum ranges per call.
const RANGES_MAX: usize = 64;

/// `struct canvas_range`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Range {
    addr: usize,
    bytes: usize,
}

/// `struct canvas_stats`; `canvas.h` describes each field.
#[derive(Default)]
#[repr(C)]
pub struct Stats {
    local_bytes: u64,
    local_limit_bytes: u64,
    pool_bytes: u64,
    resident_bytes: u64,
    far_bytes: u64,
    faults_far: u64,
    pages_in: u64,
    pages_out: u64,
    prefetch_issued: u64,
    prefetch_used: u64,
    hint_pages_in: u64,
    hint_pages_out: u64,
    hints_dropped: u64,
    faults_forwarded: u64,
    faults_dropped: u64,
}

/// `struct canvas_calls`. New calls are appended.
#[repr(C)]
pub struct Calls {
    bytes: usize,
    version: u32,
    prefetch: extern "C" fn(usize, usize) -> isize,
    prefetchv: unsafe extern "C" fn(*const Range, usize) -> isize,
    thread_kind: extern "C" fn(i32, i32) -> isize,
    region: extern "C" fn(usize, usize, i32, u64, u32) -> isize,
    faults_next: unsafe extern "C" fn(*mut Fault, usize, i32) -> isize,
    stats: unsafe extern "C" fn(*mut Stats, usize) -> isize,
}
// Programs are built with these layouts (`canvas.h`).
const _: () = assert!(size_of::<Range>() == 16 && size_of::<Fault>() == 32);
const _: () = assert!(size_of::<Calls>() == 64);

static CALLS: Calls = Calls {
    bytes: size_of::<Calls>(),
    version: VERSION,
    prefetch,
    prefetchv,
    thread_kind,
    region,
    faults_next,
    stats,
};

/// This process's memory is managed.
static MANAGED: AtomicBool = AtomicBool::new(false);

/// Enables the calls.
pub fn open() {
    MANAGED.store(true, Ordering::Release);
}

/// The calls of this major version; null if the version differs, or if canvas does not manage this process.
#[unsafe(no_mangle)]
pub extern "C" fn canvas_calls(version: u32) -> *const Calls {
    match MANAGED.load(Ordering::Acquire) && version >> 16 == VERSION >> 16 {
        true => &raw const CALLS,
        false => core::ptr::null(),
    }
}

const EINVAL: isize = -(libc::EINVAL as isize);

/// The managed pages that the range touches; an error if it is no valid range.
fn pages(addr: usize, bytes: usize) -> Result<(u32, u32), isize> {
    let end = addr.checked_add(bytes).ok_or(EINVAL)?;
    if addr == 0 && bytes != 0 {
        return Err(EINVAL);
    }
    let (from, to) = (addr.max(window_base()), end.min(window_end()));
    if from >= to {
        return Ok((0, 0));
    }
    let last = PageId::of_addr(to - 1).0;
    Ok((PageId::of_addr(from).0, last + 1))
}

/// Accepts as many of the ranges (in pages) as possible.
fn accept(ranges: &[(u32, u32)]) -> isize {
    let _inside = freeze::enter();
    hints::try_will_need(ranges).map_or(-(libc::EAGAIN as isize), |accepted| accepted as isize)
}

extern "C" fn prefetch(addr: usize, bytes: usize) -> isize {
    pages(addr, bytes).map_or_else(|e| e, |range| accept(&[range]))
}

/// # Safety
///
/// `ranges` must point to `n` ranges, as `canvas.h` says.
unsafe extern "C" fn prefetchv(ranges: *const Range, n: usize) -> isize {
    if n > RANGES_MAX || n > 0 && (ranges.is_null() || !ranges.is_aligned()) {
        return EINVAL;
    }
    let mut all = [(0, 0); RANGES_MAX];
    for (i, to) in all[..n].iter_mut().enumerate() {
        // SAFETY: read in the program's name, as its own access (the caller's promise); not inside, so that its page
        // may be far. Copied: another thread of the program may write to it.
        let range = unsafe { ranges.add(i).read() };
        *to = match pages(range.addr, range.bytes) {
            Ok(range) => range,
            Err(e) => return e,
        };
    }
    accept(&all[..n])
}

extern "C" fn thread_kind(tid: i32, kind: i32) -> isize {
    let known = u64::try_from(kind).ok().and_then(Kind::from_number);
    if tid < 0 || kind != 0 && known.is_none() {
        return EINVAL;
    }
    let tid = match tid {
        0 => proc::tid(),
        tid => tid as u32,
    };
    // SAFETY: the call takes no address; signal 0 is none.
    let there =
        unsafe { canvas_sys::sys3(libc::SYS_tgkill, proc::pid() as usize, tid as usize, 0) };
    if there.is_err() {
        return -(libc::ESRCH as isize);
    }
    let _inside = freeze::enter();
    told::tell_kind(tid, known).map_or(-(libc::ENOSPC as isize), |()| 0)
}

extern "C" fn region(addr: usize, bytes: usize, kind: i32, base: u64, shift: u32) -> isize {
    let (content, advice) = match kind {
        0 => (None, libc::MADV_NORMAL),
        1 => (Some(Content::Array), libc::MADV_SEQUENTIAL),
        2 => (Some(Content::Refs64), libc::MADV_NORMAL),
        3 => (Some(Content::Refs32), libc::MADV_NORMAL),
        4 => (None, libc::MADV_RANDOM),
        _ => return EINVAL,
    };
    if shift >= u32::BITS || kind != 3 && (base != 0 || shift != 0) {
        return EINVAL;
    }
    let (start, end) = match pages(addr, bytes) {
        Ok(range) => range,
        Err(e) => return e,
    };
    let nothing = -(libc::ENOMEM as isize);
    if start == end {
        return if bytes == 0 { 0 } else { nothing };
    }
    let told = content.map(|content| Declaration {
        content,
        base,
        shift: shift as u8,
    });
    let entered = {
        let _inside = freeze::enter();
        // Memory that is not mapped now may become anything later.
        match regions::lock().window.covers(start, end) {
            true => told::tell_content(start, end, told),
            false => return nothing,
        }
    };
    if entered.is_err() {
        return -(libc::ENOSPC as isize);
    }
    let at = regions::addr_of(start);
    let bytes = (end - start) as usize * PAGE_SIZE;
    match advice::madvise(&[at, bytes, advice as usize, 0, 0, 0]) {
        Some(Err(e)) => -(e.0 as isize),
        _ => 0,
    }
}

/// # Safety
///
/// `out` must have room for `n` faults, as `canvas.h` says.
unsafe extern "C" fn faults_next(out: *mut Fault, n: usize, timeout_ms: i32) -> isize {
    /// Faults copied at a time.
    const STEP: usize = 32;
    if out.is_null() || !out.is_aligned() || n == 0 || timeout_ms < -1 {
        return EINVAL;
    }
    let take = |room: usize, got: &mut [Fault; STEP]| {
        let _inside = freeze::enter();
        faults::take(&mut got[..room.min(STEP)])
    };
    let mut got = [Fault::default(); STEP];
    let mut done = 0;
    let until = match timeout_ms {
        -1 => u64::MAX,
        ms => time::now_ns() + ms as u64 * 1_000_000,
    };
    let mut waited = false;
    while done < n {
        let mut found = take(n - done, &mut got);
        if found == 0 && done == 0 {
            let now = time::now_ns();
            if now >= until || waited {
                break;
            }
            let seen = faults::begin_wait();
            found = take(n, &mut got);
            if found == 0 {
                // After a spurious wake-up or a signal, return: the program may have other things to do.
                waited = timeout_ms != -1 && until - now <= MOST_NS;
                faults::wait(seen, (until - now).min(MOST_NS));
            }
            faults::end_wait();
        }
        for fault in &got[..found] {
            // SAFETY: the program's buffer, which has room for it (the caller's promise); not inside, so that its page
            // may be far.
            unsafe { out.add(done).write(*fault) };
            done += 1;
        }
        if found == 0 && done > 0 {
            break;
        }
    }
    done as isize
}

/// Longest single wait.
const MOST_NS: u64 = 1_000_000_000;

/// # Safety
///
/// `out` must have room for `bytes` bytes, as `canvas.h` says.
unsafe extern "C" fn stats(out: *mut Stats, bytes: usize) -> isize {
    if out.is_null() || !out.is_aligned() || bytes < size_of::<u64>() {
        return EINVAL;
    }
    let (seg, me) = (state::seg(), state::slot());
    let size = |pages: i64| pages.max(0) as u64 * PAGE_SIZE as u64;
    let level = |at: &core::sync::atomic::AtomicI64| size(at.load(Ordering::Relaxed));
    let (faults_forwarded, faults_dropped) = faults::counts();
    let now = Stats {
        local_bytes: level(&seg.local_pages),
        local_limit_bytes: seg.local_limit_pages().map_or(u64::MAX, size),
        pool_bytes: seg.pool_bytes.load(Ordering::Relaxed).max(0) as u64,
        resident_bytes: level(&me.resident_pages),
        far_bytes: level(&me.far_pages),
        faults_far: seg.total(Counter::FaultFar),
        pages_in: seg.total(Counter::PagesIn),
        pages_out: seg.total(Counter::PagesOut),
        prefetch_issued: seg.total(Counter::PrefetchIssued),
        prefetch_used: seg.total(Counter::PrefetchUsed),
        hint_pages_in: seg.total(Counter::HintPagesIn),
        hint_pages_out: seg.total(Counter::HintPagesOut),
        hints_dropped: seg.total(Counter::HintsDropped),
        faults_forwarded,
        faults_dropped,
    };
    let bytes = bytes.min(size_of::<Stats>()) & !(size_of::<u64>() - 1);
    // SAFETY: the program's buffer, with room for `bytes` bytes (the caller's promise); `now` has as many.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const now).cast::<u8>(), out.cast::<u8>(), bytes)
    };
    bytes as isize
}
