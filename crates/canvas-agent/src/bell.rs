//! How a thread that serves is woken by others of its process.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use canvas_sys::proc::{WaitOn, futex_wake};

/// Wakes the thread that serves.
#[derive(Debug, Default)]
pub struct Bell {
    /// Counts rings.
    rung: AtomicU32,
}

impl Bell {
    /// Call it after what is to be seen is there to see.
    pub fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        futex_wake(&self.rung, 1);
    }

    /// How often it was rung.
    pub(crate) fn count(&self) -> u32 {
        self.rung.load(SeqCst)
    }

    /// To sleep on, as long as it was rung `heard` times.
    pub(crate) fn wait_on(&self, heard: u32) -> WaitOn<'_> {
        WaitOn::new(&self.rung, heard)
    }
}
