//! `canvas swap-in`: brings back, ahead of need, what the kernel has swapped out
//! ([`canvas_place::swap_in`] decides).

mod processes;
pub mod system;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use canvas_place::swap_in::{Piece, SwapInBlocker, calls, judge, room};
use canvas_sys::process::RANGES_MAX;
use canvas_types::{PAGE_SIZE, exit};
use serde::Serialize;

use crate::args::SwapInArgs;
use crate::control::rates::unix_s;
use crate::error::Failure;
use crate::signals;
use crate::table::print;
use processes::{Refused, Source, Who};
use system::{Before, Groups};

/// Most time to wait for the disk to finish the latest requests.
const SETTLE: Duration = Duration::from_secs(5);
/// Interval of checking the disk.
const SETTLE_TICK: Duration = Duration::from_millis(2);

/// Brings pages back, once or until a signal comes.
pub fn run(args: &SwapInArgs) -> Result<i32, Failure> {
    let page = PAGE_SIZE as u64;
    if args.batch.bytes < page {
        return Err(Failure::usage(format!(
            "--batch {} is less than a page; write 4K or more",
            args.batch
        )));
    }
    let who = Who::of(args)?;
    let signals = signals::ends()
        .map_err(|e| Failure::usage(format!("signals cannot be waited for: {}", e.desc())))?;
    let stopped = |time| signals::stopped(&signals, time);
    if !args.watch {
        let mut sweep = Sweep::new(args, &who)?;
        let end = sweep.go(|| stopped(Duration::ZERO))?;
        tell(args, &sweep.told(end.why()));
        return match end {
            End::Stopped(failure) => Ok(failure.code),
            _ => Ok(exit::OK),
        };
    }
    let mut before = Before::now()?;
    let mut barren = Barren::default();
    loop {
        if let Some(failure) = stopped(args.interval) {
            return Ok(failure.code);
        }
        let (look, now) = before.look()?;
        before = now;
        if judge(&look, args.free.bytes).is_err() || barren.is_all(look.swapped_bytes) {
            continue;
        }
        let mut sweep = Sweep::new(args, &who)?;
        let end = sweep.go(|| stopped(Duration::ZERO))?;
        // Pages that were already in the swap cache are not worth a line.
        if sweep.read_pages() > 0 && !tell(args, &sweep.told(end.why())) {
            return Ok(exit::OK);
        }
        if let End::Stopped(failure) = end {
            return Ok(failure.code);
        }
        let (look, now) = before.look()?;
        before = now;
        let is_whole = matches!(end, End::Nothing) && sweep.full_groups == 0;
        barren = Barren(is_whole.then_some(look.swapped_bytes));
    }
}

/// Swapped memory that a full sweep could not bring back: shared memory, and memory of other users.
/// Without this, every interval would search for it in vain.
#[derive(Default)]
struct Barren(Option<u64>);

impl Barren {
    /// Changes up to this size are attributed to other memory.
    const SLACK_BYTES: u64 = 1 << 20;

    /// Whether nothing else is swapped out now.
    fn is_all(&mut self, swapped_bytes: u64) -> bool {
        let Some(left) = self.0 else { return false };
        // If some of it was freed, newly swapped memory does not take its place.
        self.0 = Some(left.min(swapped_bytes));
        swapped_bytes <= left + Barren::SLACK_BYTES
    }
}

/// How a sweep over the processes ended.
enum End {
    /// Everything was requested.
    Nothing,
    /// Free memory is down to its limit.
    NoRoom,
    /// Pages are being swapped out, or programs wait for memory.
    Busy(SwapInBlocker),
    /// A signal came.
    Stopped(Failure),
}

impl End {
    fn why(&self) -> String {
        match self {
            End::Nothing => "nothing is left".to_owned(),
            End::NoRoom => "the rest has no room".to_owned(),
            End::Busy(why) => why.to_string(),
            End::Stopped(failure) => failure.sentence.clone(),
        }
    }
}

/// The result of a sweep.
#[derive(Serialize, Debug)]
struct Told {
    schema: &'static str,
    unix_s: f64,
    processes: usize,
    pages: u64,
    bytes: u64,
    read_pages: u64,
    seconds: f64,
    us_per_page: Option<f64>,
    refused_processes: usize,
    full_groups: usize,
    end: String,
}

/// A sweep over the processes.
struct Sweep<'a> {
    args: &'a SwapInArgs,
    sources: Vec<Source>,
    began: Instant,
    before: Before,
    /// Pages that the kernel read from swap for anybody, at the end.
    read_pages: u64,
    pages: u64,
    served: usize,
    refused: usize,
    full_groups: usize,
}

impl<'a> Sweep<'a> {
    fn new(args: &'a SwapInArgs, who: &Who) -> Result<Sweep<'a>, Failure> {
        Ok(Sweep {
            args,
            sources: who.sources()?,
            began: Instant::now(),
            before: Before::now()?,
            read_pages: 0,
            pages: 0,
            served: 0,
            refused: 0,
            full_groups: 0,
        })
    }

    /// Runs batches until nothing or no room is left.
    fn go(&mut self, stopped: impl Fn() -> Option<Failure>) -> Result<End, Failure> {
        let (page, free) = (PAGE_SIZE as u64, self.args.free.bytes);
        let mut before = self.before;
        let end = loop {
            if let Some(failure) = stopped() {
                break End::Stopped(failure);
            }
            if self.sources.is_empty() {
                break End::Nothing;
            }
            let (look, now) = before.look()?;
            match judge(&look, free) {
                // A single sweep was requested by the user, so it does what it can.
                Err(why @ (SwapInBlocker::PagesLeave | SwapInBlocker::Pressure))
                    if self.args.watch =>
                {
                    break End::Busy(why);
                }
                _ => {}
            }
            before = now;
            let room = room(look.available_bytes, free).min(self.args.batch.bytes) / page;
            if room == 0 {
                break End::NoRoom;
            }
            self.batch(room)?;
        };
        let left = self.before.until_now()?;
        self.read_pages = left.read_pages;
        if self.served == 0 && self.refused > 0 {
            return Err(Failure::usage(
                "no process may be touched by this user; be root, or have CAP_SYS_NICE and the rights of a debugger",
            ));
        }
        Ok(end)
    }

    /// Requests up to `room` pages.
    fn batch(&mut self, room: u64) -> Result<(), Failure> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut sources: HashMap<u32, Source> = HashMap::new();
        let mut groups = Groups::default();
        let mut left = room;
        while left > 0 {
            let Some(mut source) = self.sources.pop() else {
                break;
            };
            if let Err(refused) = source.open() {
                self.count(refused)?;
                continue;
            }
            let in_group_bytes = groups.room(source.pid());
            let in_group = *in_group_bytes / PAGE_SIZE as u64;
            if in_group == 0 {
                self.full_groups += 1;
                continue;
            }
            let added = source.add(left.min(in_group), &mut pieces);
            *in_group_bytes = in_group_bytes.saturating_sub(added * PAGE_SIZE as u64);
            left -= added;
            sources.insert(source.pid(), source);
        }
        for call in calls(&mut pieces, RANGES_MAX) {
            let Some(source) = sources.get_mut(&call[0].process) else {
                continue;
            };
            match source.ask(call) {
                Ok(pages) => self.pages += pages,
                Err(refused) => {
                    self.count(refused)?;
                    sources.remove(&call[0].process);
                }
            }
        }
        system::settle(SETTLE, SETTLE_TICK);
        for (_, source) in sources {
            match source.is_done() {
                true => self.served += 1,
                // The process at which the room ended continues later.
                false => self.sources.push(source),
            }
        }
        Ok(())
    }

    /// Counts a refused process; an error if the user named the process, or if all processes would
    /// be refused.
    fn count(&mut self, refused: Refused) -> Result<(), Failure> {
        match refused {
            Refused::Gone => {}
            Refused::NotAllowed(_) if self.args.pid.is_empty() => self.refused += 1,
            refused => return Err(Failure::usage(refused)),
        }
        Ok(())
    }

    fn read_pages(&self) -> u64 {
        self.read_pages
    }

    fn told(&self, end: String) -> Told {
        let seconds = self.began.elapsed().as_secs_f64();
        let rounded = |value: f64, places: f64| (value * places).round() / places;
        let left = self.sources.iter().filter(|s| s.was_asked()).count();
        Told {
            schema: "canvas-swap-in/1",
            unix_s: unix_s(),
            processes: self.served + left,
            pages: self.pages,
            bytes: self.pages * PAGE_SIZE as u64,
            read_pages: self.read_pages,
            seconds: rounded(seconds, 1e3),
            us_per_page: (self.pages > 0).then(|| rounded(seconds * 1e6 / self.pages as f64, 1e2)),
            refused_processes: self.refused,
            full_groups: self.full_groups,
            end,
        }
    }
}

/// Prints the result; false when nobody reads it any more.
fn tell(args: &SwapInArgs, told: &Told) -> bool {
    let text = match args.json {
        true => serde_json::to_string(told).unwrap_or_default() + "\n",
        false => line(told),
    };
    print(&text)
}

fn line(told: &Told) -> String {
    let mib = told.bytes as f64 / f64::from(1 << 20);
    let each = told
        .us_per_page
        .map_or(String::new(), |us| format!(", {us:.1} us a page"));
    let refused = match told.refused_processes {
        0 => String::new(),
        n => format!("; {n} processes may not be touched by this user"),
    };
    let full = match told.full_groups {
        0 => String::new(),
        n => format!("; {n} processes are in control groups without room"),
    };
    format!(
        "{} pages ({mib:.1} MiB) of {} processes in {:.3} s{each}; {}{full}{refused}\n",
        told.pages, told.processes, told.seconds, told.end
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_sweep_brings_back_is_not_looked_for_again() {
        let mib = 1 << 20;
        assert!(!Barren::default().is_all(0));
        let mut left = Barren(Some(10 * mib));
        assert!(left.is_all(10 * mib) && left.is_all(11 * mib));
        assert!(!left.is_all(12 * mib));
        assert!(left.is_all(4 * mib));
        assert!(!left.is_all(10 * mib));
    }

    #[test]
    fn a_line_says_what_was_done() {
        let mut told = Told {
            schema: "canvas-swap-in/1",
            unix_s: 0.0,
            processes: 3,
            pages: 51_200,
            bytes: 200 << 20,
            read_pages: 51_210,
            seconds: 1.24,
            us_per_page: Some(24.22),
            refused_processes: 0,
            full_groups: 0,
            end: End::Nothing.why(),
        };
        assert_eq!(
            line(&told),
            "51200 pages (200.0 MiB) of 3 processes in 1.240 s, 24.2 us a page; nothing is left\n"
        );
        told = Told {
            pages: 0,
            bytes: 0,
            us_per_page: None,
            refused_processes: 2,
            full_groups: 1,
            end: End::NoRoom.why(),
            ..told
        };
        assert_eq!(
            line(&told),
            "0 pages (0.0 MiB) of 3 processes in 1.240 s; the rest has no room; 1 processes are in control groups \
             without room; 2 processes may not be touched by this user\n"
        );
    }
}
