//! RDMA in user space over TCP.
//!
//! [`Soft`] is a provider that fills rdma-core's C structures, so that everything above the boundary (`rpma-sys`) runs unchanged on any
//! machine: for tests, laptops, CI, and places with no RDMA. What it has, what it has not, and where it differs from soft-RoCE is said
//! there.
//!
//! Inside, the rules are apart from what moves data:
//!
//! - [`wire`]: the frames of the TCP stream that carries a connection.
//! - [`rc`]: the reliable connected queue pair as a state machine. Work requests, frames and the time go in; frames, completions and
//!   deadlines come out.
//! - [`cm`]: the connection manager's part of a connection, in the same way. These three do no I/O, read no clock, start no thread and hold
//!   no unsafe code.
//! - `driver`: sockets and threads.
//! - `objects`: the objects of verbs and of the connection manager, and registered memory. C's structures are made and freed here, and
//!   only `objects::touch` reaches into memory that a peer may write.

pub mod cm;
mod config;
pub mod door;
mod driver;
mod objects;
mod provider;
pub mod rc;
pub mod wire;

pub use config::SoftConfig;
pub use provider::Soft;
