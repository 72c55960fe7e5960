//! Acknowledged events, where programs in C expect them: completion queues, queue pairs and shared receive queues have a count of them in
//! their structures, with a mutex and a condition beside it. As in libibverbs an acknowledgement raises the count and wakes who waits at the
//! condition, and what destroys the object waits there.
#![expect(unsafe_code, reason = "locks and counts in structures of verbs")]

use std::ffi::c_void;
use std::mem::offset_of;

use libc::{pthread_cond_t, pthread_mutex_t};
use rpma_sys::bindings::*;

/// Where an object has them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    count: *mut u32,
}

impl Place {
    fn at(object: *mut c_void, mutex: usize, cond: usize, count: usize) -> Self {
        Self {
            mutex: object.wrapping_byte_add(mutex).cast(),
            cond: object.wrapping_byte_add(cond).cast(),
            count: object.wrapping_byte_add(count).cast(),
        }
    }

    /// A completion queue's, of the events on its channel.
    pub(super) fn of_completions(cq: *mut ibv_cq) -> Self {
        let count = offset_of!(ibv_cq, comp_events_completed);
        Self::at(cq.cast(), offset_of!(ibv_cq, mutex), offset_of!(ibv_cq, cond), count)
    }

    /// A completion queue's, of asynchronous events.
    pub(super) fn of_cq(cq: *mut ibv_cq) -> Self {
        let count = offset_of!(ibv_cq, async_events_completed);
        Self::at(cq.cast(), offset_of!(ibv_cq, mutex), offset_of!(ibv_cq, cond), count)
    }

    /// A queue pair's, of asynchronous events.
    pub(super) fn of_qp(qp: *mut ibv_qp) -> Self {
        Self::at(qp.cast(), offset_of!(ibv_qp, mutex), offset_of!(ibv_qp, cond), offset_of!(ibv_qp, events_completed))
    }

    /// A shared receive queue's, of asynchronous events.
    pub(super) fn of_srq(srq: *mut ibv_srq) -> Self {
        Self::at(srq.cast(), offset_of!(ibv_srq, mutex), offset_of!(ibv_srq, cond), offset_of!(ibv_srq, events_completed))
    }

    /// The program acknowledges `events` of them. Who waits for that may free the object as soon as this has unlocked the mutex.
    ///
    /// # Safety
    ///
    /// The object is live until then, and nobody holds a reference to these fields.
    pub(super) unsafe fn ack(self, events: u32) {
        // SAFETY: an initialised mutex of a live object (contract above).
        unsafe { libc::pthread_mutex_lock(self.mutex) };
        // SAFETY: a number of a live object (contract above), which is guarded by the mutex.
        let acked = unsafe { self.count.read() }.wrapping_add(events);
        // SAFETY: as above.
        unsafe { self.count.write(acked) };
        // All of them: a thread of the program's that waits there must not take the wake-up from who destroys the object. And under the
        // mutex: afterwards the object may be gone.
        // SAFETY: an initialised condition of a live object (contract above).
        unsafe { libc::pthread_cond_broadcast(self.cond) };
        // SAFETY: locked above, by this thread. The object may be freed as soon as another thread can lock it, which the mutex allows
        // (`pthread_mutex_destroy(3p)`).
        unsafe { libc::pthread_mutex_unlock(self.mutex) };
    }

    /// Waits until the program has acknowledged all the `told` events that it took. Both counts wrap around, as in C.
    ///
    /// # Safety
    ///
    /// The object is live, and nobody holds a reference to these fields.
    pub(super) unsafe fn wait(self, told: u32) {
        // SAFETY: an initialised mutex of a live object (contract above).
        unsafe { libc::pthread_mutex_lock(self.mutex) };
        // SAFETY: a number of a live object (contract above), which is guarded by the mutex.
        while unsafe { self.count.read() } != told {
            // SAFETY: both are initialised and of a live object (contract above); the mutex is locked by this thread.
            unsafe { libc::pthread_cond_wait(self.cond, self.mutex) };
        }
        // SAFETY: locked above, by this thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Structures that stay for as long as the test, each at its place.
    fn made<T: Default>() -> *mut T {
        Box::into_raw(Box::default())
    }

    /// Frees what `made` made.
    fn free<T>(object: *mut T) {
        // SAFETY: made by `made`, and freed once, at a test's end.
        drop(unsafe { Box::from_raw(object) });
    }

    fn count(place: Place) -> u32 {
        // SAFETY: of an object that the test has not freed, which no other thread uses now.
        unsafe { place.count.read() }
    }

    #[test]
    fn each_kind_of_event_is_counted_in_its_own_field() {
        let (cq, qp, srq) = (made::<ibv_cq>(), made::<ibv_qp>(), made::<ibv_srq>());
        let places = [Place::of_completions(cq), Place::of_cq(cq), Place::of_qp(qp), Place::of_srq(srq)];
        for (place, events) in places.into_iter().zip(1..) {
            // SAFETY: live.
            unsafe { place.ack(events) };
            // SAFETY: live.
            unsafe { place.ack(10) };
        }
        // SAFETY: live, and nobody else's.
        let fields = unsafe { cq.read() };
        assert_eq!([fields.comp_events_completed, fields.async_events_completed], [11, 12]);
        // SAFETY: as above.
        assert_eq!(unsafe { qp.read() }.events_completed, 13);
        // SAFETY: as above.
        assert_eq!(unsafe { srq.read() }.events_completed, 14);
        free(cq);
        free(qp);
        free(srq);
    }

    #[test]
    fn count_wraps_around() {
        let cq = made::<ibv_cq>();
        let place = Place::of_cq(cq);
        // SAFETY: live.
        unsafe { place.ack(u32::MAX) };
        // SAFETY: live.
        unsafe { place.ack(2) };
        assert_eq!(count(place), 1);
        // SAFETY: live.
        unsafe { place.wait(1) };
        free(cq);
    }

    #[test]
    fn wait_ends_with_the_acknowledgement_of_the_last_event_that_was_taken() {
        let cq = made::<ibv_cq>();
        let addr = cq.expose_provenance();
        let acked = AtomicU32::new(0);
        let acked_at_the_end = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // SAFETY: live until the end of the test.
                unsafe { Place::of_completions(std::ptr::with_exposed_provenance_mut(addr)).wait(3) };
                acked.load(Ordering::SeqCst)
            });
            for events in [2, 1] {
                // Who would not wait has the processor for it.
                (0..1000).for_each(|_| thread::yield_now());
                acked.fetch_add(events, Ordering::SeqCst);
                // SAFETY: as above.
                unsafe { Place::of_completions(cq).ack(events) };
            }
            waiting.join().unwrap()
        });
        assert_eq!(acked_at_the_end, 3);
        free(cq);
    }
}
