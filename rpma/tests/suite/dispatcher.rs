//! One completion channel for many connections.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use rpma::prelude::*;
use rpma::{BuildError, CqError, CqRole, Dispatched, Dispatcher, ErrorCode};

use super::executor::{Async, block_on, block_on_dropped, polled_once};
use super::futures::next;
use crate::support::{LIMIT, Pair, cfg, complete, in_time, is_readable, peer};

/// Connections whose servers have one dispatcher.
struct Many {
    dispatcher: Dispatcher,
    pairs: Vec<Pair>,
}

impl Many {
    fn new(count: usize, server: &ConnCfg) -> Self {
        let peer = peer();
        let dispatcher = Dispatcher::new(&peer).unwrap();
        let server = server.clone().dispatcher(&dispatcher);
        Self { pairs: (0..count).map(|_| Pair::connect(&peer, &cfg(), &peer, &server)).collect(), dispatcher }
    }

    fn servers(&self) -> BTreeSet<u32> {
        self.pairs.iter().map(|pair| pair.server.qp_num()).collect()
    }
}

/// A completion of a message of 0 bytes.
fn send(conn: &Conn) {
    conn.send(LocalSlice::null(), Signal::Always, 1).unwrap();
    complete(conn, 1);
}

fn found(dispatched: Dispatched) -> (u32, CqRole, u64) {
    let (role, completion) = dispatched.found.unwrap();
    completion.result().unwrap();
    (dispatched.qp_num, role, completion.context())
}

#[test]
fn completions_of_every_connection_and_queue_come_with_their_connection() {
    let many = Many::new(8, &cfg().rcq_size(10));
    assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
    let mut expected = BTreeSet::new();
    for (n, Pair { client, server }) in (1..).zip(&many.pairs) {
        server.recv(LocalSlice::null(), n).unwrap();
        send(client);
        server.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 100 * n).unwrap();
        expected.extend([(server.qp_num(), 0, n), (server.qp_num(), 1, 100 * n)]);
    }
    let told: BTreeSet<_> = (0..expected.len())
        .map(|_| found(many.dispatcher.wait(LIMIT).unwrap()))
        .map(|(qp_num, role, context)| (qp_num, u8::from(role == CqRole::Main), context))
        .collect();
    assert_eq!(told, expected);
    assert!(matches!(many.dispatcher.wait(Duration::from_millis(20)), Err(CqError::NoCompletion)));
}

#[test]
fn connection_with_a_dispatcher_is_not_waited_for_alone_and_can_be_polled() {
    let many = Many::new(1, &cfg().rcq_size(10));
    let Pair { client, server } = &many.pairs[0];
    let errors = [
        server.cq().wait(LIMIT).unwrap_err(),
        server.rcq().unwrap().wait(LIMIT).unwrap_err(),
        server.cq().arm().unwrap_err(),
        server.wait(LIMIT).unwrap_err(),
        server.arm().unwrap_err(),
        server.compl_fd().unwrap_err(),
        server.shared_queues().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, CqError::HasDispatcher), "{error:?}");
        assert_eq!(error.code(), ErrorCode::SharedChannel);
    }
    server.recv(LocalSlice::null(), 5).unwrap();
    send(client);
    let polled = loop {
        if let Some(polled) = server.rcq().unwrap().poll().unwrap() {
            break polled;
        }
    };
    assert_eq!(polled.context(), 5);
    assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
}

#[test]
fn end_of_a_connection_is_told_once_behind_its_last_completion_and_the_others_go_on() {
    let many = Many::new(2, &cfg());
    let [ending, staying] = &many.pairs[..] else { unreachable!("two") };
    for n in 0..3 {
        ending.server.recv(LocalSlice::null(), n).unwrap();
    }
    ending.client.disconnect().unwrap();
    for n in 0..3 {
        let Dispatched { qp_num, found } = many.dispatcher.wait(LIMIT).unwrap();
        let (_, completion) = found.unwrap();
        assert_eq!((qp_num, completion.context()), (ending.server.qp_num(), n));
        assert!(completion.result().unwrap_err().is_flushed());
    }
    let end = many.dispatcher.wait(LIMIT).unwrap();
    assert_eq!(end.qp_num, ending.server.qp_num());
    assert!(matches!(end.found, Err(CqError::Drained)), "{end:?}");
    // Waiting read the event, and kept it.
    assert_eq!(ending.server.next_event(Wait::Now).unwrap(), ConnEvent::Closed);
    staying.server.recv(LocalSlice::null(), 7).unwrap();
    send(&staying.client);
    assert_eq!(found(many.dispatcher.wait(LIMIT).unwrap()), (staying.server.qp_num(), CqRole::Main, 7));
    assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
}

#[test]
fn busy_connection_does_not_keep_the_others_completions_or_end_back() {
    const BACKLOG: u32 = 1_000;
    let many = Many::new(3, &cfg().sq_size(BACKLOG));
    let [busy, ending, other] = &many.pairs[..] else { unreachable!("three") };
    // All are armed.
    assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
    let write = |conn: &Conn| conn.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 1).unwrap();
    for server in [&busy.server, &other.server] {
        server.recv(LocalSlice::null(), 2).unwrap();
    }
    (1..BACKLOG).for_each(|_| write(&busy.server));
    send(&busy.client);
    // The busy one is due before anything of the others is there, and for as long as its backlog lasts.
    assert_eq!(many.dispatcher.wait(LIMIT).unwrap().qp_num, busy.server.qp_num());
    send(&other.client);
    ending.client.disconnect().unwrap();
    let mut missing = BTreeMap::from([(ending.server.qp_num(), "the end"), (other.server.qp_num(), "the message")]);
    let (dispatcher, busy, other) = (many.dispatcher.clone(), busy.server.clone(), other.server.qp_num());
    in_time(move || {
        for taken in 0.. {
            if missing.is_empty() {
                break;
            }
            // The message is there since before this began.
            assert!(taken < BACKLOG / 2 || !missing.contains_key(&other), "{taken} of the busy connection");
            let Dispatched { qp_num, found } = dispatcher.wait(LIMIT).unwrap();
            if qp_num != busy.qp_num() {
                missing.remove(&qp_num).expect("once");
            } else if found.unwrap().1.operation() == Operation::Write {
                write(&busy);
            }
        }
    });
}

#[test]
fn every_completion_reaches_one_of_several_threads_and_tasks() {
    const MESSAGES: u32 = 100;
    let many = Many::new(6, &cfg());
    let told = Mutex::new(Vec::new());
    let note = |dispatched: Dispatched, servers: &BTreeMap<u32, Conn>| {
        if let Ok((_, completion)) = dispatched.found
            && let Ok(Some(received)) = completion.received()
        {
            told.lock().unwrap().push((dispatched.qp_num, received.imm.unwrap()));
            servers[&dispatched.qp_num].recv(LocalSlice::null(), 0).unwrap();
        }
    };
    let servers: BTreeMap<_, _> = many.pairs.iter().map(|pair| (pair.server.qp_num(), pair.server.clone())).collect();
    for server in servers.values() {
        for _ in 0..cfg().get_rq_size() {
            server.recv(LocalSlice::null(), 0).unwrap();
        }
    }
    let send = |client: &Conn| {
        for n in 0..MESSAGES {
            client.send_with_imm(LocalSlice::null(), n, Signal::Always, n.into()).unwrap();
            complete(client, n.into());
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(dispatched) = many.dispatcher.wait(LIMIT) {
                    note(dispatched, &servers);
                }
            });
            scope.spawn(|| {
                let mut waiting = Async::new(many.dispatcher.clone()).unwrap();
                while let Ok(dispatched) = block_on_dropped(async || waiting.wait().await) {
                    note(dispatched, &servers);
                }
            });
        }
        let sending: Vec<_> = many.pairs.iter().map(|Pair { client, .. }| scope.spawn(|| send(client))).collect();
        sending.into_iter().for_each(|sending| sending.join().unwrap());
        while told.lock().unwrap().len() < 6 * usize::try_from(MESSAGES).unwrap() {
            thread::yield_now();
        }
        many.dispatcher.close();
    });
    let mut told = told.into_inner().unwrap();
    told.sort_unstable();
    let expected: Vec<_> = many.servers().into_iter().flat_map(|qp_num| (0..MESSAGES).map(move |n| (qp_num, n))).collect();
    assert_eq!(told, expected);
}

#[test]
fn messages_of_a_shared_receive_queue_without_completions_of_its_own_come_to_the_dispatcher() {
    let peer = peer();
    let dispatcher = Dispatcher::new(&peer).unwrap();
    let srq = peer.new_srq(&SrqCfg::new().rcq_size(0)).unwrap();
    let server = cfg().srq(&srq).dispatcher(&dispatcher);
    let pairs: Vec<_> = (0..3).map(|_| Pair::connect(&peer, &cfg(), &peer, &server)).collect();
    for Pair { client, server } in &pairs {
        srq.recv(LocalSlice::null(), 6).unwrap();
        send(client);
        assert_eq!(found(dispatcher.wait(LIMIT).unwrap()), (server.qp_num(), CqRole::Main, 6));
    }
}

#[test]
fn messages_of_a_shared_receive_queue_with_completions_of_its_own_come_there_and_all_else_to_the_dispatcher() {
    let peer = peer();
    let dispatcher = Dispatcher::new(&peer).unwrap();
    let srq = peer.new_srq(&SrqCfg::new()).unwrap();
    let server = cfg().srq(&srq).dispatcher(&dispatcher);
    let pairs: Vec<_> = (0..3).map(|_| Pair::connect(&peer, &cfg(), &peer, &server)).collect();
    let messages = srq.rcq().unwrap();
    for (n, Pair { client, server }) in (0..).zip(&pairs) {
        srq.recv(LocalSlice::null(), n).unwrap();
        send(client);
        let message = messages.wait(LIMIT).unwrap();
        assert_eq!((message.qp_num(), message.context()), (server.qp_num(), n));
        message.result().unwrap();
        server.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 10 + n).unwrap();
        assert_eq!(found(dispatcher.wait(LIMIT).unwrap()), (server.qp_num(), CqRole::Main, 10 + n));
        assert!(matches!(dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
        assert!(matches!(messages.wait(Wait::Now), Err(CqError::NoCompletion)));
    }
    // The end is the dispatcher's to tell.
    for Pair { client, server } in &pairs {
        client.disconnect().unwrap();
        let end = dispatcher.wait(LIMIT).unwrap();
        assert_eq!(end.qp_num, server.qp_num());
        assert!(matches!(end.found, Err(CqError::Drained)), "{end:?}");
    }
}

#[test]
fn task_waits_for_connections_that_came_after_it_began() {
    let peer = peer();
    let dispatcher = Dispatcher::new(&peer).unwrap();
    let mut waiting = Async::new(dispatcher.clone()).unwrap();
    assert!(matches!(polled_once(waiting.wait()), Poll::Pending));
    let Pair { client, server } = Pair::connect(&peer, &cfg(), &peer, &cfg().dispatcher(&dispatcher));
    server.recv(LocalSlice::null(), 3).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| send(&client));
        assert_eq!(found(block_on(waiting.wait()).unwrap()), (server.qp_num(), CqRole::Main, 3));
    });
    let mut completions = waiting.completions();
    server.recv(LocalSlice::null(), 4).unwrap();
    send(&client);
    assert_eq!(found(block_on(next(&mut completions)).unwrap().unwrap()), (server.qp_num(), CqRole::Main, 4));
    dispatcher.close();
    assert!(block_on(next(&mut completions)).is_none());
}

#[test]
fn connections_and_dispatcher_are_dropped_in_any_order() {
    for dispatcher_goes_first in [false, true] {
        let Many { dispatcher, mut pairs } = Many::new(3, &cfg());
        let Pair { client, server } = pairs.pop().unwrap();
        in_time(move || {
            if dispatcher_goes_first {
                drop(dispatcher);
                drop(pairs);
            } else {
                drop(pairs);
                server.recv(LocalSlice::null(), 4).unwrap();
                send(&client);
                assert_eq!(found(dispatcher.wait(LIMIT).unwrap()), (server.qp_num(), CqRole::Main, 4));
            }
            drop((client, server));
        });
    }
}

#[test]
fn descriptor_is_readable_when_there_is_something_of_any_connection() {
    let many = Many::new(2, &cfg());
    assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
    for Pair { client, server } in &many.pairs {
        // What was read before leaves nothing behind.
        assert!(!is_readable(&many.dispatcher.as_fd(), Duration::ZERO));
        server.recv(LocalSlice::null(), 1).unwrap();
        send(client);
        assert!(is_readable(&many.dispatcher.as_fd(), LIMIT));
        assert_eq!(found(many.dispatcher.wait(Wait::Now).unwrap()), (server.qp_num(), CqRole::Main, 1));
        assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
    }
}

#[test]
fn descriptor_is_readable_for_a_connection_that_came_since_and_for_an_end_that_another_call_has_read() {
    let peer = peer();
    let dispatcher = Dispatcher::new(&peer).unwrap();
    let nothing = || matches!(dispatcher.wait(Wait::Now), Err(CqError::NoCompletion));
    let is_readable = |limit| is_readable(&dispatcher.as_fd(), limit);
    assert!(nothing() && !is_readable(Duration::ZERO));
    // ESTABLISHED is read by who waits for it.
    let Pair { client, server } = Pair::connect(&peer, &cfg(), &peer, &cfg().dispatcher(&dispatcher));
    server.recv(LocalSlice::null(), 1).unwrap();
    send(&client);
    assert!(is_readable(LIMIT));
    assert_eq!(found(dispatcher.wait(Wait::Now).unwrap()), (server.qp_num(), CqRole::Main, 1));
    assert!(nothing() && !is_readable(Duration::ZERO));
    client.disconnect().unwrap();
    assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    assert!(is_readable(LIMIT));
    let end = dispatcher.wait(Wait::Now).unwrap();
    assert!(matches!(end.found, Err(CqError::Drained)), "{end:?}");
    assert!(nothing() && !is_readable(Duration::ZERO));
    dispatcher.close();
    for _ in 0..2 {
        assert!(is_readable(LIMIT));
        assert!(matches!(dispatcher.wait(Wait::Now), Err(CqError::Closed)));
    }
}

#[test]
fn connection_that_was_closed_goes_on_at_the_dispatcher_until_its_end() {
    let many = Many::new(1, &cfg());
    let Pair { client, server } = &many.pairs[0];
    server.recv(LocalSlice::null(), 1).unwrap();
    server.close();
    send(client);
    assert_eq!(found(many.dispatcher.wait(LIMIT).unwrap()), (server.qp_num(), CqRole::Main, 1));
    client.disconnect().unwrap();
    let end = many.dispatcher.wait(LIMIT).unwrap();
    assert!(matches!(end.found, Err(CqError::Drained)), "{end:?}");
    assert!(matches!(many.dispatcher.wait(Wait::Now), Err(CqError::NoCompletion)));
}

#[test]
fn dispatcher_of_another_device_is_refused() {
    let (here, elsewhere) = (peer(), peer());
    let dispatcher = Dispatcher::new(&elsewhere).unwrap();
    let (endpoint, addr) = crate::support::listen(&here);
    let request = ConnReq::new(&here, addr, &cfg().dispatcher(&dispatcher));
    drop(endpoint);
    match request {
        // Both peers may have opened one and the same device.
        Ok(_) => assert!(here.device().is_same_as(elsewhere.device())),
        Err(rpma::ConnReqError::Build(BuildError::DispatcherOfOtherDevice)) => {
            assert!(!here.device().is_same_as(elsewhere.device()));
        }
        Err(e) => panic!("{e:?}"),
    }
}
