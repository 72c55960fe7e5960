//! What is told about work that is over.

use super::SendOp;

/// How it ended. The numbers are those of `ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// The message is longer than the receive.
    LocalLength = 1,
    /// The request's own memory: key, bounds, rights, protection domain.
    LocalProtection = 4,
    /// Not carried out, or nobody knows whether it was: the queue pair went to the error state.
    WrFlush = 5,
    /// The peer answered something that is no answer to this request.
    BadResponse = 7,
    /// A write with immediate found memory here that its key does not open.
    LocalAccess = 8,
    /// The peer does not take the request.
    RemoteInvalidRequest = 9,
    /// The peer's memory: key, bounds, rights, protection domain.
    RemoteAccess = 10,
    /// Something failed at the peer.
    RemoteOperation = 11,
    /// The peer did not answer in time.
    RetryExceeded = 12,
    /// The peer had no receive for too long.
    RnrRetryExceeded = 13,
}

impl WcStatus {
    /// The number of `ibv_wc_status`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// What ended. The numbers are those of `ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "named after the operations")]
pub enum WcOpcode {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvWriteImm = 129,
}

impl WcOpcode {
    /// The number of `ibv_wc_opcode`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    pub(super) fn of(op: &SendOp) -> Self {
        match op {
            SendOp::Send | SendOp::SendImm { .. } => Self::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => Self::Write,
            SendOp::Read { .. } => Self::Read,
            SendOp::Flush { .. } => Self::Flush,
            SendOp::AtomicWrite { .. } => Self::AtomicWrite,
            SendOp::CompareSwap { .. } => Self::CompareSwap,
            SendOp::FetchAdd { .. } => Self::FetchAdd,
        }
    }
}

/// The queue of a completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue, or the shared one.
    Recv,
}

/// A completed request: `ibv_wc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What ended. On hardware it means nothing unless the status is success.
    pub opcode: WcOpcode,
    /// The length of the data; 0 unless the status is success.
    pub byte_len: u32,
    /// The immediate data of a receive, as the sender gave it.
    pub imm: Option<[u8; 4]>,
    /// The queue.
    pub side: Side,
    /// Whether it raises an event on a completion queue armed for solicited ones. A failure always does: `ibv_req_notify_cq(3)`.
    pub solicited: bool,
    /// How many slots of its queue are free once it is polled: its own, and those of the unsignalled requests before it. To be given
    /// back with [`RcQp::release`](super::RcQp::release).
    pub slots: u32,
}

impl Completion {
    /// A receive that was not used.
    pub(super) fn failed_receive(wr_id: u64, status: WcStatus) -> Self {
        Self { wr_id, status, opcode: WcOpcode::Recv, byte_len: 0, imm: None, side: Side::Recv, solicited: true, slots: 1 }
    }

    /// The same receive, failed.
    pub(super) fn into_failed(self, status: WcStatus) -> Self {
        Self { status, byte_len: 0, imm: None, solicited: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpma_sys::bindings::*;

    #[test]
    fn numbers_are_those_of_verbs() {
        let statuses = [
            (WcStatus::Success, IBV_WC_SUCCESS),
            (WcStatus::LocalLength, IBV_WC_LOC_LEN_ERR),
            (WcStatus::LocalProtection, IBV_WC_LOC_PROT_ERR),
            (WcStatus::WrFlush, IBV_WC_WR_FLUSH_ERR),
            (WcStatus::BadResponse, IBV_WC_BAD_RESP_ERR),
            (WcStatus::LocalAccess, IBV_WC_LOC_ACCESS_ERR),
            (WcStatus::RemoteInvalidRequest, IBV_WC_REM_INV_REQ_ERR),
            (WcStatus::RemoteAccess, IBV_WC_REM_ACCESS_ERR),
            (WcStatus::RemoteOperation, IBV_WC_REM_OP_ERR),
            (WcStatus::RetryExceeded, IBV_WC_RETRY_EXC_ERR),
            (WcStatus::RnrRetryExceeded, IBV_WC_RNR_RETRY_EXC_ERR),
        ];
        for (ours, theirs) in statuses {
            assert_eq!(ours.number(), theirs, "{ours:?}");
        }
        let opcodes = [
            (WcOpcode::Send, IBV_WC_SEND),
            (WcOpcode::Write, IBV_WC_RDMA_WRITE),
            (WcOpcode::Read, IBV_WC_RDMA_READ),
            (WcOpcode::CompareSwap, IBV_WC_COMP_SWAP),
            (WcOpcode::FetchAdd, IBV_WC_FETCH_ADD),
            (WcOpcode::Flush, IBV_WC_FLUSH),
            (WcOpcode::AtomicWrite, IBV_WC_ATOMIC_WRITE),
            (WcOpcode::Recv, IBV_WC_RECV),
            (WcOpcode::RecvWriteImm, IBV_WC_RECV_RDMA_WITH_IMM),
        ];
        for (ours, theirs) in opcodes {
            assert_eq!(ours.number(), theirs, "{ours:?}");
        }
        let access = [
            (super::super::Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
            (super::super::Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
            (super::super::Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
            (super::super::Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
            (super::super::Access::FLUSH_GLOBAL, IBV_ACCESS_FLUSH_GLOBAL),
            (super::super::Access::FLUSH_PERSISTENT, IBV_ACCESS_FLUSH_PERSISTENT),
        ];
        for (ours, theirs) in access {
            assert_eq!(ours.bits(), theirs, "{ours:?}");
        }
    }
}
