//! Accesses the program's memory as the kernel does for a call: far pages come in, and a bad address is EFAULT instead
//! of a signal.
//!
//! The kernel is asked once for each page ([`probe`]) before the page is touched. If another thread unmaps the page in
//! between, the access ends the program by SIGSEGV; the kernel's answer would be as arbitrary.

use canvas_sys::signal::KernelSigaction;
use canvas_sys::{Errno, probe};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::may_be_far;
use core::mem::MaybeUninit;

use crate::memory::pins::{self, Pins};

const BAD: Errno = Errno(libc::EFAULT);
/// The kernel accepts no longer argument string in exec (MAX_ARG_STRLEN).
const STRING_MAX: usize = 32 * PAGE_SIZE;

/// Whether the range lies in the page of this thread's stack pointer, above its frames. Most arguments do, and such
/// memory is present.
#[inline(always)]
fn is_beside_us(first: usize, last: usize) -> bool {
    let here = 0u8;
    let here = &raw const here as usize;
    first > here && (here ^ last) < PAGE_SIZE
}

/// The address of the last of `bytes` at `addr`. Pages that may be far are made present and pinned for the life of the
/// pins.
#[inline(always)]
fn hold(addr: usize, bytes: usize) -> Result<(usize, Option<Pins>), Errno> {
    // The last word of the address space is never the program's.
    let last = addr.checked_add(bytes).ok_or(BAD)? - 1;
    let is_far = may_be_far(addr) || may_be_far(last);
    Ok((last, is_far.then(|| pins::pin_range(addr, bytes))))
}

/// Address of the next page.
fn next_page(addr: usize) -> usize {
    (addr & !(PAGE_SIZE - 1)).saturating_add(PAGE_SIZE)
}

fn can_read(first: usize, last: usize) -> bool {
    let mut at = first;
    while at <= last {
        if !probe::is_readable(at & !(probe::BYTES - 1)) {
            return false;
        }
        at = next_page(at);
    }
    true
}

/// What can be copied from the program's memory.
///
/// # Safety
///
/// Any bits must be a valid value.
pub unsafe trait Plain: Copy {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: a number.
unsafe impl Plain for usize {}
// SAFETY: two numbers.
unsafe impl Plain for libc::timespec {}
// SAFETY: two numbers.
unsafe impl Plain for canvas_sys::proc::Limit {}
// SAFETY: numbers, and an address that nothing here follows.
unsafe impl Plain for libc::stack_t {}
// SAFETY: four numbers.
unsafe impl Plain for KernelSigaction {}
// SAFETY: it has no bits but those of its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Copies `bytes` from the program's memory.
///
/// # Safety
///
/// `to` must have room for them, and nothing else may refer to it.
#[inline(always)]
unsafe fn copy_in(addr: usize, to: *mut u8, bytes: usize) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    let (last, _pins) = hold(addr, bytes)?;
    if !is_beside_us(addr, last) && !can_read(addr, last) {
        return Err(BAD);
    }
    // SAFETY: the kernel could read it just now. Other threads of the program may write to it meanwhile: then any bytes
    // are copied. For `to` the caller answers.
    unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, to, bytes) };
    Ok(())
}

/// Reads a structure of the program.
#[inline(always)]
pub fn get<T: Plain>(addr: usize) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` is as large as what is copied; once all of it is, it is valid, whatever its bits (`Plain`).
    unsafe {
        copy_in(addr, value.as_mut_ptr().cast(), size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// Copies words of the program.
pub fn get_words(addr: usize, out: &mut [usize]) -> Result<(), Errno> {
    // SAFETY: `out` is as large as what is copied, and borrowed mutably; any bits are numbers.
    unsafe { copy_in(addr, out.as_mut_ptr().cast(), size_of_val(out)) }
}

/// Writes a structure of the program.
///
/// # Safety
///
/// `addr` must be what the program passed to a call that writes such a structure.
#[inline(always)]
pub unsafe fn put<T: Copy>(addr: usize, value: T) -> Result<(), Errno> {
    // The probe writes, so what it probes must lie within the structure.
    const { assert!(size_of::<T>() >= probe::BYTES && size_of::<T>() <= PAGE_SIZE) };
    let (last, _pins) = hold(addr, size_of::<T>())?;
    // SAFETY: the first and the last bytes of the structure, which is to be overwritten (the caller's promise).
    let can = || unsafe { probe::is_writable(addr) && probe::is_writable(last + 1 - probe::BYTES) };
    if !is_beside_us(addr, last) && !can() {
        return Err(BAD);
    }
    // SAFETY: the kernel could write it just now; what lies there is to be overwritten (the caller's promise).
    unsafe { (addr as *mut T).write_unaligned(value) };
    Ok(())
}

/// A string of the program, without its terminator; if it is longer than any call accepts, its beginning.
///
/// # Safety
///
/// Nobody may change the string as long as the result is used.
pub unsafe fn string<'a>(addr: usize) -> Result<&'a [u8], Errno> {
    let mut at = addr;
    while at - addr < STRING_MAX {
        let end = next_page(at);
        let (last, _pins) = hold(at, end - at)?;
        if !can_read(at, last) {
            return Err(BAD);
        }
        // SAFETY: the kernel could read it just now, and nobody changes it (the caller's promise).
        let piece = unsafe { core::slice::from_raw_parts(at as *const u8, end - at) };
        if let Some(n) = piece.iter().position(|b| *b == 0) {
            // SAFETY: the kernel could read each page of it, and nobody changes it (the caller's promise).
            return Ok(unsafe { core::slice::from_raw_parts(addr as *const u8, at - addr + n) });
        }
        at = end;
    }
    // SAFETY: the kernel could read each page of it, and nobody changes it (the caller's promise).
    Ok(unsafe { core::slice::from_raw_parts(addr as *const u8, STRING_MAX) })
}
