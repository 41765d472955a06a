//! Cluster keys: 32 random bytes that all hosts of a pool share, in a file of one line.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroize;
pub use zeroize::Zeroizing;

use crate::PROTOCOL;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Most bytes of a key file: the line, and what an editor may add.
const FILE_BYTES_MAX: u64 = 256;

/// The kernel gives no random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the kernel provides no random bytes")]
pub struct RandomError;

/// Why a key file's text holds no key. The error never contains the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineError {
    /// The text is not the line of a key.
    #[error("it is not one line of 64 hexadecimal digits; make one with `canvas keygen`")]
    Digits,
    /// The key is all zeros, which everybody knows.
    #[error("its key is all zeros, which is not secret; make one with `canvas keygen`")]
    Zeros,
}

/// Why a key file cannot be read. The text is one sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system call failed.
    #[error("{} cannot be read: {}", .path.display(), reason(.source))]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The name is that of a directory or device.
    #[error("{} is not a regular file; write the name of a key file", .0.display())]
    NoFile(PathBuf),
    /// Users other than the owner can read or write the file, so its key is not secret.
    #[error(
        "{name} can be read or written by others (mode {mode:03o}); do `chmod 600 {name}`, and \
         make a new key if somebody may have read it",
        name = .path.display()
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Its bytes are not UTF-8.
    #[error("{} is not text; make a key with `canvas keygen`", .0.display())]
    NoText(PathBuf),
    /// The text holds no key.
    #[error("{} has no key: {source}", .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with the text.
        source: LineError,
    },
}

/// Why a key file cannot be written. The text is one sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file with this name exists.
    #[error("{} exists already; remove it first, or write another name", .0.display())]
    Exists(PathBuf),
    /// The file cannot be created.
    #[error("{} cannot be made: {}", .path.display(), reason(.source))]
    Make {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file was created, and writing to it failed.
    #[error("{} cannot be written: {}", .path.display(), reason(.source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A secret that all hosts of a pool share. Anyone who has it may store, read and free in the pool.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; KEY_BYTES]);

/// Overwrites the key in memory.
impl Drop for ClusterKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Never shows the key.
impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(secret)")
    }
}

impl ClusterKey {
    /// A new key, from the kernel's random source.
    pub fn generate() -> Result<ClusterKey, RandomError> {
        random_bytes().map(ClusterKey)
    }

    /// The key of these bytes.
    pub fn from_bytes(key: [u8; KEY_BYTES]) -> ClusterKey {
        ClusterKey(key)
    }

    /// A key that everybody knows, for a donor and clients on one host, which only the loopback
    /// device protects. A session with it is not confidential.
    pub fn without_secret() -> ClusterKey {
        ClusterKey([0; KEY_BYTES])
    }

    /// The key written as one line of 64 hexadecimal digits, without the newline.
    pub fn to_line(&self) -> Zeroizing<String> {
        // Allocated at its full length, so that it never moves and leaves a copy behind.
        let mut line = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
        for byte in self.0 {
            let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
            line.push(digit(byte >> 4));
            line.push(digit(byte & 15));
        }
        line
    }

    /// Parses the text of a key file. The error says what is wrong without containing the text.
    pub fn from_line(text: &str) -> Result<ClusterKey, LineError> {
        let line = text.trim_end_matches(['\n', '\r', ' ', '\t']);
        let digits = line.as_bytes();
        if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(LineError::Digits);
        }
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |c: u8| (c as char).to_digit(16).unwrap_or(0) as u8;
            *byte = value(pair[0]) << 4 | value(pair[1]);
        }
        if *key == [0; KEY_BYTES] {
            return Err(LineError::Zeros);
        }
        Ok(ClusterKey(*key))
    }

    /// Reads a key file. A file that users other than its owner can read or write is refused,
    /// because its key is not secret.
    pub fn read(path: &Path) -> Result<ClusterKey, ReadError> {
        let named = || path.to_owned();
        let failed = |source| ReadError::System {
            path: named(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(ReadError::NoFile(named()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(ReadError::OpenToOthers {
                path: named(),
                mode: meta.mode() & 0o777,
            });
        }
        let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize + 1));
        match file.take(FILE_BYTES_MAX).read_to_string(&mut text) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::InvalidData => {
                return Err(ReadError::NoText(named()));
            }
            Err(e) => return Err(failed(e)),
        }
        ClusterKey::from_line(&text).map_err(|source| ReadError::NoKey {
            path: named(),
            source,
        })
    }

    /// Writes a new key file that only its owner can read. An existing file is left alone.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        let named = || path.to_owned();
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| match source.kind() {
                ErrorKind::AlreadyExists => WriteError::Exists(named()),
                _ => WriteError::Make {
                    path: named(),
                    source,
                },
            })?;
        let mut line = self.to_line();
        line.push('\n');
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|source| WriteError::Write {
                path: named(),
                source,
            })
    }

    /// The session's pre-shared key, derived from this key and the protocol's name.
    pub(crate) fn session_psk(&self) -> [u8; 32] {
        self.derive(PROTOCOL)
    }

    /// Derives a separate key for each `purpose`: HKDF-SHA256 without salt, with the purpose as
    /// info.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let mut key = [0; 32];
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.0);
        prk.expand(&[purpose.as_bytes()], hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut key))
            .expect("HKDF gives as many bytes as its hash has");
        key
    }
}

/// The system's error text, without Rust's "(os error 2)".
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Random bytes for names that must be unique: clients, donors, tenants.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| RandomError)?;
    Ok(bytes)
}
