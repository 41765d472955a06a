//! A lying donor, for tests: it has the cluster key and speaks the protocol, and answers reads with
//! wrong bytes.
//!
//! `evil_donor --how corrupt|stale|swap|zeros|truncate|version --when FILE --listen ADDR --key-file FILE`;
//! it lies while FILE exists. Other flags of `canvas serve` are accepted and ignored.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, FromClient, Items, Lent, Pong, Request, SlabKey, Welcome};
use canvas_wire::key::ClusterKey;
use canvas_wire::session::{self, Session};
use canvas_wire::stream::Incoming;
use canvas_wire::{EXTENT_BYTES, FRAME_BYTES_MAX, SLAB_BYTES, SLAB_EXTENTS, VERSION_MAX};

type Fail = Box<dyn Error + Send + Sync>;

/// Kinds of lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// One bit is flipped.
    Corrupt,
    /// The first version of the extent that it received.
    Stale,
    /// What lies at this place in another extent, of any client.
    Swap,
    /// Zeros.
    Zeros,
    /// The last 16 bytes are missing.
    Truncate,
    /// A version that was not offered.
    Version,
}

/// The first and the latest version of an extent.
struct Extent {
    first: Box<[u8]>,
    now: Box<[u8]>,
}

struct Slab {
    client: [u8; 16],
    key: SlabKey,
    extents: HashMap<usize, Extent>,
}

impl Slab {
    /// False if the bytes do not lie within one extent of the slab.
    fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let (at, from) = (offset / EXTENT_BYTES, offset % EXTENT_BYTES);
        if at >= SLAB_EXTENTS || from + data.len() > EXTENT_BYTES {
            return false;
        }
        let mut now = self.extents.get(&at).map_or_else(
            || vec![0; EXTENT_BYTES].into_boxed_slice(),
            |e| e.now.clone(),
        );
        now[from..from + data.len()].copy_from_slice(data);
        self.extents
            .entry(at)
            .and_modify(|e| e.now.clone_from(&now))
            .or_insert_with(|| Extent {
                first: now.clone(),
                now,
            });
        true
    }
}

struct Donor {
    key: ClusterKey,
    how: How,
    when: PathBuf,
    id: [u8; 16],
    slabs: Mutex<HashMap<u64, Slab>>,
    lies: AtomicU64,
}

fn main() -> Result<(), Fail> {
    let mut flags = HashMap::new();
    let mut args = std::env::args().skip(1);
    while let (Some(flag), Some(value)) = (args.next(), args.next()) {
        flags.insert(flag, value);
    }
    let flag = |name: &str| flags.get(name).ok_or_else(|| format!("{name} is missing"));
    let how = match flag("--how")?.as_str() {
        "corrupt" => How::Corrupt,
        "stale" => How::Stale,
        "swap" => How::Swap,
        "zeros" => How::Zeros,
        "truncate" => How::Truncate,
        "version" => How::Version,
        other => return Err(format!("--how {other} is none of its ways").into()),
    };
    let mut id = [0; 16];
    id[..4].copy_from_slice(&std::process::id().to_le_bytes());
    let donor = Arc::new(Donor {
        key: ClusterKey::read(flag("--key-file")?.as_ref()).map_err(|e| e.to_string())?,
        how,
        when: flag("--when")?.into(),
        id,
        slabs: Mutex::default(),
        lies: AtomicU64::new(0),
    });
    let listener = TcpListener::bind(flag("--listen")?)?;
    eprintln!("evil_donor: listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let (donor, stream) = (Arc::clone(&donor), stream?);
        std::thread::spawn(move || {
            if let Err(e) = donor.serve(stream) {
                eprintln!("evil_donor: {e}; {} lies so far", donor.lies.load(Relaxed));
            }
        });
    }
    Ok(())
}

/// The next message; an error at the end of the connection.
fn message(stream: &mut TcpStream, incoming: &mut Incoming) -> Result<Vec<u8>, Fail> {
    loop {
        if let Some(message) = incoming.message() {
            return Ok(message.to_vec());
        }
        match stream.read(incoming.space())? {
            0 => return Err("the client hung up".into()),
            n => incoming.filled(n),
        }
    }
}

impl Donor {
    fn serve(&self, mut stream: TcpStream) -> Result<(), Fail> {
        stream.set_nodelay(true)?;
        let mut incoming = Incoming::new();
        let mut out = Vec::new();
        let first = message(&mut stream, &mut incoming)?;
        let mut session = session::respond(&self.key, &first, &mut out)?;
        stream.write_all(&out)?;
        let mut client = [0; 16];
        let mut plain = Vec::new();
        loop {
            let message = message(&mut stream, &mut incoming)?;
            plain.clear();
            session.open(&message, &mut plain)?;
            let (id, frame) = FromClient::decode(&plain)?;
            if let FromClient::Request(request) = frame {
                out.clear();
                self.answer(&mut client, id, &request, &mut session, &mut out)?;
                stream.write_all(&out)?;
            }
        }
    }

    /// The answer to a read of `range` in an extent (given by a slab's handle and its place there)
    /// whose true bytes are `truth`: a lie, once the file exists.
    fn told(
        &self,
        slabs: &HashMap<u64, Slab>,
        (handle, at): (u64, usize),
        range: Range<usize>,
        truth: Vec<u8>,
    ) -> Vec<u8> {
        if !self.when.exists() {
            return truth;
        }
        let lie = match self.how {
            How::Corrupt => {
                let mut lie = truth.clone();
                let n = self.lies.load(Relaxed) as usize % lie.len().max(1);
                lie[n] ^= 1 << (n % 8);
                lie
            }
            How::Stale => {
                let extent = slabs.get(&handle).and_then(|s| s.extents.get(&at));
                extent.map_or(vec![0; range.len()], |e| e.first[range].to_vec())
            }
            How::Swap => {
                let mut all = slabs
                    .iter()
                    .flat_map(|(h, s)| s.extents.iter().map(move |(n, e)| (h, n, e)));
                let other = all.find(|(h, n, _)| (**h, **n) != (handle, at));
                other.map_or(vec![0; range.len()], |(_, _, e)| e.now[range].to_vec())
            }
            How::Zeros => vec![0; truth.len()],
            How::Version => truth.clone(),
            How::Truncate => truth[..truth.len().saturating_sub(16)].to_vec(),
        };
        if lie != truth {
            self.lies.fetch_add(1, Relaxed);
        }
        lie
    }

    fn answer(
        &self,
        client: &mut [u8; 16],
        id: u64,
        request: &Request<'_>,
        session: &mut Session,
        out: &mut Vec<u8>,
    ) -> Result<(), Fail> {
        let mut say = |answer: Answer<'_>| -> Result<(), Fail> {
            let mut frame = vec![0; FRAME_BYTES_MAX];
            let len = answer.encode(id, &mut frame)?;
            Ok(session.seal(&frame[..len], out)?)
        };
        let unknown = Answer::Error {
            code: ErrorCode::Internal,
            text: "none of mine",
        };
        let mut slabs = self.slabs.lock().expect("no thread panics with it");
        match *request {
            Request::Hello(hello) => {
                *client = hello.client_id;
                say(Answer::Welcome(Welcome {
                    version: VERSION_MAX + u16::from(self.how == How::Version),
                    lease_ms: hello.lease_ms,
                    donor_id: self.id,
                    slab_bytes: SLAB_BYTES as u64,
                    memory_bytes: 1 << 40,
                    free_bytes: 1 << 40,
                }))
            }
            Request::Alloc(key) => {
                let same = |s: &Slab| s.client == *client && s.key == key;
                let held = slabs.iter().find(|(_, s)| same(s)).map(|(h, _)| *h);
                let handle = held.unwrap_or(slabs.keys().max().unwrap_or(&0) + 1);
                slabs.entry(handle).or_insert_with(|| Slab {
                    client: *client,
                    key,
                    extents: HashMap::new(),
                });
                say(Answer::Allocated { handle })
            }
            Request::Write {
                handle,
                offset,
                data,
            } => {
                let Some(slab) = slabs.get_mut(&handle) else {
                    return say(unknown);
                };
                if !slab.write(offset as usize, data) {
                    return say(unknown);
                }
                say(Answer::Done)
            }
            Request::Read { handle, range } => {
                let (at, from) = (
                    range.offset as usize / EXTENT_BYTES,
                    range.offset as usize % EXTENT_BYTES,
                );
                let Some(slab) = slabs.get(&handle) else {
                    return say(unknown);
                };
                let zeros = vec![0; EXTENT_BYTES].into_boxed_slice();
                let end = (from + range.len as usize).min(EXTENT_BYTES);
                let truth = slab.extents.get(&at).map_or(&zeros, |e| &e.now);
                let data = truth[from..end].to_vec();
                let data = self.told(&slabs, (handle, at), from..end, data);
                say(Answer::Data(&data))
            }
            Request::Free { handle } => {
                slabs.remove(&handle);
                say(Answer::Done)
            }
            Request::List { after } => {
                let mut held: Vec<Lent> = slabs
                    .iter()
                    .filter(|(h, s)| **h > after && s.client == *client)
                    .map(|(h, s)| Lent {
                        key: s.key,
                        handle: *h,
                    })
                    .collect();
                held.sort_by_key(|l| l.handle);
                say(Answer::Handles {
                    more: false,
                    slabs: Items::from(&held[..]),
                })
            }
            Request::Ping => say(Answer::Pong(Pong {
                free_bytes: 1 << 40,
                lent_bytes: 0,
                pressure: false,
            })),
            // It never offers RDMA or direct read channels.
            Request::ReadMany { .. }
            | Request::Join(_)
            | Request::Expose { .. }
            | Request::Lane(_)
            | Request::LaneRate { .. }
            | Request::LaneEnd { .. }
            | Request::Worth { .. } => say(unknown),
        }
    }
}
