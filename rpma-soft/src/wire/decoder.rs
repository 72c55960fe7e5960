//! Bytes as they arrive, to headers.

use super::{Frame, FrameError, MAX_HEADER_BYTES, PREAMBLE_BYTES, Preamble};

/// The size of the shortest header that payload follows (a send's).
const MIN_HEADER_BYTES_BEFORE_PAYLOAD: usize = 16;

/// What the decoder found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one lives on the stack at a time, and a box would be an allocation per frame")]
pub enum Event {
    /// The other end's preamble, once, before everything else.
    Preamble(Preamble),
    /// A header. [`Frame::payload_bytes`] of payload follow it on the stream, and do not go through the decoder.
    Frame(Frame),
}

/// Decodes one direction of a stream from whatever pieces it arrives in. It holds less than one header.
///
/// After a header with a payload the decoder takes nothing until it was told, with [`payload_taken`](Self::payload_taken), that the
/// payload is off the stream, or that the next bytes are from behind it. So that none of it is read with headers, a driver looks at what is
/// in the socket, or reads no more than [`header_due`](Self::header_due).
///
/// The first error is final: there is no way to find the next header.
#[derive(Debug, Clone)]
pub struct Decoder {
    partial: [u8; MAX_HEADER_BYTES],
    have: usize,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Preamble,
    Header,
    Payload { left: u32 },
    Failed(FrameError),
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self { partial: [0; MAX_HEADER_BYTES], have: 0, state: State::Preamble }
    }

    /// Takes bytes from the front of `input`, up to the end of the next header, and returns what it completes. `None`: all is taken,
    /// and the header is not complete; or nothing is taken, since payload is due first.
    ///
    /// # Errors
    ///
    /// [`FrameError`], the same for ever.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, FrameError> {
        match self.advance(input) {
            Ok(event) => Ok(event),
            Err(error) => {
                self.state = State::Failed(error);
                Err(error)
            }
        }
    }

    /// How many bytes are header for certain, whatever they are: payload begins behind them at the earliest. 0 if payload is due, or
    /// nothing can be understood any more.
    #[must_use]
    pub fn header_due(&self) -> usize {
        match self.state {
            State::Preamble => PREAMBLE_BYTES - self.have,
            State::Header if self.have == 0 => MIN_HEADER_BYTES_BEFORE_PAYLOAD,
            State::Header => Frame::header_bytes_of(self.partial[0]).map_or(0, |size| size - self.have),
            State::Payload { .. } | State::Failed(_) => 0,
        }
    }

    /// How many bytes of payload are still due before the next header.
    #[must_use]
    pub fn payload_left(&self) -> u32 {
        match self.state {
            State::Payload { left } => left,
            State::Preamble | State::Header | State::Failed(_) => 0,
        }
    }

    /// Counts `bytes` bytes of payload as taken off the stream; no more than are due.
    pub fn payload_taken(&mut self, bytes: u32) {
        if let State::Payload { left } = self.state {
            self.state = match left.saturating_sub(bytes) {
                0 => State::Header,
                left => State::Payload { left },
            };
        }
    }

    /// Whether the stream stands between two frames, where its end loses nothing.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Header) && self.have == 0
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Event>, FrameError> {
        let event = match self.state {
            State::Failed(error) => return Err(error),
            State::Payload { .. } => return Ok(None),
            State::Preamble => {
                if !self.fill(PREAMBLE_BYTES, input) {
                    return Ok(None);
                }
                let bytes = self.partial.first_chunk().expect("a header is longer than a preamble");
                self.state = State::Header;
                Event::Preamble(Preamble::decode(bytes)?)
            }
            State::Header => {
                if !self.fill(1, input) {
                    return Ok(None);
                }
                let kind = self.partial[0];
                let size = Frame::header_bytes_of(kind).ok_or(FrameError::Kind { kind })?;
                if !self.fill(size, input) {
                    return Ok(None);
                }
                let frame = Frame::decode(&self.partial[..size])?;
                if frame.payload_bytes() != 0 {
                    self.state = State::Payload { left: frame.payload_bytes() };
                }
                Event::Frame(frame)
            }
        };
        self.have = 0;
        Ok(Some(event))
    }

    /// Collects bytes until there are `size`, which is at most [`MAX_HEADER_BYTES`].
    fn fill(&mut self, size: usize, input: &mut &[u8]) -> bool {
        let missing = size.saturating_sub(self.have);
        let (taken, left) = input.split_at(missing.min(input.len()));
        self.partial[self.have..self.have + taken.len()].copy_from_slice(taken);
        self.have += taken.len();
        *input = left;
        self.have >= size
    }
}
