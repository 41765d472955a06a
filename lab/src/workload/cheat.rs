//! A cheating tenant for the bench, which takes as much of far memory's links as it can get.
//!
//! Its threads run beside the workload and read the process's far memory in ways that the library does not:
//! over as many direct read channels as it has tickets for, even when the agent forbids processes to read
//! directly, and again at once when a donor refuses. They also request whole extents that nobody needs, with
//! half of the requests that a process may have outstanding. They discard all answers.
//!
//! It cheats in all but one point: it counts the bytes of its channels where the library does, so that the
//! bench sees them.

use std::fs::{File, OpenOptions, read_to_string};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use canvas_direct::wire::{Caller, Code, HEAD_BYTES, Keys, READ_BYTES_MAX, Read};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_shm::lanes::{DONORS_MAX, Donor};
use canvas_shm::mailbox::{DEMANDS, Kind, RequestFields};
use canvas_shm::{Far, Segment};
use canvas_sys::proc;

use crate::error::Failure;

/// Direct read channels at one time. (The library has eight per process.)
const LANES: usize = 64;
/// Outstanding requests at one time.
const POSTED: u32 = DEMANDS.count_ones() / 2;
/// Interval at which the threads poll for tickets, and for extents to read.
const TICK: Duration = Duration::from_millis(1);
/// Timeout of connecting to a donor, and of its answers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts the threads, which run for `time`; the bandwidth they take is missing from the workload's own
/// figures. Without far memory there is nothing to take.
pub fn begin(time: Duration) -> Result<(), Failure> {
    let found = far_memory().map_err(|e| {
        Failure::usage(format!(
            "--cheat cannot open this process's far memory (as root it can): {e}"
        ))
    })?;
    if let Some((far, index)) = found {
        let until = Instant::now() + time;
        thread::spawn(move || open_lanes(far, until));
        thread::spawn(move || post_demands(far, index, until));
    }
    Ok(())
}

/// This process's far memory and its index there, through the library's mapping of the segment.
fn far_memory() -> io::Result<Option<(&'static Far, usize)>> {
    let maps = read_to_string("/proc/self/maps")?;
    let mapped = maps.lines().find(|l| l.contains("memfd:canvas-segment"));
    let Some(range) = mapped.and_then(|l| l.split(' ').next()) else {
        return Ok(None);
    };
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/self/map_files/{range}"))?;
    let segment = Segment::map(&file)?;
    let pid = std::process::id();
    let index = segment
        .procs
        .iter()
        .position(|p| p.pid.load(Relaxed) == pid);
    // The segment of a run without far memory is too short to map.
    Ok(index.and_then(|index| Some((Far::map(&file).ok()?, index))))
}

/// Upper bound of the slab numbers.
fn slabs(far: &Far) -> usize {
    let high = far.slabs_high.load(Acquire) as usize;
    high.min(far.routes.len())
}

/// Uses every ticket until it has its number of channels.
fn open_lanes(far: &'static Far, until: Instant) {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    while Instant::now() < until {
        for number in 0..DONORS_MAX {
            let donor = &far.lanes.donors[number];
            if !donor.is_open() || OPEN.load(Relaxed) >= LANES {
                continue;
            }
            if let Some((ticket, keys)) = donor.take_ticket() {
                OPEN.fetch_add(1, Relaxed);
                thread::spawn(move || {
                    // Errors do not matter: there is another ticket.
                    let _ = read_lane(far, number, (&ticket, &keys), until);
                    OPEN.fetch_sub(1, Relaxed);
                });
            }
        }
        thread::sleep(TICK);
    }
}

fn address(donor: &Donor) -> io::Result<SocketAddr> {
    let place = donor.address().ok_or(io::ErrorKind::NotConnected)?;
    let v4: [u8; 4] = [place.ip[0], place.ip[1], place.ip[2], place.ip[3]];
    let ip: IpAddr = if place.is_v6 {
        place.ip.into()
    } else {
        v4.into()
    };
    Ok((ip, place.port).into())
}

/// Receives an answer and leaves its payload in `bytes`.
fn answer(
    stream: &mut TcpStream,
    caller: &mut Caller,
    bytes: &mut [u8],
) -> io::Result<(Code, usize)> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let head = caller
        .decode_head(&head)
        .map_err(|_| io::ErrorKind::InvalidData)?;
    let len = head.len as usize;
    let to = bytes.get_mut(..len).ok_or(io::ErrorKind::InvalidData)?;
    stream.read_exact(to)?;
    Ok((head.code, len))
}

/// Reads random extents of this tenant from one donor for as long as the channel lasts.
fn read_lane(
    far: &Far,
    number: usize,
    (ticket, keys): (&[u8; 16], &[u8; 64]),
    until: Instant,
) -> io::Result<()> {
    let stream = &mut TcpStream::connect_timeout(&address(&far.lanes.donors[number])?, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut caller = Caller::new(&Keys::from_bytes(keys));
    let mut bytes = [0; READ_BYTES_MAX];
    let unfit = |_| io::Error::from(io::ErrorKind::InvalidData);
    stream.write_all(&caller.opening(ticket).map_err(unfit)?)?;
    answer(stream, &mut caller, &mut bytes)?;
    let mut random = fastrand::Rng::new();
    let pieces = SLAB_EXTENTS * EXTENT_BYTES / READ_BYTES_MAX;
    while Instant::now() < until {
        // The library would check `is_direct` first.
        let route = &far.routes[random.usize(..slabs(far).max(1))];
        let Some((_, handle)) = route.get(false).filter(|(donor, _)| *donor == number) else {
            thread::yield_now();
            continue;
        };
        let read = Read {
            handle,
            offset: (random.usize(..pieces) * READ_BYTES_MAX) as u32,
            len: READ_BYTES_MAX as u32,
        };
        stream.write_all(&caller.read(read).map_err(unfit)?)?;
        let (_, len) = answer(stream, &mut caller, &mut bytes)?;
        if len > 0 {
            far.stats.lane_reads.fetch_add(1, Relaxed);
            far.stats.lane_bytes.fetch_add(len as u64, Relaxed);
        }
    }
    Ok(())
}

/// An extent that this process has written, or None if a few tries find none.
fn an_extent(far: &Far, index: usize, random: &mut fastrand::Rng) -> Option<u32> {
    (0..64).find_map(|_| {
        let slab = random.usize(..slabs(far).max(1));
        let extent = slab * SLAB_EXTENTS + random.usize(..SLAB_EXTENTS);
        let is_ours = far.slabs[slab].refers(index) && far.seals[extent].load(Acquire) != 0;
        is_ours.then_some(extent as u32)
    })
}

/// Keeps requests for whole extents of this process outstanding.
fn post_demands(far: &Far, index: usize, until: Instant) {
    let mailbox = &far.mailboxes[index];
    let mut random = fastrand::Rng::new();
    let mut posted: Vec<usize> = Vec::new();
    while Instant::now() < until || !posted.is_empty() {
        posted.retain(|&i| {
            let is_over = mailbox.ended(i).is_some();
            if is_over {
                mailbox.release(i);
            }
            !is_over
        });
        let is_full = posted.len() >= POSTED as usize || Instant::now() >= until;
        let extent = (!is_full).then(|| an_extent(far, index, &mut random));
        let claimed = extent
            .flatten()
            .and_then(|e| Some((e, mailbox.claim(DEMANDS)?)));
        let Some((extent, i)) = claimed else {
            thread::sleep(TICK);
            continue;
        };
        let ask = RequestFields {
            kind: Kind::Read,
            extent,
            offset: 0,
            len: EXTENT_BYTES as u32,
        };
        // The time of posting is 0, long ago, as in a request that asks to go first.
        mailbox.post(i, ask, 0);
        if far.notify(index) {
            proc::futex_wake(&far.asleep, 1);
        }
        posted.push(i);
    }
}
