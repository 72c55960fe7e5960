//! Endpoints: identifiers that come with an address and a queue pair, `rdma_create_ep(3)` and `rdma_get_request(3)`.
#![expect(unsafe_code, reason = "makes, fills and frees structures of the connection manager")]

use std::io;
use std::ptr::null;

use rpma_sys::bindings::*;

use super::connection::invalid;
use super::synchronous::{is_synchronous, next_event, status_error};
use super::{id, id_qp};

/// Makes an endpoint of a new synchronous identifier: what `rdma_create_ep(3)` does with it. On an error it is the caller's to destroy.
///
/// A path record in `info` is not looked at: it is for InfiniBand's routes.
///
/// # Safety
///
/// `id` and `pd` are live; `pd` may be null. `info` and what it names are the program's, and whole.
pub(crate) unsafe fn prepare(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> io::Result<()> {
    let qp_type = ibv_qp_type::try_from(info.ai_qp_type).map_err(|_| invalid())?;
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    unsafe { (*id).qp_type = qp_type };
    if info.ai_flags & RAI_PASSIVE.cast_signed() != 0 {
        // SAFETY: the contract of this function.
        return unsafe { prepare_listener(id, info, pd, attr) };
    }
    if info.ai_dst_addr.is_null() {
        return Err(invalid());
    }
    let source: *const sockaddr = if info.ai_src_len == 0 { null() } else { info.ai_src_addr };
    // SAFETY: live; the addresses are whole (contract above).
    unsafe { id::resolve_addr(id, source, info.ai_dst_addr) }?;
    // SAFETY: live (contract above).
    unsafe { id::resolve_route(id) }?;
    if let Some(attr) = attr {
        attr.qp_type = qp_type;
        // SAFETY: live (contract above).
        unsafe { id_qp::create_plain_qp(id, pd, attr) }?;
    }
    if info.ai_connect_len != 0 && !info.ai_connect.is_null() {
        // SAFETY: `info` says how much there is (contract above).
        let data = unsafe { std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len) };
        // SAFETY: live (contract above); what is ours of it is changed by calls about it only.
        unsafe { (*id::own_of(id)).connect_data = data.to_vec() };
    }
    Ok(())
}

/// # Safety
///
/// As for [`prepare`].
unsafe fn prepare_listener(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> io::Result<()> {
    if info.ai_src_addr.is_null() {
        return Err(invalid());
    }
    // SAFETY: live; the address is whole (contract above).
    unsafe { id::bind_addr(id, info.ai_src_addr) }?;
    if !pd.is_null() {
        // SAFETY: live (contract above); its fields are changed by calls about it only.
        unsafe { (*id).pd = pd };
    }
    let Some(attr) = attr else { return Ok(()) };
    // SAFETY: live (contract above).
    let qp_type = unsafe { (*id).qp_type };
    let attr = Box::new(ibv_qp_init_attr { qp_type, ..*attr });
    // SAFETY: live (contract above); what is ours of it is changed by calls about it only.
    unsafe { (*id::own_of(id)).qp_attr = Some(attr) };
    Ok(())
}

/// `rdma_get_request(3)`. As in librdmacm, the listener keeps an event that could not be given to the program.
///
/// # Safety
///
/// `listener` is live, and so is what its attributes for queue pairs name.
pub(crate) unsafe fn get_request(listener: *mut rdma_cm_id) -> io::Result<*mut rdma_cm_id> {
    // SAFETY: live (contract above).
    if !unsafe { is_synchronous(listener) } {
        return Err(invalid());
    }
    // SAFETY: as above, and synchronous.
    let event = unsafe { next_event(listener) }?;
    // SAFETY: just taken.
    let told = unsafe { event.read() };
    // SAFETY: live (contract above), and what was just taken is.
    match unsafe { answer_request(listener, &told) } {
        Ok(()) => {
            // SAFETY: the request's identifier, just made.
            unsafe { (*told.id).event = event };
            Ok(told.id)
        }
        Err(e) => {
            // SAFETY: live (contract above); its fields are changed by calls about it only.
            unsafe { (*listener).event = event };
            Err(e)
        }
    }
}

/// # Safety
///
/// `listener`, what its attributes name, and what `told` names are live.
unsafe fn answer_request(listener: *mut rdma_cm_id, told: &rdma_cm_event) -> io::Result<()> {
    if told.status != 0 {
        return Err(status_error(told.status));
    }
    if told.event != RDMA_CM_EVENT_CONNECT_REQUEST {
        return Err(invalid());
    }
    let own = id::own_of(listener);
    // SAFETY: live (contract above); what is ours of it is changed by calls about it only.
    let Some(mut attr) = (unsafe { (*own).qp_attr.clone() }) else { return Ok(()) };
    // SAFETY: live (contract above).
    let pd = unsafe { (*listener).pd };
    // SAFETY: live (contract above).
    unsafe { id_qp::create_plain_qp(told.id, pd, &mut attr) }
}

/// `rdma_establish(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn establish(id: *mut rdma_cm_id) -> io::Result<()> {
    // SAFETY: live (contract above).
    if !unsafe { (*id).qp }.is_null() {
        return Err(invalid());
    }
    // SAFETY: live (contract above).
    unsafe { id::of_id(id) }.establish_without_qp()
}

/// `rdma_notify(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn notify(id: *mut rdma_cm_id, event: ibv_event_type) -> io::Result<()> {
    if event != IBV_EVENT_COMM_EST {
        return Err(invalid());
    }
    // SAFETY: live (contract above).
    unsafe { id::of_id(id) }.notify_established()
}
