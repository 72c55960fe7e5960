//! Shared receive queues: what our threads share of them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rpma_sys::bindings::IBV_EVENT_SRQ_LIMIT_REACHED;

use super::async_events::{AsyncEvents, Subject};
use crate::driver::lock;
use crate::rc::{PdNumber, PostError, RecvWr, SharedReceives};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pd: PdNumber,
    max_sge: u32,
    state: Mutex<State>,
    events: Arc<AsyncEvents>,
    pub(super) subject: Arc<Subject>,
    /// How many queue pairs take from it.
    users: AtomicUsize,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<RecvWr>,
    capacity: u32,
    /// Slots whose completion was not polled yet, those of the queue included.
    used: u32,
    /// Fewer receives than this raise an event, once; 0: none.
    limit: u32,
}

/// Sizes of a queue: `ibv_srq_attr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SrqAttributes {
    /// Requests that it holds.
    pub(crate) max_wr: u32,
    /// Ranges of one request.
    pub(crate) max_sge: u32,
    /// The limit that is armed; 0: none.
    pub(crate) limit: u32,
}

/// The change does not fit the queue: EINVAL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DoesNotFit;

impl Srq {
    /// An empty one.
    pub(crate) fn new(pd: PdNumber, max_wr: u32, max_sge: u32, events: Arc<AsyncEvents>) -> Self {
        let state = State { queue: VecDeque::new(), capacity: max_wr, used: 0, limit: 0 };
        Self { pd, max_sge, state: Mutex::new(state), events, subject: Arc::default(), users: AtomicUsize::new(0) }
    }

    /// Posts a receive.
    pub(crate) fn post(&self, wr: RecvWr) -> Result<(), PostError> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::Sges { sges: wr.sges.len(), max: self.max_sge });
        }
        let mut state = lock(&self.state);
        if state.used >= state.capacity {
            return Err(PostError::QueueFull { capacity: state.capacity });
        }
        state.used += 1;
        state.queue.push_back(wr);
        Ok(())
    }

    /// Changes its size, its limit, or both.
    pub(crate) fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), DoesNotFit> {
        let mut state = lock(&self.state);
        let (max_wr, limit) = (max_wr.unwrap_or(state.capacity), limit.unwrap_or(state.limit));
        if max_wr < state.used || limit > max_wr {
            return Err(DoesNotFit);
        }
        state.capacity = max_wr;
        state.limit = limit;
        Ok(())
    }

    /// Its sizes.
    pub(crate) fn attributes(&self) -> SrqAttributes {
        let state = lock(&self.state);
        SrqAttributes { max_wr: state.capacity, max_sge: self.max_sge, limit: state.limit }
    }

    /// Whether it is of the device whose events these are.
    pub(crate) fn is_of(&self, events: &Arc<AsyncEvents>) -> bool {
        Arc::ptr_eq(&self.events, events)
    }

    /// A queue pair takes from it from now on.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// A queue pair takes from it no more.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether queue pairs take from it.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    /// It is destroyed: takes the events back that the program did not take, and returns how many it took.
    pub(crate) fn end_events(&self) -> u32 {
        self.events.end(&self.subject)
    }
}

impl SharedReceives for Srq {
    fn take(&self) -> Option<RecvWr> {
        let mut state = lock(&self.state);
        let wr = state.queue.pop_front()?;
        // As soft-RoCE: a limit is looked at when a receive is taken, and is used up when it is told of.
        if state.queue.len() < state.limit as usize {
            state.limit = 0;
            self.events.tell(IBV_EVENT_SRQ_LIMIT_REACHED, &self.subject);
        }
        Some(wr)
    }

    fn release(&self, slots: u32) {
        let mut state = lock(&self.state);
        state.used = state.used.saturating_sub(slots);
    }

    fn pd(&self) -> PdNumber {
        self.pd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(max_wr: u32) -> Srq {
        let events = AsyncEvents::new().unwrap();
        Srq::new(PdNumber(1), max_wr, 1, Arc::new(events))
    }

    fn recv(wr_id: u64) -> RecvWr {
        RecvWr { wr_id, sges: Vec::new() }
    }

    #[test]
    fn full_queue_takes_nothing_until_a_slot_is_given_back() {
        let srq = queue(2);
        (0..2).for_each(|wr_id| srq.post(recv(wr_id)).unwrap());
        let full = Err(PostError::QueueFull { capacity: 2 });
        assert_eq!(srq.post(recv(2)), full);
        assert_eq!(srq.take().unwrap().wr_id, 0);
        assert_eq!(srq.post(recv(2)), full);
        srq.release(1);
        srq.post(recv(2)).unwrap();
        assert_eq!([srq.take(), srq.take(), srq.take()].map(|wr| wr.map(|wr| wr.wr_id)), [Some(1), Some(2), None]);
    }

    #[test]
    fn limit_is_told_of_once_when_fewer_receives_are_left_and_again_when_it_is_set_anew() {
        let srq = queue(4);
        (0..4).for_each(|wr_id| srq.post(recv(wr_id)).unwrap());
        srq.modify(None, Some(3)).unwrap();
        let armed = |srq: &Srq| srq.attributes().limit;
        srq.take().unwrap();
        assert_eq!(armed(&srq), 3, "three are left");
        srq.take().unwrap();
        assert_eq!(armed(&srq), 0);
        assert_eq!(srq.events.next().unwrap().0, IBV_EVENT_SRQ_LIMIT_REACHED);
        srq.modify(None, Some(3)).unwrap();
        srq.take().unwrap();
        assert_eq!(srq.events.next().unwrap().0, IBV_EVENT_SRQ_LIMIT_REACHED);
    }

    #[test]
    fn size_that_does_not_hold_what_is_there_or_the_limit_is_refused() {
        let srq = queue(4);
        (0..2).for_each(|wr_id| srq.post(recv(wr_id)).unwrap());
        srq.take().unwrap();
        assert_eq!(srq.modify(Some(1), None), Err(DoesNotFit), "a slot is taken until its completion is polled");
        assert_eq!(srq.modify(Some(2), Some(3)), Err(DoesNotFit));
        srq.modify(Some(2), Some(2)).unwrap();
        assert_eq!(srq.attributes(), SrqAttributes { max_wr: 2, max_sge: 1, limit: 2 });
        assert_eq!(srq.modify(Some(1), None), Err(DoesNotFit));
    }

    #[test]
    fn request_with_more_ranges_than_granted_is_refused() {
        let sge = crate::rc::Sge { addr: 0, len_bytes: 0, lkey: 0 };
        let error = queue(1).post(RecvWr { wr_id: 0, sges: vec![sge; 2] });
        assert_eq!(error, Err(PostError::Sges { sges: 2, max: 1 }));
    }
}
