//! This process's proportional share of anonymous memory, from /proc/self/smaps.
//!
//! After a fork, pages are shared until one side writes. Pss counts a page that n processes map
//! as 1/n, so the sum over a tenant's processes is the memory that it really uses. The walk
//! costs about 10 ms a resident GiB: only forked processes do it, and seldom.

use canvas_sys::{sys1, sys3};

use crate::areas;

/// Reads /proc/self/smaps line by line, in a fixed buffer, without libc.
struct Lines {
    fd: usize,
    buf: [u8; 4096],
    len: usize,
    at: usize,
}

impl Lines {
    fn open() -> Option<Lines> {
        let path = c"/proc/self/smaps";
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

/// Pages of anonymous memory outside of the pool that this process answers for.
pub fn proportional_pages() -> Option<i64> {
    let mut lines = Lines::open()?;
    let mut in_pool = false;
    let (mut kib, mut rss, mut pss) = (0i64, 0i64, 0i64);
    lines.each(|line| {
        let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
        let Some(first) = words.next() else { return };
        if let Some(dash) = first.iter().position(|b| *b == b'-')
            && let Some(start) = hex(&first[..dash])
        {
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
    Some(kib / 4)
}
