//! Waiting for completions, by threads and by tasks, wherever they complete: look, ask for an event, look again, and wait for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use crate::cq::CqError;
use crate::readiness::Readiness;
use crate::wait::{Wait, until_readable};
use crate::waiters::{NO_TASK, Task, Waiters};

/// Where completions are waited for: at one queue, at two that share their channel, or at a dispatcher.
pub(crate) trait Awaited {
    type Found;

    fn waiters(&self) -> &Waiters;

    /// What is readable after an event.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// In a forked child, locks may be held for ever by a thread that only the parent has.
    fn check_process(&self) -> Result<(), CqError>;

    /// Takes what is there. `task` is who looks, and need not be woken for what it has seen.
    fn look(&self, task: u64) -> Result<Option<Self::Found>, CqError>;

    /// Asks for an event when there is something. What was there before raises none.
    fn arm(&self) -> io::Result<()>;

    /// Takes the events that are there. False if nobody can have waited for them.
    fn take_events(&self) -> io::Result<bool>;

    /// Looks after arming, so that nothing is missed.
    fn arm_and_look(&self, task: u64) -> Result<Option<Self::Found>, CqError> {
        self.arm().map_err(CqError::Wait)?;
        self.look(task)
    }
}

/// Waits on this thread until there is something at `place`.
pub(crate) fn wait_at<A: Awaited>(place: &A, wait: Wait) -> Result<A::Found, CqError> {
    place.check_process()?;
    let waiters = place.waiters();
    loop {
        let seen = waiters.seen();
        if let Some(found) = place.look(NO_TASK)? {
            return Ok(found);
        }
        if wait.is_over() {
            return Err(CqError::NoCompletion);
        }
        if let Some(found) = place.arm_and_look(NO_TASK)? {
            return Ok(found);
        }
        let Some(_lead) = waiters.lead_or_follow(seen, wait) else { continue };
        let mut fds = place.descriptors();
        fds.push(waiters.wake.as_fd());
        // At the end of the time it looks once more.
        until_readable(&fds, wait).map_err(CqError::Wait)?;
        waiters.wake.clear();
        // The end of the leadership wakes the others.
        place.take_events().map_err(CqError::Wait)?;
    }
}

/// What a task waits by.
pub(crate) struct Waiting<R> {
    /// Of the descriptors of a place.
    pub(crate) readiness: R,
    /// As whom, where others must know who waits.
    pub(crate) task: Option<Task>,
    /// There may be events that could not be taken: the descriptor became readable by them, and may not do so again.
    unread: bool,
}

impl<R: Readiness> Waiting<R> {
    pub(crate) fn new(readiness: R, task: Option<Task>) -> Self {
        Self { readiness, task, unread: false }
    }

    /// One step of waiting until there is something at `place`: what [`wait_at`] is for threads.
    pub(crate) fn poll_at<A: Awaited>(&mut self, place: &A, context: &mut Context<'_>) -> Poll<Result<A::Found, CqError>> {
        place.check_process()?;
        let task = self.task.as_ref();
        let number = task.map_or(NO_TASK, Task::number);
        if let Some(found) = place.look(number)? {
            return Poll::Ready(Ok(found));
        }
        loop {
            // First, so that the event which is asked for can be taken by another one.
            if let Some(task) = task {
                task.enter(context.waker());
            }
            if let Some(found) = place.arm_and_look(number)? {
                return Poll::Ready(Ok(found));
            }
            if !self.unread {
                ready!(self.readiness.poll_readable(context)).map_err(CqError::Wait)?;
            }
            // Until all are taken: an error leaves events behind.
            self.unread = true;
            let taken = place.take_events();
            if let Some(task) = task
                && !matches!(taken, Ok(false))
            {
                task.wake_others();
            }
            taken.map_err(CqError::Wait)?;
            self.unread = false;
        }
    }
}
