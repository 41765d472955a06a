//! Plain TCP between two threads, over the loopback device or the donors' link: the baseline of far memory
//! over donors. Transfers the same number of bytes without encryption, lookup or storage.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::BenchError;
use crate::host::net::Network;
use crate::record::Tcp;

/// Bytes on the wire of a request for one page, with frame and message (canvas-wire).
const REQUEST_BYTES: usize = 18 + 16 + 16;
/// Bytes of an answer besides its data.
const ANSWER_EXTRA_BYTES: usize = 18 + 16;
const ROUNDS: usize = 5000;
const STREAM_BYTES: usize = 512 << 20;
/// Longest duration of the stream through a slow link.
const STREAM_S: f64 = 3.0;
/// Bytes per call.
const CHUNK_BYTES: usize = 256 << 10;
/// Timeout of each side.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures round trips and a stream, with the other side in `network` if given.
pub fn measure(data_bytes: u64, network: Option<&Network>) -> Result<Tcp, BenchError> {
    let answer = data_bytes as usize + ANSWER_EXTRA_BYTES;
    let fail = BenchError::Tcp;
    let bytes = network
        .and_then(|n| n.link.rate)
        .map_or(STREAM_BYTES, |rate| {
            STREAM_BYTES.min((rate.bytes_per_s() * STREAM_S) as usize)
        });
    Ok(Tcp {
        answer_bytes: answer as u64,
        blocking_ns: round_trip_ns(answer, false, ROUNDS, network).map_err(fail)?,
        busy_ns: round_trip_ns(answer, true, ROUNDS, network).map_err(fail)?,
        stream_bytes_per_s: stream(bytes, network).map_err(fail)?,
    })
}

/// A connection within this process: one end for `other`, in its own thread and beyond the link if there is
/// one, and one for the caller.
fn pair(
    busy: bool,
    network: Option<&Network>,
    other: impl FnOnce(&mut TcpStream) -> io::Result<()> + Send + 'static,
) -> io::Result<(TcpStream, JoinHandle<io::Result<()>>)> {
    let listener = match network {
        Some(network) => network.listen()?,
        None => TcpListener::bind("127.0.0.1:0")?,
    };
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (mut theirs, _) = listener.accept()?;
    for end in [&ours, &theirs] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
        end.set_nonblocking(busy)?;
    }
    Ok((ours, thread::spawn(move || other(&mut theirs))))
}

/// Repeats a call that would block if `busy` polling is on.
fn insist(mut call: impl FnMut() -> io::Result<usize>, busy: bool) -> io::Result<usize> {
    loop {
        match call() {
            // There may be fewer processors than ends.
            Err(e) if busy && e.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Fills the buffer; returns false if the other end is closed.
fn fill(s: &mut TcpStream, mut buffer: &mut [u8], busy: bool) -> io::Result<bool> {
    while !buffer.is_empty() {
        let n = insist(|| s.read(buffer), busy)?;
        if n == 0 {
            return Ok(false);
        }
        buffer = &mut buffer[n..];
    }
    Ok(true)
}

fn put(s: &mut TcpStream, mut data: &[u8], busy: bool) -> io::Result<()> {
    while !data.is_empty() {
        let n = insist(|| s.write(data), busy)?;
        data = &data[n..];
    }
    Ok(())
}

fn joined(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Median time of `rounds` round trips.
fn round_trip_ns(
    answer_bytes: usize,
    busy: bool,
    rounds: usize,
    network: Option<&Network>,
) -> io::Result<f64> {
    let (mut s, echo) = pair(busy, network, move |s| {
        let (mut asked, data) = ([0; REQUEST_BYTES], vec![1; answer_bytes]);
        while fill(s, &mut asked, busy)? {
            put(s, &data, busy)?;
        }
        Ok(())
    })?;
    let mut answer = vec![0; answer_bytes];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        put(&mut s, &[2; REQUEST_BYTES], busy)?;
        if !fill(&mut s, &mut answer, busy)? {
            break;
        }
        times.push(begun.elapsed().as_nanos() as f64);
    }
    drop(s);
    joined(echo)?;
    crate::stats::median(&times).ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

/// Bytes per second of one stream.
fn stream(bytes: usize, network: Option<&Network>) -> io::Result<f64> {
    let (mut s, source) = pair(false, network, move |s| {
        let data = vec![1; CHUNK_BYTES];
        for _ in 0..bytes.div_ceil(CHUNK_BYTES) {
            put(s, &data, false)?;
        }
        Ok(())
    })?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut seen = 0;
    let begun = Instant::now();
    loop {
        match insist(|| s.read(&mut buffer), false)? {
            0 => break,
            n => seen += n,
        }
    }
    let took_s = begun.elapsed().as_secs_f64();
    joined(source)?;
    Ok(seen as f64 / took_s.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_carry_all_bytes_however_they_wait() {
        for busy in [false, true] {
            for bytes in [1, 4096 + ANSWER_EXTRA_BYTES, 3 << 20] {
                assert!(round_trip_ns(bytes, busy, 3, None).unwrap() > 0.0);
            }
        }
        assert!(stream(CHUNK_BYTES + 1, None).unwrap() > 0.0);
    }

    #[test]
    fn an_end_that_leaves_is_no_answer() {
        let (mut s, gone) = pair(false, None, |_| Ok(())).unwrap();
        joined(gone).unwrap();
        assert!(!fill(&mut s, &mut [0; 8], false).unwrap());
    }
}
