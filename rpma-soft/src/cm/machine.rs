//! The states of a connection and the ways between them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::event::{Event, Kind, StreamEnd, Voice};
use crate::wire::{Accept, CmFrame, ConnectRequest, PrivateData, Reject};

/// Reasons of a refusal: IBTA volume 1, table 109.
pub mod reason {
    /// There is no room for one more.
    pub const NO_RESOURCES: u16 = 3;
    /// The other end did not go on with the handshake.
    pub const TIMEOUT: u16 = 4;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The program said so.
    pub const CONSUMER_DEFINED: u16 = 28;
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Until the other end's machine shows any sign of life.
    pub unreachable_after: Duration,
    /// Until the other end's program answers a request, an accept or a disconnect.
    pub answer_after: Duration,
    /// From the end of a connection to the event that tells that its numbers can be used again.
    pub time_wait: Duration,
}

/// What the machine wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Send this, behind what is being sent.
    Send(CmFrame),
    /// Tell the program.
    Event(Event),
    /// Send what there is to send, then end the stream.
    Close,
}

/// The call does not fit the state: EINVAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongState;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No connection yet.
    Idle,
    /// We asked.
    Asked {
        greeted: bool,
    },
    /// They accepted, and our program has not seen it.
    Answered,
    /// They asked.
    Requested(ConnectRequest),
    /// We accepted, and wait for them to see it.
    Accepted,
    Established,
    /// We asked for the end.
    EndAsked,
    /// They asked for the end, and our program knows.
    EndRequested,
    /// It is over, and the program is told once more when the deadline is there.
    TimeWait,
    Over,
}

/// A connection, as the connection manager sees it.
#[derive(Debug)]
pub struct Machine {
    limits: Limits,
    state: State,
    deadline: Option<Instant>,
    /// The program was told that the connection is established before the other end said so.
    ready_is_to_come: bool,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// No connection yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: State::Idle, deadline: None, ready_is_to_come: false, outputs: VecDeque::new() }
    }

    /// A connection that the other end asked for.
    pub fn requested(limits: Limits, request: ConnectRequest) -> Self {
        Self { state: State::Requested(request), ..Self::new(limits) }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether there is no connection yet.
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Whether this end has asked for a connection, and waits for the answer.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }

    /// Whether the other end has accepted, and our program has not gone on yet.
    pub fn is_answered(&self) -> bool {
        self.state == State::Answered
    }

    /// Whether both ends can send.
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// Whether the connection, or what was to become one, is over.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Over)
    }

    /// The request that waits for our answer.
    pub fn request(&self) -> Option<&ConnectRequest> {
        match &self.state {
            State::Requested(request) => Some(request),
            _ => None,
        }
    }

    // ---- the program ----

    /// Tells the program something that needs no other end.
    pub fn tell(&mut self, kind: Kind) {
        self.outputs.push_back(Output::Event(Event::plain(kind)));
    }

    /// Asks for a connection. The driver opens a stream.
    ///
    /// # Errors
    ///
    /// [`WrongState`] unless there is no connection yet.
    pub fn connect(&mut self, now: Instant, request: ConnectRequest) -> Result<(), WrongState> {
        if self.state != State::Idle {
            return Err(WrongState);
        }
        self.state = State::Asked { greeted: false };
        self.deadline = Some(now + self.limits.unreachable_after);
        self.send(CmFrame::ConnectRequest(request));
        Ok(())
    }

    /// Accepts the other end's request.
    ///
    /// # Errors
    ///
    /// [`WrongState`] unless a request waits for our answer.
    pub fn accept(&mut self, now: Instant, accept: Accept) -> Result<(), WrongState> {
        if !matches!(self.state, State::Requested(_)) {
            return Err(WrongState);
        }
        self.state = State::Accepted;
        self.deadline = Some(now + self.limits.answer_after);
        self.send(CmFrame::Accept(accept));
        Ok(())
    }

    /// Says no: to a request, or to the answer of ours.
    ///
    /// # Errors
    ///
    /// [`WrongState`] unless a request waits for our answer, or the other end's accept for our program.
    pub fn reject(&mut self, private_data: PrivateData<{ Reject::PRIVATE_DATA_BYTES }>) -> Result<(), WrongState> {
        match self.state {
            State::Requested(_) | State::Answered => {}
            _ => return Err(WrongState),
        }
        self.send(CmFrame::Reject(Reject { reason: reason::CONSUMER_DEFINED, private_data }));
        self.end();
        Ok(())
    }

    /// Our program has seen the answer, and its queue pair is ready: the connection is established. If it is over again, the event that
    /// says so is on its way.
    pub fn establish(&mut self) {
        if matches!(self.state, State::Answered) {
            self.state = State::Established;
            self.send(CmFrame::Ready);
        }
    }

    /// Our program knows, by another way than the other end's frame, that the connection we accepted is established. The frame still comes.
    ///
    /// # Errors
    ///
    /// [`WrongState`] unless we have accepted, and the other end has not gone on.
    pub fn notify_established(&mut self) -> Result<(), WrongState> {
        if self.state != State::Accepted {
            return Err(WrongState);
        }
        self.state = State::Established;
        self.deadline = None;
        self.ready_is_to_come = true;
        self.event(Kind::Established, 0, Voice::None);
        Ok(())
    }

    /// Ends the connection, or agrees to its end. In any other state there is nothing to end: as in the kernel, that is no error.
    pub fn disconnect(&mut self, now: Instant) {
        match self.state {
            State::Established => {
                self.state = State::EndAsked;
                self.deadline = Some(now + self.limits.answer_after);
                self.send(CmFrame::DisconnectRequest);
            }
            State::EndRequested => {
                self.send(CmFrame::DisconnectReply);
                self.time_wait(now);
            }
            // Until the other end has seen the accept, the connection cannot be ended, only destroyed: `ib_send_cm_dreq` in cm.c.
            State::Accepted
            | State::Idle
            | State::Asked { .. }
            | State::Answered
            | State::Requested(_)
            | State::EndAsked
            | State::TimeWait
            | State::Over => {}
        }
    }

    /// The identifier goes away: tells the other end what it has to know (`cm_destroy_id` in cm.c). No event comes any more.
    pub fn destroy(&mut self) {
        let no_data = PrivateData::default();
        match self.state {
            State::Requested(_) | State::Answered => {
                self.send(CmFrame::Reject(Reject { reason: reason::CONSUMER_DEFINED, private_data: no_data }));
            }
            State::Established | State::Accepted => self.send(CmFrame::DisconnectRequest),
            State::EndRequested => self.send(CmFrame::DisconnectReply),
            State::Idle | State::Asked { .. } | State::EndAsked | State::TimeWait | State::Over => {}
        }
        self.end();
    }

    // ---- the other end ----

    /// The other end's preamble is here: its machine lives.
    pub fn greeted(&mut self, now: Instant) {
        if self.state == (State::Asked { greeted: false }) {
            self.state = State::Asked { greeted: true };
            self.deadline = Some(now + self.limits.answer_after);
        }
    }

    /// A frame arrived. `Err` if the other end may not send it now.
    ///
    /// # Errors
    ///
    /// [`WrongState`] if it may not: the stream cannot go on.
    pub fn handle_frame(&mut self, now: Instant, frame: CmFrame) -> Result<(), WrongState> {
        match (self.state, frame) {
            (State::Asked { greeted: true }, CmFrame::Accept(accept)) => {
                self.state = State::Answered;
                self.deadline = None;
                self.event(Kind::ConnectResponse, 0, Voice::Accept(accept));
            }
            (State::Asked { .. } | State::Accepted, CmFrame::Reject(reject)) => self.refused(reject),
            (State::Established | State::EndAsked, CmFrame::Ready) if self.ready_is_to_come => self.ready_is_to_come = false,
            // Their program did not like our accept, and ours did not wait to hear it: `cm_rej_handler` in cm.c.
            (State::Established | State::EndAsked, CmFrame::Reject(reject)) if self.ready_is_to_come => {
                self.event(Kind::Rejected, reject.reason.into(), Voice::Reject(reject));
                self.time_wait(now);
            }
            (State::Accepted, CmFrame::Ready) => {
                self.state = State::Established;
                self.deadline = None;
                self.event(Kind::Established, 0, Voice::None);
            }
            // Answered: the program is told of the answer first, and of the end when it has seen it.
            (State::Established | State::Answered, CmFrame::DisconnectRequest) => {
                self.state = State::EndRequested;
                self.event(Kind::Disconnected, 0, Voice::None);
            }
            // Both asked at once: each is the other's answer.
            (State::EndAsked, CmFrame::DisconnectRequest) => {
                self.send(CmFrame::DisconnectReply);
                self.disconnected(now, 0);
            }
            (State::EndAsked, CmFrame::DisconnectReply) => self.disconnected(now, 0),
            (State::TimeWait | State::Over, _) => {}
            _ => return Err(WrongState),
        }
        Ok(())
    }

    /// The stream is over.
    pub fn stream_ended(&mut self, now: Instant, end: StreamEnd) {
        match self.state {
            State::Asked { greeted } => match end {
                StreamEnd::Unreachable => self.unreachable(),
                // Its backlog died with the listener: nobody listens any more.
                StreamEnd::Closed if greeted => self.refused(silent(reason::CONSUMER_DEFINED)),
                StreamEnd::Closed | StreamEnd::Refused | StreamEnd::Violation => self.refused(silent(reason::INVALID_SERVICE_ID)),
            },
            // Their identifier went away before our answer, or before it saw it.
            State::Requested(_) => self.refused(silent(reason::TIMEOUT)),
            State::Accepted if end == StreamEnd::Unreachable => self.unreachable(),
            State::Accepted => self.refused(silent(reason::CONSUMER_DEFINED)),
            // The program is told of the answer first, and of the end when it has seen it.
            State::Answered => {
                self.event(Kind::Disconnected, 0, Voice::None);
                self.time_wait(now);
            }
            State::Established | State::EndAsked => self.disconnected(now, 0),
            State::EndRequested => self.time_wait(now),
            State::Idle | State::TimeWait | State::Over => {}
        }
    }

    // ---- time ----

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.deadline = None;
        match self.state {
            // cma.c: `IB_CM_REQ_ERROR` and `IB_CM_REP_ERROR`.
            State::Asked { .. } | State::Accepted => self.unreachable(),
            // cma.c: `IB_CM_DREQ_ERROR`.
            State::EndAsked => self.disconnected(now, -TIMED_OUT),
            State::TimeWait => {
                self.state = State::Over;
                self.event(Kind::TimewaitExit, 0, Voice::None);
            }
            State::Idle | State::Answered | State::Requested(_) | State::Established | State::EndRequested | State::Over => {}
        }
    }

    // ---- inside ----

    fn send(&mut self, frame: CmFrame) {
        self.outputs.push_back(Output::Send(frame));
    }

    fn event(&mut self, kind: Kind, status: i32, voice: Voice) {
        self.outputs.push_back(Output::Event(Event { kind, status, voice }));
    }

    fn end(&mut self) {
        self.state = State::Over;
        self.deadline = None;
        self.outputs.push_back(Output::Close);
    }

    fn refused(&mut self, reject: Reject) {
        self.event(Kind::Rejected, reject.reason.into(), Voice::Reject(reject));
        self.end();
    }

    fn unreachable(&mut self) {
        self.event(Kind::Unreachable, -TIMED_OUT, Voice::None);
        self.end();
    }

    fn disconnected(&mut self, now: Instant, status: i32) {
        self.event(Kind::Disconnected, status, Voice::None);
        self.time_wait(now);
    }

    fn time_wait(&mut self, now: Instant) {
        self.end();
        self.state = State::TimeWait;
        self.deadline = Some(now + self.limits.time_wait);
    }
}

/// `ETIMEDOUT`, as the kernel's events have it.
const TIMED_OUT: i32 = 110;

/// A refusal that came with no words.
fn silent(reason: u16) -> Reject {
    Reject { reason, private_data: PrivateData::default() }
}
