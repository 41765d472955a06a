//! An agent's report on its donors, which the runner reads from the journal.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// State of a donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DonorState {
    /// It cannot be reached.
    Down,
    /// It is being asked which slabs it still holds.
    Listing,
    /// It serves.
    Up,
    /// It serves, but lends no more, and may take back what it lent.
    Pressure,
}

impl DonorState {
    const ALL: [(DonorState, &'static str); 4] = [
        (DonorState::Down, "down"),
        (DonorState::Listing, "listing"),
        (DonorState::Up, "up"),
        (DonorState::Pressure, "pressure"),
    ];

    /// The state's name.
    pub fn name(self) -> &'static str {
        DonorState::ALL[self as usize].1
    }
}

/// A donor's status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DonorStatus {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its state.
    pub state: DonorState,
    /// Number of the tenant's slabs with a copy there.
    pub slabs: u32,
    /// Memory that it could lend, in bytes, as it last reported.
    pub free_bytes: u64,
    /// Median of its latest ping times, in us; `None` before the first.
    pub round_trip_us: Option<u32>,
    /// Median of its latest demand read times, and 99th percentile of all, in us; `None` before the
    /// first.
    pub read_us: Option<(u32, u32)>,
    /// It is silent for longer than usual, and is read only after others until it answers.
    pub suspect: bool,
    /// Number of reads sent to another copy because it was silent or failed.
    pub failovers: u64,
    /// Number of requests that wait for its answer.
    pub outstanding: u32,
    /// Age of the oldest of these requests, in us.
    pub waits_us: u32,
}

/// An agent's report at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AgentStatus {
    /// Time of the report (CLOCK_MONOTONIC, ns).
    pub at_ns: u64,
    /// The agent's pid.
    pub pid: u32,
    /// Slabs with fewer copies than the policy asks for.
    pub degraded_slabs: u64,
    /// Bytes not yet on the disk (copies=1+disk-async).
    pub disk_behind_bytes: u64,
    /// Donors, in the order of configuration.
    pub donors: Vec<DonorStatus>,
}

/// Bytes before the donors, and bytes per donor.
const HEAD_BYTES: usize = 32;
const DONOR_BYTES: usize = 64;
/// The time of a donor that never answered.
const NEVER: u32 = u32::MAX;

impl AgentStatus {
    /// Encodes the report, little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.donors.len() * DONOR_BYTES);
        out.extend(self.at_ns.to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend((self.donors.len() as u32).to_le_bytes());
        out.extend(self.degraded_slabs.to_le_bytes());
        out.extend(self.disk_behind_bytes.to_le_bytes());
        for d in &self.donors {
            let (is_v6, ip) = match d.addr.ip() {
                IpAddr::V4(ip) => (0, ip.to_ipv6_mapped()),
                IpAddr::V6(ip) => (1, ip),
            };
            out.extend(ip.octets());
            out.extend(d.addr.port().to_le_bytes());
            out.extend([is_v6, d.state as u8]);
            out.extend(d.slabs.to_le_bytes());
            out.extend(d.free_bytes.to_le_bytes());
            out.extend(d.round_trip_us.unwrap_or(NEVER).to_le_bytes());
            let (p50, p99) = d.read_us.unwrap_or((NEVER, NEVER));
            for n in [u32::from(d.suspect), p50, p99, d.outstanding, d.waits_us] {
                out.extend(n.to_le_bytes());
            }
            out.extend(d.failovers.to_le_bytes());
        }
        out
    }

    /// Decodes a report; `None` if it is not valid.
    pub fn decode(bytes: &[u8]) -> Option<AgentStatus> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let u64_at = |b: &[u8], at: usize| Some(u64::from_le_bytes(*b[at..].first_chunk()?));
        let u32_at = |b: &[u8], at: usize| Some(u32::from_le_bytes(*b[at..].first_chunk()?));
        let (donors, left) = rest.as_chunks::<DONOR_BYTES>();
        if !left.is_empty() || u32_at(head, 12)? as usize != donors.len() {
            return None;
        }
        let donor = |b: &[u8; DONOR_BYTES]| {
            let ip = Ipv6Addr::from(*b.first_chunk::<16>()?);
            let ip = match b[18] {
                0 => IpAddr::V4(ip.to_ipv4_mapped()?),
                1 => IpAddr::V6(ip),
                _ => return None,
            };
            Some(DonorStatus {
                addr: SocketAddr::new(ip, u16::from_le_bytes([b[16], b[17]])),
                state: DonorState::ALL.get(usize::from(b[19]))?.0,
                slabs: u32_at(b, 20)?,
                free_bytes: u64_at(b, 24)?,
                round_trip_us: Some(u32_at(b, 32)?).filter(|us| *us != NEVER),
                suspect: u32_at(b, 36)? != 0,
                read_us: Some((u32_at(b, 40)?, u32_at(b, 44)?)).filter(|(p50, _)| *p50 != NEVER),
                outstanding: u32_at(b, 48)?,
                waits_us: u32_at(b, 52)?,
                failovers: u64_at(b, 56)?,
            })
        };
        Some(AgentStatus {
            at_ns: u64_at(head, 0)?,
            pid: u32_at(head, 8)?,
            degraded_slabs: u64_at(head, 16)?,
            disk_behind_bytes: u64_at(head, 24)?,
            donors: donors.iter().map(donor).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn donor() -> impl Strategy<Value = DonorStatus> {
        let parts = (
            any::<SocketAddr>(),
            0..DonorState::ALL.len(),
            any::<u32>(),
            any::<u64>(),
            proptest::option::of(0..NEVER),
            proptest::option::of((0..NEVER, any::<u32>())),
            (any::<bool>(), any::<u64>(), any::<[u32; 2]>()),
        );
        parts.prop_map(
            |(addr, state, slabs, free_bytes, round_trip_us, read_us, more)| DonorStatus {
                // Flow and scope are not encoded.
                addr: SocketAddr::new(addr.ip(), addr.port()),
                state: DonorState::ALL[state].0,
                slabs,
                free_bytes,
                round_trip_us,
                read_us,
                suspect: more.0,
                failovers: more.1,
                outstanding: more.2[0],
                waits_us: more.2[1],
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            at_ns: u64, pid: u32, degraded_slabs: u64, disk_behind_bytes: u64,
            donors in proptest::collection::vec(donor(), 0..70),
        ) {
            let status = AgentStatus { at_ns, pid, degraded_slabs, disk_behind_bytes, donors };
            prop_assert_eq!(AgentStatus::decode(&status.encode()), Some(status));
        }

        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = AgentStatus::decode(&bytes);
        }
    }

    #[test]
    fn each_state_has_its_name() {
        for (i, (state, name)) in DonorState::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, state.name()), (i, name));
        }
    }
}
