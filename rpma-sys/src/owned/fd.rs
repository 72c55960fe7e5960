//! Descriptors that rdma-core opened, and what is lent in their place.
#![expect(unsafe_code, reason = "calls fcntl(2) and epoll(7)")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::ret::minus1_ret;

/// Makes a descriptor non-blocking, as every descriptor of ours is.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open (it is borrowed), and F_GETFL takes no argument.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    minus1_ret(flags)?;
    // SAFETY: as above; F_SETFL takes an int.
    minus1_ret(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// A descriptor that is readable while `fd` is, and good for nothing else: an `epoll(7)` instance.
///
/// The descriptors of rdma-core are command channels. A `write(2)` to one can make the kernel write to any address, and a `read(2)` takes
/// an event that nobody counts; both are safe calls in Rust, so those descriptors are never lent.
pub(super) fn readable_while(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call has no conditions.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    minus1_ret(epoll)?;
    // SAFETY: just opened, and nobody else's.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut interest = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
    // SAFETY: both descriptors are open, and `interest` is a valid place for the call to read.
    minus1_ret(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut interest) })?;
    Ok(epoll)
}
