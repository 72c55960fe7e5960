//! Who listens, and strangers who have not said what they want.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::connection::{Connection, State, invalid};
use crate::cm::{Event, Kind, Voice};
use crate::driver::{Driver, Socket, Source, Stream, Token, lock};
use crate::wire::{CmFrame, ConnectRequest, Frame, PrivateData};

/// How many strangers are looked after at once, per listener. Others wait in the kernel's queue.
const STRANGERS: usize = 256;
/// How long a stranger is safe from having to make room for another.
const GRACE: Duration = Duration::from_millis(500);
/// How long a stranger may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
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
    /// When somebody who waits in the kernel's queue is to be let in: the only reminder that there is, however many knock until then.
    pub(super) again: Option<Instant>,
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

    fn admit(&self, request: ConnectRequest, mut stream: Stream) {
        let mut state = self.state();
        let Some(listener) = &mut state.listener else { return };
        if listener.beyond.len() >= STRANGERS {
            stream.send(CmFrame::Reject(crate::wire::Reject { reason: 28, private_data: PrivateData::default() }));
            return stream.close();
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

    /// Those who wait in the kernel's queue stay there until then, or until somebody before them makes room.
    fn try_again(&mut self, at: Instant) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }

    /// Out of descriptors, most likely. Whether that is news: it goes on until nobody waits any more.
    fn cannot_let_in(&mut self, now: Instant) -> bool {
        self.try_again(now + RETRY);
        !std::mem::replace(&mut self.shut, true)
    }

    /// Nobody waits.
    fn all_in(&mut self) {
        (self.again, self.shut) = (None, false);
    }
}

/// Takes in whoever connected.
pub(super) fn ready(connection: &Arc<Connection>, mut state: MutexGuard<'_, State>) {
    let now = Instant::now();
    if let Some(listener) = &mut state.listener {
        listener.again.take_if(|again| *again <= now);
    }
    let mut new = Vec::new();
    let mut gone = Vec::new();
    while let Some(listener) = &mut state.listener {
        if listener.strangers.len() >= STRANGERS {
            match listener.strangers.front() {
                Some(oldest) if oldest.since.elapsed() < GRACE => {
                    let at = oldest.since + GRACE;
                    listener.try_again(at);
                    break;
                }
                _ => gone.extend(listener.strangers.pop_front()),
            }
        }
        let socket = match listener.socket.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                listener.all_in();
                break;
            }
            Err(e) => {
                if listener.cannot_let_in(now) {
                    log::warn!("somebody who connects cannot be let in: {e}");
                }
                break;
            }
        };
        match Stranger::new(connection, socket) {
            Ok(stranger) => {
                listener.strangers.push_back(Arc::clone(&stranger));
                new.push(stranger);
            }
            Err(e) => log::warn!("somebody who connects is lost: {e}"),
        }
    }
    connection.remind(&mut state);
    connection.let_in(state);
    drop(gone);
    for stranger in new {
        stranger.ready(false);
    }
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
        driver.remind(new.token, Instant::now() + PATIENCE);
        Ok(new)
    }

    /// The listener looks after it no longer.
    fn forget(&self) {
        if let Some(listener) = self.listener.upgrade() {
            let mut state = listener.state();
            let strangers = state.listener.as_mut().map(|listener| &mut listener.strangers);
            let place = strangers.as_ref().and_then(|all| all.iter().position(|one| std::ptr::eq(&raw const **one, self)));
            let was_full = strangers.as_ref().is_some_and(|all| all.len() >= STRANGERS);
            let forgotten = strangers.zip(place).and_then(|(all, place)| all.remove(place));
            drop(state);
            drop(forgotten);
            if was_full {
                listener.run_soon();
            }
        }
    }
}

impl Source for Stranger {
    fn ready(self: Arc<Self>, _: bool) {
        let mut stream = lock(&self.stream);
        let Some(known) = stream.as_mut() else { return };
        let frame = match known.first_frame() {
            Ok(None) => return,
            Ok(Some(frame)) => Some(frame),
            Err(_) => None,
        };
        let known = stream.take();
        drop(stream);
        self.forget();
        let (Some(stream), Some(Frame::Cm(CmFrame::ConnectRequest(request)))) = (known, frame) else { return };
        if let Some(listener) = self.listener.upgrade() {
            listener.admit(request, stream);
        }
    }

    fn due(self: Arc<Self>, _: Instant) {
        let silent = lock(&self.stream).take();
        if silent.is_some() {
            log::info!("somebody who connected said nothing for {PATIENCE:?}");
            self.forget();
        }
    }

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
