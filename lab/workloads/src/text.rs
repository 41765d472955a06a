//! Text like Wikipedia's: Zipf-distributed words and repeated phrases with wiki markup and XML.
//!
//! Snappy and lz4 compress it about as well as enwik8 (1.7 to 1.8:1).

use crate::Failure;
use crate::rng::{RngExt, Stream, stream};

/// Number of different words.
const WORDS: usize = 60_000;
/// log2 of the size of the table of words; rarer words have a uniform part of it.
const TABLE_BITS: u32 = 18;
/// Number of phrases of several words that recur.
const PHRASES: usize = 4_000;

const SYLLABLES: [&str; 48] = [
    "an", "ter", "con", "re", "ing", "tion", "al", "de", "er", "in", "ment", "pro", "sta", "tic",
    "or", "ly", "us", "ra", "mo", "li", "ca", "ber", "ness", "per", "to", "vi", "na", "ship",
    "com", "ed", "si", "ous", "ma", "lo", "gra", "ph", "u", "est", "ki", "dom", "el", "ist", "sub",
    "tra", "ver", "wa", "y", "on",
];
const COMMON: [&str; 32] = [
    "the", "of", "and", "in", "a", "to", "was", "is", "as", "for", "by", "on", "with", "that",
    "from", "are", "it", "at", "his", "an", "which", "or", "be", "were", "also", "has", "he",
    "this", "its", "not", "have", "first",
];

/// The words, with a table to draw them by frequency.
struct Language {
    words: Vec<String>,
    table: Vec<u16>,
    phrases: Vec<String>,
}

impl Language {
    fn new(rng: &mut Stream) -> Language {
        let mut words: Vec<String> = COMMON.iter().map(|w| (*w).to_owned()).collect();
        while words.len() < WORDS {
            let syllables = 1 + rng.random_range(0..2) + rng.random_range(0..3);
            words.push(
                (0..syllables)
                    .map(|_| SYLLABLES[rng.random_range(0..SYLLABLES.len())])
                    .collect(),
            );
        }
        // Rank r has a share of 1/r; the rest of the table is divided evenly among all words.
        let size = 1usize << TABLE_BITS;
        let sum: f64 = (1..=WORDS).map(|r| 1.0 / r as f64).sum();
        let mut table = Vec::with_capacity(size);
        for rank in 0..WORDS {
            let share = size as f64 / (sum * (rank + 1) as f64);
            table.extend((0..share as usize).map(|_| rank as u16));
        }
        while table.len() < size {
            table.push(rng.random_range(0..WORDS) as u16);
        }
        let mut language = Language {
            words,
            table,
            phrases: Vec::new(),
        };
        language.phrases = (0..PHRASES)
            .map(|_| {
                let words = rng.random_range(2..6);
                let text: Vec<&str> = (0..words).map(|_| language.word(rng)).collect();
                text.join(" ")
            })
            .collect();
        language
    }

    fn word(&self, rng: &mut Stream) -> &str {
        let draw = rng.random_range(0..self.table.len());
        &self.words[usize::from(self.table[draw])]
    }

    fn phrase(&self, rng: &mut Stream) -> &str {
        // The smaller of two draws, so that some phrases are more popular than others.
        let draw = rng
            .random_range(0..PHRASES)
            .min(rng.random_range(0..PHRASES));
        &self.phrases[draw]
    }

    /// A capitalised word.
    fn name(&self, rng: &mut Stream) -> String {
        let word = self.word(rng);
        word[..1].to_uppercase() + &word[1..]
    }
}

/// Generates exactly `bytes` of text. Fails if there is not enough memory.
pub fn corpus(bytes: usize, seed: u64) -> Result<Vec<u8>, Failure> {
    // Generates up to a page too much, then truncates.
    let mut text: Vec<u8> = crate::room(bytes + (64 << 10))?;
    let mut rng = stream(seed, 0);
    let language = Language::new(&mut rng);
    text.extend_from_slice(b"<mediawiki xml:lang=\"en\">\n");
    let mut id = 10;
    while text.len() < bytes {
        id += rng.random_range(1..4);
        page(&language, &mut rng, id, &mut text);
    }
    text.truncate(bytes);
    Ok(text)
}

fn page(language: &Language, rng: &mut Stream, id: u32, text: &mut Vec<u8>) {
    let title = format!("{} {}", language.name(rng), language.name(rng));
    let revision = rng.random_range(10_000_000..60_000_000u32);
    let (day, hour) = (rng.random_range(1..29), rng.random_range(0..24));
    let (minute, second) = (rng.random_range(0..60), rng.random_range(0..60));
    let head = format!(
        "  <page>\n    <title>{title}</title>\n    <id>{id}</id>\n    <revision>\n      \
         <id>{revision}</id>\n      \
         <timestamp>2006-02-{day:02}T{hour:02}:{minute:02}:{second:02}Z</timestamp>\n      \
         <contributor>\n        <username>{}</username>\n        <id>{}</id>\n      \
         </contributor>\n      <text xml:space=\"preserve\">'''{title}''' is ",
        language.name(rng),
        rng.random_range(100..1_000_000u32)
    );
    text.extend_from_slice(head.as_bytes());
    let topics: [&str; 24] = std::array::from_fn(|_| language.phrase(rng));
    for section in 0..rng.random_range(2..9) {
        if section > 0 {
            let heading = format!("== {} ==\n", language.name(rng));
            text.extend_from_slice(heading.as_bytes());
        }
        let list = rng.random_range(0..4) == 0;
        for _ in 0..rng.random_range(2..12) {
            if list {
                text.extend_from_slice(b"* ");
            }
            sentence(language, &topics, rng, text);
            text.push(if list { b'\n' } else { b' ' });
        }
        text.extend_from_slice(b"\n\n");
    }
    for _ in 0..rng.random_range(1..4) {
        let category = format!("[[Category:{}]]\n", language.phrase(rng));
        text.extend_from_slice(category.as_bytes());
    }
    text.extend_from_slice(b"</text>\n    </revision>\n  </page>\n");
}

/// Appends a sentence of an article about `topics`.
fn sentence(language: &Language, topics: &[&str], rng: &mut Stream, text: &mut Vec<u8>) {
    text.extend_from_slice(language.name(rng).as_bytes());
    for _ in 0..rng.random_range(6..24) {
        text.push(b' ');
        match rng.random_range(0..100) {
            0..8 => {
                text.extend_from_slice(b"[[");
                text.extend_from_slice(language.phrase(rng).as_bytes());
                text.extend_from_slice(b"]]");
            }
            8..16 => {
                let topic = topics[rng.random_range(0..topics.len())];
                text.extend_from_slice(topic.as_bytes());
            }
            16..28 => text.extend_from_slice(language.phrase(rng).as_bytes()),
            28..31 => {
                text.extend_from_slice(format!("[[{}]]", language.name(rng)).as_bytes());
            }
            31 => {
                let year = rng.random_range(1800..2007);
                text.extend_from_slice(format!("in [[{year}]],").as_bytes());
            }
            32 => text.extend_from_slice(format!("''{}''", language.word(rng)).as_bytes()),
            33 => text.extend_from_slice(b"&quot;"),
            34 => {
                let cite = format!("&lt;ref&gt;{}&lt;/ref&gt;", language.phrase(rng));
                text.extend_from_slice(cite.as_bytes());
            }
            35..39 => {
                text.extend_from_slice(language.word(rng).as_bytes());
                text.push(b',');
            }
            _ => text.extend_from_slice(language.word(rng).as_bytes()),
        }
    }
    text.push(b'.');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_shrinks_as_wikipedia_does() {
        let text = corpus(4 << 20, 1).unwrap();
        assert_eq!(text.len(), 4 << 20);
        let ratio = |stored: usize| text.len() as f64 / stored as f64;
        let snappy = ratio(snap::raw::Encoder::new().compress_vec(&text).unwrap().len());
        let lz4 = ratio(lz4_flex::block::compress(&text).len());
        // enwik8 has 1.77 with Snappy, 1.75 with lz4's fastest level.
        assert!((1.65..1.9).contains(&snappy), "snappy {snappy}");
        assert!((1.65..1.9).contains(&lz4), "lz4 {lz4}");
    }

    #[test]
    fn text_is_of_its_seed_and_is_ascii() {
        let text = corpus(100_000, 1).unwrap();
        assert_eq!(text, corpus(100_000, 1).unwrap());
        assert_ne!(text, corpus(100_000, 2).unwrap());
        assert!(text.is_ascii());
        let text = String::from_utf8(text).unwrap();
        for markup in ["<page>", "[[", "''", "== ", "&quot;", "[[Category:", "* "] {
            assert!(text.contains(markup), "{markup}");
        }
    }
}
