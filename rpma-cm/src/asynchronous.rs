//! Waiting without blocking, on any runtime: endpoints, and the events of connections and devices.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::awaited::Waiting;
use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::cq::CompletionQueue;
use crate::device_events::{DeviceEvent, DeviceEventError, DeviceEvents};
use crate::endpoint::{Endpoint, RequestError};
use crate::event::{ConnEvent, EventError};
use crate::incoming::{Incoming, IncomingRequest};
use crate::pending::{EstablishError, PendingConn, PendingEvent};
use crate::readiness::Readiness;
use crate::wait::Wait;
use crate::waiters::{Task, Waiters};

/// What [`Async`] can be made of: what has a descriptor to wait for.
///
/// ```
/// use rpma::{Async, Waitable, prelude::*, tokio::Readable};
///
/// fn on_tokio<T: Waitable>(of: T) -> std::io::Result<Async<T, Readable>> {
///     Async::new(of)
/// }
/// # let (conn, _server) = rpma::testing::pair()?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # let _guard = runtime.enter();
/// let (conn, cq) = (on_tokio(conn.clone())?, on_tokio(conn.cq())?);
/// assert!(cq.into_inner().poll()?.is_none() && conn.into_inner().next_event(Wait::Now).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Only this crate says what does; this does not compile:
///
/// ```compile_fail,E0277
/// struct Mine;
/// impl rpma_cm::Waitable for Mine {}
/// ```
pub trait Waitable: Watch {}

/// What of [`Waitable`] is nobody else's.
pub trait Watch {
    fn watched(&self) -> io::Result<Watched>;
}

/// What is waited for.
#[derive(Debug)]
pub struct Watched {
    pub(crate) fd: OwnedFd,
    /// Who else waits, if it is for completions.
    pub(crate) waiters: Option<Arc<Waiters>>,
}

impl Watched {
    /// Another descriptor of the same, since a runtime's own can be watched once only.
    fn events_of(of: &impl AsFd) -> io::Result<Self> {
        Ok(Self { fd: of.as_fd().try_clone_to_owned()?, waiters: None })
    }
}

/// `T` for tasks: an [`Endpoint`], a [`PendingConn`], a [`Conn`], a [`CompletionQueue`], [`SharedQueues`](crate::SharedQueues), a
/// [`Dispatcher`](crate::Dispatcher) or [`DeviceEvents`], whose waiting calls are futures here. `R` is the runtime's part: [`Readiness`].
///
/// All other calls are those of `T`, as they are: posting, polling and disconnecting do not wait. The waiting calls of `T` are hidden by
/// those of the same name here.
///
/// A time limit is the runtime's: drop the future when it is over.
///
/// ```
/// use rpma::prelude::*;
/// use rpma::tokio::Async; // rpma::Async<T, Readable>, of which the second is tokio's part
/// use std::{future::poll_fn, pin::pin, task::Poll};
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let mut cq = Async::new(conn.cq())?;
/// // A future that is dropped, as `select!` does it, loses nothing.
/// poll_fn(|context| Poll::Ready(assert!(pin!(cq.wait()).poll(context).is_pending()))).await;
/// # server.recv(LocalSlice::null(), 0)?;
/// conn.send(LocalSlice::null(), Signal::Always, 1)?;
/// assert_eq!(cq.wait().await?.context(), 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Dropping a future
///
/// Each future takes what it waits for, an event, a request or a completion, in the same step in which it gives it, and holds nothing in
/// between. So dropping one before it is ready (in `select!`, or for a time limit) loses nothing: what comes meanwhile stays where it was,
/// and the next call gives it. Nothing is freed by it either: regions, queues and connections live as long as their handles, and what was
/// posted goes on.
///
/// # Turns
///
/// A task that was given 64 things in a row by one `Async`, without having to wait for any, finds it pending once, even if there is more.
/// The task is woken at once, so it goes on behind those that are ready: a queue that is never empty would keep a runtime's thread to
/// itself. So `Pending` need not mean that there is nothing; who wants to know that asks the object itself, by
/// [`CompletionQueue::poll`] for one.
///
/// # Several tasks
///
/// Waiting takes `&mut self`, because one task at a time is woken. Two waits at once, or one beside the stream of `completions`, do not
/// compile:
///
/// ```compile_fail,E0499
/// # async fn f(mut cq: rpma_cm::Async<rpma_cm::CompletionQueue, rpma::tokio::Readable>) {
/// let (first, second) = (cq.wait(), cq.wait());
/// # drop((first, second));
/// # }
/// ```
///
/// ```compile_fail,E0499
/// # async fn f(mut cq: rpma_cm::Async<rpma_cm::CompletionQueue, rpma::tokio::Readable>) {
/// let completions = cq.completions();
/// let one = cq.wait();
/// # drop((completions, one));
/// # }
/// ```
///
/// Let several wait, make an `Async` for each: of a clone of the connection, completion queue or stream of a device's events, or of
/// `&Endpoint` or `Arc<Endpoint>`. Each event and each completion goes to one of them; the end of the connection and `close` wake all.
/// Threads that wait in the blocking calls may be among them.
///
/// Each `Async` takes a descriptor of the process.
pub struct Async<T, R> {
    pub(crate) of: T,
    pub(crate) waiting: Waiting<R>,
    turn: Turn,
}

impl<T: Waitable, R: Readiness> Async<T, R> {
    /// Has the runtime watch `of`.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left, or the runtime refuses: [`Readiness::watch`].
    pub fn new(of: T) -> io::Result<Self> {
        let Watched { fd, waiters } = of.watched()?;
        Ok(Self { of, waiting: Waiting::new(R::watch(fd)?, waiters.map(Task::new)), turn: Turn::default() })
    }

    /// What it was made of; the runtime's part is given back.
    pub fn into_inner(self) -> T {
        self.of
    }

    /// One step of waiting for something that `look` takes if it is there.
    fn poll_for<Item, E>(
        &mut self,
        context: &mut Context<'_>,
        look: impl Fn(&T) -> Result<Option<Item>, E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Poll<Result<Item, E>> {
        self.in_turn(context, |this, context| {
            loop {
                if let Some(found) = look(&this.of)? {
                    return Poll::Ready(Ok(found));
                }
                ready!(this.waiting.readiness.poll_readable(context)).map_err(&failed)?;
            }
        })
    }

    /// One step, or none when it is others' turn.
    pub(crate) fn in_turn<Out>(
        &mut self,
        context: &mut Context<'_>,
        step: impl FnOnce(&mut Self, &mut Context<'_>) -> Poll<Out>,
    ) -> Poll<Out> {
        if self.turn.is_over() {
            self.turn = Turn::default();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let step = step(self, context);
        self.turn.took(step.is_ready());
        step
    }
}

/// How many things in a row a task has been given without waiting. It then lets others run: a queue that is never empty would keep a
/// runtime's thread to itself.
#[derive(Debug, Default)]
struct Turn(u8);

impl Turn {
    const LENGTH: u8 = 64;

    fn is_over(&self) -> bool {
        self.0 >= Self::LENGTH
    }

    fn took(&mut self, something: bool) {
        self.0 = if something { self.0 + 1 } else { 0 };
    }
}

impl<T, R> Deref for Async<T, R> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.of
    }
}

impl<T: fmt::Debug, R> fmt::Debug for Async<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Async").field(&self.of).finish()
    }
}

impl<E: Borrow<Endpoint>> Waitable for E {}

impl<E: Borrow<Endpoint>> Watch for E {
    fn watched(&self) -> io::Result<Watched> {
        Watched::events_of(self.borrow())
    }
}

/// An endpoint, or a reference to one, counted or not. As a [`Stream`] it gives the requests without queues, and ends when it is closed
/// or its device is gone.
impl<E: Borrow<Endpoint>, R: Readiness> Async<E, R> {
    /// The next request, without queues: [`Endpoint::next_request`].
    ///
    /// Dropping the future loses no request.
    ///
    /// ```
    /// use rpma::{prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut endpoint = Async::new(endpoint)?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(b"in a hurry")?;
    /// let request = endpoint.next_request().await?;
    /// assert!(request.private_data().starts_with(b"in a hurry")); // it has no queues yet
    /// request.reject(b"later")?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    pub async fn next_request(&mut self) -> Result<IncomingRequest, RequestError> {
        poll_fn(|context| self.poll_request(context)).await
    }

    /// The next request, with its queues: [`Endpoint::next_conn_req`].
    ///
    /// Dropping the future loses no request.
    ///
    /// ```
    /// use rpma::{prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut endpoint = Async::new(endpoint)?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = endpoint.next_conn_req(&ConnCfg::new()).await?;
    /// let mut pending = Async::new(request.connect(b"welcome")?)?;
    /// # let client = client.established(Duration::from_secs(10))?;
    /// let conn = pending.established().await?;
    /// assert_eq!(conn.local_addr(), endpoint.local_addr());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`]. If the queues cannot be made, the peer is rejected at once.
    #[doc(alias = "rpma_ep_next_conn_req")]
    pub async fn next_conn_req(&mut self, cfg: &ConnCfg) -> Result<ConnReq<Incoming>, RequestError> {
        Ok(self.next_request().await?.prepare(cfg)?)
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<IncomingRequest, RequestError>> {
        let look = |endpoint: &E| match endpoint.borrow().next_request(Wait::Now) {
            Err(RequestError::NoRequest) => Ok(None),
            found => found.map(Some),
        };
        self.poll_for(context, look, RequestError::Provider)
    }
}

impl<E: Borrow<Endpoint> + Unpin, R: Readiness> Stream for Async<E, R> {
    type Item = Result<IncomingRequest, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.poll_request(context)) {
            Err(RequestError::Closed | RequestError::DeviceRemoved) => None,
            next => Some(next),
        })
    }
}

impl Waitable for PendingConn {}

impl Watch for PendingConn {
    fn watched(&self) -> io::Result<Watched> {
        Watched::events_of(self)
    }
}

impl<R: Readiness> Async<PendingConn, R> {
    /// What happens next: [`PendingConn::next_event`].
    ///
    /// Dropping the future loses no event.
    ///
    /// ```
    /// use rpma::{prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut pending = Async::new(ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?)?;
    /// # endpoint.next_request(Duration::from_secs(10))?.reject(b"no room")?; // the peer's answer
    /// let PendingEvent::Rejected(rejection) = pending.next_event().await? else { panic!("it was to be rejected") };
    /// assert!(rejection.private_data.starts_with(b"no room"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EventError`].
    #[doc(alias = "rpma_conn_next_event")]
    pub async fn next_event(&mut self) -> Result<PendingEvent, EventError> {
        let look = |pending: &PendingConn| found(pending.next_event(Wait::Now));
        poll_fn(|context| self.poll_for(context, look, EventError::Provider)).await
    }

    /// The connection, once it is established: [`PendingConn::established`].
    ///
    /// Dropping the future changes nothing: the connection may still be established, and can be waited for again. Dropping this ends it.
    ///
    /// ```
    /// use rpma::{prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let request = ConnReq::new(&peer, addr, &ConnCfg::new())?;
    /// let mut pending = Async::new(request.connect(&[])?)?;
    /// # let accepted = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?.connect(&[])?;
    /// let conn = pending.established().await?;
    /// assert_eq!(conn.peer_addr(), Some(addr));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EstablishError`].
    pub async fn established(&mut self) -> Result<Conn, EstablishError> {
        let look = |pending: &PendingConn| match pending.established(Wait::Now) {
            Err(EstablishError::TimedOut) => Ok(None),
            found => found.map(Some),
        };
        poll_fn(|context| self.poll_for(context, look, |e| EstablishError::Event(EventError::Provider(e)))).await
    }
}

impl Waitable for Conn {}

impl Watch for Conn {
    fn watched(&self) -> io::Result<Watched> {
        Watched::events_of(self)
    }
}

/// As a [`Stream`] it gives the connection's events, and ends when it is closed from this side by [`Conn::close`]. It does not end with
/// [`ConnEvent::Closed`], which another one may follow.
impl<R: Readiness> Async<Conn, R> {
    /// What happens next: [`Conn::next_event`].
    ///
    /// Dropping the future loses no event.
    ///
    /// ```
    /// use rpma::{prelude::*, tokio::Async};
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut conn = Async::new(conn)?;
    /// # server.disconnect()?; // the peer ends it
    /// assert_eq!(conn.next_event().await?, ConnEvent::Closed);
    /// conn.disconnect()?; // all that does not wait is as ever
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EventError`].
    #[doc(alias = "rpma_conn_next_event")]
    pub async fn next_event(&mut self) -> Result<ConnEvent, EventError> {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// The completions of the main completion queue, on the same runtime: `Async::new(conn.cq())`.
    ///
    /// ```
    /// use futures_core::Stream;
    /// use rpma::{prelude::*, tokio::Async};
    /// use std::{future::poll_fn, pin::Pin};
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # for n in 0..3 { server.recv(LocalSlice::null(), n)?; }
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let conn = Async::new(conn)?;
    /// let mut completions = conn.completions()?;
    /// for n in 0..3 {
    ///     conn.send(LocalSlice::null(), Signal::Always, n)?;
    /// }
    /// for n in 0..3 {
    ///     // With `StreamExt` of the crate futures: `completions.next().await`.
    ///     let next = poll_fn(|context| Pin::new(&mut completions).poll_next(context)).await;
    ///     assert_eq!(next.ok_or("the connection lives")??.context(), n);
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn completions(&self) -> io::Result<Async<CompletionQueue, R>> {
        Async::new(self.cq())
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<ConnEvent, EventError>> {
        self.poll_for(context, |conn| found(conn.next_event(Wait::Now)), EventError::Provider)
    }
}

impl<R: Readiness> Stream for Async<Conn, R> {
    type Item = Result<ConnEvent, EventError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.poll_event(context)) {
            Err(EventError::Closed) => None,
            next => Some(next),
        })
    }
}

impl Waitable for DeviceEvents {}

impl Watch for DeviceEvents {
    fn watched(&self) -> io::Result<Watched> {
        Watched::events_of(self)
    }
}

/// As a [`Stream`] it gives the device's events, and ends when it is closed.
impl<R: Readiness> Async<DeviceEvents, R> {
    /// What happens next: [`DeviceEvents::next_event`].
    ///
    /// Dropping the future loses no event.
    ///
    /// ```
    /// use rpma::{DeviceEventKind, DeviceEvents, prelude::*, tokio::Async};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let srq = peer.new_srq(&SrqCfg::new())?;
    /// # let (client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &ConnCfg::new().srq(&srq))?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// # runtime.block_on(async {
    /// let mut events = Async::new(DeviceEvents::of(peer.device())?)?;
    /// # client.disconnect()?;
    /// # conn.next_event(Duration::from_secs(10))?;
    /// // A connection on a shared receive queue ends.
    /// while events.next_event().await?.kind() != DeviceEventKind::LastReceive {}
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceEventError`], without the end of the time.
    pub async fn next_event(&mut self) -> Result<DeviceEvent, DeviceEventError> {
        poll_fn(|context| self.poll_device_event(context)).await
    }

    fn poll_device_event(&mut self, context: &mut Context<'_>) -> Poll<Result<DeviceEvent, DeviceEventError>> {
        let look = |events: &DeviceEvents| match events.next_event(Wait::Now) {
            Err(DeviceEventError::NoEvent) => Ok(None),
            found => found.map(Some),
        };
        self.poll_for(context, look, DeviceEventError::Provider)
    }
}

impl<R: Readiness> Stream for Async<DeviceEvents, R> {
    type Item = Result<DeviceEvent, DeviceEventError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.poll_device_event(context)) {
            Err(DeviceEventError::Closed) => None,
            next => Some(next),
        })
    }
}

fn found<Event>(event: Result<Event, EventError>) -> Result<Option<Event>, EventError> {
    match event {
        Err(EventError::NoEvent) => Ok(None),
        event => event.map(Some),
    }
}
