//! Who listens, and strangers who have not said what they want.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::connection::{Connection, State, invalid};
use crate::cm::{Event, Kind, Voice, reason};
use crate::driver::{Driver, Socket, Source, Stream, Token, caught, lock};
use crate::wire::{CmFrame, ConnectRequest, Frame, PrivateData, Reject};

/// How many strangers are looked after at once, per listener. The next one takes the place of the oldest: a client of ours asks as soon
/// as it is connected, and so is none any more before many others have come, however many come.
const STRANGERS: usize = 256;
/// How many are let in before the driver's other sources get their turn.
const AT_ONCE: usize = 32;
/// How long a stranger may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many requests beyond the backlog wait.
const BEYOND: usize = 256;
/// How long until a listener that cannot let anybody in tries again.
const RETRY: Duration = Duration::from_millis(100);
/// How many requests wait for the program, where it does not say; the kernel's `max_backlog`.
const BACKLOG: usize = 1024;

/// A socket that is listened on.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    backlog: usize,
    strangers: VecDeque<Arc<Stranger>>,
    /// Requests beyond the backlog, which the program hears of when it has taken others. The kernel drops them and their clients ask
    /// again, to the same effect (`ENOMEM` in `cm_destroy_id`).
    beyond: VecDeque<(ConnectRequest, Stream)>,
    /// When those who could not be let in are to be: the only reminder that there is, however many knock until then.
    again: Option<Instant>,
    /// Nobody could be let in, and the kernel's queue has not been empty since.
    shut: bool,
}

/// Somebody who connected and has not said what it wants.
#[derive(Debug)]
struct Stranger {
    driver: Arc<Driver>,
    token: Token,
    listener: Weak<Connection>,
    since: Instant,
    stream: Mutex<Option<Stream>>,
}

impl Connection {
    /// `rdma_listen(3)`.
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        let mut state = self.state();
        if state.listener.is_some() || !state.cm.is_idle() {
            return Err(invalid());
        }
        let socket = state.bound.take().ok_or_else(invalid)?;
        if let Err(e) = socket.listen(4096).and_then(|()| self.driver.watch(&socket, self.token)) {
            state.bound = Some(socket);
            return Err(e);
        }
        let backlog = usize::try_from(backlog).ok().filter(|&backlog| backlog > 0).map_or(BACKLOG, |asked| asked.min(BACKLOG));
        state.listener = Some(Listener::new(socket, backlog));
        drop(state);
        // Whoever connected before the watch began told itself to nobody.
        self.run_soon();
        Ok(())
    }

    fn admit(&self, request: ConnectRequest, stream: Stream) {
        let mut state = self.state();
        let Some(listener) = &mut state.listener else { return };
        if listener.beyond.len() >= BEYOND {
            return turn_away(stream, reason::NO_RESOURCES);
        }
        listener.beyond.push_back((request, stream));
        self.let_in(state);
    }

    /// Tells the program of requests, as far as there is room.
    fn let_in(&self, mut state: MutexGuard<'_, State>) {
        let waiting = self.requests();
        let Some(listener) = &mut state.listener else { return };
        let room = listener.backlog.saturating_sub(waiting).min(listener.beyond.len());
        let let_in: Vec<_> = listener.beyond.drain(..room).collect();
        // The progress thread alone gets here, so nobody fills the room meanwhile.
        drop(state);
        for (request, stream) in let_in {
            self.tell_of(request, stream);
        }
    }

    fn tell_of(&self, request: ConnectRequest, stream: Stream) {
        match Self::requested(self, request, stream) {
            Ok(child) => {
                self.tell_request(child, Event { kind: Kind::ConnectRequest, status: 0, voice: Voice::Request(request) });
            }
            Err(e) => log::warn!("a request for a connection is lost: {e}"),
        }
    }

    /// The program has taken a request: there is room for another.
    pub(super) fn request_taken(&self) {
        if self.state().listener.as_ref().is_some_and(|listener| !listener.beyond.is_empty()) {
            self.run_soon();
        }
    }
}

impl Listener {
    fn new(socket: Socket, backlog: usize) -> Self {
        Self { socket, backlog, strangers: VecDeque::new(), beyond: VecDeque::new(), again: None, shut: false }
    }

    /// The socket.
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// When somebody is to be let in, or has said nothing for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = self.strangers.front().map(|oldest| oldest.since + PATIENCE);
        self.again.into_iter().chain(patience).min()
    }

    /// Takes the next who has said nothing for too long.
    fn next_late(&mut self, now: Instant) -> Option<Arc<Stranger>> {
        if self.strangers.front()?.since + PATIENCE <= now { self.strangers.pop_front() } else { None }
    }

    /// Out of descriptors, most likely. Whether that is news: it goes on until nobody waits any more.
    fn cannot_let_in(&mut self, now: Instant) -> bool {
        self.again.get_or_insert(now + RETRY);
        !std::mem::replace(&mut self.shut, true)
    }

    /// Looks after one more. Returns who makes room for it.
    fn let_in(&mut self, stranger: Arc<Stranger>) -> Option<Arc<Stranger>> {
        let oldest = if self.strangers.len() < STRANGERS { None } else { self.strangers.pop_front() };
        self.strangers.push_back(stranger);
        oldest
    }

    /// Nobody waits.
    fn all_in(&mut self) {
        (self.again, self.shut) = (None, false);
    }
}

/// Takes in whoever connected.
pub(super) fn ready(connection: &Arc<Connection>, mut state: MutexGuard<'_, State>) {
    let now = Instant::now();
    let mut leaving = Vec::new();
    if let Some(listener) = &mut state.listener {
        listener.again.take_if(|again| *again <= now);
        leaving.extend(std::iter::from_fn(|| listener.next_late(now)).map(|late| (late, reason::TIMEOUT)));
    }
    let mut more = true;
    for _ in 0..AT_ONCE {
        let Some(listener) = &mut state.listener else { break };
        let socket = match listener.socket.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                listener.all_in();
                more = false;
                break;
            }
            Err(e) => {
                if listener.cannot_let_in(now) {
                    log::warn!("somebody who connects cannot be let in: {e}");
                }
                more = false;
                break;
            }
        };
        match Stranger::new(connection, socket) {
            // What it says comes as an event of its own.
            Ok(stranger) => leaving.extend(listener.let_in(stranger).map(|oldest| (oldest, reason::NO_RESOURCES))),
            Err(e) => log::warn!("somebody who connects is lost: {e}"),
        }
    }
    connection.remind(&mut state);
    connection.let_in(state);
    // A panic is about the stranger, and not about the listener.
    for (stranger, why) in leaving {
        caught(|| stranger.go(why));
    }
    if more {
        connection.run_soon();
    }
}

/// Tells a client why it gets no further.
fn turn_away(mut stream: Stream, reason: u16) {
    stream.send(CmFrame::Reject(Reject { reason, private_data: PrivateData::default() }));
    stream.cut();
}

impl Stranger {
    fn new(listener: &Arc<Connection>, socket: Socket) -> io::Result<Arc<Self>> {
        let driver = Arc::clone(&listener.driver);
        let listener = Arc::downgrade(listener);
        let new = Arc::new_cyclic(|me: &Weak<Self>| {
            let token = driver.enter(Weak::clone(me) as Weak<dyn Source>);
            Self { driver: Arc::clone(&driver), token, listener, since: Instant::now(), stream: Mutex::new(None) }
        });
        driver.watch(&socket, new.token)?;
        *lock(&new.stream) = Some(Stream::accepted(socket));
        Ok(new)
    }

    /// Takes in what it says. Returns whether that was all.
    fn listen_to(&self) -> bool {
        let mut stream = lock(&self.stream);
        let Some(known) = stream.as_mut() else { return true };
        let frame = match known.first_frame() {
            Ok(None) => return false,
            Ok(Some(frame)) => Some(frame),
            Err(_) => None,
        };
        let known = stream.take();
        drop(stream);
        self.forget();
        if let (Some(stream), Some(Frame::Cm(CmFrame::ConnectRequest(request)))) = (known, frame)
            && let Some(listener) = self.listener.upgrade()
        {
            listener.admit(request, stream);
        }
        true
    }

    /// The listener looks after it no longer: it goes, unless it has said what it wants by now.
    fn go(&self, reason: u16) {
        if !self.listen_to() {
            log::debug!("somebody who connected has not said what it wants, and is turned away with reason {reason}");
            let stream = lock(&self.stream).take();
            stream.into_iter().for_each(|stream| turn_away(stream, reason));
        }
    }

    /// The listener looks after it no longer.
    fn forget(&self) {
        if let Some(listener) = self.listener.upgrade() {
            let mut state = listener.state();
            let strangers = state.listener.as_mut().map(|listener| &mut listener.strangers);
            let place = strangers.as_ref().and_then(|all| all.iter().position(|one| std::ptr::eq(&raw const **one, self)));
            let forgotten = strangers.zip(place).and_then(|(all, place)| all.remove(place));
            drop(state);
            drop(forgotten);
        }
    }
}

impl Source for Stranger {
    fn ready(self: Arc<Self>, _: bool) {
        self.listen_to();
    }

    /// Its listener knows when it has taken too long.
    fn due(self: Arc<Self>, _: Instant) {}

    fn give_up(self: Arc<Self>) {
        drop(lock(&self.stream).take());
        self.forget();
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.driver.leave(self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_that_cannot_let_anybody_in_has_one_reminder_and_news_once_until_nobody_waits() {
        let mut listener = Listener::new(Socket::bound(([127, 0, 0, 1], 0).into(), None).unwrap(), BACKLOG);
        let start = Instant::now();
        let news = (0..90).filter(|&ms| listener.cannot_let_in(start + Duration::from_millis(ms))).count();
        assert_eq!((news, listener.again), (1, Some(start + RETRY)));
        listener.all_in();
        assert_eq!((listener.again, listener.cannot_let_in(start + 2 * RETRY)), (None, true));
        assert_eq!(listener.again, Some(start + 3 * RETRY));
    }
}
