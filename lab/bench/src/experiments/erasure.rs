//! Compares copies with erasure codes: memory, latency and loss while donors die.

use std::time::{Duration, Instant};

use canvas_shm::far::SLAB_BYTES;
use serde_json::Value;

use super::steady::{self, Steady};
use super::{Below, FAR, FarParts};
use crate::engine::donors::Donors;
use crate::engine::program::Fail;
use crate::engine::script::{Case, Script, Stage, failed, now_unix_s};
use crate::record::{Far, Sample};
use crate::variant::Variant;

/// Number of donors; three die, the last two at the same time.
const DONORS: u32 = 9;
/// Timeout of repair.
const PATIENCE: Duration = Duration::from_secs(120);

const fn of(copies: &'static str) -> Case {
    Case {
        workload: steady::NAME,
        parameters: &[],
        below: Below::CanvasFar(FarParts { copies, ..FAR }),
    }
}

/// Definition of the experiment.
pub const SCRIPT: Script = Script {
    name: "erasure",
    about: "copies against erasure codes: memory, latency and loss while one donor dies, then two at once",
    paper: None,
    cases: &[of("2"), of("3"), of("2+1"), of("4+2")],
    in_order: false,
    needs: &[],
    needs_root: false,
    repeats: 3,
    scale: 1.0,
    run,
};

/// Number of parts of a slab, and of those that hold data, from `K+M`.
fn shards(copies: &str) -> (u64, u64) {
    let number = |text: &str| text.parse().unwrap_or(1);
    match copies.split_once('+') {
        Some((data, more)) => (number(data) + number(more), number(data)),
        None => (number(copies), 1),
    }
}

/// A run with one value of `--copies`.
struct Run<'a> {
    stage: &'a Stage<'a>,
    tenant: String,
    program: Steady,
    donors: Donors,
    copies: String,
}

/// Slabs of the program, and the parts that donors hold.
struct Held {
    slabs: u64,
    parts: u64,
    is_degraded: bool,
    /// Address of each donor, and the parts it holds.
    donors: Vec<(String, u64)>,
}

fn held(status: &Value) -> Held {
    let slabs = status["used"]["far_bytes"].as_u64().unwrap_or(0);
    let mut held = Held {
        slabs: slabs.div_ceil(SLAB_BYTES as u64),
        parts: 0,
        is_degraded: status["far"]["degraded_slabs"] != 0,
        donors: Vec::new(),
    };
    for donor in status["donors"].as_array().into_iter().flatten() {
        let parts = donor["slabs"].as_u64().unwrap_or(0);
        let address = donor["address"].as_str().unwrap_or_default();
        held.donors.push((address.to_owned(), parts));
        if donor["state"] == "up" || donor["state"] == "pressure" {
            held.parts += parts;
        }
    }
    held
}

impl Run<'_> {
    fn held(&mut self) -> Result<Held, Fail> {
        self.program.check()?;
        Ok(held(&self.stage.status(&self.tenant)?))
    }

    /// Waits until each slab has all its parts at living donors.
    fn repaired(&mut self) -> Result<Held, Fail> {
        let wanted = shards(&self.copies).0;
        self.stage.until("repair", PATIENCE, || {
            let held = self.held()?;
            let is_whole = !held.is_degraded && held.parts >= wanted * held.slabs;
            Ok(is_whole.then_some(held))
        })
    }

    /// Donors of the first slab, while the program has no other.
    fn first_holders(&mut self) -> Result<Vec<String>, Fail> {
        let wanted = shards(&self.copies).0 as usize;
        self.stage.until("its first slab", PATIENCE, || {
            self.program.check()?;
            // Early on the tenant cannot be queried.
            let Ok(status) = self.stage.status(&self.tenant) else {
                return Ok(None);
            };
            let found = held(&status).donors.into_iter().filter(|(_, n)| *n > 0);
            let found: Vec<String> = found.map(|(address, _)| address).collect();
            Ok((found.len() >= wanted).then_some(found))
        })
    }

    /// Kills `count` donors: a single one that holds much but nothing of the first slab, or several that hold
    /// parts of it, as many as a slab survives.
    fn kill(&mut self, count: usize, first: &[String]) -> Result<(), Fail> {
        let mut parts = self.held()?.donors;
        parts.retain(|(address, _)| self.donors.addresses().contains(&address.as_str()));
        parts.sort_by_key(|(address, n)| {
            (
                first.contains(address) == (count == 1),
                std::cmp::Reverse(*n),
            )
        });
        for (address, _) in parts.iter().take(count) {
            self.donors.kill(address);
        }
        Ok(())
    }

    /// Runs the program for a while, after `killed` donors died.
    fn phase(&mut self, killed: usize, first: &[String]) -> Result<Sample, Fail> {
        let mut sample = self.stage.sample_with("killed", killed);
        self.kill(killed, first)?;
        let (began, died) = (now_unix_s(), Instant::now());
        self.stage.pause(self.stage.seconds(5.0))?;
        self.program.check()?;
        steady::apply(&self.program.ticks(began, now_unix_s()), &mut sample);
        if killed > 0 {
            self.repaired()?;
            // The program ran between phases; no figure covers that time.
            sample.far = Some(Far {
                recovery_s: Some(died.elapsed().as_secs_f64()),
                ..Far::default()
            });
        }
        sample.figures.insert("lost".to_owned(), 0.0);
        Ok(sample)
    }

    /// Runs all phases; adds their samples to `samples`.
    fn phases(&mut self, samples: &mut Vec<Sample>) -> Result<(), Fail> {
        let first = self.first_holders()?;
        self.program.filled(self.stage)?;
        let whole = self.repaired()?;
        let data = shards(&self.copies).1;
        for killed in 0..=2 {
            let mut sample = self.phase(killed, &first)?;
            if killed == 0 {
                let over = whole.parts as f64 / data as f64 / whole.slabs.max(1) as f64;
                sample.figures.insert("memory_times".to_owned(), over);
            }
            samples.push(sample);
        }
        match self.program.end(self.stage)? {
            true => Ok(()),
            false if self.program.is_lost() => Err(failed("a page was lost")),
            false => Err(failed("a page was wrong")),
        }
    }
}

fn run(stage: &Stage, case: &Case) -> Result<Vec<Sample>, Fail> {
    let Variant::CanvasFar(below) = case.variant() else {
        return Err(failed("it is about donors"));
    };
    let mib = stage.mib(128);
    let donors = stage.donors(DONORS, (8 * mib) << 20, None)?;
    let tenant = stage.unique("erasure");
    let mut argv = vec![stage.canvas(), "run".to_owned()];
    argv.extend([
        format!("--local={}M", mib / 4),
        format!("--pool={}M", (mib / 32).max(4)),
        format!("--far={}M", 4 * mib),
        format!("--tenant={tenant}"),
        below.copies_flag(),
        "-ofar-wait=3s".to_owned(),
        "-oprefetch=none".to_owned(),
    ]);
    argv.extend(donors.servers());
    argv.push("--".to_owned());
    let mut run = Run {
        stage,
        tenant,
        program: Steady::start(stage, argv, mib)?,
        donors,
        copies: below.copies,
    };
    let mut samples = Vec::new();
    match run.phases(&mut samples) {
        Ok(()) => Ok(samples),
        // A lost page is the result of the phase that has none yet.
        Err(Fail::Error(_)) if run.program.is_lost() => {
            let mut lost = stage.sample_with("killed", samples.len().min(2));
            lost.figures.insert("lost".to_owned(), 1.0);
            samples.truncate(2);
            samples.push(lost);
            Ok(samples)
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_copies_and_codes() {
        assert_eq!(
            ["2", "3", "2+1", "4+2"].map(shards),
            [(2, 1), (3, 1), (3, 2), (6, 4)]
        );
    }

    #[test]
    fn a_status_says_what_donors_hold() {
        let status = serde_json::json!({
            "used": {"far_bytes": 2 * SLAB_BYTES + 1},
            "far": {"degraded_slabs": 0},
            "donors": [
                {"address": "a:1", "slabs": 3, "state": "up"},
                {"address": "b:1", "slabs": 2, "state": "dead"},
                {"address": "c:1", "slabs": 1, "state": "pressure"},
            ],
        });
        let held = held(&status);
        assert_eq!((held.slabs, held.parts, held.is_degraded), (3, 4, false));
        assert_eq!(held.donors[1], ("b:1".to_owned(), 2));
    }
}
