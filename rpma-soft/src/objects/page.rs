//! A page of a file, mapped without any access: the kernel then lists the file as it lists others that are mapped.
#![expect(unsafe_code, reason = "maps and unmaps a page of its own")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};

use libc::{MAP_FAILED, MAP_PRIVATE, PROT_NONE, c_void};

pub(super) struct Page(NonNull<c_void>);

impl Page {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel picks; it changes none that is there.
        let addr = unsafe { libc::mmap(null_mut(), rustix::param::page_size(), PROT_NONE, MAP_PRIVATE, file.as_raw_fd(), 0) };
        if addr == MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(addr).map(Self).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    pub(super) fn addr(&self) -> u64 {
        self.0.addr().get() as u64
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, of that length, and unmapped here alone; without access, nothing refers into it.
        let rc = unsafe { libc::munmap(self.0.as_ptr(), rustix::param::page_size()) };
        debug_assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    }
}
