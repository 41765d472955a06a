//! Prints the state of a run's far memory: `far_state PID`, with the PID of its agent. It prints the number of slabs
//! that lack a copy, reads that failed over, and copies that did not verify. For tests that must not remove the next
//! copy before the last one is repaired.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::SeqCst;

use canvas_shm::Far;

fn main() -> ExitCode {
    let Some(pid) = std::env::args().nth(1) else {
        eprintln!("usage: far_state PID");
        return ExitCode::from(2);
    };
    let open = segment(&pid).and_then(|path| {
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| e.to_string())
    });
    match open
        .map_err(|e| e.to_string())
        .and_then(|file| Far::map(OwnedFd::from(file)).map_err(|e| e.desc().to_owned()))
    {
        Ok(far) => {
            let s = &far.stats;
            println!(
                "{} {} {}",
                s.degraded_slabs.load(SeqCst),
                s.failovers.load(SeqCst),
                s.corrupt.load(SeqCst)
            );
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("far_state: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The segment among the agent's descriptors.
fn segment(pid: &str) -> Result<PathBuf, String> {
    let dir = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(|e| e.to_string())?;
    dir.filter_map(|e| Some(e.ok()?.path()))
        .find(|p| {
            std::fs::read_link(p).is_ok_and(|l| l.as_os_str() == "/memfd:canvas-segment (deleted)")
        })
        .ok_or_else(|| format!("process {pid} has no segment"))
}
