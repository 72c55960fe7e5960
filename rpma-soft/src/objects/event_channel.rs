//! Event channels of the connection manager: the queue of events behind a descriptor.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use super::connection::Connection;
use super::tokens::Tokens;
use crate::cm::Event;
use crate::driver::lock;

/// An event channel.
#[derive(Debug)]
pub(crate) struct EventChannel {
    tokens: Tokens,
    queue: Mutex<VecDeque<Waiting>>,
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
        Ok(Self { tokens: Tokens::new()?, queue: Mutex::default() })
    }

    /// Its descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.tokens.raw()
    }

    /// Adds an event.
    pub(crate) fn push(&self, waiting: Waiting) {
        lock(&self.queue).push_back(waiting);
        self.tokens.put();
    }

    /// Takes the oldest event, and waits for one unless the descriptor is non-blocking. It counts as told to the program.
    pub(crate) fn next(&self) -> io::Result<Waiting> {
        loop {
            self.tokens.take()?;
            let mut queue = lock(&self.queue);
            if let Some(waiting) = queue.pop_front() {
                // Under the lock: whoever removes a connection's events and finds none knows that this one was counted.
                waiting.of.event_told();
                return Ok(waiting);
            }
        }
    }

    /// Removes the events of a connection.
    pub(crate) fn remove(&self, of: &Connection) -> VecDeque<Waiting> {
        let mut queue = lock(&self.queue);
        let all = std::mem::take(&mut *queue);
        let (removed, left): (VecDeque<_>, _) = all.into_iter().partition(|waiting| std::ptr::eq(&raw const *waiting.of, of));
        *queue = left;
        drop(queue);
        for _ in &removed {
            self.tokens.take_back();
        }
        removed
    }

    /// How many requests for `listener` wait.
    pub(crate) fn requests(&self, listener: &Connection) -> usize {
        let is_request = |waiting: &&Waiting| waiting.child.is_some() && std::ptr::eq(&raw const *waiting.of, listener);
        lock(&self.queue).iter().filter(is_request).count()
    }
}
