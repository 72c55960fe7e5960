//! The states of a queue pair and the ways between them.

use std::time::Duration;

use super::PdNumber;
use crate::wire::RnrTimer;

/// The state of a queue pair: `ibv_qp_state`, without those that a reliable connected queue pair of ours is never in (SQD, SQE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpState {
    /// As made. Nothing can be posted.
    Reset,
    /// Receives can be posted. What arrives is dropped.
    Init,
    /// Ready to receive: the peer's requests are carried out.
    ReadyToReceive,
    /// Ready to send: everything works.
    ReadyToSend,
    /// Everything that is posted, then and later, completes with an error.
    Error,
}

/// A step that leads from no state to where it should: `ibv_modify_qp(3)` answers EINVAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no way from {from:?} to {to:?}")]
pub struct TransitionError {
    /// The state that the queue pair is in.
    pub from: QpState,
    /// The state that was asked for.
    pub to: QpState,
}

/// Sizes of a queue pair: `ibv_qp_cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapacity {
    /// Requests that the send queue holds.
    pub send_wr: u32,
    /// Requests that the receive queue holds.
    pub recv_wr: u32,
    /// Memory ranges of one send request.
    pub send_sge: u32,
    /// Memory ranges of one receive request.
    pub recv_sge: u32,
    /// Bytes that a request can carry inside itself.
    pub inline_bytes: u32,
}

/// What a queue pair is made with: `ibv_qp_init_attr_ex`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpConfig {
    /// Its protection domain.
    pub pd: PdNumber,
    /// Its sizes, as granted.
    pub capacity: QpCapacity,
    /// Every send request is signalled (`sq_sig_all`).
    pub signal_all: bool,
    /// With native flush. Without, it can neither be posted nor served.
    pub native_flush: bool,
    /// With native atomic write. As for flush.
    pub native_atomic_write: bool,
}

/// How the peer's requests are served: what `ibv_modify_qp(3)` sets on the way to RTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Reads, atomics, flushes and atomic writes of the peer at once (`max_dest_rd_atomic`). With 0 they are refused.
    pub resources: u8,
    /// How long a peer is told to wait where there is no receive (`min_rnr_timer`).
    pub rnr_timer: RnrTimer,
}

/// How our own requests are carried out: what `ibv_modify_qp(3)` sets on the way to RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequesterConfig {
    /// Reads, atomics, flushes and atomic writes outstanding at once (`max_rd_atomic`).
    ///
    /// The connection manager makes it no more than the peer's resources. 0 does not stop the queue, as it does on soft-RoCE: one is
    /// sent, so that the peer's refusal completes it.
    pub depth: u8,
    /// Retries of a request that finds no receive, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// How long the peer may make no progress at all: on hardware the acknowledge time-out times the retry count and one. `None`: for
    /// ever, as with time-out 0.
    pub retry_time: Option<Duration>,
}
