//! The provider: what the boundary of the workspace calls.
#![expect(unsafe_code, reason = "implements the unsafe trait `Provider`, whose contract each call hands on")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use rpma_sys::bindings::*;
use rpma_sys::{CqOps, Provider, ProviderRef, QpOps, SrqOps, errno};

use crate::SoftConfig;
use crate::objects::device::{self, Device};
use crate::objects::{async_calls, cq_calls, event, id, id_qp, mr, qp, srq_calls, synchronous};

/// The software provider: RDMA in user space over TCP.
///
/// Its device is `soft0`, with one active port. Every address of this machine is on it, loopback too; the wildcard address is on none, as
/// with rdma-core. It listens where `rdma_listen(3)` says and nowhere else.
///
/// # Threads
///
/// One thread moves data for the whole process. Threads that post or poll move data on the spot. A second thread makes flushes durable.
/// Both are started on first use, block all signals, and end with the process.
///
/// A panic while a connection is handled is a bug of this crate. It is logged as an error, the connection ends as if its stream had ended,
/// its work completes as flushed, and all else goes on. If that panics too, its work never completes, and its queues are in error.
///
/// # fork and exit
///
/// A process may exit at any time, whatever its connections and the threads above are doing: nothing of this crate runs then. A child may be
/// forked at any time too, and may exit; it has none of the threads, and what `rpma` made in its parent does nothing there. One that is to use
/// RDMA itself, with objects of its own, is forked while its parent has no connections: a lock that a thread held then is held for ever.
///
/// # What a connection costs
///
/// One end, with queues of 10 requests: about 8 KiB of memory and 8 descriptors, with what `rpma` holds for it. Of the descriptors three are
/// from here: the socket, the event channel's and the completion channel's. TCP's buffers in the kernel come to that. A thousand
/// connections take no thread more than one does.
///
/// A listener holds one descriptor, and one for each who connected to it and is no connection of the program's yet: at most 256 who have not
/// said what they want (5 s each, and the oldest makes room for the next), 256 requests beyond the backlog, and the backlog (of
/// `rdma_listen(3)`, 1024 at most and by default), 1536 in all. Whoever lets strangers connect keeps `ulimit -n` above that for each listener.
/// Out of descriptors, a listener leaves them in the kernel's queue and tries again every 100 ms.
///
/// A client's request is sent as soon as its stream is connected, so that strangers who say nothing, or half of something, make room for each
/// other and not for it. One that is so slow that 256 others come meanwhile, or that finds 256 requests beyond the backlog, is rejected with
/// the reason 3, no resources available, and may ask again.
///
/// # Durability
///
/// A persistent flush is carried out by the responder: `msync(2)` for a mapped file, cache write-back and a fence for device DAX. A file on
/// persistent memory (`MAP_SYNC`) takes `msync(2)` too: a write-back by the processor would be faster, and would kill the process if the
/// file was truncated meanwhile. What
/// memory is, is looked up at registration; memory that keeps nothing (anonymous, private, tmpfs, ramfs, hugetlbfs) does not accept the
/// right to flush persistently (EINVAL, as on soft-RoCE). Nor does a file that this process cannot open again to see its length: one that
/// was unlinked, in a process without `CAP_CHECKPOINT_RESTORE`. If the file was truncated, the flush fails as a remote operational error.
/// What a file system keeps its files on is not looked at: an overlay whose upper layer is in a tmpfs, as some containers have, is taken for
/// a disk.
///
/// # What is not there
///
/// - Queue pairs of other types than RC: EOPNOTSUPP.
/// - Port spaces other than TCP: EOPNOTSUPP.
/// - `ibv_modify_qp(3)` to RTR and to SQD, and alternate paths: EOPNOTSUPP. The connection manager makes queue pairs ready, for identifiers
///   with a queue pair; without it there is no peer to send to. All other steps of `ibv_modify_qp(3)` are there: to RESET from every state,
///   to the error state from all but RESET, to INIT, and `qp_access_flags` and `min_rnr_timer` in RTS. EINVAL for a step or an attribute
///   that has no place in the standard's table; soft-RoCE looks at attributes only where a state is given.
/// - Asynchronous events of ports and of the device: nothing ever happens to them.
/// - Path records: the routes of identifiers have none, and their global identifiers are 0.
/// - Memory windows, multicast, timestamps: the operations are null in the context.
///
/// # Where it differs from soft-RoCE
///
#[doc = include_str!("differences.md")]
#[derive(Debug)]
pub struct Soft {
    device: Arc<Device>,
}

impl Soft {
    /// The software provider with its defaults: one per process, later calls return the same one.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left for the first call, which takes one. The next call tries again.
    pub fn open() -> io::Result<ProviderRef> {
        static OPENED: OnceLock<Arc<Soft>> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(Arc::clone(opened) as ProviderRef);
        }
        // If another thread was faster, its device is that of everybody.
        let new = Arc::new(Self::new(SoftConfig::default())?);
        Ok(Arc::clone(OPENED.get_or_init(|| new)) as ProviderRef)
    }

    /// A software provider of its own, with a device that is like `config` says. What is made with one provider is not for another, but
    /// their connections meet.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn with_config(config: SoftConfig) -> io::Result<ProviderRef> {
        Ok(Arc::new(Self::new(config)?) as ProviderRef)
    }

    fn new(config: SoftConfig) -> io::Result<Self> {
        let config = config.within_what_clocks_reach();
        Ok(Self { device: Arc::new(Device::new(config)?) })
    }
}

/// An error in the conventions of C.
fn errno_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

pub(crate) fn minus1(result: io::Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => {
            errno::set(errno_of(&e));
            -1
        }
    }
}

fn null<T>(result: io::Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|e| {
        errno::set(errno_of(&e));
        null_mut()
    })
}

/// Writes a result where the program wants it.
///
/// # Safety
///
/// `place` is a place for it.
unsafe fn give<T>(result: io::Result<T>, place: *mut T) -> c_int {
    minus1(result.map(|value| {
        // SAFETY: the contract of this function.
        unsafe { place.write(value) }
    }))
}

// SAFETY: what the calls return is a box that lives until the call that frees it; every object holds what it needs; state is under locks;
// `ibv_dereg_mr` waits for whoever touches the memory (`Region::revoke`).
unsafe impl Provider for Soft {
    fn name(&self) -> &'static str {
        "soft"
    }

    unsafe fn ibv_alloc_pd(&self, _: *mut ibv_context) -> *mut ibv_pd {
        mr::alloc_pd(&self.device)
    }

    unsafe fn ibv_dealloc_pd(&self, pd: *mut ibv_pd) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { mr::dealloc_pd(pd) }
    }

    unsafe fn ibv_reg_mr_iova2(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the contract of the trait, and of `ibv_reg_mr(3)`.
        null(unsafe { mr::reg_mr(&self.device, pd, addr, length, iova, access) })
    }

    unsafe fn ibv_dereg_mr(&self, mr: *mut ibv_mr) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { mr::dereg_mr(&self.device, mr) }
    }

    unsafe fn ibv_create_comp_channel(&self, _: *mut ibv_context) -> *mut ibv_comp_channel {
        null(cq_calls::create_comp_channel(&self.device))
    }

    unsafe fn ibv_destroy_comp_channel(&self, channel: *mut ibv_comp_channel) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { cq_calls::destroy_comp_channel(channel) }
    }

    unsafe fn ibv_create_cq(
        &self,
        _: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq {
        // SAFETY: the contract of the trait.
        null(unsafe { cq_calls::create_cq(&self.device, cqe, cq_context, channel, comp_vector) })
    }

    unsafe fn ibv_destroy_cq(&self, cq: *mut ibv_cq) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { cq_calls::destroy_cq(cq) }
    }

    unsafe fn ibv_get_cq_event(
        &self,
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { cq_calls::get_cq_event(channel, cq, cq_context) })
    }

    unsafe fn ibv_ack_cq_events(&self, cq: *mut ibv_cq, nevents: c_uint) {
        // SAFETY: the contract of the trait.
        unsafe { cq_calls::ack_cq_events(cq, nevents) }
    }

    unsafe fn ibv_create_srq(&self, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        // SAFETY: the program's, and whole (contract of the trait).
        let attr = unsafe { &mut *attr };
        // SAFETY: the contract of the trait.
        null(unsafe { srq_calls::create_srq(&self.device, pd, attr) })
    }

    unsafe fn ibv_destroy_srq(&self, srq: *mut ibv_srq) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { srq_calls::destroy_srq(srq) }
    }

    unsafe fn ibv_query_qp(&self, qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int {
        // SAFETY: the contract of the trait.
        let (told, told_init) = match unsafe { qp::query(qp, mask) } {
            Ok(told) => told,
            Err(errno) => return errno,
        };
        // SAFETY: a place for the result (contract of the trait).
        unsafe { attr.write(told) };
        // SAFETY: as above.
        unsafe { init.write(told_init) };
        0
    }

    unsafe fn ibv_get_async_event(&self, _: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { async_calls::get_async_event(&self.device.events, event) })
    }

    unsafe fn ibv_ack_async_event(&self, event: *mut ibv_async_event) {
        // SAFETY: the program's (contract of the trait).
        let event = unsafe { &*event };
        // SAFETY: the contract of the trait.
        unsafe { async_calls::ack_async_event(event) }
    }

    unsafe fn rdma_set_option(
        &self,
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: usize,
    ) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::set_option(id, level, optname, optval, optlen) })
    }

    unsafe fn ibv_modify_qp(&self, qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
        // SAFETY: the program's, with what the mask names (contract of the trait).
        let attr = unsafe { &*attr };
        // SAFETY: the contract of the trait.
        unsafe { qp::modify(qp, attr, attr_mask) }
    }

    unsafe fn ibv_get_device_name(&self, device: *mut ibv_device) -> *const c_char {
        // SAFETY: live (contract of the trait); the name is a field of it.
        unsafe { &raw const (*device).name }.cast()
    }

    unsafe fn ibv_wc_status_str(&self, status: ibv_wc_status) -> *const c_char {
        status_text(status).as_ptr()
    }

    unsafe fn rdma_get_devices(&self, num_devices: *mut c_int) -> *mut *mut ibv_context {
        if !num_devices.is_null() {
            // SAFETY: a place for the result (contract of the trait).
            unsafe { num_devices.write(1) };
        }
        Box::into_raw(Box::new([self.device.context(), null_mut()])).cast()
    }

    unsafe fn rdma_free_devices(&self, list: *mut *mut ibv_context) {
        // SAFETY: made by `rdma_get_devices`, as an array of two.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
    }

    unsafe fn rdma_create_event_channel(&self) -> *mut rdma_event_channel {
        null(id::create_event_channel())
    }

    unsafe fn rdma_destroy_event_channel(&self, channel: *mut rdma_event_channel) {
        // SAFETY: the contract of the trait.
        unsafe { id::destroy_event_channel(channel) }
    }

    unsafe fn rdma_create_id(
        &self,
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int {
        // SAFETY: the contract of the trait.
        let made = unsafe { id::create_id(&self.device, channel, context, ps) };
        // SAFETY: as above.
        unsafe { give(made, id) }
    }

    unsafe fn rdma_destroy_id(&self, id: *mut rdma_cm_id) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { id::destroy_id(id) };
        0
    }

    unsafe fn rdma_migrate_id(&self, id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { synchronous::migrate_id(id, channel) })
    }

    unsafe fn rdma_bind_addr(&self, id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::bind_addr(id, addr) })
    }

    unsafe fn rdma_listen(&self, id: *mut rdma_cm_id, backlog: c_int) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::listen(id, backlog) })
    }

    unsafe fn rdma_resolve_addr(&self, id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, _: c_int) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::resolve_addr(id, src_addr, dst_addr) })
    }

    unsafe fn rdma_resolve_route(&self, id: *mut rdma_cm_id, _: c_int) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::resolve_route(id) })
    }

    unsafe fn rdma_create_qp_ex(&self, id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id_qp::create_qp(id, attr) })
    }

    unsafe fn rdma_destroy_qp(&self, id: *mut rdma_cm_id) {
        // SAFETY: the contract of the trait.
        unsafe { id_qp::destroy_qp(id) }
    }

    unsafe fn rdma_connect(&self, id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::connect(id, param) })
    }

    unsafe fn rdma_accept(&self, id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::accept(id, param) })
    }

    unsafe fn rdma_reject(&self, id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::reject(id, private_data, private_data_len) })
    }

    unsafe fn rdma_disconnect(&self, id: *mut rdma_cm_id) -> c_int {
        // SAFETY: the contract of the trait.
        minus1(unsafe { id::disconnect(id) })
    }

    unsafe fn rdma_get_cm_event(&self, channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
        // SAFETY: the contract of the trait.
        let taken = unsafe { event::get_cm_event(channel) };
        // SAFETY: as above.
        unsafe { give(taken, event) }
    }

    unsafe fn rdma_ack_cm_event(&self, event: *mut rdma_cm_event) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { event::ack_cm_event(event) };
        0
    }

    unsafe fn ibv_query_device_ex(
        &self,
        _: *mut ibv_context,
        _: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: a place for the result (contract of the trait).
        unsafe { attr.write(device::attributes(&self.device.config)) };
        0
    }

    unsafe fn ibv_query_port(&self, _: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
        if port_num != 1 {
            return libc::EINVAL;
        }
        // SAFETY: a place for the result (contract of the trait).
        unsafe { attr.write(device::port_attributes()) };
        0
    }

    unsafe fn ibv_advise_mr(
        &self,
        pd: *mut ibv_pd,
        advice: ib_uverbs_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int {
        // SAFETY: the contract of the trait.
        unsafe { mr::advise_mr(pd, advice, flags, sg_list, num_sge) }
    }

    unsafe fn qp_ops(&self, qp: *mut ibv_qp, send_ops_flags: u64) -> io::Result<QpOps> {
        // SAFETY: the contract of the trait.
        Ok(unsafe { qp::ops(qp, send_ops_flags) })
    }

    unsafe fn cq_ops(&self, _: *mut ibv_cq) -> io::Result<CqOps> {
        Ok(CqOps { poll_cq: cq_calls::poll_cq, req_notify_cq: cq_calls::req_notify_cq })
    }

    unsafe fn srq_ops(&self, _: *mut ibv_srq) -> io::Result<SrqOps> {
        Ok(SrqOps { post_srq_recv: srq_calls::post_srq_recv })
    }
}

/// The words of `ibv_wc_status_str(3)`.
fn status_text(status: ibv_wc_status) -> &'static std::ffi::CStr {
    match status {
        IBV_WC_SUCCESS => c"success",
        IBV_WC_LOC_LEN_ERR => c"local length error",
        IBV_WC_LOC_QP_OP_ERR => c"local QP operation error",
        IBV_WC_LOC_EEC_OP_ERR => c"local EE context operation error",
        IBV_WC_LOC_PROT_ERR => c"local protection error",
        IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        IBV_WC_MW_BIND_ERR => c"memory management operation error",
        IBV_WC_BAD_RESP_ERR => c"bad response error",
        IBV_WC_LOC_ACCESS_ERR => c"local access error",
        IBV_WC_REM_INV_REQ_ERR => c"remote invalid request error",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_REM_OP_ERR => c"remote operation error",
        IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        IBV_WC_RNR_RETRY_EXC_ERR => c"RNR retry counter exceeded",
        IBV_WC_LOC_RDD_VIOL_ERR => c"local RDD violation error",
        IBV_WC_REM_INV_RD_REQ_ERR => c"remote invalid RD request",
        IBV_WC_REM_ABORT_ERR => c"aborted error",
        IBV_WC_INV_EECN_ERR => c"invalid EE context number",
        IBV_WC_INV_EEC_STATE_ERR => c"invalid EE context state",
        IBV_WC_FATAL_ERR => c"fatal error",
        IBV_WC_RESP_TIMEOUT_ERR => c"response timeout error",
        IBV_WC_GENERAL_ERR => c"general error",
        IBV_WC_TM_ERR => c"TM error",
        IBV_WC_TM_RNDV_INCOMPLETE => c"TM software rendezvous",
        _ => c"unknown",
    }
}
