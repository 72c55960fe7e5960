//! Who waits for the completions of a queue.

use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rpma_mr::sys::ProcessMark;

use crate::link::lock;
use crate::wait::{Flag, Wait};

/// Who waits for the completions of one queue: one thread in `poll(2)`, the leader, and the others behind it, on the condition. With all
/// of them in `poll(2)` the one that takes the event would leave the others asleep over completions that raise no event any more.
///
/// Tasks wait for the descriptors all at once, since a runtime has no leader. So each is known here, and whoever takes an event wakes the
/// others by it.
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
    /// The tasks that are to be woken, by their numbers.
    tasks: Vec<(u64, Waker)>,
    next_task: u64,
}

/// Leadership, until it is dropped.
pub(crate) struct Lead<'a>(&'a Waiters);

impl Waiters {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { state: Mutex::default(), changed: Condvar::new(), wake: Flag::new()? })
    }

    /// Makes everybody look again. In a forked child nobody is there, and the lock may be held for ever by a thread that only the parent
    /// has.
    pub(crate) fn wake(&self) {
        if !self.wake.is_ours() {
            return;
        }
        self.look_again(lock(&self.state), None);
        self.wake.set();
    }

    /// Makes everybody but `task` look again, which has taken an event that all were waiting for.
    pub(crate) fn wake_others(&self, task: u64) {
        let state = lock(&self.state);
        let led = state.led;
        self.look_again(state, Some(task));
        if led {
            self.wake.set();
        }
    }

    fn look_again(&self, mut state: MutexGuard<'_, State>, but: Option<u64>) {
        state.seen += 1;
        let (staying, woken) = mem::take(&mut state.tasks).into_iter().partition(|(task, _)| Some(*task) == but);
        state.tasks = staying;
        drop(state);
        self.changed.notify_all();
        // Not under the lock: what a waker does is its runtime's to know.
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// A number for a task.
    pub(crate) fn new_task(&self) -> u64 {
        let mut state = lock(&self.state);
        state.next_task += 1;
        state.next_task
    }

    /// Has `task` woken once, the next time that somebody makes everybody look again.
    pub(crate) fn enter(&self, task: u64, waker: &Waker) {
        let mut state = lock(&self.state);
        match state.tasks.iter_mut().find(|(entered, _)| *entered == task) {
            Some((_, known)) => known.clone_from(waker),
            None => state.tasks.push((task, waker.clone())),
        }
    }

    /// Forgets `task`.
    pub(crate) fn leave(&self, task: u64) {
        let mut state = lock(&self.state);
        let index = state.tasks.iter().position(|(entered, _)| *entered == task);
        let left = index.map(|index| state.tasks.swap_remove(index));
        drop(state);
        // Not under the lock either: it may be the last that holds its task.
        drop(left);
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
        self.0.look_again(state, None);
    }
}

/// The number of a thread, which is no task.
pub(crate) const NO_TASK: u64 = 0;

/// A task among those who wait for a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Task {
    waiters: Arc<Waiters>,
    number: u64,
    mark: ProcessMark,
}

impl Task {
    pub(crate) fn new(waiters: Arc<Waiters>) -> Self {
        Self { number: waiters.new_task(), waiters, mark: ProcessMark::current() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Has it woken when another one has taken the event that it waits for, or there is something else to look at.
    pub(crate) fn enter(&self, waker: &Waker) {
        self.waiters.enter(self.number, waker);
    }

    /// Has the others look again: it has taken an event that they may have waited for.
    pub(crate) fn wake_others(&self) {
        self.waiters.wake_others(self.number);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // In a forked child, the lock may be held for ever by a thread that only the parent has.
        if self.mark.is_current() {
            self.waiters.leave(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Counter {
        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    /// Waiters, and a task that has entered.
    fn entered() -> (Waiters, u64, Arc<Counter>) {
        let (waiters, counter) = (Waiters::new().unwrap(), Arc::<Counter>::default());
        let task = waiters.new_task();
        waiters.enter(task, &Arc::clone(&counter).into());
        (waiters, task, counter)
    }

    #[test]
    fn task_is_woken_once_for_each_time_that_it_enters() {
        let (waiters, task, counter) = entered();
        waiters.enter(task, &Arc::clone(&counter).into());
        waiters.wake();
        waiters.wake();
        assert_eq!(counter.count(), 1);
        waiters.enter(task, &Arc::clone(&counter).into());
        waiters.wake();
        assert_eq!(counter.count(), 2);
    }

    #[test]
    fn task_that_has_taken_an_event_wakes_the_others_and_stays_entered() {
        let (waiters, task, counter) = entered();
        let (other, others) = (waiters.new_task(), Arc::<Counter>::default());
        waiters.enter(other, &Arc::clone(&others).into());
        waiters.wake_others(task);
        assert_eq!((counter.count(), others.count()), (0, 1));
        waiters.wake();
        assert_eq!((counter.count(), others.count()), (1, 1));
    }

    #[test]
    fn task_is_woken_by_the_end_of_a_thread_s_leadership() {
        let (waiters, _, counter) = entered();
        drop(waiters.lead_or_follow(waiters.seen(), Wait::Now));
        assert_eq!(counter.count(), 1);
    }

    #[test]
    fn task_that_has_left_is_forgotten() {
        let (waiters, task, counter) = entered();
        waiters.leave(task);
        waiters.wake();
        assert_eq!((counter.count(), Arc::strong_count(&counter)), (0, 1));
    }
}
