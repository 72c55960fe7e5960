//! Selective signalling.

use std::collections::VecDeque;

use crate::completion::{Completion, Operation};
use crate::conn::Conn;
use crate::post::Signal;

/// Selective signalling: says which requests of a stream need a completion, so that few do and the send queue never fills.
///
/// A request without a completion keeps its slot until a later one has completed, so a stream of nothing but [`Signal::OnError`] fills the
/// queue, with nothing in it that could be waited for. Here every half queue has one with a completion: the device writes few, and goes on
/// with one half while the other is waited for.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (region, there) = rpma::testing::target(&server, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
/// # let here = conn.peer().register(AnonPages::new(64)?, Usage::WRITE_SRC)?;
/// let (cq, limit) = (conn.cq(), Duration::from_secs(5));
/// let mut signals = Signals::of(&conn);
/// for n in 0..1_000 {
///     while signals.is_full() {
///         let completion = cq.wait(limit)?;
///         completion.result()?;
///         signals.completed(&completion);
///     }
///     let place = there.slice_at(n % 64 * 64, 64)?;
///     signals.post(|signal| conn.write(place, here.all(), signal, n))?;
/// }
/// # while signals.is_full() { signals.completed(&cq.wait(limit)?) }
/// signals.post_signaled(|signal| conn.flush(there.all(), FlushType::Visibility, signal, 0))?;
/// while signals.is_owed() {
///     let completion = cq.wait(limit)?;
///     completion.result()?;
///     signals.completed(&completion);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It counts, and holds nothing: it works the same with [`Async`](crate::Async) and with a [`Dispatcher`](crate::Dispatcher). It knows of
/// what is posted through it, so requests that others post to the same connection need room that is left to them:
/// [`with_room`](Self::with_room). A [`Batch`](crate::Batch) of which the last request has a completion needs none of this.
#[doc(alias = "selective signalling")]
#[derive(Debug, Clone)]
pub struct Signals {
    qp_num: u32,
    /// Requests that may be posted and not known to be done.
    room: u32,
    /// Without a completion wanted, since the last one with.
    unsignaled: u32,
    /// Of each request with a completion that has not come, the oldest first: how many that completion tells to be done.
    owed: VecDeque<u32>,
    /// The sum of both.
    outstanding: u32,
}

impl Signals {
    /// For all requests that are posted to the send queue of `conn`.
    #[must_use]
    pub fn of(conn: &Conn) -> Self {
        Self::with_room(conn, conn.link().sq_size)
    }

    /// For some of the requests that are posted to the send queue of `conn`: no more than `room` of them, and at least 1, are in the queue
    /// at once. The others have the rest of it ([`ConnCfg::sq_size`](crate::ConnCfg::sq_size)).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, _server) = rpma::testing::pair()?;
    /// let mut signals = Signals::with_room(&conn, 1);
    /// signals.post(|signal| conn.write(RemoteSlice::NULL, LocalSlice::null(), signal, 7))?;
    /// assert!(signals.is_full() && signals.is_owed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_room(conn: &Conn, room: u32) -> Self {
        Self::new(conn.qp_num(), room)
    }

    fn new(qp_num: u32, room: u32) -> Self {
        Self { qp_num, room: room.max(1), unsignaled: 0, owed: VecDeque::new(), outstanding: 0 }
    }

    /// Whether a completion must be taken before the next request. There is one to wait for then.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.outstanding >= self.room
    }

    /// Whether a completion is still to come.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Posts one request by `post`, which is given the signal that it is to have.
    ///
    /// # Errors
    ///
    /// That of `post`. The request is not counted then.
    pub fn post<T, E>(&mut self, post: impl FnOnce(Signal) -> Result<T, E>) -> Result<T, E> {
        let signal = if self.unsignaled + 1 >= self.room / 2 { Signal::Always } else { Signal::OnError };
        self.count(signal, post)
    }

    /// As [`post`](Self::post), for a request whose completion is wanted in any case: the last of a stream, or a flush.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    pub fn post_signaled<T, E>(&mut self, post: impl FnOnce(Signal) -> Result<T, E>) -> Result<T, E> {
        self.count(Signal::Always, post)
    }

    fn count<T, E>(&mut self, signal: Signal, post: impl FnOnce(Signal) -> Result<T, E>) -> Result<T, E> {
        let posted = post(signal)?;
        self.outstanding += 1;
        self.unsignaled += 1;
        if signal == Signal::Always {
            self.owed.push_back(std::mem::take(&mut self.unsignaled));
        }
        Ok(posted)
    }

    /// A completion was taken. One of a receive, or of another connection, counts for nothing here, and neither does a failed one, with
    /// which the connection is at its end.
    pub fn completed(&mut self, completion: &Completion) {
        let is_ours = completion.qp_num() == self.qp_num && completion.operation() != Operation::Recv;
        if is_ours && completion.result().is_ok() {
            self.next_is_done();
        }
    }

    fn next_is_done(&mut self) {
        self.outstanding -= self.owed.pop_front().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Entry, Full, Ledger};

    /// A send queue whose requests are carried out when they are waited for, and not before.
    struct Queue {
        ledger: Ledger<Signal>,
        signaled: VecDeque<u64>,
    }

    impl Queue {
        fn new(size: u32) -> Self {
            Self { ledger: Ledger::new(size), signaled: VecDeque::new() }
        }

        fn post(&mut self, signal: Signal) -> Result<(), Full> {
            self.ledger.room()?;
            let number = self.ledger.enter(Entry { op: signal, context: 0 });
            if signal == Signal::Always {
                self.signaled.push_back(number);
            }
            Ok(())
        }

        fn wait(&mut self, signals: &mut Signals) {
            let number = self.signaled.pop_front().expect("there is a completion to wait for");
            self.ledger.retire(number).expect("each completes once");
            signals.next_is_done();
        }
    }

    #[test]
    fn stream_of_a_million_posts_never_fills_a_queue_of_8() {
        const POSTS: u32 = 1_000_000;
        let (mut queue, mut signals) = (Queue::new(8), Signals::new(1, 8));
        let mut waits = 0;
        for _ in 0..POSTS {
            if signals.is_full() {
                queue.wait(&mut signals);
                waits += 1;
            }
            signals.post(|signal| queue.post(signal)).unwrap();
        }
        while signals.is_owed() {
            queue.wait(&mut signals);
            waits += 1;
        }
        assert_eq!((waits, queue.ledger.outstanding()), (POSTS / 4, 0));
    }

    #[test]
    fn queue_of_any_size_is_used_whole_and_has_a_completion_to_wait_for_when_it_is_full() {
        for size in 0..20 {
            let (mut queue, mut signals) = (Queue::new(size.max(1)), Signals::new(1, size));
            for n in 0..1_000 {
                if signals.is_full() {
                    assert_eq!(queue.ledger.room(), Err(Full(size.max(1))));
                    queue.wait(&mut signals);
                }
                // Now and then one that is wanted in any case.
                let post = |signal| queue.post(signal);
                if n % 7 == 0 { signals.post_signaled(post).unwrap() } else { signals.post(post).unwrap() }
            }
        }
    }

    #[test]
    fn request_that_was_not_posted_is_not_counted() {
        let mut signals = Signals::new(1, 2);
        for _ in 0..10 {
            signals.post(|_| Err::<(), _>(())).unwrap_err();
        }
        assert!(!signals.is_full() && !signals.is_owed());
    }
}
