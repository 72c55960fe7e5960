//! The completion channel, and the completion events of the queues on it.
#![expect(unsafe_code, reason = "calls verbs")]

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fd::{readable_while, set_nonblocking};
use super::{Context, check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::ret::{errno_ret, minus1_ret, null_ret};

/// How many events are taken before they are acknowledged in one call: the call takes the queue's lock, and users of verbs have found
/// one call per event to be the main bottleneck.
const ACK_BATCH: u32 = 64;

/// A completion channel, which one queue has or several share: `ibv_create_comp_channel(3)`. Its descriptor is non-blocking.
#[derive(Debug)]
pub struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
    /// What is lent in place of the channel's own descriptor.
    readable: OwnedFd,
    /// Events are taken under this lock, so that none is taken and not counted, and a queue is destroyed under it: `ibv_destroy_cq`
    /// would wait for an event that is not acknowledged for ever.
    queues: Mutex<Queues>,
    context: ManuallyDrop<Arc<Context>>,
    mark: ProcessMark,
}

#[derive(Debug, Default)]
struct Queues {
    /// The events of each queue on the channel, by the queue's address.
    by_address: BTreeMap<usize, Events>,
    /// The queues that may have untold events, each once: who asks for those of many queues does not look at every queue.
    fired: Vec<usize>,
}

/// The events of one queue.
#[derive(Debug, Default)]
struct Events {
    /// Among the `fired`.
    is_noted: bool,
    /// Taken, and not told to who asks for the queue's events: whoever asks takes those of all queues.
    untold: u32,
    /// Taken and not acknowledged.
    unacked: u32,
}

// SAFETY: a channel is a file descriptor; its events may be taken by any thread, and are so under `queues`.
unsafe impl Send for CompChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// As `ibv_create_comp_channel(3)`: EMFILE if the process has no descriptor left.
    pub fn create(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        context.check()?;
        // SAFETY: the context is live.
        let raw = null_ret(|| unsafe { context.provider().ibv_create_comp_channel(context.raw().as_ptr()) })?;
        match Self::prepare(raw) {
            Ok(readable) => {
                let (queues, context) = (Mutex::default(), ManuallyDrop::new(Arc::clone(context)));
                Ok(Arc::new(Self { raw, readable, queues, context, mark: ProcessMark::current() }))
            }
            Err(e) => {
                // SAFETY: live, and used by nobody yet.
                let rc = unsafe { context.provider().ibv_destroy_comp_channel(raw.as_ptr()) };
                if let Err(e) = errno_ret(rc) {
                    leaked("a completion channel", &e);
                    std::mem::forget(Arc::clone(context));
                }
                Err(e)
            }
        }
    }

    fn prepare(raw: NonNull<ibv_comp_channel>) -> io::Result<OwnedFd> {
        // SAFETY: the channel is live, and its `fd` never changes.
        let fd = unsafe { (*raw.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        set_nonblocking(fd)?;
        readable_while(fd)
    }

    /// Its device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn provider(&self) -> &crate::ProviderRef {
        self.context.provider()
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    /// As [`Cq::check_process`](super::Cq::check_process).
    ///
    /// # Errors
    ///
    /// `Unsupported` in a forked child.
    pub fn check_process(&self) -> io::Result<()> {
        check(self.mark)
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // A panic leaves no count half-changed.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to count the events of a queue that was just made on this channel, and not armed yet.
    pub(super) fn add(&self, cq: NonNull<ibv_cq>) {
        let replaced = self.queues().by_address.insert(cq.as_ptr().addr(), Events::default());
        debug_assert!(replaced.is_none(), "a queue is forgotten when it is destroyed");
    }

    /// Takes all events that are there, of all queues, and says how many of `cq` were taken since this was asked last.
    pub(super) fn take_events(&self, cq: NonNull<ibv_cq>) -> io::Result<u32> {
        let mut queues = self.queues();
        let result = self.take_all(&mut queues);
        let own = queues.by_address.get_mut(&cq.as_ptr().addr()).map_or(0, |events| std::mem::take(&mut events.untold));
        match result {
            // What was taken must be told, or nobody arms the queue again; the error comes with the next call.
            Err(e) if own == 0 => Err(e),
            _ => Ok(own),
        }
    }

    /// Takes all events that are there, and appends the queues of which some were taken since their events were asked for last, each by
    /// its [address](super::Cq::address). For who waits for many queues.
    ///
    /// # Errors
    ///
    /// As `ibv_get_cq_event(3)`; what was taken before it is in `into`.
    pub fn take_fired(&self, into: &mut Vec<usize>) -> io::Result<()> {
        self.check_process()?;
        let mut queues = self.queues();
        let result = self.take_all(&mut queues);
        let Queues { by_address, fired } = &mut *queues;
        into.extend(fired.drain(..).filter(|address| {
            by_address.get_mut(address).is_some_and(|events| {
                events.is_noted = false;
                // None, if the queue was asked for them itself.
                std::mem::take(&mut events.untold) > 0
            })
        }));
        result
    }

    fn take_all(&self, queues: &mut Queues) -> io::Result<()> {
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is live, both are valid places for the result.
            let rc = unsafe { self.provider().ibv_get_cq_event(self.as_ptr(), &raw mut cq, &raw mut context) };
            match minus1_ret(rc) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
            let Some(events) = queues.by_address.get_mut(&cq.addr()) else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the provider reported an event of a queue that is not on the channel",
                ));
            };
            if !events.is_noted {
                events.is_noted = true;
                queues.fired.push(cq.addr());
            }
            events.untold += 1;
            events.unacked += 1;
            if events.unacked >= ACK_BATCH {
                // SAFETY: the queue is live, being in the table, and exactly so many of its events were taken and not acknowledged.
                unsafe { self.provider().ibv_ack_cq_events(cq, events.unacked) };
                events.unacked = 0;
            }
        }
    }

    /// Acknowledges what was taken of a queue's events, and destroys it: `ibv_destroy_cq(3)`.
    ///
    /// # Safety
    ///
    /// The queue was added to this channel, nothing uses it, and it is not used after this has succeeded.
    pub(super) unsafe fn destroy(&self, cq: NonNull<ibv_cq>) -> io::Result<()> {
        // Held until it is destroyed: an event that another thread took in between would be acknowledged by nobody.
        let mut queues = self.queues();
        let addr = cq.as_ptr().addr();
        let unacked = queues.by_address.get_mut(&addr).map_or(0, |events| std::mem::take(&mut events.unacked));
        if unacked > 0 {
            // SAFETY: the queue is live, and exactly so many of its events were taken and not acknowledged.
            unsafe { self.provider().ibv_ack_cq_events(cq.as_ptr(), unacked) };
        }
        // SAFETY: live, unused (contract above), and every event is acknowledged.
        errno_ret(unsafe { self.provider().ibv_destroy_cq(cq.as_ptr()) })?;
        // Only now: one that could not be destroyed may still have events.
        if queues.by_address.remove(&addr).is_some_and(|events| events.is_noted) {
            queues.fired.retain(|fired| *fired != addr);
        }
        Ok(())
    }
}

impl AsFd for CompChannel {
    /// Readable while there is an event of a queue on it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        // SAFETY: live, and every queue on it held an `Arc` of it and is destroyed.
        let rc = unsafe { self.provider().ibv_destroy_comp_channel(self.raw.as_ptr()) };
        match errno_ret(rc) {
            // SAFETY: not used again; the field is dropped here only.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.context) },
            Err(e) => leaked("a completion channel", &e),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use super::*;
    use crate::owned::Cq;
    use crate::testing::fake::Fake;
    use crate::testing::{Call, CountingProvider, FailingProvider, Plan};

    /// A channel with two queues on it.
    fn shared(provider: &crate::ProviderRef) -> (Arc<CompChannel>, Arc<Cq>, Arc<Cq>) {
        let context = Context::list(provider).unwrap().remove(0);
        let channel = CompChannel::create(&context).unwrap();
        let (first, second) = (Cq::create_on(&channel, 4, 0).unwrap(), Cq::create_on(&channel, 4, 0).unwrap());
        (channel, first, second)
    }

    #[test]
    fn each_queue_is_told_its_own_events_whoever_took_them() {
        let fake = Fake::new();
        let (_channel, first, second) = shared(&(Arc::clone(&fake) as crate::ProviderRef));
        fake.push_cq_events(0, 2);
        fake.push_cq_events(1, 3);
        assert_eq!(first.take_events().unwrap(), 2);
        assert_eq!(first.take_events().unwrap(), 0);
        assert_eq!(second.take_events().unwrap(), 3);
        assert_eq!(second.take_events().unwrap(), 0);
    }

    fn fired(channel: &CompChannel) -> Vec<usize> {
        let mut fired = Vec::new();
        channel.take_fired(&mut fired).unwrap();
        fired
    }

    #[test]
    fn queues_with_events_are_told_by_address_once() {
        let fake = Fake::new();
        let (channel, first, second) = shared(&(Arc::clone(&fake) as crate::ProviderRef));
        assert_eq!(fired(&channel), []);
        fake.push_cq_events(1, 3);
        assert_eq!(fired(&channel), [second.address()]);
        assert_eq!(second.take_events().unwrap(), 0);
        fake.push_cq_events(0, 1);
        fake.push_cq_events(1, 1);
        assert_eq!(fired(&channel), [first.address(), second.address()]);
        assert_eq!(fired(&channel), []);
    }

    #[test]
    fn queue_that_was_asked_itself_or_is_gone_has_not_fired() {
        let fake = Fake::new();
        let (channel, first, second) = shared(&(Arc::clone(&fake) as crate::ProviderRef));
        fake.push_cq_events(0, 1);
        assert_eq!(first.take_events().unwrap(), 1);
        assert_eq!(fired(&channel), []);
        fake.push_cq_events(0, 1);
        fake.push_cq_events(1, 1);
        assert_eq!(second.take_events().unwrap(), 1);
        drop(first);
        assert_eq!(channel.queues().fired, [second.address()]);
        assert_eq!(fired(&channel), []);
    }

    #[test]
    fn error_behind_an_event_is_told_with_the_queue_of_the_event() {
        let fake = Fake::new();
        let failing = FailingProvider::new(Arc::clone(&fake) as crate::ProviderRef);
        let (channel, _first, second) = shared(&failing.provider());
        fake.push_cq_events(1, 1);
        failing.arm(Plan::nth_of(Call::ibv_get_cq_event, 1, libc::EIO));
        let mut told = Vec::new();
        assert_eq!(channel.take_fired(&mut told).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(told, [second.address()]);
    }

    #[test]
    fn queues_that_share_a_channel_are_destroyed_in_either_order_with_their_events_acknowledged() {
        for first_goes_first in [true, false] {
            let fake = Fake::new();
            let counting = CountingProvider::new(Arc::clone(&fake) as crate::ProviderRef);
            let (channel, first, second) = shared(&counting.provider());
            fake.push_cq_events(0, ACK_BATCH + 1);
            fake.push_cq_events(1, 1);
            assert_eq!(first.take_events().unwrap(), ACK_BATCH + 1);
            let (goes, stays) = if first_goes_first { (first, second) } else { (second, first) };
            // The fake refuses a queue with events that are taken and not acknowledged.
            drop(goes);
            drop(channel);
            fake.push_cq_events(0, 1);
            assert!(stays.take_events().unwrap() >= 1);
            drop(stays);
            counting.nothing_live().unwrap();
        }
    }

    #[test]
    fn error_behind_events_of_the_other_queue_is_told_and_loses_none() {
        let fake = Fake::new();
        let failing = FailingProvider::new(Arc::clone(&fake) as crate::ProviderRef);
        let (_channel, first, second) = shared(&failing.provider());
        fake.push_cq_events(1, 1);
        failing.arm(Plan::nth_of(Call::ibv_get_cq_event, 1, libc::EIO));
        assert_eq!(first.take_events().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(second.take_events().unwrap(), 1);
    }

    #[test]
    fn queue_that_could_not_be_destroyed_leaves_the_channel_usable_by_the_other() {
        let fake = Fake::new();
        let failing = FailingProvider::new(Arc::clone(&fake) as crate::ProviderRef);
        let (_channel, first, second) = shared(&failing.provider());
        failing.arm(Plan::nth_of(Call::ibv_destroy_cq, 0, libc::EBUSY));
        drop(first);
        fake.push_cq_events(0, 1);
        fake.push_cq_events(1, 1);
        assert_eq!(second.take_events().unwrap(), 1);
    }
}
