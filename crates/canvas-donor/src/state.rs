//! What operators see: counters, and the state file.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::fcntl::OFlag;
use serde::Serialize;

use crate::server::Shared;

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests to read.
    pub reads: AtomicU64,
    /// Requests to write.
    pub writes: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Requests answered with an error.
    pub refused: AtomicU64,
    /// Links accepted.
    pub links: AtomicU64,
    /// Peers that failed the handshake.
    pub not_admitted: AtomicU64,
    /// Links closed because of an invalid message or frame.
    pub bad_peers: AtomicU64,
    /// Slabs whose clients were asked to move them.
    pub evicted_slabs: AtomicU64,
    /// Of those, slabs freed at the deadline, not by their clients.
    pub evicted_late_slabs: AtomicU64,
    /// Slabs freed before their deadline because the host ran out of memory.
    pub freed_early_slabs: AtomicU64,
    /// Of those, slabs without another known copy.
    pub freed_early_sole_slabs: AtomicU64,
    /// Slabs freed because a lease expired.
    pub expired_slabs: AtomicU64,
    /// Slabs exposed to RDMA links, counted each time.
    pub exposed_slabs: AtomicU64,
    /// Direct read channels opened.
    pub lanes: AtomicU64,
    /// Queue pairs that joined direct read channels.
    pub lane_pairs: AtomicU64,
    /// Direct reads that were answered with bytes, except by devices.
    pub lane_reads: AtomicU64,
}

/// The donor's state; docs/OPERATING.md describes the fields.
#[allow(missing_docs)]
#[derive(Serialize, Debug)]
pub struct State {
    pub canvas: &'static str,
    pub pid: u32,
    pub donor_id: String,
    pub listen: String,
    pub uptime_ms: u64,
    /// `ok`, `evicting`, `pressure` or `ending`.
    pub health: &'static str,
    pub memory_bytes: u64,
    pub limit_bytes: u64,
    pub reserve_bytes: u64,
    pub host_available_bytes: u64,
    pub host_average_bytes: u64,
    pub free_bytes: u64,
    pub lent_bytes: u64,
    pub touched_bytes: u64,
    pub slabs: usize,
    pub spare_slabs: usize,
    pub clients: Vec<ClientState>,
    pub counters: CounterValues,
}

/// A client's state.
#[allow(missing_docs)]
#[derive(Serialize, Debug)]
pub struct ClientState {
    /// The first bytes of the client's id: enough to tell clients apart, not enough to impersonate
    /// one.
    pub id: String,
    pub links: usize,
    pub slabs: usize,
    pub touched_bytes: u64,
    pub silent_ms: u64,
    pub lease_ms: u64,
}

/// Values of [`Counters`].
#[allow(missing_docs)]
#[derive(Serialize, Debug)]
pub struct CounterValues {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub refused: u64,
    pub links: u64,
    pub not_admitted: u64,
    pub bad_peers: u64,
    pub evicted_slabs: u64,
    pub evicted_late_slabs: u64,
    pub freed_early_slabs: u64,
    pub freed_early_sole_slabs: u64,
    pub expired_slabs: u64,
    pub exposed_slabs: u64,
    pub lanes: u64,
    pub lane_pairs: u64,
    pub lane_reads: u64,
}

impl Counters {
    fn values(&self) -> CounterValues {
        let get = |c: &AtomicU64| c.load(Relaxed);
        CounterValues {
            reads: get(&self.reads),
            writes: get(&self.writes),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
            refused: get(&self.refused),
            links: get(&self.links),
            not_admitted: get(&self.not_admitted),
            bad_peers: get(&self.bad_peers),
            evicted_slabs: get(&self.evicted_slabs),
            evicted_late_slabs: get(&self.evicted_late_slabs),
            freed_early_slabs: get(&self.freed_early_slabs),
            freed_early_sole_slabs: get(&self.freed_early_sole_slabs),
            expired_slabs: get(&self.expired_slabs),
            exposed_slabs: get(&self.exposed_slabs),
            lanes: get(&self.lanes),
            lane_pairs: get(&self.lane_pairs),
            lane_reads: get(&self.lane_reads),
        }
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The state as one line of JSON.
pub(crate) fn json(shared: &Shared, host_available_bytes: u64) -> String {
    serde_json::to_string(&state(shared, host_available_bytes))
        .expect("numbers and strings always become JSON")
}

/// Collects the state.
pub(crate) fn state(shared: &Shared, host_available_bytes: u64) -> State {
    let totals = shared.registry.totals();
    let pong = shared.registry.pong();
    let (host_average_bytes, limit_bytes) = shared.registry.headroom();
    let now_ms = shared.now_ms();
    let clients = shared.registry.clients();
    State {
        canvas: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        donor_id: hex(&shared.donor_id),
        listen: shared.listening.to_string(),
        uptime_ms: now_ms,
        health: if shared.is_ending() {
            "ending"
        } else if pong.pressure {
            "pressure"
        } else if totals.leaving > 0 {
            "evicting"
        } else {
            "ok"
        },
        memory_bytes: shared.config.memory_bytes,
        limit_bytes,
        reserve_bytes: shared.reserve_bytes,
        host_available_bytes,
        host_average_bytes,
        free_bytes: pong.free_bytes,
        lent_bytes: totals.lent_bytes,
        touched_bytes: totals.touched_bytes,
        slabs: totals.slabs,
        spare_slabs: totals.spare,
        clients: clients
            .iter()
            .map(|f| ClientState {
                id: hex(&f.client.id[..4]),
                links: f.client.link_count(),
                slabs: f.slabs,
                touched_bytes: f.touched_bytes,
                silent_ms: now_ms.saturating_sub(f.client.last_ms()),
                lease_ms: f.client.lease_ms(),
            })
            .collect(),
        counters: shared.counters.values(),
    }
}

/// Replaces the file atomically, so that readers never see half of it. Anything at the new file's
/// place is removed, and never written to or followed: others may have write access to the
/// directory.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    match fs::remove_file(&name) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(&name)?;
    writeln!(file, "{text}")?;
    fs::rename(&name, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_put_in_the_way_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("state.json"), dir.path().join("victim"));
        fs::write(&victim, "dear").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("state.json.new")).unwrap();
        write(&path, "one").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "dear");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
        // A hard link, a killed donor's leftover, and a directory, which stays.
        let new = dir.path().join("state.json.new");
        fs::hard_link(&victim, &new).unwrap();
        write(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "dear");
        fs::write(&new, "half").unwrap();
        write(&path, "three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::create_dir(&new).unwrap();
        assert!(write(&path, "four").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
    }
}
