//! Sleeping on the tenant's futex and on links together: a thread polls the links, but only while the agent sleeps.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use canvas_link::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::disk::Disk;
use crate::idle::Waker;
use crate::store::Store;

/// Polls links on a thread of its own.
pub struct Watch(Arc<WatchShared>);

/// Shared with the thread: it would never see an event of an eventfd that is closed first.
struct WatchShared {
    epoll: Epoll,
    ready: AtomicBool,
    /// Ends the thread.
    end: EventFd,
}

/// Epoll data of [`WatchShared::end`]; that of links is 0.
const END: u64 = 1;

impl Watch {
    /// Starts the thread.
    pub fn new(waker: Waker) -> std::io::Result<Watch> {
        let both = Arc::new(WatchShared {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            ready: AtomicBool::new(false),
            end: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        });
        let end = EpollEvent::new(EpollFlags::EPOLLIN, END);
        both.epoll.add(&both.end, end)?;
        let theirs = both.clone();
        std::thread::Builder::new()
            .name("links".to_owned())
            .spawn(move || {
                let mut events = [EpollEvent::empty(); 16];
                loop {
                    match theirs.epoll.wait(&mut events, EpollTimeout::NONE) {
                        Ok(n) if events[..n].iter().any(|e| e.data() == END) => return,
                        Ok(_) => {
                            theirs.ready.store(true, Ordering::SeqCst);
                            waker.wake();
                        }
                        Err(Errno::EINTR) => {}
                        // Polling is broken; the agent still polls every link whenever it is awake.
                        Err(_) => return,
                    }
                }
            })?;
        Ok(Watch(both))
    }

    /// From now on the first event on this link wakes the agent, once.
    pub fn arm(&self, link: BorrowedFd, unsent: bool) {
        let mut flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        if unsent {
            flags |= EpollFlags::EPOLLOUT;
        }
        let mut event = EpollEvent::new(flags, 0);
        if self.0.epoll.modify(link, &mut event) == Err(Errno::ENOENT) {
            // A new connection; the kernel forgot the old one when it was closed.
            let _ = self.0.epoll.add(link, event);
        }
    }

    /// Whether there was an event since the last call.
    pub fn take_ready(&self) -> bool {
        self.0.ready.swap(false, Ordering::SeqCst)
    }

    /// Whether there was an event since the last [`Watch::take_ready`].
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::SeqCst)
    }
}

/// Most links for which [`await_any`] waits.
const AWAITED_MAX: usize = 8;

/// Sleeps until one of a few links has an event or the disk has finished something, at most `time`; false when nothing
/// happened, or there are too many links. It costs one system call and wakes this thread directly: half the time of a
/// wake-up through [`Watch`].
pub fn await_any<'l>(
    links: impl Iterator<Item = &'l Box<dyn Transport>>,
    disk: Option<&Disk>,
    time: Duration,
) -> bool {
    let mut fds = Vec::with_capacity(AWAITED_MAX + 1);
    for link in links {
        if link.arm() {
            return true;
        }
        let Some(fd) = link.fd() else {
            return true;
        };
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, link.has_unsent());
        if fds.len() == AWAITED_MAX {
            return false;
        }
        fds.push(PollFd::new(fd, flags));
    }
    if fds.is_empty() {
        return false;
    }
    let Some(disk) = disk else {
        return poll(&mut fds, time);
    };
    fds.push(PollFd::new(disk.notifier().arm(), PollFlags::POLLIN));
    let came = disk.is_ready() || poll(&mut fds, time);
    let readable = fds.last().and_then(PollFd::any).unwrap_or(false);
    disk.notifier().disarm(readable);
    came
}

fn poll(fds: &mut [PollFd<'_>], time: Duration) -> bool {
    ppoll(fds, Some(time.into()), None).is_ok_and(|ready| ready > 0)
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails only when the counter is full, after 2^64 - 2 writes.
        let _ = self.0.end.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Event;
    use canvas_link::{Completions, LinkError, SubmitError};
    use canvas_wire::frame::{Reply, Request, Welcome};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn an_answer_wakes_who_waits_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut ends: Vec<(Socket, TcpStream)> = (0..=AWAITED_MAX)
            .map(|_| {
                let ours = TcpStream::connect(addr).unwrap();
                (Socket(ours), listener.accept().unwrap().0)
            })
            .collect();
        let links = |n: usize, ends: &[(Socket, TcpStream)]| -> Vec<Box<dyn Transport>> {
            let some = ends[..n].iter();
            some.map(|(s, _)| Box::new(Socket(s.0.try_clone().unwrap())) as Box<dyn Transport>)
                .collect()
        };
        let short = Duration::from_millis(2);
        assert!(!await_any(
            links(0, &ends).iter(),
            None,
            Duration::from_secs(60)
        ));
        assert!(
            !await_any(links(2, &ends).iter(), None, short),
            "nothing came"
        );
        let many = links(AWAITED_MAX + 1, &ends);
        assert!(
            !await_any(many.iter(), None, Duration::from_secs(60)),
            "too many"
        );
        let two = links(2, &ends);
        let theirs = ends[1].1.try_clone().unwrap();
        let sends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            (&theirs).write_all(b"x").unwrap();
        });
        assert!(await_any(two.iter(), None, Duration::from_secs(60)));
        sends.join().unwrap();
        // A closed link is an event, too.
        ends.swap_remove(0);
        assert!(await_any(two.iter(), None, Duration::from_secs(60)));
    }

    #[test]
    fn a_disk_that_is_through_with_something_wakes_who_waits_for_a_link() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let links = [Box::new(Socket(ours)) as Box<dyn Transport>];
        let dir = tempfile::tempdir().unwrap();
        let (fd, _) = canvas_shm::Segment::create(true).unwrap();
        let waker = Waker(canvas_shm::Far::map(&fd).unwrap());
        let file = crate::disk::create(dir.path()).unwrap();
        let mut disk = Disk::new(vec![file], None, waker).unwrap();
        let mut events = Vec::new();
        for round in 0..500 {
            disk.free(round);
            while events.is_empty() {
                assert!(await_any(
                    links.iter(),
                    Some(&disk),
                    Duration::from_secs(60)
                ));
                disk.poll(&mut events);
            }
            assert!(matches!(events.pop(), Some(Event::Freed(slab)) if slab == round));
        }
        // After the last notification, at most one more poll returns at once.
        let short = Duration::from_millis(2);
        assert!((0..2).any(|_| !await_any(links.iter(), Some(&disk), short)));
    }

    /// A connection without requests.
    struct Socket(TcpStream);

    impl Transport for Socket {
        fn welcome(&self) -> &Welcome {
            unreachable!("nobody asks")
        }
        fn submit(&mut self, _: u64, _: &Request<'_>) -> Result<(), SubmitError> {
            Err(SubmitError::Down)
        }
        fn reply(&mut self, _: u64, _: &Reply<'_>) -> Result<(), SubmitError> {
            Err(SubmitError::Down)
        }
        fn flush(&mut self) -> Result<bool, LinkError> {
            Ok(true)
        }
        fn has_unsent(&self) -> bool {
            false
        }
        fn outstanding(&self) -> usize {
            1
        }
        fn poll(&mut self, _: &mut Completions, _: Duration) -> Result<usize, LinkError> {
            Ok(0)
        }
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
        fn arm(&self) -> bool {
            false
        }
    }

    /// Threads of this process that poll links.
    fn waiting() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "links").count()
    }

    #[test]
    fn nothing_stays_of_those_that_are_over() {
        let (fd, _) = canvas_shm::Segment::create(true).unwrap();
        let far = canvas_shm::Far::map(&fd).unwrap();
        for _ in 0..300 {
            let watch = Watch::new(Waker(far)).unwrap();
            // Some end before their threads have begun to poll, some after.
            std::thread::yield_now();
            drop(watch);
        }
        let end = Instant::now() + Duration::from_secs(20);
        while waiting() > 0 {
            assert!(Instant::now() < end, "{} threads wait", waiting());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
