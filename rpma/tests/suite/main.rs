//! The integration suite: what is true on every device. `RPMA_TEST_PROVIDER` and `RPMA_TEST_ADDR` say which provider is tested, and on
//! which address; without them it is the software provider on this machine's own. A test that finds no device there fails: none is
//! skipped.
//!
//! The target `suite_emulated` is the same on a software device without native operations. What is about the software provider alone
//! is in `../soft`, what is about a kernel and its devices in `../kernel`. CONTRIBUTING.md says how to run them. The tests run in
//! parallel, on ports that the connection manager picks.
#![expect(clippy::unwrap_used, reason = "tests")]

mod addresses;
mod arming;
mod atomic_write;
mod batch;
mod connect;
mod death;
mod device_events;
mod dispatcher;
mod events;
mod executor;
mod failing_waits;
mod failures;
mod flush;
mod fork;
mod futures;
mod killed_peer;
mod leaks;
mod lengths;
mod listener;
mod memory;
mod on_tokio;
mod parameters;
mod queue_events;
mod queues;
mod ranges;
mod receive_cq;
mod shared_channel;
mod smoke;
mod srq;
pub(crate) mod support;
mod threads;
mod transfer;
