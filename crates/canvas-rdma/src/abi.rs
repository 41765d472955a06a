//! The ABI of libibverbs: structures, numbers, signatures.
//!
//! rdma-core keeps this ABI stable: symbols of version IBVERBS_1.1 and later do not change, and
//! structures grow only at their ends. Constants and fields have the names of `infiniband/verbs.h`;
//! only what is used is here. Sizes and offsets are asserted at compile time, and the end-to-end
//! test `rdma-layout` compares them with the C compiler's where the header is installed.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

pub const IBV_PORT_ACTIVE: u32 = 4;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

pub const IBV_ACCESS_LOCAL_WRITE: u32 = 1;
pub const IBV_ACCESS_REMOTE_WRITE: u32 = 2;
pub const IBV_ACCESS_REMOTE_READ: u32 = 4;

pub const IBV_QPT_RC: u32 = 2;
pub const IBV_QPS_INIT: u32 = 1;
pub const IBV_QPS_RTR: u32 = 2;
pub const IBV_QPS_RTS: u32 = 3;

pub const IBV_QP_STATE: u32 = 1 << 0;
pub const IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
pub const IBV_QP_PKEY_INDEX: u32 = 1 << 4;
pub const IBV_QP_PORT: u32 = 1 << 5;
pub const IBV_QP_AV: u32 = 1 << 7;
pub const IBV_QP_PATH_MTU: u32 = 1 << 8;
pub const IBV_QP_TIMEOUT: u32 = 1 << 9;
pub const IBV_QP_RETRY_CNT: u32 = 1 << 10;
pub const IBV_QP_RNR_RETRY: u32 = 1 << 11;
pub const IBV_QP_RQ_PSN: u32 = 1 << 12;
pub const IBV_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
pub const IBV_QP_MIN_RNR_TIMER: u32 = 1 << 15;
pub const IBV_QP_SQ_PSN: u32 = 1 << 16;
pub const IBV_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
pub const IBV_QP_DEST_QPN: u32 = 1 << 20;

pub const IBV_WR_RDMA_WRITE: u32 = 0;
pub const IBV_WR_RDMA_READ: u32 = 4;
pub const IBV_WC_SUCCESS: u32 = 0;

/// An opaque object of the library.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

pub type Device = Opaque;
pub type Pd = Opaque;

/// First part of `struct ibv_context`, an opened device. Posting and polling go through this table,
/// as in the header's inline functions: the library exports no symbols for them.
#[repr(C)]
pub struct Context {
    device: *mut Device,
    before_poll: [usize; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    before_post: [usize; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    after_post: [usize; 6],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// Attributes of a device: `struct ibv_device_attr`.
#[repr(C)]
#[derive(Default)]
pub struct DeviceAttr {
    fw_ver: [u64; 8],
    guids: [u64; 2],
    max_mr_size: u64,
    page_size_cap: u64,
    vendor: [u32; 3],
    limits: [c_int; 9],
    pub max_qp_rd_atom: c_int,
    ee_and_res: [c_int; 2],
    pub max_qp_init_rd_atom: c_int,
    more_limits: [c_int; 16],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// First part of a port's attributes, which the library's function fills. (The header's inline
/// function gets the rest from the driver.)
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    pub state: u32,
    max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    flags_and_counts: [u32; 4],
    pkey_tbl_len: u16,
    pub lid: u16,
    sm_lid: u16,
    small: [u8; 8],
    pub link_layer: u8,
    flags: u8,
}

/// Address of a port, big-endian.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct Gid {
    pub raw: [u8; 16],
}

/// First part of a memory registration: `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// A completion channel.
#[repr(C)]
pub struct CompChannel {
    context: *mut Context,
    pub fd: c_int,
    refcnt: c_int,
}

/// First part of a completion queue: `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// First part of a queue pair: `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    queues: [*mut Cq; 2],
    srq: *mut c_void,
    handle: u32,
    pub qp_num: u32,
}

/// Capacities of a queue pair.
#[repr(C)]
#[derive(Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    max_inline_data: u32,
}

/// Attributes for creating a queue pair.
#[repr(C)]
#[derive(Default)]
pub struct QpInitAttr {
    qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// Network route to a peer.
#[repr(C)]
#[derive(Default)]
pub struct GlobalRoute {
    pub dgid: Gid,
    flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    traffic_class: u8,
}

/// Address of a peer.
#[repr(C)]
#[derive(Default)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// Attributes for a state change of a queue pair.
#[repr(C)]
#[derive(Default)]
pub struct QpAttr {
    pub qp_state: u32,
    cur_qp_state: u32,
    pub path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    cap: QpCap,
    pub ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pkey_indexes: [u16; 2],
    drain: [u8; 2],
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    alt: [u8; 2],
    rate_limit: u32,
}

/// A range of registered memory.
#[repr(C)]
#[derive(Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A work request; of the header's unions only the form for one-sided operations.
#[repr(C)]
#[derive(Default)]
pub struct SendWr {
    pub wr_id: u64,
    next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    send_flags: c_uint,
    imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    rest_of_unions: [u64; 9],
}

/// A work completion: `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    indexes: [u16; 2],
    bits: [u8; 2],
}

/// Asserts sizes and offsets. A line is `RUST is C, SIZE: FIELD OFFSET (C FIELD),...`; a size of 0
/// marks a structure of the library of which only the first part is declared here. The test
/// `rdma-layout` reads these lines.
macro_rules! layout {
    ($($rust:ident is $c:ident, $size:literal: $($field:ident $offset:literal ($path:literal)),+;)+) => {
        $(
            const _: () = assert!($size == 0 || size_of::<$rust>() == $size);
            $(const _: () = assert!(offset_of!($rust, $field) == $offset);)+
        )+
    };
}

// The part that the library writes.
const _: () = assert!(size_of::<PortAttr>() == 48);

#[rustfmt::skip]
layout! {
    Context is ibv_context, 0: poll_cq 96 ("ops.poll_cq"), req_notify_cq 104 ("ops.req_notify_cq"), post_send 208 ("ops.post_send"), cmd_fd 264 ("cmd_fd"), async_fd 268 ("async_fd");
    DeviceAttr is ibv_device_attr, 232: max_qp_rd_atom 144 ("max_qp_rd_atom"), max_qp_init_rd_atom 156 ("max_qp_init_rd_atom"), phys_port_cnt 227 ("phys_port_cnt");
    PortAttr is ibv_port_attr, 0: state 0 ("state"), active_mtu 8 ("active_mtu"), gid_tbl_len 12 ("gid_tbl_len"), lid 34 ("lid"), link_layer 46 ("link_layer"), flags 47 ("flags");
    Gid is ibv_gid, 16: raw 0 ("raw");
    Mr is ibv_mr, 48: lkey 36 ("lkey"), rkey 40 ("rkey");
    CompChannel is ibv_comp_channel, 16: fd 8 ("fd");
    Cq is ibv_cq, 0: context 0 ("context");
    Qp is ibv_qp, 0: context 0 ("context"), qp_num 52 ("qp_num");
    QpCap is ibv_qp_cap, 20: max_send_wr 0 ("max_send_wr"), max_recv_wr 4 ("max_recv_wr"), max_send_sge 8 ("max_send_sge"), max_recv_sge 12 ("max_recv_sge");
    QpInitAttr is ibv_qp_init_attr, 64: send_cq 8 ("send_cq"), recv_cq 16 ("recv_cq"), cap 32 ("cap"), qp_type 52 ("qp_type"), sq_sig_all 56 ("sq_sig_all");
    GlobalRoute is ibv_global_route, 24: dgid 0 ("dgid"), sgid_index 20 ("sgid_index"), hop_limit 21 ("hop_limit");
    AhAttr is ibv_ah_attr, 32: grh 0 ("grh"), dlid 24 ("dlid"), is_global 29 ("is_global"), port_num 30 ("port_num");
    QpAttr is ibv_qp_attr, 144: qp_state 0 ("qp_state"), path_mtu 8 ("path_mtu"), rq_psn 20 ("rq_psn"), sq_psn 24 ("sq_psn"), dest_qp_num 28 ("dest_qp_num"), qp_access_flags 32 ("qp_access_flags"), ah_attr 56 ("ah_attr"), max_rd_atomic 126 ("max_rd_atomic"), max_dest_rd_atomic 127 ("max_dest_rd_atomic"), min_rnr_timer 128 ("min_rnr_timer"), port_num 129 ("port_num"), timeout 130 ("timeout"), retry_cnt 131 ("retry_cnt"), rnr_retry 132 ("rnr_retry");
    Sge is ibv_sge, 16: addr 0 ("addr"), length 8 ("length"), lkey 12 ("lkey");
    SendWr is ibv_send_wr, 128: wr_id 0 ("wr_id"), next 8 ("next"), sg_list 16 ("sg_list"), num_sge 24 ("num_sge"), opcode 28 ("opcode"), send_flags 32 ("send_flags"), remote_addr 40 ("wr.rdma.remote_addr"), rkey 48 ("wr.rdma.rkey");
    Wc is ibv_wc, 48: wr_id 0 ("wr_id"), status 8 ("status");
}

/// Declares the functions of libibverbs that are used, each with its symbol and signature.
macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)+) => {
        /// The library's functions, by the names of their symbols.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)+
        }

        impl Functions {
            /// Resolves all symbols; the error is the name of the missing one.
            ///
            /// # Safety
            ///
            /// `library` is a libibverbs.so.1 and stays loaded while the functions are used.
            pub unsafe fn find(library: &libloading::Library) -> Result<Functions, &'static str> {
                $(
                    // SAFETY: the symbol of a libibverbs has this signature. Of several versions
                    // of it dlsym gives the default one, IBVERBS_1.1 or later.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>(stringify!($name))
                    }
                    .map_err(|_| stringify!($name))?;
                )+
                Ok(Functions { $($name),+ })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device);
    ibv_get_device_name: fn(*mut Device) -> *const c_char;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr_iova2: fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_wc_status_str: fn(u32) -> *const c_char;
}

/// A driver's return value for an operation that it lacks: ENOSYS.
const MISSING: c_int = 38;

/// Posts requests to a queue pair; returns an error number or 0.
///
/// # Safety
///
/// The queue pair exists; `request` and what it points to are readable, and `bad` is writable.
pub unsafe fn post_send(qp: *mut Qp, request: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    // SAFETY: a queue pair's context lives longer than it, and its table never changes.
    match unsafe { (*(*qp).context).post_send } {
        // SAFETY: the caller's promise is what the driver asks for.
        Some(post) => unsafe { post(qp, request, bad) },
        None => MISSING,
    }
}

/// Takes at most `max` completions; returns their number, or a negative value on failure.
///
/// # Safety
///
/// The queue exists; `max` entries at `into` are writable.
pub unsafe fn poll_cq(cq: *mut Cq, max: c_int, into: *mut Wc) -> c_int {
    // SAFETY: a queue's context lives longer than it, and its table never changes.
    match unsafe { (*(*cq).context).poll_cq } {
        // SAFETY: the caller's promise is what the driver asks for.
        Some(poll) => unsafe { poll(cq, max, into) },
        None => -MISSING,
    }
}

/// Requests an event on the queue's channel for the next completion; returns an error number or 0.
///
/// # Safety
///
/// The queue exists.
pub unsafe fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    // SAFETY: a queue's context lives longer than it, and its table never changes.
    match unsafe { (*(*cq).context).req_notify_cq } {
        // SAFETY: the caller's promise is what the driver asks for.
        Some(notify) => unsafe { notify(cq, solicited_only) },
        None => MISSING,
    }
}
