//! A receive completion queue per connection.

use std::thread;

use rpma::prelude::*;
use rpma::{CqError, Operation, PostError};

use crate::support::{LIMIT, Pair, bytes, cfg, in_time, listen, peer, region, request, still_works};

/// A connection whose ends both have a receive CQ.
fn pair() -> Pair {
    let peer = peer();
    let cfg = cfg().rcq_size(10);
    Pair::connect(&peer, &cfg, &peer, &cfg)
}

fn rcq(conn: &Conn) -> CompletionQueue {
    conn.rcq().expect("the connection has a receive CQ")
}

#[test]
fn connection_without_a_size_for_it_has_no_receive_cq() {
    let Pair { client, server } = Pair::new();
    assert!(client.rcq().is_none() && server.rcq().is_none());
}

#[test]
fn receives_complete_into_the_receive_cq_and_everything_else_into_the_main_one() {
    let pair = pair();
    for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let inbox = region(to.peer(), 8, Usage::RECV);
        let message = region(from.peer(), 8, Usage::SEND);
        message.write_at(0, b"messages").unwrap();
        to.recv(inbox.all(), 1).unwrap();
        to.recv(LocalSlice::null(), 2).unwrap();
        from.send(message.all(), Signal::Always, 3).unwrap();
        from.write_with_imm(RemoteSlice::NULL, LocalSlice::null(), 7, Signal::Always, 4).unwrap();
        for (context, operation) in [(3, Operation::Send), (4, Operation::WriteWithImm)] {
            let sent = from.cq().wait(LIMIT).unwrap();
            sent.result().unwrap();
            assert_eq!((sent.context(), sent.operation()), (context, operation));
        }
        let first = rcq(to).wait(LIMIT).unwrap();
        let second = rcq(to).wait(LIMIT).unwrap();
        assert_eq!((first.context(), first.received().unwrap().unwrap().len_bytes), (1, 8));
        assert_eq!((second.context(), second.received().unwrap().unwrap().imm), (2, Some(7)));
        assert_eq!(bytes(&inbox, 0, 8), b"messages");
        for queue in [from.cq(), rcq(from), to.cq(), rcq(to)] {
            assert_eq!(queue.poll().unwrap(), None, "{queue:?}");
        }
    }
    still_works(&pair);
}

#[test]
fn receive_posted_on_a_request_completes_into_the_receive_cq_of_the_request_and_its_connection() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let incoming = incoming.prepare(&cfg().rcq_size(1)).unwrap();
    incoming.recv(LocalSlice::null(), 5).unwrap();
    let early = incoming.rcq().unwrap();
    let accepting = incoming.connect(&[]).unwrap();
    assert!(accepting.rcq().is_some());
    let client = pending.established(LIMIT).unwrap();
    let _server = accepting.established(LIMIT).unwrap();
    client.send(LocalSlice::null(), Signal::OnError, 1).unwrap();
    assert_eq!(early.wait(LIMIT).unwrap().context(), 5);
}

#[test]
fn queues_hold_what_can_complete_at_once_whatever_smaller_size_was_asked_for() {
    let peer = peer();
    let small = cfg().cq_size(1).rcq_size(1).sq_size(4).rq_size(8);
    let pair = Pair::connect(&peer, &small, &peer, &small);
    let Pair { client, server } = &pair;
    assert!(client.cq().capacity() >= 4 && rcq(client).capacity() >= 8);
    for context in 0..8 {
        client.recv(LocalSlice::null(), context).unwrap();
    }
    assert!(matches!(client.recv(LocalSlice::null(), 8), Err(PostError::QueueFull { queue: "receive", limit: 8 })));
    for round in [0, 4] {
        for context in round..round + 4 {
            server.send(LocalSlice::null(), Signal::Always, context).unwrap();
        }
        for context in round..round + 4 {
            assert_eq!(server.cq().wait(LIMIT).unwrap().context(), context);
        }
    }
    // All eight lie there, and none is lost.
    for context in 0..8 {
        assert_eq!(rcq(client).wait(LIMIT).unwrap().context(), context);
    }
}

#[test]
fn end_of_the_connection_flushes_each_queue_s_own_and_drains_each() {
    let pair = pair();
    in_time(move || {
        let Pair { client, server } = &pair;
        client.recv(LocalSlice::null(), 1).unwrap();
        client.recv(LocalSlice::null(), 2).unwrap();
        thread::scope(|scope| {
            let waits = |queue: CompletionQueue| {
                move || {
                    let mut flushed = Vec::new();
                    loop {
                        match queue.wait(Wait::Forever) {
                            Ok(completion) => {
                                assert!(completion.result().unwrap_err().is_flushed());
                                flushed.push(completion.context());
                            }
                            Err(CqError::Drained) => return flushed,
                            Err(e) => panic!("{e:?}"),
                        }
                    }
                }
            };
            // Each of them alone learns of the end.
            let (main, receive) = (scope.spawn(waits(client.cq())), scope.spawn(waits(rcq(client))));
            server.disconnect().unwrap();
            assert_eq!(main.join().unwrap(), []);
            assert_eq!(receive.join().unwrap(), [1, 2]);
        });
        assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    });
}

#[test]
fn closing_wakes_who_waits_for_either_queue() {
    let pair = pair();
    in_time(move || {
        let client = &pair.client;
        thread::scope(|scope| {
            let waiting: Vec<_> =
                [client.cq(), rcq(client)].map(|queue| scope.spawn(move || queue.wait(Wait::Forever))).into_iter().collect();
            client.close();
            for waiting in waiting {
                assert!(matches!(waiting.join().unwrap(), Err(CqError::Closed)));
            }
        });
    });
}
