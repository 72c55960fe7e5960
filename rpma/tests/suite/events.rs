//! Events of endpoints and connections: which come, in what order, on which descriptor, and what there is when there is none.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rpma::prelude::*;
use rpma::sys::testing::{Call, CountingProvider};
use rpma::{CqError, Dispatcher, ErrorCode, EstablishError, EventError, RequestError, Step};

use super::executor::{Async, block_on, polled_once};
use crate::support::{
    LIMIT, Pair, alone, cfg, complete, in_time, is_readable, listen, peer, peer_over, provider, readable, request,
};

/// What is there now, without waiting.
fn now(conn: &Conn) -> Option<ConnEvent> {
    match conn.next_event(Wait::Now) {
        Ok(event) => Some(event),
        Err(EventError::NoEvent) => None,
        Err(e) => panic!("{e:?}"),
    }
}

#[test]
fn active_side_gets_one_established_on_a_descriptor_that_stays_the_same() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    assert!(!is_readable(&pending, Duration::ZERO), "nothing happened yet");
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();

    readable(&pending);
    let PendingEvent::Established(client) = pending.next_event(Wait::Now).unwrap() else { panic!("not established") };
    assert_eq!(client.as_fd().as_raw_fd(), pending.as_fd().as_raw_fd());
    assert!(!is_readable(&client, Duration::ZERO), "the event was read");
    assert_eq!(now(&client), None);

    readable(&accepting);
    let PendingEvent::Established(server) = accepting.next_event(Wait::Now).unwrap() else { panic!("not established") };
    assert_eq!(server.as_fd().as_raw_fd(), accepting.as_fd().as_raw_fd());
    assert_eq!(now(&server), None);

    // To the end there is nothing else but what ends it.
    server.disconnect().unwrap();
    readable(&client);
    assert_eq!(now(&client), Some(ConnEvent::Closed));
}

#[test]
fn endpoint_is_readable_while_a_request_waits() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    assert!(!is_readable(&endpoint, Duration::ZERO));
    let _pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
    readable(&endpoint);
    let _incoming = endpoint.next_request(Wait::Now).unwrap();
    assert!(!is_readable(&endpoint, Duration::ZERO));
}

#[test]
fn pending_handle_may_be_dropped_once_the_connection_is_established() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    let (qp_num, granted) = (pending.qp_num(), pending.granted());
    drop((pending, accepting));
    assert_eq!((client.qp_num(), client.granted()), (qp_num, granted));
    assert_eq!((now(&client), now(&server)), (None, None));
}

/// Collects what the library logs, but for debugging.
struct Collector(Mutex<Vec<String>>);

impl log::Log for Collector {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() < log::Level::Debug
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{}: {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}

static COLLECTOR: Collector = Collector(Mutex::new(Vec::new()));

#[test]
fn nothing_pending_is_said_at_once_and_quietly() {
    alone(|| {
        log::set_logger(&COLLECTOR).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let peer = peer();
        let (endpoint, _) = listen(&peer);
        let (pending, incoming) = request(&peer, &endpoint, &[]);
        for over in [Wait::Now, Wait::Until(Instant::now()), Duration::ZERO.into()] {
            let error = endpoint.next_request(over).unwrap_err();
            assert!(matches!(error, RequestError::NoRequest) && error.code() == ErrorCode::NoEvent, "{error:?}");
            assert!(matches!(endpoint.next_conn_req(&cfg(), over), Err(RequestError::NoRequest)));
            let error = pending.next_event(over).unwrap_err();
            assert!(matches!(error, EventError::NoEvent) && error.code() == ErrorCode::NoEvent, "{error:?}");
            assert!(matches!(pending.established(over), Err(EstablishError::TimedOut)));
            let error = pending.cq().wait(over).unwrap_err();
            assert!(matches!(error, CqError::NoCompletion) && error.code() == ErrorCode::NoCompletion, "{error:?}");
            assert!(pending.cq().poll().unwrap().is_none());
            assert_eq!(pending.cq().poll_batch(&mut Vec::new(), 10).unwrap(), 0);
        }
        let logged = || COLLECTOR.0.lock().unwrap().clone();
        assert!(logged().is_empty(), "{:?}", logged());

        // What is above debugging is seen.
        log::warn!("control");
        assert_eq!(logged(), ["WARN: control"]);
        drop(incoming);
    });
}

#[test]
fn waits_end_at_their_deadline_and_not_before() {
    let Pair { client, server: _server } = Pair::new();
    let (endpoint, _) = listen(client.peer());
    let take = Duration::from_millis(30);
    let ends = |what: &dyn Fn(Wait)| {
        let deadline = Instant::now() + take;
        what(deadline.into());
        assert!(Instant::now() >= deadline);
        let start = Instant::now();
        what(take.into());
        assert!(start.elapsed() >= take);
    };
    ends(&|wait| assert!(matches!(endpoint.next_request(wait), Err(RequestError::NoRequest))));
    ends(&|wait| assert!(matches!(client.next_event(wait), Err(EventError::NoEvent))));
    ends(&|wait| assert!(matches!(client.cq().wait(wait), Err(CqError::NoCompletion))));
}

#[test]
fn connection_that_is_not_established_in_time_can_be_waited_for_again() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    assert!(matches!(pending.established(Duration::from_millis(20)), Err(EstablishError::TimedOut)));
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    // Nobody has read the answer yet, and the server cannot be established without that.
    assert!(matches!(accepting.established(Wait::Now), Err(EstablishError::TimedOut)));
    let _client = pending.established(LIMIT).unwrap();
    let _server = accepting.established(LIMIT).unwrap();
}

#[test]
fn side_that_disconnects_sees_closed_once_the_other_has_answered() {
    for server_asks in [false, true] {
        let Pair { client, server } = Pair::new();
        let (asks, answers) = if server_asks { (server, client) } else { (client, server) };
        asks.disconnect().unwrap();
        assert_eq!(answers.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        assert_eq!(now(&asks), None, "the other side has not answered");
        answers.disconnect().unwrap();
        assert_eq!(asks.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    }
}

#[test]
fn disconnecting_again_and_after_closed_succeeds_and_a_second_closed_may_follow() {
    let Pair { client, server } = Pair::new();
    client.disconnect().unwrap();
    client.disconnect().unwrap();
    assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    server.disconnect().unwrap();
    server.disconnect().unwrap();
    assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    // The second one tells that the connection manager's time-wait is over.
    for conn in [&client, &server] {
        assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        conn.disconnect().unwrap();
    }
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let Pair { client, server } = Pair::new();
    client.disconnect().unwrap();
    server.disconnect().unwrap();
    for conn in [&client, &server] {
        assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    }
}

#[test]
fn dropped_connection_is_closed_for_the_other_side() {
    for drop_server in [false, true] {
        let Pair { client, server } = Pair::new();
        let (dropped, left) = if drop_server { (server, client) } else { (client, server) };
        drop(dropped);
        assert_eq!(left.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        left.disconnect().unwrap();
    }
}

#[test]
fn events_read_late_are_all_there_in_their_order() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    client.disconnect().unwrap();
    drop((client, pending));
    let server = accepting.established(LIMIT).unwrap();
    assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
}

#[test]
fn server_that_disconnects_before_established_ends_the_connection_on_both_sides() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    accepting.disconnect().unwrap();
    // The client can still become established, since it may have the answer already.
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    client.disconnect().unwrap();
    assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    assert!(matches!(server.cq().wait(LIMIT), Err(CqError::Drained)));
}

#[test]
fn client_that_disconnects_before_it_is_accepted_is_not_established() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    pending.disconnect().unwrap();
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    let error = pending.established(LIMIT).unwrap_err();
    assert!(matches!(error, EstablishError::Lost), "{error:?}");
    pending.disconnect().unwrap();
    drop(pending);
    let error = accepting.established(LIMIT).unwrap_err();
    assert!(matches!(error, EstablishError::Rejected(_)), "{error:?}");
    accepting.disconnect().unwrap();
}

#[test]
fn client_that_goes_before_it_reads_the_answer_rejects_the_server() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let accepting = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    readable(&pending);
    drop(pending);
    let error = accepting.established(LIMIT).unwrap_err();
    assert!(matches!(error, EstablishError::Rejected(_)), "{error:?}");
}

#[test]
fn server_that_goes_before_established_ends_the_client() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    drop(incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap());
    // By which event depends on whether the client reads the answer before or after it hears that the server is gone.
    let end = loop {
        match pending.next_event(LIMIT).unwrap() {
            PendingEvent::Established(_) => {}
            end => break end,
        }
    };
    assert!(matches!(end, PendingEvent::Lost | PendingEvent::Rejected(_) | PendingEvent::Closed), "{end:?}");
    assert!(matches!(pending.cq().wait(LIMIT), Err(CqError::Drained)));
}

#[test]
fn outgoing_request_is_resolved_step_by_step_from_an_event_loop() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let mut resolving = ConnReq::start(&peer, addr, &cfg()).unwrap();
    let descriptor = resolving.as_fd().as_raw_fd();
    let mut steps = 0;
    let outgoing = loop {
        assert!(Instant::now() < resolving.deadline());
        readable(&resolving);
        match resolving.advance().unwrap() {
            Step::Ready(outgoing) => break outgoing,
            Step::Resolving(still) => resolving = still,
        }
        assert_eq!(resolving.as_fd().as_raw_fd(), descriptor);
        steps += 1;
        assert!(steps <= 2, "there are an address and a route to resolve, and every wake-up should bring one");
    };
    let pending = outgoing.connect(b"step by step").unwrap();
    assert_eq!(endpoint.next_request(LIMIT).unwrap().private_data()[..12], *b"step by step");
    drop(pending);
}

#[test]
fn resolving_that_is_advanced_with_nothing_there_goes_on() {
    let peer = peer();
    let (_endpoint, addr) = listen(&peer);
    let mut step = Step::Resolving(ConnReq::start(&peer, addr, &cfg()).unwrap());
    // Without waiting for anything: until the deadline, nothing there is no error.
    while let Step::Resolving(resolving) = step {
        step = resolving.advance().unwrap();
    }
}

#[test]
fn completion_events_are_acknowledged_in_batches_and_all_of_them_at_the_end() {
    const EVENTS: u64 = 1_000;
    let counting = CountingProvider::new(provider());
    in_time({
        let peer = peer_over(&counting.provider());
        move || {
            let Pair { client, server: _server } = Pair::connect(&peer, &cfg(), &peer, &cfg());
            for n in 0..EVENTS {
                client.cq().arm().unwrap();
                client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, n).unwrap();
                readable(&client.cq());
                complete(&client, n);
            }
        }
    });
    counting.nothing_live().unwrap();
    // One for each event is what users of verbs have found to be their main bottleneck.
    let acknowledgements = counting.calls(Call::ibv_ack_cq_events);
    assert!(acknowledgements <= EVENTS / 32, "{acknowledgements} acknowledgements for {EVENTS} events");
}

/// Of whichever queue, whoever waits: an event that is not acknowledged would keep the queue's destruction waiting for ever.
#[test]
fn completion_events_of_every_kind_of_queue_are_acknowledged_in_batches_and_all_of_them_at_the_end() {
    const EVENTS: u64 = 400;
    type Waiting = (Box<dyn FnMut()>, Box<dyn FnMut()>);
    // What arms, and what takes a completion that an event told of; and what a connection has to be for it.
    type Kind = (&'static str, fn(&Peer) -> ConnCfg, fn(&Conn, ConnCfg) -> Waiting);
    fn of_queue(cq: CompletionQueue) -> Waiting {
        let armed = cq.clone();
        (Box::new(move || armed.arm().unwrap()), Box::new(move || _ = cq.wait(LIMIT).unwrap()))
    }
    let kinds: [Kind; 5] = [
        ("receive queue", |_| cfg().rcq_size(10), |conn, _| of_queue(conn.rcq().unwrap())),
        (
            "shared receive queue",
            |peer| cfg().srq(&peer.new_srq(&SrqCfg::new()).unwrap()),
            |_, cfg| of_queue(cfg.get_srq().unwrap().rcq().unwrap()),
        ),
        (
            "shared channel",
            |_| cfg().rcq_size(10).shared_channel(true),
            |conn, _| {
                let (armed, conn) = (conn.clone(), conn.clone());
                (Box::new(move || _ = armed.arm().unwrap()), Box::new(move || _ = conn.wait(LIMIT).unwrap()))
            },
        ),
        (
            "dispatcher",
            |peer| cfg().dispatcher(&Dispatcher::new(peer).unwrap()),
            |_, cfg| {
                let dispatcher = cfg.get_dispatcher().unwrap().clone();
                let armed = dispatcher.clone();
                let arm = move || assert!(matches!(armed.wait(Wait::Now), Err(CqError::NoCompletion)));
                (Box::new(arm), Box::new(move || _ = dispatcher.wait(LIMIT).unwrap()))
            },
        ),
        (
            "task",
            |_| cfg(),
            |conn, _| {
                let waiting = Rc::new(RefCell::new(Async::new(conn.cq()).unwrap()));
                let armed = Rc::clone(&waiting);
                let arm = move || assert!(polled_once(armed.borrow_mut().wait()).is_pending());
                (Box::new(arm), Box::new(move || _ = block_on(waiting.borrow_mut().wait()).unwrap()))
            },
        ),
    ];
    for (kind, watched, waiting) in kinds {
        let counting = CountingProvider::new(provider());
        in_time({
            let here = peer_over(&counting.provider());
            move || {
                let watched = watched(&here);
                let Pair { client, server } = Pair::connect(&peer(), &cfg(), &here, &watched);
                let (mut arm, mut take) = waiting(&server, watched.clone());
                for n in 0..EVENTS {
                    match watched.get_srq() {
                        Some(srq) => srq.recv(LocalSlice::null(), n).unwrap(),
                        None => server.recv(LocalSlice::null(), n).unwrap(),
                    }
                    arm();
                    client.send(LocalSlice::null(), Signal::Always, n).unwrap();
                    complete(&client, n);
                    take();
                }
            }
        });
        counting.nothing_live().unwrap();
        let (asked, acknowledgements) = (counting.calls(Call::ibv_get_cq_event), counting.calls(Call::ibv_ack_cq_events));
        assert!(asked >= EVENTS, "{kind}: asked for events {asked} times");
        assert!(acknowledgements <= EVENTS / 32, "{kind}: {acknowledgements} acknowledgements for {EVENTS} events");
    }
}
