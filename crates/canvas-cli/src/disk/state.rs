//! State of a disk, for files and metrics; docs/OPERATING.md lists its fields.

use std::fmt::Error;
use std::path::PathBuf;
use std::time::Duration;

use canvas_control::metrics::{Out, text};
use canvas_disk::DiskStats;
use canvas_disk::nbd::ClientStats;
use canvas_types::PAGE_SIZE;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde::Serialize;

use crate::args::DiskArgs;
use canvas_control::settings::table::{NBD, VHOST_USER};

/// State of a disk at one time.
#[derive(Debug, Serialize)]
pub struct State {
    canvas: &'static str,
    pid: u32,
    /// Sockets; null if it is not served that way.
    vhost_user: Option<String>,
    nbd: Option<String>,
    /// Block device of this host.
    device: Option<String>,
    uptime_ms: u64,
    /// Number of servers that died, and of their pages that are damaged.
    restarts: u32,
    lost_pages: u64,
    health: &'static str,
    size_bytes: u64,
    stored_pages: u64,
    same_pages: u64,
    stored_bytes: u64,
    pool_bytes: u64,
    pool_bytes_max: u64,
    far_bytes: u64,
    far_bytes_max: u64,
    /// Compression ratio of the pages in the pool; `None` while there are none.
    ratio: Option<f64>,
    clients: u64,
    counters: Counters,
}

/// Counters since its start.
#[derive(Debug, Serialize)]
struct Counters {
    reads: u64,
    writes: u64,
    clean_writes: u64,
    refused: u64,
    damaged: u64,
    far_reads: u64,
    lane_reads: u64,
    unreachable: u64,
    accepted: u64,
    turned_away: u64,
    bad_clients: u64,
}

/// Compression ratio of the pages in the pool; `None` while there are none.
pub fn ratio(disk: &DiskStats) -> Option<f64> {
    let bytes = disk.stored_pages * PAGE_SIZE as u64;
    (disk.pool_bytes > 0).then(|| bytes as f64 / disk.pool_bytes as f64)
}

impl State {
    /// Combines the figures of the disk and its server.
    pub fn new(
        (args, device): (&DiskArgs, Option<&str>),
        health: &'static str,
        uptime: Duration,
        (restarts, lost_pages): (u32, u64),
        disk: &DiskStats,
        clients: &ClientStats,
    ) -> State {
        let page = PAGE_SIZE as u64;
        let path = |key| (args.settings.get(key)).map(|p: PathBuf| p.display().to_string());
        State {
            canvas: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            vhost_user: path(VHOST_USER),
            nbd: path(NBD),
            device: device.map(str::to_owned),
            uptime_ms: uptime.as_millis() as u64,
            restarts,
            lost_pages,
            health,
            size_bytes: disk.pages * page,
            stored_pages: disk.stored_pages,
            same_pages: disk.same_pages,
            stored_bytes: disk.stored_bytes,
            pool_bytes: disk.pool_bytes,
            pool_bytes_max: disk.pool_bytes_max,
            far_bytes: disk.far_bytes,
            far_bytes_max: disk.far_bytes_max,
            ratio: ratio(disk),
            clients: clients.clients,
            counters: Counters {
                reads: disk.reads,
                writes: disk.writes,
                clean_writes: disk.clean_writes,
                refused: disk.refused,
                damaged: disk.damaged,
                far_reads: disk.far_reads,
                lane_reads: disk.lane_reads,
                unreachable: disk.unreachable,
                accepted: clients.accepted,
                turned_away: clients.turned_away,
                bad_clients: clients.nonsense,
            },
        }
    }

    /// As a JSON object.
    pub fn json(&self) -> String {
        // All its values can be written as JSON.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// As metrics.
    pub fn metrics(self) -> String {
        let socket = self.vhost_user.clone().or_else(|| self.nbd.clone());
        let socket = socket.or_else(|| self.device.clone());
        text("socket", socket.unwrap_or_default(), Metrics(self))
    }
}

#[derive(Debug)]
struct Metrics(State);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut out = Out(encoder);
        let s = &self.0;
        for (name, help, value) in [
            ("canvas_disk_size_bytes", "The disk.", s.size_bytes),
            ("canvas_disk_stored_pages", "Pages stored.", s.stored_pages),
            (
                "canvas_disk_same_pages",
                "Of those: pages of one value.",
                s.same_pages,
            ),
            (
                "canvas_disk_stored_bytes",
                "Size of these pages as stored.",
                s.stored_bytes,
            ),
            (
                "canvas_disk_pool_bytes",
                "Memory of the pool in use.",
                s.pool_bytes,
            ),
            (
                "canvas_disk_pool_limit_bytes",
                "Limit on the pool.",
                s.pool_bytes_max,
            ),
            (
                "canvas_disk_far_bytes",
                "Far memory in use, in whole slabs.",
                s.far_bytes,
            ),
            (
                "canvas_disk_far_limit_bytes",
                "Limit on far memory.",
                s.far_bytes_max,
            ),
            ("canvas_disk_clients", "Clients.", s.clients),
            (
                "canvas_disk_lost_pages",
                "Pages found damaged after a server died.",
                s.lost_pages,
            ),
        ] {
            out.gauge(name, help, value as f64)?;
        }
        out.counter(
            "canvas_disk_restarts",
            "Servers that died.",
            u64::from(s.restarts),
        )?;
        let c = &s.counters;
        for (name, help, value) in [
            ("canvas_disk_reads", "Pages read.", c.reads),
            ("canvas_disk_writes", "Pages written.", c.writes),
            (
                "canvas_disk_clean_writes",
                "Of those: pages with unchanged contents.",
                c.clean_writes,
            ),
            (
                "canvas_disk_refused",
                "Writes refused because there was no room.",
                c.refused,
            ),
            (
                "canvas_disk_far_reads",
                "Pages read from beyond the pool.",
                c.far_reads,
            ),
            (
                "canvas_disk_lane_reads",
                "Of those: pages read directly from a donor.",
                c.lane_reads,
            ),
            (
                "canvas_disk_unreachable",
                "Reads that found no copy.",
                c.unreachable,
            ),
            ("canvas_disk_damaged", "Reads of damaged pages.", c.damaged),
            (
                "canvas_disk_accepted",
                "Clients that were accepted.",
                c.accepted,
            ),
            (
                "canvas_disk_turned_away",
                "Clients refused because there were too many.",
                c.turned_away,
            ),
            (
                "canvas_disk_bad_clients",
                "Sessions that broke the NBD protocol.",
                c.bad_clients,
            ),
        ] {
            out.counter(name, help, value)?;
        }
        Ok(())
    }
}
