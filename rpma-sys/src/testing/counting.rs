//! A provider that counts what is alive.
#![expect(unsafe_code, reason = "implements the unsafe trait: the contract of each call is passed on to the provider behind")]

use std::array;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::data_path::{Refusal, Watch, pass_on, watch_cq, watch_qp, watch_srq};
use super::{Call, Effect, Kind};
use crate::bindings::*;
use crate::calls::for_each_call;
use crate::provider::{CqOps, Provider, ProviderRef, QpOps, SrqOps};

/// Stands in front of another provider and counts what that has made and not yet freed, and how often each call was made.
///
/// Only what succeeded counts: an object whose freeing failed stays live. An identifier that is born in a connection request counts
/// from the moment the event is taken.
pub struct CountingProvider {
    inner: ProviderRef,
    state: Arc<State>,
}

impl CountingProvider {
    /// Stands in front of `inner`.
    #[must_use]
    pub fn new(inner: ProviderRef) -> Arc<Self> {
        Arc::new(Self { inner, state: Arc::new(State::default()) })
    }

    /// The same provider, as what things are made with.
    #[must_use]
    pub fn provider(self: &Arc<Self>) -> ProviderRef {
        Arc::clone(self) as ProviderRef
    }

    /// What is alive now.
    ///
    /// While other threads are in the middle of calls, a kind may be off by what those calls are just changing.
    #[must_use]
    pub fn live(&self) -> Counts {
        Counts(array::from_fn(|kind| self.state.live[kind].load(Ordering::SeqCst)))
    }

    /// Says whether everything is freed and acknowledged.
    ///
    /// # Errors
    ///
    /// [`StillLive`] names what is not. It is also an error if more was freed than made.
    pub fn nothing_live(&self) -> Result<(), StillLive> {
        let live = self.live();
        if live.is_nothing() { Ok(()) } else { Err(StillLive(live)) }
    }

    /// How often `call` was made, those that failed included.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.state.calls[call as usize].load(Ordering::SeqCst)
    }

    pub(super) fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.state) as Arc<dyn Watch>
    }
}

impl fmt::Debug for CountingProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingProvider").field("inner", &self.inner).field("live", &self.live()).finish()
    }
}

/// How much is alive of each kind. Indexed by [`Kind`]; printed, it names what there is: `1 queue pair, 2 memory regions`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts([i64; Kind::ALL.len()]);

impl Counts {
    /// Whether there is nothing of any kind.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Index<Kind> for Counts {
    type Output = i64;

    fn index(&self, kind: Kind) -> &i64 {
        &self.0[kind as usize]
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing");
        }
        let mut separator = "";
        for &kind in Kind::ALL {
            let (count, name) = (self[kind], kind.name());
            if count != 0 {
                write!(f, "{separator}{count} {name}{}", if count == 1 { "" } else { "s" })?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counts({self})")
    }
}

/// Something is not freed, or was freed too often (a negative number).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("still live: {0}")]
pub struct StillLive(pub Counts);

#[derive(Debug)]
struct State {
    live: [AtomicI64; Kind::ALL.len()],
    calls: [AtomicU64; Call::ALL.len()],
}

impl Default for State {
    fn default() -> Self {
        Self { live: array::from_fn(|_| AtomicI64::new(0)), calls: array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl State {
    fn add(&self, kind: Kind, count: i64) {
        self.live[kind as usize].fetch_add(count, Ordering::SeqCst);
    }

    /// `call` succeeded.
    fn succeeded(&self, call: Call, count: i64) {
        match call.effect() {
            Effect::Makes(kind) => self.add(kind, count),
            Effect::Frees(kind) => self.add(kind, -count),
            Effect::Other => {}
        }
    }
}

impl Watch for State {
    fn before(&self, call: Call) -> Option<Refusal> {
        self.calls[call as usize].fetch_add(1, Ordering::SeqCst);
        None
    }
}

/// Whether an answer tells success, in the convention of its call.
macro_rules! is_success {
    (errno, $answer:expr) => {
        $answer == 0
    };
    (minus1, $answer:expr) => {
        $answer >= 0
    };
    (null, $answer:expr) => {
        !$answer.is_null()
    };
    (infallible, $answer:expr) => {{
        let _: &_ = &$answer;
        true
    }};
}

/// How many things of its kind a successful call makes or frees, by its arguments.
macro_rules! how_many {
    ($self:ident, ibv_ack_cq_events($cq:ident, $nevents:ident)) => {
        i64::from($nevents)
    };
    ($self:ident, rdma_get_cm_event($channel:ident, $event:ident)) => {{
        // SAFETY: the call succeeded, so it wrote the event's address where the caller asked for it.
        let event = unsafe { $event.read() };
        // SAFETY: an event that was just taken is live, and only its taker, our caller, can acknowledge it.
        if unsafe { (*event).event } == RDMA_CM_EVENT_CONNECT_REQUEST {
            $self.state.add(Kind::Id, 1);
        }
        1
    }};
    ($self:ident, $name:ident($($arg:ident),*)) => {
        1
    };
}

macro_rules! run {
    ($conv:ident $self:ident, $name:ident($($arg:ident),*)) => {{
        $self.state.before(Call::$name);
        let answer = pass_on!($self, $name($($arg),*));
        if is_success!($conv, answer) {
            let count = how_many!($self, $name($($arg),*));
            $self.state.succeeded(Call::$name, count);
        }
        answer
    }};
}

macro_rules! counting {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($(#[$idoc:meta])* $iconv:ident fn $iname:ident($($iarg:ident: $ity:ty),*) -> $iret:ty;)* }
    ) => {
        // SAFETY: every call is passed on, with its arguments and its answer unchanged, to a provider that keeps the contract.
        unsafe impl Provider for CountingProvider {
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
                self.state.before(Call::qp_ops);
                // SAFETY: the contract that the caller of this method accepted.
                let ops = unsafe { self.inner.qp_ops(qp, send_ops_flags) }?;
                watch_qp(&self.watch(), qp, ops)
            }

            unsafe fn cq_ops(&self, cq: *mut ibv_cq) -> io::Result<CqOps> {
                self.state.before(Call::cq_ops);
                // SAFETY: the contract that the caller of this method accepted.
                let ops = unsafe { self.inner.cq_ops(cq) }?;
                watch_cq(&self.watch(), cq, ops)
            }

            unsafe fn srq_ops(&self, srq: *mut ibv_srq) -> io::Result<SrqOps> {
                self.state.before(Call::srq_ops);
                // SAFETY: the contract that the caller of this method accepted.
                let ops = unsafe { self.inner.srq_ops(srq) }?;
                watch_srq(&self.watch(), srq, ops)
            }
        }
    };
}
for_each_call!(counting);

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::super::fake::Fake;
    use super::super::{FailingProvider, Plan};
    use super::*;
    use crate::owned::EventChannel;

    #[test]
    fn counts_go_up_and_down_with_what_is_made_and_freed() {
        let fake = Fake::new();
        let counting = CountingProvider::new(fake.clone());
        // SAFETY: the fake's only device is always live.
        let pd = unsafe { counting.ibv_alloc_pd(fake.context()) };
        assert_eq!(counting.live()[Kind::Pd], 1);
        // SAFETY: the protection domain is live.
        let mr = unsafe { counting.ibv_reg_mr_iova2(pd, null_mut(), 8, 0, 0) };
        assert_eq!(counting.nothing_live().unwrap_err().to_string(), "still live: 1 protection domain, 1 memory region");
        // SAFETY: live; its region is too, and the fake then refuses.
        assert_eq!(unsafe { counting.ibv_dealloc_pd(pd) }, libc::EBUSY);
        assert_eq!(counting.live()[Kind::Pd], 1, "what the provider refused to free is alive");
        // SAFETY: live, and freed once.
        assert_eq!(unsafe { counting.ibv_dereg_mr(mr) }, 0);
        // SAFETY: live, and freed once: the call above failed.
        assert_eq!(unsafe { counting.ibv_dealloc_pd(pd) }, 0);
        assert_eq!(counting.nothing_live(), Ok(()));
        assert_eq!(counting.calls(Call::ibv_dealloc_pd), 2);
    }

    #[test]
    fn making_that_fails_counts_as_a_call_and_makes_nothing() {
        let failing = FailingProvider::new(Fake::new());
        let counting = CountingProvider::new(failing.provider());
        failing.arm(Plan::nth_of(Call::rdma_create_event_channel, 0, libc::ENODEV));
        assert!(EventChannel::create(&counting.provider()).is_err());
        assert_eq!((counting.live(), counting.calls(Call::rdma_create_event_channel)), (Counts::default(), 1));
    }

    #[test]
    fn connection_request_counts_its_identifier_and_its_event() {
        let fake = Fake::new();
        let counting = CountingProvider::new(fake.clone());
        // SAFETY: the call has no conditions.
        let channel = unsafe { counting.rdma_create_event_channel() };
        let take = |kind| {
            fake.push_cm_event(kind);
            let mut event = null_mut();
            // SAFETY: the channel is live, and `event` is a place for the result.
            assert_eq!(unsafe { counting.rdma_get_cm_event(channel, &raw mut event) }, 0);
            event
        };
        let request = take(RDMA_CM_EVENT_CONNECT_REQUEST);
        let established = take(RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(counting.live().to_string(), "1 event channel, 1 connection identifier, 2 unacknowledged CM events");
        // SAFETY: the event is live.
        let id = unsafe { (*request).id };
        for event in [request, established] {
            // SAFETY: live, and acknowledged once.
            assert_eq!(unsafe { counting.rdma_ack_cm_event(event) }, 0);
        }
        // SAFETY: live, the receiver's to destroy, and destroyed once.
        assert_eq!(unsafe { counting.rdma_destroy_id(id) }, 0);
        // SAFETY: live, and destroyed once.
        unsafe { counting.rdma_destroy_event_channel(channel) };
        assert_eq!(counting.nothing_live(), Ok(()));
    }

    #[test]
    fn channel_without_an_event_leaves_the_counts_alone() {
        let counting = CountingProvider::new(Fake::new());
        let channel = EventChannel::create(&counting.provider()).unwrap();
        assert!(channel.get_event().unwrap().is_none());
        assert_eq!(counting.live().to_string(), "1 event channel");
    }

    #[test]
    fn completion_events_are_acknowledged_in_numbers() {
        let fake = Fake::new();
        let counting = CountingProvider::new(fake.clone());
        let context = crate::owned::Context::list(&counting.provider()).unwrap().remove(0);
        let queue = crate::owned::Cq::create(&context, 4, 0).unwrap();
        let without = counting.live();
        fake.push_cq_events(0, 3);
        assert_eq!(queue.take_events().unwrap(), 3);
        assert_eq!(counting.live()[Kind::CqEvent], 3);
        drop((queue, context));
        assert_eq!(counting.calls(Call::ibv_ack_cq_events), 1);
        assert_eq!((without[Kind::CqEvent], counting.nothing_live()), (0, Ok(())));
    }
}
