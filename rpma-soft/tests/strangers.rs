//! Strangers at a listener: whoever connects and says nothing, or a half of something, keeps nobody out.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "raises a limit of the process")]

mod support;

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use log::{LevelFilter, Log, Metadata, Record};
use rpma_soft::wire::{CmFrame, Decoder, Frame, PREAMBLE_BYTES, Preamble};
use rpma_sys::ProviderRef;
use rpma_sys::owned::{CmEventKind, CmId, EventChannel};
use support::stranger::{ask, encoded, next_frame, request, silent};
use support::{LIMIT, event, local, param, provider};

/// How many strangers a listener looks after.
const LOOKED_AFTER: usize = 256;
/// How many requests wait beyond the backlog.
const BEYOND: usize = 256;
/// As the listener tells somebody for whom it has no room: IBTA volume 1, table 109.
const NO_RESOURCES: u16 = 3;
/// The time in which a client is served that comes when thousands of strangers wait before it; it has 5 s.
const SOON: Duration = Duration::from_secs(3);

/// Holds the progress thread where it tells of a stranger who is no peer, if somebody wants it held.
struct Hold {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    Wanted,
    Yes,
}

static HOLD: Hold = Hold { state: Mutex::new(Held::No), changed: Condvar::new() };

impl Hold {
    fn set(&self, to: Held) {
        *self.state.lock().unwrap() = to;
        self.changed.notify_all();
    }

    fn until(&self, is: Held) {
        let wait = self.changed.wait_timeout_while(self.state.lock().unwrap(), LIMIT, |state| *state != is);
        assert!(!wait.unwrap().1.timed_out(), "the progress thread is not where it was to be held");
    }
}

impl Log for Hold {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().contains("no peer") && *self.state.lock().unwrap() == Held::Wanted {
            self.set(Held::Yes);
            self.until(Held::No);
        }
    }

    fn flush(&self) {}
}

/// The progress thread, and descriptors, are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&HOLD).unwrap();
        log::set_max_level(LevelFilter::Debug);
        allow_descriptors(6_000);
    });
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn allow_descriptors(count: libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the result.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    if limit.rlim_cur < count {
        limit = libc::rlimit { rlim_cur: count, rlim_max: limit.rlim_max.max(count) };
        // SAFETY: a whole limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(set, 0, "the hard limit of descriptors is lower than this test needs, and it may not be raised");
    }
}

/// A listener with its channel.
struct Listening {
    provider: ProviderRef,
    channel: Arc<EventChannel>,
    _id: CmId,
    addr: SocketAddr,
}

impl Listening {
    fn new(backlog: i32) -> Self {
        let provider = provider();
        let channel = EventChannel::create(&provider).unwrap();
        let id = CmId::create(&channel).unwrap();
        id.bind(local()).unwrap();
        id.listen(backlog).unwrap();
        let addr = id.local_addr().unwrap();
        Self { provider, channel, _id: id, addr }
    }

    /// A client that can ask.
    fn client(&self) -> (Arc<EventChannel>, CmId) {
        let channel = EventChannel::create(&self.provider).unwrap();
        let id = CmId::create(&channel).unwrap();
        id.resolve_addr(self.addr, LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
        id.resolve_route(LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
        (channel, id)
    }

    /// Takes the next request, refuses it, and sees that the client is told so.
    fn serve(&self, client: &Arc<EventChannel>) {
        let told = event(&self.channel);
        assert_eq!(told.kind, CmEventKind::ConnectRequest);
        told.new_id.unwrap().reject(b"served").unwrap();
        let answer = event(client);
        assert_eq!((answer.kind, &answer.private_data[..6]), (CmEventKind::Rejected, &b"served"[..]));
    }
}

/// The first half of a request.
fn half(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let whole = encoded(Frame::Cm(CmFrame::ConnectRequest(request(from, to))));
    [&Preamble::encode()[..], &whole[..whole.len() / 2]].concat()
}

/// Somebody who says a half of what it should, and is stuck.
fn stuck(to: SocketAddr) -> TcpStream {
    let mut stream = silent(to);
    let from = stream.local_addr().unwrap();
    stream.write_all(&half(from, to)).unwrap();
    stream
}

/// What a stranger is told, after the preamble; `None` if the stream ends without a word.
fn told(stream: &mut TcpStream) -> Option<u16> {
    let mut decoder = Decoder::new();
    let frame = next_frame(stream, &mut decoder);
    if frame.is_some() {
        assert_eq!(next_frame(stream, &mut decoder), None, "and that is all");
    }
    match frame {
        Some(Frame::Cm(CmFrame::Reject(reject))) => Some(reject.reason),
        None => None,
        other => panic!("{other:?}"),
    }
}

fn is_looked_after(stream: &mut TcpStream) -> bool {
    stream.read_exact(&mut [0; PREAMBLE_BYTES]).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
}

/// As many as the kernel's queue holds, with room for a client.
fn thousands() -> usize {
    let somaxconn: usize = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    somaxconn.min(4_096) - 16
}

fn client_is_served_behind(stranger: fn(SocketAddr) -> TcpStream) {
    let _alone = alone();
    let scene = Listening::new(0);
    let (channel, client) = scene.client();
    // While nobody is let in, all of them wait in the kernel's queue, and the client behind them.
    HOLD.set(Held::Wanted);
    let mut other = silent(scene.addr);
    other.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    HOLD.until(Held::Yes);
    let mut strangers: Vec<_> = (0..thousands()).map(|_| stranger(scene.addr)).collect();
    client.connect(param()).unwrap();
    HOLD.set(Held::No);
    let start = Instant::now();
    scene.serve(&channel);
    let time = start.elapsed();
    assert!(time < SOON, "{time:?}");
    // The client had its place for a moment as well.
    let (gone, left) = strangers.split_at_mut(thousands() + 1 - LOOKED_AFTER);
    assert!(left.iter_mut().all(is_looked_after));
    assert!(gone.iter_mut().all(|stranger| told(stranger) == Some(NO_RESOURCES)));
}

#[test]
fn client_behind_thousands_who_say_nothing_is_served_and_they_make_room_for_each_other() {
    client_is_served_behind(silent);
}

#[test]
fn client_behind_thousands_who_are_stuck_in_their_request_is_served_and_they_make_room_for_each_other() {
    client_is_served_behind(stuck);
}

#[test]
fn clients_are_served_while_more_and_more_strangers_come() {
    let _alone = alone();
    let scene = Listening::new(0);
    let (came, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = VecDeque::new();
            while !enough.load(Ordering::Relaxed) {
                last.push_back(stuck(scene.addr));
                last.drain(..last.len().saturating_sub(2 * LOOKED_AFTER));
                came.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..10 {
            let (channel, client) = scene.client();
            let others = came.load(Ordering::Relaxed) + LOOKED_AFTER;
            while came.load(Ordering::Relaxed) < others {
                thread::yield_now();
            }
            client.connect(param()).unwrap();
            scene.serve(&channel);
        }
        enough.store(true, Ordering::Relaxed);
    });
}

#[test]
fn client_that_is_too_slow_among_many_is_told_so_and_served_when_it_asks_again() {
    let _alone = alone();
    let scene = Listening::new(0);
    let mut slow = stuck(scene.addr);
    let _others: Vec<_> = (0..LOOKED_AFTER).map(|_| silent(scene.addr)).collect();
    assert_eq!(told(&mut slow), Some(NO_RESOURCES));
    let _again = ask(scene.addr);
    assert_eq!(event(&scene.channel).kind, CmEventKind::ConnectRequest);
}

#[test]
fn request_that_finds_too_many_beyond_the_backlog_is_rejected_and_the_others_come_in() {
    const BACKLOG: usize = 2;
    let _alone = alone();
    let scene = Listening::new(i32::try_from(BACKLOG).unwrap());
    let waiting: Vec<_> = (0..BACKLOG + BEYOND).map(|_| ask(scene.addr)).collect();
    let (channel, client) = scene.client();
    client.connect(param()).unwrap();
    let answer = event(&channel);
    assert_eq!((answer.kind, answer.status), (CmEventKind::Rejected, NO_RESOURCES.into()));
    for stream in &waiting {
        let told = event(&scene.channel);
        assert_eq!((told.kind, &told.private_data[..8]), (CmEventKind::ConnectRequest, &b"stranger"[..]));
        assert_eq!(told.new_id.unwrap().peer_addr().unwrap(), stream.local_addr().unwrap(), "in their order");
    }
    // And there is room again.
    let (channel, client) = scene.client();
    client.connect(param()).unwrap();
    scene.serve(&channel);
}

#[test]
fn stranger_who_says_nothing_for_long_is_told_so_though_nobody_else_comes() {
    const TIMEOUT: u16 = 4;
    let scene = Listening::new(0);
    let start = Instant::now();
    let (mut quiet, mut later) = (silent(scene.addr), silent(scene.addr));
    assert_eq!((told(&mut quiet), told(&mut later)), (Some(TIMEOUT), Some(TIMEOUT)));
    assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
}
