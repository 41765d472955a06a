//! The processor's carry-less products, compared with the portable ones.

use canvas_core::swap::hash::{PageHash, portable};
use canvas_sys::clmul::{Products, Width, fastest, widest};
use canvas_testing::random::runner;
use canvas_types::{PAGE_SIZE, PageBuf};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// All implementations that this processor supports.
fn here() -> Vec<(Width, Products)> {
    let has = |w: Width| w.products().map(|p| (w, p));
    Width::ALL.into_iter().filter_map(has).collect()
}

/// The kernel lists the flags of those features whose registers it saves.
#[test]
fn what_is_found_is_what_the_kernel_tells() {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let line = text.lines().find(|l| l.starts_with("flags")).unwrap();
    let flags: Vec<&str> = line.split_whitespace().collect();
    let all = |names: &[&str]| names.iter().all(|n| flags.contains(n));
    let want = if all(&["vpclmulqdq", "avx512f"]) {
        Some(Width::Bits512)
    } else if all(&["vpclmulqdq", "avx2"]) {
        Some(Width::Bits256)
    } else if all(&["pclmulqdq"]) {
        Some(Width::Bits128)
    } else {
        None
    };
    assert_eq!(widest(), want);
    assert_eq!(here().last().map(|l| l.0), want);
    assert_eq!(fastest().is_some(), want.is_some());
}

#[test]
fn each_width_gives_the_portable_products() {
    let noise = any::<[u8; 32]>().prop_map(|seed| {
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut page = [0; PAGE_SIZE];
        rng.fill_bytes(&mut page);
        page
    });
    let sparse = prop::collection::vec((0..PAGE_SIZE, any::<u8>()), 0..20).prop_map(|bytes| {
        let mut page = [0; PAGE_SIZE];
        bytes.iter().for_each(|(at, value)| page[*at] = *value);
        page
    });
    let page = prop_oneof![
        noise.clone(),
        sparse,
        any::<u8>().prop_map(|b| [b; PAGE_SIZE])
    ];
    runner(400)
        .run(&(page.clone(), page), |(page, key)| {
            let want = portable(&page, &key);
            for (width, products) in here() {
                prop_assert_eq!(products(&page, &key), want, "{:?}", width);
            }
            Ok(())
        })
        .unwrap();
}

/// Each block alone, at both ends of its bits: no block is left out or in a wrong place.
#[test]
fn each_block_counts_in_its_place() {
    let key: PageBuf = core::array::from_fn(|i| (i * 197 + (i >> 8) * 31) as u8);
    for bit in (0..PAGE_SIZE * 8).filter(|b| matches!(b % 128, 0 | 63 | 64 | 127)) {
        let mut page = [0; PAGE_SIZE];
        page[bit / 8] = 1 << (bit % 8);
        let want = portable(&page, &key);
        for (width, products) in here() {
            assert_eq!(products(&page, &key), want, "{width:?} bit {bit}");
        }
    }
}

/// Pages can be anywhere: in the swap cache, in the middle of a file that is read.
#[test]
fn any_alignment_will_do() {
    let bytes: Vec<u8> = (0..2 * PAGE_SIZE + 64)
        .map(|i| (i * 151 + (i >> 9)) as u8)
        .collect();
    for shift in 0..64 {
        let page: &PageBuf = bytes[shift..].first_chunk().unwrap();
        let key: &PageBuf = bytes[PAGE_SIZE + 64 - shift..].first_chunk().unwrap();
        let want = PageHash::new(key, portable).of(page);
        for (width, products) in here() {
            assert_eq!(
                PageHash::new(key, products).of(page),
                want,
                "{width:?} shift {shift}"
            );
        }
    }
}
