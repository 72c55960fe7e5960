//! Waiting without blocking, on an executor of our own.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_core::Stream;
use rpma::prelude::*;
use rpma::{ConnReqError, CqError, CqRole, EstablishError, EventError, RequestError};

use super::executor::{Async, Note, Resolution, block_on, block_on_dropped, meanwhile, polled_once, polled_once_by};
use crate::support::{LIMIT, Pair, addr, cfg, complete, in_time, listen, peer, readable, region, request, still_works};

/// The next item of a stream.
pub(crate) async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// Completes at once, and needs nothing of the other side.
fn write_nothing(conn: &Conn, context: u64) {
    conn.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context).unwrap();
}

#[test]
fn connection_is_made_used_and_ended_by_futures_alone() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let server = Arc::new(region(&peer, 8, Usage::WRITE_DST));
    thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                let mut endpoint = Async::new(endpoint).unwrap();
                let request = endpoint.next_conn_req(&cfg()).await.unwrap();
                let mut pending = Async::new(request.connect(&server.descriptor().to_bytes()).unwrap()).unwrap();
                let mut conn = Async::new(pending.established().await.unwrap()).unwrap();
                assert_eq!(conn.next_event().await.unwrap(), ConnEvent::Closed);
                conn.disconnect().unwrap();
                // Another one may follow, when the transport's time-wait is over; after the close nothing does.
                conn.close();
                while let Some(event) = next(&mut conn).await {
                    assert_eq!(event.unwrap(), ConnEvent::Closed);
                }
            });
        });
        block_on(async {
            let request = Resolution::new(ConnReq::start(&peer, addr, &cfg()).unwrap()).unwrap().await.unwrap();
            let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
            let mut conn = Async::new(pending.established().await.unwrap()).unwrap();
            let there = RemoteMr::from_descriptor(conn.private_data()).unwrap();
            let source = region(&peer, 8, Usage::WRITE_SRC);
            let mut completions = conn.completions().unwrap();
            for n in 0..100 {
                conn.write(there.all(), source.all(), Signal::Always, n).unwrap();
                let completion = next(&mut completions).await.unwrap().unwrap();
                assert_eq!((completion.context(), completion.result().is_ok()), (n, true));
            }
            conn.disconnect().unwrap();
            assert!(next(&mut completions).await.is_none());
            assert!(matches!(completions.wait().await, Err(CqError::Drained)));
            assert_eq!(conn.next_event().await.unwrap(), ConnEvent::Closed);
        });
    });
}

#[test]
fn futures_dropped_after_every_poll_lose_no_request_event_or_completion() {
    const CLIENTS: u8 = 4;
    const MESSAGES: u32 = 200;
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let clients = || {
        for n in 0..CLIENTS {
            let request = ConnReq::new(&peer, addr, &cfg()).unwrap();
            let client = request.connect(&[n + 1]).unwrap().established(LIMIT).unwrap();
            for n in 0..MESSAGES {
                client.send_with_imm(LocalSlice::null(), n, Signal::Always, n.into()).unwrap();
                complete(&client, n.into()).result().unwrap();
            }
            client.disconnect().unwrap();
            assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        }
    };
    thread::scope(|scope| {
        scope.spawn(clients);
        let mut endpoint = Async::new(&endpoint).unwrap();
        for n in 0..CLIENTS {
            let request = block_on_dropped(async || endpoint.next_conn_req(&cfg()).await).unwrap();
            assert_eq!(request.private_data()[0], n + 1);
            for _ in 0..cfg().get_rq_size() {
                request.recv(LocalSlice::null(), 0).unwrap();
            }
            let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
            let mut conn = Async::new(block_on_dropped(async || pending.established().await).unwrap()).unwrap();
            let mut completions = conn.completions().unwrap();
            for n in 0..MESSAGES {
                let completion = block_on_dropped(async || completions.wait().await).unwrap();
                assert_eq!(completion.received().unwrap().unwrap().imm, Some(n));
                conn.recv(LocalSlice::null(), 0).unwrap();
            }
            assert_eq!(block_on_dropped(async || conn.next_event().await).unwrap(), ConnEvent::Closed);
            for _ in 0..cfg().get_rq_size() {
                let flushed = block_on_dropped(async || completions.wait().await).unwrap();
                assert!(flushed.result().unwrap_err().is_flushed());
            }
            assert!(matches!(block_on_dropped(async || completions.wait().await), Err(CqError::Drained)));
            conn.disconnect().unwrap();
        }
    });
}

#[test]
fn future_dropped_with_an_operation_outstanding_ends_neither_the_operation_nor_its_regions() {
    let Pair { client, server } = Pair::new();
    let (source, target) = (region(client.peer(), 8, Usage::SEND), region(server.peer(), 8, Usage::RECV));
    source.write_at(0, b"outlived").unwrap();
    let mut completions = Async::new(server.cq()).unwrap();
    server.recv(target.all(), 1).unwrap();
    assert!(polled_once(completions.wait()).is_pending());
    drop(completions);
    client.send(source.all(), Signal::Always, 2).unwrap();
    complete(&client, 2);
    complete(&server, 1);
    assert_eq!(crate::support::bytes(&target, 0, 8), b"outlived");
    still_works(&Pair { client, server });
}

#[test]
fn pending_connection_is_established_although_the_future_for_it_was_dropped() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let mut pending = Async::new(pending).unwrap();
    assert!(polled_once(pending.established()).is_pending());
    let accepted = incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    // The handle itself may be waited for by a thread after that, and by a task again.
    let client = pending.into_inner().established(LIMIT).unwrap();
    let server = block_on(async { Async::new(accepted).unwrap().established().await }).unwrap();
    still_works(&Pair { client, server });
}

#[test]
fn resolution_that_was_dropped_leaves_an_endpoint_that_has_heard_of_nobody() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    for polls in 0..3 {
        let mut resolution = Resolution::new(ConnReq::start(&peer, addr, &cfg()).unwrap()).unwrap();
        if (0..polls).any(|_| polled_once(&mut resolution).is_ready()) {
            break;
        }
    }
    assert!(matches!(endpoint.next_request(Wait::Now), Err(RequestError::NoRequest)));
}

#[test]
fn resolution_ends_at_its_time_limit() {
    let start = ConnReq::start(&peer(), (addr(), 9), &cfg().timeout(Duration::ZERO));
    let error = match start {
        Ok(resolving) => block_on(Resolution::new(resolving).unwrap()).unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, ConnReqError::TimedOut { .. }), "{error:?}");
}

#[test]
fn request_where_nobody_listens_is_told_so() {
    let resolving = ConnReq::start(&peer(), (addr(), 9), &cfg()).unwrap();
    let request = block_on(Resolution::new(resolving).unwrap()).unwrap();
    let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
    let error = block_on(pending.established()).unwrap_err();
    assert!(matches!(error, EstablishError::Rejected(_)), "{error:?}");
}

/// Both tasks of one queue's, and a thread: who takes an event wakes the others, which may find more.
#[test]
fn every_completion_reaches_one_of_several_tasks_and_threads_and_the_end_reaches_all() {
    const MESSAGES: u32 = 500;
    let Pair { client, server } = Pair::new();
    for _ in 0..cfg().get_rq_size() {
        client.recv(LocalSlice::null(), 0).unwrap();
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = {
        let (client, seen) = (client.clone(), Arc::clone(&seen));
        move |completion: Completion| {
            if let Ok(received) = completion.received() {
                seen.lock().unwrap().push(received.unwrap().imm.unwrap());
                client.recv(LocalSlice::null(), 0).unwrap();
            }
        }
    };
    in_time(move || {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut completions = Async::new(client.cq()).unwrap();
                    block_on(async {
                        while let Some(completion) = next(&mut completions).await {
                            note(completion.unwrap());
                        }
                    });
                });
            }
            scope.spawn(|| {
                loop {
                    match client.cq().wait(Wait::Forever) {
                        Ok(completion) => note(completion),
                        Err(CqError::Drained) => break,
                        Err(e) => panic!("{e:?}"),
                    }
                }
            });
            for n in 0..MESSAGES {
                server.send_with_imm(LocalSlice::null(), n, Signal::Always, n.into()).unwrap();
                complete(&server, n.into());
            }
            server.disconnect().unwrap();
        });
        let mut seen = seen.lock().unwrap();
        seen.sort_unstable();
        assert_eq!(*seen, (0..MESSAGES).collect::<Vec<_>>());
    });
}

#[test]
fn task_that_takes_the_event_of_two_completions_wakes_who_may_have_the_second_one() {
    let Pair { client, server: _server } = Pair::new();
    let (mut first, mut second) = (Async::new(client.cq()).unwrap(), Async::new(client.cq()).unwrap());
    let note = Arc::new(Note::default());
    assert!(polled_once_by(&Arc::clone(&note).into(), second.wait()).is_pending());
    // Both come behind its back, when it has looked. It takes their only event, and gives one of them.
    let conn = client.clone();
    meanwhile(move || {
        for context in [1, 2] {
            write_nothing(&conn, context);
        }
        readable(&conn.cq());
    });
    let Poll::Ready(completion) = polled_once(first.wait()) else { panic!("nothing after an event") };
    assert_eq!(completion.unwrap().context(), 1);
    assert!(note.was_woken());
    assert_eq!(block_on(second.wait()).unwrap().context(), 2);
}

/// Each side waits for the other's message, so that most completions come while it is between looking and waiting.
#[test]
fn completion_that_comes_between_looking_and_arming_is_never_missed() {
    const ROUNDS: u64 = 2_000;
    let Pair { client, server } = Pair::new();
    let play = async |conn: &Conn, serves: bool| {
        let mut completions = Async::new(conn.cq()).unwrap();
        let send = || conn.send(LocalSlice::null(), Signal::Always, 2).unwrap();
        let (mut sent, mut got) = (0, 0);
        if serves {
            send();
        }
        while got < ROUNDS || sent < ROUNDS {
            let completion = completions.wait().await.unwrap();
            match completion.received().unwrap() {
                None => sent += 1,
                Some(_) => {
                    got += 1;
                    conn.recv(LocalSlice::null(), 1).unwrap();
                    if got < ROUNDS || !serves {
                        send();
                    }
                }
            }
        }
    };
    for conn in [&client, &server] {
        conn.recv(LocalSlice::null(), 1).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| block_on(play(&server, false)));
        block_on(play(&client, true));
    });
}

#[test]
fn completions_of_a_queue_are_a_stream_that_can_be_dropped_and_made_again() {
    let Pair { client, server: _server } = Pair::new();
    let mut cq = Async::new(client.cq()).unwrap();
    for n in 0..20 {
        assert!(polled_once(next(&mut cq.completions())).is_pending());
        write_nothing(&client, n);
        assert_eq!(block_on_dropped(async || next(&mut cq.completions()).await).unwrap().unwrap().context(), n);
    }
    client.disconnect().unwrap();
    assert!(block_on(next(&mut cq.completions())).is_none());
}

#[test]
fn both_queues_of_a_shared_channel_are_waited_for_at_once() {
    let peer = peer();
    let shared = cfg().rcq_size(10).shared_channel(true);
    let Pair { client, server } = Pair::connect(&peer, &shared, &peer, &cfg());
    assert!(server.shared_queues().is_err());
    assert!(matches!(block_on(Async::new(client.cq()).unwrap().wait()), Err(CqError::SharedChannel)));
    let mut queues = Async::new(client.shared_queues().unwrap()).unwrap();
    for n in 0..200 {
        client.recv(LocalSlice::null(), n).unwrap();
        assert!(polled_once(queues.wait()).is_pending());
        server.send(LocalSlice::null(), Signal::Always, n).unwrap();
        complete(&server, n);
        let (role, completion) = block_on_dropped(async || queues.wait().await).unwrap();
        assert_eq!((role, completion.context()), (CqRole::Receive, n));
        write_nothing(&client, n);
        let (role, completion) = block_on(queues.wait()).unwrap();
        assert_eq!((role, completion.context()), (CqRole::Main, n));
    }
    write_nothing(&client, 200);
    let (role, completion) = block_on(next(&mut queues.completions())).unwrap().unwrap();
    assert_eq!((role, completion.context()), (CqRole::Main, 200));
    server.disconnect().unwrap();
    assert!(block_on(next(&mut queues.completions())).is_none());
}

#[test]
fn both_queues_are_waited_for_at_the_connection_itself_established_or_not_and_no_thread_is_blocked() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let shared = cfg().rcq_size(10).shared_channel(true);
    let Pair { client, server } = Pair::connect(&peer, &shared, &peer, &cfg());
    let (mut client, mut server) = (Async::new(client).unwrap(), Async::new(server).unwrap());
    assert!(matches!(block_on(server.wait()), Err(CqError::NotSharedChannel)));
    for n in 0..20 {
        client.recv(LocalSlice::null(), n).unwrap();
        assert!(polled_once(client.wait()).is_pending());
        server.send(LocalSlice::null(), Signal::Always, n).unwrap();
        complete(&server, n);
        let (role, completion) = block_on_dropped(async || client.wait().await).unwrap();
        assert_eq!((role, completion.context()), (CqRole::Receive, n));
        write_nothing(&client, n);
        let (role, completion) = block_on(client.wait()).unwrap();
        assert_eq!((role, completion.context()), (CqRole::Main, n));
    }
    // Its own events are waited for as ever.
    server.disconnect().unwrap();
    assert_eq!(block_on(client.next_event()).unwrap(), ConnEvent::Closed);
    assert!(matches!(block_on(client.wait()), Err(CqError::Drained)));

    let request = ConnReq::new(&peer, endpoint.local_addr().unwrap(), &shared).unwrap();
    let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
    pending.recv(LocalSlice::null(), 7).unwrap();
    assert!(polled_once(pending.wait()).is_pending());
    endpoint.next_request(LIMIT).unwrap().reject(&[]).unwrap();
    let (role, completion) = block_on_dropped(async || pending.wait().await).unwrap();
    assert_eq!((role, completion.context()), (CqRole::Receive, 7));
    assert!(completion.result().unwrap_err().is_flushed());
    assert!(matches!(block_on(pending.next_event()), Ok(PendingEvent::Rejected(_))));
}

#[test]
fn closing_wakes_every_task() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let Pair { client, server: _server } = Pair::new();
    let srq = peer.new_srq(&SrqCfg::new()).unwrap();
    // Its server lives, or the end would be told.
    let Pair { client: both, server: _other } = Pair::connect(&peer, &cfg().rcq_size(1).shared_channel(true), &peer, &cfg());
    // Nobody answers it.
    let (pending, _incoming) = request(&peer, &endpoint, &[]);
    let mut asked = Async::new(pending).unwrap();
    assert!(polled_once(asked.next_event()).is_pending() && polled_once(asked.established()).is_pending());
    thread::scope(|scope| {
        let requests = scope.spawn(|| block_on(next(&mut Async::new(&endpoint).unwrap())).is_none());
        let events = scope.spawn(|| block_on(next(&mut Async::new(client.clone()).unwrap())).is_none());
        let own = scope.spawn(|| block_on(next(&mut Async::new(client.cq()).unwrap())).is_none());
        let shared = scope.spawn(|| block_on(next(&mut Async::new(srq.rcq().unwrap()).unwrap())).is_none());
        let queues = scope.spawn(|| block_on(next(&mut Async::new(both.shared_queues().unwrap()).unwrap())).is_none());
        let at_conn = scope.spawn(|| matches!(block_on(Async::new(both.clone()).unwrap().wait()), Err(CqError::Closed)));
        endpoint.close();
        client.close();
        both.close();
        srq.close();
        for waiting in [requests, events, own, shared, queues, at_conn] {
            assert!(waiting.join().unwrap());
        }
        asked.close();
    });
    assert!(matches!(block_on(asked.next_event()), Err(EventError::Closed)));
    assert!(matches!(block_on(asked.established()), Err(EstablishError::Event(EventError::Closed))));
}

#[test]
fn messages_of_a_shared_receive_queue_s_clients_reach_one_task() {
    let peer = peer();
    let srq = peer.new_srq(&SrqCfg::new().rq_size(8)).unwrap();
    for n in 0..8 {
        srq.recv(LocalSlice::null(), n).unwrap();
    }
    let clients: Vec<_> = (0..4).map(|_| Pair::connect(&peer, &cfg(), &peer, &cfg().srq(&srq))).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for Pair { client, .. } in clients.iter().chain(&clients) {
                client.send(LocalSlice::null(), Signal::Always, 9).unwrap();
                complete(client, 9);
            }
        });
        let mut completions = Async::new(srq.rcq().unwrap()).unwrap();
        let mut from: Vec<_> = (0..8).map(|_| block_on(completions.wait()).unwrap().qp_num()).collect();
        let mut expected: Vec<_> = clients.iter().chain(&clients).map(|pair| pair.server.qp_num()).collect();
        from.sort_unstable();
        expected.sort_unstable();
        assert_eq!(from, expected);
    });
}

#[test]
fn queue_that_is_never_empty_lets_other_tasks_run_now_and_then() {
    const LONG: u32 = 1_000;
    const TURN: u64 = 64;
    let peer = peer();
    let Pair { client, server } = Pair::connect(&peer, &cfg().sq_size(LONG).rcq_size(1), &peer, &cfg());
    for conn in [&client, &server] {
        conn.recv(LocalSlice::null(), 0).unwrap();
    }
    for n in 0..u64::from(LONG) - 1 {
        write_nothing(&client, n);
    }
    // There and back again: what was written before is complete then, or about to be.
    client.send(LocalSlice::null(), Signal::Always, u64::from(LONG) - 1).unwrap();
    complete(&server, 0);
    server.send(LocalSlice::null(), Signal::Always, 1).unwrap();
    client.rcq().unwrap().wait(LIMIT).unwrap().result().unwrap();
    let mut completions = Async::new(client.cq()).unwrap();
    let (mut given, mut in_a_row, mut longest) = (0, 0, 0);
    while given < u64::from(LONG) {
        match polled_once(completions.wait()) {
            Poll::Ready(completion) => {
                assert_eq!(completion.unwrap().context(), given);
                given += 1;
                in_a_row += 1;
                longest = longest.max(in_a_row);
            }
            Poll::Pending => in_a_row = 0,
        }
    }
    assert!(longest <= TURN, "{longest} in a row");
}
