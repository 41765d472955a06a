//! Formats figures and names for a terminal.

use std::fmt;
use std::io::{self, Write};

use canvas_control::features::Features;
pub use canvas_control::text::Bytes;

/// A count with a unit of a thousand: `12k`; at most five characters.
pub struct Count(pub f64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n >= 9.9995e9 => format!("{:.0}G", (n / 1e9).min(9999.0)),
            n if n >= 9_999_500.0 => format!("{:.0}M", n / 1e6),
            n if n >= 9_999.5 => format!("{:.0}k", n / 1e3),
            n => format!("{n:.0}"),
        };
        f.pad(&text)
    }
}

/// A time in ns as microseconds; at most five characters.
pub struct Micros(pub u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0 as f64 / 1e3;
        let text = match us {
            us if us >= 99_999.5 => Count(us).to_string(),
            us if us >= 9.95 => format!("{us:.0}"),
            us => format!("{us:.1}"),
        };
        f.pad(&text)
    }
}

/// Bytes per second as MiB per second; at most five characters.
pub struct MibPerS(pub f64);

impl fmt::Display for MibPerS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 / f64::from(1 << 20) {
            mib if mib >= 999.95 => Count(mib).to_string(),
            mib => format!("{mib:.1}"),
        };
        f.pad(&text)
    }
}

/// A run's name and pid; the pid is never cut.
pub fn run_name(tenant: &str, pid: u32, width: usize) -> String {
    let (tenant, number) = (plain(tenant), format!(".{pid}"));
    let room = width.saturating_sub(number.len());
    let is_long = tenant.chars().count() > room;
    let kept = if is_long {
        room.saturating_sub(1)
    } else {
        room
    };
    let mut text: String = tenant.chars().take(kept).collect();
    text.push_str(if is_long { "~" } else { "" });
    format!("{:<width$}", text + &number)
}

/// Cells of features for `canvas stat --features` and `canvas top`, in the order of their columns.
pub fn feature_cells(f: &Features) -> [String; 8] {
    let percent = |r: Option<f64>| r.map_or("-".to_owned(), |r| format!("{:.0}%", r * 100.0));
    let fine = |r: Option<f64>| match r {
        Some(r) if r < 0.0995 => format!("{:.1}%", r * 100.0),
        r => percent(r),
    };
    [
        percent(f.fragment_ratio),
        percent(f.store_ratio),
        percent(f.sequential_ratio),
        percent(f.hot_ratio),
        f.compression.map_or("-".to_owned(), |c| match c {
            c if c >= 99.95 => format!("{c:.0}x"),
            c => format!("{c:.1}x"),
        }),
        percent(f.file_ratio),
        fine(f.slowdown),
        fine(f.stall_ratio),
    ]
}

/// Text chosen by others, without characters that would move a terminal's cursor.
pub fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let shown: Box<dyn Iterator<Item = char>> = if c.is_control() {
                Box::new(c.escape_default())
            } else {
                Box::new(std::iter::once(c))
            };
            shown
        })
        .collect()
}

/// Writes to standard output; false when nobody reads it any more.
pub fn print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (bytes, want) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0K"),
            (1024, "1.0K"),
            (10 << 20, "10M"),
            ((3 << 30) / 2, "1.5G"),
            (1023 << 20, "1.0G"),
            (u64::MAX, "16777216T"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), want);
        }
        assert_eq!(Count(9999.0).to_string(), "9999");
        assert_eq!(Count(12_345.0).to_string(), "12k");
        assert_eq!(Count(12e6).to_string(), "12M");
        assert_eq!(Micros(4500).to_string(), "4.5");
        assert_eq!(Micros(123_456).to_string(), "123");
        assert_eq!(Micros(123_456_789).to_string(), "123k");
        assert_eq!(MibPerS(999.9 * f64::from(1 << 20)).to_string(), "999.9");
        assert_eq!(MibPerS(1e12).to_string(), "954k");
        for n in [9999.4, 9999.6, 9_999_499.0, 1e9, 9.9994e9, 1e10, 1e300] {
            let shown = [
                Count(n).to_string(),
                Micros(n as u64).to_string(),
                MibPerS(n).to_string(),
            ];
            assert!(shown.iter().all(|text| text.len() <= 5), "{shown:?}");
        }
        assert_eq!(format!("{:>6}|", Bytes(5)), "     5|");
    }

    #[test]
    fn small_slowdowns_have_a_digit_more() {
        let f = Features {
            store_ratio: Some(0.256),
            compression: Some(2.96),
            slowdown: Some(0.0234),
            stall_ratio: Some(0.0999),
            ..Features::default()
        };
        let cells = feature_cells(&f);
        assert_eq!(cells, ["-", "26%", "-", "-", "3.0x", "-", "2.3%", "10%"]);
    }

    #[test]
    fn a_long_name_keeps_its_number() {
        assert_eq!(run_name("web", 9889, 18), "web.9889          ");
        let long = "a-tenant-of-a-long-name";
        assert_eq!(run_name(long, 4_194_303, 18), "a-tenant-~.4194303");
        assert_eq!(run_name("a-tenant-o", 4_194_303, 18), "a-tenant-o.4194303");
    }

    #[test]
    fn a_name_moves_no_cursor() {
        assert_eq!(plain("a\x1b[2Jb\nc\u{e9}"), "a\\u{1b}[2Jb\\nc\u{e9}");
    }
}
