//! A peer that is killed with operations in flight, for each way to wait beside those in `death`: all that is outstanding completes with
//! an error, and then whoever waits is told that there will be no more.

use std::env;
use std::process::{Child, Stdio};
use std::thread;

use rpma::prelude::*;
use rpma::{CqRole, Dispatched, Dispatcher};

use super::death::fill;
use super::executor::{Async, block_on};
use crate::support::{LIMIT, cfg, in_time, listen, name_of, peer, this_test_again};

/// A process that holds the other end, and ends only by being killed.
struct OtherProcess(Child);

impl OtherProcess {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `body`, a closure of the calling test, on a connection of another process, which is this program told to run the same test.
fn connected_to_a_process<F: FnOnce(Conn, &ConnCfg, OtherProcess)>(server: fn(&Peer) -> ConnCfg, body: F) {
    const OTHER_END: &str = "RPMA_TEST_KILLED_END";
    let peer = peer();
    if let Ok(addr) = env::var(OTHER_END) {
        let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
        let event = pending.established(Wait::Forever).unwrap().next_event(Wait::Forever);
        panic!("{event:?} came to a process that was to be killed");
    }
    let (endpoint, addr) = listen(&peer);
    let mut other = this_test_again(name_of::<F>());
    other.env(OTHER_END, addr.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    let other = OtherProcess(other.spawn().unwrap());
    let server = server(&peer);
    let request = endpoint.next_conn_req(&server, LIMIT).unwrap();
    body(request.connect(&[]).unwrap().established(LIMIT).unwrap(), &server, other);
}

/// Counts what `wait` gives until it says that all is drained. Each is an error.
fn failed_until_drained(mut wait: impl FnMut() -> Result<Completion, CqError>) -> usize {
    for failed in 0.. {
        match wait() {
            Ok(completion) => assert!(completion.result().is_err(), "{completion:?}"),
            Err(CqError::Drained) => return failed,
            Err(e) => panic!("{e:?} after {failed}"),
        }
    }
    unreachable!("a queue has no such length")
}

/// The peer is killed while `wait` waits for all that fits in the connection's queues.
fn all_fails(conn: &Conn, mut other: OtherProcess, wait: impl FnMut() -> Result<Completion, CqError> + Send) {
    let outstanding = fill(conn);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| failed_until_drained(wait));
        other.kill();
        assert_eq!(waiting.join().unwrap(), outstanding.count);
    });
    assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
}

#[test]
fn killed_peer_ends_what_is_outstanding_in_each_queue_for_who_waits_for_that_one() {
    connected_to_a_process(
        |_| cfg().rcq_size(10),
        |conn, _, mut other| {
            let outstanding = fill(&conn);
            let (main, receive) = (conn.cq(), conn.rcq().unwrap());
            thread::scope(|scope| {
                let sends = scope.spawn(|| failed_until_drained(|| main.wait(LIMIT)));
                let receives = scope.spawn(|| failed_until_drained(|| receive.wait(LIMIT)));
                other.kill();
                assert_eq!(sends.join().unwrap() + receives.join().unwrap(), outstanding.count);
            });
            in_time(move || drop((conn, main, receive)));
        },
    );
}

#[test]
fn killed_peer_ends_what_is_outstanding_for_a_thread_at_a_shared_channel() {
    connected_to_a_process(
        |_| cfg().rcq_size(10).shared_channel(true),
        |conn, _, other| all_fails(&conn, other, || conn.wait(LIMIT).map(completion)),
    );
}

#[test]
fn killed_peer_ends_what_is_outstanding_for_a_task_at_a_shared_channel() {
    connected_to_a_process(
        |_| cfg().rcq_size(10).shared_channel(true),
        |conn, _, other| {
            let mut queues = Async::new(conn.shared_queues().unwrap()).unwrap();
            all_fails(&conn, other, move || block_on(queues.wait()).map(completion));
        },
    );
}

fn completion((_, completion): (CqRole, Completion)) -> Completion {
    completion
}

fn with_a_dispatcher(peer: &Peer) -> ConnCfg {
    cfg().dispatcher(&Dispatcher::new(peer).unwrap())
}

fn of_dispatcher(dispatched: Dispatched) -> Result<Completion, CqError> {
    dispatched.found.map(completion)
}

#[test]
fn killed_peer_ends_what_is_outstanding_for_a_thread_at_a_dispatcher() {
    connected_to_a_process(with_a_dispatcher, |conn, cfg, other| {
        let dispatcher = cfg.get_dispatcher().unwrap();
        all_fails(&conn, other, || dispatcher.wait(LIMIT).and_then(of_dispatcher));
    });
}

#[test]
fn killed_peer_ends_what_is_outstanding_for_a_task_at_a_dispatcher() {
    connected_to_a_process(with_a_dispatcher, |conn, cfg, other| {
        let mut waiting = Async::new(cfg.get_dispatcher().unwrap().clone()).unwrap();
        all_fails(&conn, other, move || block_on(waiting.wait()).and_then(of_dispatcher));
    });
}

#[test]
fn killed_peer_ends_no_receive_of_a_shared_queue_and_all_that_was_sent() {
    connected_to_a_process(
        |peer| cfg().srq(&peer.new_srq(&SrqCfg::new()).unwrap()),
        |conn, cfg, mut other| {
            let srq = cfg.get_srq().unwrap();
            srq.recv(LocalSlice::null(), 1).unwrap();
            for n in 0..5 {
                conn.send(LocalSlice::null(), Signal::Always, n).unwrap();
            }
            thread::scope(|scope| {
                let waiting = scope.spawn(|| failed_until_drained(|| conn.cq().wait(LIMIT)));
                other.kill();
                assert_eq!(waiting.join().unwrap(), 5);
            });
            assert!(matches!(srq.rcq().unwrap().wait(Wait::Now), Err(CqError::NoCompletion)));
        },
    );
}
