//! Connection requests, outgoing and incoming, before they are connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, IdOption, lacks_scope};
use rustix::io::Errno;

use crate::build::BuildError;
use crate::conn::PendingConn;
use crate::conn_cfg::ConnCfg;
use crate::cq::CompletionQueue;
use crate::link::Link;
use crate::parameters::Parameters;
use crate::peer::Peer;
use crate::post::PostError;
use crate::private_data::{self, MAX_ACCEPT_BYTES, MAX_CONNECT_BYTES, MAX_REJECT_BYTES, PrivateDataTooLong};
use crate::source::Ranges;
use crate::wait::until_readable;

/// Why an outgoing request could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum ConnReqError {
    /// The resolver does not know the host.
    #[error("the peer's address cannot be looked up")]
    Lookup(#[source] io::Error),
    /// The look-up succeeded and gave nothing.
    #[error("the peer's host name has no address")]
    NoAddress,
    /// No event channel, identifier or events.
    #[error("the connection manager refused while the request was made")]
    Provider(#[source] io::Error),
    /// A link-local address without its interface.
    #[error("{addr} is valid on one link only: say on which interface it is, as in [fe80::1%eth0]:7204")]
    NoScope { addr: SocketAddr },
    /// No RDMA device leads to the address: a loopback address, for one.
    #[error("no RDMA device leads to {addr}: use an address of the peer on an RDMA network, not a loopback address")]
    NotOnDevice { addr: SocketAddr, source: io::Error },
    /// The address leads nowhere.
    #[error("the address {addr} cannot be resolved: is the peer up, and on an RDMA network that this machine is on?")]
    Address { addr: SocketAddr, source: io::Error },
    /// The address is known, and the way to it is not.
    #[error("no route to {addr}")]
    Route { addr: SocketAddr, source: io::Error },
    /// [`ConnCfg::type_of_service`] is refused.
    #[error("the type of service {value:#04x} cannot be set")]
    TypeOfService { value: u8, source: io::Error },
    /// Address and route were not resolved in time.
    #[error(
        "{addr} was not resolved within {timeout:?}: is the host up, and on the same network as the RDMA device? ConnCfg::timeout gives more time"
    )]
    TimedOut { addr: SocketAddr, timeout: Duration },
    /// The queues could not be made.
    #[error("the connection's queues cannot be made")]
    Build(#[from] BuildError),
}

impl ConnReqError {
    /// The code that librpma gives for this: `rpma_conn_req_new(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoScope { .. } => ErrorCode::InvalidArgument,
            Self::Build(e) => e.code(),
            _ => ErrorCode::Provider,
        }
    }
}

/// Why a request could not be connected, accepted or rejected. The request is consumed all the same; an incoming one is then rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Found before the call.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// The connection manager refused.
    #[error("the connection manager refused")]
    Provider(#[source] io::Error),
}

impl ConnectError {
    /// The code that librpma gives for this: `rpma_conn_req_connect(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::PrivateData(e) => e.code(),
            Self::Provider(_) => ErrorCode::Provider,
        }
    }
}

/// An outgoing request: it was made here, and goes to a peer. Only this crate makes one.
///
/// ```
/// use rpma::{ConnectError, prelude::*};
///
/// fn connect(request: ConnReq<Outgoing>) -> Result<PendingConn, ConnectError> {
///     request.connect(b"it is me")
/// }
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let pending = connect(ConnReq::new(&peer, endpoint.local_addr().ok_or("listening")?, &ConnCfg::new())?)?;
/// # assert!(endpoint.next_request(Duration::from_secs(10))?.private_data().starts_with(b"it is me"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Outgoing {
    _private: (),
}

/// An incoming request: a peer made it. Only this crate makes one.
///
/// ```
/// use rpma::{ConnectError, prelude::*};
///
/// fn serve(request: ConnReq<Incoming>) -> Result<Option<PendingConn>, ConnectError> {
///     if request.private_data().starts_with(b"a friend") {
///         return request.connect(b"welcome").map(Some);
///     }
///     request.reject(b"friends only").map(|()| None)
/// }
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// # for (says, is_taken) in [(&b"a friend"[..], true), (b"a stranger", false)] {
/// #     let _asking = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(says)?;
/// #     let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?;
/// #     assert_eq!(serve(request)?.is_some(), is_taken);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Incoming {
    reject: RejectOnDrop,
    /// Reads and atomics at once, as its request says.
    peer_takes: u8,
}

/// A connection request with its queues: `rpma_conn_req_new(3)`, `rpma_ep_next_conn_req(3)`.
///
/// It is connected or dropped, nothing else; dropping an incoming one rejects it. Receives can be posted on it, and the first message
/// then never finds an empty queue.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// # let inbox = peer.register(AnonPages::new(512)?, Usage::RECV)?;
/// let request = ConnReq::new(&peer, addr, &ConnCfg::new())?;
/// request.recv(inbox.all(), 1)?; // the first message will find it
/// let pending = request.connect(b"who I am")?;
/// # let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?;
/// # let accepted = request.connect(b"who you are connected with")?;
/// let conn = pending.established(Duration::from_secs(10))?;
/// # accepted.established(Duration::from_secs(10))?.send(Inline(b"hello"), Signal::OnError, 0)?;
/// assert!(conn.private_data().starts_with(b"who you are connected with"));
/// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 1); // the first message
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Sending takes a connection; this does not compile:
///
/// ```compile_fail,E0599
/// # fn f(request: rpma_cm::ConnReq<rpma_cm::Outgoing>, slice: rpma_mr::LocalSlice<'_>) {
/// request.send(slice, rpma_cm::Signal::Always, 1);
/// # }
/// ```
///
/// A request is connected once:
///
/// ```compile_fail,E0382
/// # fn f(request: rpma_cm::ConnReq<rpma_cm::Outgoing>) {
/// let first = request.connect(&[]);
/// let second = request.connect(&[]);
/// # }
/// ```
///
/// Only incoming requests can be rejected:
///
/// ```compile_fail,E0599
/// # fn f(request: rpma_cm::ConnReq<rpma_cm::Outgoing>) {
/// request.reject(&[]);
/// # }
/// ```
///
/// A rejected request cannot be accepted:
///
/// ```compile_fail,E0382
/// # fn f(request: rpma_cm::ConnReq<rpma_cm::Incoming>) {
/// request.reject(&[]);
/// request.connect(&[]);
/// # }
/// ```
#[doc(alias = "rpma_conn_req_delete")]
#[doc(alias = "rpma_conn_req_new")]
#[doc(alias = "rpma_ep_next_conn_req")]
#[must_use = "a request that is dropped goes nowhere, and the peer of an incoming one is rejected"]
pub struct ConnReq<Direction> {
    /// Dropped before the link: a reject needs the identifier.
    direction: Direction,
    link: EndOnDrop,
}

/// Ends a request that goes nowhere: whoever waits for its completions is told.
struct EndOnDrop {
    link: Arc<Link>,
    connected: bool,
}

impl EndOnDrop {
    fn new(link: Arc<Link>) -> Self {
        Self { link, connected: false }
    }

    fn connected(mut self) -> Arc<Link> {
        self.connected = true;
        Arc::clone(&self.link)
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if !self.connected {
            self.link.end();
        }
    }
}

impl<Direction> ConnReq<Direction> {
    /// Posts a receive: `rpma_conn_req_recv(3)`. The completion comes through [`cq`](Self::cq) or
    /// [`rcq`](Self::rcq), or the connection's, which are the same.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let inbox = peer.register(AnonPages::new(512)?, Usage::RECV)?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?;
    /// request.recv(inbox.all(), 1)?;
    /// let pending = request.connect(&[])?;
    /// # let client = client.established(Duration::from_secs(10))?;
    /// # client.send(Inline(b"at once"), Signal::OnError, 0)?;
    /// let conn = pending.established(Duration::from_secs(10))?;
    /// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 1); // the client's first message
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_conn_req_recv")]
    pub fn recv<'a>(&self, dst: impl Into<Ranges<'a>>, context: u64) -> Result<(), PostError> {
        self.link.link.recv(dst.into(), context)
    }

    /// The completion queue.
    #[must_use]
    pub fn cq(&self) -> CompletionQueue {
        CompletionQueue::main(&self.link.link)
    }

    /// The receive CQ, if the connection will have one: as [`Conn::rcq`](crate::Conn::rcq).
    #[must_use]
    pub fn rcq(&self) -> Option<CompletionQueue> {
        CompletionQueue::receive(&self.link.link)
    }

    /// The local address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.link.link.local_addr
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.link.link.peer_addr
    }

    /// The number of the queue pair: `rpma_conn_get_qp_num(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let request = ConnReq::new(&peer, addr, &ConnCfg::new())?;
    /// let number = request.qp_num();
    /// let pending = request.connect(&[])?;
    /// assert_eq!(pending.qp_num(), number); // and so the connection's
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_get_qp_num")]
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.link.link.qp.number()
    }
}

impl<Direction> fmt::Debug for ConnReq<Direction> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnReq")
            .field("local_addr", &self.link.link.local_addr)
            .field("peer_addr", &self.link.link.peer_addr)
            .field("qp_num", &self.link.link.qp.number())
            .finish_non_exhaustive()
    }
}

fn param(parameters: Parameters, private_data: &[u8]) -> ConnParam<'_> {
    let Parameters { responder_resources, initiator_depth, retry_count, rnr_retry_count, .. } = parameters;
    ConnParam { private_data, responder_resources, initiator_depth, retry_count, rnr_retry_count }
}

impl ConnReq<Outgoing> {
    /// Makes a request to the peer at `addr`: `rpma_conn_req_new(3)`. Waits until address and route are resolved, at most for
    /// [`ConnCfg::timeout`]; each address of a host name is tried within that time.
    ///
    /// ```
    /// use rpma::{ConnReqError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let request = ConnReq::new(&peer, addr, &ConnCfg::new().timeout(Duration::from_secs(5)))?;
    /// assert_eq!(request.peer_addr(), Some(addr));
    /// // No connection, but an address or a route that is missing is an error here.
    /// let nowhere: [std::net::SocketAddr; 0] = [];
    /// assert!(matches!(ConnReq::new(&peer, &nowhere[..], &ConnCfg::new()), Err(ConnReqError::NoAddress)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnReqError`], of the last address that was tried.
    #[doc(alias = "rpma_conn_req_new")]
    pub fn new(peer: &Peer, addr: impl ToSocketAddrs, cfg: &ConnCfg) -> Result<Self, ConnReqError> {
        let mut resolving = Self::start(peer, addr, cfg)?;
        loop {
            match resolving.advance()? {
                Step::Ready(request) => return Ok(request),
                Step::Resolving(still) => resolving = still,
            }
            until_readable(&[resolving.as_fd()], resolving.deadline().into()).map_err(ConnReqError::Provider)?;
        }
    }

    /// Starts making a request to the peer at `addr`, and does not wait (but for the look-up of a host name).
    ///
    /// ```
    /// use rpma::{Step, prelude::*};
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let mut resolving = ConnReq::start(&peer, addr, &ConnCfg::new())?;
    /// let request = loop {
    ///     match resolving.advance()? {
    ///         Step::Ready(request) => break request,
    ///         Step::Resolving(still) => resolving = still,
    ///     }
    ///     poll(&mut [PollFd::new(&resolving, PollFlags::IN)], None)?; // an event loop also wakes at resolving.deadline()
    /// };
    /// assert_eq!(request.peer_addr(), Some(addr));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnReqError`], of the last address that was tried.
    pub fn start(peer: &Peer, addr: impl ToSocketAddrs, cfg: &ConnCfg) -> Result<Resolving, ConnReqError> {
        // Reversed, to be popped from the end.
        let mut addrs: Vec<_> = addr.to_socket_addrs().map_err(ConnReqError::Lookup)?.collect();
        addrs.reverse();
        let channel = EventChannel::create(peer.device().context().provider()).map_err(ConnReqError::Provider)?;
        let cfg = cfg.clone();
        let deadline = Instant::now().checked_add(cfg.get_timeout());
        // A time-out that no clock can reach is as good as a year.
        let deadline = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(365 * 24 * 3600));
        let addr = addrs.pop().ok_or(ConnReqError::NoAddress)?;
        Attempt { peer: peer.clone(), cfg, channel, addrs, deadline }.to(addr)
    }

    /// Asks the peer for the connection: `rpma_conn_req_connect(3)`. At most 56 bytes of private data go with it; the peer sees at
    /// least those, with zeros behind them.
    ///
    /// ```
    /// use rpma::{ConnectError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let request = ConnReq::new(&peer, addr, &ConnCfg::new())?;
    /// let pending = request.connect(b"the volume I want")?;
    /// let incoming = endpoint.next_request(Duration::from_secs(10))?; // the other side
    /// assert!(incoming.private_data().starts_with(b"the volume I want"));
    ///
    /// let request = ConnReq::new(&peer, addr, &ConnCfg::new())?;
    /// assert!(matches!(request.connect(&[0; 57]), Err(ConnectError::PrivateData(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the request is consumed.
    #[doc(alias = "rpma_conn_req_connect")]
    pub fn connect(self, private_data: &[u8]) -> Result<PendingConn, ConnectError> {
        private_data::check("connect", private_data, MAX_CONNECT_BYTES)?;
        let link = &self.link.link;
        link.id().connect(param(link.parameters, private_data)).map_err(ConnectError::Provider)?;
        Ok(PendingConn::new(self.link.connected()))
    }
}

/// What is the same for every address that is tried.
#[derive(Debug)]
struct Attempt {
    peer: Peer,
    cfg: ConnCfg,
    /// One for all addresses, so that the descriptor stays the same.
    channel: Arc<EventChannel>,
    /// The addresses that are still to be tried, the next one last.
    addrs: Vec<SocketAddr>,
    /// For all of them.
    deadline: Instant,
}

impl Attempt {
    /// Starts resolving `addr`; goes on to the next one if that fails at once.
    fn to(self, addr: SocketAddr) -> Result<Resolving, ConnReqError> {
        // What is left is shared with the addresses after it: one that is silent does not keep them from being tried.
        let left = self.deadline.saturating_duration_since(Instant::now());
        let others = u32::try_from(self.addrs.len()).unwrap_or(u32::MAX);
        let share = left / others.saturating_add(1);
        match self.resolve(addr, share) {
            Ok(id) => Ok(Resolving { deadline: Instant::now() + share, attempt: self, addr, id }),
            Err(e) => self.next_after(e),
        }
    }

    fn resolve(&self, addr: SocketAddr, timeout: Duration) -> Result<CmId, ConnReqError> {
        if lacks_scope(addr) {
            return Err(ConnReqError::NoScope { addr });
        }
        let id = CmId::create(&self.channel).map_err(ConnReqError::Provider)?;
        if let Some(value) = self.cfg.get_type_of_service() {
            let set = id.set_option(IdOption::TypeOfService(value));
            set.map_err(|source| ConnReqError::TypeOfService { value, source })?;
        }
        id.resolve_addr(addr, timeout).map_err(|source| self.address_error(addr, source))?;
        Ok(id)
    }

    /// Tries the next address; `error` is why the last one failed, and the answer if it was the last of all.
    fn next_after(mut self, error: ConnReqError) -> Result<Resolving, ConnReqError> {
        match self.addrs.pop() {
            Some(next) => {
                log::debug!("trying {next} next: {error}");
                self.to(next)
            }
            None => Err(error),
        }
    }

    fn timed_out(&self, addr: SocketAddr) -> ConnReqError {
        ConnReqError::TimedOut { addr, timeout: self.cfg.get_timeout() }
    }

    fn address_error(&self, addr: SocketAddr, source: io::Error) -> ConnReqError {
        match Errno::from_io_error(&source) {
            Some(Errno::TIMEDOUT) => self.timed_out(addr),
            Some(Errno::NODEV) => ConnReqError::NotOnDevice { addr, source },
            _ => ConnReqError::Address { addr, source },
        }
    }

    fn route_error(&self, addr: SocketAddr, source: io::Error) -> ConnReqError {
        match Errno::from_io_error(&source) {
            Some(Errno::TIMEDOUT) => self.timed_out(addr),
            // The address resolves on every machine, and leads to no device: a loopback address.
            Some(Errno::NODEV) => ConnReqError::NotOnDevice { addr, source },
            _ => ConnReqError::Route { addr, source },
        }
    }

    /// Goes on with `id` as the event tells; it is gone if that fails.
    fn handle(&self, id: CmId, event: &CmEvent, addr: SocketAddr, left: Duration) -> Result<Handled, ConnReqError> {
        match event.kind {
            // A route within no time is EINVAL to the kernel.
            CmEventKind::AddrResolved if left.is_zero() => Err(self.timed_out(addr)),
            CmEventKind::AddrResolved => {
                id.resolve_route(left).map_err(|source| self.route_error(addr, source))?;
                Ok(Handled::Resolving(id))
            }
            CmEventKind::RouteResolved => Ok(Handled::Built(Link::build(&self.peer, &Arc::new(id), &self.cfg)?)),
            CmEventKind::AddrError | CmEventKind::DeviceRemoval => Err(self.address_error(addr, event.error())),
            CmEventKind::RouteError => Err(self.route_error(addr, event.error())),
            other => {
                log::debug!("{other:?} while resolving {addr}: ignored");
                Ok(Handled::Resolving(id))
            }
        }
    }
}

/// What an event brought.
enum Handled {
    Resolving(CmId),
    Built(Arc<Link>),
}

/// An outgoing request whose address and route are being resolved. Wait until its descriptor is readable or [`deadline`](Self::deadline)
/// is reached, then call [`advance`](Self::advance).
///
/// ```
/// use rpma::{Step, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let resolving = ConnReq::start(&peer, addr, &ConnCfg::new())?;
/// assert!(resolving.deadline() > std::time::Instant::now());
/// match resolving.advance()? {
///     Step::Ready(request) => assert_eq!(request.peer_addr(), Some(addr)),
///     Step::Resolving(still) => drop(still), // wait for its descriptor, then again; or give it up, as here
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request goes on only when it is advanced"]
pub struct Resolving {
    attempt: Attempt,
    addr: SocketAddr,
    /// For this address.
    deadline: Instant,
    id: CmId,
}

/// How far an outgoing request has come.
///
/// ```
/// use rpma::{Step, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let step = ConnReq::start(&peer, addr, &ConnCfg::new())?.advance()?;
/// let request = match step {
///     Step::Ready(request) => Some(request),
///     Step::Resolving(_still) => None, // waits for an event: see ConnReq::start
/// };
/// assert!(request.is_none_or(|request| request.peer_addr() == Some(addr)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// It is ready to be connected.
    Ready(ConnReq<Outgoing>),
    /// Not yet.
    Resolving(Resolving),
}

impl Resolving {
    /// Goes on as far as is possible without waiting.
    ///
    /// # Errors
    ///
    /// [`ConnReqError`], of the last address that was tried.
    pub fn advance(self) -> Result<Step, ConnReqError> {
        let mut this = self;
        loop {
            let event = this.attempt.channel.get_event().map_err(ConnReqError::Provider)?;
            let left = this.deadline.saturating_duration_since(Instant::now());
            let Self { attempt, addr, deadline, id } = this;
            let result = match event {
                Some(event) => attempt.handle(id, &event, addr, left),
                None if left.is_zero() => {
                    drop(id);
                    Err(attempt.timed_out(addr))
                }
                None => return Ok(Step::Resolving(Self { attempt, addr, deadline, id })),
            };
            this = match result {
                Ok(Handled::Resolving(id)) => Self { attempt, addr, deadline, id },
                Ok(Handled::Built(link)) => {
                    return Ok(Step::Ready(ConnReq { direction: Outgoing { _private: () }, link: EndOnDrop::new(link) }));
                }
                // Nothing can make queues on the peer's device then, but another address of the host may lead through it.
                Err(ConnReqError::Build(e)) if !matches!(e, BuildError::OtherDevice { .. }) => return Err(e.into()),
                // The identifier is gone, and its events with it: the next address has the channel to itself.
                Err(e) => attempt.next_after(e)?,
            };
        }
    }

    /// When to call [`advance`](Self::advance) at the latest: the time for the address that is being tried is over then.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl AsFd for Resolving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.attempt.channel.as_fd()
    }
}

impl fmt::Debug for Resolving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolving").field("addr", &self.addr).field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// Rejects an incoming request when dropped, unless it was defused.
#[derive(Debug)]
struct RejectOnDrop(Option<Arc<CmId>>);

impl RejectOnDrop {
    fn defuse(mut self) {
        self.0 = None;
    }
}

impl Drop for RejectOnDrop {
    fn drop(&mut self) {
        if let Some(id) = self.0.take()
            && let Err(e) = id.reject(&[])
        {
            // The client may be gone already; then there is nobody to tell.
            log::debug!("rejecting a request that was dropped: {e}");
        }
    }
}

/// A peer's request, without queues yet: look at it, then [`prepare`](Self::prepare) or [`reject`](Self::reject) it. Dropping it
/// rejects it.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(b"version 2")?;
/// let request = endpoint.next_request(Duration::from_secs(10))?;
/// if !request.private_data().starts_with(b"version 2") {
///     request.reject(b"version 2 only")?;
/// #   unreachable!();
/// } else {
///     let pending = request.prepare(&ConnCfg::new())?.connect(b"welcome")?;
/// #   client.established(Duration::from_secs(10))?;
///     let conn = pending.established(Duration::from_secs(10))?;
///     assert!(conn.private_data().starts_with(b"version 2"));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request that is dropped is rejected"]
pub struct IncomingRequest {
    peer: Peer,
    id: Arc<CmId>,
    reject: RejectOnDrop,
    private_data: Vec<u8>,
    /// Reads and atomics that the peer takes at once.
    peer_takes: u8,
}

impl IncomingRequest {
    /// Takes over the identifier of a connect request: on a channel of its own, before anything else can happen on it.
    ///
    /// The endpoint's channel would do for a while, but a thread that waits there would eat the connection's ESTABLISHED (19 of 200
    /// under load, measured on the C library).
    pub(crate) fn adopt(peer: &Peer, mut id: CmId, private_data: Vec<u8>, peer_takes: u8) -> io::Result<Self> {
        let channel = EventChannel::create(peer.device().context().provider());
        if let Err(e) = channel.and_then(|channel| id.migrate(&channel)) {
            drop(RejectOnDrop(Some(Arc::new(id))));
            return Err(e);
        }
        let id = Arc::new(id);
        Ok(Self { peer: peer.clone(), reject: RejectOnDrop(Some(Arc::clone(&id))), id, private_data, peer_takes })
    }

    /// What the peer sent with its request. The connection manager gives its whole field: 56 bytes over RoCE and InfiniBand, with zeros
    /// where the peer sent less; "nothing" cannot be told from zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The local address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Makes the queues.
    ///
    /// ```
    /// use rpma::{BuildError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = endpoint.next_request(Duration::from_secs(10))?;
    /// // More than any device has: the client is rejected, and the endpoint goes on.
    /// let refused = request.prepare(&ConnCfg::new().sq_size(u32::MAX));
    /// assert!(matches!(refused, Err(BuildError::Cq { .. } | BuildError::Qp { .. })));
    /// assert!(client.established(Duration::from_secs(10)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError`]; the peer is then rejected at once, and everything is freed.
    pub fn prepare(self, cfg: &ConnCfg) -> Result<ConnReq<Incoming>, BuildError> {
        let link = Link::build(&self.peer, &self.id, cfg)?;
        let _only_here = link.private_data.set(self.private_data);
        Ok(ConnReq { direction: Incoming { reject: self.reject, peer_takes: self.peer_takes }, link: EndOnDrop::new(link) })
    }

    /// Rejects the request. At most 148 bytes of private data go with it.
    ///
    /// ```
    /// use rpma::{EstablishError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// endpoint.next_request(Duration::from_secs(10))?.reject(b"come back at nine")?;
    /// match client.established(Duration::from_secs(10)) {
    ///     Err(EstablishError::Rejected(rejection)) => assert!(rejection.private_data.starts_with(b"come back at nine")),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the request is consumed, and rejected without private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        reject(&self.id, self.reject, private_data)
    }
}

impl fmt::Debug for IncomingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingRequest").field("peer_addr", &self.peer_addr()).finish_non_exhaustive()
    }
}

fn reject(id: &CmId, guard: RejectOnDrop, private_data: &[u8]) -> Result<(), ConnectError> {
    private_data::check("reject", private_data, MAX_REJECT_BYTES)?;
    id.reject(private_data).map_err(ConnectError::Provider)?;
    guard.defuse();
    Ok(())
}

impl ConnReq<Incoming> {
    /// What the peer sent with its request: `rpma_conn_req_get_private_data(3)`. 56 bytes over RoCE and InfiniBand, whatever it sent.
    #[doc(alias = "rpma_conn_req_get_private_data")]
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.link.link.private_data()
    }

    /// Accepts the request: `rpma_conn_req_connect(3)`. At most 196 bytes of private data go with it. Work can be posted once the
    /// pending connection says `Established`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let region = peer.register(AnonPages::new(4096)?, Usage::READ_SRC)?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?;
    /// let pending = request.connect(&region.descriptor().to_bytes())?; // what the client may read
    /// let client = client.established(Duration::from_secs(10))?; // the other side
    /// assert_eq!(RemoteMr::from_descriptor(client.private_data())?.len_bytes(), 4096);
    /// let conn = pending.established(Duration::from_secs(10))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the request is consumed, and the peer rejected.
    #[doc(alias = "rpma_conn_req_connect")]
    pub fn connect(self, private_data: &[u8]) -> Result<PendingConn, ConnectError> {
        private_data::check("accept", private_data, MAX_ACCEPT_BYTES)?;
        let link = &self.link.link;
        let initiator_depth = link.parameters.initiator_depth_towards(self.direction.peer_takes);
        let parameters = Parameters { initiator_depth, ..link.parameters };
        link.id().accept(param(parameters, private_data)).map_err(ConnectError::Provider)?;
        self.direction.reject.defuse();
        // The client may send as soon as it hears of it.
        link.set_rnr_timer();
        Ok(PendingConn::new(self.link.connected()))
    }

    /// Rejects the request. At most 148 bytes of private data go with it.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?;
    /// request.reject(b"out of memory")?;
    /// let error = client.established(Duration::from_secs(10)).expect_err("rejected"); // the other side
    /// assert_eq!(error.to_string(), "the peer rejected the connection (reason 28: the application there does not want it)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the request is consumed, and rejected without private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        reject(self.link.link.id(), self.direction.reject, private_data)
    }
}
