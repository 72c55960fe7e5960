//! Connection parameters.

use std::time::Duration;

use crate::dispatcher::Dispatcher;
use crate::link::ATOMIC_BYTES;
use crate::parameters::Parameters;
use crate::srq::Srq;

/// How flushes, or atomic writes, are made on a connection.
///
/// What is right concerns both ends: a native FLUSH needs a target device that knows it, the emulation by a READ a target region with
/// remote-read (spec: librpma 1.3.0 chooses by its own end alone).
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let cfg = ConnCfg::new().flush_mode(OpMode::Emulated); // and what atomic writes need, as the device has it
/// # let (conn, _) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
/// assert_eq!((conn.flush_path(), conn.atomic_write_path()), (OpPath::Emulated, OpPath::Native));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpMode {
    /// Native where our queue pair has it and the peer's configuration does not say that its device has none.
    #[default]
    Automatic,
    /// Native always; a queue pair without it is an error when the connection is made.
    Native,
    /// Emulated always: a flush by an RDMA READ, an atomic write by an inline RDMA WRITE of 8 bytes.
    Emulated,
}

/// Parameters of a connection: `rpma_conn_cfg_new(3)`. It is read when a request is made, and may be dropped or used again after that.
///
/// Queue sizes are minima: providers round up, and the sizes that were granted can be asked for. Any size can be set; one that the
/// device cannot give is an error when the request is made.
///
/// ```
/// use rpma::prelude::*;
///
/// let cfg = ConnCfg::new().sq_size(64).timeout(Duration::from_secs(5));
/// assert_eq!((cfg.get_sq_size(), cfg.get_timeout()), (64, Duration::from_secs(5)));
/// // What was not set is librpma's default.
/// assert_eq!((cfg.get_cq_size(), cfg.get_rcq_size(), cfg.get_rq_size()), (10, 0, 10));
/// assert_eq!((cfg.get_shared_channel(), cfg.get_srq()), (false, None));
/// ```
#[doc(alias = "rpma_conn_cfg_delete")]
#[doc(alias = "rpma_conn_cfg_new")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnCfg {
    timeout: Duration,
    cq_size: u32,
    rcq_size: u32,
    shared_channel: bool,
    sq_size: u32,
    rq_size: u32,
    send_sge: u32,
    recv_sge: u32,
    inline_bytes: u32,
    srq: Option<Srq>,
    pub(crate) dispatcher: Option<Dispatcher>,
    flush_mode: OpMode,
    atomic_write_mode: OpMode,
    /// Set and told in `parameters.rs`.
    pub(crate) parameters: Parameters,
}

impl Default for ConnCfg {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            cq_size: 10,
            rcq_size: 0,
            shared_channel: false,
            sq_size: 10,
            rq_size: 10,
            send_sge: 1,
            recv_sge: 1,
            inline_bytes: ATOMIC_BYTES,
            srq: None,
            dispatcher: None,
            flush_mode: OpMode::Automatic,
            atomic_write_mode: OpMode::Automatic,
            parameters: Parameters::default(),
        }
    }
}

impl ConnCfg {
    /// The defaults of librpma: 1 s, 10 entries for each queue, no receive CQ, and no shared receive queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long resolving the peer's address and the route to it may take, together: `rpma_conn_cfg_set_timeout(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let cfg = ConnCfg::new().timeout(Duration::from_secs(20));
    /// let resolving = ConnReq::start(&peer, addr, &cfg)?;
    /// let left = resolving.deadline().duration_since(std::time::Instant::now());
    /// assert!(left > Duration::from_secs(1) && left <= cfg.get_timeout());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_cfg_set_timeout")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Completions that the completion queue holds: `rpma_conn_cfg_set_cq_size(3)`.
    ///
    /// The queue is made larger where this is less than what can complete into it at once (send queue plus receive queue, unless receives
    /// complete elsewhere): a completion queue that overflows takes its connection with it.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let connect = |cfg: &ConnCfg| rpma::testing::pair_with(&peer, cfg, &ConnCfg::new());
    /// let (conn, _) = connect(&ConnCfg::new().cq_size(100))?;
    /// assert!(conn.cq().capacity() >= 100);
    /// // Less than the queues need is made enough.
    /// let (conn, _) = connect(&ConnCfg::new().cq_size(1).sq_size(16).rq_size(16))?;
    /// assert!(conn.cq().capacity() >= 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_cfg_set_cq_size")]
    #[must_use]
    pub fn cq_size(mut self, cq_size: u32) -> Self {
        self.cq_size = cq_size;
        self
    }

    /// Completions that the connection's receive CQ holds: `rpma_conn_cfg_set_rcq_size(3)`. With 0, the default, it has none, and receives
    /// complete into the main CQ; else all of them complete into the receive CQ ([`Conn::rcq`](crate::Conn::rcq)) and none into the main
    /// one.
    ///
    /// It is made larger where that is needed, as the main one is. A shared receive queue that has a CQ of its own takes the receives of
    /// all its connections there, and this is ignored.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().rcq_size(10);
    /// # let (client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
    /// conn.recv(LocalSlice::null(), 7)?;
    /// # client.send(LocalSlice::null(), Signal::OnError, 1)?; // the peer's message
    /// let rcq = conn.rcq().ok_or("has one")?;
    /// assert_eq!(rcq.wait(Duration::from_secs(10))?.context(), 7);
    /// assert_eq!(conn.cq().poll()?, None); // which has no receives now
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_cfg_set_rcq_size")]
    #[must_use]
    pub fn rcq_size(mut self, rcq_size: u32) -> Self {
        self.rcq_size = rcq_size;
        self
    }

    /// Whether the main CQ and the receive CQ are on one completion channel: `rpma_conn_cfg_set_compl_channel(3)`. Both are then waited for
    /// at once, by [`Conn::wait`](crate::Conn::wait), and neither alone.
    ///
    /// ```
    /// use rpma::CqRole;
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// conn.recv(LocalSlice::null(), 1)?;
    /// # server.send(LocalSlice::null(), Signal::OnError, 0)?; // the peer's message
    /// match conn.wait(Duration::from_secs(10))? {
    ///     (CqRole::Receive, got) => assert_eq!((got.operation(), got.context()), (Operation::Recv, 1)),
    ///     (CqRole::Main, sent) => panic!("nothing was sent, and {sent:?} is done"),
    /// }
    /// assert!(conn.cq().wait(Wait::Now).is_err()); // neither is waited for alone
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Not together with a shared receive queue that has a CQ of its own, and so a channel of its own: making the connection is then
    /// [`BuildError::SrqHasChannel`](crate::BuildError::SrqHasChannel).
    #[doc(alias = "rpma_conn_cfg_set_compl_channel")]
    #[must_use]
    pub fn shared_channel(mut self, shared: bool) -> Self {
        self.shared_channel = shared;
        self
    }

    /// The shared receive queue that the connection takes its receives from: `rpma_conn_cfg_set_srq(3)`. It is of the connection's peer.
    /// The connection then has no receive queue of its own ([`rq_size`](Self::rq_size) is ignored), and its
    /// [`recv`](crate::Conn::recv) is an error.
    ///
    /// These parameters hold the queue, and so do the connections made with them.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let srq = peer.new_srq(&SrqCfg::new())?;
    /// let cfg = ConnCfg::new().srq(&srq);
    /// assert_eq!(cfg.get_srq(), Some(&srq));
    /// # let (_client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
    /// assert!(matches!(conn.recv(LocalSlice::null(), 1), Err(PostError::SharedReceives)));
    /// srq.recv(LocalSlice::null(), 1)?; // for this connection, and all others on the queue
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_cfg_set_srq")]
    #[must_use]
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Requests that can be posted to the send queue and not yet polled: `rpma_conn_cfg_set_sq_size(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().sq_size(2);
    /// # let (conn, _server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let (_memory, there) = rpma::testing::target(&_server, Usage::WRITE_DST)?;
    /// conn.write(there.slice(0..4)?, Inline(b"here"), Signal::Always, 1)?;
    /// conn.write(there.slice(4..8)?, Inline(b"also"), Signal::Always, 2)?;
    /// let third = conn.write(there.slice(8..12)?, Inline(b"full"), Signal::Always, 3);
    /// assert!(matches!(third, Err(PostError::QueueFull { limit: 2, .. })));
    ///
    /// conn.cq().wait(Duration::from_secs(10))?.result()?; // makes room
    /// conn.write(there.slice(8..12)?, Inline(b"room"), Signal::Always, 3)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_cfg_set_sq_size")]
    #[must_use]
    pub fn sq_size(mut self, sq_size: u32) -> Self {
        self.sq_size = sq_size;
        self
    }

    /// Receives that can be posted and not yet polled: `rpma_conn_cfg_set_rq_size(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().rq_size(1);
    /// # let (conn, _server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let inbox = peer.register(AnonPages::new(4096)?, Usage::RECV)?;
    /// conn.recv(inbox.slice(..512)?, 1)?;
    /// assert!(matches!(conn.recv(inbox.slice(512..)?, 2), Err(PostError::QueueFull { limit: 1, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_conn_cfg_set_rq_size")]
    #[must_use]
    pub fn rq_size(mut self, rq_size: u32) -> Self {
        self.rq_size = rq_size;
        self
    }

    /// Slices that one write, read or message can be made of; 1 by default, and at least. What was granted
    /// ([`Conn::granted`](crate::Conn::granted)) may be more, and is what holds.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().send_sge(2);
    /// assert_eq!(cfg.get_send_sge(), 2);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// # let here = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    /// here.write_at(0, b"head")?;
    /// here.write_at(1024, b"body")?;
    /// conn.write(there.slice(0..8)?, &[here.slice(0..4)?, here.slice(1024..1028)?], Signal::Always, 1)?;
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// # let mut arrived = [0; 8];
    /// # memory.read_at(0, &mut arrived)?;
    /// assert_eq!(&arrived, b"headbody"); // at the peer
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn send_sge(mut self, send_sge: u32) -> Self {
        self.send_sge = send_sge.max(1);
        self
    }

    /// Slices that one receive can be spread over; 1 by default, and at least. A shared receive queue has its own number
    /// ([`SrqCfg::recv_sge`](crate::SrqCfg::recv_sge)).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().recv_sge(2);
    /// assert_eq!(cfg.get_recv_sge(), 2);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let inbox = peer.register(AnonPages::new(4096)?, Usage::RECV)?;
    /// conn.recv(&[inbox.slice(..4)?, inbox.slice(1024..)?], 1)?;
    /// # server.send(Inline(b"headbody"), Signal::OnError, 1)?; // the peer's message
    /// conn.cq().wait(Duration::from_secs(10))?.result()?;
    /// let mut body = [0; 4];
    /// inbox.read_at(1024, &mut body)?;
    /// assert_eq!(&body, b"body");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn recv_sge(mut self, recv_sge: u32) -> Self {
        self.recv_sge = recv_sge.max(1);
        self
    }

    /// Bytes that a write or a message can carry [inline](crate::Inline); 8 by default, and at least: an emulated atomic write is one.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().inline_bytes(32);
    /// assert_eq!(cfg.get_inline_bytes(), 32);
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::WRITE_DST)?;
    /// let most = conn.granted().inline_bytes; // 32 or more
    /// conn.write(there.slice(0..32)?, Inline(&[7; 32]), Signal::Always, 1)?;
    /// let more = vec![7; most as usize + 1];
    /// let refused = conn.send(Inline(&more), Signal::Always, 2);
    /// assert!(matches!(refused, Err(PostError::InlineTooLong { granted_bytes, .. }) if granted_bytes == most));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn inline_bytes(mut self, inline_bytes: u32) -> Self {
        self.inline_bytes = inline_bytes.max(ATOMIC_BYTES);
        self
    }

    /// How flushes are made.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().flush_mode(OpMode::Emulated);
    /// assert_eq!(cfg.get_flush_mode(), OpMode::Emulated);
    /// # let (conn, _) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// assert_eq!(conn.flush_path(), OpPath::Emulated); // by a read, as the C library always does
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn flush_mode(mut self, mode: OpMode) -> Self {
        self.flush_mode = mode;
        self
    }

    /// How atomic writes are made.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().atomic_write_mode(OpMode::Emulated);
    /// assert_eq!(cfg.get_atomic_write_mode(), OpMode::Emulated);
    /// # let (conn, _) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// assert_eq!(conn.atomic_write_path(), OpPath::Emulated);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn atomic_write_mode(mut self, mode: OpMode) -> Self {
        self.atomic_write_mode = mode;
        self
    }

    /// `rpma_conn_cfg_get_timeout(3)`.
    #[doc(alias = "rpma_conn_cfg_get_timeout")]
    #[must_use]
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }

    /// What was set: `rpma_conn_cfg_get_cq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_cq_size")]
    #[must_use]
    pub fn get_cq_size(&self) -> u32 {
        self.cq_size
    }

    /// What was set: `rpma_conn_cfg_get_rcq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_rcq_size")]
    #[must_use]
    pub fn get_rcq_size(&self) -> u32 {
        self.rcq_size
    }

    /// What was set: `rpma_conn_cfg_get_compl_channel(3)`.
    #[doc(alias = "rpma_conn_cfg_get_compl_channel")]
    #[must_use]
    pub fn get_shared_channel(&self) -> bool {
        self.shared_channel
    }

    /// What was set: `rpma_conn_cfg_get_srq(3)`.
    #[doc(alias = "rpma_conn_cfg_get_srq")]
    #[must_use]
    pub fn get_srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// What was set: `rpma_conn_cfg_get_sq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_sq_size")]
    #[must_use]
    pub fn get_sq_size(&self) -> u32 {
        self.sq_size
    }

    /// What was set: `rpma_conn_cfg_get_rq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_rq_size")]
    #[must_use]
    pub fn get_rq_size(&self) -> u32 {
        self.rq_size
    }

    /// Slices that one write, read or message can be made of.
    #[must_use]
    pub fn get_send_sge(&self) -> u32 {
        self.send_sge
    }

    /// Slices that one receive can be spread over.
    #[must_use]
    pub fn get_recv_sge(&self) -> u32 {
        self.recv_sge
    }

    /// Bytes that a write or a message can carry inline.
    #[must_use]
    pub fn get_inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// How flushes are made.
    #[must_use]
    pub fn get_flush_mode(&self) -> OpMode {
        self.flush_mode
    }

    /// How atomic writes are made.
    #[must_use]
    pub fn get_atomic_write_mode(&self) -> OpMode {
        self.atomic_write_mode
    }

    /// Room for everything that can complete at once (our marker behind the last request included), or what was asked for if that is
    /// more; verbs count in a signed int.
    pub(crate) fn cqe(&self) -> i32 {
        let receives = match &self.srq {
            Some(srq) if srq.receive_queue().is_some() => 0,
            _ if self.rcq_size > 0 => 0,
            _ => self.receives(),
        };
        let needed = self.sq_size.saturating_add(receives).saturating_add(1).max(self.cq_size);
        i32::try_from(needed).unwrap_or(i32::MAX)
    }

    /// As [`cqe`](Self::cqe), for the connection's receive CQ; `None` if it has none.
    pub(crate) fn rcqe(&self) -> Option<i32> {
        let elsewhere = self.srq.as_ref().is_some_and(|srq| srq.receive_queue().is_some());
        let needed = self.receives().max(self.rcq_size);
        (self.rcq_size > 0 && !elsewhere).then(|| i32::try_from(needed).unwrap_or(i32::MAX))
    }

    /// Receives that can complete at this connection at once: with a shared queue, all that are in it.
    fn receives(&self) -> u32 {
        self.srq.as_ref().map_or(self.rq_size, Srq::size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_librpma() {
        let cfg = ConnCfg::new();
        assert_eq!(cfg.get_timeout(), Duration::from_millis(1000));
        assert_eq!((cfg.get_cq_size(), cfg.get_sq_size(), cfg.get_rq_size()), (10, 10, 10));
        assert_eq!((cfg.get_rcq_size(), cfg.get_shared_channel(), cfg.get_srq()), (0, false, None));
    }

    #[test]
    fn receive_cq_has_room_for_every_receive_and_the_main_one_for_none() {
        let cfg = ConnCfg::new().cq_size(1).sq_size(4).rq_size(30);
        assert_eq!((cfg.cqe(), cfg.rcqe()), (35, None));
        let with_rcq = cfg.clone().rcq_size(1);
        assert_eq!((with_rcq.cqe(), with_rcq.rcqe()), (5, Some(30)));
        assert_eq!(cfg.clone().rcq_size(40).rcqe(), Some(40));
        assert_eq!(cfg.rcq_size(u32::MAX).rcqe(), Some(i32::MAX));
    }

    #[test]
    fn completion_queue_has_room_for_all_that_can_complete_at_once() {
        assert_eq!(ConnCfg::new().cqe(), 21);
        assert_eq!(ConnCfg::new().cq_size(1).sq_size(4).rq_size(0).cqe(), 5);
        assert_eq!(ConnCfg::new().cq_size(100).cqe(), 100);
    }

    #[test]
    fn sizes_over_int_max_are_passed_as_int_max() {
        assert_eq!(ConnCfg::new().cq_size(u32::MAX).cqe(), i32::MAX);
        assert_eq!(ConnCfg::new().sq_size(u32::MAX).rq_size(u32::MAX).cqe(), i32::MAX);
        assert_eq!(ConnCfg::new().cq_size(u32::MAX).get_cq_size(), u32::MAX);
    }
}
