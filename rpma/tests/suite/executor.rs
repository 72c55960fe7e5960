//! The smallest executor that can wait for descriptors: what `Async` needs of a runtime, and no more. It looks at the state of a
//! descriptor, where tokio is told of changes.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rpma::Readiness;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::support::{LIMIT, is_readable};

/// `rpma::Async` on this executor.
pub(crate) type Async<T> = rpma::Async<T, Level>;

/// `rpma::Resolution` on this executor.
pub(crate) type Resolution = rpma::Resolution<Level>;

thread_local! {
    /// What the future of this thread waits for.
    static WAITED_FOR: RefCell<Vec<OwnedFd>> = const { RefCell::new(Vec::new()) };
    /// What happens when a future of this thread has found nothing, and asks for its descriptor.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Has `happens` happen when a future of this thread has found nothing the next time, before it is told whether its descriptor is
/// readable.
pub(crate) fn meanwhile(happens: impl FnOnce() + 'static) {
    MEANWHILE.set(Some(Box::new(happens)));
}

pub(crate) struct Level(OwnedFd);

impl Readiness for Level {
    fn watch(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(fd))
    }

    fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(happens) = MEANWHILE.take() {
            happens();
        }
        if is_readable(&self.0, Duration::ZERO) {
            return Poll::Ready(Ok(()));
        }
        let fd = self.0.try_clone()?;
        WAITED_FOR.with_borrow_mut(|fds| fds.push(fd));
        Poll::Pending
    }
}

/// A task that only notes that it was woken.
#[derive(Default)]
pub(crate) struct Note(AtomicBool);

impl Note {
    pub(crate) fn was_woken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Readable once it was woken.
struct Alarm(OwnedFd);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).unwrap();
    }
}

struct Sleeper {
    alarm: Arc<Alarm>,
    waker: Waker,
}

impl Sleeper {
    fn new() -> Self {
        let alarm = Arc::new(Alarm(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()));
        Self { waker: Waker::from(Arc::clone(&alarm)), alarm }
    }

    fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// Until the alarm or a descriptor that was waited for is readable; fails if that takes too long.
    fn sleep(&self) {
        let fds = WAITED_FOR.take();
        let all = fds.iter().map(OwnedFd::as_fd).chain([self.alarm.0.as_fd()]);
        let mut all: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = Timespec::try_from(LIMIT).unwrap();
        assert_ne!(poll(&mut all, Some(&limit)).unwrap(), 0, "nothing woke a future in {LIMIT:?}");
        // EAGAIN: it was not the alarm.
        let _not_set = rustix::io::read(&self.alarm.0, &mut [0; 8]);
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let sleeper = Sleeper::new();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut sleeper.context()) {
            return output;
        }
        sleeper.sleep();
    }
}

/// As [`block_on`], but every future is dropped after it was polled once, and another one made in its place.
pub(crate) fn block_on_dropped<T>(mut make: impl AsyncFnMut() -> T) -> T {
    let sleeper = Sleeper::new();
    loop {
        if let Poll::Ready(output) = pin!(make()).poll(&mut sleeper.context()) {
            return output;
        }
        sleeper.sleep();
    }
}

/// Polls a future once, and drops it. Nobody is woken.
pub(crate) fn polled_once<F: Future>(future: F) -> Poll<F::Output> {
    polled_once_by(Waker::noop(), future)
}

/// As [`polled_once`], for the task of `waker`.
pub(crate) fn polled_once_by<F: Future>(waker: &Waker, future: F) -> Poll<F::Output> {
    let polled = pin!(future).poll(&mut Context::from_waker(waker));
    WAITED_FOR.take();
    polled
}
