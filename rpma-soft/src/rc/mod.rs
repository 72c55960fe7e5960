//! The reliable connected queue pair as a state machine: no I/O, no clock, no thread.
//!
//! [`RcQp`] is driven like this:
//!
//! ```text
//!  post_send, post_recv ──▶┌──────┐──▶ poll_completion        the program's side
//!             release   ──▶│      │──▶ poll_event
//!                          │ RcQp │
//!  handle_request       ──▶│      │──▶ Intake: where the payload goes
//!  handle_response      ──▶│      │
//!  payload_done         ──▶│      │──▶ poll_transmit          the stream's side
//!  transmit_done        ──▶│      │
//!  flush_done           ──▶│      │──▶ poll_flush_job         durability
//!  handle_timeout       ──▶└──────┘──▶ next_timeout           time
//! ```
//!
//! After anything went in, the driver polls what comes out until nothing does.
//!
//! The rules are those of the InfiniBand architecture specification (IBTA volume 1, chapters 9 and 10, and annex A19 for flush and
//! atomic write), read beside the kernel's soft-RoCE (`drivers/infiniband/sw/rxe`). Where the two differ, the comment at the place says
//! which holds and why. Over TCP nothing is lost or reordered, so there are no packets, no packet sequence numbers and no
//! retransmission but one: a message that found no receive is sent again, with everything behind it.
//!
//! # Order
//!
//! - Requests are carried out in the order posted. The payload of a message is in place before anything behind it is
//!   carried out.
//! - A persistent flush runs outside, and may take long. Behind it, data of sends and writes is placed meanwhile, but nothing becomes
//!   known: receives complete, and atomics and atomic writes happen, when the flush is done. (The standard demands that for atomic
//!   write only; soft-RoCE flushes on the spot, so programs are used to it.)
//! - A read takes the responder's memory when its response is sent. A write behind a read may be seen by it, unless it is fenced
//!   (IBTA volume 1, table 79).
//! - The requester completes in order. A completion says that the responder has it: it is executed, and for a flush it is durable.
//!
//! # Errors
//!
//! A request that fails takes the queue pair to [`QpState::Error`]: it completes with its cause, everything else with a flush error,
//! in order, each exactly once. A responder answers everything before the bad request first. No completion of the error state comes
//! while the memory of its request is still being sent from or filled: what completes belongs to the program again.
//!
//! Where soft-RoCE answers differently is told, as measured, with [`Soft`](crate::Soft#where-it-differs-from-soft-roce).
#![forbid(unsafe_code)]

mod admit;
mod completion;
mod event;
mod memory;
mod qp;
mod receive;
mod requester;
mod responder;
mod state;
mod transmit;
mod work;

#[cfg(test)]
mod tests;

pub use completion::{Completion, Side, WcOpcode, WcStatus};
pub use event::QpEvent;
pub use memory::{Access, Claim, Denied, Extent, Key, Memory, MemoryFault, PdNumber, Range};
pub use qp::RcQp;
pub use receive::SharedReceives;
pub use state::{QpCapacity, QpConfig, QpState, RequesterConfig, ResponderConfig, TransitionError};
pub use transmit::{FlushJob, Intake, Payload, PeerVanished, ProtocolError, Transmit};
pub use work::{Data, PostError, PostListError, RecvWr, SendFlags, SendOp, SendWr, Sge};
