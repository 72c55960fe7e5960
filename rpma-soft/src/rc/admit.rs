//! The peer's requests as they begin to arrive: what is checked before anything of them is placed or done.

use super::completion::{Completion, Side};
use super::memory::{Access, Claim, Extent, Key, Memory, Range, lease_list};
use super::receive::Receives;
use super::responder::{Admitted, Arrival, Change, Op, Repeat, Responder};
use super::{PdNumber, ProtocolError, QpConfig, RecvWr, WcOpcode, WcStatus};
use crate::wire::{FlushSpec, Nak, Placement, Remote, Request, RequestOp, Selectivity};

impl<L> Responder<L> {
    /// Checks a request, and notes what it says of those behind it.
    pub(super) fn admit<M: Memory<Lease = L>>(
        &mut self,
        request: Request,
        memory: &M,
        config: &QpConfig,
        receives: &mut Receives,
    ) -> Result<Admitted<L>, ProtocolError> {
        let msn = request.msn;
        if self.closed || (self.repeat != Repeat::No && msn > self.expected) {
            return Ok(Admitted::Dropped);
        }
        if msn != self.expected || self.repeat == Repeat::Untold {
            return Err(ProtocolError::Sequence { expected: self.expected, found: msn });
        }
        self.repeat = Repeat::No;
        let (ranges, op) = self.check(request, memory, config, receives);
        match op {
            Some(Op::NotReady) => self.repeat = Repeat::Untold,
            Some(Op::Refuse { .. }) => self.closed = true,
            _ => self.expected = msn + 1,
        }
        let arrival = Arrival { msn, op };
        Ok(match ranges {
            Some(ranges) => Admitted::Yes(ranges, arrival),
            None => Admitted::No(arrival),
        })
    }

    /// In the order of IBTA volume 1, 9.7.4.1, behind the number: operation, resources, then keys and lengths. Where the payload goes, or
    /// `None` if it is thrown away, and what becomes of the request.
    fn check<M: Memory<Lease = L>>(
        &mut self,
        request: Request,
        memory: &M,
        config: &QpConfig,
        receives: &mut Receives,
    ) -> (Option<Vec<Range<L>>>, Option<Op<L>>) {
        let Request { solicited, op, .. } = request;
        let no = |op| (None, Some(op));
        let yes = |ranges, op| (Some(ranges), op);
        let refuse = |nak| no(Op::Refuse { nak, receive: None });
        // Before a receive is taken: `check_op_valid` in rxe_resp.c.
        if !self.allowed.contains(needed(&op)) {
            return refuse(Nak::InvalidRequest);
        }
        match op {
            RequestOp::Send { .. } | RequestOp::SendImm { .. } => {
                let Some(wr) = receives.take() else { return no(Op::NotReady) };
                let (len_bytes, imm) = match op {
                    RequestOp::SendImm { len_bytes, imm } => (len_bytes, Some(imm)),
                    _ => (request.payload_bytes(), None),
                };
                match scatter(memory, receives.pd(config.pd), &wr, len_bytes) {
                    Ok(ranges) => yes(ranges, Some(Op::Receive(received(&wr, WcOpcode::Recv, len_bytes, imm, solicited)))),
                    Err((nak, status)) => no(Op::Refuse { nak, receive: Some(Completion::failed_receive(wr.wr_id, status)) }),
                }
            }
            RequestOp::Write { remote, len_bytes } => match remote_ranges(memory, config, remote, len_bytes) {
                Some(ranges) => yes(ranges, None),
                None => refuse(Nak::RemoteAccess),
            },
            RequestOp::WriteImm { remote, len_bytes, imm } => {
                let Some(wr) = receives.take() else { return no(Op::NotReady) };
                match remote_ranges(memory, config, remote, len_bytes) {
                    Some(ranges) => {
                        let completion = received(&wr, WcOpcode::RecvWriteImm, len_bytes, Some(imm), solicited);
                        yes(ranges, Some(Op::Receive(completion)))
                    }
                    // IBTA volume 1, 11.6.2, "local access error": a protection error here, during a write with immediate.
                    None => {
                        let receive = Completion::failed_receive(wr.wr_id, WcStatus::LocalAccess);
                        no(Op::Refuse { nak: Nak::RemoteAccess, receive: Some(receive) })
                    }
                }
            }
            _ => match self.admit_with_resource(op, memory, config) {
                Ok(op) => {
                    self.resources_used += 1;
                    yes(Vec::new(), Some(op))
                }
                Err(nak) => refuse(nak),
            },
        }
    }

    /// Checks what holds one of our resources until it is answered.
    fn admit_with_resource<M: Memory<Lease = L>>(&self, op: RequestOp, memory: &M, config: &QpConfig) -> Result<Op<L>, Nak> {
        let supported = match op {
            RequestOp::Flush { .. } => config.native_flush,
            RequestOp::AtomicWrite { .. } => config.native_atomic_write,
            _ => true,
        };
        // More than the connection manager agreed on is refused (IBTA volume 1, 9.7.4.1.2; soft-RoCE overwrites the oldest), and so
        // nothing that a peer does makes our queues grow.
        if !supported || self.resources_used >= u32::from(self.config.resources) {
            return Err(Nak::InvalidRequest);
        }
        let lease = |remote: Remote, extent, access| {
            memory.lease(&Claim { pd: config.pd, key: Key::Remote(remote.rkey), extent, access }).map_err(|_| Nak::RemoteAccess)
        };
        let eight_bytes = |remote: Remote, access| {
            let lease = lease(remote, Extent::Range { addr: remote.addr, len_bytes: 8 }, access)?;
            // Alignment after the key, as rxe_resp.c: `RESPST_ERR_MISALIGNED_ATOMIC` is an invalid request.
            if remote.addr.is_multiple_of(8) { Ok((lease, remote.addr)) } else { Err(Nak::InvalidRequest) }
        };
        match op {
            RequestOp::Read { remote, len_bytes } => {
                // A zero-length read or write is not checked: IBTA volume 1, 9.7.4.1.5. The lease is taken again when the data is sent.
                if len_bytes != 0 {
                    lease(remote, range_of(remote, len_bytes), Access::REMOTE_READ)?;
                }
                Ok(Op::Read { remote, len_bytes })
            }
            RequestOp::Flush { remote, spec: FlushSpec { placement, selectivity, len_bytes } } => {
                let extent = match selectivity {
                    Selectivity::Range => Extent::Range { addr: remote.addr, len_bytes },
                    Selectivity::Region => Extent::Region,
                };
                // Always checked, a length of 0 too: annex A19, oA19-13.
                let lease = lease(remote, extent, placement.into())?;
                if placement.contains(Placement::PERSISTENT) {
                    Ok(Op::FlushPersistent { lease: Some(lease), extent, placement })
                } else {
                    Ok(Op::FlushGlobal)
                }
            }
            RequestOp::AtomicWrite { remote, value } => {
                let (lease, addr) = eight_bytes(remote, Access::REMOTE_WRITE)?;
                Ok(Op::AtomicWrite { lease, addr, value })
            }
            RequestOp::CompareSwap { remote, compare, swap } => {
                let (lease, addr) = eight_bytes(remote, Access::REMOTE_ATOMIC)?;
                Ok(Op::Atomic { lease, addr, change: Change::CompareSwap { compare, swap } })
            }
            RequestOp::FetchAdd { remote, add } => {
                let (lease, addr) = eight_bytes(remote, Access::REMOTE_ATOMIC)?;
                Ok(Op::Atomic { lease, addr, change: Change::FetchAdd { add } })
            }
            RequestOp::Send { .. } | RequestOp::SendImm { .. } | RequestOp::Write { .. } | RequestOp::WriteImm { .. } => {
                Err(Nak::InvalidRequest)
            }
        }
    }
}

/// What the queue pair has to allow for it, whatever the memory does.
fn needed(op: &RequestOp) -> Access {
    match op {
        RequestOp::Send { .. } | RequestOp::SendImm { .. } => Access::empty(),
        RequestOp::Write { .. } | RequestOp::WriteImm { .. } | RequestOp::AtomicWrite { .. } => Access::REMOTE_WRITE,
        RequestOp::Read { .. } => Access::REMOTE_READ,
        RequestOp::CompareSwap { .. } | RequestOp::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        RequestOp::Flush { spec, .. } => spec.placement.into(),
    }
}

pub(super) fn range_of(remote: Remote, len_bytes: u32) -> Extent {
    Extent::Range { addr: remote.addr, len_bytes: len_bytes.into() }
}

/// Where a write goes. Without payload its key is not checked (see reads).
fn remote_ranges<M: Memory>(memory: &M, config: &QpConfig, remote: Remote, len_bytes: u32) -> Option<Vec<Range<M::Lease>>> {
    if len_bytes == 0 {
        return Some(Vec::new());
    }
    let extent = range_of(remote, len_bytes);
    let claim = Claim { pd: config.pd, key: Key::Remote(remote.rkey), extent, access: Access::REMOTE_WRITE };
    let lease = memory.lease(&claim).ok()?;
    Some(vec![Range { lease, addr: remote.addr, len_bytes }])
}

/// Where a send goes, or what both ends are told.
fn scatter<M: Memory>(memory: &M, pd: PdNumber, wr: &RecvWr, len_bytes: u32) -> Result<Vec<Range<M::Lease>>, (Nak, WcStatus)> {
    if u64::from(len_bytes) > wr.len_bytes() {
        // IBTA volume 1, table 58: local length error here, invalid request there.
        return Err((Nak::InvalidRequest, WcStatus::LocalLength));
    }
    lease_list(memory, pd, &wr.sges, len_bytes, Access::LOCAL_WRITE)
        // Class A: a fault of the receive, which the peer hears of as an operational error.
        .map_err(|_| (Nak::Operational, WcStatus::LocalProtection))
}

fn received(wr: &RecvWr, opcode: WcOpcode, byte_len: u32, imm: Option<[u8; 4]>, solicited: bool) -> Completion {
    Completion { wr_id: wr.wr_id, status: WcStatus::Success, opcode, byte_len, imm, side: Side::Recv, solicited, slots: 1 }
}
