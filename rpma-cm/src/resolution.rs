//! Making an outgoing request without blocking, on any runtime.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};

use crate::conn_req::ConnReq;
use crate::outgoing::{ConnReqError, Outgoing, Resolving, Step};
use crate::readiness::Readiness;
use crate::wait::any_of;

/// The request that [`ConnReq::start`] has begun, as a future. `R` is the runtime's part: [`Readiness`].
///
/// It keeps the time limit of [`ConnCfg::timeout`](crate::ConnCfg::timeout) by itself. Dropping it gives the request up, and frees what it
/// has so far; the peer has not heard of it. A reference to it can be waited for and dropped, as often as is wanted.
///
/// ```
/// use rpma::tokio::Readable; // tokio's part
/// use rpma::{Resolution, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let resolving = ConnReq::start(&peer, addr, &ConnCfg::new())?;
/// let request = Resolution::<Readable>::new(resolving)?.await?;
/// assert_eq!(request.peer_addr(), Some(addr));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request goes on only when it is waited for"]
pub struct Resolution<R> {
    /// `None` once the result was given.
    resolving: Option<Resolving>,
    /// A descriptor, so that the runtime need not have a clock.
    timer: OwnedFd,
    readiness: R,
}

impl<R: Readiness> Resolution<R> {
    /// Has the runtime watch `resolving`.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left, or the runtime refuses: [`Readiness::watch`].
    pub fn new(resolving: Resolving) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let readiness = R::watch(any_of(&[resolving.as_fd(), timer.as_fd()])?)?;
        Ok(Self { resolving: Some(resolving), timer, readiness })
    }
}

impl<R: Readiness> Future for Resolution<R> {
    type Output = Result<ConnReq<Outgoing>, ConnReqError>;

    /// # Panics
    ///
    /// After it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let resolving = self.resolving.take().expect("a future is not polled after it was ready");
            let resolving = match resolving.advance()? {
                Step::Ready(request) => return Poll::Ready(Ok(request)),
                Step::Resolving(resolving) => resolving,
            };
            let deadline = resolving.deadline();
            self.resolving = Some(resolving);
            // Each address has its own. Setting it also makes it unreadable, if it was readable for the last one.
            set(&self.timer, deadline).map_err(ConnReqError::Provider)?;
            ready!(self.readiness.poll_readable(context)).map_err(ConnReqError::Provider)?;
        }
    }
}

/// Makes `timer` readable at `deadline`.
fn set(timer: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let it_value = match Timespec::try_from(left) {
        // No time at all would switch it off.
        Ok(Timespec { tv_sec: 0, tv_nsec: 0 }) => Timespec { tv_sec: 0, tv_nsec: 1 },
        Ok(left) => left,
        // Beyond what the kernel's clock can say, and what anybody waits for.
        Err(_) => Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 },
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

impl<R> fmt::Debug for Resolution<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolution").field(&self.resolving).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::{Wait, until_readable};

    #[test]
    fn timer_is_readable_at_its_deadline_and_no_more_when_it_has_another() {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        set(&timer, now + hour).unwrap();
        assert!(!until_readable(&[timer.as_fd()], Wait::Now).unwrap());
        // One that is over already.
        set(&timer, now).unwrap();
        assert!(until_readable(&[timer.as_fd()], Wait::Forever).unwrap());
        set(&timer, now + hour).unwrap();
        assert!(!until_readable(&[timer.as_fd()], Wait::Now).unwrap());
    }
}
