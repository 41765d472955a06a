//! The FUSE protocol (linux/fuse.h, version 7.31) for a file system with a single file.

/// The root of the file system is the file itself.
pub const ROOT_MODE: u32 = 0o100_600;
/// Most bytes per write.
pub const WRITE_MAX: usize = 1 << 20;
/// Bytes of a request's header; below, of an answer's.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Size of the buffer for requests; the longest is a write.
pub const REQUEST_MAX: usize = WRITE_MAX + 4096;

/// Protocol version.
const MAJOR: u32 = 7;
const MINOR: u32 = 31;
/// Reads may be concurrent.
const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
/// The kernel caches no pages of the file, so that each read reaches the server.
const DIRECT_IO: u32 = 1 << 0;
const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// Most outstanding requests; beyond the next number the kernel throttles.
const REQUESTS_MAX: u16 = 256;
const REQUESTS_MANY: u16 = 192;
/// Time for which the kernel may cache attributes, in seconds.
const VALID_S: u64 = 3600;

const NOT_IMPLEMENTED: i32 = -(nix::errno::Errno::ENOSYS as i32);
const NO_SUCH_PLACE: i32 = -(nix::errno::Errno::EIO as i32);

/// Kind of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// Begin the session.
    Init,
    /// Get the file's attributes.
    Attributes,
    /// Open the file.
    Open,
    /// Read from the file.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// Write to the file.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// Data to write.
        data: &'a [u8],
    },
    /// A request that needs no action, only an answer.
    Nothing,
    /// A request without an answer.
    Silence,
    /// An unsupported request.
    Unknown,
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Identifier of the request, for the answer.
    pub unique: u64,
    /// Kind of the request.
    pub asked: Asked<'a>,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Request<'_> {
    /// Parses a request; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Request<'_>> {
        let unique = u64_at(bytes, 8)?;
        let body = bytes.get(IN_HEADER..)?;
        // READ and WRITE both begin with handle, offset, size.
        let place = || Some((u64_at(body, 8)?, u32_at(body, 16)?));
        let asked = match u32_at(bytes, 4)? {
            26 => Asked::Init,
            3 => Asked::Attributes,
            14 => Asked::Open,
            15 => {
                let (offset, bytes) = place()?;
                Asked::Read { offset, bytes }
            }
            16 => {
                let (offset, bytes) = place()?;
                let data = body.get(40..40 + bytes as usize)?;
                Asked::Write { offset, data }
            }
            // RELEASE, FSYNC, FLUSH, DESTROY.
            18 | 20 | 25 | 38 => Asked::Nothing,
            // FORGET, INTERRUPT, BATCH_FORGET.
            2 | 36 | 42 => Asked::Silence,
            _ => Asked::Unknown,
        };
        Some(Request { unique, asked })
    }
}

fn answer(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let length = (OUT_HEADER + body.len()) as u32;
    let mut bytes = Vec::with_capacity(OUT_HEADER + body.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(error.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// Success, with data.
pub fn data(unique: u64, data: &[u8]) -> Vec<u8> {
    answer(unique, 0, data)
}

/// Success.
pub fn done(unique: u64) -> Vec<u8> {
    answer(unique, 0, &[])
}

/// Failure: the request is not supported.
pub fn unknown(unique: u64) -> Vec<u8> {
    answer(unique, NOT_IMPLEMENTED, &[])
}

/// Failure: there are no such bytes.
pub fn no_such_place(unique: u64) -> Vec<u8> {
    answer(unique, NO_SUCH_PLACE, &[])
}

/// Answer to the begin of the session.
pub fn begun(unique: u64) -> Vec<u8> {
    let mut body = Vec::new();
    let flags = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
    for word in [MAJOR, MINOR, 128 << 10, flags] {
        body.extend(word.to_ne_bytes());
    }
    body.extend(REQUESTS_MAX.to_ne_bytes());
    body.extend(REQUESTS_MANY.to_ne_bytes());
    body.extend((WRITE_MAX as u32).to_ne_bytes());
    // Granularity of times: one nanosecond.
    body.extend(1u32.to_ne_bytes());
    body.extend(((WRITE_MAX / 4096) as u16).to_ne_bytes());
    body.resize(64, 0);
    answer(unique, 0, &body)
}

/// Attributes of a file of `bytes` bytes.
pub fn attributes(unique: u64, bytes: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(VALID_S.to_ne_bytes());
    body.extend(0u64.to_ne_bytes());
    // Inode, size, blocks; three times, and their nanoseconds.
    for word in [1, bytes, bytes / 512, 0, 0, 0] {
        body.extend(word.to_ne_bytes());
    }
    body.resize(body.len() + 3 * 4, 0);
    // Mode, links, user, group, device, block size, flags.
    for word in [ROOT_MODE, 1, 0, 0, 0, 4096, 0] {
        body.extend(word.to_ne_bytes());
    }
    answer(unique, 0, &body)
}

/// Answer to opening the file.
pub fn opened(unique: u64) -> Vec<u8> {
    let mut body = 0u64.to_ne_bytes().to_vec();
    body.extend((DIRECT_IO | PARALLEL_DIRECT_WRITES).to_ne_bytes());
    body.extend(0u32.to_ne_bytes());
    answer(unique, 0, &body)
}

/// Number of bytes written.
pub fn written(unique: u64, bytes: u32) -> Vec<u8> {
    let mut body = bytes.to_ne_bytes().to_vec();
    body.extend(0u32.to_ne_bytes());
    answer(unique, 0, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(code: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((IN_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(code.to_ne_bytes());
        bytes.extend(77u64.to_ne_bytes());
        bytes.resize(IN_HEADER, 0);
        bytes.extend(body);
        bytes
    }

    fn place(offset: u64, size: u32) -> Vec<u8> {
        let mut body = 5u64.to_ne_bytes().to_vec();
        body.extend(offset.to_ne_bytes());
        body.extend(size.to_ne_bytes());
        body.resize(40, 0);
        body
    }

    #[test]
    fn requests_are_taken_apart() {
        let bytes = request(15, &place(8192, 4096));
        let read = Request::parse(&bytes).unwrap();
        let (offset, bytes) = (8192, 4096);
        assert_eq!(read.asked, Asked::Read { offset, bytes });
        assert_eq!(read.unique, 77);
        let bytes = request(16, &[place(3, 4), b"data".to_vec()].concat());
        let written = Request::parse(&bytes).unwrap().asked;
        let data = b"data";
        assert_eq!(written, Asked::Write { offset: 3, data });
        let short = request(16, &[place(3, 5), b"data".to_vec()].concat());
        assert_eq!(Request::parse(&short), None);
        let other = request(1, b"name\0");
        assert_eq!(Request::parse(&other).unwrap().asked, Asked::Unknown);
    }

    /// The kernel's sizes (fuse_init_out, fuse_attr_out, fuse_open_out, fuse_write_out).
    #[test]
    fn answers_have_their_lengths() {
        for (answer, body) in [
            (begun(1), 64),
            (attributes(1, 1 << 30), 104),
            (opened(1), 16),
            (written(1, 4096), 8),
            (done(1), 0),
            (data(1, &[1; 4096]), 4096),
        ] {
            assert_eq!(answer.len(), OUT_HEADER + body);
            assert_eq!(u32_at(&answer, 0).unwrap() as usize, answer.len());
            assert_eq!((u32_at(&answer, 4), u64_at(&answer, 8)), (Some(0), Some(1)));
        }
        assert_eq!(u32_at(&unknown(1), 4), Some(NOT_IMPLEMENTED as u32));
    }

    proptest! {
        #[test]
        fn no_request_is_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(&bytes);
        }
    }
}
