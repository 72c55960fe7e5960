//! The thread that makes data durable.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::thread;

use super::{caught, lock};

type Job = Box<dyn FnOnce() + Send>;

/// Runs `job` on the thread for what takes long. The job comes back if there can be no such thread: it takes the lock of its connection,
/// which the caller holds.
pub(crate) fn persist(job: Job) -> Result<(), Job> {
    // With the process that the thread is in: a forked child has none.
    static QUEUE: Mutex<Option<(u32, Sender<Job>)>> = Mutex::new(None);
    let pid = std::process::id();
    let mut queue = lock(&QUEUE);
    if queue.as_ref().is_none_or(|(of, _)| *of != pid) {
        let (sender, receiver) = mpsc::channel::<Job>();
        let run = move || {
            super::net::block_signals();
            for job in receiver {
                // One that panics is lost, and the others go on.
                caught(job);
            }
        };
        match thread::Builder::new().name("rpma-soft-flush".into()).spawn(run) {
            Ok(_) => *queue = Some((pid, sender)),
            Err(e) => {
                log::warn!("no thread for flushes: {e}");
                return Err(job);
            }
        }
    }
    match queue.as_ref() {
        Some((_, sender)) => sender.send(job).map_err(|mpsc::SendError(job)| job),
        None => Err(job),
    }
}
