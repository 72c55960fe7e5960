//! The integration suite: everything that needs a device, over the provider and the address that `RPMA_TEST_PROVIDER` and
//! `RPMA_TEST_ADDR` name. Without them, and without a device there, every test fails: none is skipped.
//!
//! CONTRIBUTING.md says how to run it. The tests run in parallel, on ports that the connection manager picks.
#![expect(clippy::unwrap_used, reason = "tests")]

mod atomic_write;
mod connect;
mod death;
mod environment;
mod events;
mod failures;
mod flush;
mod fork;
mod interop;
mod leaks;
mod listener;
mod memory;
mod pmem;
mod queues;
mod receive_cq;
mod shared_channel;
mod smoke;
mod srq;
mod support;
mod threads;
mod transfer;
