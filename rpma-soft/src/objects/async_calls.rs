//! Asynchronous events, as the program sees them.
#![expect(unsafe_code, reason = "fills and reads events of verbs")]

use std::io;
use std::sync::Arc;

use rpma_sys::bindings::*;

use super::async_events::{AsyncEvents, Subject};
use super::{cq_calls, qp, srq_calls};

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
        Element::Cq => ibv_async_event__bindgen_ty_1 { cq: std::ptr::with_exposed_provenance_mut(handle) },
        Element::Srq => ibv_async_event__bindgen_ty_1 { srq: std::ptr::with_exposed_provenance_mut(handle) },
        Element::Qp => ibv_async_event__bindgen_ty_1 { qp: std::ptr::with_exposed_provenance_mut(handle) },
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
    // A copy: a thread that waits to destroy the object may do so as soon as this is acknowledged.
    let about: Arc<Subject> = match element_of(event.event_type) {
        Element::Cq => {
            // SAFETY: with this kind it is the member that was set.
            let cq = unsafe { event.element.cq };
            // SAFETY: not freed before its event is acknowledged (contract above).
            unsafe { cq_calls::subject(cq) }
        }
        Element::Srq => {
            // SAFETY: with these kinds it is the member that was set.
            let srq = unsafe { event.element.srq };
            // SAFETY: as above.
            unsafe { srq_calls::subject(srq) }
        }
        Element::Qp => {
            // SAFETY: with every other kind that there is here it is the member that was set.
            let qp = unsafe { event.element.qp };
            // SAFETY: as above.
            unsafe { qp::subject(qp) }
        }
    };
    about.ack();
}

enum Element {
    Cq,
    Srq,
    Qp,
}

/// What events of this kind are about; there are none about ports and the device here.
fn element_of(kind: ibv_event_type) -> Element {
    match kind {
        IBV_EVENT_CQ_ERR => Element::Cq,
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Element::Srq,
        _ => Element::Qp,
    }
}
