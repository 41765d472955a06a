//! A process's mappings, from /proc/PID/smaps.

use std::ops::Range;
use std::path::PathBuf;

use canvas_types::layout;

/// A mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Readable, writable, executable.
    pub prot: [bool; 3],
    /// Whether it is MAP_SHARED.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Inode of the file; 0 without a file.
    pub inode: u64,
    /// The file's name, or the kernel's name for the mapping.
    pub name: PathBuf,
    /// Whether some of its pages are private copies.
    pub has_own_pages: bool,
    /// Whether the program excludes it from core dumps (MADV_DONTDUMP).
    pub left_out: bool,
}

/// The part of a mapping that goes into a core dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Not even its header.
    Nothing,
    /// Its header and this many bytes from its start.
    Bytes(usize),
}

impl Map {
    fn bytes(&self) -> usize {
        self.end - self.start
    }

    /// The part between two addresses; `None` if it is empty.
    fn part(&self, start: usize, end: usize) -> Option<Map> {
        let offset = self.offset + (start - self.start) as u64;
        (start < end).then(|| Map {
            start,
            end,
            offset,
            ..self.clone()
        })
    }

    /// Whether it is canvas's own memory.
    fn is_canvas(&self) -> bool {
        let own = layout::window_end()..layout::window_base() + layout::SPAN_BYTES;
        // Segment and files of shared memory; the library's code stays in, for debuggers.
        let is_file = self.name.to_string_lossy().starts_with("/memfd:canvas-s");
        (own.contains(&self.start) || is_file) && !layout::in_partition(self.start)
    }

    /// The kernel's default choice (core(5)): anonymous memory, and the first page of files, by
    /// which a debugger identifies them.
    pub fn keep(&self) -> Keep {
        let name = self.name.to_string_lossy();
        let special = ["[vvar", "[vsyscall]"].iter().any(|n| name.starts_with(n));
        if special || self.is_canvas() || self.prot == [false; 3] {
            return Keep::Nothing;
        }
        let in_memory = self.inode == 0
            || ["/dev/zero", "/memfd:", "/SYSV", "/dev/shm/"]
                .iter()
                .any(|n| name.starts_with(n))
            || layout::in_partition(self.start);
        let is_device = name.starts_with("/dev/") && !in_memory;
        if self.left_out {
            Keep::Bytes(0)
        } else if in_memory || !self.shared && (self.prot[1] || self.has_own_pages) {
            Keep::Bytes(self.bytes())
        } else if self.offset == 0 && !self.shared && !is_device {
            Keep::Bytes(canvas_types::PAGE_SIZE)
        } else {
            Keep::Bytes(0)
        }
    }
}

/// `7f00-7f10 r-xp 00001000 08:01 123   /usr/lib/x`
fn head(line: &[u8]) -> Option<Map> {
    let mut words = line.splitn(6, |b| *b == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (start, end) = word()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)? as usize, hex(end)? as usize);
    let flags = word()?.as_bytes();
    let offset = hex(word()?)?;
    word()?;
    let inode = word()?.parse().ok()?;
    let name = words.next().unwrap_or_default().trim_ascii();
    Some(Map {
        start,
        end,
        prot: [
            flags.first() == Some(&b'r'),
            flags.get(1) == Some(&b'w'),
            flags.get(2) == Some(&b'x'),
        ],
        shared: flags.get(3) == Some(&b's'),
        offset,
        inode,
        name: path(name),
        has_own_pages: false,
        left_out: false,
    })
    .filter(|m| m.start < m.end)
}

fn path(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

/// Parses /proc/PID/smaps or /proc/PID/maps. The latter does not show which mappings have private
/// pages or are excluded from dumps. For managed memory, neither shows what the program excludes
/// ([`leave_out`]): canvas excludes all of it from the kernel's dumps.
pub fn parse(text: &[u8]) -> Vec<Map> {
    let mut maps: Vec<Map> = Vec::new();
    for line in text.split(|b| *b == b'\n') {
        if let Some(map) = head(line) {
            maps.push(map);
        } else if let (Some(value), Some(last)) =
            (line.strip_prefix(b"Anonymous:"), maps.last_mut())
        {
            last.has_own_pages = value.trim_ascii() != b"0 kB";
        } else if let (Some(flags), Some(last)) = (line.strip_prefix(b"VmFlags:"), maps.last_mut())
        {
            let is_managed = layout::in_window(last.start) || layout::in_partition(last.start);
            last.left_out = !is_managed && flags.split(|b| *b == b' ').any(|flag| flag == b"dd");
        }
    }
    maps
}

/// Marks the parts of the mappings in these sorted ranges as excluded.
pub fn leave_out(maps: Vec<Map>, ranges: &[Range<usize>]) -> Vec<Map> {
    let mut out = Vec::new();
    for mut map in maps {
        let first = ranges.partition_point(|r| r.end <= map.start);
        for range in &ranges[first..] {
            let (from, to) = (range.start.max(map.start), range.end.min(map.end));
            if from >= to {
                break;
            }
            let (before, within) = (map.part(map.start, from), map.part(from, to));
            out.extend(before);
            out.extend(within.map(|part| Map {
                left_out: true,
                ..part
            }));
            map.offset += (to - map.start) as u64;
            map.start = to;
        }
        out.extend(map.part(map.start, map.end));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
600000000000-600000021000 rw-p 00000000 00:00 0                          [heap]
Rss:                   4 kB
Anonymous:             4 kB
VmFlags: rd wr mr
600000021000-680000000000 ---p 00000000 00:00 0
Anonymous:             0 kB
690000000000-6d0000000000 rw-p 00000000 00:00 0
Anonymous:           512 kB
7f0000000000-7f0000002000 r-xp 00000000 08:01 77                         /usr/lib/a b.so
Anonymous:             0 kB
7f0000002000-7f0000004000 r-xp 00001000 08:01 77                         /usr/lib/a b.so
Anonymous:             8 kB
7f0000004000-7f0000005000 r--s 00000000 08:01 78                         /var/x
Anonymous:             0 kB
7f0000005000-7f0000006000 rw-s 00000000 00:01 79                         /dev/zero (deleted)
Anonymous:             0 kB
7f0000006000-7f0000007000 rw-s 00000000 00:05 80                         /memfd:canvas-segment (deleted)
Anonymous:             0 kB
7f0000007000-7f0000008000 r--p 00000000 00:00 0                          [vvar]
";

    #[test]
    fn what_a_dump_keeps_of_each() {
        let maps = parse(TEXT.as_bytes());
        let keeps: Vec<_> = maps.iter().map(Map::keep).collect();
        let none = Keep::Nothing;
        let want = [
            Keep::Bytes(0x21000),
            none,
            none,
            Keep::Bytes(0x1000),
            Keep::Bytes(0x2000),
            Keep::Bytes(0),
            Keep::Bytes(0x1000),
            none,
            none,
        ];
        assert_eq!(keeps, want);
        assert_eq!(maps[3].name, PathBuf::from("/usr/lib/a b.so"));
        assert_eq!((maps[4].offset, maps[4].inode), (0x1000, 77));
    }

    #[test]
    fn what_the_program_wants_left_out_has_no_bytes() {
        let maps = parse(
            b"10000-20000 rw-p 00000000 00:00 0\nVmFlags: rd wr mr mw me dd nh\n\
              600000000000-600000010000 rw-p 00000000 00:00 0\nVmFlags: rd wr dd\n\
              600000020000-600000030000 rw-p 00001000 00:00 0\nVmFlags: rd wr dd\n",
        );
        let flags: Vec<bool> = maps.iter().map(|m| m.left_out).collect();
        assert_eq!(flags, [true, false, false], "managed memory always has dd");
        let ranges = [
            0x6000_0000_4000..0x6000_0000_5000,
            0x6000_0000_8000..0x6000_0002_2000,
            0x6000_0002_f000..0x6000_0004_0000,
        ];
        let split = leave_out(maps, &ranges);
        let low = |addr: usize| addr & 0xfffff;
        let got: Vec<_> = split
            .iter()
            .map(|m| (low(m.start), low(m.end), m.offset, m.left_out))
            .collect();
        let want = [
            (0x10000, 0x20000, 0, true),
            (0, 0x4000, 0, false),
            (0x4000, 0x5000, 0x4000, true),
            (0x5000, 0x8000, 0x5000, false),
            (0x8000, 0x10000, 0x8000, true),
            (0x20000, 0x22000, 0x1000, true),
            (0x22000, 0x2f000, 0x3000, false),
            (0x2f000, 0x30000, 0x10000, true),
        ];
        assert_eq!(got, want);
        assert_eq!(split[2].keep(), Keep::Bytes(0));
        assert_eq!(split[3].keep(), Keep::Bytes(0x3000));
    }

    #[test]
    fn nonsense_is_no_mapping() {
        for line in [
            "",
            "x",
            "1-2",
            "2-1 rw-p 0 0:0 0",
            "zz-1 rw-p 0 0:0 0",
            "Rss: 4 kB",
        ] {
            assert_eq!(parse(line.as_bytes()), [], "{line}");
        }
    }
}
