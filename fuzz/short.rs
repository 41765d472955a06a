//! Fuzz targets without a fuzzer, for each crate's tests: the corpus as it is, and a short run of random
//! changes to it (its seed is printed; CANVAS_TEST_SEED=N repeats it, CANVAS_TEST_SCALE=N makes it longer).

use std::path::PathBuf;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    // The seed means the same run on every file system.
    files.sort();
    assert!(!files.is_empty(), "no corpus for {target}");
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One random change, as fuzzers make them.
fn change(rng: &mut fastrand::Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.usize(..=bytes.len());
    match rng.u8(..7) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
        1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
        2 => bytes.truncate(at),
        3 => bytes.insert(at, rng.u8(..)),
        4 if at + 4 <= bytes.len() => {
            let n = bytes.len() as u32;
            let n = [0, n, n.wrapping_sub(16), u32::MAX, 32768, 65519][rng.usize(..6)];
            bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
        }
        5 => {
            let from = rng.usize(..=other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let mut tail = vec![0; rng.usize(..64)];
            rng.fill(&mut tail);
            bytes.extend_from_slice(&tail);
            // The length is right more often than by chance.
            if bytes.len() >= 16 {
                let len = (bytes.len() - 16) as u32;
                bytes[4..8].copy_from_slice(&len.to_le_bytes());
            }
        }
    }
}

/// The corpus of `target`, and `runs` random changes to it, each given to `try_it`.
pub fn short_run(target: &str, runs: u64, try_it: fn(&[u8])) {
    let corpus = corpus(target);
    for bytes in &corpus {
        try_it(bytes);
    }
    let seed = number("CANVAS_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{target}: CANVAS_TEST_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..runs * number("CANVAS_TEST_SCALE").unwrap_or(1) {
        let mut bytes = corpus[rng.usize(..corpus.len())].clone();
        let other = &corpus[rng.usize(..corpus.len())];
        for _ in 0..rng.u8(1..6) {
            change(&mut rng, &mut bytes, other);
        }
        bytes.truncate(70_000);
        try_it(&bytes);
    }
}
