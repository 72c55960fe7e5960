//! A descriptor that is readable while something waits, and that obeys the program's O_NONBLOCK.
#![forbid(unsafe_code)]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{ReadWriteFlags, preadv2, read, write};

/// An eventfd as a semaphore: one token for each thing that waits in a queue beside it.
///
/// Whoever takes from the queue takes a token first. What leaves the queue by another way leaves its token behind if a reader just has it:
/// that reader finds nothing and tries again.
#[derive(Debug)]
pub(crate) struct Tokens(OwnedFd);

impl Tokens {
    /// None yet.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?))
    }

    /// The number of the descriptor.
    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Puts one.
    pub(crate) fn put(&self) {
        // It could only fail with a full counter: 2^64 tokens.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes one; waits for it unless the program said O_NONBLOCK.
    pub(crate) fn take(&self) -> io::Result<()> {
        let mut count = [0; 8];
        read(&self.0, &mut count)?;
        Ok(())
    }

    /// Takes one if there is one, whatever the program said. A kernel before 5.8 cannot do that, and the token stays.
    pub(crate) fn take_back(&self) {
        let mut count = [0; 8];
        let _ = preadv2(&self.0, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

impl AsFd for Tokens {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_one_by_one() {
        let tokens = Tokens::new().unwrap();
        let flags = rustix::fs::fcntl_getfl(&tokens).unwrap();
        rustix::fs::fcntl_setfl(&tokens, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        tokens.put();
        tokens.put();
        tokens.take_back();
        tokens.take().unwrap();
        assert_eq!(tokens.take().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn taking_back_nothing_does_not_wait() {
        Tokens::new().unwrap().take_back();
    }
}
