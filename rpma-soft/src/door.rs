//! What only C programs call, for the C door (`rpma-soft-preload`): calls beside those of [`Provider`](rpma_sys::Provider), on objects of
//! [`Soft`](crate::Soft).
//!
//! Nobody else needs this module: Rust programs reach everything through the provider.

pub mod cm;
pub mod verbs;
