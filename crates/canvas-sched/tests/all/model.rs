//! The scheduler against a naive one: the same decisions on any sequence of calls, each request exactly once, and every
//! invariant after each call.

use std::collections::{BTreeMap, BTreeSet};

use crate::naive::{Act, Naive, Waiting};
use canvas_sched::{
    Class, Decision, Escalation, LinkConfig, LinkId, Scheduler, TenantConfig, TenantId, Ticket,
};
use proptest::prelude::*;

const LINKS: usize = 3;
const WINDOW: u64 = 96 << 10;
const TENANTS: u64 = 5;
/// Times per byte are whole nanoseconds, so that the model's limits are exactly the scheduler's.
const RATES: [Option<u64>; 4] = [
    None,
    Some(1_000_000),
    Some(100_000_000),
    Some(1_000_000_000),
];

#[derive(Clone, Debug)]
enum Op {
    Submit {
        tenant: u64,
        class: u8,
        link: usize,
        bytes: u32,
        rest: bool,
    },
    Next,
    Drain,
    Done(prop::sample::Index),
    Escalate(prop::sample::Index),
    Stale(prop::sample::Index),
    Wait(u64),
    Weight(u64, u32),
    Leave(u64),
    Join(u64, u32, usize, usize),
    Used(u64, u64),
    Charge(u64, usize, u64),
    Timeliness(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![Just(4096u32), Just(32 << 10), 1..=65536u32];
    prop_oneof![
        20 => (0..TENANTS, 0..3u8, 0..LINKS, size, prop::bool::weighted(0.2))
            .prop_map(|(tenant, class, link, bytes, rest)| Op::Submit { tenant, class, link, bytes, rest }),
        8 => Just(Op::Next),
        3 => Just(Op::Drain),
        10 => any::<prop::sample::Index>().prop_map(Op::Done),
        3 => any::<prop::sample::Index>().prop_map(Op::Escalate),
        1 => any::<prop::sample::Index>().prop_map(Op::Stale),
        5 => prop_oneof![0..2000u64, 0..3_000_000u64].prop_map(Op::Wait),
        1 => (0..TENANTS, 1..=1000u32).prop_map(|(t, w)| Op::Weight(t, w)),
        1 => (0..TENANTS).prop_map(Op::Leave),
        2 => (0..TENANTS, 1..=1000u32, 0..RATES.len(), 0..RATES.len())
            .prop_map(|(t, w, i, o)| Op::Join(t, w, i, o)),
        1 => (0..TENANTS, 1000..2_000_000u64).prop_map(|(t, ns)| Op::Used(t, ns)),
        2 => (0..TENANTS, 0..LINKS, prop_oneof![Just(0u64), 1..500_000u64])
            .prop_map(|(t, link, bytes)| Op::Charge(t, link, bytes)),
        1 => prop::bool::weighted(0.7).prop_map(Op::Timeliness),
    ]
}

struct Both {
    real: Scheduler,
    naive: Naive,
    links: Vec<LinkId>,
    now: u64,
    timeliness: bool,
    tenants: BTreeMap<u64, TenantConfig>,
    /// Tickets of unfinished requests, by tag.
    open: BTreeMap<u64, Ticket>,
    under_way: BTreeSet<u64>,
    over: Vec<Ticket>,
    submitted: u64,
    ended: BTreeSet<u64>,
}

impl Both {
    fn new() -> Both {
        let mut real = Scheduler::new();
        let fixed = LinkConfig {
            window_bytes_min: WINDOW,
            window_bytes_max: WINDOW,
            ..LinkConfig::default()
        };
        let links = (0..LINKS).map(|_| real.add_link(fixed).unwrap()).collect();
        Both {
            real,
            naive: Naive::new(LINKS, WINDOW),
            links,
            now: 0,
            timeliness: true,
            tenants: BTreeMap::new(),
            open: BTreeMap::new(),
            under_way: BTreeSet::new(),
            over: Vec::new(),
            submitted: 0,
            ended: BTreeSet::new(),
        }
    }

    fn tell_rates(&mut self) {
        let rate = |link| self.real.link_stats(link).unwrap().rate_bytes_s;
        self.naive.rates = self.links.iter().map(|link| rate(*link)).collect();
    }

    /// What the model does with the estimates, which are measured elsewhere.
    fn next_naive(&mut self) -> Option<Act> {
        self.tell_rates();
        let (real, links, now) = (&self.real, &self.links, self.now);
        let timeliness = self.timeliness;
        self.naive.next(now, |w, before, weight, weights| {
            if !timeliness {
                return false;
            }
            let stats = real.stats(TenantId(w.tenant)).unwrap();
            let Some(threshold) = stats.timeliness_ns else {
                return false;
            };
            let rate = real.link_stats(links[w.link]).unwrap().rate_bytes_s;
            let ahead = if rate == 0 {
                0
            } else {
                u128::from(before) * 1_000_000_000 * u128::from(weights)
                    / (u128::from(rate) * u128::from(weight))
            };
            let (waited, takes) = (now - w.posted, real.arrival_ns(links[w.link], w.bytes));
            let queued = waited + ahead as u64;
            queued > takes && queued + takes > threshold
        })
    }

    /// One decision of both. False: nothing to do.
    fn next(&mut self) -> bool {
        let could = self.naive.could_send(self.now);
        let expected = self.next_naive();
        let got = self.real.next(self.now);
        assert!(
            !could || got.is_some(),
            "link has room, somebody may go: {:?}",
            self.naive
        );
        let act = got.map(|d| match d {
            Decision::Send(r) => Act::Send(r.tag, r.class),
            Decision::Drop(r) => Act::Drop(r.tag),
        });
        assert_eq!(act, expected);
        match act {
            Some(Act::Send(tag, _)) => {
                assert!(self.open.contains_key(&tag) && self.under_way.insert(tag));
            }
            Some(Act::Drop(tag)) => self.end(tag),
            None => return false,
        }
        true
    }

    fn end(&mut self, tag: u64) {
        self.over.push(self.open.remove(&tag).expect("it was open"));
        assert!(self.ended.insert(tag), "{tag} ended twice");
    }

    fn apply(&mut self, op: Op) {
        self.tell_rates();
        match op {
            Op::Submit {
                tenant,
                class,
                link,
                bytes,
                rest,
            } => self.submit(tenant, class, link, bytes, rest),
            Op::Next => {
                self.next();
            }
            Op::Drain => while self.next() {},
            Op::Done(i) if !self.under_way.is_empty() => self.done(i),
            Op::Escalate(i) if !self.open.is_empty() => self.escalate(i),
            Op::Stale(i) if !self.over.is_empty() => {
                let ticket = self.over[i.index(self.over.len())];
                let strays = self.real.strays();
                assert_eq!(self.real.escalate(ticket, self.now), Escalation::Gone);
                assert!(!self.real.done(ticket, self.now));
                assert_eq!(self.real.strays(), strays + 1);
            }
            Op::Wait(ns) => self.now += ns,
            Op::Weight(t, weight) => {
                let Some(config) = self.tenants.get_mut(&t) else {
                    return;
                };
                config.weight = weight;
                self.real
                    .set_tenant(TenantId(t), *config, self.now)
                    .unwrap();
                self.naive.set_weight(t, weight);
            }
            Op::Leave(t) => self.leave(t),
            Op::Join(t, weight, reads, writes) => self.join(t, weight, reads, writes),
            Op::Used(t, ns) => self.real.used_after(TenantId(t), ns, 40),
            Op::Charge(t, link, bytes) => {
                let got = self.real.charge(TenantId(t), self.links[link], bytes);
                let is_there = self.tenants.contains_key(&t);
                let expected = is_there.then(|| self.naive.charge(t, link, bytes));
                assert_eq!(got, expected.flatten());
            }
            Op::Timeliness(on) => {
                self.real.set_timeliness(on);
                self.timeliness = on;
            }
            _ => {}
        }
    }

    /// A tenant submits a request.
    fn submit(&mut self, tenant: u64, class: u8, link: usize, bytes: u32, rest: bool) {
        let class = Class::ALL[class as usize];
        let tag = self.submitted;
        let got = self.real.submit(
            TenantId(tenant),
            class,
            self.links[link],
            bytes,
            tag,
            self.now,
        );
        assert_eq!(got.is_ok(), self.tenants.contains_key(&tenant));
        if let Ok(ticket) = got {
            if rest {
                self.real.put_first(ticket);
            }
            self.submitted += 1;
            self.open.insert(tag, ticket);
            let posted = self.now;
            let w = Waiting {
                tenant,
                link,
                class,
                bytes,
                tag,
                posted,
            };
            if rest {
                self.naive.submit_rest(w);
            } else {
                self.naive.submit(w);
            }
        }
    }

    /// A request under way ends.
    fn done(&mut self, i: prop::sample::Index) {
        let tag = *self
            .under_way
            .iter()
            .nth(i.index(self.under_way.len()))
            .unwrap();
        self.under_way.remove(&tag);
        assert!(self.real.done(self.open[&tag], self.now));
        self.naive.done(tag);
        self.end(tag);
    }

    /// A request becomes urgent.
    fn escalate(&mut self, i: prop::sample::Index) {
        let (tag, ticket) = self.open.iter().nth(i.index(self.open.len())).unwrap();
        let (tag, ticket) = (*tag, *ticket);
        let moved = self.naive.escalate(tag);
        let expected = match moved {
            true => Escalation::Moved,
            false if self.under_way.contains(&tag) => Escalation::UnderWay,
            false => Escalation::Already,
        };
        assert_eq!(self.real.escalate(ticket, self.now), expected);
        assert_ne!(
            self.real.escalate(ticket, self.now),
            Escalation::Moved,
            "twice"
        );
    }

    /// A tenant leaves, with all its requests.
    fn leave(&mut self, t: u64) {
        let gone = self.real.remove_tenant(TenantId(t));
        assert_eq!(gone.is_some(), self.tenants.remove(&t).is_some());
        let Some(gone) = gone else { return };
        let mut tags: Vec<u64> = gone.iter().map(|r| r.tag).collect();
        tags.iter().for_each(|tag| self.end(*tag));
        tags.sort();
        let [mut expected, lost] = self.naive.remove(t);
        expected.sort();
        assert_eq!(tags, expected);
        for tag in lost {
            assert!(self.under_way.remove(&tag));
            self.end(tag);
        }
    }

    /// A tenant comes.
    fn join(&mut self, t: u64, weight: u32, reads: usize, writes: usize) {
        let (reads, writes) = (RATES[reads], RATES[writes]);
        let config = TenantConfig {
            weight,
            swap_in_limit: reads,
            swap_out_limit: writes,
        };
        let added = self.real.add_tenant(TenantId(t), config).is_ok();
        assert_eq!(added, !self.tenants.contains_key(&t));
        if added {
            self.tenants.insert(t, config);
            self.naive.add(t, weight, reads, writes);
        }
    }

    /// Everything is sent: nothing is left.
    fn finish(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "it comes to an end");
            if self.next() {
                continue;
            }
            if let Some(tag) = self.under_way.pop_first() {
                assert!(self.real.done(self.open[&tag], self.now));
                self.naive.done(tag);
                self.end(tag);
            } else if let Some(due) = self.real.next_due() {
                assert!(due > self.now);
                self.now = due;
            } else {
                break;
            }
        }
        self.real.check();
        assert!(self.open.is_empty() && self.naive.waiting.is_empty());
        assert_eq!(self.ended.len() as u64, self.submitted, "each exactly once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]
    #[test]
    fn as_the_oracle(ops in prop::collection::vec(op(), 1..250)) {
        let mut both = Both::new();
        for t in 0..TENANTS {
            both.apply(Op::Join(t, 1 + 200 * t as u32, t as usize % 2, t as usize % 3));
        }
        for op in ops {
            both.apply(op);
            both.real.check();
        }
        both.finish();
    }
}
