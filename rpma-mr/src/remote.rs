//! A peer's memory: a region known by its descriptor, and slices of it.

use crate::{DescriptorError, ErrorCode, MrDescriptor, Usage};
use std::ops::{Bound, RangeBounds};

/// A peer's registered memory region, known by its descriptor.
///
/// It is plain data: it holds nothing on either side, and the peer may take the memory away at
/// any time, whereupon operations on it complete with an error. What can be checked without
/// asking the peer is checked here, before anything is posted.
///
/// ```
/// use rpma_mr::{MrDescriptor, RemoteMr, Usage};
///
/// # let received = MrDescriptor::new(0x10_0000, 4096, 7, Usage::READ_SRC | Usage::FLUSH_TYPE_VISIBILITY)?.to_bytes();
/// let target = RemoteMr::from_descriptor(&received)?;
/// assert_eq!(target.len_bytes(), 4096);
/// assert!(target.usage().contains(Usage::READ_SRC));
/// assert_eq!(target.flush_types(), Usage::FLUSH_TYPE_VISIBILITY);
/// assert!(target.slice(4000..5000).is_err()); // found before anything is posted
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_mr_remote_delete")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteMr {
    descriptor: MrDescriptor,
}

impl RemoteMr {
    /// Decodes a descriptor from the first 21 bytes of `bytes`; what follows is ignored.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`] if `bytes` is shorter, has no usage, or describes a region that wraps
    /// the address space.
    #[doc(alias = "rpma_mr_remote_from_descriptor")]
    pub fn from_descriptor(bytes: &[u8]) -> Result<Self, DescriptorError> {
        MrDescriptor::from_bytes(bytes).map(Self::from)
    }

    /// The descriptor that the region is known by.
    #[must_use]
    pub const fn descriptor(&self) -> MrDescriptor {
        self.descriptor
    }

    /// The address of the region's first byte in the peer's address space.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.descriptor.addr()
    }

    /// The length of the region in bytes.
    #[doc(alias = "rpma_mr_remote_get_size")]
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.descriptor.len_bytes()
    }

    /// The remote key, in host order.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.descriptor.rkey()
    }

    /// What the peer lets the region be used for. Never empty.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.descriptor.usage()
    }

    /// The flush types that the region takes: of its usage, the two flush bits.
    /// (`rpma_mr_remote_get_flush_type`)
    #[doc(alias = "rpma_mr_remote_get_flush_type")]
    #[must_use]
    pub const fn flush_types(&self) -> Usage {
        self.usage().intersection(Usage::FLUSH_TYPES)
    }

    /// The whole region as a slice.
    #[must_use]
    pub const fn all(&self) -> RemoteSlice {
        RemoteSlice {
            addr: self.addr(),
            len_bytes: self.len_bytes(),
            rkey: self.rkey(),
            usage: self.usage(),
            region_addr: self.addr(),
            region_len_bytes: self.len_bytes(),
        }
    }

    /// The part of the region that `range` covers, in bytes from its start. An empty range is
    /// fine, at the end of the region too.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if `range` is inverted, does not fit in 64 bits, or ends past the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteSlice, SliceError> {
        self.all().slice(range)
    }

    /// The `len_bytes` bytes that start `offset_bytes` into the region. The sum need not be
    /// computed, or checked, by the caller.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if the sum does not fit in 64 bits or ends past the region.
    pub const fn slice_at(&self, offset_bytes: u64, len_bytes: u64) -> Result<RemoteSlice, SliceError> {
        self.all().slice_at(offset_bytes, len_bytes)
    }
}

impl From<MrDescriptor> for RemoteMr {
    fn from(descriptor: MrDescriptor) -> Self {
        Self { descriptor }
    }
}

/// A part of a peer's memory region: where an operation reads, writes or flushes.
///
/// It lies within the region that its descriptor described; the end of slice and region is always
/// an address that fits in 64 bits.
///
/// ```
/// use rpma_mr::{MrDescriptor, RemoteMr, RemoteSlice, Usage};
///
/// # let received = MrDescriptor::new(0x10_0000, 4096, 7, Usage::WRITE_DST)?.to_bytes();
/// let target = RemoteMr::from_descriptor(&received)?;
/// let records = target.slice(1024..)?;
/// let third = records.slice_at(2 * 64, 64)?;
/// assert_eq!((third.offset_bytes(), third.len_bytes()), (1024 + 128, 64));
/// assert!(third.is_aligned(8)); // an atomic write may go there
/// assert_eq!((third.region_addr(), third.region_len_bytes()), (target.addr(), 4096));
/// assert!(RemoteSlice::NULL.is_null() && !third.is_null()); // no memory at all
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    addr: u64,
    len_bytes: u64,
    rkey: u32,
    usage: Usage,
    // An emulated flush reads 8 bytes, which may have to start before the slice, and must not
    // leave the region.
    region_addr: u64,
    region_len_bytes: u64,
}

impl RemoteSlice {
    /// No memory at all, for operations of length 0 that name no region. It has address, length,
    /// key and usage 0; no slice of a region has that usage.
    pub const NULL: Self = Self { addr: 0, len_bytes: 0, rkey: 0, usage: Usage::empty(), region_addr: 0, region_len_bytes: 0 };

    /// Whether this is [`RemoteSlice::NULL`], and not an empty slice of a region.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        // A descriptor without usage does not decode.
        self.usage.is_empty()
    }

    /// The address of the first byte in the peer's address space.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// The length of the slice in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether the slice has length 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The remote key of the region, in host order.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What the peer lets the region be used for. Empty for [`RemoteSlice::NULL`] only.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// The address of the first byte of the region.
    #[must_use]
    pub const fn region_addr(&self) -> u64 {
        self.region_addr
    }

    /// The length of the region in bytes.
    #[must_use]
    pub const fn region_len_bytes(&self) -> u64 {
        self.region_len_bytes
    }

    /// Where in the region the slice starts, in bytes.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        self.addr - self.region_addr
    }

    /// Whether the slice's address is a multiple of `align_bytes`. The address counts, not the
    /// offset in the region: a region need not start on a boundary. An atomic write needs 8.
    #[must_use]
    pub const fn is_aligned(&self, align_bytes: u64) -> bool {
        self.addr.is_multiple_of(align_bytes)
    }

    /// The part of this slice that `range` covers, in bytes from its start. An empty range is
    /// fine, at the end too.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if `range` is inverted, does not fit in 64 bits, or ends past this slice;
    /// the numbers in it are relative to this slice.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, SliceError> {
        let start_bytes = match range.start_bound() {
            Bound::Unbounded => 0,
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => add(before, 1)?,
        };
        let end_bytes = match range.end_bound() {
            Bound::Unbounded => self.len_bytes,
            Bound::Included(&last) => add(last, 1)?,
            Bound::Excluded(&end) => end,
        };
        // `n..` with n past the end is out of bounds, not inverted: the caller named no end.
        if start_bytes > end_bytes && !matches!(range.end_bound(), Bound::Unbounded) {
            return Err(SliceError::Inverted { start_bytes, end_bytes });
        }
        self.checked(start_bytes, end_bytes.max(start_bytes))
    }

    /// The `len_bytes` bytes that start `offset_bytes` into this slice. The sum need not be
    /// computed, or checked, by the caller.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if the sum does not fit in 64 bits or ends past this slice.
    pub const fn slice_at(&self, offset_bytes: u64, len_bytes: u64) -> Result<Self, SliceError> {
        match add(offset_bytes, len_bytes) {
            Ok(end_bytes) => self.checked(offset_bytes, end_bytes),
            Err(error) => Err(error),
        }
    }

    /// The part from `start_bytes` to `end_bytes`, which is not less.
    const fn checked(&self, start_bytes: u64, end_bytes: u64) -> Result<Self, SliceError> {
        if end_bytes > self.len_bytes {
            return Err(SliceError::OutOfBounds { start_bytes, end_bytes, len_bytes: self.len_bytes });
        }
        Ok(Self {
            // Cannot overflow: the start is within the slice, whose end fits in 64 bits.
            addr: self.addr + start_bytes,
            len_bytes: end_bytes - start_bytes,
            ..*self
        })
    }
}

const fn add(offset_bytes: u64, len_bytes: u64) -> Result<u64, SliceError> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end_bytes) => Ok(end_bytes),
        None => Err(SliceError::Overflow { offset_bytes, len_bytes }),
    }
}

/// Why a range is no part of a memory region. A caller bug, found before anything is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum SliceError {
    /// The range ends before it starts.
    #[error("the range of bytes {start_bytes}..{end_bytes} ends before it starts")]
    Inverted { start_bytes: u64, end_bytes: u64 },
    /// The range ends past the memory that it is taken from.
    #[error("bytes {start_bytes}..{end_bytes} are not within the {len_bytes} bytes of memory")]
    OutOfBounds { start_bytes: u64, end_bytes: u64, len_bytes: u64 },
    /// The end of the range does not fit in 64 bits.
    #[error("offset {offset_bytes} plus {len_bytes} bytes does not fit in 64 bits")]
    Overflow { offset_bytes: u64, len_bytes: u64 },
}

impl SliceError {
    /// The C library's code for this error.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Inverted { .. } | Self::OutOfBounds { .. } | Self::Overflow { .. } => ErrorCode::InvalidArgument,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USAGE: Usage = Usage::WRITE_DST.union(Usage::FLUSH_TYPE_VISIBILITY);

    fn region(addr: u64, len_bytes: u64) -> RemoteMr {
        MrDescriptor::new(addr, len_bytes, 7, USAGE).unwrap().into()
    }

    #[test]
    fn region_of_a_peer_is_copied_and_holds_nothing_to_free() {
        fn is_copy<T: Copy>() {}
        is_copy::<RemoteMr>();
        assert!(!std::mem::needs_drop::<RemoteMr>());
    }

    #[test]
    fn region_shows_what_its_descriptor_says() {
        let descriptor = MrDescriptor::new(0x1000, 100, 7, USAGE).unwrap();
        let region = RemoteMr::from_descriptor(&descriptor.to_bytes()).unwrap();
        assert_eq!(region.addr(), 0x1000);
        assert_eq!(region.len_bytes(), 100);
        assert_eq!(region.rkey(), 7);
        assert_eq!(region.usage(), USAGE);
        assert_eq!(region.descriptor(), descriptor);
    }

    #[test]
    fn flush_types_are_the_two_flush_bits_of_the_usage() {
        for mask in 1..=u8::MAX {
            let usage = Usage::from_bits_retain(mask);
            let region = RemoteMr::from(MrDescriptor::new(0, 1, 2, usage).unwrap());
            assert_eq!(region.flush_types().bits(), mask & 0x30);
        }
    }

    #[test]
    fn all_is_the_whole_region() {
        let all = region(0x1000, 100).all();
        assert_eq!((all.addr(), all.len_bytes()), (0x1000, 100));
        assert_eq!((all.rkey(), all.usage()), (7, USAGE));
        assert_eq!((all.region_addr(), all.region_len_bytes()), (0x1000, 100));
        assert!(!all.is_null());
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "`10..=9` is empty, and legal in slices")]
    fn every_kind_of_range_slices_as_it_does_in_rust() {
        let region = region(0x1000, 100);
        let slices = [
            (region.slice(..), 0, 100),
            (region.slice(10..), 10, 90),
            (region.slice(..10), 0, 10),
            (region.slice(..=10), 0, 11),
            (region.slice(10..30), 10, 20),
            (region.slice(10..=30), 10, 21),
            (region.slice(10..=9), 10, 0),
            (region.slice((Bound::Excluded(10), Bound::Unbounded)), 11, 89),
            (region.slice(100..), 100, 0),
            (region.slice(100..100), 100, 0),
            (region.slice(0..100), 0, 100),
            (region.slice(0..=99), 0, 100),
            (region.slice_at(10, 20), 10, 20),
            (region.slice_at(100, 0), 100, 0),
        ];
        for (slice, offset_bytes, len_bytes) in slices {
            let slice = slice.unwrap();
            assert_eq!(slice.offset_bytes(), offset_bytes);
            assert_eq!(slice.addr(), 0x1000 + offset_bytes);
            assert_eq!(slice.len_bytes(), len_bytes);
            assert_eq!(slice.is_empty(), len_bytes == 0);
        }
    }

    #[test]
    fn range_past_the_end_is_out_of_bounds() {
        let region = region(0x1000, 100);
        let refused = [
            (region.slice(..101), 0, 101),
            (region.slice(..=100), 0, 101),
            (region.slice(101..), 101, 101),
            (region.slice(101..101), 101, 101),
            (region.slice(99..101), 99, 101),
            (region.slice(..u64::MAX), 0, u64::MAX),
            (region.slice_at(100, 1), 100, 101),
            (region.slice_at(101, 0), 101, 101),
        ];
        for (result, start_bytes, end_bytes) in refused {
            assert_eq!(result, Err(SliceError::OutOfBounds { start_bytes, end_bytes, len_bytes: 100 }));
        }
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "the subject is inverted ranges")]
    fn range_that_ends_before_it_starts_is_inverted() {
        let region = region(0x1000, 100);
        let refused = [(region.slice(2..1), 2, 1), (region.slice(u64::MAX..0), u64::MAX, 0), (region.slice(5..=3), 5, 4)];
        for (result, start_bytes, end_bytes) in refused {
            assert_eq!(result, Err(SliceError::Inverted { start_bytes, end_bytes }));
        }
    }

    #[test]
    fn range_whose_end_does_not_fit_in_64_bits_is_an_overflow() {
        let region = region(0, u64::MAX);
        let refused = [
            (region.slice(..=u64::MAX), u64::MAX, 1),
            (region.slice((Bound::Excluded(u64::MAX), Bound::Unbounded)), u64::MAX, 1),
            (region.slice_at(u64::MAX, 1), u64::MAX, 1),
            (region.slice_at(8, u64::MAX - 7), 8, u64::MAX - 7),
        ];
        for (result, offset_bytes, len_bytes) in refused {
            assert_eq!(result, Err(SliceError::Overflow { offset_bytes, len_bytes }));
        }
    }

    #[test]
    fn region_that_ends_at_the_greatest_address_can_be_sliced_to_its_end() {
        let region = region(u64::MAX - 16, 16);
        let last = region.slice(15..).unwrap();
        assert_eq!((last.addr(), last.len_bytes()), (u64::MAX - 1, 1));
        let end = region.slice(16..).unwrap();
        assert_eq!((end.addr(), end.len_bytes()), (u64::MAX, 0));
    }

    #[test]
    fn slice_of_a_slice_is_bounded_by_it_and_still_knows_the_region() {
        let slice = region(0x1000, 100).slice(10..50).unwrap();
        let inner = slice.slice(30..).unwrap();
        assert_eq!((inner.addr(), inner.len_bytes()), (0x1028, 10));
        assert_eq!(inner.offset_bytes(), 40);
        assert_eq!((inner.region_addr(), inner.region_len_bytes()), (0x1000, 100));
        assert_eq!(slice.slice(30..41), Err(SliceError::OutOfBounds { start_bytes: 30, end_bytes: 41, len_bytes: 40 }));
    }

    #[test]
    fn alignment_is_that_of_the_address_not_of_the_offset() {
        let region = region(0x1004, 100);
        assert!(!region.slice(8..16).unwrap().is_aligned(8));
        assert!(region.slice(4..12).unwrap().is_aligned(8));
        assert!(!region.all().is_aligned(0));
    }

    #[test]
    fn null_is_only_ever_sliced_to_itself() {
        const { assert!(RemoteSlice::NULL.is_null()) };
        assert_eq!(RemoteSlice::NULL.slice(..), Ok(RemoteSlice::NULL));
        assert_eq!(RemoteSlice::NULL.slice(0..0), Ok(RemoteSlice::NULL));
        assert!(RemoteSlice::NULL.slice(0..1).is_err());
        assert!(!region(0, 0).all().is_null());
    }

    #[test]
    fn every_slice_error_is_an_invalid_argument_to_the_c_library() {
        let region = region(0x1000, 100);
        let inverted = (Bound::Included(2), Bound::Excluded(1));
        let errors =
            [region.slice(inverted).unwrap_err(), region.slice(..101).unwrap_err(), region.slice_at(1, u64::MAX).unwrap_err()];
        for error in errors {
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        }
    }

    proptest! {
        #[test]
        fn slice_at_and_slice_agree_with_arithmetic_in_128_bits(
            addr: u64, len: u64, offset: u64, slice_len: u64,
            // Shifts make short lengths as frequent as long ones.
            shifts in [0u32..64, 0u32..64, 0u32..64],
        ) {
            let len = (len >> shifts[0]).min(u64::MAX - addr);
            let (offset, slice_len) = (offset >> shifts[1], slice_len >> shifts[2]);
            let region = region(addr, len);
            let fits = u128::from(offset) + u128::from(slice_len) <= u128::from(len);
            let slice = region.slice_at(offset, slice_len);
            prop_assert_eq!(slice.is_ok(), fits);
            if let Ok(slice) = slice {
                prop_assert_eq!(slice.addr(), addr + offset);
                prop_assert_eq!(slice.len_bytes(), slice_len);
                prop_assert_eq!(region.slice(offset..offset + slice_len), Ok(slice));
            }
        }
    }
}
