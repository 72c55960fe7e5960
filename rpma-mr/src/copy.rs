//! The one routine that touches memory which others may write meanwhile.
//!
//! A peer, the device, another process or another thread of ours may change registered memory at any time, so no reference into it
//! may exist, and plain accesses to it would be data races. What is here instead has the meaning of one relaxed atomic access per
//! byte, in no particular order: the copy may be torn between any two bytes, and nothing more can go wrong. On x86-64 and AArch64 it
//! is inline assembly, which the compiler does not look into; elsewhere, and under Miri, it is literally a loop over atomic bytes.
//!
//! What Rust's memory model leaves open (accesses of different sizes to the same atomic memory, and other processes at all) is
//! unsafe-code-guidelines issue 607.
#![expect(unsafe_code, reason = "copies from and to raw memory")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::ErrorCode;

/// Why memory could not be read or written. Nothing was copied. A caller bug, found before the memory is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum AccessError {
    /// The range does not lie within the memory.
    #[error("{len_bytes} bytes at offset {offset_bytes} are not within the {region_bytes} bytes of memory")]
    OutOfRange { offset_bytes: usize, len_bytes: usize, region_bytes: usize },
    /// A write to memory that was mapped for reading only.
    #[error("the memory was mapped for reading only")]
    ReadOnly,
    /// An 8-byte access at an address that is no multiple of 8.
    #[error("an 8-byte access needs an address that is a multiple of 8: offset {offset_bytes} is at {addr:#x}")]
    Misaligned { offset_bytes: usize, addr: usize },
    /// The memory was registered by the parent process; a forked child may not even have it mapped (`ibv_fork_init(3)`).
    #[error("this memory was registered by the parent process: registered memory does not survive fork(2)")]
    OtherProcess,
}

impl AccessError {
    /// The C library's code for this error. It has no call that could return it.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::OutOfRange { .. } | Self::ReadOnly | Self::Misaligned { .. } | Self::OtherProcess => ErrorCode::InvalidArgument,
        }
    }
}

/// A range of memory that others may change: it is copied from and to, and never borrowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRange {
    base: NonNull<u8>,
    len_bytes: usize,
    writable: bool,
}

impl RawRange {
    /// Names `len_bytes` bytes at `base`.
    ///
    /// # Safety
    ///
    /// For as long as this value and its copies are used: the range is mapped, for writing too if `writable`, and whatever else
    /// accesses it does so by volatile or atomic means or from outside of Rust. References into it are fine where they only read
    /// and only `read_at` and `load_u64` are called meanwhile.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len_bytes: usize, writable: bool) -> Self {
        Self { base, len_bytes, writable }
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies `dst.len()` bytes out, from `offset_bytes` on.
    #[inline]
    pub(crate) fn read_at(&self, offset_bytes: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        let src = self.place(offset_bytes, dst.len())?;
        // SAFETY: `place` checked that the bytes are within the range, which is readable by the contract of `new`; `dst` is a
        // reference, so it does not overlap memory that others write.
        unsafe { routine::copy_out(src.as_ptr(), dst) };
        Ok(())
    }

    /// Copies `src` in, from `offset_bytes` on.
    #[inline]
    pub(crate) fn write_at(&self, offset_bytes: usize, src: &[u8]) -> Result<(), AccessError> {
        if !self.writable {
            return Err(AccessError::ReadOnly);
        }
        let dst = self.place(offset_bytes, src.len())?;
        // SAFETY: `place` checked that the bytes are within the range, which is writable by the check above and the contract of
        // `new`; `src` is a reference, so it does not overlap memory that others write.
        unsafe { routine::copy_in(dst.as_ptr(), src) };
        Ok(())
    }

    /// Reads the 8 bytes at `offset_bytes` as one atomic load.
    #[inline]
    pub(crate) fn load_u64(&self, offset_bytes: usize, order: Ordering) -> Result<u64, AccessError> {
        let word = self.word(offset_bytes)?;
        // SAFETY: within the range, which is readable, and aligned: `word` checked it. Nobody writes it by other than volatile or
        // atomic means. Where the range is not writable, it is only loaded from.
        let word = unsafe { word.cast::<AtomicU64>().as_ref() };
        // Loads from memory that cannot be written are promised to work if they are relaxed (`std::sync::atomic`, "Atomic accesses
        // to read-only memory"); fences make up for the rest.
        Ok(match order {
            Ordering::Acquire if !self.writable => {
                let value = word.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                value
            }
            Ordering::SeqCst if !self.writable => {
                fence(Ordering::SeqCst);
                let value = word.load(Ordering::Relaxed);
                fence(Ordering::SeqCst);
                value
            }
            _ => word.load(order),
        })
    }

    /// Writes the 8 bytes at `offset_bytes` as one atomic store.
    #[inline]
    pub(crate) fn store_u64(&self, offset_bytes: usize, value: u64, order: Ordering) -> Result<(), AccessError> {
        if !self.writable {
            return Err(AccessError::ReadOnly);
        }
        let word = self.word(offset_bytes)?;
        // SAFETY: within the range and aligned (`word` checked it), and the range is writable (checked above).
        let word = unsafe { word.cast::<AtomicU64>().as_ref() };
        word.store(value, order);
        Ok(())
    }

    /// The address of `len_bytes` bytes at `offset_bytes`, which lie within the range.
    #[inline]
    fn place(&self, offset_bytes: usize, len_bytes: usize) -> Result<NonNull<u8>, AccessError> {
        match offset_bytes.checked_add(len_bytes) {
            Some(end_bytes) if end_bytes <= self.len_bytes => {
                // SAFETY: the offset is at most the length of the range, which is one mapped object by the contract of `new`.
                Ok(unsafe { self.base.add(offset_bytes) })
            }
            _ => Err(AccessError::OutOfRange { offset_bytes, len_bytes, region_bytes: self.len_bytes }),
        }
    }

    #[inline]
    fn word(&self, offset_bytes: usize) -> Result<NonNull<u64>, AccessError> {
        let place = self.place(offset_bytes, size_of::<u64>())?;
        if place.addr().get().is_multiple_of(align_of::<AtomicU64>()) {
            Ok(place.cast())
        } else {
            Err(AccessError::Misaligned { offset_bytes, addr: place.addr().get() })
        }
    }
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod routine {
    use super::assembly::copy;

    /// Copies `dst.len()` bytes from memory that others may write meanwhile.
    ///
    /// # Safety
    ///
    /// `src` is readable for `dst.len()` bytes during the call, and whatever writes them meanwhile does so by volatile or atomic
    /// means or from outside of Rust.
    #[inline]
    pub(super) unsafe fn copy_out(src: *const u8, dst: &mut [u8]) {
        // SAFETY: `src` is readable for the length (contract above), `dst` is a reference of that length, and so overlaps nothing.
        unsafe { copy(src, dst.as_mut_ptr(), dst.len()) };
    }

    /// Copies `src` into memory that others may read and write meanwhile.
    ///
    /// # Safety
    ///
    /// `dst` is writable for `src.len()` bytes during the call, and whatever accesses them meanwhile does so by volatile or atomic
    /// means or from outside of Rust.
    #[inline]
    pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
        // SAFETY: `dst` is writable for the length (contract above), `src` is a reference of that length, and so overlaps nothing.
        unsafe { copy(src.as_ptr(), dst, src.len()) };
    }
}

/// x86-64. Up to 64 bytes as two or four overlapping pieces, then 64 bytes at a time with an overlapping end, and string moves for
/// what is longer, which current processors run at the speed of their caches (`ERMS`). A byte where pieces overlap is copied twice,
/// and what stays is the later copy.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod assembly {
    use std::arch::asm;

    /// From here on `rep movsb` is faster than a loop; below, its start costs more than it gains.
    const STRING_MOVE_BYTES: usize = 2048;

    /// # Safety
    ///
    /// `src` is readable and `dst` writable for `len` bytes; they do not overlap. Either may be accessed by others meanwhile, by
    /// volatile or atomic means or from outside of Rust.
    #[inline]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        if len == 8 {
            // SAFETY: one load and one store of 8 bytes, which is the length; the flags are untouched.
            unsafe {
                asm!("mov {t}, [{s}]", "mov [{d}], {t}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
                    options(nostack, preserves_flags));
            }
        } else if len >= STRING_MOVE_BYTES {
            // SAFETY: moves exactly `len` bytes upwards: the direction flag is clear in every `asm!` block (Rust Reference, inline
            // assembly), and the registers that it changes are declared.
            unsafe {
                asm!("rep movsb", inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
                    options(nostack, preserves_flags));
            }
        } else if len > 64 {
            // SAFETY: the loop moves 64 bytes while more than 64 are left (`len` is greater, so at least once), and the last 64 bytes
            // of the range come after it, so every access is within `len` bytes of either pointer. All changed registers are declared.
            unsafe {
                asm!(
                    "lea {se}, [{s} + {n} - 64]",
                    "lea {de}, [{d} + {n} - 64]",
                    "2:",
                    "movups {x}, [{s}]", "movups {y}, [{s} + 16]", "movups {z}, [{s} + 32]", "movups {w}, [{s} + 48]",
                    "movups [{d}], {x}", "movups [{d} + 16], {y}", "movups [{d} + 32], {z}", "movups [{d} + 48], {w}",
                    "add {s}, 64",
                    "add {d}, 64",
                    "cmp {d}, {de}",
                    "jb 2b",
                    "movups {x}, [{se}]", "movups {y}, [{se} + 16]", "movups {z}, [{se} + 32]", "movups {w}, [{se} + 48]",
                    "movups [{de}], {x}", "movups [{de} + 16], {y}", "movups [{de} + 32], {z}", "movups [{de} + 48], {w}",
                    s = inout(reg) src => _, d = inout(reg) dst => _, n = in(reg) len, se = out(reg) _, de = out(reg) _,
                    x = out(xmm_reg) _, y = out(xmm_reg) _, z = out(xmm_reg) _, w = out(xmm_reg) _,
                    options(nostack),
                );
            }
        } else if len > 32 {
            // SAFETY: the first 32 and the last 32 bytes of 33 to 64: all within the length, together all of it.
            unsafe {
                asm!(
                    "movups {x}, [{s}]", "movups {y}, [{s} + 16]", "movups {z}, [{s} + {n} - 32]", "movups {w}, [{s} + {n} - 16]",
                    "movups [{d}], {x}", "movups [{d} + 16], {y}", "movups [{d} + {n} - 32], {z}", "movups [{d} + {n} - 16], {w}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                    x = out(xmm_reg) _, y = out(xmm_reg) _, z = out(xmm_reg) _, w = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
        } else if len >= 16 {
            // SAFETY: the first 16 and the last 16 bytes of 16 to 32: both within the length, together all of it.
            unsafe {
                asm!("movups {x}, [{s}]", "movups {y}, [{s} + {n} - 16]", "movups [{d}], {x}", "movups [{d} + {n} - 16], {y}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len, x = out(xmm_reg) _, y = out(xmm_reg) _,
                    options(nostack, preserves_flags));
            }
        } else if len > 8 {
            // SAFETY: the first 8 and the last 8 bytes of 9 to 15: both within the length, together all of it.
            unsafe {
                asm!("mov {t}, [{s}]", "mov {u}, [{s} + {n} - 8]", "mov [{d}], {t}", "mov [{d} + {n} - 8], {u}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len, t = out(reg) _, u = out(reg) _,
                    options(nostack, preserves_flags));
            }
        } else if len >= 4 {
            // SAFETY: the first 4 and the last 4 bytes of 4 to 7: both within the length, together all of it.
            unsafe {
                asm!("mov {t:e}, [{s}]", "mov {u:e}, [{s} + {n} - 4]", "mov [{d}], {t:e}", "mov [{d} + {n} - 4], {u:e}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len, t = out(reg) _, u = out(reg) _,
                    options(nostack, preserves_flags));
            }
        } else if len > 0 {
            // SAFETY: one to three times one byte, counted by the length, which is not 0.
            unsafe {
                asm!("2:", "mov {t}, byte ptr [{s} + {n} - 1]", "mov byte ptr [{d} + {n} - 1], {t}", "dec {n}", "jnz 2b",
                    s = in(reg) src, d = in(reg) dst, n = inout(reg) len => _, t = out(reg_byte) _,
                    options(nostack));
            }
        }
    }
}

/// AArch64: 16 bytes at a time, then single bytes.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod assembly {
    use std::arch::asm;

    /// # Safety
    ///
    /// `src` is readable and `dst` writable for `len` bytes; they do not overlap. Either may be accessed by others meanwhile, by
    /// volatile or atomic means or from outside of Rust.
    #[inline]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the first loop moves 16 bytes while at least 16 are left, the second single bytes while one is left, so no access
        // is past `len` bytes of either pointer. All changed registers are declared.
        unsafe {
            asm!(
                "subs {n}, {n}, #16",
                "b.lo 3f",
                "2:",
                "ldp {t}, {u}, [{s}], #16",
                "stp {t}, {u}, [{d}], #16",
                "subs {n}, {n}, #16",
                "b.hs 2b",
                "3:",
                "adds {n}, {n}, #16",
                "b.eq 5f",
                "4:",
                "ldrb {t:w}, [{s}], #1",
                "strb {t:w}, [{d}], #1",
                "subs {n}, {n}, #1",
                "b.ne 4b",
                "5:",
                s = inout(reg) src => _, d = inout(reg) dst => _, n = inout(reg) len => _,
                t = out(reg) _, u = out(reg) _,
                options(nostack),
            );
        }
    }
}

/// Elsewhere, and under Miri: what the assembly means.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod routine {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Copies `dst.len()` bytes from memory that others may write meanwhile.
    ///
    /// # Safety
    ///
    /// `src` is readable for `dst.len()` bytes during the call, and whatever writes them meanwhile does so by volatile or atomic
    /// means or from outside of Rust.
    pub(super) unsafe fn copy_out(src: *const u8, dst: &mut [u8]) {
        for (i, to) in dst.iter_mut().enumerate() {
            // SAFETY: `i` is less than the length that `src` is readable for.
            let from = unsafe { src.add(i) };
            // SAFETY: readable, any alignment will do for a byte, and only loaded from, relaxed, which needs no right to write.
            let from = unsafe { &*from.cast::<AtomicU8>() };
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Copies `src` into memory that others may read and write meanwhile.
    ///
    /// # Safety
    ///
    /// `dst` is writable for `src.len()` bytes during the call, and whatever accesses them meanwhile does so by volatile or atomic
    /// means or from outside of Rust.
    pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
        for (i, from) in src.iter().enumerate() {
            // SAFETY: `i` is less than the length that `dst` is writable for.
            let to = unsafe { dst.add(i) };
            // SAFETY: writable, and any alignment will do for a byte.
            let to = unsafe { &*to.cast::<AtomicU8>() };
            to.store(*from, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range over `bytes`, which are not used otherwise while it is.
    fn range(bytes: &mut [u8], writable: bool) -> RawRange {
        let len = bytes.len();
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the tests touch the bytes through the range alone until they are done with it.
        unsafe { RawRange::new(base, len, writable) }
    }

    const LENGTHS: [usize; 26] =
        [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 2047, 2048, 2049];

    #[test]
    fn write_at_changes_exactly_the_bytes_asked_for() {
        for len in LENGTHS {
            for offset in [0, 1, 7, 8] {
                let mut memory = vec![0xEE; len + 32];
                let src: Vec<u8> = (0..len).map(|i| i as u8).collect();
                range(&mut memory, true).write_at(offset, &src).unwrap();
                assert!(memory[..offset].iter().all(|b| *b == 0xEE), "{len} at {offset}");
                assert_eq!(&memory[offset..offset + len], &src[..], "{len} at {offset}");
                assert!(memory[offset + len..].iter().all(|b| *b == 0xEE), "{len} at {offset}");
            }
        }
    }

    #[test]
    fn read_at_fills_exactly_what_it_is_given() {
        for len in LENGTHS {
            for offset in [0, 1, 7, 8] {
                let mut memory: Vec<u8> = (0..len + 32).map(|i| i as u8).collect();
                let expected = memory[offset..offset + len].to_vec();
                let mut dst = vec![0xEE; len + 16];
                range(&mut memory, false).read_at(offset, &mut dst[..len]).unwrap();
                assert_eq!(&dst[..len], &expected[..], "{len} at {offset}");
                assert!(dst[len..].iter().all(|b| *b == 0xEE), "{len} at {offset}");
            }
        }
    }

    #[test]
    fn range_is_checked_without_overflow_and_nothing_is_touched() {
        let mut memory = [1u8; 16];
        let memory = range(&mut memory, true);
        let mut dst = [0u8; 4];
        for offset in [13, 16, 17, usize::MAX - 3, usize::MAX] {
            let error = AccessError::OutOfRange { offset_bytes: offset, len_bytes: 4, region_bytes: 16 };
            assert_eq!(memory.read_at(offset, &mut dst), Err(error));
            assert_eq!(memory.write_at(offset, &[9; 4]), Err(error));
        }
        assert_eq!(dst, [0; 4]);
        assert_eq!(memory.read_at(16, &mut []), Ok(()));
        assert!(memory.read_at(17, &mut []).is_err());
        let mut all = [0; 16];
        memory.read_at(0, &mut all).unwrap();
        assert_eq!(all, [1; 16]);
    }

    #[test]
    fn memory_for_reading_only_takes_no_write() {
        let mut memory = vec![0u64; 2];
        // SAFETY: used through the range alone until the test is done.
        let memory = unsafe { RawRange::new(NonNull::new(memory.as_mut_ptr()).unwrap().cast(), 16, false) };
        assert_eq!(memory.write_at(0, &[1]), Err(AccessError::ReadOnly));
        assert_eq!(memory.store_u64(0, 1, Ordering::Release), Err(AccessError::ReadOnly));
        for order in [Ordering::Relaxed, Ordering::Acquire, Ordering::SeqCst] {
            assert_eq!(memory.load_u64(8, order), Ok(0));
        }
    }

    #[test]
    fn words_need_an_aligned_address_within_the_range() {
        let mut words = [0u64; 3];
        // SAFETY: used through the range alone until the test is done.
        let memory = unsafe { RawRange::new(NonNull::new(words.as_mut_ptr()).unwrap().cast(), 24, true) };
        memory.store_u64(8, 0x0807_0605_0403_0201, Ordering::Release).unwrap();
        assert_eq!(memory.load_u64(8, Ordering::Acquire), Ok(0x0807_0605_0403_0201));
        let addr = memory.base().addr().get() + 4;
        assert_eq!(memory.load_u64(4, Ordering::Relaxed), Err(AccessError::Misaligned { offset_bytes: 4, addr }));
        assert!(matches!(memory.store_u64(24, 1, Ordering::Relaxed), Err(AccessError::OutOfRange { .. })));
        assert_eq!(words, [0, 0x0807_0605_0403_0201, 0]);
    }

    #[test]
    fn copies_race_with_copies_without_tearing_bytes() {
        let mut memory = vec![0u8; 256];
        let memory = range(&mut memory, true);
        let addr = memory.base().as_ptr().expose_provenance();
        let rounds = if cfg!(miri) { 4 } else { 2000 };
        std::thread::scope(|scope| {
            for value in [0x55u8, 0xAA] {
                scope.spawn(move || {
                    let base = NonNull::new(std::ptr::with_exposed_provenance_mut(addr)).unwrap();
                    // SAFETY: the vector outlives the scope and is accessed through ranges alone within it.
                    let memory = unsafe { RawRange::new(base, 256, true) };
                    for _ in 0..rounds {
                        memory.write_at(0, &[value; 256]).unwrap();
                    }
                });
            }
            let mut copy = [0; 256];
            for _ in 0..rounds {
                memory.read_at(0, &mut copy).unwrap();
                assert!(copy.iter().all(|b| [0, 0x55, 0xAA].contains(b)));
            }
        });
    }
}
