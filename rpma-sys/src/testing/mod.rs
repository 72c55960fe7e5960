//! Providers for tests, which stand in front of any other.
//!
//! - [`FailingProvider`] fails chosen calls, and runs hooks before chosen calls;
//! - [`CountingProvider`] counts what is alive and how often each call was made.
//!
//! Beside them, [`exported_by`] is a provider over the functions that another file exports under the names of rdma-core's.
//!
//! The two compose in any order and are made as an `Arc`, so that a test keeps one and hands out another as a [`ProviderRef`]:
//!
//! ```
//! # fn test(inner: rpma_sys::ProviderRef) -> Result<(), Box<dyn std::error::Error>> {
//! use rpma_sys::testing::{CountingProvider, FailingProvider, Plan, Selection};
//!
//! let counting = CountingProvider::new(inner);
//! let failing = FailingProvider::new(counting.provider());
//! let provider = failing.provider();
//! for n in 0.. {
//!     failing.arm(Plan::nth(n, libc::ENOMEM).among(Selection::Doing));
//!     let result = rpma_sys::owned::EventChannel::create(&provider).map(drop);
//!     if failing.fired().is_empty() {
//!         result?;
//!         break; // there is no n-th call: every place was failed once
//!     }
//!     assert!(result.is_err(), "{:?} failed and nobody noticed", failing.fired());
//!     counting.nothing_live()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Both generate their calls from the same table as the trait, and every call has its place in [`Call::effect`]: a row added to the table
//! does not compile until it has been said what it makes or frees.

mod counting;
mod data_path;
mod failing;
#[cfg(test)]
pub(crate) mod fake;

use std::fmt;

pub use counting::{CountingProvider, Counts, StillLive};
pub use failing::{FailingProvider, Plan, Selection};

use crate::calls::for_each_call;
use crate::{LoadError, ProviderRef, RdmaCore};

/// A provider, called `name`, over the functions that the library `file` exports under the names of rdma-core's, data path included: its
/// structures are read as rdma-core's are. The C door of `rpma-soft` is tested through it. The file stays open for ever.
///
/// # Errors
///
/// [`LoadError`] if it is not there, or lacks a function.
pub fn exported_by(name: &'static str, file: &str) -> Result<ProviderRef, LoadError> {
    RdmaCore::exported_by(name, String::leak(file.to_owned()))
}

/// How a call tells that it failed. The conventions of C are those of [`ret`](crate::ret).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convention {
    /// It returns the errno.
    Errno,
    /// It returns the errno's negative.
    NegativeErrno,
    /// It returns -1 and sets `errno`.
    Minus1,
    /// It returns null and sets `errno`.
    Null,
    /// It is a method in Rust that returns an [`io::Error`](std::io::Error).
    Error,
    /// It cannot fail.
    Infallible,
}

macro_rules! convention {
    (errno) => {
        Convention::Errno
    };
    (minus1) => {
        Convention::Minus1
    };
    (null) => {
        Convention::Null
    };
    (infallible) => {
        Convention::Infallible
    };
}

macro_rules! call {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($(#[$idoc:meta])* $iconv:ident fn $iname:ident($($iarg:ident: $ity:ty),*) -> $iret:ty;)* }
    ) => {
        /// A call of the provider: one of the control path, or one of the data path's function pointers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(non_camel_case_types, reason = "the names are those of C")]
        #[non_exhaustive]
        pub enum Call {
            $($(#[$edoc])* $ename,)*
            $($(#[$idoc])* $iname,)*
            /// [`Provider::qp_ops`](crate::Provider::qp_ops).
            qp_ops,
            /// [`Provider::cq_ops`](crate::Provider::cq_ops).
            cq_ops,
            /// [`Provider::srq_ops`](crate::Provider::srq_ops).
            srq_ops,
            /// [`QpOps::post_send`](crate::QpOps::post_send).
            post_send,
            /// [`QpOps::post_recv`](crate::QpOps::post_recv).
            post_recv,
            /// [`SrqOps::post_srq_recv`](crate::SrqOps::post_srq_recv).
            post_srq_recv,
            /// [`CqOps::poll_cq`](crate::CqOps::poll_cq).
            poll_cq,
            /// [`CqOps::req_notify_cq`](crate::CqOps::req_notify_cq).
            req_notify_cq,
            /// [`QpExOps::wr_complete`](crate::QpExOps::wr_complete).
            wr_complete,
        }

        impl Call {
            /// Every call.
            pub const ALL: &'static [Self] = &[
                $(Self::$ename,)*
                $(Self::$iname,)*
                Self::qp_ops,
                Self::cq_ops,
                Self::srq_ops,
                Self::post_send,
                Self::post_recv,
                Self::post_srq_recv,
                Self::poll_cq,
                Self::req_notify_cq,
                Self::wr_complete,
            ];

            /// Its name, as in the table.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$ename => stringify!($ename),)*
                    $(Self::$iname => stringify!($iname),)*
                    Self::qp_ops => "qp_ops",
                    Self::cq_ops => "cq_ops",
                    Self::srq_ops => "srq_ops",
                    Self::post_send => "post_send",
                    Self::post_recv => "post_recv",
                    Self::post_srq_recv => "post_srq_recv",
                    Self::poll_cq => "poll_cq",
                    Self::req_notify_cq => "req_notify_cq",
                    Self::wr_complete => "wr_complete",
                }
            }

            /// How it tells that it failed.
            #[must_use]
            pub const fn convention(self) -> Convention {
                match self {
                    $(Self::$ename => convention!($econv),)*
                    $(Self::$iname => convention!($iconv),)*
                    Self::qp_ops | Self::cq_ops | Self::srq_ops => Convention::Error,
                    Self::post_send | Self::post_recv | Self::post_srq_recv | Self::req_notify_cq | Self::wr_complete => {
                        Convention::Errno
                    }
                    Self::poll_cq => Convention::NegativeErrno,
                }
            }
        }
    };
}
for_each_call!(call);

impl Call {
    /// Whether it can fail.
    #[must_use]
    pub const fn is_fallible(self) -> bool {
        !matches!(self.convention(), Convention::Infallible)
    }

    /// Whether it goes through a function pointer of a queue.
    #[must_use]
    pub const fn is_data_path(self) -> bool {
        matches!(
            self,
            Self::post_send | Self::post_recv | Self::post_srq_recv | Self::poll_cq | Self::req_notify_cq | Self::wr_complete
        )
    }

    /// What it makes or frees when it succeeds.
    #[must_use]
    pub const fn effect(self) -> Effect {
        // No wildcard: a new call must be placed here, or it would be counted nowhere.
        match self {
            Self::rdma_get_devices => Effect::Makes(Kind::DeviceList),
            Self::rdma_free_devices => Effect::Frees(Kind::DeviceList),
            Self::rdma_create_event_channel => Effect::Makes(Kind::EventChannel),
            Self::rdma_destroy_event_channel => Effect::Frees(Kind::EventChannel),
            Self::rdma_create_id => Effect::Makes(Kind::Id),
            Self::rdma_destroy_id => Effect::Frees(Kind::Id),
            Self::rdma_create_qp_ex => Effect::Makes(Kind::Qp),
            Self::rdma_destroy_qp => Effect::Frees(Kind::Qp),
            Self::ibv_alloc_pd => Effect::Makes(Kind::Pd),
            Self::ibv_dealloc_pd => Effect::Frees(Kind::Pd),
            Self::ibv_reg_mr_iova2 => Effect::Makes(Kind::Mr),
            Self::ibv_dereg_mr => Effect::Frees(Kind::Mr),
            Self::ibv_create_srq => Effect::Makes(Kind::Srq),
            Self::ibv_destroy_srq => Effect::Frees(Kind::Srq),
            Self::ibv_create_comp_channel => Effect::Makes(Kind::CompChannel),
            Self::ibv_destroy_comp_channel => Effect::Frees(Kind::CompChannel),
            Self::ibv_create_cq => Effect::Makes(Kind::Cq),
            Self::ibv_destroy_cq => Effect::Frees(Kind::Cq),
            Self::rdma_get_cm_event => Effect::Makes(Kind::CmEvent),
            Self::rdma_ack_cm_event => Effect::Frees(Kind::CmEvent),
            Self::ibv_get_cq_event => Effect::Makes(Kind::CqEvent),
            Self::ibv_ack_cq_events => Effect::Frees(Kind::CqEvent),
            Self::ibv_get_async_event => Effect::Makes(Kind::AsyncEvent),
            Self::ibv_ack_async_event => Effect::Frees(Kind::AsyncEvent),
            Self::ibv_modify_qp
            | Self::ibv_query_qp
            | Self::ibv_get_device_name
            | Self::ibv_wc_status_str
            | Self::rdma_migrate_id
            | Self::rdma_bind_addr
            | Self::rdma_listen
            | Self::rdma_set_option
            | Self::rdma_resolve_addr
            | Self::rdma_resolve_route
            | Self::rdma_connect
            | Self::rdma_accept
            | Self::rdma_reject
            | Self::rdma_disconnect
            | Self::ibv_query_device_ex
            | Self::ibv_query_port
            | Self::ibv_advise_mr
            | Self::qp_ops
            | Self::cq_ops
            | Self::srq_ops
            | Self::post_send
            | Self::post_recv
            | Self::post_srq_recv
            | Self::poll_cq
            | Self::req_notify_cq
            | Self::wr_complete => Effect::Other,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a call that succeeds changes about what is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// There is one more. A CM event of the kind `RDMA_CM_EVENT_CONNECT_REQUEST` also brings an identifier.
    Makes(Kind),
    /// There is one less; `ibv_ack_cq_events` says how many less.
    Frees(Kind),
    /// It makes nothing that must be freed, and frees nothing.
    Other,
}

/// A kind of thing that a provider makes and that must be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named by the call that makes it: Call::effect")]
pub enum Kind {
    DeviceList,
    EventChannel,
    Id,
    Qp,
    Pd,
    Mr,
    CompChannel,
    Cq,
    Srq,
    /// A connection manager's event that is not acknowledged.
    CmEvent,
    /// A completion event that is not acknowledged.
    CqEvent,
    /// An asynchronous event that is not acknowledged.
    AsyncEvent,
}

impl Kind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::DeviceList,
        Self::EventChannel,
        Self::Id,
        Self::Qp,
        Self::Pd,
        Self::Mr,
        Self::CompChannel,
        Self::Cq,
        Self::Srq,
        Self::CmEvent,
        Self::CqEvent,
        Self::AsyncEvent,
    ];

    /// What a person calls it, in the singular.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeviceList => "device list",
            Self::EventChannel => "event channel",
            Self::Id => "connection identifier",
            Self::Qp => "queue pair",
            Self::Pd => "protection domain",
            Self::Mr => "memory region",
            Self::CompChannel => "completion channel",
            Self::Cq => "completion queue",
            Self::Srq => "shared receive queue",
            Self::CmEvent => "unacknowledged CM event",
            Self::CqEvent => "unacknowledged completion event",
            Self::AsyncEvent => "unacknowledged asynchronous event",
        }
    }

    /// Whether it is an event, which is acknowledged rather than freed.
    #[must_use]
    pub const fn is_event(self) -> bool {
        matches!(self, Self::CmEvent | Self::CqEvent | Self::AsyncEvent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_list_is_in_the_order_of_the_numbers() {
        for (i, &call) in Call::ALL.iter().enumerate() {
            assert_eq!(call as usize, i, "{call}");
            assert_eq!(call.name(), format!("{call:?}"));
        }
        for (i, &kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(kind as usize, i, "{}", kind.name());
        }
    }

    #[test]
    fn every_kind_is_made_by_one_call_and_freed_by_another() {
        for &kind in Kind::ALL {
            let with = |effect| Call::ALL.iter().filter(|call| call.effect() == effect).count();
            assert_eq!((with(Effect::Makes(kind)), with(Effect::Frees(kind))), (1, 1), "{}", kind.name());
        }
    }
}
