//! What a program sees in /proc/self/fd: only its own descriptors.

use canvas_sys::file;
use core::ffi::CStr;

use crate::memory::args::{self, Make};
use crate::runtime::fds;

/// Offsets of length and name in struct linux_dirent64.
const LENGTH: usize = 16;
const NAME: usize = 19;

/// Whether the directory open as `fd` is that of this process's descriptors.
fn is_own(fd: usize) -> bool {
    let there = file::stat_filtered(fd as i32).map(file::which);
    let is = |path: &CStr| file::stat_of(path).map(file::which) == there;
    there.is_ok() && (is(c"/proc/self/fd") || is(c"/proc/self/fdinfo"))
}

/// Whether this name is the number of a descriptor of canvas.
fn names_ours(name: &[u8]) -> bool {
    let text = name
        .split(|b| *b == 0)
        .next()
        .and_then(|n| core::str::from_utf8(n).ok());
    text.and_then(|t| t.parse().ok()).is_some_and(fds::is_ours)
}

/// Removes entries of canvas's descriptors from `entries`, if `own` says that they are this process's; returns how many
/// bytes are left.
fn without_ours(entries: &mut [u8], own: impl Fn() -> bool) -> usize {
    let (mut from, mut to) = (0, 0);
    let mut checked = None;
    while from + NAME < entries.len() {
        let length = u16::from_ne_bytes([entries[from + LENGTH], entries[from + LENGTH + 1]]);
        let end = (from + usize::from(length)).min(entries.len());
        if end <= from + NAME {
            break;
        }
        let hide = names_ours(&entries[from + NAME..end]) && *checked.get_or_insert_with(&own);
        if !hide {
            entries.copy_within(from..end, to);
            to += end - from;
        }
        from = end;
    }
    to
}

/// `getdents64`.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
pub unsafe fn getdents64(nr: usize, a: &[usize; 6]) -> isize {
    loop {
        // SAFETY: the program's call (the caller's promise).
        let got = unsafe { args::run(nr, a, Make::AsItIs) };
        if got <= 0 {
            return got;
        }
        // SAFETY: the program's buffer, to which the kernel has just written `got` bytes; the program leaves it to this
        // call until that returns.
        let entries = unsafe { core::slice::from_raw_parts_mut(a[1] as *mut u8, got as usize) };
        let left = without_ours(entries, || is_own(a[0]));
        // An empty answer would mean the end of the directory.
        if left > 0 {
            return left as isize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Vec<u8> {
        let length = (NAME + name.len() + 1).next_multiple_of(8);
        let mut bytes = vec![0; length];
        bytes[LENGTH..LENGTH + 2].copy_from_slice(&(length as u16).to_ne_bytes());
        bytes[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
        bytes
    }

    #[test]
    fn only_ours_are_taken_out_and_only_of_our_own_directory() {
        fds::guard(fds::Fd::Trace, 777_777);
        let names = [".", "3", "777777", "7777771", "x"];
        let all: Vec<u8> = names.iter().flat_map(|n| entry(n)).collect();
        let kept: Vec<u8> = [".", "3", "7777771", "x"]
            .iter()
            .flat_map(|n| entry(n))
            .collect();
        let mut bytes = all.clone();
        let left = without_ours(&mut bytes, || true);
        assert_eq!(bytes[..left], kept);
        let mut bytes = all.clone();
        assert_eq!(without_ours(&mut bytes, || false), all.len());
        assert_eq!(bytes, all);
        fds::guard(fds::Fd::Trace, -1);
    }
}
