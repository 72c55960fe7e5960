//! What the driver is to put on the stream, and where it puts what follows a header.

use std::sync::Arc;

use super::memory::{Extent, Range};
use crate::wire::{Frame, Placement};

/// A frame to send.
#[derive(Debug)]
pub struct Transmit<L> {
    /// Its header.
    pub frame: Frame,
    /// What follows it: exactly [`Frame::payload_bytes`] bytes.
    pub payload: Payload<L>,
}

/// The bytes behind a header.
#[derive(Debug)]
pub enum Payload<L> {
    /// None.
    None,
    /// Bytes that were copied when the request was posted.
    Inline(Arc<[u8]>),
    /// Registered memory, to be gathered.
    Memory(Vec<Range<L>>),
}

/// What is to become of the payload behind a header that was handled.
#[derive(Debug)]
pub enum Intake<L> {
    /// There is none.
    None,
    /// It is scattered to these ranges, which are exactly as long; then [`RcQp::payload_done`](super::RcQp::payload_done).
    Fill(Vec<Range<L>>),
    /// It is read and thrown away; then [`RcQp::payload_done`](super::RcQp::payload_done) all the same.
    Discard,
}

/// A flush that has to be made durable outside the core, beside the thread that moves data.
#[derive(Debug)]
pub struct FlushJob<L> {
    /// For [`RcQp::flush_done`](super::RcQp::flush_done).
    pub id: u64,
    /// Leads to the memory. Once that is deregistered there is nothing to make durable, and the flush fails.
    pub lease: L,
    /// Which part of the region of the lease.
    pub extent: Extent,
    /// What is asked for; persistent, and perhaps global too.
    pub placement: Placement,
}

/// The peer has made no progress with what is outstanding for the retry time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer has made no progress for the retry time")]
pub struct PeerVanished;

/// The peer broke the protocol: the queue pair is in the error state, and the connection is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum ProtocolError {
    /// TCP loses and reorders nothing, so a gap is a fault of the peer's.
    #[error("request {found} arrived where {expected} is due")]
    Sequence { expected: u64, found: u64 },
    /// An answer to what was not asked, or is answered already.
    #[error("a response to request {msn}, which waits for none")]
    UnexpectedResponse { msn: u64 },
    /// An answer of another kind, or of another length.
    #[error("a response to request {msn} that does not fit it")]
    WrongResponse { msn: u64 },
    /// A driver bug rather than the peer's: a header was handled before the payload of the last one was done.
    #[error("the payload of the last frame is not done")]
    PayloadDue,
}
