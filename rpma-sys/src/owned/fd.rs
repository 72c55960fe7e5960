//! Descriptors that rdma-core opened.
#![expect(unsafe_code, reason = "calls fcntl(2)")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::ret::minus1_ret;

/// Makes a descriptor non-blocking, as every descriptor of ours is.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open (it is borrowed), and F_GETFL takes no argument.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    minus1_ret(flags)?;
    // SAFETY: as above; F_SETFL takes an int.
    minus1_ret(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })
}
