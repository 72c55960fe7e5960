//! The calls that only C programs make, made as C programs make them.
#![expect(clippy::unwrap_used, reason = "tests")]

mod addresses;
mod endpoints;
mod harness;
mod info;
mod synchronous;
