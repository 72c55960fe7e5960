//! Identifiers without an event channel of the program's: each has one of its own, and its calls wait there for their events.
#![expect(unsafe_code, reason = "makes, fills and frees structures of the connection manager")]

use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;

use rpma_sys::bindings::*;

use super::connection::invalid;
use super::event;
use super::id::{create_event_channel, destroy_event_channel, of_channel, of_id, own_of};

/// Whether calls about `id` wait for their events.
///
/// # Safety
///
/// `id` is live.
pub(super) unsafe fn is_synchronous(id: *mut rdma_cm_id) -> bool {
    // SAFETY: live (contract above); what is ours of it is changed by calls about it only.
    unsafe { (*own_of(id)).synchronous }
}

/// The program is done with the event that stands in the identifier.
///
/// # Safety
///
/// `id` is live, and so is the event in it.
pub(super) unsafe fn acknowledge(id: *mut rdma_cm_id) {
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    let event = unsafe { std::mem::replace(&mut (*id).event, null_mut()) };
    if !event.is_null() {
        // SAFETY: live (contract above), and it stands nowhere else.
        unsafe { event::ack_cm_event(event) };
    }
}

/// The next event of a synchronous identifier, which waits for it. A signal whose handler does not restart calls ends that (EINTR), and a
/// channel that the program made non-blocking does not wait (EAGAIN): then the event comes with the next call.
///
/// # Safety
///
/// `id` is live and synchronous.
pub(super) unsafe fn next_event(id: *mut rdma_cm_id) -> io::Result<*mut rdma_cm_event> {
    // SAFETY: the contract of this function.
    unsafe { acknowledge(id) };
    // SAFETY: live (contract above).
    let channel = unsafe { (*id).channel };
    // SAFETY: the channel of a live identifier is live.
    unsafe { event::get_cm_event(channel) }
}

/// Waits for the event of the call that was just made, if that is for the call to do. The event stands in the identifier afterwards, for
/// the program to look at. The status of an event is an error of the call, and a refusal is ECONNREFUSED.
///
/// # Safety
///
/// `id` is live.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> io::Result<()> {
    // SAFETY: the contract of this function.
    if !unsafe { is_synchronous(id) } {
        return Ok(());
    }
    // SAFETY: as above, and synchronous.
    let event = unsafe { next_event(id) }?;
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    unsafe { (*id).event = event };
    // SAFETY: just taken.
    let status = unsafe { (*event).status };
    // SAFETY: just taken.
    let kind = unsafe { (*event).event };
    match (status, kind) {
        (0, _) => Ok(()),
        (_, RDMA_CM_EVENT_REJECTED) => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
        (status, _) => Err(status_error(status)),
    }
}

/// The error in an event's status.
pub(super) fn status_error(status: c_int) -> io::Error {
    io::Error::from_raw_os_error(status.saturating_abs())
}

/// `rdma_migrate_id(3)`. Without a channel, it gets one of its own and becomes synchronous.
///
/// # Safety
///
/// `id` is live; `channel` is null or live.
pub(crate) unsafe fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> io::Result<()> {
    // SAFETY: the contract of this function.
    let was_synchronous = unsafe { is_synchronous(id) };
    let synchronous = channel.is_null();
    if was_synchronous && synchronous {
        return Err(invalid());
    }
    let channel = if synchronous { create_event_channel()? } else { channel };
    if was_synchronous {
        // SAFETY: the contract of this function.
        unsafe { acknowledge(id) };
    }
    // SAFETY: live (contract above), or just made.
    let to = unsafe { of_channel(channel) };
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.migrate(to);
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    let old = unsafe { std::mem::replace(&mut (*id).channel, channel) };
    if was_synchronous {
        // SAFETY: the identifier's own, and no identifier is on it any more.
        unsafe { destroy_event_channel(old) };
    }
    // SAFETY: live (contract above); what is ours of it is changed by calls about it only.
    unsafe { (*own_of(id)).synchronous = synchronous };
    Ok(())
}
