//! The seam between the library and what carries RDMA: one trait for the control path, plain function pointers for the data path.
#![expect(unsafe_code, reason = "declares the unsafe trait; nothing is called here")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use crate::bindings::*;
use crate::calls::for_each_call;

/// A provider, shared by everything made with it.
pub type ProviderRef = Arc<dyn Provider>;

/// `ibv_post_send(3)`.
pub type PostSendFn = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// `ibv_post_recv(3)`.
pub type PostRecvFn = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// `ibv_post_srq_recv(3)`.
pub type PostSrqRecvFn = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// `ibv_poll_cq(3)`.
pub type PollCqFn = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
/// `ibv_req_notify_cq(3)`.
pub type ReqNotifyFn = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
/// `ibv_wr_start(3)` and `ibv_wr_abort(3)`.
pub type WrStartFn = unsafe extern "C" fn(*mut ibv_qp_ex);
/// `ibv_wr_complete(3)`.
pub type WrCompleteFn = unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int;
/// `ibv_wr_flush`: rkey, remote address, length, placement types, selectivity level.
pub type WrFlushFn = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);
/// `ibv_wr_atomic_write`: rkey, remote address, the 8 bytes.
pub type WrAtomicWriteFn = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void);

/// `ibv_wr_rdma_read` and `ibv_wr_rdma_write`: rkey, remote address.
pub type WrRdmaFn = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64);
/// `ibv_wr_rdma_write_imm`: rkey, remote address, immediate data.
pub type WrRdmaImmFn = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, __be32);
/// `ibv_wr_send`.
pub type WrSendFn = unsafe extern "C" fn(*mut ibv_qp_ex);
/// `ibv_wr_send_imm`: immediate data.
pub type WrSendImmFn = unsafe extern "C" fn(*mut ibv_qp_ex, __be32);
/// `ibv_wr_set_sge`: lkey, address, length.
pub type WrSetSgeFn = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32);
/// `ibv_wr_set_sge_list`: how many ranges, the ranges.
pub type WrSetSgeListFn = unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge);
/// `ibv_wr_set_inline_data`: address, length.
pub type WrSetInlineFn = unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize);

/// A completion queue's data path, read from the provider once, when the queue is made.
#[derive(Debug, Clone, Copy)]
pub struct CqOps {
    /// Takes completions.
    pub poll_cq: PollCqFn,
    /// Asks for an event on the next completion.
    pub req_notify_cq: ReqNotifyFn,
}

/// A shared receive queue's data path, read from the provider once, when the queue is made.
#[derive(Debug, Clone, Copy)]
pub struct SrqOps {
    /// Posts a list of receive requests.
    pub post_srq_recv: PostSrqRecvFn,
}

/// A queue pair's data path, read from the provider once, when the queue pair is made.
#[derive(Debug, Clone, Copy)]
pub struct QpOps {
    /// Posts a list of send requests.
    pub post_send: PostSendFn,
    /// Posts a list of receive requests.
    pub post_recv: PostRecvFn,
    /// The extended builders: there only if the queue pair was made with native operations.
    pub ex: Option<QpExOps>,
}

/// The extended builders of a queue pair: `ibv_wr_start(3)` and the operations that exist nowhere else.
#[derive(Debug, Clone, Copy)]
pub struct QpExOps {
    /// The same queue pair in its extended form.
    pub qp_ex: *mut ibv_qp_ex,
    /// Opens a batch.
    pub wr_start: WrStartFn,
    /// Rings the doorbell for a batch.
    pub wr_complete: WrCompleteFn,
    /// Gives a batch up: `ibv_wr_abort(3)`.
    pub wr_abort: WrStartFn,
    /// There if and only if the queue pair was made with `IBV_QP_EX_WITH_FLUSH`.
    pub wr_flush: Option<WrFlushFn>,
    /// There if and only if the queue pair was made with `IBV_QP_EX_WITH_ATOMIC_WRITE`.
    pub wr_atomic_write: Option<WrAtomicWriteFn>,
    /// There if and only if the queue pair was made with all of [`WrBuilders::FLAGS`].
    pub builders: Option<WrBuilders>,
}

/// The extended builders of what `ibv_post_send(3)` posts too, so that one batch holds both that and native operations.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are those of ibv_wr_post(3)")]
pub struct WrBuilders {
    pub wr_rdma_read: WrRdmaFn,
    pub wr_rdma_write: WrRdmaFn,
    pub wr_rdma_write_imm: WrRdmaImmFn,
    pub wr_send: WrSendFn,
    pub wr_send_imm: WrSendImmFn,
    pub wr_set_sge: WrSetSgeFn,
    pub wr_set_sge_list: WrSetSgeListFn,
    pub wr_set_inline_data: WrSetInlineFn,
}

impl WrBuilders {
    /// The `send_ops_flags` of a queue pair that has them.
    pub const FLAGS: u64 = (IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

    /// Those of an extended queue pair.
    ///
    /// # Errors
    ///
    /// The name of one that is missing.
    ///
    /// # Safety
    ///
    /// `qp_ex` is live and was made with [`FLAGS`](Self::FLAGS).
    pub unsafe fn of(qp_ex: *mut ibv_qp_ex) -> Result<Self, &'static str> {
        macro_rules! read {
            ($($name:ident)*) => {
                Ok(Self {
                    // SAFETY: the queue pair is live (contract above); the structure has these fields since rdma-core 24.
                    $($name: unsafe { (*qp_ex).$name }.ok_or(stringify!($name))?,)*
                })
            };
        }
        read! {
            wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm wr_set_sge wr_set_sge_list wr_set_inline_data
        }
    }
}

macro_rules! provider_trait {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($(#[$idoc:meta])* $iconv:ident fn $iname:ident($($iarg:ident: $ity:ty),*) -> $iret:ty;)* }
    ) => {
        /// What carries RDMA: rdma-core, or something that fills the same C structures.
        ///
        /// The control path is here, with the C names, signatures and conventions (see the man page of each). The data path is
        /// not: [`qp_ops`](Self::qp_ops), [`cq_ops`](Self::cq_ops) and [`srq_ops`](Self::srq_ops) hand out function pointers once per queue, so that hardware
        /// pays nothing for the seam.
        ///
        /// # Safety
        ///
        /// An implementation behaves as the man pages of the C functions say: what it returns is valid until the call that frees
        /// it, it may be called from any thread, and it touches no registered memory after `ibv_dereg_mr` returned 0.
        ///
        /// Every method but the first has the contract of its C function: pointers come from this same provider and are live, and
        /// pointed-to arguments are valid for the call.
        #[expect(clippy::missing_safety_doc, reason = "one contract for all calls, stated on the trait")]
        pub unsafe trait Provider: Debug + Send + Sync + 'static {
            /// The provider's name, as a user chooses it: `rdma-core`, for one.
            fn name(&self) -> &'static str;

            $($(#[$edoc])* unsafe fn $ename(&self, $($earg: $ety),*) -> $eret;)*
            $($(#[$idoc])* unsafe fn $iname(&self, $($iarg: $ity),*) -> $iret;)*

            /// The data path of `qp`, which was created with exactly the `send_ops_flags` given (0: without the extended form).
            ///
            /// # Errors
            ///
            /// If an operation that the flags promise is missing.
            unsafe fn qp_ops(&self, qp: *mut ibv_qp, send_ops_flags: u64) -> io::Result<QpOps>;

            /// The data path of `cq`.
            ///
            /// # Errors
            ///
            /// If an operation is missing.
            unsafe fn cq_ops(&self, cq: *mut ibv_cq) -> io::Result<CqOps>;

            /// The data path of `srq`.
            ///
            /// # Errors
            ///
            /// If an operation is missing.
            unsafe fn srq_ops(&self, srq: *mut ibv_srq) -> io::Result<SrqOps>;
        }
    };
}
for_each_call!(provider_trait);
