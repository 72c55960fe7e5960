//! What is about the software provider alone.
#![expect(clippy::unwrap_used, reason = "tests")]

mod files;
mod hosts;
mod mixed;
mod parameters;
#[path = "../suite/support.rs"]
#[expect(dead_code, reason = "the suite uses more of it")]
mod support;
