//! The listening endpoint.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::{CmEventKind, CmId, EventChannel, lacks_scope};
use rustix::io::Errno;

use crate::build::BuildError;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::event::shown;
use crate::incoming::{Incoming, IncomingRequest};
use crate::peer::Peer;
use crate::wait::{Flag, Wait, any_of, until_readable};

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum ListenError {
    /// The resolver does not know the host.
    #[error("the address to listen on cannot be looked up")]
    Lookup(#[source] io::Error),
    /// The look-up succeeded and gave nothing.
    #[error("the host name to listen on has no address")]
    NoAddress,
    /// No event channel, identifier or descriptor.
    #[error("no event channel or descriptor for listening: look at `ulimit -n`")]
    Provider(#[source] io::Error),
    /// A link-local address without its interface.
    #[error("{addr} is valid on one link only: say on which interface it is, as in [fe80::1%eth0]:7204")]
    NoScope { addr: SocketAddr },
    /// The port is taken (EADDRINUSE).
    #[error("port {} is taken: choose another one, or 0 for any", .addr.port())]
    InUse { addr: SocketAddr, source: io::Error },
    /// The address is none of this machine's (EADDRNOTAVAIL).
    #[error("{addr} is no address of this machine: `ip addr` lists those that are")]
    NotLocal { addr: SocketAddr, source: io::Error },
    /// The address is on no RDMA device: a loopback address, for one.
    #[error("{addr} is on no RDMA device: use the address of an interface that `rdma link show` lists")]
    NotOnDevice { addr: SocketAddr, source: Option<io::Error> },
    /// The process may not bind to the port (EACCES).
    #[error("not permitted to bind to {addr}: ports below 1024 take CAP_NET_BIND_SERVICE")]
    NotPermitted { addr: SocketAddr, source: io::Error },
    /// The connection manager refuses for another reason.
    #[error("cannot bind to {addr}")]
    Bind { addr: SocketAddr, source: io::Error },
    /// The address belongs to another device than the peer's.
    #[error("{addr} is on another RDMA device than the peer's ({peer_device})")]
    OtherDevice { addr: SocketAddr, peer_device: String },
    /// Bound, but not listening.
    #[error("cannot listen on {addr}")]
    Listen { addr: SocketAddr, source: io::Error },
}

impl ListenError {
    /// The code that librpma gives for this: `rpma_ep_listen(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoScope { .. } => ErrorCode::InvalidArgument,
            _ => ErrorCode::Provider,
        }
    }

    fn of_bind(addr: SocketAddr, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::ADDRINUSE) => Self::InUse { addr, source },
            Some(Errno::ADDRNOTAVAIL) => Self::NotLocal { addr, source },
            Some(Errno::NODEV) => Self::NotOnDevice { addr, source: Some(source) },
            Some(Errno::ACCESS | Errno::PERM) => Self::NotPermitted { addr, source },
            _ => Self::Bind { addr, source },
        }
    }
}

/// Why no request could be had from an endpoint. The endpoint goes on, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum RequestError {
    /// There was none within the time given.
    #[error("no connection request within the time given")]
    NoRequest,
    /// The endpoint was closed from another thread.
    #[error("the endpoint was closed while waiting for requests")]
    Closed,
    /// The device is gone, and the endpoint with it.
    #[error("the endpoint's RDMA device was removed: listen again on another one")]
    DeviceRemoved,
    /// The connection manager reported something that is no request.
    #[error(
        "the connection manager reported {kind:?} (status {status}) where a connection request was expected; the endpoint goes on"
    )]
    Unexpected { kind: CmEventKind, status: i32 },
    /// The connection manager refused.
    #[error("the connection manager gives no request")]
    Provider(#[source] io::Error),
    /// A request came in and could not be given a channel of its own; its peer was rejected.
    #[error("a request could not be taken over, and its peer was rejected; is there a descriptor left (`ulimit -n`)?")]
    Adopt(#[source] io::Error),
    /// A request came in whose peer did not wait for the answer.
    #[error("the peer{} gave its request up before it was accepted", shown(.peer_addr))]
    PeerGone { peer_addr: Option<SocketAddr> },
    /// The queues could not be made; the peer was rejected.
    #[error("the queues for a request cannot be made, and its peer was rejected")]
    Build(#[source] BuildError),
}

impl RequestError {
    /// The code that librpma gives for this: `rpma_ep_next_conn_req(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoRequest | Self::Closed => ErrorCode::NoEvent,
            Self::DeviceRemoved | Self::Unexpected { .. } => ErrorCode::InvalidArgument,
            Self::Build(e) => e.code(),
            Self::Provider(_) | Self::Adopt(_) | Self::PeerGone { .. } => ErrorCode::Provider,
        }
    }
}

impl From<BuildError> for RequestError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::PeerGone { peer_addr } => Self::PeerGone { peer_addr },
            error => Self::Build(error),
        }
    }
}

/// A listening endpoint: `rpma_ep_listen(3)`. Its requests and connections do not need it: it may be dropped first.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// let addr = endpoint.local_addr().ok_or("listening")?;
/// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
/// let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?;
/// let pending = request.connect(b"welcome")?;
/// # let client = client.established(Duration::from_secs(10))?;
/// let conn = pending.established(Duration::from_secs(10))?;
/// assert_eq!(conn.local_addr(), Some(addr));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_ep_shutdown")]
#[doc(alias = "rpma_ep_get_fd")]
#[doc(alias = "rpma_ep_listen")]
pub struct Endpoint {
    peer: Peer,
    /// Listens until it is dropped.
    _id: CmId,
    channel: Arc<EventChannel>,
    local_addr: Option<SocketAddr>,
    /// Set when there is nothing to wait for any more.
    over: Flag,
    /// Readable while there is a request, and for ever once it is over.
    readable: OwnedFd,
    closed: AtomicBool,
    removed: AtomicBool,
}

impl Endpoint {
    /// Listens on `addr`, which is of the peer's device; port 0 takes a free one ([`local_addr`](Self::local_addr) tells it). Each
    /// address of a host name is tried.
    ///
    /// ```
    /// use rpma::ListenError;
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?; // any port
    /// let addr = endpoint.local_addr().ok_or("listening")?;
    /// let second = Endpoint::listen(&peer, addr);
    /// assert!(matches!(second, Err(ListenError::InUse { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ListenError`], of the last address that was tried.
    pub fn listen(peer: &Peer, addr: impl ToSocketAddrs) -> Result<Self, ListenError> {
        Self::listen_with_backlog(peer, addr, PROVIDER_S_BACKLOG)
    }

    /// As [`listen`](Self::listen), with room for `backlog` requests that nobody has taken yet; 0 is the provider's default, as many as the
    /// system allows on Linux. One that finds no room is not answered until there is some: the peer's connection manager asks again from time to
    /// time, and with the software provider it waits.
    ///
    /// ```
    /// use rpma::{EstablishError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let endpoint = Endpoint::listen_with_backlog(&peer, ("127.0.0.1", 0), 1)?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let ask = || -> Result<PendingConn, Box<dyn std::error::Error>> {
    ///     Ok(ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?)
    /// };
    /// let (first, second) = (ask()?, ask()?); // the second waits for room
    /// let (one, two) = (endpoint.next_request(Duration::from_secs(10))?, endpoint.next_request(Duration::from_secs(10))?);
    /// one.reject(&[])?;
    /// two.reject(&[])?;
    /// for client in [first, second] {
    ///     assert!(matches!(client.established(Duration::from_secs(10)), Err(EstablishError::Rejected(_))));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ListenError`], of the last address that was tried.
    pub fn listen_with_backlog(peer: &Peer, addr: impl ToSocketAddrs, backlog: u32) -> Result<Self, ListenError> {
        let channel = EventChannel::create(peer.device().context().provider()).map_err(ListenError::Provider)?;
        let mut failed = ListenError::NoAddress;
        for addr in addr.to_socket_addrs().map_err(ListenError::Lookup)? {
            match listen_on(peer, &channel, addr, backlog) {
                Ok(id) => {
                    let over = Flag::new().map_err(ListenError::Provider)?;
                    let readable = any_of(&[channel.as_fd(), over.as_fd()]).map_err(ListenError::Provider)?;
                    return Ok(Self {
                        peer: peer.clone(),
                        local_addr: id.local_addr(),
                        _id: id,
                        channel,
                        over,
                        readable,
                        closed: AtomicBool::new(false),
                        removed: AtomicBool::new(false),
                    });
                }
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// Waits for a request and gives it without queues, to be looked at first.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(b"in a hurry")?;
    /// let request = endpoint.next_request(Duration::from_secs(10))?;
    /// // Queues as this client wants them.
    /// let sq_size = if request.private_data().starts_with(b"in a hurry") { 100 } else { 10 };
    /// let conn_req = request.prepare(&ConnCfg::new().sq_size(sq_size))?;
    /// let pending = conn_req.connect(&[])?;
    /// assert!(pending.granted().send_wr >= 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    pub fn next_request(&self, wait: impl Into<Wait>) -> Result<IncomingRequest, RequestError> {
        let wait = wait.into();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(RequestError::Closed);
            }
            if self.removed.load(Ordering::SeqCst) {
                return Err(RequestError::DeviceRemoved);
            }
            let Some(event) = self.channel.get_event().map_err(RequestError::Provider)? else {
                if !until_readable(&[self.readable.as_fd()], wait).map_err(RequestError::Provider)? {
                    return Err(RequestError::NoRequest);
                }
                continue;
            };
            return match (event.kind, event.new_id) {
                (CmEventKind::ConnectRequest, Some(id)) => {
                    IncomingRequest::adopt(&self.peer, id, event.private_data, event.initiator_depth).map_err(RequestError::Adopt)
                }
                (CmEventKind::DeviceRemoval, _) => {
                    // For every thread that waits here, now and later.
                    self.removed.store(true, Ordering::SeqCst);
                    self.over.set();
                    Err(RequestError::DeviceRemoved)
                }
                (kind, _) => {
                    log::error!(
                        "endpoint {:?}: {kind:?}, status {}, where a request was expected",
                        self.local_addr,
                        event.status
                    );
                    Err(RequestError::Unexpected { kind, status: event.status })
                }
            };
        }
    }

    /// Waits for a request and makes its queues: `rpma_ep_next_conn_req(3)`.
    ///
    /// ```
    /// use rpma::{RequestError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let cfg = ConnCfg::new();
    /// assert!(matches!(endpoint.next_conn_req(&cfg, Wait::Now), Err(RequestError::NoRequest)));
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = endpoint.next_conn_req(&cfg, Duration::from_secs(10))?;
    /// request.recv(LocalSlice::null(), 1)?; // before the first message can come
    /// let pending = request.connect(&[])?;
    /// # client.established(Duration::from_secs(10))?;
    /// let conn = pending.established(Duration::from_secs(10))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`]. If the queues cannot be made, the peer is rejected at once.
    #[doc(alias = "rpma_ep_next_conn_req")]
    pub fn next_conn_req(&self, cfg: &ConnCfg, wait: impl Into<Wait>) -> Result<ConnReq<Incoming>, RequestError> {
        Ok(self.next_request(wait)?.prepare(cfg)?)
    }

    /// The address that it listens on, with the port that was taken.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// Wakes every thread that waits for a request, now and from now on. The endpoint stops listening when it is dropped.
    ///
    /// ```
    /// use rpma::{RequestError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// std::thread::scope(|threads| {
    ///     let waiting = threads.spawn(|| endpoint.next_request(Wait::Forever));
    ///     endpoint.close();
    ///     assert!(matches!(waiting.join(), Ok(Err(RequestError::Closed))));
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.over.set();
    }
}

fn listen_on(peer: &Peer, channel: &Arc<EventChannel>, addr: SocketAddr, backlog: u32) -> Result<CmId, ListenError> {
    if lacks_scope(addr) {
        return Err(ListenError::NoScope { addr });
    }
    let id = CmId::create(channel).map_err(ListenError::Provider)?;
    id.bind(addr).map_err(|source| ListenError::of_bind(addr, source))?;
    let device = peer.device();
    // A wildcard address is on no device: each request says by which it came.
    if !addr.ip().is_unspecified() && !id.is_on(device.context()) {
        if !id.has_device() {
            return Err(ListenError::NotOnDevice { addr, source: None });
        }
        return Err(ListenError::OtherDevice { addr, peer_device: device.name().to_owned() });
    }
    // Verbs count in a signed int, and every system has a smaller limit of its own.
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    id.listen(backlog).map_err(|source| ListenError::Listen { addr, source })?;
    Ok(id)
}

/// `rdma_listen(3)`: 0 is the provider's default.
const PROVIDER_S_BACKLOG: u32 = 0;

impl AsFd for Endpoint {
    /// Readable while there is a request, and once the endpoint is closed: `rpma_ep_get_fd(3)`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}
