//! A completion that comes when a look has found nothing, and before the queue is armed: it raises no event, and whatever waits must
//! find it all the same. Each way to wait, with the message put there at each arming.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rpma::prelude::*;
use rpma::sys::testing::{Call, FailingProvider};
use rpma::{Dispatched, Dispatcher, Waitable};
use tokio::runtime::{Builder, Runtime};

use super::executor::{Async, block_on, block_on_dropped};
use crate::support::{LIMIT, Pair, cfg, peer, peer_over, provider};

/// A connection whose server's armings are watched.
struct Watched {
    failing: Arc<FailingProvider>,
    pair: Pair,
    /// Where the server posts its receives, if not to the connection.
    srq: Option<Srq>,
}

impl Watched {
    fn new(server: impl FnOnce(&Peer) -> ConnCfg) -> Self {
        let failing = FailingProvider::new(provider());
        let watched = peer_over(&failing.provider());
        let server = server(&watched);
        let pair = Pair::connect(&peer(), &cfg(), &watched, &server);
        Self { failing, pair, srq: server.get_srq().cloned() }
    }

    /// `wait` arms so many queues when it has found nothing. A message comes just before each of them is armed, again and again.
    fn is_delivered(&self, armings: usize, mut wait: impl FnMut() -> u64) {
        for round in 0..3 {
            for before in 0..armings {
                let context = (10 * round + before) as u64;
                match &self.srq {
                    Some(srq) => srq.recv(LocalSlice::null(), context).unwrap(),
                    None => self.pair.server.recv(LocalSlice::null(), context).unwrap(),
                }
                let sent = self.send_before_arming(before);
                assert_eq!(wait(), context, "before arming {before}, round {round}");
                self.failing.remove_hook(Call::req_notify_cq);
                let (posted, completion) = sent.lock().unwrap().take().expect("the queue was armed");
                posted.unwrap();
                completion.unwrap().result().unwrap();
            }
        }
    }

    /// The message has been taken when its sender hears of it, so its completion is there before the arming.
    fn send_before_arming(&self, number: usize) -> Arc<Mutex<Option<Sent>>> {
        let sent = Arc::new(Mutex::new(None));
        let (done, seen, client) = (Arc::clone(&sent), AtomicUsize::new(0), self.pair.client.clone());
        self.failing.set_hook(Call::req_notify_cq, move |_| {
            if seen.fetch_add(1, Ordering::SeqCst) == number {
                let posted = client.send(LocalSlice::null(), Signal::Always, 8);
                // No panic below C: what went wrong is looked at later.
                *done.lock().unwrap() = Some((posted, client.cq().wait(LIMIT)));
            }
        });
        sent
    }
}

type Sent = (Result<(), PostError>, Result<Completion, CqError>);

/// What is waited for, in a runtime that is told of changes, where our own executor looks at what is.
fn on_tokio<T: Waitable>(of: T) -> (Runtime, rpma::tokio::Async<T>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let entered = runtime.enter();
    let waiting = rpma::tokio::Async::new(of).unwrap();
    drop(entered);
    (runtime, waiting)
}

fn of_dispatcher(dispatched: Dispatched) -> u64 {
    dispatched.found.unwrap().1.context()
}

#[test]
fn completion_before_the_arming_reaches_who_waits_for_one_queue() {
    let main: fn(&Watched) -> CompletionQueue = |watched| watched.pair.server.cq();
    let receive: fn(&Watched) -> CompletionQueue = |watched| watched.pair.server.rcq().unwrap();
    let shared: fn(&Watched) -> CompletionQueue = |watched| watched.srq.as_ref().unwrap().rcq().unwrap();
    let watched = [
        (Watched::new(|_| cfg()), main),
        (Watched::new(|_| cfg().rcq_size(10)), receive),
        (Watched::new(|peer| cfg().srq(&peer.new_srq(&SrqCfg::new()).unwrap())), shared),
    ];
    for (watched, queue) in &watched {
        let cq = queue(watched);
        watched.is_delivered(1, || cq.wait(LIMIT).unwrap().context());
        // As an event loop does.
        watched.is_delivered(1, || {
            cq.arm().unwrap();
            cq.poll().unwrap().expect("a completion").context()
        });
        let mut waiting = Async::new(cq.clone()).unwrap();
        watched.is_delivered(1, || block_on(waiting.wait()).unwrap().context());
        watched.is_delivered(1, || block_on_dropped(async || waiting.wait().await).unwrap().context());
        let (runtime, mut waiting) = on_tokio(cq.clone());
        watched.is_delivered(1, || runtime.block_on(waiting.wait()).unwrap().context());
    }
}

#[test]
fn completion_before_either_arming_reaches_who_waits_for_a_shared_channel() {
    let watched = Watched::new(|_| cfg().rcq_size(10).shared_channel(true));
    let server = &watched.pair.server;
    watched.is_delivered(2, || server.wait(LIMIT).unwrap().1.context());
    watched.is_delivered(2, || {
        server.arm().unwrap();
        server.rcq().unwrap().poll().unwrap().expect("a completion").context()
    });
    let mut waiting = Async::new(server.shared_queues().unwrap()).unwrap();
    watched.is_delivered(2, || block_on(waiting.wait()).unwrap().1.context());
    watched.is_delivered(2, || block_on_dropped(async || waiting.wait().await).unwrap().1.context());
}

#[test]
fn completion_before_either_arming_reaches_who_waits_for_a_dispatcher() {
    for (server, armings) in [(cfg(), 1), (cfg().rcq_size(10), 2)] {
        let mut made = None;
        let watched = Watched::new(|peer| server.dispatcher(made.insert(Dispatcher::new(peer).unwrap())));
        let dispatcher = made.unwrap();
        watched.is_delivered(armings, || of_dispatcher(dispatcher.wait(LIMIT).unwrap()));
        // What an event loop asks when the descriptor is readable.
        watched.is_delivered(armings, || of_dispatcher(dispatcher.wait(Wait::Now).unwrap()));
        let mut waiting = Async::new(dispatcher.clone()).unwrap();
        watched.is_delivered(armings, || of_dispatcher(block_on(waiting.wait()).unwrap()));
        watched.is_delivered(armings, || of_dispatcher(block_on_dropped(async || waiting.wait().await).unwrap()));
        let (runtime, mut waiting) = on_tokio(dispatcher.clone());
        watched.is_delivered(armings, || of_dispatcher(runtime.block_on(waiting.wait()).unwrap()));
    }
}
