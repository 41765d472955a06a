//! The file of `learn`: recordings of resumptions, kept from one run to the next.
//!
//! Format, with little-endian integers: the name `CANVASLR`, a version and the number of recordings
//! (4 bytes each), a checksum of the rest (8 bytes), then each recording: its usefulness, its age
//! and its number of words (4 bytes each), and the words (`canvas_core::pager::learn::chunks`). The
//! format is checked on reading; users of the words check them again, since programs can write to
//! the segment, too.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_control::text::say;
use canvas_shm::learn::{RECORDINGS, Recordings, WORDS};

use crate::error::RunError;
use crate::reason;

const NAME: &[u8; 8] = b"CANVASLR";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const RECORDING_BYTES: usize = 12;
/// Largest size of a valid file.
const BYTES_MAX: usize = HEADER_BYTES + RECORDINGS * (RECORDING_BYTES + 4 * WORDS);
/// Least time between two saves while the program runs.
const PAUSE: Duration = Duration::from_secs(3);

/// A recording in the form of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    useful: u32,
    made: u32,
    words: Vec<u32>,
}

/// Why a file has no recordings of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unfit {
    /// It is another kind of file.
    Foreign,
    /// It is from another version of canvas.
    Version(u32),
    /// It is truncated or changed.
    Damaged,
}

fn checksum(bytes: &[u8]) -> u64 {
    // FNV-1a: protects against damage, not malice.
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, b| {
        (sum ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn encode(all: &[Kept]) -> Vec<u8> {
    let mut body = Vec::new();
    for r in all {
        let head = [r.useful, r.made, r.words.len() as u32];
        for n in head.iter().chain(&r.words) {
            body.extend_from_slice(&n.to_le_bytes());
        }
    }
    let mut bytes = NAME.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(all.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Vec<Kept>, Unfit> {
    let Some(rest) = bytes.strip_prefix(NAME) else {
        return Err(Unfit::Foreign);
    };
    let mut numbers = rest
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
    let mut number = || numbers.next().ok_or(Unfit::Damaged);
    match number()? {
        VERSION => {}
        other => return Err(Unfit::Version(other)),
    }
    let count = number()? as usize;
    let sum = u64::from(number()?) | u64::from(number()?) << 32;
    if bytes.len() > BYTES_MAX || count > RECORDINGS || sum != checksum(&bytes[HEADER_BYTES..]) {
        return Err(Unfit::Damaged);
    }
    let mut all = Vec::new();
    for _ in 0..count {
        let (useful, made, len) = (number()?, number()?, number()? as usize);
        if len > WORDS {
            return Err(Unfit::Damaged);
        }
        let words = (0..len).map(|_| number()).collect::<Result<_, _>>()?;
        all.push(Kept {
            useful,
            made,
            words,
        });
    }
    match numbers.next() {
        None if bytes.len().is_multiple_of(4) => Ok(all),
        _ => Err(Unfit::Damaged),
    }
}

/// A file of recordings, in use by a run.
pub struct Book {
    path: PathBuf,
    loaded: Vec<Kept>,
    saved_changes: Cell<u32>,
    saved_at: Cell<Instant>,
    has_failed: Cell<bool>,
}

impl Book {
    /// Reads the file and checks that it can be written. A damaged file, or one of another version,
    /// is reported and overwritten; a file of another kind is refused, because it would be
    /// overwritten.
    pub fn open(path: &Path) -> Result<Book, RunError> {
        let refuse = |why: String| RunError::Learn {
            path: path.to_owned(),
            why,
        };
        let loaded = match read(path) {
            Ok(None) => Vec::new(),
            Ok(Some(bytes)) => match decode(&bytes) {
                Ok(all) => all,
                Err(Unfit::Foreign) => {
                    return Err(refuse(
                        "it is not a file of recordings, and would be overwritten; write another name"
                            .to_owned(),
                    ));
                }
                Err(Unfit::Version(n)) => {
                    told(path, &format!("it is of version {n}, not {VERSION}"))
                }
                Err(Unfit::Damaged) => told(path, "it is damaged"),
            },
            Err(e) => return Err(refuse(format!("it cannot be read: {}", reason(&e)))),
        };
        let book = Book {
            path: path.to_owned(),
            loaded,
            saved_changes: Cell::new(0),
            saved_at: Cell::new(Instant::now()),
            has_failed: Cell::new(false),
        };
        let place = book.place();
        fresh(&place)
            .and_then(|_| fs::remove_file(&place))
            .map_err(|e| {
                refuse(format!(
                    "{} cannot be written: {}",
                    place.display(),
                    reason(&e)
                ))
            })?;
        Ok(book)
    }

    /// Copies the file's recordings to where the program's processes find them.
    pub fn fill(&self, all: &Recordings) {
        for (from, to) in self.loaded.iter().zip(&all.places) {
            to.write(|places| {
                let words = from.words.iter().zip(places);
                words.for_each(|(word, place)| place.store(*word, Relaxed));
                from.words.len()
            });
            to.useful.store(from.useful, Relaxed);
            to.made.store(from.made, Relaxed);
        }
        let newest = self.loaded.iter().map(|r| r.made).max().unwrap_or(0);
        all.changes.store(newest, Relaxed);
        all.loaded.store(self.loaded.len() as u32, Relaxed);
        self.saved_changes.set(newest);
    }

    /// Saves changes, at most every few seconds.
    pub fn look(&self, all: &Recordings) {
        let is_new = all.changes.load(Relaxed) != self.saved_changes.get();
        if is_new && self.saved_at.get().elapsed() >= PAUSE {
            self.save(all);
        }
    }

    /// Saves changes.
    pub fn save(&self, all: &Recordings) {
        let changes = all.changes.load(Relaxed);
        if changes == self.saved_changes.get() {
            return;
        }
        let kept = all.places.iter().filter_map(|r| {
            Some(Kept {
                words: r.copy()?,
                useful: r.useful.load(Relaxed),
                made: r.made.load(Relaxed),
            })
        });
        let kept: Vec<Kept> = kept.collect();
        self.saved_at.set(Instant::now());
        let place = self.place();
        let written = fresh(&place)
            .and_then(|mut file| file.write_all(&encode(&kept)))
            .and_then(|()| fs::rename(&place, &self.path));
        match written {
            Ok(()) => self.saved_changes.set(changes),
            Err(e) => {
                let _ = fs::remove_file(&place);
                if !self.has_failed.replace(true) {
                    say(format_args!(
                        "the recordings cannot be written to {}: {}",
                        self.path.display(),
                        reason(&e)
                    ));
                }
            }
        }
    }

    /// The temporary file that is renamed at the end.
    fn place(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".tmp");
        name.into()
    }
}

/// No recordings, after printing the reason.
fn told(path: &Path, why: &str) -> Vec<Kept> {
    say(format_args!(
        "-o learn={}: {why}; it is overwritten, and earlier recordings are not used",
        path.display()
    ));
    Vec::new()
}

/// The file's bytes, at most one more than a valid file has; `None` if there is no such file.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
        Ok(m) if !m.is_file() => return Err(io::Error::other("it is not a regular file")),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let most = BYTES_MAX as u64 + 1;
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Makes a new file of that name; one that an earlier run left behind is removed.
fn fresh(path: &Path) -> io::Result<File> {
    let make = || OpenOptions::new().write(true).create_new(true).open(path);
    match make() {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            make()
        }
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::Segment;

    fn some() -> Vec<Kept> {
        let one = |useful, made, words: &[u32]| Kept {
            useful,
            made,
            words: words.to_vec(),
        };
        vec![
            one(3, 7, &[1, 5, 1 << 31 | 9]),
            one(0, 9, &[2]),
            one(1, 8, &[4; WORDS]),
        ]
    }

    #[test]
    fn recordings_survive_the_way_through_file_and_segment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        fs::write(&path, encode(&some())).unwrap();
        let book = Book::open(&path).unwrap();
        let all = &Segment::create(false).unwrap().1.recordings;
        book.fill(all);
        // Nothing has changed, so nothing is written.
        fs::remove_file(&path).unwrap();
        book.save(all);
        assert!(!path.exists());
        assert_eq!(all.note_change(), 10);
        book.look(all);
        assert!(!path.exists(), "too soon");
        book.save(all);
        assert_eq!(decode(&fs::read(&path).unwrap()), Ok(some()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn each_damage_is_found_and_nothing_else_is_refused() {
        let whole = encode(&some()[..2]);
        assert_eq!(decode(&whole), Ok(some()[..2].to_vec()));
        assert_eq!(decode(&encode(&[])), Ok(vec![]));
        for len in 0..whole.len() {
            let want = if len < NAME.len() {
                Unfit::Foreign
            } else {
                Unfit::Damaged
            };
            assert_eq!(decode(&whole[..len]), Err(want), "{len} bytes");
        }
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 0x40;
            assert!(decode(&bytes).is_err(), "byte {i}");
        }
        let mut newer = whole.clone();
        newer[8] = 2;
        assert_eq!(decode(&newer), Err(Unfit::Version(2)));
        let mut longer = whole;
        longer.push(0);
        assert_eq!(decode(&longer), Err(Unfit::Damaged));
        let mut huge = encode(&some());
        huge.resize(BYTES_MAX + 1, 0);
        assert_eq!(decode(&huge), Err(Unfit::Damaged));
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine");
        fs::write(&path, "important").unwrap();
        let why = Book::open(&path).err().unwrap().to_string();
        assert!(why.contains("would be overwritten"), "{why}");
        assert_eq!(fs::read(&path).unwrap(), b"important");
        assert!(Book::open(dir.path()).is_err());
        assert!(Book::open(&dir.path().join("no/such")).is_err());
        fs::write(&path, &encode(&some())[..40]).unwrap();
        assert_eq!(Book::open(&path).unwrap().loaded, []);
        assert_eq!(
            fs::read(&path).unwrap().len(),
            40,
            "until there is something to write"
        );
    }
}
