//! The queue pair: its states, and the program's side of it.

mod stream;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::completion::{Completion, Side};
use super::memory::{Access, Memory, MemoryFault};
use super::receive::{Receives, SharedReceives};
use super::requester::Requester;
use super::responder::{Arrival, Refused, Responder};
use super::transmit::{FlushJob, PeerVanished};
use super::{
    PostError, PostListError, QpConfig, QpEvent, QpState, RecvWr, RequesterConfig, ResponderConfig, SendWr, TransitionError,
    WcStatus,
};
use crate::wire::RnrTimer;

/// A reliable connected queue pair. See the [module](super) for how it is driven.
#[derive(Debug)]
pub struct RcQp<M: Memory> {
    memory: M,
    config: QpConfig,
    state: QpState,
    requester: Requester,
    responder: Responder<M::Lease>,
    receives: Receives,
    completions: VecDeque<Completion>,
    events: VecDeque<QpEvent>,
    /// Told already: that somebody asked, that no receive is taken any more.
    told: Told,
    /// The frames whose payload is due on the stream, and the requests behind the first of them, in order.
    incoming: VecDeque<Incoming<M::Lease>>,
    /// The frames of ours that are on their way into the stream, in order.
    outgoing: VecDeque<Outgoing>,
    /// Whose turn it is where both a response and a request could go.
    request_next: bool,
}

/// What is told once between two resets.
#[derive(Debug, Default)]
struct Told {
    established: bool,
    last_receive: bool,
}

/// A frame that is not dealt with: its payload is due, or that of one before it.
#[derive(Debug)]
struct Incoming<L> {
    due: bool,
    placed: Result<(), MemoryFault>,
    what: Arriving<L>,
}

#[derive(Debug)]
enum Arriving<L> {
    Request(Arrival<L>),
    /// The oldest read's data, going where it belongs.
    Read,
    /// Data that does not get where it belongs.
    Refused(WcStatus),
    /// Data that nobody waits for.
    Dropped,
}

/// What a frame of ours is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    Request,
    Response,
}

impl<M: Memory> RcQp<M> {
    /// A queue pair in state [`Reset`](QpState::Reset). With `shared`, receives come from there.
    pub fn new(config: QpConfig, memory: M, shared: Option<Arc<dyn SharedReceives>>) -> Self {
        Self {
            memory,
            config,
            state: QpState::Reset,
            requester: Requester::new(),
            responder: Responder::new(),
            receives: Receives::new(shared),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            told: Told::default(),
            incoming: VecDeque::new(),
            outgoing: VecDeque::new(),
            request_next: false,
        }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    // ---- states: `ibv_modify_qp(3)` ----

    /// To [`Init`](QpState::Init), from there or from [`Reset`](QpState::Reset).
    ///
    /// # Errors
    ///
    /// [`TransitionError`] from any other state.
    pub fn to_init(&mut self) -> Result<(), TransitionError> {
        self.step(QpState::Init, &[QpState::Reset, QpState::Init])
    }

    /// To [`ReadyToReceive`](QpState::ReadyToReceive), from [`Init`](QpState::Init).
    ///
    /// # Errors
    ///
    /// [`TransitionError`] from any other state.
    pub fn to_ready_to_receive(&mut self, config: ResponderConfig) -> Result<(), TransitionError> {
        self.step(QpState::ReadyToReceive, &[QpState::Init])?;
        self.responder.configure(config);
        Ok(())
    }

    /// To [`ReadyToSend`](QpState::ReadyToSend), from [`ReadyToReceive`](QpState::ReadyToReceive).
    ///
    /// # Errors
    ///
    /// [`TransitionError`] from any other state.
    pub fn to_ready_to_send(&mut self, config: RequesterConfig) -> Result<(), TransitionError> {
        self.step(QpState::ReadyToSend, &[QpState::ReadyToReceive])?;
        self.requester.configure(config);
        Ok(())
    }

    /// Sets what the peer may ask for: `ibv_qp_attr::qp_access_flags`. Everything, after it was made or reset. A request that is not
    /// allowed is refused as an invalid one.
    pub fn allow(&mut self, allowed: Access) {
        self.responder.allowed = allowed;
    }

    /// Sets how long a peer is told to wait where there is no receive: `ibv_qp_attr::min_rnr_timer`.
    pub fn set_rnr_timer(&mut self, timer: RnrTimer) {
        self.responder.config.rnr_timer = timer;
    }

    /// To [`Error`](QpState::Error), from any state: everything posted completes with a flush error, and the peer gets no more answers.
    pub fn move_to_error(&mut self) {
        self.enter_error(None, false);
    }

    /// To [`Reset`](QpState::Reset), from any state: everything is forgotten, completions that were not polled included. The driver
    /// moves no data for it any more, and removes its completions from completion queues (their slots are free already).
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.requester = Requester::new();
        self.responder.reset();
        self.receives.reset();
        self.completions.clear();
        self.events.clear();
        self.told = Told::default();
        self.incoming.clear();
        self.outgoing.clear();
    }

    fn step(&mut self, to: QpState, from: &[QpState]) -> Result<(), TransitionError> {
        if !from.contains(&self.state) {
            return Err(TransitionError { from: self.state, to });
        }
        self.state = to;
        Ok(())
    }

    // ---- the program's side ----

    /// Posts send requests in order: `ibv_post_send(3)`. In the error state they complete with a flush error.
    ///
    /// # Errors
    ///
    /// [`PostListError`] at the first that cannot be taken.
    pub fn post_send(&mut self, list: impl IntoIterator<Item = SendWr>) -> Result<(), PostListError> {
        let posted = list.into_iter().enumerate().try_for_each(|(index, wr)| {
            self.check_sendable()
                .and_then(|()| self.requester.post(wr, &self.config))
                .map_err(|error| PostListError { index, error })
        });
        self.flush_when_idle();
        posted
    }

    /// Posts all of the send requests or none, as `ibv_wr_complete` does (`ibv_wr_start(3)`).
    ///
    /// # Errors
    ///
    /// [`PostListError`]; nothing is posted.
    pub fn post_send_batch(&mut self, list: Vec<SendWr>) -> Result<(), PostListError> {
        let at = |index| move |error| PostListError { index, error };
        self.check_sendable().map_err(at(0))?;
        for (index, wr) in list.iter().enumerate() {
            Requester::check(wr, &self.config).map_err(at(index))?;
        }
        self.requester.check_room(list.len(), self.config.capacity.send_wr).map_err(at(0))?;
        self.post_send(list)
    }

    /// Posts a receive: `ibv_post_recv(3)`. In the error state it completes with a flush error.
    ///
    /// # Errors
    ///
    /// [`PostError`].
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State { state: self.state });
        }
        self.receives.post(wr, &self.config.capacity)?;
        self.flush_when_idle();
        Ok(())
    }

    /// The oldest completion. It goes to the completion queue of its [side](Completion::side).
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The oldest event, which is told after the completions that were there before it.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// Gives back the slots of a completion, once the program has polled it. As on hardware, a queue is full until then; soft-RoCE
    /// frees a slot as soon as its work is done.
    pub fn release(&mut self, completion: &Completion) {
        match completion.side {
            Side::Send => self.requester.release(completion.slots),
            Side::Recv => self.receives.release(completion.slots),
        }
    }

    /// Requests can be posted when the peer is known (rxe: EINVAL below RTS).
    fn check_sendable(&self) -> Result<(), PostError> {
        match self.state {
            QpState::ReadyToSend | QpState::Error => Ok(()),
            QpState::Reset | QpState::Init | QpState::ReadyToReceive => Err(PostError::State { state: self.state }),
        }
    }

    // ---- durability ----

    /// A persistent flush to carry out; there is one at a time, in order.
    pub fn poll_flush_job(&mut self) -> Option<FlushJob<M::Lease>> {
        self.responder.poll_flush_job()
    }

    /// A flush ended: the data is durable, or could not be made so. One that nobody waits for any more is ignored.
    pub fn flush_done(&mut self, now: Instant, id: u64, result: Result<(), MemoryFault>) {
        if self.responder.flush_done(id, result.is_err()) {
            self.advance(now);
        }
    }

    // ---- time ----

    /// When [`handle_timeout`](Self::handle_timeout) has something to do. It may be called earlier.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let requester = if self.state == QpState::ReadyToSend { self.requester.next_timeout() } else { None };
        [requester, self.responder.next_timeout()].into_iter().flatten().min()
    }

    /// Does what is due. What is readable on the stream should be handled first, or a process that slept takes its own silence for the
    /// peer's.
    ///
    /// # Errors
    ///
    /// [`PeerVanished`]: the retry time is over, and nothing else has changed. The driver ends the stream, tells the program, and then calls
    /// [`peer_gone`](Self::peer_gone), so that the program learns of the end before its work fails.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), PeerVanished> {
        self.responder.handle_timeout(now);
        // What is held back behind a flush of ours holds back the answers behind it.
        if self.responder.atomic_waits() {
            self.requester.progress(now);
        }
        if self.state == QpState::ReadyToSend && self.requester.handle_timeout(now) { Err(PeerVanished) } else { Ok(()) }
    }

    // ---- inside ----

    /// How many requests, receives and answers are held, completions aside. 0 after everything is over.
    #[must_use]
    pub fn held(&self) -> usize {
        self.requester.posted() + self.receives.posted() + self.responder.held() + self.incoming.len()
    }

    fn advance(&mut self, now: Instant) {
        if let Err(Refused { told }) = self.responder.advance(now, &self.memory, &mut self.completions) {
            self.events.extend(told);
            self.enter_error(None, true);
        }
    }

    /// A request that could not be sent completes when it is the oldest.
    fn check_local_failure(&mut self) {
        if let Some(status) = self.requester.local_failure() {
            self.enter_error(Some(status), false);
        }
    }

    /// To the error state. `cause` is how our oldest request ended. With `answer` the peer is still told what led there.
    fn enter_error(&mut self, cause: Option<WcStatus>, answer: bool) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        if let Some(status) = cause {
            self.requester.fail_head(status);
        }
        self.responder.close(answer, &mut self.completions);
        self.flush_when_idle();
    }

    /// In the error state, completes what is posted, except while memory of that queue is in use: a program that has its completion
    /// may use the memory for something else.
    fn flush_when_idle(&mut self) {
        if self.state != QpState::Error {
            return;
        }
        let filling_read = self.incoming.iter().any(|i| matches!(i.what, Arriving::Read | Arriving::Refused(_)));
        if !self.requester.is_sending() && !filling_read {
            self.requester.flush(&mut self.completions);
        }
        let filling_receive =
            self.incoming.iter().any(|i| matches!(&i.what, Arriving::Request(arrival) if arrival.holds_receive()));
        if !filling_receive {
            self.receives.flush(&mut self.completions);
            if self.receives.is_shared() && !std::mem::replace(&mut self.told.last_receive, true) {
                self.events.push_back(QpEvent::LastReceive);
            }
        }
    }
}
