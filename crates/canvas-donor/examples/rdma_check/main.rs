//! A donor and its clients in one process, over RDMA: who can reach what, and the latency of reads
//! compared with TCP. For hosts with an RDMA device, or rdma_rxe (`tests/e2e/rdma.py` runs it in a
//! guest).
//!
//! `cargo run --release -p canvas-donor --example rdma_check ADDRESS [ROUNDS]`, where ADDRESS is an
//! address of this host on the device. Prints a JSON object; on a failure prints a sentence and
//! exits with 1.

mod lanes;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use canvas_donor::{Config, Server};
use canvas_link::{
    Address, Completion, Completions, Link, LinkConfig, LinkError, Transport, connect,
};
use canvas_rdma::{Domain, Initiator, RdmaError};
use canvas_wire::SLAB_BYTES;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Range, Request, SlabKey};
use canvas_wire::key::ClusterKey;

const PAGE: u32 = 4096;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait for an answer that must not come; many times what one takes.
const SILENCE: Duration = Duration::from_secs(2);
/// Result of an operation that nobody answered.
const SILENT: &str = "neither done nor refused";

type Outcome<T> = Result<T, String>;
type Client = Box<dyn Transport>;

/// An error's text.
fn said(e: impl Display) -> String {
    e.to_string()
}

fn server(addr: IpAddr, key: &ClusterKey, lease: Duration) -> Outcome<Server> {
    Server::start(Config {
        listen: SocketAddr::new(addr, 0),
        memory_bytes: 8 * SLAB_BYTES as u64,
        reserve_bytes: Some(0),
        key: Some(key.clone()),
        lease,
        evict_within: Duration::from_secs(10),
        spin: Duration::from_micros(50),
        state_json: None,
        procfs: "/proc".into(),
        links_max: 16,
        rdma: true,
    })
    .map_err(said)
}

fn client(server: &Server, key: &ClusterKey, id: u8, link: u32, rdma: bool) -> Outcome<Client> {
    let mut config = LinkConfig::new(key.clone(), [id; 16]);
    config.link = link;
    config.timeouts.request = PATIENCE;
    let addr = server.listening();
    connect(&Address { addr, rdma }, config).map_err(said)
}

/// Result of a request.
#[derive(Debug, PartialEq)]
enum Came {
    Handle(u64),
    Done,
    Data(Vec<u8>),
    Refused(ErrorCode),
    Lost,
    Other,
}

/// Sends a request and waits for the answer; also returns the link's error if it broke.
fn ask(link: &mut Client, request: &Request<'_>) -> Outcome<(Came, Option<LinkError>)> {
    link.submit(1, request).map_err(said)?;
    let mut completions = Completions::new();
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        completions.clear();
        let error = link
            .poll(&mut completions, Duration::from_millis(100))
            .err();
        for completion in completions.iter() {
            let came = match completion {
                Completion::Answer { answer, .. } => match answer {
                    Answer::Allocated { handle } => Came::Handle(handle),
                    Answer::Done => Came::Done,
                    Answer::Data(data) => Came::Data(data.to_vec()),
                    Answer::Error { code, .. } => Came::Refused(code),
                    _ => Came::Other,
                },
                Completion::Lost { .. } => Came::Lost,
                Completion::Call { .. } => continue,
                Completion::TimedOut { .. } => return Err("no answer in time".to_owned()),
            };
            return Ok((came, error));
        }
        if let Some(e) = error {
            return Err(e.to_string());
        }
    }
    Err("no answer".to_owned())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Outcome<()> {
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: {got:?} and not {wanted:?}"))
    }
}

fn alloc(link: &mut Client, slab: u32) -> Outcome<u64> {
    let tenant = [9; 16];
    match ask(link, &Request::Alloc(SlabKey { tenant, slab }))?.0 {
        Came::Handle(handle) => Ok(handle),
        other => Err(format!("no slab: {other:?}")),
    }
}

fn range(page: u32) -> Range {
    Range {
        offset: page * PAGE,
        len: PAGE,
    }
}

fn content(page: u32) -> Vec<u8> {
    (0..PAGE).map(|i| (i / 7 + page * 31) as u8).collect()
}

fn write(link: &mut Client, handle: u64, page: u32) -> Outcome<()> {
    let data = content(page);
    let request = Request::Write {
        handle,
        offset: page * PAGE,
        data: &data,
    };
    same("a write", ask(link, &request)?.0, Came::Done)
}

fn read(link: &mut Client, handle: u64, page: u32) -> Outcome<()> {
    let range = range(page);
    let came = ask(link, &Request::Read { handle, range })?.0;
    same("a read", came, Came::Data(content(page)))
}

/// Waits until the slab's pages are read one-sided, which the donor does not count.
fn one_sided(server: &Server, link: &mut Client, handle: u64, page: u32) -> Outcome<()> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let before = server.session_reads();
        read(link, handle, page)?;
        if server.session_reads() == before {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the slab was never exposed".to_owned())
}

/// An operation that the device must refuse, which breaks the link.
fn refused(link: &mut Client, handle: u64, what: &str) -> Outcome<()> {
    let range = range(0);
    let (came, error) = ask(link, &Request::Read { handle, range })?;
    same(what, came, Came::Lost)?;
    match error {
        Some(LinkError::Rdma(e)) if is_refused(&e) => Ok(()),
        other => Err(format!("{what}: the link said {other:?}")),
    }
}

/// Data are correct, one-sided and over the session.
fn data_is_right(server: &Server, key: &ClusterKey) -> Outcome<()> {
    let mut a = client(server, key, 1, 0, true)?;
    let mut tcp = client(server, key, 1, 1, false)?;
    let handle = alloc(&mut a, 0)?;
    write(&mut a, handle, 3)?;
    one_sided(server, &mut a, handle, 3)?;
    let pages = (SLAB_BYTES / PAGE as usize) as u32;
    for page in (0..pages).step_by(301).chain([pages - 1]) {
        write(&mut a, handle, page)?;
        read(&mut tcp, handle, page)?;
        write(&mut tcp, handle, page)?;
        read(&mut a, handle, page)?;
    }
    // Beyond the slab's end the donor refuses, not the device, and the link survives.
    let beyond = Range {
        offset: SLAB_BYTES as u32 - 16,
        len: 32,
    };
    let request = Request::Read {
        handle,
        range: beyond,
    };
    let came = ask(&mut a, &request)?.0;
    same(
        "a read beyond the slab",
        came,
        Came::Refused(ErrorCode::OutOfRange),
    )?;
    same(
        "a free",
        ask(&mut a, &Request::Free { handle })?.0,
        Came::Done,
    )?;
    // A slab that is freed in order does not break the link.
    let handle = alloc(&mut a, 0)?;
    let came = ask(
        &mut a,
        &Request::Read {
            handle,
            range: range(3),
        },
    )?
    .0;
    same(
        "a slab lent again",
        came,
        Came::Data(vec![0; PAGE as usize]),
    )?;
    same(
        "a free",
        ask(&mut a, &Request::Free { handle })?.0,
        Came::Done,
    )
}

/// A key is useless once its slab is freed.
fn a_freed_slab_is_shut(server: &Server, key: &ClusterKey) -> Outcome<()> {
    let mut a = client(server, key, 2, 0, true)?;
    let mut tcp = client(server, key, 2, 1, false)?;
    let handle = alloc(&mut a, 0)?;
    write(&mut a, handle, 0)?;
    one_sided(server, &mut a, handle, 0)?;
    // Without the knowledge of the link that has the key.
    let freed = ask(&mut tcp, &Request::Free { handle })?.0;
    same("a free", freed, Came::Done)?;
    refused(&mut a, handle, "a read of a freed slab")
}

/// A key is useless for another client, and for another link of the same client.
fn a_key_is_its_links_own(server: &Server, key: &ClusterKey, addr: IpAddr) -> Outcome<()> {
    let mut owner = Thief::new(server, key, addr, 3, 0)?;
    let secret = owner.secret()?;
    same("its own link", owner.fetch(secret)?, true)?;
    for (id, link) in [(4, 0), (3, 1)] {
        let mut thief = Thief::new(server, key, addr, id, link)?;
        let what = format!("client {id}, link {link}, with a stolen key");
        same(&what, thief.fetch(secret)?, false)?;
    }
    same("its own link again", owner.fetch(secret)?, true)
}

/// When the client starts again, older links are cut off, whoever still has their queue pairs.
fn a_replaced_link_is_shut(server: &Server, key: &ClusterKey, addr: IpAddr) -> Outcome<()> {
    for (old, new) in [(0, 0), (1, 1), (1, 0)] {
        let mut older = Thief::new(server, key, addr, 7, old)?;
        let secret = older.secret()?;
        same("an older link", older.fetch(secret)?, true)?;
        let newer = client(server, key, 7, new, false)?;
        // At once, without its session being read. Nobody answers any more; the device decides how
        // long it retries.
        match older.fetch_within(secret, SILENCE) {
            Err(why) if why.contains("retry") || why == SILENT => {}
            other => return Err(format!("link {old}, replaced by {new}: {other:?}")),
        }
        drop(newer);
    }
    Ok(())
}

/// When the lease expires, memory is cut off, whoever still has a queue pair.
fn the_lease_ends_it(key: &ClusterKey, addr: IpAddr) -> Outcome<()> {
    let server = server(addr, key, Duration::from_millis(600))?;
    let mut a = client(&server, key, 5, 0, true)?;
    let handle = alloc(&mut a, 0)?;
    write(&mut a, handle, 0)?;
    one_sided(&server, &mut a, handle, 0)?;
    let until = Instant::now() + PATIENCE;
    while server.lent_slabs() > 0 {
        if Instant::now() > until {
            return Err("the lease does not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let range = range(0);
    let (came, _) = ask(&mut a, &Request::Read { handle, range })?;
    same("a read past the lease", came, Came::Lost)
}

fn quantile(times: &mut [Duration], q: f64) -> f64 {
    times.sort();
    times[(times.len() as f64 * q) as usize].as_nanos() as f64 / 1000.0
}

/// Times of single 4 KiB reads, in microseconds: p50 and p99.
fn times(link: &mut Client, handle: u64, rounds: usize) -> Outcome<(f64, f64)> {
    let mut completions = Completions::new();
    let mut times = Vec::new();
    for n in 0..rounds {
        let range = range((n * 37 % (SLAB_BYTES / PAGE as usize)) as u32);
        let start = Instant::now();
        link.submit(0, &Request::Read { handle, range })
            .map_err(said)?;
        completions.clear();
        while completions.is_empty() {
            link.poll(&mut completions, Duration::ZERO).map_err(said)?;
            if completions.is_empty() {
                std::thread::yield_now();
            }
        }
        times.push(start.elapsed());
    }
    Ok((quantile(&mut times, 0.5), quantile(&mut times, 0.99)))
}

/// RDMA and TCP alternate, so that other load affects both.
fn latency(server: &Server, key: &ClusterKey, rounds: usize) -> Outcome<String> {
    let mut rdma = client(server, key, 6, 0, true)?;
    let mut tcp = client(server, key, 6, 1, false)?;
    let handle = alloc(&mut rdma, 0)?;
    write(&mut rdma, handle, 0)?;
    one_sided(server, &mut rdma, handle, 0)?;
    let mut lines = Vec::new();
    for turn in 0..3 {
        let (r50, r99) = times(&mut rdma, handle, rounds)?;
        let (t50, t99) = times(&mut tcp, handle, rounds)?;
        lines.push(format!(
            "{{\"turn\": {turn}, \"rdma_p50_us\": {r50:.1}, \"rdma_p99_us\": {r99:.1}, \"tcp_p50_us\": {t50:.1}, \"tcp_p99_us\": {t99:.1}}}"
        ));
    }
    Ok(format!("[{}]", lines.join(", ")))
}

/// Whether the donor's device refused the operation.
fn is_refused(e: &RdmaError) -> bool {
    // Because of its key, or of its queue pair's access.
    let says = ["remote access error", "remote invalid request error"];
    matches!(e, RdmaError::Failed(status) if says.iter().any(|s| status.contains(s)))
}

/// A client that breaks the rules: it keeps keys and uses them at will.
struct Thief {
    link: Link,
    queue: Initiator,
}

impl Thief {
    fn new(server: &Server, key: &ClusterKey, addr: IpAddr, id: u8, number: u32) -> Outcome<Thief> {
        let mut config = LinkConfig::new(key.clone(), [id; 16]);
        config.link = number;
        config.timeouts.request = PATIENCE;
        let mut link = Link::connect(server.listening(), config).map_err(said)?;
        let domain = Domain::open(addr).map_err(said)?;
        let mut queue = Initiator::new(&domain, 1, PAGE as usize, 7).map_err(said)?;
        let mut completions = Completions::new();
        let join = Request::Join(queue.local());
        match link.ask(&join, &mut completions) {
            Ok(Answer::Joined(peer)) => queue.connect(&peer).map_err(said)?,
            other => return Err(format!("{other:?}")),
        }
        Ok(Thief { link, queue })
    }

    /// Address and key of a slab of its own.
    fn secret(&mut self) -> Outcome<(u64, u32)> {
        let mut completions = Completions::new();
        let key = SlabKey {
            tenant: [9; 16],
            slab: 0,
        };
        let handle = match self.link.ask(&Request::Alloc(key), &mut completions) {
            Ok(Answer::Allocated { handle }) => handle,
            other => return Err(format!("{other:?}")),
        };
        match self.link.ask(&Request::Expose { handle }, &mut completions) {
            Ok(Answer::Exposed(e)) => Ok((e.address, e.key)),
            other => Err(format!("{other:?}")),
        }
    }

    /// Whether a page can be read with this key.
    fn fetch(&mut self, secret: (u64, u32)) -> Outcome<bool> {
        self.fetch_within(secret, PATIENCE)
    }

    fn fetch_within(&mut self, (at, key): (u64, u32), patience: Duration) -> Outcome<bool> {
        let read = self.queue.read(0, PAGE as usize, at, key);
        read.map_err(said)?;
        done(&mut self.queue, patience)
    }
}

/// Whether the device performs or refuses the operation; an error if nobody answers.
fn done(queue: &mut Initiator, patience: Duration) -> Outcome<bool> {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        match queue.poll(|_, _, _| {}) {
            Ok(0) => std::thread::yield_now(),
            Ok(_) => return Ok(true),
            Err(e) if is_refused(&e) => return Ok(false),
            Err(e) => return Err(said(e)),
        }
    }
    Err(SILENT.to_owned())
}

fn run(addr: IpAddr, rounds: usize) -> Outcome<String> {
    let key = ClusterKey::generate().map_err(said)?;
    let server = server(addr, &key, Duration::from_secs(60))?;
    let step = |what: &str, result: Outcome<()>| result.map_err(|e| format!("{what}: {e}"));
    step("data", data_is_right(&server, &key))?;
    step("a freed slab", a_freed_slab_is_shut(&server, &key))?;
    step("a link's key", a_key_is_its_links_own(&server, &key, addr))?;
    step(
        "a replaced link",
        a_replaced_link_is_shut(&server, &key, addr),
    )?;
    step("a lease", the_lease_ends_it(&key, addr))?;
    step("lanes", lanes::reaches(&server, &key, addr))?;
    step("ends of lanes", lanes::ends(&server, &key, addr))?;
    let times = latency(&server, &key, rounds)?;
    Ok(format!("{{\"latency\": {times}}}"))
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let addr = args.next().and_then(|a| a.parse().ok());
    let rounds = args.next().map_or(Ok(2000), |n| n.parse());
    let (Some(addr), Ok(rounds)) = (addr, rounds) else {
        eprintln!("rdma_check: write an address of this host, and how many reads to time");
        return ExitCode::from(2);
    };
    match run(addr, rounds) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("rdma_check: {why}");
            ExitCode::FAILURE
        }
    }
}
