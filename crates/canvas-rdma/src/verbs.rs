//! Devices, memory and queue pairs, by the functions of libibverbs.
//!
//! Uses only basic completion queues: the extended ones overflow on rdma_rxe, the kernel's software
//! device.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::io::Error;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};

use canvas_types::rdma::{Exposed, QueuePair};

use crate::Memory;
use crate::abi::{self as sys, Functions};
use crate::error::RdmaError;
use crate::library::library;

/// Most reads that one end serves, or has under way; devices may allow fewer.
const READS_MAX: i32 = 16;
/// Retransmission timeout, as 4.096 us times a power of two: 134 ms.
const RESEND: u8 = 15;
/// Retransmissions before the connection counts as broken; 7 is the maximum.
const RETRIES: u8 = 7;
/// Most completions taken per call.
const BATCH: usize = 16;

/// Constructor of the error for a failed call.
type Kind = fn(Error) -> RdmaError;

fn check_code(kind: Kind, code: i32) -> Result<(), RdmaError> {
    match code {
        0 => Ok(()),
        // Some calls return an error number, others -1 with errno.
        n if n > 0 => Err(kind(Error::from_raw_os_error(n))),
        _ => Err(kind(Error::last_os_error())),
    }
}

fn some<T>(kind: Kind, pointer: *mut T) -> Result<NonNull<T>, RdmaError> {
    NonNull::new(pointer).ok_or_else(|| kind(Error::last_os_error()))
}

/// The host's RDMA devices for which libibverbs has drivers; freed when dropped.
struct Devices {
    lib: &'static Functions,
    list: NonNull<*mut sys::Device>,
    count: usize,
}

impl Devices {
    fn get() -> Result<Devices, RdmaError> {
        let lib = library()?;
        let mut count = 0;
        // SAFETY: `count` is ours and writable.
        let list = unsafe { (lib.ibv_get_device_list)(&mut count) };
        match (NonNull::new(list), usize::try_from(count)) {
            (Some(list), Ok(count)) => Ok(Devices { lib, list, count }),
            _ => {
                let e = Error::last_os_error();
                Err(match e.raw_os_error() {
                    Some(ENOSYS) => RdmaError::NoModule,
                    _ => RdmaError::List(e),
                })
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = *mut sys::Device> {
        // SAFETY: the list has `count` entries and is freed only with `self`.
        (0..self.count).map(|i| unsafe { *self.list.as_ptr().add(i) })
    }

    /// The reason why there are no devices.
    fn why_none() -> RdmaError {
        match kernel_devices().into_iter().next() {
            Some(name) => RdmaError::NoDriver(name),
            None => RdmaError::NoDevice,
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: the list is the library's own, freed once.
        unsafe { (self.lib.ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// The kernel's verbs module is missing.
const ENOSYS: i32 = 38;

/// Names of the RDMA devices that the kernel has, usable or not.
pub fn kernel_devices() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/class/infiniband") else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Names of the host's RDMA devices with a port that is up; at least one.
///
/// # Errors
///
/// What is missing, and what to install.
pub fn check() -> Result<Vec<String>, RdmaError> {
    let devices = Devices::get()?;
    let mut why = None;
    let mut up = Vec::new();
    for device in devices.iter() {
        match Context::open(devices.lib, device) {
            Ok(context) if (1..=context.ports()).any(|p| context.port(p).is_some()) => {
                up.push(context.name.clone());
            }
            Ok(context) => why = Some(RdmaError::NoPort(context.name.clone())),
            Err(e) => why = Some(e),
        }
    }
    match why {
        _ if !up.is_empty() => Ok(up),
        Some(why) => Err(why),
        None => Err(Devices::why_none()),
    }
}

/// An opened device.
struct Context {
    lib: &'static Functions,
    context: NonNull<sys::Context>,
    name: String,
}

// SAFETY: verbs may be called from any thread, and on one object from several at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn open(lib: &'static Functions, device: *mut sys::Device) -> Result<Context, RdmaError> {
        // SAFETY: the device belongs to a list that has not been freed, and its name lives as long
        // as the list.
        let name = unsafe { CStr::from_ptr((lib.ibv_get_device_name)(device)) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: as above.
        let context = unsafe { (lib.ibv_open_device)(device) };
        match NonNull::new(context) {
            Some(context) => Ok(Context { lib, context, name }),
            None => Err(RdmaError::Open {
                source: Error::last_os_error(),
                device: name,
            }),
        }
    }

    /// Moves the context's descriptors to numbers at or above `floor`. Must be called before
    /// anything is made from the context.
    fn move_fds(&mut self, floor: i32) -> Result<[i32; 2], RdmaError> {
        let moved = |from: i32| {
            // SAFETY: the library has it open, and nobody else uses it yet.
            let old = unsafe { OwnedFd::from_raw_fd(from) };
            let new = fcntl(&old, FcntlArg::F_DUPFD_CLOEXEC(floor));
            if new.is_err() {
                // The descriptor stays the library's.
                let _ = old.into_raw_fd();
            }
            new.map_err(|e| RdmaError::Open {
                source: e.into(),
                device: self.name.clone(),
            })
        };
        let at = self.raw();
        // SAFETY: an open context, which only this owns; the fields are public in the library's
        // header.
        unsafe {
            (*at).cmd_fd = moved((*at).cmd_fd)?;
            (*at).async_fd = moved((*at).async_fd)?;
            Ok([(*at).cmd_fd, (*at).async_fd])
        }
    }

    fn raw(&self) -> *mut sys::Context {
        self.context.as_ptr()
    }

    fn attributes(&self) -> Option<sys::DeviceAttr> {
        let mut attr = sys::DeviceAttr::default();
        // SAFETY: an open context; `attr` is writable.
        (unsafe { (self.lib.ibv_query_device)(self.raw(), &mut attr) } == 0).then_some(attr)
    }

    /// Number of ports; they are numbered from 1.
    fn ports(&self) -> u8 {
        self.attributes().map_or(0, |a| a.phys_port_cnt)
    }

    /// Attributes of a port, if it is up.
    fn port(&self, number: u8) -> Option<sys::PortAttr> {
        let mut attr = sys::PortAttr::default();
        // SAFETY: an open context; `attr` is writable.
        let code = unsafe { (self.lib.ibv_query_port)(self.raw(), number, &mut attr) };
        (code == 0 && attr.state == sys::IBV_PORT_ACTIVE).then_some(attr)
    }

    fn gid(&self, port: u8, index: i32) -> Option<[u8; 16]> {
        let mut gid = sys::Gid::default();
        // SAFETY: an open context; `gid` is writable.
        let code = unsafe { (self.lib.ibv_query_gid)(self.raw(), port, index, &mut gid) };
        (code == 0 && gid.raw != [0; 16]).then_some(gid.raw)
    }

    /// The kernel's name for the kind of this address: "IB/RoCE v1" or "RoCE v2".
    fn gid_type(&self, port: u8, index: i32) -> String {
        let path = format!(
            "/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}",
            self.name
        );
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// The port's address that fits best for a session over `local`: its rank (lower is better),
    /// index and bytes.
    fn best_gid(
        &self,
        port: u8,
        attr: &sys::PortAttr,
        local: IpAddr,
    ) -> Option<(u8, u8, [u8; 16])> {
        let wanted = match local {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        (0..attr.gid_tbl_len.min(256))
            .filter_map(|index| {
                let gid = self.gid(port, index)?;
                let rank = match (gid == wanted, attr.link_layer) {
                    // Not Ethernet: the first address is the port's own.
                    (_, layer) if layer != sys::IBV_LINK_LAYER_ETHERNET => 2,
                    (_, _) if !self.gid_type(port, index).starts_with("RoCE v2") => return None,
                    (true, _) => 0,
                    (false, _) => 3,
                };
                Some((rank, u8::try_from(index).ok()?, gid))
            })
            .min_by_key(|&(rank, ..)| rank)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once and closed once; everything made from it holds it.
        unsafe { (self.lib.ibv_close_device)(self.raw()) };
    }
}

/// A suitable device and its port.
struct Found {
    context: Context,
    port: u8,
    attr: sys::PortAttr,
    gid_index: u8,
    gid: [u8; 16],
}

/// An opened device with a protection domain, and the port to use.
pub struct Domain {
    pd: NonNull<sys::Pd>,
    port: u8,
    gid_index: u8,
    gid: [u8; 16],
    lid: u16,
    mtu: u8,
    reads: u8,
    /// Closed after the domain.
    context: Context,
}

// SAFETY: as for the context.
unsafe impl Send for Domain {}
// SAFETY: as for the context.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the device used by connections over this host's address `local`; if no device has that
    /// address, the first one with a port that is up.
    ///
    /// # Errors
    ///
    /// There is no library, device or port, or no permission to open it.
    pub fn open(local: IpAddr) -> Result<Arc<Domain>, RdmaError> {
        Domain::on(Domain::find(local)?)
    }

    /// Like [`Domain::open`], with the device's descriptors at or above `floor`, where no program
    /// uses them; also returns the descriptors.
    ///
    /// # Errors
    ///
    /// Those of [`Domain::open`], or there are no such descriptors.
    pub fn open_above(local: IpAddr, floor: i32) -> Result<(Arc<Domain>, [i32; 2]), RdmaError> {
        let mut found = Domain::find(local)?;
        let fds = found.context.move_fds(floor)?;
        Ok((Domain::on(found)?, fds))
    }

    fn find(local: IpAddr) -> Result<Found, RdmaError> {
        let devices = Devices::get()?;
        let (mut best, mut why) = (None, None);
        for device in devices.iter() {
            let context = match Context::open(devices.lib, device) {
                Ok(context) => context,
                Err(e) => {
                    why = Some(e);
                    continue;
                }
            };
            let found = (1..=context.ports())
                .filter_map(|p| {
                    let attr = context.port(p)?;
                    let (rank, index, gid) = context.best_gid(p, &attr, local)?;
                    Some((rank, p, attr, index, gid))
                })
                .min_by_key(|&(rank, ..)| rank);
            match found {
                Some(f) if best.as_ref().is_none_or(|(b, ..): &(u8, _, _)| f.0 < *b) => {
                    best = Some((f.0, f, context));
                }
                Some(_) => {}
                None => why = Some(RdmaError::NoPort(context.name.clone())),
            }
        }
        let (_, (_, port, attr, gid_index, gid), context) =
            best.ok_or_else(|| why.unwrap_or_else(Devices::why_none))?;
        Ok(Found {
            context,
            port,
            attr,
            gid_index,
            gid,
        })
    }

    fn on(found: Found) -> Result<Arc<Domain>, RdmaError> {
        let Found {
            context,
            port,
            attr,
            gid_index,
            gid,
        } = found;
        // SAFETY: an open context.
        let pd = some(RdmaError::NoDomain, unsafe {
            (context.lib.ibv_alloc_pd)(context.raw())
        })?;
        let reads = context
            .attributes()
            .map_or(1, |a| a.max_qp_rd_atom.min(a.max_qp_init_rd_atom));
        Ok(Arc::new(Domain {
            pd,
            port,
            gid_index,
            gid,
            lid: attr.lid,
            mtu: u8::try_from(attr.active_mtu).unwrap_or(1).clamp(1, 5),
            reads: reads.clamp(1, READS_MAX) as u8,
            context,
        }))
    }

    /// Describes this queue pair for the peer.
    pub(crate) fn describe(&self, qp: &Pair, psn: u32) -> QueuePair {
        QueuePair {
            number: qp.number(),
            psn,
            gid: self.gid,
            lid: self.lid,
            mtu: self.mtu,
            reads: self.reads,
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made once and freed once; regions and queue pairs hold the domain, so they are
        // gone.
        unsafe { (self.context.lib.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Memory registered with a device.
pub(crate) struct Registration {
    mr: NonNull<sys::Mr>,
    pub(crate) memory: Arc<Memory>,
    domain: Arc<Domain>,
}

// SAFETY: as for the context.
unsafe impl Send for Registration {}
// SAFETY: as for the context; the fields of `mr` that are read do not change.
unsafe impl Sync for Registration {}

impl Registration {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        memory: &Arc<Memory>,
        access: u32,
    ) -> Result<Self, RdmaError> {
        // SAFETY: the memory is mapped, and stays so, because it is held until the device has
        // forgotten it. There are no references into it that the device's writes could contradict.
        let mr = unsafe {
            (domain.context.lib.ibv_reg_mr_iova2)(
                domain.pd.as_ptr(),
                memory.start().cast(),
                memory.len(),
                // Peers count from zero, so they learn nothing about our addresses.
                0,
                access,
            )
        };
        Ok(Registration {
            mr: some(RdmaError::NotPinned, mr)?,
            memory: Arc::clone(memory),
            domain: Arc::clone(domain),
        })
    }

    fn local_key(&self) -> u32 {
        // SAFETY: the registration exists until `self` is dropped.
        unsafe { self.mr.as_ref().lkey }
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made once and ended once. The memory is still mapped, since fields are dropped
        // after this.
        let code = unsafe { (self.domain.context.lib.ibv_dereg_mr)(self.mr.as_ptr()) };
        if code != 0 {
            // The device may still reach the memory, so it must never be reused.
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

/// Access that peers have to exposed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

impl Access {
    /// The access flags of verbs, for queue pairs and memory.
    fn flags(self) -> u32 {
        match self {
            Access::Read => sys::IBV_ACCESS_REMOTE_READ,
            Access::Write => sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE,
        }
    }
}

/// Memory that peers with a queue pair in the domain can reach, until this is dropped. All of it is
/// pinned, so it takes its full size from the host.
pub struct Region(Registration);

impl Region {
    /// Exposes all of `memory` in `domain`.
    ///
    /// # Errors
    ///
    /// The memory cannot be pinned, usually because of a limit.
    pub fn expose(
        domain: &Arc<Domain>,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Result<Region, RdmaError> {
        // Remote write access requires local write access.
        let access = sys::IBV_ACCESS_LOCAL_WRITE | access.flags();
        Registration::new(domain, memory, access).map(Region)
    }

    /// Address and key that a peer needs to reach it.
    pub fn exposed(&self) -> Exposed {
        Exposed {
            address: 0,
            key: self.0.remote_key(),
        }
    }
}

/// A completion channel, for queues that are waited on.
pub(crate) struct Channel {
    channel: NonNull<sys::CompChannel>,
    domain: Arc<Domain>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made once and ended once; its queue is gone (field order of those that hold
        // both).
        unsafe { (self.domain.context.lib.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct Queue {
    pub(crate) cq: NonNull<sys::Cq>,
    /// Dropped after the queue.
    channel: Option<Channel>,
    domain: Arc<Domain>,
}

impl Queue {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        entries: usize,
        channel: Option<Channel>,
    ) -> Result<Queue, RdmaError> {
        let raw = channel.as_ref().map_or(null_mut(), |c| c.channel.as_ptr());
        // SAFETY: an open context; the channel, if any, belongs to the same one.
        let cq = unsafe {
            let create = domain.context.lib.ibv_create_cq;
            create(domain.context.raw(), entries as i32, null_mut(), raw, 0)
        };
        Ok(Queue {
            cq: some(RdmaError::NoQueue, cq)?,
            channel,
            domain: Arc::clone(domain),
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made once and ended once; every event was acknowledged when it was taken, and
        // queue pairs that use the queue are gone (field order of those that hold both).
        unsafe { (self.domain.context.lib.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}

/// A queue pair.
pub(crate) struct Pair {
    qp: NonNull<sys::Qp>,
    pub(crate) domain: Arc<Domain>,
}

impl Pair {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        queue: &Queue,
        requests: usize,
    ) -> Result<Pair, RdmaError> {
        let mut init = sys::QpInitAttr::default();
        init.send_cq = queue.cq.as_ptr();
        init.recv_cq = queue.cq.as_ptr();
        init.cap.max_send_wr = requests as u32;
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.qp_type = sys::IBV_QPT_RC;
        init.sq_sig_all = 1;
        // SAFETY: domain and queue belong to the same context.
        let qp = unsafe { (domain.context.lib.ibv_create_qp)(domain.pd.as_ptr(), &mut init) };
        Ok(Pair {
            qp: some(RdmaError::NoPair, qp)?,
            domain: Arc::clone(domain),
        })
    }

    fn number(&self) -> u32 {
        // SAFETY: the pair exists until `self` is dropped.
        unsafe { self.qp.as_ref().qp_num }
    }

    fn modify(
        &self,
        kind: Kind,
        mask: u32,
        set: impl FnOnce(&mut sys::QpAttr),
    ) -> Result<(), RdmaError> {
        let mut attr = sys::QpAttr::default();
        set(&mut attr);
        // SAFETY: the queue pair exists; `attr` has what `mask` names.
        let code = unsafe {
            (self.domain.context.lib.ibv_modify_qp)(self.qp.as_ptr(), &mut attr, mask as i32)
        };
        check_code(kind, code)
    }

    /// Moves the pair to the state INIT; `access` is what the peer may do.
    pub(crate) fn init(&self, access: u32) -> Result<(), RdmaError> {
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_PORT
            | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(RdmaError::SetUp, mask, |a| {
            a.qp_state = sys::IBV_QPS_INIT;
            a.port_num = self.domain.port;
            a.qp_access_flags = access;
        })
    }

    /// Moves the pair to the state "ready to receive", connected to the peer.
    pub(crate) fn receive_from(&self, peer: &QueuePair) -> Result<(), RdmaError> {
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(RdmaError::Connect, mask, |a| {
            a.qp_state = sys::IBV_QPS_RTR;
            a.path_mtu = self.domain.mtu.min(peer.mtu).into();
            a.dest_qp_num = peer.number;
            a.rq_psn = peer.psn;
            a.max_dest_rd_atomic = self.domain.reads;
            a.min_rnr_timer = 12;
            a.ah_attr.is_global = 1;
            a.ah_attr.grh.dgid.raw = peer.gid;
            a.ah_attr.grh.sgid_index = self.domain.gid_index;
            a.ah_attr.grh.hop_limit = 64;
            a.ah_attr.dlid = peer.lid;
            a.ah_attr.port_num = self.domain.port;
        })
    }

    /// Starts a read or write of `len` bytes of the peer's memory, into or from a buffer, from
    /// offset `offset` on; returns an error number or 0.
    ///
    /// # Safety
    ///
    /// The bytes lie in the buffer, which is registered until the pair is gone, and nothing else
    /// uses them before the request completes.
    pub(crate) unsafe fn post(
        &self,
        id: u64,
        opcode: u32,
        remote: Exposed,
        (buffer, offset, len): (&Registration, usize, usize),
    ) -> i32 {
        let mut piece = sys::Sge {
            // The registration counts from zero, as for peers.
            addr: offset as u64,
            length: len as u32,
            lkey: buffer.local_key(),
        };
        let mut request = sys::SendWr::default();
        request.wr_id = id;
        request.sg_list = &mut piece;
        request.num_sge = 1;
        request.opcode = opcode;
        request.remote_addr = remote.address;
        request.rkey = remote.key;
        let mut bad = null_mut();
        // SAFETY: the queue pair exists; the call copies request and piece. The bytes are the
        // caller's promise.
        unsafe { sys::post_send(self.qp.as_ptr(), &mut request, &mut bad) }
    }

    /// Moves the pair to the state "ready to send".
    pub(crate) fn send_to(&self, peer: &QueuePair, psn: u32) -> Result<(), RdmaError> {
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(RdmaError::Send, mask, |a| {
            a.qp_state = sys::IBV_QPS_RTS;
            a.timeout = RESEND;
            a.retry_cnt = RETRIES;
            a.rnr_retry = RETRIES;
            a.sq_psn = psn;
            a.max_rd_atomic = self.domain.reads.min(peer.reads.max(1));
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made once and ended once. After this the device accesses nothing for it any more.
        unsafe { (self.domain.context.lib.ibv_destroy_qp)(self.qp.as_ptr()) };
    }
}

/// A donor's end: the peer reads and writes memory exposed in its domain.
pub struct Responder {
    pair: Pair,
    psn: u32,
    /// A queue pair needs one, though nothing ever completes there. Dropped after the pair.
    _queue: Queue,
}

// SAFETY: as for the context.
unsafe impl Send for Responder {}

impl Responder {
    /// Connects a new queue pair to the peer's, which gets the access `access`; `psn` is a random
    /// number.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn connect(
        domain: &Arc<Domain>,
        peer: &QueuePair,
        psn: u32,
        access: Access,
    ) -> Result<Responder, RdmaError> {
        let queue = Queue::new(domain, 1, None)?;
        let pair = Pair::new(domain, &queue, 1)?;
        pair.init(access.flags())?;
        pair.receive_from(peer)?;
        Ok(Responder {
            pair,
            psn: psn & 0xff_ffff,
            _queue: queue,
        })
    }

    /// This end's description for the peer.
    pub fn local(&self) -> QueuePair {
        self.pair.domain.describe(&self.pair, self.psn)
    }
}

/// A client's end: reads and writes the peer's memory, into and from its own slots.
pub struct Initiator {
    pair: Pair,
    psn: u32,
    /// Length of the operation under way in each slot.
    busy: Vec<Option<usize>>,
    slot_bytes: usize,
    /// Completions that [`Initiator::arm`] found.
    found: RefCell<Vec<sys::Wc>>,
    armed: Cell<bool>,
    /// Dropped after the pair, so that nothing is under way.
    queue: Queue,
    slots: Registration,
}

// SAFETY: as for the context; the cells belong to the owner alone, who may move to another thread.
unsafe impl Send for Initiator {}

impl Initiator {
    /// Makes an unconnected queue pair with `slots` buffers of `slot_bytes`; `psn` is a random
    /// number.
    ///
    /// # Errors
    ///
    /// There is no memory, or the device refuses.
    pub fn new(
        domain: &Arc<Domain>,
        slots: usize,
        slot_bytes: usize,
        psn: u32,
    ) -> Result<Initiator, RdmaError> {
        let memory = Memory::new(slots * slot_bytes).map_err(RdmaError::NoMemory)?;
        let access = sys::IBV_ACCESS_LOCAL_WRITE;
        let registration = Registration::new(domain, &Arc::new(memory), access)?;
        // SAFETY: an open context.
        let channel = unsafe { (domain.context.lib.ibv_create_comp_channel)(domain.context.raw()) };
        let channel = Channel {
            channel: some(RdmaError::NoChannel, channel)?,
            domain: Arc::clone(domain),
        };
        let queue = Queue::new(domain, slots, Some(channel))?;
        let initiator = Initiator {
            pair: Pair::new(domain, &queue, slots)?,
            psn: psn & 0xff_ffff,
            busy: vec![None; slots],
            slot_bytes,
            found: RefCell::default(),
            armed: Cell::new(false),
            queue,
            slots: registration,
        };
        initiator.pair.init(0)?;
        Ok(initiator)
    }

    /// This end's description for the peer.
    pub fn local(&self) -> QueuePair {
        self.pair.domain.describe(&self.pair, self.psn)
    }

    /// Connects it to the peer's queue pair.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn connect(&mut self, peer: &QueuePair) -> Result<(), RdmaError> {
        self.pair.receive_from(peer)?;
        self.pair.send_to(peer, self.psn)
    }

    /// Reads `len` bytes of the peer's memory into a slot.
    ///
    /// # Errors
    ///
    /// The device refuses the request; nothing is under way then. Panics if the slot is busy or too
    /// short.
    pub fn read(&mut self, slot: usize, len: usize, at: u64, key: u32) -> Result<(), RdmaError> {
        let read = sys::IBV_WR_RDMA_READ;
        self.post(slot, len, at, key, read)
    }

    /// Writes `data` into the peer's memory, through a slot.
    ///
    /// # Errors
    ///
    /// Those of [`Initiator::read`].
    pub fn write(&mut self, slot: usize, data: &[u8], at: u64, key: u32) -> Result<(), RdmaError> {
        assert!(self.busy[slot].is_none() && data.len() <= self.slot_bytes);
        self.slots.memory.write(slot * self.slot_bytes, data);
        let write = sys::IBV_WR_RDMA_WRITE;
        self.post(slot, data.len(), at, key, write)
    }

    fn post(
        &mut self,
        slot: usize,
        len: usize,
        at: u64,
        key: u32,
        opcode: u32,
    ) -> Result<(), RdmaError> {
        assert!(self.busy[slot].is_none() && len <= self.slot_bytes);
        let from = Exposed { address: at, key };
        let local = (&self.slots, slot * self.slot_bytes, len);
        // SAFETY: the slot lies in memory that is registered until the pair is gone (field order),
        // and is busy until the request completes.
        let code = unsafe { self.pair.post(slot as u64, opcode, from, local) };
        check_code(RdmaError::Request, code)?;
        self.busy[slot] = Some(len);
        Ok(())
    }

    /// Takes completions: calls `done` with the slot and, for a read, the memory and the offset of
    /// its bytes. Returns the number of completions. Does not block.
    ///
    /// # Errors
    ///
    /// An operation failed, and with it the connection; operations under way will not complete.
    pub fn poll(
        &mut self,
        mut done: impl FnMut(usize, &Memory, usize),
    ) -> Result<usize, RdmaError> {
        if self.armed.get() {
            self.take_events();
        }
        let mut taken = self.found.take();
        let mut count = 0;
        loop {
            let more = if taken.is_empty() {
                self.take(&mut taken)?
            } else {
                true
            };
            for wc in taken.drain(..) {
                if wc.status != sys::IBV_WC_SUCCESS {
                    let lib = self.pair.domain.context.lib;
                    return Err(RdmaError::Failed(status(lib, wc.status)));
                }
                let slot = wc.wr_id as usize;
                if self.busy.get_mut(slot).and_then(Option::take).is_some() {
                    done(slot, &self.slots.memory, slot * self.slot_bytes);
                    count += 1;
                }
            }
            if !more {
                return Ok(count);
            }
        }
    }

    /// Takes completed operations; returns whether there may be more.
    fn take(&self, into: &mut Vec<sys::Wc>) -> Result<bool, RdmaError> {
        let mut batch = [sys::Wc::default(); BATCH];
        // SAFETY: the queue exists; the call writes at most `BATCH` entries.
        let n = unsafe { sys::poll_cq(self.queue.cq.as_ptr(), BATCH as i32, batch.as_mut_ptr()) };
        let n = usize::try_from(n).map_err(|_| RdmaError::Completions)?;
        into.extend_from_slice(&batch[..n]);
        Ok(n == BATCH)
    }

    /// Makes [`Initiator::fd`] readable at the next completion. Returns whether something has
    /// completed already.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn arm(&self) -> Result<bool, RdmaError> {
        if !self.armed.replace(true) {
            // SAFETY: the queue exists.
            let code = unsafe { sys::req_notify_cq(self.queue.cq.as_ptr(), 0) };
            check_code(RdmaError::Wait, code)?;
        }
        let mut found = self.found.borrow_mut();
        self.take(&mut found)?;
        Ok(!found.is_empty())
    }

    /// Takes and acknowledges the channel's events; the queue must be armed again afterwards.
    fn take_events(&self) {
        let lib = self.pair.domain.context.lib;
        while readable(self.fd()) {
            let (mut cq, mut context) = (null_mut(), null_mut());
            let channel = self.channel().as_ptr();
            // SAFETY: the channel exists; both pointers are writable. The call does not block,
            // since there is an event.
            if unsafe { (lib.ibv_get_cq_event)(channel, &mut cq, &mut context) } != 0 {
                return;
            }
            // SAFETY: one event of this queue was taken.
            unsafe { (lib.ibv_ack_cq_events)(cq, 1) };
            self.armed.set(false);
        }
    }

    fn channel(&self) -> NonNull<sys::CompChannel> {
        let channel = self.queue.channel.as_ref();
        channel.expect("an initiator's queue has one").channel
    }

    /// Descriptor to wait on for completions, after [`Initiator::arm`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so the descriptor, exists as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel().as_ref().fd) }
    }
}

/// Whether the descriptor is readable now.
fn readable(fd: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(n) if n > 0)
}

/// The library's text for a failed completion.
fn status(lib: &Functions, code: u32) -> String {
    // SAFETY: the library returns a static text, or null for an unknown code.
    let text = unsafe { (lib.ibv_wc_status_str)(code) };
    match NonNull::new(text.cast_mut()) {
        // SAFETY: as above.
        Some(text) => unsafe { CStr::from_ptr(text.as_ptr()) }
            .to_string_lossy()
            .into_owned(),
        None => format!("status {code}"),
    }
}
