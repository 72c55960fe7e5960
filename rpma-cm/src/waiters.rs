//! Who waits for the completions of a queue.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::link::lock;
use crate::wait::{Flag, Wait};

/// Who waits for the completions of one queue: one thread in `poll(2)`, the leader, and the others behind it, on the condition. With all
/// of them in `poll(2)` the one that takes the event would leave the others asleep over completions that raise no event any more.
#[derive(Debug)]
pub(crate) struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the leader.
    pub(crate) wake: Flag,
}

#[derive(Debug, Default)]
struct State {
    led: bool,
    /// Counts what a follower must look at again: each end of a leadership.
    seen: u64,
}

/// Leadership, until it is dropped.
pub(crate) struct Lead<'a>(&'a Waiters);

impl Waiters {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { state: Mutex::default(), changed: Condvar::new(), wake: Flag::new()? })
    }

    /// Makes everybody look again.
    pub(crate) fn wake(&self) {
        lock(&self.state).seen += 1;
        self.changed.notify_all();
        self.wake.set();
    }

    pub(crate) fn seen(&self) -> u64 {
        lock(&self.state).seen
    }

    /// The leadership, if nobody has it and nothing happened since `seen`; else `None`, after waiting until something did or the time is
    /// over.
    pub(crate) fn lead_or_follow(&self, seen: u64, wait: Wait) -> Option<Lead<'_>> {
        let mut state = lock(&self.state);
        if state.seen != seen {
            // Another leader may have taken the event that the caller armed for.
            return None;
        }
        if !state.led {
            state.led = true;
            return Some(Lead(self));
        }
        while state.led && state.seen == seen && !wait.is_over() {
            state = match wait.left() {
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        None
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.led = false;
        state.seen += 1;
        drop(state);
        self.0.changed.notify_all();
    }
}
