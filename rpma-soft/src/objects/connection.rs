//! A connection: what our threads share of an identifier, its stream, and its queue pair.
#![forbid(unsafe_code)]

mod calls;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use rpma_sys::bindings::ibv_pd;

use super::async_events::Subject;
use super::cq::{Cq, Entry};
use super::device::Device;
use super::event_channel::{EventChannel, Waiting};
use super::knock::Knocking;
use super::listener::Listener;
use super::memory::DeviceMemory;
use super::mr::DefaultPd;
use super::options::Options;
use super::qp_state::Agreed;
use super::untaken::Acks;
use crate::cm::{Event, Limits, Machine};
use crate::driver::{Driver, Moved, Socket, Source, Stream, Token, lock};
use crate::rc::RcQp;
use crate::wire::ConnectRequest;

/// One identifier's part of the device.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) device: Arc<Device>,
    pub(super) driver: Arc<Driver>,
    pub(super) token: Token,
    pub(super) me: Weak<Self>,
    /// `None` once it is destroyed: the program closes the channel, and its descriptor with it.
    channel: Mutex<Option<Arc<EventChannel>>>,
    pub(super) events: Acks,
    /// The program hears of it: from the start if it made it, else when it has accepted. As in the kernel (`ucma_event_handler`), a
    /// request whose client goes away has no event, and accepting it fails.
    told_of: AtomicBool,
    /// Where the program's structure is; 0 before there is one. It stays while that is destroyed: an event that is taken meanwhile has it.
    pub(crate) handle: AtomicUsize,
    /// It is being destroyed, and has no more events.
    gone: AtomicBool,
    state: Mutex<State>,
    default_pd: OnceLock<Arc<DefaultPd>>,
    /// Threads that wait for the state. Whoever only polls lets them go first: a loop that polls would lock them out.
    waiting: AtomicUsize,
}

/// What changes.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) cm: Machine,
    pub(super) stream: Option<Stream>,
    pub(super) qp: Option<QpSlot>,
    /// A queue pair that is of no use any more, by a bug of ours: kept until the program destroys it.
    pub(super) broken: Option<QpSlot>,
    pub(super) bound: Option<Socket>,
    pub(super) knocking: Option<Knocking>,
    pub(super) listener: Option<Listener>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// The route to the peer is resolved.
    pub(super) routed: bool,
    /// The next deadline that the driver knows of.
    pub(super) reminded: Option<Instant>,
    /// When the stream is cut, since a message is half sent and the queue pair in the error state.
    pub(super) cut_at: Option<Instant>,
    /// How long the other end's machine may be silent.
    pub(super) vanished_after: Duration,
    /// When it could have been for so long.
    pub(super) look_at: Option<Instant>,
    asked: Asked,
    pub(super) options: Options,
}

/// What we asked with.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    retry: u8,
    /// How many reads and atomics of the peer's we offered to answer at once.
    resources: u8,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QpSlot {
    pub(crate) core: RcQp<DeviceMemory>,
    pub(crate) number: u32,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    /// What its asynchronous events are about.
    pub(super) subject: Arc<Subject>,
    pub(super) agreed: Agreed,
    /// The core knows that there is no stream any more.
    pub(super) told_gone: bool,
}

impl QpSlot {
    /// A queue pair that was just made.
    pub(crate) fn new(core: RcQp<DeviceMemory>, number: u32, send_cq: Arc<Cq>, recv_cq: Arc<Cq>, subject: Arc<Subject>) -> Self {
        Self { core, number, send_cq, recv_cq, subject, agreed: Agreed::default(), told_gone: false }
    }
}

impl Connection {
    /// Without a connection yet.
    pub(crate) fn new(device: Arc<Device>, channel: Arc<EventChannel>) -> io::Result<Arc<Self>> {
        let cm = Machine::new(limits(&device));
        Self::with(device, channel, cm, None, None)
    }

    /// One that was asked for.
    pub(super) fn requested(listener: &Self, request: ConnectRequest, stream: Stream) -> io::Result<Arc<Self>> {
        let device = Arc::clone(&listener.device);
        let channel = lock(&listener.channel).clone().ok_or(io::ErrorKind::NotConnected)?;
        let cm = Machine::requested(limits(&device), request);
        let addrs = (stream.socket().local()?, stream.socket().peer()?);
        Self::with(device, channel, cm, Some(stream), Some(addrs))
    }

    fn with(
        device: Arc<Device>,
        channel: Arc<EventChannel>,
        cm: Machine,
        stream: Option<Stream>,
        addrs: Option<(SocketAddr, SocketAddr)>,
    ) -> io::Result<Arc<Self>> {
        let driver = Driver::get()?;
        let unmapped = crate::driver::unmapped;
        let new = Arc::new_cyclic(|me: &Weak<Self>| {
            let token = driver.enter(Weak::clone(me) as Weak<dyn Source>);
            Self {
                device,
                driver: Arc::clone(&driver),
                token,
                me: Weak::clone(me),
                channel: Mutex::new(Some(channel)),
                events: Acks::default(),
                told_of: AtomicBool::new(stream.is_none()),
                handle: AtomicUsize::new(0),
                gone: AtomicBool::new(false),
                waiting: AtomicUsize::new(0),
                default_pd: OnceLock::new(),
                state: Mutex::new(State {
                    cm,
                    stream,
                    qp: None,
                    broken: None,
                    bound: None,
                    knocking: None,
                    listener: None,
                    local: addrs.map(|(local, _)| unmapped(local)),
                    peer: addrs.map(|(_, peer)| unmapped(peer)),
                    routed: false,
                    reminded: None,
                    cut_at: None,
                    vanished_after: Duration::ZERO,
                    look_at: None,
                    asked: Asked::default(),
                    options: Options::default(),
                }),
            }
        });
        {
            let mut state = new.state();
            if let Some(stream) = &state.stream {
                driver.hand_over(stream.socket(), new.token)?;
                Self::look_for_life(&mut state, new.device.config.vanished_after);
                new.remind(&mut state);
            }
        }
        Ok(new)
    }

    /// Its state, for a look or a change that moves no data.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = lock(&self.state);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// The protection domain that it has until the program gives it another one.
    pub(super) fn default_pd(&self) -> *mut ibv_pd {
        self.default_pd.get_or_init(|| DefaultPd::of(&self.device)).raw()
    }

    // ---- events ----

    /// How many of the requests that came in here the program has not taken.
    pub(super) fn requests(&self) -> usize {
        lock(&self.channel).as_ref().map_or(0, |channel| channel.requests(self))
    }

    pub(super) fn tell(&self, event: Event) {
        // As in the kernel, an identifier that the program does not have yet, or no more, has no events.
        let unknown = self.handle.load(Ordering::Acquire) == 0 || !self.told_of.load(Ordering::Acquire);
        if unknown || self.gone.load(Ordering::Acquire) {
            return;
        }
        let Some(of) = self.me.upgrade() else { return };
        if let Some(channel) = &*lock(&self.channel) {
            channel.push(Waiting { of, child: None, event });
        }
    }

    /// Tells of a request that came in here.
    pub(super) fn tell_request(&self, child: Arc<Self>, event: Event) {
        let Some(of) = self.me.upgrade() else { return };
        let left = match &*lock(&self.channel) {
            Some(channel) => {
                channel.push(Waiting { of, child: Some(child), event });
                None
            }
            None => Some(child),
        };
        // The listener is gone meanwhile, and nobody else will tell the client. Without the lock: the child's state comes before it.
        if let Some(child) = left {
            child.destroy();
        }
    }

    /// The program acknowledges an event.
    pub(crate) fn event_acked(&self) {
        self.events.ack();
    }

    /// Moves it, with the events that the program has not taken, to another channel: `rdma_migrate_id(3)`.
    pub(crate) fn migrate(&self, to: Arc<EventChannel>) {
        let mut channel = lock(&self.channel);
        for waiting in channel.iter().flat_map(|channel| channel.remove(self)) {
            to.push(waiting);
        }
        *channel = Some(to);
        drop(channel);
        self.events.wait();
    }

    // ---- the queue pair ----

    /// Whether there is one.
    pub(crate) fn has_qp(&self) -> bool {
        self.state().qp.is_some()
    }

    /// Gives it a queue pair. `Err`: there is one, or the connection is over, and this one is dropped.
    pub(crate) fn put_qp(&self, qp: QpSlot) -> io::Result<()> {
        let mut state = self.state();
        // As `rdma_init_qp_attr` in the kernel: a connection that is over has no attributes for a queue pair.
        if state.qp.is_some() || state.broken.is_some() || state.cm.is_over() {
            return Err(invalid());
        }
        qp.send_cq.attach(qp.number, Weak::clone(&self.me));
        if !Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
            qp.recv_cq.attach(qp.number, Weak::clone(&self.me));
        }
        state.qp = Some(qp);
        Ok(())
    }

    /// Takes its queue pair away. Nothing of it is under way any more when this returns.
    pub(crate) fn take_qp(&self) {
        let mut state = self.state();
        let qp = state.qp.take();
        let Some(qp) = qp.or_else(|| state.broken.take()) else { return };
        if let Some(stream) = &mut state.stream
            && let Err(end) = stream.forget_qp()
        {
            self.end_stream(&mut state, end);
        }
        self.run(&mut state);
        drop(state);
        qp.send_cq.detach(qp.number);
        qp.recv_cq.detach(qp.number);
    }

    /// Resets its queue pair, if it has one. Nothing of it is under way any more when this returns.
    pub(crate) fn reset_qp(&self) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(qp) = &mut state.qp else { return false };
        qp.core.reset();
        qp.send_cq.forget(qp.number);
        qp.recv_cq.forget(qp.number);
        if let Some(stream) = &mut state.stream
            && let Err(end) = stream.forget_qp()
        {
            self.end_stream(state, end);
        }
        self.run(state);
        true
    }

    /// Does something with the queue pair, and what follows from it.
    pub(crate) fn with_qp<T>(&self, f: impl FnOnce(&mut QpSlot) -> T) -> Option<T> {
        self.guarded(&mut self.state(), |state| {
            let qp = state.qp.as_mut()?;
            let result = f(qp);
            // Sending is enough here: a program that posts much would pay for looking each time.
            let now = Instant::now();
            match state.stream.as_mut().map(|stream| stream.run_out(&mut qp.core, now)) {
                None | Some(Ok(Moved::Idle)) => {}
                Some(Ok(Moved::More)) => self.run_soon(),
                Some(Err(end)) => self.end_stream(state, end),
            }
            if self.settle(state, now) {
                self.run(state);
            } else {
                self.remind(state);
            }
            Some(result)
        })?
    }

    /// Gives a polled completion's slots back.
    pub(crate) fn release(&self, entry: &Entry) {
        let mut state = self.state();
        self.guarded(&mut state, |state| {
            if let Some(qp) = state.qp.as_mut().filter(|qp| qp.number == entry.qp_num) {
                qp.core.release(&entry.completion);
            }
        });
    }

    /// Moves data if nobody else does just now.
    pub(crate) fn progress(&self) {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return;
        }
        match self.state.try_lock() {
            Ok(mut state) => self.run(&mut state),
            Err(TryLockError::Poisoned(poisoned)) => self.run(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Has the progress thread look after it.
    pub(crate) fn run_soon(&self) {
        self.driver.again(self.token);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.leave(self.token);
    }
}

fn limits(device: &Device) -> Limits {
    let config = &device.config;
    Limits { unreachable_after: config.unreachable_after, answer_after: config.answer_after, time_wait: config.time_wait }
}

/// `EINVAL`.
pub(crate) fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SoftConfig;
    use crate::cm::Kind;

    #[test]
    fn event_that_is_taken_while_its_identifier_is_destroyed_still_has_it() {
        let device = Arc::new(Device::new(SoftConfig::default()).unwrap());
        let channel = Arc::new(EventChannel::new().unwrap());
        let connection = Connection::new(device, Arc::clone(&channel)).unwrap();
        connection.handle.store(0x1000, Ordering::Release);
        connection.announce(Kind::AddrResolved);
        let seen = std::thread::scope(|scope| {
            let state = connection.state();
            scope.spawn(|| connection.destroy());
            // It has said that it is gone, and cannot go on.
            while connection.waiting.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let taken = channel.next().unwrap();
            let seen = taken.of.handle.load(Ordering::Acquire);
            drop(state);
            taken.of.event_acked();
            seen
        });
        assert_eq!(seen, 0x1000);
        connection.announce(Kind::RouteResolved);
        assert!(channel.remove(&connection).is_empty(), "an event came after the end");
    }
}
