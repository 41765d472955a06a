use super::*;
use canvas_types::layout::BLOCK_PAGES;
use std::sync::Arc;

/// The claim keeps threads out of each other's chunks only for a while: sweeps can overtake each other.
#[test]
fn two_sweeps_of_one_chunk_share_its_pages() {
    shuttle::check_random(
        || {
            let words: Arc<Vec<AtomicU64>> = Arc::new(
                (0..BLOCK_PAGES)
                    .map(|p| AtomicU64::new(if p < 10 { State::Resident as u64 } else { 0 }))
                    .collect(),
            );
            let clock = Arc::new(Clock::new(ClockParams::DEFAULT));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (words, clock) = (words.clone(), clock.clone());
                    shuttle::thread::spawn(move || {
                        let (counts, high) = ([AtomicU32::new(10)], AtomicU32::new(1));
                        let table = PageTable {
                            words: &words,
                            resident_in_block: &counts,
                            high_block: &high,
                        };
                        let mut out = VictimBatch::new();
                        clock.sweep_chunk(&table, 0, 0, (Level::Normal, Among::All), &mut out);
                        out.pages()
                    })
                })
                .collect();
            let sum: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(sum, 10, "each page has one owner");
        },
        500,
    );
}
