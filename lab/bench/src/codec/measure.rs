//! Time and ratio of compressors over pages, and the saving of predicting incompressible pages.

use std::hint::black_box;
use std::time::Instant;

use canvas_core::swap::classes::{CLASS_BYTES, COMPRESSED_MAX, HEADER_BYTES, class_for};
use canvas_core::swap::codec::{Content, classify};
use canvas_types::{PAGE_SIZE, PageBuf};
use serde::Serialize;

use super::compressors::{Compressor, Lz4, ROOM_BYTES};
use crate::stats::median;

/// Pages by content; only pages of data are compressed.
pub struct Sorted {
    /// Pages of zeros.
    pub zero: usize,
    /// Pages of one repeated value.
    pub same_filled: usize,
    /// All other pages.
    pub data: Vec<PageBuf>,
}

/// Sorts pages by content, as canvas does.
pub fn sort(pages: Vec<PageBuf>) -> Sorted {
    let mut sorted = Sorted {
        zero: 0,
        same_filled: 0,
        data: Vec::new(),
    };
    for page in pages {
        match classify(&page) {
            Content::Zero => sorted.zero += 1,
            Content::SameFilled(_) => sorted.same_filled += 1,
            Content::Data => sorted.data.push(page),
        }
    }
    sorted
}

/// A time measured in several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rounds {
    /// The shortest time.
    pub best: f64,
    /// The median time.
    pub median: f64,
}

fn rounds(all: &[f64]) -> Option<Rounds> {
    Some(Rounds {
        best: all.iter().copied().min_by(f64::total_cmp)?,
        median: median(all)?,
    })
}

/// Results of a compressor over pages of data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Name of the compressor.
    pub compressor: String,
    /// Time to compress a page, whether it shrinks or not.
    pub out_ns: Rounds,
    /// Time to decompress a page that shrank; absent if none did.
    pub in_ns: Option<Rounds>,
    /// Bytes of the pages over the compressed bytes; pages that do not shrink enough count in full.
    pub ratio: f64,
    /// Bytes of the pages over the bytes of their slots in canvas's pool, header included.
    pub ratio_in_slots: f64,
    /// Share of pages that are stored uncompressed.
    pub raw_share: f64,
}

/// A predictor that rejects pages before lz4 works on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Foresight {
    /// Name of the predictor.
    pub predictor: String,
    /// Prediction time per page.
    pub ns: Rounds,
    /// Share of the incompressible pages that it rejects; absent if all pages shrink.
    pub found_share: Option<f64>,
    /// Share of the compressible pages that it rejects wrongly.
    pub wrong_share: f64,
    /// Compression time per page in medians: of the prediction, and of lz4 over the pages not rejected.
    pub out_ns: f64,
}

/// Pages that lz4, with canvas's parameters, does not make small enough.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// Their share among the pages of data.
    pub share: f64,
    /// Time that lz4 spends on such a page; absent if there is none.
    pub ns: Option<Rounds>,
    /// Their share of lz4's time over all pages.
    pub time_share: f64,
    /// Result of each predictor.
    pub foresight: Vec<Foresight>,
}

/// Time of `each` per page, over all pages, in each of `count` rounds.
fn timed<'p>(
    pages: impl Iterator<Item = &'p PageBuf> + Clone,
    count: u32,
    mut each: impl FnMut(&PageBuf),
) -> Vec<f64> {
    let number = pages.clone().count();
    let round = |_| {
        let began = Instant::now();
        pages.clone().for_each(&mut each);
        began.elapsed().as_nanos() as f64 / number as f64
    };
    if number == 0 {
        Vec::new()
    } else {
        (0..count).map(round).collect()
    }
}

/// Measures one compressor. Returns `None` if there are no pages; the error names a page that did not
/// decompress to itself.
pub fn speed(
    compressor: &mut dyn Compressor,
    pages: &[PageBuf],
    count: u32,
) -> Result<Option<Speed>, usize> {
    let mut out = [0; ROOM_BYTES];
    let out_ns = timed(pages.iter(), count, |page| {
        black_box(compressor.compress(black_box(page), &mut out));
    });
    let Some(out_ns) = rounds(&out_ns) else {
        return Ok(None);
    };
    let mut stored: Vec<Vec<u8>> = Vec::new();
    let (mut bytes, mut slots) = (0, 0);
    let mut back = [0; PAGE_SIZE];
    for (n, page) in pages.iter().enumerate() {
        let Some(len) = compressor.compress(page, &mut out) else {
            (bytes, slots) = (bytes + PAGE_SIZE, slots + PAGE_SIZE);
            continue;
        };
        bytes += len;
        slots += usize::from(CLASS_BYTES[class_for(HEADER_BYTES + len)]);
        if !compressor.decompress(&out[..len], &mut back) || back != *page {
            return Err(n);
        }
        stored.push(out[..len].to_vec());
    }
    let mut in_ns = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        for from in &stored {
            black_box(compressor.decompress(black_box(from), &mut back));
        }
        in_ns.push(began.elapsed().as_nanos() as f64 / stored.len().max(1) as f64);
    }
    let whole = (pages.len() * PAGE_SIZE) as f64;
    Ok(Some(Speed {
        compressor: compressor.name(),
        out_ns,
        in_ns: rounds(&in_ns).filter(|_| !stored.is_empty()),
        ratio: whole / bytes as f64,
        ratio_in_slots: whole / slots as f64,
        raw_share: 1.0 - stored.len() as f64 / pages.len() as f64,
    }))
}

/// Length of the part of a page that is compressed to predict the rest.
const PART: usize = 1024;
/// The entropy counts each byte at a multiple of this step.
const STEP: usize = 8;
/// Threshold in bits per byte: 512 random bytes have 7.6 by this estimate.
const ENTROPY_BITS: f64 = 7.0;

/// Entropy of the sampled bytes, in bits per byte.
fn entropy(page: &PageBuf) -> f64 {
    let mut counts = [0u16; 256];
    for byte in page.iter().step_by(STEP) {
        counts[usize::from(*byte)] += 1;
    }
    let total = (PAGE_SIZE / STEP) as f64;
    let of = |n: &u16| f64::from(*n) * f64::from(*n).log2();
    let sum: f64 = counts.iter().filter(|n| **n > 0).map(of).sum();
    total.log2() - sum / total
}

/// Name of a predictor, and the function that says whether to reject a page.
type Predictor = (&'static str, Box<dyn FnMut(&PageBuf) -> bool>);

fn predictors() -> Vec<Predictor> {
    let (mut part, mut trial) = (Lz4::new(1), Lz4::new(8));
    let mut room = [0; ROOM_BYTES];
    let bound = COMPRESSED_MAX * PART / PAGE_SIZE;
    vec![
        (
            "lz4 over the first 1 KiB",
            Box::new(move |page: &PageBuf| part.bytes(&page[..PART], &mut room[..bound]).is_none()),
        ),
        (
            "entropy of each eighth byte, 7 bits",
            Box::new(|page: &PageBuf| entropy(page) >= ENTROPY_BITS),
        ),
        (
            "lz4 with acceleration 8",
            Box::new(move |page: &PageBuf| trial.compress(page, &mut room).is_none()),
        ),
    ]
}

/// Evaluates the predictors over incompressible pages; `None` if there are no pages.
pub fn refusal(pages: &[PageBuf], count: u32) -> Option<Refusal> {
    let mut lz4 = Lz4::new(1);
    let mut out = [0; ROOM_BYTES];
    let shrinks: Vec<bool> = pages
        .iter()
        .map(|page| lz4.compress(page, &mut out).is_some())
        .collect();
    let both = |want: bool| {
        let pairs = pages.iter().zip(&shrinks);
        pairs
            .filter(move |(_, s)| **s == want)
            .map(|(page, _)| page)
    };
    let mut time = |want: bool| {
        rounds(&timed(both(want), count, |page| {
            black_box(lz4.compress(black_box(page), &mut out));
        }))
    };
    let (refused_ns, kept_ns) = (time(false), time(true));
    let share = both(false).count() as f64 / (!pages.is_empty()).then_some(pages.len() as f64)?;
    let each = |ns: Option<Rounds>| ns.map_or(0.0, |ns| ns.median);
    let refused_time = share * each(refused_ns);
    let kept_time = (1.0 - share) * each(kept_ns);
    let mut foresight = Vec::new();
    for (name, mut refuses) in predictors() {
        let ns = rounds(&timed(pages.iter(), count, |page| {
            black_box(refuses(black_box(page)));
        }))?;
        let mut part_of = |want: bool| {
            let refused = both(want).filter(|page| refuses(page)).count();
            let all = both(want).count();
            (all > 0).then(|| refused as f64 / all as f64)
        };
        let (found_share, wrong_share) = (part_of(false), part_of(true).unwrap_or(0.0));
        let left =
            refused_time * (1.0 - found_share.unwrap_or(0.0)) + kept_time * (1.0 - wrong_share);
        foresight.push(Foresight {
            predictor: name.to_owned(),
            ns,
            found_share,
            wrong_share,
            out_ns: ns.median + left,
        });
    }
    Some(Refusal {
        share,
        ns: refused_ns,
        time_share: refused_time / (refused_time + kept_time),
        foresight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(random: &mut fastrand::Rng) -> PageBuf {
        let mut page = [0; PAGE_SIZE];
        random.fill(&mut page);
        page
    }

    #[test]
    fn pages_are_sorted_as_canvas_does() {
        let mut random = fastrand::Rng::with_seed(1);
        let pages = vec![
            [0; PAGE_SIZE],
            noise(&mut random),
            [7; PAGE_SIZE],
            [0; PAGE_SIZE],
        ];
        let sorted = sort(pages);
        assert_eq!(
            (sorted.zero, sorted.same_filled, sorted.data.len()),
            (2, 1, 1)
        );
    }

    #[test]
    fn what_does_not_shrink_is_counted_and_foreseen() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut pages: Vec<PageBuf> = (0..30).map(|_| noise(&mut random)).collect();
        pages.extend((0..70).map(|n| {
            let mut page = [0; PAGE_SIZE];
            page.iter_mut()
                .enumerate()
                .for_each(|(i, b)| *b = (i % (7 + n)) as u8);
            page
        }));
        let got = speed(&mut Lz4::new(1), &pages, 2).unwrap().unwrap();
        assert!((got.raw_share - 0.3).abs() < 1e-9, "{got:?}");
        assert!((2.0..3.4).contains(&got.ratio), "{got:?}");
        assert!(got.ratio_in_slots < got.ratio && got.out_ns.best <= got.out_ns.median);
        let refusal = refusal(&pages, 2).unwrap();
        assert!((refusal.share - 0.3).abs() < 1e-9);
        for f in &refusal.foresight {
            assert_eq!((f.found_share, f.wrong_share), (Some(1.0), 0.0), "{f:?}");
        }
        assert_eq!(speed(&mut Lz4::new(1), &[], 2), Ok(None));
        assert!(super::refusal(&[], 2).is_none());
    }

    #[test]
    fn entropy_is_that_of_bytes() {
        assert!(entropy(&[3; PAGE_SIZE]).abs() < 1e-9);
        let mut two = [0; PAGE_SIZE];
        two.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = (i / 8 % 2) as u8);
        assert!((entropy(&two) - 1.0).abs() < 1e-9);
        assert!(entropy(&noise(&mut fastrand::Rng::with_seed(3))) > 7.3);
    }
}
