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

use super::untaken::{Acks, Untaken};
use crate::rc::QpEvent;

/// What events are about: a queue pair, a completion queue or a shared receive queue. It is not freed while the program has an event of
/// it that it has not acknowledged (`ibv_get_async_event(3)`).
#[derive(Debug, Default)]
pub(crate) struct Subject {
    /// Where the program's structure is.
    pub(super) handle: AtomicUsize,
    acks: Acks,
}

impl Subject {
    /// The program acknowledges an event.
    pub(super) fn ack(&self) {
        self.acks.ack(1);
    }

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
        self.untaken.next(|(_, about)| &about.acks)
    }

    /// What they are about is destroyed, and no more are added: removes the events that the program did not take, and waits until it has
    /// acknowledged those that it took.
    pub(super) fn end(&self, about: &Arc<Subject>) {
        self.untaken.remove(|(_, of)| Arc::ptr_eq(of, about));
        about.acks.wait();
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
    use std::thread;

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
    fn events_that_nobody_took_go_with_what_they_are_about() {
        let (events, a, b) = (nonblocking(), Arc::default(), Arc::default());
        events.tell(IBV_EVENT_CQ_ERR, &a);
        events.tell(IBV_EVENT_QP_FATAL, &b);
        events.tell(IBV_EVENT_QP_FATAL, &a);
        events.end(&a);
        assert_eq!([kind(&events), kind(&events)], [Some(IBV_EVENT_QP_FATAL), None]);
    }

    #[test]
    fn end_waits_for_the_acknowledgement_of_every_event_that_was_taken() {
        let (events, about) = (nonblocking(), Arc::default());
        events.tell(IBV_EVENT_CQ_ERR, &about);
        events.tell(IBV_EVENT_QP_FATAL, &about);
        assert_eq!([kind(&events), kind(&events)], [Some(IBV_EVENT_CQ_ERR), Some(IBV_EVENT_QP_FATAL)]);
        let acked = AtomicUsize::new(0);
        let acked_at_the_end = thread::scope(|scope| {
            let ending = scope.spawn(|| {
                events.end(&about);
                acked.load(Ordering::SeqCst)
            });
            for _ in 0..2 {
                // Who would not wait has the processor for it.
                (0..1000).for_each(|_| thread::yield_now());
                acked.fetch_add(1, Ordering::SeqCst);
                about.ack();
            }
            ending.join().unwrap()
        });
        assert_eq!(acked_at_the_end, 2);
    }
}
