//! The extended way to post: `ibv_wr_start(3)`, builders, `ibv_wr_complete(3)`.
#![expect(unsafe_code, reason = "reads what the program gives to builders")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex};

use rpma_sys::bindings::*;

use super::post::{copy_program_s, errno_of, flags_of};
use super::qp::shared;
use crate::driver::{caught, lock, wait_while};
use crate::rc::{Data, PostError, SendOp, SendWr, Sge};
use crate::wire::{FlushSpec, Placement, Remote, Selectivity};

/// The batch that is being built. One thread builds at a time: from start to complete or abort, others wait at their start.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    batch: Mutex<Option<Batch>>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Batch {
    list: Vec<SendWr>,
    /// What a builder found wrong; the whole batch is undone.
    error: c_int,
}

impl Builder {
    fn start(&self) {
        let mut batch = wait_while(&self.free, lock(&self.batch), |batch| batch.is_some());
        *batch = Some(Batch::default());
    }

    fn end(&self) -> Batch {
        let batch = lock(&self.batch).take();
        self.free.notify_one();
        batch.unwrap_or(Batch { list: Vec::new(), error: libc::EINVAL })
    }

    fn fail(&self, errno: c_int) {
        if let Some(batch) = lock(&self.batch).as_mut().filter(|batch| batch.error == 0) {
            batch.error = errno;
        }
    }

    fn change_last(&self, data: Data) {
        if let Some(last) = lock(&self.batch).as_mut().and_then(|batch| batch.list.last_mut()) {
            last.data = data;
        }
    }
}

/// Puts in the builders of the operations in `ops`.
pub(super) fn fill(raw: &mut ibv_qp_ex, ops: u64) {
    let has = |flag: u32| ops & u64::from(flag) != 0;
    raw.wr_start = Some(wr_start);
    raw.wr_complete = Some(wr_complete);
    raw.wr_abort = Some(wr_abort);
    raw.wr_set_sge = Some(wr_set_sge);
    raw.wr_set_sge_list = Some(wr_set_sge_list);
    raw.wr_set_inline_data = Some(wr_set_inline_data);
    raw.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    raw.wr_rdma_write = has(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
    raw.wr_rdma_write_imm = has(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm as _);
    raw.wr_rdma_read = has(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read as _);
    raw.wr_send = has(IBV_QP_EX_WITH_SEND).then_some(wr_send as _);
    raw.wr_send_imm = has(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
    raw.wr_atomic_cmp_swp = has(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp as _);
    raw.wr_atomic_fetch_add = has(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add as _);
    raw.wr_flush = has(IBV_QP_EX_WITH_FLUSH).then_some(wr_flush as _);
    raw.wr_atomic_write = has(IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(wr_atomic_write as _);
}

/// Builds for a program in C, into which no panic may go. One is a bug of ours, and what it was about is the batch: that is undone, as a
/// post that panics is, with EFAULT.
///
/// # Safety
///
/// `qp` is live.
unsafe fn build(qp: *mut ibv_qp_ex, work: impl FnOnce(&Builder)) {
    // SAFETY: live (contract above).
    let (_, builder) = unsafe { shared(qp.cast()) };
    if caught(|| work(builder)).is_none() {
        let _ = caught(|| builder.fail(libc::EFAULT));
    }
}

/// Adds a request with the `wr_id` and `wr_flags` that the program has just set.
///
/// # Safety
///
/// `qp` is live, between start and complete.
unsafe fn add(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: live (contract above), and nobody else builds meanwhile.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: as above.
    let flags = flags_of(unsafe { (*qp).wr_flags });
    let add = |builder: &Builder| {
        if let Some(batch) = lock(&builder.batch).as_mut() {
            batch.list.push(SendWr { wr_id, op, data: Data::default(), flags });
        }
    };
    // SAFETY: live (contract above).
    unsafe { build(qp, add) };
}

pub(super) unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: live (contract of the call).
    unsafe { build(qp, Builder::start) };
}

pub(super) unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: live (contract of the call).
    unsafe { build(qp, |builder| drop(builder.end())) };
}

pub(super) unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: live (contract of the call).
    let (connection, builder) = unsafe { shared(qp.cast()) };
    let posted = caught(|| {
        // The next batch begins when this one is posted, or their order would be anybody's.
        let taken = lock(&builder.batch).as_mut().map(std::mem::take);
        match taken {
            None => libc::EINVAL,
            Some(Batch { error, .. }) if error != 0 => error,
            Some(Batch { list, .. }) => connection
                .with_qp(|qp| qp.core.post_send_batch(list))
                .map_or(libc::EINVAL, |posted| posted.map_or_else(|failed| no_space_or(failed.error), |()| 0)),
        }
    });
    // Whatever came of it: others wait to begin.
    let _ = caught(|| drop(builder.end()));
    posted.unwrap_or(libc::EFAULT)
}

/// What does not fit, requests, ranges or inline data, is ENOSPC here, as on soft-RoCE. Nothing of the batch was posted.
fn no_space_or(error: PostError) -> c_int {
    match error {
        PostError::QueueFull { .. } | PostError::Sges { .. } | PostError::Inline { .. } => libc::ENOSPC,
        other => errno_of(other),
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::Write { remote: Remote { addr, rkey } }) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm_data: __be32) {
    let imm = imm_data.to_ne_bytes();
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::WriteImm { remote: Remote { addr, rkey }, imm }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::Read { remote: Remote { addr, rkey } }) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::Send) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) {
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::SendImm { imm: imm_data.to_ne_bytes() }) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::CompareSwap { remote: Remote { addr, rkey }, compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::FetchAdd { remote: Remote { addr, rkey }, add: value }) };
}

pub(super) unsafe extern "C" fn wr_flush(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, len: usize, placement: u8, level: u8) {
    let placement = Placement::from_bits(placement).filter(|placement| !placement.is_empty());
    let selectivity = match u32::from(level) {
        IBV_FLUSH_RANGE => Some(Selectivity::Range),
        IBV_FLUSH_MR => Some(Selectivity::Region),
        _ => None,
    };
    let (Some(placement), Some(selectivity)) = (placement, selectivity) else {
        // SAFETY: live (contract of the call).
        return unsafe { build(qp, |builder| builder.fail(libc::EINVAL)) };
    };
    let spec = FlushSpec { placement, selectivity, len_bytes: len as u64 };
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::Flush { remote: Remote { addr, rkey }, spec }) };
}

pub(super) unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: 8 bytes of the program's (contract of the call), at any address.
    let value = unsafe { value.cast::<[u8; 8]>().read() };
    // SAFETY: live, between start and complete (contract of the call).
    unsafe { add(qp, SendOp::AtomicWrite { remote: Remote { addr, rkey }, value }) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let set = |builder: &Builder| builder.change_last(Data::Sges(vec![Sge { addr, len_bytes: length, lkey }]));
    // SAFETY: live (contract of the call).
    unsafe { build(qp, set) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    let set = |builder: &Builder| {
        let mut sges = Vec::with_capacity(num_sge);
        for at in 0..num_sge {
            // SAFETY: the list holds so many ranges (contract of the call).
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            let sge = unsafe { place.read() };
            sges.push(Sge { addr: sge.addr, len_bytes: sge.length, lkey: sge.lkey });
        }
        builder.change_last(Data::Sges(sges));
    };
    // SAFETY: live (contract of the call).
    unsafe { build(qp, set) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let set = |builder: &Builder| {
        let mut bytes = Vec::with_capacity(length);
        // SAFETY: so many bytes of the program's (contract of the call).
        unsafe { copy_program_s(addr.expose_provenance() as u64, length, &mut bytes) };
        builder.change_last(Data::Inline(Arc::from(bytes)));
    };
    // SAFETY: live (contract of the call).
    unsafe { build(qp, set) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, list: *const ibv_data_buf) {
    let set = |builder: &Builder| {
        let mut bytes = Vec::new();
        for at in 0..num_buf {
            // SAFETY: the list holds so many buffers (contract of the call).
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            let buf = unsafe { place.read() };
            // SAFETY: so many bytes of the program's (contract of the call).
            unsafe { copy_program_s(buf.addr.expose_provenance() as u64, buf.length, &mut bytes) };
        }
        builder.change_last(Data::Inline(Arc::from(bytes)));
    };
    // SAFETY: live (contract of the call).
    unsafe { build(qp, set) };
}
