//! The kernel's figures about memory, swap and control groups.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use canvas_host::Group;
use canvas_host::groups::groups_of;
use canvas_place::swap_in::SystemSample;

use crate::error::Failure;

/// Counters at one time.
#[derive(Clone, Copy)]
pub struct Before {
    at: Instant,
    /// Pages read from swap and written to it, since the system's start.
    read_pages: u64,
    written_pages: u64,
}

/// Counts between two times.
pub struct Since {
    /// Pages read from swap.
    pub read_pages: u64,
    written_pages: u64,
    seconds: f64,
}

impl Before {
    /// The counters now.
    pub fn now() -> Result<Before, Failure> {
        let text = read("/proc/vmstat")?;
        Ok(Before {
            at: Instant::now(),
            read_pages: count(&text, "pswpin").unwrap_or(0),
            written_pages: count(&text, "pswpout").unwrap_or(0),
        })
    }

    /// The counts since then.
    pub fn until_now(&self) -> Result<Since, Failure> {
        let now = Before::now()?;
        Ok(Since {
            read_pages: now.read_pages.saturating_sub(self.read_pages),
            written_pages: now.written_pages.saturating_sub(self.written_pages),
            seconds: (now.at - self.at).as_secs_f64(),
        })
    }

    /// The system's state now, and the counters for the next call.
    pub fn look(&self) -> Result<(SystemSample, Before), Failure> {
        let since = self.until_now()?;
        let memory = read("/proc/meminfo")?;
        let kib = |name| kib_of(&memory, name);
        let available = kib("MemAvailable:").ok_or_else(|| {
            Failure::usage("/proc/meminfo does not say MemAvailable; Linux 3.14 and later does")
        })?;
        let kib = |name| kib(name).unwrap_or(0);
        let in_swap = kib("SwapTotal:").saturating_sub(kib("SwapFree:"));
        let pressure = fs::read_to_string("/proc/pressure/memory").ok();
        let look = SystemSample {
            available_bytes: available << 10,
            swapped_bytes: in_swap.saturating_sub(kib("SwapCached:")) << 10,
            written_pages_per_s: since.written_pages as f64 / since.seconds.max(1e-3),
            pressure_percent: pressure.and_then(|text| some_of(&text)),
        };
        Ok((look, Before::now()?))
    }
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("{path} cannot be read: {}", crate::reason(&e))))
}

/// The number in a line "NAME N kB" of a text in /proc.
pub fn kib_of(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|l| l.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The number in a line "NAME N".
fn count(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?
        .parse()
        .ok()
}

/// Percentage of the last ten seconds in which some task waited (PSI "some").
fn some_of(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find_map(|l| l.strip_prefix("some "))?;
    let word = line.split(' ').find_map(|w| w.strip_prefix("avg10="))?;
    word.parse().ok()
}

/// Waits until the swap devices have finished their requests.
pub fn settle(time: Duration, tick: Duration) {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let devices = devices(&swaps);
    let until = Instant::now() + time;
    while !devices.is_empty() && Instant::now() < until {
        let stats = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        if under_way(&stats, &devices) == 0 {
            return;
        }
        std::thread::sleep(tick);
    }
}

/// Names of the devices in the text of /proc/swaps, without swap files.
fn devices(swaps: &str) -> Vec<String> {
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let (path, kind) = (words.next()?, words.next()?);
        (kind == "partition").then_some(path.strip_prefix("/dev/")?.to_owned())
    };
    swaps.lines().skip(1).filter_map(device).collect()
}

/// Operations of these devices under way, from the text of /proc/diskstats.
fn under_way(stats: &str, devices: &[String]) -> u64 {
    let of = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let name = words.get(2)?;
        devices.iter().any(|d| d == name).then_some(())?;
        words.get(11)?.parse::<u64>().ok()
    };
    stats.lines().filter_map(of).sum()
}

/// Room left by the limits of control groups, for the groups examined so far.
#[derive(Default)]
pub struct Groups(HashMap<PathBuf, u64>);

impl Groups {
    /// Bytes that a process may use before its control group, or an ancestor, reaches a limit; the
    /// caller subtracts what it uses. `u64::MAX` without a limit.
    pub fn room(&mut self, pid: u32) -> &mut u64 {
        let groups = groups_of(pid);
        let own = groups.first().map_or(Path::new(""), Group::dir);
        let left = || groups.iter().filter_map(Group::left_bytes).min();
        let room = self.0.entry(own.to_owned());
        room.or_insert_with(|| left().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_proc() {
        let memory = "MemTotal:  100 kB\nMemAvailable:    4096 kB\nSwapCached:   8 kB\n";
        assert_eq!(kib_of(memory, "MemAvailable:"), Some(4096));
        assert_eq!(kib_of(memory, "SwapFree:"), None);
        let vmstat = "pswpin 17\npswpin_zero 3\npswpout 5\n";
        assert_eq!(count(vmstat, "pswpin"), Some(17));
        assert_eq!(count(vmstat, "pswp"), None);
        let pressure =
            "some avg10=1.53 avg60=0.87 avg300=0.20 total=12\nfull avg10=0.00 avg60=0.00 total=9\n";
        assert_eq!(some_of(pressure), Some(1.53));
        assert_eq!(some_of("full avg10=3.00\n"), None);
    }

    #[test]
    fn what_swap_devices_have_under_way() {
        let swaps = "\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/vda                                partition\t524284\t\t1024\t\t-2
/swap/file                              file\t\t524284\t\t0\t\t-3
/dev/nbd0                               partition\t524284\t\t0\t\t-4
";
        let devices = devices(swaps);
        assert_eq!(devices, ["vda", "nbd0"]);
        let stats = "\
 254       0 vda 100 0 8000 20 50 0 400 9 3 20 29 0 0 0 0
 254      16 vdb 100 0 8000 20 50 0 400 9 70 20 29 0 0 0 0
  43       0 nbd0 1 0 8 0 0 0 0 0 2 0 0 0 0 0 0
";
        assert_eq!(under_way(stats, &devices), 5);
        assert_eq!(under_way("", &devices), 0);
    }
}
