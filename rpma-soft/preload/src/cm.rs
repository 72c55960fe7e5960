//! Calls of the connection manager that only C programs make.
#![expect(unsafe_code, reason = "exports C functions, which read and fill structures of the connection manager")]

use std::ffi::c_int;

use rpma_sys::bindings::*;

use crate::answer::{self, guarded};
use crate::{provider, verbs};

/// `rdma_create_qp(3)`: the extended call, with the protection domain among the attributes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int {
    if id.is_null() || attr.is_null() {
        return answer::minus1(libc::EINVAL);
    }
    guarded(answer::minus1, || {
        let opened = match provider::get() {
            Ok(opened) => opened,
            Err(errno) => return answer::minus1(errno),
        };
        // SAFETY: the program's attributes (contract of the call).
        let asked = unsafe { attr.read() };
        let pd = if pd.is_null() {
            // SAFETY: a live identifier (contract of the call).
            unsafe { (*id).pd }
        } else {
            pd
        };
        let mut extended = verbs::extended(&asked, pd);
        // SAFETY: the contract of this call is that of the extended one, and the attributes are ours.
        let rc = unsafe { opened.provider.rdma_create_qp_ex(id, &raw mut extended) };
        if rc == 0 {
            // What was granted, and the completion queues that were made.
            let granted = ibv_qp_init_attr { send_cq: extended.send_cq, recv_cq: extended.recv_cq, cap: extended.cap, ..asked };
            // SAFETY: the program's attributes, which the man page says are written.
            unsafe { attr.write(granted) };
        }
        rc
    })
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
