//! Waiting for completions without blocking, on any runtime.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures_core::Stream;
use rpma_mr::sys::ProcessMark;

use crate::asynchronous::{Async, Waitable, Watch, Watched};
use crate::completion::Completion;
use crate::conn::Conn;
use crate::cq::{CompletionQueue, CqError, CqRole, look_in_any, shares_channel};
use crate::link::Link;
use crate::queue::Queue;
use crate::readiness::Readiness;
use crate::wait::any_of;
use crate::waiters::Waiters;

/// A task among those who wait for a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Task {
    waiters: Arc<Waiters>,
    number: u64,
    mark: ProcessMark,
}

impl Task {
    pub(crate) fn new(waiters: Arc<Waiters>) -> Self {
        Self { number: waiters.new_task(), waiters, mark: ProcessMark::current() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Has it woken when another one has taken the event that it waits for, or there is something else to look at.
    pub(crate) fn enter(&self, waker: &Waker) {
        self.waiters.enter(self.number, waker);
    }

    fn wake_others(&self) {
        self.waiters.wake_others(self.number);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // In a forked child, the lock may be held for ever by a thread that only the parent has.
        if self.mark.is_current() {
            self.waiters.leave(self.number);
        }
    }
}

/// What a task waits for.
struct Source<'a> {
    queues: [Option<&'a Queue>; 2],
    /// Its events are handled meanwhile.
    link: Option<&'a Link>,
}

impl<'a> Source<'a> {
    fn of(cq: &'a CompletionQueue) -> Self {
        Self { queues: [Some(cq.queue()), None], link: cq.link() }
    }

    fn of_both(link: &'a Link) -> Self {
        Self { queues: [Some(&link.main), link.receive.as_deref()], link: Some(link) }
    }

    fn queues(&self) -> impl Iterator<Item = &'a Queue> + use<'a> {
        self.queues.into_iter().flatten()
    }

    fn watched(&self, queue: &Arc<Queue>) -> io::Result<Watched> {
        let events = self.link.map(|link| link.channel.as_fd());
        let fds: Vec<_> = [queue.cq.as_fd()].into_iter().chain(events).collect();
        Ok(Watched { fd: any_of(&fds)?, waiters: Some(Arc::clone(&queue.waiters)) })
    }

    /// One step of waiting until `look` finds something: what `wait_for` is for threads.
    fn poll<Item>(
        &self,
        context: &mut Context<'_>,
        readiness: &mut impl Readiness,
        task: Option<&Task>,
        unread: &mut bool,
        look: impl Fn() -> Result<Option<Item>, CqError>,
    ) -> Poll<Result<Item, CqError>> {
        if let Some(found) = look()? {
            return Poll::Ready(Ok(found));
        }
        loop {
            // First, so that the event which the queues are armed for can be taken by another one.
            if let Some(task) = task {
                task.enter(context.waker());
            }
            // A completion from before the arming raises no event: look once more after it.
            for queue in self.queues() {
                queue.cq.request_notify().map_err(CqError::Wait)?;
            }
            if let Some(found) = look()? {
                return Poll::Ready(Ok(found));
            }
            if !*unread {
                ready!(readiness.poll_readable(context)).map_err(CqError::Wait)?;
            }
            // Until all are taken: an error leaves events behind.
            *unread = true;
            let mut taken = 0;
            for queue in self.queues() {
                taken += queue.cq.take_events().map_err(CqError::Wait)?;
            }
            if taken > 0
                && let Some(task) = task
            {
                task.wake_others();
            }
            if let Some(link) = self.link {
                link.pump().map_err(CqError::Wait)?;
            }
            *unread = false;
        }
    }
}

impl Waitable for CompletionQueue {}

impl Watch for CompletionQueue {
    fn watched(&self) -> io::Result<Watched> {
        Source::of(self).watched(self.queue())
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

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Result<Completion, CqError>> {
        self.of.has_channel_to_itself()?;
        self.in_turn(context, |Self { of, readiness, task, unread, .. }, context| {
            Source::of(of).poll(context, readiness, task.as_ref(), unread, || of.look())
        })
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
        shares_channel(self.link())?;
        Ok(SharedQueues(self.clone()))
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
        let link = self.0.link();
        Source::of_both(link).watched(&link.main)
    }
}

/// As a [`Stream`] it gives the completions of both queues, and ends as that of one queue does.
impl<R: Readiness> Async<SharedQueues, R> {
    /// The next completion, and where it was: [`Conn::wait`].
    ///
    /// Dropping the future loses no completion.
    ///
    /// # Errors
    ///
    /// As [`Conn::wait`], without the end of the time.
    #[doc(alias = "rpma_conn_wait")]
    pub async fn wait(&mut self) -> Result<(CqRole, Completion), CqError> {
        poll_fn(|context| self.poll_completion(context)).await
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Result<(CqRole, Completion), CqError>> {
        self.in_turn(context, |Self { of, readiness, task, unread, .. }, context| {
            let link = of.0.link();
            Source::of_both(link).poll(context, readiness, task.as_ref(), unread, || look_in_any(link))
        })
    }
}

impl<R: Readiness> Stream for Async<SharedQueues, R> {
    type Item = Result<(CqRole, Completion), CqError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_completion(context).map(next)
    }
}

fn next<T>(found: Result<T, CqError>) -> Option<Result<T, CqError>> {
    match found {
        Err(CqError::Drained | CqError::Closed) => None,
        next => Some(next),
    }
}
