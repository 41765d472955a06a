//! Parts of the managed range that become native: for operations of the kernel on memory that canvas cannot emulate (a
//! userfaultfd of the program, protection keys, a move out of the managed range).

use canvas_core::pager::regions::{Attr, kind};
use canvas_core::pager::word::{self, State, Word};
use canvas_core::vm::reclaim;
use canvas_sys::gate::{check, raw};
use canvas_sys::{Errno, mem};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::{self, BLOCK_PAGES};

use crate::memory::{lock, mm, pins, ranges::each_touched, uaccess};
use crate::own_memory::areas;
use crate::paging::{
    accounting, freeze, regions,
    regions::{addr_of, range},
    touched,
};
use crate::runtime::{
    state,
    state::{PROCESS, uffd},
};

/// Makes a mapped range native, with its contents, which are brought in first. From then on it counts as native memory
/// of the process; when it is unmapped it returns to canvas.
pub(crate) fn release(start: u32, end: u32) -> Result<(), Errno> {
    let _inside = freeze::enter();
    if !regions::lock().window.covers(start, end) {
        return Err(Errno(libc::ENOMEM));
    }
    lock::hold_all(start, end, false)?;
    let mut g = regions::lock();
    let mut lost = false;
    each_touched(start, end, |page, cur| {
        if cur.state() != State::Resident {
            // Another thread has unmapped and mapped it meanwhile: a race in the program.
            lost = true;
            word::publish(areas::word(page), cur);
            return;
        }
        reclaim::forget(&PROCESS, page, cur);
        word::publish(areas::word(page), Word(0));
        touched::note_untouched(page.index() / BLOCK_PAGES, 1);
        state::seg().charge_footprint(-1);
    });
    if lost {
        return Err(Errno(libc::EBUSY));
    }
    let bytes = (end - start) as usize * PAGE_SIZE;
    // SAFETY: a part of the managed range, whose pages have all been brought in; none is the pager's any more.
    unsafe { uffd().unregister(addr_of(start), bytes) }?;
    let mut at = start;
    while let Some(r) = g.window.first_in(at, end) {
        at = r.end;
        if r.attr.kind & kind::NATIVE == 0 {
            let kept = r.attr.kind & (kind::SEALED | kind::DONTFORK | kind::DONTDUMP);
            let bytes = (r.end - r.start) as usize * PAGE_SIZE;
            let undo = [
                (kind::DONTFORK, libc::MADV_DOFORK),
                (kind::DONTDUMP, libc::MADV_DODUMP),
            ];
            for (_, advice) in undo.into_iter().filter(|(said, _)| kept & said == 0) {
                // SAFETY: both advices change only what a fork copies and a core dump has.
                unsafe { mem::advise(addr_of(r.start), bytes, advice) }?;
            }
            let native = Attr {
                kind: kept | kind::NATIVE,
                ..r.attr
            };
            g.window
                .insert(r.start, r.end, native)
                .map_err(|_| Errno(libc::ENOMEM))?;
        }
    }
    accounting::measure_soon();
    Ok(())
}

/// `pkey_mprotect` with a non-default key: canvas's own threads may not read what a key protects.
pub fn pkey_mprotect(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if !layout::in_window(a[0]) || matches!(a[3] as i32, -1 | 0) {
        return mm::mprotect(a);
    }
    let set = || {
        let (start, end) = range(a[0], a[1])?;
        if start < end {
            {
                let _inside = freeze::enter();
                mm::refuse_sealed(&regions::lock(), start, end)?;
            }
            release(start, end)?;
        }
        // SAFETY: pages of the managed range (`range`), in which nothing of Rust's lies; they are native now, so canvas
        // does not access them.
        let done = check(unsafe { raw(libc::SYS_pkey_mprotect as usize, *a) })?;
        let _inside = freeze::enter();
        let _ = regions::lock().window.update(start, end, |attr| Attr {
            prot: a[2] as u8,
            ..attr
        });
        Ok(done)
    };
    Some(set())
}

/// UFFDIO_REGISTER and UFFDIO_COPY.
const REGISTER: u32 = 0xc020_aa00;
const COPY: u32 = 0xc028_aa03;

/// Whether this is an `ioctl` of a userfaultfd of the program with which canvas's memory may interfere.
pub fn is_uffd_call(a: &[usize; 6]) -> bool {
    matches!(a[1] as u32, REGISTER | COPY)
}

/// Serves such a call: memory that it registers becomes native, and the source of its copies is brought in. The range
/// that it registers, or copies to, must not be filled before.
///
/// # Safety
///
/// `a` must be the registers of the program's `ioctl`.
pub unsafe fn uffd_call(a: &[usize; 6]) -> isize {
    // Both structures begin with the range or the destination: address, then length or source, then its length.
    let mut words = [0usize; 5];
    let is_copy = a[1] as u32 == COPY;
    let words_used = if is_copy { 5 } else { 4 };
    let _structure = pins::pin_range(a[2], words_used * size_of::<usize>());
    let is_known = uaccess::get_words(a[2], &mut words[..words_used]).is_ok();
    let _source = (is_copy && is_known).then(|| pins::pin_range(words[1], words[2]));
    // SAFETY: the program's call (the caller's promise).
    let call = || unsafe { raw(libc::SYS_ioctl as usize, *a) };
    let first = call();
    let is_ours = -first as i32 == libc::EBUSY && !is_copy && is_known;
    let released = is_ours && range(words[0], words[1]).is_ok_and(|(s, e)| release(s, e).is_ok());
    if released { call() } else { first }
}
