//! The classic way to post: lists of requests, `ibv_post_send(3)` and `ibv_post_recv(3)`.
#![expect(unsafe_code, reason = "reads lists of the program's")]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rpma_sys::bindings::*;

use super::qp::shared;
use crate::rc::{Data, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge};
use crate::wire::Remote;

/// The errno of verbs.
pub(crate) fn errno_of(error: PostError) -> c_int {
    match error {
        PostError::QueueFull { .. } => libc::ENOMEM,
        PostError::NotSupported => libc::EOPNOTSUPP,
        PostError::State { .. }
        | PostError::Sges { .. }
        | PostError::Inline { .. }
        | PostError::Length { .. }
        | PostError::Data
        | PostError::SharedReceives => libc::EINVAL,
    }
}

/// The flags of a request that the core knows.
pub(crate) fn flags_of(raw: u32) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::FENCE, raw & IBV_SEND_FENCE != 0);
    flags.set(SendFlags::SIGNALED, raw & IBV_SEND_SIGNALED != 0);
    flags.set(SendFlags::SOLICITED, raw & IBV_SEND_SOLICITED != 0);
    flags
}

/// Copies `len_bytes` bytes of the program's at `addr`: data to be sent inline.
///
/// # Safety
///
/// They are there.
pub(crate) unsafe fn copy_program_s(addr: u64, len_bytes: usize, to: &mut Vec<u8>) {
    if len_bytes == 0 {
        return;
    }
    let from: *const u8 = std::ptr::with_exposed_provenance(usize::try_from(addr).expect("an address of this process"));
    // SAFETY: they are there (contract above), and the program does not write while it posts them.
    let bytes = unsafe { std::slice::from_raw_parts(from, len_bytes) };
    to.extend_from_slice(bytes);
}

/// # Safety
///
/// `list` holds `count` ranges.
unsafe fn sges(list: *const ibv_sge, count: c_int) -> Vec<Sge> {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: as the contract says.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    list.iter().map(|sge| Sge { addr: sge.addr, len_bytes: sge.length, lkey: sge.lkey }).collect()
}

/// Reads a send request.
///
/// # Safety
///
/// `wr` is a whole request, with its ranges, and with the data behind them if it is inline.
unsafe fn send_wr(wr: &ibv_send_wr, max_inline: u32) -> Result<SendWr, PostError> {
    // SAFETY: the contract of this function.
    let ranges = unsafe { sges(wr.sg_list, wr.num_sge) };
    let data = if wr.send_flags & IBV_SEND_INLINE == 0 {
        Data::Sges(ranges)
    } else {
        let len_bytes: u64 = ranges.iter().map(|range| u64::from(range.len_bytes)).sum();
        if len_bytes > max_inline.into() {
            return Err(PostError::Inline { len_bytes, max_bytes: max_inline });
        }
        let mut bytes = Vec::new();
        for range in ranges {
            // SAFETY: the contract of this function.
            unsafe { copy_program_s(range.addr, range.len_bytes as usize, &mut bytes) };
        }
        Data::Inline(bytes.into())
    };
    // SAFETY: every member of the unions is plain bytes, and the opcode says which one was filled.
    let imm = unsafe { wr.__bindgen_anon_1.imm_data }.to_ne_bytes();
    // SAFETY: as above.
    let rdma = unsafe { wr.wr.rdma };
    // SAFETY: as above.
    let atomic = unsafe { wr.wr.atomic };
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let atomic_remote = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    let op = match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendImm { imm },
        IBV_WR_RDMA_WRITE => SendOp::Write { remote },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { remote, imm },
        IBV_WR_RDMA_READ => SendOp::Read { remote },
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { remote: atomic_remote, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: atomic_remote, add: atomic.compare_add },
        // Flush and atomic write have no form here; the others are not there.
        _ => return Err(PostError::Data),
    };
    Ok(SendWr { wr_id: wr.wr_id, op, data, flags: flags_of(wr.send_flags) })
}

/// What a call answers whose posting ended so: nothing panicked, there is a queue pair, and every request of the list was taken.
///
/// # Safety
///
/// `bad_wr` is a place for a request.
pub(super) unsafe fn answer<W>(posted: thread::Result<Option<Result<(), (*mut W, c_int)>>>, bad_wr: *mut *mut W) -> c_int {
    match posted {
        Ok(Some(Ok(()))) => 0,
        Ok(Some(Err((bad, errno)))) => {
            // SAFETY: the contract of this function.
            unsafe { bad_wr.write(bad) };
            errno
        }
        Ok(None) => libc::EINVAL,
        Err(_) => libc::EFAULT,
    }
}

pub(crate) unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    let posted = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: live (contract of the call).
        let (connection, _) = unsafe { shared(qp) };
        connection.with_qp(|slot| {
            let mut next = wr;
            while !next.is_null() {
                // SAFETY: a request of the program's list, which it does not change during the call.
                let raw = unsafe { &*next };
                // SAFETY: as above, with what it names.
                let read = unsafe { send_wr(raw, slot.core.config().capacity.inline_bytes) };
                let posted = read.and_then(|wr| slot.core.post_send([wr]).map_err(|failed| failed.error));
                if let Err(error) = posted {
                    return Err((next, errno_of(error)));
                }
                next = raw.next;
            }
            Ok(())
        })
    }));
    // SAFETY: a place for the result (contract of the call).
    unsafe { answer(posted, bad_wr) }
}

/// Posts a list of receives, up to the first that is not taken: which one that is, and why.
///
/// # Safety
///
/// `wr` is a list of the program's, which it does not change during the call.
pub(super) unsafe fn post_list(
    wr: *mut ibv_recv_wr,
    mut post: impl FnMut(RecvWr) -> Result<(), PostError>,
) -> Result<(), (*mut ibv_recv_wr, c_int)> {
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: a request of the list (contract above).
        let raw = unsafe { &*next };
        // SAFETY: as above, with its ranges.
        let sges = unsafe { sges(raw.sg_list, raw.num_sge) };
        post(RecvWr { wr_id: raw.wr_id, sges }).map_err(|error| (next, errno_of(error)))?;
        next = raw.next;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let posted = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: live (contract of the call).
        let (connection, _) = unsafe { shared(qp) };
        connection.with_qp(|slot| {
            // SAFETY: the program's list, which it does not change during the call.
            unsafe { post_list(wr, |wr| slot.core.post_recv(wr)) }
        })
    }));
    // SAFETY: a place for the result (contract of the call).
    unsafe { answer(posted, bad_wr) }
}
