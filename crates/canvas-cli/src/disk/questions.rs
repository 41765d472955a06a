//! Requests of a server to its holder: only the holder may contact the agent that keeps the far
//! memory.
//!
//! Requests and answers are one message each; numbers match them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use canvas_agent::daemon::socket::receive_within;
use canvas_control::wire::REQUEST_BYTES_MAX;
use canvas_runner::ServedDisk;
use canvas_runner::storage::Storage;
use canvas_shm::pass;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::{Deserialize, Serialize};

/// How long a server waits for its holder, which may wait for the host's agent.
const WAIT: Duration = Duration::from_secs(4);
/// Most bytes of a request: escaping may make a line six times as long, and there is little else.
const QUESTION_BYTES_MAX: usize = 8 * REQUEST_BYTES_MAX;
/// Most bytes of an answer: a socket's buffer holds hardly more.
const ANSWER_BYTES_MAX: usize = 128 << 10;

#[derive(Serialize, Deserialize)]
struct Question {
    number: u64,
    disk: ServedDisk,
    line: String,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    number: u64,
    line: String,
}

/// Makes the two ends, for a holder and for a server that it starts.
pub fn pair() -> Result<(Asked, OwnedFd), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (ours, servers) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    Ok((Asked(ours), servers))
}

/// A server's connection to its holder.
pub struct Holder {
    fd: OwnedFd,
    asked: u64,
}

impl Holder {
    /// The end that the holder passed on.
    pub fn new(fd: OwnedFd) -> Holder {
        Holder { fd, asked: 0 }
    }

    /// The holder's answer to a request about the disk, or the server's own if there is none.
    pub fn ask(&mut self, disk: ServedDisk, line: &[u8]) -> String {
        let line = String::from_utf8_lossy(line).into_owned();
        self.asked += 1;
        let number = self.asked;
        let question = Question { number, disk, line };
        match self.answer_to(&question) {
            Some(answer) => answer,
            None => question.disk.answer_alone(question.line.as_bytes()),
        }
    }

    fn answer_to(&self, question: &Question) -> Option<String> {
        let bytes = serde_json::to_vec(question).ok()?;
        pass::send(&self.fd, &bytes, &[]).ok()?;
        let until = Instant::now() + WAIT;
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let got = receive_within(&self.fd, &mut bytes, left).ok()?;
            let answer: Answer = serde_json::from_slice(&bytes[..got.bytes]).ok()?;
            // Otherwise it answers an older request, for which nobody waits.
            if answer.number == question.number {
                return Some(answer.line);
            }
        }
    }
}

/// A holder's end.
pub struct Asked(OwnedFd);

impl Asked {
    /// Descriptor to wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Answers the server's requests, without waiting for any. False when the server is gone.
    pub fn answer(&self, storage: &mut Storage) -> bool {
        let mut bytes = vec![0; QUESTION_BYTES_MAX];
        loop {
            let got = match pass::receive(&self.0, &mut bytes) {
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EINTR) => continue,
                Ok(got) if got.bytes > 0 => got,
                Ok(_) | Err(_) => return false,
            };
            let Ok(question) = serde_json::from_slice::<Question>(&bytes[..got.bytes]) else {
                return false;
            };
            let Question { number, disk, line } = question;
            let line = disk.answer(line.as_bytes(), Some(storage));
            let answer = serde_json::to_vec(&Answer { number, line }).unwrap_or_default();
            // If the server has stopped waiting, it needs no answer.
            let _ = pass::send(&self.0, &answer, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_control::wire::{Ask, Disk, Request, VERSION};

    fn disk() -> ServedDisk {
        ServedDisk {
            name: "vm".to_owned(),
            pid: 77,
            pool_start_bytes: 1 << 20,
            socket: "/run/vm.sock".to_owned(),
            uptime: Duration::from_millis(1500),
            pool_bytes: 5000,
            pool_bytes_max: 1 << 20,
            is_full: false,
            disk: Disk {
                ratio: Some(2.5),
                ..Disk::default()
            },
        }
    }

    fn line(ask: Ask) -> Vec<u8> {
        serde_json::to_vec(&Request {
            canvas: VERSION,
            ask,
        })
        .unwrap()
    }

    #[test]
    fn the_holder_is_asked_by_number_and_late_answers_are_passed_over() {
        let (asked, servers) = pair().unwrap();
        let mut holder = Holder::new(servers);
        let holders = std::thread::spawn(move || {
            let mut bytes = vec![0; QUESTION_BYTES_MAX];
            let got = receive_within(&asked.0, &mut bytes, Duration::from_secs(20)).unwrap();
            let question: Question = serde_json::from_slice(&bytes[..got.bytes]).unwrap();
            for (number, line) in [(0, "late"), (question.number, "right")] {
                let line = line.to_owned();
                let answer = serde_json::to_vec(&Answer { number, line }).unwrap();
                pass::send(&asked.0, &answer, &[]).unwrap();
            }
            question
        });
        assert_eq!(holder.ask(disk(), b"a \"line\" \xff"), "right");
        let question = holders.join().unwrap();
        assert_eq!(question.disk, disk());
        assert_eq!(question.line, "a \"line\" \u{fffd}");
    }

    /// The longest line that a server reads fits, however it is escaped.
    #[test]
    fn a_server_whose_holder_is_gone_answers_alone_and_changes_nothing() {
        let (asked, servers) = pair().unwrap();
        let mut holder = Holder::new(servers);
        let long = vec![1; REQUEST_BYTES_MAX];
        let number = 9;
        let line_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (disk_of, line_long) = (disk(), line_of(&long));
        let question = Question {
            number,
            disk: disk_of,
            line: line_long,
        };
        assert!(serde_json::to_vec(&question).unwrap().len() < QUESTION_BYTES_MAX);
        drop(asked);
        let status = holder.ask(disk(), &line(Ask::Status));
        assert!(
            status.contains("\"pid\":77") && status.contains("\"uptime_s\":1.5"),
            "{status}"
        );
        let set = Ask::Set(vec![("weight".to_owned(), "7".to_owned())]);
        let refused = holder.ask(disk(), &line(set));
        assert!(refused.contains("does not answer"), "{refused}");
    }
}
