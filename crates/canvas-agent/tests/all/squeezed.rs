//! The hosts of all donors run out of memory at once, while the agent gets no processor time.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use canvas_agent::replicas::Policy;
use canvas_agent::store::Outcome;
use canvas_donor::Server;
use canvas_shm::far::SLAB_EXTENTS;

use crate::rig::{PATIENCE, Rig, donor_of, seed};

const SLABS: u32 = 12;
/// Extents of a slab that make it worthwhile to free.
const EXTENTS: u32 = 40;

/// Sets a host's available memory, in one step.
fn set_available(host: &Path, mib: u64) {
    let new = host.join("meminfo.new");
    let text = format!("MemTotal: 67108864 kB\nMemAvailable: {} kB\n", mib << 10);
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, host.join("meminfo")).unwrap();
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}");
    }
}

/// Two donors free all their spare replicas. Neither knows of the other, and each slab has one copy left.
#[test]
fn donors_that_run_short_together_leave_a_copy_of_each_slab() {
    // The third has no room before the others run short.
    let hosts = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let squeezed = &hosts[..2];
    let servers = hosts.each_ref().map(|host| {
        set_available(host.path(), 32 << 10);
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        donor_of(listen, host.path().into(), 1000 << 20)
    });
    set_available(hosts[2].path(), 1000);
    let has_room = |s: &Server| s.free_and_lent_bytes().0 > 0;
    until("the third has no room", || !has_room(&servers[2]));
    let mut rig = Rig::new(&servers, Policy::new(2, false), None, seed());
    for slab in 0..SLABS {
        let first = slab * SLAB_EXTENTS as u32;
        let extents: Vec<u32> = (first..first + EXTENTS).collect();
        let outcomes = rig.write(&extents, |_| {});
        assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    }
    let spare = || servers.iter().map(|s| s.state().spare_slabs).sum::<usize>();
    let lent = || servers.iter().map(Server::lent_slabs).sum::<usize>();
    until("donors are told", || {
        assert!(rig.poll().is_empty());
        spare() == SLABS as usize
    });
    assert_eq!(lent(), 2 * SLABS as usize);
    let has_some = |s: &Server| s.state().spare_slabs > 0;
    assert!(servers[..2].iter().all(has_some), "each has some");

    // Below a half, and above a quarter.
    for host in squeezed {
        set_available(host.path(), 400);
    }
    until("what is spare goes", || lent() == SLABS as usize);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((lent(), spare()), (SLABS as usize, 0), "and nothing else");
    // Each read is of the one copy that is left; asking for another one would mean that it is damaged.
    let extents: Vec<u32> = rig.oracle.keys().copied().collect();
    assert_eq!(extents.len(), (SLABS * EXTENTS) as usize);
    for extent in extents {
        assert_eq!(rig.read_page(extent, 3), Outcome::Done);
    }
    let freed = |s: &Server| s.state().counters.freed_early_slabs;
    assert_eq!(servers.iter().map(freed).sum::<u64>(), u64::from(SLABS));

    // With memory again there are two copies of each slab, and one of them is spare.
    hosts
        .iter()
        .for_each(|host| set_available(host.path(), 32 << 10));
    until("all is whole", || {
        assert!(rig.poll().is_empty());
        rig.degraded == 0 && spare() == SLABS as usize
    });
    rig.check();
    servers.into_iter().for_each(Server::stop);
}

/// With a disk that has everything all donors may free everything, and do before anything worse happens to them.
#[test]
fn beside_a_whole_disk_every_copy_is_spare() {
    let (host, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    set_available(host.path(), 32 << 10);
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = donor_of(listen, host.path().into(), 1000 << 20);
    let policy = Policy::new(1, true);
    let mut rig = Rig::new(
        std::slice::from_ref(&server),
        policy,
        Some(dir.path()),
        seed(),
    );
    let outcomes = rig.write(&(0..EXTENTS).collect::<Vec<_>>(), |_| {});
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
    until("the donor is told", || {
        assert!(rig.poll().is_empty());
        server.state().spare_slabs == 1
    });
    set_available(host.path(), 400);
    until("it goes", || server.lent_slabs() == 0);
    rig.check();
    server.stop();
}
