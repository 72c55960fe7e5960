//! Shared receive queues.
#![expect(unsafe_code, reason = "calls a provider")]

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::rc::Rc;

use rpma_sys::bindings::*;
use rpma_sys::ret::{errno_ret, null_ret};
use rpma_sys::{ProviderRef, SrqOps};

use super::{Answer, Pd, Setup};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    provider: ProviderRef,
    raw: Cell<*mut ibv_srq>,
    ops: SrqOps,
    /// Receives and ranges that were granted.
    pub(crate) granted: (u32, u32),
    _pd: Rc<Pd>,
}

impl Srq {
    /// A queue of `wr` receives with `sge` ranges each.
    pub(crate) fn create(setup: &Setup, pd: &Rc<Pd>, wr: u32, sge: u32) -> Answer<Rc<Self>> {
        let provider = setup.provider.clone();
        let attr = ibv_srq_attr { max_wr: wr, max_sge: sge, srq_limit: 0 };
        let mut attr = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain is live, and `attr` the program's.
        let raw = null_ret(|| unsafe { provider.ibv_create_srq(pd.as_ptr(), &raw mut attr) })?.as_ptr();
        // SAFETY: just made, and live.
        let ops = unsafe { provider.srq_ops(raw) }.expect("a data path");
        let granted = (attr.attr.max_wr, attr.attr.max_sge);
        Ok(Rc::new(Self { provider, raw: Cell::new(raw), ops, granted, _pd: Rc::clone(pd) }))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.get()
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, wr_id: u64, sges: &[ibv_sge]) -> Answer {
        let num_sge = c_int::try_from(sges.len()).expect("a short list");
        let mut wr = ibv_recv_wr { wr_id, sg_list: sges.as_ptr().cast_mut(), num_sge, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        // SAFETY: the queue is live; the request and its ranges live through the call.
        let rc = unsafe { (self.ops.post_srq_recv)(self.raw.get(), &raw mut wr, &raw mut bad) };
        Ok(errno_ret(rc)?)
    }

    /// Frees it, or says why not.
    pub(crate) fn free(&self) -> Answer {
        // SAFETY: live; if a queue pair uses it, the provider refuses, which is what is asked.
        errno_ret(unsafe { self.provider.ibv_destroy_srq(self.raw.get()) })?;
        self.raw.set(null_mut());
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.raw.get().is_null() {
            self.free().expect("a queue that no queue pair uses is freed");
        }
    }
}
