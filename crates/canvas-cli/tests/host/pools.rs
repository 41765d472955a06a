//! One pool for all tenants: what is granted and revoked while programs swap, come, go and lie.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_shm::Segment;
use canvas_shm::segment::{Counter, ENV_SEGMENT_FD};

use super::client::Client;
use super::{Host, Run, load, wait_served};

pub const MIB: u64 = 1 << 20;

/// Repeats `something` until the next word comes, then prints `over`.
pub fn until_told(mut something: impl FnMut()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            load::wait_to_go_on();
            over.store(true, Relaxed);
        });
        while !over.load(Relaxed) {
            something();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

pub fn segment() -> &'static Segment {
    let number = std::env::var(ENV_SEGMENT_FD).unwrap().parse().unwrap();
    Segment::map(canvas_shm::map::inherited(number, 3).unwrap()).unwrap()
}

/// Swaps all the time with a full pool, as the library would; then it is idle.
pub fn swaps() {
    let segment = segment();
    Client::join();
    for pages in [10, 0] {
        until_told(|| {
            let mark = segment.config.pool_bytes.load(Relaxed) / 100 * 80;
            let before = segment.pool_bytes.load(Relaxed);
            let now = if pages > 0 {
                mark as i64
            } else {
                before.min(mark as i64)
            };
            segment.pool_bytes.store(now, Relaxed);
            segment.count(0, Counter::PagesIn, pages);
        });
    }
}

/// Claims to need everything, and writes itself another limit.
pub fn lies() {
    let segment = segment();
    Client::join();
    until_told(|| {
        segment.config.pool_bytes.store(1 << 40, Relaxed);
        segment.pool_bytes.store(i64::MAX, Relaxed);
        segment.count(0, Counter::PagesOut, 1 << 40);
    });
    load::wait_to_go_on();
}

/// Ends a run that is idle or not.
pub fn end(mut run: Run, is_idle: bool) {
    if !is_idle {
        run.go_on();
        run.wait_for("ready");
    }
    run.go_on();
    run.finish();
}

impl Host {
    /// A run with a pool limit above the host's.
    fn greedy(&self, part: &str, tenant: &str) -> Run {
        let flags = ["--far", "128M", "--pool", "1G", "--tenant", tenant];
        self.run(part, &flags)
    }

    fn grant(&self, tenant: &str) -> Option<u64> {
        self.limits(tenant)["pool_grant_bytes"].as_u64()
    }

    /// Waits until both grants are as wanted, checking their sum meanwhile.
    fn wait_for_grants(&self, names: [&str; 2], most: u64, want: impl Fn(u64, u64) -> bool) {
        self.wait_for_parts("pool_grant_bytes", names, most, want);
    }

    /// Like [`Host::wait_for_grants`], for the grants of this name.
    pub fn wait_for_parts(
        &self,
        what: &str,
        names: [&str; 2],
        most: u64,
        want: impl Fn(u64, u64) -> bool,
    ) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let part = |i: usize| self.limits(names[i])[what].as_u64();
            let look = |i: usize| part(i).expect("it is granted a part");
            // Between the two reads of one grant, the other may rise by what the first loses.
            let (before, other, after) = (look(0), look(1), look(0));
            let sum = before.min(after) + other;
            assert!(sum <= most, "{before} {other} {after}");
            if want(after, other) {
                return;
            }
            assert!(Instant::now() < until, "{after} {other}");
            // Each look starts three commands.
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn slabs_go_to_who_swaps_and_floors_hold() {
    let mut host = Host::new();
    let flags = ["--pool", "128M"];
    let mut agent = host.agent(&flags);
    let mut first = host.greedy("swaps", "first");
    first.wait_for("ready");
    // Alone, it has everything except the part kept for others.
    assert_eq!(host.grant("first"), Some(124 * MIB));
    assert_eq!(host.limits("first")["pool_bytes"], 1024 * MIB);
    let second = host.greedy("swaps", "second");
    second.wait_for("ready");
    let both = ["first", "second"];
    let near = |a: u64, b: u64| a.abs_diff(b) <= 2 * MIB;
    host.wait_for_grants(both, 128 * MIB, |a, b| {
        near(a, 62 * MIB) && near(b, 62 * MIB)
    });
    // One becomes idle and keeps its floor, an eighth.
    first.go_on();
    first.wait_for("ready");
    host.wait_for_grants(both, 128 * MIB, |a, b| a == 16 * MIB && b == 108 * MIB);
    // A changed ceiling takes effect at once.
    let set = |change: &str, want: Option<i32>| {
        let (code, said) = host.ask(&["set", "second", change]);
        assert_eq!(code, want, "{said}");
        said
    };
    set("pool=21M", Some(0));
    assert_eq!(host.grant("second"), Some(21 * MIB));
    assert_eq!(host.limits("second")["pool_bytes"], 21 * MIB);
    set("pool=1G", Some(0));
    host.wait_for_grants(both, 128 * MIB, |a, b| a == 16 * MIB && b == 108 * MIB);
    // The next agent continues with the same grants.
    agent.kill();
    let mut next = host.agent(&flags);
    wait_served(&[&first, &second]);
    host.wait_for_grants(both, 128 * MIB, |a, b| a == 16 * MIB && b == 108 * MIB);
    // A tenant that leaves frees all that it had.
    end(second, false);
    let third = host.greedy("swaps", "third");
    third.wait_for("ready");
    let both = ["first", "third"];
    host.wait_for_grants(both, 128 * MIB, |a, b| a == 16 * MIB && b == 108 * MIB);
    // Without a limit each has what it requested.
    let free = host.agent(&["--replace"]);
    assert_eq!(next.end().code(), Some(0), "{}", next.said());
    assert_eq!((host.grant("first"), host.grant("third")), (None, None));
    assert_eq!(host.limits("third")["pool_bytes"], 1024 * MIB);
    end(first, true);
    end(third, false);
    assert_eq!(free.said().lines().count(), 1, "{}", free.said());
}

#[test]
fn a_tenant_that_writes_its_own_bound_is_named_and_gains_nothing() {
    let mut host = Host::new();
    let agent = host.agent(&["--pool", "128M"]);
    let liar = host.greedy("lies", "liar");
    liar.wait_for("ready");
    let honest = host.greedy("swaps", "honest");
    honest.wait_for("ready");
    let near = |a: u64, b: u64| a.abs_diff(b) <= 2 * MIB;
    host.wait_for_grants(["liar", "honest"], 128 * MIB, |a, b| {
        near(a, 62 * MIB) && near(b, 62 * MIB)
    });
    agent.wait_for("has more in its pool than it was granted");
    let said = agent.said();
    let named = "tenant=liar user=";
    assert_eq!(said.matches("the limit on its pool").count(), 1, "{said}");
    assert_eq!(said.matches(named).count(), 2, "{said}");
    assert!(!said.contains("tenant=honest"), "{said}");
    end(liar, false);
    end(honest, false);
}

#[test]
fn floors_are_the_operators_to_give() {
    let mut host = Host::new();
    let file = host.dir.path().join("canvas.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let refused = |host: &mut Host, flags: &[&str], want: &str| {
        let mut agent = host.begin(flags);
        assert_eq!(agent.end().code(), Some(2), "{}", agent.said());
        assert!(agent.said().contains(want), "{}", agent.said());
    };
    refused(&mut host, &["--pool", "31M"], "write 32M or more");
    write(
        "[agent]\npool = \"64M\"\n[tenant.a]\npool_floor = \"32M\"\n[tenant.b]\npool_floor = \"17M\"\n",
    );
    refused(
        &mut host,
        &config,
        "come to 50M, which is more than three quarters",
    );
    write("[agent]\npool = \"64M\"\n[tenant.a]\npool_floor = \"1K\"\n");
    refused(
        &mut host,
        &config,
        "4: [tenant.a] pool_floor: it is too small",
    );
    write("[agent]\npool = \"64M\"\n[tenant.a]\npool_floor = \"32M\"\nweight = 1\n");
    let _agent = host.agent(&config);
    let runs = ["a", "b"].map(|name| host.greedy("swaps", name));
    for run in &runs {
        run.wait_for("ready");
    }
    // A hundredth of the weight, and half of the pool.
    host.wait_for_grants(["a", "b"], 64 * MIB, |a, b| a == 32 * MIB && b == 30 * MIB);
    for run in runs {
        end(run, false);
    }
}
