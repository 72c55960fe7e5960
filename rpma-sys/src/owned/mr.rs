//! Registered memory.
#![expect(unsafe_code, reason = "calls verbs and reads the region's keys")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Pd, check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::ret::{errno_ret, null_ret};

/// A registered range of memory: `ibv_reg_mr(3)`.
#[derive(Debug)]
pub struct Mr {
    /// `None` once deregistered.
    raw: Option<NonNull<ibv_mr>>,
    pd: Arc<Pd>,
    lkey: u32,
    rkey: u32,
    mark: ProcessMark,
}

// SAFETY: verbs allow a region to be used from any thread.
unsafe impl Send for Mr {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `addr` with the `IBV_ACCESS_*` rights in `access`.
    ///
    /// # Errors
    ///
    /// As `ibv_reg_mr(3)`.
    ///
    /// # Safety
    ///
    /// Until the region is deregistered, or for ever if that fails or never happens: the range stays mapped, and with any of the write
    /// rights the device may change it at any time, so no reference into it is used as if it did not.
    pub unsafe fn register(pd: &Arc<Pd>, addr: NonNull<u8>, len: usize, access: u32) -> io::Result<Self> {
        pd.check()?;
        let iova = addr.as_ptr().expose_provenance() as u64;
        // SAFETY: the protection domain is live; what the range must be is this function's own contract.
        let raw = null_ret(|| unsafe {
            pd.context().provider().ibv_reg_mr_iova2(pd.as_ptr(), addr.as_ptr().cast(), len, iova, access)
        })?;
        // SAFETY: the region is live.
        let fields = unsafe { raw.as_ref() };
        Ok(Self { raw: Some(raw), pd: Arc::clone(pd), lkey: fields.lkey, rkey: fields.rkey, mark: ProcessMark::current() })
    }

    /// Deregisters. Once this returned `Ok`, nothing touches the memory any more on the region's account.
    ///
    /// # Errors
    ///
    /// As `ibv_dereg_mr(3)`: the region is then leaked with its protection domain, and the memory must stay as it is for ever. In a
    /// forked child, `Unsupported`: the region is the parent's.
    pub fn deregister(mut self) -> io::Result<()> {
        check(self.mark)?;
        let result = self.dereg();
        if let Err(e) = &result {
            leaked("a memory region", e);
            std::mem::forget(self);
        }
        result
    }

    fn dereg(&mut self) -> io::Result<()> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        // SAFETY: from `ibv_reg_mr_iova2` of this provider, and taken out of the field, so deregistered once. A region with work
        // outstanding may be deregistered: the work then fails, and nothing touches the memory after the call returns.
        errno_ret(unsafe { self.pd.context().provider().ibv_dereg_mr(raw.as_ptr()) })
    }

    /// Gives advice on ranges of the region: `ibv_advise_mr(3)`.
    ///
    /// # Errors
    ///
    /// As `ibv_advise_mr(3)`.
    pub fn advise(&self, advice: ib_uverbs_advise_mr_advice, flags: u32, ranges: &mut [ibv_sge]) -> io::Result<()> {
        check(self.mark)?;
        let num_sge = u32::try_from(ranges.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the protection domain is live, and `ranges` holds `num_sge` entries.
        errno_ret(unsafe {
            self.pd.context().provider().ibv_advise_mr(self.pd.as_ptr(), advice, flags, ranges.as_mut_ptr(), num_sge)
        })
    }

    /// The local key.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The remote key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        if let Err(e) = self.dereg() {
            leaked("a memory region", &e);
            // The provider still uses the protection domain.
            std::mem::forget(Arc::clone(&self.pd));
        }
    }
}
