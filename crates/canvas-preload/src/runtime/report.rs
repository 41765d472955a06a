//! Lines on stderr, for when something is wrong; without allocation or libc.

use canvas_sys::proc;
use core::fmt::Write;

use crate::runtime::fds;

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

/// Writes "canvas: ..." and a newline to the program's stderr in one call.
pub fn line(args: core::fmt::Arguments<'_>) {
    let mut l = Line {
        buf: [0; 256],
        len: 0,
    };
    let _ = l.write_str("canvas: ");
    let _ = l.write_fmt(args);
    l.buf[l.len] = b'\n';
    let line = &l.buf[..l.len + 1];
    if !fds::has_its_own() {
        return proc::write_all(2, line);
    }
    if let Ok(stderr) = proc::descriptor_of(fds::pidfd(), 2) {
        proc::write_all(stderr, line);
        proc::close(stderr);
    }
}

/// `report!("...")` writes one line to stderr; `report!(once: "...")` does so at its first call in a process.
#[macro_export]
macro_rules! report {
    (once: $($t:tt)*) => {{
        use core::sync::atomic::{AtomicBool, Ordering};
        static REPORTED: AtomicBool = AtomicBool::new(false);
        if !REPORTED.swap(true, Ordering::Relaxed) {
            $crate::report!($($t)*);
        }
    }};
    ($($t:tt)*) => { $crate::runtime::report::line(format_args!($($t)*)) };
}
