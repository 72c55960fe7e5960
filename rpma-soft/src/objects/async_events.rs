//! Asynchronous events: the queue behind the device's descriptor for them, and what they are about.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rpma_sys::bindings::{
    IBV_EVENT_COMM_EST, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR,
    ibv_event_type,
};

use super::untaken::{Told, Untaken};
use crate::rc::QpEvent;

/// What events are about: a queue pair, a completion queue or a shared receive queue. It is not freed while the program has an event of
/// it that it has not acknowledged (`ibv_get_async_event(3)`).
#[derive(Debug, Default)]
pub(crate) struct Subject {
    /// Where the program's structure is.
    pub(super) handle: AtomicUsize,
    told: Told,
}

impl Subject {
    /// Where the program's structure is, as a number.
    pub(super) fn handle(&self) -> usize {
        self.handle.load(Ordering::Acquire)
    }
}

/// The asynchronous events of a device that the program has not taken.
///
/// An event that waits already is not added again, so that there are no more of them than objects times kinds.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    untaken: Untaken<(ibv_event_type, Arc<Subject>)>,
}

impl AsyncEvents {
    /// None yet.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { untaken: Untaken::new()? })
    }

    /// Their descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.untaken.fd()
    }

    /// Adds an event.
    pub(crate) fn tell(&self, kind: ibv_event_type, about: &Arc<Subject>) {
        self.untaken.push_unless((kind, Arc::clone(about)), |(waiting, of)| *waiting == kind && Arc::ptr_eq(of, about));
    }

    /// Takes the oldest event, and waits for one unless the descriptor is non-blocking. It counts as told to the program.
    pub(super) fn next(&self) -> io::Result<(ibv_event_type, Arc<Subject>)> {
        self.untaken.next(|(_, about)| about.told.one())
    }

    /// What they are about is destroyed, and no more are added: removes the events that the program did not take, and returns how many it
    /// took.
    pub(super) fn end(&self, about: &Arc<Subject>) -> u32 {
        self.untaken.remove(|(_, of)| Arc::ptr_eq(of, about));
        about.told.so_far()
    }
}

/// The number that verbs have for it.
pub(super) fn number(event: QpEvent) -> ibv_event_type {
    match event {
        QpEvent::CommunicationEstablished => IBV_EVENT_COMM_EST,
        QpEvent::InvalidRequest => IBV_EVENT_QP_REQ_ERR,
        QpEvent::AccessViolation => IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::Fatal => IBV_EVENT_QP_FATAL,
        QpEvent::LastReceive => IBV_EVENT_QP_LAST_WQE_REACHED,
    }
}

#[cfg(test)]
mod tests {
    use rpma_sys::bindings::IBV_EVENT_CQ_ERR;

    use super::*;

    fn nonblocking() -> AsyncEvents {
        let events = AsyncEvents::new().unwrap();
        let flags = rustix::fs::fcntl_getfl(&events.untaken).unwrap();
        rustix::fs::fcntl_setfl(&events.untaken, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        events
    }

    fn kind(events: &AsyncEvents) -> Option<ibv_event_type> {
        match events.next() {
            Ok((kind, _)) => Some(kind),
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                None
            }
        }
    }

    #[test]
    fn events_come_in_order_and_one_that_waits_already_comes_once() {
        let (events, a, b) = (nonblocking(), Arc::default(), Arc::default());
        events.tell(IBV_EVENT_CQ_ERR, &a);
        events.tell(IBV_EVENT_QP_FATAL, &b);
        events.tell(IBV_EVENT_CQ_ERR, &a);
        events.tell(IBV_EVENT_CQ_ERR, &b);
        assert_eq!([kind(&events), kind(&events)], [Some(IBV_EVENT_CQ_ERR), Some(IBV_EVENT_QP_FATAL)]);
        events.tell(IBV_EVENT_CQ_ERR, &a);
        assert_eq!([kind(&events), kind(&events), kind(&events)], [Some(IBV_EVENT_CQ_ERR), Some(IBV_EVENT_CQ_ERR), None]);
    }

    #[test]
    fn events_that_nobody_took_go_with_what_they_are_about_and_those_that_were_taken_are_counted() {
        let (events, a, b) = (nonblocking(), Arc::default(), Arc::default());
        events.tell(IBV_EVENT_CQ_ERR, &a);
        events.tell(IBV_EVENT_QP_FATAL, &b);
        events.tell(IBV_EVENT_QP_FATAL, &a);
        assert_eq!(kind(&events), Some(IBV_EVENT_CQ_ERR));
        assert_eq!(events.end(&a), 1);
        assert_eq!([kind(&events), kind(&events)], [Some(IBV_EVENT_QP_FATAL), None]);
    }
}
