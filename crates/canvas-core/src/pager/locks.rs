//! Locks of the fault path that are not spin locks: for chunks, for working memory, and the gate that fork closes. They
//! wait by calling functions of the caller.

use canvas_types::sync::{AtomicBool, AtomicI32, AtomicU32, Ordering, backoff};

/// A lock held by any number of threads that share it, or by one exclusively.
pub struct SharedLock(AtomicI32);

/// A shared hold, until dropped.
pub struct Shared<'a>(&'a AtomicI32);
/// The exclusive hold, until dropped.
pub struct Exclusive<'a>(&'a AtomicI32);

impl SharedLock {
    /// Creates a free lock.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> SharedLock {
        SharedLock(AtomicI32::new(0))
    }

    /// Takes the lock shared.
    #[inline]
    pub fn shared(&self, yield_now: fn()) -> Shared<'_> {
        let mut spins = 0;
        loop {
            let v = self.0.load(Ordering::Relaxed);
            if v >= 0
                && self
                    .0
                    .compare_exchange_weak(v, v + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Shared(&self.0);
            }
            backoff(&mut spins, yield_now);
        }
    }

    /// Takes the lock exclusively.
    pub fn exclusive(&self, yield_now: fn()) -> Exclusive<'_> {
        let mut spins = 0;
        loop {
            if self
                .0
                .compare_exchange_weak(0, -1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return Exclusive(&self.0);
            }
            backoff(&mut spins, yield_now);
        }
    }
}

impl Drop for Shared<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// `N` contexts, each held by one thread at a time.
pub struct ContextPool<const N: usize>([AtomicBool; N]);

/// A context, held until dropped.
pub struct ContextGuard<'a> {
    taken: &'a AtomicBool,
    index: usize,
}

impl ContextGuard<'_> {
    /// Index of the context.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Drop for ContextGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}

impl<const N: usize> ContextPool<N> {
    /// Creates free contexts.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> ContextPool<N> {
        ContextPool([const { AtomicBool::new(false) }; N])
    }

    /// Takes a free context, searching from `first` on; waits while there is none.
    #[inline]
    pub fn take(&self, first: usize, yield_now: fn()) -> ContextGuard<'_> {
        let mut spins = 0;
        loop {
            for k in 0..N {
                let index = (first + k) % N;
                let taken = &self.0[index];
                if !taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire) {
                    return ContextGuard { taken, index };
                }
            }
            backoff(&mut spins, yield_now);
        }
    }
}

#[repr(align(128))]
struct Stripe(AtomicI32);

/// A gate. While it is open, any number of threads can enter; while it is closed, threads inside leave and none enters.
pub struct Gate<const N: usize> {
    inside: [Stripe; N],
    /// 0 while open, else the number of the thread that closed it.
    closed: AtomicU32,
}

/// Inside the gate until dropped.
pub struct Inside<'a>(&'a AtomicI32);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<const N: usize> Gate<N> {
    /// Creates an open gate with no thread inside.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Gate<N> {
        Gate {
            inside: [const { Stripe(AtomicI32::new(0)) }; N],
            closed: AtomicU32::new(0),
        }
    }

    /// Enters, counted in one of the stripes. If the gate is closed, `passes` gets the closer's number and may let the
    /// thread in anyway; otherwise the thread calls `wait` with the word and its value.
    #[inline]
    pub fn enter(
        &self,
        stripe: usize,
        passes: impl Fn(u32) -> bool,
        wait: impl Fn(&AtomicU32, u32),
    ) -> Inside<'_> {
        let stripe = &self.inside[stripe % N].0;
        loop {
            // Count before looking at the gate: the closer closes it first and then looks at the counts, so at least
            // one of the two sees the other.
            stripe.fetch_add(1, Ordering::SeqCst);
            let by = self.closed.load(Ordering::SeqCst);
            if by == 0 || passes(by) {
                return Inside(stripe);
            }
            stripe.fetch_sub(1, Ordering::SeqCst);
            wait(&self.closed, by);
        }
    }

    /// Closes the gate as `by` (not 0), after waiting for another closer to open it.
    pub fn close(&self, by: u32, wait: impl Fn(&AtomicU32, u32)) {
        while let Err(other) =
            self.closed
                .compare_exchange(0, by, Ordering::SeqCst, Ordering::Relaxed)
        {
            wait(&self.closed, other);
        }
    }

    /// After [`Gate::close`]: waits until no thread is inside; returns false if `goes_on` does.
    pub fn drain(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        self.inside.iter().all(|s| {
            while s.0.load(Ordering::SeqCst) != 0 {
                if !goes_on() {
                    return false;
                }
            }
            true
        })
    }

    /// Opens the gate; returns the word that other threads wait on.
    pub fn open(&self) -> &AtomicU32 {
        self.closed.store(0, Ordering::SeqCst);
        &self.closed
    }
}
