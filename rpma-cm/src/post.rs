//! Posting: the operations of a connection, each checked here before the provider sees it.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use rpma_mr::sys::bindings::{IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, ibv_sge};
use rpma_mr::sys::owned::{PostError as SysPostError, SendOp, SendOptions, Taken, Work};
use rpma_mr::{AccessError, FlushType, LocalMr, RegionOwner, RemoteSlice, Usage};

use crate::completion::Operation;
use crate::cq::recv_wr_id;
use crate::ledger::{Entry, Full, Ledger};
use crate::link::{ATOMIC_BYTES, Link, Receives, lock};
use crate::peer::FLUSH_TARGET_BYTES;
use crate::post_error::{PostError, RECEIVE, SEND};
use crate::signals::Ticket;
use crate::source::{Inline, Limits, Payload, Ranges, Sges, Source, check_local, inline_side, local_side};

/// Whether a completion is wanted on success too. There is always one on failure.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// # let cfg = ConnCfg::new().sq_size(4);
/// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
/// let (mut posted, mut told) = (0, 0);
/// while posted < 100 {
///     match conn.write(there.slice_at(0, 8)?, Inline(b"8 bytes!"), Signal::OnError, posted) {
///         Ok(()) => posted += 1,
///         // As many are posted as the queue has room for. Polling makes room, and tells of those alone that failed.
///         Err(PostError::QueueFull { .. }) => told += usize::from(conn.cq().poll()?.is_some()),
///         Err(e) => return Err(e.into()),
///     }
/// }
/// assert_eq!(told, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Always: `RPMA_F_COMPLETION_ALWAYS`.
    Always,
    /// On failure only: `RPMA_F_COMPLETION_ON_ERROR`.
    ///
    /// The slot in the send queue is free again when a later operation has completed and the queue was polled. Where a whole queue would
    /// be without completions, the library asks for one itself and keeps it to itself, so polling always frees slots. For who would
    /// rather wait than poll, [`Signals`](crate::Signals) says which requests of a stream need one.
    OnError,
    /// Always, and a [`Signals`](crate::Signals) recognises it, which alone gives this.
    Counted(Ticket),
}

/// What the send ledger knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Operation(Operation, Signal),
    /// Posted by us behind the last operation: [`Link::mark_end`].
    EndMarker,
}

/// How an operation that not every device has is made on a connection: [`Conn::flush_path`](crate::Conn::flush_path),
/// [`Conn::atomic_write_path`](crate::Conn::atomic_write_path).
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let connect = |mode| rpma::testing::pair_with(&peer, &ConnCfg::new().flush_mode(mode), &ConnCfg::new());
/// assert_eq!(connect(OpMode::Automatic)?.0.flush_path(), OpPath::Native); // the software provider's device has it
/// assert_eq!(connect(OpMode::Emulated)?.0.flush_path(), OpPath::Emulated);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpPath {
    /// By the operation of that name, RDMA FLUSH or ATOMIC WRITE.
    Native,
    /// A flush by an RDMA READ of 8 bytes behind the writes, an atomic write by an inline RDMA WRITE of 8 bytes.
    Emulated,
}

/// A send-queue request that passed its checks.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    pub(crate) signal: Signal,
    pub(crate) context: u64,
    pub(crate) fence: bool,
    body: Body<'a>,
}

#[derive(Debug, Clone)]
enum Body<'a> {
    Transfer {
        op: SendOp,
        payload: Payload<'a>,
    },
    /// `len`: `None` is the whole region.
    Flush {
        remote_addr: u64,
        rkey: u32,
        len: Option<usize>,
        placement: u8,
    },
    AtomicWrite {
        remote_addr: u64,
        rkey: u32,
        value: [u8; 8],
    },
    /// An atomic write, emulated.
    InlineWrite {
        op: SendOp,
        value: [u8; 8],
    },
}

impl Request<'_> {
    /// The same, with a copy of what it borrowed.
    pub(crate) fn into_owned(self) -> Request<'static> {
        let Request { operation, signal, context, fence, body } = self;
        let body = match body {
            Body::Transfer { op, payload } => Body::Transfer { op, payload: payload.into_owned() },
            Body::Flush { remote_addr, rkey, len, placement } => Body::Flush { remote_addr, rkey, len, placement },
            Body::AtomicWrite { remote_addr, rkey, value } => Body::AtomicWrite { remote_addr, rkey, value },
            Body::InlineWrite { op, value } => Body::InlineWrite { op, value },
        };
        Request { operation, signal, context, fence, body }
    }

    /// The request as the provider takes it.
    pub(crate) fn work(&self) -> Work<'_> {
        match &self.body {
            Body::Transfer { op, payload: Payload::Sges(sges) } => Work::Ranges { op: *op, sges: sges.as_slice() },
            Body::Transfer { op, payload: Payload::Inline(data) } => Work::Inline { op: *op, data },
            &Body::Flush { remote_addr, rkey, len, placement } => {
                Work::Flush { remote_addr, rkey, len: len.unwrap_or(0), whole_region: len.is_none(), placement }
            }
            Body::InlineWrite { op, value } => Work::Inline { op: *op, data: value },
            &Body::AtomicWrite { remote_addr, rkey, value } => Work::AtomicWrite { remote_addr, rkey, value },
        }
    }
}

/// Each checks a request, and posts nothing.
impl Link {
    pub(crate) fn read(
        &self,
        dst: Ranges<'_>,
        src: RemoteSlice,
        signal: Signal,
        context: u64,
    ) -> Result<Request<'static>, PostError> {
        let operation = Operation::Read;
        let payload = Payload::Sges(self.ranges(operation, dst, Usage::READ_DST)?);
        remote(operation, dst.len_bytes(), src, Usage::READ_SRC)?;
        let op = SendOp::Read { remote_addr: src.addr(), rkey: src.rkey() };
        Ok(Request { operation, signal, context, fence: false, body: Body::Transfer { op, payload } })
    }

    pub(crate) fn write<'a>(
        &self,
        dst: RemoteSlice,
        src: Source<'a>,
        imm: Option<u32>,
        signal: Signal,
        context: u64,
    ) -> Result<Request<'a>, PostError> {
        let operation = if imm.is_some() { Operation::WriteWithImm } else { Operation::Write };
        let payload = self.payload(operation, src, Usage::WRITE_SRC)?;
        remote(operation, src.len_bytes(), dst, Usage::WRITE_DST)?;
        let (remote_addr, rkey) = (dst.addr(), dst.rkey());
        let op = match imm {
            Some(imm) => SendOp::WriteWithImm { remote_addr, rkey, imm },
            None => SendOp::Write { remote_addr, rkey },
        };
        Ok(Request { operation, signal, context, fence: false, body: Body::Transfer { op, payload } })
    }

    pub(crate) fn send<'a>(
        &self,
        src: Source<'a>,
        imm: Option<u32>,
        signal: Signal,
        context: u64,
    ) -> Result<Request<'a>, PostError> {
        let operation = if imm.is_some() { Operation::SendWithImm } else { Operation::Send };
        let payload = self.payload(operation, src, Usage::SEND)?;
        let op = imm.map_or(SendOp::Send, |imm| SendOp::SendWithImm { imm });
        Ok(Request { operation, signal, context, fence: false, body: Body::Transfer { op, payload } })
    }

    /// Both ways are fenced: the write must stay behind a flush that is made of a READ.
    pub(crate) fn atomic_write(
        &self,
        dst: RemoteSlice,
        value: [u8; 8],
        signal: Signal,
        context: u64,
    ) -> Result<Request<'static>, PostError> {
        let operation = Operation::AtomicWrite;
        if dst.len_bytes() != u64::from(ATOMIC_BYTES) || !dst.is_aligned(u64::from(ATOMIC_BYTES)) {
            return Err(PostError::Misaligned { addr: dst.addr(), len_bytes: dst.len_bytes() });
        }
        needs_remote(operation, dst, Usage::WRITE_DST)?;
        let (remote_addr, rkey) = (dst.addr(), dst.rkey());
        let path = self.atomic_write_path();
        if !self.atomic_write_told.swap(true, Ordering::Relaxed) {
            log::info!("connection {}: atomic writes are {path:?}", self.qp.number());
        }
        let body = match path {
            OpPath::Native => Body::AtomicWrite { remote_addr, rkey, value },
            OpPath::Emulated => {
                let granted_bytes = self.qp.granted().inline_bytes;
                if granted_bytes < ATOMIC_BYTES {
                    return Err(PostError::NoInline { granted_bytes });
                }
                Body::InlineWrite { op: SendOp::Write { remote_addr, rkey }, value }
            }
        };
        Ok(Request { operation, signal, context, fence: true, body })
    }

    /// The value of an atomic write that takes it from a local region.
    pub(crate) fn atomic_source<M: RegionOwner>(&self, src: &LocalMr<M>, offset_bytes: usize) -> Result<[u8; 8], PostError> {
        check_local(Operation::AtomicWrite, src.all(), Usage::WRITE_SRC, &self.peer)?;
        match src.load_u64(offset_bytes, Ordering::Acquire) {
            Ok(value) => Ok(value.to_ne_bytes()),
            Err(AccessError::Misaligned { .. }) => {
                let mut value = [0; 8];
                src.read_at(offset_bytes, &mut value).map_err(PostError::Source)?;
                Ok(value)
            }
            Err(e) => Err(PostError::Source(e)),
        }
    }

    pub(crate) fn flush(
        &self,
        dst: RemoteSlice,
        flush_type: FlushType,
        signal: Signal,
        context: u64,
    ) -> Result<Request<'static>, PostError> {
        let operation = Operation::Flush;
        // First what no configuration of the peer changes. (C looks at the configuration first; both are one code.)
        let needs = flush_type.required_usage();
        if !dst.usage().contains(needs) {
            return Err(PostError::FlushType { flush_type, has: dst.usage(), needs });
        }
        let cfg = self.remote_cfg.get();
        if flush_type == FlushType::Persistent && !cfg.is_some_and(|cfg| cfg.direct_write_to_pmem()) {
            return Err(PostError::NoDirectWrite { is_applied: cfg.is_some() });
        }
        let path = self.flush_path();
        if !self.flush_told.swap(true, Ordering::Relaxed) {
            log::info!("connection {}: flushes are {path:?}", self.qp.number());
        }
        let rkey = dst.rkey();
        let body = match path {
            OpPath::Native => {
                // A length over 32 bits cannot be told: then the whole region is flushed, which is more and never less.
                let len = u32::try_from(dst.len_bytes()).ok().and_then(|len| usize::try_from(len).ok());
                let placement = match flush_type {
                    FlushType::Persistent => IBV_FLUSH_PERSISTENT,
                    FlushType::Visibility => IBV_FLUSH_GLOBAL,
                };
                let placement = u8::try_from(placement).expect("placement types are the bits 1 and 2");
                Body::Flush { remote_addr: dst.addr(), rkey, len, placement }
            }
            OpPath::Emulated => {
                let (remote_addr, length) = emulation_reads(dst);
                let target = self.peer.flush_target().all();
                let sge = ibv_sge { addr: target.addr(), length, lkey: target.lkey() };
                Body::Transfer { op: SendOp::Read { remote_addr, rkey }, payload: Payload::Sges(Sges::One(Some(sge))) }
            }
        };
        Ok(Request { operation, signal, context, fence: false, body })
    }
}

impl Link {
    pub(crate) fn flush_path(&self) -> OpPath {
        let peer_has = self.remote_cfg.get().and_then(|cfg| cfg.native_ops()).map(|native| native.flush);
        if self.flush.is_native(peer_has) { OpPath::Native } else { OpPath::Emulated }
    }

    pub(crate) fn atomic_write_path(&self) -> OpPath {
        let peer_has = self.remote_cfg.get().and_then(|cfg| cfg.native_ops()).map(|native| native.atomic_write);
        if self.atomic_write.is_native(peer_has) { OpPath::Native } else { OpPath::Emulated }
    }

    pub(crate) fn recv(&self, dst: Ranges<'_>, context: u64) -> Result<(), PostError> {
        let operation = Operation::Recv;
        let Receives::Own(received) = &self.receives else { return Err(PostError::SharedReceives) };
        let sges = self.ranges(operation, dst, Usage::RECV)?;
        let entry = Entry { op: (), context };
        self.check_process(operation)?;
        enter(received, RECEIVE, operation, entry, |number| self.qp.post_recv(sges.as_slice(), recv_wr_id(number)))?;
        if self.is_over() {
            self.flush_posted();
        }
        Ok(())
    }

    /// Posts a request that passed its checks.
    pub(crate) fn post(&self, request: &Request<'_>) -> Result<(), PostError> {
        let &Request { operation, signal, context, .. } = request;
        self.check_process(operation)?;
        let entry = Entry { op: Sent::Operation(operation, signal), context };
        enter(&self.sent, SEND, operation, entry, |wr_id| self.qp.post(request.work(), self.options(request, wr_id)))
    }

    pub(crate) fn options(&self, request: &Request<'_>, wr_id: u64) -> SendOptions {
        // One number in every queue's length is signaled, whatever was asked for: a full queue always has something that completes.
        let every = u64::from(self.sq_size);
        let signaled = request.signal != Signal::OnError || wr_id % every == every - 1;
        SendOptions { wr_id, signaled, fence: request.fence }
    }

    /// In a forked child, a lock may be held for ever by a thread that only the parent has.
    fn check_process(&self, operation: Operation) -> Result<(), PostError> {
        self.qp.check_process().map_err(|source| PostError::Provider { operation, source })
    }

    /// For the end of a connection, and for who waits for much room: makes sure that something completes behind the last request.
    ///
    /// Requests that wanted no completion and have succeeded have none, and only a later completion tells that they are done. So a
    /// write of nothing is posted behind them: after the end it is flushed, as all is, and before it does nothing.
    pub(crate) fn mark_end(&self) {
        let mut sent = lock(&self.sent);
        if !matches!(sent.newest(), Some(Entry { op: Sent::Operation(_, Signal::OnError), .. })) {
            return;
        }
        let wr_id = sent.enter(Entry { op: Sent::EndMarker, context: 0 });
        let options = SendOptions { wr_id, signaled: true, fence: false };
        if let Err(e) = self.qp.post_send(SendOp::Write { remote_addr: 0, rkey: 0 }, &[], options) {
            // The queue can be full until something is polled.
            log::debug!("connection {}: nothing can be posted behind its last request: {}", self.qp.number(), e.source);
            if e.taken == Taken::No {
                sent.take_back(1);
            }
        }
    }

    /// The local side of a send-queue request.
    fn payload<'a>(&self, operation: Operation, src: Source<'a>, needs: Usage) -> Result<Payload<'a>, PostError> {
        match src {
            Source::Ranges(ranges) => self.ranges(operation, ranges, needs).map(Payload::Sges),
            Source::Inline(Inline(bytes)) => inline_side(operation, bytes, self.qp.granted().inline_bytes).map(Payload::Inline),
        }
    }

    fn ranges(&self, operation: Operation, ranges: Ranges<'_>, needs: Usage) -> Result<Sges, PostError> {
        let granted = self.qp.granted();
        let sges = if operation == Operation::Recv { granted.recv_sge } else { granted.send_sge };
        let limits = Limits { peer: &self.peer, max_message_bytes: self.max_message_bytes, sges };
        local_side(operation, ranges, needs, limits)
    }
}

/// Checks the remote side of a transfer.
fn remote(operation: Operation, local_bytes: usize, remote: RemoteSlice, needs: Usage) -> Result<(), PostError> {
    if usize::try_from(remote.len_bytes()) != Ok(local_bytes) {
        return Err(PostError::LengthMismatch { operation, local_bytes, remote_bytes: remote.len_bytes() });
    }
    if remote.is_null() { Ok(()) } else { needs_remote(operation, remote, needs) }
}

fn needs_remote(operation: Operation, remote: RemoteSlice, needs: Usage) -> Result<(), PostError> {
    if remote.usage().contains(needs) { Ok(()) } else { Err(PostError::RemoteUsage { operation, has: remote.usage(), needs }) }
}

/// What an emulated flush reads: 8 bytes at the slice's start, moved back where the region ends before them, and fewer where the region
/// has fewer. (The C library reads 8 bytes wherever the slice starts, and loses the connection at the region's end.)
fn emulation_reads(slice: RemoteSlice) -> (u64, u32) {
    let len = slice.region_len_bytes().min(FLUSH_TARGET_BYTES as u64);
    let last = slice.region_addr() + (slice.region_len_bytes() - len);
    (slice.addr().min(last), u32::try_from(len).expect("at most 8"))
}

/// Enters a request into its ledger and posts it, under the ledger's lock, so that both are in one order.
fn enter<Op: Copy>(
    ledger: &Mutex<Ledger<Op>>,
    queue: &'static str,
    operation: Operation,
    entry: Entry<Op>,
    post: impl FnOnce(u64) -> Result<(), SysPostError>,
) -> Result<(), PostError> {
    let mut ledger = lock(ledger);
    ledger.room().map_err(|Full(limit)| PostError::QueueFull { queue, limit })?;
    let number = ledger.enter(entry);
    post(number).map_err(|e| match e.taken {
        Taken::No => {
            ledger.take_back(1);
            PostError::Provider { operation, source: e.source }
        }
        // Its completion may come: the entry stays.
        Taken::Unknown => PostError::PerhapsTaken { operation, source: e.source },
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use rpma_mr::{MrDescriptor, RemoteMr};

    use super::*;

    fn region(addr: u64, len: u64) -> RemoteMr {
        RemoteMr::from(MrDescriptor::new(addr, len, 7, Usage::FLUSH_TYPE_VISIBILITY).unwrap())
    }

    #[test]
    fn emulated_flush_reads_at_the_slice_and_never_past_the_region() {
        let mr = region(0x1000, 64);
        assert_eq!(emulation_reads(mr.slice(0..64).unwrap()), (0x1000, 8));
        assert_eq!(emulation_reads(mr.slice(56..64).unwrap()), (0x1038, 8));
        assert_eq!(emulation_reads(mr.slice(63..64).unwrap()), (0x1038, 8));
        assert_eq!(emulation_reads(mr.slice(64..64).unwrap()), (0x1038, 8));
    }

    #[test]
    fn emulated_flush_of_a_region_under_8_bytes_reads_all_of_it() {
        assert_eq!(emulation_reads(region(0x1000, 4).slice(3..4).unwrap()), (0x1000, 4));
        assert_eq!(emulation_reads(region(0x1000, 0).all()), (0x1000, 0));
    }

    #[test]
    fn failed_post_that_was_not_taken_leaves_its_slot_free() {
        let ledger = Mutex::new(Ledger::new(1));
        let entry = Entry { op: Operation::Send, context: 1 };
        let refused = || SysPostError { source: io::Error::from_raw_os_error(12), taken: Taken::No };
        let error = enter(&ledger, "send", Operation::Send, entry, |_| Err(refused())).unwrap_err();
        assert!(matches!(error, PostError::Provider { operation: Operation::Send, .. }));
        assert!(
            enter(&ledger, "send", Operation::Send, entry, |number| {
                assert_eq!(number, 0);
                Ok(())
            })
            .is_ok()
        );
    }

    #[test]
    fn failed_post_that_may_run_keeps_its_slot() {
        let ledger = Mutex::new(Ledger::new(1));
        let entry = Entry { op: Operation::Send, context: 1 };
        let unclear = SysPostError { source: io::Error::from_raw_os_error(22), taken: Taken::Unknown };
        let error = enter(&ledger, "send", Operation::Send, entry, |_| Err(unclear)).unwrap_err();
        assert!(matches!(error, PostError::PerhapsTaken { .. }));
        let full = enter(&ledger, "send", Operation::Send, entry, |_| Ok(())).unwrap_err();
        assert!(matches!(full, PostError::QueueFull { queue: "send", limit: 1 }));
    }
}
