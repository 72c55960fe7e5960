//! Where receives come from.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use super::completion::Completion;
use super::{PdNumber, PostError, QpCapacity, RecvWr, WcStatus};

/// A shared receive queue, as far as a queue pair sees it: `ibv_create_srq(3)`. Its owner locks it, counts its slots, and tells when
/// its limit is reached.
pub trait SharedReceives: Debug + Send + Sync {
    /// Takes the oldest receive. Its slot is free when it is [released](Self::release).
    fn take(&self) -> Option<RecvWr>;

    /// Gives back slots of receives that were taken: their completions are polled, or never will be.
    fn release(&self, slots: u32);

    /// The protection domain that the memory of its receives is in, whichever the queue pair's is (IBTA volume 1, 10.2.9.1; soft-RoCE
    /// takes the queue pair's).
    fn pd(&self) -> PdNumber;
}

/// The receives of a queue pair.
#[derive(Debug)]
pub(super) enum Receives {
    Own {
        queue: VecDeque<RecvWr>,
        /// Slots whose completion was not polled yet, the queue's own included.
        used: u32,
    },
    Shared {
        of: Arc<dyn SharedReceives>,
        /// Slots of the shared queue whose completion was not polled yet.
        used: u32,
    },
}

impl Receives {
    pub(super) fn new(shared: Option<Arc<dyn SharedReceives>>) -> Self {
        match shared {
            Some(of) => Self::Shared { of, used: 0 },
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
            Self::Shared { of, used } => {
                let wr = of.take()?;
                *used += 1;
                Some(wr)
            }
        }
    }

    /// The protection domain of the memory that receives name; `own` is the queue pair's.
    pub(super) fn pd(&self, own: PdNumber) -> PdNumber {
        match self {
            Self::Own { .. } => own,
            Self::Shared { of, .. } => of.pd(),
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    pub(super) fn release(&mut self, slots: u32) {
        match self {
            Self::Own { used, .. } => *used = used.saturating_sub(slots),
            Self::Shared { of, used } => {
                let slots = slots.min(*used);
                *used -= slots;
                of.release(slots);
            }
        }
    }

    /// Completes everything that is posted with a flush error. A shared queue's receives belong to no queue pair and stay.
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>) {
        if let Self::Own { queue, .. } = self {
            completions.extend(queue.drain(..).map(|wr| Completion::failed_receive(wr.wr_id, WcStatus::WrFlush)));
        }
    }

    /// Forgets everything that is posted, and what was taken.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Own { queue, used } => {
                queue.clear();
                *used = 0;
            }
            Self::Shared { of, used } => of.release(std::mem::take(used)),
        }
    }

    pub(super) fn posted(&self) -> usize {
        match self {
            Self::Own { queue, .. } => queue.len(),
            Self::Shared { .. } => 0,
        }
    }
}

impl Drop for Receives {
    /// What the queue pair took of a shared queue goes with it.
    fn drop(&mut self) {
        self.reset();
    }
}
