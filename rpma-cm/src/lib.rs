//! Connections for remote persistent memory access: the object model of librpma above memory.
//!
//! A [`Peer`] is this process's end on one RDMA device. An [`Endpoint`] listens for peers; a [`ConnReq`] goes to one. Either becomes a
//! [`PendingConn`], and that, with its event [`PendingEvent::Established`], a [`Conn`], which posts operations and tells what became of
//! them through its [`CompletionQueue`].
//!
//! What we do is in the types: a request is connected once or dropped, only an established connection posts to its send queue. What the
//! peer does at any time is in enums: [`ConnEvent`], [`PendingEvent`], [`Outcome`].
//!
//! Everything shares ownership underneath, so nothing has a lifetime and no order of dropping is wrong. Every waiting call takes a
//! [`Wait`] and wakes when its object is closed from another thread; every waiting object is [`AsFd`](std::os::fd::AsFd), and [`Async`] makes
//! the waiting calls futures.
//!
//! Users want the crate `rpma`, whose documentation is the guide.
#![forbid(unsafe_code)]

mod async_cq;
mod asynchronous;
mod awaited;
mod batch;
mod build;
mod completion;
mod conn;
mod conn_cfg;
mod conn_req;
mod cq;
mod device_events;
mod dispatcher;
mod endpoint;
mod event;
mod handle;
mod incoming;
mod ledger;
mod link;
mod listener;
mod outgoing;
mod parameters;
mod peer;
mod pending;
mod post;
mod post_error;
mod private_data;
mod queue;
mod readiness;
mod resolution;
mod signals;
mod source;
mod srq;
mod wait;
mod waiters;

pub use async_cq::SharedQueues;
pub use asynchronous::{Async, Waitable};
pub use batch::{Batch, BatchError};
pub use build::BuildError;
pub use completion::{Completion, CompletionError, Operation, Outcome, Received};
pub use conn::Conn;
pub use conn_cfg::{ConnCfg, OpMode};
pub use conn_req::{ConnReq, ConnectError};
pub use cq::{CompletionQueue, CqError, CqRole, Fired};
pub use device_events::{DeviceEvent, DeviceEventError, DeviceEventKind, DeviceEventSubject, DeviceEvents};
pub use dispatcher::{Dispatched, Dispatcher};
pub use endpoint::{Endpoint, ListenError, RequestError};
pub use event::{ConnEvent, EventError, Rejection};
pub use handle::DisconnectError;
pub use incoming::{Incoming, IncomingRequest};
pub use listener::Listener;
pub use outgoing::{ConnReqError, Outgoing, Resolving, Step};
pub use parameters::{Negotiated, ParameterError};
pub use peer::{Peer, PeerError};
pub use pending::{EstablishError, PendingConn, PendingEvent};
pub use post::{OpPath, Signal};
pub use post_error::PostError;
pub use private_data::{MAX_ACCEPT_BYTES, MAX_CONNECT_BYTES, MAX_REJECT_BYTES, PrivateDataTooLong};
pub use readiness::Readiness;
pub use resolution::Resolution;
pub use rpma_mr as mr;
pub use rpma_mr::sys::owned::{QpCap, SrqCap};
pub use signals::Signals;
pub use source::{Inline, Ranges, Source};
pub use srq::{Srq, SrqCfg, SrqError};
pub use wait::Wait;
