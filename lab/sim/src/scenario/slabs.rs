//! Effect of the size of slabs: how evenly hosts are used, and how much data moves, how fast, when donors
//! take memory back.

use std::fmt::Write;

use canvas_place::replicas::Policy;

use super::{Size, balance, pressure};
use crate::world::Chooser;

/// Sizes of slabs in MiB; the last is Infiniswap's.
const MIB: [u64; 4] = [16, 64, 256, 1024];
/// Memory that each tenant keeps at donors while programs grow; below, the rate of growth.
const FAR_BYTES: u64 = 4 << 30;
const MIB_PER_S: u64 = 4096;

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let (even, grown) = match size {
        Size::Short | Size::Hosts(_) => (32, 16),
        Size::Full => (128, 32),
    };
    let policy = Policy {
        donors: 1,
        disk: true,
        late: false,
        code: None,
    };
    let mut text = format!(
        "slabs of different sizes (seed {seed}): {even} hosts that borrow 6 GiB each, two choices, news 1 s old; then programs of {} of\n  \
         {grown} hosts grow by {MIB_PER_S} MiB/s\n  \
         MiB  deviation  fullest (%)  taken back (MiB)  late (MiB)  below the reserve by (MiB)  settled after (s)\n",
        grown / 4
    );
    for mib in MIB {
        let bytes = mib << 20;
        let b = balance::run_in_slabs(seed, even, Chooser::TwoChoices, 1, bytes);
        let p = pressure::run_in_slabs(seed, grown, policy, MIB_PER_S, FAR_BYTES, bytes);
        let _ = writeln!(
            text,
            "  {mib:>4}  {:>8.2}  {:>11.1}  {:>16}  {:>10}  {:>26}  {:>17.1}",
            b.deviation * 100.0,
            b.max * 100.0,
            p.stats.evicted * mib,
            p.stats.evicted_late * mib,
            p.stats.below_reserve_bytes_max >> 20,
            p.settled_s,
        );
        assert_eq!(p.lost, 0, "seed {seed}");
    }
    text
}
