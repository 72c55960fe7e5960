//! The descriptor of a memory region: what one side sends so that the other can reach its memory.

use crate::{ErrorCode, Usage};

/// The descriptor of a registered memory region, as it travels between peers.
///
/// On the wire it has 21 bytes, little-endian and without padding, the same as the C library's:
///
/// | bytes | content |
/// |---|---|
/// | 0–7 | address of the first byte in the owner's address space |
/// | 8–15 | length in bytes |
/// | 16–19 | remote key |
/// | 20 | [`Usage`] |
///
/// A value of this type always has a usage other than 0, and `addr + len_bytes` fits in 64 bits.
/// Nothing more is known of it: it comes from a peer, and only the peer's device knows whether
/// the memory is there.
///
/// ```
/// use rpma_mr::{MrDescriptor, Usage};
///
/// let descriptor = MrDescriptor::new(0x10_0000, 4096, 7, Usage::READ_SRC)?;
/// let sent = descriptor.to_bytes();
/// assert_eq!(sent.len(), MrDescriptor::SIZE_BYTES);
/// let received = MrDescriptor::from_bytes(&sent)?;
/// assert_eq!((received.addr(), received.len_bytes(), received.rkey()), (0x10_0000, 4096, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MrDescriptor {
    addr: u64,
    len_bytes: u64,
    rkey: u32,
    usage: Usage,
}

/// Why something is no descriptor of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum DescriptorError {
    /// The peer sent less than a descriptor, or the caller passed a part of one.
    #[error("{have_bytes} bytes are no memory descriptor: it has {need_bytes}")]
    TooShort { have_bytes: usize, need_bytes: usize },
    /// A region without any usage. The C library refuses it too.
    #[error("a memory descriptor without any usage")]
    NoUsage,
    /// A region that wraps the address space. The C library takes it.
    #[error("a memory descriptor of {len_bytes} bytes at {addr:#x}, whose end is not below 2^64")]
    Wraps { addr: u64, len_bytes: u64 },
}

impl DescriptorError {
    /// The C library's code for this error.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::TooShort { .. } | Self::NoUsage | Self::Wraps { .. } => ErrorCode::InvalidArgument,
        }
    }
}

impl MrDescriptor {
    /// The length of an encoded descriptor in bytes.
    #[doc(alias = "rpma_mr_get_descriptor_size")]
    pub const SIZE_BYTES: usize = 21;

    /// Makes a descriptor from its parts. Length 0 and address 0 are allowed.
    ///
    /// The end `addr + len_bytes` must be at most 2^64 - 1, so the last byte of the address space
    /// belongs to no region. That makes every end of a region and of its slices a `u64`, and
    /// excludes nothing that exists: Linux registers no range with a greater end (`ib_umem_get`).
    ///
    /// # Errors
    ///
    /// [`DescriptorError::NoUsage`] if `usage` is empty, [`DescriptorError::Wraps`] if the end is
    /// greater than 2^64 - 1.
    pub const fn new(addr: u64, len_bytes: u64, rkey: u32, usage: Usage) -> Result<Self, DescriptorError> {
        if usage.is_empty() {
            return Err(DescriptorError::NoUsage);
        }
        if addr.checked_add(len_bytes).is_none() {
            return Err(DescriptorError::Wraps { addr, len_bytes });
        }
        Ok(Self { addr, len_bytes, rkey, usage })
    }

    /// Decodes a descriptor from the first 21 bytes of `bytes`; what follows is ignored.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`], each variant; see [`MrDescriptor::new`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let too_short = DescriptorError::TooShort { have_bytes: bytes.len(), need_bytes: Self::SIZE_BYTES };
        let (addr, rest) = bytes.split_first_chunk().ok_or(too_short)?;
        let (len_bytes, rest) = rest.split_first_chunk().ok_or(too_short)?;
        let (rkey, rest) = rest.split_first_chunk().ok_or(too_short)?;
        let usage = rest.first().ok_or(too_short)?;
        Self::new(
            u64::from_le_bytes(*addr),
            u64::from_le_bytes(*len_bytes),
            u32::from_le_bytes(*rkey),
            // All eight bits are defined, so there is nothing to retain and nothing to refuse.
            Usage::from_bits_retain(*usage),
        )
    }

    /// Encodes the descriptor.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE_BYTES] {
        let mut bytes = [0; Self::SIZE_BYTES];
        bytes[0..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[20] = self.usage.bits();
        bytes
    }

    /// The address of the first byte in the owner's address space.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// The length of the region in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The remote key, in host order.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What the region may be used for. Never empty.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.usage
    }
}

impl TryFrom<&[u8]> for MrDescriptor {
    type Error = DescriptorError;

    fn try_from(bytes: &[u8]) -> Result<Self, DescriptorError> {
        Self::from_bytes(bytes)
    }
}

impl From<MrDescriptor> for [u8; MrDescriptor::SIZE_BYTES] {
    fn from(descriptor: MrDescriptor) -> Self {
        descriptor.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The C library's format, written out by hand for `golden()`.
    const GOLDEN_BYTES: [u8; 21] = [
        0x00, 0x10, 0xAD, 0xDE, 0xEF, 0x7F, 0x00, 0x00, // raddr 0x00007fefdead1000
        0x78, 0x56, 0x34, 0x12, 0x01, 0x00, 0x00, 0x00, // size 0x0000000112345678
        0x0D, 0xF0, 0xAD, 0x8B, // rkey 0x8badf00d
        0x29, // READ_SRC, WRITE_DST, FLUSH_TYPE_PERSISTENT
    ];

    fn golden() -> MrDescriptor {
        MrDescriptor::new(
            0x7FEF_DEAD_1000,
            0x1_1234_5678,
            0x8BAD_F00D,
            Usage::READ_SRC | Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT,
        )
        .unwrap()
    }

    #[test]
    fn descriptor_encodes_to_the_c_librarys_bytes() {
        assert_eq!(golden().to_bytes(), GOLDEN_BYTES);
        assert_eq!(<[u8; 21]>::from(golden()), GOLDEN_BYTES);
    }

    #[test]
    fn descriptor_decodes_from_the_c_librarys_bytes() {
        let decoded = MrDescriptor::from_bytes(&GOLDEN_BYTES).unwrap();
        assert_eq!(decoded, golden());
        assert_eq!(decoded.addr(), 0x7FEF_DEAD_1000);
        assert_eq!(decoded.len_bytes(), 0x1_1234_5678);
        assert_eq!(decoded.rkey(), 0x8BAD_F00D);
        assert_eq!(decoded.usage().bits(), 0x29);
        assert_eq!(MrDescriptor::try_from(&GOLDEN_BYTES[..]), Ok(decoded));
    }

    #[test]
    fn decoding_fewer_than_21_bytes_tells_how_many_there_were() {
        for have_bytes in 0..21 {
            assert_eq!(
                MrDescriptor::from_bytes(&GOLDEN_BYTES[..have_bytes]),
                Err(DescriptorError::TooShort { have_bytes, need_bytes: 21 })
            );
        }
    }

    #[test]
    fn decoding_ignores_what_follows_the_descriptor() {
        for len in [21, 22, 100] {
            let mut bytes = vec![0xA5; len];
            bytes[..21].copy_from_slice(&GOLDEN_BYTES);
            assert_eq!(MrDescriptor::from_bytes(&bytes), Ok(golden()), "{len}");
        }
    }

    #[test]
    fn decoding_works_at_every_alignment() {
        for offset in 0..16 {
            let mut bytes = vec![0xA5; offset + 21];
            bytes[offset..].copy_from_slice(&GOLDEN_BYTES);
            assert_eq!(MrDescriptor::from_bytes(&bytes[offset..]), Ok(golden()), "{offset}");
        }
    }

    #[test]
    fn every_usage_byte_but_zero_decodes() {
        let mut bytes = GOLDEN_BYTES;
        bytes[20] = 0;
        assert_eq!(MrDescriptor::from_bytes(&bytes), Err(DescriptorError::NoUsage));
        for usage in 1..=u8::MAX {
            bytes[20] = usage;
            let decoded = MrDescriptor::from_bytes(&bytes).unwrap();
            assert_eq!(decoded.usage().bits(), usage);
            assert_eq!(decoded.to_bytes(), bytes);
        }
    }

    #[test]
    fn address_zero_and_length_zero_decode() {
        let mut bytes = [0; 21];
        bytes[20] = 1;
        let decoded = MrDescriptor::from_bytes(&bytes).unwrap();
        assert_eq!((decoded.addr(), decoded.len_bytes()), (0, 0));
        assert_eq!(decoded.to_bytes(), bytes);
    }

    #[test]
    fn end_of_a_region_is_at_most_the_greatest_address() {
        let new = |addr, len_bytes| MrDescriptor::new(addr, len_bytes, 1, Usage::READ_SRC);
        for (addr, len_bytes) in [(u64::MAX, 0), (0, u64::MAX), (u64::MAX - 4096, 4096)] {
            assert!(new(addr, len_bytes).is_ok(), "{addr:#x} + {len_bytes:#x}");
        }
        for (addr, len_bytes) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX - 4095, 4096), (u64::MAX, u64::MAX)] {
            assert_eq!(new(addr, len_bytes), Err(DescriptorError::Wraps { addr, len_bytes }));
        }
    }

    #[test]
    fn every_descriptor_error_is_an_invalid_argument_to_the_c_library() {
        let errors = [
            MrDescriptor::from_bytes(&[]).unwrap_err(),
            MrDescriptor::new(0, 0, 0, Usage::empty()).unwrap_err(),
            MrDescriptor::new(1, u64::MAX, 0, Usage::SEND).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_back_to_the_same_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            if let Ok(decoded) = MrDescriptor::from_bytes(&bytes) {
                prop_assert_eq!(&decoded.to_bytes()[..], &bytes[..21]);
            }
        }

        #[test]
        fn what_encodes_decodes_back_to_the_same_descriptor(
            addr: u64, len_bytes: u64, rkey: u32, usage in 1u8..,
        ) {
            // Halved, so that the end fits and every case counts.
            let (addr, len_bytes) = (addr / 2, len_bytes / 2);
            let usage = Usage::from_bits_retain(usage);
            let descriptor = MrDescriptor::new(addr, len_bytes, rkey, usage).unwrap();
            prop_assert_eq!(MrDescriptor::from_bytes(&descriptor.to_bytes()), Ok(descriptor));
        }
    }
}
