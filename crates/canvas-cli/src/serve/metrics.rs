//! Metrics of a donor; docs/OPERATING.md lists them.

use std::fmt::Error;

use canvas_control::metrics::{Out, text};
use canvas_donor::State;
use canvas_donor::state::CounterValues;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// The metrics of a donor as text.
pub fn of_server(state: State) -> String {
    let listen = state.listen.clone();
    text("listen", listen, Lender(state))
}

#[derive(Debug)]
struct Lender(State);

impl Collector for Lender {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut out = Out(encoder);
        levels(&mut out, &self.0)?;
        counts(&mut out, &self.0.counters)
    }
}

/// Current values.
fn levels(out: &mut Out, s: &State) -> Result<(), Error> {
    for (name, help, value) in [
        (
            "canvas_serve_memory_bytes",
            "Limit on lent memory.",
            s.memory_bytes,
        ),
        (
            "canvas_serve_limit_bytes",
            "Memory that may be lent now.",
            s.limit_bytes,
        ),
        (
            "canvas_serve_reserve_bytes",
            "Memory reserved for the host.",
            s.reserve_bytes,
        ),
        (
            "canvas_serve_host_available_bytes",
            "Memory that the host has available.",
            s.host_available_bytes,
        ),
        (
            "canvas_serve_free_bytes",
            "Memory that could be lent to one more client.",
            s.free_bytes,
        ),
        (
            "canvas_serve_lent_bytes",
            "Memory that is lent.",
            s.lent_bytes,
        ),
        (
            "canvas_serve_touched_bytes",
            "Of that: memory that clients have written to.",
            s.touched_bytes,
        ),
        ("canvas_serve_slabs", "Slabs that are lent.", s.slabs as u64),
        (
            "canvas_serve_spare_slabs",
            "Slabs whose clients reported another copy.",
            s.spare_slabs as u64,
        ),
        ("canvas_serve_clients", "Clients.", s.clients.len() as u64),
        (
            "canvas_serve_pressure",
            "1 while nothing more is lent.",
            u64::from(matches!(s.health, "pressure" | "ending")),
        ),
    ] {
        out.gauge(name, help, value as f64)?;
    }
    out.gauge(
        "canvas_serve_uptime_seconds",
        "Time since the start.",
        s.uptime_ms as f64 / 1e3,
    )
}

/// Counters since its start.
fn counts(out: &mut Out, c: &CounterValues) -> Result<(), Error> {
    for (name, help, value) in [
        ("canvas_serve_reads", "Requests to read.", c.reads),
        ("canvas_serve_writes", "Requests to write.", c.writes),
        ("canvas_serve_read_bytes", "Bytes read.", c.read_bytes),
        (
            "canvas_serve_written_bytes",
            "Bytes written.",
            c.written_bytes,
        ),
        (
            "canvas_serve_refused",
            "Requests answered with an error.",
            c.refused,
        ),
        ("canvas_serve_links", "Links that were accepted.", c.links),
        (
            "canvas_serve_not_admitted",
            "Peers that did not get through the handshake.",
            c.not_admitted,
        ),
        (
            "canvas_serve_bad_peers",
            "Links closed because of an invalid message.",
            c.bad_peers,
        ),
        (
            "canvas_serve_evicted_slabs",
            "Slabs whose clients were asked to move them.",
            c.evicted_slabs,
        ),
        (
            "canvas_serve_evicted_late_slabs",
            "Of those: freed at the deadline.",
            c.evicted_late_slabs,
        ),
        (
            "canvas_serve_freed_early_slabs",
            "Slabs freed before their deadline because the host ran out of memory.",
            c.freed_early_slabs,
        ),
        (
            "canvas_serve_freed_early_sole_slabs",
            "Of those: slabs without another known copy.",
            c.freed_early_sole_slabs,
        ),
        (
            "canvas_serve_expired_slabs",
            "Slabs freed because a lease expired.",
            c.expired_slabs,
        ),
        (
            "canvas_serve_lanes",
            "Direct read channels opened.",
            c.lanes,
        ),
        (
            "canvas_serve_lane_pairs",
            "Queue pairs that joined direct read channels.",
            c.lane_pairs,
        ),
        ("canvas_serve_lane_reads", "Direct reads.", c.lane_reads),
    ] {
        out.counter(name, help, value)?;
    }
    Ok(())
}
