//! Sums of carry-less products over a page: the costly part of the content hash (`canvas_core::swap::hash`, which defines the
//! sum and has a portable implementation).
//!
//! PCLMULQDQ multiplies two polynomials over GF(2) of degree 63, VPCLMULQDQ two or four pairs of them at a time. Which
//! of them the processor has, and the kernel enables, is looked up once, when the library starts. The wide forms are
//! assembly: they must leave the upper halves of registers zero, as code compiled without AVX expects, and as keeps the
//! kernel's saving of registers cheap. Intrinsics, which Rust has since 1.89, do not promise that: the compiler may use
//! AVX-512's registers 16 to 31, which `vzeroupper` does not clear.

use canvas_types::{PAGE_SIZE, PageBuf};
use core::arch::asm;
use core::arch::x86_64::{
    __cpuid_count, __m128i, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_setzero_si128,
    _mm_unpackhi_epi64, _mm_unpacklo_epi64, _mm_xor_si128, _xgetbv, CpuidResult,
};

/// A function that sums the products of a page's blocks under a key, as `canvas_core::swap::hash` defines them.
pub type Products = fn(page: &PageBuf, key: &PageBuf) -> [u128; 3];

/// How wide the processor multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// One product at a time: PCLMULQDQ.
    Bits128,
    /// VPCLMULQDQ with AVX2.
    Bits256,
    /// VPCLMULQDQ with AVX-512F.
    Bits512,
}

impl Width {
    /// All widths, from narrow to wide.
    pub const ALL: [Width; 3] = [Width::Bits128, Width::Bits256, Width::Bits512];

    /// The function, if this processor has the instructions.
    pub fn products(self) -> Option<Products> {
        let widest = widest()?;
        (self as usize <= widest as usize).then_some(match self {
            Width::Bits128 => by_128 as Products,
            Width::Bits256 => by_256,
            Width::Bits512 => by_512,
        })
    }
}

/// The fastest function for this processor; `None` without PCLMULQDQ.
pub fn fastest() -> Option<Products> {
    widest()?.products()
}

/// The widest form that the processor has, in registers that the kernel saves.
pub fn widest() -> Option<Width> {
    let has = |register: u32, bit: u32| register & 1 << bit != 0;
    let basic = cpuid(1);
    if !has(basic.ecx, 1) {
        return None; // PCLMULQDQ
    }
    let (osxsave, avx) = (has(basic.ecx, 27), has(basic.ecx, 28));
    if !(osxsave && avx) || cpuid(0).eax < 7 {
        return Some(Width::Bits128);
    }
    // SAFETY: OSXSAVE says that the processor has XGETBV and that it may be used.
    let saved = unsafe { saved_registers() };
    let more = cpuid(7);
    let (avx2, avx512f, vpclmulqdq) = (has(more.ebx, 5), has(more.ebx, 16), has(more.ecx, 10));
    // Registers of SSE and AVX; for AVX-512 also masks, upper halves and upper registers.
    let (ymm, zmm) = (0b110, 0b1110_0110);
    Some(match () {
        _ if vpclmulqdq && avx512f && saved & zmm == zmm => Width::Bits512,
        _ if vpclmulqdq && avx2 && saved & ymm == ymm => Width::Bits256,
        _ => Width::Bits128,
    })
}

/// Processor features (the crate `cpufeatures` knows VPCLMULQDQ only together with AVX-512).
#[allow(unused_unsafe)] // A safe function since Rust 1.94 or so.
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every processor of 64 bits has the instruction.
    unsafe { __cpuid_count(leaf, 0) }
}

/// Reads XCR0.
///
/// # Safety
///
/// The kernel has enabled XGETBV (OSXSAVE).
#[target_feature(enable = "xsave")]
unsafe fn saved_registers() -> u64 {
    // SAFETY: XGETBV is enabled, the caller's promise, and register 0 exists wherever it is.
    unsafe { _xgetbv(0) }
}

fn by_128(page: &PageBuf, key: &PageBuf) -> [u128; 3] {
    // SAFETY: `Width::products` alone gives this function away, and only on a processor with PCLMULQDQ.
    unsafe { products_128(page, key) }
}

#[target_feature(enable = "pclmulqdq")]
fn products_128(page: &PageBuf, key: &PageBuf) -> [u128; 3] {
    let load = |of: &PageBuf, at: usize| {
        let bytes: &[u8; 16] = of[at..].first_chunk().expect("pairs end with the page");
        // SAFETY: reads the 16 bytes of `bytes`, at any alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>()) }
    };
    let xor = _mm_xor_si128;
    let mut sums = [_mm_setzero_si128(); 3];
    for group in (0..PAGE_SIZE).step_by(128) {
        for at in (group..group + 64).step_by(16) {
            let a = xor(load(page, at), load(key, at));
            let b = xor(load(page, at + 64), load(key, at + 64));
            let both = xor(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
            sums[0] = xor(sums[0], _mm_clmulepi64_si128::<0x00>(a, b));
            sums[1] = xor(sums[1], _mm_clmulepi64_si128::<0x01>(both, both));
            sums[2] = xor(sums[2], _mm_clmulepi64_si128::<0x11>(a, b));
        }
    }
    // SAFETY: 16 bytes each, of which any are a number; the first byte is the lowest on this processor.
    sums.map(|s| unsafe { core::mem::transmute::<__m128i, u128>(s) })
}

/// Defines the function `$name` over registers `$r` ("ymm" or "zmm") of `$bytes` bytes: `$load` and `$xor` are their
/// instructions, `$at` the offsets in a round of `$round` bytes at which the first blocks of pairs begin.
macro_rules! wide {
    ($name:ident, $r:literal, $bytes:literal, $load:literal, $xor:literal, $round:literal, $($at:literal)*) => {
        fn $name(page: &PageBuf, key: &PageBuf) -> [u128; 3] {
            const _: () = assert!(PAGE_SIZE.is_multiple_of($round));
            let mut sums = [[0u128; $bytes / 16]; 3];
            // SAFETY: `Width::products` alone gives this function away, and only where instructions and registers
            // exist. Each round reads what lies in `page` and `key` at `at` and the next `$round` bytes, until `at` is
            // PAGE_SIZE; the three stores fill `sums`. Named as changed are the registers that are written and, for
            // `vzeroupper`, all that have an upper half of those.
            unsafe {
                asm!(
                    concat!($xor, " ", $r, "0, ", $r, "0, ", $r, "0"),
                    concat!($xor, " ", $r, "1, ", $r, "1, ", $r, "1"),
                    concat!($xor, " ", $r, "2, ", $r, "2, ", $r, "2"),
                    "2:",
                    $(
                        // a, b, and for each pair the sums of a's halves and of b's halves in one register.
                        concat!($load, " ", $r, "3, [{page} + {at} + ", $at, "]"),
                        concat!($load, " ", $r, "4, [{page} + {at} + ", $at, " + 64]"),
                        concat!($xor, " ", $r, "3, ", $r, "3, [{key} + {at} + ", $at, "]"),
                        concat!($xor, " ", $r, "4, ", $r, "4, [{key} + {at} + ", $at, " + 64]"),
                        concat!("vpunpcklqdq ", $r, "5, ", $r, "3, ", $r, "4"),
                        concat!("vpunpckhqdq ", $r, "6, ", $r, "3, ", $r, "4"),
                        concat!($xor, " ", $r, "5, ", $r, "5, ", $r, "6"),
                        concat!("vpclmulqdq ", $r, "6, ", $r, "3, ", $r, "4, 0x00"),
                        concat!($xor, " ", $r, "0, ", $r, "0, ", $r, "6"),
                        concat!("vpclmulqdq ", $r, "5, ", $r, "5, ", $r, "5, 0x01"),
                        concat!($xor, " ", $r, "1, ", $r, "1, ", $r, "5"),
                        concat!("vpclmulqdq ", $r, "3, ", $r, "3, ", $r, "4, 0x11"),
                        concat!($xor, " ", $r, "2, ", $r, "2, ", $r, "3"),
                    )*
                    concat!("add {at}, ", $round),
                    "cmp {at}, {end}",
                    "jb 2b",
                    concat!($load, " [{sums}], ", $r, "0"),
                    concat!($load, " [{sums} + ", $bytes, "], ", $r, "1"),
                    concat!($load, " [{sums} + 2 * ", $bytes, "], ", $r, "2"),
                    "vzeroupper",
                    page = in(reg) page.as_ptr(),
                    key = in(reg) key.as_ptr(),
                    sums = in(reg) sums.as_mut_ptr(),
                    at = inout(reg) 0usize => _,
                    end = const PAGE_SIZE,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack),
                );
            }
            sums.map(|s| s.iter().fold(0, |sum, part| sum ^ part))
        }
    };
}

wide!(by_256, "ymm", 32, "vmovdqu", "vpxor", 128, 0 32);
wide!(by_512, "zmm", 64, "vmovdqu64", "vpxorq", 256, 0 128);
