//! Protection domains and registered memory.
#![expect(unsafe_code, reason = "calls a provider, and reads memory that devices write")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};

use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;
use rpma_sys::ret::{errno_ret, null_ret};
use rustix::param::page_size;

use super::{Answer, Setup};

/// Every right that all devices know.
pub(crate) const ALL: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    provider: ProviderRef,
    raw: Cell<*mut ibv_pd>,
}

impl Pd {
    pub(crate) fn alloc(setup: &Setup) -> Rc<Self> {
        // SAFETY: the context is live.
        let raw = null_ret(|| unsafe { setup.provider.ibv_alloc_pd(setup.context) }).expect("a protection domain");
        Rc::new(Self { provider: setup.provider.clone(), raw: Cell::new(raw.as_ptr()) })
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.get()
    }

    /// Frees it, or says why not.
    pub(crate) fn free(&self) -> Answer {
        // SAFETY: live; if something is in it, the provider refuses, which is what is asked.
        errno_ret(unsafe { self.provider.ibv_dealloc_pd(self.raw.get()) })?;
        self.raw.set(std::ptr::null_mut());
        Ok(())
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if !self.raw.get().is_null() {
            self.free().expect("a protection domain that nothing is in is freed");
        }
    }
}

/// Pages of this process, mapped for it alone.
#[derive(Debug)]
pub(crate) struct Pages {
    at: *mut u8,
    len: usize,
}

impl Pages {
    /// So many pages with the protection `prot`.
    pub(crate) fn map(pages: usize, prot: i32) -> Rc<Self> {
        let len = pages * page_size();
        // SAFETY: a new mapping anywhere; nothing that exists is touched.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Rc::new(Self { at: at.cast(), len })
    }

    /// Has nobody touch one page. It is not unmapped: another thread's mapping could take its place.
    pub(crate) fn close_page(&self, page: usize) {
        let at = self.at.wrapping_add(page * page_size());
        // SAFETY: a page of this mapping, which only tests of registration use afterwards.
        assert_eq!(unsafe { libc::mprotect(at.cast(), page_size(), libc::PROT_NONE) }, 0);
    }

    pub(crate) fn addr(&self) -> u64 {
        self.at.expose_provenance() as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our mapping, which every region held an `Rc` of.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// A registered region.
#[derive(Debug)]
pub(crate) struct Mr {
    provider: ProviderRef,
    raw: Cell<*mut ibv_mr>,
    pages: Rc<Pages>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    _pd: Rc<Pd>,
}

impl Mr {
    /// Registers `len` bytes at `offset` of `pages`.
    pub(crate) fn register(
        setup: &Setup,
        pd: &Rc<Pd>,
        pages: &Rc<Pages>,
        offset: usize,
        len: usize,
        access: u32,
    ) -> Answer<Self> {
        let addr = pages.at.wrapping_add(offset);
        let iova = addr.expose_provenance() as u64;
        let provider = &setup.provider;
        // SAFETY: the domain is live; the pages are held until the region is gone, and nobody has a reference to them.
        let raw = null_ret(|| unsafe { provider.ibv_reg_mr_iova2(pd.as_ptr(), addr.cast(), len, iova, access) })?;
        // SAFETY: just made, and live.
        let keys = unsafe { raw.as_ref() };
        let (lkey, rkey) = (keys.lkey, keys.rkey);
        let (provider, raw) = (provider.clone(), Cell::new(raw.as_ptr()));
        Ok(Self { provider, raw, pages: Rc::clone(pages), lkey, rkey, _pd: Rc::clone(pd) })
    }

    /// A page with these rights.
    pub(crate) fn page(setup: &Setup, pd: &Rc<Pd>, access: u32) -> Self {
        let pages = Pages::map(1, libc::PROT_READ | libc::PROT_WRITE);
        Self::register(setup, pd, &pages, 0, page_size(), access).expect("a region")
    }

    pub(crate) fn deregister(&self) -> Answer {
        // SAFETY: live, and set to null below.
        errno_ret(unsafe { self.provider.ibv_dereg_mr(self.raw.get()) })?;
        self.raw.set(std::ptr::null_mut());
        Ok(())
    }

    /// The address of byte `offset` of its pages.
    pub(crate) fn addr(&self, offset: u64) -> u64 {
        self.pages.addr() + offset
    }

    /// A range of it.
    pub(crate) fn sge(&self, offset: u64, length: u32) -> ibv_sge {
        ibv_sge { addr: self.addr(offset), length, lkey: self.lkey }
    }

    /// Writes bytes there.
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.pages.len);
        for (at, &byte) in (offset..).zip(bytes) {
            self.byte(at).store(byte, Ordering::Relaxed);
        }
    }

    /// A byte of its pages. Other threads of this process play the device.
    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.pages.len);
        // SAFETY: inside of the mapping (asserted), which outlives this borrow, and only ever accessed atomically or by system calls.
        unsafe { AtomicU8::from_ptr(self.pages.at.wrapping_add(at)) }
    }

    /// Reads bytes there.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.pages.len);
        (offset..offset + len).map(|at| self.byte(at).load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.raw.get().is_null() {
            self.deregister().expect("a region is deregistered");
        }
    }
}
