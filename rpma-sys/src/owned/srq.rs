//! The shared receive queue.
#![expect(unsafe_code, reason = "calls verbs and the data path's function pointer")]

use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::qp::{PostError, num_sge, posted};
use super::{Context, Pd, check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::provider::SrqOps;
use crate::ret::{errno_ret, null_ret};

/// Sizes of a shared receive queue: what is asked for, and what was granted, which may be more. `ibv_create_srq(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqCap {
    /// Requests that the queue holds.
    pub wr: u32,
    /// Memory ranges of one request.
    pub sge: u32,
}

/// A queue of receives that several queue pairs take from: `ibv_create_srq(3)`.
#[derive(Debug)]
pub struct Srq {
    raw: NonNull<ibv_srq>,
    ops: SrqOps,
    granted: SrqCap,
    pd: ManuallyDrop<Arc<Pd>>,
    mark: ProcessMark,
}

// SAFETY: verbs allow a shared receive queue to be used from any thread.
unsafe impl Send for Srq {}
// SAFETY: as for `Send`.
unsafe impl Sync for Srq {}

impl Srq {
    /// Creates a queue of at least that size.
    ///
    /// # Errors
    ///
    /// As `ibv_create_srq(3)`: EINVAL if the device has none of that size, EOPNOTSUPP or ENOSYS if it has none at all.
    pub fn create(pd: &Arc<Pd>, cap: SrqCap) -> io::Result<Arc<Self>> {
        pd.check()?;
        let mut attr = ibv_srq_init_attr {
            attr: ibv_srq_attr { max_wr: cap.wr, max_sge: cap.sge, srq_limit: 0 },
            ..ibv_srq_init_attr::default()
        };
        let provider = pd.context().provider();
        // SAFETY: the protection domain is live, and `attr` is what the call reads and writes.
        let raw = null_ret(|| unsafe { provider.ibv_create_srq(pd.as_ptr(), &raw mut attr) })?;
        // SAFETY: the queue is live.
        let ops = unsafe { provider.srq_ops(raw.as_ptr()) };
        let ops = ops.inspect_err(|_| {
            // SAFETY: live, and used by nobody yet.
            let rc = unsafe { provider.ibv_destroy_srq(raw.as_ptr()) };
            if let Err(e) = errno_ret(rc) {
                leaked("a shared receive queue", &e);
                std::mem::forget(Arc::clone(pd));
            }
        })?;
        Ok(Arc::new(Self {
            raw,
            ops,
            granted: SrqCap { wr: attr.attr.max_wr, sge: attr.attr.max_sge },
            pd: ManuallyDrop::new(Arc::clone(pd)),
            mark: ProcessMark::current(),
        }))
    }

    /// Posts a receive: `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the queue stays intact.
    pub fn post_recv(&self, sges: &[ibv_sge], wr_id: u64) -> Result<(), PostError> {
        check(self.mark)?;
        let num_sge = num_sge(sges, self.granted.sge)?;
        let sg_list = if sges.is_empty() { null_mut() } else { sges.as_ptr().cast_mut() };
        let mut wr = ibv_recv_wr { wr_id, sg_list, num_sge, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        // SAFETY: the queue is live; `wr` is one request with a null `next` and `num_sge` ranges, which the provider only reads; the
        // device checks them against their keys.
        let rc = unsafe { (self.ops.post_srq_recv)(self.raw.as_ptr(), &raw mut wr, &raw mut bad) };
        posted(rc, bad.is_null())
    }

    /// The sizes that were granted.
    #[must_use]
    pub fn granted(&self) -> SrqCap {
        self.granted
    }

    /// Its protection domain, which every range posted must be in.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Refuses in a process that did not make the queue: for what must be known before a lock is taken, which another thread of the
    /// parent may have held.
    ///
    /// # Errors
    ///
    /// `Unsupported` in a forked child.
    pub fn check_process(&self) -> io::Result<()> {
        check(self.mark)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        // SAFETY: live, and every queue pair on it held an `Arc` of it and is gone.
        let rc = unsafe { self.context().provider().ibv_destroy_srq(self.raw.as_ptr()) };
        match errno_ret(rc) {
            // SAFETY: not used again; the field is dropped here only.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.pd) },
            Err(e) => leaked("a shared receive queue", &e),
        }
    }
}
