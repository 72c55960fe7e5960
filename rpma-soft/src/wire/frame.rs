//! Any frame: its header to bytes and back.

use super::fields::{Reader, Writer};
use super::{CmFrame, EncodeError, FrameError, Request, Response, cm, data};

/// A frame's header, decoded or to be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Of the connection manager.
    Cm(CmFrame),
    /// Of a send queue.
    Request(Request),
    /// To a request.
    Response(Response),
}

impl Frame {
    /// The size of the header of a frame that begins with `kind`.
    pub(super) fn header_bytes_of(kind: u8) -> Option<usize> {
        cm::header_bytes(kind).or(data::header_bytes(kind))
    }

    /// The size of this frame's header.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        Self::header_bytes_of(self.kind()).expect("every kind that we make has a size")
    }

    /// How many bytes of payload follow the header.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        match self {
            Self::Cm(_) => 0,
            Self::Request(request) => request.payload_bytes(),
            Self::Response(response) => response.payload_bytes(),
        }
    }

    /// Writes the header to the front of `buf` and returns its size. [`MAX_HEADER_BYTES`](super::MAX_HEADER_BYTES) are always enough.
    ///
    /// # Errors
    ///
    /// [`EncodeError`]; `buf` is then untouched.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        match self {
            Self::Cm(frame) => frame.check()?,
            Self::Request(request) => request.check()?,
            Self::Response(response) => response.check()?,
        }
        let (need_bytes, have_bytes) = (self.header_bytes(), buf.len());
        let header = buf.get_mut(..need_bytes).ok_or(EncodeError::Buffer { need_bytes, have_bytes })?;
        let mut w = Writer::new(header);
        match self {
            Self::Cm(frame) => frame.write(&mut w),
            Self::Request(request) => request.write(&mut w),
            Self::Response(response) => response.write(&mut w),
        }
        Ok(need_bytes)
    }

    /// Reads a header, which is exactly as long as its kind says.
    pub(super) fn decode(header: &[u8]) -> Result<Self, FrameError> {
        let mut r = Reader::new(header);
        let kind = r.u8();
        let frame = match kind {
            0x00..0x10 => Self::Cm(CmFrame::read(kind, &mut r)?),
            0x10..0x20 => Self::Request(Request::read(kind, &mut r)?),
            _ => Self::Response(Response::read(kind, &mut r)?),
        };
        if !r.reserved_is_zero() {
            return Err(FrameError::Reserved { kind });
        }
        Ok(frame)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Cm(frame) => frame.kind(),
            Self::Request(request) => request.kind(),
            Self::Response(response) => response.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MAX_HEADER_BYTES;

    #[test]
    fn no_header_is_longer_than_the_maximum() {
        let longest = (0..=u8::MAX).filter_map(Frame::header_bytes_of).max();
        assert_eq!(longest, Some(MAX_HEADER_BYTES));
    }

    #[test]
    fn buffer_one_byte_short_is_refused_and_untouched() {
        let frame = Frame::Cm(CmFrame::Ready);
        let mut buf = [0xAA; 7];
        assert_eq!(frame.encode(&mut buf), Err(EncodeError::Buffer { need_bytes: 8, have_bytes: 7 }));
        assert_eq!(buf, [0xAA; 7]);
    }
}
