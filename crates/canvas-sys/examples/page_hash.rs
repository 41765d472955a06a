//! What the content hash of a page costs, in each form that this processor has, beside XXH3-128 (which
//! canvas used before): `cargo run --release -p canvas-sys --example page_hash`. Pages that were just written, and
//! pages out of the second-level cache. The least of several rounds: the machine may do other things.

use canvas_swap::hash::{PageHash, portable};
use canvas_sys::{clmul, proc};
use canvas_types::{PAGE_SIZE, PageBuf};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;

/// ns a page.
fn cost(pages: &[PageBuf], n: usize, hash: impl Fn(&PageBuf) -> [u8; 16]) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for page in pages.iter().cycle().take(n) {
            black_box(hash(black_box(page)));
        }
        least = least.min(begin.elapsed().as_nanos() as f64 / n as f64);
    }
    least
}

fn main() {
    let mut key = [0; PAGE_SIZE];
    proc::random_bytes(&mut key).expect("random bytes");
    // 2 pages stay in the first-level cache, 128 (512 KiB) mostly in the second.
    let mut pages = vec![[0; PAGE_SIZE]; 128];
    for page in &mut pages {
        proc::random_bytes(page).expect("random bytes");
    }
    let tell = |name: &str, n: usize, hash: &dyn Fn(&PageBuf) -> [u8; 16]| {
        let (near, far) = (cost(&pages[..2], n, hash), cost(&pages, n, hash));
        println!("{name:22} {near:8.1} ns a page, {far:8.1} from the second-level cache");
    };
    tell("XXH3-128, before", 20_000, &|p| {
        xxhash_rust::xxh3::xxh3_128(p).to_le_bytes()
    });
    tell("portable", 1_000, &|p| PageHash::new(&key, portable).of(p));
    for width in clmul::Width::ALL {
        if let Some(products) = width.products() {
            let hash = PageHash::new(&key, products);
            tell(&format!("{width:?}"), 20_000, &|p| hash.of(p));
        }
    }
}
