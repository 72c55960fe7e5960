//! The connection manager's frames: what the MADs of the InfiniBand connection manager are on hardware.
//!
//! None has a payload. Private data travels as on InfiniBand: the whole field, padded with zeros, so that a receiver cannot tell
//! "nothing" from zeros and sees the same lengths as on hardware.
//!
//! Connect request, 112 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | kind, `0x01` |
//! | 1 | 3 | reserved, 0 |
//! | 4 | 4 | queue pair number |
//! | 8 | 1 | responder resources |
//! | 9 | 1 | initiator depth |
//! | 10 | 1 | flow control, 0 or 1 |
//! | 11 | 1 | retry count, 0 to 7 |
//! | 12 | 1 | RNR retry count, 0 to 7 |
//! | 13 | 1 | shared receive queue, 0 or 1 |
//! | 14 | 2 | reserved, 0 |
//! | 16 | 20 | the client's address as it sees it |
//! | 36 | 20 | the server's address as the client sees it |
//! | 56 | 56 | private data |
//!
//! An address, 20 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | family, 4 or 6 |
//! | 1 | 1 | reserved, 0 |
//! | 2 | 2 | port |
//! | 4 | 16 | address in network order; IPv4: the first 4 bytes, the rest 0 |
//!
//! Accept, 212 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | kind, `0x02` |
//! | 1 | 3 | reserved, 0 |
//! | 4 | 4 | queue pair number |
//! | 8 | 1 | responder resources |
//! | 9 | 1 | initiator depth |
//! | 10 | 1 | flow control, 0 or 1 |
//! | 11 | 1 | RNR retry count, 0 to 7 |
//! | 12 | 1 | shared receive queue, 0 or 1 |
//! | 13 | 3 | reserved, 0 |
//! | 16 | 196 | private data |
//!
//! Reject, 156 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | kind, `0x03` |
//! | 1 | 1 | reserved, 0 |
//! | 2 | 2 | reason, as in the InfiniBand connection manager |
//! | 4 | 4 | reserved, 0 |
//! | 8 | 148 | private data |
//!
//! Ready to use (`0x04`), disconnect request (`0x05`) and disconnect reply (`0x06`), 8 bytes: the kind and 7 reserved bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::fields::{Reader, Writer};
use super::{EncodeError, FrameError};

pub(super) const CONNECT_REQUEST: u8 = 0x01;
pub(super) const ACCEPT: u8 = 0x02;
pub(super) const REJECT: u8 = 0x03;
pub(super) const READY: u8 = 0x04;
pub(super) const DISCONNECT_REQUEST: u8 = 0x05;
pub(super) const DISCONNECT_REPLY: u8 = 0x06;

/// Retry counts are 3 bits wide on InfiniBand; 7 means "for ever" for receiver-not-ready.
const MAX_RETRY: u8 = 7;

/// A field of `N` bytes of private data, padded with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// The field that begins with `data`.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Value`] if `data` is longer than `N`.
    pub fn new(data: &[u8]) -> Result<Self, EncodeError> {
        let mut field = [0; N];
        let Some(head) = field.get_mut(..data.len()) else {
            return Err(EncodeError::Value { field: "length of private data", value: data.len() as u64 });
        };
        head.copy_from_slice(data);
        Ok(Self(field))
    }

    /// The whole field.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

/// A client asks for a connection: `rdma_connect(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The client's queue pair.
    pub qp_num: u32,
    /// Reads and atomics that the client accepts at once.
    pub responder_resources: u8,
    /// Reads and atomics that the client wants to have outstanding.
    pub initiator_depth: u8,
    /// As `rdma_conn_param::flow_control`.
    pub flow_control: bool,
    /// Retries of a message that is not answered, 0 to 7.
    pub retry_count: u8,
    /// Retries of a message that finds no receive, 0 to 7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the client's queue pair has a shared receive queue.
    pub srq: bool,
    /// The client's address as the client sees it.
    pub source: SocketAddr,
    /// The server's address as the client sees it.
    pub destination: SocketAddr,
    /// What the client's user sends along.
    pub private_data: PrivateData<{ ConnectRequest::PRIVATE_DATA_BYTES }>,
}

impl ConnectRequest {
    /// Room for private data, as over RoCE.
    pub const PRIVATE_DATA_BYTES: usize = 56;
}

/// A server accepts: `rdma_accept(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// The server's queue pair.
    pub qp_num: u32,
    /// Reads and atomics that the server accepts at once.
    pub responder_resources: u8,
    /// Reads and atomics that the server wants to have outstanding.
    pub initiator_depth: u8,
    /// As `rdma_conn_param::flow_control`.
    pub flow_control: bool,
    /// Retries of a message that finds no receive, 0 to 7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether the server's queue pair has a shared receive queue.
    pub srq: bool,
    /// What the server's user sends along.
    pub private_data: PrivateData<{ Accept::PRIVATE_DATA_BYTES }>,
}

impl Accept {
    /// Room for private data, as over RoCE.
    pub const PRIVATE_DATA_BYTES: usize = 196;
}

/// A server, or a client that does not like the accept, says no: `rdma_reject(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// Why, as a number of the InfiniBand connection manager: 28 if the user said so, 8 if nobody listens.
    pub reason: u16,
    /// What the rejecting user sends along.
    pub private_data: PrivateData<{ Reject::PRIVATE_DATA_BYTES }>,
}

impl Reject {
    /// Room for private data, as over RoCE.
    pub const PRIVATE_DATA_BYTES: usize = 148;
}

/// A frame of the connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmFrame {
    /// A client asks.
    ConnectRequest(ConnectRequest),
    /// A server accepts.
    Accept(Accept),
    /// One end refuses.
    Reject(Reject),
    /// The client has seen the accept: the connection is established at both ends.
    Ready,
    /// One end wants to end the connection.
    DisconnectRequest,
    /// The other end agrees.
    DisconnectReply,
}

pub(super) const fn header_bytes(kind: u8) -> Option<usize> {
    match kind {
        CONNECT_REQUEST => Some(112),
        ACCEPT => Some(212),
        REJECT => Some(156),
        READY | DISCONNECT_REQUEST | DISCONNECT_REPLY => Some(8),
        _ => None,
    }
}

impl CmFrame {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::ConnectRequest(_) => CONNECT_REQUEST,
            Self::Accept(_) => ACCEPT,
            Self::Reject(_) => REJECT,
            Self::Ready => READY,
            Self::DisconnectRequest => DISCONNECT_REQUEST,
            Self::DisconnectReply => DISCONNECT_REPLY,
        }
    }

    /// Whether every field has a value that a decoder takes.
    pub(super) fn check(&self) -> Result<(), EncodeError> {
        let retry = |field, value: u8| match value {
            0..=MAX_RETRY => Ok(()),
            _ => Err(EncodeError::Value { field, value: value.into() }),
        };
        match self {
            Self::ConnectRequest(c) => {
                retry("retry count", c.retry_count)?;
                retry("RNR retry count", c.rnr_retry_count)
            }
            Self::Accept(a) => retry("RNR retry count", a.rnr_retry_count),
            Self::Reject(_) | Self::Ready | Self::DisconnectRequest | Self::DisconnectReply => Ok(()),
        }
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        w.u8(self.kind());
        match self {
            Self::ConnectRequest(c) => {
                w.reserved(3).u32(c.qp_num).u8(c.responder_resources).u8(c.initiator_depth).u8(c.flow_control.into());
                w.u8(c.retry_count).u8(c.rnr_retry_count).u8(c.srq.into()).reserved(2);
                write_address(w, c.source);
                write_address(w, c.destination);
                w.bytes(&c.private_data.0);
            }
            Self::Accept(a) => {
                w.reserved(3).u32(a.qp_num).u8(a.responder_resources).u8(a.initiator_depth).u8(a.flow_control.into());
                w.u8(a.rnr_retry_count).u8(a.srq.into()).reserved(3).bytes(&a.private_data.0);
            }
            Self::Reject(r) => {
                w.reserved(1).u16(r.reason).reserved(4).bytes(&r.private_data.0);
            }
            Self::Ready | Self::DisconnectRequest | Self::DisconnectReply => {
                w.reserved(7);
            }
        }
    }

    /// Reads a header of `kind`, which is one of ours; `r` stands behind the kind.
    pub(super) fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self, FrameError> {
        let frame = match kind {
            CONNECT_REQUEST => {
                r.reserved(3);
                let (qp_num, responder_resources, initiator_depth) = (r.u32(), r.u8(), r.u8());
                let flow_control = flag(kind, "flow control", r.u8())?;
                let retry_count = retry(kind, "retry count", r.u8())?;
                let rnr_retry_count = retry(kind, "RNR retry count", r.u8())?;
                let srq = flag(kind, "shared receive queue", r.u8())?;
                r.reserved(2);
                Self::ConnectRequest(ConnectRequest {
                    qp_num,
                    responder_resources,
                    initiator_depth,
                    flow_control,
                    retry_count,
                    rnr_retry_count,
                    srq,
                    source: read_address(kind, r)?,
                    destination: read_address(kind, r)?,
                    private_data: PrivateData(r.array()),
                })
            }
            ACCEPT => {
                r.reserved(3);
                let (qp_num, responder_resources, initiator_depth) = (r.u32(), r.u8(), r.u8());
                let flow_control = flag(kind, "flow control", r.u8())?;
                let rnr_retry_count = retry(kind, "RNR retry count", r.u8())?;
                let srq = flag(kind, "shared receive queue", r.u8())?;
                r.reserved(3);
                Self::Accept(Accept {
                    qp_num,
                    responder_resources,
                    initiator_depth,
                    flow_control,
                    rnr_retry_count,
                    srq,
                    private_data: PrivateData(r.array()),
                })
            }
            REJECT => {
                r.reserved(1);
                let reason = r.u16();
                r.reserved(4);
                Self::Reject(Reject { reason, private_data: PrivateData(r.array()) })
            }
            READY | DISCONNECT_REQUEST | DISCONNECT_REPLY => {
                r.reserved(7);
                match kind {
                    READY => Self::Ready,
                    DISCONNECT_REQUEST => Self::DisconnectRequest,
                    _ => Self::DisconnectReply,
                }
            }
            _ => return Err(FrameError::Kind { kind }),
        };
        Ok(frame)
    }
}

fn flag(kind: u8, field: &'static str, value: u8) -> Result<bool, FrameError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FrameError::Value { kind, field, value: value.into() }),
    }
}

fn retry(kind: u8, field: &'static str, value: u8) -> Result<u8, FrameError> {
    match value {
        0..=MAX_RETRY => Ok(value),
        _ => Err(FrameError::Value { kind, field, value: value.into() }),
    }
}

/// Scope and flow label of an IPv6 address mean something on their own host only, and are not sent.
fn write_address(w: &mut Writer<'_>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => w.u8(4).reserved(1).u16(address.port()).bytes(&ip.octets()).reserved(12),
        IpAddr::V6(ip) => w.u8(6).reserved(1).u16(address.port()).bytes(&ip.octets()),
    };
}

fn read_address(kind: u8, r: &mut Reader<'_>) -> Result<SocketAddr, FrameError> {
    let family = r.u8();
    r.reserved(1);
    let port = r.u16();
    let ip = match family {
        4 => {
            let ip = Ipv4Addr::from(r.array::<4>());
            r.reserved(12);
            IpAddr::V4(ip)
        }
        6 => IpAddr::V6(Ipv6Addr::from(r.array::<16>())),
        _ => return Err(FrameError::Value { kind, field: "address family", value: family.into() }),
    };
    Ok(SocketAddr::new(ip, port))
}
