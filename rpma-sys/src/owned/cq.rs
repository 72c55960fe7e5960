//! The completion queue, with a completion channel of its own.
#![expect(unsafe_code, reason = "calls verbs")]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use super::fd::{readable_while, set_nonblocking};
use super::{Context, check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::provider::CqOps;
use crate::ret::{errno_ret, minus1_ret, neg_errno_ret, null_ret};

/// How many events are taken before they are acknowledged in one call: the call takes the queue's lock, and users of verbs have found
/// one call per event to be the main bottleneck.
const ACK_BATCH: u32 = 64;

/// A completion queue: `ibv_create_cq(3)`. The descriptor of its channel is non-blocking.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<ibv_cq>,
    ops: CqOps,
    /// Events taken and not yet acknowledged. Events are taken under this lock, so that none is taken and not counted:
    /// `ibv_destroy_cq` would wait for it for ever.
    unacked: Mutex<u32>,
    channel: ManuallyDrop<CompChannel>,
    mark: ProcessMark,
}

// SAFETY: verbs allow a completion queue to be used from any thread.
unsafe impl Send for Cq {}
// SAFETY: as for `Send`.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a queue for at least `cqe` completions, with its own channel, whose interrupts go to `comp_vector`.
    ///
    /// # Errors
    ///
    /// As `ibv_create_comp_channel(3)` and `ibv_create_cq(3)`: EINVAL if the device has no queues of that size.
    pub fn create(context: &Arc<Context>, cqe: c_int, comp_vector: c_int) -> io::Result<Arc<Self>> {
        context.check()?;
        let channel = CompChannel::create(context)?;
        let provider = context.provider();
        // SAFETY: context and channel are live, and we keep nothing in the user context.
        let create =
            || unsafe { provider.ibv_create_cq(context.raw().as_ptr(), cqe, null_mut(), channel.raw.as_ptr(), comp_vector) };
        let raw = null_ret(create)?;
        // SAFETY: the queue is live.
        let ops = unsafe { provider.cq_ops(raw.as_ptr()) };
        match ops {
            Ok(ops) => Ok(Arc::new(Self {
                raw,
                ops,
                unacked: Mutex::new(0),
                channel: ManuallyDrop::new(channel),
                mark: ProcessMark::current(),
            })),
            Err(e) => {
                // SAFETY: live, and used by nobody yet.
                let rc = unsafe { provider.ibv_destroy_cq(raw.as_ptr()) };
                if let Err(e) = errno_ret(rc) {
                    leaked("a completion queue", &e);
                    std::mem::forget(channel);
                }
                Err(e)
            }
        }
    }

    /// Takes completions into the front of `into` and says how many. Only `wr_id`, `status`, `qp_num` and `vendor_err` mean anything
    /// unless the status is success.
    ///
    /// # Errors
    ///
    /// As `ibv_poll_cq(3)`; also if the provider claims more than there is room for.
    pub fn poll(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        check(self.mark)?;
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is live, and `into` has room for that many completions.
        let rc = unsafe { (self.ops.poll_cq)(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        let taken = neg_errno_ret(rc)?;
        if taken > into.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the provider reported {taken} completions where {} were asked for", into.len()),
            ));
        }
        Ok(taken)
    }

    /// Asks for an event on the next completion. One that is already in the queue raises none: poll once more after this.
    ///
    /// # Errors
    ///
    /// As `ibv_req_notify_cq(3)`.
    pub fn request_notify(&self) -> io::Result<()> {
        check(self.mark)?;
        // SAFETY: the queue is live.
        errno_ret(unsafe { (self.ops.req_notify_cq)(self.raw.as_ptr(), 0) })
    }

    /// Takes all events that are there and says how many. They are acknowledged in batches.
    ///
    /// # Errors
    ///
    /// As `ibv_get_cq_event(3)`.
    pub fn take_events(&self) -> io::Result<u32> {
        check(self.mark)?;
        let mut unacked = self.unacked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is live, both are valid places for the result.
            let rc =
                unsafe { self.channel.provider().ibv_get_cq_event(self.channel.raw.as_ptr(), &raw mut cq, &raw mut context) };
            match minus1_ret(rc) {
                Ok(()) => {
                    taken += 1;
                    *unacked += 1;
                    if *unacked >= ACK_BATCH {
                        self.ack(*unacked);
                        *unacked = 0;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                // What was taken must be told, or nobody arms the queue again; the error comes with the next call.
                Err(_) if taken > 0 => return Ok(taken),
                Err(e) => return Err(e),
            }
        }
    }

    fn ack(&self, events: u32) {
        // SAFETY: the queue is live, and exactly so many of its events were taken and not acknowledged.
        unsafe { self.channel.provider().ibv_ack_cq_events(self.raw.as_ptr(), events) };
    }

    /// How many completions it has room for: what was asked for, or more.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        // SAFETY: the queue is live; its size does not change, since we never resize.
        u32::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
    }

    /// A completion status in words: `ibv_wc_status_str(3)`.
    #[must_use]
    pub fn status_text(&self, status: ibv_wc_status) -> &'static str {
        // SAFETY: the call takes any number.
        let text = unsafe { self.channel.provider().ibv_wc_status_str(status) };
        if text.is_null() {
            return "unknown";
        }
        // SAFETY: a constant string of the library (`ibv_wc_status_str(3)`), which is never unloaded.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("unknown")
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    pub(super) fn check(&self) -> io::Result<()> {
        check(self.mark)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }
}

impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        let unacked = std::mem::take(self.unacked.get_mut().unwrap_or_else(PoisonError::into_inner));
        if unacked > 0 {
            self.ack(unacked);
        }
        // SAFETY: live, every event is acknowledged, and every queue pair on it held an `Arc` of it and is gone.
        let rc = unsafe { self.channel.provider().ibv_destroy_cq(self.raw.as_ptr()) };
        match errno_ret(rc) {
            // SAFETY: not used again; the field is dropped here only.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.channel) },
            Err(e) => leaked("a completion queue", &e),
        }
    }
}

impl ibv_wc {
    /// The immediate data in host order; means something if `IBV_WC_WITH_IMM` is in `wc_flags`.
    #[must_use]
    pub fn imm(&self) -> u32 {
        // SAFETY: both members of the union are the same four plain bytes.
        u32::from_be(unsafe { self.__bindgen_anon_1.imm_data })
    }
}

/// A completion channel: `ibv_create_comp_channel(3)`.
#[derive(Debug)]
struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
    /// What is lent in place of the channel's own descriptor.
    readable: OwnedFd,
    context: ManuallyDrop<Arc<Context>>,
    mark: ProcessMark,
}

impl CompChannel {
    fn create(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is live.
        let raw = null_ret(|| unsafe { context.provider().ibv_create_comp_channel(context.raw().as_ptr()) })?;
        match Self::prepare(raw) {
            Ok(readable) => {
                Ok(Self { raw, readable, context: ManuallyDrop::new(Arc::clone(context)), mark: ProcessMark::current() })
            }
            Err(e) => {
                // SAFETY: live, and used by nobody yet.
                let rc = unsafe { context.provider().ibv_destroy_comp_channel(raw.as_ptr()) };
                if let Err(e) = errno_ret(rc) {
                    leaked("a completion channel", &e);
                    std::mem::forget(Arc::clone(context));
                }
                Err(e)
            }
        }
    }

    fn prepare(raw: NonNull<ibv_comp_channel>) -> io::Result<OwnedFd> {
        // SAFETY: the channel is live, and its `fd` never changes.
        let fd = unsafe { (*raw.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        set_nonblocking(fd)?;
        readable_while(fd)
    }

    fn provider(&self) -> &crate::ProviderRef {
        self.context.provider()
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        // SAFETY: live, and its queue is destroyed.
        let rc = unsafe { self.provider().ibv_destroy_comp_channel(self.raw.as_ptr()) };
        match errno_ret(rc) {
            // SAFETY: not used again; the field is dropped here only.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.context) },
            Err(e) => leaked("a completion channel", &e),
        }
    }
}
