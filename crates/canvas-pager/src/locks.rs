//! The locks of the fault path that are no spin locks: chunks, working memory, and the gate that fork closes. They
//! wait by functions of the caller's.

use canvas_types::sync::{AtomicBool, AtomicI32, AtomicU32, Ordering, backoff};

/// Held by any number of threads that share it, or by one alone.
pub struct SharedLock(AtomicI32);

/// A shared hold, until dropped.
pub struct Shared<'a>(&'a AtomicI32);
/// The exclusive hold, until dropped.
pub struct Exclusive<'a>(&'a AtomicI32);

impl SharedLock {
    /// An open lock.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> SharedLock {
        SharedLock(AtomicI32::new(0))
    }
    /// An open lock.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> SharedLock {
        SharedLock(AtomicI32::new(0))
    }

    /// Takes it with others that share it.
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

    /// Takes it alone.
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

/// `N` places, each one thread's at a time.
pub struct Places<const N: usize>([AtomicBool; N]);

/// A place, the holder's until dropped.
pub struct Place<'a> {
    taken: &'a AtomicBool,
    index: usize,
}

impl Place<'_> {
    /// Which of the places it is.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Drop for Place<'_> {
    #[inline]
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}

impl<const N: usize> Places<N> {
    /// All free.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> Places<N> {
        Places([const { AtomicBool::new(false) }; N])
    }
    /// All free.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> Places<N> {
        Places(core::array::from_fn(|_| AtomicBool::new(false)))
    }

    /// Takes a free place, the search beginning at `first`; waits while there is none.
    #[inline]
    pub fn take(&self, first: usize, yield_now: fn()) -> Place<'_> {
        let mut spins = 0;
        loop {
            for k in 0..N {
                let index = (first + k) % N;
                let taken = &self.0[index];
                if !taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire) {
                    return Place { taken, index };
                }
            }
            backoff(&mut spins, yield_now);
        }
    }
}

#[repr(align(128))]
struct Stripe(AtomicI32);

/// A gate: open, any number of threads are inside; closed, those that are inside leave, and nobody comes in.
pub struct Gate<const N: usize> {
    inside: [Stripe; N],
    /// 0, or by whom it is closed.
    closed: AtomicU32,
}

/// Inside until dropped.
pub struct Inside<'a>(&'a AtomicI32);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<const N: usize> Gate<N> {
    /// Open, with nobody inside.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> Gate<N> {
        Gate {
            inside: [const { Stripe(AtomicI32::new(0)) }; N],
            closed: AtomicU32::new(0),
        }
    }
    /// Open, with nobody inside.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> Gate<N> {
        Gate {
            inside: core::array::from_fn(|_| Stripe(AtomicI32::new(0))),
            closed: AtomicU32::new(0),
        }
    }

    /// Enters, counted in one of the stripes. Who closed the gate, by number, may pass all the same if
    /// `passes`; others `wait` while the word has the value.
    #[inline]
    pub fn enter(
        &self,
        stripe: usize,
        passes: impl Fn(u32) -> bool,
        wait: impl Fn(&AtomicU32, u32),
    ) -> Inside<'_> {
        let stripe = &self.inside[stripe % N].0;
        loop {
            // Before the look at the gate: who closes it closes first and then looks at this, so one of the two
            // sees the other.
            stripe.fetch_add(1, Ordering::SeqCst);
            let by = self.closed.load(Ordering::SeqCst);
            if by == 0 || passes(by) {
                return Inside(stripe);
            }
            stripe.fetch_sub(1, Ordering::SeqCst);
            wait(&self.closed, by);
        }
    }

    /// Closes it in the name of `by`, not 0, once nobody else has it closed.
    pub fn close(&self, by: u32, wait: impl Fn(&AtomicU32, u32)) {
        while let Err(other) =
            self.closed
                .compare_exchange(0, by, Ordering::SeqCst, Ordering::Relaxed)
        {
            wait(&self.closed, other);
        }
    }

    /// After [`Gate::close`]: waits until nobody is inside any more; false when `goes_on` says no.
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

    /// Opens it again; the word that others wait for.
    pub fn open(&self) -> &AtomicU32 {
        self.closed.store(0, Ordering::SeqCst);
        &self.closed
    }
}
