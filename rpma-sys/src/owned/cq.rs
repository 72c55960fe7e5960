//! The completion queue, on a completion channel of its own or on one that it shares.
#![expect(unsafe_code, reason = "calls verbs")]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::{CompChannel, Context, check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::provider::CqOps;
use crate::ret::{errno_ret, neg_errno_ret, null_ret};

/// A completion queue: `ibv_create_cq(3)`. The descriptor of its channel is non-blocking.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<ibv_cq>,
    ops: CqOps,
    channel: ManuallyDrop<Arc<CompChannel>>,
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
        Self::create_on(&CompChannel::create(context)?, cqe, comp_vector)
    }

    /// Creates a queue for at least `cqe` completions on a channel that other queues may be on too.
    ///
    /// # Errors
    ///
    /// As `ibv_create_cq(3)`.
    pub fn create_on(channel: &Arc<CompChannel>, cqe: c_int, comp_vector: c_int) -> io::Result<Arc<Self>> {
        channel.check_process()?;
        let (context, provider) = (channel.context(), channel.provider());
        // SAFETY: context and channel are live, and we keep nothing in the user context.
        let create = || unsafe { provider.ibv_create_cq(context.raw().as_ptr(), cqe, null_mut(), channel.as_ptr(), comp_vector) };
        let raw = null_ret(create)?;
        // SAFETY: the queue is live.
        let ops = unsafe { provider.cq_ops(raw.as_ptr()) };
        match ops {
            Ok(ops) => {
                channel.add(raw);
                let channel = ManuallyDrop::new(Arc::clone(channel));
                Ok(Arc::new(Self { raw, ops, channel, mark: ProcessMark::current() }))
            }
            Err(e) => {
                // SAFETY: live, and used by nobody yet.
                let rc = unsafe { provider.ibv_destroy_cq(raw.as_ptr()) };
                if let Err(e) = errno_ret(rc) {
                    leaked("a completion queue", &e);
                    std::mem::forget(Arc::clone(channel));
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

    /// Takes all events that are there and says how many were this queue's. They are acknowledged in batches.
    ///
    /// On a channel that it shares, those of the other queues are taken too, and told to whoever asks those.
    ///
    /// # Errors
    ///
    /// As `ibv_get_cq_event(3)`.
    pub fn take_events(&self) -> io::Result<u32> {
        check(self.mark)?;
        self.channel.take_events(self.raw)
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

    /// What it is known by to [`CompChannel::take_fired`]: compared, never followed.
    #[must_use]
    pub fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    /// Its channel.
    #[must_use]
    pub fn channel(&self) -> &Arc<CompChannel> {
        &self.channel
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.channel.context()
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
        // SAFETY: added to its channel when it was made, and every queue pair on it held an `Arc` of it and is gone.
        match unsafe { self.channel.destroy(self.raw) } {
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
