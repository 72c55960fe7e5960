//! What waits for the program behind a descriptor, and what the program took and has not acknowledged.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};

use super::tokens::Tokens;
use crate::driver::{lock, wait_while};

/// What the program has not taken, in order, behind a descriptor that is readable while there is something.
#[derive(Debug)]
pub(crate) struct Untaken<T> {
    tokens: Tokens,
    queue: Mutex<VecDeque<T>>,
}

impl<T> Untaken<T> {
    /// Nothing yet.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { tokens: Tokens::new()?, queue: Mutex::default() })
    }

    /// The number of the descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.tokens.raw()
    }

    /// Adds `new`, unless `is_there` says of something that it makes it needless.
    pub(crate) fn push_unless(&self, new: T, is_there: impl FnMut(&T) -> bool) {
        let mut queue = lock(&self.queue);
        if !queue.iter().any(is_there) {
            queue.push_back(new);
            self.tokens.put();
        }
    }

    /// Adds `new`.
    pub(crate) fn push(&self, new: T) {
        self.push_unless(new, |_| false);
    }

    /// Takes the oldest, and waits for one unless the descriptor is non-blocking. `told` counts it as told to the program.
    pub(crate) fn next(&self, told: impl FnOnce(&T)) -> io::Result<T> {
        loop {
            self.tokens.take()?;
            let mut queue = lock(&self.queue);
            if let Some(taken) = queue.pop_front() {
                // Under the lock: who removes what is about an object, and finds nothing, knows that this one was counted.
                told(&taken);
                return Ok(taken);
            }
        }
    }

    /// Removes all that `which` says.
    pub(crate) fn remove(&self, which: impl FnMut(&T) -> bool) -> VecDeque<T> {
        let mut queue = lock(&self.queue);
        let (removed, left): (VecDeque<_>, _) = std::mem::take(&mut *queue).into_iter().partition(which);
        *queue = left;
        drop(queue);
        for _ in &removed {
            self.tokens.take_back();
        }
        removed
    }

    /// How many there are like `which` says.
    pub(crate) fn count(&self, which: impl FnMut(&&T) -> bool) -> usize {
        lock(&self.queue).iter().filter(which).count()
    }
}

impl<T> AsFd for Untaken<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tokens.as_fd()
    }
}

/// How many events of an object of verbs the program took; those that it acknowledged are counted in its structure (`acks`).
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU32);

impl Told {
    /// The program takes one.
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// So many, if none are left that it could take.
    pub(crate) fn so_far(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// How many events of an identifier the program took, and how many of them it acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    counts: Mutex<Counts>,
    all_acked: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    told: u64,
    acked: u64,
}

impl Acks {
    /// The program takes one.
    pub(crate) fn told(&self) {
        lock(&self.counts).told += 1;
    }

    /// The program acknowledges one.
    pub(crate) fn ack(&self) {
        lock(&self.counts).acked += 1;
        self.all_acked.notify_all();
    }

    /// Waits until it has acknowledged all that it took.
    pub(crate) fn wait(&self) {
        drop(wait_while(&self.all_acked, lock(&self.counts), |counts| counts.told != counts.acked));
    }
}
