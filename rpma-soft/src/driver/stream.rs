//! One TCP stream: bytes to frames and back, payload straight between the socket and registered memory.
#![expect(unsafe_code, reason = "gives addresses of registered memory to the kernel")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::incoming::Rx;
use super::net::Socket;
use super::outgoing::Tx;
use crate::cm::{Machine, StreamEnd};
use crate::objects::memory::{DeviceMemory, Lease, Touch};
use crate::objects::touch::{self, Piece};
use crate::rc::{MemoryFault, Range, RcQp};
use crate::wire::{CmFrame, Event, Frame, MAX_HEADER_BYTES, PREAMBLE_BYTES};

/// Room for headers, and for payload that nobody wants.
pub(super) const ROOM_BYTES: usize = 64 * 1024;
/// How many system calls one round makes in a direction before others get their turn.
pub(super) const ROUND: u32 = 64;

thread_local! {
    static ROOM: RefCell<Box<[u8]>> = RefCell::new(vec![0; ROOM_BYTES].into());
}

/// Lends the thread's room; one of its own where that is gone already (a connection dropped by another thread-local's destructor) or lent.
pub(super) fn with_room<T>(mut work: impl FnMut(&mut [u8]) -> T) -> T {
    let lent = ROOM.try_with(|room| room.try_borrow_mut().ok().map(|mut room| work(&mut room)));
    lent.ok().flatten().unwrap_or_else(|| work(&mut vec![0; ROOM_BYTES]))
}

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Nothing is left to do until the socket says so.
    Idle,
    /// There may be more.
    More,
}

/// Whose queue pair the stream serves, if it has one.
pub(crate) type Qp = RcQp<DeviceMemory>;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) socket: Socket,
    connected: bool,
    /// This end connected, from a port that it had to find.
    active: bool,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
}

impl Stream {
    /// A stream that is being connected.
    pub(crate) fn connecting(socket: Socket) -> Self {
        let mut stream = Self::accepted(socket);
        stream.connected = false;
        stream.active = true;
        stream
    }

    /// A stream that somebody connected to us.
    pub(crate) fn accepted(socket: Socket) -> Self {
        Self { socket, connected: true, active: false, tx: Tx::new(), rx: Rx::new() }
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// For how long the other end's machine has shown no sign of life.
    pub(crate) fn silence(&self) -> Duration {
        // Connecting has a limit of its own. No other error than of a socket that has ended, which tells itself.
        if self.connected { self.socket.silence().unwrap_or_default() } else { Duration::ZERO }
    }

    /// Sends a frame behind what is being sent.
    pub(crate) fn send(&mut self, frame: CmFrame) {
        self.tx.send(frame);
    }

    /// The other end has ended the stream, so what was sent before has to be received to its end.
    pub(crate) fn ends(&mut self) {
        self.rx.ends();
    }

    /// Whether something of the queue pair is being sent without which work cannot complete.
    pub(crate) fn holds_work(&self) -> bool {
        self.tx.holds_work()
    }

    /// The queue pair is in the error state: gives back the memory that its requests are to be filled in and throws away what comes, and
    /// sends no request of which nothing is sent yet.
    pub(crate) fn give_back(&mut self, qp: &mut Qp, now: Instant) {
        for _ in 0..self.rx.give_back() {
            qp.payload_done(now, Err(MemoryFault));
        }
        qp.requests_withdrawn(self.tx.withdraw_requests());
    }

    /// The queue pair goes away. `Err` if the stream cannot go on without it.
    pub(crate) fn forget_qp(&mut self) -> Result<(), StreamEnd> {
        self.rx.give_back();
        self.tx.forget_qp()
    }

    /// Reads until the other end's first frame, for which the rest of this waits. `None`: it is not here yet.
    pub(crate) fn first_frame(&mut self) -> Result<Option<Frame>, StreamEnd> {
        self.transmit(None, Instant::now())?;
        with_room(|room| {
            loop {
                // No more than can be the first frame: what comes behind it is for who takes the stream over.
                let size = MAX_HEADER_BYTES.min(PREAMBLE_BYTES);
                let Some(bytes) = self.read(&mut room[..size])? else { return Ok(None) };
                let mut input = &room[..bytes];
                while !input.is_empty() {
                    match self.rx.decoder.next(&mut input) {
                        Ok(Some(Event::Frame(frame))) if input.is_empty() => return Ok(Some(frame)),
                        Ok(Some(Event::Frame(_))) => return Err(StreamEnd::Violation),
                        Ok(_) => {}
                        Err(e) => {
                            log::debug!("a stranger is no peer: {e}");
                            return Err(StreamEnd::Violation);
                        }
                    }
                }
            }
        })
    }

    /// Sends and receives what can be. `Err`: the stream is over.
    pub(crate) fn run(&mut self, qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<Moved, StreamEnd> {
        if !self.connected {
            match self.socket.is_connected() {
                Ok(true) => self.connected = true,
                Ok(false) => return Ok(Moved::Idle),
                // It was connected, and has ended since; what they said before may be here still.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => self.connected = true,
                Err(e) => return Err(end_of_connect(&e)),
            }
        }
        let mut qp = qp;
        self.transmit(qp.as_deref_mut(), now)?;
        let received = self.receive(qp.as_deref_mut(), cm, now)?;
        // What came asks for answers.
        let sent = self.transmit(qp, now)?;
        Ok(if sent == Moved::More || received == Moved::More { Moved::More } else { Moved::Idle })
    }

    /// Sends what can be. What arrived meanwhile is looked after by whoever the socket tells. `Err`: the stream is over.
    pub(crate) fn run_out(&mut self, qp: &mut Qp, now: Instant) -> Result<Moved, StreamEnd> {
        if self.connected { self.transmit(Some(qp), now) } else { Ok(Moved::Idle) }
    }

    /// Sends what is staged, as far as it goes, and gives the stream up.
    pub(crate) fn close(mut self) {
        if !self.connected {
            return;
        }
        let _ = self.transmit(None, Instant::now());
        // With something unread, `close` would reset the connection, and the other end might lose what was sent last.
        with_room(|room| {
            for _ in 0..ROUND {
                if !matches!(self.read(room), Ok(Some(_))) {
                    break;
                }
            }
        });
        if self.active {
            self.socket.reset_on_close();
        }
    }

    /// As [`close`](Self::close), and the kernel keeps nothing of it, whatever the other end does.
    pub(crate) fn cut(mut self) {
        let _ = self.transmit(None, Instant::now());
        self.socket.reset_on_close();
    }

    fn read(&self, room: &mut [u8]) -> Result<Option<usize>, StreamEnd> {
        let piece = Piece::room(room);
        // SAFETY: `room` is borrowed for us alone.
        received(unsafe { touch::receive(self.socket.as_fd(), &[piece]) })
    }
}

/// Takes up to `bytes` bytes from the front of `ranges`. Returns how many.
pub(super) fn take_front(ranges: &mut VecDeque<Range<Lease>>, bytes: usize) -> usize {
    let mut left = bytes;
    while let (Some(range), true) = (ranges.front_mut(), left > 0) {
        let taken = left.min(range.len_bytes as usize);
        left -= taken;
        range.addr += taken as u64;
        range.len_bytes -= u32::try_from(taken).expect("no more than the range has");
        if range.len_bytes == 0 {
            ranges.pop_front();
        }
    }
    bytes - left
}

/// Sets the memory of the first `max` of `ranges` aside for one system call. Returns how much that is.
pub(super) fn set_aside<'a>(
    ranges: &'a VecDeque<Range<Lease>>,
    max: usize,
    pieces: &mut Vec<Piece>,
    touched: &mut Vec<Touch<'a>>,
) -> Result<usize, MemoryFault> {
    let mut bytes = 0;
    for range in ranges.iter().take(max) {
        let region = range.lease.region();
        let len_bytes = range.len_bytes as usize;
        match touched.last() {
            // Most messages are of one region.
            Some(touch) if touch.is_of(region) => pieces.push(Piece::registered(touch, range.addr, len_bytes)),
            _ => {
                let touch = region.touch()?;
                pieces.push(Piece::registered(&touch, range.addr, len_bytes));
                touched.push(touch);
            }
        }
        bytes += len_bytes;
    }
    Ok(bytes)
}

/// What a receiving system call says.
pub(super) fn received(result: io::Result<usize>) -> Result<Option<usize>, StreamEnd> {
    match result {
        Ok(0) => Err(StreamEnd::Closed),
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(e) => {
            log::debug!("a stream ended: {e}");
            Err(StreamEnd::Closed)
        }
    }
}

/// What an error of connecting says.
fn end_of_connect(error: &io::Error) -> StreamEnd {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => StreamEnd::Refused,
        _ => StreamEnd::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::cm::{Kind, Limits, Output, reason};
    use crate::wire::{ConnectRequest, Preamble, PrivateData, Reject};

    #[test]
    fn client_that_is_turned_away_before_it_knows_that_it_was_connected_is_told_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let destination = listener.local_addr().unwrap();
        let socket = Socket::bound("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let source = socket.local().unwrap();
        socket.connect(destination).unwrap();
        let mut stream = Stream::connecting(socket);
        let mut server = listener.accept().unwrap().0;
        let mut header = [0; MAX_HEADER_BYTES];
        let reject = Reject { reason: reason::NO_RESOURCES, private_data: PrivateData::default() };
        let size = Frame::Cm(CmFrame::Reject(reject)).encode(&mut header).unwrap();
        server.write_all(&Preamble::encode()).unwrap();
        server.write_all(&header[..size]).unwrap();
        rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);

        let limit = Duration::from_secs(5);
        let mut cm = Machine::new(Limits { unreachable_after: limit, answer_after: limit, time_wait: limit });
        let request = ConnectRequest {
            qp_num: 1,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            source,
            destination,
            private_data: PrivateData::default(),
        };
        let now = Instant::now();
        cm.connect(now, request).unwrap();
        let rejected = |cm: &mut Machine| {
            std::iter::from_fn(|| cm.poll()).find_map(|output| match output {
                Output::Event(event) => Some((event.kind, event.status)),
                Output::Send(_) | Output::Close => None,
            })
        };
        let end = loop {
            if let Err(end) = stream.run(None, &mut cm, now) {
                break end;
            }
            assert!(now.elapsed() < limit, "the end of the stream is not seen");
        };
        assert_eq!((end, rejected(&mut cm)), (StreamEnd::Closed, Some((Kind::Rejected, 3))));
    }
}
