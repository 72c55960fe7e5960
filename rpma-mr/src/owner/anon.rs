//! Anonymous memory.
#![expect(unsafe_code, reason = "lends the mapping as slices, and implements the unsafe trait")]

use std::io;
use std::ptr::NonNull;

use super::mapping::Mapping;
use super::{Backing, MapError, RegionOwner};
use crate::copy::AccessError;

/// Anonymous memory on pages of its own, zeroed at first.
///
/// Before it is registered, and after it was deregistered, it is ordinary memory: [`as_slice`](Self::as_slice) and
/// [`as_mut_slice`](Self::as_mut_slice) lend it. While it is registered, nobody has it but the region.
///
/// ```
/// let mut pages = rpma_mr::AnonPages::new(4096)?;
/// pages.as_mut_slice()[..5].copy_from_slice(b"hello");
/// assert_eq!(pages.as_slice()[4], b'o');
/// # Ok::<(), rpma_mr::MapError>(())
/// ```
///
/// It starts on a page boundary and shares no page with anything else, so that a fork of this process disturbs neither side.
#[derive(Debug)]
pub struct AnonPages {
    mapping: Mapping,
    len_bytes: usize,
}

impl AnonPages {
    /// Maps `len_bytes` bytes of zeros.
    ///
    /// # Errors
    ///
    /// [`MapError::Empty`] for 0 bytes, [`MapError::Map`] if there is no memory.
    pub fn new(len_bytes: usize) -> Result<Self, MapError> {
        if len_bytes == 0 {
            return Err(MapError::Empty { path: None });
        }
        let refused = |source| MapError::Map { path: None, len_bytes, source };
        // Slices are no longer than this.
        if isize::try_from(len_bytes).is_err() {
            return Err(refused(io::ErrorKind::OutOfMemory.into()));
        }
        Ok(Self { mapping: Mapping::anonymous(len_bytes).map_err(refused)?, len_bytes })
    }

    /// The length in bytes, as it was asked for.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The memory.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped readable for this length (at most isize::MAX), initialised to zeros by the kernel, and written only
        // through `&mut self`: a region that would write it owns `self` and lends no reference.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len_bytes) }
    }

    /// The memory, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.len_bytes) }
    }

    /// Copies `dst.len()` bytes out, from `offset_bytes` on: what
    /// [`LocalMr::read_at`](crate::LocalMr::read_at) does while the memory is registered.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; `dst` is then untouched.
    #[inline]
    pub fn read_at(&self, offset_bytes: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: used within this call, during which `&self` excludes writing references.
        unsafe { self.mapping.range(self.len_bytes) }.read_at(offset_bytes, dst)
    }

    /// Copies `src` in, from `offset_bytes` on: what [`LocalMr::write_at`](crate::LocalMr::write_at) does while the memory is
    /// registered.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`]; nothing is then written.
    #[inline]
    pub fn write_at(&mut self, offset_bytes: usize, src: &[u8]) -> Result<(), AccessError> {
        // SAFETY: used within this call, during which `&mut self` excludes every other access.
        unsafe { self.mapping.range(self.len_bytes) }.write_at(offset_bytes, src)
    }
}

// SAFETY: one mapping, readable and writable, that stays where it is until the owner is dropped. Slices of it borrow the owner, so
// none exists once it is handed over, and nobody else knows the address: the memory is private to this value.
unsafe impl RegionOwner for AnonPages {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.mapping.base(), self.len_bytes)
    }

    fn backing(&self) -> Backing {
        Backing::Anonymous
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_on_a_page_boundary_and_as_long_as_asked() {
        for len in [1, 4095, 4096, 4097, 1 << 20] {
            let pages = AnonPages::new(len).unwrap();
            let (base, range_len) = pages.range();
            assert!(base.addr().get().is_multiple_of(rustix::param::page_size()));
            assert_eq!((range_len, pages.as_slice().len()), (len, len));
            assert!(pages.as_slice().iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn no_bytes_and_too_many_are_errors() {
        assert!(matches!(AnonPages::new(0), Err(MapError::Empty { path: None })));
        for len in [isize::MAX as usize, usize::MAX] {
            assert!(matches!(AnonPages::new(len), Err(MapError::Map { .. })), "{len}");
        }
    }

    #[test]
    fn slices_and_copies_see_the_same_bytes() {
        let mut pages = AnonPages::new(100).unwrap();
        pages.write_at(90, b"0123456789").unwrap();
        assert_eq!(&pages.as_slice()[90..], b"0123456789");
        pages.as_mut_slice()[0] = 7;
        let mut byte = [0];
        pages.read_at(0, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        // The page goes on behind the memory, which ends at its own length.
        assert!(pages.write_at(91, b"0123456789").is_err());
    }

    #[test]
    fn owner_moves_and_its_memory_does_not() {
        let pages = AnonPages::new(4096).unwrap();
        let before = pages.range();
        let moved = Box::new(pages);
        assert_eq!(moved.range(), before);
    }
}
