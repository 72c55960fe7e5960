//! Established connections.

use std::io;
use std::sync::Arc;

use rpma_mr::{FlushType, LocalMr, PeerCfg, RegionOwner, RemoteSlice};

use crate::batch::Batch;
use crate::event::{ConnEvent, EventError};
use crate::link::Link;
use crate::parameters::Negotiated;
use crate::post::{OpPath, Signal};
use crate::post_error::PostError;
use crate::source::{Ranges, Source};
use crate::wait::Wait;

/// An established connection: `rpma_conn_next_event(3)` said ESTABLISHED.
///
/// Operations are posted and return at once; what became of them comes out of the [completion queue](Self::cq). They are carried out in
/// the order of posting. Several threads may post.
///
/// Cloning is cheap and gives another handle on the same connection. Dropping the last one, its completion queue's included, ends it.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, server) = rpma::testing::pair()?;
/// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
/// let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
/// here.write_at(0, b"seen by all")?;
/// conn.write(there.slice(0..11)?, here.slice(0..11)?, Signal::OnError, 1)?;
/// conn.flush(there.slice(0..11)?, FlushType::Visibility, Signal::Always, 2)?;
///
/// let done = conn.cq().wait(Duration::from_secs(10))?;
/// done.result()?;
/// assert_eq!((done.operation(), done.context()), (Operation::Flush, 2)); // and so the write
/// # let mut arrived = [0; 11];
/// # memory.read_at(0, &mut arrived)?;
/// # assert_eq!(&arrived, b"seen by all");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_conn_get_event_fd")]
#[doc(alias = "rpma_conn_delete")]
#[doc(alias = "rpma_conn_next_event")]
#[derive(Clone)]
#[must_use = "a connection ends when its last handle is dropped"]
pub struct Conn(pub(crate) Arc<Link>);

impl Conn {
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.0
    }

    /// Waits for what happens next: `rpma_conn_next_event(3)`.
    ///
    /// ```
    /// use rpma::{EventError, prelude::*};
    ///
    /// # let (conn, peer) = rpma::testing::pair()?;
    /// assert!(matches!(conn.next_event(Wait::Now), Err(EventError::NoEvent)));
    /// # drop(peer); // the peer's process dies
    /// assert_eq!(conn.next_event(Duration::from_secs(10))?, ConnEvent::Closed);
    /// conn.disconnect()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EventError`].
    #[doc(alias = "rpma_conn_next_event")]
    pub fn next_event(&self, wait: impl Into<Wait>) -> Result<ConnEvent, EventError> {
        self.0.next_event(wait.into())
    }

    /// Tells what the peer said of its platform, which persistent flushes and the choice between native and emulated operations depend
    /// on: `rpma_conn_apply_remote_peer_cfg(3)`. It may be applied again; the last one holds.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let file = tempfile::NamedTempFile::new_in("/var/tmp")?; // a disk; /tmp may be none
    /// # let memory = conn.peer().register(MappedFile::create(file.path(), 4096)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT)?;
    /// # let there = RemoteMr::from_descriptor(&memory.descriptor().to_bytes())?;
    /// # let received = server.peer().cfg().with_direct_write_to_pmem(true).to_bytes();
    /// let flush = || conn.flush(there.all(), FlushType::Persistent, Signal::Always, 1);
    /// assert!(matches!(flush(), Err(PostError::NoDirectWrite { is_applied: false })));
    /// conn.apply_remote_peer_cfg(PeerCfg::from_bytes(&received)?); // the peer says that its writes are durable so
    /// flush()?;
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_apply_remote_peer_cfg")]
    pub fn apply_remote_peer_cfg(&self, cfg: PeerCfg) {
        self.0.remote_cfg.set(cfg);
    }

    /// The transport's parameters that hold here, as both ends and the connection manager agreed on them: what the [`ConnCfg`] methods
    /// of these names ask for. `ibv_query_qp(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let (client, server) = (ConnCfg::new().ack_timeout(16)?, ConnCfg::new().rnr_retry_count(2)?);
    /// # let (conn, _server) = rpma::testing::pair_with(&peer, &client, &server)?;
    /// let agreed = conn.negotiated()?;
    /// assert_eq!((agreed.ack_timeout, agreed.rnr_retry_count), (16, 2)); // the second is for the server to say
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As `ibv_query_qp(3)`.
    ///
    /// [`ConnCfg`]: crate::ConnCfg
    pub fn negotiated(&self) -> io::Result<Negotiated> {
        Negotiated::of(&self.0.qp)
    }

    /// Reads from the peer's region into a local one: `rpma_read(3)`. Both sides are of one length; [`LocalSlice::null`](rpma_mr::LocalSlice::null) and
    /// [`RemoteSlice::NULL`] read nothing and complete.
    ///
    /// The bytes can go to several slices, which are filled one after the other: `conn.read(&[head, body], …)`.
    ///
    /// Needs READ_DST here and READ_SRC there.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::READ_SRC)?;
    /// # memory.write_at(1000, b"from afar")?;
    /// let here = conn.peer().register(AnonPages::new(4096)?, Usage::READ_DST)?;
    /// conn.read(here.slice(0..9)?, there.slice(1000..1009)?, Signal::Always, 1)?;
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// let mut bytes = [0; 9];
    /// here.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"from afar");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_read")]
    pub fn read<'a>(&self, dst: impl Into<Ranges<'a>>, src: RemoteSlice, signal: Signal, context: u64) -> Result<(), PostError> {
        self.0.post(&self.0.read(dst.into(), src, signal, context)?)
    }

    /// Writes from a local region into the peer's: `rpma_write(3)`. Both sides are of one length; null slices as for
    /// [`read`](Self::read).
    ///
    /// The bytes can come from several slices, one behind the other, or be carried [inline](crate::Inline):
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().send_sge(2);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// # let here = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// here.write_at(0, b"head")?;
    /// here.write_at(512, b"body")?;
    /// conn.write(there.slice(0..8)?, &[here.slice(0..4)?, here.slice(512..516)?], Signal::OnError, 1)?;
    /// conn.write(there.slice(8..12)?, Inline(b"done"), Signal::Always, 2)?; // its bytes are copied now
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// # let mut arrived = [0; 12];
    /// # memory.read_at(0, &mut arrived)?;
    /// assert_eq!(&arrived, b"headbodydone"); // at the peer
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Needs WRITE_SRC here (not for inline bytes) and WRITE_DST there. Its completion says that the bytes have reached the peer's device; that they are
    /// visible or durable, only a [`flush`](Self::flush) behind it says.
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_write")]
    pub fn write<'a>(&self, dst: RemoteSlice, src: impl Into<Source<'a>>, signal: Signal, context: u64) -> Result<(), PostError> {
        self.0.post(&self.0.write(dst, src.into(), None, signal, context)?)
    }

    /// As [`write`](Self::write), and gives `imm` to a receive of the peer, which completes once the bytes are there:
    /// `rpma_write_with_imm(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// # let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// server.recv(LocalSlice::null(), 7)?; // the other side: no bytes go there
    /// conn.write_with_imm(there.slice(0..100)?, here.slice(0..100)?, 42, Signal::OnError, 1)?;
    /// let received = server.cq().wait(Duration::from_secs(10))?.received()?.ok_or("a receive")?;
    /// assert_eq!((received.imm, received.len_bytes, received.by_write), (Some(42), 100, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_write_with_imm")]
    pub fn write_with_imm<'a>(
        &self,
        dst: RemoteSlice,
        src: impl Into<Source<'a>>,
        imm: u32,
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        self.0.post(&self.0.write(dst, src.into(), Some(imm), signal, context)?)
    }

    /// Writes 8 bytes that a reader sees all or none of: `rpma_atomic_write(3)`. `dst` is 8 bytes at an address that is a multiple of 8;
    /// `value` is copied. Stays behind every flush posted before it.
    ///
    /// Emulated, it is as atomic as the device places 8 aligned bytes: RDMA cards do so at once. Soft-RoCE copies them with its kernel's
    /// `memcpy`, and a kernel that does that with `rep movsb` (Linux 6.1 where the processor has ERMS) may leave them torn on a
    /// processor that splits it.
    ///
    /// Needs WRITE_DST there.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// conn.atomic_write(there.slice(8..16)?, 42_u64.to_le_bytes(), Signal::Always, 1)?;
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// // The other side never sees half of it.
    /// assert_eq!(memory.load_u64(8, std::sync::atomic::Ordering::Acquire)?, 42);
    /// let misaligned = conn.atomic_write(there.slice(4..12)?, [0; 8], Signal::Always, 2);
    /// assert!(matches!(misaligned, Err(PostError::Misaligned { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_atomic_write")]
    pub fn atomic_write(&self, dst: RemoteSlice, value: [u8; 8], signal: Signal, context: u64) -> Result<(), PostError> {
        self.0.post(&self.0.atomic_write(dst, value, signal, context)?)
    }

    /// As [`atomic_write`](Self::atomic_write), of the 8 bytes at `src_offset_bytes` of a local region: `rpma_write_atomic`, the older
    /// name, of librpma before 1.0. They are read during this call, at once if their address is a multiple of 8, and may be changed right
    /// after it.
    ///
    /// Needs WRITE_SRC here and WRITE_DST there.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// here.write_at(0, &42_u64.to_le_bytes())?; // the new length of a log, say
    /// conn.write_atomic(there.slice(0..8)?, &here, 0, Signal::Always, 1)?;
    /// here.write_at(0, &43_u64.to_le_bytes())?; // it was read at the call
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// assert_eq!(memory.load_u64(0, std::sync::atomic::Ordering::Acquire)?, 42); // at the peer
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_write_atomic")]
    pub fn write_atomic<M: RegionOwner>(
        &self,
        dst: RemoteSlice,
        src: &LocalMr<M>,
        src_offset_bytes: usize,
        signal: Signal,
        context: u64,
    ) -> Result<(), PostError> {
        let value = self.0.atomic_source(src, src_offset_bytes)?;
        self.0.post(&self.0.atomic_write(dst, value, signal, context)?)
    }

    /// Makes what was written before it visible or durable at the peer: `rpma_flush(3)`. Its completion says that it is, for every
    /// write posted before it on this connection; `dst` is the range meant, of any length within the region.
    ///
    /// [`FlushType::Persistent`] needs FLUSH_TYPE_PERSISTENT there, and the peer's word, through
    /// [`apply_remote_peer_cfg`](Self::apply_remote_peer_cfg), that its writes go directly to persistent memory;
    /// [`FlushType::Visibility`] needs FLUSH_TYPE_VISIBILITY there.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
    /// conn.write(there.slice(0..4)?, Inline(b"some"), Signal::OnError, 1)?;
    /// conn.write(there.slice(8..12)?, Inline(b"more"), Signal::OnError, 2)?;
    /// conn.flush(there.all(), FlushType::Visibility, Signal::Always, 3)?; // for both
    /// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 3);
    /// // Its memory was not registered for that.
    /// let durable = conn.flush(there.all(), FlushType::Persistent, Signal::Always, 4);
    /// assert!(matches!(durable, Err(PostError::FlushType { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_flush")]
    pub fn flush(&self, dst: RemoteSlice, flush_type: FlushType, signal: Signal, context: u64) -> Result<(), PostError> {
        self.0.post(&self.0.flush(dst, flush_type, signal, context)?)
    }

    /// How the next flush will be made, by both ends' abilities and [`ConnCfg::flush_mode`](crate::ConnCfg::flush_mode).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// assert_eq!(conn.flush_path(), OpPath::Native); // by this side's device
    /// conn.apply_remote_peer_cfg(PeerCfg::from_bytes(&[1])?); // a C program's: nothing is said of native operations
    /// assert_eq!(conn.flush_path(), OpPath::Native);
    /// let without = rpma::NativeOps { flush: false, atomic_write: false };
    /// conn.apply_remote_peer_cfg(PeerCfg::new().with_native_ops(Some(without)));
    /// assert_eq!(conn.flush_path(), OpPath::Emulated);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn flush_path(&self) -> OpPath {
        self.0.flush_path()
    }

    /// How the next atomic write will be made: as [`flush_path`](Self::flush_path), with
    /// [`ConnCfg::atomic_write_mode`](crate::ConnCfg::atomic_write_mode).
    #[must_use]
    pub fn atomic_write_path(&self) -> OpPath {
        self.0.atomic_write_path()
    }

    /// Sends a message into a receive of the peer: `rpma_send(3)`. [`LocalSlice::null`](rpma_mr::LocalSlice::null) sends a message of 0 bytes.
    ///
    /// It can be gathered from several slices, or be [inline](crate::Inline), as a [write](Self::write) can.
    ///
    /// Needs SEND here (not for inline bytes).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let inbox = server.peer().register(AnonPages::new(512)?, Usage::RECV)?;
    /// server.recv(inbox.all(), 7)?; // the other side
    /// let outbox = conn.peer().register(AnonPages::new(512)?, Usage::SEND)?;
    /// outbox.write_at(0, b"a message")?;
    /// conn.send(outbox.slice(0..9)?, Signal::OnError, 1)?;
    /// let completion = server.cq().wait(Duration::from_secs(10))?;
    /// assert_eq!(completion.received()?.map(|got| got.len_bytes), Some(9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_send")]
    pub fn send<'a>(&self, src: impl Into<Source<'a>>, signal: Signal, context: u64) -> Result<(), PostError> {
        self.0.post(&self.0.send(src.into(), None, signal, context)?)
    }

    /// As [`send`](Self::send), with `imm` beside the message: `rpma_send_with_imm(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// server.recv(LocalSlice::null(), 7)?; // the other side
    /// conn.send_with_imm(LocalSlice::null(), 0xCAFE, Signal::OnError, 1)?;
    /// let received = server.cq().wait(Duration::from_secs(10))?.received()?.ok_or("a receive")?;
    /// assert_eq!((received.imm, received.by_write), (Some(0xCAFE), false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_send_with_imm")]
    pub fn send_with_imm<'a>(&self, src: impl Into<Source<'a>>, imm: u32, signal: Signal, context: u64) -> Result<(), PostError> {
        self.0.post(&self.0.send(src.into(), Some(imm), signal, context)?)
    }

    /// Begins a batch: requests that are posted together, with one doorbell.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (conn, server) = rpma::testing::pair()?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// let mut batch = conn.batch();
    /// batch.write(there.slice(0..4)?, Inline(b"both"), Signal::OnError, 1)?;
    /// batch.write(there.slice(8..16)?, Inline(b"together"), Signal::Always, 2)?;
    /// batch.post()?;
    /// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(&self.0)
    }

    /// Posts a receive: `rpma_recv(3)`. [`LocalSlice::null`](rpma_mr::LocalSlice::null) takes a message of 0 bytes, or a write with immediate data.
    /// A message can be spread over several slices, which are filled one after the other.
    ///
    /// Needs RECV here. The region must not be deregistered before the receive has completed, or the receive fails.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let (server, conn) = rpma::testing::pair()?;
    /// let inboxes = conn.peer().register(AnonPages::new(2 * 512)?, Usage::RECV)?;
    /// conn.recv(inboxes.slice(..512)?, 0)?;
    /// conn.recv(inboxes.slice(512..)?, 1)?; // for the second message
    /// # server.send(Inline(b"hello"), Signal::OnError, 9)?; // the peer's message
    /// let completion = conn.cq().wait(Duration::from_secs(10))?;
    /// let len = completion.received()?.ok_or("a receive")?.len_bytes as usize;
    /// let mut message = vec![0; len];
    /// inboxes.read_at(512 * completion.context() as usize, &mut message)?;
    /// assert_eq!(message, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`]; [`PostError::SharedReceives`] on a connection that takes its receives from a [`Srq`](crate::Srq).
    #[doc(alias = "rpma_recv")]
    pub fn recv<'a>(&self, dst: impl Into<Ranges<'a>>, context: u64) -> Result<(), PostError> {
        self.0.recv(dst.into(), context)
    }
}
