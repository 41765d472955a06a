//! Memory that a device may change while we look.

use std::ops::Range;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// An anonymous map, zeros at first. There is never a reference to its bytes, because a peer may write
/// them at any time: they are copied in and out. A copy that meets a peer's write has some bytes of
/// before and some of after.
pub struct Memory(MmapRaw);

impl Memory {
    /// Maps `bytes` of it; they take memory where they are written. The error is the system's.
    pub fn new(bytes: usize) -> std::io::Result<Memory> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes).map_anon()?);
        // In 2 MiB steps it would take more than what its owner counts.
        map.advise(Advice::NoHugePage).ok();
        Ok(Memory(map))
    }

    /// The same, told to the kernel as a stack, which it treats as any other map. In a program whose memory is managed
    /// that is what is left alone, and this must be: a device does not wait for a page.
    pub(crate) fn native(bytes: usize) -> std::io::Result<Memory> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes).stack().map_anon()?);
        map.advise(Advice::NoHugePage).ok();
        Ok(Memory(map))
    }

    /// Copies the bytes from `at` on into `to`. Panics when they do not lie in it.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let end = at.checked_add(to.len()).expect("lengths of slices");
        self.check(&(at..end));
        // SAFETY: the source lies in the map, by the check; `to` is the caller's alone, and cannot overlap a map to which
        // there are no references.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0.as_ptr().add(at), to.as_mut_ptr(), to.len());
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none; there always are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it is, for a device.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of {} bytes",
            self.len()
        );
    }

    /// Appends these bytes to `out`. Panics when they do not lie in it.
    pub fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) {
        self.check(&range);
        let (len, end) = (range.len(), out.len() + range.len());
        out.reserve(len);
        // SAFETY: the source lies in the map, by the check; the target has room for `len` bytes behind
        // its end and is ours alone; afterwards these bytes are written.
        unsafe {
            let from = self.0.as_ptr().add(range.start);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(out.len()), len);
            out.set_len(end);
        }
    }

    /// Stores `data` at `at`. Panics when it does not fit there.
    pub fn write(&self, at: usize, data: &[u8]) {
        let end = at.checked_add(data.len()).expect("lengths of slices");
        self.check(&(at..end));
        // SAFETY: the target lies in the map, by the check, and there are no references to it; `data`
        // cannot overlap it for the same reason.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.0.as_mut_ptr().add(at), data.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_in_and_out() {
        let m = Memory::new(8192).unwrap();
        m.write(4090, b"eleven byte");
        let mut out = vec![9];
        m.append_to(4088..4104, &mut out);
        assert_eq!(out, b"\x09\0\0eleven byte\0\0\0");
        m.append_to(8192..8192, &mut out);
        assert_eq!(out.len(), 17);
        let mut to = [1; 13];
        m.read(4089, &mut to);
        assert_eq!(&to, b"\0eleven byte\0");
    }

    #[test]
    #[should_panic(expected = "8190..8193 of 8192 bytes")]
    fn nothing_is_written_behind_its_end() {
        Memory::new(8192).unwrap().write(8190, b"abc");
    }

    #[test]
    #[should_panic(expected = "of 8192 bytes")]
    fn nothing_is_read_behind_its_end() {
        Memory::new(8192)
            .unwrap()
            .append_to(8190..8193, &mut Vec::new());
    }
}
