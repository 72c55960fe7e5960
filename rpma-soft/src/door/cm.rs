//! Calls of the connection manager that only C programs make, with the names, arguments, contracts and conventions of the C functions: 0,
//! or -1 with `errno`. Each man page says what its call does; what is said here is where that leaves something open.
//!
//! # Synchronous identifiers
//!
//! An identifier that is made without an event channel, or by [`rdma_create_ep`], has a channel of its own, and `rdma_resolve_addr(3)`,
//! `rdma_resolve_route(3)`, `rdma_connect(3)`, `rdma_accept(3)` and `rdma_disconnect(3)` wait there for the next event. That stands in
//! `rdma_cm_id::event` until the next call. The call fails if the event has a status: with ECONNREFUSED for REJECTED, with the status
//! itself otherwise. A handler of a signal ends the waiting with EINTR unless it was installed to restart calls; `O_NONBLOCK` on the
//! channel's descriptor ends it with EAGAIN. As with librdmacm, a call waits for ever where no event comes: disconnecting what was
//! rejected, for one.
#![expect(unsafe_code, reason = "unsafe functions over objects of C, whose contract each hands on")]

use std::ffi::{c_char, c_int};
use std::io;
use std::ptr::null_mut;

use rpma_sys::Provider;
use rpma_sys::bindings::*;

use crate::objects::{addrinfo, endpoint, id_qp};
use crate::provider::minus1;

/// `rdma_create_ep(3)`, with identifiers of `provider`. Paths in `res` are not looked at.
///
/// # Safety
///
/// `provider` is a [`Soft`](crate::Soft), and `pd` and what `qp_init_attr` names are of it. `id` is a place for the result; `res` is whole;
/// `pd` and `qp_init_attr` may be null. What a passive endpoint's attributes name lives as long as the endpoint.
pub unsafe fn rdma_create_ep(
    provider: &dyn Provider,
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: whole (contract above), and not changed meanwhile.
    let info = unsafe { &*res };
    let Ok(ps) = rdma_port_space::try_from(info.ai_port_space) else { return invalid() };
    let mut new = null_mut();
    // SAFETY: no channel and no context, and a place for the result.
    let rc = unsafe { provider.rdma_create_id(null_mut(), &raw mut new, null_mut(), ps) };
    if rc != 0 {
        return rc;
    }
    // SAFETY: null, or the program's and whole (contract above).
    let attr = unsafe { qp_init_attr.as_mut() };
    // SAFETY: just made; the rest is the contract of this function.
    match unsafe { endpoint::prepare(new, info, pd, attr) } {
        Ok(()) => {
            // SAFETY: a place for the result (contract above).
            unsafe { id.write(new) };
            0
        }
        Err(e) => {
            // SAFETY: just made, and nobody else knows of it.
            unsafe { rdma_destroy_ep(provider, new) };
            minus1(Err(e))
        }
    }
}

/// `rdma_destroy_ep(3)`.
///
/// # Safety
///
/// `id` is a live identifier of `provider`.
pub unsafe fn rdma_destroy_ep(provider: &dyn Provider, id: *mut rdma_cm_id) {
    // SAFETY: live (contract above).
    unsafe { id_qp::destroy_qp(id) };
    // SAFETY: live (contract above).
    if !unsafe { (*id).srq }.is_null() {
        // SAFETY: live (contract above), and it has one.
        unsafe { rdma_destroy_srq(provider, id) };
    }
    // SAFETY: live, and nothing of it is in use any more (contract above). Of ours it cannot fail.
    unsafe { provider.rdma_destroy_id(id) };
}

/// `rdma_get_request(3)`. As with librdmacm, the listener cannot be destroyed while the new identifier holds the event of the request: its
/// next call lets go of that.
///
/// # Safety
///
/// `listen` is live, `id` a place for the result.
pub unsafe fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: live (contract above).
    minus1(unsafe { endpoint::get_request(listen) }.map(|new| {
        // SAFETY: a place for the result (contract above).
        unsafe { id.write(new) }
    }))
}

/// `rdma_create_qp(3)`. Without completion queues it makes them, as long as the work queues, each with a channel: they stand in the
/// identifier until `rdma_destroy_qp(3)`. Without a protection domain it uses the identifier's.
///
/// # Safety
///
/// `id`, `pd` and what `qp_init_attr` names are live; `pd` may be null.
pub unsafe fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int {
    // SAFETY: the program's, and whole (contract above).
    let attr = unsafe { &mut *qp_init_attr };
    // SAFETY: the contract of this function.
    minus1(unsafe { id_qp::create_plain_qp(id, pd, attr) })
}

/// `rdma_create_srq(3)`. Without a protection domain it uses the identifier's.
///
/// # Safety
///
/// `id` and `pd` are live and of `provider`; `pd` may be null; `attr` is whole.
pub unsafe fn rdma_create_srq(
    provider: &dyn Provider,
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: live (contract above), and plain bytes.
    let has = unsafe { id.read() };
    let pd = if pd.is_null() { has.pd } else { pd };
    if pd.is_null() || !has.srq.is_null() {
        return invalid();
    }
    // SAFETY: live and whole (contract above).
    let srq = unsafe { provider.ibv_create_srq(pd, attr) };
    if srq.is_null() {
        return -1;
    }
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    unsafe { (*id).srq = srq };
    if has.pd.is_null() {
        // SAFETY: as above.
        unsafe { (*id).pd = pd };
    }
    0
}

/// `rdma_destroy_srq(3)`.
///
/// # Safety
///
/// `id` is a live identifier of `provider`, and no queue pair uses its shared receive queue.
pub unsafe fn rdma_destroy_srq(provider: &dyn Provider, id: *mut rdma_cm_id) {
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    let srq = unsafe { std::mem::replace(&mut (*id).srq, null_mut()) };
    if !srq.is_null() {
        // SAFETY: it stood in the identifier, so it is live.
        unsafe { provider.ibv_destroy_srq(srq) };
    }
    // SAFETY: live (contract above).
    unsafe { id_qp::destroy_cqs(id) };
}

/// `rdma_establish(3)`.
///
/// # Safety
///
/// `id` is live.
pub unsafe fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the contract of this function.
    minus1(unsafe { endpoint::establish(id) })
}

/// `rdma_notify(3)`: of events only `IBV_EVENT_COMM_EST` means something here.
///
/// # Safety
///
/// `id` is live.
pub unsafe fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: the contract of this function.
    minus1(unsafe { endpoint::notify(id, event) })
}

/// `rdma_getaddrinfo(3)`: what `getaddrinfo(3)` finds, the first of it, in the form that [`rdma_create_ep`] takes. It returns 0, one of the
/// codes of `getaddrinfo(3)`, or -1 with `errno`. There are no routes, and no addresses of InfiniBand: EAI_FAMILY.
///
/// # Safety
///
/// `node` and `service` are null or strings, `hints` is null or whole, and `res` a place for the result.
pub unsafe fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: null, or whole (contract above).
    let hints = unsafe { hints.as_ref() };
    // SAFETY: the contract of this function.
    match unsafe { addrinfo::get(node, service, hints) } {
        Ok(found) => {
            // SAFETY: a place for the result (contract above).
            unsafe { res.write(found) };
            0
        }
        Err(addrinfo::Failure::Lookup(code)) => code,
        Err(addrinfo::Failure::System(e)) => minus1(Err(e)),
    }
}

/// `rdma_freeaddrinfo(3)`. What the program put into the list is freed too, by `free(3)`, as by librdmacm.
///
/// # Safety
///
/// `res` is null or leads to a list by [`rdma_getaddrinfo`], whose pointers are null or came from `malloc(3)`.
pub unsafe fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: the contract of this function.
    unsafe { addrinfo::free(res) }
}

/// EINVAL, in C's convention.
fn invalid() -> c_int {
    minus1(Err(io::Error::from_raw_os_error(libc::EINVAL)))
}
