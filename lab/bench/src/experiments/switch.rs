//! Moving the far memory of a running program to another place: canvas against swapoff.

use std::time::{Duration, Instant};

use canvas_shm::far::SLAB_BYTES;
use canvas_workloads::steady::Tick;

use super::steady::{self, Steady};
use super::{Below, FAR, FarParts};
use crate::engine::program::{Fail, far_dir};
use crate::engine::script::{Case, Script, Stage, failed, now_unix_s};
use crate::host::swap::Swap;
use crate::record::Sample;
use crate::variant::Variant;
use crate::workload::Argv;

/// Duration of the work before the move, and after it.
const BEFORE: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(6);
/// Timeout of the move.
const PATIENCE: Duration = Duration::from_secs(300);
/// A program has recovered when it reaches this share of its final speed.
const FULL: f64 = 0.8;
/// A slow tick without another one within this time is noise.
const NEAR_S: f64 = 0.35;

/// Definition of the experiment.
pub const SCRIPT: Script = Script {
    name: "switch",
    about: "moving far memory of a running program: canvas from disk to donor, the kernel from a swap file to zram by swapoff",
    paper: Some("xDM (SC '24), switching backends"),
    cases: &[
        Case {
            workload: steady::NAME,
            parameters: &[],
            below: Below::CanvasFar(FarParts {
                copies: "disk",
                ..FAR
            }),
        },
        Case {
            workload: steady::NAME,
            parameters: &[],
            below: Below::Disk,
        },
    ],
    in_order: false,
    needs: &[],
    needs_root: true,
    repeats: 3,
    scale: 1.0,
    run,
};

/// A move: its beginning, and the time at which the old place was empty, in seconds since 1970.
struct Move {
    began_s: f64,
    drained_s: f64,
}

fn rate(tick: &Tick) -> f64 {
    tick.steps as f64 / tick.seconds
}

fn median_rate<'a>(ticks: impl Iterator<Item = &'a Tick>) -> Option<f64> {
    crate::stats::median(&ticks.map(rate).collect::<Vec<_>>())
}

/// Computes the figures of a move.
fn judge(ticks: &[Tick], moved: &Move, sample: &mut Sample) -> Result<(), Fail> {
    let Move { began_s, drained_s } = *moved;
    let settled_s = drained_s + AFTER.as_secs_f64() / 2.0;
    let before = median_rate(ticks.iter().filter(|t| t.unix_s < began_s));
    let after = median_rate(ticks.iter().filter(|t| t.unix_s >= settled_s));
    let (Some(before), Some(after)) = (before, after) else {
        return Err(failed(
            "the program did nothing before the move, or after it",
        ));
    };
    let later: Vec<&Tick> = ticks.iter().filter(|t| t.unix_s >= began_s).collect();
    let slow = later.iter().filter(|t| rate(t) < FULL * after);
    let slow: Vec<f64> = slow.map(|t| t.unix_s).collect();
    let has_company = |s: &&f64| slow.iter().filter(|o| (**s - **o).abs() < NEAR_S).count() > 1;
    let last = slow
        .iter()
        .filter(has_company)
        .copied()
        .fold(began_s, f64::max);
    let longest = later.iter().map(|t| t.longest_ns).max().unwrap_or(0);
    sample.seconds = Some(drained_s - began_s);
    for (name, value) in [
        ("longest_access_ms", longest as f64 / 1e6),
        ("full_speed_s", last - began_s),
        ("before_per_s", before),
        ("after_per_s", after),
    ] {
        sample.figures.insert(name.to_owned(), value);
    }
    Ok(())
}

/// Moves from the disk to a donor, by `canvas set`.
fn by_canvas(stage: &Stage, mib: u64) -> Result<(Steady, Move), Fail> {
    let donors = stage.donors(1, (4 * mib) << 20, None)?;
    let tenant = stage.unique("switch");
    let mut argv = vec![stage.canvas(), "run".to_owned()];
    argv.extend([
        format!("--local={}M", mib / 4),
        "--pool=8M".to_owned(),
        format!("--far={}M", 4 * mib),
        format!("--to=disk:{}", far_dir(stage.cache())?.display()),
        "--copies=disk".to_owned(),
        format!("--tenant={tenant}"),
    ]);
    argv.extend(donors.servers());
    argv.push("--".to_owned());
    let mut program = Steady::start(stage, argv, mib)?;
    program.filled(stage)?;
    stage.pause(BEFORE)?;
    let began_s = now_unix_s();
    stage.ask(&["set", &tenant, "copies=1"])?;
    stage.until("the move", PATIENCE, || {
        program.check()?;
        let status = stage.status(&tenant)?;
        let donors = status["donors"].as_array().into_iter().flatten();
        let slabs: u64 = donors.filter_map(|d| d["slabs"].as_u64()).sum();
        let is_there = Some(slabs * SLAB_BYTES as u64) == status["used"]["far_bytes"].as_u64();
        Ok((is_there && status["far"]["degraded_slabs"] == 0).then_some(()))
    })?;
    let drained_s = now_unix_s();
    stage.pause(AFTER)?;
    let moved = Move { began_s, drained_s };
    // The donor must outlive the program.
    end(stage, &mut program)?;
    Ok((program, moved))
}

/// Moves from a swap file to zram.
fn by_kernel(stage: &Stage, mib: u64) -> Result<(Steady, Move), Fail> {
    let swap_failed = |e: crate::host::error::SwapError| failed(e.to_string());
    let bytes = (2 * mib) << 20;
    let mut swap = Swap::on(&Variant::Disk, bytes, stage.cache(), &[], stage.undo())
        .map_err(swap_failed)?
        .ok_or_else(|| failed("there is no swap"))?;
    let group = stage.group("switch", Some((mib / 4) << 20))?;
    // The shell that enters the group execs the program.
    let entered = group.wrap(&Argv::default());
    let mut program = Steady::start(stage, entered.argv, mib)?;
    program.filled(stage)?;
    stage.pause(BEFORE)?;
    let (began, began_s) = (Instant::now(), now_unix_s());
    swap.add_zram(bytes, stage.undo()).map_err(swap_failed)?;
    swap.off_first().map_err(|e| failed(e.to_string()))?;
    let drained_s = began_s + began.elapsed().as_secs_f64();
    stage.pause(AFTER)?;
    let moved = Move { began_s, drained_s };
    end(stage, &mut program)?;
    Ok((program, moved))
}

fn end(stage: &Stage, program: &mut Steady) -> Result<(), Fail> {
    program.check()?;
    match program.end(stage)? {
        true => Ok(()),
        false => Err(failed("a page was lost or wrong")),
    }
}

fn run(stage: &Stage, case: &Case) -> Result<Vec<Sample>, Fail> {
    let mib = stage.mib(256);
    let (program, moved) = match case.below {
        Below::Disk => by_kernel(stage, mib)?,
        _ => by_canvas(stage, mib)?,
    };
    let mut sample = stage.sample();
    let ticks = program.ticks(0.0, moved.drained_s + AFTER.as_secs_f64());
    judge(&ticks, &moved, &mut sample)?;
    Ok(vec![sample])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_over_when_its_program_is_as_fast_as_in_the_end() {
        let tick = |tenths: u32, steps| Tick {
            unix_s: f64::from(tenths) / 10.0,
            seconds: 0.1,
            steps,
            longest_ns: if tenths == 25 { 7_000_000 } else { 1000 },
            access_histogram: Vec::new(),
        };
        // Slow until 3.0 s, and one slow tick much later.
        let steps = |tenths| {
            if tenths <= 30 || tenths == 60 {
                10
            } else {
                100
            }
        };
        let ticks: Vec<Tick> = (0..120).map(|n| tick(n, steps(n))).collect();
        let moved = Move {
            began_s: 2.0,
            drained_s: 2.5,
        };
        let mut sample = Sample::default();
        judge(&ticks, &moved, &mut sample).unwrap();
        let figure = |name| (sample.figures[name] * 1e3).round() / 1e3;
        assert_eq!(sample.seconds, Some(0.5));
        assert_eq!(figure("full_speed_s"), 1.0);
        assert_eq!(
            (figure("before_per_s"), figure("after_per_s")),
            (100.0, 1000.0)
        );
        assert_eq!(figure("longest_access_ms"), 7.0);
        assert!(judge(&ticks[..30], &moved, &mut sample).is_err());
    }
}
