//! What a stream receives.
#![expect(unsafe_code, reason = "gives addresses of registered memory to the kernel")]

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Instant;

use super::Moved;
use super::stream::{Filling, Qp, ROUND, Stream, received, set_aside, take_front, with_room};
use crate::cm::{Machine, StreamEnd};
use crate::objects::memory::Touch;
use crate::objects::touch::{self, MAX_PIECES, Piece};
use crate::rc::{Intake, MemoryFault};
use crate::wire::{Event, Frame};

impl Stream {
    /// Receives what is there. `Err`: the stream is over.
    pub(super) fn receive(&mut self, mut qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<Moved, StreamEnd> {
        with_room(|room| {
            for _ in 0..ROUND {
                let due = self.decoder.payload_left() as usize;
                let bytes = match self.receive_once(room) {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => return Ok(Moved::Idle),
                    Err(Fault::End(end)) => return Err(end),
                    // What is left of the payload is thrown away.
                    Err(Fault::Memory) => {
                        if let Some(filling) = &mut self.filling {
                            filling.ranges.clear();
                            filling.placed = Err(MemoryFault);
                        }
                        continue;
                    }
                };
                if let Some(qp) = qp.as_deref_mut() {
                    qp.note_progress(now);
                }
                // Straight into memory, or into the room if there is none to fill; behind it, headers.
                let straight = if self.filling.as_ref().is_some_and(|filling| !filling.ranges.is_empty()) {
                    let straight = bytes.min(due);
                    self.payload_came(straight, qp.as_deref_mut(), now);
                    straight
                } else {
                    0
                };
                // Until there is nothing: the end of the stream may be right behind, and tells itself only once.
                self.take(&room[..bytes - straight], qp.as_deref_mut(), cm, now)?;
            }
            Ok(Moved::More)
        })
    }

    fn receive_once(&self, room: &mut [u8]) -> Result<Option<usize>, Fault> {
        let mut pieces = Vec::with_capacity(4);
        let mut touched = Vec::with_capacity(2);
        let mut whole = true;
        if let Some(filling) = &self.filling {
            whole = filling.ranges.len() < MAX_PIECES;
            set_aside(&filling.ranges, &mut pieces, &mut touched).map_err(|_| Fault::Memory)?;
        }
        if whole {
            pieces.push(Piece::room(room));
        }
        // SAFETY: `touched` and the borrow of `room` outlive the call.
        let result = unsafe { touch::receive(self.socket.as_fd(), &pieces) };
        match result {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) && !touched.is_empty() => Err(Fault::Memory),
            result => received(result).map_err(Fault::End),
        }
    }

    /// Takes what came into the room: payload first if it is due, then frames.
    fn take(&mut self, mut input: &[u8], mut qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<(), StreamEnd> {
        while !input.is_empty() {
            let due = self.decoder.payload_left() as usize;
            if due > 0 {
                let (payload, rest) = input.split_at(due.min(input.len()));
                input = rest;
                self.place(payload);
                self.payload_came(payload.len(), qp.as_deref_mut(), now);
                continue;
            }
            match self.decoder.next(&mut input) {
                Ok(Some(Event::Frame(frame))) => self.handle(frame, qp.as_deref_mut(), cm, now)?,
                Ok(Some(Event::Preamble(_))) => cm.greeted(now),
                Ok(None) => {}
                Err(e) => {
                    log::warn!("the other end's stream is damaged: {e}");
                    return Err(self.violation(qp));
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, frame: Frame, qp: Option<&mut Qp>, cm: &mut Machine, now: Instant) -> Result<(), StreamEnd> {
        let has_payload = frame.payload_bytes() != 0;
        let intake = match (frame, qp) {
            (Frame::Cm(frame), qp) => {
                return cm.handle_frame(now, frame).map_err(|_| {
                    log::warn!("the other end breaks the handshake");
                    self.violation(qp)
                });
            }
            // Its queue pair is gone: the other end learns that from the connection manager.
            (_, None) => {
                self.filling = has_payload.then(|| Filling { ranges: VecDeque::new(), placed: Ok(()), told: true });
                return Ok(());
            }
            (Frame::Request(request), Some(qp)) => qp.handle_request(now, request),
            (Frame::Response(response), Some(qp)) => qp.handle_response(now, response),
        };
        let ranges = match intake {
            Ok(Intake::None) => return Ok(()),
            Ok(Intake::Fill(ranges)) => ranges.into(),
            Ok(Intake::Discard) => VecDeque::new(),
            Err(e) => {
                log::warn!("the other end breaks the protocol: {e}");
                return Err(StreamEnd::Violation);
            }
        };
        self.filling = Some(Filling { ranges, placed: Ok(()), told: false });
        Ok(())
    }

    /// Nothing that comes can be understood any more.
    fn violation(&mut self, qp: Option<&mut Qp>) -> StreamEnd {
        if let Some(qp) = qp {
            qp.move_to_error();
        }
        StreamEnd::Violation
    }

    /// Copies payload that came in with headers to where it belongs. [`payload_came`](Self::payload_came) counts it.
    fn place(&mut self, mut payload: &[u8]) {
        let Some(filling) = &mut self.filling else { return };
        let mut at = 0;
        while let (Ok(()), Some(range), false) = (filling.placed, filling.ranges.get(at), payload.is_empty()) {
            let (piece, rest) = payload.split_at(payload.len().min(range.len_bytes as usize));
            let copy = |touch: Touch<'_>| touch::copy_in(&touch, range.addr, piece);
            filling.placed = range.lease.region().touch().and_then(copy);
            payload = rest;
            at += 1;
        }
        if filling.placed.is_err() {
            filling.ranges.clear();
        }
    }

    /// Counts payload as off the stream.
    fn payload_came(&mut self, bytes: usize, qp: Option<&mut Qp>, now: Instant) {
        let Ok(count) = u32::try_from(bytes) else { return };
        self.decoder.payload_taken(count);
        let over = self.decoder.payload_left() == 0;
        let Some(filling) = &mut self.filling else { return };
        take_front(&mut filling.ranges, bytes);
        if over {
            let (told, placed) = (filling.told, filling.placed);
            self.filling = None;
            if let (false, Some(qp)) = (told, qp) {
                qp.payload_done(now, placed);
            }
        }
    }
}

/// What ended a call that fills memory.
enum Fault {
    End(StreamEnd),
    Memory,
}
