//! What many attempts leave behind in the process, the device and the kernel: nothing. Each test measures in a process of its own.

use std::cell::{Cell, RefCell};
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rpma::prelude::*;
use rpma::sys::testing::{CountingProvider, Counts, Kind};
use rpma::{DeviceEvents, Dispatcher, EstablishError, MAX_REJECT_BYTES};

use super::executor::{Async, Resolution, block_on, polled_once};
use crate::support::{LIMIT, addr, alone, cfg, is_soft, listen, peer_over, provider, request};

/// What the process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    /// What the provider made and has not freed.
    objects: Counts,
    /// The kernel's RDMA objects of this process, as `rdma resource show` (iproute2) lists them; none of the software provider.
    kernel_objects: Vec<(&'static str, usize)>,
}

fn holdings(counting: &CountingProvider) -> Holdings {
    // The directory's own descriptor is among them, each time.
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let kinds: &[_] = if is_soft() { &[] } else { &["cm_id", "qp", "cq", "pd", "mr"] };
    let kernel_objects = kinds.iter().map(|kind| (*kind, kernel_objects(kind))).collect();
    Holdings { descriptors, objects: counting.live(), kernel_objects }
}

fn kernel_objects(kind: &str) -> usize {
    let shown = Command::new("rdma").args(["resource", "show", kind]).output().expect("the tool `rdma` of iproute2 is installed");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    // The kernel notes the thread that made an object, and calls it a process.
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let mine: Vec<_> = threads.map(|thread| format!(" pid {} ", thread.unwrap().file_name().display())).collect();
    String::from_utf8(shown.stdout).unwrap().lines().filter(|line| mine.iter().any(|pid| line.contains(pid))).count()
}

/// Memory of the process that is no file's, in KiB, exactly: `statm` is off by some pages per processor.
fn anonymous_kib() -> usize {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Repeats `attempt` until whatever is made once is made, then measures over many more.
fn leaves_nothing(attempts: usize, counting: &CountingProvider, attempt: impl Fn()) {
    const WARM_UP: usize = 50;
    (0..WARM_UP).for_each(|_| attempt());
    let (before, kib) = (holdings(counting), anonymous_kib());
    // The peer's own: both counts see what this process has.
    for kind in [Kind::Id, Kind::Pd, Kind::Mr] {
        assert!(before.objects[kind] > 0, "no {} in {before:?}", kind.name());
    }
    for kind in ["cm_id", "pd", "mr"] {
        assert!(
            is_soft() || before.kernel_objects.iter().any(|&(shown, count)| shown == kind && count > 0),
            "no {kind} in {before:?}"
        );
    }
    (WARM_UP..attempts).for_each(|_| attempt());
    // The software provider's thread may be about to let go of the last one.
    let start = Instant::now();
    while holdings(counting) != before && start.elapsed() < LIMIT {
        thread::yield_now();
    }
    assert_eq!(holdings(counting), before);
    let grown_kib = anonymous_kib().saturating_sub(kib);
    assert!(grown_kib < 64, "{grown_kib} KiB more after {attempts} attempts");
}

/// A peer on the device under test, and who counts what it makes.
fn counted() -> (Arc<CountingProvider>, Peer) {
    let counting = CountingProvider::new(provider());
    let peer = peer_over(&counting.provider());
    (counting, peer)
}

#[test]
fn thousand_attempts_where_nobody_listens_leave_nothing() {
    alone(|| {
        let (counting, peer) = counted();
        leaves_nothing(1_000, &counting, || {
            let pending = ConnReq::new(&peer, (addr(), 9), &cfg()).unwrap().connect(&[]).unwrap();
            assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
            pending.disconnect().unwrap();
        });
    });
}

#[test]
fn thousand_rejections_leave_nothing_and_each_client_sees_its_own() {
    alone(|| {
        let (counting, peer) = counted();
        let (endpoint, _) = listen(&peer);
        let number = Cell::new(0_u32);
        leaves_nothing(1_000, &counting, || {
            number.set(number.get() + 1);
            let reason = number.get().to_le_bytes();
            let (pending, incoming) = request(&peer, &endpoint, &[]);
            // With queues and without, in turn.
            if number.get().is_multiple_of(2) {
                incoming.reject(&reason).unwrap();
            } else {
                incoming.prepare(&cfg()).unwrap().reject(&reason).unwrap();
            }
            let Err(EstablishError::Rejected(rejection)) = pending.established(LIMIT) else { panic!("not rejected") };
            assert_eq!((rejection.reason, rejection.private_data.len()), (28, MAX_REJECT_BYTES));
            assert_eq!(rejection.private_data[..4], reason);
        });
    });
}

#[test]
fn two_hundred_futures_of_each_kind_on_the_way_to_a_connection_that_were_dropped_leave_nothing() {
    alone(|| {
        let (counting, peer) = counted();
        let (endpoint, addr) = listen(&peer);
        let endpoint = RefCell::new(Async::new(endpoint).unwrap());
        let start = || Resolution::new(ConnReq::start(&peer, addr, &cfg()).unwrap()).unwrap();
        leaves_nothing(200, &counting, || {
            let mut endpoint = endpoint.borrow_mut();
            assert!(polled_once(endpoint.next_request()).is_pending());
            // Whether it is ready at once is the device's to say.
            drop(polled_once(start()));
            let request = block_on(start()).unwrap();
            let mut completions = Async::new(request.cq()).unwrap();
            assert!(polled_once(completions.wait()).is_pending());
            let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
            assert!(polled_once(pending.established()).is_pending());
            assert!(polled_once(pending.next_event()).is_pending());
            assert!(polled_once(pending.wait()).is_ready(), "its queues share no channel");
            let incoming = block_on(endpoint.next_request()).unwrap();
            drop((pending, completions, incoming));
        });
    });
}

#[test]
fn two_hundred_futures_of_each_kind_at_a_connection_that_were_dropped_leave_nothing() {
    alone(|| {
        let (counting, peer) = counted();
        let (endpoint, _) = listen(&peer);
        let stays = RefCell::new(Async::new(Dispatcher::new(&peer).unwrap()).unwrap());
        let shared = cfg().rcq_size(1).shared_channel(true);
        leaves_nothing(200, &counting, || {
            let mut events = Async::new(DeviceEvents::of(peer.device()).unwrap()).unwrap();
            while polled_once(events.next_event()).is_ready() {}
            let mut dispatcher = stays.borrow_mut();
            let pending = ConnReq::new(&peer, endpoint.local_addr().unwrap(), &shared).unwrap().connect(&[]).unwrap();
            let incoming = endpoint.next_conn_req(&cfg().dispatcher(&dispatcher), LIMIT).unwrap().connect(&[]).unwrap();
            let mut pending = Async::new(pending).unwrap();
            let mut client = Async::new(block_on(pending.established()).unwrap()).unwrap();
            let server = block_on(Async::new(incoming).unwrap().established()).unwrap();
            let mut queues = Async::new(client.shared_queues().unwrap()).unwrap();
            assert!(polled_once(client.next_event()).is_pending());
            assert!(polled_once(client.wait()).is_pending() && polled_once(pending.wait()).is_pending());
            assert!(polled_once(queues.wait()).is_pending() && polled_once(dispatcher.wait()).is_pending());
            drop((events, queues, client, pending, server));
        });
    });
}

#[test]
fn two_hundred_connections_at_one_dispatcher_leave_nothing_there_and_one_dispatcher_each_neither() {
    alone(|| {
        let (counting, peer) = counted();
        let (endpoint, _) = listen(&peer);
        let stays = Dispatcher::new(&peer).unwrap();
        leaves_nothing(200, &counting, || {
            let goes = Dispatcher::new(&peer).unwrap();
            for dispatcher in [&stays, &goes] {
                let (pending, incoming) = request(&peer, &endpoint, &[]);
                let server = incoming.prepare(&cfg().dispatcher(dispatcher)).unwrap();
                server.recv(LocalSlice::null(), 1).unwrap();
                let server = server.connect(&[]).unwrap();
                let client = pending.established(LIMIT).unwrap();
                let server = server.established(LIMIT).unwrap();
                client.send(LocalSlice::null(), Signal::Always, 2).unwrap();
                dispatcher.wait(LIMIT).unwrap().found.unwrap().1.result().unwrap();
                // One with a completion that nobody has taken, too.
                client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 3).unwrap();
                server.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 3).unwrap();
                drop((client, server));
            }
        });
    });
}

#[test]
fn two_hundred_connections_that_were_used_and_closed_leave_nothing() {
    alone(|| {
        let (counting, peer) = counted();
        let (endpoint, _) = listen(&peer);
        leaves_nothing(200, &counting, || {
            let (pending, incoming) = request(&peer, &endpoint, b"hello");
            let accepting = incoming.prepare(&cfg()).unwrap().connect(b"welcome").unwrap();
            let client = pending.established(LIMIT).unwrap();
            let server = accepting.established(LIMIT).unwrap();
            client.disconnect().unwrap();
            assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        });
    });
}
