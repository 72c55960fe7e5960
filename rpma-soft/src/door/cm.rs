//! Calls of the connection manager that only C programs make, with the names, arguments, contracts and conventions of the C functions: 0,
//! or -1 with `errno`. Each man page says what its call does; what is said here is where that leaves something open.
#![expect(unsafe_code, reason = "unsafe functions over objects of C, whose contract each hands on")]

use std::ffi::{c_char, c_int};

use rpma_sys::bindings::*;

use crate::objects::{addrinfo, id_qp};
use crate::provider::minus1;

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

/// `rdma_getaddrinfo(3)`: what `getaddrinfo(3)` finds, the first of it, in the form that `rdma_create_ep(3)` takes. It returns 0, one of the
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
