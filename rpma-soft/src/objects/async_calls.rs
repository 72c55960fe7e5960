//! Asynchronous events, as the program sees them.
#![expect(unsafe_code, reason = "fills and reads events of verbs")]

use std::io;

use rpma_sys::bindings::*;

use super::acks::Place;
use super::async_events::AsyncEvents;

/// `ibv_get_async_event(3)`.
///
/// # Safety
///
/// `event` is a place for the result.
pub(crate) unsafe fn get_async_event(events: &AsyncEvents, event: *mut ibv_async_event) -> io::Result<()> {
    let (kind, about) = events.next()?;
    // Not freed before the program acknowledges this event.
    let handle = about.handle();
    let element = match element_of(kind) {
        Some(Element::Cq) => ibv_async_event__bindgen_ty_1 { cq: std::ptr::with_exposed_provenance_mut(handle) },
        Some(Element::Srq) => ibv_async_event__bindgen_ty_1 { srq: std::ptr::with_exposed_provenance_mut(handle) },
        Some(Element::Qp) => ibv_async_event__bindgen_ty_1 { qp: std::ptr::with_exposed_provenance_mut(handle) },
        // The device's only port.
        None => ibv_async_event__bindgen_ty_1 { port_num: 1 },
    };
    // SAFETY: a place for the result (contract above).
    unsafe { event.write(ibv_async_event { element, event_type: kind }) };
    Ok(())
}

/// `ibv_ack_async_event(3)`.
///
/// # Safety
///
/// `event` came from [`get_async_event`], and is acknowledged once.
pub(crate) unsafe fn ack_async_event(event: &ibv_async_event) {
    let place = match element_of(event.event_type) {
        Some(Element::Cq) => {
            // SAFETY: with this kind it is the member that was set.
            Place::of_cq(unsafe { event.element.cq })
        }
        Some(Element::Srq) => {
            // SAFETY: with these kinds it is the member that was set.
            Place::of_srq(unsafe { event.element.srq })
        }
        Some(Element::Qp) => {
            // SAFETY: with these kinds it is the member that was set.
            Place::of_qp(unsafe { event.element.qp })
        }
        None => return,
    };
    // SAFETY: not freed before its event is acknowledged (contract above), and nobody borrows these fields.
    unsafe { place.ack(1) };
}

enum Element {
    Cq,
    Srq,
    Qp,
}

/// What events of this kind are about. Nothing is acknowledged of those about ports and the device, as in libibverbs; there are none here.
fn element_of(kind: ibv_event_type) -> Option<Element> {
    match kind {
        IBV_EVENT_CQ_ERR => Some(Element::Cq),
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Some(Element::Srq),
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => Some(Element::Qp),
        _ => None,
    }
}
