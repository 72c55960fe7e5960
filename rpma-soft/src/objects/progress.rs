//! What moves a connection: rounds of sending and receiving, and handing out what came of them.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rpma_sys::bindings::IBV_EVENT_QP_FATAL;

use super::async_events::number;
use super::connection::{Connection, State};
use super::cq::Entry;
use super::knock::knocked_in_vain;
use super::listener::Listener;
use super::memory::Lease;
use crate::cm::{Output, StreamEnd};
use crate::driver::{Moved, Source, caught, persist};
use crate::rc::{FlushJob, MemoryFault, QpState, Side};

/// How long a queue pair in the error state waits for a message that is half sent, before the stream is cut: its work cannot complete
/// before.
const HALF_SENT_LIMIT: Duration = Duration::from_millis(500);

impl Connection {
    /// Moves what can be moved, until nothing can.
    pub(super) fn run(&self, state: &mut State) {
        self.guarded(state, |state| self.rounds(state));
    }

    /// Does `work`. If it panics, by a bug of ours, the connection is given up: `None`.
    pub(super) fn guarded<T>(&self, state: &mut State, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        let done = caught(|| work(state));
        if done.is_none() {
            self.break_off(state);
        }
        done
    }

    /// The connection is in a state that nobody knows: ends it, as if the stream had ended.
    fn break_off(&self, state: &mut State) {
        let now = Instant::now();
        self.end_stream(state, StreamEnd::Closed);
        let flushed = caught(|| {
            if let Some(qp) = &mut state.qp {
                qp.core.move_to_error();
            }
            self.settle(state, now);
        });
        if flushed.is_none() {
            // Its work will not complete: its queues are in error, as when a completion is lost.
            state.broken = state.qp.take();
            for cq in state.broken.iter().flat_map(|qp| [&qp.send_cq, &qp.recv_cq]) {
                cq.fail();
            }
            let _ = caught(|| self.settle(state, now));
        }
        self.remind(state);
    }

    fn rounds(&self, state: &mut State) {
        let now = Instant::now();
        loop {
            let mut more = false;
            if let Some(stream) = &mut state.stream {
                match stream.run(state.qp.as_mut().map(|qp| &mut qp.core), &mut state.cm, now) {
                    Ok(Moved::Idle) => {}
                    Ok(Moved::More) => more = true,
                    Err(end) => self.end_stream(state, end),
                }
            }
            let again = self.settle(state, now);
            if more {
                // Others get their turn.
                self.run_soon();
            }
            if !again {
                break;
            }
        }
        self.remind(state);
    }

    /// The stream is over: drops it, and tells the connection manager.
    pub(super) fn end_stream(&self, state: &mut State, end: StreamEnd) {
        state.stream = None;
        let now = Instant::now();
        match end {
            StreamEnd::Refused => knocked_in_vain(state, now),
            _ => state.cm.stream_ended(now, end),
        }
    }

    /// Hands out what came out of the queue pair and the connection manager. Returns whether there is something to send.
    pub(super) fn settle(&self, state: &mut State, now: Instant) -> bool {
        let mut again = false;
        if let Some(qp) = &mut state.qp {
            let failed = qp.send_cq.has_failed() || qp.recv_cq.has_failed();
            if failed && qp.core.state() != QpState::Error {
                self.device.events.tell(IBV_EVENT_QP_FATAL, &qp.subject);
                qp.core.move_to_error();
            }
            if state.stream.is_none() && qp.core.state() == QpState::ReadyToSend {
                qp.core.transmit_to_nobody(now);
            }
            let in_error = qp.core.state() == QpState::Error;
            match &mut state.stream {
                Some(stream) if in_error => {
                    stream.give_back(&mut qp.core, now);
                    state.cut_at = stream.holds_work().then(|| state.cut_at.unwrap_or(now + HALF_SENT_LIMIT));
                }
                None if in_error && !qp.told_gone => {
                    qp.told_gone = true;
                    qp.core.peer_gone(now);
                }
                _ => state.cut_at = None,
            }
            while let Some(completion) = qp.core.poll_completion() {
                let cq = match completion.side {
                    Side::Send => &qp.send_cq,
                    Side::Recv => &qp.recv_cq,
                };
                cq.push(Entry { completion, qp_num: qp.number, of: Weak::clone(&self.me) });
            }
            while let Some(event) = qp.core.poll_event() {
                self.device.events.tell(number(event), &qp.subject);
            }
            while let Some(job) = qp.core.poll_flush_job() {
                let id = job.id;
                if !self.persist(job, qp.number) {
                    // Without a thread for it nothing is durable, and the peer is told so.
                    qp.core.flush_done(now, id, Err(MemoryFault));
                    again = true;
                }
            }
        }
        again | self.settle_cm(state)
    }

    /// Hands out what came out of the connection manager. Returns whether there is something to send.
    fn settle_cm(&self, state: &mut State) -> bool {
        let mut again = false;
        while let Some(output) = state.cm.poll() {
            match output {
                Output::Send(frame) => {
                    if let Some(stream) = &mut state.stream {
                        stream.send(frame);
                        again = true;
                    }
                }
                Output::Event(event) => self.tell(event),
                Output::Close => {
                    if let Some(stream) = state.stream.take() {
                        stream.close();
                    }
                    again = true;
                }
            }
        }
        again
    }

    /// Makes data durable elsewhere, and goes on when it is. False if there can be no thread for it.
    fn persist(&self, job: FlushJob<Lease>, qp_num: u32) -> bool {
        let me = Weak::clone(&self.me);
        let job = Box::new(move || {
            let FlushJob { id, lease, extent, .. } = job;
            let result = caught(|| lease.persist(extent)).unwrap_or(Err(MemoryFault));
            drop(lease);
            let Some(me) = me.upgrade() else { return };
            let mut state = me.state();
            me.guarded(&mut state, |state| {
                if let Some(qp) = state.qp.as_mut().filter(|qp| qp.number == qp_num) {
                    qp.core.flush_done(Instant::now(), id, result);
                }
                me.rounds(state);
            });
        });
        persist(job).is_ok()
    }

    /// Work was outstanding for the retry time, in vain. The program is told of the end, and then the work fails.
    fn peer_vanished(&self, state: &mut State, now: Instant) {
        if state.stream.is_some() {
            log::info!("the other end has made no progress for the retry time");
            self.end_stream(state, StreamEnd::Unreachable);
        }
        self.settle_cm(state);
        if let Some(qp) = &mut state.qp {
            qp.core.peer_gone(now);
        }
    }

    /// Ends the stream if the other end's machine has been silent for too long, and looks again when it could be.
    fn look(&self, state: &mut State, now: Instant) {
        let (Some(stream), true) = (&state.stream, state.look_at.is_some_and(|at| at <= now)) else { return };
        let left = state.vanished_after.saturating_sub(stream.silence());
        if left.is_zero() {
            log::info!("the other end's machine has shown no sign of life for {:?}", state.vanished_after);
            self.end_stream(state, StreamEnd::Unreachable);
        } else {
            state.look_at = Some(now + left);
        }
    }

    /// Has the driver come back at the next deadline.
    pub(super) fn remind(&self, state: &mut State) {
        let qp = state.qp.as_ref().and_then(|qp| qp.core.next_timeout());
        let look_at = state.look_at.filter(|_| state.stream.is_some());
        let knocking = state.knocking.and_then(|knocking| knocking.again);
        let knocked_at = state.listener.as_ref().and_then(Listener::deadline);
        let all = [qp, state.cm.deadline(), state.cut_at, look_at, knocking, knocked_at];
        let Some(next) = all.into_iter().flatten().min() else { return };
        // An earlier reminder comes, finds nothing due, and asks again: most deadlines only ever move back.
        if state.reminded.is_none_or(|reminded| next < reminded) {
            state.reminded = Some(next);
            self.driver.remind(self.token, next);
        }
    }
}

impl Source for Connection {
    fn ready(self: Arc<Self>, ends: bool) {
        let mut state = self.state();
        if state.listener.is_some() {
            return super::listener::ready(&self, state);
        }
        if let (Some(stream), true) = (&mut state.stream, ends) {
            stream.ends();
        }
        self.run(&mut state);
    }

    fn due(self: Arc<Self>, now: Instant) {
        let mut state = self.state();
        state.reminded = None;
        if state.listener.is_some() {
            return super::listener::ready(&self, state);
        }
        self.guarded(&mut state, |state| {
            self.knock_again(state, now);
            // What is here already is no silence.
            self.rounds(state);
            state.cm.handle_timeout(now);
            if state.qp.as_mut().is_some_and(|qp| qp.core.handle_timeout(now).is_err()) {
                self.peer_vanished(state, now);
            }
            self.look(state, now);
            if state.cut_at.is_some_and(|at| at <= now) {
                state.cut_at = None;
                self.end_stream(state, StreamEnd::Closed);
            }
            self.rounds(state);
        });
    }

    fn give_up(self: Arc<Self>) {
        self.break_off(&mut self.state());
    }
}
