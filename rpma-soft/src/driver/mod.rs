//! Sockets and threads around the protocol core.
//!
//! One thread per process, started on first use, waits for all sockets (edge-triggered epoll) and for time. Whoever posts or polls moves
//! data on the spot too, under the same lock of the connection. A second thread makes flushes durable, since that can take long; the
//! core hands it one flush at a time per connection.
//!
//! A panic is a bug of ours, and ends what it is about: the connection it happened on. Both threads go on.

mod caught;
mod flusher;
mod incoming;
mod lock;
mod net;
mod outgoing;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

pub(crate) use caught::caught;
pub(crate) use flusher::persist;
pub(crate) use lock::{lock, wait_while};
pub(crate) use net::{Socket, is_any, source_for, unmapped};
pub(crate) use stream::{Moved, Stream};

/// How long the progress thread looks for more before it sleeps.
const LINGER: Duration = Duration::from_micros(50);

/// Something with a socket, a deadline, or both.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// The socket may have something, or room; or somebody asked for another round. `ends`: the other end sends nothing more, which is
    /// said once.
    fn ready(self: Arc<Self>, ends: bool);
    /// A deadline is there.
    fn due(self: Arc<Self>, now: Instant);
    /// One of the above panicked: ends what the source is about.
    fn give_up(self: Arc<Self>);
}

/// The number of a source. [`Token::WAKE`] is nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(u64);

impl Token {
    const WAKE: Self = Self(0);
}

/// The progress thread's part of the process.
#[derive(Debug)]
pub(crate) struct Driver {
    epoll: OwnedFd,
    wake: OwnedFd,
    state: Mutex<State>,
    pid: u32,
}

#[derive(Debug)]
struct State {
    sources: HashMap<Token, Weak<dyn Source>>,
    last: u64,
    timers: BTreeSet<(Instant, Token)>,
    /// Sources that asked for another round.
    again: VecDeque<Token>,
    /// Until when the thread sleeps at most, if it does.
    sleeps_until: Option<Instant>,
}

impl Driver {
    /// The driver of this process. After a fork, the child's is a new one.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        static DRIVER: Mutex<Option<Arc<Driver>>> = Mutex::new(None);
        let mut driver = lock(&DRIVER);
        let pid = std::process::id();
        if let Some(driver) = driver.as_ref().filter(|driver| driver.pid == pid) {
            return Ok(Arc::clone(driver));
        }
        let new = Arc::new(Self::new(pid)?);
        let running = Arc::clone(&new);
        thread::Builder::new().name("rpma-soft".into()).spawn(move || running.run())?;
        // The parent's is the parent's: its descriptors stay open here, and nobody uses them.
        if let Some(old) = driver.replace(Arc::clone(&new)) {
            std::mem::forget(old);
        }
        Ok(new)
    }

    fn new(pid: u32) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(Token::WAKE.0);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        let state = State {
            sources: HashMap::new(),
            last: Token::WAKE.0,
            timers: BTreeSet::new(),
            again: VecDeque::new(),
            sleeps_until: None,
        };
        Ok(Self { epoll, wake, state: Mutex::new(state), pid })
    }

    /// Makes a source known.
    pub(crate) fn enter(&self, source: Weak<dyn Source>) -> Token {
        let mut state = lock(&self.state);
        state.last += 1;
        let token = Token(state.last);
        state.sources.insert(token, source);
        token
    }

    /// Forgets a source.
    pub(crate) fn leave(&self, token: Token) {
        let mut state = lock(&self.state);
        state.sources.remove(&token);
        state.timers.retain(|(_, of)| *of != token);
    }

    /// Tells the source when its socket has something, or room. Closing the socket ends that.
    pub(crate) fn watch(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        use epoll::EventFlags as E;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token.0), E::IN | E::OUT | E::RDHUP | E::ET)?)
    }

    /// As [`watch`](Self::watch), for a socket that another source had.
    pub(crate) fn hand_over(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        use epoll::EventFlags as E;
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token.0), E::IN | E::OUT | E::RDHUP | E::ET)?)
    }

    /// Tells the source when `at` is there. Deadlines that it no longer cares for come all the same.
    pub(crate) fn remind(&self, token: Token, at: Instant) {
        let mut state = lock(&self.state);
        state.timers.insert((at, token));
        let wake = state.sleeps_until.is_some_and(|until| at < until);
        drop(state);
        if wake {
            self.wake();
        }
    }

    /// Has the thread call [`Source::ready`] soon.
    pub(crate) fn again(&self, token: Token) {
        let mut state = lock(&self.state);
        state.again.push_back(token);
        let wake = state.sleeps_until.is_some();
        drop(state);
        if wake {
            self.wake();
        }
    }

    fn wake(&self) {
        // A full counter is readable all the same.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn run(&self) {
        net::block_signals();
        let mut events = Vec::with_capacity(64);
        loop {
            let was_busy = !events.is_empty();
            events.clear();
            if let Err(e) = self.wait(&mut events, was_busy) {
                log::error!("the progress thread cannot wait for its sockets: {e}");
                thread::sleep(Duration::from_millis(10));
            }
            for event in &events {
                let token = Token(event.data.u64());
                if token == Token::WAKE {
                    let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                } else {
                    use epoll::EventFlags as E;
                    let flags = event.flags;
                    let ends = flags.intersects(E::RDHUP | E::HUP | E::ERR);
                    self.call(token, |source| source.ready(ends));
                }
            }
            // Those that ask again while this runs wait for the next round, behind the sockets.
            let again = std::mem::take(&mut lock(&self.state).again);
            for token in again {
                self.call(token, |source| source.ready(false));
            }
            let now = Instant::now();
            while let Some(token) = self.due(now) {
                self.call(token, |source| source.due(now));
            }
        }
    }

    /// Calls the source, if there still is one. One that panics is given up, and one that panics at that too is forgotten.
    fn call(&self, token: Token, f: impl FnOnce(Arc<dyn Source>)) {
        let given_up = || caught(|| self.source(token).map_or((), Source::give_up));
        let called = caught(|| self.source(token).map_or((), f)).or_else(given_up);
        if called.is_none() {
            self.leave(token);
        }
    }

    /// Waits for sockets, or for the next deadline.
    fn wait(&self, events: &mut Vec<epoll::Event>, was_busy: bool) -> rustix::io::Result<()> {
        let wait = |events: &mut Vec<epoll::Event>, timeout: Timespec| match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e),
        };
        // Where something just came, more is about to, and being woken takes longer than that (5 times as long, measured with 8 small
        // writes outstanding in a virtual machine). Others that want this processor get it.
        let start = Instant::now();
        while was_busy && start.elapsed() < LINGER {
            wait(events, Timespec { tv_sec: 0, tv_nsec: 0 })?;
            if !events.is_empty() || !lock(&self.state).again.is_empty() {
                return Ok(());
            }
            thread::yield_now();
        }
        let timeout = self.sleep();
        let waited = wait(events, timeout);
        lock(&self.state).sleeps_until = None;
        waited
    }

    /// How long to sleep.
    fn sleep(&self) -> Timespec {
        const LONGEST: Duration = Duration::from_secs(3600);
        let mut state = lock(&self.state);
        let now = Instant::now();
        let until = match state.timers.first() {
            _ if !state.again.is_empty() => now,
            Some((at, _)) => (*at).min(now + LONGEST),
            None => now + LONGEST,
        };
        state.sleeps_until = Some(until);
        Timespec::try_from(until.saturating_duration_since(now)).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
    }

    fn source(&self, token: Token) -> Option<Arc<dyn Source>> {
        lock(&self.state).sources.get(&token).and_then(Weak::upgrade)
    }

    /// Takes the next deadline that is there.
    fn due(&self, now: Instant) -> Option<Token> {
        let mut state = lock(&self.state);
        let &(at, token) = state.timers.first()?;
        if at > now {
            return None;
        }
        state.timers.pop_first();
        Some(token)
    }
}

#[cfg(test)]
mod panics {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Tells what is called; panics where it is told to.
    #[derive(Debug)]
    struct Told {
        calls: Sender<&'static str>,
        panics_at: &'static [&'static str],
    }

    impl Told {
        fn called(&self, call: &'static str) {
            self.calls.send(call).unwrap();
            assert!(!self.panics_at.contains(&call), "{call}, as a bug of ours would");
        }
    }

    impl Source for Told {
        fn ready(self: Arc<Self>, _: bool) {
            self.called("ready");
        }

        fn due(self: Arc<Self>, _: Instant) {
            self.called("due");
        }

        fn give_up(self: Arc<Self>) {
            self.called("give up");
        }
    }

    #[test]
    fn source_that_panics_is_given_up_and_the_others_go_on() {
        const LIMIT: Duration = Duration::from_secs(20);
        let driver = Driver::get().unwrap();
        let enter = |panics_at| {
            let (calls, told) = channel();
            let source: Arc<dyn Source> = Arc::new(Told { calls, panics_at });
            let token = driver.enter(Arc::downgrade(&source));
            (source, token, told)
        };
        let (_good, good_token, good_told) = enter(&[]);
        let (_bad, bad_token, bad_told) = enter(&["ready", "due"]);
        let (_worse, worse_token, worse_told) = enter(&["ready", "give up"]);
        driver.again(bad_token);
        driver.again(worse_token);
        driver.again(good_token);
        assert_eq!(good_told.recv_timeout(LIMIT), Ok("ready"));
        driver.remind(bad_token, Instant::now());
        driver.remind(worse_token, Instant::now());
        driver.remind(good_token, Instant::now());
        assert_eq!(good_told.recv_timeout(LIMIT), Ok("due"));
        for told in [bad_told.recv_timeout(LIMIT), bad_told.recv_timeout(LIMIT)] {
            assert!(told.is_ok());
        }
        for call in ["ready", "give up"] {
            assert_eq!(worse_told.recv_timeout(LIMIT), Ok(call));
        }
    }
}
