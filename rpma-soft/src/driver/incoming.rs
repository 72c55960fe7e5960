//! What a stream receives.
//!
//! Headers are looked at while they are in the socket still (`MSG_PEEK`), as many as are there. Then one call takes them away, and the
//! payload between them goes to where it belongs: the kernel puts it there, and nobody else.
#![expect(unsafe_code, reason = "gives addresses of registered memory to the kernel")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use super::Moved;
use super::stream::{Qp, ROOM_BYTES, ROUND, Stream, received, set_aside, take_front, with_room};
use crate::cm::{Machine, StreamEnd};
use crate::objects::memory::Lease;
use crate::objects::touch::{self, MAX_PIECES, Piece};
use crate::rc::{Intake, MemoryFault, Range};
use crate::wire::{Decoder, Event, Frame, FrameError, MAX_HEADER_BYTES};

/// How far a look for headers goes at most, and where payload is long: looking costs a copy, which is thrown away.
const FAR_BYTES: usize = 48 * 1024;
const NEAR_BYTES: usize = 512;
/// What is long.
const LONG_BYTES: usize = 1024;

/// Most headers are no longer.
const HEADER_BYTES: usize = 48;

/// Headers to be taken away and the room behind them fit, and there is some to throw payload in.
const _: () = assert!(FAR_BYTES + 2 * MAX_HEADER_BYTES < ROOM_BYTES);

/// What is received.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) decoder: Decoder,
    /// What the socket has next, as the headers say that were looked at.
    expected: VecDeque<Expected>,
    /// What comes behind that, and cannot be handled before all of it is here.
    held: Option<Result<Frame, FrameError>>,
    /// How far to look for headers.
    look_bytes: usize,
    /// After a fault: one payload at a time, to find out whose it is.
    alone: bool,
    /// The other end sends nothing more, so there is an end to be found.
    ends: bool,
}

#[derive(Debug)]
enum Expected {
    /// So many bytes of headers that are known.
    Header(usize),
    Payload(Filling),
}

/// Payload is due.
#[derive(Debug)]
struct Filling {
    /// How much of it.
    left_bytes: usize,
    /// Where it goes; what is left of it. Empty if it is thrown away.
    ranges: VecDeque<Range<Lease>>,
    placed: Result<(), MemoryFault>,
    /// The core was told that it is over, since it needs the memory back.
    told: bool,
}

/// What one call asked for.
struct Asked {
    bytes: usize,
    payloads: usize,
}

impl Rx {
    pub(super) fn new() -> Self {
        Self { decoder: Decoder::new(), expected: VecDeque::new(), held: None, look_bytes: FAR_BYTES, alone: false, ends: false }
    }

    /// Nothing more is sent to us.
    pub(super) fn ends(&mut self) {
        self.ends = true;
    }

    /// Gives back the memory of all payload that is due and throws away what comes. How many times the core has to be told.
    pub(super) fn give_back(&mut self) -> usize {
        let untold = self.payloads().filter(|filling| !filling.told);
        let give_back = |filling: &mut Filling| {
            filling.ranges.clear();
            filling.told = true;
        };
        untold.map(give_back).count()
    }

    fn payloads(&mut self) -> impl Iterator<Item = &mut Filling> {
        self.expected.iter_mut().filter_map(|expected| match expected {
            Expected::Payload(filling) => Some(filling),
            Expected::Header(_) => None,
        })
    }

    fn payload_is_due(&self) -> bool {
        self.expected.iter().any(|expected| matches!(expected, Expected::Payload(_)))
    }

    /// After a frame with so much payload more of its kind are expected, and looked for: as many as one call takes.
    fn look_for_more_of(&mut self, payload: usize) {
        match payload {
            0 => {}
            1..=LONG_BYTES => self.look_bytes = FAR_BYTES.min(MAX_PIECES / 2 * (payload + HEADER_BYTES)),
            _ => self.look_bytes = NEAR_BYTES,
        }
    }

    fn expect_header(&mut self, bytes: usize) {
        match self.expected.back_mut() {
            Some(Expected::Header(before)) => *before += bytes,
            _ => self.expected.push_back(Expected::Header(bytes)),
        }
    }

    fn expect_payload(&mut self, bytes: u32, ranges: Vec<Range<Lease>>, told: bool) {
        if bytes != 0 {
            let filling = Filling { left_bytes: bytes as usize, ranges: ranges.into(), placed: Ok(()), told };
            self.expected.push_back(Expected::Payload(filling));
        }
    }

    /// The memory of the first payload cannot be had. What is due behind it is thrown away too: it must not be placed.
    fn memory_is_gone(&mut self) {
        self.alone = false;
        for filling in self.payloads() {
            filling.ranges.clear();
            filling.placed = Err(MemoryFault);
        }
    }
}

impl Stream {
    /// Receives what is there. `Err`: the stream is over.
    pub(super) fn receive(&mut self, mut qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<Moved, StreamEnd> {
        with_room(|room| {
            for _ in 0..ROUND {
                if self.rx.expected.is_empty() {
                    self.handle_held(qp.as_deref_mut(), cm, now)?;
                    // A flush has to end first.
                    if self.rx.held.is_some() {
                        return Ok(Moved::Idle);
                    }
                }
                if self.rx.expected.is_empty() {
                    // Requests behind the accept wait on the stream until our program has seen that, and made its queue pair ready for
                    // them: on hardware they are sent again.
                    if cm.is_answered() {
                        return Ok(Moved::Idle);
                    }
                    let Some(bytes) = self.look(&mut room[..self.rx.look_bytes])? else { return Ok(Moved::Idle) };
                    self.scan(&room[..bytes], true, qp.as_deref_mut(), cm, now)?;
                }
                match self.receive_once(room, !cm.is_answered()) {
                    Ok((bytes, asked)) => {
                        let Some(bytes) = received(bytes)? else { return Ok(Moved::Idle) };
                        if let Some(qp) = qp.as_deref_mut() {
                            qp.note_progress(now);
                        }
                        let further = self.came(bytes, qp.as_deref_mut(), now);
                        self.scan(&room[..further], false, qp.as_deref_mut(), cm, now)?;
                        self.handle_held(qp.as_deref_mut(), cm, now)?;
                        // There was no more, or memory is gone; that is found out where payload is due. What comes now has the socket tell
                        // of it; the end of the stream has told already.
                        if bytes < asked.bytes && self.rx.expected.is_empty() && !self.rx.ends {
                            return Ok(Moved::Idle);
                        }
                    }
                    Err(Fault { payloads }) if payloads > 1 => self.rx.alone = true,
                    Err(_) => self.rx.memory_is_gone(),
                }
            }
            Ok(Moved::More)
        })
    }

    /// Looks at what is there, and leaves it there.
    fn look(&self, room: &mut [u8]) -> Result<Option<usize>, StreamEnd> {
        // SAFETY: `room` is borrowed for us alone.
        received(unsafe { touch::peek(self.socket.as_fd(), &[Piece::room(room)]) })
    }

    /// Takes headers from `input`, and says what the socket has; `peeked`: these bytes too.
    fn scan(
        &mut self,
        mut input: &[u8],
        peeked: bool,
        mut qp: Option<&mut Qp>,
        cm: &mut Machine,
        now: Instant,
    ) -> Result<(), StreamEnd> {
        // Each payload is a piece at least, and each header between them. The answer is longer than what is taken without a look.
        while !input.is_empty() && self.rx.held.is_none() && self.rx.expected.len() < MAX_PIECES && !(peeked && cm.is_answered())
        {
            let before = input.len();
            let event = self.rx.decoder.next(&mut input);
            if peeked {
                self.rx.expect_header(before - input.len());
            }
            match event {
                Ok(Some(Event::Frame(frame))) => {
                    let payload = self.rx.decoder.payload_left();
                    self.rx.decoder.payload_taken(payload);
                    input = &input[input.len().min(payload as usize)..];
                    // Requests are queued behind each other, most of them; everything else has to wait for payload.
                    let waits = match (&frame, &qp) {
                        (Frame::Request(request), Some(qp)) => qp.holds_back(request),
                        (Frame::Request(_), None) => false,
                        _ => self.rx.payload_is_due(),
                    };
                    if waits {
                        self.rx.held = Some(Ok(frame));
                    } else {
                        self.handle(frame, qp.as_deref_mut(), cm, now)?;
                    }
                }
                Ok(Some(Event::Preamble(_))) => cm.greeted(now),
                Ok(None) => {}
                Err(e) => self.rx.held = Some(Err(e)),
            }
        }
        if self.rx.payload_is_due() { Ok(()) } else { self.handle_held(qp, cm, now) }
    }

    /// One call, for what is expected and, if `further`, for headers behind it.
    fn receive_once(&self, room: &mut [u8], further: bool) -> Result<(io::Result<usize>, Asked), Fault> {
        let mut pieces = Vec::with_capacity(2 * self.rx.expected.len() + 1);
        let mut touched = Vec::with_capacity(self.rx.expected.len());
        let mut asked = Asked { bytes: 0, payloads: 0 };
        let (behind, mut rest) = room.split_at_mut(self.rx.decoder.header_due());
        let mut is_all = true;
        for expected in &self.rx.expected {
            let free = MAX_PIECES - 1 - pieces.len();
            let (left_bytes, ranges) = match expected {
                Expected::Header(left_bytes) => (*left_bytes, None),
                Expected::Payload(filling) => (filling.left_bytes, Some(&filling.ranges)),
            };
            match ranges.filter(|ranges| !ranges.is_empty()) {
                Some(ranges) if asked.payloads > 0 && (self.rx.alone || ranges.len() > free) => is_all = false,
                Some(ranges) => {
                    let before = (pieces.len(), touched.len());
                    match set_aside(ranges, free, &mut pieces, &mut touched) {
                        Ok(bytes) => {
                            asked.payloads += 1;
                            asked.bytes += bytes;
                            is_all = bytes == left_bytes;
                        }
                        Err(MemoryFault) if asked.payloads == 0 => return Err(Fault { payloads: 1 }),
                        Err(MemoryFault) => {
                            pieces.truncate(before.0);
                            touched.truncate(before.1);
                            is_all = false;
                        }
                    }
                }
                None if free == 0 => is_all = false,
                None => {
                    let (thrown, left) = rest.split_at_mut(left_bytes.min(rest.len()));
                    is_all = thrown.len() == left_bytes;
                    asked.bytes += thrown.len();
                    pieces.push(Piece::room(thrown));
                    rest = left;
                }
            }
            if !is_all {
                break;
            }
        }
        // Behind a header that waits there may be payload.
        if further && is_all && self.rx.held.is_none() {
            asked.bytes += behind.len();
            pieces.push(Piece::room(behind));
        }
        // SAFETY: `touched` and the borrow of `room` outlive the call.
        match unsafe { touch::receive(self.socket.as_fd(), &pieces) } {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) && asked.payloads > 0 => Err(Fault { payloads: asked.payloads }),
            result => Ok((result, asked)),
        }
    }

    /// Counts what came. Returns how much of it is behind what was expected.
    fn came(&mut self, bytes: usize, mut qp: Option<&mut Qp>, now: Instant) -> usize {
        let mut left = bytes;
        while let (Some(first), true) = (self.rx.expected.front_mut(), left > 0) {
            let due = match first {
                Expected::Header(bytes) => bytes,
                Expected::Payload(filling) => {
                    take_front(&mut filling.ranges, left);
                    &mut filling.left_bytes
                }
            };
            let taken = left.min(*due);
            left -= taken;
            *due -= taken;
            if *due == 0
                && let Some(Expected::Payload(Filling { placed, told, .. })) = self.rx.expected.pop_front()
            {
                self.rx.alone = false;
                if let (false, Some(qp)) = (told, qp.as_deref_mut()) {
                    qp.payload_done(now, placed);
                }
            }
        }
        left
    }

    /// Handles what waited, if it need not any more.
    fn handle_held(&mut self, qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<(), StreamEnd> {
        let waits_for_flush = match (&self.rx.held, &qp) {
            (Some(Ok(Frame::Request(request))), Some(qp)) => qp.holds_back(request),
            _ => false,
        };
        if self.rx.payload_is_due() || waits_for_flush {
            return Ok(());
        }
        match self.rx.held.take() {
            Some(Ok(frame)) => self.handle(frame, qp, cm, now),
            Some(Err(e)) => {
                log::warn!("the other end's stream is damaged: {e}");
                Err(violation(qp))
            }
            None => Ok(()),
        }
    }

    fn handle(&mut self, frame: Frame, qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<(), StreamEnd> {
        let payload = frame.payload_bytes();
        let intake = match (frame, qp) {
            (Frame::Cm(frame), qp) => {
                return cm.handle_frame(now, frame).map_err(|_| {
                    log::warn!("the other end breaks the handshake");
                    violation(qp)
                });
            }
            // Its queue pair is gone: the other end learns that from the connection manager.
            (_, None) => {
                self.rx.expect_payload(payload, Vec::new(), true);
                return Ok(());
            }
            (Frame::Request(request), Some(qp)) => qp.handle_request(now, request),
            (Frame::Response(response), Some(qp)) => qp.handle_response(now, response),
        };
        let ranges = match intake {
            Ok(Intake::None | Intake::Discard) => Vec::new(),
            Ok(Intake::Fill(ranges)) => ranges,
            Err(e) => {
                log::warn!("the other end breaks the protocol: {e}");
                return Err(StreamEnd::Violation);
            }
        };
        self.rx.look_for_more_of(payload as usize);
        self.rx.expect_payload(payload, ranges, false);
        Ok(())
    }
}

/// Nothing that comes can be understood any more.
fn violation(qp: Option<&mut Qp>) -> StreamEnd {
    if let Some(qp) = qp {
        qp.move_to_error();
    }
    StreamEnd::Violation
}

/// Memory of one of so many payloads cannot be reached.
struct Fault {
    payloads: usize,
}
