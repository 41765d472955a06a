//! Working set of a workload: its peak anonymous memory in a plain run, measured once.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use super::Bench;
use super::error::NeedError;
use super::plan::{self, Member, Set};
use super::program::{self, Job, Stopped};
use crate::record::{Outcome, Sample};
use crate::registry;
use crate::variant::Variant;

/// Interval at which memory is sampled; short, since short peaks count.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Working set and answer of a workload, from a plain run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Working set in bytes; 0 if the program ended before the first sample.
    pub bytes: u64,
    /// Its answer.
    pub answer: Option<String>,
}

/// A program with its arguments and its scale (as bits).
type Key = (String, Vec<String>, u64);

/// Results so far, with errors.
#[derive(Default)]
pub struct WorkingSets {
    known: HashMap<Key, Result<Need, NeedError>>,
}

impl Bench<'_> {
    /// Working set of a member, from a plain run at the first call.
    pub(super) fn working_set(
        &mut self,
        set: &Set,
        member: &Member,
    ) -> Result<Result<Need, NeedError>, Stopped> {
        let key = (
            member.workload.clone(),
            member.args.clone(),
            member.scale(set.scale).to_bits(),
        );
        if let Some(known) = self.sets.known.get(&key) {
            return Ok(known.clone());
        }
        self.progress
            .now(&format!("measuring the working set of {}", member.workload));
        let need = self.measure(set, member)?;
        match &need {
            Ok(n) => self.progress.say(&format!(
                "{}: working set {} MiB",
                member.workload,
                n.bytes >> 20
            )),
            Err(e) => self.progress.say(&format!("{}: {e}", member.workload)),
        }
        self.sets.known.insert(key, need.clone());
        Ok(need)
    }

    fn measure(&self, set: &Set, member: &Member) -> Result<Result<Need, NeedError>, Stopped> {
        let Some(workload) = registry::find(self.all, &member.workload) else {
            return Ok(Err(NeedError::NotBuilt));
        };
        let number = self.next_number();
        let scratch = match program::run_dir(&self.scratch, number) {
            Ok(dir) => dir,
            Err(e) => return Ok(Err(NeedError::NotBegun(Arc::new(e)))),
        };
        let job = Job {
            side: None,
            workload,
            args: &member.args,
            variant: &Variant::Local,
            limit_bytes: None,
            pool_bytes: 0,
            far_bytes: 0,
            network: None,
            shared: None,
            company: None,
            alone: true,
            swap: None,
            may_swap: false,
            place: plan::place(self.request, member.scale(set.scale), &scratch),
            number,
            look_every: LOOK_EVERY,
            expected: None,
        };
        let sample = program::run(&self.context, &job, Sample::default())?;
        let _ = fs::remove_dir_all(scratch);
        Ok(match (sample.outcome, sample.memory_peak_bytes) {
            (Outcome::Ok, bytes) => Ok(Need {
                bytes: bytes.unwrap_or(0),
                answer: sample.answer,
            }),
            (Outcome::Failed(why), _) => Err(NeedError::Failed(why)),
            (Outcome::Timeout, _) => Err(NeedError::Hung),
            (other, _) => Err(NeedError::Ended(super::table::word(&other))),
        })
    }
}
