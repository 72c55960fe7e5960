//! Queue pairs, as the program sees them.
#![expect(unsafe_code, reason = "makes and frees structures of verbs")]

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpma_sys::bindings::*;
use rpma_sys::{QpExOps, QpOps, WrBuilders};

use super::acks::Place;
use super::async_events::Subject;
use super::builders::{self, Builder};
use super::connection::{Connection, QpSlot, invalid};
use super::cq_calls::shared_cq;
use super::device::limit;
use super::memory::DeviceMemory;
use super::mr::of_pd;
use super::srq::Srq;
use super::srq_calls::shared_srq;
use super::{post, qp_state};
use crate::rc::{QpCapacity, QpConfig, RcQp, SharedReceives};

/// A queue pair.
#[repr(C)]
pub(crate) struct SoftQp {
    /// First, and with it the plain queue pair: `ibv_qp_ex::qp_base`.
    pub(crate) raw: ibv_qp_ex,
    pub(crate) connection: Arc<Connection>,
    pub(crate) builder: Builder,
    subject: Arc<Subject>,
    srq: Option<Arc<Srq>>,
}

/// What is ours of a queue pair.
///
/// # Safety
///
/// `qp` is live, and stays so for as long as the result is used.
pub(crate) unsafe fn shared<'a>(qp: *mut ibv_qp) -> (&'a Arc<Connection>, &'a Builder) {
    let qp = qp.cast::<SoftQp>();
    // SAFETY: made by `create`, and live (contract above). Only these fields are borrowed: the program writes to others.
    let connection = unsafe { &(*qp).connection };
    // SAFETY: as above.
    (connection, unsafe { &(*qp).builder })
}

/// What its asynchronous events are about.
///
/// # Safety
///
/// `qp` is live.
unsafe fn subject(qp: *mut ibv_qp) -> Arc<Subject> {
    let qp = qp.cast::<SoftQp>();
    // SAFETY: made by `create`, and live (contract above); nobody changes this field.
    Arc::clone(unsafe { &(*qp).subject })
}

/// The operations of the extended builders that exist here.
fn known_ops() -> u64 {
    u64::from(
        IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
            | IBV_QP_EX_WITH_FLUSH
            | IBV_QP_EX_WITH_ATOMIC_WRITE,
    )
}

/// Makes a queue pair for `connection`, in the state INIT: what `rdma_create_qp_ex` does.
///
/// # Safety
///
/// What `attr` names is live.
pub(crate) unsafe fn create(connection: &Arc<Connection>, attr: &mut ibv_qp_init_attr_ex) -> io::Result<*mut ibv_qp> {
    let device = &connection.device;
    let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    let known_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attr.qp_type != IBV_QPT_RC || attr.comp_mask & !known_mask != 0 {
        return Err(unsupported());
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(invalid());
    }
    let extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let ops = if extended { attr.send_ops_flags } else { 0 };
    let flush = ops & u64::from(IBV_QP_EX_WITH_FLUSH) != 0;
    let atomic_write = ops & u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE) != 0;
    let lacking = (flush && !device.config.native_flush) || (atomic_write && !device.config.native_atomic_write);
    if ops & !known_ops() != 0 || lacking {
        return Err(unsupported());
    }
    let cap = &mut attr.cap;
    if !attr.srq.is_null() {
        // There is no receive queue, so whatever is asked for it counts for nothing.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let too_large = cap.max_send_wr > limit::QP_WR
        || cap.max_recv_wr > limit::QP_WR
        || cap.max_send_sge > limit::SGE
        || cap.max_recv_sge > limit::SGE
        || cap.max_inline_data > limit::INLINE_BYTES;
    if too_large {
        return Err(invalid());
    }
    // A slot of the queue holds the request's list of ranges, or as much data inline. Programs rely on that: `rdma_xclient` asks for
    // nothing and sends 16 bytes.
    let list_bytes = cap.max_send_sge * u32::try_from(size_of::<ibv_sge>()).unwrap_or(0);
    cap.max_inline_data = cap.max_inline_data.max(list_bytes);
    // SAFETY: live (contract above).
    let pd = unsafe { of_pd(attr.pd) };
    if !Arc::ptr_eq(pd.device(), device) {
        return Err(invalid());
    }
    // SAFETY: live (contract above).
    let send_cq = unsafe { shared_cq(attr.send_cq) };
    // SAFETY: as above.
    let recv_cq = unsafe { shared_cq(attr.recv_cq) };
    let srq = if attr.srq.is_null() {
        None
    } else {
        // SAFETY: live (contract above).
        Some(unsafe { shared_srq(attr.srq) })
    };
    if srq.as_ref().is_some_and(|srq| !srq.is_of(&device.events)) {
        return Err(invalid());
    }
    let config = QpConfig {
        pd: pd.number(),
        capacity: QpCapacity {
            send_wr: cap.max_send_wr,
            recv_wr: cap.max_recv_wr,
            send_sge: cap.max_send_sge,
            recv_sge: cap.max_recv_sge,
            inline_bytes: cap.max_inline_data,
        },
        signal_all: attr.sq_sig_all != 0,
        // What the device can do for peers does not depend on how this end posts.
        native_flush: device.config.native_flush,
        native_atomic_write: device.config.native_atomic_write,
    };
    let number = device.new_qp_number();
    let mut core =
        RcQp::new(config, DeviceMemory(Arc::clone(&device.table)), srq.clone().map(|srq| srq as Arc<dyn SharedReceives>));
    core.to_init().map_err(|_| invalid())?;
    let subject = Arc::new(Subject::default());
    let base = ibv_qp {
        context: device.context(),
        qp_context: attr.qp_context,
        pd: attr.pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: number,
        qp_num: number,
        state: IBV_QPS_INIT,
        qp_type: IBV_QPT_RC,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..ibv_qp::default()
    };
    let mut raw = ibv_qp_ex { qp_base: base, ..ibv_qp_ex::default() };
    if ops != 0 {
        builders::fill(&mut raw, ops);
    }
    let builder = Builder::default();
    let qp = SoftQp { raw, connection: Arc::clone(connection), builder, subject: Arc::clone(&subject), srq: srq.clone() };
    let qp = Box::into_raw(Box::new(qp));
    // Before any thread of ours can see the queue pair: an event of it leads to the program's structure.
    subject.handle.store(qp.expose_provenance(), Ordering::Release);
    pd.enter();
    srq.iter().for_each(|srq| srq.enter());
    if let Err(e) = connection.put_qp(QpSlot::new(core, number, send_cq, recv_cq, subject)) {
        srq.iter().for_each(|srq| srq.leave());
        pd.leave();
        // SAFETY: just made, and nobody else knows of it: the slot that leads to it was given back, and is gone.
        drop(unsafe { Box::from_raw(qp) });
        return Err(e);
    }
    Ok(qp.cast())
}

/// `ibv_destroy_qp(3)`: waits until the program has acknowledged the events that it took.
///
/// # Safety
///
/// `qp` is live.
pub(crate) unsafe fn destroy(qp: *mut ibv_qp) {
    // SAFETY: live (contract above).
    let (connection, _) = unsafe { shared(qp) };
    connection.take_qp();
    // SAFETY: live (contract above).
    let told = connection.device.events.end(&unsafe { subject(qp) });
    // The program may still have an event that leads here.
    // SAFETY: live (contract above), and what `shared` borrows are other fields.
    unsafe { Place::of_qp(qp).wait(told) };
    // SAFETY: made by `create`, and freed once: the contract says that it is live. `connection` is not used any more.
    let qp = unsafe { Box::from_raw(qp.cast::<SoftQp>()) };
    if let Some(srq) = &qp.srq {
        srq.leave();
    }
    // SAFETY: a queue pair keeps its protection domain from being freed.
    unsafe { of_pd(qp.raw.qp_base.pd) }.leave();
}

/// The data path of a queue pair.
///
/// # Safety
///
/// `qp` is live and was made with these `ops`.
pub(crate) unsafe fn ops(qp: *mut ibv_qp, ops: u64) -> QpOps {
    let ex = (ops != 0).then(|| QpExOps {
        qp_ex: qp.cast(),
        wr_start: builders::wr_start,
        wr_complete: builders::wr_complete,
        wr_abort: builders::wr_abort,
        wr_flush: (ops & u64::from(IBV_QP_EX_WITH_FLUSH) != 0).then_some(builders::wr_flush as _),
        wr_atomic_write: (ops & u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE) != 0).then_some(builders::wr_atomic_write as _),
        builders: if ops & WrBuilders::FLAGS == WrBuilders::FLAGS {
            // SAFETY: live (contract above), and made with these flags.
            unsafe { WrBuilders::of(qp.cast()) }.ok()
        } else {
            None
        },
    });
    QpOps { post_send: post::post_send, post_recv: post::post_recv, ex }
}

/// `ibv_modify_qp(3)`.
///
/// # Safety
///
/// `qp` is live, and `attr` holds what `mask` names.
pub(crate) unsafe fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: c_int) -> c_int {
    let mask = mask.cast_unsigned();
    // SAFETY: live (contract above).
    let (connection, _) = unsafe { shared(qp) };
    let rc = qp_state::modify(connection, attr, mask);
    if rc == 0 && mask & IBV_QP_STATE != 0 {
        // SAFETY: live (contract above).
        unsafe { set_state(qp, attr.qp_state) };
    }
    rc
}

/// Shows the program a state that a call of its brought about, as rdma-core does; what happens by itself is seen by `ibv_query_qp(3)`.
///
/// # Safety
///
/// `qp` is null or live.
pub(super) unsafe fn set_state(qp: *mut ibv_qp, state: ibv_qp_state) {
    if !qp.is_null() {
        // SAFETY: live (contract above).
        let place = unsafe { &raw mut (*qp).state };
        // SAFETY: an aligned number in a live structure (contract above). The program may make calls from several threads at once (verbs
        // are thread-safe), and each write of ours is this one; a program that reads the field beside its own calls is as far as with
        // rdma-core, which writes it plainly.
        let shown = unsafe { AtomicU32::from_ptr(place) };
        shown.store(state, Ordering::Relaxed);
    }
}

/// `ibv_query_qp(3)`.
///
/// # Safety
///
/// `qp` is live.
pub(crate) unsafe fn query(qp: *mut ibv_qp, mask: c_int) -> Result<(ibv_qp_attr, ibv_qp_init_attr), c_int> {
    // SAFETY: live (contract above).
    let (connection, _) = unsafe { shared(qp) };
    let told = connection.with_qp(|slot| (slot.query(), slot.core.config().signal_all));
    let (attr, signal_all) = told.ok_or(libc::EINVAL)?;
    if mask.cast_unsigned() & IBV_QP_STATE != 0 {
        // SAFETY: live (contract above).
        unsafe { set_state(qp, attr.qp_state) };
    }
    let init = ibv_qp_init_attr {
        // SAFETY: live (contract above). Field by field, here and below: these never change, and the state, which does, is not read.
        qp_context: unsafe { (*qp).qp_context },
        // SAFETY: as above.
        send_cq: unsafe { (*qp).send_cq },
        // SAFETY: as above.
        recv_cq: unsafe { (*qp).recv_cq },
        // SAFETY: as above.
        srq: unsafe { (*qp).srq },
        cap: attr.cap,
        // SAFETY: as above.
        qp_type: unsafe { (*qp).qp_type },
        sq_sig_all: signal_all.into(),
    };
    Ok((attr, init))
}
