//! A part of a registered region of ours.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use rpma_sys::owned::Pd;

use crate::{SliceError, Usage};

/// A part of a registered region: where an operation of ours takes data from, or puts it.
///
/// It lies within its region, and borrows it; it gives no access to the bytes.
///
/// ```
/// use rpma_mr::{AnonPages, Device, LocalSlice, ProtectionDomain, Usage};
///
/// # let device = Device::local(&rpma_soft::Soft::open()?, "127.0.0.1")?;
/// # let pd = ProtectionDomain::new(&device)?;
/// let region = pd.register(AnonPages::new(4096)?, Usage::RECV)?;
/// let inboxes = region.slice(1024..)?;
/// let second = inboxes.slice(512..1024)?;
/// assert_eq!((second.addr() - region.all().addr(), second.len_bytes()), (1536, 512));
/// assert!(region.slice(4000..5000).is_err());
/// assert!(second.lkey() == region.all().lkey() && !second.is_null());
/// let null = LocalSlice::null(); // no memory at all: for messages without bytes
/// assert!(null.is_null() && null.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LocalSlice<'a> {
    addr: u64,
    len_bytes: usize,
    lkey: u32,
    usage: Usage,
    /// `None` for the null slice only.
    pd: Option<&'a Arc<Pd>>,
}

impl<'a> LocalSlice<'a> {
    /// No memory at all, for operations of length 0 that name no region. It has address, length, key and usage 0.
    #[must_use]
    pub const fn null() -> Self {
        Self { addr: 0, len_bytes: 0, lkey: 0, usage: Usage::empty(), pd: None }
    }

    /// A whole region, whose end fits in 64 bits.
    pub(crate) const fn whole(addr: u64, len_bytes: usize, lkey: u32, usage: Usage, pd: &'a Arc<Pd>) -> Self {
        Self { addr, len_bytes, lkey, usage, pd: Some(pd) }
    }

    /// Whether this is [`LocalSlice::null`], and not an empty slice of a region.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        self.pd.is_none()
    }

    /// The address of the first byte.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The local key of the region.
    #[must_use]
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// What the region can be used for (as granted). Empty for the null slice only.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// The protection domain of the region; `None` for the null slice, which goes with every one.
    #[must_use]
    pub const fn pd(&self) -> Option<&'a Arc<Pd>> {
        self.pd
    }

    /// The part of this slice that `range` covers, in bytes from its start. An empty range is fine, at the end too.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if `range` is inverted, does not fit in 64 bits, or ends past this slice; the numbers in it are relative to
    /// this slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, SliceError> {
        let (start, end) = within(range, self.len_bytes)?;
        Ok(self.part(start, end))
    }

    /// The `len_bytes` bytes that start `offset_bytes` into this slice. The sum need not be computed, or checked, by the caller.
    ///
    /// # Errors
    ///
    /// [`SliceError`] if the sum does not fit in 64 bits or ends past this slice.
    pub fn slice_at(&self, offset_bytes: usize, len_bytes: usize) -> Result<Self, SliceError> {
        let (start, end) = within_at(offset_bytes, len_bytes, self.len_bytes)?;
        Ok(self.part(start, end))
    }

    fn part(&self, start: usize, end: usize) -> Self {
        // Cannot overflow: the start is within the slice, whose end fits in 64 bits.
        Self { addr: self.addr + start as u64, len_bytes: end - start, ..*self }
    }
}

/// As [`within`], by offset and length.
fn within_at(offset_bytes: usize, len_bytes: usize, of_bytes: usize) -> Result<(usize, usize), SliceError> {
    let overflow = SliceError::Overflow { offset_bytes: offset_bytes as u64, len_bytes: len_bytes as u64 };
    within(offset_bytes..offset_bytes.checked_add(len_bytes).ok_or(overflow)?, of_bytes)
}

/// The start and the end of `range` as offsets into `len_bytes` bytes: start ≤ end ≤ length.
pub(crate) fn within(range: impl RangeBounds<usize>, len_bytes: usize) -> Result<(usize, usize), SliceError> {
    let past = |bound: usize| bound.checked_add(1).ok_or(SliceError::Overflow { offset_bytes: bound as u64, len_bytes: 1 });
    let start = match range.start_bound() {
        Bound::Unbounded => 0,
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => past(before)?,
    };
    let end = match range.end_bound() {
        // `n..` with n past the end is out of bounds, not inverted: the caller named no end.
        Bound::Unbounded => len_bytes.max(start),
        Bound::Included(&last) => past(last)?,
        Bound::Excluded(&end) => end,
    };
    let (start_bytes, end_bytes) = (start as u64, end as u64);
    if start > end {
        return Err(SliceError::Inverted { start_bytes, end_bytes });
    }
    if end > len_bytes {
        return Err(SliceError::OutOfBounds { start_bytes, end_bytes, len_bytes: len_bytes as u64 });
    }
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_every_form_are_bounded_by_the_length() {
        assert_eq!(within(.., 10), Ok((0, 10)));
        assert_eq!(within(3..7, 10), Ok((3, 7)));
        assert_eq!(within(3..=9, 10), Ok((3, 10)));
        assert_eq!(within(10.., 10), Ok((10, 10)));
        assert_eq!(within((Bound::Excluded(2), Bound::Unbounded), 10), Ok((3, 10)));
        assert_eq!(within(11.., 10), Err(SliceError::OutOfBounds { start_bytes: 11, end_bytes: 11, len_bytes: 10 }));
        assert_eq!(within(..11, 10), Err(SliceError::OutOfBounds { start_bytes: 0, end_bytes: 11, len_bytes: 10 }));
        #[expect(clippy::reversed_empty_ranges, reason = "that is the case under test")]
        let inverted = 7..3;
        assert_eq!(within(inverted, 10), Err(SliceError::Inverted { start_bytes: 7, end_bytes: 3 }));
        assert!(within(..=usize::MAX, 10).is_err());
        assert!(within((Bound::Excluded(usize::MAX), Bound::Unbounded), 10).is_err());
    }

    #[test]
    fn offset_and_length_are_bounded_by_the_length() {
        assert_eq!(within_at(3, 4, 10), Ok((3, 7)));
        assert_eq!(within_at(10, 0, 10), Ok((10, 10)));
        assert_eq!(within_at(10, 1, 10), Err(SliceError::OutOfBounds { start_bytes: 10, end_bytes: 11, len_bytes: 10 }));
        assert_eq!(within_at(11, 0, 10), Err(SliceError::OutOfBounds { start_bytes: 11, end_bytes: 11, len_bytes: 10 }));
        let overflow = SliceError::Overflow { offset_bytes: 8, len_bytes: usize::MAX as u64 - 7 };
        assert_eq!(within_at(8, usize::MAX - 7, 10), Err(overflow));
    }

    #[test]
    fn null_is_only_ever_sliced_to_itself() {
        const { assert!(LocalSlice::null().is_null()) };
        assert!(LocalSlice::null().slice(..).unwrap().is_null());
        assert!(LocalSlice::null().slice(0..1).is_err());
        assert!(LocalSlice::null().slice_at(0, 0).unwrap().is_null());
        assert!(LocalSlice::null().slice_at(0, 1).is_err());
        assert!(LocalSlice::null().usage().is_empty());
    }
}
