//! A mapping, unmapped when it is dropped.
#![expect(unsafe_code, reason = "maps and unmaps memory")]

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::copy::RawRange;

/// Memory from `mmap(2)`, which nothing else refers to.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<c_void>,
    mapped_bytes: usize,
    writable: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread; nothing in here is tied to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives the address and a `RawRange`, whose accesses may come from several threads at once.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed pages that no file stands behind. The length must not be 0.
    pub(super) fn anonymous(len_bytes: usize) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping wherever the kernel wants it (no MAP_FIXED), so no memory of ours is replaced.
        let base = unsafe { mmap_anonymous(null_mut(), len_bytes, rights, MapFlags::PRIVATE) }?;
        Self::new(base, len_bytes, true)
    }

    /// The first `len_bytes` bytes of a file or device, shared with everyone who maps it. Tells also whether the mapping is
    /// synchronous (`MAP_SYNC`), which file systems on persistent memory and DAX devices give. The length must not be 0.
    pub(super) fn shared(file: impl AsFd, len_bytes: usize, writable: bool) -> io::Result<(Self, bool)> {
        // The kernel refuses MAP_SYNC with EOPNOTSUPP where the file does not have it, and with EINVAL before Linux 4.15.
        let (base, is_sync) = match map_shared(&file, len_bytes, writable, MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            Ok(base) => (base, true),
            Err(_) => (map_shared(&file, len_bytes, writable, MapFlags::SHARED)?, false),
        };
        Ok((Self::new(base, len_bytes, writable)?, is_sync))
    }

    fn new(base: *mut c_void, mapped_bytes: usize, writable: bool) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))?;
        Ok(Self { base, mapped_bytes, writable })
    }

    #[inline]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }

    /// The first `len_bytes` bytes of the mapping, to copy from and to.
    ///
    /// # Safety
    ///
    /// The mapping outlives what is returned, and nobody borrows from it for writing meanwhile, nor at all while it is written.
    #[inline]
    pub(super) unsafe fn range(&self, len_bytes: usize) -> RawRange {
        debug_assert!(len_bytes <= self.mapped_bytes);
        // SAFETY: mapped with these rights for at least this length, and only accessed as the contract above allows.
        unsafe { RawRange::new(self.base(), len_bytes, self.writable) }
    }
}

fn map_shared(file: impl AsFd, len_bytes: usize, writable: bool, flags: MapFlags) -> io::Result<*mut c_void> {
    let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a new mapping wherever the kernel wants it (no MAP_FIXED), so no memory of ours is replaced.
    Ok(unsafe { mmap(null_mut(), len_bytes, rights, flags, file, 0) }?)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, unmapped here only, and what was handed out ended with the owner of this.
        if let Err(error) = unsafe { munmap(self.base.as_ptr(), self.mapped_bytes) } {
            log::error!("{} bytes could not be unmapped and are leaked: {error}", self.mapped_bytes);
        }
    }
}
