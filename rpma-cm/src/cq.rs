//! Completion queues, of connections and of shared receive queues.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rpma_mr::ErrorCode;
use rpma_mr::sys::bindings::{IBV_WC_SUCCESS, ibv_wc};

use crate::awaited::wait_at;
use crate::completion::{Completion, Operation};
use crate::ledger::Entry;
use crate::link::{Link, Receives, lock};
use crate::post::{Sent, Signal};
use crate::queue::{Place, Queue, Retired};
use crate::srq::Srq;
use crate::wait::Wait;

/// Why no completion could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// There was none within the time given.
    #[error("no completion within the time given")]
    NoCompletion,
    /// The connection has ended, and everything that was posted has been polled: there will never be one.
    #[error("the connection has ended and nothing is outstanding: no completion will come")]
    Drained,
    /// The connection, or the shared receive queue, was closed from another thread.
    #[error("closed while waiting for completions")]
    Closed,
    /// The connection's queues share their completion channel ([`ConnCfg::shared_channel`](crate::ConnCfg::shared_channel)), so events of
    /// one cannot be waited for without taking those of the other.
    #[error("the completion channel is shared by the connection's queues: wait on the connection (Conn::wait), not on one queue")]
    SharedChannel,
    /// The connection has a [`Dispatcher`](crate::Dispatcher), which waits for it.
    #[error("the connection's completions are waited for at its dispatcher: Dispatcher::wait")]
    HasDispatcher,
    /// The connection's queues have a channel each, or the connection has one queue alone.
    #[error("the completion channel is not shared: wait on each queue, or set ConnCfg::shared_channel")]
    NotSharedChannel,
    /// The provider refused, or reported what cannot be.
    #[error("the provider gives no completions")]
    Provider(#[source] io::Error),
    /// The wait itself failed.
    #[error("the completion queue cannot be waited for")]
    Wait(#[source] io::Error),
    /// The provider completed something that was not outstanding.
    #[error("the provider completed request {wr_id:#x}, which is not outstanding: a fault of the provider")]
    #[expect(missing_docs, reason = "the message explains its fields")]
    Stray { wr_id: u64 },
}

impl CqError {
    /// The code that librpma gives for this: `rpma_cq_wait(3)`, `rpma_cq_get_wc(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            // "Any failure of the wait": `rpma_cq_wait(3)`.
            Self::NoCompletion | Self::Drained | Self::Closed | Self::Wait(_) => ErrorCode::NoCompletion,
            Self::SharedChannel | Self::HasDispatcher => ErrorCode::SharedChannel,
            Self::NotSharedChannel => ErrorCode::NotSharedChannel,
            // More completions than were asked for.
            Self::Provider(e) if e.kind() == io::ErrorKind::InvalidData => ErrorCode::Unknown,
            Self::Provider(_) => ErrorCode::Provider,
            Self::Stray { .. } => ErrorCode::Unknown,
        }
    }
}

/// In our `wr_id`s: set for receives. The status of a failed completion is all that it tells, so the request's number must say which
/// queue it was in.
const RECV: u64 = 1 << 63;

pub(crate) fn recv_wr_id(number: u64) -> u64 {
    number | RECV
}

/// The number of a receive; `None` for a request of a send queue.
pub(crate) fn recv_number(wr_id: u64) -> Option<u64> {
    (wr_id & RECV != 0).then_some(wr_id & !RECV)
}

/// Which of a connection's completion queues.
///
/// ```
/// use rpma::{CqRole, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
/// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// conn.recv(LocalSlice::null(), 1)?;
/// # server.send(LocalSlice::null(), Signal::OnError, 0)?; // the peer's message
/// let (role, completion) = conn.wait(Duration::from_secs(10))?;
/// assert_eq!((role, completion.operation()), (CqRole::Receive, Operation::Recv));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CqRole {
    /// The main one: [`Conn::cq`](crate::Conn::cq).
    Main,
    /// The receive CQ: [`Conn::rcq`](crate::Conn::rcq).
    Receive,
}

/// Which of a connection's completion queues had an event: [`Conn::arm`](crate::Conn::arm).
///
/// ```
/// use rpma::{Fired, prelude::*};
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// # let peer = rpma::testing::peer()?;
/// # let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
/// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// # server.recv(LocalSlice::null(), 0)?;
/// conn.arm()?;
/// conn.send(LocalSlice::null(), Signal::Always, 1)?;
/// poll(&mut [PollFd::from_borrowed_fd(conn.compl_fd()?, PollFlags::IN)], None)?; // or the event loop's call
/// let Fired { main, receive } = conn.arm()?;
/// assert!(main && !receive);
/// assert_eq!(conn.cq().poll()?.map(|done| done.context()), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fired {
    /// The main one.
    pub main: bool,
    /// The receive CQ.
    pub receive: bool,
}

/// A completion queue: `rpma_conn_get_cq(3)`, `rpma_conn_get_rcq(3)`, `rpma_srq_get_rcq(3)`.
///
/// A handle on a queue of a connection, or of a shared receive queue: it keeps its owner's queues alive, and works before and after a
/// connection is established.
///
/// There are two ways to wait, and a queue takes one of them: [`wait`](Self::wait), from any number of threads; or an event loop that
/// watches the descriptor ([`AsFd`]), and on every wake-up calls [`arm`](Self::arm) and then [`poll`](Self::poll) until there is nothing
/// left. An event loop watches the connection's descriptor as well: reading its events is what makes the operations of a dead peer
/// complete.
///
/// Where a connection's queues share their channel, both go by the connection: [`Conn::wait`](crate::Conn::wait),
/// [`Conn::arm`](crate::Conn::arm).
///
/// ```
/// use rpma::{CqError, prelude::*};
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # server.recv(LocalSlice::null(), 0)?;
/// let cq = conn.cq();
/// assert!(matches!(cq.wait(Wait::Now), Err(CqError::NoCompletion)));
/// conn.send(LocalSlice::null(), Signal::Always, 1)?;
/// assert_eq!(cq.wait(Duration::from_secs(10))?.context(), 1);
/// assert_eq!(cq.poll()?, None); // each is told once
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_cq_get_fd")]
#[doc(alias = "rpma_conn_get_cq")]
#[derive(Clone)]
pub struct CompletionQueue {
    queue: Arc<Queue>,
    owner: Owner,
}

/// Whose requests complete into a queue.
#[derive(Clone)]
enum Owner {
    Conn(Arc<Link>, CqRole),
    Srq(Srq),
}

impl CompletionQueue {
    pub(crate) fn main(link: &Arc<Link>) -> Self {
        Self { queue: Arc::clone(&link.main), owner: Owner::Conn(Arc::clone(link), CqRole::Main) }
    }

    pub(crate) fn receive(link: &Arc<Link>) -> Option<Self> {
        let queue = link.receive.as_ref()?;
        Some(Self { queue: Arc::clone(queue), owner: Owner::Conn(Arc::clone(link), CqRole::Receive) })
    }

    pub(crate) fn of_srq(queue: &Arc<Queue>, srq: &Srq) -> Self {
        Self { queue: Arc::clone(queue), owner: Owner::Srq(srq.clone()) }
    }

    /// Takes a completion if there is one: `rpma_cq_get_wc(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # server.recv(LocalSlice::null(), 0)?;
    /// conn.send(LocalSlice::null(), Signal::Always, 1)?;
    /// let completion = loop {
    ///     if let Some(completion) = conn.cq().poll()? {
    ///         break completion;
    ///     }
    ///     std::thread::yield_now(); // or do something useful
    /// };
    /// assert_eq!(completion.context(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CqError`]; nothing there is no error.
    #[doc(alias = "rpma_cq_get_wc")]
    pub fn poll(&self) -> Result<Option<Completion>, CqError> {
        let mut one = [ibv_wc::default()];
        let mut taken = None;
        self.poll_into(&mut one, |completion| taken = Some(completion))?;
        Ok(taken)
    }

    /// Takes up to `max` completions, appends them to `into` and says how many: `rpma_cq_get_wc(3)` with `num_entries`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// for n in 0..8 {
    ///     conn.write(there.slice_at(8 * n, 8)?, Inline(b"8 bytes!"), Signal::Always, n)?;
    /// }
    /// let mut done = vec![conn.cq().wait(Duration::from_secs(10))?];
    /// while done.len() < 8 {
    ///     conn.cq().poll_batch(&mut done, 8)?; // what there is, at once
    /// }
    /// assert!((0..8).eq(done.iter().map(|completion| completion.context())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CqError`]; what was taken before it is in `into`.
    #[doc(alias = "rpma_cq_get_wc")]
    pub fn poll_batch(&self, into: &mut Vec<Completion>, max: usize) -> Result<usize, CqError> {
        let mut room = [ibv_wc::default(); 16];
        let mut taken = 0;
        while taken < max {
            let want = (max - taken).min(room.len());
            let now = self.poll_into(&mut room[..want], |completion| into.push(completion))?;
            taken += now;
            if now < want {
                break;
            }
        }
        Ok(taken)
    }

    /// Waits for a completion and takes it: `rpma_cq_wait(3)` and `rpma_cq_get_wc(3)` in one, so that none is missed in between.
    ///
    /// Watches the connection too: when the peer dies, everything posted completes with an error, without any other call. The queue of a
    /// shared receive queue watches none: see [`Srq`].
    ///
    /// ```
    /// use rpma::{CqError, prelude::*};
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// conn.recv(LocalSlice::null(), 1)?;
    /// assert!(matches!(conn.cq().wait(Duration::from_millis(1)), Err(CqError::NoCompletion)));
    /// # drop(server); // the peer's process dies
    /// let failed = conn.cq().wait(Duration::from_secs(10))?; // by itself, when the peer dies
    /// assert!(failed.result().is_err_and(|e| e.is_flushed()));
    /// assert!(matches!(conn.cq().wait(Wait::Forever), Err(CqError::Drained)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CqError::NoCompletion`] when the time is over, [`CqError::Drained`] when none can come any more, [`CqError::Closed`] when the
    /// owner is closed from another thread, [`CqError::SharedChannel`] at once if the queue shares its channel, and the provider's
    /// refusals.
    #[doc(alias = "rpma_cq_wait")]
    #[doc(alias = "rpma_cq_get_wc")]
    pub fn wait(&self, wait: impl Into<Wait>) -> Result<Completion, CqError> {
        self.has_channel_to_itself()?;
        wait_at(&self.place(), wait.into())
    }

    /// For event loops: takes the events that are there and asks for one on the next completion. Poll until nothing is left after this.
    ///
    /// ```
    /// use rpma::prelude::*;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// let cq = conn.cq();
    /// cq.arm()?;
    /// assert_eq!(cq.poll()?, None); // nothing yet, so wait
    /// # server.recv(LocalSlice::null(), 0)?;
    /// conn.send(LocalSlice::null(), Signal::Always, 1)?;
    /// poll(&mut [PollFd::new(&cq, PollFlags::IN)], None)?; // or the event loop's call, which watches the connection too
    /// cq.arm()?;
    /// assert_eq!(cq.poll()?.map(|completion| completion.context()), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CqError::SharedChannel`] if the queue shares its channel, [`CqError::Provider`].
    pub fn arm(&self) -> Result<(), CqError> {
        self.has_channel_to_itself()?;
        self.queue.cq.take_events().map_err(CqError::Provider)?;
        self.queue.cq.request_notify().map_err(CqError::Provider)
    }

    /// Completions that it has room for: what was asked for, or more.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.cq.capacity()
    }

    pub(crate) fn raw(&self) -> &rpma_mr::sys::owned::Cq {
        &self.queue.cq
    }

    /// Where its completions are waited for. A connection's events are handled meanwhile.
    pub(crate) fn place(&self) -> Place<'_, impl Fn() -> Result<Option<Completion>, CqError>> {
        let link = match &self.owner {
            Owner::Conn(link, _) => Some(&**link),
            Owner::Srq(_) => None,
        };
        Place { queue: &self.queue, other: None, link, look: || self.look() }
    }

    /// What who waits looks for: a completion, or a reason why none will come.
    fn look(&self) -> Result<Option<Completion>, CqError> {
        match &self.owner {
            Owner::Conn(link, role) => link.look(|| self.poll(), || link.outstanding(*role)),
            Owner::Srq(srq) => match self.poll()? {
                None if srq.is_closed() => Err(CqError::Closed),
                found => Ok(found),
            },
        }
    }

    pub(crate) fn has_channel_to_itself(&self) -> Result<(), CqError> {
        match &self.owner {
            Owner::Conn(link, _) if link.member.is_some() => Err(CqError::HasDispatcher),
            Owner::Conn(link, _) if link.shares_channel => Err(CqError::SharedChannel),
            Owner::Conn(..) | Owner::Srq(_) => Ok(()),
        }
    }

    fn poll_into(&self, room: &mut [ibv_wc], take: impl FnMut(Completion)) -> Result<usize, CqError> {
        match &self.owner {
            Owner::Conn(link, _) => self.queue.poll(room, |wc| link.retire(wc, &self.queue), take),
            Owner::Srq(srq) => self.queue.poll(room, |wc| srq.retire(wc, &self.queue.cq), take),
        }
    }
}

impl AsFd for CompletionQueue {
    /// Readable after a completion, if [`arm`](Self::arm) was called before it: `rpma_cq_get_fd(3)`. Where a connection's queues share
    /// their channel, the descriptor of both ([`Conn::compl_fd`](crate::Conn::compl_fd)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.cq.as_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CompletionQueue");
        match &self.owner {
            Owner::Conn(link, role) => debug.field("qp_num", &link.qp.number()).field("role", role),
            Owner::Srq(srq) => debug.field("srq", srq),
        };
        debug.field("capacity", &self.capacity()).finish()
    }
}

/// Waits for a completion in any of a connection's queues, which share their channel, and takes it.
pub(crate) fn wait_any(link: &Arc<Link>, wait: Wait) -> Result<(CqRole, Completion), CqError> {
    shares_channel(link)?;
    wait_at(&both(link), wait)
}

/// Where the completions of all of a connection's queues are waited for, which share their channel.
pub(crate) fn both(link: &Arc<Link>) -> Place<'_, impl Fn() -> Result<Option<(CqRole, Completion)>, CqError>> {
    Place { queue: &link.main, other: link.receive.as_ref(), link: Some(link), look: || look_in_any(link) }
}

/// What who waits for any of a connection's queues looks for.
fn look_in_any(link: &Arc<Link>) -> Result<Option<(CqRole, Completion)>, CqError> {
    let (main, receive) = (CompletionQueue::main(link), CompletionQueue::receive(link));
    let poll = || {
        let from_main = || main.poll().map(|found| found.map(|completion| (CqRole::Main, completion)));
        let from_receive = || match &receive {
            Some(receive) => receive.poll().map(|found| found.map(|completion| (CqRole::Receive, completion))),
            None => Ok(None),
        };
        // In turn, so that neither queue waits for ever behind a busy one.
        if link.main_is_next() {
            Ok(from_main()?.map_or_else(from_receive, |found| Ok(Some(found)))?)
        } else {
            Ok(from_receive()?.map_or_else(from_main, |found| Ok(Some(found)))?)
        }
    };
    let outstanding = || link.outstanding(CqRole::Main) + receive.as_ref().map_or(0, |_| link.outstanding(CqRole::Receive));
    link.look(poll, outstanding)
}

/// As [`CompletionQueue::arm`], for all queues of a connection, which share their channel.
pub(crate) fn arm_all(link: &Link) -> Result<Fired, CqError> {
    shares_channel(link)?;
    let arm = |queue: &Queue| {
        let fired = queue.cq.take_events().map_err(CqError::Provider)? > 0;
        queue.cq.request_notify().map_err(CqError::Provider)?;
        Ok(fired)
    };
    Ok(Fired { main: arm(&link.main)?, receive: link.receive.as_deref().map_or(Ok(false), arm)? })
}

pub(crate) fn shares_channel(link: &Link) -> Result<(), CqError> {
    match link.member {
        Some(_) => Err(CqError::HasDispatcher),
        None if link.shares_channel => Ok(()),
        None => Err(CqError::NotSharedChannel),
    }
}

impl Link {
    /// What a waiting thread looks for: a completion, or a reason why none will come.
    fn look<T>(
        &self,
        poll: impl Fn() -> Result<Option<T>, CqError>,
        outstanding: impl Fn() -> usize,
    ) -> Result<Option<T>, CqError> {
        match poll()? {
            Some(found) => Ok(Some(found)),
            // Nobody waits for this connection alone where it has a dispatcher, which tells its end, closed or not.
            None if self.is_closed() && self.member.is_none() => Err(CqError::Closed),
            None if self.is_over() => {
                self.settle().map_err(CqError::Provider)?;
                if outstanding() > 0 {
                    return Ok(None);
                }
                // Receives of a shared queue are in no ledger of this connection, so one may have completed since the first look.
                poll()?.map_or(Err(CqError::Drained), |found| Ok(Some(found)))
            }
            None => Ok(None),
        }
    }

    pub(crate) fn retire(&self, wc: &ibv_wc, queue: &Queue) -> Retired {
        let succeeded = wc.status == IBV_WC_SUCCESS;
        let mut ticket = None;
        let (operation, context) = match recv_number(wc.wr_id) {
            None => match lock(&self.sent).retire(wc.wr_id) {
                Some(Entry { op: Sent::EndMarker, .. }) => return Retired::Silent,
                Some(Entry { op: Sent::Operation(_, Signal::OnError), .. }) if succeeded => return Retired::Silent,
                Some(Entry { op: Sent::Operation(operation, signal), context }) => {
                    if let Signal::Counted(of) = signal {
                        ticket = Some(of);
                    }
                    (operation, context)
                }
                None => return Retired::Stray,
            },
            Some(number) => match &self.receives {
                Receives::Own(received) => match lock(received).retire(number) {
                    Some(entry) => (Operation::Recv, entry.context),
                    None => return Retired::Stray,
                },
                Receives::Shared(srq) => return srq.retire(wc, &queue.cq),
            },
        };
        Retired::Completion(Completion::of(operation, context, wc, &queue.cq).with_ticket(ticket))
    }

    /// Requests that complete into one of the queues, and have not been polled.
    pub(crate) fn outstanding(&self, role: CqRole) -> usize {
        let received = || match &self.receives {
            Receives::Own(received) => lock(received).outstanding(),
            // The connection takes one when a message arrives, and nobody is told which.
            Receives::Shared(_) => 0,
        };
        match role {
            CqRole::Main if self.receive.is_some() => lock(&self.sent).outstanding(),
            CqRole::Main => lock(&self.sent).outstanding() + received(),
            CqRole::Receive => received(),
        }
    }
}
