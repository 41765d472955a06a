//! A load on redis: values follow from their keys, so that every answer can be checked.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::wait_for;

/// Bytes of a value.
const VALUE: usize = 4000;
/// Commands sent before their answers are read.
const BATCH: usize = 64;

/// The value of a key: half of it random, so that it compresses to half.
fn value(key: u64) -> Vec<u8> {
    let mut value = vec![b'.'; VALUE];
    let mut rng = fastrand::Rng::with_seed(key);
    rng.fill(&mut value[..VALUE / 2]);
    value
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(crate::LONG)).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) {
        out.extend(format!("*{}\r\n", parts.len()).bytes());
        for part in parts {
            out.extend(format!("${}\r\n", part.len()).bytes());
            out.extend(*part);
            out.extend(b"\r\n");
        }
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        self.0.get_mut().write_all(out).unwrap();
        out.clear();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn check(&mut self, key: u64) {
        assert_eq!(self.line(), format!("${VALUE}\r\n"), "key {key}");
        let mut got = vec![0; VALUE + 2];
        self.0.read_exact(&mut got).unwrap();
        assert!(got[..VALUE] == value(key), "key {key} is wrong");
    }
}

/// Threads that read and write.
pub struct Load {
    socket: PathBuf,
    keys: u64,
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Fills redis with `bytes` bytes of values.
    pub fn fill(socket: &Path, bytes: u64) -> Load {
        let keys = bytes / VALUE as u64;
        let mut client = Client::connect(socket);
        let mut out = Vec::new();
        let all: Vec<u64> = (0..keys).collect();
        for batch in all.chunks(BATCH) {
            for key in batch {
                client.send(
                    &[b"SET", key.to_string().as_bytes(), &value(*key)],
                    &mut out,
                );
            }
            client.flush(&mut out);
            for _ in batch {
                assert_eq!(client.line(), "+OK\r\n");
            }
        }
        Load {
            socket: socket.to_owned(),
            keys,
            over: Arc::default(),
            done: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Reads everything once and checks it.
    pub fn check(socket: &Path, bytes: u64) {
        let mut client = Client::connect(socket);
        let mut out = Vec::new();
        let all: Vec<u64> = (0..bytes / VALUE as u64).collect();
        for batch in all.chunks(BATCH) {
            for key in batch {
                client.send(&[b"GET", key.to_string().as_bytes()], &mut out);
            }
            client.flush(&mut out);
            for key in batch {
                client.check(*key);
            }
        }
    }

    /// Starts to read and write at random.
    pub fn go(&mut self) {
        let seed = fastrand::u64(..);
        println!("seed of the load: {seed}");
        for thread in 0..2 {
            let (over, done) = (Arc::clone(&self.over), Arc::clone(&self.done));
            let (keys, socket) = (self.keys, self.socket.clone());
            self.threads.push(std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed ^ thread);
                let mut client = Client::connect(&socket);
                let mut out = Vec::new();
                while !over.load(Relaxed) {
                    let key = rng.u64(0..keys);
                    let name = key.to_string();
                    if rng.u8(0..4) == 0 {
                        client.send(&[b"SET", name.as_bytes(), &value(key)], &mut out);
                        client.flush(&mut out);
                        assert_eq!(client.line(), "+OK\r\n");
                    } else {
                        client.send(&[b"GET", name.as_bytes()], &mut out);
                        client.flush(&mut out);
                        client.check(key);
                    }
                    done.fetch_add(1, Relaxed);
                }
            }));
        }
    }

    /// Waits until `commands` more commands are done.
    pub fn wait_for_more(&self, commands: u64) {
        let until = self.done.load(Relaxed) + commands;
        wait_for("the load", || {
            assert!(self.threads.iter().all(|t| !t.is_finished()), "it failed");
            (self.done.load(Relaxed) >= until).then_some(())
        });
    }

    /// Ends the load; every answer was right.
    pub fn end(self) {
        self.over.store(true, Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}
