//! Replays access strings and counts the misses of each replacement policy at each amount of local memory.
//!
//! [`run`] gives all policies the same string and the same memory. LRU, FIFO, S3-FIFO, SIEVE and Belady's
//! optimum see every touch; canvas's policy is the pager's own code over a simulated page table ([`ours`])
//! and sees only what the real pager sees. The first touch of a page is not a miss: every policy pays for it
//! alike.

use std::fmt;

pub mod ours;
pub mod policies;
pub mod synthetic;

use canvas_types::Prefetch;

use canvas_core::pager::table::CHUNK_PAGES;
use canvas_core::pager::trace::{
    self, HEADER_BYTES, Header, Kind, RECORD_BYTES, Record, SampleRate,
};
use ours::{Costs, Outcome, Setup};
use policies::{Fifo, Lru, Opt, Policy, S3Fifo, Sieve};

/// Kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// The program touched the page.
    Touch,
    /// The page was discarded; its next touch counts as a first touch.
    Discard,
}

/// One step of an access string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Dense page number; neighbours within a chunk of [`CHUNK_PAGES`] stay neighbours.
    pub page: u32,
    /// Hash of the thread that touched the page.
    pub thread: u16,
    /// What happened to the page.
    pub op: Op,
}

/// An access string: one event per page touched or discarded.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Source of the string, printed as the table's title.
    pub name: String,
    /// Share of pages that the string covers, 0 to 1.
    pub share: f64,
    /// Upper bound of the page numbers (exclusive).
    pub pages: usize,
    /// The events in chronological order.
    pub events: Vec<Event>,
}

/// Why a trace cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// The file is not a trace, or has another format version.
    NotATrace,
    /// The record with this index has a kind that this version does not know.
    UnknownKind(usize),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::NotATrace => write!(f, "not a canvas trace, or one of another version"),
            TraceError::UnknownKind(i) => write!(
                f,
                "record {i} is of an unknown kind: damaged, or a newer version"
            ),
        }
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Parses a trace file into the touches of its sampled pages, in chronological order. Ignores a last
    /// record that was cut short because the program was killed. Fails if the file is not a trace of this
    /// version, or has a record of unknown kind.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
        let head = bytes
            .first_chunk::<HEADER_BYTES>()
            .ok_or(TraceError::NotATrace)?;
        let header = Header::decode(head).ok_or(TraceError::NotATrace)?;
        let mut raw = Vec::new();
        for (i, chunk) in bytes[HEADER_BYTES..].chunks_exact(RECORD_BYTES).enumerate() {
            let bytes = chunk
                .first_chunk::<RECORD_BYTES>()
                .ok_or(TraceError::UnknownKind(i))?;
            raw.push(Record::decode(bytes).ok_or(TraceError::UnknownKind(i))?);
        }
        Ok(Trace::of_records(name, header.rate, &raw))
    }

    /// Like [`Trace::read`], but from decoded records.
    pub fn of_records(name: &str, rate: SampleRate, records: &[Record]) -> Trace {
        // Numbers chunks densely in order of process and address: gaps vanish, neighbouring pages of a chunk
        // stay neighbours.
        let kept = |r: &&Record| {
            (r.kind.is_touch() || r.kind == Kind::Discard) && trace::is_sampled(r.page, rate)
        };
        let chunk_of = |r: &Record| (r.process, r.page.0 / CHUNK_PAGES as u32);
        let mut chunks: Vec<_> = records.iter().filter(kept).map(chunk_of).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut events = Vec::new();
        for r in records.iter().filter(kept) {
            let chunk = chunks.binary_search(&chunk_of(r)).unwrap_or_default();
            let page = (chunk * CHUNK_PAGES) as u32 + r.page.0 % CHUNK_PAGES as u32;
            if r.kind == Kind::FirstTouch {
                // A new mapping replaces earlier contents, even if the trace has no discard for them.
                events.push(Event {
                    page,
                    thread: r.thread,
                    op: Op::Discard,
                });
            }
            let op = if r.kind == Kind::Discard {
                Op::Discard
            } else {
                Op::Touch
            };
            events.push(Event {
                page,
                thread: r.thread,
                op,
            });
        }
        Trace {
            name: name.to_string(),
            share: rate.share(),
            pages: chunks.len() * CHUNK_PAGES,
            events,
        }
    }

    /// Highest number of pages that exist at one time; equals 100 % local memory.
    pub fn footprint(&self) -> usize {
        let mut here = vec![false; self.pages];
        let (mut now, mut peak) = (0usize, 0usize);
        for e in &self.events {
            let was = std::mem::replace(&mut here[e.page as usize], e.op == Op::Touch);
            match (was, e.op) {
                (false, Op::Touch) => now += 1,
                (true, Op::Discard) => now -= 1,
                _ => {}
            }
            peak = peak.max(now);
        }
        peak
    }

    /// Number of touches of pages that were touched before.
    pub fn reuses(&self) -> u64 {
        let mut here = vec![false; self.pages];
        let mut n = 0;
        for e in &self.events {
            let was = std::mem::replace(&mut here[e.page as usize], e.op == Op::Touch);
            n += u64::from(was && e.op == Op::Touch);
        }
        n
    }
}

/// For each event the index of its page's next touch, or `u32::MAX` if the page is discarded or never touched
/// again.
pub fn next_uses(events: &[Event], pages: usize) -> Vec<u32> {
    let mut next_of_page = vec![u32::MAX; pages];
    let mut next = vec![u32::MAX; events.len()];
    for (i, e) in events.iter().enumerate().rev() {
        let slot = &mut next_of_page[e.page as usize];
        next[i] = if e.op == Op::Touch { *slot } else { u32::MAX };
        *slot = if e.op == Op::Touch {
            i as u32
        } else {
            u32::MAX
        };
    }
    next
}

/// Misses of a policy: touches of existing pages that are not in its cache.
pub fn count_misses(policy: &mut dyn Policy, trace: &Trace) -> u64 {
    let mut exists = vec![false; trace.pages];
    let mut misses = 0;
    for e in &trace.events {
        let was = std::mem::replace(&mut exists[e.page as usize], e.op == Op::Touch);
        match e.op {
            Op::Touch => misses += u64::from(!policy.touch(e.page) && was),
            Op::Discard => policy.discard(e.page),
        }
    }
    misses
}

/// One row of the table: every policy at one amount of local memory.
#[derive(Clone, Debug)]
pub struct ReplayRow {
    /// Local memory in percent of the footprint.
    pub percent: u32,
    /// Local memory in pages that the trace covers.
    pub local_pages: usize,
    /// Miss ratio of LRU, 0 to 1, over touches of existing pages.
    pub lru: f64,
    /// Miss ratio of FIFO.
    pub fifo: f64,
    /// Miss ratio of S3-FIFO.
    pub s3fifo: f64,
    /// Miss ratio of SIEVE.
    pub sieve: f64,
    /// Miss ratio of Belady's optimum.
    pub opt: f64,
    /// Canvas's policy without prefetch, comparable with the other policies.
    pub ours: Outcome,
    /// Canvas's policy with prefetch.
    pub ours_prefetch: Outcome,
}

/// Result of [`run`].
#[derive(Clone, Debug)]
pub struct ReplayTable {
    /// The trace's name.
    pub name: String,
    /// Prefetcher of the columns with prefetch.
    pub prefetch: Prefetch,
    /// Share of pages that the trace covers.
    pub share: f64,
    /// Footprint (100 % local memory) in pages covered by the trace.
    pub footprint_pages: usize,
    /// Number of touches of existing pages, the denominator of the ratios.
    pub reuses: u64,
    /// One row per percentage.
    pub rows: Vec<ReplayRow>,
}

/// Replays `trace` with local memory of each of `percents` % of its footprint; `prefetch` is the prefetcher
/// of the columns with prefetch.
pub fn run(trace: &Trace, percents: &[u32], prefetch: Prefetch) -> ReplayTable {
    let setup = Setup {
        prefetch,
        ..Setup::default()
    };
    run_with(trace, percents, &setup)
}

/// Like [`run`], with another setup of canvas's policy.
pub fn run_with(trace: &Trace, percents: &[u32], setup: &Setup) -> ReplayTable {
    let (footprint, reuses) = (trace.footprint(), trace.reuses());
    let next = next_uses(&trace.events, trace.pages);
    let ratio = |misses: u64| misses as f64 / reuses.max(1) as f64;
    let rows = percents
        .iter()
        .map(|percent| {
            let local = (footprint * *percent as usize / 100).max(1);
            let n = trace.pages;
            ReplayRow {
                percent: *percent,
                local_pages: local,
                lru: ratio(count_misses(&mut Lru::new(local, n), trace)),
                fifo: ratio(count_misses(&mut Fifo::new(local, n), trace)),
                s3fifo: ratio(count_misses(&mut S3Fifo::new(local, n), trace)),
                sieve: ratio(count_misses(&mut Sieve::new(local, n), trace)),
                opt: ratio(count_misses(&mut Opt::new(local, n, &next), trace)),
                ours: ours::replay(
                    trace,
                    local,
                    &Setup {
                        prefetch: Prefetch::None,
                        ..*setup
                    },
                ),
                ours_prefetch: ours::replay(trace, local, setup),
            }
        })
        .collect();
    ReplayTable {
        name: trace.name.clone(),
        prefetch: setup.prefetch,
        share: trace.share,
        footprint_pages: footprint,
        reuses,
        rows,
    }
}

impl fmt::Display for ReplayTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.footprint_pages as f64 / self.share.max(1e-9) / 256.0;
        write!(
            f,
            "{}: footprint {mib:.1} MiB, {} touches of known pages",
            self.name, self.reuses
        )?;
        if self.share < 1.0 {
            write!(f, ", {:.2} % of the pages sampled", self.share * 100.0)?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "Far faults in % of the touches of known pages (first touches cost all policies the same)."
        )?;
        writeln!(
            f,
            "{:>6} | {:>6} {:>6} {:>7} {:>6} | {:>6} | {:>6} {:>7} {:>5} {:>6} | {:>7} {:>7} {:>6}",
            "local",
            "LRU",
            "FIFO",
            "S3-FIFO",
            "SIEVE",
            "OPT",
            "canvas",
            "+2nd",
            "run",
            "us",
            "+prefet",
            "accur",
            "us"
        )?;
        let p = |x: f64| x * 100.0;
        for r in &self.rows {
            let (o, q) = (&r.ours, &r.ours_prefetch);
            let per = |n: u64| p(n as f64 / self.reuses.max(1) as f64);
            writeln!(
                f,
                "{:>5}% | {:>6.2} {:>6.2} {:>7.2} {:>6.2} | {:>6.2} | {:>6.2} {:>7.2} {:>5.1} {:>6.2} | {:>7.2} {:>6.1}% {:>6.2}",
                r.percent,
                p(r.lru),
                p(r.fifo),
                p(r.s3fifo),
                p(r.sieve),
                p(r.opt),
                per(o.misses),
                per(o.second_chances),
                o.mean_run(),
                o.us_per(self.reuses, &Costs::DEFAULT),
                per(q.misses),
                q.accuracy_percent(),
                q.us_per(self.reuses, &Costs::DEFAULT),
            )?;
        }
        writeln!(
            f,
            "canvas sees faults only, the others every touch. +2nd: swap-cache hits (cheap faults); run: mean pages a MOVE; +prefet: canvas with prefetch by {};",
            self.prefetch.name()
        )?;
        write!(f, "us: modelled cost a touch ({})", Costs::DEFAULT)?;
        if self.share < 1.0 {
            write!(f, "; with sampling, run, prefetch and us say little")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_types::PageId;
    use proptest::prelude::*;

    fn record(page: u32, process: u16, kind: Kind) -> Record {
        Record {
            time_us: 0,
            page: PageId(page),
            thread: 3,
            kind,
            flags: 0,
            process,
            detail: 0,
        }
    }

    #[test]
    fn a_file_becomes_an_access_string() {
        let header = Header {
            rate: SampleRate::ALL,
            local_pages: 7,
            start_unix_s: 1,
        };
        let records = [
            record(640, 0, Kind::FirstTouch),
            record(64_000_001, 0, Kind::FirstTouch),
            record(640, 1, Kind::FirstTouch),
            record(640, 0, Kind::Evict),
            record(641, 0, Kind::Prefetch),
            record(640, 0, Kind::Demand),
            record(640, 0, Kind::Discard),
        ];
        let mut bytes = header.encode().to_vec();
        records.iter().for_each(|r| bytes.extend(r.encode()));
        bytes.extend([0; 5]); // cut short
        let t = Trace::read("x", &bytes).unwrap();
        // Chunks are renumbered 0, 1, 2 in order of process and address; offsets of pages within a chunk
        // stay.
        let got: Vec<_> = t.events.iter().map(|e| (e.page, e.op)).collect();
        use Op::*;
        assert_eq!(
            got,
            [
                (0, Discard),
                (0, Touch),
                (65, Discard),
                (65, Touch),
                (128, Discard),
                (128, Touch),
                (0, Touch),
                (0, Discard)
            ]
        );
        assert_eq!((t.pages, t.footprint(), t.reuses()), (192, 3, 1));
    }

    #[test]
    fn files_that_are_not_traces_are_refused() {
        assert_eq!(
            Trace::read("x", b"short").unwrap_err(),
            TraceError::NotATrace
        );
        assert_eq!(
            Trace::read("x", &[0; 200]).unwrap_err(),
            TraceError::NotATrace
        );
        let mut bytes = Header {
            rate: SampleRate::ALL,
            local_pages: 0,
            start_unix_s: 0,
        }
        .encode()
        .to_vec();
        bytes.extend(record(1, 0, Kind::Demand).encode());
        bytes.extend([255; RECORD_BYTES]);
        assert_eq!(
            Trace::read("x", &bytes).unwrap_err(),
            TraceError::UnknownKind(1)
        );
    }

    #[test]
    fn sampling_keeps_the_touches_of_sampled_pages_only() {
        let rate = SampleRate::one_in(8);
        let records: Vec<_> = (0..8000).map(|p| record(p, 0, Kind::FirstTouch)).collect();
        let t = Trace::of_records("x", rate, &records);
        assert!((800..1200).contains(&t.footprint()), "{}", t.footprint());
        assert_eq!(t.share, 0.125);
    }

    #[test]
    fn the_table_shows_every_percentage() {
        let t = synthetic::generate("kv", 1, 2000, 20_000).unwrap();
        let table = run(&t, &[10, 50, 90], Prefetch::Streams);
        assert_eq!(table.rows.len(), 3);
        let text = table.to_string();
        assert!(
            text.contains("S3-FIFO") && text.contains("   10% |") && text.contains("   90% |"),
            "{text}"
        );
        for w in table.rows.windows(2) {
            assert!(
                w[1].opt <= w[0].opt && w[1].lru <= w[0].lru,
                "stack algorithms gain from memory"
            );
        }
    }

    #[test]
    fn with_everything_local_nothing_misses() {
        for name in synthetic::names() {
            let t = synthetic::generate(name, 2, 1000, 10_000).unwrap();
            let row = run_with(
                &t,
                &[100],
                &Setup {
                    cache_permille: 0,
                    prefetch: Prefetch::Streams,
                    ..Setup::default()
                },
            )
            .rows
            .remove(0);
            assert_eq!(
                [row.lru, row.fifo, row.s3fifo, row.sieve, row.opt],
                [0.0; 5],
                "{name}"
            );
            assert_eq!(
                (row.ours.misses, row.ours_prefetch.prefetched),
                (0, 0),
                "{name}"
            );
        }
    }

    /// Guards the choice of the default policy: fails when a change loses its advantage.
    #[test]
    fn ours_holds_its_ground_without_seeing_hits() {
        let row = |name: &str, percent| {
            let t = synthetic::generate(name, 3, 8192, 200_000).unwrap();
            (
                run(&t, &[percent], Prefetch::Streams).rows.remove(0),
                t.reuses() as f64,
            )
        };
        let (kv, reuses) = row("kv", 25);
        assert!(
            (kv.ours.misses as f64) < kv.lru * reuses,
            "zipf: better than LRU, which sees every touch"
        );
        let (scan, reuses) = row("loop", 50);
        let ours = scan.ours.misses as f64 / reuses;
        assert!(
            ours < 0.62 && scan.lru > 0.99,
            "loop: near the optimum {} instead of LRU's 1: {ours}",
            scan.opt
        );
        assert!(scan.ours.mean_run() > 32.0, "and in long runs");
        assert!(
            scan.ours_prefetch.misses * 20 < scan.ours.misses,
            "and prefetched"
        );
    }

    proptest! {
        /// No policy, canvas's without prefetch included, misses less than Belady's, and canvas's never
        /// exceeds its memory.
        #[test]
        fn nothing_beats_opt(
            ops in proptest::collection::vec((0u32..400, any::<bool>(), 0u8..20), 1..1500),
            local in 1usize..200,
            cache_permille in 0u32..300,
            prefetch in proptest::sample::select(&Prefetch::ALL[..]),
        ) {
            let mut last = 0;
            let events: Vec<Event> = ops
                .iter()
                .map(|(page, next, op)| {
                    last = if *next { (last + 1) % 400 } else { *page };
                    Event { page: last, thread: 0, op: if *op == 0 { Op::Discard } else { Op::Touch } }
                })
                .collect();
            let t = Trace { name: String::new(), share: 1.0, pages: 400, events };
            let next = next_uses(&t.events, t.pages);
            let best = count_misses(&mut Opt::new(local, 400, &next), &t);
            prop_assert!(best <= count_misses(&mut Lru::new(local, 400), &t));
            prop_assert!(best <= count_misses(&mut S3Fifo::new(local, 400), &t));
            prop_assert!(best <= count_misses(&mut Sieve::new(local, 400), &t));
            let ours = ours::replay(&t, local, &Setup { prefetch, cache_permille, ..Setup::default() });
            prop_assert!(prefetch != Prefetch::None || best <= ours.misses);
            prop_assert!(ours.peak_pages <= local, "{} of {local}", ours.peak_pages);
        }
    }
}
