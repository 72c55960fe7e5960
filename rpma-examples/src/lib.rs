//! Shared by the tools and examples: how an error is told, which address of this machine is on an RDMA device, and how an example's two
//! sides are run.
#![forbid(unsafe_code)]

mod address;
mod report;
pub mod sides;

pub use address::{AddressError, default_address};
pub use report::Chain;
