//! RDMA in user space over TCP.
//!
//! This crate becomes a provider that fills rdma-core's C structures (see the workspace's ARCHITECTURE.md). What is here so far is
//! its protocol core, in two folders that do no I/O, read no clock, start no thread and hold no unsafe code:
//!
//! - [`wire`]: the frames of the TCP stream that carries a connection.
//! - [`rc`]: the reliable connected queue pair as a state machine. Work requests, frames and the time go in; frames, completions and
//!   deadlines come out.
//!
//! A driver around them owns the sockets, the memory and the threads.

pub mod rc;
pub mod wire;
