//! Event channels of the connection manager: the queue of events behind a descriptor.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::connection::Connection;
use super::untaken::Untaken;
use crate::cm::Event;

/// An event channel.
#[derive(Debug)]
pub(crate) struct EventChannel {
    untaken: Untaken<Waiting>,
}

/// An event that the program has not taken.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Whose it is, and who waits for its acknowledgement.
    pub(crate) of: Arc<Connection>,
    /// The connection that is asked for, in a request.
    pub(crate) child: Option<Arc<Connection>>,
    /// What happened.
    pub(crate) event: Event,
}

impl EventChannel {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { untaken: Untaken::new()? })
    }

    /// Its descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.untaken.fd()
    }

    /// Adds an event.
    pub(crate) fn push(&self, waiting: Waiting) {
        self.untaken.push(waiting);
    }

    /// Takes the oldest event, and waits for one unless the descriptor is non-blocking. It counts as told to the program.
    pub(crate) fn next(&self) -> io::Result<Waiting> {
        self.untaken.next(|waiting| waiting.of.events.told())
    }

    /// Removes the events of a connection.
    pub(crate) fn remove(&self, of: &Connection) -> VecDeque<Waiting> {
        self.untaken.remove(|waiting| std::ptr::eq(&raw const *waiting.of, of))
    }

    /// How many requests for `listener` wait.
    pub(crate) fn requests(&self, listener: &Connection) -> usize {
        self.untaken.count(|waiting| waiting.child.is_some() && std::ptr::eq(&raw const *waiting.of, listener))
    }
}
