//! The application tier of prefetching (Canvas §5.2): what to bring in for faults for which the low tier
//! ([`crate::pager::prefetch`]) has no plan.
//!
//! After the low tier has not helped with [`WEAK_FAULTS`] faults of a thread in a row, the thread's faults are
//! *forwarded* until the low tier helps again. A forwarded fault goes to three generators: deltas by thread and array
//! ([`arrays`]), [`links`] and [`refs`]. Threads that collect garbage or compile are excluded: the order in which they
//! visit memory predicts nothing.
//!
//! Everything here is plain data of one thread, which the caller keeps separate from others', or shared words in which
//! a race loses a sighting.

pub mod arrays;
pub mod links;
pub mod refs;
pub mod trial;

use crate::pager::api::kinds::Kind;
use links::Chain;
use refs::Ring;

/// Faults in a row without help from the low tier after which the next one is forwarded (the paper's N).
pub const WEAK_FAULTS: u8 = 3;
/// A plan of fewer pages does not count as help.
const STRONG_PAGES: u32 = 2;

/// Whether threads of this kind are excluded.
pub fn is_kept_out(kind: Option<Kind>) -> bool {
    matches!(kind, Some(Kind::Gc | Kind::Jit))
}

/// The kind of a thread in a process with a HotSpot JVM, by the thread's name as the kernel stores it (15 bytes).
pub fn kind_of_jvm_thread(name: &[u8]) -> Kind {
    const NAMES: [(&[u8], Kind); 14] = [
        (b"GC Thread", Kind::Gc),
        (b"G1 ", Kind::Gc),
        (b"ParGC", Kind::Gc),
        (b"Gang worker", Kind::Gc),
        (b"ZWorker", Kind::Gc),
        (b"ZDriver", Kind::Gc),
        (b"XWorker", Kind::Gc),
        (b"Shenandoah", Kind::Gc),
        // The Serial collector runs in this thread.
        (b"VM Thread", Kind::Gc),
        (b"C1 Compiler", Kind::Jit),
        (b"C2 Compiler", Kind::Jit),
        (b"VM Periodic", Kind::Runtime),
        (b"Signal Dispatch", Kind::Runtime),
        (b"Service Thread", Kind::Runtime),
    ];
    NAMES
        .iter()
        .find(|(start, _)| name.starts_with(start))
        .map_or(Kind::App, |(_, kind)| *kind)
}

/// What is known about one thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    /// Its kind, if it has been determined.
    pub kind: Option<Kind>,
    /// When its kind was first determined, in ns; 0 before that.
    pub kind_seen_ns: u64,
    weak: u8,
    /// Its path along links.
    pub chain: Chain,
    /// Its candidates.
    pub ring: Ring,
}

impl Default for Thread {
    fn default() -> Thread {
        Thread::new()
    }
}

impl Thread {
    /// Creates the state of a thread about which nothing is known.
    pub const fn new() -> Thread {
        Thread {
            kind: None,
            kind_seen_ns: 0,
            weak: 0,
            chain: Chain::new(),
            ring: Ring::new(),
        }
    }

    /// Records a fault for which the low tier plans `planned` pages, or (`is_hit`) which it had predicted. Returns
    /// whether the fault is forwarded.
    pub fn note(&mut self, planned: u32, is_hit: bool) -> bool {
        self.weak = match is_hit || planned >= STRONG_PAGES {
            true => 0,
            false => (self.weak + 1).min(WEAK_FAULTS),
        };
        self.is_forwarded()
    }

    /// Whether the thread's last fault is forwarded, or would be if the thread were not excluded.
    pub fn is_weak(&self) -> bool {
        self.weak >= WEAK_FAULTS
    }

    /// Whether the thread's last fault is forwarded.
    pub fn is_forwarded(&self) -> bool {
        self.is_weak() && !is_kept_out(self.kind)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_forwarded_after_three_faults_without_help_and_until_there_is_some() {
        let mut t = Thread::default();
        assert_eq!(
            [t.note(0, false), t.note(1, false), t.note(0, false)],
            [false, false, true]
        );
        assert!(t.note(0, false));
        assert!(!t.note(8, false));
        assert_eq!(
            [t.note(0, false), t.note(0, false), t.note(0, false)],
            [false, false, true]
        );
        assert!(!t.note(0, true), "it was foreseen");
    }

    #[test]
    fn collectors_and_compilers_are_left_out() {
        for (name, kind) in [
            (&b"GC Thread#0"[..], Kind::Gc),
            (b"G1 Conc#0", Kind::Gc),
            (b"G1 Refine#0", Kind::Gc),
            (b"ZWorker#0", Kind::Gc),
            (b"VM Thread", Kind::Gc),
            (b"C2 CompilerThre", Kind::Jit),
            (b"C1 CompilerThre", Kind::Jit),
            (b"Service Thread", Kind::Runtime),
            (b"Executor task l", Kind::App),
            (b"java", Kind::App),
            (b"", Kind::App),
        ] {
            assert_eq!(
                kind_of_jvm_thread(name),
                kind,
                "{}",
                String::from_utf8_lossy(name)
            );
            let mut t = Thread {
                kind: Some(kind),
                ..Thread::default()
            };
            (0..9).for_each(|_| {
                t.note(0, false);
            });
            assert_eq!(t.is_forwarded(), !is_kept_out(Some(kind)));
        }
    }
}
