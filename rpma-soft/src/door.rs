//! What only C programs call: verbs beside those of [`Provider`](rpma_sys::Provider), on objects of [`Soft`](crate::Soft).
//!
//! The functions have the contracts of the C functions: see the man page of each.
#![expect(unsafe_code, reason = "unsafe functions over objects of C, whose contract each hands on")]

pub mod cm;

use std::ffi::c_int;

use rpma_sys::bindings::{ibv_srq, ibv_srq_attr};

use crate::objects::srq_calls;

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
