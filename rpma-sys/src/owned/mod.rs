//! Handles that own one C object each. With them the crates above are safe code.
//!
//! The rules, the same for every handle:
//!
//! - It frees its object once, when it is dropped, and holds what must outlive the object: a queue pair its completion queues and its
//!   connection identifier, a region its protection domain, each object its device. No order of dropping is wrong.
//! - If the provider refuses to free it, the object and what stands above it are leaked and an error is logged: the provider still uses
//!   them.
//! - In a process that did not make it (a forked child), dropping does nothing and every call is an error.
//! - It may be used from any thread, as verbs allow. What librdmacm does not lock itself is locked here.

mod address;
mod async_event;
mod batch;
mod channel;
mod comp_channel;
mod context;
mod cq;
mod fd;
mod id;
mod mr;
mod pd;
mod qp;
mod srq;

use std::io;

pub use address::lacks_scope;
pub use async_event::{AsyncElement, AsyncEvent, AsyncEvents};
pub use batch::{BatchError, BatchRequest, Work};
pub use channel::{CmEvent, CmEventKind, EventChannel};
pub use comp_channel::CompChannel;
pub use context::Context;
pub use cq::Cq;
pub use id::{CmId, ConnParam, IdOption};
pub use mr::Mr;
pub use pd::Pd;
pub use qp::{PostError, Qp, QpCap, QpRequest, SendOp, SendOptions, Taken};
pub use srq::{Srq, SrqCap};

use crate::fork::ProcessMark;

/// Refuses a call in a process that did not make the object.
fn check(mark: ProcessMark) -> io::Result<()> {
    if mark.is_current() {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this object belongs to the parent process: RDMA objects do not survive fork(2)",
        ))
    }
}

/// Logs that `what` could not be freed, and is therefore leaked with everything it uses.
fn leaked(what: &str, error: &io::Error) {
    log::error!("{what} could not be freed and is leaked, with everything that it uses: {error}");
}
