//! What goes in and out beside the stream: frames, and payload that the driver moves.

use std::time::Instant;

use super::{Arriving, Incoming, Outgoing, RcQp};
use crate::rc::memory::{Memory, MemoryFault};
use crate::rc::requester::Answered;
use crate::rc::responder::{Admitted, event_of};
use crate::rc::transmit::{Intake, Payload, ProtocolError, Transmit};
use crate::rc::{QpEvent, QpState, WcStatus};
use crate::wire::{Frame, Request, Response, ResponseOp};

impl<M: Memory> RcQp<M> {
    /// Whether `request` has to wait with what comes behind it: its payload would be in place before an atomic operation that was asked
    /// for earlier is carried out (IBTA volume 1, C9-28). It need not any more when payload that was due is there, or a flush has ended.
    pub fn holds_back(&self, request: &Request) -> bool {
        let is_atomic =
            |incoming: &Incoming<M::Lease>| matches!(&incoming.what, Arriving::Request(arrival) if arrival.is_atomic());
        request.payload_bytes() != 0 && (self.responder.atomic_waits() || self.incoming.iter().any(is_atomic))
    }

    /// A request of the peer's arrived, which need not be [held back](Self::holds_back). The payload of frames before it may be due still: then it is carried out once that is there. How
    /// many are handed in so is what bounds the memory that they take.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`]: the queue pair is in the error state, and the connection is to be cut.
    pub fn handle_request(&mut self, now: Instant, request: Request) -> Result<Intake<M::Lease>, ProtocolError> {
        self.requester.progress(now);
        let has_payload = request.payload_bytes() != 0;
        if !matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend) {
            return Ok(self.discard(has_payload));
        }
        if self.state == QpState::ReadyToReceive && !std::mem::replace(&mut self.told.established, true) {
            self.events.push_back(QpEvent::CommunicationEstablished);
        }
        let admitted = self.responder.admit(request, &self.memory, &self.config, &mut self.receives);
        let (intake, arrival) = match admitted {
            Ok(Admitted::Yes(ranges, arrival)) => (Intake::Fill(ranges), arrival),
            Ok(Admitted::No(arrival)) => (Intake::Discard, arrival),
            Ok(Admitted::Dropped) => return Ok(self.discard(has_payload)),
            Err(error) => {
                self.enter_error(None, false);
                return Err(error);
            }
        };
        self.incoming.push_back(Incoming { due: has_payload, placed: Ok(()), what: Arriving::Request(arrival) });
        self.settle_incoming(now);
        Ok(if has_payload { intake } else { Intake::None })
    }

    /// A response of the peer's arrived, and no payload before it is due.
    ///
    /// # Errors
    ///
    /// As for [`handle_request`](Self::handle_request); the oldest request completes as [`WcStatus::BadResponse`].
    pub fn handle_response(&mut self, now: Instant, response: Response) -> Result<Intake<M::Lease>, ProtocolError> {
        if !self.incoming.is_empty() {
            return Err(ProtocolError::PayloadDue);
        }
        let has_payload = response.payload_bytes() != 0;
        match self.state {
            QpState::ReadyToSend => {}
            // Nothing was asked.
            QpState::ReadyToReceive => {
                self.enter_error(None, false);
                return Err(ProtocolError::UnexpectedResponse { msn: response.msn });
            }
            QpState::Reset | QpState::Init | QpState::Error => return Ok(self.discard(has_payload)),
        }
        match self.requester.handle_response(now, response, &self.memory, &self.config, &mut self.completions) {
            Ok(Answered::Done) => {
                self.check_local_failure();
                Ok(Intake::None)
            }
            Ok(Answered::Fill(ranges)) => {
                self.await_payload(Arriving::Read);
                Ok(Intake::Fill(ranges))
            }
            Ok(Answered::Refuse(status)) => {
                self.await_payload(Arriving::Refused(status));
                Ok(Intake::Discard)
            }
            Ok(Answered::Failed(status)) => {
                self.enter_error(Some(status), false);
                Ok(Intake::None)
            }
            Err(error) => {
                let cause = self.requester.awaits_answer().then_some(WcStatus::BadResponse);
                self.enter_error(cause, false);
                Err(error)
            }
        }
    }

    /// The oldest payload that was due is off the stream, and nothing of the driver's touches its memory any more. `Err` if it was to be
    /// placed and could not be; then nothing of what was due behind it may have been placed, or be placed still.
    pub fn payload_done(&mut self, now: Instant, placed: Result<(), MemoryFault>) {
        self.requester.progress(now);
        let Some(first) = self.incoming.front_mut() else { return };
        first.due = false;
        first.placed = placed;
        self.settle_incoming(now);
    }

    /// The next frame for the stream. How many are taken before [`transmit_done`](Self::transmit_done) is told of the first is what bounds
    /// the memory that they take.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<M::Lease>> {
        // By turns, so that neither a peer that reads without end starves our requests nor we its answers.
        if self.request_next
            && let Some(request) = self.poll_request(now)
        {
            self.request_next = false;
            return Some(request);
        }
        if let Some(response) = self.poll_response() {
            self.request_next = true;
            return Some(response);
        }
        self.poll_request(now)
    }

    fn poll_request(&mut self, now: Instant) -> Option<Transmit<M::Lease>> {
        if self.state != QpState::ReadyToSend {
            return None;
        }
        let transmit = self.requester.poll_transmit(now, &self.memory, self.config.pd);
        self.check_local_failure();
        if transmit.is_some() {
            self.outgoing.push_back(Outgoing::Request);
        }
        transmit
    }

    fn poll_response(&mut self) -> Option<Transmit<M::Lease>> {
        // In the error state too: the answers that lead up to a refusal.
        let transmit = match self.responder.poll_transmit(&self.memory, &self.config)? {
            Ok(transmit) => transmit,
            Err(refusal) => {
                if let (ResponseOp::Nak(nak), true) = (refusal.op, self.state != QpState::Error) {
                    self.events.extend(event_of(nak));
                }
                self.enter_error(None, false);
                // If it was in the error state already, the answers behind this one are void all the same.
                self.responder.close(false, &mut self.completions);
                Transmit { frame: Frame::Response(refusal), payload: Payload::None }
            }
        };
        self.outgoing.push_back(Outgoing::Response);
        Some(transmit)
    }

    /// The oldest frame from [`poll_transmit`](Self::poll_transmit) is in the stream to its last byte, or never will be, and nothing of
    /// the driver's touches its memory any more. To be called before the next response is handled.
    pub fn transmit_done(&mut self, now: Instant) {
        match self.outgoing.pop_front() {
            Some(Outgoing::Request) => self.requester.transmit_done(now),
            Some(Outgoing::Response) => self.requester.progress(now),
            None => {}
        }
        self.flush_when_idle();
    }

    /// In the error state: of the frames from [`poll_transmit`](Self::poll_transmit), the last `count` requests will not be sent. Responses
    /// behind them are.
    pub fn requests_withdrawn(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(last) = self.outgoing.iter().rposition(|&outgoing| outgoing == Outgoing::Request) {
                self.outgoing.remove(last);
                self.requester.transmit_lost();
            }
        }
        self.flush_when_idle();
    }

    /// The stream is over, and the queue pair is not in the error state yet: that is the program's to say, when it learns of the end.
    /// What is posted goes to nobody until then, and fails as [`WcStatus::RetryExceeded`] after the retry time. To be called again when
    /// something was posted, or time has passed.
    pub fn transmit_to_nobody(&mut self, now: Instant) {
        loop {
            let sent = self.poll_transmit(now).is_some();
            for outgoing in self.outgoing.drain(..) {
                if outgoing == Outgoing::Request {
                    self.requester.transmit_lost();
                }
            }
            if !sent {
                break;
            }
        }
        self.flush_when_idle();
    }

    /// Bytes moved on the stream, in either direction: a long message is no silence.
    pub fn note_progress(&mut self, now: Instant) {
        self.requester.progress(now);
    }

    /// The stream is over, and the driver touches no memory for it any more. Everything posted completes: the oldest request that was
    /// sent as [`WcStatus::RetryExceeded`], which is what a peer that vanished is on hardware, the rest as flushed.
    pub fn peer_gone(&mut self, now: Instant) {
        let cause = (self.state == QpState::ReadyToSend && self.requester.awaits_answer()).then_some(WcStatus::RetryExceeded);
        if self.state != QpState::Reset {
            self.enter_error(cause, false);
        }
        self.responder.close(false, &mut self.completions);
        while !self.incoming.is_empty() {
            self.payload_done(now, Err(MemoryFault));
        }
        while !self.outgoing.is_empty() {
            self.transmit_done(now);
        }
    }

    // ---- inside ----

    fn await_payload(&mut self, what: Arriving<M::Lease>) {
        self.incoming.push_back(Incoming { due: true, placed: Ok(()), what });
    }

    fn discard(&mut self, has_payload: bool) -> Intake<M::Lease> {
        if !has_payload {
            return Intake::None;
        }
        self.await_payload(Arriving::Dropped);
        Intake::Discard
    }

    /// Deals with what has arrived whole, in order.
    fn settle_incoming(&mut self, now: Instant) {
        while self.incoming.front().is_some_and(|first| !first.due)
            && let Some(Incoming { placed, what, .. }) = self.incoming.pop_front()
        {
            let alive = self.state != QpState::Error;
            match what {
                Arriving::Request(arrival) if alive => {
                    self.responder.arrived(arrival, placed.is_err());
                    self.advance(now);
                }
                Arriving::Request(arrival) => self.responder.abandon(arrival, &mut self.completions),
                Arriving::Read if alive && placed.is_ok() => {
                    self.requester.read_done(now, &self.config, &mut self.completions);
                    self.check_local_failure();
                }
                Arriving::Read if alive => self.enter_error(Some(WcStatus::LocalProtection), false),
                Arriving::Refused(status) if alive => self.enter_error(Some(status), false),
                Arriving::Read | Arriving::Refused(_) | Arriving::Dropped => {}
            }
        }
        self.flush_when_idle();
    }
}
