//! Work requests, and why one is not taken.

use std::sync::Arc;

use crate::wire::{FlushSpec, Remote};

/// A range of local memory in a work request: `ibv_sge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Where it begins.
    pub addr: u64,
    /// How long it is. Ranges of length 0 are skipped.
    pub len_bytes: u32,
    /// The key of its region.
    pub lkey: u32,
}

/// What a send request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `ibv_send_wr` and of `ibv_wr_flush`, `ibv_wr_atomic_write`")]
pub enum SendOp {
    Send,
    SendImm { imm: [u8; 4] },
    Write { remote: Remote },
    WriteImm { remote: Remote, imm: [u8; 4] },
    Read { remote: Remote },
    Flush { remote: Remote, spec: FlushSpec },
    AtomicWrite { remote: Remote, value: [u8; 8] },
    CompareSwap { remote: Remote, compare: u64, swap: u64 },
    FetchAdd { remote: Remote, add: u64 },
}

impl SendOp {
    /// Whether it occupies one of the responder's resources until it is answered, and counts against the initiator depth: reads and
    /// atomics (IBTA volume 1, 9.7.4.1.2), flush and atomic write too, whose answer is a read response (annex A19).
    pub(super) fn holds_resource(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::Flush { .. }
            | Self::AtomicWrite { .. }
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. } => true,
            Self::Send | Self::SendImm { .. } | Self::Write { .. } | Self::WriteImm { .. } => false,
        }
    }

    /// Whether its answer brings data, so that an acknowledgement alone cannot complete it.
    pub(super) fn brings_data(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it takes a receive of the responder's.
    pub(super) fn takes_receive(&self) -> bool {
        matches!(self, Self::Send | Self::SendImm { .. } | Self::WriteImm { .. })
    }
}

/// The local data of a send request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Registered memory.
    Sges(Vec<Sge>),
    /// Bytes that were copied when the request was posted (`IBV_SEND_INLINE`). Shared, since a request may be sent again.
    Inline(Arc<[u8]>),
}

impl Data {
    /// Its length; it may be more than 32 bits can tell.
    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len_bytes)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self::Sges(Vec::new())
    }
}

bitflags::bitflags! {
    /// How a send request is carried out, as `IBV_SEND_*`; inline is [`Data::Inline`].
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Not before all earlier reads, atomics, flushes and atomic writes are done.
        const FENCE = 1;
        /// With a completion on success too.
        const SIGNALED = 2;
        /// The responder's completion raises a solicited event.
        const SOLICITED = 4;
    }
}

/// A request to the send queue: `ibv_send_wr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local data: source, or destination of a read or atomic. None for flush and atomic write.
    pub data: Data,
    /// How.
    pub flags: SendFlags,
}

/// A request to the receive queue: `ibv_recv_wr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: Vec<Sge>,
}

impl RecvWr {
    pub(super) fn len_bytes(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len_bytes)).sum()
    }
}

/// Why a work request was not taken. The queue pair is as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum PostError {
    /// `ENOMEM` in verbs.
    #[error("the queue is full: {capacity} requests")]
    QueueFull { capacity: u32 },
    /// `EINVAL` in verbs.
    #[error("nothing can be posted to this queue in state {state:?}")]
    State { state: super::QpState },
    /// `EINVAL` in verbs.
    #[error("{sges} ranges in a request, {max} allowed")]
    Sges { sges: usize, max: u32 },
    /// `EINVAL` in verbs.
    #[error("{len_bytes} bytes of inline data, {max_bytes} allowed")]
    Inline { len_bytes: u64, max_bytes: u32 },
    /// `EINVAL` in verbs.
    #[error("{len_bytes} bytes in a message, {max_bytes} allowed")]
    Length { len_bytes: u64, max_bytes: u32 },
    /// `EINVAL` in verbs.
    #[error("the operation does not take this local data")]
    Data,
    /// `EOPNOTSUPP` in verbs.
    #[error("the queue pair was made without this operation")]
    NotSupported,
    /// `EINVAL` in verbs: receives go to the shared queue.
    #[error("the queue pair has a shared receive queue")]
    SharedReceives,
}

/// A list was posted up to a request that was not taken: `bad_wr` in verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request {index} of the list was not taken")]
pub struct PostListError {
    /// Its index. Those before it are posted, those after it are not.
    pub index: usize,
    /// Why.
    #[source]
    pub error: PostError,
}
