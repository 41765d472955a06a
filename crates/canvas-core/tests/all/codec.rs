//! Classification.
use crate::common;
use canvas_core::swap::codec::{Content, classify, fill};
use canvas_testing::random::sized;
use canvas_types::PAGE_SIZE;
use proptest::prelude::*;

fn naive(page: &[u8; PAGE_SIZE]) -> Content {
    let words: Vec<u64> = page
        .chunks(8)
        .map(|c| u64::from_ne_bytes(c.try_into().unwrap()))
        .collect();
    match words.windows(2).all(|w| w[0] == w[1]) {
        true if words[0] == 0 => Content::Zero,
        true => Content::SameFilled(words[0]),
        false => Content::Data,
    }
}

#[test]
fn one_byte_makes_a_page_data() {
    for pattern in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
        let mut page = [0u8; PAGE_SIZE];
        fill(&mut page, pattern);
        let want = if pattern == 0 {
            Content::Zero
        } else {
            Content::SameFilled(pattern)
        };
        assert_eq!(classify(&page), want);
        for at in (0..PAGE_SIZE).step_by(sized(1, 61)) {
            page[at] ^= 0x10;
            assert_eq!(classify(&page), Content::Data, "byte {at}");
            page[at] ^= 0x10;
        }
        assert_eq!(classify(&page), want);
    }
}

#[test]
fn agrees_with_the_naive_form() {
    let page = (
        prop_oneof![Just(0u64), any::<u64>()],
        prop::collection::vec((0..512usize, any::<u64>()), 0..3),
    );
    common::runner(500)
        .run(&page, |(pattern, pokes)| {
            let mut page = [0u8; PAGE_SIZE];
            fill(&mut page, pattern);
            for (word, value) in pokes {
                page[word * 8..word * 8 + 8].copy_from_slice(&value.to_ne_bytes());
            }
            prop_assert_eq!(classify(&page), naive(&page));
            Ok(())
        })
        .unwrap();
}
