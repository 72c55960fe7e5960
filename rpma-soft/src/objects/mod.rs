//! The objects of verbs and of the connection manager: our own state, safe, and around it the C structures that the program sees.
//!
//! A C structure that is handed out is the first field of a box of ours. The box is made by the call that creates the object and freed by
//! the call that destroys it, and holds what the threads of ours share, in an `Arc`.
//!
//! Locks, in the order in which they may be taken: a connection's state; a connection's event channel; queues and tables. Two
//! connections' states are never held at once.

mod acks;
pub(crate) mod addrinfo;
pub(crate) mod async_calls;
pub(crate) mod async_events;
pub(crate) mod builders;
pub(crate) mod connection;
pub(crate) mod cq;
pub(crate) mod cq_calls;
pub(crate) mod device;
pub(crate) mod endpoint;
pub(crate) mod event;
pub(crate) mod event_channel;
pub(crate) mod gids;
pub(crate) mod id;
pub(crate) mod id_qp;
mod knock;
mod listener;
pub(crate) mod loose_qp;
mod maps;
pub(crate) mod memory;
pub(crate) mod mr;
mod options;
mod page;
pub(crate) mod post;
mod progress;
pub(crate) mod qp;
mod qp_state;
pub(crate) mod srq;
pub(crate) mod srq_calls;
pub(crate) mod synchronous;
mod tokens;
pub(crate) mod touch;
mod untaken;
