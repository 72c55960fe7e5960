//! Connection requests, outgoing and incoming, before they are connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::ConnParam;

use crate::cq::CompletionQueue;
use crate::event::shown;
use crate::link::Link;
use crate::parameters::Parameters;
use crate::post_error::PostError;
use crate::private_data::PrivateDataTooLong;
use crate::source::Ranges;

/// Why a request could not be connected, accepted or rejected. The request is consumed all the same; an incoming one is then rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Found before the call.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// The peer of an incoming request did not wait for the answer.
    #[error("the peer{} gave its request up before it was accepted", shown(.peer_addr))]
    #[expect(missing_docs, reason = "the message explains its field")]
    PeerGone { peer_addr: Option<SocketAddr> },
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
            Self::PeerGone { .. } | Self::Provider(_) => ErrorCode::Provider,
        }
    }
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
    pub(crate) direction: Direction,
    pub(crate) link: EndOnDrop,
}

/// Ends a request that goes nowhere: whoever waits for its completions is told.
pub(crate) struct EndOnDrop {
    pub(crate) link: Arc<Link>,
    connected: bool,
}

impl EndOnDrop {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, connected: false }
    }

    pub(crate) fn connected(mut self) -> Arc<Link> {
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

pub(crate) fn param(parameters: Parameters, private_data: &[u8]) -> ConnParam<'_> {
    let Parameters { responder_resources, initiator_depth, retry_count, rnr_retry_count, .. } = parameters;
    ConnParam { private_data, responder_resources, initiator_depth, retry_count, rnr_retry_count }
}
