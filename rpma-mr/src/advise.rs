//! Advice about registered memory.

use std::io;

use bitflags::bitflags;
use rpma_sys::bindings::{
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
};
use rustix::io::Errno;

use crate::{ErrorCode, SliceError};

/// What is about to happen to a part of a region (`enum ibv_advise_mr_advice`, `ibv_advise_mr(3)`).
///
/// ```
/// use rpma_mr::{Advice, AdviseFlags, AnonPages, Device, ProtectionDomain, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// # let pd = ProtectionDomain::new(&device)?;
/// let region = pd.register(AnonPages::new(1 << 20)?, Usage::WRITE_DST)?;
/// if region.is_on_demand() {
///     region.advise(..4096, Advice::PrefetchWrite, AdviseFlags::FLUSH)?; // its pages are there when the peer writes
/// }
/// assert!(region.advise(0..2 << 20, Advice::Prefetch, AdviseFlags::empty()).is_err()); // beyond its end
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// It will be read: bring its pages in.
    Prefetch,
    /// It will be written: bring its pages in, writable.
    PrefetchWrite,
    /// It will be read: map the pages that are there already, and bring none in.
    PrefetchNoFault,
    /// A number that this crate has no name for; the provider decides.
    Other(u32),
}

impl Advice {
    /// The number of `enum ibv_advise_mr_advice`.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        match self {
            Self::Prefetch => IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            Self::PrefetchWrite => IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            Self::PrefetchNoFault => IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
            Self::Other(raw) => raw,
        }
    }

    /// The advice with this number of `enum ibv_advise_mr_advice`.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Self::Prefetch,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Self::PrefetchWrite,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Self::PrefetchNoFault,
            other => Self::Other(other),
        }
    }
}

bitflags! {
    /// How advice is taken (`enum ibv_advise_mr_flags`). Bits without a name go to the provider as they are.
    ///
    /// ```
    /// use rpma_mr::AdviseFlags;
    ///
    /// assert_eq!(AdviseFlags::FLUSH.bits(), 1); // C's number
    /// assert_eq!(AdviseFlags::from_bits_retain(0x80).bits(), 0x80); // the provider's business
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AdviseFlags: u32 {
        /// The call returns when it is done, not when it is noted (`IBV_ADVISE_MR_FLAG_FLUSH`).
        const FLUSH = 1;
        const _ = !0;
    }
}

/// Why advice was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum AdviseError {
    /// The range is no part of the region. A caller bug, found before any call.
    #[error("no part of the region")]
    BadRange {
        #[from]
        source: SliceError,
    },
    /// The device takes no advice, or not this one.
    #[error("the device does not support the advice {advice:?}")]
    NotSupported { advice: Advice, source: io::Error },
    /// The advice does not fit the region: it was not registered on demand, or not for writing.
    #[error(
        "the advice {advice:?} does not fit the region: prefetching needs a region that is registered on demand, and for writing also the right to"
    )]
    Refused { advice: Advice, source: io::Error },
    /// The provider failed.
    #[error("the provider failed to take the advice {advice:?}")]
    Provider { advice: Advice, source: io::Error },
}

impl AdviseError {
    pub(crate) fn of(advice: Advice, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            // ENOTSUP is the same number on Linux.
            Some(Errno::OPNOTSUPP) => Self::NotSupported { advice, source },
            Some(Errno::FAULT | Errno::INVAL) => Self::Refused { advice, source },
            _ => Self::Provider { advice, source },
        }
    }

    /// The C library's code for this error.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::BadRange { .. } | Self::Refused { .. } => ErrorCode::InvalidArgument,
            Self::NotSupported { .. } => ErrorCode::NotSupported,
            Self::Provider { .. } => ErrorCode::Provider,
        }
    }
}

/// The longest piece of a range that one entry of a list can name: 32 bits, and whole pages of up to 2 MiB, so that no page is
/// advised twice.
const PIECE_BYTES: u64 = (u32::MAX as u64).next_multiple_of(1 << 21) - (1 << 21);

/// How many entries go into one call: the kernel takes an attribute of up to 65535 bytes, at 16 bytes each (`struct ib_uverbs_attr`).
pub(crate) const PIECES_PER_CALL: usize = 1024;

/// Splits a range into pieces whose lengths fit in 32 bits. No bytes are no pieces.
pub(crate) fn pieces(addr: u64, len_bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    (0..len_bytes.div_ceil(PIECE_BYTES)).map(move |i| {
        let offset = i * PIECE_BYTES;
        let len = (len_bytes - offset).min(PIECE_BYTES);
        (addr + offset, u32::try_from(len).expect("a piece is shorter than 2^32 bytes"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ranges_are_split_and_never_truncated() {
        const GIB: u64 = 1 << 30;
        for len in [1, 4096, u64::from(u32::MAX), 4 * GIB - 1, 4 * GIB, 4 * GIB + 1, 5 * GIB, 100 * GIB + 7] {
            let mut next = 0x10_0000;
            for (addr, piece) in pieces(0x10_0000, len) {
                assert_eq!(addr, next, "{len}");
                assert!(piece > 0, "{len}");
                next += u64::from(piece);
            }
            assert_eq!(next, 0x10_0000 + len, "{len}");
        }
        assert_eq!(pieces(0x10_0000, 0).count(), 0);
        assert_eq!(pieces(0, 4096).collect::<Vec<_>>(), [(0, 4096)]);
        assert_eq!(pieces(0, 4 * GIB).count(), 2);
    }

    #[test]
    fn list_of_one_call_fits_in_the_kernels_attribute() {
        assert!(PIECES_PER_CALL * size_of::<rpma_sys::bindings::ibv_sge>() <= usize::from(u16::MAX));
    }

    #[test]
    fn advice_numbers_are_those_of_verbs_both_ways() {
        for (raw, advice) in
            [(0, Advice::Prefetch), (1, Advice::PrefetchWrite), (2, Advice::PrefetchNoFault), (9, Advice::Other(9))]
        {
            assert_eq!((advice.as_raw(), Advice::from_raw(raw)), (raw, advice));
        }
        assert_eq!(AdviseFlags::from_bits_retain(1), AdviseFlags::FLUSH);
    }

    #[test]
    fn errnos_map_to_the_c_librarys_codes() {
        let rows = [
            (Errno::OPNOTSUPP, ErrorCode::NotSupported),
            (Errno::NOTSUP, ErrorCode::NotSupported),
            (Errno::FAULT, ErrorCode::InvalidArgument),
            (Errno::INVAL, ErrorCode::InvalidArgument),
            (Errno::NOMEM, ErrorCode::Provider),
        ];
        for (errno, code) in rows {
            assert_eq!(AdviseError::of(Advice::Prefetch, errno.into()).code(), code, "{errno:?}");
        }
    }
}
