//! Waiting on tokio (the feature `tokio`): `start(…).await`, `pending.established().await`, and streams of requests, events and
//! completions.
//!
//! [`Async`] makes the waiting calls of an object futures; [`start`] makes a request. Everything else is as in the rest of this crate,
//! because nothing else waits. The futures are cancel-safe, so they go into `select!` and `timeout`; [`Async`] says what dropping one does.
//!
//! ```
//! use rpma::prelude::*;
//! use rpma::tokio::{Async, start};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! # runtime.block_on(main_job())
//! # }
//! # async fn main_job() -> Result<(), Box<dyn std::error::Error>> {
//! let peer = Peer::new(&Device::local(&Provider::Soft.open()?, "127.0.0.1")?)?;
//! let mut endpoint = Async::new(Endpoint::listen(&peer, ("127.0.0.1", 0))?)?;
//! let addr = endpoint.local_addr().ok_or("listening")?;
//!
//! // The target: its region's descriptor goes to whoever connects.
//! let region = peer.register(AnonPages::new(4096)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
//! let hello = region.descriptor().to_bytes();
//! let target = ::tokio::spawn(async move {
//!     let request = endpoint.next_conn_req(&ConnCfg::new()).await?;
//!     let mut pending = Async::new(request.connect(&hello)?)?;
//!     let mut conn = Async::new(pending.established().await?)?;
//!     assert_eq!(conn.next_event().await?, ConnEvent::Closed);
//!     conn.disconnect()?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! });
//!
//! // The writer.
//! let request = start(&peer, addr, &ConnCfg::new()).await?;
//! let mut pending = Async::new(request.connect(&[])?)?;
//! let conn = Async::new(pending.established().await?)?;
//! let mut completions = conn.completions()?;
//!
//! let there = RemoteMr::from_descriptor(conn.private_data())?;
//! let source = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
//! source.write_at(0, b"awaited")?;
//! conn.write(there.slice(0..7)?, source.slice(0..7)?, Signal::OnError, 0)?;
//! conn.flush(there.slice(0..7)?, FlushType::Visibility, Signal::Always, 1)?;
//! completions.wait().await?.result()?;
//! let mut written = [0; 7];
//! region.read_at(0, &mut written)?;
//! assert_eq!(&written, b"awaited");
//!
//! conn.disconnect()?;
//! assert!(matches!(completions.wait().await, Err(CqError::Drained)));
//! target.await?.map_err(|e| e.to_string())?;
//! # Ok(())
//! # }
//! ```
//!
//! Requests, events and completions are also [`Stream`](https://docs.rs/futures-core)s: `Async<Endpoint>`, `Async<Conn>`,
//! `Async<DeviceEvents>` and `Async<CompletionQueue>` are those themselves; that of completions has a name too, `cq.completions()`.
//!
//! Name what you use of this module, as above: the prelude has the [`Async`](crate::Async) of all runtimes, which gives way to a name that
//! is imported and not to a second `*`; and with `use rpma::*` the name `tokio` is this module's and the crate's.
//!
//! The runtime has I/O enabled (`enable_io`, `enable_all`); on one that has not, tokio panics. It need not have time. The look-up of a host
//! name takes a thread of the runtime's.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rpma_cm::mr::sys::ProcessMark;
use rpma_cm::{ConnCfg, ConnReq, ConnReqError, Outgoing, Peer, Readiness, Resolution};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::runtime::Handle;

/// An object whose waiting calls are futures, on the tokio runtime in which it is made.
pub type Async<T> = rpma_cm::Async<T, Readable>;

/// Makes a request to the peer at `addr`: [`ConnReq::new`] as a future.
///
/// Dropping it gives the request up, and frees what it has so far; the peer has not heard of it.
///
/// ```
/// use rpma::prelude::*;
/// use rpma::tokio::start;
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// # let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let request = start(&peer, addr, &ConnCfg::new()).await?;
/// assert_eq!(request.peer_addr(), Some(addr));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ConnReqError`], of the last address that was tried.
pub async fn start(peer: &Peer, addr: impl ToSocketAddrs, cfg: &ConnCfg) -> Result<ConnReq<Outgoing>, ConnReqError> {
    let addrs: Vec<SocketAddr> = lookup_host(addr).await.map_err(ConnReqError::Lookup)?.collect();
    let resolving = ConnReq::start(peer, &*addrs, cfg)?;
    Resolution::<Readable>::new(resolving).map_err(ConnReqError::Provider)?.await
}

/// Tokio's part of [`Async`].
///
/// ```
/// use rpma::tokio::Readable;
/// use rpma::{Resolution, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// # let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let resolving = ConnReq::start(&peer, addr, &ConnCfg::new())?;
/// let request = Resolution::<Readable>::new(resolving)?.await?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Readable {
    /// Always there, until this is dropped.
    fd: Option<AsyncFd<OwnedFd>>,
    mark: ProcessMark,
}

impl Readiness for Readable {
    fn watch(fd: OwnedFd) -> io::Result<Self> {
        // AsyncFd panics where there is no runtime.
        Handle::try_current().map_err(io::Error::other)?;
        #[allow(deprecated, reason = "the function that takes its place is unsafe, and demands what an owned descriptor gives")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { fd: Some(fd), mark: ProcessMark::current() })
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let fd = self.fd.as_ref().expect("it is taken when this is dropped");
        let mut guard = ready!(fd.poll_read_ready(context))?;
        // Before the caller looks: what comes after it makes the descriptor ready again.
        guard.clear_ready();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Readable {
    fn drop(&mut self) {
        // A forked child has the same epoll instance as its parent, and would take the descriptor off it for both.
        if !self.mark.is_current() {
            mem::forget(self.fd.take());
        }
    }
}
