//! What a peer says of its platform.

use crate::ErrorCode;
use std::ops::Deref;

/// What a peer says of its platform, so that the other side knows how to flush to it.
///
/// Peers exchange it by a way of their own, most often in a connection's private data. The first
/// byte is the C library's format: 0 if remote writes do not reach persistent memory directly,
/// anything else if they do. A second byte, if there is one, tells which operations the peer's
/// device has; the C library neither writes nor reads it:
///
/// | bit of byte 1 | meaning |
/// |---|---|
/// | 0 | native flush |
/// | 1 | native atomic write |
/// | 2–7 | reserved, 0 |
///
/// ```
/// use rpma_mr::{NativeOps, PeerCfg};
///
/// let cfg = PeerCfg::new()
///     .with_direct_write_to_pmem(true)
///     .with_native_ops(Some(NativeOps { flush: true, atomic_write: false }));
/// assert_eq!(*cfg.to_bytes(), [1, 0b01]);
/// assert_eq!(PeerCfg::from_bytes(&cfg.to_bytes()), Ok(cfg));
///
/// // A peer that runs the C library sends one byte.
/// let cfg = PeerCfg::from_bytes(&[1]).unwrap();
/// assert!(cfg.direct_write_to_pmem());
/// assert_eq!(cfg.native_ops(), None);
/// ```
#[doc(alias = "rpma_peer_cfg_delete")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PeerCfg {
    direct_write_to_pmem: bool,
    native_ops: Option<NativeOps>,
}

/// Which operations a device has itself; the others are emulated.
///
/// ```
/// use rpma_mr::{NativeOps, PeerCfg};
///
/// // A second byte says what the device has; a C program sends one.
/// assert_eq!(PeerCfg::from_bytes(&[1, 0b01])?.native_ops(), Some(NativeOps { flush: true, atomic_write: false }));
/// assert_eq!(PeerCfg::from_bytes(&[1])?.native_ops(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NativeOps {
    /// The device answers the native flush operation.
    pub flush: bool,
    /// The device answers the native atomic write operation.
    pub atomic_write: bool,
}

/// Why something is no peer configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerCfgError {
    /// There is no byte to decode.
    #[error("0 bytes are no peer configuration: it has at least 1")]
    Empty,
}

impl PeerCfgError {
    /// The C library's code for this error.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Empty => ErrorCode::InvalidArgument,
        }
    }
}

const NATIVE_FLUSH: u8 = 1 << 0;
const NATIVE_ATOMIC_WRITE: u8 = 1 << 1;

impl PeerCfg {
    /// The greatest length of an encoded peer configuration in bytes.
    #[doc(alias = "rpma_peer_cfg_get_descriptor_size")]
    pub const MAX_SIZE_BYTES: usize = 2;

    /// A configuration without direct write to persistent memory, and silent about native
    /// operations.
    #[doc(alias = "rpma_peer_cfg_new")]
    #[must_use]
    pub const fn new() -> Self {
        Self { direct_write_to_pmem: false, native_ops: None }
    }

    /// States whether data written by a peer reaches this platform's persistent memory without
    /// stopping in volatile caches. Only with it may a peer flush to persistence.
    ///
    /// A device with native flush brings data there by itself, out of caches too: it is true then of
    /// any region that was registered with FLUSH_TYPE_PERSISTENT and has kept it.
    #[doc(alias = "rpma_peer_cfg_set_direct_write_to_pmem")]
    #[must_use]
    pub const fn with_direct_write_to_pmem(self, direct_write_to_pmem: bool) -> Self {
        Self { direct_write_to_pmem, ..self }
    }

    /// States which operations this platform's device has itself. With `None`, the other side
    /// decides by its own device alone, as the C library does.
    #[must_use]
    pub const fn with_native_ops(self, native_ops: Option<NativeOps>) -> Self {
        Self { native_ops, ..self }
    }

    /// Whether data written by a peer reaches persistent memory directly.
    #[doc(alias = "rpma_peer_cfg_get_direct_write_to_pmem")]
    #[must_use]
    pub const fn direct_write_to_pmem(&self) -> bool {
        self.direct_write_to_pmem
    }

    /// Which operations the device has itself, or `None` if the peer did not say, as a peer that
    /// runs the C library never does.
    #[must_use]
    pub const fn native_ops(&self) -> Option<NativeOps> {
        self.native_ops
    }

    /// Encodes the configuration: 2 bytes if native operations are stated, else 1.
    #[doc(alias = "rpma_peer_cfg_get_descriptor")]
    #[must_use]
    pub const fn to_bytes(&self) -> PeerCfgBytes {
        let [direct_write] = self.to_c_bytes();
        match self.native_ops {
            None => PeerCfgBytes { bytes: [direct_write, 0], has_native_ops: false },
            Some(ops) => {
                let mut native = 0;
                if ops.flush {
                    native |= NATIVE_FLUSH;
                }
                if ops.atomic_write {
                    native |= NATIVE_ATOMIC_WRITE;
                }
                PeerCfgBytes { bytes: [direct_write, native], has_native_ops: true }
            }
        }
    }

    /// Encodes the part that the C library knows, in its format. For peers that check the length
    /// of what they get.
    ///
    /// ```
    /// use rpma_mr::{NativeOps, PeerCfg};
    ///
    /// let cfg = PeerCfg::new().with_direct_write_to_pmem(true).with_native_ops(Some(NativeOps::default()));
    /// assert_eq!((cfg.to_c_bytes(), cfg.to_bytes().len()), ([1], 2));
    /// ```
    #[must_use]
    pub const fn to_c_bytes(&self) -> [u8; 1] {
        [self.direct_write_to_pmem as u8]
    }

    /// Decodes a configuration from the first one or two bytes of `bytes`; what follows is
    /// ignored.
    ///
    /// Pass exactly the peer configuration, and not a whole private data field: the field is
    /// padded with zeros, and the byte after a C peer's configuration may belong to something
    /// else. A second byte with a reserved bit set was not written by this library, so it is
    /// ignored; but a zero is taken for "no native operations".
    ///
    /// # Errors
    ///
    /// [`PeerCfgError::Empty`] if there is no byte.
    #[doc(alias = "rpma_peer_cfg_from_descriptor")]
    pub const fn from_bytes(bytes: &[u8]) -> Result<Self, PeerCfgError> {
        let (direct_write, native_ops) = match *bytes {
            [] => return Err(PeerCfgError::Empty),
            [direct_write] => (direct_write, None),
            [direct_write, native, ..] => (direct_write, decode_native_ops(native)),
        };
        Ok(Self { direct_write_to_pmem: direct_write != 0, native_ops })
    }
}

const fn decode_native_ops(native: u8) -> Option<NativeOps> {
    if native & !(NATIVE_FLUSH | NATIVE_ATOMIC_WRITE) != 0 {
        return None;
    }
    Some(NativeOps { flush: native & NATIVE_FLUSH != 0, atomic_write: native & NATIVE_ATOMIC_WRITE != 0 })
}

impl TryFrom<&[u8]> for PeerCfg {
    type Error = PeerCfgError;

    fn try_from(bytes: &[u8]) -> Result<Self, PeerCfgError> {
        Self::from_bytes(bytes)
    }
}

/// An encoded [`PeerCfg`]: one or two bytes, which it dereferences to.
///
/// ```
/// use rpma_mr::{NativeOps, PeerCfg};
///
/// let cfg = PeerCfg::new().with_direct_write_to_pmem(true);
/// let mut hello = b"my descriptor".to_vec();
/// hello.extend(&*cfg.to_bytes()); // a slice of as many bytes as it has
/// assert_eq!(hello.len(), 13 + 1);
/// assert_eq!(cfg.with_native_ops(Some(NativeOps::default())).to_bytes().len(), 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerCfgBytes {
    bytes: [u8; PeerCfg::MAX_SIZE_BYTES],
    has_native_ops: bool,
}

impl Deref for PeerCfgBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let [direct_write, _] = &self.bytes;
        if self.has_native_ops { &self.bytes } else { std::slice::from_ref(direct_write) }
    }
}

impl AsRef<[u8]> for PeerCfgBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cfg(direct_write: bool, native: Option<(bool, bool)>) -> PeerCfg {
        PeerCfg::new()
            .with_direct_write_to_pmem(direct_write)
            .with_native_ops(native.map(|(flush, atomic_write)| NativeOps { flush, atomic_write }))
    }

    fn golden() -> [(PeerCfg, &'static [u8]); 10] {
        [
            (cfg(false, None), &[0x00]),
            (cfg(true, None), &[0x01]),
            (cfg(false, Some((false, false))), &[0x00, 0x00]),
            (cfg(false, Some((true, false))), &[0x00, 0x01]),
            (cfg(false, Some((false, true))), &[0x00, 0x02]),
            (cfg(false, Some((true, true))), &[0x00, 0x03]),
            (cfg(true, Some((false, false))), &[0x01, 0x00]),
            (cfg(true, Some((true, false))), &[0x01, 0x01]),
            (cfg(true, Some((false, true))), &[0x01, 0x02]),
            (cfg(true, Some((true, true))), &[0x01, 0x03]),
        ]
    }

    #[test]
    fn configuration_is_copied_and_holds_nothing_to_free() {
        fn is_copy<T: Copy>() {}
        is_copy::<PeerCfg>();
        assert!(!std::mem::needs_drop::<PeerCfg>());
    }

    #[test]
    fn configuration_has_its_golden_bytes_both_ways() {
        for (cfg, bytes) in golden() {
            assert_eq!(*cfg.to_bytes(), *bytes, "{cfg:?}");
            assert_eq!(cfg.to_bytes().as_ref(), bytes, "{cfg:?}");
            assert_eq!(PeerCfg::from_bytes(bytes), Ok(cfg), "{bytes:?}");
        }
    }

    #[test]
    fn c_bytes_leave_native_operations_out() {
        for (cfg, bytes) in golden() {
            assert_eq!(cfg.to_c_bytes(), bytes[..1], "{cfg:?}");
        }
    }

    #[test]
    fn new_configuration_is_the_default_one_without_direct_write() {
        assert_eq!(PeerCfg::new(), PeerCfg::default());
        assert!(!PeerCfg::new().direct_write_to_pmem());
        assert_eq!(PeerCfg::new().native_ops(), None);
    }

    #[test]
    fn every_first_byte_but_zero_is_true_and_written_back_as_one() {
        for byte in 1..=u8::MAX {
            let decoded = PeerCfg::from_bytes(&[byte]).unwrap();
            assert!(decoded.direct_write_to_pmem(), "{byte}");
            assert_eq!(*decoded.to_bytes(), [1]);
        }
    }

    #[test]
    fn second_byte_with_a_reserved_bit_is_not_ours() {
        for byte in 4..=u8::MAX {
            assert_eq!(PeerCfg::from_bytes(&[1, byte]), Ok(cfg(true, None)), "{byte:#04x}");
        }
    }

    #[test]
    fn decoding_ignores_what_follows_the_second_byte() {
        let decoded = PeerCfg::from_bytes(&[1, 3, 0xFF, 0xFF, 0xFF]);
        assert_eq!(decoded, Ok(cfg(true, Some((true, true)))));
    }

    #[test]
    fn decoding_nothing_is_an_error() {
        assert_eq!(PeerCfg::from_bytes(&[]), Err(PeerCfgError::Empty));
        assert_eq!(PeerCfgError::Empty.code(), ErrorCode::InvalidArgument);
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_and_decodes_to_the_same_configuration(
            bytes in proptest::collection::vec(any::<u8>(), 1..8),
        ) {
            let decoded = PeerCfg::from_bytes(&bytes).unwrap();
            prop_assert_eq!(PeerCfg::try_from(&*decoded.to_bytes()), Ok(decoded));
        }
    }
}
