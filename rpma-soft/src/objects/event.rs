//! Events of the connection manager, as the program sees them. As in librdmacm, taking one is what moves the queue pair.
#![expect(unsafe_code, reason = "makes, fills and frees structures of the connection manager")]

use std::io;
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rpma_sys::bindings::*;

use super::connection::Connection;
use super::event_channel::Waiting;
use super::id::{Own, create_event_channel, new_id, of_channel, show_addresses, show_state};
use super::synchronous::is_synchronous;
use crate::cm::{Event, Kind, Voice};
use crate::wire::Accept;

/// An event.
#[repr(C)]
struct SoftEvent {
    raw: rdma_cm_event,
    /// What `raw` points to.
    private_data: [u8; Accept::PRIVATE_DATA_BYTES],
    of: Arc<Connection>,
}

/// `rdma_get_cm_event(3)`. As in librdmacm, taking an event is what moves the queue pair.
///
/// # Safety
///
/// `channel` is live.
pub(crate) unsafe fn get_cm_event(channel: *mut rdma_event_channel) -> io::Result<*mut rdma_cm_event> {
    loop {
        // SAFETY: live (contract above).
        let waiting = unsafe { of_channel(channel) }.next()?;
        let of = Arc::clone(&waiting.of);
        // SAFETY: live, and the event was just taken from it.
        match unsafe { tell(channel, waiting) } {
            Ok(event) => return Ok(event),
            Err(e) => {
                // Nobody learns of this one; who waits for all to be acknowledged must not wait for it.
                log::warn!("a request for a connection is lost: {e}");
                of.event_acked();
            }
        }
    }
}

/// Makes the program's structure of an event. Only a request can fail; it is rejected then.
///
/// # Safety
///
/// `channel` is live, and `waiting` was just taken from it.
unsafe fn tell(channel: *mut rdma_event_channel, waiting: Waiting) -> io::Result<*mut rdma_cm_event> {
    let Waiting { of, child, mut event } = waiting;
    let handle: *mut rdma_cm_id = std::ptr::with_exposed_provenance_mut(of.handle.load(Ordering::Acquire));
    let mut raw = rdma_cm_event { id: handle, ..rdma_cm_event::default() };
    match event.kind {
        Kind::ConnectRequest => {
            let child = child.ok_or(io::ErrorKind::InvalidData)?;
            // SAFETY: the listener is not freed before this event is acknowledged.
            raw.id = unsafe { requested(channel, handle, child) }?;
            raw.listen_id = handle;
            of.request_taken();
        }
        Kind::ConnectResponse => {
            // Whose queue pair is not the identifier's does the rest itself: `rdma_establish(3)`.
            if let Voice::Accept(accept) = &event.voice
                && of.has_qp()
            {
                match of.establish(accept) {
                    Ok(()) => {
                        event.kind = Kind::Established;
                        // SAFETY: an identifier is not freed before its event is acknowledged.
                        unsafe { show_state(handle, IBV_QPS_RTS) };
                    }
                    Err(e) => {
                        let status = -e.raw_os_error().unwrap_or(libc::EINVAL);
                        event = Event { kind: Kind::ConnectError, status, voice: Voice::None };
                        of.qp_to_error();
                        // SAFETY: as above.
                        unsafe { show_state(handle, IBV_QPS_ERR) };
                    }
                }
            }
        }
        Kind::Rejected | Kind::Unreachable | Kind::ConnectError => {
            of.qp_to_error();
            // SAFETY: an identifier is not freed before its event is acknowledged.
            unsafe { show_state(handle, IBV_QPS_ERR) };
        }
        Kind::AddrResolved | Kind::RouteResolved | Kind::Established | Kind::Disconnected | Kind::TimewaitExit => {}
    }
    raw.event = number(event.kind);
    raw.status = event.status;
    let mut private_data = [0; Accept::PRIVATE_DATA_BYTES];
    let said = event.voice.private_data();
    private_data[..said.len()].copy_from_slice(said);
    let mut conn = rdma_conn_param { private_data_len: u8::try_from(said.len()).unwrap_or(0), ..rdma_conn_param::default() };
    match event.voice {
        // What they want to have outstanding is what we are to answer, and the other way round (`rdma_get_cm_event(3)`).
        Voice::Request(request) => {
            conn.responder_resources = request.initiator_depth;
            conn.initiator_depth = request.responder_resources;
            conn.flow_control = request.flow_control.into();
            conn.retry_count = request.retry_count;
            conn.rnr_retry_count = request.rnr_retry_count;
            conn.srq = request.srq.into();
            conn.qp_num = request.qp_num;
        }
        Voice::Accept(accept) => {
            conn.responder_resources = accept.initiator_depth;
            conn.initiator_depth = accept.responder_resources;
            conn.flow_control = accept.flow_control.into();
            conn.rnr_retry_count = accept.rnr_retry_count;
            conn.srq = accept.srq.into();
            conn.qp_num = accept.qp_num;
        }
        Voice::Reject(_) | Voice::None => {}
    }
    let boxed = Box::into_raw(Box::new(SoftEvent { raw, private_data, of }));
    // SAFETY: just made.
    let place = unsafe { &raw const (*boxed).private_data };
    conn.private_data = if said.is_empty() { null() } else { place.cast() };
    // SAFETY: just made.
    let param = unsafe { &mut (*boxed).raw.param };
    param.conn = conn;
    Ok(boxed.cast())
}

/// The identifier of a connection that was asked for, on the channel that its request was taken from: the listener may have been migrated
/// while that waited. It takes after its listener: that of a synchronous one has its own channel.
///
/// # Safety
///
/// `channel` is live; `listener` is null or live, and on it.
unsafe fn requested(
    channel: *mut rdma_event_channel,
    listener: *mut rdma_cm_id,
    child: Arc<Connection>,
) -> io::Result<*mut rdma_cm_id> {
    let mut raw = rdma_cm_id { channel, ps: RDMA_PS_TCP, qp_type: IBV_QPT_RC, ..rdma_cm_id::default() };
    let mut own = Own::default();
    if !listener.is_null() {
        // SAFETY: live (contract above).
        raw.context = unsafe { (*listener).context };
        // SAFETY: as above.
        raw.qp_type = unsafe { (*listener).qp_type };
        // SAFETY: as above.
        own.synchronous = unsafe { is_synchronous(listener) };
    }
    if own.synchronous {
        match create_event_channel() {
            Ok(own_channel) => raw.channel = own_channel,
            Err(e) => {
                child.destroy();
                return Err(e);
            }
        }
    }
    // SAFETY: live (contract above), or just made.
    child.migrate(unsafe { of_channel(raw.channel) });
    let id = new_id(child, raw, own);
    // SAFETY: just made.
    unsafe { show_addresses(id) };
    Ok(id)
}

fn number(kind: Kind) -> rdma_cm_event_type {
    match kind {
        Kind::AddrResolved => RDMA_CM_EVENT_ADDR_RESOLVED,
        Kind::RouteResolved => RDMA_CM_EVENT_ROUTE_RESOLVED,
        Kind::ConnectRequest => RDMA_CM_EVENT_CONNECT_REQUEST,
        Kind::ConnectResponse => RDMA_CM_EVENT_CONNECT_RESPONSE,
        Kind::ConnectError => RDMA_CM_EVENT_CONNECT_ERROR,
        Kind::Unreachable => RDMA_CM_EVENT_UNREACHABLE,
        Kind::Rejected => RDMA_CM_EVENT_REJECTED,
        Kind::Established => RDMA_CM_EVENT_ESTABLISHED,
        Kind::Disconnected => RDMA_CM_EVENT_DISCONNECTED,
        Kind::TimewaitExit => RDMA_CM_EVENT_TIMEWAIT_EXIT,
    }
}

/// `rdma_ack_cm_event(3)`.
///
/// # Safety
///
/// `event` is live.
pub(crate) unsafe fn ack_cm_event(event: *mut rdma_cm_event) {
    // SAFETY: made by `get_cm_event`, and freed once: the contract says that it is live.
    let event = unsafe { Box::from_raw(event.cast::<SoftEvent>()) };
    let of = Arc::clone(&event.of);
    drop(event);
    of.event_acked();
}
