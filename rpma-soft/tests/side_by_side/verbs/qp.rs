//! Queue pairs: made through their identifier, posted to as C programs do.
#![expect(unsafe_code, reason = "calls a provider")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::rc::Rc;

use rpma_sys::QpOps;
use rpma_sys::bindings::*;
use rpma_sys::ret::{errno_ret, minus1_ret};

use super::{Answer, Cq, Errno, Id, Pd, Srq};

/// Sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cap {
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    pub(crate) send_sge: u32,
    pub(crate) recv_sge: u32,
    pub(crate) inline: u32,
}

impl Default for Cap {
    fn default() -> Self {
        Self { send_wr: 16, recv_wr: 16, send_sge: 4, recv_sge: 4, inline: 64 }
    }
}

/// The operations that a queue pair with native flush and atomic write is made for.
pub(crate) const NATIVE: u64 = (IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE) as u64;

/// What a send request does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    Write(u64, u32),
    WriteImm(u64, u32, u32),
    Read(u64, u32),
    CompareSwap(u64, u32, u64, u64),
    FetchAdd(u64, u32, u64),
    /// A number that stands for no operation, or for one that has nothing to say.
    Raw(ibv_wr_opcode),
}

/// A send request.
#[derive(Debug, Clone)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) op: Op,
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) flags: u32,
}

impl Send {
    /// A signaled one.
    pub(crate) fn new(wr_id: u64, op: Op, sges: &[ibv_sge]) -> Self {
        Self { wr_id, op, sges: sges.to_vec(), flags: IBV_SEND_SIGNALED }
    }

    /// With these flags and no others.
    pub(crate) fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    fn raw(&self) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            wr_id: self.wr_id,
            sg_list: self.sges.as_ptr().cast_mut(),
            num_sge: c_int::try_from(self.sges.len()).expect("a short list"),
            send_flags: self.flags,
            ..ibv_send_wr::default()
        };
        let rdma =
            |remote_addr, rkey| ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } };
        let imm = |imm: u32| ibv_send_wr__bindgen_ty_1 { imm_data: imm.to_be() };
        let atomic = |remote_addr, rkey, compare_add, swap| ibv_send_wr__bindgen_ty_2 {
            atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey },
        };
        match self.op {
            Op::Send => wr.opcode = IBV_WR_SEND,
            Op::SendImm(data) => {
                wr.opcode = IBV_WR_SEND_WITH_IMM;
                wr.__bindgen_anon_1 = imm(data);
            }
            Op::Write(addr, rkey) => {
                wr.opcode = IBV_WR_RDMA_WRITE;
                wr.wr = rdma(addr, rkey);
            }
            Op::WriteImm(addr, rkey, data) => {
                wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                wr.wr = rdma(addr, rkey);
                wr.__bindgen_anon_1 = imm(data);
            }
            Op::Read(addr, rkey) => {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.wr = rdma(addr, rkey);
            }
            Op::CompareSwap(addr, rkey, compare, swap) => {
                wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                wr.wr = atomic(addr, rkey, compare, swap);
            }
            Op::FetchAdd(addr, rkey, add) => {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr = atomic(addr, rkey, add, 0);
            }
            Op::Raw(opcode) => wr.opcode = opcode,
        }
        wr
    }
}

/// A refused list: at which of its requests, if the provider says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) errno: Errno,
    pub(crate) at: Option<usize>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.at {
            Some(at) => write!(f, "{} at {at}", self.errno),
            None => write!(f, "{} nowhere", self.errno),
        }
    }
}

/// A queue pair of an identifier.
#[derive(Debug)]
pub(crate) struct Qp {
    raw: *mut ibv_qp,
    ops: QpOps,
    id: Rc<Id>,
    /// What was granted.
    pub(crate) granted: Cap,
    _pd: Rc<Pd>,
    _cqs: [Rc<Cq>; 2],
    _srq: Option<Rc<Srq>>,
}

/// What a queue pair is to be like.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Like<'a> {
    pub(crate) cap: Cap,
    /// Operations of the extended builders; 0: without.
    pub(crate) ops: u64,
    pub(crate) signal_all: bool,
    /// Where its receives are posted, if not to itself.
    pub(crate) srq: Option<&'a Rc<Srq>>,
}

impl Qp {
    /// Makes the queue pair of `id`.
    pub(crate) fn create(id: &Rc<Id>, pd: &Rc<Pd>, cqs: [&Rc<Cq>; 2], like: Like<'_>) -> Answer<Self> {
        let Like { cap, ops, signal_all, srq } = like;
        let [send_cq, recv_cq] = cqs;
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            srq: srq.map_or(null_mut(), |srq| srq.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: cap.send_wr,
                max_recv_wr: cap.recv_wr,
                max_send_sge: cap.send_sge,
                max_recv_sge: cap.recv_sge,
                max_inline_data: cap.inline,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: signal_all.into(),
            comp_mask: IBV_QP_INIT_ATTR_PD | if ops == 0 { 0 } else { IBV_QP_INIT_ATTR_SEND_OPS_FLAGS },
            pd: pd.as_ptr(),
            send_ops_flags: ops,
            ..ibv_qp_init_attr_ex::default()
        };
        let provider = id.provider();
        // SAFETY: identifier, domain and queues are live and of one device.
        minus1_ret(unsafe { provider.rdma_create_qp_ex(id.as_ptr(), &raw mut attr) })?;
        // SAFETY: the identifier is live, and the call above set its queue pair.
        let raw = unsafe { (*id.as_ptr()).qp };
        // SAFETY: live, and made with these flags.
        let ops = unsafe { provider.qp_ops(raw, ops) }.expect("a data path");
        let granted = Cap {
            send_wr: attr.cap.max_send_wr,
            recv_wr: attr.cap.max_recv_wr,
            send_sge: attr.cap.max_send_sge,
            recv_sge: attr.cap.max_recv_sge,
            inline: attr.cap.max_inline_data,
        };
        let cqs = [Rc::clone(send_cq), Rc::clone(recv_cq)];
        Ok(Self { raw, ops, id: Rc::clone(id), granted, _pd: Rc::clone(pd), _cqs: cqs, _srq: srq.map(Rc::clone) })
    }

    /// In its extended form, as one has it that was made with builders.
    pub(crate) fn extended(&self) -> *mut ibv_qp_ex {
        self.ops.ex.expect("extended builders").qp_ex
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: live, and never changed.
        unsafe { (*self.raw).qp_num }
    }

    /// Posts a list.
    pub(crate) fn post_list(&self, list: &[Send]) -> Result<(), Refused> {
        let mut raw: Vec<_> = list.iter().map(Send::raw).collect();
        for at in (1..raw.len()).rev() {
            let next: *mut ibv_send_wr = &raw mut raw[at];
            raw[at - 1].next = next;
        }
        let first = raw.as_mut_ptr();
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the list, its ranges and inline data live through the call.
        let rc = unsafe { (self.ops.post_send)(self.raw, first, &raw mut bad) };
        let at = (0..raw.len()).find(|&at| std::ptr::eq(&raw const raw[at], bad));
        errno_ret(rc).map_err(|e| Refused { errno: e.into(), at })
    }

    /// Posts one.
    pub(crate) fn post(&self, send: Send) -> Answer {
        self.post_list(&[send]).map_err(|refused| refused.errno)
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, wr_id: u64, sges: &[ibv_sge]) -> Answer {
        let num_sge = c_int::try_from(sges.len()).expect("a short list");
        let mut wr = ibv_recv_wr { wr_id, sg_list: sges.as_ptr().cast_mut(), num_sge, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the request and its ranges live through the call.
        let rc = unsafe { (self.ops.post_recv)(self.raw, &raw mut wr, &raw mut bad) };
        Ok(errno_ret(rc)?)
    }

    /// Posts a flush, signaled.
    pub(crate) fn flush(&self, wr_id: u64, addr: u64, rkey: u32, len: usize, placement: u32, level: u32) -> Answer {
        let ex = self.ops.ex.expect("extended builders");
        let flush = ex.wr_flush.expect("native flush");
        self.build(wr_id, |qp_ex| {
            // SAFETY: between start and complete, on a queue pair made with the flag for it.
            unsafe { flush(qp_ex, rkey, addr, len, placement as u8, level as u8) };
        })
    }

    /// Posts an atomic write, signaled.
    pub(crate) fn atomic_write(&self, wr_id: u64, addr: u64, rkey: u32, value: [u8; 8]) -> Answer {
        let ex = self.ops.ex.expect("extended builders");
        let atomic_write = ex.wr_atomic_write.expect("native atomic write");
        self.build(wr_id, |qp_ex| {
            // SAFETY: between start and complete, on a queue pair made with the flag for it; the value is copied.
            unsafe { atomic_write(qp_ex, rkey, addr, value.as_ptr().cast()) };
        })
    }

    fn build(&self, wr_id: u64, build: impl FnOnce(*mut ibv_qp_ex)) -> Answer {
        let ex = self.ops.ex.expect("extended builders");
        // SAFETY: live.
        unsafe { (ex.wr_start)(ex.qp_ex) };
        // SAFETY: the builder's fields are ours between start and complete.
        unsafe { (*ex.qp_ex).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*ex.qp_ex).wr_flags = IBV_SEND_SIGNALED };
        build(ex.qp_ex);
        // SAFETY: ends what start began.
        Ok(errno_ret(unsafe { (ex.wr_complete)(ex.qp_ex) })?)
    }

    /// What the provider says of it, and of how it was made: `ibv_query_qp(3)`, for everything.
    pub(crate) fn query(&self) -> Answer<(ibv_qp_attr, ibv_qp_init_attr)> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: live, and two places for results.
        errno_ret(unsafe { self.id.provider().ibv_query_qp(self.raw, &raw mut attr, 0x1F_FFFF, &raw mut init) })?;
        Ok((attr, init))
    }

    /// Its state by its name in C.
    pub(crate) fn state(&self) -> &'static str {
        match self.query().map(|(attr, _)| attr.qp_state) {
            Ok(IBV_QPS_RESET) => "RESET",
            Ok(IBV_QPS_INIT) => "INIT",
            Ok(IBV_QPS_RTR) => "RTR",
            Ok(IBV_QPS_RTS) => "RTS",
            Ok(IBV_QPS_SQD) => "SQD",
            Ok(IBV_QPS_SQE) => "SQE",
            Ok(IBV_QPS_ERR) => "ERR",
            Ok(_) => "another state",
            Err(_) => "no state",
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.raw
    }

    /// `ibv_modify_qp(3)` with the new state alone.
    pub(crate) fn modify(&self, state: ibv_qp_state) -> Answer {
        self.modify_with(&mut ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() }, IBV_QP_STATE)
    }

    /// `ibv_modify_qp(3)`.
    pub(crate) fn modify_with(&self, attr: &mut ibv_qp_attr, mask: u32) -> Answer {
        let mask = c_int::try_from(mask).expect("a mask fits an int");
        // SAFETY: live, and `attr` holds what the mask names.
        Ok(errno_ret(unsafe { self.id.provider().ibv_modify_qp(self.raw, attr, mask) })?)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: live, and destroyed once.
        unsafe { self.id.provider().rdma_destroy_qp(self.id.as_ptr()) };
    }
}
