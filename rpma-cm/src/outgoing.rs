//! Outgoing requests: resolving the peer's address and the route to it, one address after the other.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::{CmEvent, CmEventKind, CmId, EventChannel, IdOption, lacks_scope};
use rustix::io::Errno;

use crate::build::BuildError;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::{ConnReq, ConnectError, EndOnDrop, param};
use crate::link::Link;
use crate::peer::Peer;
use crate::pending::PendingConn;
use crate::private_data::{self, MAX_CONNECT_BYTES};
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
///
/// It cannot connect before it is [`Step::Ready`], and each step takes the one before it; this does not compile:
///
/// ```compile_fail,E0599
/// # fn f(resolving: rpma_cm::Resolving) {
/// resolving.connect(&[]);
/// # }
/// ```
///
/// ```compile_fail,E0382
/// # fn f(resolving: rpma_cm::Resolving) {
/// resolving.advance();
/// resolving.advance();
/// # }
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
