//! The keyed hash of a page's content.
//!
//! It decides whether a page has changed since its far copy was made, and whether a page that is read back is the
//! stored one. Programs hold bytes that attackers chose, so the hash must resist crafted content: nobody may find two
//! pages with one hash, even knowing both pages and this text. Hence a key of random bytes, as long as a page, which
//! stays in the memory of the processes that hash with it.
//!
//! A page is 256 blocks m of 128 bits, and the key is 256 blocks k. Blocks are elements of GF(2^128)
//! (modulo x^128 + x^7 + x^2 + x + 1; the first byte holds the lowest powers), and
//!
//! ```text
//! H(m) = sum over pairs (i, j) of (m_i + k_i) * (m_j + k_j)        with j = i + 4, i % 8 < 4
//! ```
//!
//! **Bound.** Two different pages m and m' have the same hash with a probability of exactly 2^-128 or 0 over
//! the random key. For with d = m - m', H(m) - H(m') = c + sum of (d_i * k_j + d_j * k_i), where c does not
//! depend on the key: the products of two key blocks cancel. Some block of d is not zero; it multiplies one
//! block of the key, which is uniform and independent of all the others, and multiplication by a nonzero
//! element of a field is a permutation. So the difference is uniform, and zero with probability 2^-128.
//! For any n bits of the hash (it is linear) the probability is 2^-n. An attacker who learns only, guess by guess, that
//! hashes differ succeeds within q guesses with a probability of at most q * 2^-128. One who sees hashes learns
//! equations of the key, so hashes are as secret as the key.
//!
//! A pair costs three carry-less products of 64 bits (Karatsuba), and the reduction is done once for each page:
//! [`Products`] computes the sums of unreduced products. `canvas_sys::clmul` does that with the processor's
//! instructions; [`portable`] gives the same result anywhere. None of this branches on or indexes by a secret, so its
//! time reveals nothing.

use canvas_types::{PAGE_SIZE, PageBuf};

use crate::swap::classes::HEADER_BYTES;

/// The hash of a page's content, as stored.
pub type Hash = [u8; HEADER_BYTES];

/// The three sums over all pairs, with a = m_i + k_i and b = m_j + k_j, of low(a) * low(b),
/// (low(a) + high(a)) * (low(b) + high(b)) and high(a) * high(b): carry-less products of 64 bits.
pub type Products = fn(page: &PageBuf, key: &PageBuf) -> [u128; 3];

/// Bytes between the two blocks of a pair: four pairs are adjacent, as wide as a register can be.
const STRIDE: usize = 64;

/// Hashes pages under a key.
#[derive(Clone, Copy, Debug)]
pub struct PageHash<'k> {
    key: &'k PageBuf,
    products: Products,
}

impl<'k> PageHash<'k> {
    /// `key` is random and secret. `products` must compute what [`portable`] does.
    pub const fn new(key: &'k PageBuf, products: Products) -> PageHash<'k> {
        PageHash { key, products }
    }

    /// The hash of a page.
    #[inline]
    pub fn of(&self, page: &PageBuf) -> Hash {
        reduce((self.products)(page, self.key)).to_le_bytes()
    }
}

/// Whether the two are equal. Both are secret: the time does not depend on where they differ.
#[inline]
pub fn same(a: &Hash, b: &Hash) -> bool {
    u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b) == 0
}

/// Joins the three sums into one polynomial of 255 bits, and reduces it modulo x^128 + x^7 + x^2 + x + 1.
fn reduce([low, cross, high]: [u128; 3]) -> u128 {
    let cross = cross ^ low ^ high;
    let low = low ^ cross << 64;
    let high = high ^ cross >> 64;
    // x^128 = x^7 + x^2 + x + 1; what that shifts out again has few bits.
    let out = high >> 127 ^ high >> 126 ^ high >> 121;
    let fold = |v: u128| v ^ v << 1 ^ v << 2 ^ v << 7;
    low ^ fold(high) ^ fold(out)
}

/// [`Products`] without special instructions: slow (some microseconds a page), and the same everywhere.
pub fn portable(page: &PageBuf, key: &PageBuf) -> [u128; 3] {
    let mut sums = [Sum::default(); 3];
    for at in (0..PAGE_SIZE).step_by(16) {
        if at & STRIDE != 0 {
            continue;
        }
        let word = |at: usize| keyed_word(page, key, at);
        let (a, b) = (
            [word(at), word(at + 8)],
            [word(at + STRIDE), word(at + STRIDE + 8)],
        );
        sums[0].add(a[0], b[0]);
        sums[1].add(a[0] ^ a[1], b[0] ^ b[1]);
        sums[2].add(a[1], b[1]);
    }
    sums.map(Sum::value)
}

fn keyed_word(page: &PageBuf, key: &PageBuf, at: usize) -> u64 {
    let word = |of: &PageBuf| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&of[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    word(page) ^ word(key)
}

/// A sum of carry-less products by ordinary multiplication, in which no carry may reach another significant bit: with
/// each fifth bit of both factors, a column sums at most 13 products, which fit into the bits up to the next column.
/// `columns[i]` is right in the bits that are i modulo 5.
#[derive(Clone, Copy, Default)]
struct Sum {
    columns: [u128; 5],
}

/// Each fifth bit.
const FIFTH: u128 = {
    let (mut bits, mut i) = (0, 0);
    while i < 128 {
        bits |= 1 << i;
        i += 5;
    }
    bits
};

impl Sum {
    #[inline(always)]
    fn add(&mut self, a: u64, b: u64) {
        let fifths = |v: u64| core::array::from_fn::<u64, 5, _>(|i| v & (FIFTH << i) as u64);
        let (a, b) = (fifths(a), fifths(b));
        for (i, column) in self.columns.iter_mut().enumerate() {
            for (j, a) in a.iter().enumerate() {
                *column ^= u128::from(*a) * u128::from(b[(i + 5 - j) % 5]);
            }
        }
    }
    fn value(self) -> u128 {
        let right = |sum, (i, column): (usize, &u128)| sum | column & FIFTH << i;
        self.columns.iter().enumerate().fold(0, right)
    }
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(2 * STRIDE) && HEADER_BYTES == 16);
