//! Waiting for completions without blocking, on any runtime.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::asynchronous::{Async, Waitable, Watch, Watched};
use crate::completion::Completion;
use crate::conn::Conn;
use crate::cq::{CompletionQueue, CqError, CqRole, both, shares_channel};
use crate::dispatcher::{Dispatched, Dispatcher};
use crate::link::Link;
use crate::pending::PendingConn;
use crate::readiness::Readiness;

impl Waitable for CompletionQueue {}

impl Watch for CompletionQueue {
    fn watched(&self) -> io::Result<Watched> {
        self.place().watched()
    }
}

/// As a [`Stream`] it gives the completions, and ends when none can come any more ([`CqError::Drained`]) or the owner is closed
/// ([`CqError::Closed`]).
impl<R: Readiness> Async<CompletionQueue, R> {
    /// The next completion: [`CompletionQueue::wait`].
    ///
    /// Watches the connection too, as that does: when the peer dies, everything posted completes with an error.
    ///
    /// Dropping the future loses no completion.
    ///
    /// ```
    /// use rpma::{CqError, prelude::*, tokio::Async};
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut cq = Async::new(conn.cq())?;
    /// conn.recv(LocalSlice::null(), 1)?;
    /// # drop(server); // the peer's process dies
    /// let failed = cq.wait().await?; // by itself, when the peer dies
    /// assert!(failed.result().is_err_and(|e| e.is_flushed()));
    /// assert!(matches!(cq.wait().await, Err(CqError::Drained)));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`CompletionQueue::wait`], without the end of the time.
    #[doc(alias = "rpma_cq_wait")]
    pub async fn wait(&mut self) -> Result<Completion, CqError> {
        poll_fn(|context| self.poll_completion(context)).await
    }

    /// The completions, as they come: this stream under the name of what it gives. Dropping it loses no completion.
    ///
    /// ```
    /// use futures_core::Stream;
    /// use rpma::{prelude::*, tokio::Async};
    /// use std::{future::poll_fn, pin::Pin};
    ///
    /// # let (conn, _server) = rpma::testing::pair()?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut cq = Async::new(conn.cq())?;
    /// # conn.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 7)?;
    /// # conn.disconnect()?;
    /// let mut completions = cq.completions();
    /// // With `StreamExt` of the crate futures: `completions.next().await`.
    /// while let Some(completion) = poll_fn(|context| Pin::new(&mut completions).poll_next(context)).await {
    ///     println!("{:?}", completion?);
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completions(&mut self) -> impl Stream<Item = Result<Completion, CqError>> + Unpin {
        self
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Result<Completion, CqError>> {
        self.of.has_channel_to_itself()?;
        self.in_turn(context, |Self { of, waiting, .. }, context| waiting.poll_at(&of.place(), context))
    }
}

impl<R: Readiness> Stream for Async<CompletionQueue, R> {
    type Item = Result<Completion, CqError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_completion(context).map(next)
    }
}

/// Both completion queues of a connection whose queues share their channel ([`ConnCfg::shared_channel`](crate::ConnCfg::shared_channel)),
/// to be waited for by a task: [`Conn::shared_queues`].
///
/// ```
/// use rpma::{CqRole, prelude::*, tokio::Async};
///
/// # let peer = rpma::testing::peer()?;
/// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
/// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let mut queues = Async::new(conn.shared_queues()?)?;
/// conn.recv(LocalSlice::null(), 7)?;
/// # server.send(LocalSlice::null(), Signal::OnError, 0)?; // the peer's message
/// let (role, completion) = queues.wait().await?;
/// assert_eq!((role, completion.context()), (CqRole::Receive, 7));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedQueues(Conn);

impl Conn {
    /// Both completion queues, which share their channel, for [`Async`].
    ///
    /// ```
    /// use rpma::{CqError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    /// # let (conn, other) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// assert_eq!(conn.shared_queues()?.conn().qp_num(), conn.qp_num());
    /// assert!(matches!(other.shared_queues(), Err(CqError::NotSharedChannel))); // made without
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CqError::NotSharedChannel`] as for [`wait`](Self::wait).
    pub fn shared_queues(&self) -> Result<SharedQueues, CqError> {
        shared_queues(self.link())
    }
}

impl SharedQueues {
    /// Their connection.
    pub fn conn(&self) -> &Conn {
        &self.0
    }
}

impl AsFd for SharedQueues {
    /// As [`Conn::compl_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.link().main.cq.as_fd()
    }
}

impl fmt::Debug for SharedQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedQueues").field(&self.0).finish()
    }
}

impl Waitable for SharedQueues {}

impl Watch for SharedQueues {
    fn watched(&self) -> io::Result<Watched> {
        both(self.0.link()).watched()
    }
}

/// As a [`Stream`] it gives the completions of both queues, and ends as that of one queue does.
impl<R: Readiness> Async<SharedQueues, R> {
    /// The next completion, and where it was: [`Conn::wait`].
    ///
    /// Dropping the future loses no completion.
    ///
    /// ```
    /// use rpma::{CqRole, prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # server.recv(LocalSlice::null(), 0)?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut queues = Async::new(conn.shared_queues()?)?;
    /// conn.send(LocalSlice::null(), Signal::Always, 7)?;
    /// let (role, completion) = queues.wait().await?;
    /// assert_eq!((role, completion.context()), (CqRole::Main, 7));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Conn::wait`], without the end of the time.
    #[doc(alias = "rpma_conn_wait")]
    pub async fn wait(&mut self) -> Result<(CqRole, Completion), CqError> {
        poll_fn(|context| self.poll_completion(context)).await
    }

    /// The completions of both queues, as they come: this stream under the name of what it gives. Dropping it loses no completion.
    ///
    /// ```
    /// use futures_core::Stream;
    /// use rpma::{prelude::*, tokio::Async};
    /// use std::{future::poll_fn, pin::Pin};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut queues = Async::new(conn.shared_queues()?)?;
    /// conn.recv(LocalSlice::null(), 1)?;
    /// # server.disconnect()?; // the peer ends it
    /// let (mut completions, mut told) = (queues.completions(), 0);
    /// // With `StreamExt` of the crate futures: `completions.next().await`.
    /// while let Some(next) = poll_fn(|context| Pin::new(&mut completions).poll_next(context)).await {
    ///     let (role, completion) = next?;
    ///     println!("{role:?}: {completion:?}");
    ///     told += 1;
    /// }
    /// assert_eq!(told, 1); // the receive, which failed
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completions(&mut self) -> impl Stream<Item = Result<(CqRole, Completion), CqError>> + Unpin {
        self
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Result<(CqRole, Completion), CqError>> {
        self.in_turn(context, |Self { of, waiting, .. }, context| waiting.poll_at(&both(of.0.link()), context))
    }
}

impl<R: Readiness> Stream for Async<SharedQueues, R> {
    type Item = Result<(CqRole, Completion), CqError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_completion(context).map(next)
    }
}

/// As a [`Stream`] it gives what it finds, and ends when it is closed.
impl<R: Readiness> Async<Dispatcher, R> {
    /// The next completion of any of its connections: [`Dispatcher::wait`].
    ///
    /// Dropping the future loses no completion.
    ///
    /// ```
    /// use rpma::{Dispatcher, prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut dispatcher = Async::new(Dispatcher::new(&peer)?)?;
    /// let cfg = ConnCfg::new().dispatcher(&dispatcher);
    /// # let (conn, client) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// conn.recv(LocalSlice::null(), 7)?;
    /// # client.send(LocalSlice::null(), Signal::OnError, 0)?; // the peer's message
    /// let dispatched = dispatcher.wait().await?;
    /// assert_eq!(dispatched.qp_num, conn.qp_num());
    /// assert_eq!(dispatched.found?.1.context(), 7);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Dispatcher::wait`], without the end of the time.
    pub async fn wait(&mut self) -> Result<Dispatched, CqError> {
        poll_fn(|context| self.poll_dispatched(context)).await
    }

    /// The completions of its connections, as they come: this stream under the name of what it gives. Dropping it loses no completion.
    ///
    /// ```
    /// use futures_core::Stream;
    /// use rpma::{CqError, Dispatcher, prelude::*, tokio::Async};
    /// use std::{future::poll_fn, pin::Pin};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let dispatcher = Dispatcher::new(&peer)?;
    /// # let cfg = ConnCfg::new().dispatcher(&dispatcher);
    /// # let (_conn, client) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # client.disconnect()?; // the peer of one of its connections ends it
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut waiting = Async::new(dispatcher.clone())?;
    /// let mut completions = waiting.completions();
    /// // With `StreamExt` of the crate futures: `completions.next().await`.
    /// while let Some(dispatched) = poll_fn(|context| Pin::new(&mut completions).poll_next(context)).await {
    ///     match dispatched?.found {
    ///         Ok((role, completion)) => println!("{role:?}: {completion:?}"),
    ///         Err(CqError::Drained) => dispatcher.close(), // its only connection has ended, and so does the stream
    ///         Err(e) => return Err(e.into()),
    ///     }
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completions(&mut self) -> impl Stream<Item = Result<Dispatched, CqError>> + Unpin {
        self
    }

    fn poll_dispatched(&mut self, context: &mut Context<'_>) -> Poll<Result<Dispatched, CqError>> {
        self.in_turn(context, |Self { of, waiting, .. }, context| waiting.poll_at(of, context))
    }
}

impl<R: Readiness> Stream for Async<Dispatcher, R> {
    type Item = Result<Dispatched, CqError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.poll_dispatched(context)) {
            Err(CqError::Closed) => None,
            next => Some(next),
        })
    }
}

impl<R: Readiness> Async<Conn, R> {
    /// The next completion of both queues, which share their channel, and where it was: [`Conn::wait`].
    ///
    /// Has the runtime watch the queues for this one call. Who waits often makes an `Async` of [`Conn::shared_queues`] and keeps it.
    ///
    /// Dropping the future loses no completion.
    ///
    /// ```
    /// use rpma::{CqRole, prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # server.recv(LocalSlice::null(), 0)?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut conn = Async::new(conn)?;
    /// conn.send(LocalSlice::null(), Signal::Always, 7)?;
    /// let (role, completion) = conn.wait().await?;
    /// assert_eq!((role, completion.context()), (CqRole::Main, 7));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Conn::wait`], without the end of the time; [`CqError::Wait`] if the runtime refuses to watch them.
    #[doc(alias = "rpma_conn_wait")]
    pub async fn wait(&mut self) -> Result<(CqRole, Completion), CqError> {
        let queues = self.of.shared_queues()?;
        self.wait_at(queues).await
    }
}

impl<R: Readiness> Async<PendingConn, R> {
    /// The next completion of both queues, which share their channel, and where it was: [`PendingConn::wait`]. As for an established
    /// connection, for this one call.
    ///
    /// Dropping the future loses no completion.
    ///
    /// ```
    /// use rpma::{CqRole, prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut pending = Async::new(ConnReq::new(&peer, addr, &cfg)?.connect(&[])?)?;
    /// pending.recv(LocalSlice::null(), 7)?;
    /// # endpoint.next_request(Duration::from_secs(10))?.reject(&[])?; // the peer's answer
    /// let (role, completion) = pending.wait().await?; // by itself, when the peer has rejected it
    /// assert_eq!((role, completion.context()), (CqRole::Receive, 7));
    /// assert!(completion.result().is_err_and(|e| e.is_flushed()));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`PendingConn::wait`], without the end of the time; [`CqError::Wait`] if the runtime refuses to watch them.
    #[doc(alias = "rpma_conn_wait")]
    pub async fn wait(&mut self) -> Result<(CqRole, Completion), CqError> {
        let queues = shared_queues(&self.of.0)?;
        self.wait_at(queues).await
    }
}

impl<T: Waitable, R: Readiness> Async<T, R> {
    /// One completion of `queues`, by a registration of their own: this one's is for other events.
    async fn wait_at(&mut self, queues: SharedQueues) -> Result<(CqRole, Completion), CqError> {
        let mut queues: Async<_, R> = Async::new(queues).map_err(CqError::Wait)?;
        // The turns are this one's: the other one ends with the call.
        poll_fn(|context| self.in_turn(context, |_, context| queues.poll_completion(context))).await
    }
}

fn shared_queues(link: &Arc<Link>) -> Result<SharedQueues, CqError> {
    shares_channel(link)?;
    Ok(SharedQueues(Conn(Arc::clone(link))))
}

fn next<T>(found: Result<T, CqError>) -> Option<Result<T, CqError>> {
    match found {
        Err(CqError::Drained | CqError::Closed) => None,
        next => Some(next),
    }
}
