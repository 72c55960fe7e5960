//! Shared receive queues, as the program sees them.
#![expect(unsafe_code, reason = "makes, fills and frees structures of verbs")]

use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rpma_sys::bindings::*;

use super::acks::Place;
use super::connection::invalid;
use super::device::{Device, limit};
use super::mr::of_pd;
use super::post::{answer, post_list};
use super::srq::Srq;

/// A shared receive queue.
#[repr(C)]
struct SoftSrq {
    raw: ibv_srq,
    shared: Arc<Srq>,
}

/// `ibv_create_srq(3)`. The limit is none, whatever is asked for.
///
/// # Safety
///
/// `pd` is live.
pub(crate) unsafe fn create_srq(device: &Device, pd: *mut ibv_pd, attr: &mut ibv_srq_init_attr) -> io::Result<*mut ibv_srq> {
    let ibv_srq_attr { max_wr, max_sge, .. } = attr.attr;
    if !(1..=limit::QP_WR).contains(&max_wr) || max_sge > limit::SGE {
        return Err(invalid());
    }
    // SAFETY: live (contract above).
    let of = unsafe { of_pd(pd) };
    let shared = Arc::new(Srq::new(of.number(), max_wr, max_sge, Arc::clone(&device.events)));
    of.enter();
    let raw = ibv_srq {
        context: device.context(),
        srq_context: attr.srq_context,
        pd,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..ibv_srq::default()
    };
    let srq = Box::into_raw(Box::new(SoftSrq { raw, shared }));
    // SAFETY: just made.
    unsafe { &*srq }.shared.subject.handle.store(srq.expose_provenance(), Ordering::Release);
    Ok(srq.cast())
}

/// # Safety
///
/// `srq` is live, and stays so for as long as the result is used.
unsafe fn of_srq<'a>(srq: *mut ibv_srq) -> &'a Arc<Srq> {
    let srq = srq.cast::<SoftSrq>();
    // SAFETY: made by `create_srq`, and live (contract above); nobody changes this field.
    unsafe { &(*srq).shared }
}

/// What our threads share of a shared receive queue.
///
/// # Safety
///
/// `srq` is live.
pub(super) unsafe fn shared_srq(srq: *mut ibv_srq) -> Arc<Srq> {
    // SAFETY: live (contract above).
    Arc::clone(unsafe { of_srq(srq) })
}

/// `ibv_destroy_srq(3)`: waits until the program has acknowledged the events that it took.
///
/// # Safety
///
/// `srq` is live.
pub(crate) unsafe fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: live (contract above).
    let shared = unsafe { of_srq(srq) };
    if shared.is_used() {
        return libc::EBUSY;
    }
    let told = shared.end_events();
    // SAFETY: live (contract above), and only the field that is shared is borrowed.
    unsafe { Place::of_srq(srq).wait(told) };
    // SAFETY: made by `create_srq`, and freed once: the contract says that it is live. `shared` is not used any more.
    let srq = unsafe { Box::from_raw(srq.cast::<SoftSrq>()) };
    // SAFETY: a queue keeps its protection domain from being freed.
    unsafe { of_pd(srq.raw.pd) }.leave();
    0
}

/// `ibv_modify_srq(3)`.
///
/// # Safety
///
/// `srq` is live.
pub(crate) unsafe fn modify_srq(srq: *mut ibv_srq, attr: &ibv_srq_attr, mask: c_int) -> c_int {
    let mask = mask.cast_unsigned();
    let given = |bit, value| (mask & bit != 0).then_some(value);
    let (max_wr, srq_limit) = (given(IBV_SRQ_MAX_WR, attr.max_wr), given(IBV_SRQ_LIMIT, attr.srq_limit));
    let sizes_exist = max_wr.is_none_or(|max_wr| (1..=limit::QP_WR).contains(&max_wr));
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 || !sizes_exist {
        return libc::EINVAL;
    }
    // SAFETY: live (contract above).
    unsafe { of_srq(srq) }.modify(max_wr, srq_limit).map_or(libc::EINVAL, |()| 0)
}

/// `ibv_query_srq(3)`.
///
/// # Safety
///
/// `srq` is live.
pub(crate) unsafe fn query_srq(srq: *mut ibv_srq) -> ibv_srq_attr {
    // SAFETY: live (contract above).
    let attributes = unsafe { of_srq(srq) }.attributes();
    ibv_srq_attr { max_wr: attributes.max_wr, max_sge: attributes.max_sge, srq_limit: attributes.limit }
}

pub(crate) unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let posted = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: live (contract of the call).
        let shared = unsafe { of_srq(srq) };
        // SAFETY: a list of the program's, which it does not change during the call.
        Some(unsafe { post_list(wr, |wr| shared.post(wr)) })
    }));
    // SAFETY: a place for the result (contract of the call).
    unsafe { answer(posted, bad_wr) }
}
