//! The end of a connection with work outstanding: a peer that dies, one that disconnects, and our own disconnect.

use std::env;
use std::process::{Child, Stdio};
use std::thread;

use rpma::prelude::*;
use rpma::{CqError, EventError};

use crate::support::{LIMIT, Pair, cfg, complete, in_time, listen, name_of, peer, region, remote, this_test_again};

/// A process that holds the other end. It does nothing, and ends only by being killed.
pub(crate) struct OtherProcess(Child);

impl OtherProcess {
    /// SIGKILL: the process gets no chance to say anything.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `body`, a closure of the calling test, on a request of another process, which is this program told to run the same test.
pub(crate) fn requested_by_a_process<F: FnOnce(ConnReq<Incoming>, OtherProcess)>(body: F) {
    const OTHER_END: &str = "RPMA_TEST_OTHER_END";
    if let Ok(addr) = env::var(OTHER_END) {
        let pending = ConnReq::new(&peer(), addr, &cfg()).unwrap().connect(&[]).unwrap();
        let conn = pending.established(Wait::Forever).unwrap();
        let event = conn.next_event(Wait::Forever);
        panic!("{event:?} came to a process that was to be killed");
    }
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let mut other = this_test_again(name_of::<F>());
    other.env(OTHER_END, addr.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    let other = OtherProcess(other.spawn().unwrap());
    body(endpoint.next_conn_req(&cfg(), LIMIT).unwrap(), other);
}

/// What cannot complete: receives that nobody sends to, and messages that no receive waits for. With the regions that they need.
pub(crate) struct Outstanding {
    pub(crate) count: usize,
    _regions: [LocalMr<AnonPages>; 2],
}

/// Fills both queues of `conn`.
pub(crate) fn fill(conn: &Conn) -> Outstanding {
    let inbox = region(conn.peer(), 8, Usage::RECV);
    let outbox = region(conn.peer(), 8, Usage::SEND);
    let (sends, receives) = (cfg().get_sq_size(), cfg().get_rq_size());
    for n in 0..u64::from(receives) {
        conn.recv(inbox.slice(0..8).unwrap(), n).unwrap();
    }
    for n in 0..u64::from(sends) {
        // Without a completion on success: failures have one all the same.
        conn.send(outbox.slice(0..8).unwrap(), Signal::OnError, n).unwrap();
    }
    Outstanding { count: usize::try_from(sends + receives).unwrap(), _regions: [inbox, outbox] }
}

/// Waits for completions alone, and calls nothing else: `count` come, each an error, and then it is said that there will be no more.
/// Returns how many name a cause.
fn drained_after(conn: &Conn, count: usize) -> usize {
    let errors: Vec<_> = (0..count).map(|_| conn.cq().wait(LIMIT).unwrap().result().unwrap_err()).collect();
    let end = conn.cq().wait(LIMIT);
    assert!(matches!(end, Err(CqError::Drained)), "{end:?} after {errors:?}");
    errors.iter().filter(|error| !error.is_flushed()).count()
}

#[test]
fn killed_peer_ends_all_that_is_outstanding_for_a_thread_that_only_waits_for_completions() {
    requested_by_a_process(|request, mut other| {
        let conn = request.connect(&[]).unwrap().established(LIMIT).unwrap();
        let outstanding = fill(&conn);
        assert!(conn.cq().poll().unwrap().is_none(), "all of it is outstanding");
        other.kill();
        let causes = drained_after(&conn, outstanding.count);
        assert!(causes <= 1, "{causes} name a cause");
        // Waiting for completions read the event, and kept it.
        assert_eq!(conn.next_event(Wait::Now).unwrap(), ConnEvent::Closed);
        conn.disconnect().unwrap();
        in_time(move || drop(conn));
    });
}

#[test]
fn killed_peer_wakes_every_waiting_thread() {
    requested_by_a_process(|request, mut other| {
        let conn = request.connect(&[]).unwrap().established(LIMIT).unwrap();
        in_time(move || {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| assert!(matches!(conn.cq().wait(Wait::Forever), Err(CqError::Drained))));
                }
                let event = scope.spawn(|| conn.next_event(Wait::Forever).unwrap());
                other.kill();
                assert_eq!(event.join().unwrap(), ConnEvent::Closed);
            });
        });
    });
}

#[test]
fn client_killed_before_it_is_accepted_ends_its_request_or_its_connection() {
    requested_by_a_process(|request, mut other| {
        other.kill();
        in_time(move || {
            // Which step hears of it first is open; that one does is not.
            if let Ok(pending) = request.connect(&[]) {
                assert!(pending.established(LIMIT).is_err());
            }
        });
    });
}

#[test]
fn own_disconnect_flushes_all_that_is_outstanding() {
    let Pair { client, server } = Pair::new();
    let outstanding = fill(&client);
    client.disconnect().unwrap();
    assert_eq!(drained_after(&client, outstanding.count), 0, "all are flushed, and none names a cause");
    assert!(matches!(client.next_event(Wait::Now), Err(EventError::NoEvent)), "the other side has not answered");
    drop(server);
    assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
}

#[test]
fn peer_s_disconnect_ends_all_that_is_outstanding() {
    let Pair { client, server } = Pair::new();
    let outstanding = fill(&client);
    server.disconnect().unwrap();
    let causes = drained_after(&client, outstanding.count);
    assert!(causes <= 1, "{causes} name a cause");
    assert_eq!(client.next_event(Wait::Now).unwrap(), ConnEvent::Closed);
}

#[test]
fn peer_s_disconnect_ends_what_an_event_loop_waits_for_once_the_event_is_read() {
    let Pair { client, server } = Pair::new();
    let outstanding = fill(&client);
    server.disconnect().unwrap();
    assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    let causes = drained_after(&client, outstanding.count);
    assert!(causes <= 1, "{causes} name a cause");
}

#[test]
fn unsignalled_operations_that_succeeded_do_not_keep_anybody_waiting_after_the_end() {
    for peer_ends in [false, true] {
        let Pair { client, server } = Pair::new();
        let source = region(client.peer(), 8, Usage::WRITE_SRC);
        let target = region(server.peer(), 8, Usage::WRITE_DST);
        let there = remote(&target);
        client.write(there.slice(0..8).unwrap(), source.slice(0..8).unwrap(), Signal::Always, 1).unwrap();
        client.write(there.slice(0..8).unwrap(), source.slice(0..8).unwrap(), Signal::OnError, 2).unwrap();
        complete(&client, 1);
        source.write_at(0, &[1; 8]).unwrap();
        client.write(there.slice(0..8).unwrap(), source.slice(0..8).unwrap(), Signal::OnError, 3).unwrap();
        // It is done when its bytes are there.
        let mut seen = [0; 8];
        while seen != [1; 8] {
            target.read_at(0, &mut seen).unwrap();
        }
        if peer_ends { &server } else { &client }.disconnect().unwrap();
        let end = loop {
            match client.cq().wait(LIMIT) {
                // The last one may not have been acknowledged.
                Ok(completion) => assert!(completion.result().is_err()),
                Err(end) => break end,
            }
        };
        assert!(matches!(end, CqError::Drained), "{end:?}");
    }
}

#[test]
fn operations_posted_after_the_end_are_flushed() {
    let Pair { client, server } = Pair::new();
    let source = region(client.peer(), 8, Usage::WRITE_SRC | Usage::RECV);
    let target = region(server.peer(), 8, Usage::WRITE_DST);
    let there = remote(&target);
    client.disconnect().unwrap();
    for signal in [Signal::Always, Signal::OnError] {
        client.write(there.slice(0..8).unwrap(), source.slice(0..8).unwrap(), signal, 1).unwrap();
    }
    client.recv(source.slice(0..8).unwrap(), 3).unwrap();
    assert_eq!(drained_after(&client, 3), 0);
}

#[test]
fn connection_dropped_with_work_outstanding_on_both_sides_is_gone_at_once() {
    let Pair { client, server } = Pair::new();
    let outstanding = (fill(&client), fill(&server));
    in_time(move || drop((client, server)));
    drop(outstanding);
}

#[test]
fn receives_posted_while_the_connection_ends_are_flushed_whichever_is_first() {
    for _ in 0..20 {
        let Pair { client, server: _server } = Pair::new();
        let receives = u64::from(cfg().get_rq_size());
        thread::scope(|scope| {
            scope.spawn(|| client.disconnect().unwrap());
            for n in 0..receives {
                client.recv(LocalSlice::null(), n).unwrap();
            }
            for n in 0..receives {
                let error = client.cq().wait(LIMIT).unwrap().result().unwrap_err();
                assert!(error.is_flushed() && error.context == n, "{error}");
            }
        });
        assert!(matches!(client.cq().wait(LIMIT), Err(CqError::Drained)));
    }
}
