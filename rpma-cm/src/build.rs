//! Making the queues of a connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::{CmId, CompChannel, Cq, Qp, QpCap, QpRequest};

use crate::conn_cfg::{ConnCfg, OpMode};
use crate::event::shown;
use crate::parameters::ParameterError;
use crate::peer::Peer;
use crate::queue::Queue;
use crate::srq::Srq;

/// Why the queues of a connection could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum BuildError {
    /// The request came in, or its route leads out, through another device than the peer's.
    #[error(
        "the connection is on another RDMA device than the peer's ({peer_device}): listen on, or connect to, an address of that device"
    )]
    OtherDevice { peer_device: String },
    /// No completion queue of that size.
    #[error(
        "the device gives no completion queue of {cqe} entries, for {sq_size} sends, {rq_size} receives and a cq_size of {cq_size}: ask for smaller queues"
    )]
    Cq { cqe: i32, sq_size: u32, rq_size: u32, cq_size: u32, source: io::Error },
    /// No receive completion queue of that size.
    #[error(
        "the device gives no receive completion queue of {cqe} entries, for an rcq_size of {rcq_size}: ask for smaller queues"
    )]
    ReceiveCq { cqe: i32, rcq_size: u32, source: io::Error },
    /// No completion channel.
    #[error("the device gives no completion channel: look at `ulimit -n`")]
    CompChannel(#[source] io::Error),
    /// [`ConnCfg::shared_channel`], and [`ConnCfg::srq`] with a queue that has a receive CQ of its own.
    #[error(
        "the shared receive queue has a completion queue of its own, which cannot share a connection's channel: make it with an rcq_size of 0, or the connection without shared_channel"
    )]
    SrqHasChannel,
    /// The shared receive queue was made from another peer.
    #[error("the shared receive queue was made from another peer than the connection's")]
    SrqOfOtherPeer,
    /// The dispatcher was made from a peer on another device.
    #[error("the dispatcher is of another device than the connection: make one for each device")]
    DispatcherOfOtherDevice,
    /// No queue pair of those sizes.
    #[error(
        "the device gives no queue pair for {} sends of {} ranges or {} inline bytes, and {} receives of {} ranges: ask for less",
        .asked.send_wr, .asked.send_sge, .asked.inline_bytes, .asked.recv_wr, .asked.recv_sge
    )]
    Qp { asked: QpCap, source: io::Error },
    /// An incoming request's peer did not wait for the answer.
    #[error("the peer{} gave its request up before it was accepted", shown(.peer_addr))]
    PeerGone { peer_addr: Option<SocketAddr> },
    /// [`OpMode::Native`] was asked for.
    #[error(
        "native {operation} was asked for, and the device {device} or its rdma-core has none: ask for the automatic or the emulated one"
    )]
    NoNative { operation: &'static str, device: String },
    /// The device has less of something than [`ConnCfg`] asks for.
    #[error("the device cannot do what the connection's parameters ask for")]
    Parameter(#[from] ParameterError),
    /// [`ConnCfg::ack_timeout`] is refused.
    #[error("the acknowledge time-out {code} cannot be set: it takes Linux 5.1 and a device of InfiniBand or RoCE")]
    AckTimeout { code: u8, source: io::Error },
    /// The port cannot be asked for its limits.
    #[error("port {port_num} of the device cannot be asked for its largest message")]
    Port { port_num: u8, source: io::Error },
    /// No descriptors for waiting.
    #[error("no descriptors to wait with: look at `ulimit -n`")]
    Descriptors(#[source] io::Error),
}

impl BuildError {
    /// The code that librpma gives for this: `rpma_conn_req_new(3)`, `rpma_ep_next_conn_req(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::SrqHasChannel | Self::SrqOfOtherPeer | Self::DispatcherOfOtherDevice | Self::Parameter(_) => {
                ErrorCode::InvalidArgument
            }
            Self::OtherDevice { .. }
            | Self::Cq { .. }
            | Self::ReceiveCq { .. }
            | Self::CompChannel(_)
            | Self::Qp { .. }
            | Self::PeerGone { .. }
            | Self::NoNative { .. }
            | Self::AckTimeout { .. }
            | Self::Port { .. }
            | Self::Descriptors(_) => ErrorCode::Provider,
        }
    }
}

/// The main CQ, and the receive CQ if the connection has one.
pub(crate) fn cqs(peer: &Peer, cfg: &ConnCfg) -> Result<(Arc<Queue>, Option<Arc<Queue>>), BuildError> {
    let context = peer.device().context();
    let shared = match &cfg.dispatcher {
        Some(dispatcher) if !dispatcher.channel().context().is_same_as(context) => {
            return Err(BuildError::DispatcherOfOtherDevice);
        }
        Some(dispatcher) => Some(Arc::clone(dispatcher.channel())),
        None if cfg.get_shared_channel() => Some(CompChannel::create(context).map_err(BuildError::CompChannel)?),
        None => None,
    };
    // Within the device's number of them, which is an int.
    let vector = i32::try_from(cfg.get_completion_vector()).unwrap_or(i32::MAX);
    let build = |cqe| match &shared {
        Some(channel) => Cq::create_on(channel, cqe, vector),
        None => Cq::create(context, cqe, vector),
    };
    let cqe = cfg.cqe();
    let main = build(cqe).map_err(|source| {
        let (sq_size, rq_size, cq_size) = (cfg.get_sq_size(), cfg.get_rq_size(), cfg.get_cq_size());
        BuildError::Cq { cqe, sq_size, rq_size, cq_size, source }
    })?;
    let receive = match cfg.rcqe() {
        None => None,
        Some(cqe) => {
            let rcq_size = cfg.get_rcq_size();
            Some(build(cqe).map_err(|source| BuildError::ReceiveCq { cqe, rcq_size, source })?)
        }
    };
    let queue = |cq| Queue::new(cq).map_err(BuildError::Descriptors);
    Ok((queue(main)?, receive.map(queue).transpose()?))
}

/// The queue pair: with the native operations that are wanted and to be had.
pub(crate) fn qp(peer: &Peer, id: &Arc<CmId>, send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>, cfg: &ConnCfg) -> Result<Qp, BuildError> {
    let device = peer.device();
    let pd = peer.protection_domain().raw();
    let capabilities = device.capabilities();
    let srq = cfg.get_srq().map(Srq::raw);
    // With a shared receive queue there is no other.
    let (recv_wr, recv_sge) = if srq.is_some() { (0, 0) } else { (cfg.get_rq_size(), cfg.get_recv_sge()) };
    let (send_wr, send_sge, inline_bytes) = (cfg.get_sq_size(), cfg.get_send_sge(), cfg.get_inline_bytes());
    let cap = QpCap { send_wr, recv_wr, send_sge, recv_sge, inline_bytes };
    // Asked for only where the device reports them: many drivers refuse flags that they do not know.
    let wanted = QpRequest {
        cap,
        native_flush: capabilities.native_flush && cfg.get_flush_mode() != OpMode::Emulated,
        native_atomic_write: capabilities.native_atomic_write && cfg.get_atomic_write_mode() != OpMode::Emulated,
    };
    let plain = QpRequest { native_flush: false, native_atomic_write: false, ..wanted };
    let made = Qp::create(id, pd, send_cq, recv_cq, srq, wanted).or_else(|e| {
        if wanted == plain {
            return Err(e);
        }
        // The kernel is newer than rdma-core, or the provider has no extended call: the device's word was the kernel's. The errno should
        // say so (EOPNOTSUPP, ENOSYS), but older versions of librdmacm make ENOMEM of every failure; if the cause is another one, the
        // plain creation meets it too.
        log::debug!("no queue pair with native operations, trying without: {e}");
        Qp::create(id, pd, send_cq, recv_cq, srq, plain)
    });
    let qp = made.map_err(|source| BuildError::Qp { asked: cap, source })?;
    let lacking = if cfg.get_flush_mode() == OpMode::Native && !qp.has_flush() {
        Some("flush")
    } else if cfg.get_atomic_write_mode() == OpMode::Native && !qp.has_atomic_write() {
        Some("atomic write")
    } else {
        None
    };
    match lacking {
        Some(operation) => Err(BuildError::NoNative { operation, device: device.name().to_owned() }),
        None => Ok(qp),
    }
}
