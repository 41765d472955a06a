//! `canvas end`: ends a tenant of the host's agent.

use std::time::Duration;

use canvas_shm::pass;
use canvas_types::exit;
use nix::errno::Errno;

use crate::args::EndArgs;
use crate::error::Failure;
use canvas_agent::daemon::socket::{path_to_ask, receive_within, send_within};
use canvas_control::hello::{Answer, Ask, BYTES_MAX, VERSION};
use canvas_control::names::judge_name;

/// Most time for each answer of the agent, which waits at most a second for donors.
const WAIT: Duration = Duration::from_secs(10);

/// Ends a tenant of the host's agent.
pub fn run(args: &EndArgs) -> Result<i32, Failure> {
    judge_name(&args.tenant).map_err(Failure::usage)?;
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => path_to_ask(),
    };
    let fail = |e: Errno| {
        Failure::usage(format!(
            "the agent at {} does not answer: {}; write its place after --socket",
            path.display(),
            e.desc()
        ))
    };
    let agent = pass::connect(&path).map_err(fail)?;
    let ask = Ask::End {
        version: VERSION,
        name: args.tenant.clone(),
        force: args.force,
    };
    send_within(&agent, &ask.encode(), &[], WAIT).map_err(fail)?;
    let mut buf = [0; BYTES_MAX];
    let got = receive_within(&agent, &mut buf, WAIT).map_err(fail)?;
    match Answer::decode(&buf[..got.bytes]) {
        Ok(Answer::Changed { .. }) => {}
        Ok(Answer::Refused { why, .. }) => return Err(Failure::usage(why)),
        Ok(_) | Err(_) => {
            return Err(Failure::usage(
                "the agent's answer is not understood; use the same release of canvas for both",
            ));
        }
    }
    // The agent closes the connection when everything is freed.
    match receive_within(&agent, &mut buf, WAIT) {
        Ok(_) | Err(Errno::ECONNRESET) => Ok(exit::OK),
        Err(e) => Err(fail(e)),
    }
}
