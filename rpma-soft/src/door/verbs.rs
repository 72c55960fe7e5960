//! Calls of verbs that only C programs make, with the names and contracts of the C functions (see the man page of each). Errors carry the
//! errno.
#![expect(unsafe_code, reason = "unsafe functions over objects of C, whose contract each hands on")]

use std::ffi::c_int;
use std::io;

use rpma_sys::bindings::*;

pub use crate::objects::gids::Gid;
use crate::objects::{cq_calls, gids, loose_qp, qp, srq_calls};

/// The table of global identifiers of the only port: one for each address of this machine, as RoCE has them. It is read anew each time.
///
/// # Errors
///
/// If the system does not tell its addresses.
pub fn gids() -> io::Result<Vec<Gid>> {
    gids::table()
}

/// `ibv_create_qp(3)`: a queue pair without an identifier of the connection manager, in the state RESET. It can be moved to INIT, given
/// receive requests, moved to the error state and destroyed; nothing leads from there to a connection.
///
/// # Errors
///
/// EINVAL and EOPNOTSUPP, as for `rdma_create_qp(3)`.
///
/// # Safety
///
/// What the attributes name is live, and of one provider.
pub unsafe fn create_qp(attr: &mut ibv_qp_init_attr_ex) -> io::Result<*mut ibv_qp> {
    // SAFETY: the contract of this function.
    unsafe { loose_qp::create(attr) }
}

/// `ibv_destroy_qp(3)`, of a queue pair with or without an identifier.
///
/// # Safety
///
/// `qp` is live. An identifier that it stands in must not be used with it any more.
pub unsafe fn destroy_qp(qp: *mut ibv_qp) {
    // SAFETY: the contract of this function.
    unsafe { qp::destroy(qp) }
}

/// `ibv_resize_cq(3)`. Exactly what is asked for is granted.
///
/// # Errors
///
/// EINVAL if that is not what the device can have, or less than the completions that wait.
///
/// # Safety
///
/// `cq` is live, of this crate's provider, and resized by one thread at a time.
pub unsafe fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> io::Result<()> {
    // SAFETY: the contract of this function.
    unsafe { cq_calls::resize_cq(cq, cqe) }
}

/// `ibv_modify_srq(3)`: sets a limit, or the size. A limit raises `IBV_EVENT_SRQ_LIMIT_REACHED` once, when a queue pair takes a receive
/// and fewer are left; then it has to be set again. Returns 0, or EINVAL if the size does not hold what is there, the limit, or is more
/// than the device has.
///
/// # Safety
///
/// `srq` is live, and of this crate's provider.
pub unsafe fn modify_srq(srq: *mut ibv_srq, attr: &ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { srq_calls::modify_srq(srq, attr, mask) }
}

/// `ibv_query_srq(3)`.
///
/// # Safety
///
/// `srq` is live, and of this crate's provider.
#[must_use]
pub unsafe fn query_srq(srq: *mut ibv_srq) -> ibv_srq_attr {
    // SAFETY: the contract of this function.
    unsafe { srq_calls::query_srq(srq) }
}
