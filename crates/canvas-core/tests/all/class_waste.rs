//! What finer classes save: prints the table quoted at `CLASS_BYTES`, and checks it.
use canvas_core::swap::classes::*;
use canvas_types::PAGE_SIZE;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Stored size with header; a page that does not fit `compressed_max` is raw.
fn stored(payload: usize, compressed_max: usize) -> usize {
    HEADER_BYTES
        + if payload > compressed_max {
            PAGE_SIZE
        } else {
            payload
        }
}

/// Share of the pool beyond an exact fit, with slots cut from slabs of `slab`.
fn waste(
    payloads: &[usize],
    slab: usize,
    classes: &[u16],
    compressed_max: usize,
    raw_apart: bool,
) -> f64 {
    let (mut held, mut taken) = (0.0, 0.0);
    for &p in payloads {
        let bytes = stored(p, compressed_max);
        let slot = if bytes > PAGE_SIZE && raw_apart {
            PAGE_SIZE
        } else {
            bytes
        };
        // With the header inside, raw pages need a class of their own above the last.
        let class = classes
            .iter()
            .map(|&c| c as usize)
            .find(|&c| c >= slot)
            .unwrap_or(PAGE_SIZE + HEADER_BYTES);
        // Compared with an exact fit: storing a page raw that shrinks a little counts as waste too.
        held += (HEADER_BYTES + p.min(PAGE_SIZE)) as f64;
        taken += slab as f64 / (slab / class) as f64 + (bytes - slot) as f64;
    }
    1.0 - held / taken
}

fn lz4(page: &[u8]) -> usize {
    let mut out = vec![0u8; 8192];
    lz4_flex::block::compress_into(page, &mut out).unwrap()
}

/// Payload sizes of synthetic heaps.
fn heaps() -> Vec<(&'static str, Vec<usize>)> {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let words: Vec<Vec<u8>> = (0..400)
        .map(|_| {
            (0..3 + rng.next() % 8)
                .map(|_| b'a' + (rng.next() % 26) as u8)
                .collect()
        })
        .collect();
    let text = |rng: &mut Rng| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            let r = rng.next() % 400 * (rng.next() % 100) / 100 * (rng.next() % 100) / 100;
            page.extend(&words[r as usize]);
            page.push(b' ');
        }
        page.truncate(PAGE_SIZE);
        page
    };
    // Objects: a few pointers near each other, small counts, some bytes of string, free space.
    let objects = |rng: &mut Rng| {
        let (base, spread, noise) = (
            0x7f00_0000_0000 + (rng.next() << 20 & 0xff_fff0_0000),
            rng.next() % 65536,
            rng.next() % 40,
        );
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            page.extend((base + ((rng.next() % (spread + 1)) << 4)).to_le_bytes());
            page.extend((rng.next() % 64).to_le_bytes());
            for _ in 0..rng.next() % (noise + 1) {
                page.push(rng.next() as u8);
            }
            page.resize(page.len().next_multiple_of(16), 0);
        }
        page.truncate(PAGE_SIZE);
        page
    };
    let floats = |rng: &mut Rng| {
        let digits = rng.next() % 48;
        (0..512)
            .flat_map(|i| {
                (((i as f64).sin().to_bits() ^ rng.next() >> 20) >> digits << digits).to_le_bytes()
            })
            .collect()
    };
    let mut sets: Vec<(&'static str, Vec<usize>)> = Vec::new();
    let mut of = |name, make: &dyn Fn(&mut Rng) -> Vec<u8>| {
        sets.push((name, (0..600).map(|_| lz4(&make(&mut rng))).collect()));
    };
    of("text", &text);
    of("objects", &objects);
    of("floats", &floats);
    let mut rng = Rng(99);
    sets.push((
        "sizes uniform to a page",
        (0..5000)
            .map(|_| 100 + (rng.next() % 4000) as usize)
            .collect(),
    ));
    sets
}

#[test]
fn finer_classes_waste_less() {
    let four = [512u16, 1024, 2048, 4096];
    let doubled: Vec<u16> = CLASS_BYTES.iter().copied().step_by(2).collect();
    println!(
        "{:26} {:>6} {:>14} {:>8} {:>8}",
        "share of the pool wasted", "mean", "512/1k/2k/4k", "13", "25"
    );
    let mut sums = [0.0; 3];
    for (name, payloads) in heaps() {
        let mean = payloads.iter().sum::<usize>() / payloads.len();
        // FastSwap stores a page's metadata separately, so its classes are not charged for the header.
        let coarse = waste(&payloads, PAGE_SIZE, &four, PAGE_SIZE - HEADER_BYTES, true);
        let half = waste(
            &payloads,
            SLAB_BYTES,
            &doubled,
            doubled[doubled.len() - 2] as usize - HEADER_BYTES,
            true,
        );
        let fine = waste(&payloads, SLAB_BYTES, &CLASS_BYTES, COMPRESSED_MAX, true);
        println!(
            "{name:26} {mean:6} {:13.1}% {:7.1}% {:7.1}%",
            coarse * 100.0,
            half * 100.0,
            fine * 100.0
        );
        assert!(fine <= 0.10, "{name}");
        assert!(fine < coarse, "{name}");
        sums = [sums[0] + coarse, sums[1] + half, sums[2] + fine];
    }
    assert!(sums[2] * 3.0 < sums[0] && sums[2] < sums[1]);
    // Raw headers separate, or in the slot.
    let raw = [PAGE_SIZE; 8];
    let apart = waste(&raw, SLAB_BYTES, &CLASS_BYTES, COMPRESSED_MAX, true);
    let inside = waste(&raw, SLAB_BYTES, &CLASS_BYTES, COMPRESSED_MAX, false);
    println!(
        "raw pages: headers apart {:.1}%, inside {:.1}%",
        apart * 100.0,
        inside * 100.0
    );
    assert!(apart < 0.001 && inside > 0.12);
    // Slabs of 16 KiB: the class sizes that divide them leave a gap below a page.
    let small: Vec<u16> = (4..=128u16)
        .rev()
        .map(|k| (16384 / k) & !15)
        .filter(|b| *b >= 128)
        .collect();
    let gap = small[small.len() - 1] - small[small.len() - 2];
    assert!(gap as usize > PAGE_SIZE / 6, "{gap}");
}
