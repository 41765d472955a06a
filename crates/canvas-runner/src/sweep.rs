//! Peaks that need samples over all processes of a tenant.

use std::sync::atomic::Ordering::Relaxed;

use canvas_shm::lives::Lives;
use canvas_shm::segment::{CLASSES_MAX, ProcSlot, Segment};

use crate::beside::Beside;
use crate::control::features;

/// Values of all processes of the tenant at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Pages mapped in the managed range; a page shared by related processes counts once.
    pub resident_pages: i64,
    /// Pages in the swap cache.
    pub cached_pages: i64,
    /// Pages of anonymous memory outside the managed range, including metadata.
    pub native_pages: i64,
    /// Of these, canvas's own; `None` if a process's are unknown.
    pub metadata_pages: Option<i64>,
    /// Pages of anonymous memory in the host's swap.
    pub swapped_pages: i64,
    /// Pages that exist only as far copies.
    pub far_pages: i64,
    /// Blocks of 2 MiB with at least one touched page.
    pub touched_blocks: i64,
    /// Bytes stored, by class.
    pub class_bytes: [i64; CLASSES_MAX],
}

impl Sample {
    /// Managed pages, wherever they are.
    pub fn touched_pages(&self) -> i64 {
        self.resident_pages
            .saturating_add(self.cached_pages)
            .saturating_add(self.far_pages)
    }

    /// Adds up the processes' current values.
    pub fn take(segment: &Segment) -> Sample {
        let mut s = Sample {
            metadata_pages: Some(0),
            ..Sample::default()
        };
        let mut any_shares = false;
        for slot in segment.procs.iter().filter(|s| s.identity().is_some()) {
            any_shares |= slot.shares.load(Relaxed) != 0;
            s.resident_pages += slot.resident_pages.load(Relaxed);
            s.cached_pages += slot.cached_pages.load(Relaxed);
            s.native_pages += slot.native_pages.load(Relaxed);
            let metadata = slot.metadata_pages.load(Relaxed);
            let known = (metadata != ProcSlot::UNKNOWN).then_some(metadata);
            s.metadata_pages = s.metadata_pages.zip(known).map(|(sum, n)| sum + n);
            s.swapped_pages += slot.swapped_pages.load(Relaxed);
            s.far_pages += slot.far_pages.load(Relaxed);
            s.touched_blocks += slot.touched_blocks.load(Relaxed);
        }
        if any_shares {
            // Each process counts the pages that it maps; pages mapped by several are charged once.
            let local = segment.local_pages.load(Relaxed).max(0);
            s.native_pages = s.native_pages.clamp(0, local);
            s.cached_pages = s.cached_pages.clamp(0, local - s.native_pages);
            s.resident_pages = local - s.native_pages - s.cached_pages;
        }
        for (sum, bytes) in s.class_bytes.iter_mut().zip(&segment.class_bytes) {
            *sum = bytes.load(Relaxed);
        }
        s
    }
}

/// The peak of each value, and the last sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peaks {
    /// Peak of each value.
    pub peak: Sample,
    /// The last sample.
    pub last: Sample,
    /// The sample with most pages.
    pub fullest: Sample,
    /// Pages of processes that do not account for memory themselves.
    pub uncharged_pages: i64,
    /// Peaks of memory besides the processes.
    pub beside_peak: Beside,
    /// Last values of memory besides the processes.
    pub beside: Beside,
    /// Peak of the processes' file memory, in bytes; measuring it means reading /proc for each
    /// process.
    pub file_bytes_peak: Option<u64>,
    /// Samples so far.
    pub samples: u32,
}

/// Interval of measuring file memory, in samples.
const FILES_EVERY: u32 = 5;

impl Peaks {
    /// Takes a sample; `beside` was just measured.
    pub fn sample(&mut self, lives: Lives, segment: &Segment, beside: Beside) {
        self.beside = beside;
        self.beside_peak = self.beside_peak.max(beside);
        let mut now = Sample::take(segment);
        now.native_pages += self.uncharged_pages;
        let p = &mut self.peak;
        p.resident_pages = p.resident_pages.max(now.resident_pages);
        p.cached_pages = p.cached_pages.max(now.cached_pages);
        p.native_pages = p.native_pages.max(now.native_pages);
        p.metadata_pages = p.metadata_pages.max(now.metadata_pages);
        p.swapped_pages = p.swapped_pages.max(now.swapped_pages);
        p.far_pages = p.far_pages.max(now.far_pages);
        for (peak, now) in p.class_bytes.iter_mut().zip(now.class_bytes) {
            *peak = now.max(*peak);
        }
        if now.touched_pages() >= self.fullest.touched_pages() {
            self.fullest = now;
        }
        self.last = now;
        if let Some(peak) = &mut self.file_bytes_peak
            && self.samples.is_multiple_of(FILES_EVERY)
        {
            *peak = features::file_bytes(lives, segment).max(*peak);
        }
        self.samples = self.samples.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_agent::members::release_dead;

    #[test]
    fn peaks_outlive_the_processes() {
        let (fd, segment) = Segment::create(false).unwrap();
        let lives = Lives::of(&fd);
        let slot = &segment.procs[5];
        slot.id.store(1 << 23, Relaxed);
        slot.resident_pages.store(100, Relaxed);
        slot.note_stall(100, 500);
        segment.class_bytes[3].store(4096, Relaxed);
        let mut peaks = Peaks::default();
        let beside = |segment_bytes, agent_bytes| Beside {
            segment_bytes,
            agent_bytes,
        };
        peaks.sample(lives, segment, beside(8192, 300));
        release_dead(lives, segment, None);
        assert_eq!(segment.ended_stalled_ns.load(Relaxed), 400);
        segment.class_bytes[3].store(0, Relaxed);
        peaks.sample(lives, segment, beside(4096, 500));
        assert_eq!(
            (peaks.peak.resident_pages, peaks.peak.class_bytes[3]),
            (100, 4096)
        );
        assert_eq!(peaks.beside_peak, beside(8192, 500));
        assert_eq!(peaks.beside, beside(4096, 500));
        let nothing = Sample {
            metadata_pages: Some(0),
            ..Sample::default()
        };
        assert_eq!(peaks.last, nothing);
    }

    #[test]
    fn what_canvas_takes_is_known_when_every_process_knows() {
        let (_fd, segment) = Segment::create(false).unwrap();
        for (slot, pid, pages) in [(2, 1 << 23, 7), (4, 1 << 22, 30), (6, 0, 90)] {
            let slot = &segment.procs[slot];
            slot.id.store(pid, Relaxed);
            slot.metadata_pages.store(pages, Relaxed);
        }
        assert_eq!(Sample::take(segment).metadata_pages, Some(37));
        let unknown = &segment.procs[4].metadata_pages;
        unknown.store(ProcSlot::UNKNOWN, Relaxed);
        assert_eq!(Sample::take(segment).metadata_pages, None);
    }
}
