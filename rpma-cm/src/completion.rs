//! Completions: which operation, and what became of it.

use std::fmt;

use rpma_mr::sys::bindings::{
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WR_FLUSH_ERR, ibv_wc, ibv_wc_status,
};
use rpma_mr::sys::owned::Cq;

use crate::signals::Ticket;

/// The operation that a completion belongs to, as it was posted. Known for failed ones too, since we keep it; the completion's own
/// opcode means nothing then, and differs between native and emulated operations.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # server.recv(LocalSlice::null(), 0)?;
/// conn.send(LocalSlice::null(), Signal::Always, 1)?;
/// let completion = conn.cq().wait(Duration::from_secs(10))?;
/// assert_eq!(completion.operation(), Operation::Send);
/// assert_eq!(completion.operation().to_string(), "send");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the posting calls")]
pub enum Operation {
    Read,
    Write,
    WriteWithImm,
    AtomicWrite,
    Flush,
    Send,
    SendWithImm,
    Recv,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteWithImm => "write with immediate data",
            Self::AtomicWrite => "atomic write",
            Self::Flush => "flush",
            Self::Send => "send",
            Self::SendWithImm => "send with immediate data",
            Self::Recv => "receive",
        })
    }
}

/// What a successful receive brought.
///
/// ```
/// use rpma::{Received, prelude::*};
///
/// # let (conn, client) = rpma::testing::pair()?;
/// # let inbox = conn.peer().register(AnonPages::new(512)?, Usage::RECV)?;
/// conn.recv(inbox.all(), 1)?;
/// # client.send_with_imm(Inline(b"five!"), 5, Signal::OnError, 0)?; // the peer's message
/// let received = conn.cq().wait(Duration::from_secs(10))?.received()?;
/// assert_eq!(received, Some(Received { len_bytes: 5, imm: Some(5), by_write: false }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the message, or of the peer's write with immediate data.
    pub len_bytes: u32,
    /// The immediate data, in host order, if there was any.
    pub imm: Option<u32>,
    /// Whether it was a write with immediate data: the bytes then lie where the peer wrote them, and not in the receive's buffer.
    pub by_write: bool,
}

/// What a completion brought.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, client) = rpma::testing::pair()?;
/// conn.recv(LocalSlice::null(), 1)?;
/// # client.send(LocalSlice::null(), Signal::OnError, 0)?; // the peer's message
/// match conn.cq().wait(Duration::from_secs(10))?.result()? {
///     Outcome::Received(message) => assert_eq!(message.len_bytes, 0),
///     Outcome::Done => panic!("nothing of ours was posted but a receive"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An operation of ours is done.
    Done,
    /// Something arrived.
    Received(Received),
}

/// Why an operation failed.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
/// memory.deregister()?; // the peer's, which this side's descriptor is now wrong about
/// conn.write(there.slice(0..4)?, Inline(b"late"), Signal::Always, 1)?;
/// conn.write(there.slice(4..8)?, Inline(b"more"), Signal::Always, 2)?;
/// let cause = conn.cq().wait(Duration::from_secs(10))?.result().expect_err("no such region");
/// assert_eq!((cause.context, cause.is_flushed()), (1, false));
/// let behind = conn.cq().wait(Duration::from_secs(10))?.result().expect_err("the connection has failed");
/// assert_eq!((behind.context, behind.is_flushed()), (2, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{operation} (context {context}) failed: {text} (status {status}, vendor error {vendor_err:#x}){}", advice(*status))]
#[expect(missing_docs, reason = "the message explains its fields")]
pub struct CompletionError {
    pub operation: Operation,
    pub context: u64,
    /// `enum ibv_wc_status`, `ibv_poll_cq(3)`.
    pub status: u32,
    /// The status in words.
    pub text: &'static str,
    /// Specific to the device.
    pub vendor_err: u32,
}

impl CompletionError {
    /// Whether the operation was not tried, or not finished, because the connection had failed or ended already. Of all operations that
    /// fail together, at most one names a cause; the others are this.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.status == IBV_WC_WR_FLUSH_ERR
    }
}

/// Whose fault it is and what to look at, for the statuses that people meet.
fn advice(status: ibv_wc_status) -> &'static str {
    use rpma_mr::sys::bindings::{
        IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    };
    match status {
        IBV_WC_WR_FLUSH_ERR => ": the connection had ended or failed before it was done",
        IBV_WC_REM_ACCESS_ERR => {
            ": the peer's region does not allow it; is its descriptor current, and its usage what the operation needs?"
        }
        IBV_WC_REM_INV_REQ_ERR => ": the peer found the request malformed, or its receive buffer too small",
        IBV_WC_REM_OP_ERR => ": the peer could not carry it out",
        IBV_WC_RETRY_EXC_ERR => ": the peer does not answer",
        IBV_WC_RNR_RETRY_EXC_ERR => ": the peer has no receive posted",
        IBV_WC_LOC_LEN_ERR => ": the message is longer than the receive's buffer",
        IBV_WC_LOC_PROT_ERR => ": the local region was deregistered, or does not allow it",
        _ => "",
    }
}

/// A completion: `rpma_cq_get_wc(3)`.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::READ_SRC)?;
/// # let here = conn.peer().register(AnonPages::new(4096)?, Usage::READ_DST)?;
/// conn.read(here.all(), there.all(), Signal::Always, 42)?;
/// let completion = conn.cq().wait(Duration::from_secs(10))?;
/// assert_eq!((completion.operation(), completion.context()), (Operation::Read, 42));
/// assert_eq!(completion.qp_num(), conn.qp_num());
/// completion.result()?; // an error if the read has failed
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_cq_get_wc")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    operation: Operation,
    context: u64,
    qp_num: u32,
    result: Result<Outcome, CompletionError>,
    ticket: Option<Ticket>,
}

impl Completion {
    /// What a completion of the provider says about a request of ours.
    pub(crate) fn of(operation: Operation, context: u64, wc: &ibv_wc, cq: &Cq) -> Self {
        let result = if wc.status == IBV_WC_SUCCESS {
            Ok(if operation == Operation::Recv { Outcome::Received(received(wc)) } else { Outcome::Done })
        } else {
            let (status, vendor_err) = (wc.status, wc.vendor_err);
            Err(CompletionError { operation, context, status, text: cq.status_text(status), vendor_err })
        };
        Self { operation, context, qp_num: wc.qp_num, result, ticket: None }
    }

    /// The same, of a request that a [`Signals`](crate::Signals) counts.
    pub(crate) fn with_ticket(self, ticket: Option<Ticket>) -> Self {
        Self { ticket, ..self }
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// The operation that was posted.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The number that was given when it was posted: C's `op_context`.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The number of the queue pair that it belongs to.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// What it brought.
    ///
    /// # Errors
    ///
    /// [`CompletionError`] if the operation failed; the connection is then in the error state.
    pub fn result(&self) -> Result<Outcome, CompletionError> {
        self.result
    }

    /// What a receive brought.
    ///
    /// # Errors
    ///
    /// [`CompletionError`] if the operation failed.
    pub fn received(&self) -> Result<Option<Received>, CompletionError> {
        Ok(match self.result? {
            Outcome::Received(received) => Some(received),
            Outcome::Done => None,
        })
    }
}

/// What a successful receive completion tells.
fn received(wc: &ibv_wc) -> Received {
    let with_imm = wc.wc_flags & IBV_WC_WITH_IMM != 0;
    Received { len_bytes: wc.byte_len, imm: with_imm.then(|| wc.imm()), by_write: wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM }
}
