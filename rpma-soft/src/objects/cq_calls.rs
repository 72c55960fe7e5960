//! Completion queues and channels, as the program sees them.
#![expect(unsafe_code, reason = "makes, fills and frees structures of verbs")]

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rpma_sys::bindings::*;

use super::acks::Place;
use super::connection::invalid;
use super::cq::{CompChannel, Cq, Entry};
use super::device::{Device, limit};

/// A completion channel.
#[repr(C)]
struct SoftCompChannel {
    raw: ibv_comp_channel,
    shared: Arc<CompChannel>,
}

/// A completion queue.
#[repr(C)]
struct SoftCq {
    raw: ibv_cq,
    shared: Arc<Cq>,
}

/// `ibv_create_comp_channel(3)`.
pub(crate) fn create_comp_channel(device: &Device) -> io::Result<*mut ibv_comp_channel> {
    let shared = Arc::new(CompChannel::new()?);
    let raw = ibv_comp_channel { context: device.context(), fd: shared.fd(), refcnt: 0 };
    Ok(Box::into_raw(Box::new(SoftCompChannel { raw, shared })).cast())
}

/// # Safety
///
/// `channel` is live, and stays so for as long as the result is used.
unsafe fn of_channel<'a>(channel: *mut ibv_comp_channel) -> &'a Arc<CompChannel> {
    let channel = channel.cast::<SoftCompChannel>();
    // SAFETY: made by `create_comp_channel`, and live (contract above). Only this field is borrowed: the number of users is another.
    unsafe { &(*channel).shared }
}

/// How many completion queues use a channel, where libibverbs has it too.
///
/// # Safety
///
/// `channel` is live, and stays so for as long as the result is used.
unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: live (contract above).
    let place = unsafe { &raw mut (*channel).refcnt };
    // SAFETY: an aligned number in a live structure (contract above), which is ours to change; a program that reads it beside its own calls
    // is as far as with rdma-core, which writes it plainly.
    unsafe { AtomicI32::from_ptr(place) }
}

/// `ibv_destroy_comp_channel(3)`.
///
/// # Safety
///
/// `channel` is live.
pub(crate) unsafe fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: live (contract above).
    if unsafe { users(channel) }.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    // SAFETY: made by `create_comp_channel`, and freed once: the contract says that it is live.
    drop(unsafe { Box::from_raw(channel.cast::<SoftCompChannel>()) });
    0
}

/// `ibv_create_cq(3)`.
///
/// # Safety
///
/// `channel` is null or live.
pub(crate) unsafe fn create_cq(
    device: &Device,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> io::Result<*mut ibv_cq> {
    let capacity = capacity(cqe)?;
    if comp_vector != 0 {
        return Err(invalid());
    }
    let shared_channel = if channel.is_null() {
        None
    } else {
        // SAFETY: live (contract above).
        unsafe { users(channel) }.fetch_add(1, Ordering::AcqRel);
        // SAFETY: as above.
        Some(Arc::clone(unsafe { of_channel(channel) }))
    };
    let shared = Arc::new(Cq::new(capacity, shared_channel, Arc::clone(&device.events)));
    let raw = ibv_cq {
        context: device.context(),
        channel,
        cq_context,
        cqe,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..ibv_cq::default()
    };
    let cq = Box::into_raw(Box::new(SoftCq { raw, shared }));
    // SAFETY: just made.
    unsafe { &*cq }.shared.subject.handle.store(cq.expose_provenance(), Ordering::Release);
    Ok(cq.cast())
}

/// # Safety
///
/// `cq` is live, and stays so for as long as the result is used.
unsafe fn of_cq<'a>(cq: *mut ibv_cq) -> &'a Arc<Cq> {
    let cq = cq.cast::<SoftCq>();
    // SAFETY: made by `create_cq`, and live (contract above). Only this field is borrowed: resizing changes another.
    unsafe { &(*cq).shared }
}

/// The number of completions that a queue is to have room for.
fn capacity(cqe: c_int) -> io::Result<usize> {
    let asked = u32::try_from(cqe).ok().filter(|cqe| (1..=limit::CQE).contains(cqe)).ok_or_else(invalid)?;
    Ok(asked as usize)
}

/// `ibv_resize_cq(3)`.
///
/// # Safety
///
/// `cq` is live, and resized by one thread at a time.
pub(crate) unsafe fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> io::Result<()> {
    let capacity = capacity(cqe)?;
    // SAFETY: live (contract above).
    if !unsafe { of_cq(cq) }.resize(capacity) {
        return Err(invalid());
    }
    // SAFETY: live (contract above); nobody of ours reads this.
    unsafe { (*cq).cqe = cqe };
    Ok(())
}

/// What our threads share of a completion queue.
///
/// # Safety
///
/// `cq` is live.
pub(crate) unsafe fn shared_cq(cq: *mut ibv_cq) -> Arc<Cq> {
    // SAFETY: live (contract above).
    Arc::clone(unsafe { of_cq(cq) })
}

/// `ibv_destroy_cq(3)`: waits until the program has acknowledged the events that it took.
///
/// # Safety
///
/// `cq` is live.
pub(crate) unsafe fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: live (contract above).
    let shared = unsafe { of_cq(cq) };
    if shared.is_used() {
        return libc::EBUSY;
    }
    let told = shared.end_events();
    // SAFETY: live (contract above), and only the field that is shared is borrowed.
    unsafe { Place::of_completions(cq).wait(told.completion) };
    // SAFETY: as above.
    unsafe { Place::of_cq(cq).wait(told.asynchronous) };
    // SAFETY: live (contract above); nobody changes this field.
    let channel = unsafe { (*cq).channel };
    if !channel.is_null() {
        // SAFETY: a queue keeps its channel from being freed.
        unsafe { users(channel) }.fetch_sub(1, Ordering::AcqRel);
    }
    // SAFETY: made by `create_cq`, and freed once: the contract says that it is live. `shared` is not used any more.
    drop(unsafe { Box::from_raw(cq.cast::<SoftCq>()) });
    0
}

/// `ibv_get_cq_event(3)`.
///
/// # Safety
///
/// `channel` is live; `cq` and `cq_context` are places for results.
pub(crate) unsafe fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> io::Result<()> {
    // SAFETY: live (contract above).
    let shared = Arc::clone(unsafe { of_channel(channel) });
    let told = shared.next()?;
    let handle: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(told.subject.handle());
    // SAFETY: a queue is not freed before its event is acknowledged, which the program does after this.
    let context = unsafe { (*handle).cq_context };
    // SAFETY: a place for the result (contract above).
    unsafe { cq.write(handle) };
    // SAFETY: as above.
    unsafe { cq_context.write(context) };
    Ok(())
}

/// `ibv_ack_cq_events(3)`.
///
/// # Safety
///
/// `cq` is live.
pub(crate) unsafe fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: live (contract above), and only the field that is shared is ever borrowed.
    unsafe { Place::of_completions(cq).ack(events) };
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let Ok(max) = usize::try_from(num_entries) else { return -libc::EINVAL };
        // SAFETY: live (contract of the call).
        let taken = unsafe { of_cq(cq) }.poll(max);
        for (at, entry) in taken.iter().enumerate() {
            // SAFETY: there is room for `num_entries` completions (contract of the call).
            let place = unsafe { wc.add(at) };
            // SAFETY: as above.
            unsafe { place.write(wc_of(entry)) };
        }
        c_int::try_from(taken.len()).unwrap_or(c_int::MAX)
    }));
    polled.unwrap_or(-libc::EFAULT)
}

fn wc_of(entry: &Entry) -> ibv_wc {
    let completion = &entry.completion;
    let mut wc = ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status.number(),
        opcode: completion.opcode.number(),
        byte_len: completion.byte_len,
        qp_num: entry.qp_num,
        ..ibv_wc::default()
    };
    if let Some(imm) = completion.imm {
        // As it travelled: in network order.
        wc.__bindgen_anon_1 = ibv_wc__bindgen_ty_1 { imm_data: u32::from_ne_bytes(imm) };
        wc.wc_flags = IBV_WC_WITH_IMM;
    }
    wc
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let armed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: live (contract of the call).
        unsafe { of_cq(cq) }.arm(solicited_only != 0);
    }));
    if armed.is_ok() { 0 } else { libc::EFAULT }
}
