//! The device from a virtual machine monitor's view: features, queues, the guest's memory.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringT};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_queue::QueueT;
use vm_memory::{
    GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

use super::config;
use super::request::{self, Work};
use super::ring::Ring;
use crate::{PageStore, span};

/// Most requests in a queue.
const QUEUE_SIZE: usize = 256;
/// Most queues.
pub const QUEUES_MAX: u16 = 32;

/// A guest's memory.
type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A disk as a device.
pub struct Device<S: 'static> {
    store: &'static S,
    queues: u16,
    /// The guest's memory, once it is known to be permanent; memory set since then is not used
    /// otherwise.
    memory: RwLock<Option<Arc<GuestMemoryMmap>>>,
    /// Whether the operator was told that a guest's memory is refused; its monitor may keep trying.
    told: AtomicBool,
    event_idx: AtomicBool,
    work: Vec<Mutex<Box<Work>>>,
    accepted: AtomicU64,
    clients: AtomicU64,
}

impl<S: PageStore + Send> Device<S> {
    /// A device with `queues` queues.
    pub fn new(store: &'static S, queues: u16) -> Arc<Device<S>> {
        Arc::new(Device {
            store,
            queues,
            memory: RwLock::new(None),
            told: AtomicBool::new(false),
            event_idx: AtomicBool::new(false),
            work: (0..queues).map(|_| Mutex::new(Work::new())).collect(),
            accepted: AtomicU64::new(0),
            clients: AtomicU64::new(0),
        })
    }

    /// Monitors connected (at most one), and connected ever.
    pub fn clients(&self) -> (u64, u64) {
        (self.clients.load(Relaxed), self.accepted.load(Relaxed))
    }

    fn memory(&self) -> Option<Arc<GuestMemoryMmap>> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.clone()
    }

    fn set_memory(&self, memory: Option<Arc<GuestMemoryMmap>>) {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Serves the guest's requests in a queue.
    fn drain(&self, vring: &Ring, work: &mut Work) {
        let Some(memory) = self.memory() else {
            return;
        };
        let mut state = vring.get_mut();
        loop {
            let Some(chain) = state.get_queue_mut().pop_descriptor_chain(memory.clone()) else {
                return;
            };
            let head = chain.head_index();
            let written = request::serve(chain, &memory, self.store, work);
            let queue = state.get_queue_mut();
            let told = queue
                .add_used(&*memory, head, written)
                .and_then(|()| queue.needs_notification(&*memory));
            match told {
                // If the notification fails, it is the monitor's problem.
                Ok(true) => drop(state.signal_used_queue()),
                Ok(false) => {}
                // Its rings are invalid: nothing of it is served until they are set again.
                Err(_) => return,
            }
        }
    }
}

impl<S: PageStore + Send> VhostUserBackend for Device<S> {
    type Bitmap = ();
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        self.queues.into()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        let bits = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_MQ,
            VIRTIO_BLK_F_DISCARD,
            VIRTIO_BLK_F_WRITE_ZEROES,
        ];
        let own = bits.iter().fold(0, |all, bit| all | 1 << bit);
        own | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_idx.store(enabled, Relaxed);
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = config(span::disk_bytes(self.store), self.queues);
        let at = |i: u32| config.get(i as usize).copied().unwrap_or(0);
        (offset..offset.saturating_add(size)).map(at).collect()
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        let memory = memory.memory().into_inner();
        let stays = memory.iter().all(|region| {
            let file = region.file_offset().map(|f| f.arc().clone());
            let seals = file.and_then(|f| fcntl(&*f, FcntlArg::F_GET_SEALS).ok());
            let seals = SealFlag::from_bits_truncate(seals.unwrap_or(0));
            seals.contains(SealFlag::F_SEAL_SHRINK)
        });
        if !stays {
            self.set_memory(None);
            if !self.told.swap(true, Relaxed) {
                tracing::error!(
                    "the guest's memory could be cut short under the disk, so it is refused; give qemu -object memory-backend-memfd,share=on, which is sealed",
                );
            }
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.told.store(false, Relaxed);
        self.set_memory(Some(memory));
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.queues).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }

    fn handle_event(
        &self,
        event: u16,
        events: EventSet,
        vrings: &[Ring],
        thread: usize,
    ) -> io::Result<()> {
        let (Some(vring), Some(work)) = (vrings.get(usize::from(event)), self.work.get(thread))
        else {
            return Ok(());
        };
        if events != EventSet::IN {
            return Ok(());
        }
        let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.event_idx.load(Relaxed) {
            self.drain(vring, &mut work);
            vring.tell_at_first();
            return Ok(());
        }
        loop {
            // Requests that arrive while this works on the queue need no notification.
            let _ = vring.disable_notification();
            self.drain(vring, &mut work);
            // Something arrived between the last check and now.
            if !matches!(vring.enable_notification(), Ok(true)) {
                vring.tell_at_first();
                return Ok(());
            }
        }
    }
}

/// Serves one monitor after the other, each until it disconnects.
pub fn serve<S: PageStore + Send>(
    listener: UnixListener,
    device: &Arc<Device<S>>,
) -> io::Result<()> {
    let mut listener = Listener::from(listener);
    loop {
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let name = "vhost-user".to_owned();
        let daemon = VhostUserDaemon::new(name, device.clone(), memory);
        let mut daemon = daemon.map_err(other)?;
        daemon.start(&mut listener).map_err(other)?;
        device.accepted.fetch_add(1, Relaxed);
        device.clients.store(1, Relaxed);
        // However it ended, the next one may connect.
        let _ = daemon.wait();
        device.set_memory(None);
        device.clients.store(0, Relaxed);
    }
}

fn other(e: vhost_user_backend::Error) -> io::Error {
    io::Error::other(e.to_string())
}
