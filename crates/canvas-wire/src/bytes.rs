//! Bounds-checked reading and writing of little-endian fields.

use crate::error::{DecodeError, EncodeError};

/// Decodes fields from the front of these bytes.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }
    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }
    /// Reads `N` bytes that must be zero.
    pub fn zeros<const N: usize>(&mut self) -> Result<(), DecodeError> {
        if self.array::<N>()? == [0; N] {
            Ok(())
        } else {
            Err(DecodeError::Reserved)
        }
    }
    /// Fails unless all bytes were read.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }
}

/// Encodes fields into a buffer of the caller.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Writer<'a> {
        Writer { buffer, len: 0 }
    }
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let end = self
            .len
            .checked_add(bytes.len())
            .ok_or(EncodeError::Space)?;
        let place = self
            .buffer
            .get_mut(self.len..end)
            .ok_or(EncodeError::Space)?;
        place.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }
    pub fn u8(&mut self, n: u8) -> Result<(), EncodeError> {
        self.put(&[n])
    }
    pub fn u16(&mut self, n: u16) -> Result<(), EncodeError> {
        self.put(&n.to_le_bytes())
    }
    pub fn u32(&mut self, n: u32) -> Result<(), EncodeError> {
        self.put(&n.to_le_bytes())
    }
    pub fn u64(&mut self, n: u64) -> Result<(), EncodeError> {
        self.put(&n.to_le_bytes())
    }
    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }
    /// The bytes written so far, to fill in fields that are known only at the end.
    pub fn written(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}
