//! Completion queues and completion channels: what our threads share of them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rpma_sys::bindings::IBV_EVENT_CQ_ERR;

use super::async_events::{AsyncEvents, Subject};
use super::connection::Connection;
use super::untaken::{Told, Untaken};
use crate::driver::lock;
use crate::rc::Completion;

/// How many connections a poll of an empty queue looks after. With more, the progress thread is better at it.
const POLLED: usize = 4;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    state: Mutex<State>,
    told: Told,
    channel: Option<Arc<CompChannel>>,
    /// A completion was lost: nothing can be relied on any more.
    failed: AtomicBool,
    /// The queue pairs that complete here.
    users: Mutex<Vec<(u32, Weak<Connection>)>>,
    asynchronous: Arc<AsyncEvents>,
    /// With where the program's structure is.
    pub(super) subject: Arc<Subject>,
}

#[derive(Debug, Default)]
struct State {
    capacity: usize,
    entries: VecDeque<Entry>,
    armed: Armed,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

/// A completion that the program has not polled.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What ended.
    pub(crate) completion: Completion,
    /// On which queue pair.
    pub(crate) qp_num: u32,
    /// Whose it is.
    pub(crate) of: Weak<Connection>,
}

impl Cq {
    /// An empty one.
    pub(crate) fn new(capacity: usize, channel: Option<Arc<CompChannel>>, asynchronous: Arc<AsyncEvents>) -> Self {
        Self {
            state: Mutex::new(State { capacity, ..State::default() }),
            told: Told::default(),
            channel,
            failed: AtomicBool::new(false),
            users: Mutex::default(),
            asynchronous,
            subject: Arc::default(),
        }
    }

    /// Adds a completion. If there is no room it is lost, and the queue is in error, as on hardware.
    pub(crate) fn push(self: &Arc<Self>, entry: Entry) {
        let mut state = lock(&self.state);
        let wakes = match state.armed {
            Armed::No => false,
            Armed::Solicited => entry.completion.solicited,
            Armed::Any => true,
        };
        let full = state.entries.len() >= state.capacity || self.has_failed();
        if !full {
            state.entries.push_back(entry);
        }
        if let (true, Some(channel)) = (wakes && !full, &self.channel) {
            state.armed = Armed::No;
            channel.push(Arc::clone(self));
        }
        let capacity = state.capacity;
        drop(state);
        // Whoever waits is woken by that.
        if full && self.fail() {
            log::error!("a completion queue of {} overflowed: its queue pairs are in error", capacity);
        }
    }

    /// A completion is lost: the queue and its queue pairs are in error. False if it is so already.
    pub(crate) fn fail(self: &Arc<Self>) -> bool {
        // First: whoever is woken looks.
        let is_news = !self.failed.swap(true, Ordering::AcqRel);
        let mut state = lock(&self.state);
        if let (true, Some(channel)) = (state.armed != Armed::No, &self.channel) {
            state.armed = Armed::No;
            channel.push(Arc::clone(self));
        }
        drop(state);
        if !is_news {
            return false;
        }
        self.asynchronous.tell(IBV_EVENT_CQ_ERR, &self.subject);
        let users: Vec<_> = lock(&self.users).iter().map(|(_, of)| Weak::clone(of)).collect();
        // They look at the queue on their next round.
        users.iter().filter_map(Weak::upgrade).for_each(|of| of.run_soon());
        true
    }

    /// Whether a completion was lost.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Takes up to `max` completions, and gives their slots back.
    pub(crate) fn poll(&self, max: usize) -> Vec<Entry> {
        let taken = self.take(max);
        if !taken.is_empty() {
            Self::release(&taken);
            return taken;
        }
        self.progress();
        let taken = self.take(max);
        Self::release(&taken);
        taken
    }

    fn take(&self, max: usize) -> Vec<Entry> {
        let mut state = lock(&self.state);
        let count = max.min(state.entries.len());
        state.entries.drain(..count).collect()
    }

    fn release(taken: &[Entry]) {
        for entry in taken {
            if let Some(of) = entry.of.upgrade() {
                of.release(entry);
            }
        }
    }

    /// The thread that polls moves data on the spot.
    fn progress(&self) {
        let users: Vec<_> = {
            let users = lock(&self.users);
            if users.len() > POLLED {
                return;
            }
            users.iter().filter_map(|(_, of)| of.upgrade()).collect()
        };
        for of in users {
            of.progress();
        }
    }

    /// Gives it room for `capacity` completions: `ibv_resize_cq(3)`. False if there are more already.
    pub(crate) fn resize(&self, capacity: usize) -> bool {
        let mut state = lock(&self.state);
        let fits = state.entries.len() <= capacity;
        if fits {
            state.capacity = capacity;
        }
        fits
    }

    /// Asks for an event with the next completion, or the next solicited one: `ibv_req_notify_cq(3)`.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut state = lock(&self.state);
        state.armed = match (state.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
    }

    /// A queue pair completes here from now on.
    pub(crate) fn attach(&self, qp_num: u32, of: Weak<Connection>) {
        lock(&self.users).push((qp_num, of));
    }

    /// A queue pair is destroyed: what the program has not polled of it is gone.
    pub(crate) fn detach(&self, qp_num: u32) {
        lock(&self.users).retain(|(user, _)| *user != qp_num);
        self.forget(qp_num);
    }

    /// A queue pair is reset: what the program has not polled of it is gone.
    pub(crate) fn forget(&self, qp_num: u32) {
        lock(&self.state).entries.retain(|entry| entry.qp_num != qp_num);
    }

    /// Whether queue pairs complete here.
    pub(crate) fn is_used(&self) -> bool {
        !lock(&self.users).is_empty()
    }

    /// It is destroyed, and has no more events: takes those back that the program did not take, and returns how many it took.
    pub(crate) fn end_events(&self) -> EventsTold {
        if let Some(channel) = &self.channel {
            channel.remove(self);
        }
        EventsTold { completion: self.told.so_far(), asynchronous: self.asynchronous.end(&self.subject) }
    }
}

/// How many of its events the program took, and has to acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventsTold {
    /// On its channel.
    pub(crate) completion: u32,
    /// On the device's descriptor.
    pub(crate) asynchronous: u32,
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct CompChannel {
    untaken: Untaken<Arc<Cq>>,
}

impl CompChannel {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { untaken: Untaken::new()? })
    }

    /// Its descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.untaken.fd()
    }

    fn push(&self, cq: Arc<Cq>) {
        self.untaken.push(cq);
    }

    fn remove(&self, cq: &Cq) {
        self.untaken.remove(|waiting| std::ptr::eq(&raw const **waiting, cq));
    }

    /// Takes the oldest event, and waits for one unless the descriptor is non-blocking. It counts as told to the program.
    pub(crate) fn next(&self) -> io::Result<Arc<Cq>> {
        self.untaken.next(|cq| cq.told.one())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rc::{Side, WcOpcode, WcStatus};

    fn entry(wr_id: u64, solicited: bool) -> Entry {
        let completion = Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            side: Side::Recv,
            solicited,
            slots: 1,
        };
        Entry { completion, qp_num: u32::try_from(wr_id % 2).unwrap(), of: Weak::new() }
    }

    fn none() -> Arc<AsyncEvents> {
        Arc::new(AsyncEvents::new().unwrap())
    }

    fn nonblocking() -> Arc<CompChannel> {
        let channel = CompChannel::new().unwrap();
        let flags = rustix::fs::fcntl_getfl(&channel.untaken).unwrap();
        rustix::fs::fcntl_setfl(&channel.untaken, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        Arc::new(channel)
    }

    fn polled(cq: &Cq, max: usize) -> Vec<u64> {
        cq.poll(max).iter().map(|entry| entry.completion.wr_id).collect()
    }

    #[test]
    fn armed_queue_raises_one_event_with_the_next_completion() {
        let channel = nonblocking();
        let cq = Arc::new(Cq::new(8, Some(Arc::clone(&channel)), none()));
        cq.push(entry(1, false));
        assert!(channel.next().is_err());
        cq.arm(false);
        cq.push(entry(2, false));
        cq.push(entry(3, false));
        assert!(Arc::ptr_eq(&channel.next().unwrap(), &cq));
        assert_eq!(channel.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(polled(&cq, 2), [1, 2]);
        assert_eq!(polled(&cq, 2), [3]);
        assert_eq!(cq.end_events(), EventsTold { completion: 1, asynchronous: 0 });
    }

    #[test]
    fn queue_armed_for_solicited_completions_waits_for_one_and_a_later_wish_for_any_prevails() {
        let channel = nonblocking();
        let cq = Arc::new(Cq::new(8, Some(Arc::clone(&channel)), none()));
        cq.arm(true);
        cq.push(entry(1, false));
        assert!(channel.next().is_err());
        cq.push(entry(2, true));
        channel.next().unwrap();
        cq.arm(false);
        cq.arm(true);
        cq.push(entry(3, false));
        channel.next().unwrap();
        assert_eq!(cq.end_events(), EventsTold { completion: 2, asynchronous: 0 });
    }

    #[test]
    fn full_queue_loses_what_comes_and_is_in_error_for_ever() {
        let events = none();
        let cq = Arc::new(Cq::new(2, None, Arc::clone(&events)));
        (0..3).for_each(|wr_id| cq.push(entry(wr_id, false)));
        assert!(cq.has_failed());
        assert_eq!(polled(&cq, 8), [0, 1]);
        cq.push(entry(4, false));
        assert_eq!(polled(&cq, 8), []);
        let (kind, about) = events.next().unwrap();
        assert_eq!((kind, Arc::ptr_eq(&about, &cq.subject)), (IBV_EVENT_CQ_ERR, true));
        assert_eq!(cq.end_events(), EventsTold { completion: 0, asynchronous: 1 });
    }

    #[test]
    fn queue_is_made_larger_while_it_is_used_and_never_smaller_than_what_it_holds() {
        let cq = Arc::new(Cq::new(2, None, none()));
        (0..2).for_each(|wr_id| cq.push(entry(wr_id, false)));
        assert!(!cq.resize(1));
        assert!(cq.resize(3));
        cq.push(entry(2, false));
        assert!(!cq.has_failed());
        assert_eq!(polled(&cq, 2), [0, 1]);
        assert!(cq.resize(1));
        cq.push(entry(3, false));
        assert!(cq.has_failed());
        assert_eq!(polled(&cq, 8), [2]);
    }

    #[test]
    fn events_and_completions_that_nobody_took_go_with_their_objects() {
        let channel = nonblocking();
        let cq = Arc::new(Cq::new(8, Some(Arc::clone(&channel)), none()));
        cq.arm(false);
        (0..4).for_each(|wr_id| cq.push(entry(wr_id, false)));
        cq.detach(0);
        assert_eq!(polled(&cq, 8), [1, 3]);
        assert_eq!(cq.end_events(), EventsTold { completion: 0, asynchronous: 0 });
        assert_eq!(channel.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
