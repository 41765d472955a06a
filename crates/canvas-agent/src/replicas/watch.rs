//! Sleeping on the tenant's bell and on links at one time: a thread waits for the links, but only
//! while the agent sleeps.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::idle::Waker;

/// Watches links.
pub struct Watch(Arc<Both>);

/// What the thread has too: of an eventfd that is closed before the thread has seen it nothing is heard.
struct Both {
    epoll: Epoll,
    ready: AtomicBool,
    /// Ends the thread.
    end: EventFd,
}

/// Names [`Both::end`] among the links, which are all 0.
const END: u64 = 1;

impl Watch {
    /// Starts the thread.
    pub fn new(waker: Waker) -> std::io::Result<Watch> {
        let both = Arc::new(Both {
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
                        // Nothing can be waited for any more; the agent still looks at every link
                        // whenever it is awake.
                        Err(_) => return,
                    }
                }
            })?;
        Ok(Watch(both))
    }

    /// From now on the agent is woken, once, when something comes over a link.
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

    /// Did something come since the last call?
    pub fn take_ready(&self) -> bool {
        self.0.ready.swap(false, Ordering::SeqCst)
    }

    /// Did something come?
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Full only after 2^64 - 2 writes.
        let _ = self.0.end.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Threads of this process that wait for links.
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
            // Some end before their threads have begun to wait, some after.
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
