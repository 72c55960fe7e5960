//! Selective signalling.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::completion::Completion;
use crate::conn::Conn;
use crate::post::Signal;
use crate::post_error::PostError;

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
/// let take = |signals: &mut Signals| -> Result<(), Box<dyn std::error::Error>> {
///     let completion = cq.wait(limit)?;
///     completion.result()?;
///     signals.completed(&completion);
///     Ok(())
/// };
/// let mut signals = Signals::of(&conn);
/// for n in 0..1_000 {
///     while signals.is_full() {
///         take(&mut signals)?;
///     }
///     let place = there.slice_at(n % 64 * 64, 64)?;
///     signals.post(|signal| conn.write(place, here.all(), signal, n))?;
/// }
/// while signals.is_full() {
///     take(&mut signals)?; // the flush needs room as well
/// }
/// signals.post_signaled(|signal| conn.flush(there.all(), FlushType::Visibility, signal, 0))?;
/// while signals.is_owed() {
///     take(&mut signals)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It counts, and holds nothing: it works the same with [`Async`](crate::Async) and with a [`Dispatcher`](crate::Dispatcher). It counts
/// what is posted with the signals that it gives, and knows their completions from all others, whatever their contexts are. So others may
/// post to the same connection; their requests need room that is left to them: [`with_room`](Self::with_room). A
/// [`Batch`](crate::Batch) of which the last request has a completion needs none of this.
#[doc(alias = "selective signalling")]
#[derive(Debug)]
pub struct Signals {
    /// Whose tickets are ours.
    stream: u64,
    /// Requests that may be posted and not known to be done.
    room: u32,
    /// Requests are numbered from 1; the newest one.
    posted: u64,
    /// Those up to this one are done.
    done: u64,
    /// The newest one with a completion.
    signaled: u64,
    /// Those with a completion that has not come, the oldest first.
    owed: VecDeque<u64>,
}

/// Of a request that a [`Signals`] counts: its completion has it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    stream: u64,
    number: u64,
}

impl Signals {
    /// For all requests that are posted to the send queue of `conn`.
    #[must_use]
    pub fn of(conn: &Conn) -> Self {
        Self::with_room(conn, u32::MAX)
    }

    /// For some of the requests that are posted to the send queue of `conn`: no more than `room` of them, and at least 1, are in the queue
    /// at once. The others have the rest of it ([`ConnCfg::sq_size`](crate::ConnCfg::sq_size)).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, _server) = rpma::testing::pair()?;
    /// let write = |signal, context| conn.write(RemoteSlice::NULL, LocalSlice::null(), signal, context);
    /// let mut signals = Signals::with_room(&conn, 1);
    /// write(Signal::Always, 7)?; // another's
    /// signals.post(|signal| write(signal, 7))?;
    /// assert!(signals.is_full());
    /// for owed in [true, false] {
    ///     signals.completed(&conn.cq().wait(Duration::from_secs(10))?);
    ///     assert_eq!(signals.is_owed(), owed); // the first one was the other's
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_room(conn: &Conn, room: u32) -> Self {
        Self::new(room.min(conn.link().sq_size))
    }

    fn new(room: u32) -> Self {
        // At one a nanosecond, they last 584 years.
        static STREAMS: AtomicU64 = AtomicU64::new(0);
        let stream = STREAMS.fetch_add(1, Ordering::Relaxed);
        Self { stream, room: room.max(1), posted: 0, done: 0, signaled: 0, owed: VecDeque::new() }
    }

    /// Whether a completion must be taken before the next request. There is one to wait for then.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.posted - self.done >= self.room.into() && self.is_owed()
    }

    /// Whether a completion is still to come.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Posts one request by `post`, which is given the signal that it is to have. A request that is posted with another signal is not
    /// recognised when it completes.
    ///
    /// # Errors
    ///
    /// That of `post`. The request is not counted then, unless it was perhaps taken ([`PostError::PerhapsTaken`]): it has a slot until a
    /// later one completes, and no completion of its own is owed.
    pub fn post<T>(&mut self, post: impl FnOnce(Signal) -> Result<T, PostError>) -> Result<T, PostError> {
        let unsignaled = self.posted - self.signaled;
        self.count(unsignaled + 1 >= u64::from(self.room / 2), post)
    }

    /// As [`post`](Self::post), for a request whose completion is wanted in any case: the last of a stream, or a flush.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    pub fn post_signaled<T>(&mut self, post: impl FnOnce(Signal) -> Result<T, PostError>) -> Result<T, PostError> {
        self.count(true, post)
    }

    fn count<T>(&mut self, signaled: bool, post: impl FnOnce(Signal) -> Result<T, PostError>) -> Result<T, PostError> {
        let number = self.posted + 1;
        let ticket = Ticket { stream: self.stream, number };
        let posted = post(if signaled { Signal::Counted(ticket) } else { Signal::OnError });
        match &posted {
            Ok(_) => {
                self.posted = number;
                if signaled {
                    self.signaled = number;
                    self.owed.push_back(number);
                }
            }
            Err(PostError::PerhapsTaken { .. }) => self.posted = number,
            Err(_) => {}
        }
        posted
    }

    /// A completion was taken, of whatever it is: one of a receive, of another connection, or of a request that was not posted with a
    /// signal of this counts for nothing here. Neither does a failed one, with which the connection is at its end.
    pub fn completed(&mut self, completion: &Completion) {
        if let Some(ticket) = completion.ticket()
            && ticket.stream == self.stream
            && completion.result().is_ok()
        {
            self.is_done(ticket.number);
        }
    }

    /// Request `number` is done, and with it all before it.
    fn is_done(&mut self, number: u64) {
        // A closure can post a request and fail all the same; that one is not counted.
        self.done = self.done.max(number.min(self.posted));
        while self.owed.front().is_some_and(|&owed| owed <= self.done) {
            self.owed.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::completion::Operation;
    use crate::ledger::{Entry, Full, Ledger};
    use crate::post_error::SEND;

    /// A send queue whose requests are carried out when they are waited for, and not before.
    struct Queue {
        ledger: Ledger<Signal>,
        signaled: VecDeque<(u64, Ticket)>,
    }

    impl Queue {
        fn new(size: u32) -> Self {
            Self { ledger: Ledger::new(size), signaled: VecDeque::new() }
        }

        fn post(&mut self, signal: Signal) -> Result<(), PostError> {
            self.ledger.room().map_err(|Full(limit)| PostError::QueueFull { queue: SEND, limit })?;
            let number = self.ledger.enter(Entry { op: signal, context: 0 });
            if let Signal::Counted(ticket) = signal {
                self.signaled.push_back((number, ticket));
            }
            Ok(())
        }

        fn wait(&mut self, signals: &mut Signals) {
            let (number, ticket) = self.signaled.pop_front().expect("there is a completion to wait for");
            self.ledger.retire(number).expect("each completes once");
            signals.is_done(ticket.number);
        }
    }

    fn perhaps_taken(_: Signal) -> Result<(), PostError> {
        Err(PostError::PerhapsTaken { operation: Operation::Write, source: io::Error::from_raw_os_error(22) })
    }

    #[test]
    fn stream_of_a_million_posts_never_fills_a_queue_of_8() {
        const POSTS: u32 = 1_000_000;
        let (mut queue, mut signals) = (Queue::new(8), Signals::new(8));
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
            let (mut queue, mut signals) = (Queue::new(size.max(1)), Signals::new(size));
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
        let mut signals = Signals::new(2);
        for _ in 0..10 {
            signals.post(|_| Err::<(), _>(PostError::SharedReceives)).unwrap_err();
        }
        assert_eq!((signals.posted, signals.is_full(), signals.is_owed()), (0, false, false));
    }

    #[test]
    fn request_that_was_perhaps_taken_has_a_slot_until_a_later_one_completes_and_is_not_waited_for() {
        let (mut queue, mut signals) = (Queue::new(4), Signals::new(3));
        for _ in 0..3 {
            signals.post(perhaps_taken).unwrap_err();
        }
        // Full, by what is known; but there is nothing to wait for, so the next one is tried.
        assert_eq!((signals.posted, signals.is_full(), signals.is_owed()), (3, false, false));
        signals.post(|signal| queue.post(signal)).unwrap();
        assert!(signals.is_full() && signals.is_owed());
        queue.wait(&mut signals);
        assert_eq!((signals.done, signals.is_full(), signals.is_owed()), (4, false, false));
    }

    #[test]
    fn completion_of_a_request_that_was_perhaps_taken_tells_of_those_before_it_alone() {
        let (mut queue, mut signals) = (Queue::new(4), Signals::new(4));
        for _ in 0..2 {
            signals.post_signaled(|signal| queue.post(signal)).unwrap();
        }
        signals.post(perhaps_taken).unwrap_err();
        signals.post_signaled(|signal| queue.post(signal)).unwrap();
        // It ran: the third completes, and both before it have.
        signals.is_done(3);
        assert_eq!((signals.done, &signals.owed), (3, &VecDeque::from([4])));
        // Handed in late, by another thread say.
        queue.wait(&mut signals);
        assert_eq!((signals.done, signals.is_owed()), (3, true));
    }
}
