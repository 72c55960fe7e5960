//! What a memory region may be used for, and the kinds of flush.

use bitflags::bitflags;

bitflags! {
    /// What a memory region may be used for: the `usage` of the C library, bit for bit.
    ///
    /// The owner of a region states its usage at registration; the usage then travels in the
    /// region's descriptor, so that a peer knows it too. All eight bits are taken: every byte is
    /// a valid `Usage`, 0 included, which no region has.
    ///
    /// ```
    /// use rpma_mr::Usage;
    ///
    /// let target = Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT;
    /// assert_eq!(target.bits(), 8 | 32); // the byte of the descriptor
    /// assert!(target.contains(Usage::WRITE_DST) && !target.contains(Usage::READ_SRC));
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Usage: u8 {
        /// A peer may read from the region (`RPMA_MR_USAGE_READ_SRC`).
        const READ_SRC = 1;
        /// Data that we read from a peer may be placed in the region (`RPMA_MR_USAGE_READ_DST`).
        const READ_DST = 2;
        /// We may write from the region to a peer (`RPMA_MR_USAGE_WRITE_SRC`).
        const WRITE_SRC = 4;
        /// A peer may write to the region (`RPMA_MR_USAGE_WRITE_DST`).
        const WRITE_DST = 8;
        /// A peer may flush the region to global visibility
        /// (`RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY`).
        const FLUSH_TYPE_VISIBILITY = 16;
        /// A peer may flush the region to persistence (`RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT`).
        const FLUSH_TYPE_PERSISTENT = 32;
        /// Messages may be sent from the region (`RPMA_MR_USAGE_SEND`).
        const SEND = 64;
        /// Messages may be received into the region (`RPMA_MR_USAGE_RECV`).
        const RECV = 128;
    }
}

impl Usage {
    /// Both flush bits.
    pub(crate) const FLUSH_TYPES: Self = Self::FLUSH_TYPE_VISIBILITY.union(Self::FLUSH_TYPE_PERSISTENT);
}

/// What a flush guarantees when it completes. The numbers are those of `enum rpma_flush_type`.
///
/// ```
/// use rpma_mr::{FlushType, Usage};
///
/// // What the peer's region must have been registered for.
/// assert_eq!(FlushType::Persistent.required_usage(), Usage::FLUSH_TYPE_PERSISTENT);
/// assert_eq!(FlushType::from_raw(1), Some(FlushType::Visibility)); // C's number
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum FlushType {
    /// The data written before survives a loss of power (`RPMA_FLUSH_TYPE_PERSISTENT`).
    Persistent = 0,
    /// The data written before is visible to everything that reads the peer's memory
    /// (`RPMA_FLUSH_TYPE_VISIBILITY`).
    Visibility = 1,
}

impl FlushType {
    /// The number of `enum rpma_flush_type`.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self as i32
    }

    /// The flush type with this number of `enum rpma_flush_type`, or `None` if there is none.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Option<Self> {
        match raw {
            0 => Some(Self::Persistent),
            1 => Some(Self::Visibility),
            _ => None,
        }
    }

    /// The usage that a region needs for this flush. Neither bit implies the other.
    #[must_use]
    pub const fn required_usage(self) -> Usage {
        match self {
            Self::Persistent => Usage::FLUSH_TYPE_PERSISTENT,
            Self::Visibility => Usage::FLUSH_TYPE_VISIBILITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_bits_are_those_of_the_c_library() {
        let bits = [
            (Usage::READ_SRC, 0x01),
            (Usage::READ_DST, 0x02),
            (Usage::WRITE_SRC, 0x04),
            (Usage::WRITE_DST, 0x08),
            (Usage::FLUSH_TYPE_VISIBILITY, 0x10),
            (Usage::FLUSH_TYPE_PERSISTENT, 0x20),
            (Usage::SEND, 0x40),
            (Usage::RECV, 0x80),
        ];
        for (usage, bit) in bits {
            assert_eq!(usage.bits(), bit, "{usage:?}");
        }
    }

    #[test]
    fn usage_takes_every_byte() {
        assert_eq!(Usage::all().bits(), 0xFF);
    }

    #[test]
    fn flush_type_numbers_are_those_of_the_c_library() {
        assert_eq!(FlushType::Persistent.as_raw(), 0);
        assert_eq!(FlushType::Visibility.as_raw(), 1);
    }

    #[test]
    fn flush_type_from_raw_takes_its_own_numbers_and_no_others() {
        for flush in [FlushType::Persistent, FlushType::Visibility] {
            assert_eq!(FlushType::from_raw(flush.as_raw()), Some(flush));
        }
        for raw in [-1, 2, 16, 32, i32::MIN, i32::MAX] {
            assert_eq!(FlushType::from_raw(raw), None, "{raw}");
        }
    }

    #[test]
    fn flush_type_needs_the_usage_bit_of_its_name() {
        assert_eq!(FlushType::Persistent.required_usage().bits(), 0x20);
        assert_eq!(FlushType::Visibility.required_usage().bits(), 0x10);
    }
}
