//! Answers about a disk (`canvas disk`), in the form of those about a run.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use canvas_control::health::{Code, Facts, judge};
use canvas_control::settings::{Command, live_in};
use canvas_control::wire::{self, Ask, Disk, Limits, Reply, Stat, Status, Used};
use canvas_sys::proc::now_ns;
use canvas_types::PAGE_SIZE;
use canvas_types::units::Size;
use serde::{Deserialize, Serialize};

use super::beyond;
use super::set::{self, Change, Now, SetError};
use super::tenant::SCHEMA;
use crate::far::Keeper;
use crate::stats::slabs;
use crate::storage::Storage;

/// State of a disk, except its far memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServedDisk {
    /// Its tenant's name.
    pub name: String,
    /// Pid of its server.
    pub pid: u32,
    /// Size of its pool at the start, which is the maximum.
    pub pool_start_bytes: u64,
    /// Path of its socket.
    pub socket: String,
    /// Time since its start.
    pub uptime: Duration,
    /// Memory of its pool in use.
    pub pool_bytes: u64,
    /// Limit on its pool.
    pub pool_bytes_max: u64,
    /// Whether a write found no room a moment ago.
    pub is_full: bool,
    /// The fields that only disks have.
    pub disk: Disk,
}

impl ServedDisk {
    /// The answer to a request.
    pub fn answer(&self, line: &[u8], storage: Option<&mut Storage>) -> String {
        wire::answer(line, |ask| match ask {
            Ask::Status => Reply::Status(Box::new(self.status(storage.as_deref()))),
            Ask::Stat => Reply::Stat(Box::new(self.stat(storage.as_deref()))),
            Ask::Set(pairs) => match self.set(&pairs, storage) {
                Ok(()) => Reply::Done,
                Err(why) => why.reply(),
            },
        })
    }

    /// The answer if the holder of its far memory cannot be reached: changes are refused.
    pub fn answer_alone(&self, line: &[u8]) -> String {
        wire::answer(line, |ask| match ask {
            Ask::Status => Reply::Status(Box::new(self.status(None))),
            Ask::Stat => Reply::Stat(Box::new(self.stat(None))),
            Ask::Set(_) => Reply::Refused(SetError::DiskWithoutHolder.to_string()),
        })
    }

    /// Makes all changes or none.
    fn set(
        &self,
        pairs: &[(String, String)],
        storage: Option<&mut Storage>,
    ) -> Result<(), SetError> {
        let storage = storage.ok_or(SetError::DiskWithoutFar)?;
        let keys = live_in(Command::Disk);
        let is_alien = |key: &str| !keys.contains(&key);
        if let Some((key, _)) = pairs.iter().find(|(key, _)| is_alien(key)) {
            return Err(SetError::NotOfDisk(key.clone()));
        }
        let (segment, area) = (storage.segment, storage.far);
        let agent = storage.keeper();
        let now = Now {
            has_limit: false,
            pool_used: segment.pool_bytes.load(Relaxed).max(0) as u64,
            slabs: Some(slabs(area)),
            places: agent.places(),
            terms: agent.terms(),
            pool_grant: agent.pool().map(|p| p.grant_bytes),
            has_shared: false,
            nodes: Vec::new(),
        };
        let changes = set::plan(pairs, &now)?;
        let pools = changes.iter().filter_map(|c| match c {
            Change::Pool(bytes) => Some(*bytes),
            _ => None,
        });
        if let Some(bytes) = pools.max().filter(|bytes| *bytes > self.pool_start_bytes) {
            return Err(SetError::PoolOfDisk {
                wanted: Size::from_bytes(bytes),
                most: Size::from_bytes(self.pool_start_bytes),
            });
        }
        // First what can fail.
        let is_granted = now.pool_grant.is_some();
        if let Some(change) = set::for_agent(&changes, is_granted) {
            storage.keeper_mut().change(change)?;
        }
        for change in changes {
            beyond::apply(change, segment, Some(area), is_granted);
        }
        Ok(())
    }

    fn status(&self, storage: Option<&Storage>) -> Status {
        let agent = storage.map(Storage::keeper);
        let limits = Limits {
            prefetch: "none".to_owned(),
            ..match storage {
                Some(storage) => beyond::limits(storage.segment, agent),
                None => Limits {
                    pool_bytes: self.pool_bytes_max,
                    ..Limits::default()
                },
            }
        };
        let beside = storage.map(Storage::beside).unwrap_or_default();
        let mut used = Used {
            far_pages_bytes: self.disk.stored_pages * PAGE_SIZE as u64,
            pool_bytes: self.pool_bytes,
            far_bytes: agent.map_or(0, beyond::far_bytes),
            segment_bytes: beside.segment_bytes,
            agent_bytes: beside.agent_bytes,
            ..Used::default()
        };
        used.memory_bytes = used.sum();
        let said = agent.and_then(Keeper::status);
        let far = agent.map(|a| beyond::far(a, said.as_ref()));
        let mut health = judge(&Facts {
            limits: &limits,
            used: &used,
            far: far.as_ref(),
            agent: said.as_ref().map(|s| (s, beyond::age(s))),
            agent_restarts: agent.is_some_and(Keeper::restarts),
            stopped: false,
            host: None,
            verify_failures: self.disk.damaged,
            unmanaged: 0,
        });
        if self.is_full {
            let why = "there is no room for more pages: writes fail with ENOSPC";
            health.push(Code::PoolFull.problem(why));
            health.sort_by(|a, b| a.code.cmp(&b.code));
        }
        Status {
            schema: SCHEMA.to_owned(),
            tenant: self.name.clone(),
            pid: self.pid,
            program: self.socket.clone(),
            canvas_version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.uptime.as_millis() as f64 / 1000.0,
            mode: None,
            healthy: health.is_empty(),
            health,
            limits,
            used,
            processes: vec![self.pid],
            far,
            nodes: Vec::new(),
            donors: said.map(beyond::donors).unwrap_or_default(),
            shared: None,
            disk: Some(self.disk),
            slow_faults: Default::default(),
        }
    }

    /// Its counters: reads and writes count like a program's pages swapped in and out.
    fn stat(&self, storage: Option<&Storage>) -> Stat {
        let counters = [
            ("pages_in", self.disk.reads),
            ("pages_out", self.disk.writes),
            ("faults_beyond_pool", self.disk.far_reads),
        ];
        Stat {
            at_ns: now_ns(),
            status: self.status(storage),
            counters: BTreeMap::from(counters.map(|(name, n)| (name.to_owned(), n))),
            fault_ns: Vec::new(),
            fault_ns_max: 0,
            features: Default::default(),
        }
    }
}
