//! What is about the kernel and its RDMA devices, and not about RDMA: what the process may do and which devices it finds, what goes over the
//! network, the pinning of memory, persistent memory, and Debian's C library on the same device.
//!
//! Some of it changes the machine that it runs on (a neighbour's address, mounts), so it is for the virtual machine:
//! `target/suite/kernel`, in CONTRIBUTING.md.
#![expect(clippy::unwrap_used, reason = "tests")]

mod environment;
mod interop;
mod network;
mod pinning;
mod pmem;
#[path = "../suite/support.rs"]
#[expect(dead_code, reason = "the suite uses more of it")]
mod support;
