//! A completion queue with those who wait for it, whoever owns the requests that complete into it: polling and waiting.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use rpma_mr::sys::bindings::ibv_wc;
use rpma_mr::sys::owned::Cq;

use crate::completion::Completion;
use crate::cq::CqError;
use crate::link::{Link, lock};
use crate::wait::{Wait, until_readable};
use crate::waiters::Waiters;

/// What the provider's completion turned out to be.
pub(crate) enum Retired {
    Completion(Completion),
    /// Nobody's: it was wanted by us alone, and only freed slots.
    Silent,
    Stray,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) cq: Arc<Cq>,
    pub(crate) waiters: Arc<Waiters>,
    /// Completions that were set aside, the oldest first. Under this lock, one thread at a time goes from the provider's queue to the
    /// ledger, which retires in order.
    aside: Mutex<VecDeque<Completion>>,
}

impl Queue {
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub(crate) fn new(cq: Arc<Cq>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { cq, waiters: Arc::new(Waiters::new()?), aside: Mutex::default() }))
    }

    /// Takes as many completions as there are and `room` has room for, and says how many went to `take`.
    pub(crate) fn poll(
        &self,
        room: &mut [ibv_wc],
        retire: impl Fn(&ibv_wc) -> Retired,
        mut take: impl FnMut(Completion),
    ) -> Result<usize, CqError> {
        self.cq.check_process().map_err(CqError::Provider)?;
        let mut aside = lock(&self.aside);
        let mut given = 0;
        while given < room.len()
            && let Some(completion) = aside.pop_front()
        {
            take(completion);
            given += 1;
        }
        if given == room.len() {
            return Ok(given);
        }
        self.poll_provider(&mut room[given..], retire, take).map(|more| given + more)
    }

    /// Takes all completions that are there now, for who polls next.
    pub(crate) fn set_aside(&self, retire: impl Fn(&ibv_wc) -> Retired) -> Result<(), CqError> {
        self.cq.check_process().map_err(CqError::Provider)?;
        let mut aside = lock(&self.aside);
        let mut room = [ibv_wc::default(); 16];
        while self.poll_provider(&mut room, &retire, |completion| aside.push_back(completion))? == room.len() {}
        Ok(())
    }

    /// With `aside` locked.
    fn poll_provider(
        &self,
        room: &mut [ibv_wc],
        retire: impl Fn(&ibv_wc) -> Retired,
        mut take: impl FnMut(Completion),
    ) -> Result<usize, CqError> {
        let mut given = 0;
        loop {
            let wanted = room.len() - given;
            let taken = self.cq.poll(&mut room[..wanted]).map_err(CqError::Provider)?;
            let mut stray = None;
            let mut silent = 0;
            for wc in &room[..taken] {
                match retire(wc) {
                    Retired::Completion(completion) => take(completion),
                    Retired::Silent => silent += 1,
                    Retired::Stray => stray = Some(wc.wr_id),
                }
            }
            if let Some(wr_id) = stray {
                return Err(CqError::Stray { wr_id });
            }
            given += taken - silent;
            // A silent one took the place of one that may be behind it.
            if silent == 0 || taken < wanted {
                return Ok(given);
            }
        }
    }
}

/// Waits until `look` finds something: in `queue`, or in `other`, which shares its channel. The events of `link` are handled meanwhile.
pub(crate) fn wait_for<T>(
    queue: &Queue,
    other: Option<&Queue>,
    link: Option<&Link>,
    wait: Wait,
    look: impl Fn() -> Result<Option<T>, CqError>,
) -> Result<T, CqError> {
    // Before a lock is taken, which another thread of the parent may have held.
    queue.cq.check_process().map_err(CqError::Provider)?;
    let waiters = &queue.waiters;
    let cqs = || [Some(queue), other].into_iter().flatten().map(|queue| &queue.cq);
    loop {
        let seen = waiters.seen();
        if let Some(found) = look()? {
            return Ok(found);
        }
        if wait.is_over() {
            return Err(CqError::NoCompletion);
        }
        // A completion from before the arming raises no event: look once more after it.
        for cq in cqs() {
            cq.request_notify().map_err(CqError::Wait)?;
        }
        if let Some(found) = look()? {
            return Ok(found);
        }
        let Some(_lead) = waiters.lead_or_follow(seen, wait) else { continue };
        let events = link.map(|link| link.channel.as_fd());
        let fds: Vec<_> = [queue.cq.as_fd(), waiters.wake.as_fd()].into_iter().chain(events).collect();
        if !until_readable(&fds, wait).map_err(CqError::Wait)? {
            return Err(CqError::NoCompletion);
        }
        waiters.wake.clear();
        for cq in cqs() {
            cq.take_events().map_err(CqError::Wait)?;
        }
        if let Some(link) = link {
            link.pump().map_err(CqError::Wait)?;
        }
    }
}
