//! What a request, a pending connection, a connection and its completion queue share: one queue pair with its identifier, queues,
//! events and ledgers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rpma_mr::PeerCfg;
use rpma_mr::sys::bindings::ibv_wc;
use rpma_mr::sys::owned::{CmEvent, CmEventKind, CmId, EventChannel, IdOption, Qp};

use crate::build::{self, BuildError};
use crate::conn_cfg::{ConnCfg, OpMode};
use crate::cq::recv_number;
use crate::dispatcher::Member;
use crate::event::{ConnEvent, EventError, Queued, ends_the_connection};
use crate::ledger::Ledger;
use crate::parameters::Parameters;
use crate::peer::Peer;
use crate::post::Sent;
use crate::queue::{Queue, Retired};
use crate::srq::Srq;
use crate::wait::{Flag, Wait, any_of, until_readable};

/// Which way an operation goes on a queue pair, and why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeChoice {
    mode: OpMode,
    available: bool,
}

impl NativeChoice {
    /// `peer_has`: what the second byte of the peer's configuration says, if there was one.
    pub(crate) fn is_native(self, peer_has: Option<bool>) -> bool {
        match self.mode {
            OpMode::Native => true,
            OpMode::Emulated => false,
            // Without word from the peer, as librpma does: by our own end.
            OpMode::Automatic => self.available && peer_has.unwrap_or(true),
        }
    }
}

/// What the peer said of its platform, if it was applied. Without a lock: who asks in a forked child is not to wait for a thread that only
/// the parent has.
#[derive(Debug, Default)]
pub(crate) struct RemoteCfg(
    /// 0 for nothing; else the length of the encoded configuration above its two bytes.
    AtomicU32,
);

impl RemoteCfg {
    pub(crate) fn set(&self, cfg: PeerCfg) {
        let encoded = cfg.to_bytes();
        let mut number = [0; 4];
        number[..encoded.len()].copy_from_slice(&encoded);
        number[2] = if encoded.len() == 1 { 1 } else { 2 };
        self.0.store(u32::from_le_bytes(number), Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> Option<PeerCfg> {
        let [first, second, len, _] = self.0.load(Ordering::SeqCst).to_le_bytes();
        PeerCfg::from_bytes(&[first, second][..len.into()]).ok()
    }
}

/// Where the receives of a connection are posted.
#[derive(Debug)]
pub(crate) enum Receives {
    /// To the connection.
    Own(Mutex<Ledger<()>>),
    /// To a queue that other connections take from too.
    Shared(Srq),
}

/// The order of fields is the order of dropping: the queue pair before what it uses.
#[derive(Debug)]
pub(crate) struct Link {
    /// Its place at the dispatcher, if it has one. Given up before the queues go.
    pub(crate) member: Option<Member>,
    pub(crate) qp: Qp,
    /// Dropped behind the queue pair, which may complete something until then.
    shared_leftovers: Option<SharedLeftovers>,
    pub(crate) main: Arc<Queue>,
    /// The connection's receive CQ. Without one its receives complete into the main one, or into that of the shared receive queue.
    pub(crate) receive: Option<Arc<Queue>>,
    /// Both are on one completion channel.
    pub(crate) shares_channel: bool,
    /// Which of the two is looked into first.
    turn: AtomicBool,
    pub(crate) sent: Mutex<Ledger<Sent>>,
    /// Requests that can be posted to the send queue and not yet polled.
    pub(crate) sq_size: u32,
    pub(crate) receives: Receives,
    pub(crate) flush: NativeChoice,
    pub(crate) atomic_write: NativeChoice,
    pub(crate) flush_told: AtomicBool,
    pub(crate) atomic_write_told: AtomicBool,
    pub(crate) remote_cfg: RemoteCfg,
    pub(crate) max_message_bytes: u32,
    pub(crate) parameters: Parameters,
    rnr_timer_is_set: AtomicBool,
    pub(crate) private_data: OnceLock<Vec<u8>>,
    pub(crate) local_addr: Option<SocketAddr>,
    pub(crate) peer_addr: Option<SocketAddr>,
    events: Mutex<VecDeque<Queued>>,
    /// Readable while `events` has one, and for ever once closed.
    queued: Flag,
    /// Readable while there is an event to read, here or in the channel: what users wait for.
    readable: OwnedFd,
    /// Nothing can be transferred any more: the peer or its device is gone, or we disconnected, or it was never connected.
    over: AtomicBool,
    /// An event said so.
    ended_by_event: AtomicBool,
    /// The queue pair is in the error state, so that what is posted completes.
    settled: AtomicBool,
    /// We are disconnecting, or have.
    disconnecting: AtomicBool,
    closed: AtomicBool,
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) peer: Peer,
}

impl Link {
    /// Makes the queues of `id`, which is on a channel of its own.
    pub(crate) fn build(peer: &Peer, id: &Arc<CmId>, cfg: &ConnCfg) -> Result<Arc<Self>, BuildError> {
        let device = peer.device();
        let context = device.context();
        if !id.is_on(context) {
            return Err(BuildError::OtherDevice { peer_device: device.name().to_owned() });
        }
        if let Some(srq) = cfg.get_srq() {
            // One of another protection domain works on some devices and not on others.
            if !Arc::ptr_eq(srq.peer().protection_domain().raw(), peer.protection_domain().raw()) {
                return Err(BuildError::SrqOfOtherPeer);
            }
            if cfg.get_shared_channel() && srq.receive_queue().is_some() {
                return Err(BuildError::SrqHasChannel);
            }
        }
        cfg.parameters.check(context)?;
        if let Some(code) = cfg.get_ack_timeout() {
            // It is read when the queue pair is made ready to send: by connecting or accepting.
            id.set_option(IdOption::AckTimeout(code)).map_err(|source| BuildError::AckTimeout { code, source })?;
        }
        let port_num = id.port_num();
        let max_message_bytes = device.max_message_bytes(port_num).map_err(|source| BuildError::Port { port_num, source })?;
        let (main, receive) = build::cqs(peer, cfg)?;
        let channel = Arc::clone(id.channel());
        let (local_addr, peer_addr) = (id.local_addr(), id.peer_addr());
        let into = cfg.get_srq().and_then(Srq::receive_queue).or(receive.as_ref()).unwrap_or(&main);
        let qp = build::qp(peer, id, &main.cq, &into.cq, cfg)?;
        let shared_leftovers = match cfg.get_srq() {
            Some(srq) if srq.receive_queue().is_none() => Some(SharedLeftovers { queue: Arc::clone(into), srq: srq.clone() }),
            _ => None,
        };
        let queued = Flag::new().map_err(BuildError::Descriptors)?;
        let readable = any_of(&[channel.as_fd(), queued.as_fd()]).map_err(BuildError::Descriptors)?;
        let member = cfg.dispatcher.as_ref().map(|dispatcher| {
            let queues = [Some(&main), receive.as_ref()].into_iter().flatten().map(|queue| queue.cq.address());
            dispatcher.admit(queues, &channel)
        });
        let member = member.transpose().map_err(BuildError::Descriptors)?;
        let link = Arc::new(Self {
            member,
            flush: NativeChoice { mode: cfg.get_flush_mode(), available: qp.has_flush() },
            atomic_write: NativeChoice { mode: cfg.get_atomic_write_mode(), available: qp.has_atomic_write() },
            flush_told: AtomicBool::new(false),
            atomic_write_told: AtomicBool::new(false),
            qp,
            shared_leftovers,
            main,
            receive,
            shares_channel: cfg.get_shared_channel(),
            turn: AtomicBool::new(false),
            sent: Mutex::new(Ledger::new(cfg.get_sq_size())),
            sq_size: cfg.get_sq_size(),
            receives: match cfg.get_srq() {
                Some(srq) => Receives::Shared(srq.clone()),
                None => Receives::Own(Mutex::new(Ledger::new(cfg.get_rq_size()))),
            },
            remote_cfg: RemoteCfg::default(),
            max_message_bytes,
            parameters: cfg.parameters,
            rnr_timer_is_set: AtomicBool::new(false),
            private_data: OnceLock::new(),
            local_addr,
            peer_addr,
            events: Mutex::new(VecDeque::new()),
            queued,
            readable,
            over: AtomicBool::new(false),
            ended_by_event: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            disconnecting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            channel,
            peer: peer.clone(),
        });
        if let Some(member) = &link.member {
            member.present(&link);
        }
        Ok(link)
    }

    /// Reads what the connection manager has for us, acts on it, and keeps it for [`next_event`](Self::next_event).
    pub(crate) fn pump(&self) -> io::Result<()> {
        // Before a lock is taken, which another thread of the parent may have held.
        self.qp.check_process()?;
        let mut ended = false;
        let read = self.read_events(&mut ended);
        // With nothing locked: what waking a task does is its runtime's to know.
        if ended {
            self.wake_waiters();
        }
        read
    }

    fn read_events(&self, ended: &mut bool) -> io::Result<()> {
        let mut events = lock(&self.events);
        while let Some(event) = self.channel.get_event()? {
            *ended |= self.act_on(&event);
            events.push_back(Queued::from_cm(&event));
            self.queued.set();
        }
        Ok(())
    }

    /// Whether it was the end, of which those who wait for completions are still to be told.
    fn act_on(&self, event: &CmEvent) -> bool {
        let number = self.qp.number();
        log::debug!("connection {number}: {:?}, status {}", event.kind, event.status);
        if event.kind == CmEventKind::Established {
            self.set_rnr_timer();
            // The active side learns the server's data and depths here; the passive side's own copy is older and stays.
            if !event.private_data.is_empty()
                && self.private_data.set(event.private_data.clone()).is_ok()
                && event.initiator_depth == 0
            {
                log::warn!("connection {number}: the peer takes no READ, so reads and emulated flushes will fail");
            }
            // We disconnected when there was nothing to end yet, and the connection manager told nobody: the peer would go on alone.
            if self.disconnecting.load(Ordering::SeqCst)
                && let Err(e) = self.id().disconnect()
            {
                log::warn!("connection {number}: established after it was disconnected, and cannot be disconnected again: {e}");
            }
        }
        let ends = ends_the_connection(event.kind);
        if ends {
            self.ended_by_event.store(true, Ordering::SeqCst);
            self.set_over();
        }
        ends
    }

    /// Sets what the connection manager has no parameter for, once the queue pair is ready to send.
    pub(crate) fn set_rnr_timer(&self) {
        let Some(code) = self.parameters.min_rnr_timer else { return };
        if self.rnr_timer_is_set.load(Ordering::SeqCst) {
            return;
        }
        match self.qp.set_min_rnr_timer(code) {
            Ok(()) => self.rnr_timer_is_set.store(true, Ordering::SeqCst),
            Err(e) => log::warn!("connection {}: its min_rnr_timer cannot be set: {e}", self.qp.number()),
        }
    }

    /// Nothing can be transferred any more: what is posted completes with errors, and waiters for completions look again.
    pub(crate) fn end(&self) {
        self.set_over();
        self.wake_waiters();
    }

    fn set_over(&self) {
        self.over.store(true, Ordering::SeqCst);
        if let Err(e) = self.settle() {
            // Whoever waits for completions tries again, and is told.
            log::warn!("connection {}: its queue pair cannot be moved to the error state: {e}", self.qp.number());
        }
    }

    /// Whoever waits for completions looks again.
    fn wake_waiters(&self) {
        for queue in [Some(&self.main), self.receive.as_ref()].into_iter().flatten() {
            queue.waiters.wake();
        }
        if let Some(member) = &self.member {
            member.is_due();
        }
    }

    /// Whether the main queue is looked into first: every other time.
    pub(crate) fn main_is_next(&self) -> bool {
        self.turn.fetch_xor(true, Ordering::Relaxed)
    }

    /// After the end: makes sure that everything posted completes.
    pub(crate) fn settle(&self) -> io::Result<()> {
        if !self.settled.load(Ordering::SeqCst) {
            self.qp.move_to_error()?;
            self.settled.store(true, Ordering::SeqCst);
        }
        self.mark_end();
        Ok(())
    }

    /// For a receive that was posted after the end: soft-RoCE looks at its receive queue only when something arrives or the queue pair's
    /// state is set, so it is set once more.
    pub(crate) fn flush_posted(&self) {
        if let Err(e) = self.qp.move_to_error() {
            log::warn!("connection {}: a receive posted after the end may not complete: {e}", self.qp.number());
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn next_event(&self, wait: Wait) -> Result<ConnEvent, EventError> {
        loop {
            self.pump().map_err(EventError::Provider)?;
            {
                let mut events = lock(&self.events);
                if let Some(event) = events.pop_front() {
                    if events.is_empty() {
                        self.queued.clear();
                        // `close` has set it for ever, perhaps just before it was cleared.
                        if self.is_closed() {
                            self.queued.set();
                        }
                    }
                    return event.into_result();
                }
            }
            if self.is_closed() {
                return Err(EventError::Closed);
            }
            if !until_readable(&[self.readable.as_fd()], wait).map_err(EventError::Provider)? {
                return Err(EventError::NoEvent);
            }
        }
    }

    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // Before the call: a thread that reads ESTABLISHED meanwhile disconnects once more.
        self.disconnecting.store(true, Ordering::SeqCst);
        match self.id().disconnect() {
            Ok(()) => {
                self.end();
                Ok(())
            }
            // The other side, or the connection manager's time-out, was faster: there is nothing left to disconnect.
            Err(e) if self.ended_by_event.load(Ordering::SeqCst) => {
                log::debug!("connection {}: disconnecting after its end: {e}", self.qp.number());
                Ok(())
            }
            Err(e) => {
                self.disconnecting.store(false, Ordering::SeqCst);
                Err(e)
            }
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.queued.set();
        self.wake_waiters();
    }

    pub(crate) fn id(&self) -> &CmId {
        self.qp.id()
    }

    /// What the peer sent: a client's with its request, a server's with ESTABLISHED.
    pub(crate) fn private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for Link {
    /// Of the receives that it has taken from a shared queue, none stays behind unpolled if the device lets us know of it.
    fn drop(&mut self) {
        let Receives::Shared(srq) = &self.receives else { return };
        // In a forked child, a lock may be held for ever by a thread that only the parent has.
        if self.qp.check_process().is_err() {
            return;
        }
        // What is half done completes with an error. Some devices remove the completions of a queue pair that is destroyed, so they are
        // taken before that.
        if let Err(e) = self.qp.move_to_error() {
            log::warn!("connection {}: receives that it has taken may be lost: {e}", self.qp.number());
        }
        match &self.shared_leftovers {
            Some(leftovers) => leftovers.retire(),
            None => {
                if let Err(e) = srq.set_completions_aside() {
                    log::warn!("connection {}: receives that it has taken may be lost: {e}", self.qp.number());
                }
            }
        }
    }
}

/// The completions of a shared queue's receives in a connection's own queue, at its end. Nobody can poll them any more; they are no longer
/// outstanding all the same.
#[derive(Debug)]
struct SharedLeftovers {
    queue: Arc<Queue>,
    srq: Srq,
}

impl SharedLeftovers {
    fn retire(&self) {
        let mut room = [ibv_wc::default(); 16];
        let retire = |wc: &ibv_wc| match recv_number(wc.wr_id) {
            Some(_) => self.srq.retire(wc, &self.queue.cq),
            None => Retired::Silent,
        };
        // An error is the end of it: there is nobody to tell.
        while matches!(self.queue.poll(&mut room, retire, drop), Ok(taken) if taken == room.len()) {}
    }
}

impl Drop for SharedLeftovers {
    fn drop(&mut self) {
        self.retire();
    }
}

/// An atomic write is this long, whether native or an inline write: `RPMA_ATOMIC_WRITE_ALIGNMENT`.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// None of our locks guards data that a panic could leave half-changed: each critical section changes one thing, last.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rpma_mr::NativeOps;

    use super::*;

    #[test]
    fn peer_s_configuration_is_none_until_it_is_set_and_then_the_last() {
        let remote = RemoteCfg::default();
        assert_eq!(remote.get(), None);
        let native = |flush, atomic_write| Some(NativeOps { flush, atomic_write });
        for ops in [None, native(false, false), native(true, false), native(false, true), native(true, true), None] {
            for direct_write in [true, false] {
                let cfg = PeerCfg::new().with_direct_write_to_pmem(direct_write).with_native_ops(ops);
                remote.set(cfg);
                assert_eq!(remote.get(), Some(cfg));
            }
        }
    }

    #[test]
    fn automatic_mode_is_native_where_both_ends_have_it() {
        let automatic = |available| NativeChoice { mode: OpMode::Automatic, available };
        assert!(automatic(true).is_native(None));
        assert!(automatic(true).is_native(Some(true)));
        assert!(!automatic(true).is_native(Some(false)));
        assert!(!automatic(false).is_native(Some(true)));
    }

    #[test]
    fn chosen_mode_does_not_ask_the_peer() {
        assert!(NativeChoice { mode: OpMode::Native, available: true }.is_native(Some(false)));
        assert!(!NativeChoice { mode: OpMode::Emulated, available: true }.is_native(Some(true)));
    }
}
