//! What a stream sends: headers and inline data, which are collected, and registered memory from where it lies, many frames in one call.
#![expect(unsafe_code, reason = "gives addresses of registered memory to the kernel")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use super::Moved;
use super::stream::{Qp, ROUND, Stream, set_aside, take_front};
use crate::cm::StreamEnd;
use crate::objects::memory::Lease;
use crate::objects::touch::{self, MAX_PIECES, Piece};
use crate::rc::{MemoryFault, Payload, Range};
use crate::wire::{CmFrame, Frame, MAX_HEADER_BYTES, Preamble};

/// How many bytes of headers and inline data are collected.
const STAGE_BYTES: usize = 16 * 1024;
/// How many frames, each of which is two pieces at least.
const STAGE_FRAMES: usize = MAX_PIECES / 2;
/// With so much payload under way nothing is won by more.
const STAGE_PAYLOAD_BYTES: usize = 32 * 1024;

/// What is sent.
#[derive(Debug)]
pub(super) struct Tx {
    /// Headers and inline data of the frames.
    staged: Vec<u8>,
    /// What is under way, in order.
    frames: VecDeque<Leaving>,
    /// Behind them: what the connection manager says.
    cm: VecDeque<CmFrame>,
    /// After a fault: one frame at a time, to find out whose it is.
    alone: bool,
}

/// A frame that is under way.
#[derive(Debug)]
struct Leaving {
    of: Of,
    /// Something of it is sent.
    begun: bool,
    /// What is left of its part of [`Tx::staged`].
    from: usize,
    to: usize,
    /// Registered memory behind that; what is left of it.
    ranges: VecDeque<Range<Lease>>,
}

/// Whose a frame is, which is told when it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The connection manager, or a queue pair that is gone.
    Nobody,
    Requester,
    Responder,
}

impl Tx {
    /// The preamble is sent first.
    pub(super) fn new() -> Self {
        let staged = Vec::from(Preamble::encode());
        let preamble = Leaving { of: Of::Nobody, begun: false, from: 0, to: staged.len(), ranges: VecDeque::new() };
        Self { staged, frames: VecDeque::from([preamble]), cm: VecDeque::new(), alone: false }
    }

    /// Sends a frame of the connection manager's behind what is under way.
    pub(super) fn send(&mut self, frame: CmFrame) {
        self.cm.push_back(frame);
    }

    /// Whether a request, or memory, is under way.
    pub(super) fn holds_work(&self) -> bool {
        self.frames.iter().any(|frame| frame.of == Of::Requester || !frame.ranges.is_empty())
    }

    /// Drops the requests of which nothing is sent. Returns how many: all of a queue pair's but one that is half sent.
    pub(super) fn withdraw_requests(&mut self) -> usize {
        let before = self.frames.len();
        self.frames.retain(|frame| frame.begun || frame.of != Of::Requester);
        before - self.frames.len()
    }

    /// The queue pair goes away, and its memory. `Err` if a frame is half sent that cannot be sent to its end without.
    pub(super) fn forget_qp(&mut self) -> Result<(), StreamEnd> {
        // Behind one that is dropped the other end would miss it.
        let mut dropped = false;
        self.frames.retain(|frame| {
            dropped |= !frame.begun && !frame.ranges.is_empty();
            frame.of == Of::Nobody || !dropped
        });
        for frame in &mut self.frames {
            frame.of = Of::Nobody;
        }
        if self.frames.iter().all(|frame| frame.ranges.is_empty()) { Ok(()) } else { Err(StreamEnd::Closed) }
    }

    fn stage(&mut self, of: Of, frame: Frame, inline: &[u8], ranges: Vec<Range<Lease>>) -> Result<(), StreamEnd> {
        let mut header = [0; MAX_HEADER_BYTES];
        let size = frame.encode(&mut header).map_err(|e| {
            log::error!("a frame of ours cannot be sent: {e}");
            StreamEnd::Violation
        })?;
        let from = self.staged.len();
        self.staged.extend_from_slice(&header[..size]);
        self.staged.extend_from_slice(inline);
        self.frames.push_back(Leaving { of, begun: false, from, to: self.staged.len(), ranges: ranges.into() });
        Ok(())
    }
}

impl Stream {
    /// Sends what can be sent. `Err`: the stream is over.
    pub(super) fn transmit(&mut self, mut qp: Option<&mut Qp>, now: Instant) -> Result<Moved, StreamEnd> {
        for _ in 0..ROUND {
            self.stage(qp.as_deref_mut(), now)?;
            if self.tx.frames.is_empty() {
                return Ok(Moved::Idle);
            }
            let bytes = match self.send_once() {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::Idle),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) && !self.tx.alone => {
                    self.tx.alone = true;
                    continue;
                }
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => return Err(memory_is_gone(qp)),
                // What they sent before they went may be here still; receiving finds the end.
                Err(_) => return Ok(Moved::Idle),
            };
            if let Some(qp) = qp.as_deref_mut() {
                qp.note_progress(now);
            }
            self.sent(bytes, qp.as_deref_mut(), now);
        }
        Ok(Moved::More)
    }

    /// Collects frames to send.
    fn stage(&mut self, qp: Option<&mut Qp>, now: Instant) -> Result<(), StreamEnd> {
        let tx = &mut self.tx;
        // The socket is full: more is taken when it is out.
        if tx.frames.front().is_some_and(|frame| frame.begun) {
            return Ok(());
        }
        if tx.frames.is_empty() {
            tx.staged.clear();
            tx.alone = false;
        }
        while let Some(frame) = tx.cm.pop_front() {
            tx.stage(Of::Nobody, Frame::Cm(frame), &[], Vec::new())?;
        }
        let Some(qp) = qp else { return Ok(()) };
        let mut payload: usize = tx.frames.iter().flat_map(|frame| &frame.ranges).map(|range| range.len_bytes as usize).sum();
        while tx.staged.len() < STAGE_BYTES && tx.frames.len() < STAGE_FRAMES && payload < STAGE_PAYLOAD_BYTES {
            let Some(transmit) = qp.poll_transmit(now) else { break };
            let of = if matches!(transmit.frame, Frame::Request(_)) { Of::Requester } else { Of::Responder };
            match transmit.payload {
                Payload::None => tx.stage(of, transmit.frame, &[], Vec::new())?,
                Payload::Inline(bytes) => tx.stage(of, transmit.frame, &bytes, Vec::new())?,
                Payload::Memory(ranges) => {
                    payload += transmit.frame.payload_bytes() as usize;
                    tx.stage(of, transmit.frame, &[], ranges)?;
                }
            }
        }
        Ok(())
    }

    /// One call, for as many frames as it takes.
    fn send_once(&self) -> io::Result<usize> {
        let Tx { staged, frames, alone, .. } = &self.tx;
        let mut pieces = Vec::with_capacity(2 * frames.len());
        let mut touched = Vec::with_capacity(frames.len());
        // Headers without payload behind them are one piece.
        let (mut from, mut to) = (0, 0);
        let mut first = true;
        for frame in frames {
            let free = MAX_PIECES.saturating_sub(pieces.len() + 2);
            if !first && (*alone || free < frame.ranges.len()) {
                break;
            }
            if frame.from != to {
                if from != to {
                    pieces.push(Piece::bytes(&staged[from..to]));
                }
                from = frame.from;
            }
            to = frame.to;
            if !frame.ranges.is_empty() {
                let before = (pieces.len(), touched.len());
                if from != to {
                    pieces.push(Piece::bytes(&staged[from..to]));
                }
                match set_aside(&frame.ranges, free, &mut pieces, &mut touched) {
                    Ok(_) => {}
                    Err(MemoryFault) if first => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                    Err(MemoryFault) => {
                        pieces.truncate(before.0);
                        touched.truncate(before.1);
                        to = frame.from;
                        break;
                    }
                }
                from = to;
                if free < frame.ranges.len() {
                    break;
                }
            }
            first = false;
        }
        if from < to {
            pieces.push(Piece::bytes(&staged[from..to]));
        }
        // SAFETY: `touched` and the borrows of `tx` outlive the call.
        unsafe { touch::send(self.socket.as_fd(), &pieces) }
    }

    /// Counts what was sent, and tells the queue pair of frames that are sent whole.
    fn sent(&mut self, bytes: usize, mut qp: Option<&mut Qp>, now: Instant) {
        let mut left = bytes;
        while let (Some(first), true) = (self.tx.frames.front_mut(), left > 0) {
            first.begun = true;
            let staged = left.min(first.to - first.from);
            first.from += staged;
            left -= staged;
            left -= take_front(&mut first.ranges, left);
            if first.from == first.to && first.ranges.is_empty() {
                let of = first.of;
                self.tx.frames.pop_front();
                self.tx.alone = false;
                if let (Of::Requester | Of::Responder, Some(qp)) = (of, qp.as_deref_mut()) {
                    qp.transmit_done(now);
                }
            }
        }
    }
}

/// The other end waits for bytes that never come, or misses a frame.
fn memory_is_gone(qp: Option<&mut Qp>) -> StreamEnd {
    if let Some(qp) = qp {
        qp.move_to_error();
    }
    StreamEnd::Closed
}
