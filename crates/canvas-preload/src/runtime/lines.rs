//! Files of /proc, line by line, without libc and without allocation.

use canvas_sys::proc::File;
use core::ffi::CStr;

/// Reads a file of /proc line by line, in a fixed buffer, without libc.
pub struct Lines {
    file: File,
    buf: [u8; 4096],
    len: usize,
    at: usize,
}

impl Lines {
    /// Opens "/proc/PID/NAME".
    pub fn open(pid: u32, name: &[u8]) -> Option<Lines> {
        let path = canvas_sys::proc::path_of(pid, name);
        Lines::open_file(CStr::from_bytes_until_nul(&path).ok()?)
    }
    pub fn open_file(path: &CStr) -> Option<Lines> {
        Some(Lines {
            file: File::open(path).ok()?,
            buf: [0; 4096],
            len: 0,
            at: 0,
        })
    }
    /// Calls `f` with each line; lines longer than the buffer are cut.
    pub fn each(&mut self, mut f: impl FnMut(&[u8])) {
        self.each_while(|line| {
            f(line);
            true
        });
    }
    /// Calls `f` with each line while it returns true.
    pub fn each_while(&mut self, mut f: impl FnMut(&[u8]) -> bool) {
        loop {
            while let Some(n) = self.buf[self.at..self.len].iter().position(|b| *b == b'\n') {
                if !f(&self.buf[self.at..self.at + n]) {
                    return;
                }
                self.at += n + 1;
            }
            self.buf.copy_within(self.at..self.len, 0);
            self.len -= self.at;
            self.at = 0;
            if self.len == self.buf.len() {
                self.len = 0;
            }
            match self.file.read(&mut self.buf[self.len..]) {
                Ok(n) if n > 0 => self.len += n,
                _ => return,
            }
        }
    }
}
