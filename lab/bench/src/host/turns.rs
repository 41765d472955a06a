//! Side-by-side comparisons: each program has a processor, and the two swap processors twice a second, so
//! that a disturbance of one processor hits both programs.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::error::ConfineError;
use crate::processes;

/// Time between two swaps.
const TURN: Duration = Duration::from_millis(500);

/// One side: processes with their descendants, and threads of the bench that work for them.
#[derive(Default)]
pub struct Side {
    /// Pids and start times.
    trees: Mutex<Vec<(u32, u64)>>,
    threads: Mutex<Vec<Pid>>,
}

impl Side {
    /// Adds a process with all its descendants.
    pub fn add_tree(&self, pid: u32, start_ticks: u64) {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        trees.push((pid, start_ticks));
    }

    /// Adds a thread.
    pub fn add_thread(&self, thread: Pid) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
    }

    fn all(&self) -> Vec<Pid> {
        let trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        let processes = trees
            .iter()
            .flat_map(|(pid, at)| processes::tree(*pid, *at));
        let mut all: Vec<Pid> = processes.flat_map(threads_of).collect();
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend_from_slice(&threads);
        all
    }
}

fn threads_of(pid: u32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let number = |task: fs::DirEntry| task.file_name().to_str()?.parse().ok();
    let numbers = tasks.into_iter().flatten().flatten().filter_map(number);
    numbers.map(Pid::from_raw).collect()
}

/// One processor for each of two sides.
pub struct Turns([CpuSet; 2]);

impl Turns {
    /// The first two processors that the bench may use.
    pub fn new() -> Result<Turns, ConfineError> {
        let ours = sched_getaffinity(Pid::from_raw(0))?;
        let mut all = (0..CpuSet::count()).filter(|i| ours.is_set(*i).unwrap_or(false));
        let mut one = || {
            let mut set = CpuSet::new();
            set.set(all.next().ok_or(ConfineError::OnlyOne)?)?;
            Ok::<CpuSet, ConfineError>(set)
        };
        Ok(Turns([one()?, one()?]))
    }

    /// Swaps the sides' processors until `over`.
    pub fn take(&self, sides: &[Side; 2], over: &AtomicBool) {
        let mut turn = 0;
        while !over.load(Ordering::Relaxed) {
            for (i, side) in sides.iter().enumerate() {
                for thread in side.all() {
                    // The thread may have ended since.
                    let _ = sched_setaffinity(thread, &self.0[(i + turn) % 2]);
                }
            }
            turn += 1;
            let next = Instant::now() + TURN;
            while Instant::now() < next && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn sides_are_on_different_processors_and_swap_them() {
        let Ok(turns) = Turns::new() else {
            return;
        };
        let mut children = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
        let sides = [Side::default(), Side::default()];
        for (child, side) in children.iter().zip(&sides) {
            let ticks = processes::stat(child.id()).unwrap().start_ticks;
            side.add_tree(child.id(), ticks);
        }
        let now = || {
            let of = |child: &std::process::Child| {
                let set = sched_getaffinity(Pid::from_raw(child.id().cast_signed())).unwrap();
                (0..CpuSet::count())
                    .filter(|i| set.is_set(*i).unwrap())
                    .collect::<Vec<_>>()
            };
            [of(&children[0]), of(&children[1])]
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| turns.take(&sides, &over));
            let until = Instant::now() + Duration::from_secs(20);
            let mut seen: Vec<[Vec<usize>; 2]> = Vec::new();
            while seen.len() < 2 && Instant::now() < until {
                let both = now();
                let is_apart = both.iter().all(|set| set.len() == 1) && both[0] != both[1];
                if is_apart && !seen.contains(&both) {
                    seen.push(both);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(seen.len(), 2, "{seen:?}");
        });
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
