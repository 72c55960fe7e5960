//! The rdma-core provider once more, with the libraries linked instead of opened at run time.
#![expect(unsafe_code, reason = "gives the linked functions the types of our bindings")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use crate::bindings::*;
use crate::calls::for_each_call;
use crate::provider::ProviderRef;
use crate::rdma_core::{RdmaCore, Symbols};

/// rdma-core, linked: for distributions that insist on a dependency that the loader can see.
///
/// The price is that a program with this feature does not start where rdma-core is not installed, and that its build needs rdma-core's
/// headers, pkg-config and a libclang older than 16, for the crate `rdma-sys`, which declares the functions. On Debian 12:
/// `apt-get install pkg-config libclang-14-dev libibverbs-dev librdmacm-dev`.
#[derive(Debug)]
pub enum RdmaCoreLinked {}

impl RdmaCoreLinked {
    /// The provider `rdma-core-linked`. Cannot fail: the loader has found everything, or the program would not run.
    #[must_use]
    pub fn open() -> ProviderRef {
        static OPENED: OnceLock<Arc<RdmaCore>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| Arc::new(RdmaCore::with_symbols("rdma-core-linked", linked())));
        Arc::clone(opened) as ProviderRef
    }
}

/// Stands for a type that the compiler finds by itself.
macro_rules! infer {
    ($ty:ty) => {
        _
    };
}

macro_rules! linked {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($inline:tt)* }
    ) => {
        fn linked() -> Symbols {
            Symbols {
                $($ename: (rdma_sys::$ename as unsafe extern "C" fn($(infer!($ety)),*) -> _).in_our_types(),)*
                ibv_query_device: (rdma_sys::ibv_query_device as unsafe extern "C" fn(_, _) -> _).in_our_types(),
                ibv_qp_to_qp_ex: (rdma_sys::ibv_qp_to_qp_ex as unsafe extern "C" fn(_) -> _).in_our_types(),
            }
        }
    };
}
for_each_call!(linked);

/// A type of our bindings that stands for the same C type as `Theirs` does in the bindings of rdma-sys.
///
/// # Safety
///
/// They do, so a function that takes or returns one can be called as if it took or returned the other.
unsafe trait SameCType<Theirs> {}

macro_rules! same_c_type {
    (structures: $($name:ident)*) => {
        $(
            // SAFETY: both are generated from the C structure of this name, and neither is passed by value: every use is behind a
            // pointer. The layouts are compared in tests/layout.rs.
            unsafe impl SameCType<rdma_sys::$name> for $name {}
        )*
    };
    (scalars: $($name:ty)*) => {
        $(
            // SAFETY: the same Rust type.
            unsafe impl SameCType<$name> for $name {}
        )*
    };
}
same_c_type!(structures:
    ibv_context ibv_device ibv_device_attr ibv_pd ibv_mr ibv_comp_channel ibv_cq ibv_srq ibv_srq_init_attr ibv_async_event ibv_qp ibv_qp_ex ibv_qp_attr ibv_qp_init_attr
    ibv_qp_init_attr_ex rdma_event_channel rdma_cm_id rdma_cm_event rdma_conn_param
);
same_c_type!(scalars: () c_void c_char u8 c_int c_uint u64 usize);

// SAFETY: both are C's `struct sockaddr`, and every use is behind a pointer.
unsafe impl SameCType<libc::sockaddr> for sockaddr {}

// SAFETY: thin pointers to what is the same C type.
unsafe impl<Ours: SameCType<Theirs>, Theirs> SameCType<*mut Theirs> for *mut Ours {}
// SAFETY: as for `*mut`.
unsafe impl<Ours: SameCType<Theirs>, Theirs> SameCType<*const Theirs> for *const Ours {}

/// A function of rdma-sys whose every argument and result has the same C type as that of a function `Ours`. One that rdma-sys declares
/// otherwise than we do does not compile.
trait InOurTypes<Ours> {
    fn in_our_types(self) -> Ours;
}

macro_rules! in_our_types {
    ($($theirs:ident $ours:ident),*) => {
        impl<$($theirs, $ours: SameCType<$theirs>,)* TheirResult, OurResult: SameCType<TheirResult>>
            InOurTypes<unsafe extern "C" fn($($ours),*) -> OurResult> for unsafe extern "C" fn($($theirs),*) -> TheirResult
        {
            fn in_our_types(self) -> unsafe extern "C" fn($($ours),*) -> OurResult {
                // SAFETY: two function pointers of one ABI with as many arguments, each of which is the same C type (bounds of
                // this impl), so that a call through either passes the same values.
                unsafe { std::mem::transmute(self) }
            }
        }
    };
}
in_our_types!();
in_our_types!(A1 B1);
in_our_types!(A1 B1, A2 B2);
in_our_types!(A1 B1, A2 B2, A3 B3);
in_our_types!(A1 B1, A2 B2, A3 B3, A4 B4);
in_our_types!(A1 B1, A2 B2, A3 B3, A4 B4, A5 B5);
