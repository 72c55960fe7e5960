//! The first bytes of a stream.

use super::fields::{Reader, Writer};
use super::{FrameError, PREAMBLE_BYTES};

const MAGIC: [u8; 8] = *b"RPMASOFT";

/// The first bytes of a stream, sent by both ends before anything else, so that neither takes a stranger's bytes for frames.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 8 | `RPMASOFT` in ASCII |
/// | 8 | 2 | version, [`Preamble::VERSION`] |
/// | 10 | 6 | reserved, 0 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    _private: (),
}

impl Preamble {
    /// The version of the protocol that this crate speaks.
    pub const VERSION: u16 = 1;

    /// The preamble's bytes.
    #[must_use]
    pub fn encode() -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        Writer::new(&mut bytes).bytes(&MAGIC).u16(Self::VERSION).reserved(6);
        bytes
    }

    /// Checks the other end's preamble.
    ///
    /// # Errors
    ///
    /// [`FrameError::Magic`], [`FrameError::Version`], or [`FrameError::Reserved`] with kind 0.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Self, FrameError> {
        let mut r = Reader::new(bytes);
        let magic = r.array();
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        // Before the reserved bytes: another version may use them.
        let version = r.u16();
        if version != Self::VERSION {
            return Err(FrameError::Version { found: version, ours: Self::VERSION });
        }
        r.reserved(6);
        if !r.reserved_is_zero() {
            return Err(FrameError::Reserved { kind: 0 });
        }
        Ok(Self { _private: () })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preamble_has_its_golden_bytes() {
        assert_eq!(Preamble::encode(), *b"RPMASOFT\x01\0\0\0\0\0\0\0");
        assert!(Preamble::decode(&Preamble::encode()).is_ok());
    }

    #[test]
    fn wrong_magic_is_named() {
        let found = *b"GET / HT";
        assert_eq!(Preamble::decode(b"GET / HTTP/1.1\r\n"), Err(FrameError::Magic { found }));
    }

    #[test]
    fn wrong_version_is_named_whatever_else_it_carries() {
        let bytes = *b"RPMASOFT\x02\x01\xFF\0\0\0\0\0";
        assert_eq!(Preamble::decode(&bytes), Err(FrameError::Version { found: 0x0102, ours: 1 }));
    }

    #[test]
    fn reserved_bytes_in_use_are_refused() {
        let bytes = *b"RPMASOFT\x01\0\0\0\0\0\0\x01";
        assert_eq!(Preamble::decode(&bytes), Err(FrameError::Reserved { kind: 0 }));
    }
}
