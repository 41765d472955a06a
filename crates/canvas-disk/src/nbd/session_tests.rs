use std::io::Cursor;

use canvas_types::Codec;
use proptest::prelude::*;

use super::super::proto::*;
use super::*;
use crate::ram::RamStore;
use crate::{DiskMemory, PoolStore};

/// A client that sends everything before it receives.
struct Talk {
    said: Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Read for Talk {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.said.read(out)
    }
}

impl Write for Talk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn talk(said: Vec<u8>) -> Talk {
    Talk {
        said: Cursor::new(said),
        heard: Vec::new(),
    }
}

const SIZE: u64 = 64 * 4096;
const FLAGS: [u8; 4] = [0, 0, 0, 3];

fn option_of(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [
        &MAGIC_OPTION.to_be_bytes()[..],
        &number.to_be_bytes(),
        &len.to_be_bytes(),
        data,
    ]
    .concat()
}

fn shaken(parts: &[&[u8]]) -> (Result<Replies, End>, Vec<u8>) {
    let mut stream = talk(parts.concat());
    let result = shake_hands(&mut stream, SIZE);
    let greeted = stream.heard.split_off(greeting().len());
    assert_eq!(stream.heard, greeting());
    (result, greeted)
}

fn go(name: &[u8], infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((infos.len() as u16).to_be_bytes());
    data.extend(infos.iter().flat_map(|i| i.to_be_bytes()));
    data
}

#[test]
fn a_client_learns_of_the_disk_and_goes() {
    let unknown = option_of(9, &[]);
    let list = option_of(option::LIST, &[]);
    let ask = option_of(option::INFO, &go(b"", &[info::BLOCK_SIZE]));
    let other = option_of(option::GO, &go(b"other", &[]));
    let start = option_of(option::GO, &go(b"", &[]));
    let (end, heard) = shaken(&[&FLAGS, &unknown, &list, &ask, &other, &start]);
    assert_eq!(end.unwrap(), Replies::Simple);
    let reply = |number, kind, data: &[u8]| option_reply(number, kind, data);
    let want = [
        reply(9, answer::ERR_UNSUP, &[]),
        reply(option::LIST, answer::SERVER, &[0; 4]),
        reply(option::LIST, answer::ACK, &[]),
        reply(
            option::INFO,
            answer::INFO,
            &export_info(SIZE, Replies::Simple),
        ),
        reply(option::INFO, answer::INFO, &block_info()),
        reply(option::INFO, answer::ACK, &[]),
        reply(option::GO, answer::ERR_UNKNOWN, &[]),
        reply(
            option::GO,
            answer::INFO,
            &export_info(SIZE, Replies::Simple),
        ),
        reply(option::GO, answer::ACK, &[]),
    ];
    assert_eq!(heard, want.concat());
}

#[test]
fn an_old_client_names_the_export_and_gets_its_zeros() {
    let named = option_of(option::EXPORT_NAME, &[]);
    let (end, heard) = shaken(&[&[0, 0, 0, 1], &named]);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(
        heard,
        [&export(SIZE, Replies::Simple)[..], &[0; 124]].concat()
    );
    let (end, heard) = shaken(&[&FLAGS, &named]);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(heard, export(SIZE, Replies::Simple));
}

#[test]
fn reads_are_answered_in_chunks_if_the_client_asks_for_that() {
    let wanted = option_of(option::STRUCTURED_REPLY, &[]);
    let wrong = option_of(option::STRUCTURED_REPLY, &[0]);
    let start = option_of(option::GO, &go(b"", &[]));
    let (end, heard) = shaken(&[&FLAGS, &wrong, &wanted, &start]);
    assert_eq!(end.unwrap(), Replies::Structured);
    let want = [
        option_reply(option::STRUCTURED_REPLY, answer::ERR_INVALID, &[]),
        option_reply(option::STRUCTURED_REPLY, answer::ACK, &[]),
        option_reply(
            option::GO,
            answer::INFO,
            &export_info(SIZE, Replies::Structured),
        ),
        option_reply(option::GO, answer::ACK, &[]),
    ];
    assert_eq!(heard, want.concat());
    let (end, _) = shaken(&[&FLAGS, &wrong, &start]);
    assert_eq!(end.unwrap(), Replies::Simple);
}

#[test]
fn what_is_no_handshake_ends_the_session() {
    for (said, why) in [
        (vec![0, 0, 0, 0], "it does not speak the fixed newstyle"),
        (vec![0, 0, 0, 7], "it does not speak the fixed newstyle"),
        ([&FLAGS[..], &[0; 16]].concat(), "an option was expected"),
        (
            [&FLAGS[..], &option_of(option::EXPORT_NAME, b"x")].concat(),
            "it names an export that does not exist",
        ),
        (
            [
                &FLAGS[..],
                &MAGIC_OPTION.to_be_bytes(),
                &[0, 0, 0, 7],
                &[0xff; 4],
            ]
            .concat(),
            "an option is too long",
        ),
    ] {
        match shaken(&[&said]).0 {
            Err(End::Nonsense(text)) => assert_eq!(text, why),
            other => panic!("{said:?}: {other:?}"),
        }
    }
    let abort = option_of(option::ABORT, &[]);
    assert!(matches!(shaken(&[&FLAGS, &abort]).0, Err(End::Done)));
    assert!(matches!(shaken(&[&FLAGS[..2]]).0, Err(End::Done)));
}

fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    [
        &MAGIC_REQUEST.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
        data,
    ]
    .concat()
}

fn served(store: &impl PageStore, said: &[Vec<u8>]) -> (End, Vec<u8>) {
    served_by(store, said, Replies::Simple)
}

fn served_by(store: &impl PageStore, said: &[Vec<u8>], replies: Replies) -> (End, Vec<u8>) {
    let mut stream = talk(said.concat());
    let mut scratch = Box::<Scratch>::default();
    let end = transmit(&mut stream, store, &mut scratch, replies);
    (end, stream.heard)
}

/// A client's view of the answer to a read.
#[derive(PartialEq, Eq, Debug, Default)]
struct Chunks {
    /// By offset.
    data: Vec<(u64, Vec<u8>)>,
    holes: Vec<(u64, u32)>,
    /// Number, text and offset.
    error: Option<(u32, String, Option<u64>)>,
}

impl Chunks {
    /// Removes one answer from the front of the received bytes; panics if there is none.
    fn take(heard: &mut &[u8], cookie: u64) -> Chunks {
        let mut chunks = Chunks::default();
        loop {
            let u16_at = |at: usize| u16::from_be_bytes(*heard[at..].first_chunk().unwrap());
            let len = u32::from_be_bytes(*heard[16..].first_chunk().unwrap());
            let (flags, kind) = (u16_at(4), u16_at(6));
            let (head, rest) = heard.split_at(CHUNK_HEAD);
            assert_eq!(head, chunk_head(flags, kind, cookie, len));
            let payload;
            (payload, *heard) = rest.split_at(len as usize);
            let number = |from: usize| u64::from_be_bytes(*payload[from..].first_chunk().unwrap());
            match kind {
                chunk::NONE => assert!(payload.is_empty() && flags == chunk::DONE),
                chunk::DATA => chunks.data.push((number(0), payload[8..].to_vec())),
                chunk::HOLE => {
                    let size = u32::from_be_bytes(*payload[8..].first_chunk().unwrap());
                    chunks.holes.push((number(0), size));
                }
                chunk::ERROR | chunk::ERROR_OFFSET => {
                    assert!(chunks.error.is_none());
                    let error = u32::from_be_bytes(*payload.first_chunk().unwrap());
                    let words = u16::from_be_bytes(*payload[4..].first_chunk().unwrap());
                    let end = 6 + usize::from(words);
                    let text = String::from_utf8(payload[6..end].to_vec()).unwrap();
                    let at = (kind == chunk::ERROR_OFFSET).then(|| number(end));
                    assert_eq!(payload.len(), end + 8 * usize::from(at.is_some()));
                    chunks.error = Some((error, text, at));
                }
                other => panic!("a chunk of kind {other}"),
            }
            if flags == chunk::DONE {
                return chunks;
            }
            assert_eq!(flags, 0);
        }
    }

    /// The bytes of a read up to its error, each received exactly once.
    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let data = self.data.iter().map(|(at, data)| (*at, data.clone()));
        let holes = self.holes.iter().map(|(at, n)| (*at, vec![0; *n as usize]));
        let mut all: Vec<_> = data.chain(holes).collect();
        all.sort();
        let mut bytes = Vec::new();
        for (at, part) in all {
            assert!(at == offset + bytes.len() as u64 && !part.is_empty());
            bytes.extend(part);
        }
        match self.error {
            None => assert_eq!(bytes.len(), len),
            Some((_, _, Some(at))) => assert_eq!(offset + bytes.len() as u64, at),
            Some((_, _, None)) => assert!(bytes.is_empty()),
        }
        bytes
    }
}

/// A store with one damaged page.
struct Damaged(RamStore, u64);

impl PageStore for Damaged {
    fn pages(&self) -> u64 {
        self.0.pages()
    }
    fn read(
        &self,
        page: u64,
        out: &mut canvas_types::PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        match page == self.1 {
            true => Err(DiskError::Damaged),
            false => self.0.read(page, out, scratch),
        }
    }
    fn write(
        &self,
        page: u64,
        from: &canvas_types::PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        self.0.write(page, from, scratch)
    }
    fn write_part(
        &self,
        page: u64,
        at: usize,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        self.0.write_part(page, at, bytes, scratch)
    }
    fn discard(&self, page: u64) -> Result<(), DiskError> {
        self.0.discard(page)
    }
}

#[test]
fn chunks_of_a_read_are_all_of_it_and_say_where_it_failed() {
    let store = Damaged(RamStore::new(64), 40);
    let said = [
        // Some pages at both ends, and none in the middle.
        request(1, 0, 1, 1000, 70_000, &[7; 70_000]),
        request(0, 0, 2, 500, 160_000, &[]),
        // As one chunk.
        request(0, flag::DF, 3, 500, 160_000, &[]),
        // Page 40 starts in the third chunk, and in the middle of the only one.
        request(0, 0, 4, 500, 200_000, &[]),
        request(0, flag::DF, 5, 500, 200_000, &[]),
        request(0, 0, 6, 40 * 4096 + 9, 3, &[]),
        request(0, 0, 7, SIZE - 1, 2, &[]),
        request(0, 1, 8, 0, 2, &[]),
        request(0, 0, 9, 0, BLOCK_MAX + 1, &[]),
        request(0, 0, 10, 4096, 0, &[]),
        request(4, flag::DF, 11, 0, 4096, &[]),
    ];
    let (end, heard) = served_by(&store, &said, Replies::Structured);
    assert!(matches!(end, End::Done), "{end:?}");
    let (written, mut heard) = heard.split_at(16);
    assert_eq!(written, reply(1, 0));
    let mut disk = vec![0; SIZE as usize];
    disk[1000..71_000].fill(7);
    let mut take = |cookie| Chunks::take(&mut heard, cookie);
    let got = take(2);
    assert_eq!(got.bytes(500, 160_000), disk[500..160_500]);
    let sizes: Vec<_> = got.data.iter().map(|(_, data)| data.len()).collect();
    assert_eq!(
        (sizes, got.holes),
        (vec![65_036, 65_536], vec![(131_072, 29_428)])
    );
    let got = take(3);
    assert_eq!(got.data, [(500, disk[500..160_500].to_vec())]);
    let damaged = |at| {
        Some((
            error::EIO,
            "the stored copy of a page is damaged".to_owned(),
            Some(at),
        ))
    };
    for cookie in [4, 5] {
        let got = take(cookie);
        assert_eq!(got.bytes(500, 200_000), disk[500..163_840]);
        assert_eq!(got.error, damaged(163_840));
    }
    assert_eq!(
        (take(6).error, take(7).error),
        (damaged(163_849), {
            let words = "the range does not lie on the disk".to_owned();
            Some((error::EINVAL, words, None))
        })
    );
    let refused = |number| Some((number, String::new(), None));
    assert_eq!(
        (take(8).error, take(9).error),
        (refused(error::EINVAL), refused(error::EOVERFLOW))
    );
    assert_eq!(take(10), Chunks::default());
    // Requests without data get the same answers as before.
    assert_eq!(heard, reply(11, error::EINVAL));
}

#[test]
fn requests_are_answered_in_order() {
    let memory = DiskMemory::new(64, 1 << 20).unwrap();
    let store = PoolStore::new(&memory, Codec::Lz4);
    let data: Vec<u8> = (0..9000u32).map(|i| (i / 7) as u8).collect();
    let (end, heard) = served(
        &store,
        &[
            request(1, 0, 1, 1000, 9000, &data),
            request(0, 0, 2, 1000, 9000, &[]),
            request(6, 16, 3, 4000, 5000, &[]),
            request(4, 0, 4, 8192, 4096, &[]),
            request(0, 0, 5, 0, 16384, &[]),
            request(3, 0, 6, 0, 0, &[]),
            request(0, 0, 7, SIZE - 1, 2, &[]),
            request(1, 0, 8, SIZE - 1, 2, b"ab"),
            request(1, 1, 9, 0, 2, b"ab"),
            request(4, 0, 10, u64::MAX, u32::MAX, &[]),
            request(0, 0, 11, 0, BLOCK_MAX + 1, &[]),
            request(0, 0, 12, 0, 2, &[]),
            request(2, 0, 13, 0, 0, &[]),
        ],
    );
    assert!(matches!(end, End::Done), "{end:?}");
    let mut disk = vec![0; 16384];
    disk[1000..10000].copy_from_slice(&data);
    disk[4000..9000].fill(0);
    disk[8192..12288].fill(0);
    let ok = |cookie| reply(cookie, 0).to_vec();
    let no = |cookie, error| reply(cookie, error).to_vec();
    let want = [
        ok(1),
        ok(2),
        data,
        ok(3),
        ok(4),
        ok(5),
        disk,
        no(6, error::EINVAL),
        no(7, error::EINVAL),
        no(8, error::ENOSPC),
        no(9, error::EINVAL),
        no(10, error::EINVAL),
        no(11, error::EOVERFLOW),
        ok(12),
        vec![0; 2],
    ];
    assert_eq!(heard, want.concat());
}

#[test]
fn a_full_pool_refuses_what_is_new_and_keeps_what_is_there() {
    let memory = DiskMemory::new(1024, 1 << 20).unwrap();
    let store = PoolStore::new(&memory, Codec::None);
    let page = |n: u64| -> Vec<u8> { (0..4096u64).map(|i| ((i * i + n * 7) >> 3) as u8).collect() };
    let writes: Vec<_> = (0..1024)
        .map(|n| request(1, 0, n, n * 4096, 4096, &page(n)))
        .collect();
    let (_, heard) = served(&store, &writes);
    let errors: Vec<u32> = heard
        .chunks_exact(16)
        .map(|r| u32::from_be_bytes(*r[4..].first_chunk().unwrap()))
        .collect();
    let stored = errors.iter().take_while(|e| **e == 0).count() as u64;
    assert!((200..256).contains(&stored), "{stored}");
    assert!(
        errors[stored as usize..]
            .iter()
            .all(|e| *e == error::ENOSPC)
    );
    assert_eq!(store.stats().refused, 1024 - stored);
    let reads: Vec<_> = (0..1024)
        .map(|n| request(0, 0, n, n * 4096, 4096, &[]))
        .collect();
    let (_, heard) = served(&store, &reads);
    for (n, part) in (0..).zip(heard.chunks_exact(16 + 4096)) {
        let want = if n < stored { page(n) } else { vec![0; 4096] };
        assert_eq!(part[16..], want, "page {n}");
    }
}

#[test]
fn what_is_no_request_ends_the_session() {
    let store = RamStore::new(64);
    for said in [
        vec![0; 28],
        request(1, 0, 0, 0, BLOCK_MAX + 1, &[]),
        request(1, 0, 0, 0, u32::MAX, &[]),
    ] {
        let (end, heard) = served(&store, &[said]);
        assert!(matches!(end, End::Nonsense(_)), "{end:?}");
        assert!(heard.is_empty());
    }
    // Incomplete data are not written beyond what arrived.
    let (end, heard) = served(&store, &[request(1, 0, 0, 0, 8192, &[7; 5000])]);
    assert!(matches!(end, End::Done), "{end:?}");
    assert!(heard.is_empty());
    assert_eq!(store.page(0), [0; 4096]);
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![8 => 0..7u16, 1 => any::<u16>()];
    let flags = prop_oneof![6 => Just(0u16), 1 => any::<u16>()];
    let offset = prop_oneof![6 => 0..SIZE + 10, 1 => any::<u64>()];
    let len = prop_oneof![6 => 0..9000u32, 1 => any::<u32>()];
    (kind, flags, offset, len, 0..9000usize, any::<u8>()).prop_map(
        |(kind, flags, offset, len, cut, byte)| {
            let data = if kind == 1 { len.min(9000) as usize } else { 0 };
            let data = data.min(cut.max(data / 2));
            request(kind, flags, 1, offset, len, &vec![byte; data])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    /// No input makes a session panic, or read beyond what was sent.
    #[test]
    fn a_hostile_client_ends_only_its_session(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        options in prop::collection::vec((0..12u32, prop::collection::vec(any::<u8>(), 0..40)), 0..5),
        requests in prop::collection::vec(any_request(), 0..8),
        replies in prop_oneof![Just(Replies::Simple), Just(Replies::Structured)],
    ) {
        let options: Vec<u8> = options.iter().flat_map(|(n, data)| option_of(*n, data)).collect();
        let mut stream = talk([&FLAGS[..], &options, &noise].concat());
        let _ = shake_hands(&mut stream, SIZE);
        let store = Damaged(RamStore::new(64), 40);
        let said = [&requests.concat()[..], &noise].concat();
        let mut stream = talk(said.clone());
        let mut scratch = Box::<Scratch>::default();
        let _ = transmit(&mut stream, &store, &mut scratch, replies);
        let mut heard = &stream.heard[..];
        while replies == Replies::Structured && !heard.is_empty() {
            match heard.starts_with(&MAGIC_CHUNK.to_be_bytes()) {
                true => drop(Chunks::take(&mut heard, 1)),
                false => heard = &heard[16..],
            }
        }
        let store = store.0;
        for page in 0..64 {
            let bytes = store.page(page);
            prop_assert!(bytes.iter().all(|b| *b == 0 || said.contains(b)), "page {}", page);
        }
    }
}
