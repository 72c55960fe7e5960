//! A provider that fails chosen calls.
#![expect(unsafe_code, reason = "implements the unsafe trait: the contract of each call is passed on to the provider behind")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::data_path::{Refusal, Watch, pass_on, watch_cq, watch_qp, watch_srq};
use super::{Call, Effect};
use crate::bindings::*;
use crate::calls::for_each_call;
use crate::provider::{CqOps, Provider, ProviderRef, QpOps, SrqOps};

/// Among which calls a [`Plan`] chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Selection {
    /// Every call that can fail.
    Any,
    /// Calls that make something or do something: neither [`Freeing`](Self::Freeing) nor [`Acknowledging`](Self::Acknowledging). A
    /// failure of one of these may leak nothing.
    Doing,
    /// Calls that free an object. One that fails leaves the object alive at the provider behind, so the object stays counted, and
    /// with it whatever an owner must leak to keep it whole.
    Freeing,
    /// Calls that acknowledge an event. One that fails leaves the event unacknowledged, and then rdma-core's `rdma_destroy_id`
    /// waits for ever: `rdma_ack_cm_event` fails there only for null.
    Acknowledging,
    /// Of [`Doing`](Self::Doing), those of the data path.
    DataPath,
    /// These calls.
    Of(Vec<Call>),
}

impl Selection {
    /// Whether `call` is among them. A call that cannot fail never is.
    #[must_use]
    pub fn contains(&self, call: Call) -> bool {
        let effect = call.effect();
        let acknowledges = matches!(effect, Effect::Frees(kind) if kind.is_event());
        let frees = matches!(effect, Effect::Frees(kind) if !kind.is_event());
        call.is_fallible()
            && match self {
                Self::Any => true,
                Self::Doing => !frees && !acknowledges,
                Self::Freeing => frees,
                Self::Acknowledging => acknowledges,
                Self::DataPath => call.is_data_path(),
                Self::Of(calls) => calls.contains(&call),
            }
    }
}

/// Which calls are to fail, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    among: Selection,
    /// How many calls of the selection are let through first.
    skip: u64,
    /// Every call of the selection from there on, instead of one.
    all_from_there: bool,
    refusal: Refusal,
}

impl Plan {
    /// Fails one call: the `n`-th from now on, counted from 0, among all that can fail or among a [selection](Self::among).
    ///
    /// # Panics
    ///
    /// If `errno` is not positive.
    #[must_use]
    pub fn nth(n: u64, errno: c_int) -> Self {
        assert!(errno > 0, "{errno} is no errno");
        Self { among: Selection::Any, skip: n, all_from_there: false, refusal: Refusal { errno, names_bad_wr: true, takes: 0 } }
    }

    /// Fails one call: the `n`-th of `call` from now on, counted from 0.
    ///
    /// # Panics
    ///
    /// If `call` cannot fail, or `errno` is not positive.
    #[must_use]
    pub fn nth_of(call: Call, n: u64, errno: c_int) -> Self {
        assert!(call.is_fallible(), "{call} cannot fail");
        Self::nth(n, errno).among(Selection::Of(vec![call]))
    }

    /// Fails every `call` from now on.
    ///
    /// # Panics
    ///
    /// If `call` cannot fail, or `errno` is not positive.
    #[must_use]
    pub fn every(call: Call, errno: c_int) -> Self {
        Self::nth_of(call, 0, errno).and_all_after()
    }

    /// Fails nothing: for [`FailingProvider::calls_seen`] alone.
    #[must_use]
    pub fn never() -> Self {
        Self::nth(u64::MAX, libc::EIO)
    }

    /// Chooses, and counts, among these calls only.
    #[must_use]
    pub fn among(self, selection: Selection) -> Self {
        Self { among: selection, ..self }
    }

    /// Fails every later call of the selection too.
    #[must_use]
    pub fn and_all_after(self) -> Self {
        Self { all_from_there: true, ..self }
    }

    /// A post that fails leaves its `bad_wr` as it was, as soft-RoCE does, instead of naming the first request.
    #[must_use]
    pub fn naming_no_bad_wr(self) -> Self {
        Self { refusal: Refusal { names_bad_wr: false, ..self.refusal }, ..self }
    }

    /// A failing `post_send` posts the first `count` requests of its list all the same, and names the next one as bad.
    #[must_use]
    pub fn taking_first(self, count: usize) -> Self {
        Self { refusal: Refusal { takes: count, ..self.refusal }, ..self }
    }
}

/// Stands in front of another provider and fails the calls that a [`Plan`] names.
///
/// A call that fails does not reach the provider behind, and answers in its own [convention](super::Convention). The data path is
/// covered by functions handed out in place of the queue's own; a `wr_complete` that fails aborts the batch behind.
///
/// A call that *frees* something and fails leaves it alive behind: what owns it must leak it. See [`Selection`].
pub struct FailingProvider {
    inner: ProviderRef,
    state: Arc<State>,
}

impl FailingProvider {
    /// Stands in front of `inner`, and lets everything through until it is armed.
    #[must_use]
    pub fn new(inner: ProviderRef) -> Arc<Self> {
        Arc::new(Self { inner, state: Arc::new(State::default()) })
    }

    /// The same provider, as what things are made with.
    #[must_use]
    pub fn provider(self: &Arc<Self>) -> ProviderRef {
        Arc::clone(self) as ProviderRef
    }

    /// Replaces whatever was armed by `plan`, and starts counting anew.
    pub fn arm(&self, plan: Plan) {
        self.arm_all([plan]);
    }

    /// Replaces whatever was armed by several plans, and starts counting anew. The first plan that names a call decides how it fails;
    /// all of them count it.
    pub fn arm_all(&self, plans: impl IntoIterator<Item = Plan>) {
        *self.state.armed() = Armed {
            plans: plans.into_iter().map(|plan| ArmedPlan { plan, seen: 0 }).collect(),
            calls_seen: 0,
            fired: Vec::new(),
        };
    }

    /// Lets everything through again. What was seen and what fired stay readable.
    pub fn disarm(&self) {
        self.state.armed().plans.clear();
    }

    /// The calls that were failed since arming, in order.
    #[must_use]
    pub fn fired(&self) -> Vec<Call> {
        self.state.armed().fired.clone()
    }

    /// How many calls the armed plans chose among since arming, those that failed included. Does not grow while nothing is armed.
    #[must_use]
    pub fn calls_seen(&self) -> u64 {
        self.state.armed().calls_seen
    }

    /// Runs `hook` before every `call`, even one that then fails, in place of an earlier hook.
    ///
    /// No lock is held meanwhile. Calls that the hook itself makes through this provider go straight to the one behind: they run no
    /// hook, fail by no plan, and count for none. A hook before a call of the data path must not panic: it runs below C, and the
    /// process aborts.
    pub fn set_hook(&self, call: Call, hook: impl Fn(Call) + Send + Sync + 'static) {
        let earlier = self.state.hooks.write().unwrap_or_else(PoisonError::into_inner).insert(call, Arc::new(hook));
        // Not under the lock: what a hook owns may make calls when it is dropped.
        drop(earlier);
    }

    /// Removes the hook before `call`.
    pub fn remove_hook(&self, call: Call) {
        let removed = self.state.hooks.write().unwrap_or_else(PoisonError::into_inner).remove(&call);
        // Not under the lock: what a hook owns may make calls when it is dropped.
        drop(removed);
    }

    /// Completion queues made from now on are asked for with this many entries, whatever the caller asks for: a device that breaks its
    /// promise, so that a queue overflows which nobody can fill otherwise.
    ///
    /// # Panics
    ///
    /// If `entries` is not positive.
    pub fn set_cq_entries(&self, entries: c_int) {
        assert!(entries > 0, "a completion queue has at least one entry");
        self.state.cq_entries.store(entries, Ordering::Relaxed);
    }

    /// The shared receive queue that was made last, or null: for what its device can do and [`Provider`] has no call for. It is live until
    /// its owner destroys it.
    #[must_use]
    pub fn last_srq(&self) -> *mut ibv_srq {
        self.state.last_srq.load(Ordering::Relaxed)
    }

    fn before(&self, call: Call) -> Option<Refusal> {
        self.state.before(call)
    }

    pub(super) fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.state) as Arc<dyn Watch>
    }
}

impl fmt::Debug for FailingProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingProvider").field("inner", &self.inner).field("state", &self.state).finish()
    }
}

type Hook = Arc<dyn Fn(Call) + Send + Sync>;

#[derive(Default)]
struct State {
    armed: Mutex<Armed>,
    hooks: RwLock<BTreeMap<Call, Hook>>,
    /// How many entries completion queues are asked for with; 0: as many as the caller says.
    cq_entries: AtomicI32,
    last_srq: AtomicPtr<ibv_srq>,
}

#[derive(Debug, Default)]
struct Armed {
    plans: Vec<ArmedPlan>,
    calls_seen: u64,
    fired: Vec<Call>,
}

#[derive(Debug)]
struct ArmedPlan {
    plan: Plan,
    seen: u64,
}

impl Armed {
    fn refusal(&mut self, call: Call) -> Option<Refusal> {
        let mut refusal = None;
        let mut selected = false;
        for ArmedPlan { plan, seen } in &mut self.plans {
            if plan.among.contains(call) {
                selected = true;
                let fails = if plan.all_from_there { *seen >= plan.skip } else { *seen == plan.skip };
                *seen += 1;
                if fails {
                    refusal = refusal.or(Some(plan.refusal));
                }
            }
        }
        self.calls_seen += u64::from(selected);
        if refusal.is_some() {
            self.fired.push(call);
        }
        refusal
    }
}

impl State {
    fn armed(&self) -> MutexGuard<'_, Armed> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks = self.hooks.read().unwrap_or_else(PoisonError::into_inner);
        let mut state = f.debug_struct("State");
        state.field("armed", &self.armed).field("hooks", &hooks.keys()).field("cq_entries", &self.cq_entries);
        state.field("last_srq", &self.last_srq).finish()
    }
}

impl Watch for State {
    fn before(&self, call: Call) -> Option<Refusal> {
        if InHook::is_running() {
            return None;
        }
        let hook = self.hooks.read().unwrap_or_else(PoisonError::into_inner).get(&call).cloned();
        if let Some(hook) = hook {
            let _in_hook = InHook::start();
            hook(call);
        }
        self.armed().refusal(call)
    }
}

/// That this thread is running a hook.
struct InHook;

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

impl InHook {
    fn is_running() -> bool {
        IN_HOOK.get()
    }

    fn start() -> Self {
        IN_HOOK.set(true);
        Self
    }
}

impl Drop for InHook {
    fn drop(&mut self) {
        IN_HOOK.set(false);
    }
}

/// Answers a failure in the convention of the call. `errno` is set last, so that nothing of ours comes between it and the caller.
macro_rules! refuse {
    (errno, $errno:expr) => {
        return $errno
    };
    (minus1, $errno:expr) => {{
        crate::errno::set($errno);
        return -1;
    }};
    (null, $errno:expr) => {{
        crate::errno::set($errno);
        return std::ptr::null_mut();
    }};
}

/// Asks for what the provider was told to ask for, in place of what the caller says.
macro_rules! ask_otherwise {
    ($self:ident, ibv_create_cq($context:ident, $cqe:ident, $($rest:ident),*)) => {
        let $cqe = match $self.state.cq_entries.load(Ordering::Relaxed) {
            0 => $cqe,
            entries => entries,
        };
    };
    ($self:ident, $name:ident($($arg:ident),*)) => {};
}

macro_rules! run {
    (infallible $self:ident, $name:ident($($arg:ident),*)) => {{
        // For its hook: no plan selects a call that cannot fail.
        let _ = $self.before(Call::$name);
        pass_on!($self, $name($($arg),*))
    }};
    ($conv:ident $self:ident, $name:ident($($arg:ident),*)) => {{
        if let Some(refusal) = $self.before(Call::$name) {
            refuse!($conv, refusal.errno);
        }
        ask_otherwise!($self, $name($($arg),*));
        pass_on!($self, $name($($arg),*))
    }};
}

macro_rules! failing {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($(#[$idoc:meta])* $iconv:ident fn $iname:ident($($iarg:ident: $ity:ty),*) -> $iret:ty;)* }
    ) => {
        // SAFETY: every call is passed on to a provider that keeps the trait's contract, or not made and answered as failed, which
        // the contract allows of each call that can fail. What is freed and what stays alive is as the answer says.
        unsafe impl Provider for FailingProvider {
            fn name(&self) -> &'static str {
                self.inner.name()
            }

            $(unsafe fn $ename(&self, $($earg: $ety),*) -> $eret {
                run!($econv self, $ename($($earg),*))
            })*

            $(unsafe fn $iname(&self, $($iarg: $ity),*) -> $iret {
                run!($iconv self, $iname($($iarg),*))
            })*

            unsafe fn qp_ops(&self, qp: *mut ibv_qp, send_ops_flags: u64) -> io::Result<QpOps> {
                if let Some(refusal) = self.before(Call::qp_ops) {
                    return Err(io::Error::from_raw_os_error(refusal.errno));
                }
                // SAFETY: the contract that the caller of this method accepted.
                let ops = unsafe { self.inner.qp_ops(qp, send_ops_flags) }?;
                watch_qp(&self.watch(), qp, ops)
            }

            unsafe fn cq_ops(&self, cq: *mut ibv_cq) -> io::Result<CqOps> {
                if let Some(refusal) = self.before(Call::cq_ops) {
                    return Err(io::Error::from_raw_os_error(refusal.errno));
                }
                // SAFETY: the contract that the caller of this method accepted.
                let ops = unsafe { self.inner.cq_ops(cq) }?;
                watch_cq(&self.watch(), cq, ops)
            }

            unsafe fn srq_ops(&self, srq: *mut ibv_srq) -> io::Result<SrqOps> {
                if let Some(refusal) = self.before(Call::srq_ops) {
                    return Err(io::Error::from_raw_os_error(refusal.errno));
                }
                // SAFETY: the contract that the caller of this method accepted.
                let ops = unsafe { self.inner.srq_ops(srq) }?;
                self.state.last_srq.store(srq, Ordering::Relaxed);
                watch_srq(&self.watch(), srq, ops)
            }
        }
    };
}
for_each_call!(failing);

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;
    use std::sync::Weak;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::super::fake::{Fake, call_with_zeros};
    use super::super::{CountingProvider, Kind};
    use super::*;
    use crate::owned::{
        AsyncEvents, CmEventKind, CmId, Cq, EventChannel, IdOption, Mr, Pd, PostError, Qp, QpCap, QpRequest, SendOp, SendOptions,
        Srq, SrqCap, Taken,
    };

    fn control_path() -> impl Iterator<Item = Call> {
        Call::ALL.iter().copied().filter(|call| !call.is_data_path())
    }

    #[test]
    fn every_call_that_can_fail_fails_in_its_own_convention_and_does_not_reach_the_provider_behind() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        for (call, errno) in control_path().filter(|call| call.is_fallible()).zip(1..) {
            failing.arm(Plan::nth_of(call, 0, errno));
            crate::errno::set(0);
            // SAFETY: the call fails before anything looks into its arguments.
            let result = unsafe { call_with_zeros(&*failing, call) };
            assert_eq!(result.map_err(|e| e.raw_os_error()), Err(Some(errno)), "{call}");
            assert_eq!(failing.fired(), [call]);
            assert_eq!(fake.calls(call), 0, "{call}");
        }
    }

    #[test]
    fn call_that_cannot_fail_is_selected_by_nothing() {
        for call in control_path().filter(|call| !call.is_fallible()) {
            for selection in [Selection::Any, Selection::Doing, Selection::Freeing, Selection::Of(vec![call])] {
                assert!(!selection.contains(call), "{call}");
            }
        }
        assert!(std::panic::catch_unwind(|| Plan::nth_of(Call::rdma_destroy_qp, 0, libc::EIO)).is_err());
    }

    #[test]
    fn doing_freeing_and_acknowledging_divide_what_can_fail() {
        for &call in Call::ALL {
            let of = [Selection::Doing, Selection::Freeing, Selection::Acknowledging];
            let count = of.iter().filter(|selection| selection.contains(call)).count();
            assert_eq!(count, usize::from(call.is_fallible()), "{call}");
        }
        assert!(Selection::Freeing.contains(Call::ibv_dereg_mr));
        assert!(Selection::Acknowledging.contains(Call::rdma_ack_cm_event));
    }

    /// Makes a call that the fake answers with success whatever its arguments are.
    fn modify_qp(failing: &FailingProvider) -> c_int {
        // SAFETY: the fake looks into no argument of this call.
        unsafe { failing.ibv_modify_qp(null_mut(), null_mut(), 0) }
    }

    fn listen(failing: &FailingProvider) -> c_int {
        // SAFETY: as in `modify_qp`.
        unsafe { failing.rdma_listen(null_mut(), 0) }
    }

    #[test]
    fn plan_fails_one_call_unless_told_to_go_on() {
        let failing = FailingProvider::new(Fake::new());
        let three_calls = || std::array::from_fn(|_| modify_qp(&failing));
        failing.arm(Plan::nth(1, libc::EIO));
        assert_eq!(three_calls(), [0, libc::EIO, 0]);
        failing.arm(Plan::nth(1, libc::EIO).and_all_after());
        assert_eq!(three_calls(), [0, libc::EIO, libc::EIO]);
        failing.arm(Plan::every(Call::ibv_modify_qp, libc::EIO));
        assert_eq!(three_calls(), [libc::EIO; 3]);
        failing.disarm();
        assert_eq!(three_calls(), [0; 3]);
    }

    #[test]
    fn plan_counts_only_its_selection() {
        let failing = FailingProvider::new(Fake::new());
        failing.arm(Plan::nth_of(Call::rdma_listen, 1, libc::EIO));
        assert_eq!([modify_qp(&failing), listen(&failing), modify_qp(&failing), listen(&failing)], [0, 0, 0, -1]);
        assert_eq!((failing.calls_seen(), failing.fired()), (2, vec![Call::rdma_listen]));
        failing.arm(Plan::never());
        assert_eq!((failing.calls_seen(), failing.fired()), (0, vec![]), "arming starts anew");
        assert_eq!([modify_qp(&failing), listen(&failing)], [0, 0]);
        assert_eq!((failing.calls_seen(), failing.fired()), (2, vec![]));
    }

    #[test]
    fn several_plans_fail_each_their_own() {
        let failing = FailingProvider::new(Fake::new());
        failing.arm_all([Plan::nth_of(Call::ibv_modify_qp, 0, libc::EIO), Plan::nth_of(Call::rdma_listen, 0, libc::EAGAIN)]);
        assert_eq!([listen(&failing), modify_qp(&failing), listen(&failing)], [-1, libc::EIO, 0]);
        assert_eq!(failing.fired(), [Call::rdma_listen, Call::ibv_modify_qp]);
    }

    #[test]
    fn hook_runs_before_its_call_and_its_own_calls_are_neither_hooked_nor_failed() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        let (seen, before) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
        let (seen_in, before_in, fake_in): (_, _, Arc<Fake>) = (Arc::clone(&seen), Arc::clone(&before), Arc::clone(&fake));
        let weak: Weak<FailingProvider> = Arc::downgrade(&failing);
        failing.set_hook(Call::ibv_modify_qp, move |call| {
            before_in.store(fake_in.calls(call), Ordering::SeqCst);
            seen_in.fetch_add(1, Ordering::SeqCst);
            assert_eq!(modify_qp(&weak.upgrade().expect("the test holds it")), 0);
        });
        failing.arm(Plan::nth(0, libc::EIO));
        assert_eq!(listen(&failing), -1);
        assert_eq!(modify_qp(&failing), 0);
        assert_eq!(seen.load(Ordering::SeqCst), 1, "the hook's own call ran no hook");
        assert_eq!(before.load(Ordering::SeqCst), 0, "the hook ran before the call");
        assert_eq!(failing.calls_seen(), 2, "the hook's own call counts for no plan");
        failing.remove_hook(Call::ibv_modify_qp);
        assert_eq!(modify_qp(&failing), 0);
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn hook_runs_before_a_call_that_cannot_fail() {
        let failing = FailingProvider::new(Fake::new());
        let seen = Arc::new(AtomicU64::new(0));
        let seen_in = Arc::clone(&seen);
        failing.set_hook(Call::ibv_wc_status_str, move |_| {
            seen_in.fetch_add(1, Ordering::SeqCst);
        });
        // SAFETY: the call takes any number.
        assert!(!unsafe { failing.ibv_wc_status_str(0) }.is_null());
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn completion_can_be_injected_between_poll_and_arm() {
        let fake = Fake::new();
        let failing = FailingProvider::new(fake.clone());
        let fake_in = Arc::clone(&fake);
        failing.set_hook(Call::req_notify_cq, move |_| fake_in.push_cq_events(0, 1));
        let parts = Parts::make(&failing.provider(), false).unwrap();
        assert_eq!(parts.cq.poll(&mut [ibv_wc::default()]).unwrap(), 0);
        assert_eq!(parts.cq.take_events().unwrap(), 0);
        parts.cq.request_notify().unwrap();
        assert_eq!(parts.cq.take_events().unwrap(), 1);
    }

    const CAP: QpCap = QpCap { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline_bytes: 8 };

    /// One of everything.
    struct Parts {
        qp: Qp,
        cq: Arc<Cq>,
        srq: Arc<Srq>,
        mr: Mr,
        channel: Arc<EventChannel>,
    }

    impl Parts {
        fn make(provider: &ProviderRef, native_flush: bool) -> io::Result<Self> {
            let channel = EventChannel::create(provider)?;
            let id = Arc::new(CmId::create(&channel)?);
            id.resolve_addr("10.0.0.1:7204".parse().unwrap(), Duration::from_secs(1))?;
            id.resolve_route(Duration::from_secs(1))?;
            let context = crate::owned::Context::list(provider)?.remove(0);
            context.query_device()?;
            context.query_port(1)?;
            let pd = Pd::alloc(&context)?;
            let cq = Cq::create(&context, 4, 0)?;
            let srq = Srq::create(&pd, SrqCap { wr: 4, sge: 1 })?;
            let request = QpRequest { cap: CAP, native_flush, native_atomic_write: false };
            let qp = Qp::create(&id, &pd, &cq, &cq, Some(&srq), request)?;
            // SAFETY: the fake never touches the memory.
            let mr = unsafe { Mr::register(&pd, std::ptr::NonNull::dangling(), 8, 0) }?;
            Ok(Self { qp, cq, srq, mr, channel })
        }

        /// Makes every call that there is once.
        fn use_all(self, fake: &Fake) -> io::Result<()> {
            let post = |result: Result<(), PostError>| result.map_err(|e| e.source);
            let options = SendOptions::default();
            post(self.qp.post_recv(&[], 0))?;
            post(self.qp.post_send(SendOp::Send, &[], options))?;
            post(self.srq.post_recv(&[], 0))?;
            post(self.qp.post_flush(0, 0, 0, false, 1, options))?;
            self.cq.request_notify()?;
            self.cq.poll(&mut [ibv_wc::default()])?;
            fake.push_cq_events(0, 1);
            self.cq.take_events()?;
            self.mr.advise(0, 0, &mut [])?;
            self.qp.query(IBV_QP_STATE)?;
            assert_eq!(AsyncEvents::of(self.cq.context())?.take()?, None);
            let id = self.qp.id();
            id.set_option(IdOption::TypeOfService(8))?;
            id.bind("10.0.0.1:0".parse().unwrap())?;
            id.listen(0)?;
            fake.push_cm_event(RDMA_CM_EVENT_CONNECT_REQUEST);
            let event = self.channel.get_event()?.expect("was pushed");
            assert_eq!(event.kind, CmEventKind::ConnectRequest);
            let param = crate::owned::ConnParam {
                private_data: &[],
                responder_resources: 1,
                initiator_depth: 1,
                retry_count: 7,
                rnr_retry_count: 7,
            };
            let mut incoming = event.new_id.expect("a connection request brings one");
            incoming.migrate(&EventChannel::create(self.cq.context().provider())?)?;
            incoming.accept(param)?;
            incoming.reject(&[])?;
            id.connect(param)?;
            self.qp.move_to_error()?;
            id.disconnect()?;
            self.mr.deregister()
        }
    }

    #[test]
    fn owned_handles_survive_each_call_failing_once_and_leak_only_what_could_not_be_freed() {
        for selection in [Selection::Doing, Selection::Freeing, Selection::Acknowledging] {
            let mut failed_calls = std::collections::BTreeSet::new();
            for n in 0.. {
                let fake = Fake::new();
                let counting = CountingProvider::new(fake.clone());
                let failing = FailingProvider::new(counting.provider());
                failing.arm(Plan::nth(n, libc::ENOTRECOVERABLE).among(selection.clone()));
                let provider = failing.provider();
                let result = Parts::make(&provider, true).and_then(|parts| parts.use_all(&fake));
                let fired = failing.fired();
                let live = counting.live();
                match (&selection, fired.as_slice()) {
                    (_, []) => {
                        result.unwrap();
                        assert_eq!(counting.nothing_live(), Ok(()));
                        break;
                    }
                    (Selection::Doing, [call]) => {
                        match result {
                            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOTRECOVERABLE), "{call}"),
                            // Events that were taken before it are told first, and the error with the next call.
                            Ok(()) => assert_eq!(*call, Call::ibv_get_cq_event),
                        }
                        assert_eq!(counting.nothing_live(), Ok(()), "{call}");
                    }
                    (Selection::Freeing, [call]) => {
                        let Effect::Frees(kind) = call.effect() else { unreachable!() };
                        assert_eq!(live[kind], 1, "{call} failed: {live}");
                    }
                    // The event is told all the same.
                    (_, [call]) => assert!(live[Kind::CmEvent] == 1 && result.is_ok(), "{call}: {live}"),
                    (_, more) => panic!("{more:?} fired"),
                }
                failed_calls.extend(fired);
            }
            let all = Call::ALL.iter().copied().filter(|call| selection.contains(*call));
            assert_eq!(failed_calls.into_iter().collect::<Vec<_>>(), all.collect::<Vec<_>>(), "the scenario misses a call");
        }
    }

    #[test]
    fn failing_post_names_the_request_unless_told_not_to() {
        let failing = FailingProvider::new(Fake::new());
        let parts = Parts::make(&failing.provider(), false).unwrap();
        let post_both = || {
            let send = parts.qp.post_send(SendOp::Send, &[], SendOptions::default()).unwrap_err();
            [send, parts.qp.post_recv(&[], 0).unwrap_err()].map(|e| (e.source.raw_os_error(), e.taken))
        };
        let plans = || [Plan::every(Call::post_send, libc::EINVAL), Plan::every(Call::post_recv, libc::EINVAL)];
        failing.arm_all(plans());
        assert_eq!(post_both(), [(Some(libc::EINVAL), Taken::No); 2]);
        failing.arm_all(plans().map(Plan::naming_no_bad_wr));
        assert_eq!(post_both(), [(Some(libc::EINVAL), Taken::Unknown); 2]);
    }

    #[test]
    fn queues_are_as_small_as_told_and_the_last_shared_one_is_known() {
        let failing = FailingProvider::new(Fake::new());
        assert!(failing.last_srq().is_null());
        assert_eq!(Parts::make(&failing.provider(), false).unwrap().cq.capacity(), 4);
        failing.set_cq_entries(1);
        let parts = Parts::make(&failing.provider(), false).unwrap();
        assert_eq!(parts.cq.capacity(), 1);
        let first = failing.last_srq();
        let _other = Parts::make(&failing.provider(), false).unwrap();
        assert!(!first.is_null() && failing.last_srq() != first);
    }

    #[test]
    fn failing_poll_and_arm_answer_in_their_conventions() {
        let failing = FailingProvider::new(Fake::new());
        let parts = Parts::make(&failing.provider(), false).unwrap();
        failing.arm_all([Plan::nth_of(Call::poll_cq, 0, libc::EIO), Plan::nth_of(Call::req_notify_cq, 0, libc::ENODEV)]);
        assert_eq!(parts.cq.poll(&mut []).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(parts.cq.request_notify().unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(parts.cq.poll(&mut []).unwrap(), 0);
        parts.cq.request_notify().unwrap();
    }
}
