//! A completion queue with those who wait for it, whoever owns the requests that complete into it: polling and waiting.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use rpma_mr::sys::bindings::ibv_wc;
use rpma_mr::sys::owned::Cq;

use crate::asynchronous::Watched;
use crate::awaited::Awaited;
use crate::completion::Completion;
use crate::cq::CqError;
use crate::link::{Link, lock};
use crate::wait::any_of;
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

/// Where completions are waited for together: one queue, or two that share their channel; and what is looked for there.
pub(crate) struct Place<'a, L> {
    pub(crate) queue: &'a Arc<Queue>,
    pub(crate) other: Option<&'a Arc<Queue>>,
    /// Its events are handled meanwhile.
    pub(crate) link: Option<&'a Link>,
    pub(crate) look: L,
}

impl<'a, T, L: Fn() -> Result<Option<T>, CqError>> Place<'a, L> {
    /// For tasks.
    pub(crate) fn watched(&self) -> io::Result<Watched> {
        Ok(Watched { fd: any_of(&self.descriptors())?, waiters: Some(Arc::clone(&self.queue.waiters)) })
    }

    fn cqs(&self) -> impl Iterator<Item = &'a Cq> + use<'a, T, L> {
        [Some(self.queue), self.other].into_iter().flatten().map(|queue| &*queue.cq)
    }
}

impl<T, L: Fn() -> Result<Option<T>, CqError>> Awaited for Place<'_, L> {
    type Found = T;

    fn waiters(&self) -> &Waiters {
        &self.queue.waiters
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let events = self.link.map(|link| link.channel.as_fd());
        [self.queue.cq.as_fd()].into_iter().chain(events).collect()
    }

    fn check_process(&self) -> Result<(), CqError> {
        self.queue.cq.check_process().map_err(CqError::Provider)
    }

    fn look(&self, _: u64) -> Result<Option<T>, CqError> {
        (self.look)()
    }

    fn arm(&self) -> io::Result<()> {
        self.cqs().try_for_each(Cq::request_notify)
    }

    fn take_events(&self) -> io::Result<bool> {
        let mut taken = 0;
        for cq in self.cqs() {
            taken += cq.take_events()?;
        }
        if let Some(link) = self.link {
            link.pump()?;
        }
        Ok(taken > 0)
    }
}
