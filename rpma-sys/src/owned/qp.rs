//! The queue pair, and posting to it.
#![expect(unsafe_code, reason = "calls verbs and the data path's function pointers")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use super::{CmId, Cq, Pd, Srq};
use crate::bindings::*;
use crate::provider::{QpExOps, QpOps, WrBuilders};
use crate::ret::{errno_ret, minus1_ret};

/// Sizes of a queue pair: what is asked for, and what was granted, which may be more. `ibv_create_qp(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCap {
    /// Requests that the send queue holds.
    pub send_wr: u32,
    /// Requests that the receive queue holds.
    pub recv_wr: u32,
    /// Memory ranges of one send request.
    pub send_sge: u32,
    /// Memory ranges of one receive request.
    pub recv_sge: u32,
    /// Bytes that a request can carry inside itself.
    pub inline_bytes: u32,
}

/// What a queue pair is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpRequest {
    /// Its sizes.
    pub cap: QpCap,
    /// With native flush. The creation fails with EOPNOTSUPP, ENOTSUP or ENOSYS where library or driver have none.
    pub native_flush: bool,
    /// With native atomic write. Fails as for flush.
    pub native_atomic_write: bool,
}

/// An operation of the send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the remote place and the immediate data of each")]
pub enum SendOp {
    /// `IBV_WR_RDMA_READ`.
    Read { remote_addr: u64, rkey: u32 },
    /// `IBV_WR_RDMA_WRITE`.
    Write { remote_addr: u64, rkey: u32 },
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`; the immediate data in host order.
    WriteWithImm { remote_addr: u64, rkey: u32, imm: u32 },
    /// `IBV_WR_SEND`.
    Send,
    /// `IBV_WR_SEND_WITH_IMM`; the immediate data in host order.
    SendWithImm { imm: u32 },
}

/// How a request is posted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// With a completion on success too.
    pub signaled: bool,
    /// Not before every read and atomic posted earlier is done.
    pub fence: bool,
}

/// Whether a request whose post failed may run all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was not taken.
    No,
    /// The provider named no request as the bad one; soft-RoCE then runs it later (measured, before ESTABLISHED).
    Unknown,
}

/// Why a post failed.
#[derive(Debug)]
pub struct PostError {
    /// The provider's errno. A full queue is ENOMEM, or ENOSPC from the extended builders.
    pub source: io::Error,
    /// Whether the request may run all the same.
    pub taken: Taken,
}

impl From<io::Error> for PostError {
    /// An error found before the provider was asked.
    fn from(source: io::Error) -> Self {
        Self { source, taken: Taken::No }
    }
}

/// A reliable connected queue pair, made and owned through its connection identifier: `rdma_create_qp(3)`.
#[derive(Debug)]
pub struct Qp {
    pub(super) raw: *mut ibv_qp,
    pub(super) ops: QpOps,
    number: u32,
    granted: QpCap,
    id: Arc<CmId>,
    _pd: Arc<Pd>,
    _send_cq: Arc<Cq>,
    _recv_cq: Arc<Cq>,
    _srq: Option<Arc<Srq>>,
}

// SAFETY: verbs allow a queue pair to be used from any thread; the extended builders lock between start and complete.
unsafe impl Send for Qp {}
// SAFETY: as for `Send`.
unsafe impl Sync for Qp {}

impl Qp {
    /// Makes the queue pair of `id`. With a shared receive queue it takes its receives from there, and has no receive queue of its own.
    ///
    /// # Errors
    ///
    /// As `rdma_create_qp(3)`; `InvalidInput` if the parts are of different devices.
    pub fn create(
        id: &Arc<CmId>,
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        request: QpRequest,
    ) -> io::Result<Self> {
        id.check()?;
        pd.check()?;
        send_cq.check_process()?;
        recv_cq.check_process()?;
        srq.map_or(Ok(()), |srq| srq.check_process())?;
        let context = pd.context();
        let others = [send_cq.context(), recv_cq.context()].into_iter().chain(srq.map(|srq| srq.context()));
        if !id.is_on(context) || !others.into_iter().all(|other| other.is_same_as(context)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "identifier, protection domain and queues are of different devices",
            ));
        }
        let mut send_ops_flags = 0;
        if request.native_flush {
            send_ops_flags |= u64::from(IBV_QP_EX_WITH_FLUSH);
        }
        if request.native_atomic_write {
            send_ops_flags |= u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE);
        }
        if send_ops_flags != 0 {
            // So that a batch can hold everything.
            send_ops_flags |= WrBuilders::FLAGS;
        }
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            srq: srq.map_or(null_mut(), |srq| srq.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: request.cap.send_wr,
                max_recv_wr: request.cap.recv_wr,
                max_send_sge: request.cap.send_sge,
                max_recv_sge: request.cap.recv_sge,
                max_inline_data: request.cap.inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            comp_mask: IBV_QP_INIT_ATTR_PD | if send_ops_flags == 0 { 0 } else { IBV_QP_INIT_ATTR_SEND_OPS_FLAGS },
            pd: pd.as_ptr(),
            send_ops_flags,
            ..ibv_qp_init_attr_ex::default()
        };
        let provider = id.provider();
        {
            let _ids = id.channel().lock_ids();
            // SAFETY: identifier, protection domain and queues are live and of one device (checked above).
            minus1_ret(unsafe { provider.rdma_create_qp_ex(id.as_ptr(), &raw mut attr) })?;
        }
        // SAFETY: the identifier is live; the call above set its queue pair, which nobody else changes.
        let raw = unsafe { (*id.as_ptr()).qp };
        // SAFETY: the queue pair is live and was made with exactly these flags.
        let ops = unsafe { provider.qp_ops(raw, send_ops_flags) };
        let ops = match ops {
            Ok(ops) => ops,
            Err(e) => {
                destroy(id);
                return Err(e);
            }
        };
        // SAFETY: the queue pair is live; its number never changes.
        let number = unsafe { (*raw).qp_num };
        let granted = QpCap {
            send_wr: attr.cap.max_send_wr,
            recv_wr: attr.cap.max_recv_wr,
            send_sge: attr.cap.max_send_sge,
            recv_sge: attr.cap.max_recv_sge,
            inline_bytes: attr.cap.max_inline_data,
        };
        Ok(Self {
            raw,
            ops,
            number,
            granted,
            id: Arc::clone(id),
            _pd: Arc::clone(pd),
            _send_cq: Arc::clone(send_cq),
            _recv_cq: Arc::clone(recv_cq),
            _srq: srq.cloned(),
        })
    }

    /// Posts a request that works on registered memory: `ibv_post_send(3)`.
    ///
    /// Keys and ranges are checked by the device against what is registered, so a wrong or stale one is an error completion.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the connection stays intact.
    pub fn post_send(&self, op: SendOp, sges: &[ibv_sge], options: SendOptions) -> Result<(), PostError> {
        self.id.check()?;
        self.post_send_raw(op, sges, options, 0)
    }

    /// Posts a request that carries `data` inside itself: it is copied before this returns, and needs no registration.
    ///
    /// # Errors
    ///
    /// [`PostError`]; `InvalidInput` for a read, for more than the granted inline size, and for more than 32 bits can tell.
    pub fn post_send_inline(&self, op: SendOp, data: &[u8], options: SendOptions) -> Result<(), PostError> {
        self.id.check()?;
        let sge = inline_sge(op, data, self.granted.inline_bytes)?;
        self.post_send_raw(op, &[sge], options, IBV_SEND_INLINE)
    }

    /// With `IBV_SEND_INLINE` in `flags`, the ranges are read by the CPU during the call: private, so that only a slice gets there.
    fn post_send_raw(&self, op: SendOp, sges: &[ibv_sge], options: SendOptions, flags: c_uint) -> Result<(), PostError> {
        let num_sge = num_sge(sges, self.granted.send_sge)?;
        let mut wr = send_wr(op, sges, num_sge, options, flags);
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; `wr` is one request with a null `next` and `num_sge` ranges, which the provider only reads.
        // Inline ranges are a slice that outlives the call; others are checked by the device against their keys.
        let rc = unsafe { (self.ops.post_send)(self.raw, &raw mut wr, &raw mut bad) };
        posted(rc, bad.is_null())
    }

    /// Posts a receive: `ibv_post_recv(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError`]; the connection stays intact.
    pub fn post_recv(&self, sges: &[ibv_sge], wr_id: u64) -> Result<(), PostError> {
        self.id.check()?;
        let num_sge = num_sge(sges, self.granted.recv_sge)?;
        let sg_list = if sges.is_empty() { null_mut() } else { sges.as_ptr().cast_mut() };
        let mut wr = ibv_recv_wr { wr_id, sg_list, num_sge, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; `wr` is one request with a null `next` and `num_sge` ranges, which the provider only reads;
        // the device checks them against their keys.
        let rc = unsafe { (self.ops.post_recv)(self.raw, &raw mut wr, &raw mut bad) };
        posted(rc, bad.is_null())
    }

    /// Posts a native flush of `len` bytes, or of the whole region of `rkey`, with the `IBV_FLUSH_*` placement types in `placement`.
    ///
    /// # Errors
    ///
    /// [`PostError`]; `Unsupported` on a queue pair made without native flush.
    pub fn post_flush(
        &self,
        remote_addr: u64,
        rkey: u32,
        len: usize,
        whole_region: bool,
        placement: u8,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.id.check()?;
        let Some((ex, flush)) = self.ops.ex.and_then(|ex| Some((ex, ex.wr_flush?))) else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        let level = if whole_region { IBV_FLUSH_MR } else { IBV_FLUSH_RANGE };
        let level = u8::try_from(level).expect("a level is 0 or 1");
        self.extended(ex, options, || {
            // SAFETY: between start and complete of this live queue pair, which was made with the flag for it.
            unsafe { flush(ex.qp_ex, rkey, remote_addr, len, placement, level) };
        })
    }

    /// Posts a native atomic write of `value`, which is copied.
    ///
    /// # Errors
    ///
    /// [`PostError`]; `Unsupported` on a queue pair made without native atomic write.
    pub fn post_atomic_write(&self, remote_addr: u64, rkey: u32, value: [u8; 8], options: SendOptions) -> Result<(), PostError> {
        self.id.check()?;
        let Some((ex, atomic_write)) = self.ops.ex.and_then(|ex| Some((ex, ex.wr_atomic_write?))) else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        self.extended(ex, options, || {
            // SAFETY: between start and complete of this live queue pair, which was made with the flag for it; the builder copies
            // the 8 bytes.
            unsafe { atomic_write(ex.qp_ex, rkey, remote_addr, value.as_ptr().cast()) };
        })
    }

    fn extended(&self, ex: QpExOps, options: SendOptions, build: impl FnOnce()) -> Result<(), PostError> {
        self.in_one_batch(ex, || {
            // SAFETY: between start and complete of this live queue pair.
            unsafe { begin(ex, options, 0) };
            build();
        })
    }

    /// What `build` builds is posted with one doorbell.
    pub(super) fn in_one_batch(&self, ex: QpExOps, build: impl FnOnce()) -> Result<(), PostError> {
        // SAFETY: the queue pair is live. The provider locks it until `wr_complete`.
        unsafe { (ex.wr_start)(ex.qp_ex) };
        build();
        // SAFETY: ends what `wr_start` began.
        errno_ret(unsafe { (ex.wr_complete)(ex.qp_ex) }).map_err(|source| {
            // A builder's error undoes the batch (`ibv_wr_start(3)`), and a full queue is ENOSPC on soft-RoCE. But soft-RoCE also answers
            // the doorbell's errno, and has published the batch by then.
            let undone = source.raw_os_error() == Some(libc::ENOSPC);
            PostError { source, taken: if undone { Taken::No } else { Taken::Unknown } }
        })
    }

    /// Moves the queue pair to the error state: what is posted, then and later, completes with an error. `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// As `ibv_modify_qp(3)`.
    pub fn move_to_error(&self) -> io::Result<()> {
        self.modify(ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() }, IBV_QP_STATE)
    }

    /// Sets how long a peer is told to wait whose message finds no receive here, of a queue pair that is ready to send: the code of
    /// `min_rnr_timer` in `ibv_modify_qp(3)`.
    ///
    /// # Errors
    ///
    /// As `ibv_modify_qp(3)`.
    pub fn set_min_rnr_timer(&self, code: u8) -> io::Result<()> {
        self.modify(ibv_qp_attr { min_rnr_timer: code, ..ibv_qp_attr::default() }, IBV_QP_MIN_RNR_TIMER)
    }

    fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        self.id.check()?;
        // The connection manager changes the queue pair's state too, under this lock.
        let _ids = self.id.channel().lock_ids();
        // SAFETY: the queue pair is live, and `attr` is a whole structure, with values or zeros in what the mask names.
        errno_ret(unsafe { self.id.provider().ibv_modify_qp(self.raw, &raw mut attr, mask.cast_signed()) })
    }

    /// Its attributes that `mask` names, with the sizes that it was made with: `ibv_query_qp(3)`.
    ///
    /// # Errors
    ///
    /// As `ibv_query_qp(3)`.
    pub fn query(&self, mask: ibv_qp_attr_mask) -> io::Result<(ibv_qp_attr, ibv_qp_init_attr)> {
        self.id.check()?;
        let (mut attr, mut init_attr) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let mask = mask.cast_signed();
        // SAFETY: the queue pair is live, and both are valid places for the results.
        errno_ret(unsafe { self.id.provider().ibv_query_qp(self.raw, &raw mut attr, mask, &raw mut init_attr) })?;
        Ok((attr, init_attr))
    }

    /// Its number, which completions carry.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The sizes that were granted.
    #[must_use]
    pub fn granted(&self) -> QpCap {
        self.granted
    }

    /// Whether it has native flush.
    #[must_use]
    pub fn has_flush(&self) -> bool {
        self.ops.ex.is_some_and(|ex| ex.wr_flush.is_some())
    }

    /// Whether it has native atomic write.
    #[must_use]
    pub fn has_atomic_write(&self) -> bool {
        self.ops.ex.is_some_and(|ex| ex.wr_atomic_write.is_some())
    }

    /// Refuses in a process that did not make the queue pair: for what must be known before a lock is taken, which another thread of the
    /// parent may have held.
    ///
    /// # Errors
    ///
    /// `Unsupported` in a forked child.
    pub fn check_process(&self) -> io::Result<()> {
        self.id.check()
    }

    /// Its connection identifier.
    #[must_use]
    pub fn id(&self) -> &Arc<CmId> {
        &self.id
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.id.check().is_err() {
            return;
        }
        // Before its queues, protection domain and identifier, which are dropped after this.
        destroy(&self.id);
    }
}

/// Says how the next request of an extended batch is posted.
///
/// # Safety
///
/// The queue pair is live, and a batch was started on it by this thread.
pub(super) unsafe fn begin(ex: QpExOps, options: SendOptions, flags: c_uint) {
    // SAFETY: after `wr_start`, these two fields are the caller's to set (`ibv_wr_start(3)`).
    unsafe { (*ex.qp_ex).wr_id = options.wr_id };
    // SAFETY: as above.
    unsafe { (*ex.qp_ex).wr_flags = send_flags(options) | flags };
}

/// A request as `ibv_post_send(3)` takes it, with a null `next`.
pub(super) fn send_wr(op: SendOp, sges: &[ibv_sge], num_sge: c_int, options: SendOptions, flags: c_uint) -> ibv_send_wr {
    let mut wr = ibv_send_wr {
        wr_id: options.wr_id,
        sg_list: if sges.is_empty() { null_mut() } else { sges.as_ptr().cast_mut() },
        num_sge,
        send_flags: send_flags(options) | flags,
        ..ibv_send_wr::default()
    };
    let rdma =
        |remote_addr, rkey| ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } };
    let imm_data = |imm: u32| ibv_send_wr__bindgen_ty_1 { imm_data: imm.to_be() };
    match op {
        SendOp::Read { remote_addr, rkey } => {
            wr.opcode = IBV_WR_RDMA_READ;
            wr.wr = rdma(remote_addr, rkey);
        }
        SendOp::Write { remote_addr, rkey } => {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.wr = rdma(remote_addr, rkey);
        }
        SendOp::WriteWithImm { remote_addr, rkey, imm } => {
            wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            wr.wr = rdma(remote_addr, rkey);
            wr.__bindgen_anon_1 = imm_data(imm);
        }
        SendOp::Send => wr.opcode = IBV_WR_SEND,
        SendOp::SendWithImm { imm } => {
            wr.opcode = IBV_WR_SEND_WITH_IMM;
            wr.__bindgen_anon_1 = imm_data(imm);
        }
    }
    wr
}

/// The range of `data`, which is read by the CPU during the call and needs no key.
pub(super) fn inline_sge(op: SendOp, data: &[u8], granted_bytes: u32) -> io::Result<ibv_sge> {
    let length = u32::try_from(data.len()).ok().filter(|&len| len <= granted_bytes);
    match (length, op) {
        (None, _) | (_, SendOp::Read { .. }) => Err(io::ErrorKind::InvalidInput.into()),
        (Some(length), _) => Ok(ibv_sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 }),
    }
}

/// Destroys the queue pair that we made on `id`: called once for each.
fn destroy(id: &CmId) {
    // `rdma_get_cm_event` in another thread changes the identifier's queue pair, and must not find it half destroyed.
    let _ids = id.channel().lock_ids();
    // SAFETY: the identifier is live, and its queue pair is destroyed once (see above).
    unsafe { id.provider().rdma_destroy_qp(id.as_ptr()) };
}

/// The number of ranges, which not every driver checks against what it granted.
pub(super) fn num_sge(sges: &[ibv_sge], granted: u32) -> io::Result<c_int> {
    let num_sge = c_int::try_from(sges.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    if sges.len() > granted as usize { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(num_sge) }
}

fn send_flags(options: SendOptions) -> c_uint {
    (if options.signaled { IBV_SEND_SIGNALED } else { 0 }) | if options.fence { IBV_SEND_FENCE } else { 0 }
}

/// The result of posting one request. `bad_wr` is never looked into: providers leave it null even when they fail, and may have taken the
/// request then.
pub(super) fn posted(rc: c_int, bad_is_null: bool) -> Result<(), PostError> {
    errno_ret(rc).map_err(|source| PostError { source, taken: if bad_is_null { Taken::Unknown } else { Taken::No } })
}
