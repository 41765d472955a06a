//! A link: its window and its measurements.
//!
//! **How wide the window is.** A link is fully used, without a queue of its own, when the bytes under way are what it
//! moves in one round trip (as in BBR and Vegas) plus the request that it is moving. The window is the usual one of the
//! highest recent delivery rates times the shortest recent round trip, without the time that this request's bytes took,
//! plus most of an extent. Requests are started while *less* than the window is under way, so the bytes under way are
//! less than window and request together, and a new request waits at the link for one to two extents. A gain of 33/32
//! compensates small variations of round trips. A rate increase is found by a gain of 5/4 for two round trips in
//! [`STEADY_ROUNDS`], as in BBR, repeated while it raises the rate: so rarely that requests which wait longer because
//! of it are less than 1 %. On a slow link the window is one and a half times the largest recent request: one is being
//! moved while the next is on its way.
//!
//! **How large requests should be.** A new request on a slow link waits as long as those under way take: 2.6 ms for two
//! extents of 32 KiB at 200 Mbit/s, ten times what a page alone takes. So a divisible request should be cut into pieces
//! of [`PIECE_NS`] ([`LinkStats::piece_bytes`]).
//!
//! * Rates are measured as in BBR: bytes delivered between a request's start (from the last delivery before it on) and
//!   its end, over that time, or over the time in which they were sent when that is longer, because what had arrived
//!   when the agent came back from a pause was not delivered at once. A request with nothing waiting behind it says
//!   nothing about the link's capacity, and counts only when it is faster than the known rate.
//! * A round trip measured behind our own window is longer than the link's. So when none was as short as the known one
//!   for [`RTT_MEMORY_NS`], the link is drained, and one request goes alone.
//! * Until the link was full once the window is at least [`WINDOW_BYTES_START`].

use canvas_types::controller::ewma;

use crate::TenantId;
use crate::heap::IndexHeap;

/// Window over rate times round trip, in 32nds: normally, and while probing for a higher rate.
const GAIN_32NDS: u128 = 33;
const GAIN_UP_32NDS: u128 = 40;
/// Round trips between two probes for a higher rate.
const STEADY_ROUNDS: u32 = 512;
/// Round trips of a probe: one until more is under way, one to see the result.
const UP_ROUNDS: u32 = 2;
/// The shortest round trip for which the window is computed, unless configured. Hosts answer in bursts: threads of
/// peers and of programs wait this long for processors and wake-ups, which the shortest round trip does not show. With
/// the shortest alone (40 us) a stream over loopback lost a sixth of its speed.
pub const ROUND_TRIP_NS_MIN: u64 = 150_000;
/// Allowance for the request being moved, in 32nds of the largest recent one: less than a whole one, because with a
/// whole one there would often be one too many, and the link is used to 95 % all the same.
const MOVING_32NDS: u64 = 29;
/// The smallest window unless configured: a page and a half, so that two are under way. It is at least one and a half
/// times the largest recent request, so that two of them are under way.
pub const WINDOW_BYTES_MIN: u64 = 6 << 10;
/// A largest request is remembered for this time, and up to twice as long.
const LARGEST_MEMORY_NS: u64 = 1_000_000_000;
/// Number of intervals whose highest rates are kept: a highest rate may be that of a burst, which traffic shapers allow
/// after each pause. Piece sizes use the least of them, the window the median of the last three: with the least it
/// would find a faster link too late, and with the highest it was too wide by half for a tenth of the time, at 200
/// Mbit/s.
const STRETCHES: usize = 4;
/// How long a link takes to move one piece of a divisible request.
pub const PIECE_NS: u64 = 80_000;
/// The smallest piece, a page, and the largest, an extent.
pub const PIECE_BYTES_MIN: u32 = 4 << 10;
/// The largest piece of a request, in bytes; the smallest is [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_MAX: u32 = 32 << 10;
/// The largest window: 100 Gbit/s at 1 ms.
pub const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// The window before any measurement: eight extents.
pub const WINDOW_BYTES_START: u64 = 256 << 10;
/// A shortest round trip is valid for this time, and up to twice as long.
const RTT_MEMORY_NS: u64 = 5_000_000_000;
/// A highest rate is valid for this many round trips, and up to twice as many: with fewer, a pause of the agent would
/// look like a slower link.
const RATE_MEMORY_RTTS: u64 = 32;
/// Least time for which a highest rate is valid.
const RATE_MEMORY_NS_MIN: u64 = 20_000_000;

/// Configuration of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Smallest window in bytes; at least 1.
    pub window_bytes_min: u64,
    /// Largest window in bytes. When it equals the smallest, the window does not adapt.
    pub window_bytes_max: u64,
    /// The shortest round trip for which the window is computed.
    pub round_trip_ns_min: u64,
    /// Smallest and largest piece of a divisible request, in bytes.
    pub piece_bytes: (u32, u32),
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig {
            window_bytes_min: WINDOW_BYTES_MIN,
            window_bytes_max: WINDOW_BYTES_MAX,
            round_trip_ns_min: ROUND_TRIP_NS_MIN,
            piece_bytes: (PIECE_BYTES_MIN, PIECE_BYTES_MAX),
        }
    }
}

/// A link's statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkStats {
    /// The window: bytes that may be under way.
    pub window_bytes: u64,
    /// Bytes under way.
    pub under_way_bytes: u64,
    /// Bytes delivered since the link was added.
    pub delivered_bytes: u64,
    /// The highest recent rate, bytes a second; 0 while unknown.
    pub rate_bytes_s: u64,
    /// The shortest recent round trip; 0 while unknown.
    pub rtt_ns_min: u64,
    /// Tenants with requests waiting for it that no limit holds back.
    pub tenants_ready: usize,
    /// Recommended size of pieces of divisible requests.
    pub piece_bytes: u32,
}

/// Recorded when a request is sent, for the estimates.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Mark {
    pub(crate) sent_ns: u64,
    /// When the last delivered request had been sent.
    first_sent_ns: u64,
    delivered: u64,
    delivered_ns: u64,
    /// Nothing waited behind it.
    alone: bool,
}

/// Order of a flow: virtual start, then arrival.
pub(crate) type Turn = (u128, u64);

#[derive(Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    /// Flows (by tenant index) with something to send.
    pub(crate) ready: IndexHeap<Turn>,
    /// The sum of their weights.
    pub(crate) ready_weight: u64,
    /// Virtual start of the last sent request.
    pub(crate) clock: u128,
    /// The largest virtual finish of all.
    pub(crate) finish_max: u128,
    pub(crate) under_way: u64,
    /// The tenant whose bytes went over it last, and since when only its bytes did.
    last: Option<TenantId>,
    alone_since_ns: u64,
    window: u64,
    delivered: u64,
    delivered_ns: u64,
    /// When the last delivered request had been sent.
    first_sent_ns: u64,
    /// Highest rate of this interval and the previous one, bytes a second.
    rates: [u64; 2],
    rates_since_ns: u64,
    /// Shortest round trip of this interval and the previous one, and its request's bytes.
    rtts: [(u64, u32); 2],
    rtts_since_ns: u64,
    /// Largest request of this interval and the previous one.
    largest: [u32; 2],
    largest_since_ns: u64,
    /// Highest rates of the last complete intervals; 0: none.
    before: [u64; STRETCHES],
    stretches: usize,
    /// Round trip without the transfer time of the bytes, smoothed.
    base_ns: u64,
    was_full: bool,
    probe: Probe,
    /// While probing: the rate before the probe.
    up_from: Option<u64>,
    /// Round trips since the probe started or ended.
    rounds: u32,
    /// Bytes delivered when the round trip began.
    round_from: u64,
}

/// Measuring the shortest round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    Off,
    /// Until nothing is under way.
    Draining,
    /// Until the one request that was sent then has ended.
    Alone,
}

impl Link {
    pub(crate) fn new(config: LinkConfig) -> Link {
        let min = config.window_bytes_min.max(1);
        let config = LinkConfig {
            window_bytes_min: min,
            window_bytes_max: config.window_bytes_max.max(min),
            ..config
        };
        Link {
            config,
            ready: IndexHeap::new(),
            ready_weight: 0,
            clock: 0,
            finish_max: 0,
            under_way: 0,
            last: None,
            alone_since_ns: 0,
            window: WINDOW_BYTES_START.clamp(min, config.window_bytes_max),
            delivered: 0,
            delivered_ns: 0,
            first_sent_ns: 0,
            rates: [0; 2],
            rates_since_ns: 0,
            rtts: [(u64::MAX, 0); 2],
            rtts_since_ns: 0,
            largest: [0; 2],
            largest_since_ns: 0,
            before: [0; STRETCHES],
            stretches: 0,
            base_ns: 0,
            was_full: false,
            probe: Probe::Off,
            up_from: Some(0),
            rounds: 0,
            round_from: 0,
        }
    }

    /// Records that a tenant's bytes go over it; returns for how long only this tenant's have.
    pub(crate) fn used_by(&mut self, id: TenantId, now_ns: u64) -> u64 {
        if self.last.replace(id) != Some(id) {
            self.alone_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.alone_since_ns)
    }

    /// Records that a tenant's bytes went over it without having been sent here, at an unknown time.
    pub(crate) fn was_used_by(&mut self, id: TenantId) {
        self.last = Some(id);
    }

    /// What a flow of weight `weight` out of `weights` may move in `ns`; 0 while the rate is unknown.
    pub(crate) fn share_bytes(&self, ns: u64, weight: u64, weights: u64) -> u64 {
        let all = u128::from(self.rate()) * u128::from(ns) / 1_000_000_000;
        let share = all * u128::from(weight) / u128::from(weights);
        share.min(u128::from(u64::MAX / 4)) as u64
    }

    /// Whether one more request may be started.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way < self.window
    }

    /// Starts a request; the flows that still wait are in `ready`.
    pub(crate) fn send(&mut self, bytes: u32, now_ns: u64) -> Mark {
        if self.under_way == 0 {
            // Time without any request does not count for the link's rate.
            self.delivered_ns = now_ns;
            self.first_sent_ns = now_ns;
        }
        self.under_way += u64::from(bytes);
        if now_ns.saturating_sub(self.largest_since_ns) > LARGEST_MEMORY_NS {
            self.largest = [0, self.largest[0]];
            self.largest_since_ns = now_ns;
        }
        self.largest[0] = self.largest[0].max(bytes);
        Mark {
            sent_ns: now_ns,
            first_sent_ns: self.first_sent_ns,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            alone: self.ready.len() == 0 || self.probe != Probe::Off,
        }
    }

    /// A request has ended.
    pub(crate) fn done(&mut self, bytes: u32, mark: Mark, now_ns: u64) {
        debug_assert!(self.under_way >= u64::from(bytes));
        self.under_way -= u64::from(bytes);
        self.delivered += u64::from(bytes);
        self.delivered_ns = self.delivered_ns.max(now_ns);
        let rtt = now_ns.saturating_sub(mark.sent_ns).max(1);
        self.learn_rtt(rtt, bytes, now_ns);
        self.first_sent_ns = self.first_sent_ns.max(mark.sent_ns);
        let arriving = now_ns.saturating_sub(mark.delivered_ns);
        let took = arriving
            .max(mark.sent_ns.saturating_sub(mark.first_sent_ns))
            .max(1);
        let moved = u128::from(self.delivered - mark.delivered);
        let rate = (moved * 1_000_000_000 / u128::from(took)).min(u128::from(u64::MAX)) as u64;
        self.learn_rate(rate, mark.alone, now_ns);
        let base = rtt.saturating_sub(self.ns(bytes));
        self.base_ns = match self.base_ns {
            0 => base,
            before => ewma::<1, 8>(before, base),
        };
        self.step_probe();
        if mark.delivered >= self.round_from {
            self.round_from = self.delivered;
            self.rounds += 1;
            self.step_gain();
        }
        self.window = self.width();
    }

    /// Removes a request that has not ended and says nothing about the link.
    pub(crate) fn lost(&mut self, bytes: u32) {
        debug_assert!(self.under_way >= u64::from(bytes));
        self.under_way -= u64::from(bytes);
    }

    fn learn_rtt(&mut self, rtt: u64, bytes: u32, now_ns: u64) {
        if now_ns.saturating_sub(self.rtts_since_ns) > RTT_MEMORY_NS {
            // The known round trip was not seen again while the link was in use: measure it.
            if self.beyond(self.rtts[0]) > self.beyond(self.rtts[1])
                && self.window > self.config.window_bytes_min
            {
                self.probe = Probe::Draining;
            }
            self.rtts = [(u64::MAX, 0), self.rtts[0]];
            self.rtts_since_ns = now_ns;
        }
        if self.beyond((rtt, bytes)) < self.beyond(self.rtts[0]) {
            self.rtts[0] = (rtt, bytes);
        }
    }

    fn learn_rate(&mut self, rate: u64, alone: bool, now_ns: u64) {
        if alone && rate <= self.rate() {
            return;
        }
        self.was_full |= !alone;
        let memory = (RATE_MEMORY_RTTS * self.shortest().0).max(RATE_MEMORY_NS_MIN);
        if now_ns.saturating_sub(self.rates_since_ns) > memory {
            self.before[self.stretches % STRETCHES] = self.rates[0];
            self.stretches += 1;
            self.rates = [0, self.rates[0]];
            self.rates_since_ns = now_ns;
        }
        self.rates[0] = self.rates[0].max(rate);
    }

    fn step_probe(&mut self) {
        self.probe = match self.probe {
            Probe::Draining if self.under_way == 0 => Probe::Alone,
            Probe::Draining => Probe::Draining,
            _ => Probe::Off,
        };
    }

    /// After a round trip: starts or ends a probe.
    fn step_gain(&mut self) {
        match self.up_from {
            Some(from) if self.rounds > UP_ROUNDS => {
                let (rate, usual) = (self.rate(), self.usual());
                if rate > from + from / 20 {
                    self.up_from = Some(rate);
                    self.rounds = 0;
                } else if rate <= usual + usual / 20 {
                    self.up_from = None;
                    self.rounds = 0;
                }
                // Otherwise the higher rate has to last until it is the usual one; if it does not, it is soon
                // forgotten.
            }
            None if self.rounds > STEADY_ROUNDS => {
                self.up_from = Some(self.rate());
                self.rounds = 0;
            }
            _ => {}
        }
    }

    fn width(&self) -> u64 {
        let LinkConfig {
            window_bytes_min: min,
            window_bytes_max: max,
            ..
        } = self.config;
        if self.probe != Probe::Off {
            return 1;
        }
        let (rtt, bytes) = self.shortest();
        let rtt = rtt.max(self.config.round_trip_ns_min);
        let (rate, gain) = match self.up_from {
            Some(_) => (self.rate(), GAIN_UP_32NDS),
            None => (self.usual(), GAIN_32NDS),
        };
        let pipe = u128::from(rate) * u128::from(rtt) / 1_000_000_000;
        let largest = u64::from(self.largest[0].max(self.largest[1]));
        let wide = pipe * gain / 32 + u128::from(largest * MOVING_32NDS / 32);
        let wide = wide.saturating_sub(u128::from(bytes)).min(u128::from(max)) as u64;
        let least = if self.was_full {
            largest * 3 / 2
        } else {
            WINDOW_BYTES_START
        };
        wide.max(least.min(max)).max(min)
    }

    /// Recommended size of pieces, in whole KiB; the largest while the rate is unknown.
    fn piece_bytes(&self) -> u32 {
        let (least, most) = self.config.piece_bytes;
        let rate = self.lasting();
        if rate == 0 {
            return most.max(least);
        }
        let bytes = u128::from(rate) * u128::from(PIECE_NS) / 1_000_000_000;
        let bytes = bytes.min(most.into()) as u32;
        bytes.next_multiple_of(1 << 10).min(most).max(least)
    }

    /// The highest lasting rate: the least of the highest ones of several intervals; 0: unknown.
    fn lasting(&self) -> u64 {
        let known = self.before.iter().copied().filter(|rate| *rate > 0);
        known.min().unwrap_or(self.rates[0])
    }

    /// The usual rate: the median of the highest ones of this interval and of the last two.
    fn usual(&self) -> u64 {
        let back = |n: usize| self.before[(self.stretches + STRETCHES - n) % STRETCHES];
        let [now, last, older] = [self.rates[0], back(1), back(2)];
        if older == 0 {
            return self.rate();
        }
        now.min(last).max(now.max(last).min(older))
    }

    /// The highest recent rate, bytes a second.
    fn rate(&self) -> u64 {
        self.rates[0].max(self.rates[1])
    }

    /// A round trip without the transfer time of its bytes, so that requests of all sizes compare.
    fn beyond(&self, (rtt, bytes): (u64, u32)) -> u64 {
        rtt.saturating_sub(self.ns(bytes))
    }

    /// The shortest recent round trip, and its request's bytes; 0 when there was none.
    fn shortest(&self) -> (u64, u32) {
        let [now, before] = self.rtts;
        let shortest = if self.beyond(now) <= self.beyond(before) {
            now
        } else {
            before
        };
        if shortest.0 == u64::MAX {
            (0, 0)
        } else {
            shortest
        }
    }

    /// Transfer time of `bytes` at the link's rate.
    pub(crate) fn ns(&self, bytes: u32) -> u64 {
        u64::from(bytes) * 1_000_000_000 / self.rate().max(1)
    }

    /// How long a request of `bytes` takes when it is sent now; 0 while unknown.
    pub(crate) fn arrival_ns(&self, bytes: u32) -> u64 {
        if self.rate() == 0 {
            return 0;
        }
        self.base_ns + self.ns(bytes)
    }

    /// How long `bytes` wait that a flow of this weight must send first, while the other ready flows take their shares.
    pub(crate) fn ahead_ns(&self, bytes: u64, weight: u32) -> u64 {
        if bytes == 0 || self.rate() == 0 {
            return 0;
        }
        let others = u128::from(self.ready_weight.max(u64::from(weight)));
        let ns = u128::from(bytes) * 1_000_000_000 * others
            / (u128::from(self.rate()) * u128::from(weight));
        ns.min(u128::from(u64::MAX / 4)) as u64
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            window_bytes: self.window,
            under_way_bytes: self.under_way,
            delivered_bytes: self.delivered,
            rate_bytes_s: self.rate(),
            rtt_ns_min: self.shortest().0,
            tenants_ready: self.ready.len(),
            piece_bytes: self.piece_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_is_asked_for_pieces_whatever_its_bursts() {
        let mut link = Link::new(LinkConfig::default());
        link.ready.reserve(1);
        link.ready.put(0, (0, 0));
        assert_eq!(
            link.stats().piece_bytes,
            PIECE_BYTES_MAX,
            "nothing is known"
        );
        let mut now = 0;
        // 25 MB/s, except for eight extents in a row that a shaper lets pass at once after a pause.
        for _ in 0..50 {
            let mut mark = link.send(32 << 10, now);
            for i in 0..64 {
                now += if i < 8 { 30_000 } else { 1_310_720 };
                let next = link.send(32 << 10, now);
                link.done(32 << 10, mark, now);
                mark = next;
            }
            now += 1_310_720;
            link.done(32 << 10, mark, now);
            now += 5_000_000;
        }
        let piece = link.stats().piece_bytes;
        assert!((PIECE_BYTES_MIN..=8 << 10).contains(&piece), "{piece}");
    }

    #[test]
    fn a_burst_leaves_no_queue_at_a_slow_link() {
        let mut link = Link::new(LinkConfig::default());
        link.ready.reserve(1);
        link.ready.put(0, (0, 0));
        let (mut now, mut wide, mut all) = (0, 0, 0);
        for k in 0..20 {
            let mut mark = link.send(4 << 10, now);
            for i in 0..3000 {
                // 25 MB/s, except for what a shaper lets pass at once after a pause.
                now += if i < 20 { 10_000 } else { 163_840 };
                let next = link.send(4 << 10, now);
                link.done(4 << 10, mark, now);
                mark = next;
                if k > 0 {
                    all += 1;
                    wide += u32::from(link.stats().window_bytes > 16 << 10);
                }
            }
            now += 163_840;
            link.done(4 << 10, mark, now);
            now += 5_000_000;
        }
        // Less than a hundredth of the requests would wait for that queue.
        assert!(wide * 100 < all, "{wide} of {all}");
    }

    #[test]
    fn a_link_that_is_asked_for_little_does_not_pass_for_a_slow_one() {
        let mut link = Link::new(LinkConfig::default());
        link.ready.reserve(1);
        link.ready.put(0, (0, 0));
        let mut now = 0;
        for _ in 0..1000 {
            let mark = link.send(32 << 10, now);
            now += 32_768;
            link.done(32 << 10, mark, now);
        }
        let busy = link.stats().rate_bytes_s;
        assert!(busy.abs_diff(1_000_000_000) < 10_000_000, "{busy}");
        link.ready.remove(0);
        for _ in 0..1000 {
            let mark = link.send(512, now);
            now += 1_000_000;
            link.done(512, mark, now);
        }
        assert_eq!(link.stats().rate_bytes_s, busy);
        assert!(link.stats().window_bytes >= WINDOW_BYTES_MIN);
    }
}
