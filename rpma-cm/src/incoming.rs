//! Incoming requests: looking at one, accepting it and rejecting it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rpma_mr::sys::owned::{CmId, EventChannel};

use crate::build::BuildError;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::{ConnReq, ConnectError, EndOnDrop, param};
use crate::link::Link;
use crate::parameters::Parameters;
use crate::peer::Peer;
use crate::pending::PendingConn;
use crate::private_data::{self, MAX_ACCEPT_BYTES, MAX_REJECT_BYTES};

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
///
/// It has no queues, so nothing can be posted to it and it cannot be accepted, and what was rejected cannot be prepared; this does not
/// compile:
///
/// ```compile_fail,E0599
/// # fn f(request: rpma_cm::IncomingRequest) {
/// request.recv(rpma_mr::LocalSlice::null(), 1);
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn f(request: rpma_cm::IncomingRequest) {
/// request.connect(&[]);
/// # }
/// ```
///
/// ```compile_fail,E0382
/// # fn f(request: rpma_cm::IncomingRequest) {
/// request.reject(&[]);
/// request.prepare(&rpma_cm::ConnCfg::new());
/// # }
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
    pub fn prepare(mut self, cfg: &ConnCfg) -> Result<ConnReq<Incoming>, BuildError> {
        let link = Link::build(&self.peer, &self.id, cfg).map_err(|e| match e {
            // No queue pair is made for an identifier whose connection is over; and then there is nobody to reject.
            BuildError::Qp { .. } if self.reject.now().is_err() => BuildError::PeerGone { peer_addr: self.id.peer_addr() },
            e => e,
        })?;
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
        link.id().accept(param(parameters, private_data)).map_err(|e| match e.kind() {
            // What is asked for was checked, so it is the request that is over; no event tells of one that is not accepted.
            io::ErrorKind::InvalidInput => ConnectError::PeerGone { peer_addr: link.id().peer_addr() },
            _ => ConnectError::Provider(e),
        })?;
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

/// Rejects an incoming request when dropped, unless it was defused.
#[derive(Debug)]
struct RejectOnDrop(Option<Arc<CmId>>);

impl RejectOnDrop {
    fn defuse(mut self) {
        self.0 = None;
    }

    fn now(&mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |id| id.reject(&[]))
    }
}

impl Drop for RejectOnDrop {
    fn drop(&mut self) {
        if let Err(e) = self.now() {
            // The client may be gone already; then there is nobody to tell.
            log::debug!("rejecting a request that was dropped: {e}");
        }
    }
}

fn reject(id: &CmId, guard: RejectOnDrop, private_data: &[u8]) -> Result<(), ConnectError> {
    private_data::check("reject", private_data, MAX_REJECT_BYTES)?;
    id.reject(private_data).map_err(ConnectError::Provider)?;
    guard.defuse();
    Ok(())
}
