//! `canvas advise`: how much local memory a program needs for a wanted speed.
//!
//! [`canvas_place::advise`] decides which sizes are tried. [`new`] starts the program once per
//! size; [`attached`] changes a program that is already running.

use canvas_place::advise::Search;
use canvas_types::exit;
use canvas_types::units::Size;
use serde::Serialize;

use crate::args::AdviseArgs;
use crate::error::Failure;
use crate::table::{Bytes, plain, print};

mod attached;
mod new;

/// The smallest local memory that is tried.
const FLOOR_BYTES: u64 = 8 << 20;
/// Rows of the table between the smallest size and all memory, with predicted speeds.
const ROWS: u64 = 8;

/// The command's output.
#[derive(Serialize, Debug)]
struct Told {
    schema: &'static str,
    /// The run's or the program's name.
    name: String,
    /// All memory of the program.
    footprint_bytes: u64,
    /// Its time with all memory local; `null` for a running program.
    alone_s: Option<f64>,
    sizes: Vec<Row>,
    advice: Vec<Wanted>,
}

/// The speed at a size.
#[derive(Serialize, Debug)]
struct Row {
    local_bytes: u64,
    speed: f64,
    is_measured: bool,
}

/// The size for a speed.
#[derive(Serialize, Debug)]
struct Wanted {
    speed_wanted: f64,
    /// `null` if no size is known to be enough.
    local_bytes: Option<u64>,
    speed: Option<f64>,
    is_measured: bool,
}

/// Prints the advice.
pub fn run(args: &AdviseArgs) -> Result<i32, Failure> {
    let signals = crate::signals::ends()
        .map_err(|e| Failure::usage(format!("signals cannot be read: {}", e.desc())))?;
    let told = match &args.tenant {
        Some(tenant) => attached::advise(tenant, args, &signals)?,
        None => new::advise(args, &signals)?,
    };
    let text = match args.json {
        true => serde_json::to_string(&told).unwrap_or_default() + "\n",
        false => table(&told),
    };
    print(&text);
    Ok(exit::OK)
}

/// Tries sizes with `measure` until all speeds have an answer, at most `tries` times.
fn search(
    search: &mut Search,
    speeds: &[f64],
    tries: u32,
    mut measure: impl FnMut(&mut Search, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for _ in 0..tries {
        let Some(next) = speeds.iter().find_map(|speed| search.next(*speed)) else {
            break;
        };
        measure(search, next)?;
    }
    Ok(())
}

/// Makes the output from a search.
fn told(name: String, alone_s: Option<f64>, search: &Search, speeds: &[f64]) -> Told {
    let four = |x: f64| (x * 1e4).round() / 1e4;
    let measured = search.points().iter().map(|p| Row {
        local_bytes: p.curve.local_bytes,
        speed: four(p.speed),
        is_measured: true,
    });
    let mut sizes: Vec<Row> = measured.collect();
    let all = search.footprint_bytes;
    let smallest = sizes.first().map_or(all, |row| row.local_bytes);
    for step in 1..=ROWS {
        let local_bytes = smallest + all.saturating_sub(smallest) / ROWS * step;
        let near = |row: &Row| row.local_bytes.abs_diff(local_bytes) < all / ROWS / 4;
        if let Some(speed) = search
            .foretell(local_bytes)
            .filter(|_| !sizes.iter().any(near))
        {
            sizes.push(Row {
                local_bytes,
                speed: four(speed),
                is_measured: false,
            });
        }
    }
    sizes.sort_by_key(|row| row.local_bytes);
    let wanted = |speed: &f64| {
        let advice = search.advice(*speed);
        let foretold = search.foretold(*speed);
        let (local_bytes, is, is_measured) = match (advice.speed, foretold) {
            (Some(is), _) => (Some(advice.local_bytes), Some(is), true),
            (None, Some(bytes)) => (Some(bytes), search.foretell(bytes), false),
            (None, None) => (None, None, false),
        };
        Wanted {
            speed_wanted: *speed,
            local_bytes,
            speed: is.map(four),
            is_measured,
        }
    };
    Told {
        schema: "canvas-advice/1",
        name,
        footprint_bytes: all,
        alone_s: alone_s.map(|s| (s * 1e3).round() / 1e3),
        sizes,
        advice: speeds.iter().map(wanted).collect(),
    }
}

fn table(told: &Told) -> String {
    let percent = |part: f64| format!("{:.0}%", part * 100.0);
    let all = told.footprint_bytes;
    let mut text = format!("{}: {} in all", plain(&told.name), Bytes(all));
    if let Some(alone_s) = told.alone_s {
        text += &format!(", {alone_s:.1} s alone");
    }
    text += "\n   local  of all  speed\n";
    for row in &told.sizes {
        let of_all = percent(row.local_bytes as f64 / all.max(1) as f64);
        let local = Bytes(row.local_bytes);
        let how = if row.is_measured { "measured" } else { "" };
        let line = format!("{local:>8}  {of_all:>6}  {:>5}  {how}", percent(row.speed));
        text += line.trim_end();
        text.push('\n');
    }
    for wanted in &told.advice {
        let speed = percent(wanted.speed_wanted);
        text += &match (wanted.local_bytes, wanted.speed, wanted.is_measured) {
            (Some(bytes), Some(is), true) => format!(
                "for {speed} of full speed: --local {} ({} measured)\n",
                whole_mib(bytes),
                percent(is)
            ),
            (Some(bytes), ..) if bytes < all => format!(
                "for {speed} of full speed: --local {} (predicted, not measured)\n",
                whole_mib(bytes)
            ),
            _ => format!("for {speed} of full speed: all of {}\n", Bytes(all)),
        };
    }
    text
}

/// Rounds up to a size for `--local`.
fn whole_mib(bytes: u64) -> Size {
    Size::from_bytes(bytes.next_multiple_of(1 << 20))
}
