//! The connection manager as a state machine: no I/O, no clock, no thread.
//!
//! Public for the fuzz targets, as the other two parts are; programs have `rpma`.
//!
//! [`Machine`] is one identifier's connection. What the program asks for, frames, the end of the stream and the time go in; frames,
//! events for the program and the wish to end the stream come out of [`Machine::poll`]. The order of events is that of the kernel's
//! connection manager (`drivers/infiniband/core/cm.c`, `cma.c`) over RoCE, which the comments name where it is not obvious.
#![forbid(unsafe_code)]

mod event;
mod machine;
#[cfg(test)]
mod tests;

pub use event::{Event, Kind, StreamEnd, Voice};
pub use machine::{Limits, Machine, Output, WrongState, reason};
