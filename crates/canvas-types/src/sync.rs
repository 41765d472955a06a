//! Atomics behind a facade, so that the same code runs under shuttle's scheduler in tests.

#[cfg(not(feature = "shuttle"))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// One step of waiting for another thread: spins first, then calls `yield_now` (a short sleep in the preload library;
/// pure crates make no system calls themselves).
#[inline]
pub fn backoff(spins: &mut u32, yield_now: fn()) {
    *spins = spins.saturating_add(1);
    #[cfg(feature = "shuttle")]
    {
        let _ = yield_now;
        shuttle::thread::yield_now();
    }
    #[cfg(not(feature = "shuttle"))]
    if *spins < 64 {
        core::hint::spin_loop();
    } else {
        yield_now();
    }
}

/// What an allocator needs of threads; the pure crates have no access to them.
#[derive(Clone, Copy)]
pub struct Threads {
    /// Called during a long wait for a lock.
    pub yield_now: fn(),
    /// A number for the calling thread. Threads that share one stay correct, but share cache lines.
    pub number: fn() -> usize,
}

/// A lock without data: it guards state that itself consists of atomics, so it needs no unsafe code. Never held across
/// a system call or a fault.
pub struct RawSpin {
    held: AtomicU32,
}

impl RawSpin {
    /// Creates a free lock.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> RawSpin {
        RawSpin {
            held: AtomicU32::new(0),
        }
    }
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<RawGuard<'_>> {
        match self
            .held
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Some(RawGuard { lock: self }),
            Err(_) => None,
        }
    }
    /// Takes the lock, waiting with [`backoff`].
    #[inline]
    pub fn lock(&self, yield_now: fn()) -> RawGuard<'_> {
        match self.try_lock() {
            Some(g) => g,
            None => self.wait(yield_now),
        }
    }
    #[cold]
    fn wait(&self, yield_now: fn()) -> RawGuard<'_> {
        let mut spins = 0;
        loop {
            backoff(&mut spins, yield_now);
            // A plain load does not take the cache line from the holder.
            if self.held.load(Ordering::Relaxed) == 0
                && let Some(g) = self.try_lock()
            {
                return g;
            }
        }
    }
}

/// Holds a [`RawSpin`] until dropped.
pub struct RawGuard<'a> {
    lock: &'a RawSpin,
}

impl Drop for RawGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(0, Ordering::Release);
    }
}
