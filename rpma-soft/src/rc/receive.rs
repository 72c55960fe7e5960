//! Where receives come from.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use super::completion::Completion;
use super::{PostError, QpCapacity, RecvWr, WcStatus};

/// A shared receive queue, as far as a queue pair sees it: `ibv_create_srq(3)`. Its owner locks it, counts its slots, and tells when
/// its limit is reached.
pub trait SharedReceives: Debug + Send + Sync {
    /// Takes the oldest receive.
    fn take(&self) -> Option<RecvWr>;
}

/// The receives of a queue pair.
#[derive(Debug)]
pub(super) enum Receives {
    Own {
        queue: VecDeque<RecvWr>,
        /// Slots whose completion was not polled yet, the queue's own included.
        used: u32,
    },
    Shared(Arc<dyn SharedReceives>),
}

impl Receives {
    pub(super) fn new(shared: Option<Arc<dyn SharedReceives>>) -> Self {
        match shared {
            Some(shared) => Self::Shared(shared),
            None => Self::Own { queue: VecDeque::new(), used: 0 },
        }
    }

    pub(super) fn post(&mut self, wr: RecvWr, capacity: &QpCapacity) -> Result<(), PostError> {
        let Self::Own { queue, used } = self else {
            return Err(PostError::SharedReceives);
        };
        if wr.sges.len() > capacity.recv_sge as usize {
            return Err(PostError::Sges { sges: wr.sges.len(), max: capacity.recv_sge });
        }
        if *used >= capacity.recv_wr {
            return Err(PostError::QueueFull { capacity: capacity.recv_wr });
        }
        *used += 1;
        queue.push_back(wr);
        Ok(())
    }

    pub(super) fn take(&mut self) -> Option<RecvWr> {
        match self {
            Self::Own { queue, .. } => queue.pop_front(),
            Self::Shared(shared) => shared.take(),
        }
    }

    pub(super) fn release(&mut self, slots: u32) {
        if let Self::Own { used, .. } = self {
            *used = used.saturating_sub(slots);
        }
    }

    /// Completes everything that is posted with a flush error. A shared queue's receives belong to no queue pair and stay.
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>) {
        if let Self::Own { queue, .. } = self {
            completions.extend(queue.drain(..).map(|wr| Completion::failed_receive(wr.wr_id, WcStatus::WrFlush)));
        }
    }

    /// Forgets everything that is posted.
    pub(super) fn reset(&mut self) {
        if let Self::Own { queue, used } = self {
            queue.clear();
            *used = 0;
        }
    }

    pub(super) fn posted(&self) -> usize {
        match self {
            Self::Own { queue, .. } => queue.len(),
            Self::Shared(_) => 0,
        }
    }
}
