//! What waiting without blocking needs of a runtime.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

/// Tells when a descriptor is readable: all that [`Async`](crate::Async) needs of a runtime. The feature `tokio` of `rpma` has it for
/// tokio; for another runtime it is a few lines around that runtime's type for descriptors.
///
/// The descriptor is nobody else's, and nothing is ever read from it: it is an `epoll(7)` instance. Runtimes that want to be told only
/// of changes (`EPOLLET`) and those that look at the state may both be used.
///
/// ```
/// use rpma::{Async, Readiness, prelude::*};
/// use rustix::event::{PollFd, PollFlags, Timespec, poll};
/// use std::os::fd::OwnedFd;
/// use std::sync::Arc;
/// use std::task::{Context, Poll, ready};
/// use std::{io, thread};
///
/// /// For any executor, without a reactor: a thread waits where there is nothing yet.
/// struct ByThread(Arc<OwnedFd>);
///
/// impl Readiness for ByThread {
///     fn watch(fd: OwnedFd) -> io::Result<Self> {
///         Ok(Self(Arc::new(fd)))
///     }
///
///     fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
///         let now = Timespec { tv_sec: 0, tv_nsec: 0 };
///         if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now))? > 0 {
///             return Poll::Ready(Ok(()));
///         }
///         let (fd, waker) = (Arc::clone(&self.0), context.waker().clone());
///         thread::spawn(move || {
///             _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
///             waker.wake();
///         });
///         Poll::Pending
///     }
/// }
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let mut endpoint = Async::<_, ByThread>::new(endpoint)?;
/// # let asking = thread::spawn(move || -> Result<PendingConn, String> {
/// #     let request = ConnReq::new(&peer, addr, &ConnCfg::new()).map_err(|e| e.to_string())?;
/// #     request.connect(&[]).map_err(|e| e.to_string())
/// # });
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?; // no I/O: as good as any
/// # let request = runtime.block_on(async {
/// let request = endpoint.next_conn_req(&ConnCfg::new()).await?;
/// #     Ok::<_, Box<dyn std::error::Error>>(request)
/// # })?;
/// assert!(request.peer_addr().is_some());
/// # let _pending = asking.join().map_err(|_| "panicked")??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Readiness: Sized + Unpin {
    /// Begins to watch `fd`, until it is dropped.
    ///
    /// # Errors
    ///
    /// If the runtime takes no more descriptors, or there is no runtime.
    fn watch(fd: OwnedFd) -> io::Result<Self>;

    /// Ready if the descriptor has become readable since this was last ready; it may be ready more often, but not for ever without that.
    /// Pending once it is sure that `context`'s task will be woken then. Only the task of the last call needs to be.
    ///
    /// # Errors
    ///
    /// If the runtime cannot tell, because it was shut down, for one.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}
