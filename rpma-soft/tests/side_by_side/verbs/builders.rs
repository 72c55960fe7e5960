//! Batches of send requests, as `ibv_wr_start(3)` and what follows it build them.
#![expect(unsafe_code, reason = "calls what the headers of verbs call inline")]

use std::ffi::c_int;

use rpma_sys::bindings::*;
use rpma_sys::ret::errno_ret;

use super::{Answer, Qp};

/// The operations that are posted in both ways.
pub(crate) const BUILDERS: u64 = (IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) as u64;

/// A batch that was started; complete or abort ends it, and without either no other is started.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    qp_ex: *mut ibv_qp_ex,
    _of: &'a Qp,
}

/// Calls a builder.
macro_rules! call {
    ($batch:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the queue pair is live, and was made with all of `BUILDERS`.
        let builder = unsafe { (*$batch.qp_ex).$name }.expect(stringify!($name));
        // SAFETY: as above, between start and what ends the batch, by this thread; what is pointed to lives through the call.
        unsafe { builder($batch.qp_ex $(, $argument)*) }
    }};
}

impl<'a> Batch<'a> {
    /// `ibv_wr_start(3)`.
    pub(crate) fn start(qp: &'a Qp) -> Self {
        let batch = Self { qp_ex: qp.extended(), _of: qp };
        call!(batch, wr_start());
        batch
    }

    /// What the next request is told and flagged with.
    fn next(&self, wr_id: u64, flags: u32) -> &Self {
        // SAFETY: these fields are the program's from start to complete.
        unsafe { (*self.qp_ex).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*self.qp_ex).wr_flags = flags };
        self
    }

    pub(crate) fn send(&self, wr_id: u64, flags: u32) -> &Self {
        call!(self.next(wr_id, flags), wr_send());
        self
    }

    pub(crate) fn send_imm(&self, wr_id: u64, imm: u32) -> &Self {
        call!(self.next(wr_id, IBV_SEND_SIGNALED), wr_send_imm(imm.to_be()));
        self
    }

    pub(crate) fn write(&self, wr_id: u64, (addr, rkey): (u64, u32), flags: u32) -> &Self {
        call!(self.next(wr_id, flags), wr_rdma_write(rkey, addr));
        self
    }

    pub(crate) fn write_imm(&self, wr_id: u64, (addr, rkey): (u64, u32), imm: u32) -> &Self {
        call!(self.next(wr_id, IBV_SEND_SIGNALED), wr_rdma_write_imm(rkey, addr, imm.to_be()));
        self
    }

    pub(crate) fn read(&self, wr_id: u64, (addr, rkey): (u64, u32)) -> &Self {
        call!(self.next(wr_id, IBV_SEND_SIGNALED), wr_rdma_read(rkey, addr));
        self
    }

    pub(crate) fn compare_swap(&self, wr_id: u64, (addr, rkey): (u64, u32), compare: u64, swap: u64) -> &Self {
        call!(self.next(wr_id, IBV_SEND_SIGNALED), wr_atomic_cmp_swp(rkey, addr, compare, swap));
        self
    }

    pub(crate) fn fetch_add(&self, wr_id: u64, (addr, rkey): (u64, u32), add: u64) -> &Self {
        call!(self.next(wr_id, IBV_SEND_SIGNALED), wr_atomic_fetch_add(rkey, addr, add));
        self
    }

    pub(crate) fn set_sge(&self, sge: ibv_sge) -> &Self {
        call!(self, wr_set_sge(sge.lkey, sge.addr, sge.length));
        self
    }

    pub(crate) fn set_sge_list(&self, list: &[ibv_sge]) -> &Self {
        call!(self, wr_set_sge_list(list.len(), list.as_ptr()));
        self
    }

    pub(crate) fn set_inline_data(&self, data: &[u8]) -> &Self {
        call!(self, wr_set_inline_data(data.as_ptr().cast_mut().cast(), data.len()));
        self
    }

    pub(crate) fn set_inline_data_list(&self, list: &[&[u8]]) -> &Self {
        let list: Vec<_> =
            list.iter().map(|data| ibv_data_buf { addr: data.as_ptr().cast_mut().cast(), length: data.len() }).collect();
        call!(self, wr_set_inline_data_list(list.len(), list.as_ptr()));
        self
    }

    /// `ibv_wr_complete(3)`.
    pub(crate) fn complete(&self) -> Answer {
        let rc: c_int = call!(self, wr_complete());
        Ok(errno_ret(rc)?)
    }

    /// `ibv_wr_abort(3)`.
    pub(crate) fn abort(&self) {
        call!(self, wr_abort());
    }
}
