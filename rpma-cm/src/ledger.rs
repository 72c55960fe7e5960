//! What is posted to a queue and not yet polled.
//!
//! The provider's queue does not bound unpolled completions: soft-RoCE frees a slot as soon as the work is done, and a completion queue
//! then overflows (measured). So we count, as hardware does: the completion of a request frees its slot and those of all requests posted
//! before it. The ledger also keeps what a completion cannot tell reliably, above all when it is an error: which operation it was, and
//! the caller's context.

use std::collections::{HashMap, VecDeque};

/// A posted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<Op> {
    pub(crate) op: Op,
    /// The caller's own number for the request.
    pub(crate) context: u64,
}

/// The queue is full: this many requests are posted and not yet polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full(pub(crate) u32);

/// The requests of one queue, in the order of posting.
#[derive(Debug)]
pub(crate) struct Ledger<Op> {
    limit: u32,
    /// The number of the oldest entry. Numbers count up for ever: at one post a nanosecond, 63 bits last 292 years.
    oldest: u64,
    entries: VecDeque<Entry<Op>>,
}

impl<Op: Copy> Ledger<Op> {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, oldest: 0, entries: VecDeque::new() }
    }

    /// Whether another request can be taken.
    pub(crate) fn room(&self) -> Result<(), Full> {
        self.room_for(1)
    }

    /// Whether `count` more requests can be taken.
    pub(crate) fn room_for(&self, count: usize) -> Result<(), Full> {
        // One of ours, behind the last request of a connection, may be beyond the limit.
        let room = (self.limit as usize).saturating_sub(self.entries.len());
        if count > room { Err(Full(self.limit)) } else { Ok(()) }
    }

    /// Enters a request and returns its number.
    pub(crate) fn enter(&mut self, entry: Entry<Op>) -> u64 {
        self.entries.push_back(entry);
        self.oldest + self.entries.len() as u64 - 1
    }

    /// Takes back the newest `count` entries, whose post failed.
    pub(crate) fn take_back(&mut self, count: usize) {
        self.entries.truncate(self.entries.len().saturating_sub(count));
    }

    /// Retires request `number` and all before it. `None` if there is no such request: the provider completed something twice.
    pub(crate) fn retire(&mut self, number: u64) -> Option<Entry<Op>> {
        let index = usize::try_from(number.checked_sub(self.oldest)?).ok().filter(|&i| i < self.entries.len())?;
        let entry = self.entries.drain(..=index).next_back();
        self.oldest = number + 1;
        entry
    }

    /// The newest request that is posted and not yet retired.
    pub(crate) fn newest(&self) -> Option<&Entry<Op>> {
        self.entries.back()
    }

    /// Requests that are posted and not yet retired.
    pub(crate) fn outstanding(&self) -> usize {
        self.entries.len()
    }
}

/// The receives of a shared queue. Several connections take from it, and each completes its own in its time, so the order of posting
/// says nothing about which are done.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: u32,
    next: u64,
    /// The caller's own number for each request, by ours.
    contexts: HashMap<u64, u64>,
}

impl Pool {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, next: 0, contexts: HashMap::new() }
    }

    /// Enters a request and returns its number.
    pub(crate) fn enter(&mut self, context: u64) -> Result<u64, Full> {
        if self.contexts.len() >= self.limit as usize {
            return Err(Full(self.limit));
        }
        let number = self.next;
        self.next += 1;
        self.contexts.insert(number, context);
        Ok(number)
    }

    /// Retires request `number`, or takes it back, and returns the caller's own number for it. `None` if there is no such request.
    pub(crate) fn retire(&mut self, number: u64) -> Option<u64> {
        self.contexts.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(context: u64) -> Entry<()> {
        Entry { op: (), context }
    }

    #[test]
    fn ledger_is_full_at_its_limit_and_has_room_after_a_retirement() {
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.enter(entry(10)), 0);
        assert_eq!(ledger.enter(entry(11)), 1);
        assert_eq!(ledger.room(), Err(Full(2)));
        assert_eq!(ledger.retire(0), Some(entry(10)));
        assert_eq!(ledger.room(), Ok(()));
        assert_eq!(ledger.enter(entry(12)), 2);
    }

    #[test]
    fn retirement_frees_all_that_was_posted_before() {
        let mut ledger = Ledger::new(3);
        for context in 0..3 {
            ledger.enter(entry(context));
        }
        assert_eq!(ledger.retire(2), Some(entry(2)));
        assert_eq!(ledger.outstanding(), 0);
    }

    #[test]
    fn number_that_was_retired_or_never_entered_is_none() {
        let mut ledger = Ledger::new(3);
        ledger.enter(entry(0));
        assert_eq!(ledger.retire(1), None);
        assert_eq!(ledger.retire(0), Some(entry(0)));
        assert_eq!(ledger.retire(0), None);
        assert_eq!(ledger.retire(u64::MAX), None);
    }

    #[test]
    fn number_of_a_post_taken_back_is_used_again() {
        let mut ledger = Ledger::new(3);
        assert_eq!(ledger.enter(entry(0)), 0);
        ledger.take_back(1);
        assert_eq!(ledger.enter(entry(1)), 0);
        assert_eq!(ledger.retire(0), Some(entry(1)));
    }

    #[test]
    fn batch_finds_room_for_all_or_none_and_gives_back_what_was_not_taken() {
        let mut ledger = Ledger::new(4);
        ledger.enter(entry(0));
        assert_eq!(ledger.room_for(4), Err(Full(4)));
        assert_eq!(ledger.room_for(3), Ok(()));
        let numbers: Vec<_> = (1..4).map(|context| ledger.enter(entry(context))).collect();
        assert_eq!(numbers, [1, 2, 3]);
        // Of three, one was taken.
        ledger.take_back(2);
        assert_eq!((ledger.outstanding(), ledger.newest()), (2, Some(&entry(1))));
        assert_eq!(ledger.enter(entry(5)), 2);
        assert_eq!(ledger.retire(1), Some(entry(1)));
        assert_eq!(ledger.outstanding(), 1);
    }

    #[test]
    fn ledger_without_room_takes_nothing() {
        assert_eq!(Ledger::<()>::new(0).room(), Err(Full(0)));
    }

    #[test]
    fn pool_retires_in_any_order_and_each_request_once() {
        let mut pool = Pool::new(3);
        let numbers: Vec<u64> = (10..13).map(|context| pool.enter(context).unwrap()).collect();
        assert_eq!(pool.enter(13), Err(Full(3)));
        assert_eq!(pool.retire(numbers[2]), Some(12));
        assert_eq!(pool.retire(numbers[2]), None);
        assert_eq!(pool.retire(numbers[0]), Some(10));
        // A number is never used again: what completes twice is noticed, whatever was posted since.
        assert!(!numbers.contains(&pool.enter(14).unwrap()));
        assert_eq!(pool.retire(numbers[1]), Some(11));
    }

    #[test]
    fn pool_without_room_takes_nothing() {
        assert_eq!(Pool::new(0).enter(1), Err(Full(0)));
    }
}
