//! Why an operation could not be posted.

use std::io;

use rpma_mr::{AccessError, ErrorCode, FlushType, Usage};

use crate::completion::Operation;

/// Why an operation could not be posted. Nothing was posted then, and the connection is intact, unless the variant says otherwise.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
/// let mut posted = 0;
/// let full = loop {
///     match conn.write(there.slice_at(8 * posted, 8)?, Inline(b"8 bytes!"), Signal::Always, posted) {
///         Ok(()) => posted += 1,
///         Err(error) => break error,
///     }
/// };
/// assert!(matches!(full, PostError::QueueFull { limit, .. } if u64::from(limit) == posted));
/// let error = conn.read(LocalSlice::null(), there.slice_at(0, 8)?, Signal::Always, 0).expect_err("8 bytes into none");
/// assert_eq!(error.to_string(), "read: 0 bytes here and 8 bytes there cannot be one transfer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum PostError {
    /// As many requests as the queue's size are posted and not yet polled.
    #[error(
        "{queue} queue full: {limit} requests are posted and not yet polled; poll completions, or ask for a larger queue ({} is {limit})",
        size_setting(queue)
    )]
    QueueFull { queue: &'static str, limit: u32 },
    /// The two sides of a transfer are not of one length.
    #[error("{operation}: {local_bytes} bytes here and {remote_bytes} bytes there cannot be one transfer")]
    LengthMismatch { operation: Operation, local_bytes: usize, remote_bytes: u64 },
    /// The port cannot carry it in one message.
    #[error("{operation} of {len_bytes} bytes: the port carries at most {max_bytes} in one message; split it")]
    TooLong { operation: Operation, len_bytes: usize, max_bytes: u32 },
    /// The local region was not registered for this.
    #[error("{operation}: the local region was registered for {has:?}, and this needs {needs:?}")]
    LocalUsage { operation: Operation, has: Usage, needs: Usage },
    /// The peer did not register its region for this.
    #[error("{operation}: the peer registered its region for {has:?}, and this needs {needs:?}")]
    RemoteUsage { operation: Operation, has: Usage, needs: Usage },
    /// The local region belongs to another peer object.
    #[error(
        "{operation}: the local region was registered with another peer than the connection's, or the shared receive queue's"
    )]
    OtherPeer { operation: Operation },
    /// The connection takes its receives from a shared receive queue.
    #[error("the connection takes its receives from a shared receive queue: post them there (Srq::recv)")]
    SharedReceives,
    /// The 8 bytes to write cannot be read from the local region.
    #[error("atomic write: the 8 bytes to write cannot be read from the local region")]
    Source(#[source] AccessError),
    /// An atomic write goes to 8 bytes on an 8-byte boundary.
    #[error("atomic write of {len_bytes} bytes to address {addr:#x}: it writes 8 bytes to an address that is a multiple of 8")]
    Misaligned { addr: u64, len_bytes: u64 },
    /// No peer configuration with direct write to persistent memory is applied.
    #[error(
        "persistent flush: {}; without that, FlushType::Visibility is what can be had",
        if *.is_applied {
            "the peer's configuration says that its writes do not go directly to persistent memory; if they do, the peer has to say so \
             (PeerCfg::with_direct_write_to_pmem)"
        } else {
            "nobody said that the peer's writes go directly to persistent memory: have it send its configuration, and apply that first \
             (Conn::apply_remote_peer_cfg)"
        }
    )]
    NoDirectWrite { is_applied: bool },
    /// The peer's region cannot be flushed that way.
    #[error("{flush_type:?} flush: the peer registered its region for {has:?}, which lacks {needs:?}")]
    FlushType { flush_type: FlushType, has: Usage, needs: Usage },
    /// More ranges than the queue was granted for one request.
    #[error(
        "{operation} of {ranges} ranges: the device granted {granted} for one request; ask for more (ConnCfg::send_sge, recv_sge)"
    )]
    TooManyRanges { operation: Operation, ranges: usize, granted: u32 },
    /// More inline data than the queue pair was granted.
    #[error("{operation} of {len_bytes} inline bytes: the device granted {granted_bytes}; ask for more (ConnCfg::inline_bytes)")]
    InlineTooLong { operation: Operation, len_bytes: usize, granted_bytes: u32 },
    /// The queue pair was granted no inline data.
    #[error("atomic write: the device grants {granted_bytes} bytes of inline data, and an emulated atomic write needs 8")]
    NoInline { granted_bytes: u32 },
    /// The provider refused, and did not take the request.
    #[error("the provider refused to post the {operation}")]
    Provider { operation: Operation, source: io::Error },
    /// The provider refused, and may run the request all the same: its slot stays taken until a later completion frees it.
    #[error("the provider refused to post the {operation} without saying that it was not taken; it may still run")]
    PerhapsTaken { operation: Operation, source: io::Error },
}

impl PostError {
    /// The code that librpma gives for this: `rpma_write(3)` and its sisters.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::QueueFull { .. }
            | Self::NoInline { .. }
            | Self::SharedReceives
            | Self::Provider { .. }
            | Self::PerhapsTaken { .. } => ErrorCode::Provider,
            Self::LengthMismatch { .. }
            | Self::TooLong { .. }
            | Self::TooManyRanges { .. }
            | Self::InlineTooLong { .. }
            | Self::LocalUsage { .. }
            | Self::RemoteUsage { .. }
            | Self::OtherPeer { .. }
            | Self::Source(_)
            | Self::Misaligned { .. } => ErrorCode::InvalidArgument,
            Self::NoDirectWrite { .. } | Self::FlushType { .. } => ErrorCode::NotSupported,
        }
    }
}

/// The queues, by their names in messages.
pub(crate) const SEND: &str = "send";
pub(crate) const RECEIVE: &str = "receive";
pub(crate) const SHARED_RECEIVE: &str = "shared receive";

/// What sets the size of a queue.
fn size_setting(queue: &str) -> &'static str {
    match queue {
        SEND => "ConnCfg::sq_size",
        RECEIVE => "ConnCfg::rq_size",
        _ => "SrqCfg::rq_size",
    }
}
