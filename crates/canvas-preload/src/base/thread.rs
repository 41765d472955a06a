//! Which thread this is, roughly: without thread-local data, which not every thread here has.

/// A number that differs between threads, from where their stacks lie.
#[inline(always)]
pub fn thread_hash() -> usize {
    let here = 0u8;
    let at = &raw const here as usize;
    (at >> 18).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}
