//! The frames of one TCP stream per connection.
//!
//! A stream begins, in both directions, with a [preamble](Preamble) of [`PREAMBLE_BYTES`] bytes. Frames follow without padding: a
//! header whose size its first byte tells (see [`cm`] and [`data`] for the byte tables), and after some headers a payload. All
//! integers are little-endian.
//!
//! ```text
//! preamble │ header │ header payload… │ header │ …
//! ```
//!
//! Everything received is hostile until checked. The [`Decoder`] holds one header and nothing else: payload goes from the socket
//! straight to registered memory, and the decoder only counts it. A byte that means nothing today (reserved fields, unknown flags)
//! must be 0, so that it can mean something tomorrow.
#![forbid(unsafe_code)]

pub mod cm;
pub mod data;
mod decoder;
mod error;
mod fields;
mod frame;
mod preamble;
#[cfg(test)]
mod tests;

pub use cm::{Accept, CmFrame, ConnectRequest, PrivateData, Reject};
pub use data::{FlushSpec, Nak, Placement, Remote, Request, RequestOp, Response, ResponseOp, RnrTimer, Selectivity};
pub use decoder::{Decoder, Event};
pub use error::{EncodeError, FrameError};
pub use frame::Frame;
pub use preamble::Preamble;

/// The size of the preamble.
pub const PREAMBLE_BYTES: usize = 16;

/// The size of the longest header (an accept's).
pub const MAX_HEADER_BYTES: usize = 212;

/// The longest message: 1 GiB, which is what common adapters report as `ibv_port_attr::max_msg_sz`.
pub const MAX_MESSAGE_BYTES: u32 = 1 << 30;
