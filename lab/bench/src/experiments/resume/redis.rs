//! A client of redis that gets all of its values in one pipeline and compares every byte.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of keys, and bytes per value.
pub const KEYS: usize = 100_000;
pub const VALUE_BYTES: usize = 1000;

/// Client of a redis that is filled.
pub struct Client {
    stream: UnixStream,
    seed: u64,
}

/// A value; half of it is noise.
fn value(seed: u64, key: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed ^ (key as u64) << 20);
    let mut value = vec![b'.'; VALUE_BYTES];
    random.fill(&mut value[..VALUE_BYTES / 2]);
    value
}

fn push_bulk(request: &mut Vec<u8>, bytes: &[u8]) {
    request.extend(format!("${}\r\n", bytes.len()).bytes());
    request.extend(bytes);
    request.extend(b"\r\n");
}

/// Requests for all values in some order, and the expected answer.
pub struct Everything {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Everything {
    pub fn new(seed: u64, order: u64) -> Everything {
        let mut keys: Vec<usize> = (0..KEYS).collect();
        fastrand::Rng::with_seed(order).shuffle(&mut keys);
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        for key in keys {
            request.extend(b"*2\r\n$3\r\nGET\r\n");
            push_bulk(&mut request, format!("key:{key}").as_bytes());
            push_bulk(&mut answer, &value(seed, key));
        }
        Everything { request, answer }
    }
}

impl Client {
    /// Fills the redis that listens at `socket`.
    pub fn fill(socket: &Path, seed: u64) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut client = Client { stream, seed };
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        for key in 0..KEYS {
            request.extend(b"*3\r\n$3\r\nSET\r\n");
            push_bulk(&mut request, format!("key:{key}").as_bytes());
            push_bulk(&mut request, &value(seed, key));
            answer.extend(b"+OK\r\n");
        }
        client.ask(&Everything { request, answer })?;
        Ok(client)
    }

    /// Prepares requests for all values in this order.
    pub fn everything(&self, order: u64) -> Everything {
        Everything::new(self.seed, order)
    }

    /// Sends the requests and compares the answer; returns the time it took.
    pub fn ask(&mut self, all: &Everything) -> io::Result<Duration> {
        let began = Instant::now();
        let mut sender = self.stream.try_clone()?;
        std::thread::scope(|scope| {
            let sent = scope.spawn(move || sender.write_all(&all.request));
            let mut buffer = vec![0; 1 << 20];
            let mut at = 0;
            while at < all.answer.len() {
                let got = self.stream.read(&mut buffer)?;
                let is_right = all.answer[at..].get(..got) == Some(&buffer[..got]);
                if got == 0 || !is_right {
                    let why = if got == 0 {
                        "redis hung up"
                    } else {
                        "redis answered with another value"
                    };
                    return Err(io::Error::other(why));
                }
                at += got;
            }
            let sent = sent.join();
            sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(began.elapsed())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_or_an_end_is_an_error() {
        let answer = |said: &'static [u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 4];
                theirs.read_exact(&mut request).unwrap();
                theirs.write_all(said).unwrap();
            });
            let mut client = Client {
                stream: ours,
                seed: 1,
            };
            client.ask(&Everything {
                request: b"GET.".to_vec(),
                answer: b"right".to_vec(),
            })
        };
        assert!(answer(b"right").is_ok());
        assert!(answer(b"wrong").is_err_and(|e| e.to_string().contains("another value")));
        assert!(answer(b"rig").is_err_and(|e| e.to_string().contains("hung up")));
    }

    #[test]
    fn values_differ_by_key_and_their_order_by_number() {
        assert_ne!(value(1, 1), value(1, 2));
        let (one, other) = (Everything::new(1, 1), Everything::new(1, 2));
        assert_ne!(one.request, other.request);
        assert_eq!(one.answer.len(), other.answer.len());
    }
}
