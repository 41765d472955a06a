//! Confines programs to some of the processors for a while, for example to their fair share.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::error::ConfineError;

/// While this lives, this thread, and the programs and threads it starts, run on some of its processors.
/// Existing threads are not moved.
pub struct Confined(CpuSet);

impl Confined {
    /// Confines to the first processor.
    pub fn to_one() -> Result<Confined, ConfineError> {
        Confined::to(0)
    }

    /// Confines to the first processors: `percent` of their number, at least one.
    pub fn to(percent: u32) -> Result<Confined, ConfineError> {
        Confined::within(|ours| Ok(&ours[..share(ours.len(), percent)]))
    }

    /// Confines to the first half, or with `second` to the rest, so that the two halves do not compete.
    pub fn to_half(second: bool) -> Result<Confined, ConfineError> {
        Confined::within(|ours| {
            let (first, rest) = ours.split_at(ours.len() / 2);
            match (first.is_empty(), second) {
                (true, _) => Err(ConfineError::OnlyOne),
                (_, false) => Ok(first),
                (_, true) => Ok(rest),
            }
        })
    }

    fn within(
        part_of: impl Fn(&[usize]) -> Result<&[usize], ConfineError>,
    ) -> Result<Confined, ConfineError> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        let ours: Vec<usize> = (0..CpuSet::count())
            .filter(|i| before.is_set(*i).unwrap_or(false))
            .collect();
        let mut part = CpuSet::new();
        for i in part_of(&ours)? {
            part.set(*i)?;
        }
        sched_setaffinity(Pid::from_raw(0), &part)?;
        Ok(Confined(before))
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // These processors were allowed a moment ago, so this cannot fail.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// Number of processors that are `percent` of `all`.
fn share(all: usize, percent: u32) -> usize {
    (all * percent as usize).div_ceil(100).clamp(1, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_nothing_and_never_more_than_all() {
        assert_eq!(
            [
                (2, 50),
                (1, 50),
                (3, 50),
                (4, 25),
                (4, 1),
                (400, 0),
                (4, 900)
            ]
            .map(|(all, p)| share(all, p)),
            [1, 1, 2, 1, 1, 1, 4]
        );
    }

    #[test]
    fn what_is_started_meanwhile_is_confined_and_the_thread_is_free_afterwards() {
        let now = || std::thread::available_parallelism().unwrap().get();
        let all = now();
        {
            let _one = Confined::to_one().unwrap();
            assert_eq!(std::thread::spawn(now).join().unwrap(), 1);
            let child = std::process::Command::new("nproc").output().unwrap();
            assert_eq!(child.stdout, b"1\n");
        }
        assert_eq!(now(), all);
    }

    #[test]
    fn the_halves_have_no_processor_in_common() {
        let ours = || {
            let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let all = (0..CpuSet::count()).filter(|i| set.is_set(*i).unwrap());
            all.collect::<Vec<_>>()
        };
        let all = ours();
        let half = |second| Confined::to_half(second).map(|_confined| ours());
        if all.len() < 2 {
            assert!(half(true).is_err() && half(false).is_err());
            return;
        }
        let both = [half(false).unwrap(), half(true).unwrap()];
        assert_eq!(both.concat(), all);
        assert_eq!(ours(), all);
    }
}
