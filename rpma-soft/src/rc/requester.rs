//! The send queue: requests go out in order, and are completed in order as they are answered.

use std::collections::VecDeque;
use std::time::Instant;

use super::completion::{Completion, Side};
use super::memory::{Access, Memory, Range, lease_list};
use super::transmit::{Payload, Transmit};
use super::{Data, PdNumber, PostError, ProtocolError, QpConfig, RequesterConfig, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use crate::wire::{Frame, MAX_MESSAGE_BYTES, Nak, Request, RequestOp, Response, ResponseOp};

/// Retry counts are 3 bits wide; this one never runs out (IBTA volume 1, 9.7.5.2.8).
const RNR_RETRY_FOR_EVER: u8 = 7;

/// An accepted send request.
#[derive(Debug)]
struct Wqe {
    wr: SendWr,
    len_bytes: u32,
}

#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<Wqe>,
    /// The number of the oldest request in the queue.
    head_msn: u64,
    /// How many requests, from the oldest, are sent or being sent, and not answered.
    sent: usize,
    /// How many of those, the last, are not in the stream to their last byte.
    leaving: usize,
    /// How many requests are being sent, before those, that have to be sent again all the same: the peer drops them.
    stale: usize,
    /// How many of those, the one being sent included, hold a resource of the responder's.
    resources_held: u32,
    /// Why the request behind the sent ones cannot be sent. It completes when it is the oldest: completions come in order.
    unsendable: Option<WcStatus>,
    /// How the oldest request ended, while its memory is still in use.
    head_status: Option<WcStatus>,
    /// Slots whose completion was not polled yet.
    slots_used: u32,
    /// Requests completed silently since the last completion; their slots come free with the next one.
    silent: u32,
    rnr_retries_left: u8,
    /// Until when nothing is sent, after "receiver not ready".
    rnr_until: Option<Instant>,
    /// After "receiver not ready", one request at a time until one is answered, so that a peer that is still not ready does not throw
    /// away all the rest again. (What adapters do without end-to-end credits: IBTA volume 1, 9.7.7.2.)
    probing: bool,
    /// When the peer, or the stream, last made progress.
    progress: Option<Instant>,
    config: RequesterConfig,
}

/// What a response leads to.
#[derive(Debug)]
pub(super) enum Answered<L> {
    /// It is dealt with.
    Done,
    /// Its payload goes there; then [`Requester::read_done`].
    Fill(Vec<Range<L>>),
    /// Its payload is not wanted; then [`Requester::fail_head`] with this status.
    Refuse(WcStatus),
    /// The oldest request failed; the queue pair goes to the error state.
    Failed(WcStatus),
}

impl Requester {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            head_msn: 1,
            sent: 0,
            leaving: 0,
            stale: 0,
            resources_held: 0,
            unsendable: None,
            head_status: None,
            slots_used: 0,
            silent: 0,
            rnr_retries_left: 0,
            rnr_until: None,
            probing: false,
            progress: None,
            config: RequesterConfig { depth: 0, rnr_retry: 0, retry_time: None },
        }
    }

    pub(super) fn configure(&mut self, config: RequesterConfig) {
        self.config = config;
        self.rnr_retries_left = config.rnr_retry;
    }

    /// Checks a request against what the queue pair was granted, and returns the length of its data.
    pub(super) fn check(wr: &SendWr, config: &QpConfig) -> Result<u32, PostError> {
        check(wr, config)
    }

    /// Takes a request, or not.
    pub(super) fn post(&mut self, wr: SendWr, config: &QpConfig) -> Result<(), PostError> {
        let len_bytes = check(&wr, config)?;
        if self.slots_used >= config.capacity.send_wr {
            return Err(PostError::QueueFull { capacity: config.capacity.send_wr });
        }
        self.slots_used += 1;
        self.queue.push_back(Wqe { wr, len_bytes });
        Ok(())
    }

    /// Whether `count` requests fit.
    pub(super) fn check_room(&self, count: usize, capacity: u32) -> Result<(), PostError> {
        if count > capacity.saturating_sub(self.slots_used) as usize {
            return Err(PostError::QueueFull { capacity });
        }
        Ok(())
    }

    pub(super) fn release(&mut self, slots: u32) {
        self.slots_used = self.slots_used.saturating_sub(slots);
    }

    /// The next request to send, if one may be sent now.
    pub(super) fn poll_transmit<M: Memory>(&mut self, now: Instant, memory: &M, pd: PdNumber) -> Option<Transmit<M::Lease>> {
        if self.unsendable.is_some() || self.rnr_until.is_some() || (self.probing && self.sent > 0) {
            return None;
        }
        let wqe = self.queue.get(self.sent)?;
        // IBTA volume 1, 10.8.3.3: a fenced request starts when all earlier reads and atomics are done. Annex A19 adds flush and
        // atomic write, which soft-RoCE does not wait for (`rxe_wqe_is_fenced` counts what `check_init_depth` does: no flush).
        if wqe.wr.flags.contains(SendFlags::FENCE) && self.resources_held > 0 {
            return None;
        }
        let holds_resource = wqe.wr.op.holds_resource();
        if holds_resource && self.resources_held >= u32::from(self.config.depth.max(1)) {
            return None;
        }
        let payload = match &wqe.wr.data {
            // A destination: checked when the data is there (`do_read` in rxe_comp.c, and adapters, do it then).
            _ if wqe.wr.op.brings_data() => Payload::None,
            _ if wqe.len_bytes == 0 => Payload::None,
            Data::Inline(bytes) => Payload::Inline(bytes.clone()),
            Data::Sges(sges) => match lease_list(memory, pd, sges, wqe.len_bytes, Access::empty()) {
                Ok(ranges) => Payload::Memory(ranges),
                Err(_) => {
                    self.unsendable = Some(WcStatus::LocalProtection);
                    return None;
                }
            },
        };
        let request = Request {
            msn: self.head_msn + self.sent as u64,
            solicited: wqe.wr.flags.contains(SendFlags::SOLICITED) && wqe.wr.op.takes_receive(),
            op: request_op(&wqe.wr.op, wqe.len_bytes),
        };
        self.resources_held += u32::from(holds_resource);
        if self.sent == 0 {
            self.progress = Some(now);
        }
        self.sent += 1;
        self.leaving += 1;
        Some(Transmit { frame: Frame::Request(request), payload })
    }

    /// The oldest request being sent is in the stream, to its last byte.
    pub(super) fn transmit_done(&mut self, now: Instant) {
        if self.stale == 0 {
            self.progress = Some(now);
        }
        self.transmit_lost();
    }

    /// A request being sent is gone: as sent, but without any progress.
    pub(super) fn transmit_lost(&mut self) {
        let of = if self.stale > 0 { &mut self.stale } else { &mut self.leaving };
        *of = of.saturating_sub(1);
    }

    /// Whether the memory of a request is being sent.
    pub(super) fn is_sending(&self) -> bool {
        self.leaving + self.stale > 0
    }

    /// Deals with a response, up to its payload.
    pub(super) fn handle_response<M: Memory>(
        &mut self,
        now: Instant,
        response: Response,
        memory: &M,
        config: &QpConfig,
        completions: &mut VecDeque<Completion>,
    ) -> Result<Answered<M::Lease>, ProtocolError> {
        let Response { msn, op } = response;
        self.progress = Some(now);
        if msn < self.head_msn && op == ResponseOp::Ack {
            // Nothing new: the peer is alive, and busy with what we sent.
            return Ok(Answered::Done);
        }
        if msn < self.head_msn || msn - self.head_msn >= (self.sent - self.leaving) as u64 {
            return Err(ProtocolError::UnexpectedResponse { msn });
        }
        // Every response acknowledges what was sent before. What still waits for its data then was passed over.
        while self.head_msn < msn {
            self.acknowledge_head(config, completions)?;
        }
        let head = self.queue.front().ok_or(ProtocolError::UnexpectedResponse { msn })?;
        match op {
            ResponseOp::Ack => {
                self.acknowledge_head(config, completions)?;
                Ok(Answered::Done)
            }
            ResponseOp::Read { len_bytes } => {
                if !matches!(head.wr.op, SendOp::Read { .. }) || head.len_bytes != len_bytes {
                    return Err(ProtocolError::WrongResponse { msn });
                }
                if len_bytes == 0 {
                    self.complete_head(config, completions);
                    return Ok(Answered::Done);
                }
                match lease_list(memory, config.pd, head.sges(), len_bytes, Access::LOCAL_WRITE) {
                    Ok(ranges) => Ok(Answered::Fill(ranges)),
                    Err(_) => Ok(Answered::Refuse(WcStatus::LocalProtection)),
                }
            }
            ResponseOp::Atomic { original } => {
                if !matches!(head.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
                    return Err(ProtocolError::WrongResponse { msn });
                }
                if place_original(memory, config.pd, head, original).is_none() {
                    return Ok(Answered::Failed(WcStatus::LocalProtection));
                }
                self.complete_head(config, completions);
                Ok(Answered::Done)
            }
            ResponseOp::Nak(nak) => self.refused(now, msn, nak),
        }
    }

    /// The payload of a read response is in place.
    pub(super) fn read_done(&mut self, now: Instant, config: &QpConfig, completions: &mut VecDeque<Completion>) {
        self.progress = Some(now);
        if self.sent > self.leaving {
            self.complete_head(config, completions);
        }
    }

    fn refused<L>(&mut self, now: Instant, msn: u64, nak: Nak) -> Result<Answered<L>, ProtocolError> {
        let status = match nak {
            Nak::RemoteAccess => WcStatus::RemoteAccess,
            Nak::InvalidRequest => WcStatus::RemoteInvalidRequest,
            Nak::Operational => WcStatus::RemoteOperation,
            Nak::ReceiverNotReady(timer) => {
                if !self.queue.front().is_some_and(|head| head.wr.op.takes_receive()) {
                    return Err(ProtocolError::WrongResponse { msn });
                }
                if self.rnr_retries_left == 0 {
                    return Ok(Answered::Failed(WcStatus::RnrRetryExceeded));
                }
                if self.rnr_retries_left != RNR_RETRY_FOR_EVER {
                    self.rnr_retries_left -= 1;
                }
                // Go back N: the responder drops everything behind the request that it was not ready for.
                self.rnr_until = Some(now + timer.duration());
                self.probing = true;
                self.stale += std::mem::take(&mut self.leaving);
                self.sent = 0;
                self.resources_held = 0;
                // Its place has moved; it is found again on the way.
                self.unsendable = None;
                return Ok(Answered::Done);
            }
        };
        Ok(Answered::Failed(status))
    }

    fn acknowledge_head(&mut self, config: &QpConfig, completions: &mut VecDeque<Completion>) -> Result<(), ProtocolError> {
        match self.queue.front() {
            Some(head) if !head.wr.op.brings_data() => {
                self.complete_head(config, completions);
                Ok(())
            }
            _ => Err(ProtocolError::WrongResponse { msn: self.head_msn }),
        }
    }

    /// Completes the oldest request, which was answered.
    fn complete_head(&mut self, config: &QpConfig, completions: &mut VecDeque<Completion>) {
        let Some(wqe) = self.queue.pop_front() else { return };
        self.head_msn += 1;
        self.sent -= 1;
        self.resources_held -= u32::from(wqe.wr.op.holds_resource());
        // IBTA volume 1, 9.7.5.2.8: any answer but another "not ready" reloads the counter.
        self.rnr_retries_left = self.config.rnr_retry;
        self.probing = false;
        if config.signal_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
            self.push_completion(&wqe, WcStatus::Success, completions);
        } else {
            self.silent += 1;
        }
    }

    /// Why the oldest request failed here, if it did.
    pub(super) fn local_failure(&self) -> Option<WcStatus> {
        self.unsendable.filter(|_| self.sent + self.stale == 0)
    }

    /// Notes how the oldest request ended; [`flush`](Self::flush) completes it.
    pub(super) fn fail_head(&mut self, status: WcStatus) {
        self.head_status = Some(status);
    }

    /// Completes everything: the oldest with its own status if it has one, the rest as flushed. A failure always completes, signalled
    /// or not (IBTA volume 1, 10.7.3.1).
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>) {
        let mut status = self.head_status.take();
        while let Some(wqe) = self.queue.pop_front() {
            self.push_completion(&wqe, status.take().unwrap_or(WcStatus::WrFlush), completions);
            self.head_msn += 1;
        }
        self.sent = 0;
        self.resources_held = 0;
        self.unsendable = None;
        self.rnr_until = None;
    }

    fn push_completion(&mut self, wqe: &Wqe, status: WcStatus, completions: &mut VecDeque<Completion>) {
        let success = status == WcStatus::Success;
        completions.push_back(Completion {
            wr_id: wqe.wr.wr_id,
            status,
            opcode: WcOpcode::of(&wqe.wr.op),
            byte_len: if success { wqe.told_bytes() } else { 0 },
            imm: None,
            side: Side::Send,
            solicited: !success,
            slots: std::mem::take(&mut self.silent) + 1,
        });
    }

    /// Whether anything sent is not answered.
    pub(super) fn awaits_answer(&self) -> bool {
        self.sent > 0
    }

    /// Bytes moved on the stream.
    pub(super) fn progress(&mut self, now: Instant) {
        self.progress = Some(now);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.rnr_until.is_some() {
            return self.rnr_until;
        }
        if !self.awaits_answer() {
            return None;
        }
        Some(self.progress? + self.config.retry_time?)
    }

    /// Whether the peer has made no progress for the retry time. Ends a wait for its receives that is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        match self.next_timeout() {
            Some(due) if due <= now => self.rnr_until.take().is_none(),
            _ => false,
        }
    }

    pub(super) fn posted(&self) -> usize {
        self.queue.len()
    }
}

impl Wqe {
    /// What its completion tells: `ibv_wc::byte_len`. Soft-RoCE counts what a flush covers and what an atomic write carries too.
    fn told_bytes(&self) -> u32 {
        match self.wr.op {
            SendOp::Flush { spec, .. } => u32::try_from(spec.len_bytes).unwrap_or(u32::MAX),
            SendOp::AtomicWrite { .. } => 8,
            _ => self.len_bytes,
        }
    }

    fn sges(&self) -> &[super::Sge] {
        match &self.wr.data {
            Data::Sges(sges) => sges,
            Data::Inline(_) => &[],
        }
    }
}

/// Puts the result of an atomic operation where the request wants it.
fn place_original<M: Memory>(memory: &M, pd: PdNumber, wqe: &Wqe, original: u64) -> Option<()> {
    // In host order, as adapters with `IBV_ATOMIC_HCA` and soft-RoCE deliver it.
    let bytes = original.to_ne_bytes();
    let mut rest = &bytes[..];
    for Range { lease, addr, len_bytes } in lease_list(memory, pd, wqe.sges(), wqe.len_bytes, Access::LOCAL_WRITE).ok()? {
        let (here, further) = rest.split_at_checked(len_bytes as usize)?;
        memory.store_original(&lease, addr, here).ok()?;
        rest = further;
    }
    Some(())
}

/// Checks a request against what the queue pair was granted, and returns the length of its data.
fn check(wr: &SendWr, config: &QpConfig) -> Result<u32, PostError> {
    match wr.op {
        SendOp::Flush { .. } if !config.native_flush => return Err(PostError::NotSupported),
        SendOp::AtomicWrite { .. } if !config.native_atomic_write => return Err(PostError::NotSupported),
        SendOp::Flush { spec, .. } if spec.placement.is_empty() => return Err(PostError::Data),
        _ => {}
    }
    let len_bytes = wr.data.len_bytes();
    match &wr.data {
        Data::Inline(_) if wr.op.brings_data() => return Err(PostError::Data),
        Data::Inline(_) if len_bytes > config.capacity.inline_bytes.into() => {
            return Err(PostError::Inline { len_bytes, max_bytes: config.capacity.inline_bytes });
        }
        Data::Sges(sges) if sges.len() > config.capacity.send_sge as usize => {
            return Err(PostError::Sges { sges: sges.len(), max: config.capacity.send_sge });
        }
        _ => {}
    }
    match &wr.op {
        SendOp::Flush { .. } | SendOp::AtomicWrite { .. } if wr.data != Data::default() => Err(PostError::Data),
        // Ranges that take the original value, as rdma-core's `validate_send_wr` has it.
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if len_bytes >= 8 => Ok(8),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Err(PostError::Data),
        _ => match u32::try_from(len_bytes) {
            Ok(len_bytes) if len_bytes <= MAX_MESSAGE_BYTES => Ok(len_bytes),
            _ => Err(PostError::Length { len_bytes, max_bytes: MAX_MESSAGE_BYTES }),
        },
    }
}

fn request_op(op: &SendOp, len_bytes: u32) -> RequestOp {
    match *op {
        SendOp::Send => RequestOp::Send { len_bytes },
        SendOp::SendImm { imm } => RequestOp::SendImm { len_bytes, imm },
        SendOp::Write { remote } => RequestOp::Write { remote, len_bytes },
        SendOp::WriteImm { remote, imm } => RequestOp::WriteImm { remote, len_bytes, imm },
        SendOp::Read { remote } => RequestOp::Read { remote, len_bytes },
        SendOp::Flush { remote, spec } => RequestOp::Flush { remote, spec },
        SendOp::AtomicWrite { remote, value } => RequestOp::AtomicWrite { remote, value },
        SendOp::CompareSwap { remote, compare, swap } => RequestOp::CompareSwap { remote, compare, swap },
        SendOp::FetchAdd { remote, add } => RequestOp::FetchAdd { remote, add },
    }
}
