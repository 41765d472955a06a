//! A donor beside plain TCP on the loopback device: round trip of a 4 KiB read and bandwidth of a
//! stream of 32 KiB reads, against sockets that carry the same bytes and do nothing else.
//!
//! `cargo run --release -p canvas-donor --example beside_tcp [SPIN_US]...`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use canvas_donor::{Config, Server};
use canvas_link::{Completions, Link, LinkConfig};
use canvas_wire::SLAB_BYTES;
use canvas_wire::frame::{Answer, Range, Request, SlabKey};
use canvas_wire::key::ClusterKey;

const PAGE: usize = 4096;
const EXTENT: usize = 32 << 10;
/// What a read's request and its answer take on the wire beside the data.
const REQUEST_BYTES: usize = 18 + 16 + 16;
const ANSWER_BYTES: usize = 18 + 16;
const ROUNDS: usize = 20_000;
const STREAM_BYTES: usize = 2 << 30;
const WINDOW: usize = 32;

fn config(spin: Duration) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        memory_bytes: SLAB_BYTES as u64,
        reserve_bytes: Some(0),
        key: None,
        lease: Duration::from_secs(60),
        evict_within: Duration::from_secs(10),
        spin,
        state_json: None,
        procfs: "/proc".into(),
        links_max: 4,
        rdma: false,
    }
}

/// Answers each request of these bytes with so many; busy when told so.
fn echo(request: usize, answer: usize, busy: bool) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        s.set_nodelay(true).unwrap();
        s.set_nonblocking(busy).unwrap();
        let (mut asked, data) = (vec![0; request], vec![1; answer]);
        while fill(&mut s, &mut asked) {
            put(&mut s, &data);
        }
    });
    let s = TcpStream::connect(addr).unwrap();
    s.set_nodelay(true).unwrap();
    s.set_nonblocking(busy).unwrap();
    s
}

fn fill(s: &mut TcpStream, mut buffer: &mut [u8]) -> bool {
    while !buffer.is_empty() {
        match s.read(buffer) {
            Ok(0) => return false,
            Ok(n) => buffer = &mut buffer[n..],
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
    true
}

fn put(s: &mut TcpStream, mut data: &[u8]) {
    while !data.is_empty() {
        match s.write(data) {
            Ok(n) => data = &data[n..],
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => return,
        }
    }
}

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |q: f64| times[(times.len() as f64 * q) as usize].as_nanos() as f64 / 1000.0;
    format!("p50 {:.1} us, p99 {:.1} us", at(0.5), at(0.99))
}

fn tcp_round_trips(busy: bool) {
    let mut s = echo(REQUEST_BYTES, PAGE + ANSWER_BYTES, busy);
    let (request, mut answer) = (vec![2; REQUEST_BYTES], vec![0; PAGE + ANSWER_BYTES]);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        put(&mut s, &request);
        fill(&mut s, &mut answer);
        times.push(start.elapsed());
    }
    println!(
        "TCP, {}: {}",
        if busy { "busy" } else { "blocking" },
        quantiles(times)
    );
}

fn tcp_stream() -> f64 {
    let mut s = echo(1, 4 << 20, false);
    let mut buffer = vec![0; 4 << 20];
    let start = Instant::now();
    for _ in 0..STREAM_BYTES / buffer.len() {
        put(&mut s, &[1]);
        fill(&mut s, &mut buffer);
    }
    STREAM_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn connect(server: &Server) -> (Link, u64) {
    let config = LinkConfig::new(ClusterKey::without_secret(), [1; 16]);
    let mut link = Link::connect(server.listening(), config).unwrap();
    let key = SlabKey {
        tenant: [1; 16],
        slab: 0,
    };
    let mut c = Completions::new();
    let Ok(Answer::Allocated { handle }) = link.ask(&Request::Alloc(key), &mut c) else {
        panic!("no slab");
    };
    for offset in (0..SLAB_BYTES).step_by(EXTENT) {
        let request = Request::Write {
            handle,
            offset: offset as u32,
            data: &[7; EXTENT],
        };
        link.ask(&request, &mut c).unwrap();
    }
    (link, handle)
}

fn canvas_round_trips(link: &mut Link, handle: u64, busy: bool) -> String {
    let mut c = Completions::new();
    let mut times = Vec::new();
    for n in 0..ROUNDS {
        let range = Range {
            offset: (n * 37 % (SLAB_BYTES / PAGE) * PAGE) as u32,
            len: PAGE as u32,
        };
        let start = Instant::now();
        link.submit(0, &Request::Read { handle, range }).unwrap();
        c.clear();
        while c.is_empty() {
            let wait = if busy {
                Duration::ZERO
            } else {
                Duration::from_secs(1)
            };
            link.poll(&mut c, wait).unwrap();
            if busy && c.is_empty() {
                std::thread::yield_now();
            }
        }
        times.push(start.elapsed());
    }
    quantiles(times)
}

fn canvas_stream(link: &mut Link, handle: u64) -> f64 {
    let mut c = Completions::new();
    let (mut asked, mut done) = (0, 0);
    let count = STREAM_BYTES / EXTENT;
    let start = Instant::now();
    while done < count {
        while asked < count && asked - done < WINDOW {
            let range = Range {
                offset: (asked * EXTENT % SLAB_BYTES) as u32,
                len: EXTENT as u32,
            };
            link.submit(0, &Request::Read { handle, range }).unwrap();
            asked += 1;
        }
        c.clear();
        link.poll(&mut c, Duration::from_secs(1)).unwrap();
        done += c.len();
    }
    STREAM_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let mut spins: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|a| a.parse().ok())
        .collect();
    if spins.is_empty() {
        spins = vec![0, 20, 50, 200];
    }
    tcp_round_trips(false);
    tcp_round_trips(true);
    let tcp = tcp_stream();
    println!("TCP stream: {tcp:.2} GB/s");
    for us in spins {
        let server = Server::start(config(Duration::from_micros(us))).unwrap();
        let (mut link, handle) = connect(&server);
        for busy in [false, true] {
            let times = canvas_round_trips(&mut link, handle, busy);
            println!(
                "donor, spin {us} us, client {}: {times}",
                if busy { "busy" } else { "blocking" }
            );
        }
        let gb = canvas_stream(&mut link, handle);
        println!(
            "donor, spin {us} us, stream: {gb:.2} GB/s, {:.0} % of TCP",
            100.0 * gb / tcp
        );
    }
}
