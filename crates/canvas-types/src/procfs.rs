//! Parsers for files of /proc. They take bytes rather than text, because a process may have any name, and that need not
//! be UTF-8.

use core::str::FromStr;

/// Field 3 of /proc/PID/stat, the first after the name.
const STATE: usize = 3;
const PARENT: usize = 4;
const GROUP: usize = 5;
const USER_TICKS: usize = 14;
/// The fields from USER_TICKS to this one: user and kernel mode, then the same of children that were waited for.
const LAST_TICKS: usize = 17;
const THREADS: usize = 20;
const START_TICKS: usize = 22;

/// What /proc/PID/stat says about a process (proc_pid_stat(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Letter of its state: R, S, D, T; Z is a zombie.
    pub state: u8,
    /// Process number of its parent; 0 for one outside the namespace.
    pub parent: u32,
    /// Number of its process group.
    pub group: u32,
    /// Remaining threads.
    pub threads: u64,
    /// When it started, in clock ticks since boot: together with the pid, its identity.
    pub start_ticks: u64,
}

impl Stat {
    /// Parses the line. `None` if it is cut short, and for a process that is being reaped, whose group is -1.
    pub fn parse(line: &[u8]) -> Option<Stat> {
        // The name may contain anything, so the last parenthesis counts.
        let end = line.iter().rposition(|b| *b == b')')?;
        let rest = &line[end + 1..];
        let field = |n: usize| words(rest).nth(n - STATE);
        Some(Stat {
            state: *field(STATE)?.first()?,
            parent: number(field(PARENT)?)?,
            group: number(field(GROUP)?)?,
            threads: number(field(THREADS)?)?,
            start_ticks: number(field(START_TICKS)?)?,
        })
    }
}

/// CPU time of the process and of the children that it waited for, in clock ticks, from the line of /proc/PID/stat;
/// `None` if that is cut short.
pub fn cpu_ticks(line: &[u8]) -> Option<u64> {
    // The name may contain anything, so the last parenthesis counts.
    let end = line.iter().rposition(|b| *b == b')')?;
    let mut all = words(&line[end + 1..]).skip(USER_TICKS - STATE);
    let mut sum: u64 = 0;
    for _ in USER_TICKS..=LAST_TICKS {
        sum = sum.checked_add(number(all.next()?)?)?;
    }
    Some(sum)
}

/// The value of the line "NAME: N kB" of /proc/meminfo, /proc/PID/status or smaps, in bytes; `None` without such a
/// line.
pub fn memory_bytes(text: &[u8], name: &str) -> Option<u64> {
    let value = text
        .split(|b| *b == b'\n')
        .find_map(|l| l.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    let kib: u64 = number(words(value).next()?)?;
    kib.checked_mul(1024)
}

/// Time of one CPU since the start of the host, in clock ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticks {
    /// Idle time, including waits for I/O.
    pub idle: u64,
    /// Total time.
    pub all: u64,
}

/// The CPUs of /proc/stat (proc_stat(5)) for whose numbers `may` returns true, in the file's order.
pub fn processors(stat: &[u8], may: impl Fn(usize) -> bool) -> impl Iterator<Item = Ticks> {
    let of = move |line: &[u8]| {
        // In the line of all CPUs together, a blank follows.
        let rest = line.strip_prefix(b"cpu")?;
        let mut words = words(rest.first().filter(|b| b.is_ascii_digit()).map(|_| rest)?);
        if !may(number(words.next()?)?) {
            return None;
        }
        // User, nice, system, idle, I/O wait; guests' time is included in the first two.
        let mut times = [0u64; 8];
        let mut known = 0;
        for (time, word) in times.iter_mut().zip(words) {
            *time = number(word)?;
            known += 1;
        }
        (known > 4).then(|| Ticks {
            idle: times[3].saturating_add(times[4]),
            all: times.iter().fold(0, |sum, n| sum.saturating_add(*n)),
        })
    };
    stat.split(|b| *b == b'\n').filter_map(of)
}

/// A mapping: a line of /proc/PID/maps (proc_pid_maps(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping<'a> {
    /// Its first byte.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
    /// Whether writes to it are private to the process.
    pub is_private: bool,
    /// Its file, or its purpose, up to the first blank; empty for most anonymous memory.
    pub name: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// Parses the line.
    pub fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        let hex = |digits| usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok();
        let mut words = words(line);
        let range = words.next()?;
        let dash = range.iter().position(|b| *b == b'-')?;
        let rights = words.next()?;
        Some(Mapping {
            start: hex(&range[..dash])?,
            end: hex(&range[dash + 1..])?,
            is_private: rights.get(3) == Some(&b'p'),
            // Skip the file's offset, device and inode.
            name: words.nth(3).unwrap_or(b""),
        })
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

fn number<N: FromStr>(word: &[u8]) -> Option<N> {
    core::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEHIND: &[u8] =
        b" S 7 41 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 987 1000 200 18446744073709551615 1\n";

    #[test]
    fn stat_lines_with_any_name() {
        let names: [&[u8]; 6] = [b"cat", b"a) b (c", b") S 1 1", b"", b"caf\xe9\xff", b"a\nb"];
        for name in names {
            let line = [b"42 (", name, b")", BEHIND].concat();
            let want = Stat {
                state: b'S',
                parent: 7,
                group: 41,
                threads: 3,
                start_ticks: 987,
            };
            assert_eq!(Stat::parse(&line), Some(want), "{name:?}");
        }
    }

    #[test]
    fn lines_that_say_too_little() {
        assert_eq!(Stat::parse(b""), None);
        assert_eq!(Stat::parse(b"1 (x"), None);
        assert_eq!(Stat::parse(b"1 (x)"), None);
        assert_eq!(Stat::parse(b"1 (x) S 1"), None);
        let reaped = b"1 (x) X 0 -1 -1 0 -1 4 1 2 3 4 5 6 7 8 20 0 0 0 987 0\n";
        assert_eq!(Stat::parse(reaped), None);
    }

    #[test]
    fn processors_that_may_be_used() {
        let stat =
            b"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 1 1\ncpu1 10 0 0 5 0 0 0 0 0 0\n\
                     cpu12 1 1 1 1 1 1 1 1\nintr 5\nctxt 4\n";
        let mut seen = processors(stat, |cpu| cpu != 1);
        assert_eq!(seen.next(), Some(Ticks { idle: 45, all: 72 }));
        assert_eq!(seen.next(), Some(Ticks { idle: 2, all: 8 }));
        assert_eq!(seen.next(), None);
        assert_eq!(processors(b"", |_| true).count(), 0);
        let short = b"cpu0 1 2\ncpux 1 2 3 4 5\ncpu\n";
        assert_eq!(processors(short, |_| true).count(), 0);
    }

    #[test]
    fn memory_by_its_whole_name() {
        let text = b"Name:\tcaf\xe9 5 kB\nRssAnonX:\t1 kB\nRssAnon:\t   12 kB\nRssFile:\tmany kB\nEmpty:\nHuge:\t18446744073709551615 kB\n";
        assert_eq!(memory_bytes(text, "RssAnon"), Some(12 << 10));
        assert_eq!(memory_bytes(text, "RssAnonX"), Some(1 << 10));
        for none in ["Rss", "RssFile", "RssShmem", "Empty", "Huge"] {
            assert_eq!(memory_bytes(text, none), None, "{none}");
        }
    }

    #[test]
    fn mappings_have_a_range_rights_and_sometimes_a_name() {
        let file =
            b"7f12a000-7f12c000 r--p 00001000 fe:00 1234                     /usr/lib/a b.so";
        let mapping = |start, end, is_private, name| Mapping {
            start,
            end,
            is_private,
            name,
        };
        let want = mapping(0x7f12_a000, 0x7f12_c000, true, b"/usr/lib/a");
        assert_eq!(Mapping::parse(file), Some(want));
        let shared = b"600000000000-600000001000 rw-s 00000000 00:01 9 ";
        let want = mapping(0x6000_0000_0000, 0x6000_0000_1000, false, b"");
        assert_eq!(Mapping::parse(shared), Some(want));
        let stack = b"7ffc0000-7ffc1000 rw-p 00000000 00:00 0                          [stack]";
        assert_eq!(Mapping::parse(stack).unwrap().name, b"[stack]");
        for bad in [
            &b""[..],
            b"x",
            b"1000 rw-p",
            b"1000-2000",
            b"10x0-2000 rw-p 0 0 0",
        ] {
            assert_eq!(Mapping::parse(bad), None);
        }
    }

    #[test]
    fn processor_time_is_of_the_process_and_its_children() {
        let line = b"7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 300 4000 20 0 1 0 99";
        assert_eq!(cpu_ticks(line), Some(4333));
        for bad in [&b""[..], b"7 (a) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 300"] {
            assert_eq!(cpu_ticks(bad), None);
        }
    }
}
