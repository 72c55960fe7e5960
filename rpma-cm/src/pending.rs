//! Connections that are not established yet.

use std::sync::Arc;

use rpma_mr::ErrorCode;

use crate::conn::Conn;
use crate::event::{ConnEvent, EventError, Rejection};
use crate::link::Link;
use crate::post_error::PostError;
use crate::source::Ranges;
use crate::wait::Wait;

/// What happened to a pending connection.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let pending = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
/// # endpoint.next_request(Duration::from_secs(10))?.reject(b"full")?; // the peer's answer
/// match pending.next_event(Duration::from_secs(10))? {
///     PendingEvent::Established(conn) => panic!("it was to be rejected: {conn:?}"),
///     PendingEvent::Rejected(rejection) => assert!(rejection.private_data.starts_with(b"full")),
///     PendingEvent::Unreachable | PendingEvent::Closed | PendingEvent::Lost => panic!("the peer is gone"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum PendingEvent {
    /// It is established. The handle inside is on the same connection, and can post.
    Established(Conn),
    /// As [`ConnEvent::Closed`].
    Closed,
    /// As [`ConnEvent::Lost`].
    Lost,
    /// As [`ConnEvent::Rejected`].
    Rejected(Rejection),
    /// As [`ConnEvent::Unreachable`].
    Unreachable,
}

/// Why a connection was not established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstablishError {
    /// The peer does not want it, or nobody listens there.
    #[error("the peer rejected the connection (reason {}{})", .0.reason, .0.in_words())]
    Rejected(Rejection),
    /// The peer does not answer.
    #[error("the peer does not answer")]
    Unreachable,
    /// The peer disconnected before it was established.
    #[error("the peer disconnected before the connection was established")]
    Closed,
    /// The connection failed, or its device is gone.
    #[error("the connection failed, or its RDMA device is gone")]
    Lost,
    /// It was not established within the time given, and still may be: it can be waited for again.
    #[error("not established within the time given: does the peer wait for it too, and has it accepted?")]
    TimedOut,
    /// Its events cannot be had.
    #[error("the connection's events cannot be read")]
    Event(#[source] EventError),
}

impl EstablishError {
    /// The code that librpma gives for the event behind this.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Rejected(_) | Self::Unreachable | Self::Closed | Self::Lost => ErrorCode::Provider,
            Self::TimedOut => ErrorCode::NoEvent,
            Self::Event(e) => e.code(),
        }
    }
}

/// A connection that was asked for, or accepted, and is not established yet: `rpma_conn_req_connect(3)`.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let pending = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
/// pending.recv(LocalSlice::null(), 1)?; // there before the peer's first message
/// # let server = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?.connect(&[])?;
/// let conn = pending.established(Duration::from_secs(10))?;
/// # server.established(Duration::from_secs(10))?.send(LocalSlice::null(), Signal::OnError, 0)?;
/// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It can post receives, and waits. Only [`Conn`], which comes with [`PendingEvent::Established`], can post to the send queue; this does
/// not compile:
///
/// ```compile_fail,E0599
/// # fn f(pending: rpma_cm::PendingConn, dst: rpma_mr::RemoteSlice, src: rpma_mr::LocalSlice<'_>) {
/// pending.write(dst, src, rpma_cm::Signal::Always, 1);
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn f(pending: rpma_cm::PendingConn) {
/// pending.batch();
/// # }
/// ```
///
/// The handle may be kept or dropped once the connection is established: both are the same connection, with the same descriptors.
#[doc(alias = "rpma_conn_req_connect")]
#[must_use = "a connection ends when its last handle is dropped"]
pub struct PendingConn(pub(crate) Arc<Link>);

impl PendingConn {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self(link)
    }

    /// Waits for what happens next: `rpma_conn_next_event(3)`.
    ///
    /// ```
    /// use rpma::{EventError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let pending = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// // The peer has not answered yet.
    /// assert!(matches!(pending.next_event(Wait::Now), Err(EventError::NoEvent)));
    /// # let server = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?.connect(&[])?;
    /// assert!(matches!(pending.next_event(Duration::from_secs(10))?, PendingEvent::Established(_))); // now it has
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EventError`].
    #[doc(alias = "rpma_conn_next_event")]
    pub fn next_event(&self, wait: impl Into<Wait>) -> Result<PendingEvent, EventError> {
        Ok(match self.0.next_event(wait.into())? {
            ConnEvent::Established => PendingEvent::Established(Conn(Arc::clone(&self.0))),
            ConnEvent::Closed => PendingEvent::Closed,
            ConnEvent::Lost => PendingEvent::Lost,
            ConnEvent::Rejected(rejection) => PendingEvent::Rejected(rejection),
            ConnEvent::Unreachable => PendingEvent::Unreachable,
        })
    }

    /// Waits until the connection is established.
    ///
    /// The connection manager gives up on a silent host by itself, but only after a minute or so: give a shorter time to know earlier.
    ///
    /// ```
    /// use rpma::{EstablishError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let pending = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
    /// // The peer has not answered yet.
    /// assert!(matches!(pending.established(Duration::from_millis(1)), Err(EstablishError::TimedOut)));
    /// # let server = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?.connect(&[])?;
    /// let conn = pending.established(Duration::from_secs(10))?; // now it has
    /// assert_eq!(conn.peer_addr(), Some(addr));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EstablishError`]; after [`EstablishError::TimedOut`] it can be waited for again.
    pub fn established(&self, wait: impl Into<Wait>) -> Result<Conn, EstablishError> {
        match self.next_event(wait) {
            Ok(PendingEvent::Established(conn)) => Ok(conn),
            Ok(PendingEvent::Rejected(rejection)) => Err(EstablishError::Rejected(rejection)),
            Ok(PendingEvent::Unreachable) => Err(EstablishError::Unreachable),
            Ok(PendingEvent::Closed) => Err(EstablishError::Closed),
            Ok(PendingEvent::Lost) => Err(EstablishError::Lost),
            Err(EventError::NoEvent) => Err(EstablishError::TimedOut),
            Err(e) => Err(EstablishError::Event(e)),
        }
    }

    /// Posts a receive: `rpma_recv(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_recv")]
    pub fn recv<'a>(&self, dst: impl Into<Ranges<'a>>, context: u64) -> Result<(), PostError> {
        self.0.recv(dst.into(), context)
    }
}
