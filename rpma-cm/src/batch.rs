//! Batches: many requests with one doorbell.

use std::fmt;
use std::io;

use rpma_mr::sys::owned::{BatchRequest, Taken};
use rpma_mr::{ErrorCode, FlushType, RemoteSlice};

use crate::ledger::{Entry, Full};
use crate::link::{Link, lock};
use crate::post::{Request, Sent, Signal};
use crate::post_error::PostError;
use crate::source::{Ranges, Source};

/// Why a batch was not posted, or not all of it. What was not posted is still in the batch, and can be posted again.
///
/// ```
/// use rpma::{BatchError, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// let cfg = ConnCfg::new().sq_size(2);
/// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
/// conn.write(there.slice(0..3)?, Inline(b"one"), Signal::Always, 1)?;
/// let mut batch = conn.batch();
/// batch.write(there.slice(3..6)?, Inline(b"two"), Signal::OnError, 2)?;
/// batch.write(there.slice(6..11)?, Inline(b"three"), Signal::Always, 3)?;
/// let full = batch.post();
/// assert!(matches!(full, Err(BatchError::QueueFull { requests: 2, outstanding: 1, limit: 2 })));
/// conn.cq().wait(Duration::from_secs(10))?.result()?; // makes room
/// batch.post()?; // all that is in it still
/// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum BatchError {
    /// It never fits. Nothing was posted.
    #[error(
        "a batch of {requests} requests is more than the send queue has room for; split it, or ask for a larger queue (ConnCfg::sq_size is {limit})"
    )]
    TooLarge { requests: usize, limit: u32 },
    /// It does not fit now. Nothing was posted.
    #[error(
        "a batch of {requests} requests does not fit: {outstanding} are posted and not yet polled, and ConnCfg::sq_size is {limit}; poll completions, then post it again"
    )]
    QueueFull { requests: usize, outstanding: usize, limit: u32 },
    /// The provider refused: it took the first `taken` requests and no other.
    #[error("the provider refused a batch of {requests} requests behind the first {taken}, which it took")]
    Provider { requests: usize, taken: usize, source: io::Error },
    /// The provider refused: it took the first `taken` requests, and may run the others all the same. Their slots stay taken until a later
    /// completion frees them, and none is in the batch any more.
    #[error(
        "the provider refused a batch of {requests} requests without saying that those behind the first {taken} were not taken; they may still run"
    )]
    PerhapsTaken { requests: usize, taken: usize, source: io::Error },
}

impl BatchError {
    /// The code that librpma gives for a post that fails like this.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge { .. } => ErrorCode::InvalidArgument,
            Self::QueueFull { .. } | Self::Provider { .. } | Self::PerhapsTaken { .. } => ErrorCode::Provider,
        }
    }
}

/// Requests that are posted together, in their order, with one doorbell: [`Conn::batch`](crate::Conn::batch).
///
/// Its methods are those of the connection. Each checks its request at once and adds it; nothing is posted before [`post`](Self::post).
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
/// # let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
/// let mut batch = conn.batch();
/// for n in 0..7_usize {
///     batch.write(there.slice_at(256 * n as u64, 256)?, here.slice(256 * n..256 * (n + 1))?, Signal::OnError, n as u64)?;
/// }
/// batch.flush(there.slice_at(0, 7 * 256)?, FlushType::Visibility, Signal::OnError, 8)?;
/// batch.atomic_write(there.slice_at(4088, 8)?, 7_u64.to_le_bytes(), Signal::Always, 9)?; // behind the flush
/// assert_eq!(batch.len(), 9);
/// batch.post()?;
/// assert!(batch.is_empty());
/// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 9);
/// assert_eq!(memory.load_u64(4088, std::sync::atomic::Ordering::Acquire)?, 7); // at the peer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Completions are those of requests that were posted one by one. The regions are named and not held: like any posted request, one whose
/// region is deregistered before it has completed fails.
///
/// With native operations a batch is one `ibv_wr_start(3)` … `ibv_wr_complete(3)`, and otherwise one `ibv_post_send(3)`. One that has both
/// native operations and requests of several ranges of different lengths takes a doorbell for each change between the two, for the sake
/// of a defect in rdma-core.
///
/// Only an established connection has batches; this does not compile:
///
/// ```compile_fail,E0599
/// # fn f(request: rpma_cm::ConnReq<rpma_cm::Outgoing>) {
/// request.batch();
/// # }
/// ```
#[must_use = "a batch does nothing before it is posted"]
pub struct Batch<'a> {
    link: &'a Link,
    requests: Vec<Request<'static>>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(link: &'a Link) -> Self {
        Self { link, requests: Vec::new() }
    }

    fn add(&mut self, request: Request<'_>) -> &mut Self {
        self.requests.push(request.into_owned());
        self
    }

    /// Adds a [`Conn::read`](crate::Conn::read).
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn read<'s>(
        &mut self,
        dst: impl Into<Ranges<'s>>,
        src: RemoteSlice,
        signal: Signal,
        context: u64,
    ) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.read(dst.into(), src, signal, context)?))
    }

    /// Adds a [`Conn::write`](crate::Conn::write). [`Inline`](crate::Inline) bytes are copied now.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn write<'s>(
        &mut self,
        dst: RemoteSlice,
        src: impl Into<Source<'s>>,
        signal: Signal,
        context: u64,
    ) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.write(dst, src.into(), None, signal, context)?))
    }

    /// Adds a [`Conn::write_with_imm`](crate::Conn::write_with_imm). [`Inline`](crate::Inline) bytes are copied now.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn write_with_imm<'s>(
        &mut self,
        dst: RemoteSlice,
        src: impl Into<Source<'s>>,
        imm: u32,
        signal: Signal,
        context: u64,
    ) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.write(dst, src.into(), Some(imm), signal, context)?))
    }

    /// Adds a [`Conn::atomic_write`](crate::Conn::atomic_write).
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn atomic_write(
        &mut self,
        dst: RemoteSlice,
        value: [u8; 8],
        signal: Signal,
        context: u64,
    ) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.atomic_write(dst, value, signal, context)?))
    }

    /// Adds a [`Conn::flush`](crate::Conn::flush): of what was written before it, in this batch and earlier.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn flush(
        &mut self,
        dst: RemoteSlice,
        flush_type: FlushType,
        signal: Signal,
        context: u64,
    ) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.flush(dst, flush_type, signal, context)?))
    }

    /// Adds a [`Conn::send`](crate::Conn::send). [`Inline`](crate::Inline) bytes are copied now.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn send<'s>(&mut self, src: impl Into<Source<'s>>, signal: Signal, context: u64) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.send(src.into(), None, signal, context)?))
    }

    /// Adds a [`Conn::send_with_imm`](crate::Conn::send_with_imm). [`Inline`](crate::Inline) bytes are copied now.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the batch is as it was.
    pub fn send_with_imm<'s>(
        &mut self,
        src: impl Into<Source<'s>>,
        imm: u32,
        signal: Signal,
        context: u64,
    ) -> Result<&mut Self, PostError> {
        Ok(self.add(self.link.send(src.into(), Some(imm), signal, context)?))
    }

    /// Posts all of it, or nothing where the queue has no room for all, and leaves the batch empty, to be filled again. Other threads'
    /// requests come before it or behind it. Polling makes room, for requests without completions too. An empty batch is posted without a doorbell.
    ///
    /// ```
    /// use rpma::{BatchError, prelude::*};
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::READ_SRC)?;
    /// # let here = conn.peer().register(AnonPages::new(4096)?, Usage::READ_DST)?;
    /// let mut batch = conn.batch();
    /// for n in 0..11 {
    ///     batch.read(here.slice(0..8)?, there.slice(0..8)?, Signal::Always, n)?;
    /// }
    /// // More than the send queue will ever take.
    /// assert!(matches!(batch.post(), Err(BatchError::TooLarge { requests: 11, limit: 10 })));
    /// assert_eq!(batch.len(), 11);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BatchError`]; the connection stays intact. The batch keeps the requests that were not posted, so that it can be posted again.
    pub fn post(&mut self) -> Result<(), BatchError> {
        let posted = self.link.post_batch(&self.requests);
        let gone = match &posted {
            Ok(()) | Err(BatchError::PerhapsTaken { .. }) => self.requests.len(),
            Err(BatchError::Provider { taken, .. }) => *taken,
            Err(BatchError::TooLarge { .. } | BatchError::QueueFull { .. }) => 0,
        };
        self.requests.drain(..gone);
        posted
    }

    /// Requests that were added and not yet posted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("qp_num", &self.link.qp.number())
            .field("requests", &self.requests.len())
            .finish_non_exhaustive()
    }
}

impl Link {
    fn post_batch(&self, requests: &[Request<'static>]) -> Result<(), BatchError> {
        let count = requests.len();
        if count == 0 {
            return Ok(());
        }
        // In a forked child, a lock may be held for ever by a thread that only the parent has.
        self.qp.check_process().map_err(|source| BatchError::Provider { requests: count, taken: 0, source })?;
        if count > self.sq_size as usize {
            return Err(BatchError::TooLarge { requests: count, limit: self.sq_size });
        }
        // Entered and posted under the ledger's lock, so that both are in one order.
        let mut sent = lock(&self.sent);
        let outstanding = sent.outstanding();
        if let Err(Full(limit)) = sent.room_for(count) {
            drop(sent);
            // The last requests may be without completions, and what waits for room for several would wait for ever.
            self.mark_end();
            return Err(BatchError::QueueFull { requests: count, outstanding, limit });
        }
        let mut batch = Vec::with_capacity(count);
        for request in requests {
            let op = Sent::Operation(request.operation, request.signal);
            let wr_id = sent.enter(Entry { op, context: request.context });
            batch.push(BatchRequest { work: request.work(), options: self.options(request, wr_id) });
        }
        self.qp.post_batch(&batch).map_err(|e| {
            let (taken, source) = (e.taken, e.source);
            match e.rest {
                Taken::No => {
                    sent.take_back(count - taken);
                    BatchError::Provider { requests: count, taken, source }
                }
                // Their completions may come: the entries stay.
                Taken::Unknown => BatchError::PerhapsTaken { requests: count, taken, source },
            }
        })
    }
}
