//! Completion queues, their channels, and completions in words.
#![expect(unsafe_code, reason = "calls a provider")]

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rpma_sys::bindings::*;
use rpma_sys::ret::{errno_ret, minus1_ret, neg_errno_ret, null_ret};
use rpma_sys::{CqOps, ProviderRef};

use super::{Answer, LIMIT, PATIENCE, Setup, readable};

/// A completion channel, non-blocking.
#[derive(Debug)]
pub(crate) struct CompChannel {
    provider: ProviderRef,
    raw: Cell<*mut ibv_comp_channel>,
}

impl CompChannel {
    pub(crate) fn create(setup: &Setup) -> Rc<Self> {
        // SAFETY: the context is live.
        let raw = null_ret(|| unsafe { setup.provider.ibv_create_comp_channel(setup.context) }).expect("a completion channel");
        let channel = Rc::new(Self { provider: setup.provider.clone(), raw: Cell::new(raw.as_ptr()) });
        rustix::io::ioctl_fionbio(channel.fd(), true).expect("a non-blocking channel");
        channel
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: live; the descriptor never changes.
        let fd = unsafe { (*self.raw.get()).fd };
        // SAFETY: open for as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Frees it, or says why not.
    pub(crate) fn free(&self) -> Answer {
        // SAFETY: live; if a queue uses it, the provider refuses, which is what is asked.
        errno_ret(unsafe { self.provider.ibv_destroy_comp_channel(self.raw.get()) })?;
        self.raw.set(null_mut());
        Ok(())
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if !self.raw.get().is_null() {
            self.free().expect("a channel that no queue uses is freed");
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    provider: ProviderRef,
    raw: Cell<*mut ibv_cq>,
    ops: CqOps,
    /// Its channel.
    pub(crate) channel: Rc<CompChannel>,
}

impl Cq {
    /// A queue for `cqe` completions, with a channel of its own.
    pub(crate) fn create(setup: &Setup, cqe: c_int, vector: c_int) -> Answer<Rc<Self>> {
        let channel = CompChannel::create(setup);
        let provider = setup.provider.clone();
        let on = channel.raw.get();
        // SAFETY: context and channel are live.
        let raw = null_ret(|| unsafe { provider.ibv_create_cq(setup.context, cqe, null_mut(), on, vector) })?.as_ptr();
        // SAFETY: just made, and live.
        let ops = unsafe { provider.cq_ops(raw) }.expect("a data path");
        Ok(Rc::new(Self { provider, raw: Cell::new(raw), ops, channel }))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.get()
    }

    /// The size that was granted.
    pub(crate) fn granted(&self) -> c_int {
        // SAFETY: live, and never resized.
        unsafe { (*self.raw.get()).cqe }
    }

    /// Frees it, or says why not.
    pub(crate) fn free(&self) -> Answer {
        // SAFETY: live, with no event unacknowledged; if a queue pair uses it, the provider refuses, which is what is asked.
        errno_ret(unsafe { self.provider.ibv_destroy_cq(self.raw.get()) })?;
        self.raw.set(null_mut());
        Ok(())
    }

    /// A completion if there is one now.
    pub(crate) fn poll(&self) -> Answer<Option<Completion>> {
        let mut wc = ibv_wc::default();
        // SAFETY: the queue is live, and there is room for one.
        let taken = neg_errno_ret(unsafe { (self.ops.poll_cq)(self.raw.get(), 1, &raw mut wc) })?;
        Ok((taken == 1).then_some(Completion(wc)))
    }

    /// The next completion within `limit`.
    pub(crate) fn within(&self, limit: Duration) -> Option<Completion> {
        let until = Instant::now() + limit;
        loop {
            if let Some(wc) = self.poll().expect("a queue that can be polled") {
                return Some(wc);
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// The next completion, which has to come.
    pub(crate) fn next(&self) -> Completion {
        self.within(LIMIT).expect("a completion")
    }

    /// What is in it now.
    pub(crate) fn all(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll().expect("a queue that can be polled")).collect()
    }

    /// The next `count` completions, in words.
    pub(crate) fn words(&self, count: usize) -> String {
        (0..count)
            .map(|_| self.within(PATIENCE).map_or_else(|| String::from("nothing"), |wc| wc.to_string()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Arms it.
    pub(crate) fn arm(&self, solicited_only: bool) -> Answer {
        // SAFETY: the queue is live.
        Ok(errno_ret(unsafe { (self.ops.req_notify_cq)(self.raw.get(), solicited_only.into()) })?)
    }

    /// How many events are there now: each is taken and acknowledged.
    pub(crate) fn events(&self) -> Answer<u32> {
        let mut count = 0;
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is live, and the others are places for results.
            let rc = unsafe { self.provider.ibv_get_cq_event(self.channel.raw.get(), &raw mut cq, &raw mut context) };
            match minus1_ret(rc) {
                Ok(()) => {}
                Err(e) if count > 0 && e.kind() == std::io::ErrorKind::WouldBlock => return Ok(count),
                Err(e) => return Err(e.into()),
            }
            assert_eq!(cq, self.raw.get());
            // SAFETY: the queue is live, and one event of it was taken just now.
            unsafe { self.provider.ibv_ack_cq_events(cq, 1) };
            count += 1;
        }
    }

    /// Waits for an event; `false` if none came within `limit`.
    pub(crate) fn event_within(&self, limit: Duration) -> bool {
        readable(self.channel.fd(), limit)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.raw.get().is_null() {
            self.free().expect("a queue that no queue pair uses is freed");
        }
    }
}

/// A completion. In words: what it is of, and all that means something then. With a status other than success that is the request's
/// number and the status (`ibv_poll_cq(3)`).
#[derive(Clone, Copy)]
pub(crate) struct Completion(pub(crate) ibv_wc);

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wc = &self.0;
        write!(f, "#{}", wc.wr_id)?;
        if wc.status != IBV_WC_SUCCESS {
            return write!(f, " {}", status_name(wc.status));
        }
        write!(f, " {} len {}", opcode_name(wc.opcode), wc.byte_len)?;
        if wc.wc_flags & IBV_WC_WITH_IMM != 0 {
            write!(f, " imm {:#x}", wc.imm())?;
        }
        // IBV_WC_GRH is valid for datagrams only (`ibv_poll_cq(3)`).
        match wc.wc_flags & !(IBV_WC_WITH_IMM | IBV_WC_GRH) {
            0 => Ok(()),
            flags => write!(f, " flags {flags:#x}"),
        }
    }
}

/// A status by its name in C.
pub(crate) fn status_name(status: ibv_wc_status) -> &'static str {
    match status {
        IBV_WC_SUCCESS => "SUCCESS",
        IBV_WC_LOC_LEN_ERR => "LOC_LEN_ERR",
        IBV_WC_LOC_QP_OP_ERR => "LOC_QP_OP_ERR",
        IBV_WC_LOC_PROT_ERR => "LOC_PROT_ERR",
        IBV_WC_WR_FLUSH_ERR => "WR_FLUSH_ERR",
        IBV_WC_MW_BIND_ERR => "MW_BIND_ERR",
        IBV_WC_BAD_RESP_ERR => "BAD_RESP_ERR",
        IBV_WC_LOC_ACCESS_ERR => "LOC_ACCESS_ERR",
        IBV_WC_REM_INV_REQ_ERR => "REM_INV_REQ_ERR",
        IBV_WC_REM_ACCESS_ERR => "REM_ACCESS_ERR",
        IBV_WC_REM_OP_ERR => "REM_OP_ERR",
        IBV_WC_RETRY_EXC_ERR => "RETRY_EXC_ERR",
        IBV_WC_RNR_RETRY_EXC_ERR => "RNR_RETRY_EXC_ERR",
        IBV_WC_GENERAL_ERR => "GENERAL_ERR",
        _ => "another status",
    }
}

fn opcode_name(opcode: ibv_wc_opcode) -> &'static str {
    match opcode {
        IBV_WC_SEND => "SEND",
        IBV_WC_RDMA_WRITE => "RDMA_WRITE",
        IBV_WC_RDMA_READ => "RDMA_READ",
        IBV_WC_COMP_SWAP => "COMP_SWAP",
        IBV_WC_FETCH_ADD => "FETCH_ADD",
        IBV_WC_FLUSH => "FLUSH",
        IBV_WC_ATOMIC_WRITE => "ATOMIC_WRITE",
        IBV_WC_RECV => "RECV",
        IBV_WC_RECV_RDMA_WITH_IMM => "RECV_RDMA_WITH_IMM",
        _ => "another opcode",
    }
}
