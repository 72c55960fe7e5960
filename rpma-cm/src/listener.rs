//! Synchronous listening.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::endpoint::{Endpoint, ListenError, RequestError};
use crate::incoming::Incoming;
use crate::peer::Peer;
use crate::wait::Wait;

/// A listener whose requests come with their queues made, from one set of parameters: what `rdma_create_ep(3)` with queue pair attributes,
/// `rdma_listen(3)` and `rdma_get_request(3)` do. (C's librpma has no such thing.)
///
/// It is an [`Endpoint`] with its [`ConnCfg`]. Unlike the connection manager's, its wait has a deadline and can be ended from another
/// thread ([`close`](Self::close)); a request holds nothing of the listener's, so that both are dropped in any order; and the queue pairs
/// have native flush and atomic write where the device has them.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let listener = Listener::new(&peer, ("127.0.0.1", 0), &ConnCfg::new().sq_size(64))?;
/// let addr = listener.local_addr().ok_or("listening")?; // with the port that was taken
/// let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(b"it is me")?;
///
/// let request = listener.get_request(Duration::from_secs(10))?;
/// assert!(request.private_data().starts_with(b"it is me"));
/// let pending = request.connect(b"welcome")?;
/// # let client = client.established(Duration::from_secs(10))?;
/// let conn = pending.established(Duration::from_secs(10))?;
/// assert!(conn.granted().send_wr >= 64);
/// # assert!(client.private_data().starts_with(b"welcome"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A request is accepted once; this does not compile:
///
/// ```compile_fail,E0382
/// # use rpma_cm::{Listener, Wait};
/// # fn f(listener: &Listener) -> Result<(), Box<dyn std::error::Error>> {
/// let request = listener.get_request(Wait::Forever)?;
/// let first = request.connect(&[])?;
/// let second = request.connect(&[])?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "rdma_get_request")]
#[doc(alias = "rdma_create_ep")]
pub struct Listener {
    endpoint: Endpoint,
    cfg: ConnCfg,
}

impl Listener {
    /// Listens on `addr`, as [`Endpoint::listen`] does. `cfg` is for the connections of all requests.
    ///
    /// # Errors
    ///
    /// [`ListenError`], of the last address that was tried.
    pub fn new(peer: &Peer, addr: impl ToSocketAddrs, cfg: &ConnCfg) -> Result<Self, ListenError> {
        Ok(Self::on(Endpoint::listen(peer, addr)?, cfg))
    }

    /// Makes one of an endpoint: of one with a backlog of its own ([`Endpoint::listen_with_backlog`]), for instance.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let endpoint = Endpoint::listen_with_backlog(&peer, ("127.0.0.1", 0), 16)?;
    /// let listener = Listener::on(endpoint, &ConnCfg::new().rq_size(32));
    /// assert_eq!(listener.cfg().get_rq_size(), 32);
    /// assert_eq!(listener.local_addr(), listener.endpoint().local_addr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on(endpoint: Endpoint, cfg: &ConnCfg) -> Self {
        Self { endpoint, cfg: cfg.clone() }
    }

    /// Waits for a request and makes its queues: `rdma_get_request(3)`. The request's private data lives as long as the request.
    ///
    /// ```
    /// use rpma::RequestError;
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let listener = Listener::new(&peer, ("127.0.0.1", 0), &ConnCfg::new())?;
    /// # let addr = listener.local_addr().ok_or("listening")?;
    /// // With a deadline, here one that is over at once:
    /// assert!(matches!(listener.get_request(Wait::Now), Err(RequestError::NoRequest)));
    /// # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// let request = listener.get_request(Duration::from_secs(10))?;
    /// drop(listener); // the request does not need it
    /// let pending = request.connect(&[])?;
    /// # client.established(Duration::from_secs(10))?;
    /// # pending.established(Duration::from_secs(10))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`]; the listener goes on, unless the variant says otherwise. If the queues cannot be made, the peer is rejected at
    /// once.
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&self, wait: impl Into<Wait>) -> Result<ConnReq<Incoming>, RequestError> {
        self.endpoint.next_conn_req(&self.cfg, wait)
    }

    /// The parameters of its connections.
    #[must_use]
    pub fn cfg(&self) -> &ConnCfg {
        &self.cfg
    }

    /// The endpoint below, which gives requests without queues, or with others.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The address that it listens on, with the port that was taken.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Wakes every thread that waits for a request, now and from now on. It stops listening when it is dropped.
    ///
    /// ```
    /// use rpma::{RequestError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let listener = Listener::new(&peer, ("127.0.0.1", 0), &ConnCfg::new())?;
    /// std::thread::scope(|threads| {
    ///     let waiting = threads.spawn(|| listener.get_request(Wait::Forever));
    ///     listener.close();
    ///     assert!(matches!(waiting.join(), Ok(Err(RequestError::Closed))));
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.endpoint.close();
    }
}

impl AsFd for Listener {
    /// Readable while there is a request, and once the listener is closed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr()).field("cfg", &self.cfg).finish_non_exhaustive()
    }
}
