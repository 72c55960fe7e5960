//! The listening endpoint.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::{CmEventKind, CmId, EventChannel};

use crate::conn_cfg::ConnCfg;
use crate::conn_req::{ConnReq, Incoming, IncomingRequest};
use crate::link::BuildError;
use crate::peer::Peer;
use crate::wait::{Flag, Wait, until_readable};

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
    #[error("the connection manager gives no identifier")]
    Provider(#[source] io::Error),
    /// The address is not on this machine, on no RDMA device, or taken.
    #[error("cannot bind to {addr}: is it an address of an RDMA device of this machine, and the port free?")]
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
        ErrorCode::Provider
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
    /// The queues could not be made; the peer was rejected.
    #[error("the queues for a request cannot be made, and its peer was rejected")]
    Build(#[from] BuildError),
}

impl RequestError {
    /// The code that librpma gives for this: `rpma_ep_next_conn_req(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoRequest | Self::Closed => ErrorCode::NoEvent,
            Self::DeviceRemoved | Self::Unexpected { .. } => ErrorCode::InvalidArgument,
            Self::Provider(_) | Self::Adopt(_) | Self::Build(_) => ErrorCode::Provider,
        }
    }
}

/// A listening endpoint: `rpma_ep_listen(3)`. Its requests and connections do not need it: it may be dropped first.
pub struct Endpoint {
    peer: Peer,
    /// Listens until it is dropped.
    _id: CmId,
    channel: Arc<EventChannel>,
    local_addr: Option<SocketAddr>,
    closing: Flag,
    closed: AtomicBool,
}

impl Endpoint {
    /// Listens on `addr`, which is of the peer's device; port 0 takes a free one ([`local_addr`](Self::local_addr) tells it). Each
    /// address of a host name is tried.
    ///
    /// # Errors
    ///
    /// [`ListenError`], of the last address that was tried.
    pub fn listen(peer: &Peer, addr: impl ToSocketAddrs) -> Result<Self, ListenError> {
        let channel = EventChannel::create(peer.device().context().provider()).map_err(ListenError::Provider)?;
        let mut failed = ListenError::NoAddress;
        for addr in addr.to_socket_addrs().map_err(ListenError::Lookup)? {
            match listen_on(peer, &channel, addr) {
                Ok(id) => {
                    let local_addr = id.local_addr();
                    let closing = Flag::new().map_err(ListenError::Provider)?;
                    return Ok(Self {
                        peer: peer.clone(),
                        _id: id,
                        channel,
                        local_addr,
                        closing,
                        closed: AtomicBool::new(false),
                    });
                }
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// Waits for a request and gives it without queues, to be looked at first.
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
            let Some(event) = self.channel.get_event().map_err(RequestError::Provider)? else {
                if !until_readable(&[self.channel.as_fd(), self.closing.as_fd()], wait).map_err(RequestError::Provider)? {
                    return Err(RequestError::NoRequest);
                }
                continue;
            };
            return match (event.kind, event.new_id) {
                (CmEventKind::ConnectRequest, Some(id)) => {
                    IncomingRequest::adopt(&self.peer, id, event.private_data).map_err(RequestError::Adopt)
                }
                (CmEventKind::DeviceRemoval, _) => Err(RequestError::DeviceRemoved),
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
    /// # Errors
    ///
    /// [`RequestError`]. If the queues cannot be made, the peer is rejected at once.
    pub fn next_conn_req(&self, cfg: &ConnCfg, wait: impl Into<Wait>) -> Result<ConnReq<Incoming>, RequestError> {
        Ok(self.next_request(wait)?.prepare(cfg)?)
    }

    /// The address that it listens on, with the port that was taken.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// Wakes every thread that waits for a request, now and from now on. The endpoint stops listening when it is dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.set();
    }
}

fn listen_on(peer: &Peer, channel: &Arc<EventChannel>, addr: SocketAddr) -> Result<CmId, ListenError> {
    let id = CmId::create(channel).map_err(ListenError::Provider)?;
    id.bind(addr).map_err(|source| ListenError::Bind { addr, source })?;
    let device = peer.device();
    // A wildcard address is on no device: each request says by which it came.
    if !addr.ip().is_unspecified() && !id.is_on(device.context()) {
        return Err(ListenError::OtherDevice { addr, peer_device: device.name().to_owned() });
    }
    id.listen(PROVIDER_S_BACKLOG).map_err(|source| ListenError::Listen { addr, source })?;
    Ok(id)
}

/// `rdma_listen(3)`: 0 is the provider's default.
const PROVIDER_S_BACKLOG: i32 = 0;

impl AsFd for Endpoint {
    /// Readable when there is a request: `rpma_ep_get_fd(3)`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}
