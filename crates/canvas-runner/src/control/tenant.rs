//! Answers about a run, and its changes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use canvas_shm::files::Files;
use canvas_shm::nodes::NodeBook;
use canvas_shm::segment::{Counter, Mode, Segment};
use canvas_sys::proc::now_ns;

use super::set::{self, Change, Now, SetError};
use super::{beyond, features};
use crate::beside::Sides;
use crate::far::Keeper;
use crate::recordings::Book;
use crate::stats::{
    granted_shared, mode_name, needed_bytes, page_bytes, proactive_batch_bytes,
    proactive_threshold_bytes, slabs,
};
use crate::sweep::Sample;
use canvas_agent::members::wake_all;
use canvas_control::health::{Facts, judge};
use canvas_control::metrics;
use canvas_control::peers::Asked;
use canvas_control::wire::{self, Ask, Limits, Node, Reply, SlowFaults, Stat, Status, Used};

/// Name and version of the schema of [`Status`].
pub const SCHEMA: &str = "canvas-status/1";

/// A run.
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// CMD, without its arguments.
    pub program: String,
    /// How faults are delivered.
    pub mode: Option<Mode>,
    /// The segment that its processes share.
    pub segment: &'static Segment,
    /// When CMD was started.
    pub start: Instant,
    /// Identifies the tenant to all its runs; `None` if it cannot be joined.
    pub shared: Option<String>,
    /// Managed shared memory, if any.
    pub shared_memory: Option<Files>,
    /// Memory besides that of its processes.
    pub sides: Sides,
    /// The file of `learn`.
    pub book: Option<Book>,
}

impl Tenant {
    /// The answer to a request.
    pub fn answer(&self, asked: Asked, agent: Option<&mut Keeper>) -> String {
        let line = match asked {
            Asked::Line(line) => line,
            Asked::Metrics => return metrics::of_run(self.stat(agent.as_deref())),
        };
        wire::answer(line, |ask| match ask {
            Ask::Status => Reply::Status(Box::new(self.status(agent.as_deref()))),
            Ask::Stat => Reply::Stat(Box::new(self.stat(agent.as_deref()))),
            Ask::Set(pairs) => match self.set(&pairs, agent) {
                Ok(()) => Reply::Done,
                Err(why) => why.reply(),
            },
        })
    }

    fn status(&self, agent: Option<&Keeper>) -> Status {
        let segment = self.segment;
        let config = &segment.config;
        let sample = Sample::take(segment);
        let local_bytes = config.local_bytes.load(Relaxed);
        let local_ppm = config.local_ppm.load(Relaxed);
        let files = self.shared_memory.as_ref();
        let limits = Limits {
            local_bytes: (local_bytes != 0).then_some(local_bytes),
            local_percent: (local_bytes == 0 && local_ppm != 0)
                .then(|| local_ppm as f64 / 10_000.0),
            local_effective_bytes: segment.local_limit_pages().map(page_bytes),
            local_needed_bytes: needed_bytes(segment.needed_pages.load(Relaxed)),
            prefetch: config.prefetch().name().to_owned(),
            app_tier: config.app_tier().name().to_owned(),
            shared_bytes: files.map(|f| page_bytes(f.control().limit_pages.load(Relaxed))),
            shared_grant_bytes: files.and_then(|_| granted_shared(segment)),
            proactive_threshold_bytes: proactive_threshold_bytes(segment),
            proactive_batch_bytes: proactive_batch_bytes(segment),
            slo: Some(config.slo())
                .filter(|slo| slo.is_on())
                .map(|slo| slo.to_string()),
            ..beyond::limits(segment, agent)
        };
        let beside = self.sides.look(agent);
        let mut used = Used {
            local_bytes: page_bytes(segment.local_pages.load(Relaxed)),
            resident_bytes: page_bytes(sample.resident_pages),
            cache_bytes: page_bytes(sample.cached_pages),
            native_bytes: page_bytes(sample.native_pages),
            metadata_bytes: sample.metadata_pages.map(page_bytes),
            swapped_bytes: page_bytes(sample.swapped_pages),
            far_pages_bytes: page_bytes(sample.far_pages),
            pool_bytes: segment.pool_bytes.load(Relaxed).max(0) as u64,
            far_bytes: agent.map_or(0, beyond::far_bytes),
            footprint_bytes: page_bytes(segment.footprint_pages.load(Relaxed)),
            shared_bytes: files.map_or(0, |f| page_bytes(f.resident_pages())),
            shared_store_bytes: files.map_or(0, |f| page_bytes(f.store_pages())),
            nodes_bytes: nodes(segment)
                .map(|n| n.used_bytes)
                .fold(0, u64::saturating_add),
            segment_bytes: beside.segment_bytes,
            agent_bytes: beside.agent_bytes,
            memory_bytes: 0,
        };
        used.memory_bytes = used.sum();
        let said = agent.and_then(Keeper::status);
        let far = agent.map(|a| beyond::far(a, said.as_ref()));
        let health = judge(&Facts {
            limits: &limits,
            used: &used,
            far: far.as_ref(),
            agent: said.as_ref().map(|s| (s, beyond::age(s))),
            agent_restarts: agent.is_some_and(Keeper::restarts),
            stopped: segment.far_full.load(Relaxed) != 0,
            host: crate::reserve::left(segment),
            verify_failures: segment.total(Counter::VerifyFailure),
            unmanaged: segment.unmanaged.load(Relaxed),
        });
        Status {
            schema: SCHEMA.to_owned(),
            tenant: self.name.clone(),
            pid: std::process::id(),
            program: self.program.clone(),
            canvas_version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.start.elapsed().as_millis() as f64 / 1000.0,
            mode: self.mode.map(|m| mode_name(m).to_owned()),
            healthy: health.is_empty(),
            health,
            limits,
            used,
            processes: self.sides.lives().numbers(segment).collect(),
            far,
            nodes: nodes(segment).collect(),
            donors: said.map(beyond::donors).unwrap_or_default(),
            shared: self.shared.clone(),
            disk: None,
            slow_faults: SlowFaults::of(&segment.slow, now_ns()),
        }
    }

    fn stat(&self, agent: Option<&Keeper>) -> Stat {
        let (fault_ns, fault_ns_max) = self.segment.fault_times();
        let counter = |c: &Counter| (c.json_name().to_owned(), self.segment.total(*c));
        Stat {
            at_ns: now_ns(),
            status: self.status(agent),
            counters: Counter::ALL.iter().map(counter).collect(),
            fault_ns: fault_ns.to_vec(),
            fault_ns_max,
            features: features::look(
                Some(self.sides.lives()),
                self.segment,
                self.mode,
                &Sample::take(self.segment),
            ),
        }
    }

    /// Makes all changes or none.
    fn set(
        &self,
        pairs: &[(String, String)],
        mut agent: Option<&mut Keeper>,
    ) -> Result<(), SetError> {
        let segment = self.segment;
        let area = agent.as_ref().map(|a| a.far());
        let now = Now {
            has_limit: segment.has_limit(),
            pool_used: segment.pool_bytes.load(Relaxed).max(0) as u64,
            slabs: area.map(slabs),
            places: agent.as_ref().and_then(|a| a.places()),
            terms: agent.as_ref().map(|a| a.terms()).unwrap_or_default(),
            pool_grant: agent.as_ref().and_then(|a| a.pool()).map(|p| p.grant_bytes),
            has_shared: self.shared_memory.is_some(),
            nodes: segment
                .nodes()
                .iter()
                .filter_map(NodeBook::number)
                .collect(),
        };
        let changes = set::plan(pairs, &now)?;
        // First what can fail.
        let is_granted = now.pool_grant.is_some();
        if let (Some(change), Some(agent)) = (set::for_agent(&changes, is_granted), agent.as_mut())
        {
            agent.change(change)?;
        }
        for change in changes {
            match change {
                Change::Local(amount) => segment.set_local(amount),
                Change::Shared(pages) => {
                    if let Some(files) = &self.shared_memory {
                        files.control().limit_pages.store(pages, Relaxed);
                        // The host's agent reads the limit there.
                        let bytes = page_bytes(pages);
                        segment.config.shared_bytes.store(bytes, Relaxed);
                    }
                }
                Change::AppTier(tier) => {
                    segment.config.app_tier.store(tier as u32, Relaxed);
                }
                Change::Prefetch(who) => segment.config.prefetch.store(who as u32, Relaxed),
                Change::ProactiveThreshold(threshold) => segment
                    .config
                    .proactive_threshold
                    .store(threshold.number(), Relaxed),
                Change::ProactiveBatch(pages) => {
                    segment.config.proactive_batch_pages.store(pages, Relaxed)
                }
                Change::Slo(slo) => segment.config.slo.store(slo.number(), Relaxed),
                Change::Numa(bounds) => {
                    for (node, bound) in segment.nodes.iter().zip(bounds) {
                        if let Some(bytes) = bound {
                            node.bound_bytes.store(bytes, Relaxed);
                        }
                    }
                }
                Change::Pool(_)
                | Change::SpillAt(_)
                | Change::FarWait(_)
                | Change::Unit(_)
                | Change::Lanes(_)
                | Change::Far(_)
                | Change::Copies(_)
                | Change::Weight(_)
                | Change::SwapIn(_)
                | Change::SwapOut(_) => beyond::apply(change, segment, area, is_granted),
            }
        }
        // The reclaim threads read the limits when they wake up.
        wake_all(segment);
        Ok(())
    }
}

/// The tenant's memory on NUMA nodes.
fn nodes(segment: &Segment) -> impl Iterator<Item = Node> {
    segment.nodes().iter().filter_map(|book| {
        Some(Node {
            node: book.number()?,
            limit_bytes: book.bound_bytes.load(Relaxed),
            used_bytes: book.bytes.load(Relaxed).max(0) as u64,
        })
    })
}
