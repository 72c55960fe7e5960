//! Shared receive queues.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rpma_mr::sys::bindings::ibv_wc;
use rpma_mr::sys::owned::{Cq, Srq as RawSrq, SrqCap, Taken};
use rpma_mr::{ErrorCode, Usage};
use rustix::io::Errno;

use crate::completion::{Completion, Operation};
use crate::cq::{CompletionQueue, CqError, recv_number, recv_wr_id};
use crate::ledger::{Full, Pool};
use crate::link::lock;
use crate::peer::Peer;
use crate::post_error::{PostError, SHARED_RECEIVE};
use crate::queue::{Queue, Retired};
use crate::source::{Limits, Ranges, local_side};

/// Parameters of a shared receive queue: `rpma_srq_cfg_new(3)`. It is read when the queue is made, and may be dropped or used again after
/// that.
///
/// Sizes are minima, as those of [`ConnCfg`](crate::ConnCfg) are.
///
/// ```
/// use rpma::prelude::*;
///
/// let cfg = SrqCfg::new().rq_size(100);
/// assert_eq!((cfg.get_rq_size(), cfg.get_rcq_size(), cfg.get_recv_sge()), (100, 20, 1));
/// # let peer = rpma::testing::peer()?;
/// let srq = peer.new_srq(&cfg)?;
/// assert!(srq.granted().wr >= 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_srq_cfg_delete")]
#[doc(alias = "rpma_srq_cfg_new")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrqCfg {
    rq_size: u32,
    rcq_size: u32,
    recv_sge: u32,
}

impl Default for SrqCfg {
    fn default() -> Self {
        Self { rq_size: 20, rcq_size: 20, recv_sge: 1 }
    }
}

impl SrqCfg {
    /// The defaults of librpma: 20 receives, and a receive CQ of 20 entries. (Its manual says 100; its code says 20.)
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Receives that can be posted and not yet polled: `rpma_srq_cfg_set_rq_size(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let srq = peer.new_srq(&SrqCfg::new().rq_size(1))?;
    /// srq.recv(LocalSlice::null(), 1)?;
    /// assert!(matches!(srq.recv(LocalSlice::null(), 2), Err(PostError::QueueFull { limit: 1, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_srq_cfg_set_rq_size")]
    #[must_use]
    pub fn rq_size(mut self, rq_size: u32) -> Self {
        self.rq_size = rq_size;
        self
    }

    /// Completions that the queue's own receive CQ holds: `rpma_srq_cfg_set_rcq_size(3)`. With 0 it has none, and receives complete into
    /// the receive CQ of the connection that took them, or else its main CQ.
    ///
    /// The CQ is made larger where this is less than the receives that can complete at once.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let srq = peer.new_srq(&SrqCfg::new().rcq_size(0))?;
    /// assert!(srq.rcq().is_none());
    /// # let (client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &ConnCfg::new().srq(&srq))?;
    /// srq.recv(LocalSlice::null(), 1)?;
    /// # client.send(LocalSlice::null(), Signal::OnError, 0)?; // a client's message
    /// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 1); // where it arrived
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rpma_srq_cfg_set_rcq_size")]
    #[must_use]
    pub fn rcq_size(mut self, rcq_size: u32) -> Self {
        self.rcq_size = rcq_size;
        self
    }

    /// Ranges that a receive can be spread over; 1 by default, and at least.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let srq = peer.new_srq(&SrqCfg::new().recv_sge(2))?;
    /// # let inbox = peer.register(AnonPages::new(4096)?, Usage::RECV)?;
    /// srq.recv(&[inbox.slice(..16)?, inbox.slice(1024..)?], 1)?; // a head, and a body elsewhere
    /// assert!(srq.granted().sge >= 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn recv_sge(mut self, recv_sge: u32) -> Self {
        self.recv_sge = recv_sge.max(1);
        self
    }

    /// Ranges that a receive can be spread over.
    #[must_use]
    pub fn get_recv_sge(&self) -> u32 {
        self.recv_sge
    }

    /// What was set: `rpma_srq_cfg_get_rq_size(3)`.
    #[doc(alias = "rpma_srq_cfg_get_rq_size")]
    #[must_use]
    pub fn get_rq_size(&self) -> u32 {
        self.rq_size
    }

    /// What was set: `rpma_srq_cfg_get_rcq_size(3)`.
    #[doc(alias = "rpma_srq_cfg_get_rcq_size")]
    #[must_use]
    pub fn get_rcq_size(&self) -> u32 {
        self.rcq_size
    }

    /// Room for everything that can complete at once, or what was asked for if that is more; verbs count in a signed int.
    fn cqe(&self) -> Option<i32> {
        (self.rcq_size > 0).then(|| i32::try_from(self.rcq_size.max(self.rq_size)).unwrap_or(i32::MAX))
    }
}

/// Why a shared receive queue could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum SrqError {
    /// The device or its rdma-core has no shared receive queues.
    #[error("the device {device} has no shared receive queues: post receives to each connection instead")]
    NotSupported { device: String, source: io::Error },
    /// No shared receive queue of that size.
    #[error("the device gives no shared receive queue of {rq_size} entries of {recv_sge} ranges: ask for a smaller one")]
    Queue { rq_size: u32, recv_sge: u32, source: io::Error },
    /// No completion queue of that size.
    #[error(
        "the device gives no completion queue of {cqe} entries, for {rq_size} receives and an rcq_size of {rcq_size}: ask for a smaller queue"
    )]
    Cq { cqe: i32, rq_size: u32, rcq_size: u32, source: io::Error },
    /// The device cannot be asked for its limits.
    #[error("the device cannot be asked for its largest message")]
    Port(#[source] io::Error),
    /// No descriptors for waiting.
    #[error("no descriptors to wait with: look at `ulimit -n`")]
    Descriptors(#[source] io::Error),
}

impl SrqError {
    /// The code that librpma gives for this: `rpma_srq_new(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotSupported { .. } | Self::Queue { .. } | Self::Cq { .. } | Self::Port(_) | Self::Descriptors(_) => {
                ErrorCode::Provider
            }
        }
    }
}

impl Peer {
    /// Makes a shared receive queue, for connections of this peer: `rpma_srq_new(3)`.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let srq = peer.new_srq(&SrqCfg::new().rq_size(64))?;
    /// assert!(srq.granted().wr >= 64 && srq.rcq().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SrqError`].
    #[doc(alias = "rpma_srq_new")]
    pub fn new_srq(&self, cfg: &SrqCfg) -> Result<Srq, SrqError> {
        Srq::new(self, cfg)
    }
}

/// A queue of receives that several connections take from: `rpma_srq_new(3)`.
///
/// Connections take from it that were made with [`ConnCfg::srq`](crate::ConnCfg::srq). A message that arrives at one of them takes the next
/// receive, and its completion, which tells by [`Completion::qp_num`] at which connection, comes through the queue's own CQ
/// ([`rcq`](Self::rcq)), or where it has none, through the connection's. A server with many clients so posts as many receives as messages
/// it expects at once, and not as many for each client.
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let srq = peer.new_srq(&SrqCfg::new())?;
/// let inboxes = peer.register(AnonPages::new(20 * 512)?, Usage::RECV)?;
/// for n in 0..20 {
///     srq.recv(inboxes.slice(n * 512..(n + 1) * 512)?, n as u64)?;
/// }
/// let cfg = ConnCfg::new().srq(&srq);
/// # let (client, first) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
/// # let (_other, second) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
/// # client.send(Inline(b"greeting"), Signal::OnError, 0)?;
/// // Two clients are connected with it, and the first one sends a greeting.
/// let completion = srq.rcq().ok_or("has one by default")?.wait(Duration::from_secs(10))?;
/// assert_eq!(completion.qp_num(), first.qp_num());
/// let inbox = completion.context() as usize; // holds the message
/// let mut greeting = [0; 8];
/// inboxes.read_at(inbox * 512, &mut greeting)?;
/// assert_eq!(&greeting, b"greeting");
/// srq.recv(inboxes.slice(inbox * 512..(inbox + 1) * 512)?, inbox as u64)?; // it is free again
/// # drop(second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It only receives; sending takes a connection. This does not compile:
///
/// ```compile_fail,E0599
/// # fn f(srq: &rpma_cm::Srq, slice: rpma_mr::LocalSlice<'_>) {
/// srq.send(slice, rpma_cm::Signal::Always, 1);
/// # }
/// ```
///
/// # When a connection ends
///
/// It has taken no receive but those of messages that were arriving. What stays in the queue is for the other connections, and is never
/// flushed. So waiting for a queue's completions learns nothing of a connection's end: watch the connections' events too.
///
/// Completions in the queue's own CQ outlive their connection. Those in a connection's CQ are lost with it: before its last handle is
/// dropped, poll until [`CqError::Drained`]. A receive whose message was arriving when the connection was dropped may be lost
/// on some devices, and its slot with it, for as long as the queue lives (verbs: `IBV_EVENT_QP_LAST_WQE_REACHED`).
///
/// Cloning is cheap and gives another handle on the same queue. The queue lives until its last handle, its completion queue, and the last
/// connection on it are dropped. Regions may be dropped at any time: a message for one that is gone ends the connection at which it
/// arrives.
#[doc(alias = "rpma_srq_delete")]
#[doc(alias = "rpma_srq_new")]
#[derive(Clone)]
pub struct Srq(Arc<Inner>);

/// The order of fields is the order of dropping: the queue before what it uses.
struct Inner {
    raw: Arc<RawSrq>,
    /// Its own CQ, if it has one.
    receive: Option<Arc<Queue>>,
    posted: Mutex<Pool>,
    size: u32,
    max_message_bytes: u32,
    closed: AtomicBool,
    peer: Peer,
}

impl Srq {
    fn new(peer: &Peer, cfg: &SrqCfg) -> Result<Self, SrqError> {
        let device = peer.device();
        let max_message_bytes = device.max_message_bytes(FIRST_PORT).map_err(SrqError::Port)?;
        let (rq_size, rcq_size) = (cfg.rq_size, cfg.rcq_size);
        let receive = match cfg.cqe() {
            None => None,
            Some(cqe) => {
                let cq = Cq::create(device.context(), cqe, 0);
                let cq = cq.map_err(|source| SrqError::Cq { cqe, rq_size, rcq_size, source })?;
                Some(Queue::new(cq).map_err(SrqError::Descriptors)?)
            }
        };
        let raw = RawSrq::create(peer.protection_domain().raw(), SrqCap { wr: rq_size, sge: cfg.recv_sge });
        let raw = raw.map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::OPNOTSUPP | Errno::NOSYS) => SrqError::NotSupported { device: device.name().to_owned(), source },
            _ => SrqError::Queue { rq_size, recv_sge: cfg.recv_sge, source },
        })?;
        Ok(Self(Arc::new(Inner {
            raw,
            receive,
            posted: Mutex::new(Pool::new(rq_size)),
            size: rq_size,
            max_message_bytes,
            closed: AtomicBool::new(false),
            peer: peer.clone(),
        })))
    }

    /// Posts a receive, for whichever connection needs it first: `rpma_srq_recv(3)`. [`LocalSlice::null`](rpma_mr::LocalSlice::null) takes a message of 0 bytes, or a
    /// write with immediate data.
    ///
    /// Needs RECV. The region is one of the queue's peer, and must not be deregistered before the receive has completed, or the
    /// connection that takes it fails.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let srq = peer.new_srq(&SrqCfg::new())?;
    /// # let (client, _conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &ConnCfg::new().srq(&srq))?;
    /// let inbox = peer.register(AnonPages::new(512)?, Usage::RECV)?;
    /// srq.recv(inbox.all(), 7)?;
    /// # client.send(Inline(b"five!"), Signal::OnError, 0)?; // a client's message
    /// let completion = srq.rcq().ok_or("has one by default")?.wait(Duration::from_secs(10))?;
    /// let received = completion.received()?.ok_or("a receive")?;
    /// assert_eq!((completion.context(), received.len_bytes), (7, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[doc(alias = "rpma_srq_recv")]
    pub fn recv<'a>(&self, dst: impl Into<Ranges<'a>>, context: u64) -> Result<(), PostError> {
        let operation = Operation::Recv;
        let Inner { raw, posted, max_message_bytes, peer, .. } = &*self.0;
        let limits = Limits { peer, max_message_bytes: *max_message_bytes, sges: raw.granted().sge };
        let sges = local_side(operation, dst.into(), Usage::RECV, limits)?;
        raw.check_process().map_err(|source| PostError::Provider { operation, source })?;
        // Before the post: its completion may be there when that returns.
        let number = lock(posted).enter(context).map_err(|Full(limit)| PostError::QueueFull { queue: SHARED_RECEIVE, limit })?;
        raw.post_recv(sges.as_slice(), recv_wr_id(number)).map_err(|e| match e.taken {
            Taken::No => {
                lock(posted).retire(number);
                PostError::Provider { operation, source: e.source }
            }
            // Its completion may come: the entry stays.
            Taken::Unknown => PostError::PerhapsTaken { operation, source: e.source },
        })
    }

    /// Its own completion queue: `rpma_srq_get_rcq(3)`. `None` if it was made with [`SrqCfg::rcq_size`] 0: receives then complete into the
    /// CQs of the connections.
    #[doc(alias = "rpma_srq_get_rcq")]
    #[must_use]
    pub fn rcq(&self) -> Option<CompletionQueue> {
        self.receive_queue().map(|queue| CompletionQueue::of_srq(queue, self))
    }

    /// The size that the device granted, which is what was asked for or more.
    #[must_use]
    pub fn granted(&self) -> SrqCap {
        self.0.raw.granted()
    }

    /// The peer that it was made from, which its connections must be of too.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Wakes every thread that waits for its completions, now and from now on. Receives can still be posted and taken: it goes away when it
    /// is dropped.
    ///
    /// ```
    /// use rpma::{CqError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let srq = peer.new_srq(&SrqCfg::new())?;
    /// let waiting = std::thread::spawn({
    ///     let rcq = srq.rcq().ok_or("has one")?;
    ///     move || rcq.wait(Wait::Forever)
    /// });
    /// srq.close();
    /// assert!(matches!(waiting.join(), Ok(Err(CqError::Closed))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        if let Some(queue) = &self.0.receive {
            queue.waiters.wake();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn raw(&self) -> &Arc<RawSrq> {
        &self.0.raw
    }

    pub(crate) fn receive_queue(&self) -> Option<&Arc<Queue>> {
        self.0.receive.as_ref()
    }

    /// Receives that can be outstanding: as many can complete into one queue at once.
    pub(crate) fn size(&self) -> u32 {
        self.0.size
    }

    pub(crate) fn retire(&self, wc: &ibv_wc, cq: &Cq) -> Retired {
        // Bound on its own: the lock is free again before the completion is looked at.
        let context = recv_number(wc.wr_id).and_then(|number| lock(&self.0.posted).retire(number));
        match context {
            Some(context) => Retired::Completion(Completion::of(Operation::Recv, context, wc, cq)),
            None => Retired::Stray,
        }
    }

    /// Before a connection that takes from here goes: takes the completions out of the queue's own CQ, since a device may remove those of
    /// a queue pair that is destroyed.
    pub(crate) fn set_completions_aside(&self) -> Result<(), CqError> {
        match self.receive_queue() {
            Some(queue) => queue.set_aside(|wc| self.retire(wc, &queue.cq)),
            None => Ok(()),
        }
    }
}

/// Devices tell one largest message for all of their ports.
const FIRST_PORT: u8 = 1;

impl PartialEq for Srq {
    /// Whether both are handles on the same queue.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Srq {}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("size", &self.size())
            .field("has_rcq", &self.receive_queue().is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_librpma() {
        assert_eq!((SrqCfg::new().get_rq_size(), SrqCfg::new().get_rcq_size()), (20, 20));
    }

    #[test]
    fn completion_queue_has_room_for_every_receive_or_is_not_made() {
        assert_eq!(SrqCfg::new().cqe(), Some(20));
        assert_eq!(SrqCfg::new().rcq_size(1).cqe(), Some(20));
        assert_eq!(SrqCfg::new().rcq_size(100).cqe(), Some(100));
        assert_eq!(SrqCfg::new().rcq_size(0).cqe(), None);
        assert_eq!(SrqCfg::new().rq_size(u32::MAX).cqe(), Some(i32::MAX));
    }
}
