//! A prototype of a lane beside plain TCP: a thread asks a donor itself for one stored record, and
//! has the page when it is opened, decoded and verified. Plain TCP carries the same bytes, by the
//! same rules of who looks and who sleeps, and does nothing else.
//!
//! ```text
//! cargo run --release -p canvas-agent --example lane_beside_tcp [--seconds S] [--rounds N]
//!     [--congestion NAME] [--listen IP --within NAMESPACE] [--think US] [--only TEXT]
//! ```
//!
//! A request is 16 bytes (handle, offset, length) and a tag. An answer is a header of 16 bytes (code,
//! length, count), which is bound into a tag of its own, and then the record as it is stored, which
//! the agent has sealed. Nonces count, a key for each direction. The donor is a process of its own.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes256Gcm, KeyInit};
use canvas_agent::seal::Sealer;
use canvas_donor::slab::{Budget, Slab};
use canvas_swap::classes::HEADER_BYTES;
use canvas_swap::extent::{EXTENT_BYTES, Line, Packer};
use canvas_swap::hash::{PageHash, Products, portable, same};
use canvas_types::{PAGE_SIZE, PageBuf, SwapEntry};
use canvas_wire::frame::{Range, SlabKey};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

const KEY: [u8; 32] = [7; 32];
const UP: [u8; 32] = [8; 32];
const DOWN: [u8; 32] = [9; 32];
const TENANT: [u8; 16] = *b"tenant tenant 16";
const SEAL: u64 = 12345;
/// Half a slab: more than the caches hold.
const EXTENTS: u32 = 1024;
const BODY: usize = 16;
const TAG: usize = 16;
const HEAD: usize = BODY + TAG;
/// Without an answer for so long a lane is given up.
const PATIENCE: Duration = Duration::from_millis(20);

// ---------------------------------------------------------------------------------------------
// Ciphers.

trait Cipher {
    fn new(key: &[u8; 32]) -> Self;
    fn seal(&self, nonce: [u8; 12], bound: &[u8], bytes: &mut [u8]) -> [u8; TAG];
    /// The tag is behind the text.
    fn open(&self, nonce: [u8; 12], bound: &[u8], bytes: &mut [u8]) -> bool;
}

struct Ring(LessSafeKey);

impl Cipher for Ring {
    fn new(key: &[u8; 32]) -> Ring {
        Ring(LessSafeKey::new(
            UnboundKey::new(&AES_256_GCM, key).unwrap(),
        ))
    }
    fn seal(&self, nonce: [u8; 12], bound: &[u8], bytes: &mut [u8]) -> [u8; TAG] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(bound), bytes);
        tag.unwrap().as_ref().try_into().unwrap()
    }
    fn open(&self, nonce: [u8; 12], bound: &[u8], bytes: &mut [u8]) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place(nonce, Aad::from(bound), bytes).is_ok()
    }
}

struct Plain(Aes256Gcm);

impl Cipher for Plain {
    fn new(key: &[u8; 32]) -> Plain {
        Plain(Aes256Gcm::new(key.into()))
    }
    fn seal(&self, nonce: [u8; 12], bound: &[u8], bytes: &mut [u8]) -> [u8; TAG] {
        let tag = self
            .0
            .encrypt_in_place_detached(&nonce.into(), bound, bytes);
        tag.unwrap().into()
    }
    fn open(&self, nonce: [u8; 12], bound: &[u8], bytes: &mut [u8]) -> bool {
        let (text, tag) = bytes.split_at_mut(bytes.len() - TAG);
        let tag: &[u8; TAG] = (&*tag).try_into().unwrap();
        self.0
            .decrypt_in_place_detached(&nonce.into(), bound, text, tag.into())
            .is_ok()
    }
}

fn counted(n: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&n.to_le_bytes());
    nonce
}

/// The nonce of a record and what is bound into its tag, as `canvas_agent::seal` has them.
fn of_record(extent: u32, offset: u32) -> ([u8; 12], [u8; 20]) {
    let mut nonce = counted(SEAL);
    nonce[8..].copy_from_slice(&(offset / 16).to_le_bytes());
    let mut bound = [0; 20];
    bound[..16].copy_from_slice(&TENANT);
    bound[16..].copy_from_slice(&extent.to_le_bytes());
    (nonce, bound)
}

// ---------------------------------------------------------------------------------------------
// What is stored.

fn products() -> Products {
    canvas_sys::clmul::fastest().unwrap_or(portable)
}

/// A page that lz4 makes 1.5 to 2 KiB of.
fn page(n: u32) -> PageBuf {
    let mut rng = fastrand::Rng::with_seed(u64::from(n));
    let mut page = [0; PAGE_SIZE];
    for group in page.chunks_mut(64) {
        let random = 18 + (n % 11) as usize;
        rng.fill(&mut group[..random]);
    }
    page
}

/// The extents, sealed, and where their records are.
fn stored(mut take: impl FnMut(u32, &[u8])) -> Vec<(u32, Line)> {
    let sealer = Sealer::new(&KEY, TENANT);
    let hash_key = page(u32::MAX);
    let hash = PageHash::new(&hash_key, products());
    let (mut lines, mut n) = (Vec::new(), 0);
    let mut state = vec![0u8; 32 << 10];
    for extent in 0..EXTENTS {
        let mut bytes = Box::new([0; EXTENT_BYTES]);
        let mut packer = Packer::new(&mut bytes);
        loop {
            let page = page(n);
            let mut small = [0; PAGE_SIZE];
            let len = canvas_sys::lz4::compress(&page, &mut small, &mut state, true).unwrap();
            let put = |out: &mut [u8]| {
                out[..HEADER_BYTES].copy_from_slice(&hash.of(&page));
                out[HEADER_BYTES..].copy_from_slice(&small[..len]);
            };
            let Some(line) = packer.add(n, SwapEntry(n + 1), len as u16, put) else {
                break;
            };
            lines.push((extent, line));
            n += 1;
        }
        packer.finish();
        sealer.seal(extent, SEAL, &mut bytes[..]).unwrap();
        take(extent, &bytes[..]);
    }
    lines
}

// ---------------------------------------------------------------------------------------------
// Sockets.

/// How long an end looks before it sleeps, and whether it gives its processor away between looks.
#[derive(Clone, Copy)]
struct Rule {
    look: Duration,
    yields: bool,
}

const FOREVER: Duration = Duration::from_secs(1000);

impl Rule {
    fn of(text: &str) -> Rule {
        let yields = text.ends_with('y');
        let look = match text.trim_end_matches('y') {
            "always" => FOREVER,
            us => Duration::from_micros(us.parse().unwrap()),
        };
        Rule { look, yields }
    }
}

fn prepare(s: &TcpStream, congestion: &str) {
    s.set_nodelay(true).unwrap();
    s.set_read_timeout(Some(PATIENCE)).unwrap();
    if !congestion.is_empty() {
        setsockopt(s, sockopt::TcpCongestion, &congestion.into()).unwrap();
    }
}

/// Receives something behind what is there already; `None` at the end of the connection.
fn receive(s: &TcpStream, rule: Rule, buffer: &mut [u8]) -> Option<usize> {
    let fd = s.as_raw_fd();
    if !rule.look.is_zero() {
        let began = Instant::now();
        loop {
            match recv(fd, buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return None,
                Ok(n) => return Some(n),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(_) => return None,
            }
            if began.elapsed() >= rule.look {
                break;
            }
            if rule.yields {
                std::thread::yield_now();
            }
        }
    }
    loop {
        match recv(fd, buffer, MsgFlags::empty()) {
            Ok(0) => return None,
            Ok(n) => return Some(n),
            // The time is over: the donor waits on, and so does this prototype.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

fn fill(s: &TcpStream, rule: Rule, buffer: &mut [u8], have: &mut usize, want: usize) -> bool {
    while *have < want {
        let Some(n) = receive(s, rule, &mut buffer[*have..]) else {
            return false;
        };
        *have += n;
    }
    true
}

fn put(s: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match send(s.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

// ---------------------------------------------------------------------------------------------
// The donor.

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Arguments: address, what it serves (`raw` or `lane`), its rule, congestion control.
fn donor(args: &[String]) {
    let [listen, kind, rule, congestion] = args else {
        panic!("the donor has four arguments");
    };
    let listener = TcpListener::bind((listen.as_str(), 0)).unwrap();
    let rule = Rule::of(rule);
    let key = SlabKey {
        tenant: TENANT,
        slab: 0,
    };
    let slab = Arc::new(Slab::new(1, key).unwrap());
    if kind == "lane" {
        let budget = Budget::default();
        budget.set(u64::MAX);
        stored(|extent, bytes| {
            let offset = extent * EXTENT_BYTES as u32;
            slab.write(offset, bytes, &budget, || {}).unwrap();
        });
    }
    println!("{}", listener.local_addr().unwrap());
    let (s, _) = listener.accept().unwrap();
    prepare(&s, congestion);
    let known = std::collections::HashMap::from([(1u64, slab)]);
    let (up, down) = (Ring::new(&UP), Ring::new(&DOWN));
    let (mut buffer, mut answer) = ([0; 4096], vec![0; HEAD + 8192]);
    for count in 0.. {
        let mut have = 0;
        if !fill(&s, rule, &mut buffer, &mut have, HEAD) {
            return;
        }
        if kind == "raw" {
            let len = u32_at(&buffer, 12) as usize;
            put(&s, &answer[..HEAD + len]);
            continue;
        }
        assert!(
            up.open(counted(count), &[], &mut buffer[..HEAD]),
            "a bad peer"
        );
        let handle = u64::from_le_bytes(buffer[..8].try_into().unwrap());
        let (offset, len) = (u32_at(&buffer, 8), u32_at(&buffer, 12));
        answer.clear();
        answer.resize(HEAD, 0);
        known[&handle]
            .read([Range { offset, len }].into_iter(), &mut answer)
            .unwrap();
        answer[4..8].copy_from_slice(&len.to_le_bytes());
        answer[8..16].copy_from_slice(&count.to_le_bytes());
        let tag = down.seal(counted(count), &answer[..BODY], &mut []);
        answer[BODY..HEAD].copy_from_slice(&tag);
        put(&s, &answer);
    }
}

// ---------------------------------------------------------------------------------------------
// The program.

/// What is measured, in one process each.
struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
    stream: TcpStream,
}

impl Peer {
    fn start(options: &Options, kind: &str, rule: &str) -> Peer {
        let me = std::env::current_exe().unwrap();
        let mut command = match &options.within {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(me);
                command
            }
            None => Command::new(me),
        };
        let mut child = command
            .args(["donor", &options.listen, kind, rule, &options.congestion])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let stream = TcpStream::connect(line.trim()).unwrap();
        prepare(&stream, &options.congestion);
        Peer { child, out, stream }
    }
}

/// Time that the threads of a process have had a processor, in ns.
fn processor_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .filter_map(|t| std::fs::read_to_string(t.unwrap().path().join("schedstat")).ok())
        .map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Samples of one row, of all its rounds.
#[derive(Default)]
struct Samples {
    times: Vec<u32>,
    here_ns: u64,
    there_ns: u64,
}

struct Lane<'s, C> {
    s: &'s TcpStream,
    rule: Rule,
    up: C,
    down: C,
    tenant: C,
    hash: PageHash<'s>,
    count: u64,
    buffer: Box<[u8; HEAD + 8192]>,
}

impl<C: Cipher> Lane<'_, C> {
    fn read(&mut self, extent: u32, line: &Line, out: &mut PageBuf) {
        let range = line.range();
        let len = range.len();
        let offset = extent * EXTENT_BYTES as u32 + line.offset;
        let mut request = [0; HEAD];
        request[..8].copy_from_slice(&1u64.to_le_bytes());
        request[8..12].copy_from_slice(&offset.to_le_bytes());
        request[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        let tag = self.up.seal(counted(self.count), &[], &mut request[..BODY]);
        request[BODY..].copy_from_slice(&tag);
        put(self.s, &request);
        let (buffer, mut have) = (&mut self.buffer[..], 0);
        assert!(fill(self.s, self.rule, buffer, &mut have, HEAD));
        let (head, record) = buffer.split_at_mut(HEAD);
        let (head, tag) = head.split_at_mut(BODY);
        assert!(self.down.open(counted(self.count), head, tag));
        assert!(u32_at(head, 4) as usize == len && head[8..] == self.count.to_le_bytes());
        self.count += 1;
        have -= HEAD;
        assert!(fill(self.s, self.rule, record, &mut have, len));
        let (nonce, bound) = of_record(extent, line.offset);
        assert!(self.tenant.open(nonce, &bound, &mut record[..len]));
        let (want, payload) = record.split_first_chunk::<HEADER_BYTES>().unwrap();
        let payload = &payload[..line.len as usize];
        assert!(canvas_sys::lz4::decompress(payload, out));
        assert!(same(&self.hash.of(out), want));
    }
}

/// Reads at random until the time is over.
fn measure(
    options: &Options,
    peer: &Peer,
    mut read: impl FnMut(usize),
    n: usize,
    to: &mut Samples,
) {
    let mut rng = fastrand::Rng::new();
    for _ in 0..200 {
        read(rng.usize(..n));
    }
    let end = Instant::now() + options.seconds;
    let (here, there) = (
        processor_ns(std::process::id()),
        processor_ns(peer.child.id()),
    );
    let mut thought = Duration::ZERO;
    let mut began = Instant::now();
    while began < end {
        read(rng.usize(..n));
        let done = Instant::now();
        to.times.push((done - began).as_nanos() as u32);
        began = done;
        while began - done < options.think {
            began = Instant::now();
        }
        thought += began - done;
    }
    let thought = thought.as_nanos() as u64;
    to.here_ns += (processor_ns(std::process::id()) - here).saturating_sub(thought);
    to.there_ns += processor_ns(peer.child.id()) - there;
}

fn lane<C: Cipher>(
    options: &Options,
    lines: &[(u32, Line)],
    rules: (&str, &str),
    to: &mut Samples,
) {
    let peer = Peer::start(options, "lane", rules.1);
    let hash_key = page(u32::MAX);
    let mut lane = Lane {
        s: &peer.stream,
        rule: Rule::of(rules.0),
        up: C::new(&UP),
        down: C::new(&DOWN),
        tenant: C::new(&KEY),
        hash: PageHash::new(&hash_key, products()),
        count: 0,
        buffer: Box::new([0; HEAD + 8192]),
    };
    let mut out = [0; PAGE_SIZE];
    let read = |i: usize| {
        let (extent, line) = &lines[i];
        lane.read(*extent, line, &mut out);
        black_box(&out);
    };
    measure(options, &peer, read, lines.len(), to);
    end(peer);
}

fn raw(options: &Options, lines: &[(u32, Line)], rules: (&str, &str), to: &mut Samples) {
    let peer = Peer::start(options, "raw", rules.1);
    let (mut request, mut buffer) = ([0; HEAD], [0; HEAD + 8192]);
    let rule = Rule::of(rules.0);
    let read = |i: usize| {
        let len = lines[i].1.range().len();
        request[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        put(&peer.stream, &request);
        let mut have = 0;
        assert!(fill(&peer.stream, rule, &mut buffer, &mut have, HEAD + len));
    };
    measure(options, &peer, read, lines.len(), to);
    end(peer);
}

fn end(peer: Peer) {
    let Peer {
        mut child,
        out,
        stream,
    } = peer;
    drop((out, stream));
    child.wait().unwrap();
}

struct Options {
    seconds: Duration,
    rounds: usize,
    congestion: String,
    listen: String,
    within: Option<String>,
    think: Duration,
    only: String,
}

fn options() -> Options {
    let mut o = Options {
        seconds: Duration::from_millis(1000),
        rounds: 3,
        congestion: String::new(),
        listen: "127.0.0.1".to_owned(),
        within: None,
        think: Duration::ZERO,
        only: String::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().expect("each option has a value");
        match name.as_str() {
            "--seconds" => o.seconds = Duration::from_secs_f64(value.parse().unwrap()),
            "--rounds" => o.rounds = value.parse().unwrap(),
            "--congestion" => o.congestion = value,
            "--listen" => o.listen = value,
            "--within" => o.within = Some(value),
            "--think" => o.think = Duration::from_micros(value.parse().unwrap()),
            "--only" => o.only = value,
            _ => panic!("there is no option {name}"),
        }
    }
    o
}

/// Who looks how: the name, the program's rule, the donor's (`y`: gives its processor away).
const RULES: [(&str, &str, &str); 4] = [
    ("both look", "alwaysy", "alwaysy"),
    ("20 us, then sleep", "20", "20"),
    ("20 us, donor 50 us", "20", "50y"),
    ("both sleep", "0", "0"),
];

/// What the steps cost that are not the network's.
fn steps<C: Cipher>(name: &str) {
    const N: u32 = 20_000;
    let cipher = C::new(&KEY);
    let hash_key = page(u32::MAX);
    let hash = PageHash::new(&hash_key, products());
    let (mut small, mut out) = ([0u8; PAGE_SIZE], [0u8; PAGE_SIZE]);
    let mut state = vec![0u8; 32 << 10];
    let len = canvas_sys::lz4::compress(&page(5), &mut small, &mut state, true).unwrap();
    let mut sealed = small[..len].to_vec();
    let tag = cipher.seal(counted(1), &[1; 20], &mut sealed);
    sealed.extend_from_slice(&tag);
    let time = |f: &mut dyn FnMut()| {
        let began = Instant::now();
        for _ in 0..N {
            f();
        }
        began.elapsed().as_secs_f64() * 1e6 / f64::from(N)
    };
    let mut copy = sealed.clone();
    let opening = time(&mut || {
        copy.copy_from_slice(&sealed);
        assert!(cipher.open(counted(1), &[1; 20], &mut copy));
    });
    let mut body = [0; BODY];
    let sealing = time(&mut || {
        black_box(cipher.seal(counted(1), &[], &mut body));
    });
    let decoding = time(&mut || assert!(canvas_sys::lz4::decompress(&small[..len], &mut out)));
    let hashing = time(&mut || {
        black_box(hash.of(&out));
    });
    println!(
        "{name}: a record of {len} bytes opens in {opening:.2} us, a request is sealed in \
         {sealing:.2} us; lz4 {decoding:.2} us, hash {hashing:.2} us"
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == "donor") {
        return donor(&args[2..]);
    }
    let options = options();
    let lines = stored(|_, _| {});
    let bytes: usize = lines.iter().map(|l| l.1.range().len()).sum();
    println!(
        "{} records, {} bytes on average",
        lines.len(),
        bytes / lines.len()
    );
    steps::<Ring>("ring");
    steps::<Plain>("aes-gcm");
    let mut all: Vec<(String, Samples)> = Vec::new();
    for round in 0..options.rounds {
        let mut row = 0;
        for (rule, here, there) in RULES {
            for kind in ["TCP", "lane, ring", "lane, aes-gcm"] {
                let name = format!("{kind}, {rule}");
                if !name.contains(&options.only) {
                    continue;
                }
                if round == 0 {
                    all.push((name, Samples::default()));
                }
                let to = &mut all[row].1;
                row += 1;
                match kind {
                    "TCP" => raw(&options, &lines, (here, there), to),
                    "lane, ring" => lane::<Ring>(&options, &lines, (here, there), to),
                    _ => lane::<Plain>(&options, &lines, (here, there), to),
                }
            }
        }
    }
    let mut r = 0.0;
    for (name, samples) in &mut all {
        samples.times.sort_unstable();
        let times = &samples.times;
        let n = times.len() as f64;
        let at = |q: f64| f64::from(times[(n * q) as usize]) / 1000.0;
        if r == 0.0 {
            r = at(0.5);
        }
        println!(
            "{name:32} p50 {:6.1} us ({:4.2} R), p99 {:6.1} us, processor {:5.1} + {:5.1} us, {} reads",
            at(0.5),
            at(0.5) / r,
            at(0.99),
            samples.here_ns as f64 / n / 1000.0,
            samples.there_ns as f64 / n / 1000.0,
            times.len()
        );
    }
    std::io::stdout().flush().unwrap();
}
