//! Direct read channels of a running donor: what they read, and what happens to peers that break
//! the rules.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use canvas_direct::wire::{
    Caller, Code, HEAD_BYTES, Keys, LENGTH_BYTES, LaneError, MESSAGE_BYTES, READ_BYTES_MAX, Read,
};
use canvas_donor::{Config, Server, TICKET_TIME};
use canvas_link::{AskError, Completions, Link, LinkConfig, Timeouts};
use canvas_types::rdma::QueuePair;
use canvas_wire::SLAB_BYTES;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Lane as Asked, LaneRate, Request, SlabKey};
use canvas_wire::key::ClusterKey;

/// Longer than any machine needs.
const LONG: Duration = Duration::from_secs(60);
const CLIENT: [u8; 16] = [1; 16];
const TENANT: [u8; 16] = [2; 16];
const SECRET: [u8; 32] = [3; 32];
/// More than any test reads.
const AMPLE: LaneRate = LaneRate {
    rate_bytes: 1 << 40,
    burst_bytes: 1 << 30,
};

fn server() -> Server {
    Server::start(Config {
        listen: ([127, 0, 0, 1], 0).into(),
        memory_bytes: 4 * SLAB_BYTES as u64,
        reserve_bytes: Some(0),
        key: None,
        lease: LONG,
        evict_within: LONG,
        spin: Duration::from_micros(50),
        state_json: None,
        procfs: "/proc".into(),
        links_max: 64,
        rdma: false,
    })
    .unwrap()
}

fn connect(server: &Server, client: [u8; 16], link: u32) -> Link {
    let config = LinkConfig {
        link,
        timeouts: Timeouts {
            connect: LONG,
            handshake: LONG,
            request: LONG,
        },
        ..LinkConfig::new(ClusterKey::without_secret(), client)
    };
    Link::connect(server.listening(), config).unwrap()
}

/// A slab of this tenant that starts with `data`.
fn slab(link: &mut Link, tenant: [u8; 16], data: &[u8]) -> u64 {
    let mut c = Completions::new();
    let key = SlabKey { tenant, slab: 0 };
    let Ok(Answer::Allocated { handle }) = link.ask(&Request::Alloc(key), &mut c) else {
        panic!("no slab");
    };
    let write = Request::Write {
        handle,
        offset: 0,
        data,
    };
    assert_eq!(link.ask(&write, &mut c).unwrap(), Answer::Done);
    handle
}

struct Ticket {
    lane: u64,
    ticket: [u8; 16],
}

fn ticket(link: &mut Link, rate: LaneRate) -> Ticket {
    let asked = Asked {
        tenant: TENANT,
        secret: SECRET,
        rate,
    };
    let mut c = Completions::new();
    match link.ask(&Request::Lane(asked), &mut c) {
        Ok(Answer::Ticket { lane, ticket }) => Ticket { lane, ticket },
        other => panic!("{other:?}"),
    }
}

/// A program's end of a direct read channel, with its socket.
struct Program {
    stream: TcpStream,
    caller: Caller,
}

/// The channel is over: the donor closed the connection, or reset late bytes.
#[derive(PartialEq, Eq, Debug)]
struct Over;

impl Program {
    fn dial(server: &Server) -> TcpStream {
        let stream = TcpStream::connect(server.listening()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn open(server: &Server, ticket: &Ticket) -> Result<Program, Over> {
        let mut program = Program {
            stream: Program::dial(server),
            caller: Caller::new(&Keys::new(&SECRET, &ticket.ticket)),
        };
        let opening = program.caller.opening(&ticket.ticket).unwrap();
        program.stream.write_all(&opening).unwrap();
        assert_eq!(program.answer()?, (Code::Done, Vec::new()));
        Ok(program)
    }

    fn receive(&mut self, len: usize) -> Result<Vec<u8>, Over> {
        let mut bytes = vec![0; len];
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                Err(Over)
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn answer(&mut self) -> Result<(Code, Vec<u8>), Over> {
        let head: [u8; HEAD_BYTES] = self.receive(HEAD_BYTES)?.try_into().unwrap();
        let head = self.caller.decode_head(&head).unwrap();
        Ok((head.code, self.receive(head.len as usize)?))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        self.stream.write_all(bytes).map_err(|_| Over)
    }

    fn ask(&mut self, handle: u64, offset: u32, len: u32) -> Result<(Code, Vec<u8>), Over> {
        let read = Read {
            handle,
            offset,
            len,
        };
        let message = self.caller.read(read).unwrap();
        self.send(&message)?;
        self.answer()
    }
}

fn used(link: &mut Link, lane: u64) -> Result<(u64, u64), ErrorCode> {
    let mut c = Completions::new();
    match link.ask(&Request::LaneEnd { lane }, &mut c) {
        Ok(Answer::LaneUsed { reads, bytes }) => Ok((reads, bytes)),
        Err(AskError::Refused { code, .. }) => Err(code),
        other => panic!("{other:?}"),
    }
}

/// Checks that the donor still serves.
fn serves(server: &Server) {
    let mut link = connect(server, [77; 16], 0);
    let mut c = Completions::new();
    let answer = link.ask(&Request::Ping, &mut c).unwrap();
    assert!(matches!(answer, Answer::Pong(_)), "{answer:?}");
}

/// Requests a queue pair, which a donor without RDMA refuses.
fn a_pair(program: &mut Program) -> Code {
    let pair = QueuePair {
        number: 1,
        psn: 1,
        gid: [1; 16],
        lid: 0,
        mtu: 5,
        reads: 1,
    };
    let message = program.caller.join(&pair).unwrap();
    program.stream.write_all(&message).unwrap();
    program.answer().unwrap().0
}

#[test]
fn a_lane_without_a_device_says_so_and_reads_on() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"what is there");
    for rate in [AMPLE, LaneRate::UNBOUNDED] {
        let mut program = Program::open(&server, &ticket(&mut link, rate)).unwrap();
        assert_eq!(a_pair(&mut program), Code::NoPair);
        let message = program.caller.expose(handle).unwrap();
        program.stream.write_all(&message).unwrap();
        assert_eq!(program.answer().unwrap(), (Code::NoPair, Vec::new()));
        let message = program.caller.expose(handle + 1).unwrap();
        program.stream.write_all(&message).unwrap();
        assert_eq!(program.answer().unwrap().0, Code::UnknownHandle);
        let came = program.ask(handle, 0, 13).unwrap();
        assert_eq!(came, (Code::Done, b"what is there".to_vec()));
    }
}

#[test]
fn a_lane_reads_what_its_client_has_written_for_its_tenant() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"what was written");
    let of_another_tenant = slab(&mut link, [9; 16], b"a secret");
    let mut other = connect(&server, [8; 16], 0);
    let of_another_client = slab(&mut other, TENANT, b"a secret");
    let ticket = ticket(&mut link, AMPLE);
    let mut program = Program::open(&server, &ticket).unwrap();
    let read = program.ask(handle, 5, 3).unwrap();
    assert_eq!(read, (Code::Done, b"was".to_vec()));
    for foreign in [of_another_tenant, of_another_client, handle + 100, 0] {
        let answer = program.ask(foreign, 0, 8).unwrap();
        assert_eq!(answer, (Code::UnknownHandle, Vec::new()), "{foreign}");
    }
    let most = READ_BYTES_MAX as u32;
    for (offset, len, code) in [
        (0, most, Code::Done),
        (0, most + 1, Code::OutOfRange),
        (0, u32::MAX, Code::OutOfRange),
        (SLAB_BYTES as u32, 1, Code::OutOfRange),
        (u32::MAX, 16, Code::OutOfRange),
        (SLAB_BYTES as u32 - 1, 1, Code::Done),
        (0, 0, Code::Done),
    ] {
        let (answer, data) = program.ask(handle, offset, len).unwrap();
        assert_eq!(answer, code, "{offset} {len}");
        assert_eq!(
            data.len(),
            if code == Code::Done { len as usize } else { 0 }
        );
    }
    // A freed slab is gone for the channel, too, although the channel knows it.
    let mut c = Completions::new();
    link.ask(&Request::Free { handle }, &mut c).unwrap();
    let answer = program.ask(handle, 5, 3).unwrap();
    assert_eq!(answer, (Code::UnknownHandle, Vec::new()));
    // The donor has counted.
    assert_eq!(
        used(&mut link, ticket.lane),
        Ok((4, 3 + READ_BYTES_MAX as u64 + 1))
    );
    assert_eq!(used(&mut link, ticket.lane), Err(ErrorCode::NoLane));
    assert_eq!(program.ask(handle, 5, 3), Err(Over));
}

#[test]
fn a_ticket_is_used_once() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"data");
    let ticket = ticket(&mut link, AMPLE);
    let mut program = Program::open(&server, &ticket).unwrap();
    assert!(Program::open(&server, &ticket).is_err(), "replayed");
    let unknown = Ticket {
        lane: 0,
        ticket: [6; 16],
    };
    assert!(Program::open(&server, &unknown).is_err());
    assert_eq!(program.ask(handle, 0, 4).unwrap().1, b"data");
    assert!(TICKET_TIME > Duration::from_secs(1));
}

#[test]
fn what_breaks_the_rules_ends_the_lane_and_nothing_else() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"data");
    let read = Read {
        handle,
        offset: 0,
        len: 4,
    };
    type Breach = fn(&mut Program, Read) -> Vec<u8>;
    let breaches: [(&str, Breach); 7] = [
        ("a changed message", |p, read| {
            let mut message = p.caller.read(read).unwrap();
            message[LENGTH_BYTES + 3] ^= 1;
            message.to_vec()
        }),
        ("two requests at once", |p, read| {
            let message = p.caller.read(read).unwrap();
            [message, message].concat()
        }),
        ("a number again, as by a copy after a fork", |p, read| {
            let message = p.caller.read(read).unwrap();
            p.send(&message).unwrap();
            p.answer().unwrap();
            message.to_vec()
        }),
        ("a message left out", |p, read| {
            p.caller.read(read).unwrap();
            let head = [0; HEAD_BYTES];
            assert_eq!(p.caller.decode_head(&head), Err(LaneError::Message));
            let mut other = Caller::new(&Keys::new(&SECRET, &[0; 16]));
            other.opening(&[0; 16]).unwrap().to_vec()
        }),
        ("another length", |_, _| {
            let mut bytes = vec![0; 2 + 200];
            bytes[..2].copy_from_slice(&200u16.to_le_bytes());
            bytes
        }),
        ("no length", |_, _| vec![0, 0]),
        ("a write of the protocol of links", |_, read| {
            let mut frame = vec![0; 256];
            let write = Request::Write {
                handle: read.handle,
                offset: 0,
                data: b"evil",
            };
            let len = write.encode(1, &mut frame).unwrap();
            frame.truncate(len);
            [&(len as u16).to_le_bytes()[..], &frame].concat()
        }),
    ];
    for (name, breach) in breaches {
        let ticket = ticket(&mut link, AMPLE);
        let mut program = Program::open(&server, &ticket).unwrap();
        assert_eq!(program.ask(handle, 0, 4).unwrap().1, b"data", "{name}");
        let bytes = breach(&mut program, read);
        // The connection may end before all is sent.
        let _ = program.send(&bytes);
        assert_eq!(program.receive(1), Err(Over), "{name}");
        used(&mut link, ticket.lane).unwrap();
    }
    serves(&server);
}

#[test]
fn any_bytes_in_place_of_an_opening_or_a_message() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"data");
    let mut rng = fastrand::Rng::with_seed(7);
    for n in 0..120 {
        let mut bytes = vec![0; rng.usize(1..100)];
        rng.fill(&mut bytes);
        if n % 2 == 0 {
            bytes.resize(LENGTH_BYTES + MESSAGE_BYTES, 7);
            bytes[..2].copy_from_slice(&(MESSAGE_BYTES as u16).to_le_bytes());
        }
        let stream = if n % 3 == 0 {
            Program::dial(&server)
        } else {
            let ticket = ticket(&mut link, AMPLE);
            let mut program = Program::open(&server, &ticket).unwrap();
            assert_eq!(program.ask(handle, 0, 4).unwrap().1, b"data");
            program.stream
        };
        let _ = (&stream).write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        // To the end of the connection, without any answer.
        let _ = (&stream).read_to_end(&mut rest);
        assert!(rest.is_empty(), "{n}");
        if n % 40 == 0 {
            // The client starts again, so that its channels do not add up.
            link = connect(&server, CLIENT, 0);
        }
    }
    assert_eq!(slab(&mut link, TENANT, b"data"), handle);
    serves(&server);
}

#[test]
fn who_ignores_the_rate_gets_no_more_than_it() {
    let rate = LaneRate {
        rate_bytes: 400_000,
        burst_bytes: 20_000,
    };
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"data");
    let ticket = ticket(&mut link, rate);
    let mut program = Program::open(&server, &ticket).unwrap();
    let began = Instant::now();
    let (mut bytes, mut refused) = (0, 0u64);
    while began.elapsed() < Duration::from_millis(500) {
        match program.ask(handle, 0, 4000).unwrap() {
            (Code::Done, data) => bytes += data.len(),
            (Code::OverRate, _) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    let most = 20_000.0 + 400_000.0 * began.elapsed().as_secs_f64();
    assert!(bytes as f64 <= most, "{bytes} bytes of {most}");
    assert!(bytes >= 20_000, "{bytes}");
    // Refusals cost little: a pause follows each.
    assert!(refused > 0 && refused as f64 <= most / 4000.0, "{refused}");
    // Its rate is raised while it is held back.
    let mut c = Completions::new();
    let request = Request::LaneRate {
        lane: ticket.lane,
        rate: AMPLE,
    };
    let answer = link.ask(&request, &mut c).unwrap();
    let Answer::LaneUsed { bytes: told, .. } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(told, bytes as u64);
    let end = Instant::now() + LONG;
    while program.ask(handle, 0, 4000).unwrap().0 != Code::Done {
        assert!(Instant::now() < end);
    }
}

/// A new agent starts with link 0: nothing of the old one's channels is left, including tickets.
#[test]
fn link_0_fences_lanes() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"data");
    let mut program = Program::open(&server, &ticket(&mut link, AMPLE)).unwrap();
    let unused = ticket(&mut link, AMPLE);
    let mut other = connect(&server, [8; 16], 0);
    let others_handle = slab(&mut other, TENANT, b"its");
    let mut others = Program::open(&server, &ticket(&mut other, AMPLE)).unwrap();
    // Link 1 does not count as a new start.
    let _second = connect(&server, CLIENT, 1);
    assert_eq!(program.ask(handle, 0, 4).unwrap().1, b"data");
    // Nor does the end of link 0: the channel is served while there is no agent.
    drop(link);
    assert_eq!(program.ask(handle, 0, 4).unwrap().1, b"data");
    let mut link = connect(&server, CLIENT, 0);
    assert_eq!(program.ask(handle, 0, 4), Err(Over));
    assert!(Program::open(&server, &unused).is_err());
    assert_eq!(others.ask(others_handle, 0, 3).unwrap().1, b"its");
    let mut program = Program::open(&server, &ticket(&mut link, AMPLE)).unwrap();
    assert_eq!(program.ask(handle, 0, 4).unwrap().1, b"data");
}

#[test]
fn only_link_0_asks_for_lanes() {
    let server = server();
    let _first = connect(&server, CLIENT, 0);
    let mut second = connect(&server, CLIENT, 1);
    let asked = Asked {
        tenant: TENANT,
        secret: SECRET,
        rate: AMPLE,
    };
    let mut c = Completions::new();
    assert!(second.ask(&Request::Lane(asked), &mut c).is_err());
    serves(&server);
}

#[test]
fn programs_that_die_between_request_and_answer() {
    let server = server();
    let mut link = connect(&server, CLIENT, 0);
    let handle = slab(&mut link, TENANT, b"data");
    for _ in 0..20 {
        let ticket = ticket(&mut link, AMPLE);
        let mut program = Program::open(&server, &ticket).unwrap();
        let read = Read {
            handle,
            offset: 0,
            len: READ_BYTES_MAX as u32,
        };
        let message = program.caller.read(read).unwrap();
        program.send(&message).unwrap();
        drop(program);
        used(&mut link, ticket.lane).unwrap();
    }
    serves(&server);
}
