//! Lines on stderr, for when something is wrong; no allocation, no libc.

use canvas_sys::proc;
use core::fmt::Write;

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
    proc::write_all(2, &l.buf[..l.len + 1]);
}

/// `report!("...")`: one line on stderr.
#[macro_export]
macro_rules! report {
    ($($t:tt)*) => { $crate::base::report::line(format_args!($($t)*)) };
}
