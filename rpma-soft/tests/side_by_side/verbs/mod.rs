//! The objects of verbs and of the connection manager as the tests need them: nothing is checked before the provider is asked, whatever
//! can be asked without harm can be asked, and every refusal is an errno. `rpma_sys::owned` is for users, and refuses much itself.

pub(crate) mod builders;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod endpoint;
pub(crate) mod memory;
pub(crate) mod qp;
pub(crate) mod setup;
pub(crate) mod srq;

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use cm::{Channel, Event, Id, Param};
pub(crate) use cq::Cq;
pub(crate) use memory::{Mr, Pd};
pub(crate) use qp::{Cap, Op, Qp, Refused, Send};
pub(crate) use setup::Setup;
pub(crate) use srq::Srq;

/// How long something that has to come may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// How long something may take that does not come from every provider.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// What a call answered.
pub(crate) type Answer<T = ()> = Result<T, Errno>;

impl From<io::Error> for Errno {
    fn from(e: io::Error) -> Self {
        // Null without an errno: the provider told nothing.
        Self(e.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "refused without an errno",
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::EFBIG => "EFBIG",
            libc::ENOSPC => "ENOSPC",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ENOSYS => "ENOSYS",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::EAFNOSUPPORT => "EAFNOSUPPORT",
            libc::ENETUNREACH => "ENETUNREACH",
            libc::EHOSTUNREACH => "EHOSTUNREACH",
            libc::EISCONN => "EISCONN",
            libc::ENOTCONN => "ENOTCONN",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::EACCES => "EACCES",
            libc::ENODATA => "ENODATA",
            libc::EOVERFLOW => "EOVERFLOW",
            other => return write!(f, "errno {other}"),
        };
        f.write_str(name)
    }
}

/// `ok`, or the errno.
pub(crate) fn told<T>(answer: &Answer<T>) -> String {
    match answer {
        Ok(_) => String::from("ok"),
        Err(e) => e.to_string(),
    }
}

/// Waits until `fd` is readable; `false` when `limit` is over.
pub(crate) fn readable(fd: std::os::fd::BorrowedFd<'_>, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).expect("a limit of seconds");
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("poll: {e}"),
        }
    }
}
