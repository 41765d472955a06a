//! Measurements of a run, for later runs of its program.

use std::sync::atomic::Ordering::Relaxed;

use canvas_control::features::Features;
use canvas_shm::Segment;
use canvas_shm::segment::config_flag;

use crate::stats::{Run, features_of, page_bytes, ratio};

/// Measurements of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Learned {
    /// Peak of all memory of its processes, in bytes.
    pub footprint_bytes: u64,
    /// Limit on local memory at its end, in bytes; `None` without one.
    pub local_limit_bytes: Option<u64>,
    /// Peak of local memory, in bytes.
    pub local_peak_bytes: u64,
    /// Page features of the whole run.
    pub features: Features,
    /// Faults on evicted pages, by reuse distance ([`canvas_shm::segment::refault_bucket`]).
    pub refaults: Vec<u64>,
}

impl Learned {
    /// From a run that has ended; `None` if its program was not managed, or if others ran in its
    /// tenant, whose pages cannot be told from its own.
    pub fn new(run: &Run, segment: &Segment) -> Option<Learned> {
        let has_others = segment.config.flags.load(Relaxed) & config_flag::JOINED != 0;
        if run.mode.is_none() || has_others {
            return None;
        }
        let footprint_bytes = page_bytes(segment.footprint_pages_peak.load(Relaxed));
        let mut features = features_of(run, segment);
        // At the end there are none left.
        let files = run.peaks.file_bytes_peak;
        features.file_ratio = files.and_then(|f| ratio(f, f.saturating_add(footprint_bytes)));
        Some(Learned {
            footprint_bytes,
            local_limit_bytes: segment.local_limit_pages().map(page_bytes),
            local_peak_bytes: page_bytes(segment.local_pages_peak.load(Relaxed)),
            features,
            refaults: segment.refaults().to_vec(),
        })
    }
}
