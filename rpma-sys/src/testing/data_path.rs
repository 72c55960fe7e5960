//! Standing in front of a queue's function pointers.
//!
//! A function pointer carries no state, so the functions handed out here find theirs by the queue's address in a registry. Several of
//! our providers may stand in front of one queue, one behind the other; each then has a level of its own, and functions of that level.
#![expect(unsafe_code, reason = "the data path is C function pointers")]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use super::Call;
use crate::bindings::*;
use crate::provider::{
    CqOps, PollCqFn, PostRecvFn, PostSendFn, PostSrqRecvFn, QpExOps, QpOps, ReqNotifyFn, SrqOps, WrCompleteFn, WrStartFn,
};

/// What stands in front of a queue.
pub(super) trait Watch: Debug + Send + Sync {
    /// Told of every call, before it is made. A refused one is not made.
    fn before(&self, call: Call) -> Option<Refusal>;
}

/// How a call is to fail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) errno: c_int,
    /// Whether a failing post names the request as the bad one.
    pub(super) names_bad_wr: bool,
    /// How many of the first requests of a list of send requests are posted all the same.
    pub(super) takes: usize,
}

/// How many providers of ours can stand in front of one queue.
const LEVELS: usize = 4;

static QPS: Registry<QpFns> = Registry::new();
static QP_EXS: Registry<QpExFns> = Registry::new();
static CQS: Registry<CqOps> = Registry::new();
static SRQS: Registry<SrqOps> = Registry::new();

#[derive(Debug, Clone, Copy)]
struct QpFns {
    post_send: PostSendFn,
    post_recv: PostRecvFn,
    /// The address of the extended form, under which it is registered too.
    qp_ex: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct QpExFns {
    wr_complete: WrCompleteFn,
    wr_abort: WrStartFn,
}

/// Puts `watch` in front of a queue pair, until it is forgotten.
pub(super) fn watch_qp(watch: &Arc<dyn Watch>, qp: *mut ibv_qp, ops: QpOps) -> io::Result<QpOps> {
    let fns = QpFns { post_send: ops.post_send, post_recv: ops.post_recv, qp_ex: ops.ex.map(|ex| ex.qp_ex.addr()) };
    let level = QPS.enter(watch, qp.addr(), fns)?;
    let ex = match ops.ex {
        None => None,
        Some(ex) => {
            let fns = QpExFns { wr_complete: ex.wr_complete, wr_abort: ex.wr_abort };
            let level = QP_EXS.enter(watch, ex.qp_ex.addr(), fns).inspect_err(|_| {
                QPS.leave(watch, qp.addr());
            })?;
            Some(QpExOps { wr_complete: WR_COMPLETE[level], ..ex })
        }
    };
    Ok(QpOps { post_send: POST_SEND[level], post_recv: POST_RECV[level], ex })
}

/// Forgets a queue pair that is about to be destroyed; afterwards another could already have its address.
pub(super) fn forget_qp(watch: &Arc<dyn Watch>, qp: *mut ibv_qp) {
    if let Some(Left { entry: Entry { ops: QpFns { qp_ex: Some(qp_ex), .. }, .. }, .. }) = QPS.leave(watch, qp.addr()) {
        QP_EXS.leave(watch, qp_ex);
    }
}

/// Puts `watch` in front of a completion queue, until it is forgotten.
pub(super) fn watch_cq(watch: &Arc<dyn Watch>, cq: *mut ibv_cq, ops: CqOps) -> io::Result<CqOps> {
    let level = CQS.enter(watch, cq.addr(), ops)?;
    Ok(CqOps { poll_cq: POLL_CQ[level], req_notify_cq: REQ_NOTIFY_CQ[level] })
}

/// Forgets a completion queue while `destroy` tries to destroy it; if that fails, it is remembered again.
pub(super) fn forget_cq(watch: &Arc<dyn Watch>, cq: *mut ibv_cq, destroy: impl FnOnce() -> c_int) -> c_int {
    CQS.leave_while(watch, cq.addr(), destroy)
}

/// Puts `watch` in front of a shared receive queue, until it is forgotten.
pub(super) fn watch_srq(watch: &Arc<dyn Watch>, srq: *mut ibv_srq, ops: SrqOps) -> io::Result<SrqOps> {
    let level = SRQS.enter(watch, srq.addr(), ops)?;
    Ok(SrqOps { post_srq_recv: POST_SRQ_RECV[level] })
}

/// Forgets a shared receive queue while `destroy` tries to destroy it; if that fails, it is remembered again.
pub(super) fn forget_srq(watch: &Arc<dyn Watch>, srq: *mut ibv_srq, destroy: impl FnOnce() -> c_int) -> c_int {
    SRQS.leave_while(watch, srq.addr(), destroy)
}

#[derive(Debug, Clone)]
struct Entry<Ops> {
    watch: Arc<dyn Watch>,
    /// What is behind the watch.
    ops: Ops,
}

struct Left<Ops> {
    place: (usize, usize),
    entry: Entry<Ops>,
}

/// The queues that are watched, by level and address.
struct Registry<Ops>(RwLock<BTreeMap<(usize, usize), Entry<Ops>>>);

impl<Ops: Copy> Registry<Ops> {
    const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    /// Remembers a queue, and says at which level: its own if it is there already, else the lowest one that is free.
    fn enter(&self, watch: &Arc<dyn Watch>, addr: usize, ops: Ops) -> io::Result<usize> {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_ours_or_free =
            |level| entries.get(&(level, addr)).is_none_or(|entry: &Entry<Ops>| Arc::ptr_eq(&entry.watch, watch));
        let own = (0..LEVELS).find(|&level| entries.contains_key(&(level, addr)) && is_ours_or_free(level));
        let level = own.or_else(|| (0..LEVELS).find(|&level| is_ours_or_free(level)));
        let level = level.ok_or_else(|| io::Error::other(format!("more than {LEVELS} test providers in front of one queue")))?;
        entries.insert((level, addr), Entry { watch: Arc::clone(watch), ops });
        Ok(level)
    }

    fn leave(&self, watch: &Arc<dyn Watch>, addr: usize) -> Option<Left<Ops>> {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        (0..LEVELS).map(|level| (level, addr)).find_map(|place| {
            entries.get(&place).filter(|entry| Arc::ptr_eq(&entry.watch, watch))?;
            entries.remove(&place).map(|entry| Left { place, entry })
        })
    }

    /// Forgets a queue while `destroy` tries to destroy it; if that fails, it is remembered again.
    fn leave_while(&self, watch: &Arc<dyn Watch>, addr: usize, destroy: impl FnOnce() -> c_int) -> c_int {
        let left = self.leave(watch, addr);
        let rc = destroy();
        if rc != 0
            && let Some(left) = left
        {
            self.0.write().unwrap_or_else(PoisonError::into_inner).insert(left.place, left.entry);
        }
        rc
    }

    /// The entry of a queue, by copy: nothing is locked while its functions run.
    fn find(&self, level: usize, addr: usize, call: Call) -> Option<Entry<Ops>> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&(level, addr)).cloned();
        if found.is_none() {
            log::error!("{call} on a queue at {addr:#x} that is destroyed");
        }
        found
    }
}

/// What a call on a destroyed queue answers. The queue's own functions can then no longer be asked.
const DESTROYED: c_int = libc::EINVAL;

const POST_SEND: [PostSendFn; LEVELS] = [post_send::<0>, post_send::<1>, post_send::<2>, post_send::<3>];
const POST_RECV: [PostRecvFn; LEVELS] = [post_recv::<0>, post_recv::<1>, post_recv::<2>, post_recv::<3>];
const POST_SRQ_RECV: [PostSrqRecvFn; LEVELS] = [post_srq_recv::<0>, post_srq_recv::<1>, post_srq_recv::<2>, post_srq_recv::<3>];
const WR_COMPLETE: [WrCompleteFn; LEVELS] = [wr_complete::<0>, wr_complete::<1>, wr_complete::<2>, wr_complete::<3>];
const POLL_CQ: [PollCqFn; LEVELS] = [poll_cq::<0>, poll_cq::<1>, poll_cq::<2>, poll_cq::<3>];
const REQ_NOTIFY_CQ: [ReqNotifyFn; LEVELS] = [req_notify_cq::<0>, req_notify_cq::<1>, req_notify_cq::<2>, req_notify_cq::<3>];

/// # Safety
///
/// As `ibv_post_send(3)`.
unsafe extern "C" fn post_send<const LEVEL: usize>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let Some(entry) = QPS.find(LEVEL, qp.addr(), Call::post_send) else { return DESTROYED };
    match entry.watch.before(Call::post_send) {
        Some(refusal) => {
            // SAFETY: the caller's list, for the function that the provider behind us handed out for this live queue pair.
            let rest = unsafe { post_first(entry.ops.post_send, qp, wr, refusal.takes, bad_wr) };
            match rest {
                Err(rc) => return rc,
                Ok(rest) if refusal.names_bad_wr => {
                    // SAFETY: the caller passes a valid place for the result (contract above).
                    unsafe { bad_wr.write(rest) };
                }
                Ok(_) => {}
            }
            refusal.errno
        }
        // SAFETY: the function that the provider behind us handed out for this queue pair, which is live since we remember it;
        // the arguments are the caller's, under the same contract.
        None => unsafe { (entry.ops.post_send)(qp, wr, bad_wr) },
    }
}

/// Posts the first `count` requests of a list, and returns the first one that was not posted.
///
/// # Safety
///
/// As `ibv_post_send(3)`, of which `post` is an implementation for this queue pair.
unsafe fn post_first(
    post: PostSendFn,
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    count: usize,
    bad_wr: *mut *mut ibv_send_wr,
) -> Result<*mut ibv_send_wr, c_int> {
    if count == 0 {
        return Ok(wr);
    }
    let mut last = wr;
    for _ in 1..count {
        // SAFETY: a request of the caller's list.
        let next = unsafe { (*last).next };
        if next.is_null() {
            break;
        }
        last = next;
    }
    // SAFETY: a request of the caller's list.
    let rest = unsafe { (*last).next };
    // SAFETY: as above; nobody else looks at it during the call, and it is put back below.
    unsafe { (*last).next = std::ptr::null_mut() };
    // SAFETY: a list that ends where the caller's was cut, under the same contract.
    let rc = unsafe { post(qp, wr, bad_wr) };
    // SAFETY: as above.
    unsafe { (*last).next = rest };
    if rc == 0 { Ok(rest) } else { Err(rc) }
}

/// # Safety
///
/// As `ibv_post_recv(3)`.
unsafe extern "C" fn post_recv<const LEVEL: usize>(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let Some(entry) = QPS.find(LEVEL, qp.addr(), Call::post_recv) else { return DESTROYED };
    match entry.watch.before(Call::post_recv) {
        Some(refusal) => {
            if refusal.names_bad_wr {
                // SAFETY: the caller passes a valid place for the result (contract above).
                unsafe { bad_wr.write(wr) };
            }
            refusal.errno
        }
        // SAFETY: as in `post_send`.
        None => unsafe { (entry.ops.post_recv)(qp, wr, bad_wr) },
    }
}

/// # Safety
///
/// As `ibv_post_srq_recv(3)`.
unsafe extern "C" fn post_srq_recv<const LEVEL: usize>(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let Some(entry) = SRQS.find(LEVEL, srq.addr(), Call::post_srq_recv) else { return DESTROYED };
    match entry.watch.before(Call::post_srq_recv) {
        Some(refusal) => {
            if refusal.names_bad_wr {
                // SAFETY: the caller passes a valid place for the result (contract above).
                unsafe { bad_wr.write(wr) };
            }
            refusal.errno
        }
        // SAFETY: the function that the provider behind us handed out for this queue, which is live since we remember it; the
        // arguments are the caller's, under the same contract.
        None => unsafe { (entry.ops.post_srq_recv)(srq, wr, bad_wr) },
    }
}

/// # Safety
///
/// As `ibv_wr_complete(3)`.
unsafe extern "C" fn wr_complete<const LEVEL: usize>(qp_ex: *mut ibv_qp_ex) -> c_int {
    let Some(entry) = QP_EXS.find(LEVEL, qp_ex.addr(), Call::wr_complete) else { return DESTROYED };
    match entry.watch.before(Call::wr_complete) {
        Some(refusal) => {
            // SAFETY: a batch is open (contract above); aborting ends it in place of completing it, and releases the lock that
            // `wr_start` took.
            unsafe { (entry.ops.wr_abort)(qp_ex) };
            refusal.errno
        }
        // SAFETY: the function that the provider behind us handed out for this queue pair, under the same contract.
        None => unsafe { (entry.ops.wr_complete)(qp_ex) },
    }
}

/// # Safety
///
/// As `ibv_poll_cq(3)`.
unsafe extern "C" fn poll_cq<const LEVEL: usize>(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(entry) = CQS.find(LEVEL, cq.addr(), Call::poll_cq) else { return -DESTROYED };
    match entry.watch.before(Call::poll_cq) {
        Some(refusal) => -refusal.errno,
        // SAFETY: the function that the provider behind us handed out for this completion queue, which is live since we remember it;
        // the arguments are the caller's, under the same contract.
        None => unsafe { (entry.ops.poll_cq)(cq, num_entries, wc) },
    }
}

/// # Safety
///
/// As `ibv_req_notify_cq(3)`.
unsafe extern "C" fn req_notify_cq<const LEVEL: usize>(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let Some(entry) = CQS.find(LEVEL, cq.addr(), Call::req_notify_cq) else { return DESTROYED };
    match entry.watch.before(Call::req_notify_cq) {
        Some(refusal) => refusal.errno,
        // SAFETY: as in `poll_cq`.
        None => unsafe { (entry.ops.req_notify_cq)(cq, solicited_only) },
    }
}

/// Makes the call at the provider behind `$self`, forgetting the queues that it destroys.
macro_rules! pass_on {
    ($self:ident, rdma_destroy_qp($id:ident)) => {{
        // SAFETY: the identifier is live by the contract of the call; only making and destroying a queue pair changes this field.
        let qp = unsafe { (*$id).qp };
        $crate::testing::data_path::forget_qp(&$self.watch(), qp);
        // SAFETY: the contract that the caller of this method accepted.
        unsafe { $self.inner.rdma_destroy_qp($id) }
    }};
    ($self:ident, ibv_destroy_cq($cq:ident)) => {
        $crate::testing::data_path::forget_cq(&$self.watch(), $cq, || {
            // SAFETY: the contract that the caller of this method accepted.
            unsafe { $self.inner.ibv_destroy_cq($cq) }
        })
    };
    ($self:ident, ibv_destroy_srq($srq:ident)) => {
        $crate::testing::data_path::forget_srq(&$self.watch(), $srq, || {
            // SAFETY: the contract that the caller of this method accepted.
            unsafe { $self.inner.ibv_destroy_srq($srq) }
        })
    };
    ($self:ident, $name:ident($($arg:ident),*)) => {
        // SAFETY: the contract that the caller of this method accepted.
        unsafe { $self.inner.$name($($arg),*) }
    };
}
pub(super) use pass_on;

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::super::fake::Fake;
    use super::super::{CountingProvider, FailingProvider, Plan};
    use super::*;
    use crate::provider::{Provider, ProviderRef};

    /// A completion queue and, on an identifier, a queue pair.
    struct Queues {
        provider: ProviderRef,
        cq: *mut ibv_cq,
        id: *mut rdma_cm_id,
        qp: *mut ibv_qp,
    }

    impl Queues {
        fn make(provider: ProviderRef, fake: &Fake) -> Self {
            // SAFETY: the fake's only device is always live.
            let channel = unsafe { provider.ibv_create_comp_channel(fake.context()) };
            // SAFETY: device and channel are live.
            let cq = unsafe { provider.ibv_create_cq(fake.context(), 4, null_mut(), channel, 0) };
            // SAFETY: the call has no conditions.
            let events = unsafe { provider.rdma_create_event_channel() };
            let mut id = null_mut();
            // SAFETY: the channel is live, and `id` is a place for the result.
            assert_eq!(unsafe { provider.rdma_create_id(events, &raw mut id, null_mut(), RDMA_PS_TCP) }, 0);
            let mut attr = ibv_qp_init_attr_ex { send_cq: cq, recv_cq: cq, ..Default::default() };
            // SAFETY: the identifier and all that the attributes name are live.
            assert_eq!(unsafe { provider.rdma_create_qp_ex(id, &raw mut attr) }, 0);
            // SAFETY: the identifier is live.
            let qp = unsafe { (*id).qp };
            Self { provider, cq, id, qp }
        }

        fn cq_ops(&self) -> CqOps {
            // SAFETY: the queue is live.
            unsafe { self.provider.cq_ops(self.cq) }.unwrap()
        }

        fn qp_ops(&self) -> QpOps {
            // SAFETY: the queue pair is live; the fake makes each in both forms.
            unsafe { self.provider.qp_ops(self.qp, 1) }.unwrap()
        }

        fn poll(&self, ops: CqOps) -> c_int {
            // SAFETY: the fake looks into no argument but the queue, which is live or no longer known to `ops`.
            unsafe { (ops.poll_cq)(self.cq, 0, null_mut()) }
        }

        fn destroy_qp(&self) {
            // SAFETY: live, and destroyed once in each test.
            unsafe { self.provider.rdma_destroy_qp(self.id) };
        }
    }

    fn post(ops: QpOps, qp: *mut ibv_qp) -> c_int {
        let mut bad = null_mut();
        // SAFETY: the fake looks into no argument but the queue pair, which is live or no longer known to `ops`.
        unsafe { (ops.post_send)(qp, null_mut(), &raw mut bad) }
    }

    fn is_registered<Ops>(registry: &Registry<Ops>, addr: usize) -> bool {
        registry.0.read().unwrap().keys().any(|&(_, at)| at == addr)
    }

    #[test]
    fn each_queue_reaches_the_plan_of_its_own_provider() {
        let (fake_a, fake_b) = (Fake::new(), Fake::new());
        let (a, b) = (FailingProvider::new(fake_a.clone()), FailingProvider::new(fake_b.clone()));
        let (queues_a, queues_b) = (Queues::make(a.provider(), &fake_a), Queues::make(b.provider(), &fake_b));
        let (ops_a, ops_b) = (queues_a.cq_ops(), queues_b.cq_ops());
        a.arm(Plan::nth_of(Call::poll_cq, 0, libc::EIO));
        b.arm(Plan::nth_of(Call::poll_cq, 0, libc::ENODEV));
        assert_eq!(queues_b.poll(ops_b), -libc::ENODEV);
        assert_eq!(queues_a.poll(ops_a), -libc::EIO);
        assert_eq!((queues_a.poll(ops_a), queues_b.poll(ops_b)), (0, 0));
        // SAFETY: the queue is live.
        assert_eq!(unsafe { (*queues_a.cq).handle }, 1, "the failed poll did not reach the queue");
    }

    #[test]
    fn destroyed_queue_pair_is_forgotten_in_both_forms() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        let queues = Queues::make(failing.provider(), &fake);
        let ops = queues.qp_ops();
        assert_eq!(post(ops, queues.qp), 0);
        assert!(is_registered(&QPS, queues.qp.addr()) && is_registered(&QP_EXS, queues.qp.addr()));
        // Another test may get the same address again, so the answer below is asked for before the memory is freed.
        forget_qp(&failing.watch(), queues.qp);
        assert!(!is_registered(&QP_EXS, queues.qp.addr()));
        assert_eq!(post(ops, queues.qp), DESTROYED);
        // SAFETY: forgotten, so nothing behind is reached.
        assert_eq!(unsafe { (ops.ex.unwrap().wr_complete)(queues.qp.cast()) }, DESTROYED);
    }

    #[test]
    fn destroying_forgets_the_queues_of_every_provider_in_front() {
        let fake = Fake::new();
        let inner = CountingProvider::new(fake.clone());
        let outer = FailingProvider::new(inner.provider());
        let references = || [Arc::strong_count(&inner.watch()), Arc::strong_count(&outer.watch())].map(|count| count - 1);
        let queues = Queues::make(outer.provider(), &fake);
        let _ = (queues.qp_ops(), queues.cq_ops());
        assert_eq!(references(), [4, 4], "the provider's own, one for the completion queue, two for the forms of the queue pair");
        queues.destroy_qp();
        // SAFETY: live, its queue pair is destroyed, and it is destroyed once.
        assert_eq!(unsafe { queues.provider.ibv_destroy_cq(queues.cq) }, 0);
        assert_eq!(references(), [1, 1]);
    }

    #[test]
    fn completion_queue_whose_destruction_failed_is_still_watched() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        let queues = Queues::make(failing.provider(), &fake);
        let ops = queues.cq_ops();
        // SAFETY: live; its queue pair is too, and the fake then refuses.
        assert_eq!(unsafe { failing.ibv_destroy_cq(queues.cq) }, libc::EBUSY);
        failing.arm(Plan::every(Call::poll_cq, libc::EIO));
        assert_eq!(queues.poll(ops), -libc::EIO);
        failing.disarm();
        assert_eq!(queues.poll(ops), 0);
    }

    #[test]
    fn providers_of_one_type_can_stand_one_behind_the_other() {
        let fake = Fake::new();
        let behind = FailingProvider::new(fake.clone());
        let between = CountingProvider::new(behind.provider());
        let front = FailingProvider::new(between.provider());
        let queues = Queues::make(front.provider(), &fake);
        let ops = queues.qp_ops();
        front.arm(Plan::nth_of(Call::post_send, 0, libc::EIO));
        behind.arm(Plan::nth_of(Call::post_send, 0, libc::ENODEV));
        assert_eq!([post(ops, queues.qp), post(ops, queues.qp), post(ops, queues.qp)], [libc::EIO, libc::ENODEV, 0]);
        assert_eq!(between.calls(Call::post_send), 2);
        // SAFETY: the queue pair is live.
        assert_eq!(unsafe { (*queues.qp).handle }, 1);
    }

    #[test]
    fn asking_twice_for_the_ops_of_a_queue_takes_no_second_level() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        let queues = Queues::make(failing.provider(), &fake);
        for _ in 0..=LEVELS {
            queues.cq_ops();
        }
    }

    #[test]
    fn one_provider_too_many_is_an_error() {
        let fake = Fake::new();
        let mut provider: ProviderRef = fake.clone();
        for _ in 0..=LEVELS {
            provider = CountingProvider::new(provider);
        }
        let queues = Queues::make(provider, &fake);
        // SAFETY: the queue is live.
        assert!(unsafe { queues.provider.cq_ops(queues.cq) }.is_err());
    }

    #[test]
    fn failing_wr_complete_aborts_the_batch_behind() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        let queues = Queues::make(failing.provider(), &fake);
        let ex = queues.qp_ops().ex.unwrap();
        failing.arm(Plan::nth_of(Call::wr_complete, 0, libc::ENOSPC));
        let batch = || {
            // SAFETY: the queue pair is live, and no batch is open.
            unsafe { (ex.wr_start)(ex.qp_ex) };
            // SAFETY: ends the batch that was just opened.
            let rc = unsafe { (ex.wr_complete)(ex.qp_ex) };
            // SAFETY: the queue pair is live; the fake counts open batches there.
            assert_eq!(unsafe { (*ex.qp_ex).comp_mask }, 0, "the batch is still open");
            rc
        };
        assert_eq!((batch(), batch()), (libc::ENOSPC, 0));
    }
}
