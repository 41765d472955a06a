//! A queue of a monitor, which another server may have served before.
//!
//! Requests of a queue are served in order, so those that a killed server left are between the used
//! and the available index of the guest's ring, whatever the monitor says; each can be served once
//! more. Nobody kicks the queue for them again, and the guest may not have been notified of the
//! last completed ones.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;
use vhost_user_backend::{VringMutex, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A queue that is processed as soon as it is started, and whose guest is notified then, too.
#[derive(Clone)]
pub struct Ring {
    inner: VringMutex,
    /// Whether its guest has not been notified yet.
    is_new: Arc<AtomicBool>,
    /// Whether the ring's address is known.
    is_placed: Arc<AtomicBool>,
}

impl Ring {
    /// Notifies the guest of used requests, the first time after the start.
    pub fn tell_at_first(&self) {
        let state = self.inner.get_ref();
        if state.get_call().is_some() && self.is_new.swap(false, Relaxed) {
            // If the notification fails, it is the monitor's problem.
            let _ = state.signal_used_queue();
        }
    }
}

impl<'a> VringStateGuard<'a, Memory> for Ring {
    type G = <VringMutex as VringStateGuard<'a, Memory>>::G;
}

impl<'a> VringStateMutGuard<'a, Memory> for Ring {
    type G = <VringMutex as VringStateMutGuard<'a, Memory>>::G;
}

impl VringT<Memory> for Ring {
    fn new(memory: Memory, size_max: u16) -> Result<Ring, Error> {
        Ok(Ring {
            inner: VringMutex::new(memory, size_max)?,
            is_new: Arc::new(AtomicBool::new(true)),
            is_placed: Arc::default(),
        })
    }
    fn get_ref(&self) -> <Ring as VringStateGuard<'_, Memory>>::G {
        self.inner.get_ref()
    }
    fn get_mut(&self) -> <Ring as VringStateMutGuard<'_, Memory>>::G {
        self.inner.get_mut()
    }
    fn add_used(&self, head: u16, bytes: u32) -> Result<(), Error> {
        self.inner.add_used(head, bytes)
    }
    fn signal_used_queue(&self) -> io::Result<()> {
        self.inner.signal_used_queue()
    }
    fn enable_notification(&self) -> Result<bool, Error> {
        self.inner.enable_notification()
    }
    fn disable_notification(&self) -> Result<(), Error> {
        self.inner.disable_notification()
    }
    fn needs_notification(&self) -> Result<bool, Error> {
        self.inner.needs_notification()
    }
    fn set_enabled(&self, enabled: bool) {
        self.inner.set_enabled(enabled);
    }
    fn set_queue_info(&self, table: u64, available: u64, used: u64) -> Result<(), Error> {
        self.inner.set_queue_info(table, available, used)
    }
    fn queue_next_avail(&self) -> u16 {
        self.inner.queue_next_avail()
    }
    /// Continues after the last used request, since requests are served in order; a monitor that
    /// knows sets the same index, before or after it sets the ring's address.
    fn set_queue_next_avail(&self, base: u16) {
        let used = self.inner.queue_used_idx().ok();
        let known = used.filter(|_| self.is_placed.load(Relaxed));
        self.inner.set_queue_next_avail(known.unwrap_or(base));
    }
    fn set_queue_next_used(&self, index: u16) {
        self.inner.set_queue_next_used(index);
        self.inner.set_queue_next_avail(index);
        self.is_placed.store(true, Relaxed);
    }
    fn queue_used_idx(&self) -> Result<u16, Error> {
        self.inner.queue_used_idx()
    }
    fn set_queue_size(&self, size: u16) {
        self.inner.set_queue_size(size);
    }
    fn set_queue_event_idx(&self, enabled: bool) {
        self.inner.set_queue_event_idx(enabled);
    }
    fn set_queue_ready(&self, ready: bool) {
        self.inner.set_queue_ready(ready);
    }
    fn set_kick(&self, file: Option<File>) {
        self.is_new.store(true, Relaxed);
        file.as_ref().map(kick);
        self.inner.set_kick(file);
    }
    fn read_kick(&self) -> io::Result<bool> {
        self.inner.read_kick()
    }
    fn set_call(&self, file: Option<File>) {
        self.inner.set_call(file);
    }
    fn set_err(&self, file: Option<File>) {
        self.inner.set_err(file);
    }
}

/// Triggers the event that `file` stands for. A file on which this would block is not an event,
/// which is the monitor's fault.
fn kick(file: &File) {
    let mut ready = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut ready, PollTimeout::ZERO) == Ok(1) {
        let _ = write(file, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use virtio_queue::QueueT;
    use vm_memory::{Bytes, GuestAddress};

    /// Two ends of a stand-in for an event.
    fn event() -> (impl FnMut() -> bool, impl Fn() -> Option<File>) {
        let (mut read, write) = UnixStream::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        let happened = move || read.read_exact(&mut [0; 8]).is_ok();
        let end = move || Some(File::from(OwnedFd::from(write.try_clone().unwrap())));
        (happened, end)
    }

    fn ring_with_7_used() -> Ring {
        let guest = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 16)]).unwrap();
        guest
            .write_slice(&7u16.to_le_bytes(), GuestAddress(0x3002))
            .unwrap();
        let ring = Ring::new(Memory::new(guest), 16).unwrap();
        ring.set_queue_info(0x1000, 0x2000, 0x3000).unwrap();
        ring
    }

    #[test]
    fn what_another_server_left_is_looked_at_and_told_once() {
        let ring = ring_with_7_used();
        let (mut kicked, kick) = event();
        ring.set_kick(kick());
        assert!(kicked() && !kicked());
        ring.tell_at_first();
        let (mut called, call) = event();
        ring.set_call(call());
        ring.tell_at_first();
        assert!(called());
        ring.tell_at_first();
        assert!(!called(), "told twice");
        // The next monitor's.
        ring.set_kick(kick());
        ring.tell_at_first();
        assert!(called());
    }

    /// Whatever the monitor says, and in whatever order.
    #[test]
    fn it_goes_on_behind_what_was_used() {
        let indices = |ring: &Ring| {
            let state = ring.get_ref();
            (
                state.get_queue().next_avail(),
                state.get_queue().next_used(),
            )
        };
        let first_base = ring_with_7_used();
        first_base.set_queue_next_avail(3);
        first_base.set_queue_next_used(first_base.queue_used_idx().unwrap());
        assert_eq!(indices(&first_base), (7, 7));
        let first_place = ring_with_7_used();
        first_place.set_queue_next_used(first_place.queue_used_idx().unwrap());
        first_place.set_queue_next_avail(3);
        assert_eq!(indices(&first_place), (7, 7));
    }

    #[test]
    fn what_is_no_event_is_not_waited_for() {
        let (read, write) = UnixStream::pair().unwrap();
        let write = File::from(OwnedFd::from(write));
        let full = std::thread::spawn(move || {
            for _ in 0..1_000_000 {
                kick(&write);
            }
        });
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !full.is_finished() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(full.is_finished(), "it waits for who reads nothing");
        drop(read);
    }
}
