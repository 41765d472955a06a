//! Metrics in the OpenMetrics text format; docs/OPERATING.md lists them.

use std::borrow::Cow;
use std::fmt::Error;

use canvas_shm::histogram::BUCKETS;
use canvas_shm::segment::Counter;
use canvas_shm::slow::Cause;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::health::Code;
use crate::wire::{Donor, Far, Node, SlowFaults, Stat, Status};

/// The format's largest value, the upper bound of the last bucket.
const INFINITE: f64 = f64::MAX;
/// Buckets per power of two, and the powers that are exported: 256 ns to 17 s.
const PER_POWER: usize = 4;
const POWERS: std::ops::Range<usize> = 8..34;

/// Names and values of labels.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Metrics of a run.
pub fn of_run(stat: Stat) -> String {
    let tenant = stat.status.tenant.clone();
    text("tenant", tenant, Run(stat))
}

/// The text of `metrics` with a label of its own.
pub fn text(label: &'static str, value: String, metrics: impl Collector) -> String {
    let labels = [(Cow::Borrowed(label), Cow::Owned(value))];
    let mut registry = Registry::with_labels(labels.into_iter());
    registry.register_collector(Box::new(metrics));
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Writes metrics, one family per call.
pub struct Out<'a>(pub DescriptorEncoder<'a>);

impl Out<'_> {
    /// Writes a counter.
    pub fn counter<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        value: V,
    ) -> Result<(), Error> {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, V, f64>(&value, None)
    }

    /// Writes the counters of one family, distinguished by labels.
    pub fn counters<'l, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels<'l>, V)>,
    ) -> Result<(), Error> {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            let mut one = metric.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, V, f64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes a gauge.
    pub fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> Result<(), Error> {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    /// Writes the gauges of one family, distinguished by labels.
    pub fn gauges<'l, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels<'l>, V)>,
    ) -> Result<(), Error> {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Run(Stat);

impl Collector for Run {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut out = Out(encoder);
        let status = &self.0.status;
        let program = escaped(&status.program);
        let info = [
            ("program", program.as_str()),
            ("version", status.canvas_version.as_str()),
        ];
        out.gauges(
            "canvas_run_info",
            "What runs.",
            [(&info[..], 1i64)].into_iter(),
        )?;
        encode_counters(&mut out, &self.0)?;
        encode_memory(&mut out, status)?;
        encode_bounds(&mut out, status)?;
        encode_nodes(&mut out, &status.nodes)?;
        if let Some(far) = &status.far {
            encode_far(&mut out, far)?;
        }
        encode_donors(&mut out, &status.donors)?;
        encode_health(&mut out, status)?;
        encode_slow(&mut out, &status.slow_faults)?;
        encode_features(&mut out, &self.0)?;
        let (buckets, count) = buckets(&self.0.fault_ns);
        let sum = self.0.features.fault_ns as f64 / 1e9;
        let help = "Faults by how long they took.";
        let mut metric =
            out.0
                .encode_descriptor("canvas_fault_seconds", help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

fn encode_counters(out: &mut Out, stat: &Stat) -> Result<(), Error> {
    for counter in Counter::ALL {
        let name = counter.json_name();
        let value = stat.counters.get(name).copied().unwrap_or(0);
        match counter {
            Counter::FaultSleepNs => out.counter(
                "canvas_fault_sleep_seconds",
                "Time that threads slept in faults: until far memory answered, another process freed memory, or the pool had room.",
                value as f64 / 1e9,
            )?,
            Counter::FaultCpuNs => out.counter(
                "canvas_fault_cpu_seconds",
                "Processor time that faults took (one in 32 is measured).",
                value as f64 / 1e9,
            )?,
            Counter::ReclaimCpuNs => out.counter(
                "canvas_reclaim_cpu_seconds",
                "Processor time of the reclaim threads.",
                value as f64 / 1e9,
            )?,
            Counter::ReclaimWantedNs => out.counter(
                "canvas_reclaim_wanted_seconds",
                "Of that, time in which no processor was idle, so the program could have used it.",
                value as f64 / 1e9,
            )?,
            Counter::ProactiveNs => out.counter(
                "canvas_pages_in_proactive_seconds",
                "Time that the reclaim threads spent on proactive swap-in.",
                value as f64 / 1e9,
            )?,
            _ => out.counter(&format!("canvas_{name}"), counter.describe(), value)?,
        }
    }
    Ok(())
}

/// Memory of the program and its stored pages.
fn encode_memory(out: &mut Out, status: &Status) -> Result<(), Error> {
    let (used, limits) = (&status.used, &status.limits);
    for (name, help, value) in [
        (
            "canvas_local_bytes",
            "Local memory in use.",
            Some(used.local_bytes),
        ),
        (
            "canvas_local_limit_bytes",
            "Limit on local memory.",
            limits.local_effective_bytes,
        ),
        (
            "canvas_resident_bytes",
            "Managed pages that are mapped.",
            Some(used.resident_bytes),
        ),
        (
            "canvas_cache_bytes",
            "Pages in the swap cache.",
            Some(used.cache_bytes),
        ),
        (
            "canvas_native_bytes",
            "Memory that canvas does not page, its own included.",
            Some(used.native_bytes),
        ),
        (
            "canvas_metadata_bytes",
            "Of that, canvas's own: tables, stacks, its library's data, patched code.",
            used.metadata_bytes,
        ),
        (
            "canvas_swapped_bytes",
            "Memory of the processes in the host's swap.",
            Some(used.swapped_bytes),
        ),
        (
            "canvas_far_pages_bytes",
            "Pages that exist only as far copies, at their full size.",
            Some(used.far_pages_bytes),
        ),
        (
            "canvas_footprint_bytes",
            "Local and far pages together.",
            Some(used.footprint_bytes),
        ),
        (
            "canvas_pool_bytes",
            "Compressed pool in use.",
            Some(used.pool_bytes),
        ),
        (
            "canvas_pool_limit_bytes",
            "Limit on the compressed pool (--pool).",
            Some(limits.pool_bytes),
        ),
        (
            "canvas_pool_grant_bytes",
            "The part of that limit that the host's agent grants now, if it limits pools.",
            limits.pool_grant_bytes,
        ),
        (
            "canvas_shared_bytes",
            "Resident shared memory of forks, each page counted once.",
            limits.shared_bytes.map(|_| used.shared_bytes),
        ),
        (
            "canvas_shared_limit_bytes",
            "Limit on resident shared memory (--shared).",
            limits.shared_bytes,
        ),
        (
            "canvas_shared_grant_bytes",
            "The part of that limit that the host's agent grants now, if it limits shared memory.",
            limits.shared_grant_bytes,
        ),
        (
            "canvas_shared_store_bytes",
            "Far copies of shared pages; part of the compressed pool.",
            limits.shared_bytes.map(|_| used.shared_store_bytes),
        ),
    ] {
        if let Some(value) = value {
            out.gauge(name, help, value as f64)?;
        }
    }
    Ok(())
}

/// Memory on NUMA nodes.
fn encode_nodes(out: &mut Out, nodes: &[Node]) -> Result<(), Error> {
    if nodes.is_empty() {
        return Ok(());
    }
    let numbers: Vec<String> = nodes.iter().map(|n| n.node.to_string()).collect();
    let labels: Vec<_> = numbers.iter().map(|n| [("node", n.as_str())]).collect();
    for (name, help, of) in [
        (
            "canvas_node_bytes",
            "Memory of a NUMA node in use.",
            (|n| n.used_bytes) as fn(&Node) -> u64,
        ),
        (
            "canvas_node_limit_bytes",
            "Limit on memory of a NUMA node.",
            |n| n.limit_bytes,
        ),
    ] {
        let values = nodes.iter().map(of);
        let values = labels.iter().map(|l| &l[..]).zip(values);
        out.gauges(name, help, values.map(|(l, v)| (l, v as f64)))?;
    }
    Ok(())
}

fn encode_bounds(out: &mut Out, status: &Status) -> Result<(), Error> {
    let (used, limits) = (&status.used, &status.limits);
    for (name, help, value) in [
        (
            "canvas_far_bytes",
            "Far memory beyond the pool in use, in whole slabs.",
            status.far.map(|_| used.far_bytes),
        ),
        (
            "canvas_far_limit_bytes",
            "Limit on far memory beyond the pool.",
            limits.far_bytes,
        ),
        (
            "canvas_segment_bytes",
            "Memory that the run's processes and the agent share: counters, requests, buffers.",
            Some(used.segment_bytes),
        ),
        (
            "canvas_agent_memory_bytes",
            "Memory of the agent of this run alone.",
            status.far.map(|_| used.agent_bytes),
        ),
        (
            "canvas_memory_bytes",
            "All memory of this host that the run uses.",
            Some(used.memory_bytes),
        ),
        (
            "canvas_weight",
            "Weight among the tenants of the agent.",
            limits.weight.map(u64::from),
        ),
        (
            "canvas_swap_in_limit_bytes_per_second",
            "Limit on reads from far memory.",
            limits.swap_in_limit_bytes_per_s,
        ),
        (
            "canvas_swap_out_limit_bytes_per_second",
            "Limit on writes to far memory.",
            limits.swap_out_limit_bytes_per_s,
        ),
        (
            "canvas_processes",
            "Managed processes.",
            Some(status.processes.len() as u64),
        ),
    ] {
        if let Some(value) = value {
            out.gauge(name, help, value as f64)?;
        }
    }
    Ok(())
}

fn encode_far(out: &mut Out, far: &Far) -> Result<(), Error> {
    for (name, help, value) in [
        (
            "canvas_remote_written_bytes",
            "Bytes written beyond the pool, to the first copy.",
            far.bytes_out,
        ),
        (
            "canvas_remote_read_bytes",
            "Bytes read from beyond the pool.",
            far.bytes_in,
        ),
        (
            "canvas_remote_extents_written",
            "Extents written beyond the pool.",
            far.extents_out,
        ),
        (
            "canvas_remote_reads",
            "Reads from beyond the pool.",
            far.reads,
        ),
        (
            "canvas_remote_lane_reads",
            "Reads that faulting threads made directly from a donor.",
            far.lane_reads,
        ),
        (
            "canvas_remote_lane_pair_reads",
            "Of these, reads by RDMA.",
            far.lane_pair_reads,
        ),
        (
            "canvas_remote_failovers",
            "Reads that the first copy could not serve.",
            far.failovers,
        ),
        (
            "canvas_remote_decoded",
            "Reads reconstructed from other shards.",
            far.decoded,
        ),
        (
            "canvas_remote_corrupt",
            "Copies that were damaged or old.",
            far.corrupt,
        ),
        (
            "canvas_remote_repairs",
            "Slabs whose lost copy was replaced.",
            far.repairs,
        ),
        (
            "canvas_remote_dropped",
            "Prefetches dropped because they would have come too late.",
            far.dropped,
        ),
        (
            "canvas_remote_promoted",
            "Prefetches that a thread began to wait for before they were issued.",
            far.promoted,
        ),
    ] {
        out.counter(name, help, value)?;
    }
    out.gauge(
        "canvas_degraded_slabs",
        "Slabs with fewer copies than --copies asks for.",
        far.degraded_slabs as f64,
    )?;
    out.gauge(
        "canvas_disk_behind_bytes",
        "Bytes not yet on the disk (copies=1+disk-async).",
        far.disk_behind_bytes as f64,
    )?;
    out.gauge(
        "canvas_agents",
        "Agent processes started so far.",
        f64::from(far.agents),
    )?;
    Ok(())
}

/// Page features of the run so far, and the counters from which those of an interval follow.
fn encode_features(out: &mut Out, stat: &Stat) -> Result<(), Error> {
    let sums = &stat.features;
    let of = sums.features((stat.status.uptime_s * 1e9) as u64);
    out.counter(
        "canvas_cpu_seconds",
        "Processor time of running processes and of children they waited for.",
        sums.cpu_ns as f64 / 1e9,
    )?;
    for (name, help, value) in [
        (
            "canvas_fragment_ratio",
            "Part of the used 2 MiB blocks that was never touched.",
            of.fragment_ratio,
        ),
        (
            "canvas_store_ratio",
            "Part of evicted pages that had been written to.",
            of.store_ratio,
        ),
        (
            "canvas_sequential_ratio",
            "Part of the pages swapped in that belonged to a stream.",
            of.sequential_ratio,
        ),
        (
            "canvas_hot_ratio",
            "Part of faults on evicted pages that twice the local memory would have avoided.",
            of.hot_ratio,
        ),
        (
            "canvas_compression",
            "Compression ratio of the pages in the pool.",
            of.compression,
        ),
        (
            "canvas_file_ratio",
            "Part of the processes' memory that belongs to files.",
            of.file_ratio,
        ),
        (
            "canvas_slowdown",
            "Slowdown: time spent on paging over the time that the program would need without it.",
            of.slowdown,
        ),
        (
            "canvas_stall_ratio",
            "Part of the time with at least one thread in a fault.",
            of.stall_ratio,
        ),
    ] {
        if let Some(value) = value {
            out.gauge(name, help, value)?;
        }
    }
    let times_of = sums.refaults.iter().enumerate();
    let labels: Vec<_> = times_of
        .map(|(i, n)| ((1u32 << i.min(31)).to_string(), *n))
        .collect();
    let with_label: Vec<_> = labels
        .iter()
        .map(|(below, n)| ([("below", below.as_str())], *n))
        .collect();
    out.counters(
        "canvas_refaults",
        "Faults on evicted pages, by reuse distance: how much was evicted since, in sixteenths of local memory.",
        with_label.iter().map(|(labels, n)| (&labels[..], *n)),
    )
}

fn encode_slow(out: &mut Out, slow: &SlowFaults) -> Result<(), Error> {
    let sum = |cause: &Cause| slow.causes.get(cause.name()).copied().unwrap_or_default();
    let all: Vec<_> = Cause::ALL
        .iter()
        .map(|cause| ([("cause", cause.name())], sum(cause)))
        .collect();
    out.counters(
        "canvas_slow_faults",
        "Faults that took 1 ms or longer, by what they waited for.",
        all.iter().map(|(labels, sum)| (&labels[..], sum.faults)),
    )?;
    out.counters(
        "canvas_slow_fault_seconds",
        "Time of faults that took 1 ms or longer, by what they waited for.",
        all.iter()
            .map(|(labels, sum)| (&labels[..], sum.ns as f64 / 1e9)),
    )
}

fn encode_health(out: &mut Out, status: &Status) -> Result<(), Error> {
    let wrong = |code: &str| i64::from(status.health.iter().any(|p| p.code == code));
    let health: Vec<_> = Code::ALL
        .iter()
        .filter(|(code, ..)| *code != Code::RunnerSilent)
        .map(|(_, code, name)| ([("code", *code), ("name", *name)], wrong(code)))
        .collect();
    out.gauges(
        "canvas_problem",
        "1 while the problem exists.",
        health.iter().map(|(labels, wrong)| (&labels[..], *wrong)),
    )
}

/// Escapes a label's value as the format requires.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

fn encode_donors(out: &mut Out, donors: &[Donor]) -> Result<(), Error> {
    let labels: Vec<_> = donors
        .iter()
        .map(|d| ([("donor", d.address.as_str())], d))
        .collect();
    let mut family = |name, help, value: &dyn Fn(&Donor) -> Option<f64>| {
        let values = labels
            .iter()
            .filter_map(|(labels, d)| Some((&labels[..], value(d)?)));
        out.gauges(name, help, values)
    };
    family("canvas_donor_up", "1 while the donor serves.", &|d| {
        Some(f64::from(d.state == "up" || d.state == "pressure"))
    })?;
    family(
        "canvas_donor_pressure",
        "1 while the donor refuses to lend more.",
        &|d| Some(f64::from(d.state == "pressure")),
    )?;
    family(
        "canvas_donor_slabs",
        "Slabs that have a copy at the donor.",
        &|d| Some(f64::from(d.slabs)),
    )?;
    family(
        "canvas_donor_free_bytes",
        "Memory that the donor could lend, as it last reported.",
        &|d| Some(d.free_bytes as f64),
    )?;
    family(
        "canvas_donor_round_trip_seconds",
        "Median of the donor's latest ping times.",
        &|d| Some(f64::from(d.round_trip_us?) / 1e6),
    )?;
    family(
        "canvas_donor_read_p50_seconds",
        "Median of the donor's latest demand read times.",
        &|d| Some(f64::from(d.read_p50_us?) / 1e6),
    )?;
    family(
        "canvas_donor_read_p99_seconds",
        "99th percentile of all its demand read times.",
        &|d| Some(f64::from(d.read_p99_us?) / 1e6),
    )?;
    family(
        "canvas_donor_slow",
        "1 while the donor is silent, or many times slower than the fastest.",
        &|d| Some(f64::from(d.slow)),
    )?;
    family(
        "canvas_donor_failovers",
        "Reads sent to another copy because the donor was silent or failed.",
        &|d| Some(d.failovers as f64),
    )?;
    family(
        "canvas_donor_outstanding",
        "Requests that wait for the donor's answer.",
        &|d| Some(f64::from(d.outstanding)),
    )?;
    family(
        "canvas_donor_waits_seconds",
        "Age of the oldest of these requests.",
        &|d| Some(f64::from(d.waits_us) / 1e6),
    )
}

/// Cumulative counts by upper bound in seconds, and the total.
fn buckets(fault_ns: &[u64]) -> (Vec<(f64, u64)>, u64) {
    let mut shown: Vec<(f64, u64)> = POWERS
        .map(|power| ((1u64 << power) as f64 / 1e9, 0))
        .chain([(INFINITE, 0)])
        .collect();
    let mut count = 0;
    for (bucket, n) in fault_ns.iter().enumerate().take(BUCKETS) {
        // Its upper bound is at most the power's, because four buckets end at one power.
        let at = (bucket / PER_POWER + 2)
            .saturating_sub(POWERS.start)
            .min(shown.len() - 1);
        shown[at].1 += n;
        count += n;
    }
    (shown, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::histogram::bucket_floor_ns;

    #[test]
    fn nothing_ends_a_label_early() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn buckets_end_where_they_say() {
        for bucket in 0..BUCKETS {
            let mut one = vec![0; BUCKETS];
            one[bucket] = 5;
            let (shown, count) = buckets(&one);
            let at = shown.iter().position(|(_, n)| *n == 5).unwrap();
            let fits = |i: usize| bucket_floor_ns(bucket + 1) as f64 / 1e9 <= shown[i].0;
            assert!(count == 5 && fits(at), "{bucket} in {:?}", shown[at]);
            assert!(at == 0 || !fits(at - 1), "{bucket}: a smaller one would do");
        }
    }
}
