//! Asynchronous events of a device.
#![expect(unsafe_code, reason = "calls verbs and reads the event's union")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::fd::{readable_while, set_nonblocking};
use super::{Context, Cq, Srq};
use crate::bindings::*;
use crate::ret::minus1_ret;

/// What an asynchronous event is about: `ibv_get_async_event(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncElement {
    /// The queue pair of this number.
    Qp(u32),
    /// A completion queue: ask [`AsyncEvent::is_about_cq`] which.
    Cq,
    /// A shared receive queue: ask [`AsyncEvent::is_about_srq`] which.
    Srq,
    /// The port of this number, counted from 1.
    Port(u32),
    /// The device as a whole, or something that we do not make.
    Device,
}

/// An asynchronous event. It is acknowledged already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Its kind, one of the constants `IBV_EVENT_*`.
    pub kind: ibv_event_type,
    /// What it is about.
    pub element: AsyncElement,
    /// The address of the queue that it is about: compared, never followed.
    address: usize,
}

impl AsyncEvent {
    /// Whether it is about this completion queue, which must have been there when the event was taken.
    #[must_use]
    pub fn is_about_cq(&self, cq: &Cq) -> bool {
        self.element == AsyncElement::Cq && self.address == cq.as_ptr().addr()
    }

    /// Whether it is about this shared receive queue, which must have been there when the event was taken.
    #[must_use]
    pub fn is_about_srq(&self, srq: &Srq) -> bool {
        self.element == AsyncElement::Srq && self.address == srq.as_ptr().addr()
    }
}

/// The asynchronous events of an open device.
///
/// A process has one stream of them per device: if there are several of these for one, each event is told to one of them.
#[derive(Debug)]
pub struct AsyncEvents {
    /// What is lent in place of the device's own descriptor.
    readable: OwnedFd,
    /// Taken and acknowledged under one lock, so that an event whose thread is slow holds up nobody for longer than this.
    taking: Mutex<()>,
    context: Arc<Context>,
}

impl AsyncEvents {
    /// The events of `context`, whose descriptor for them becomes non-blocking.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn of(context: &Arc<Context>) -> io::Result<Self> {
        context.check()?;
        // SAFETY: the context is live, and the field never changes.
        let fd = unsafe { (*context.raw().as_ptr()).async_fd };
        // SAFETY: the descriptor is open for as long as the context is, which is held here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        set_nonblocking(fd)?;
        let readable = readable_while(fd)?;
        Ok(Self { readable, taking: Mutex::new(()), context: Arc::clone(context) })
    }

    /// Takes an event, if there is one, and acknowledges it.
    ///
    /// # Errors
    ///
    /// As `ibv_get_async_event(3)`.
    pub fn take(&self) -> io::Result<Option<AsyncEvent>> {
        self.context.check()?;
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raw = ibv_async_event::default();
        let provider = self.context.provider();
        // SAFETY: the context is live, and `raw` is a valid place for the result.
        match minus1_ret(unsafe { provider.ibv_get_async_event(self.context.raw().as_ptr(), &raw mut raw) }) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(e) => return Err(e),
        }
        let event = read(&raw);
        // SAFETY: just taken, and acknowledged once.
        unsafe { provider.ibv_ack_async_event(&raw mut raw) };
        Ok(Some(event))
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// Copies what an unacknowledged event tells.
fn read(raw: &ibv_async_event) -> AsyncEvent {
    let (element, address) = match raw.event_type {
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: with these kinds this is the member that is set (`ibv_get_async_event(3)`).
            let qp = unsafe { raw.element.qp };
            // SAFETY: a queue pair is not destroyed before its events are acknowledged (`ibv_get_async_event(3)`).
            (AsyncElement::Qp(unsafe { (*qp).qp_num }), 0)
        }
        IBV_EVENT_CQ_ERR => {
            // SAFETY: with this kind this is the member that is set.
            let cq = unsafe { raw.element.cq };
            (AsyncElement::Cq, cq.addr())
        }
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: with these kinds this is the member that is set.
            let srq = unsafe { raw.element.srq };
            (AsyncElement::Srq, srq.addr())
        }
        IBV_EVENT_PORT_ACTIVE
        | IBV_EVENT_PORT_ERR
        | IBV_EVENT_LID_CHANGE
        | IBV_EVENT_PKEY_CHANGE
        | IBV_EVENT_SM_CHANGE
        | IBV_EVENT_CLIENT_REREGISTER
        | IBV_EVENT_GID_CHANGE => {
            // SAFETY: with these kinds this is the member that is set.
            let port = unsafe { raw.element.port_num };
            (AsyncElement::Port(u32::try_from(port).unwrap_or(0)), 0)
        }
        _ => (AsyncElement::Device, 0),
    };
    AsyncEvent { kind: raw.event_type, element, address }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_port_tell_its_number_and_no_others_do() {
        let told = |event_type| {
            let mut raw = ibv_async_event { event_type, ..Default::default() };
            raw.element.port_num = 2;
            let event = read(&raw);
            assert_eq!(event.kind, event_type);
            event.element
        };
        for kind in [
            IBV_EVENT_PORT_ACTIVE,
            IBV_EVENT_PORT_ERR,
            IBV_EVENT_LID_CHANGE,
            IBV_EVENT_PKEY_CHANGE,
            IBV_EVENT_SM_CHANGE,
            IBV_EVENT_CLIENT_REREGISTER,
            IBV_EVENT_GID_CHANGE,
        ] {
            assert_eq!(told(kind), AsyncElement::Port(2), "{kind}");
        }
        // What follows the kinds of today is about the device, as far as we know.
        for kind in [IBV_EVENT_DEVICE_FATAL, IBV_EVENT_WQ_FATAL, IBV_EVENT_WQ_FATAL + 1] {
            assert_eq!(told(kind), AsyncElement::Device, "{kind}");
        }
    }
}
