//! Queue pairs of direct read channels: what they can reach, and what ends them.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use canvas_direct::wire::{Caller, Code, HEAD_BYTES, Keys, Tail, exposed_from_bytes, tail_bytes};
use canvas_donor::Server;
use canvas_link::{AskError, Completions, Link, LinkConfig};
use canvas_rdma::{Domain, Initiator};
use canvas_types::rdma::{Exposed, QueuePair};
use canvas_wire::frame::{Answer, Lane as Asked, LaneRate, Request, SlabKey};
use canvas_wire::key::ClusterKey;

use super::{Outcome, PAGE, PATIENCE, SILENCE, SILENT, content, done, said, same};

const SECRET: [u8; 32] = [3; 32];
const BOUNDED: LaneRate = LaneRate {
    rate_bytes: 1 << 30,
    burst_bytes: 1 << 20,
};

/// A client's link 0, which requests direct read channels for its tenants.
struct Client {
    link: Link,
    completions: Completions,
}

impl Client {
    fn new(server: &Server, key: &ClusterKey, id: u8) -> Outcome<Client> {
        let mut config = LinkConfig::new(key.clone(), [id; 16]);
        config.timeouts.request = PATIENCE;
        let link = Link::connect(server.listening(), config).map_err(said)?;
        let completions = Completions::new();
        Ok(Client { link, completions })
    }

    fn ask(&mut self, request: &Request<'_>) -> Outcome<Answer<'_>> {
        self.completions.clear();
        self.link
            .ask(request, &mut self.completions)
            .map_err(|e: AskError| format!("{e:?}"))
    }

    /// A slab of this tenant, with one page in it.
    fn slab(&mut self, tenant: u8) -> Outcome<u64> {
        let key = SlabKey {
            tenant: [tenant; 16],
            slab: 0,
        };
        let handle = match self.ask(&Request::Alloc(key))? {
            Answer::Allocated { handle } => handle,
            other => return Err(format!("no slab: {other:?}")),
        };
        let data = content(0);
        let write = Request::Write {
            handle,
            offset: 0,
            data: &data,
        };
        same("a write", self.ask(&write)?, Answer::Done)?;
        Ok(handle)
    }

    fn lane(&mut self, server: &Server, addr: IpAddr, tenant: u8) -> Outcome<Lane> {
        let asked = Asked {
            tenant: [tenant; 16],
            secret: SECRET,
            rate: LaneRate::UNBOUNDED,
        };
        match self.ask(&Request::Lane(asked))? {
            Answer::Ticket { lane, ticket } => Lane::open(server, addr, lane, &ticket),
            other => Err(format!("no lane: {other:?}")),
        }
    }

    /// Sets the rate of the channel.
    fn set_rate(&mut self, lane: &Lane, rate: LaneRate) -> Outcome<()> {
        let lane = lane.number;
        self.ask(&Request::LaneRate { lane, rate }).map(drop)
    }
}

/// A program's direct read channel with a queue pair, which keeps keys and uses them at will.
struct Lane {
    number: u64,
    stream: TcpStream,
    caller: Caller,
    queue: Initiator,
    _domain: Arc<Domain>,
}

impl Lane {
    fn open(server: &Server, addr: IpAddr, number: u64, ticket: &[u8; 16]) -> Outcome<Lane> {
        let stream = TcpStream::connect(server.listening()).map_err(said)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
        let mut caller = Caller::new(&Keys::new(&SECRET, ticket));
        let opening = caller.opening(ticket).map_err(said)?;
        let domain = Domain::open(addr).map_err(said)?;
        let queue = Initiator::new(&domain, 1, PAGE as usize, 7).map_err(said)?;
        let mut lane = Lane {
            number,
            stream,
            caller,
            queue,
            _domain: domain,
        };
        lane.stream.write_all(&opening).map_err(said)?;
        same("an opening", lane.answer()?, Err(Code::Done))?;
        Ok(lane)
    }

    /// The contents of an answer, or its code.
    fn answer(&mut self) -> Outcome<Result<Tail, Code>> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).map_err(said)?;
        if tail_bytes(&head) == 0 {
            return Ok(Err(self.caller.decode_head(&head).map_err(said)?.code));
        }
        let mut given = Tail::default();
        self.stream.read_exact(&mut given).map_err(said)?;
        self.caller.decode_tail(&head, &given).map_err(said)?;
        Ok(Ok(given))
    }

    fn join(&mut self) -> Outcome<Result<(), Code>> {
        let message = self.caller.join(&self.queue.local()).map_err(said)?;
        self.stream.write_all(&message).map_err(said)?;
        Ok(match self.answer()? {
            Ok(given) => {
                let peer = QueuePair::from_bytes(&given).ok_or("no queue pair came")?;
                self.queue.connect(&peer).map_err(said)?;
                Ok(())
            }
            Err(code) => Err(code),
        })
    }

    fn expose(&mut self, handle: u64) -> Outcome<Result<Exposed, Code>> {
        let message = self.caller.expose(handle).map_err(said)?;
        self.stream.write_all(&message).map_err(said)?;
        Ok(self.answer()?.map(|given| exposed_from_bytes(&given)))
    }

    /// A channel whose queue pair can reach the slab, and the key for that.
    fn ready(mut self, handle: u64) -> Outcome<(Lane, Exposed)> {
        same("a queue pair", self.join()?, Ok(()))?;
        let exposed = self.expose(handle)?;
        let exposed = exposed.map_err(|code| format!("the slab is not exposed: {code:?}"))?;
        Ok((self, exposed))
    }

    fn reads(&mut self, from: Exposed) -> Outcome<bool> {
        let read = self.queue.read(0, PAGE as usize, from.address, from.key);
        read.map_err(said)?;
        done(&mut self.queue, SILENCE)
    }

    fn writes(&mut self, to: Exposed) -> Outcome<bool> {
        let write = self.queue.write(0, &content(1), to.address, to.key);
        write.map_err(said)?;
        done(&mut self.queue, SILENCE)
    }

    /// Checks that nobody answers any more; the device decides how long it retries.
    fn is_shut(&mut self, from: Exposed, why: &str) -> Outcome<()> {
        match self.reads(from) {
            Err(what) if what.contains("retry") || what == SILENT => Ok(()),
            other => Err(format!("a lane, {why}: {other:?}")),
        }
    }
}

/// A channel's queue pair can read its tenant's slabs, and nothing else.
pub fn reaches(server: &Server, key: &ClusterKey, addr: IpAddr) -> Outcome<()> {
    let mut client = Client::new(server, key, 10)?;
    let (mine, others) = (client.slab(1)?, client.slab(2)?);
    let mut lane = client.lane(server, addr, 1)?;
    same(
        "a slab before a queue pair",
        lane.expose(mine)?,
        Err(Code::NoPair),
    )?;
    let (mut lane, exposed) = lane.ready(mine)?;
    same(
        "another tenant's slab",
        lane.expose(others)?,
        Err(Code::UnknownHandle),
    )?;
    same("a read", lane.reads(exposed)?, true)?;
    // Another channel of the tenant can reach the same memory by the same key; another tenant's,
    // and the link's own, cannot.
    let (mut second, its) = client.lane(server, addr, 1)?.ready(mine)?;
    same("the key of a second lane", its, exposed)?;
    same("a second lane", second.reads(its)?, true)?;
    let (mut stranger, _) = client.lane(server, addr, 2)?.ready(others)?;
    same(
        "another tenant with a stolen key",
        stranger.reads(exposed)?,
        false,
    )?;
    same("a write", second.writes(its)?, false)?;
    same("a read after that", lane.reads(exposed)?, true)?;
    // Its slab is freed: the device refuses.
    same(
        "a free",
        client.ask(&Request::Free { handle: mine })?,
        Answer::Done,
    )?;
    same("a freed slab", lane.reads(exposed)?, false)
}

/// The end of a channel ends its queue pair, and so does a rate limit.
pub fn ends(server: &Server, key: &ClusterKey, addr: IpAddr) -> Outcome<()> {
    let mut client = Client::new(server, key, 11)?;
    let handle = client.slab(1)?;
    let (mut lane, exposed) = client.lane(server, addr, 1)?.ready(handle)?;
    client.set_rate(&lane, BOUNDED)?;
    lane.is_shut(exposed, "which has a rate")?;
    same(
        "a queue pair of a lane with a rate",
        lane.join()?,
        Err(Code::NoPair),
    )?;
    let (mut lane, exposed) = client.lane(server, addr, 1)?.ready(handle)?;
    let end = Request::LaneEnd { lane: lane.number };
    client.ask(&end)?;
    lane.is_shut(exposed, "which was ended")?;
    let (mut lane, exposed) = client.lane(server, addr, 1)?.ready(handle)?;
    lane.stream
        .shutdown(std::net::Shutdown::Both)
        .map_err(said)?;
    // Its thread notices the end at once, but the time is unknown.
    let until = Instant::now() + PATIENCE;
    while lane.reads(exposed) == Ok(true) {
        if Instant::now() > until {
            return Err("a queue pair outlives its lane's connection".to_owned());
        }
        std::thread::yield_now();
    }
    let (mut lane, exposed) = client.lane(server, addr, 1)?.ready(handle)?;
    let newer = Client::new(server, key, 11)?;
    lane.is_shut(exposed, "whose client has begun anew")?;
    drop(newer);
    Ok(())
}
