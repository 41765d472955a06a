//! A network of the bench: a namespace behind a link with a rate, a delay, or both, equal in both directions.
//!
//! The link is a pair of virtual Ethernet devices. For a rate each end has a token bucket (tbf), for a delay
//! an eBPF program ([`super::delay`]). The namespace has no name and lives as long as a process is in it; the
//! process that keeps it ends when its standard input closes, that is, with the bench.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::delay;
use super::error::{NetError, StartError, ToolError};
use super::step::Step;
use super::tool;
use super::undo::{Held, Undo};
use crate::link::Link;
use crate::rate::Rate;

/// First of the addresses for network benchmarks (RFC 2544, 198.18.0.0/15); each network has four.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const SUBNETS: u32 = 1 << 15;
/// The device inside the namespace.
const INSIDE: &str = "eth0";
/// Smallest bucket: the kernel sends segments of up to 64 KiB at once.
const BURST_BYTES_MIN: u64 = 128 << 10;
/// Size of a bucket and of its queue, in ms at the full rate.
const BURST_MS: u64 = 1;
const QUEUE_MS: u64 = 20;
/// Timeout of creating the namespace, and of the first packet through it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of round trips, the shortest of which must show the delay.
const TRIPS: usize = 50;

/// Reason why a network with this link cannot be created here.
pub fn missing(link: Link) -> Option<NetError> {
    if !nix::unistd::geteuid().is_root() {
        return Some(NetError::NotRoot);
    }
    for name in ["ip", "tc", "unshare", "nsenter", "cat"] {
        if !tool::is_installed(name) {
            return Some(if matches!(name, "ip" | "tc") {
                NetError::NoIproute(name)
            } else {
                NetError::NoTool(name)
            });
        }
    }
    if let Err(e) = tool::run(&["unshare", "--net", "true"]) {
        return Some(NetError::NoNamespace(e));
    }
    // Tries it on the loopback device of a temporary namespace.
    let apart = ["unshare", "--net", "--"].map(str::to_owned);
    delay::put(&apart, "lo", link.delay?).err()
}

/// Removes the host's end of a link, and the other end with it; a missing link is not an error.
pub(super) fn remove_link(name: &str) -> Result<(), ToolError> {
    let there = || Path::new("/sys/class/net").join(name).exists();
    if !there() {
        return Ok(());
    }
    match tool::run(&["ip", "link", "delete", "dev", name]) {
        Err(e) if there() => Err(e),
        _ => Ok(()),
    }
}

/// Destinations of the routes in the output of `ip -j route`, as address and prefix length, without the
/// default route.
fn destinations(routes: &str) -> Option<Vec<(u32, u32)>> {
    let all: Vec<Value> = serde_json::from_str(routes).ok()?;
    let of = |route: &Value| {
        let text = route.get("dst")?.as_str()?;
        let (address, length) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().ok()?;
        Some((u32::from(address), length.parse().ok()?))
    };
    Some(all.iter().filter_map(of).collect())
}

/// First subnet, from number `from` on, that overlaps with no route.
fn free_subnet(taken: &[(u32, u32)], from: u32) -> Option<u32> {
    let overlaps = |base: u32, (address, length): (u32, u32)| {
        let mask = u32::MAX.checked_shl(32 - length.min(30)).unwrap_or(0);
        base & mask == address & mask
    };
    (0..SUBNETS)
        .map(|n| FIRST + from.wrapping_add(n) % SUBNETS * 4)
        .find(|base| !taken.iter().any(|route| overlaps(*base, *route)))
}

/// Arguments of `tc` for a token bucket.
pub(super) fn bucket(rate: Rate) -> [String; 3] {
    let bytes_in_ms = rate.bits_per_s / 8000;
    let burst = (bytes_in_ms * BURST_MS).max(BURST_BYTES_MIN);
    let limit = burst + bytes_in_ms * QUEUE_MS;
    [
        format!("{}bit", rate.bits_per_s),
        format!("{burst}b"),
        format!("{limit}b"),
    ]
}

/// Bytes sent through the bucket, from the output of `tc -s -j qdisc`.
fn sent_bytes(answer: &str) -> Option<u64> {
    let all: Vec<Value> = serde_json::from_str(answer).ok()?;
    let bucket = all.iter().find(|q| q["kind"] == "tbf")?;
    bucket.get("bytes")?.as_u64()
}

/// The process that keeps a namespace alive.
pub(super) struct Keeper {
    child: Child,
    _held: Held,
}

impl Keeper {
    pub(super) fn start(undo: &Arc<Undo>) -> Result<Keeper, NetError> {
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (child, _, held) = undo.start(&mut command).map_err(|e| match e {
            StartError::Spawn(e) => NetError::Keep(e),
            StartError::Journal(e) => NetError::Journal(e),
        })?;
        let pid = child.id();
        let mut keeper = Keeper { child, _held: held };
        let until = Instant::now() + PATIENCE;
        // The namespace exists when the process has become `cat`.
        while std::fs::read(format!("/proc/{pid}/comm")).ok().as_deref() != Some(b"cat\n") {
            let ended = keeper.child.try_wait().map_err(NetError::Keep)?.is_some();
            if ended || Instant::now() > until {
                return Err(NetError::NotKept);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(keeper)
    }

    fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.child.id())
    }

    /// Its pid.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Creates a socket inside the namespace, where it stays.
    pub(super) fn inside<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let namespace = File::open(self.namespace())?;
        // A thread enters the namespace, and ends there.
        let there = std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            make()
        });
        there
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a tool inside; returns its output.
    pub(super) fn run(&self, argv: &[&str]) -> Result<String, ToolError> {
        tool::run_behind(&self.prefix(), argv)
    }

    /// Command prefix that runs a command inside.
    pub(super) fn prefix(&self) -> Vec<String> {
        let namespace = format!("--net={}", self.namespace());
        vec!["nsenter".to_owned(), namespace, "--".to_owned()]
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // `cat` ends with its input.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network namespace with a link, removed when dropped.
pub struct Network {
    /// Rate and delay of the link.
    pub link: Link,
    /// The host's end of the link.
    device: String,
    /// The address inside.
    inside: Ipv4Addr,
    // Dropped before the namespace.
    _device: Held,
    keeper: Keeper,
}

impl Network {
    /// Creates a network.
    pub fn start(link: Link, undo: &Arc<Undo>) -> Result<Network, NetError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let routes = tool::run(&["ip", "-4", "-j", "route", "show", "table", "all"])?;
        let taken = destinations(&routes).ok_or(NetError::Routes)?;
        let (n, device) = loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("cb{}n{n}", std::process::id());
            // A device of that name belongs to someone else.
            if !Path::new("/sys/class/net").join(&name).exists() {
                break (n, name);
            }
        };
        // Benches that run at the same time start at different subnets.
        let from = std::process::id().wrapping_mul(16).wrapping_add(n);
        let base = free_subnet(&taken, from).ok_or(NetError::NoAddress)?;
        let (outside, inside) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let keeper = Keeper::start(undo)?;
        let held = undo.hold(Step::RemoveLink {
            name: device.clone(),
        })?;
        let network = Network {
            link,
            device,
            inside,
            _device: held,
            keeper,
        };
        network.set_up(outside)?;
        network.try_it()?;
        Ok(network)
    }

    fn set_up(&self, outside: Ipv4Addr) -> Result<(), NetError> {
        let device = self.device.as_str();
        let pid = self.keeper.child.id().to_string();
        tool::run(&[
            "ip", "link", "add", device, "type", "veth", "peer", "name", INSIDE, "netns", &pid,
        ])?;
        let ends = [
            (Vec::new(), device, outside),
            (self.prefix(), INSIDE, self.inside),
        ];
        for (prefix, device, address) in ends {
            let run = |words: &[&str]| tool::run_behind(&prefix, words);
            // Shaped before any traffic.
            if let Some(rate) = self.link.rate {
                let [rate, burst, limit] = bucket(rate);
                run(&[
                    "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", &rate, "burst",
                    &burst, "limit", &limit,
                ])?;
            }
            if let Some(delay) = self.link.delay {
                delay::put(&prefix, device, delay)?;
            }
            run(&["ip", "addr", "add", &format!("{address}/30"), "dev", device])?;
            run(&["ip", "link", "set", device, "up"])?;
        }
        self.keeper.run(&["ip", "link", "set", "lo", "up"])?;
        Ok(())
    }

    /// Checks that a connection works, and has the delay.
    fn try_it(&self) -> Result<(), NetError> {
        let address = self.listen().and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) = address.map_err(NetError::Blocked)?;
        let ours = TcpStream::connect_timeout(&address, PATIENCE).map_err(NetError::Blocked)?;
        let Some(delay) = self.link.delay else {
            return Ok(());
        };
        let shortest = shortest_trip(ours, &listener).map_err(NetError::Blocked)?;
        let wanted = delay.duration() * 2;
        if shortest < wanted {
            return Err(NetError::TooShort { shortest, wanted });
        }
        Ok(())
    }

    /// Command prefix that runs a command inside.
    pub fn prefix(&self) -> Vec<String> {
        self.keeper.prefix()
    }

    /// The address inside.
    pub fn address(&self) -> Ipv4Addr {
        self.inside
    }

    /// Listens inside, at a free port.
    pub fn listen(&self) -> std::io::Result<TcpListener> {
        let address = (self.inside, 0);
        self.keeper.inside(move || TcpListener::bind(address))
    }

    /// Bytes sent through the link to the host so far, as the token bucket counts them.
    pub fn to_host_bytes(&self) -> Option<u64> {
        let shown = ["tc", "-s", "-j", "qdisc", "show", "dev", INSIDE];
        sent_bytes(&self.keeper.run(&shown).ok()?)
    }
}

/// The shortest of several round trips of a byte.
fn shortest_trip(mut ours: TcpStream, listener: &TcpListener) -> std::io::Result<Duration> {
    let (mut theirs, _) = listener.accept()?;
    for end in [&ours, &theirs] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(PATIENCE))?;
    }
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let mut byte = [0];
        for _ in 0..TRIPS {
            theirs.read_exact(&mut byte)?;
            theirs.write_all(&byte)?;
        }
        Ok(())
    });
    let mut shortest = Duration::MAX;
    let mut byte = [7];
    for _ in 0..TRIPS {
        let begun = Instant::now();
        ours.write_all(&byte)?;
        ours.read_exact(&mut byte)?;
        shortest = shortest.min(begun.elapsed());
    }
    echo.join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{one_journal, request};
    use crate::link::Delay;

    fn taken(routes: &[&str]) -> Vec<(u32, u32)> {
        let lines: Vec<String> = routes
            .iter()
            .map(|r| format!(r#"{{"dst":"{r}"}}"#))
            .collect();
        destinations(&format!("[{}]", lines.join(","))).unwrap()
    }

    #[test]
    fn networks_keep_clear_of_the_hosts_routes() {
        assert_eq!(destinations("no JSON"), None);
        let none = taken(&["default", "192.0.2.0/24"]);
        assert_eq!(none.len(), 1);
        assert_eq!(free_subnet(&none, 0), Some(FIRST));
        assert_eq!(free_subnet(&none, SUBNETS + 2), Some(FIRST + 8));
        // An address, a subnet, and a range larger than all of the bench's.
        assert_eq!(free_subnet(&taken(&["198.18.0.1"]), 0), Some(FIRST + 4));
        let half = taken(&["198.18.0.0/16"]);
        assert_eq!(free_subnet(&half, 7), Some(FIRST + (1 << 16)));
        assert_eq!(free_subnet(&taken(&["198.0.0.0/8"]), 0), None);
        // After the last subnet comes the first.
        let last = taken(&["198.19.255.254"]);
        assert_eq!(free_subnet(&last, SUBNETS - 1), Some(FIRST));
    }

    #[test]
    fn buckets_hold_whole_segments_and_a_moment() {
        assert_eq!(
            bucket(Rate::mbit(200)),
            ["200000000bit", "131072b", "631072b"]
        );
        let [_, burst, limit] = bucket(Rate::mbit(10_000));
        assert_eq!((burst.as_str(), limit.as_str()), ("1250000b", "26250000b"));
    }

    #[test]
    fn a_queue_tells_what_went_through_it() {
        let answer = r#"[{"kind":"tbf","handle":"8001:","options":{},"bytes":4711,"packets":3}]"#;
        assert_eq!(sent_bytes(answer), Some(4711));
        assert_eq!(sent_bytes(r#"[{"kind":"noqueue","bytes":0}]"#), None);
        assert_eq!(sent_bytes("[]"), None);
    }

    /// Traffic does not exceed the rate, and nothing is left behind.
    #[test]
    fn a_link_bounds_what_goes_through_and_goes_away() {
        if !canvas_testing::has_root("a link of its own rate") {
            return;
        }
        let rate = Rate::mbit(80);
        let link = Link {
            rate: Some(rate),
            delay: None,
        };
        if let Some(reason) = missing(link) {
            canvas_testing::skip(&reason.to_string());
            return;
        }
        let _one = one_journal();
        let undo = Undo::begin(&crate::host::reverse::Host, &request(&[]).guardian).unwrap();
        let network = Network::start(link, &undo).unwrap();
        let other = Network::start(link, &undo).unwrap();
        assert_ne!(network.address(), other.address());
        let device = Path::new("/sys/class/net").join(&network.device);
        let keeper = format!("/proc/{}", network.keeper.child.id());
        assert!(device.exists() && Path::new(&keeper).exists());
        let before = network.to_host_bytes().unwrap();
        let listener = network.listen().unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        const BYTES: u64 = 2 << 20;
        let source = std::thread::spawn(move || theirs.write_all(&vec![7; BYTES as usize]));
        let begun = Instant::now();
        let mut all = Vec::new();
        ours.read_to_end(&mut all).unwrap();
        source.join().unwrap().unwrap();
        let took_s = begun.elapsed().as_secs_f64();
        assert_eq!(all.len() as u64, BYTES);
        let through = network.to_host_bytes().unwrap() - before;
        assert!((BYTES..BYTES * 5 / 4).contains(&through), "{through}");
        // The bucket is full at first.
        let least_s = (BYTES - 2 * BURST_BYTES_MIN) as f64 / rate.bytes_per_s();
        assert!(took_s > least_s, "{took_s} s, at least {least_s} s");
        drop((ours, network, other));
        assert!(!device.exists() && !Path::new(&keeper).exists());
        assert_eq!(undo.finish(), [""; 0]);
    }

    /// A packet takes the delay, and nothing is left behind.
    #[test]
    fn a_link_with_a_length_holds_packets_back_and_goes_away() {
        if !canvas_testing::has_root("a link with a length") {
            return;
        }
        let long = |rate| Link {
            rate,
            delay: Some(Delay::ns(100_000)),
        };
        if let Some(reason) = missing(long(None)) {
            canvas_testing::skip(&reason.to_string());
            return;
        }
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let before = mounts();
        let _one = one_journal();
        let undo = Undo::begin(&crate::host::reverse::Host, &request(&[]).guardian).unwrap();
        for link in [long(None), long(Some(Rate::mbit(1000)))] {
            let network = Network::start(link, &undo).unwrap();
            let listener = network.listen().unwrap();
            // If acknowledgements were delayed too, a round trip would take three delays. On a busy machine
            // most take longer, so the shortest counts.
            let mut ways = f64::MAX;
            for _ in 0..40 {
                let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let shortest = shortest_trip(ours, &listener).unwrap();
                ways = ways.min(shortest.as_secs_f64() / 100e-6);
                if ways < 3.0 {
                    break;
                }
            }
            assert!((2.0..3.0).contains(&ways), "{ways}");
            let device = Path::new("/sys/class/net").join(&network.device);
            assert!(device.exists());
            drop((listener, network));
            assert!(!device.exists());
        }
        assert_eq!(undo.finish(), [""; 0]);
        assert_eq!(mounts(), before);
    }
}
