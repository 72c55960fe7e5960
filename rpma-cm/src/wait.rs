//! How long to wait, and waiting on descriptors: `poll(2)`, restarted after a signal, with one deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rpma_mr::sys::ProcessMark;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

/// How long a call may wait for what it returns.
///
/// Every waiting call takes one, as `impl Into<Wait>`: a [`Duration`] from now, an [`Instant`], or one of the variants.
///
/// ```
/// use rpma::{CqError, prelude::*};
/// use std::time::Instant;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let cq = conn.cq();
/// assert!(matches!(cq.wait(Wait::Now), Err(CqError::NoCompletion)));
/// assert!(matches!(cq.wait(Duration::from_millis(1)), Err(CqError::NoCompletion)));
/// let deadline = Instant::now() + Duration::from_secs(10); // for several calls together
/// # server.recv(LocalSlice::null(), 0)?;
/// conn.send(LocalSlice::null(), Signal::Always, 1)?;
/// cq.wait(deadline)?.result()?;
/// conn.disconnect()?;
/// # server.next_event(deadline)?;
/// # server.disconnect()?;
/// assert_eq!(conn.next_event(deadline)?, ConnEvent::Closed);
/// assert!(matches!(cq.wait(Wait::Forever), Err(CqError::Drained))); // not for ever, since none can come
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait: what is not there now is not returned.
    Now,
    /// Until this instant.
    Until(Instant),
    /// As long as it takes, or until the object is closed from another thread.
    Forever,
}

impl From<Duration> for Wait {
    /// From now on. A time that no clock can reach is for ever.
    fn from(duration: Duration) -> Self {
        Instant::now().checked_add(duration).map_or(Self::Forever, Self::Until)
    }
}

impl From<Instant> for Wait {
    fn from(deadline: Instant) -> Self {
        Self::Until(deadline)
    }
}

impl Wait {
    /// What is left of it: `None` for ever, zero if it is over.
    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::Until(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// Waits until one of `fds` is readable (or broken, which its next reader will see). False when the time is over before that.
pub(crate) fn until_readable(fds: &[BorrowedFd<'_>], wait: Wait) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = wait.left();
        // A time beyond what the kernel's clock can say is waited for in pieces.
        let timeout = left.map(|left| Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 }));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) if wait.is_over() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e.into()),
        }
    }
}

/// A descriptor that is readable from [`set`](Self::set) until [`clear`](Self::clear): an `eventfd(2)`.
///
/// A forked child has the same eventfd as its parent. So it does nothing there: the child would wake its parent, or eat its wake-ups.
#[derive(Debug)]
pub(crate) struct Flag {
    fd: OwnedFd,
    mark: ProcessMark,
}

impl Flag {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, mark: ProcessMark::current() })
    }

    /// Wakes whoever waits for it, now or later.
    pub(crate) fn set(&self) {
        if self.mark.is_current() {
            // EAGAIN: the counter is full, so the descriptor is readable already. Nothing else can happen to an open eventfd.
            let _readable_already = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.mark.is_current()
    }

    pub(crate) fn clear(&self) {
        if self.mark.is_current() {
            // EAGAIN: it was not set.
            let _not_set = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A descriptor that is readable while any of `fds` is: an `epoll(7)` instance, which can itself be waited for.
pub(crate) fn any_of(fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (n, fd) in (0..).zip(fds) {
        epoll::add(&any, fd, epoll::EventData::new_u64(n), epoll::EventFlags::IN)?;
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_is_readable_until_cleared_however_often_it_was_set() {
        let flag = Flag::new().unwrap();
        assert!(!until_readable(&[flag.as_fd()], Wait::Now).unwrap());
        flag.set();
        flag.set();
        assert!(until_readable(&[flag.as_fd()], Wait::Forever).unwrap());
        flag.clear();
        assert!(!until_readable(&[flag.as_fd()], Wait::Now).unwrap());
    }

    #[test]
    fn waiting_ends_at_the_deadline_and_not_before() {
        let flag = Flag::new().unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(!until_readable(&[flag.as_fd()], deadline.into()).unwrap());
        assert!(Instant::now() >= deadline);
    }

    #[test]
    fn any_of_is_readable_while_one_of_its_parts_is() {
        let (a, b) = (Flag::new().unwrap(), Flag::new().unwrap());
        let any = any_of(&[a.as_fd(), b.as_fd()]).unwrap();
        assert!(!until_readable(&[any.as_fd()], Wait::Now).unwrap());
        b.set();
        assert!(until_readable(&[any.as_fd()], Wait::Forever).unwrap());
        b.clear();
        assert!(!until_readable(&[any.as_fd()], Wait::Now).unwrap());
    }

    #[test]
    fn longest_duration_is_for_ever() {
        assert_eq!(Wait::from(Duration::MAX), Wait::Forever);
    }
}
