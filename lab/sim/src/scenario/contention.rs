//! Time to evict a page with 1 to 64 processors: with an entry allocated under one lock each time, with
//! reservations (Canvas §5.1), and with magazines and batches. lab/SIMULATION.md lists the parameters and how
//! they were measured.

use std::fmt::Write;

use super::Size;
use crate::contention::{Costs, Figures, Scheme, Section, run};
use crate::engine::{Ns, SEC};

/// Lock of the entry allocator.
const ENTRIES: usize = 0;
/// Lock of the swap cache: its free slots and its FIFO.
const CACHE: usize = 1;

const fn section(lock: usize, every: u32, inside_ns: Ns, lines: u32) -> Section {
    Section {
        lock,
        every,
        inside_ns,
        lines,
    }
}

/// One page per lock: its entry is freed on fault-in and allocated on eviction.
const ENTRY_EACH: [Section; 2] = [section(ENTRIES, 1, 6, 1), section(ENTRIES, 1, 6, 1)];
/// Sixteen entries per lock, in a chain whose head the holder reads.
const ENTRY_BATCH: [Section; 2] = [section(ENTRIES, 16, 6, 1), section(ENTRIES, 16, 6, 0)];
/// Begin and end of each page's write-out; slots and FIFO places for 64 pages.
const CACHE_EACH: [Section; 4] = [
    section(CACHE, 1, 8, 4),
    section(CACHE, 1, 6, 2),
    section(CACHE, 64, 250, 68),
    section(CACHE, 64, 200, 8),
];
/// FIFO places for 16 write-outs, 16 slots from a magazine; slots and FIFO places for 64 pages.
const CACHE_BATCH: [Section; 4] = [
    section(CACHE, 16, 15, 2),
    section(CACHE, 16, 20, 1),
    section(CACHE, 64, 70, 4),
    section(CACHE, 64, 90, 9),
];

const fn join(a: [Section; 2], b: [Section; 4]) -> [Section; 6] {
    [a[0], a[1], b[0], b[1], b[2], b[3]]
}

/// Contexts for reclaim of a process.
pub const CONTEXTS: usize = 4;
const ALL: usize = usize::MAX;

/// The schemes, without a limit on the processors that can reclaim.
pub const SCHEMES: [Scheme; 4] = [
    Scheme {
        name: "an entry each time, one lock",
        sections: &join(ENTRY_EACH, CACHE_EACH),
        contexts: ALL,
    },
    Scheme {
        name: "the same in batches",
        sections: &join(ENTRY_BATCH, CACHE_BATCH),
        contexts: ALL,
    },
    Scheme {
        name: "reservations, one lock",
        sections: &CACHE_EACH,
        contexts: ALL,
    },
    Scheme {
        name: "reservations, in batches",
        sections: &CACHE_BATCH,
        contexts: ALL,
    },
];

/// Entries alone, without the swap cache, as in figure 12 of Canvas.
pub const ENTRIES_ONLY: [Scheme; 2] = [
    Scheme {
        name: "entries alone, one lock",
        sections: &ENTRY_EACH,
        contexts: ALL,
    },
    Scheme {
        name: "entries alone, in batches",
        sections: &ENTRY_BATCH,
        contexts: ALL,
    },
];

/// Numbers of processors simulated.
pub const PROCESSORS: [usize; 9] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

/// A machine on which transferring a cache line takes `transfer_ns`.
pub const fn machine(transfer_ns: Ns) -> Costs {
    Costs {
        local_ns: 5,
        transfer_ns,
        page_ns: 6_600,
        spin_ns: 2_500,
        sleep_ns: 55_000,
    }
}

/// Transfer times within a socket, and between two.
pub const TRANSFERS_NS: [Ns; 2] = [60, 150];

/// Simulates one scheme with `n` processors.
pub fn cell(seed: u64, scheme: Scheme, transfer_ns: Ns, n: usize, size: Size) -> Figures {
    let for_ns = match size {
        Size::Full => SEC,
        _ => SEC / 20,
    };
    run(seed, n, machine(transfer_ns), scheme, for_ns)
}

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let mut out = format!(
        "contention (seed {seed}): processors that put pages out, {} ns of work a page outside of locks\n",
        machine(0).page_ns
    );
    for transfer_ns in TRANSFERS_NS {
        let tell =
            |out: &mut String, what: &str, figure: &dyn Fn(&Figures) -> f64, all: &[Scheme]| {
                let _ = write!(out, "  {what:34}");
                for n in PROCESSORS {
                    let _ = write!(out, "{n:>8}");
                }
                out.push('\n');
                for scheme in all {
                    let _ = write!(out, "  {:34}", scheme.name);
                    for n in PROCESSORS {
                        let f = cell(seed, *scheme, transfer_ns, n, size);
                        let _ = write!(out, "{:>8.2}", figure(&f));
                    }
                    out.push('\n');
                }
            };
        let _ = writeln!(out, " a line takes {transfer_ns} ns between caches");
        let limited = SCHEMES[3];
        let limited = Scheme {
            name: "the last with 4 reclaim contexts",
            contexts: CONTEXTS,
            ..limited
        };
        let all = [SCHEMES[0], SCHEMES[1], SCHEMES[2], SCHEMES[3], limited];
        tell(&mut out, "us a page", &|f| f.page_ns / 1e3, &all);
        tell(
            &mut out,
            "million pages a second",
            &|f| f.pages_per_s / 1e6,
            &all,
        );
        let entries = [ENTRIES_ONLY[0], ENTRIES_ONLY[1]];
        let in_locks = [&SCHEMES[..], &entries[..]].concat();
        tell(
            &mut out,
            "us a page in and for locks",
            &|f| f.locked_ns / 1e3,
            &in_locks,
        );
    }
    out
}
