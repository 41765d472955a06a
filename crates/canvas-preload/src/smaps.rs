//! A process's proportional share of anonymous memory, from /proc/PID/smaps.
//!
//! After a fork, pages are shared until one side writes. Pss counts a page that n processes map
//! as 1/n, so the sum over a tenant's processes is the memory that it really uses. The walk
//! costs about 10 ms a resident GiB: only forked processes do it, and seldom.

use canvas_sys::{sys1, sys3, sys4};
use canvas_types::PAGE_SIZE;

use crate::areas;

/// Reads /proc/self/smaps line by line, in a fixed buffer, without libc.
struct Lines {
    fd: usize,
    buf: [u8; 4096],
    len: usize,
    at: usize,
}

impl Lines {
    fn open(pid: u32) -> Option<Lines> {
        // "/proc/4294967295/smaps" and its end.
        let mut path = [0u8; 24];
        path[..6].copy_from_slice(b"/proc/");
        let (mut digits, mut n, mut rest) = ([0u8; 10], 0, pid);
        while n == 0 || rest > 0 {
            digits[n] = b'0' + (rest % 10) as u8;
            (n, rest) = (n + 1, rest / 10);
        }
        for (i, d) in digits[..n].iter().rev().enumerate() {
            path[6 + i] = *d;
        }
        path[6 + n..12 + n].copy_from_slice(b"/smaps");
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: the path lives across the call.
        let fd = unsafe {
            sys3(
                libc::SYS_openat,
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                flags,
            )
        }
        .ok()?;
        Some(Lines {
            fd,
            buf: [0; 4096],
            len: 0,
            at: 0,
        })
    }
    /// Calls `f` with each line; lines longer than the buffer are cut.
    fn each(&mut self, mut f: impl FnMut(&[u8])) {
        loop {
            while let Some(n) = self.buf[self.at..self.len].iter().position(|b| *b == b'\n') {
                f(&self.buf[self.at..self.at + n]);
                self.at += n + 1;
            }
            self.buf.copy_within(self.at..self.len, 0);
            self.len -= self.at;
            self.at = 0;
            if self.len == self.buf.len() {
                self.len = 0;
            }
            let room = self.buf.len() - self.len;
            // SAFETY: the kernel writes into the rest of our buffer.
            let got = unsafe {
                sys3(
                    libc::SYS_read,
                    self.fd,
                    self.buf.as_mut_ptr() as usize + self.len,
                    room,
                )
            };
            match got {
                Ok(n) if n > 0 => self.len += n,
                _ => return,
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: our descriptor.
        let _ = unsafe { sys1(libc::SYS_close, self.fd) };
    }
}

fn hex(text: &[u8]) -> Option<usize> {
    let mut n = 0usize;
    let mut any = false;
    for b in text {
        let d = (*b as char).to_digit(16)?;
        n = n.checked_mul(16)? + d as usize;
        any = true;
    }
    any.then_some(n)
}

/// Pages of anonymous memory outside of the pool that process `pid` answers for; `None` when it has
/// ended or may not be looked at.
pub fn proportional_pages(pid: u32) -> Option<i64> {
    let mut lines = Lines::open(pid)?;
    let mut in_pool = false;
    let (mut kib, mut rss, mut pss) = (0i64, 0i64, 0i64);
    // A process that is ending has no maps any more.
    let mut seen = false;
    lines.each(|line| {
        let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
        let Some(first) = words.next() else { return };
        if let Some(dash) = first.iter().position(|b| *b == b'-')
            && let Some(start) = hex(&first[..dash])
        {
            seen = true;
            in_pool = (areas::POOL..areas::POOL + areas::POOL_BYTES).contains(&start);
            return;
        }
        let value = || {
            let digits = words.clone().next().unwrap_or(b"0");
            digits
                .iter()
                .filter(|b| b.is_ascii_digit())
                .fold(0i64, |k, b| k * 10 + i64::from(b - b'0'))
        };
        // A mapping's Pss covers its file pages too: the anonymous share of it counts.
        match first {
            b"Rss:" => rss = value(),
            b"Pss:" => pss = value(),
            b"Anonymous:" if !in_pool && rss > 0 => kib += pss * value() / rss,
            _ => {}
        }
    });
    seen.then_some(kib / 4)
}

/// /proc/self/pagemap, open for as long as it lives.
struct Pagemap(usize);

impl Pagemap {
    fn open() -> Option<Pagemap> {
        let path = c"/proc/self/pagemap";
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: the path lives across the call.
        unsafe {
            sys3(
                libc::SYS_openat,
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                flags,
            )
        }
        .ok()
        .map(Pagemap)
    }
    /// Of up to 64 pages from `addr` on, a bit for each that is present and mapped by others too
    /// (bit 56 is clear).
    fn shared(&self, addr: usize, pages: usize) -> u64 {
        let mut entries = [0u64; 64];
        let pages = pages.min(entries.len());
        // SAFETY: the kernel writes `pages` entries at most.
        let got = unsafe {
            sys4(
                libc::SYS_pread64,
                self.0,
                entries.as_mut_ptr() as usize,
                pages * 8,
                addr / PAGE_SIZE * 8,
            )
        };
        let seen = got.unwrap_or(0) / 8;
        entries[..seen].iter().enumerate().fold(0, |bits, (i, e)| {
            bits | u64::from(e >> 63 != 0 && e >> 56 & 1 == 0) << i
        })
    }
}

impl Drop for Pagemap {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys1(libc::SYS_close, self.0) };
    }
}

/// How many of the present pages in `ranges` (64 pages each at most) another process maps as well.
pub fn shared_in(ranges: &[libc::iovec]) -> i64 {
    let Some(map) = Pagemap::open() else { return 0 };
    let count = |r: &libc::iovec| {
        map.shared(r.iov_base as usize, r.iov_len / PAGE_SIZE)
            .count_ones()
    };
    ranges.iter().map(|r| i64::from(count(r))).sum()
}

/// How many of the pages marked in `which`, one bit a page from `addr` on, another process maps as
/// well.
pub fn shared_pages(addr: usize, which: &[u64]) -> i64 {
    let Some(map) = Pagemap::open() else { return 0 };
    let mut n = 0;
    for (i, bits) in which.iter().enumerate().filter(|(_, b)| **b != 0) {
        let at = addr + i * 64 * PAGE_SIZE;
        n += i64::from((map.shared(at, 64) & bits).count_ones());
    }
    n
}
