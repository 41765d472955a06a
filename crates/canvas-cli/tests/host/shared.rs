//! One limit for all tenants' shared memory: what is granted and revoked while it is used, against
//! false claims, with other values, without an agent, and with the next one.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_shm::segment::Counter;

use super::client::Client;
use super::pools::{MIB, end, segment, until_told};
use super::{Host, Run, wait_served};

const GRANT: &str = "shared_grant_bytes";

/// Faults pages in all the time, with as many resident as allowed, as the library would; then it is
/// idle.
pub fn shares() {
    let segment = segment();
    Client::join();
    for pages in [10, 0] {
        until_told(|| {
            let mark = segment.shared.bytes.load(Relaxed) / 100 * 95;
            let before = segment.shared.used_bytes.load(Relaxed);
            let now = if pages > 0 { mark } else { before.min(mark) };
            segment.shared.used_bytes.store(now, Relaxed);
            segment.count(0, Counter::SharedIn, pages);
        });
    }
}

/// Claims to have and need everything, requests more, and writes itself another grant.
pub fn lies() {
    let segment = segment();
    Client::join();
    let mut n = 0u64;
    until_told(|| {
        n += 1;
        segment.shared.bytes.store(1 << 40, Relaxed);
        segment.shared.used_bytes.store(u64::MAX - n, Relaxed);
        segment.config.shared_bytes.store(u64::MAX - n, Relaxed);
        segment.count(0, Counter::SharedIn, 1 << 40);
    });
    super::load::wait_to_go_on();
}

impl Host {
    /// A run with a limit on shared memory above the host's.
    fn sharer(&self, part: &str, tenant: &str, weight: &str) -> Run {
        let flags = [
            ["--far", "128M"],
            ["--shared", "1G"],
            ["--tenant", tenant],
            ["-o", &format!("weight={weight}")],
        ];
        self.run(part, flags.as_flattened())
    }

    fn file(&self, text: &str) -> PathBuf {
        let file = self.dir.path().join("canvas.toml");
        fs::write(&file, text).unwrap();
        file
    }

    fn shared_grant(&self, tenant: &str) -> Option<u64> {
        self.limits(tenant)[GRANT].as_u64()
    }
}

fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= 4 * MIB
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not in 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn shared_memory_follows_its_use_through_agents_and_files() {
    let mut host = Host::new();
    let file = host.file("[shared]\nlocal = \"128M\"\n");
    let config = ["--config", file.to_str().unwrap()];
    let mut agent = host.agent(&config);
    let mut first = host.sharer("shares", "first", "100");
    first.wait_for("ready");
    // Alone, it has everything except the part kept for others.
    assert_eq!(host.shared_grant("first"), Some(124 * MIB));
    assert_eq!(host.limits("first")["shared_bytes"], 1024 * MIB);
    let second = host.sharer("shares", "second", "100");
    second.wait_for("ready");
    let both = ["first", "second"];
    host.wait_for_parts(GRANT, both, 128 * MIB, |a, b| {
        near(a, 62 * MIB) && near(b, 62 * MIB)
    });
    // One becomes idle and keeps its floor, an eighth.
    first.go_on();
    first.wait_for("ready");
    host.wait_for_parts(GRANT, both, 128 * MIB, |a, b| {
        a == 16 * MIB && b == 108 * MIB
    });
    // The agent checks what a run requests.
    let set = |change: &str| {
        let (code, said) = host.ask(&["set", "second", change]);
        assert_eq!(code, Some(0), "{said}");
    };
    set("shared=21M");
    wait_until("it is granted what it asks for", || {
        host.shared_grant("second") == Some(21 * MIB)
    });
    set("shared=1G");
    host.wait_for_parts(GRANT, both, 128 * MIB, |a, b| {
        a == 16 * MIB && b == 108 * MIB
    });
    // Without an agent each keeps its grant; the next agent continues with it.
    agent.kill();
    std::thread::sleep(Duration::from_millis(200));
    let granted = |tenant| host.shared_grant(tenant);
    let last = both.map(granted);
    assert_eq!(last, [Some(16 * MIB), Some(108 * MIB)]);
    let mut next = host.agent(&config);
    wait_served(&[&first, &second]);
    host.wait_for_parts(GRANT, both, 128 * MIB, |a, b| {
        a == 16 * MIB && b == 108 * MIB
    });
    // With other values they get their parts of these.
    host.file("[shared]\nlocal = \"64M\"\nfloor = \"4M\"\nceiling = \"40M\"\n");
    let mut third = host.agent(&[&config[..], &["--replace"]].concat());
    assert_eq!(next.end().code(), Some(0), "{}", next.said());
    host.wait_for_parts(GRANT, both, 64 * MIB, |a, b| a == 16 * MIB && b == 40 * MIB);
    // An invalid file changes nothing.
    host.file("[shared]\nlocal = \"64M\"\nfloor = \"60M\"\n");
    let mut refused = host.begin(&[&config[..], &["--replace"]].concat());
    assert_eq!(refused.end().code(), Some(2), "{}", refused.said());
    let why = "canvas.toml:3: [shared]: floor 60M is more than three quarters of local 64M; write less, or more local\n";
    assert!(refused.said().ends_with(why), "{}", refused.said());
    assert_eq!(host.shared_grant("second"), Some(40 * MIB));
    // Without the section they get what they requested.
    host.file("[agent]\n");
    let free = host.agent(&[&config[..], &["--replace"]].concat());
    assert_eq!(third.end().code(), Some(0), "{}", third.said());
    assert_eq!(both.map(|name| host.shared_grant(name)), [None, None]);
    end(first, true);
    end(second, false);
    assert_eq!(free.said().lines().count(), 1, "{}", free.said());
}

#[test]
fn a_tenant_that_writes_itself_a_grant_gets_twice_its_part_at_most_and_is_named() {
    let mut host = Host::new();
    let text = "[shared]\nlocal = \"128M\"\n[tenant.honest]\nshared_floor = \"32M\"\n";
    let file = host.file(text);
    let agent = host.agent(&["--config", file.to_str().unwrap()]);
    let liar = host.sharer("shared-lies", "liar", "100");
    liar.wait_for("ready");
    let honest = host.sharer("shares", "honest", "100");
    honest.wait_for("ready");
    // A third of 124 MiB, whatever it claims to need.
    let parts = |a: u64, b: u64| near(a, 82 * MIB) && near(b, 42 * MIB);
    let names = ["liar", "honest"];
    let lied = |bytes: u64| bytes == 1 << 40;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let [liars, honests] = names.map(|name| host.shared_grant(name).unwrap());
        // At times its own false value is there.
        assert!(lied(liars) || liars <= 128 * MIB, "{liars}");
        if parts(liars, honests) || lied(liars) && near(honests, 42 * MIB) {
            break;
        }
        assert!(Instant::now() < until, "{liars} {honests}");
        std::thread::sleep(Duration::from_millis(200));
    }
    for _ in 0..10 {
        let honests = host.shared_grant("honest").unwrap();
        assert!(honests >= 32 * MIB, "{honests}");
        std::thread::sleep(Duration::from_millis(50));
    }
    agent.wait_for("has more shared memory in memory than it was granted");
    let said = agent.said();
    let named = "the limit on its shared memory";
    assert_eq!(said.matches(named).count(), 1, "{said}");
    assert!(!said.contains("tenant=honest"), "{said}");
    end(liar, false);
    end(honest, false);
}
