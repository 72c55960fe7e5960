//! Shared by the tools: how an error is told, and which address of this machine is on an RDMA device.
#![forbid(unsafe_code)]

mod address;
mod report;

pub use address::{AddressError, default_address};
pub use report::Chain;
