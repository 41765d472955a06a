//! The purposes of threads, as declared by the program.

use canvas_types::sync::{AtomicU64, Ordering};

/// What a thread is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The program's own work.
    App = 1,
    /// Garbage collection.
    Gc = 2,
    /// Compilation.
    Jit = 3,
    /// Other work of a language's runtime.
    Runtime = 4,
}

impl Kind {
    /// The kind with this number.
    pub fn from_number(n: u64) -> Option<Kind> {
        [Kind::App, Kind::Gc, Kind::Jit, Kind::Runtime]
            .into_iter()
            .find(|kind| *kind as u64 == n)
    }
}

/// About how many threads can be declared at one time.
const THREADS: usize = 1024;
/// Cells that a thread may be in.
const REACH: usize = 32;

/// The declared threads: 8 KiB, usable as a static.
pub struct Kinds {
    /// `tid << 8 | kind`; 0 for none.
    cells: [AtomicU64; THREADS],
    told: AtomicU64,
}

/// There is no cell left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Kinds {
    /// Creates an empty table.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Kinds {
        Kinds {
            cells: [const { AtomicU64::new(0) }; THREADS],
            told: AtomicU64::new(0),
        }
    }

    fn cells(&self, tid: u32) -> impl Iterator<Item = &AtomicU64> {
        let first = (tid.wrapping_mul(0x9e37_79b1) >> 16) as usize;
        (0..REACH).map(move |i| &self.cells[(first + i) % THREADS])
    }
    fn cell_of(&self, tid: u32) -> Option<&AtomicU64> {
        let is_its = |p: &&AtomicU64| p.load(Ordering::Acquire) >> 8 == u64::from(tid);
        self.cells(tid).find(is_its)
    }
    /// Whether any thread is declared.
    #[inline]
    pub fn any(&self) -> bool {
        self.told.load(Ordering::Relaxed) != 0
    }
    /// The kind of the thread `tid` (not 0), if it was declared.
    pub fn of(&self, tid: u32) -> Option<Kind> {
        if !self.any() {
            return None;
        }
        self.cell_of(tid)
            .and_then(|p| Kind::from_number(p.load(Ordering::Acquire) & 0xff))
    }
    /// Declares the kind of the thread `tid` (not 0). One writer at a time.
    pub fn declare(&self, tid: u32, kind: Kind) -> Result<(), Full> {
        let word = u64::from(tid) << 8 | kind as u64;
        if let Some(cell) = self.cell_of(tid) {
            cell.store(word, Ordering::Release);
            return Ok(());
        }
        let free = |p: &&AtomicU64| p.load(Ordering::Acquire) == 0;
        let cell = self.cells(tid).find(free).ok_or(Full)?;
        self.told.fetch_add(1, Ordering::Relaxed);
        cell.store(word, Ordering::Release);
        Ok(())
    }
    /// Removes all threads. For a fork's child.
    pub fn clear(&self) {
        for cell in &self.cells {
            cell.store(0, Ordering::Relaxed);
        }
        self.told.store(0, Ordering::Relaxed);
    }
    /// Removes the thread `tid`, which has ended. One writer at a time.
    pub fn forget(&self, tid: u32) {
        if let Some(cell) = self.cell_of(tid) {
            cell.store(0, Ordering::Release);
            self.told.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in proptest::collection::vec((1..300u32, 0..6u64), 1..600)) {
            let kinds = Box::new(Kinds::new());
            let mut oracle = BTreeMap::new();
            for (i, (tid, kind)) in ops.into_iter().enumerate() {
                let tid = tid * 4097;
                match Kind::from_number(kind) {
                    Some(kind) if kinds.declare(tid, kind).is_ok() => {
                        oracle.insert(tid, kind);
                    }
                    Some(_) => prop_assert!(oracle.len() >= REACH),
                    None => {
                        kinds.forget(tid);
                        oracle.remove(&tid);
                    }
                }
                prop_assert_eq!(kinds.any(), !oracle.is_empty());
                // All of them now and then, because that takes long.
                let others = if i % 16 == 0 { 1..300 } else { 0..0 };
                for tid in others.map(|t| t * 4097).chain([tid]) {
                    prop_assert_eq!(kinds.of(tid), oracle.get(&tid).copied());
                }
            }
        }
    }
}
