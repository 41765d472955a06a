//! What clients of a disk may send: with any input, the session ends or goes on, and the disk stays
//! intact.

use std::io::{self, Read, Write};

use canvas_disk::nbd::proto::Replies;
use canvas_disk::nbd::session::{shake_hands, transmit};
use canvas_disk::pool::POOL_BYTES_MIN;
use canvas_disk::{DiskMemory, PoolStore, Scratch, span};
use canvas_types::Codec;

const PAGES: u64 = 64;

/// A client that sends these bytes, and keeps what it receives, but only the beginning of data.
struct Client<'a> {
    said: &'a [u8],
    heard: Vec<u8>,
}

impl Read for Client<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.said.read(out)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let kept = bytes.len().min((1 << 16) - self.heard.len().min(1 << 16));
        self.heard.extend_from_slice(&bytes[..kept]);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An NBD request: command, offset, length and data.
fn request(command: u16, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
    out.extend([0; 2]);
    out.extend(command.to_be_bytes());
    out.extend(7u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend(data);
    out
}

/// Any bytes from a client: the handshake and requests, or, if the first byte is odd, requests at
/// once, with either kind of replies.
pub fn nbd_any(bytes: &[u8]) {
    let Some((first, said)) = bytes.split_first() else {
        return;
    };
    let memory = DiskMemory::new(PAGES, POOL_BYTES_MIN).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    let mut scratch = Box::<Scratch>::default();
    let mut client = Client {
        said,
        heard: Vec::new(),
    };
    let replies = match first % 4 {
        1 => Some(Replies::Simple),
        3 => Some(Replies::Structured),
        _ => shake_hands(&mut client, span::disk_bytes(&store)).ok(),
    };
    if let Some(replies) = replies {
        let _ = transmit(&mut client, &store, &mut scratch, replies);
    }
    // Bytes that were not sent are nowhere.
    let mut page = [0; 4096];
    for n in 0..PAGES {
        span::read(&store, n * 4096, &mut page, &mut scratch).unwrap();
        assert!(page.iter().all(|b| *b == 0 || said.contains(b)), "page {n}");
    }
    let good = [
        request(1, 4096, 4096, &[9; 4096]),
        request(0, 4096, 4096, &[]),
    ]
    .concat();
    let mut client = Client {
        said: &good,
        heard: Vec::new(),
    };
    let _ = transmit(&mut client, &store, &mut scratch, Replies::Simple);
    assert_eq!(client.heard.len(), 16 + 16 + 4096);
    assert_eq!(client.heard[32..], [9; 4096]);
}
