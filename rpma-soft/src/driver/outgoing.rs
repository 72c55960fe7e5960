//! What a stream sends.
#![expect(unsafe_code, reason = "gives addresses of registered memory to the kernel")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use super::Moved;
use super::stream::{Qp, ROUND, Sending, Stream, set_aside, take_front};
use crate::cm::StreamEnd;
use crate::objects::memory::Lease;
use crate::objects::touch::{self, Piece};
use crate::rc::{MemoryFault, Payload, Range};
use crate::wire::{Frame, MAX_HEADER_BYTES};

/// Payload up to this size is copied behind its header, so that several messages go out in one system call. Longer payload is never
/// copied.
const COPY_BYTES: u32 = 1024;
/// How much of that is collected.
const STAGE_BYTES: usize = 16 * 1024;

impl Stream {
    /// Sends what can be sent. `Err`: the stream is over.
    pub(super) fn transmit(&mut self, mut qp: Option<&mut Qp>, now: Instant) -> Result<Moved, StreamEnd> {
        for _ in 0..ROUND {
            self.stage(qp.as_deref_mut(), now)?;
            if self.tx.is_empty() {
                return Ok(Moved::Idle);
            }
            let sent = self.send_once();
            let bytes = match sent {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::Idle),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => return Err(self.memory_is_gone(qp)),
                // What they sent before they went may be here still; receiving finds the end.
                Err(_) => return Ok(Moved::Idle),
            };
            if let Some(qp) = qp.as_deref_mut() {
                qp.note_progress(now);
            }
            if self.sent(bytes)
                && let Some(qp) = qp.as_deref_mut()
            {
                qp.transmit_done(now);
            }
        }
        Ok(Moved::More)
    }

    /// The header is out, and its payload cannot be had: the other end waits for bytes that never come.
    fn memory_is_gone(&mut self, qp: Option<&mut Qp>) -> StreamEnd {
        if let Some(qp) = qp {
            qp.move_to_error();
        }
        StreamEnd::Closed
    }

    /// Collects frames to send.
    fn stage(&mut self, qp: Option<&mut Qp>, now: Instant) -> Result<(), StreamEnd> {
        if self.tx.sending.is_some() {
            return Ok(());
        }
        if self.tx.sent == self.tx.staged.len() {
            self.tx.staged.clear();
            self.tx.sent = 0;
        }
        while let Some(frame) = self.tx.frames.pop_front() {
            self.stage_header(Frame::Cm(frame))?;
        }
        let Some(qp) = qp else { return Ok(()) };
        while self.tx.staged.len() < STAGE_BYTES {
            let Some(transmit) = qp.poll_transmit(now) else { return Ok(()) };
            let len_bytes = transmit.frame.payload_bytes();
            self.stage_header(transmit.frame)?;
            match transmit.payload {
                Payload::None => {}
                Payload::Inline(bytes) if len_bytes <= COPY_BYTES => self.tx.staged.extend_from_slice(&bytes),
                Payload::Inline(bytes) => {
                    self.tx.sending = Some(Sending { ranges: VecDeque::new(), inline: Some((bytes, 0)) });
                    return Ok(());
                }
                Payload::Memory(ranges) if len_bytes <= COPY_BYTES => {
                    if self.stage_copy(&ranges).is_err() {
                        return Err(self.memory_is_gone(Some(qp)));
                    }
                }
                Payload::Memory(ranges) => {
                    self.tx.sending = Some(Sending { ranges: ranges.into(), inline: None });
                    return Ok(());
                }
            }
            qp.transmit_done(now);
        }
        Ok(())
    }

    fn stage_header(&mut self, frame: Frame) -> Result<(), StreamEnd> {
        let mut header = [0; MAX_HEADER_BYTES];
        let size = frame.encode(&mut header).map_err(|e| {
            log::error!("a frame of ours cannot be sent: {e}");
            StreamEnd::Violation
        })?;
        self.tx.staged.extend_from_slice(&header[..size]);
        Ok(())
    }

    fn stage_copy(&mut self, ranges: &[Range<Lease>]) -> Result<(), MemoryFault> {
        for range in ranges {
            let touch = range.lease.region().touch()?;
            let at = self.tx.staged.len();
            self.tx.staged.resize(at + range.len_bytes as usize, 0);
            touch::copy_out(&touch, range.addr, &mut self.tx.staged[at..])?;
        }
        Ok(())
    }

    fn send_once(&self) -> io::Result<usize> {
        let tx = &self.tx;
        let mut pieces = Vec::with_capacity(4);
        let mut touched = Vec::with_capacity(2);
        let staged = &tx.staged[tx.sent..];
        if !staged.is_empty() {
            pieces.push(Piece::bytes(staged));
        }
        if let Some(sending) = &tx.sending {
            if let Some((bytes, from)) = &sending.inline {
                pieces.push(Piece::bytes(&bytes[*from..]));
            }
            set_aside(&sending.ranges, &mut pieces, &mut touched).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        }
        // SAFETY: `touched` and the borrows of `tx` outlive the call.
        unsafe { touch::send(self.socket.as_fd(), &pieces) }
    }

    /// Counts what was sent. Returns whether the payload that was not copied is sent whole.
    fn sent(&mut self, bytes: usize) -> bool {
        let tx = &mut self.tx;
        let staged = bytes.min(tx.staged.len() - tx.sent);
        tx.sent += staged;
        let mut left = bytes - staged;
        let Some(sending) = &mut tx.sending else { return false };
        if let Some((data, from)) = &mut sending.inline {
            *from += left;
            left = 0;
            if *from == data.len() {
                sending.inline = None;
            }
        }
        take_front(&mut sending.ranges, left);
        let done = sending.inline.is_none() && sending.ranges.is_empty();
        if done {
            tx.sending = None;
        }
        done
    }
}
