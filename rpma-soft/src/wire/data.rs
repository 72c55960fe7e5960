//! The frames of the reliable connected queue pairs: requests, and the responses to them.
//!
//! Both ends number their requests from 1 (the message sequence number), and responses name the number that they answer.
//!
//! Every header begins with 16 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | kind |
//! | 1 | 1 | flags: bit 0, solicited (sends, write with immediate); all others 0 |
//! | 2 | 2 | reserved, 0 |
//! | 4 | 4 | bytes of payload that follow the header (sends, writes, read response), or bytes asked for (read); else 0 |
//! | 8 | 8 | message sequence number, not 0 for a request |
//!
//! What comes behind them:
//!
//! | kind | frame | header size | fields from offset 16 |
//! |---|---|---|---|
//! | `0x10` | send | 16 | |
//! | `0x11` | send with immediate | 24 | immediate 4, reserved 4 |
//! | `0x12` | write | 32 | address 8, rkey 4, reserved 4 |
//! | `0x13` | write with immediate | 32 | address 8, rkey 4, immediate 4 |
//! | `0x14` | read | 32 | address 8, rkey 4, reserved 4 |
//! | `0x15` | flush | 40 | address 8, rkey 4, placement 1, selectivity 1, reserved 2, length 8 |
//! | `0x16` | atomic write | 40 | address 8, rkey 4, reserved 4, value 8 |
//! | `0x17` | compare and swap | 48 | address 8, rkey 4, reserved 4, compare 8, swap 8 |
//! | `0x18` | fetch and add | 40 | address 8, rkey 4, reserved 4, addend 8 |
//! | `0x20` | acknowledgement, of this and all earlier requests | 16 | |
//! | `0x21` | read response | 16 | |
//! | `0x22` | atomic response | 24 | value before the operation 8 |
//! | `0x23` | negative acknowledgement | 24 | code 1, RNR timer 1, reserved 6 |
//!
//! Immediate data and the value of an atomic write are bytes that nobody here interprets. A response to one request also acknowledges
//! all earlier ones.

use std::time::Duration;

use super::fields::{Reader, Writer};
use super::{EncodeError, FrameError, MAX_MESSAGE_BYTES};

pub(super) const SEND: u8 = 0x10;
pub(super) const SEND_IMM: u8 = 0x11;
pub(super) const WRITE: u8 = 0x12;
pub(super) const WRITE_IMM: u8 = 0x13;
pub(super) const READ: u8 = 0x14;
pub(super) const FLUSH: u8 = 0x15;
pub(super) const ATOMIC_WRITE: u8 = 0x16;
pub(super) const COMPARE_SWAP: u8 = 0x17;
pub(super) const FETCH_ADD: u8 = 0x18;
pub(super) const ACK: u8 = 0x20;
pub(super) const READ_RESPONSE: u8 = 0x21;
pub(super) const ATOMIC_RESPONSE: u8 = 0x22;
pub(super) const NAK: u8 = 0x23;

const SOLICITED: u8 = 1;

/// A place in the responder's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The address, in the responder's address space.
    pub addr: u64,
    /// The key of the region.
    pub rkey: u32,
}

bitflags::bitflags! {
    /// What a flush achieves, as `IBV_FLUSH_*` (`ibv_wr_flush`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Placement: u8 {
        /// The data is visible to every processor and device of the responder.
        const GLOBAL = 1;
        /// The data survives a loss of power.
        const PERSISTENT = 2;
    }
}

/// What a flush covers, as `ibv_selectivity_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selectivity {
    /// A range.
    Range,
    /// The whole region; address and length mean nothing.
    Region,
}

/// What a flush request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushSpec {
    /// What it achieves; not empty.
    pub placement: Placement,
    /// What it covers.
    pub selectivity: Selectivity,
    /// How many bytes it covers. 64 bits: a flush transfers nothing.
    pub len_bytes: u64,
}

/// A request of one end's send queue to the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its number, from 1.
    pub msn: u64,
    /// Whether the responder's completion raises a solicited event. Only for operations that complete there.
    pub solicited: bool,
    /// What to do.
    pub op: RequestOp,
}

/// What a request asks for. `len_bytes` of sends and writes follow the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the verbs of the same names")]
pub enum RequestOp {
    Send { len_bytes: u32 },
    SendImm { len_bytes: u32, imm: [u8; 4] },
    Write { remote: Remote, len_bytes: u32 },
    WriteImm { remote: Remote, len_bytes: u32, imm: [u8; 4] },
    Read { remote: Remote, len_bytes: u32 },
    Flush { remote: Remote, spec: FlushSpec },
    AtomicWrite { remote: Remote, value: [u8; 8] },
    CompareSwap { remote: Remote, compare: u64, swap: u64 },
    FetchAdd { remote: Remote, add: u64 },
}

/// A response to a request of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// The request that it answers. All earlier ones are acknowledged by it too.
    pub msn: u64,
    /// The answer.
    pub op: ResponseOp,
}

/// What a response says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseOp {
    /// The request is done, and so are all earlier ones.
    Ack,
    /// The data of a read; `len_bytes` follow the header.
    Read {
        /// Exactly what was asked for.
        len_bytes: u32,
    },
    /// An atomic operation is done.
    Atomic {
        /// The value that it found.
        original: u64,
    },
    /// The request is refused.
    Nak(Nak),
}

/// Why a request is refused: IBTA volume 1, 9.7.5.2.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nak {
    /// Key, bounds, rights or protection domain.
    RemoteAccess,
    /// An operation that the responder does not take, or a message longer than the receive.
    InvalidRequest,
    /// Something at the responder failed that is not the requester's fault.
    Operational,
    /// There is no receive. The request, and all after it, may be sent again when the time is over.
    ReceiverNotReady(RnrTimer),
}

/// How long a requester waits after "receiver not ready": a code of 5 bits, as `ibv_qp_attr::min_rnr_timer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer with this code, 0 to 31.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time: IBTA volume 1, table 45; `ibv_modify_qp(3)`. Code 0 is the longest.
    #[must_use]
    pub const fn duration(self) -> Duration {
        const MICROS: [u32; 32] = [
            655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680, 10_240,
            15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
        ];
        Duration::from_micros(MICROS[self.0 as usize] as u64)
    }
}

pub(super) const fn header_bytes(kind: u8) -> Option<usize> {
    match kind {
        SEND | ACK | READ_RESPONSE => Some(16),
        SEND_IMM | ATOMIC_RESPONSE | NAK => Some(24),
        WRITE | WRITE_IMM | READ => Some(32),
        FLUSH | ATOMIC_WRITE | FETCH_ADD => Some(40),
        COMPARE_SWAP => Some(48),
        _ => None,
    }
}

/// The first 16 bytes, decoded.
struct Head {
    flags: u8,
    len_bytes: u32,
    msn: u64,
}

impl Head {
    fn write(w: &mut Writer<'_>, kind: u8, solicited: bool, len_bytes: u32, msn: u64) {
        w.u8(kind).u8(if solicited { SOLICITED } else { 0 }).reserved(2).u32(len_bytes).u64(msn);
    }

    /// Reads what stands behind the kind.
    fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self, FrameError> {
        let flags = r.u8();
        r.reserved(2);
        let head = Self { flags, len_bytes: r.u32(), msn: r.u64() };
        let allowed_flags = if matches!(kind, SEND | SEND_IMM | WRITE_IMM) { SOLICITED } else { 0 };
        if flags & !allowed_flags != 0 {
            return Err(FrameError::Flags { kind, flags });
        }
        let max_bytes = match kind {
            SEND | SEND_IMM | WRITE | WRITE_IMM | READ | READ_RESPONSE => MAX_MESSAGE_BYTES,
            _ => 0,
        };
        if head.len_bytes > max_bytes {
            return Err(FrameError::Length { kind, len_bytes: head.len_bytes, max_bytes });
        }
        Ok(head)
    }
}

impl Request {
    pub(super) fn kind(&self) -> u8 {
        match self.op {
            RequestOp::Send { .. } => SEND,
            RequestOp::SendImm { .. } => SEND_IMM,
            RequestOp::Write { .. } => WRITE,
            RequestOp::WriteImm { .. } => WRITE_IMM,
            RequestOp::Read { .. } => READ,
            RequestOp::Flush { .. } => FLUSH,
            RequestOp::AtomicWrite { .. } => ATOMIC_WRITE,
            RequestOp::CompareSwap { .. } => COMPARE_SWAP,
            RequestOp::FetchAdd { .. } => FETCH_ADD,
        }
    }

    /// How many bytes of payload follow the header.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        match self.op {
            RequestOp::Read { .. } => 0,
            _ => self.len_field(),
        }
    }

    fn len_field(&self) -> u32 {
        match self.op {
            RequestOp::Send { len_bytes }
            | RequestOp::SendImm { len_bytes, .. }
            | RequestOp::Write { len_bytes, .. }
            | RequestOp::WriteImm { len_bytes, .. }
            | RequestOp::Read { len_bytes, .. } => len_bytes,
            RequestOp::Flush { .. }
            | RequestOp::AtomicWrite { .. }
            | RequestOp::CompareSwap { .. }
            | RequestOp::FetchAdd { .. } => 0,
        }
    }

    pub(super) fn check(&self) -> Result<(), EncodeError> {
        check_len(self.len_field())?;
        if self.msn == 0 {
            return Err(EncodeError::Value { field: "message sequence number", value: 0 });
        }
        if self.solicited && !matches!(self.kind(), SEND | SEND_IMM | WRITE_IMM) {
            return Err(EncodeError::Value { field: "solicited", value: 1 });
        }
        match self.op {
            RequestOp::Flush { spec, .. } if spec.placement.is_empty() || !Placement::all().contains(spec.placement) => {
                Err(EncodeError::Value { field: "placement", value: spec.placement.bits().into() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        Head::write(w, self.kind(), self.solicited, self.len_field(), self.msn);
        match self.op {
            RequestOp::Send { .. } => w,
            RequestOp::SendImm { imm, .. } => w.bytes(&imm).reserved(4),
            RequestOp::Write { remote, .. } | RequestOp::Read { remote, .. } => remote.write(w).reserved(4),
            RequestOp::WriteImm { remote, imm, .. } => remote.write(w).bytes(&imm),
            RequestOp::Flush { remote, spec } => {
                let selectivity = match spec.selectivity {
                    Selectivity::Range => 0,
                    Selectivity::Region => 1,
                };
                remote.write(w).u8(spec.placement.bits()).u8(selectivity).reserved(2).u64(spec.len_bytes)
            }
            RequestOp::AtomicWrite { remote, value } => remote.write(w).reserved(4).bytes(&value),
            RequestOp::CompareSwap { remote, compare, swap } => remote.write(w).reserved(4).u64(compare).u64(swap),
            RequestOp::FetchAdd { remote, add } => remote.write(w).reserved(4).u64(add),
        };
    }

    /// Reads a header of `kind`, which is one of ours; `r` stands behind the kind.
    pub(super) fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self, FrameError> {
        let Head { flags, len_bytes, msn } = Head::read(kind, r)?;
        if msn == 0 {
            return Err(FrameError::Value { kind, field: "message sequence number", value: 0 });
        }
        let op = match kind {
            SEND => RequestOp::Send { len_bytes },
            SEND_IMM => {
                let imm = r.array();
                r.reserved(4);
                RequestOp::SendImm { len_bytes, imm }
            }
            WRITE_IMM => RequestOp::WriteImm { remote: Remote::read(r), len_bytes, imm: r.array() },
            FLUSH => RequestOp::Flush { remote: Remote::read(r), spec: FlushSpec::read(kind, r)? },
            _ => {
                let remote = Remote::read(r);
                r.reserved(4);
                match kind {
                    WRITE => RequestOp::Write { remote, len_bytes },
                    READ => RequestOp::Read { remote, len_bytes },
                    ATOMIC_WRITE => RequestOp::AtomicWrite { remote, value: r.array() },
                    COMPARE_SWAP => RequestOp::CompareSwap { remote, compare: r.u64(), swap: r.u64() },
                    FETCH_ADD => RequestOp::FetchAdd { remote, add: r.u64() },
                    _ => return Err(FrameError::Kind { kind }),
                }
            }
        };
        Ok(Self { msn, solicited: flags & SOLICITED != 0, op })
    }
}

impl Response {
    pub(super) fn kind(&self) -> u8 {
        match self.op {
            ResponseOp::Ack => ACK,
            ResponseOp::Read { .. } => READ_RESPONSE,
            ResponseOp::Atomic { .. } => ATOMIC_RESPONSE,
            ResponseOp::Nak(_) => NAK,
        }
    }

    /// How many bytes of payload follow the header.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        match self.op {
            ResponseOp::Read { len_bytes } => len_bytes,
            ResponseOp::Ack | ResponseOp::Atomic { .. } | ResponseOp::Nak(_) => 0,
        }
    }

    pub(super) fn check(&self) -> Result<(), EncodeError> {
        check_len(self.payload_bytes())
    }

    pub(super) fn write(&self, w: &mut Writer<'_>) {
        Head::write(w, self.kind(), false, self.payload_bytes(), self.msn);
        match self.op {
            ResponseOp::Ack | ResponseOp::Read { .. } => {}
            ResponseOp::Atomic { original } => {
                w.u64(original);
            }
            ResponseOp::Nak(nak) => {
                let (code, timer) = match nak {
                    Nak::RemoteAccess => (1, 0),
                    Nak::InvalidRequest => (2, 0),
                    Nak::Operational => (3, 0),
                    Nak::ReceiverNotReady(timer) => (4, timer.code()),
                };
                w.u8(code).u8(timer).reserved(6);
            }
        }
    }

    /// Reads a header of `kind`, which is one of ours; `r` stands behind the kind.
    pub(super) fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self, FrameError> {
        let Head { len_bytes, msn, .. } = Head::read(kind, r)?;
        let op = match kind {
            ACK => ResponseOp::Ack,
            READ_RESPONSE => ResponseOp::Read { len_bytes },
            ATOMIC_RESPONSE => ResponseOp::Atomic { original: r.u64() },
            NAK => {
                let (code, timer) = (r.u8(), r.u8());
                r.reserved(6);
                let nak = match code {
                    1 => Nak::RemoteAccess,
                    2 => Nak::InvalidRequest,
                    3 => Nak::Operational,
                    4 => Nak::ReceiverNotReady(RnrTimer(timer & 31)),
                    _ => return Err(FrameError::Value { kind, field: "code", value: code.into() }),
                };
                let max_timer = if matches!(nak, Nak::ReceiverNotReady(_)) { 31 } else { 0 };
                if timer > max_timer {
                    return Err(FrameError::Value { kind, field: "RNR timer", value: timer.into() });
                }
                ResponseOp::Nak(nak)
            }
            _ => return Err(FrameError::Kind { kind }),
        };
        Ok(Self { msn, op })
    }
}

impl Remote {
    fn write<'w, 'b>(self, w: &'w mut Writer<'b>) -> &'w mut Writer<'b> {
        w.u64(self.addr).u32(self.rkey)
    }

    fn read(r: &mut Reader<'_>) -> Self {
        Self { addr: r.u64(), rkey: r.u32() }
    }
}

impl FlushSpec {
    fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self, FrameError> {
        let (bits, selectivity) = (r.u8(), r.u8());
        r.reserved(2);
        let Some(placement) = Placement::from_bits(bits).filter(|p| !p.is_empty()) else {
            return Err(FrameError::Value { kind, field: "placement", value: bits.into() });
        };
        let selectivity = match selectivity {
            0 => Selectivity::Range,
            1 => Selectivity::Region,
            _ => return Err(FrameError::Value { kind, field: "selectivity", value: selectivity.into() }),
        };
        Ok(Self { placement, selectivity, len_bytes: r.u64() })
    }
}

fn check_len(len_bytes: u32) -> Result<(), EncodeError> {
    if len_bytes > MAX_MESSAGE_BYTES {
        return Err(EncodeError::Value { field: "length", value: len_bytes.into() });
    }
    Ok(())
}
