//! The completion queue of a connection.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rpma_mr::ErrorCode;
use rpma_mr::sys::bindings::{IBV_WC_SUCCESS, ibv_wc};

use crate::completion::{Completion, Operation};
use crate::ledger::Entry;
use crate::link::{Link, lock};
use crate::post::{Sent, Signal};
use crate::wait::{Wait, until_readable};

/// Why no completion could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// There was none within the time given.
    #[error("no completion within the time given")]
    NoCompletion,
    /// The connection has ended, and everything that was posted has been polled: there will never be one.
    #[error("the connection has ended and nothing is outstanding: no completion will come")]
    Drained,
    /// The connection was closed from another thread.
    #[error("the connection was closed while waiting for its completions")]
    Closed,
    /// The provider refused, or reported what cannot be.
    #[error("the provider gives no completions")]
    Provider(#[source] io::Error),
    /// The wait itself failed.
    #[error("the completion queue cannot be waited for")]
    Wait(#[source] io::Error),
    /// The provider completed something that was not outstanding.
    #[error("the provider completed request {wr_id:#x}, which is not outstanding: a fault of the provider")]
    #[expect(missing_docs, reason = "the message explains its fields")]
    Stray { wr_id: u64 },
}

impl CqError {
    /// The code that librpma gives for this: `rpma_cq_wait(3)`, `rpma_cq_get_wc(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            // "Any failure of the wait": `rpma_cq_wait(3)`.
            Self::NoCompletion | Self::Drained | Self::Closed | Self::Wait(_) => ErrorCode::NoCompletion,
            // More completions than were asked for.
            Self::Provider(e) if e.kind() == io::ErrorKind::InvalidData => ErrorCode::Unknown,
            Self::Provider(_) => ErrorCode::Provider,
            Self::Stray { .. } => ErrorCode::Unknown,
        }
    }
}

/// What the provider's completion turned out to be.
enum Retired {
    Completion(Completion),
    /// Nobody's: it was wanted by us alone, and only freed slots.
    Silent,
    Stray,
}

/// In our `wr_id`s: set for receives. The status of a failed completion is all that it tells, so the request's number must say which
/// queue it was in.
const RECV: u64 = 1 << 63;

pub(crate) fn recv_wr_id(number: u64) -> u64 {
    number | RECV
}

/// The completion queue of a connection: `rpma_conn_get_cq(3)`.
///
/// A handle on the connection's own queue: it keeps the connection's queues alive, and works before and after the connection is
/// established.
///
/// There are two ways to wait, and a queue takes one of them: [`wait`](Self::wait), from any number of threads; or an event loop that
/// watches the descriptor ([`AsFd`]), and on every wake-up calls [`arm`](Self::arm) and then [`poll`](Self::poll) until there is nothing
/// left. An event loop watches the connection's descriptor as well: reading its events is what makes the operations of a dead peer
/// complete.
#[doc(alias = "rpma_conn_get_cq")]
#[derive(Clone)]
pub struct CompletionQueue(pub(crate) Arc<Link>);

impl CompletionQueue {
    /// Takes a completion if there is one: `rpma_cq_get_wc(3)`.
    ///
    /// # Errors
    ///
    /// [`CqError`]; nothing there is no error.
    #[doc(alias = "rpma_cq_get_wc")]
    pub fn poll(&self) -> Result<Option<Completion>, CqError> {
        let mut one = [ibv_wc::default()];
        let mut taken = None;
        self.0.poll(&mut one, |completion| taken = Some(completion))?;
        Ok(taken)
    }

    /// Takes up to `max` completions, appends them to `into` and says how many: `rpma_cq_get_wc(3)` with `num_entries`.
    ///
    /// # Errors
    ///
    /// [`CqError`]; what was taken before it is in `into`.
    #[doc(alias = "rpma_cq_get_wc")]
    pub fn poll_batch(&self, into: &mut Vec<Completion>, max: usize) -> Result<usize, CqError> {
        let mut room = [ibv_wc::default(); 16];
        let mut taken = 0;
        while taken < max {
            let want = (max - taken).min(room.len());
            let now = self.0.poll(&mut room[..want], |completion| into.push(completion))?;
            taken += now;
            if now < want {
                break;
            }
        }
        Ok(taken)
    }

    /// Waits for a completion and takes it: `rpma_cq_wait(3)` and `rpma_cq_get_wc(3)` in one, so that none is missed in between.
    ///
    /// Watches the connection too: when the peer dies, everything posted completes with an error, without any other call.
    ///
    /// # Errors
    ///
    /// [`CqError::NoCompletion`] when the time is over, [`CqError::Drained`] when none can come any more, [`CqError::Closed`] when the
    /// connection is closed from another thread, and the provider's refusals.
    #[doc(alias = "rpma_cq_wait")]
    #[doc(alias = "rpma_cq_get_wc")]
    pub fn wait(&self, wait: impl Into<Wait>) -> Result<Completion, CqError> {
        let wait = wait.into();
        let link = &self.0;
        // Nothing is there, or this, or an end.
        let look = || match self.poll()? {
            Some(completion) => Ok(Some(completion)),
            None if link.is_closed() => Err(CqError::Closed),
            None if link.is_over() => {
                link.settle().map_err(CqError::Provider)?;
                if link.outstanding() == 0 { Err(CqError::Drained) } else { Ok(None) }
            }
            None => Ok(None),
        };
        loop {
            let seen = link.waiters.seen();
            if let Some(completion) = look()? {
                return Ok(completion);
            }
            if wait.is_over() {
                return Err(CqError::NoCompletion);
            }
            // A completion from before the arming raises no event: look once more after it.
            link.cq.request_notify().map_err(CqError::Wait)?;
            if let Some(completion) = look()? {
                return Ok(completion);
            }
            let Some(_lead) = link.waiters.lead_or_follow(seen, wait) else { continue };
            let fds = [link.cq.as_fd(), link.channel.as_fd(), link.waiters.wake.as_fd()];
            if !until_readable(&fds, wait).map_err(CqError::Wait)? {
                return Err(CqError::NoCompletion);
            }
            link.waiters.wake.clear();
            link.cq.take_events().map_err(CqError::Wait)?;
            link.pump().map_err(CqError::Wait)?;
        }
    }

    /// For event loops: takes the events that are there and asks for one on the next completion. Poll until nothing is left after this.
    ///
    /// # Errors
    ///
    /// [`CqError::Provider`].
    pub fn arm(&self) -> Result<(), CqError> {
        self.0.cq.take_events().map_err(CqError::Provider)?;
        self.0.cq.request_notify().map_err(CqError::Provider)
    }

    /// Completions that it has room for: what was asked for, or more.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.cq.capacity()
    }
}

impl AsFd for CompletionQueue {
    /// Readable after a completion, if [`arm`](Self::arm) was called before it: `rpma_cq_get_fd(3)`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.cq.as_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("qp_num", &self.0.qp.number()).field("capacity", &self.capacity()).finish()
    }
}

impl Link {
    fn poll(&self, room: &mut [ibv_wc], mut take: impl FnMut(Completion)) -> Result<usize, CqError> {
        self.qp.check_process().map_err(CqError::Provider)?;
        // One thread at a time from the provider's queue to the ledger: the ledger retires in order.
        let _polling = lock(&self.waiters.polling);
        let mut given = 0;
        loop {
            let wanted = room.len() - given;
            let taken = self.cq.poll(&mut room[..wanted]).map_err(CqError::Provider)?;
            let mut stray = None;
            let mut silent = 0;
            for wc in &room[..taken] {
                match self.retire(wc) {
                    Retired::Completion(completion) => take(completion),
                    Retired::Silent => silent += 1,
                    Retired::Stray => stray = Some(wc.wr_id),
                }
            }
            if let Some(wr_id) = stray {
                return Err(CqError::Stray { wr_id });
            }
            given += taken - silent;
            // A silent one took the place of one that may be behind it.
            if silent == 0 || taken < wanted {
                return Ok(given);
            }
        }
    }

    fn retire(&self, wc: &ibv_wc) -> Retired {
        let succeeded = wc.status == IBV_WC_SUCCESS;
        let (operation, context) = if wc.wr_id & RECV == 0 {
            match lock(&self.sent).retire(wc.wr_id) {
                Some(Entry { op: Sent::EndMarker, .. }) => return Retired::Silent,
                Some(Entry { op: Sent::Operation(_, Signal::OnError), .. }) if succeeded => return Retired::Silent,
                Some(Entry { op: Sent::Operation(operation, _), context }) => (operation, context),
                None => return Retired::Stray,
            }
        } else {
            match lock(&self.received).retire(wc.wr_id & !RECV) {
                Some(entry) => (Operation::Recv, entry.context),
                None => return Retired::Stray,
            }
        };
        Retired::Completion(Completion::of(operation, context, wc, &self.cq))
    }

    pub(crate) fn outstanding(&self) -> usize {
        lock(&self.sent).outstanding() + lock(&self.received).outstanding()
    }
}
