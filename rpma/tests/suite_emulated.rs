//! The integration suite again, on a software device without native operations: flush and atomic write are emulated.

#[path = "suite/main.rs"]
mod suite;

use suite::support;
