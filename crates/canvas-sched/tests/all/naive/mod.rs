//! A scheduler that recomputes everything from plain lists: the oracle of `model.rs`. It has the rules and none of the
//! data structures.

use canvas_sched::{
    ALONE_NS, CREDIT_BYTES, CREDIT_NS, Class, DEBT_BYTES, SWAP_OUT_PACE, SWAP_OUT_PACE_PRESSED,
    SWAP_OUT_PRESSED, burst_bytes,
};

pub const BYTE: u128 = 1 << 20;

/// A request that waits; the oldest first.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub tenant: u64,
    pub link: usize,
    pub class: Class,
    pub bytes: u32,
    pub tag: u64,
    pub posted: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum FlowState {
    Idle,
    Ready(u128, u64),
    Held(u64, u64),
}

#[derive(Debug)]
struct Flow {
    tenant: u64,
    link: usize,
    state: FlowState,
    finish: u128,
    owed: u64,
    lead: i64,
    dropped: bool,
}

#[derive(Debug)]
struct Limit {
    rate: Option<u64>,
    sends: Vec<(u64, u64)>,
}

impl Limit {
    /// By definition: in no interval that begins with a send more than rate and burst.
    fn due(&self, bytes: u32, now: u64) -> u64 {
        let Some(rate) = self.rate else { return now };
        let (mut sum, mut due) = (u128::from(bytes), now);
        for (at, sent) in self.sends.iter().rev() {
            sum += u128::from(*sent);
            let over = sum.saturating_sub(u128::from(burst_bytes(rate)));
            let wait = (over * 1_000_000_000).div_ceil(u128::from(rate)) as u64;
            if over > 0 {
                due = due.max(at + wait);
            }
        }
        due
    }
}

#[derive(Debug)]
struct Tenant {
    id: u64,
    weight: u32,
    limits: [Limit; 2],
}

#[derive(Debug, PartialEq)]
pub enum Act {
    Send(u64, Class),
    Drop(u64),
}

#[derive(Debug)]
pub struct Naive {
    window: u64,
    tenants: Vec<Tenant>,
    flows: Vec<Flow>,
    pub waiting: Vec<Waiting>,
    pub under_way: Vec<Waiting>,
    clocks: Vec<u128>,
    finishes: Vec<u128>,
    /// Bytes a second of each link, measured elsewhere.
    pub rates: Vec<u64>,
    /// The last user of each link, and since when it was the only one.
    used: Vec<(Option<u64>, u64)>,
    turn: usize,
    order: u64,
}

impl Naive {
    pub fn new(links: usize, window: u64) -> Naive {
        Naive {
            window,
            tenants: Vec::new(),
            flows: Vec::new(),
            waiting: Vec::new(),
            under_way: Vec::new(),
            clocks: vec![0; links],
            finishes: vec![0; links],
            rates: vec![0; links],
            used: vec![(None, 0); links],
            turn: 0,
            order: 0,
        }
    }

    pub fn add(&mut self, id: u64, weight: u32, reads: Option<u64>, writes: Option<u64>) {
        let limit = |rate| Limit {
            rate,
            sends: Vec::new(),
        };
        self.tenants.push(Tenant {
            id,
            weight,
            limits: [limit(reads), limit(writes)],
        });
        for link in 0..self.clocks.len() {
            let state = FlowState::Idle;
            self.flows.push(Flow {
                tenant: id,
                link,
                state,
                finish: 0,
                owed: 0,
                lead: 0,
                dropped: false,
            });
        }
    }

    pub fn set_weight(&mut self, id: u64, weight: u32) {
        self.tenants.iter_mut().find(|t| t.id == id).unwrap().weight = weight;
        for f in 0..self.flows.len() {
            if self.flows[f].tenant == id && matches!(self.flows[f].state, FlowState::Held(..)) {
                self.ready(f);
            }
        }
    }

    /// Tags of waiting requests, and of those under way.
    pub fn remove(&mut self, id: u64) -> [Vec<u64>; 2] {
        self.tenants.retain(|t| t.id != id);
        self.flows.retain(|f| f.tenant != id);
        [&mut self.waiting, &mut self.under_way].map(|all| {
            let theirs = all.extract_if(.., |w| w.tenant == id);
            theirs.map(|w| w.tag).collect()
        })
    }

    fn of(&self, f: usize, class: Class) -> impl Iterator<Item = &Waiting> {
        let flow = &self.flows[f];
        let mine =
            move |w: &&Waiting| w.tenant == flow.tenant && w.link == flow.link && w.class == class;
        self.waiting.iter().filter(mine)
    }

    fn flow(&self, tenant: u64, link: usize) -> usize {
        self.flows
            .iter()
            .position(|f| f.tenant == tenant && f.link == link)
            .unwrap()
    }

    fn tenant(&self, id: u64) -> &Tenant {
        self.tenants.iter().find(|t| t.id == id).unwrap()
    }

    fn ready(&mut self, f: usize) {
        let link = self.flows[f].link;
        let nobody = !self
            .flows
            .iter()
            .any(|g| g.link == link && matches!(g.state, FlowState::Ready(..)));
        if nobody && self.busy(link) == 0 {
            self.clocks[link] = self.clocks[link].max(self.finishes[link]);
        }
        self.order += 1;
        let start = self.flows[f].finish.max(self.earliest(f));
        self.flows[f].state = FlowState::Ready(start, self.order);
    }

    /// The earliest turn of a flow.
    fn earliest(&self, f: usize) -> u128 {
        let flow = &self.flows[f];
        let weight = u128::from(self.tenant(flow.tenant).weight);
        let others = self.flows.iter().enumerate().filter(|(g, other)| {
            *g != f && other.link == flow.link && matches!(other.state, FlowState::Ready(..))
        });
        let others: u128 = others
            .map(|(_, other)| u128::from(self.tenant(other.tenant).weight))
            .sum();
        let share = self.moves(flow.link, CREDIT_NS) * weight / (others + weight);
        let credit = share.max(CREDIT_BYTES.into()) * BYTE / weight;
        self.clocks[flow.link].saturating_sub(credit)
    }

    /// What a link moves in this time.
    fn moves(&self, link: usize, ns: u64) -> u128 {
        u128::from(self.rates[link]) * u128::from(ns) / 1_000_000_000
    }

    /// Bytes moved without a request. Returns how far it is ahead, when others wait.
    pub fn charge(&mut self, tenant: u64, link: usize, bytes: u64) -> Option<u64> {
        let (f, weight) = (self.flow(tenant, link), self.tenant(tenant).weight);
        let clock = self.clocks[link];
        let moved = u128::from(bytes) * BYTE / u128::from(weight);
        let finish = self.flows[f].finish.max(self.earliest(f)) + moved;
        self.flows[f].finish = finish;
        self.finishes[link] = self.finishes[link].max(finish);
        if bytes > 0 {
            self.used[link].0 = Some(tenant);
        }
        if bytes > 0 && matches!(self.flows[f].state, FlowState::Ready(..)) {
            self.order += 1;
            self.flows[f].state = FlowState::Ready(finish, self.order);
        }
        let waits = |(g, flow): (usize, &Flow)| {
            g != f && flow.link == link && matches!(flow.state, FlowState::Ready(..))
        };
        let others = self.flows.iter().enumerate().any(waits);
        others.then(|| (finish.saturating_sub(clock) * u128::from(weight) / BYTE) as u64)
    }

    fn busy(&self, link: usize) -> u64 {
        self.under_way
            .iter()
            .filter(|w| w.link == link)
            .map(|w| u64::from(w.bytes))
            .sum()
    }

    pub fn submit(&mut self, w: Waiting) {
        let f = self.flow(w.tenant, w.link);
        let first = self.of(f, w.class).next().is_none();
        self.waiting.push(w);
        match self.flows[f].state {
            FlowState::Idle => self.ready(f),
            FlowState::Held(..) if first => self.ready(f),
            _ => {}
        }
    }

    /// Moves it before the others of its queue.
    pub fn submit_rest(&mut self, w: Waiting) {
        let f = self.flow(w.tenant, w.link);
        let alike = |v: &Waiting| (v.tenant, v.link, v.class) == (w.tenant, w.link, w.class);
        let at = self.waiting.iter().position(alike);
        self.waiting.insert(at.unwrap_or(self.waiting.len()), w);
        if !matches!(self.flows[f].state, FlowState::Ready(..)) {
            self.ready(f);
        }
    }

    /// True when it was a waiting prefetch.
    pub fn escalate(&mut self, tag: u64) -> bool {
        let at = self
            .waiting
            .iter()
            .position(|w| w.tag == tag && w.class == Class::Prefetch);
        let Some(at) = at else { return false };
        let mut w = self.waiting.remove(at);
        w.class = Class::Demand;
        let f = self.flow(w.tenant, w.link);
        self.waiting.push(w);
        self.settle(f);
        if matches!(self.flows[f].state, FlowState::Held(..)) {
            self.ready(f);
        }
        true
    }

    pub fn done(&mut self, tag: u64) {
        self.under_way.retain(|w| w.tag != tag);
    }

    fn settle(&mut self, f: usize) {
        let none = |class| self.of(f, class).next().is_none();
        let (no_out, no_ahead) = (none(Class::SwapOut), none(Class::Prefetch));
        if no_out {
            self.flows[f].owed = 0;
        }
        if no_out || no_ahead {
            self.flows[f].lead = 0;
        }
    }

    /// Whether something waits that could go on a link with room.
    pub fn could_send(&self, now: u64) -> bool {
        self.flows.iter().enumerate().any(|(f, flow)| {
            let first = |class| self.of(f, class).next().map(|w| w.bytes);
            let limits = &self.tenant(flow.tenant).limits;
            let read = first(Class::Demand).or(first(Class::Prefetch));
            let reads = read.is_some_and(|b| limits[0].due(b, now) <= now);
            let writes = first(Class::SwapOut).is_some_and(|b| limits[1].due(b, now) <= now);
            self.busy(flow.link) < self.window && (reads || writes)
        })
    }

    /// `late(request, bytes of demands ahead, weight, weights that are ready)` judges a prefetch.
    pub fn next(
        &mut self,
        now: u64,
        late: impl Fn(&Waiting, u64, u32, u64) -> bool,
    ) -> Option<Act> {
        let mut due: Vec<(u64, u64, usize)> = Vec::new();
        for (f, flow) in self.flows.iter().enumerate() {
            if let FlowState::Held(at, order) = flow.state
                && at <= now
            {
                due.push((at, order, f));
            }
        }
        due.sort();
        due.into_iter().for_each(|(_, _, f)| self.ready(f));
        let n = self.clocks.len();
        for k in 0..n {
            let link = (self.turn + k) % n;
            if let Some(act) = self.next_of(link, now, &late) {
                self.turn = (link + 1) % n;
                return Some(act);
            }
        }
        None
    }

    fn next_of(
        &mut self,
        link: usize,
        now: u64,
        late: &impl Fn(&Waiting, u64, u32, u64) -> bool,
    ) -> Option<Act> {
        while self.busy(link) < self.window {
            let ready = self
                .flows
                .iter()
                .enumerate()
                .filter_map(|(f, flow)| match flow.state {
                    FlowState::Ready(start, order) if flow.link == link => Some((start, order, f)),
                    _ => None,
                });
            let (start, _, f) = ready.min()?;
            let first = |class| self.of(f, class).next().cloned();
            let (demand, ahead, out) = (
                first(Class::Demand),
                first(Class::Prefetch),
                first(Class::SwapOut),
            );
            let tenant = self.tenant(self.flows[f].tenant);
            if let Some(w) = &ahead
                && !(self.flows[f].dropped && demand.is_some())
            {
                let before = self.of(f, Class::Demand).map(|w| u64::from(w.bytes)).sum();
                let weights = self
                    .flows
                    .iter()
                    .filter(|g| g.link == link && matches!(g.state, FlowState::Ready(..)));
                let weights = weights
                    .map(|g| u64::from(self.tenant(g.tenant).weight))
                    .sum();
                if late(w, before, tenant.weight, weights) {
                    let tag = w.tag;
                    self.waiting.retain(|w| w.tag != tag);
                    self.flows[f].dropped = true;
                    self.after(f, None);
                    return Some(Act::Drop(tag));
                }
            }
            let read = demand.clone().or(ahead);
            let read_due = read.as_ref().map(|w| tenant.limits[0].due(w.bytes, now));
            let out_due = out.as_ref().map(|w| tenant.limits[1].due(w.bytes, now));
            let read_goes = read_due.is_some_and(|d| d <= now);
            let out_goes = out_due.is_some_and(|d| d <= now);
            let flow = &self.flows[f];
            let pressed = self.of(f, Class::SwapOut).count() >= SWAP_OUT_PRESSED as usize;
            let pace = if pressed {
                SWAP_OUT_PACE_PRESSED
            } else {
                SWAP_OUT_PACE
            };
            let out_turn = match (&demand, &out) {
                (Some(_), Some(w)) => flow.owed >= pace * u64::from(w.bytes),
                _ => flow.lead > 0,
            };
            let w = match (read_goes, out_goes) {
                (true, true) if out_turn => out.unwrap(),
                (true, _) => read.unwrap(),
                (false, true) => out.unwrap(),
                (false, false) => {
                    let due = read_due.into_iter().chain(out_due).min().unwrap();
                    self.order += 1;
                    self.flows[f].state = FlowState::Held(due, self.order);
                    continue;
                }
            };
            self.sent(f, &w, start, now);
            return Some(Act::Send(w.tag, w.class));
        }
        None
    }

    fn sent(&mut self, f: usize, w: &Waiting, start: u128, now: u64) {
        self.waiting.retain(|other| other.tag != w.tag);
        let tenant = self.tenants.iter_mut().find(|t| t.id == w.tenant).unwrap();
        let limit = &mut tenant.limits[(w.class == Class::SwapOut) as usize];
        limit.sends.push((now, u64::from(w.bytes)));
        let weight = tenant.weight;
        let finish = start + u128::from(w.bytes) * BYTE / u128::from(weight);
        let flow = &mut self.flows[f];
        flow.finish = finish;
        flow.dropped = false;
        match w.class {
            Class::Demand => flow.owed += u64::from(w.bytes),
            Class::Prefetch => flow.lead += i64::from(w.bytes),
            Class::SwapOut => {
                flow.owed = 0;
                flow.lead -= i64::from(w.bytes);
            }
        }
        let (clock, weight) = (self.clocks[w.link], u128::from(weight));
        let time = |bytes: u64, weight: u128| u128::from(bytes) * BYTE / weight;
        let used = &mut self.used[w.link];
        if used.0 != Some(w.tenant) {
            *used = (Some(w.tenant), now);
        }
        let shares = now - used.1 < ALONE_NS;
        self.clocks[w.link] = if shares && start > clock + time(CREDIT_BYTES, weight) {
            let all: u128 = self.tenants.iter().map(|t| u128::from(t.weight)).sum();
            let slow = clock + time(w.bytes.into(), all);
            let others = self.moves(w.link, CREDIT_NS) * (all - weight) / all;
            let debt = others.max(DEBT_BYTES.into());
            slow.max(finish.saturating_sub(time(debt as u64, weight)))
        } else {
            clock.max(start)
        };
        self.finishes[w.link] = self.finishes[w.link].max(finish);
        self.under_way.push(w.clone());
        self.after(f, Some(finish));
    }

    fn after(&mut self, f: usize, finish: Option<u128>) {
        self.settle(f);
        let empty = Class::ALL.iter().all(|c| self.of(f, *c).next().is_none());
        if empty {
            self.flows[f].state = FlowState::Idle;
        } else if let Some(finish) = finish {
            self.order += 1;
            self.flows[f].state = FlowState::Ready(finish, self.order);
        }
    }
}
