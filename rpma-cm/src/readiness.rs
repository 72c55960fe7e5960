//! What waiting without blocking needs of a runtime.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

/// Tells when a descriptor is readable: all that [`Async`](crate::Async) needs of a runtime. The feature `tokio` of `rpma` has it for
/// tokio; for another runtime it is a few lines around that runtime's type for descriptors.
///
/// The descriptor is nobody else's, and nothing is ever read from it: it is an `epoll(7)` instance. Runtimes that want to be told only
/// of changes (`EPOLLET`) and those that look at the state may both be used.
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
