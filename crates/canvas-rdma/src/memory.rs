//! Memory that a device may change at any time.

use std::ops::Range;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// An anonymous mapping, initially zeros. There is never a reference to its bytes, because a peer
/// may write them at any time: they are copied in and out. A copy that races with a peer's write
/// has some old and some new bytes.
pub struct Memory(MmapRaw);

impl Memory {
    /// Maps `bytes` bytes, which take memory when they are written. The error is the system's.
    pub fn new(bytes: usize) -> std::io::Result<Memory> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes).map_anon()?);
        // Huge pages would take more memory than the owner accounts for.
        map.advise(Advice::NoHugePage).ok();
        Ok(Memory(map))
    }

    /// Like [`Memory::new`], but mapped as a stack (the kernel makes no difference). In a managed
    /// program such mappings are not paged, and this one must not be: a device does not wait for a
    /// page.
    pub(crate) fn native(bytes: usize) -> std::io::Result<Memory> {
        let map = MmapRaw::from(MmapOptions::new().len(bytes).stack().map_anon()?);
        map.advise(Advice::NoHugePage).ok();
        Ok(Memory(map))
    }

    /// Copies bytes, from offset `at` on, into `to`. Panics if they do not lie in the mapping.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let end = at.checked_add(to.len()).expect("lengths of slices");
        self.check(&(at..end));
        // SAFETY: the check puts the source inside the map; `to` is exclusively the caller's, and
        // cannot overlap a map to which there are no references.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0.as_ptr().add(at), to.as_mut_ptr(), to.len());
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its address, for a device.
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

    /// Appends these bytes to `out`. Panics if they do not lie in the mapping.
    pub fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) {
        self.check(&range);
        let (len, end) = (range.len(), out.len() + range.len());
        out.reserve(len);
        // SAFETY: the check puts the source inside the map; the target has room for `len` bytes
        // after its end and is exclusively ours; afterwards these bytes are initialized.
        unsafe {
            let from = self.0.as_ptr().add(range.start);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(out.len()), len);
            out.set_len(end);
        }
    }

    /// Stores `data` at offset `at`. Panics if it does not fit.
    pub fn write(&self, at: usize, data: &[u8]) {
        let end = at.checked_add(data.len()).expect("lengths of slices");
        self.check(&(at..end));
        // SAFETY: the check puts the target inside the map, to which there are no references; for
        // the same reason `data` cannot overlap it.
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
