//! The peer's requests: carried out in order, answered in order. What is checked before is in `admit.rs`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::admit::range_of;
use super::completion::Completion;
use super::memory::{Access, Claim, Extent, Key, Memory, Range};
use super::transmit::{FlushJob, Payload, Transmit};
use super::{QpConfig, QpEvent, ResponderConfig, WcStatus};
use crate::wire::{Frame, Nak, Placement, Remote, Response, ResponseOp, RnrTimer};

/// How often a peer is told, while a flush runs, that we are alive: its retry time must not end a flush that takes long. An
/// acknowledgement of nothing new says it.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// A request that has arrived whole and is not carried out yet.
#[derive(Debug)]
pub(super) enum Op<L> {
    /// A receive completes.
    Receive(Completion),
    Read {
        remote: Remote,
        len_bytes: u32,
    },
    Atomic {
        lease: L,
        addr: u64,
        change: Change,
    },
    AtomicWrite {
        lease: L,
        addr: u64,
        value: [u8; 8],
    },
    /// Everything placed before is visible to every thread of ours once the next message is, so there is nothing to do.
    FlushGlobal,
    FlushPersistent {
        lease: Option<L>,
        extent: Extent,
        placement: Placement,
    },
    /// Refused, with the receive that it took if it took one.
    Refuse {
        nak: Nak,
        receive: Option<Completion>,
    },
    NotReady,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// A request that is carried out, and owed more than an acknowledgement.
#[derive(Debug)]
enum Answer {
    Read { remote: Remote, len_bytes: u32 },
    Atomic { original: u64 },
    Nak(Nak),
}

/// Whether the expected request was here before, and found no receive. What the peer had sent behind it is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    No,
    /// The peer does not know yet. If it repeated all the same, answers could pile up without end.
    Untold,
    Awaited,
}

/// What becomes of a request once its payload is off the stream.
#[derive(Debug)]
pub(super) struct Arrival<L> {
    pub(super) msn: u64,
    /// `None`: a write, which is done then.
    pub(super) op: Option<Op<L>>,
}

impl<L> Op<L> {
    /// Whether what it does to memory depends on what is there, or is seen by others as one.
    fn is_atomic(&self) -> bool {
        matches!(self, Self::Atomic { .. } | Self::AtomicWrite { .. })
    }
}

impl<L> Arrival<L> {
    pub(super) fn is_atomic(&self) -> bool {
        self.op.as_ref().is_some_and(Op::is_atomic)
    }

    /// Whether it holds a receive.
    pub(super) fn holds_receive(&self) -> bool {
        matches!(self.op, Some(Op::Receive(_) | Op::Refuse { receive: Some(_), .. }))
    }
}

/// What to do with a request that begins to arrive.
#[derive(Debug)]
pub(super) enum Admitted<L> {
    /// Its payload goes to these ranges, if it has any; then [`Responder::arrived`].
    Yes(Vec<Range<L>>, Arrival<L>),
    /// Its payload is thrown away; then [`Responder::arrived`].
    No(Arrival<L>),
    /// As if it had not come.
    Dropped,
}

/// A request was refused, and what is told of it besides completions.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) told: Option<QpEvent>,
}

#[derive(Debug)]
pub(super) struct Responder<L> {
    /// The number of the next request to arrive.
    pub(super) expected: u64,
    /// Before which request everything has arrived whole.
    whole: u64,
    pub(super) repeat: Repeat,
    /// A request was refused; nothing more is taken.
    pub(super) closed: bool,
    waiting: VecDeque<(u64, Op<L>)>,
    answers: VecDeque<(u64, Answer)>,
    /// Through which request the peer has its answers.
    answered: u64,
    pub(super) resources_used: u32,
    /// The flush at the front of `waiting` that runs outside.
    job: Option<u64>,
    job_to_start: Option<FlushJob<L>>,
    last_job: u64,
    busy_at: Option<Instant>,
    busy_due: bool,
    pub(super) config: ResponderConfig,
    /// What the peer may ask for.
    pub(super) allowed: Access,
}

impl<L> Responder<L> {
    pub(super) fn new() -> Self {
        let rnr_timer = RnrTimer::from_code(0).expect("0 is a code");
        Self {
            expected: 1,
            whole: 1,
            repeat: Repeat::No,
            closed: false,
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            answered: 0,
            resources_used: 0,
            job: None,
            job_to_start: None,
            last_job: 0,
            busy_at: None,
            busy_due: false,
            config: ResponderConfig { resources: 0, rnr_timer },
            allowed: Access::all(),
        }
    }

    /// As made, but for the numbers of flush jobs: one that still runs must not end another's.
    pub(super) fn reset(&mut self) {
        let last_job = self.last_job;
        *self = Self { last_job, ..Self::new() };
    }

    pub(super) fn configure(&mut self, config: ResponderConfig) {
        self.config = config;
    }

    /// A request is off the stream, and its payload in place unless `fault`.
    pub(super) fn arrived(&mut self, arrival: Arrival<L>, fault: bool) {
        let Arrival { msn, op } = arrival;
        let op = match op {
            // The payload did not get where it should: not the peer's fault.
            Some(Op::Receive(receive)) if fault => {
                let receive = Some(receive.into_failed(WcStatus::LocalProtection));
                Some(Op::Refuse { nak: Nak::Operational, receive })
            }
            None if fault => Some(Op::Refuse { nak: Nak::Operational, receive: None }),
            op => op,
        };
        match op {
            Some(Op::NotReady) => {}
            Some(Op::Refuse { .. }) => self.closed = true,
            _ => self.whole = msn + 1,
        }
        if let Some(op) = op {
            self.waiting.push_back((msn, op));
        }
    }

    /// Carries out what nothing holds back. An error takes the queue pair to the error state.
    pub(super) fn advance<M: Memory<Lease = L>>(
        &mut self,
        now: Instant,
        memory: &M,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), Refused> {
        while self.job.is_none() {
            if let Some((_, Op::FlushPersistent { lease, extent, placement })) = self.waiting.front_mut()
                && let Some(lease) = lease.take()
            {
                self.last_job += 1;
                self.job = Some(self.last_job);
                self.job_to_start = Some(FlushJob { id: self.last_job, lease, extent: *extent, placement: *placement });
                self.busy_at = Some(now + BUSY_INTERVAL);
                return Ok(());
            }
            let Some((msn, op)) = self.waiting.pop_front() else { break };
            match self.execute(msn, op, memory, completions) {
                Ok(()) => {}
                Err((nak, told)) => {
                    self.answers.push_back((msn, Answer::Nak(nak)));
                    return Err(Refused { told });
                }
            }
        }
        Ok(())
    }

    /// Carries out the request that was the oldest waiting one. An error is the answer, and what this end is told if no completion tells
    /// it.
    fn execute<M: Memory<Lease = L>>(
        &mut self,
        msn: u64,
        op: Op<L>,
        memory: &M,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), (Nak, Option<QpEvent>)> {
        let failed = |_| (Nak::Operational, Some(QpEvent::Fatal));
        match op {
            Op::Receive(completion) => completions.push_back(completion),
            Op::Read { remote, len_bytes } => self.answers.push_back((msn, Answer::Read { remote, len_bytes })),
            Op::Atomic { lease, addr, change } => {
                let original = match change {
                    Change::CompareSwap { compare, swap } => memory.compare_swap(&lease, addr, compare, swap),
                    Change::FetchAdd { add } => memory.fetch_add(&lease, addr, add),
                };
                self.answers.push_back((msn, Answer::Atomic { original: original.map_err(failed)? }));
            }
            Op::AtomicWrite { lease, addr, value } => {
                self.resources_used -= 1;
                memory.atomic_write(&lease, addr, value).map_err(failed)?;
            }
            Op::FlushGlobal | Op::FlushPersistent { .. } => self.resources_used -= 1,
            Op::Refuse { nak, receive } => {
                let told = if receive.is_none() { event_of(nak) } else { None };
                completions.extend(receive);
                return Err((nak, told));
            }
            Op::NotReady => self.answers.push_back((msn, Answer::Nak(Nak::ReceiverNotReady(self.config.rnr_timer)))),
        }
        Ok(())
    }

    /// The flush to start, if there is one.
    pub(super) fn poll_flush_job(&mut self) -> Option<FlushJob<L>> {
        self.job_to_start.take()
    }

    /// A flush ended. Returns whether it is one that we wait for; then [`advance`](Self::advance).
    pub(super) fn flush_done(&mut self, id: u64, fault: bool) -> bool {
        if self.job != Some(id) {
            return false;
        }
        self.job = None;
        self.busy_at = None;
        self.busy_due = false;
        if let (true, Some((_, op))) = (fault, self.waiting.front_mut()) {
            *op = Op::Refuse { nak: Nak::Operational, receive: None };
        }
        true
    }

    /// Through which request everything is carried out.
    fn executed(&self) -> u64 {
        self.waiting.front().map_or(self.whole, |(msn, _)| *msn) - 1
    }

    /// The next response to send. An error is the response to send when the memory of a read is gone: the queue pair then goes to
    /// the error state.
    pub(super) fn poll_transmit<M: Memory<Lease = L>>(
        &mut self,
        memory: &M,
        config: &QpConfig,
    ) -> Option<Result<Transmit<L>, Response>> {
        let Some((msn, answer)) = self.answers.pop_front() else {
            let busy = std::mem::take(&mut self.busy_due);
            let executed = self.executed();
            if executed <= self.answered && !busy {
                return None;
            }
            self.answered = self.answered.max(executed);
            return Some(Ok(header(Response { msn: self.answered, op: ResponseOp::Ack })));
        };
        match answer {
            Answer::Read { remote, len_bytes } => {
                self.resources_used -= 1;
                self.answered = msn;
                if len_bytes == 0 {
                    return Some(Ok(header(Response { msn, op: ResponseOp::Read { len_bytes } })));
                }
                let extent = range_of(remote, len_bytes);
                let claim = Claim { pd: config.pd, key: Key::Remote(remote.rkey), extent, access: Access::REMOTE_READ };
                match memory.lease(&claim) {
                    Ok(lease) => Some(Ok(Transmit {
                        frame: Frame::Response(Response { msn, op: ResponseOp::Read { len_bytes } }),
                        payload: Payload::Memory(vec![Range { lease, addr: remote.addr, len_bytes }]),
                    })),
                    // Deregistered since: `rxe_recheck_mr` fails the same way.
                    Err(_) => Some(Err(Response { msn, op: ResponseOp::Nak(Nak::RemoteAccess) })),
                }
            }
            Answer::Atomic { original } => {
                self.resources_used -= 1;
                self.answered = msn;
                Some(Ok(header(Response { msn, op: ResponseOp::Atomic { original } })))
            }
            Answer::Nak(nak) => {
                self.answered = msn - 1;
                if self.repeat == Repeat::Untold {
                    self.repeat = Repeat::Awaited;
                }
                Some(Ok(header(Response { msn, op: ResponseOp::Nak(nak) })))
            }
        }
    }

    /// Takes nothing more. Receives that wait behind a flush complete with a flush error. With `answer` what was carried out before
    /// is still answered, the refusal that ends it included; without, nothing more is said.
    pub(super) fn close(&mut self, answer: bool, completions: &mut VecDeque<Completion>) {
        self.closed = true;
        for (_, op) in self.waiting.drain(..) {
            match op {
                Op::Receive(receive) => completions.push_back(receive.into_failed(WcStatus::WrFlush)),
                Op::Refuse { receive, .. } => completions.extend(receive),
                _ => {}
            }
        }
        self.job = None;
        self.job_to_start = None;
        self.busy_at = None;
        self.busy_due = false;
        // Nothing is acknowledged but what was answered or is in `answers`.
        self.whole = self.answered + 1;
        if !answer {
            self.answers.clear();
        }
    }

    /// Completes the receive of a request that had not arrived whole.
    pub(super) fn abandon(&mut self, arrival: Arrival<L>, completions: &mut VecDeque<Completion>) {
        match arrival.op {
            Some(Op::Receive(receive)) => completions.push_back(receive.into_failed(WcStatus::WrFlush)),
            Some(Op::Refuse { receive, .. }) => completions.extend(receive),
            _ => {}
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.busy_at
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.busy_at.is_some_and(|at| at <= now) {
            self.busy_at = Some(now + BUSY_INTERVAL);
            self.busy_due = true;
        }
    }

    /// Whether an atomic operation waits for a flush before it.
    pub(super) fn atomic_waits(&self) -> bool {
        self.waiting.iter().any(|(_, op)| op.is_atomic())
    }

    /// How many requests are held, carried out or not.
    pub(super) fn held(&self) -> usize {
        self.waiting.len() + self.answers.len()
    }
}

/// What this end is told of a refusal for which no receive completes: IBTA volume 1, 11.6.3.3.
pub(super) fn event_of(nak: Nak) -> Option<QpEvent> {
    match nak {
        Nak::RemoteAccess => Some(QpEvent::AccessViolation),
        Nak::InvalidRequest => Some(QpEvent::InvalidRequest),
        Nak::Operational => Some(QpEvent::Fatal),
        Nak::ReceiverNotReady(_) => None,
    }
}

fn header<L>(response: Response) -> Transmit<L> {
    Transmit { frame: Frame::Response(response), payload: Payload::None }
}
