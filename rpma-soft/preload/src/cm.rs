//! Calls of the connection manager that only C programs make.
#![expect(unsafe_code, reason = "exports C functions, which read and fill structures of the connection manager")]

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use rpma_soft::door::cm;
use rpma_sys::bindings::*;

use crate::answer::{self, guarded};
use crate::provider;

/// Exports calls of [`rpma_soft::door::cm`], which have the conventions of C. `provider` stands for the argument that C does not have. What
/// a call needs is not null, or EINVAL.
macro_rules! exports {
    ($($convention:ident fn $name:ident[$($provider:ident)?]($($arg:ident: $ty:ty),*) -> $ret:ty, needs [$($needed:ident),*];)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                let missing: &[bool] = &[$($needed.is_null()),*];
                if missing.contains(&true) {
                    return answer::$convention(libc::EINVAL);
                }
                guarded(answer::$convention, || {
                    $(let $provider = match provider::get() {
                        Ok(opened) => &*opened.provider,
                        Err(errno) => return answer::$convention(errno),
                    };)?
                    // SAFETY: the caller owes what the man page of this function asks for, and that is the contract of the other.
                    unsafe { cm::$name($($provider,)? $($arg),*) }
                })
            }
        )*
    };
}

exports! {
    minus1 fn rdma_create_ep[provider](id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int,
        needs [id, res];
    infallible fn rdma_destroy_ep[provider](id: *mut rdma_cm_id) -> (), needs [id];
    minus1 fn rdma_get_request[](listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int, needs [listen, id];
    minus1 fn rdma_create_qp[](id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int, needs [id, attr];
    minus1 fn rdma_create_srq[provider](id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int, needs [id, attr];
    infallible fn rdma_destroy_srq[provider](id: *mut rdma_cm_id) -> (), needs [id];
    minus1 fn rdma_establish[](id: *mut rdma_cm_id) -> c_int, needs [id];
    minus1 fn rdma_notify[](id: *mut rdma_cm_id, event: ibv_event_type) -> c_int, needs [id];
    minus1 fn rdma_getaddrinfo[](node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int,
        needs [res];
    infallible fn rdma_freeaddrinfo[](res: *mut rdma_addrinfo) -> (), needs [];
}

/// The front of `struct ibv_srq_init_attr_ex` in verbs.h.
#[repr(C)]
struct SrqInitAttrEx {
    basic: ibv_srq_init_attr,
    comp_mask: u32,
    srq_type: c_int,
    pd: *mut ibv_pd,
}

/// `rdma_create_srq_ex(3)`: of the basic type; those of XRC and of tag matching are not supported.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut SrqInitAttrEx) -> c_int {
    // `IBV_SRQ_INIT_ATTR_TYPE`, `IBV_SRQ_INIT_ATTR_PD`, `IBV_SRQT_BASIC`.
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    const BASIC: c_int = 0;
    if attr.is_null() {
        return answer::minus1(libc::EINVAL);
    }
    // SAFETY: the program's attributes (contract of the call).
    let asked = unsafe { attr.read() };
    if asked.comp_mask & !(TYPE | PD) != 0 || (asked.comp_mask & TYPE != 0 && asked.srq_type != BASIC) {
        return answer::minus1(libc::EOPNOTSUPP);
    }
    let pd = if asked.comp_mask & PD == 0 { null_mut() } else { asked.pd };
    // SAFETY: the contract of the call, and the front of the program's attributes is the plain form of them.
    unsafe { rdma_create_srq(id, pd, attr.cast()) }
}

/// The port of a socket address, in network order; 0 for other families.
///
/// # Safety
///
/// `addr` leads to a whole socket address.
unsafe fn port(addr: *const sockaddr) -> u16 {
    // SAFETY: every address begins with its family.
    match c_int::from(unsafe { (*addr).sa_family }) {
        // SAFETY: the family says so.
        libc::AF_INET => unsafe { (*addr.cast::<sockaddr_in>()).sin_port },
        // SAFETY: the family says so.
        libc::AF_INET6 => unsafe { (*addr.cast::<sockaddr_in6>()).sin6_port },
        _ => 0,
    }
}

/// `rdma_get_src_port(3)`, in network order.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    if id.is_null() {
        return 0;
    }
    // SAFETY: a live identifier (contract of the call).
    let addr = unsafe { &raw const (*id).route.addr.__bindgen_anon_1.src_addr };
    // SAFETY: it stands in storage for an address of any family.
    unsafe { port(addr) }
}

/// `rdma_get_dst_port(3)`, in network order.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    if id.is_null() {
        return 0;
    }
    // SAFETY: a live identifier (contract of the call).
    let addr = unsafe { &raw const (*id).route.addr.__bindgen_anon_2.dst_addr };
    // SAFETY: it stands in storage for an address of any family.
    unsafe { port(addr) }
}
