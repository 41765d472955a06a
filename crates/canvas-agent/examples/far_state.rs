//! Prints how many slabs of a run lack a copy now: `far_state PID`, the process number of its agent.
//! For tests that must not take the next copy away before the last one is made good.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering::SeqCst;

use canvas_shm::Far;

fn main() -> ExitCode {
    let Some(pid) = std::env::args().nth(1) else {
        eprintln!("usage: far_state PID");
        return ExitCode::from(2);
    };
    // The agent's segment; canvas-cli, far.rs has the number.
    let open = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/fd/3"));
    match open
        .map_err(|e| e.to_string())
        .and_then(|file| Far::map(&OwnedFd::from(file)).map_err(|e| e.desc().to_owned()))
    {
        Ok(far) => {
            println!("{}", far.stats.degraded_slabs.load(SeqCst));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("far_state: {e}");
            ExitCode::FAILURE
        }
    }
}
