//! What the program is told.

use crate::wire::{Accept, ConnectRequest, Reject};

/// What happened: the events of `rdma_get_cm_event(3)` that a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The peer's address is resolved.
    AddrResolved,
    /// The route to it is.
    RouteResolved,
    /// Somebody asks for a connection.
    ConnectRequest,
    /// The other end has accepted; our program goes on with [`Machine::establish`](super::Machine::establish).
    ConnectResponse,
    /// The connection could not be made here.
    ConnectError,
    /// Nobody answers.
    Unreachable,
    /// The other end refuses.
    Rejected,
    /// Both ends can send.
    Established,
    /// It is over.
    Disconnected,
    /// Its numbers can be used again.
    TimewaitExit,
}

/// What the other end said with it: its private data, as long as its field is over RoCE, and what it wants of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// Nothing.
    None,
    /// A request.
    Request(ConnectRequest),
    /// An accept.
    Accept(Accept),
    /// A refusal.
    Reject(Reject),
}

impl Voice {
    /// The private data.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Request(request) => request.private_data.as_bytes(),
            Self::Accept(accept) => accept.private_data.as_bytes(),
            Self::Reject(reject) => reject.private_data.as_bytes(),
        }
    }
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// 0, a negative errno, or the reason of a refusal as the InfiniBand connection manager numbers it.
    pub status: i32,
    /// What came with it.
    pub voice: Voice,
}

impl Event {
    pub(super) fn plain(kind: Kind) -> Self {
        Self { kind, status: 0, voice: Voice::None }
    }
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The other end closed it, or its process is gone.
    Closed,
    /// Nobody listens there.
    Refused,
    /// There is no way there, or nobody answers.
    Unreachable,
    /// What arrived is not this protocol.
    Violation,
}
