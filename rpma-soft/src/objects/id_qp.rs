//! The queue pairs of identifiers, as the program sees them.
#![expect(unsafe_code, reason = "fills structures of the connection manager")]

use std::io;
use std::ptr::null_mut;

use rpma_sys::bindings::*;

use super::connection::invalid;
use super::id::of_id;
use super::{cq_calls, qp};

/// `rdma_create_qp_ex(3)`. As in librdmacm, what is not given is the identifier's: its protection domain, its shared receive queue, its
/// completion queues. If it has no such queues they are made, as long as the work queues, each with a channel.
///
/// # Safety
///
/// `id` and what `attr` names are live.
pub(crate) unsafe fn create_qp(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> io::Result<()> {
    // SAFETY: live (contract above), and plain bytes.
    let has = unsafe { id.read() };
    // SAFETY: the program's, and whole (contract above).
    let attr = unsafe { &mut *attr };
    let other = |its: *mut ibv_cq, given: *mut ibv_cq| !its.is_null() && !given.is_null() && its != given;
    if has.verbs.is_null() || !has.qp.is_null() || other(has.send_cq, attr.send_cq) || other(has.recv_cq, attr.recv_cq) {
        return Err(invalid());
    }
    let asked = *attr;
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = has.pd;
    }
    let none = |its: *mut ibv_cq, given: *mut ibv_cq| its.is_null() && given.is_null();
    let send_cqe = none(has.send_cq, attr.send_cq).then_some(attr.cap.max_send_wr);
    let recv_cqe = none(has.recv_cq, attr.recv_cq).then_some(attr.cap.max_recv_wr);
    // SAFETY: live (contract above).
    let made = unsafe { create_cqs(id, send_cqe, recv_cqe) }.and_then(|()| {
        if attr.send_cq.is_null() {
            // SAFETY: live (contract above).
            attr.send_cq = unsafe { (*id).send_cq };
        }
        if attr.recv_cq.is_null() {
            // SAFETY: as above.
            attr.recv_cq = unsafe { (*id).recv_cq };
        }
        if attr.srq.is_null() {
            attr.srq = has.srq;
        }
        // SAFETY: live (contract above).
        let connection = unsafe { of_id(id) };
        // SAFETY: live (contract above), or just made.
        unsafe { qp::create(connection, attr) }
    });
    let qp = match made {
        Ok(qp) => qp,
        Err(e) => {
            *attr = asked;
            // SAFETY: live (contract above); no queue pair is on them.
            unsafe { destroy_cqs(id) };
            return Err(e);
        }
    };
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    unsafe { (*id).qp = qp };
    // SAFETY: as above.
    unsafe { (*id).pd = attr.pd };
    Ok(())
}

/// `rdma_create_qp(3)`.
///
/// # Safety
///
/// `id`, `pd` and what `attr` names are live; `pd` may be null.
pub(crate) unsafe fn create_plain_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> io::Result<()> {
    let mut extended = ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..ibv_qp_init_attr_ex::default()
    };
    // SAFETY: the contract of this function.
    unsafe { create_qp(id, &raw mut extended) }?;
    attr.send_cq = extended.send_cq;
    attr.recv_cq = extended.recv_cq;
    attr.srq = extended.srq;
    attr.cap = extended.cap;
    Ok(())
}

/// `rdma_destroy_qp(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    let qp = unsafe { std::mem::replace(&mut (*id).qp, null_mut()) };
    if !qp.is_null() {
        // SAFETY: made by `create_qp`, and not destroyed: it stood in the identifier.
        unsafe { qp::destroy(qp) };
    }
    // SAFETY: live (contract above).
    unsafe { destroy_cqs(id) };
}

/// Makes completion queues of so many completions, where a number is given that is not 0, each with a channel.
///
/// # Safety
///
/// `id` is live, and has none where a number is given.
unsafe fn create_cqs(id: *mut rdma_cm_id, send_cqe: Option<u32>, recv_cqe: Option<u32>) -> io::Result<()> {
    if let Some(cqe) = recv_cqe.filter(|&cqe| cqe != 0) {
        // SAFETY: live (contract above).
        let (channel, cq) = unsafe { create_cq(id, cqe) }?;
        // SAFETY: as above; its fields are changed by calls about it only.
        unsafe { (*id).recv_cq_channel = channel };
        // SAFETY: as above.
        unsafe { (*id).recv_cq = cq };
    }
    if let Some(cqe) = send_cqe.filter(|&cqe| cqe != 0) {
        // SAFETY: as above.
        let (channel, cq) = unsafe { create_cq(id, cqe) }?;
        // SAFETY: as above.
        unsafe { (*id).send_cq_channel = channel };
        // SAFETY: as above.
        unsafe { (*id).send_cq = cq };
    }
    Ok(())
}

/// # Safety
///
/// `id` is live.
unsafe fn create_cq(id: *mut rdma_cm_id, cqe: u32) -> io::Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    let cqe = cqe.try_into().map_err(|_| invalid())?;
    // SAFETY: live (contract above).
    let device = &unsafe { of_id(id) }.device;
    let channel = cq_calls::create_comp_channel(device)?;
    // SAFETY: the channel was just made.
    match unsafe { cq_calls::create_cq(device, cqe, id.cast(), channel, 0) } {
        Ok(cq) => Ok((channel, cq)),
        Err(e) => {
            // SAFETY: just made, and no queue is on it.
            unsafe { cq_calls::destroy_comp_channel(channel) };
            Err(e)
        }
    }
}

/// Destroys the completion queues and channels that stand in the identifier: those that were made for it. As `ibv_destroy_cq(3)`, it waits
/// for events that are not acknowledged.
///
/// # Safety
///
/// `id` is live, and so are they.
pub(crate) unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: live (contract above), and plain bytes.
    let had = unsafe { id.read() };
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    unsafe { (*id).send_cq = null_mut() };
    // SAFETY: as above.
    unsafe { (*id).recv_cq = null_mut() };
    // SAFETY: as above.
    unsafe { (*id).send_cq_channel = null_mut() };
    // SAFETY: as above.
    unsafe { (*id).recv_cq_channel = null_mut() };
    let cqs = [had.recv_cq, if had.send_cq == had.recv_cq { null_mut() } else { had.send_cq }];
    for cq in cqs.into_iter().filter(|cq| !cq.is_null()) {
        // SAFETY: live (contract above), and nowhere else any more.
        unsafe { cq_calls::destroy_cq(cq) };
    }
    let one = had.send_cq_channel == had.recv_cq_channel;
    let channels = [had.recv_cq_channel, if one { null_mut() } else { had.send_cq_channel }];
    for channel in channels.into_iter().filter(|channel| !channel.is_null()) {
        // SAFETY: as above.
        unsafe { cq_calls::destroy_comp_channel(channel) };
    }
}
