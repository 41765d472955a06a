//! A client that sends requests to a server at a constant rate, and checks and times each answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::plan::{Container, Kind};

/// Bytes of a value, and what the server needs for it with its key.
const VALUE_BYTES: usize = 2000;
const ENTRY_BYTES: u64 = 2200;
/// One request of this number is a write.
const WRITES: u32 = 20;
/// Number of values stored or checked per batch.
const BATCH: usize = 32;
/// Skew of the popularity of keys, as in YCSB.
const SKEW: f64 = 0.99;
/// Timeout of a server's start.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
/// A server that is silent for this long counts as hung.
const SILENT: Duration = Duration::from_secs(120);

/// An answer: time since the cluster began in s, and latency in us.
pub type Answer = (f64, f64);

/// Reason why a client ended early.
#[derive(Debug)]
pub enum Broken {
    /// An answer differs from the stored value.
    Wrong,
    /// The server closed the connection, or was silent.
    HungUp(io::Error),
}

/// Time a client took to fill its server, and to check it.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub fill_s: f64,
    pub check_s: f64,
}

/// Task of a client with a container's server.
pub struct Work {
    pub socket: PathBuf,
    pub container: Container,
    /// Requests per second.
    pub rate: f64,
    /// Time at which the cluster began.
    pub began: Instant,
    /// Where answers are added.
    pub answers: Arc<Mutex<Vec<Answer>>>,
}

/// Connects; retries, since the socket exists a moment before its server listens.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let until = Instant::now() + LISTENS_WITHIN;
    loop {
        match UnixStream::connect(socket) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            tried => return tried,
        }
    }
}

struct Connection {
    stream: UnixStream,
    kind: Kind,
    seed: u64,
    noise: Vec<u8>,
    versions: Vec<u32>,
    buffer: Vec<u8>,
}

impl Connection {
    fn new(socket: &Path, container: &Container) -> io::Result<Connection> {
        let stream = connect(socket)?;
        stream.set_read_timeout(Some(SILENT))?;
        let mut noise = vec![0; 1 << 20];
        fastrand::Rng::with_seed(container.seed).fill(&mut noise);
        let keys = (container.mib << 20) / ENTRY_BYTES;
        Ok(Connection {
            stream,
            kind: container.kind,
            seed: container.seed,
            noise,
            versions: vec![0; keys as usize],
            buffer: Vec::new(),
        })
    }

    /// Value of a key: half of it is noise.
    fn value(&self, key: usize) -> Vec<u8> {
        let version = self.versions[key];
        let mut value = format!("{key:012}.{version:08}.").into_bytes();
        let half = VALUE_BYTES / 2;
        let at = (key * 7919 + version as usize * 104_729) % (self.noise.len() - half);
        value.extend(&self.noise[at..at + half - value.len()]);
        value.resize(VALUE_BYTES, b'.');
        value
    }

    fn set(&self, key: usize) -> (Vec<u8>, &'static [u8]) {
        let (head, stored): (_, &[u8]) = match self.kind {
            Kind::Memcached => (
                format!("set k{key:07} 0 0 {VALUE_BYTES}\r\n"),
                b"STORED\r\n",
            ),
            _ => (
                format!("*3\r\n$3\r\nSET\r\n$8\r\nk{key:07}\r\n${VALUE_BYTES}\r\n"),
                b"+OK\r\n",
            ),
        };
        (
            [head.as_bytes(), &self.value(key), b"\r\n"].concat(),
            stored,
        )
    }

    fn get(&self, key: usize) -> (Vec<u8>, Vec<u8>) {
        let (request, head, tail) = match self.kind {
            Kind::Memcached => (
                format!("get k{key:07}\r\n"),
                format!("VALUE k{key:07} 0 {VALUE_BYTES}\r\n"),
                "\r\nEND\r\n",
            ),
            _ => (
                format!("*2\r\n$3\r\nGET\r\n$8\r\nk{key:07}\r\n"),
                format!("${VALUE_BYTES}\r\n"),
                "\r\n",
            ),
        };
        let answer = [head.as_bytes(), &self.value(key), tail.as_bytes()].concat();
        (request.into_bytes(), answer)
    }

    fn ask(&mut self, request: &[u8], wanted: &[u8]) -> Result<(), Broken> {
        self.stream.write_all(request).map_err(Broken::HungUp)?;
        self.buffer.resize(wanted.len(), 0);
        let got = self.stream.read_exact(&mut self.buffer);
        got.map_err(Broken::HungUp)?;
        if self.buffer == wanted {
            Ok(())
        } else {
            Err(Broken::Wrong)
        }
    }

    fn batches(&self) -> Vec<std::ops::Range<usize>> {
        let keys = self.versions.len();
        let firsts = (0..keys).step_by(BATCH);
        firsts.map(|first| first..keys.min(first + BATCH)).collect()
    }

    /// Stores all values, at most at `bytes_s` bytes per second.
    fn fill(&mut self, bytes_s: Option<f64>) -> Result<f64, Broken> {
        let (began, mut sent) = (Instant::now(), 0);
        for batch in self.batches() {
            let all = batch.map(|key| self.set(key));
            let (requests, stored): (Vec<_>, Vec<_>) = all.unzip();
            let request = requests.concat();
            sent += request.len();
            self.ask(&request, &stored.concat())?;
            if let Some(bytes_s) = bytes_s {
                let due = Duration::from_secs_f64(sent as f64 / bytes_s);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Requests values at a constant rate. Latency counts from the time at which the request was due, so that
    /// it includes waiting behind a slow request.
    fn work(&mut self, work: &Work) -> Result<(), Broken> {
        let keys = self.versions.len();
        let popular = Popular::new(keys, self.seed);
        let mut random = fastrand::Rng::with_seed(self.seed + 1);
        let began = Instant::now();
        for i in 0..(work.rate * work.container.seconds) as u32 {
            let key = popular.draw(&mut random);
            let mut due = began + Duration::from_secs_f64(f64::from(i) / work.rate);
            let (request, wanted) = if random.u32(0..WRITES) == 0 {
                self.versions[key] += 1;
                let (request, stored) = self.set(key);
                (request, stored.to_vec())
            } else {
                self.get(key)
            };
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
                // From the actual end of the sleep: a late wake-up of this client is not the server's fault.
                due = due.max(Instant::now());
            }
            self.ask(&request, &wanted)?;
            let now = Instant::now();
            let answer = (
                (now - work.began).as_secs_f64(),
                now.saturating_duration_since(due).as_secs_f64() * 1e6,
            );
            let mut answers = work.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push(answer);
        }
        Ok(())
    }

    /// Checks all values.
    fn check(&mut self) -> Result<f64, Broken> {
        let began = Instant::now();
        for batch in self.batches() {
            let (requests, answers): (Vec<_>, Vec<_>) = batch.map(|key| self.get(key)).unzip();
            self.ask(&requests.concat(), &answers.concat())?;
        }
        Ok(began.elapsed().as_secs_f64())
    }
}

/// Keys with Zipf-distributed popularity, scattered.
struct Popular {
    order: Vec<usize>,
    up_to: Vec<f64>,
}

impl Popular {
    fn new(keys: usize, seed: u64) -> Popular {
        let mut order: Vec<usize> = (0..keys).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let mut sum = 0.0;
        let up_to = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-SKEW);
            sum
        });
        let up_to = up_to.collect();
        Popular { order, up_to }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> usize {
        let at = random.f64() * self.up_to.last().copied().unwrap_or(0.0);
        let rank = self.up_to.partition_point(|up_to| *up_to <= at);
        self.order[rank.min(self.order.len() - 1)]
    }
}

/// Fills the server, sends requests to it, and checks all values.
pub fn run(work: &Work) -> Result<Took, Broken> {
    let mut connection = Connection::new(&work.socket, &work.container).map_err(Broken::HungUp)?;
    let fill_s = connection.fill(work.container.fill_bytes_s)?;
    connection.work(work)?;
    let check_s = connection.check()?;
    Ok(Took { fill_s, check_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// A fake redis that corrupts the `wrong`-th GET and closes the connection at the `last`-th.
    fn serve(listener: &UnixListener, wrong: Option<u32>, last: Option<u32>) -> io::Result<()> {
        let (mut to, _) = listener.accept()?;
        let mut from = BufReader::new(to.try_clone()?);
        let (mut stored, mut gets) = (HashMap::new(), 0);
        let mut line = String::new();
        while from.read_line(&mut line)? > 0 {
            let count: usize = line[1..].trim().parse().unwrap();
            let mut words = Vec::new();
            for _ in 0..count {
                line.clear();
                from.read_line(&mut line)?;
                let mut word = vec![0; line[1..].trim().parse::<usize>().unwrap() + 2];
                from.read_exact(&mut word)?;
                word.truncate(word.len() - 2);
                words.push(word);
            }
            line.clear();
            if words[0] == b"SET" {
                stored.insert(words[1].clone(), words[2].clone());
                to.write_all(b"+OK\r\n")?;
                continue;
            }
            gets += 1;
            if Some(gets) == last {
                return Ok(());
            }
            let mut value: Vec<u8> = stored[&words[1]].clone();
            if Some(gets) == wrong {
                value[0] ^= 1;
            }
            to.write_all(format!("${}\r\n", value.len()).as_bytes())?;
            to.write_all(&[value.as_slice(), b"\r\n"].concat())?;
        }
        Ok(())
    }

    fn ask(wrong: Option<u32>, last: Option<u32>) -> (Result<Took, Broken>, Vec<Answer>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || serve(&listener, wrong, last));
        let work = Work {
            socket,
            container: Container {
                name: "redis-0".to_owned(),
                kind: Kind::Redis,
                mib: 1,
                percent: 100,
                host: 0,
                at_s: 0.0,
                seconds: 0.2,
                seed: 1,
                fill_bytes_s: None,
            },
            rate: 500.0,
            began: Instant::now(),
            answers: Arc::default(),
        };
        let took = run(&work);
        let answers = work.answers.lock().unwrap().clone();
        (took, answers)
    }

    #[test]
    fn right_answers_are_timed() {
        let (took, answers) = ask(None, None);
        assert!(took.is_ok_and(|t| t.check_s > 0.0));
        assert_eq!(answers.len(), 100);
        assert!(answers.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(answers.iter().all(|(_, us)| *us > 0.0));
    }

    #[test]
    fn a_wrong_byte_ends_it() {
        // One of the requests at a constant rate, and one of the final check.
        for wrong in [5, 110] {
            assert!(matches!(ask(Some(wrong), None).0, Err(Broken::Wrong)));
        }
        let (hung_up, answers) = ask(None, Some(20));
        assert!(matches!(hung_up, Err(Broken::HungUp(_))) && !answers.is_empty());
    }

    #[test]
    fn some_keys_are_popular() {
        let popular = Popular::new(1000, 1);
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts = vec![0; 1000];
        for _ in 0..10_000 {
            counts[popular.draw(&mut random)] += 1;
        }
        counts.sort_unstable();
        assert!(
            counts[999] > 1000 && counts[500] > 0,
            "{:?}",
            &counts[990..]
        );
    }
}
