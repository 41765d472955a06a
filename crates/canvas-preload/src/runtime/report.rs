//! Lines on stderr, for when something is wrong; without allocation or libc.

use canvas_sys::proc;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The thread with a descriptor table of its own, and the pidfd through which it reaches the program's.
static BORROWER: AtomicU32 = AtomicU32::new(0);
static PIDFD: AtomicI32 = AtomicI32::new(-1);

/// Records that this thread has left the program's descriptor table; its lines still go to the program's stderr.
pub fn borrow_stderr(pidfd: i32) {
    PIDFD.store(pidfd, Ordering::Relaxed);
    BORROWER.store(proc::tid(), Ordering::Release);
}

struct Line {
    buf: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.buf.len() - 1 - self.len);
        self.buf[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Writes "canvas: ..." and a newline to stderr in one call.
pub fn line(args: core::fmt::Arguments<'_>) {
    let mut l = Line {
        buf: [0; 256],
        len: 0,
    };
    let _ = l.write_str("canvas: ");
    let _ = l.write_fmt(args);
    l.buf[l.len] = b'\n';
    let line = &l.buf[..l.len + 1];
    if BORROWER.load(Ordering::Acquire) != proc::tid() {
        return proc::write_all(2, line);
    }
    if let Ok(stderr) = proc::descriptor_of(PIDFD.load(Ordering::Relaxed), 2) {
        proc::write_all(stderr, line);
        proc::close(stderr);
    }
}

/// `report!("...")`: writes one line to stderr.
#[macro_export]
macro_rules! report {
    ($($t:tt)*) => { $crate::runtime::report::line(format_args!($($t)*)) };
}
