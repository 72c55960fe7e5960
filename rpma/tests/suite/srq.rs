//! Shared receive queues.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;

use rpma::prelude::*;
use rpma::sys::testing::{Call, CountingProvider, FailingProvider, Kind, Plan};
use rpma::{BuildError, ConnReqError, CqError, ErrorCode, EstablishError, Operation, PostError, RequestError, SrqError};

use crate::support::{
    LIMIT, Pair, addr, bytes, cfg, complete, in_time, listen, peer, peer_over, provider, region, request, still_works,
};

/// Two clients of one server, whose connections take their receives from one queue.
struct Trio {
    srq: Srq,
    pairs: [Pair; 2],
}

impl Trio {
    fn new(srq: &SrqCfg, conn: &ConnCfg) -> Self {
        let (server, client) = (peer(), peer());
        let srq = server.new_srq(srq).unwrap();
        let with_srq = conn.clone().srq(&srq);
        let pairs = [(); 2].map(|()| Pair::connect(&client, &cfg(), &server, &with_srq));
        Self { srq, pairs }
    }

    /// Sends `imm` from a client, and waits until the server's device has it.
    fn send(&self, from: usize, imm: u32) {
        let client = &self.pairs[from].client;
        client.send_with_imm(LocalSlice::null(), imm, Signal::Always, imm.into()).unwrap();
        complete(client, imm.into());
    }

    fn recv(&self, context: u64) {
        self.srq.recv(LocalSlice::null(), context).unwrap();
    }
}

/// The receive that completes next in `queue`: its context, its connection and its immediate data.
fn received(queue: &CompletionQueue) -> (u64, u32, Option<u32>) {
    let completion = queue.wait(LIMIT).unwrap();
    assert_eq!(completion.operation(), Operation::Recv);
    (completion.context(), completion.qp_num(), completion.received().unwrap().unwrap().imm)
}

fn no_rcq() -> SrqCfg {
    SrqCfg::new().rcq_size(0)
}

#[test]
fn messages_to_two_connections_complete_in_the_queue_s_own_cq_and_tell_their_connections() {
    // The size of a receive CQ of the connection's own is ignored.
    let trio = Trio::new(&SrqCfg::new(), &cfg().rcq_size(5));
    let [first, second] = &trio.pairs;
    let numbers = [first.server.qp_num(), second.server.qp_num()];
    assert_ne!(numbers[0], numbers[1]);
    assert!(first.server.rcq().is_none() && second.server.rcq().is_none());
    let rcq = trio.srq.rcq().unwrap();
    assert!(rcq.capacity() >= 20 && trio.srq.granted().wr >= 20);
    for context in 0..6 {
        trio.recv(context);
    }
    let mut contexts = BTreeSet::new();
    for n in 0..6 {
        let from = n % 2;
        trio.send(from, 100 + u32::try_from(n).unwrap());
        let (context, qp_num, imm) = received(&rcq);
        assert_eq!((qp_num, imm), (numbers[from], Some(100 + u32::try_from(n).unwrap())));
        contexts.insert(context);
    }
    assert_eq!(contexts, (0..6).collect());
    for pair in &trio.pairs {
        assert_eq!(pair.server.cq().poll().unwrap(), None);
        still_works(pair);
    }
    assert_eq!(rcq.poll().unwrap(), None);
}

#[test]
fn queue_without_a_cq_of_its_own_completes_into_each_connection_s_receive_cq_or_main_one() {
    for rcq_size in [0, 1] {
        let trio = Trio::new(&no_rcq(), &cfg().rcq_size(rcq_size));
        assert!(trio.srq.rcq().is_none());
        for context in 0..20 {
            trio.recv(context);
        }
        // All twenty can come through one connection: the queue has room for them, whatever its size was to be.
        for n in 0..19 {
            trio.send(0, n);
        }
        trio.send(1, 19);
        let mut contexts = BTreeSet::new();
        for (pair, messages) in trio.pairs.iter().zip([0..19, 19..20]) {
            let server = &pair.server;
            assert_eq!(server.rcq().is_some(), rcq_size > 0);
            let queue = server.rcq().unwrap_or(server.cq());
            for n in messages {
                let (context, qp_num, imm) = received(&queue);
                assert_eq!((qp_num, imm), (server.qp_num(), Some(n)));
                assert!(contexts.insert(context));
            }
            assert_eq!(server.cq().poll().unwrap(), None);
            still_works(pair);
        }
        assert_eq!(contexts, (0..20).collect());
    }
}

#[test]
fn queue_without_a_cq_of_its_own_goes_with_a_shared_channel() {
    let trio = Trio::new(&no_rcq(), &cfg().rcq_size(1).shared_channel(true));
    trio.recv(1);
    trio.send(1, 2);
    let (role, completion) = trio.pairs[1].server.wait(LIMIT).unwrap();
    assert_eq!((role, completion.context()), (rpma::CqRole::Receive, 1));
}

#[test]
fn message_arrives_in_the_buffer_that_its_completion_names() {
    let Trio { srq, pairs } = Trio::new(&SrqCfg::new(), &cfg());
    let inboxes = region(srq.peer(), 4 * 8, Usage::RECV);
    for n in 0..4 {
        srq.recv(inboxes.slice(8 * n..8 * n + 8).unwrap(), n as u64).unwrap();
    }
    for n in 0..4 {
        let client = &pairs[n % 2].client;
        let message = region(client.peer(), 8, Usage::SEND);
        let text = format!("number {n}");
        message.write_at(0, text.as_bytes()).unwrap();
        client.send(message.all(), Signal::Always, 1).unwrap();
        complete(client, 1);
        let completion = srq.rcq().unwrap().wait(LIMIT).unwrap();
        assert_eq!(completion.received().unwrap().unwrap().len_bytes, 8);
        let at = 8 * usize::try_from(completion.context()).unwrap();
        assert_eq!(bytes(&inboxes, at, 8), text.as_bytes());
    }
}

#[test]
fn message_that_finds_the_queue_empty_waits_for_the_next_receive() {
    let trio = Trio::new(&SrqCfg::new(), &cfg());
    let client = &trio.pairs[0].client;
    client.send_with_imm(LocalSlice::null(), 7, Signal::Always, 1).unwrap();
    assert!(matches!(client.cq().wait(Duration::from_millis(50)), Err(CqError::NoCompletion)));
    trio.recv(2);
    complete(client, 1);
    assert_eq!(received(&trio.srq.rcq().unwrap()).0, 2);
}

#[test]
fn receive_posted_to_a_connection_with_a_shared_queue_is_an_error() {
    let trio = Trio::new(&SrqCfg::new(), &cfg());
    let error = trio.pairs[0].server.recv(LocalSlice::null(), 1).unwrap_err();
    assert!(matches!(error, PostError::SharedReceives), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
    let (endpoint, _) = listen(trio.srq.peer());
    let (_pending, incoming) = request(&peer(), &endpoint, &[]);
    let incoming = incoming.prepare(&cfg().srq(&trio.srq)).unwrap();
    assert!(matches!(incoming.recv(LocalSlice::null(), 1), Err(PostError::SharedReceives)));
    let accepting = incoming.connect(&[]).unwrap();
    assert!(matches!(accepting.recv(LocalSlice::null(), 1), Err(PostError::SharedReceives)));
    trio.pairs.iter().for_each(still_works);
}

#[test]
fn receive_is_checked_before_it_is_posted_as_a_connection_s_is() {
    let srq = peer().new_srq(&SrqCfg::new()).unwrap();
    let send = region(srq.peer(), 8, Usage::SEND);
    let foreign = region(&peer(), 8, Usage::RECV);
    let usage = srq.recv(send.all(), 1).unwrap_err();
    assert!(matches!(usage, PostError::LocalUsage { operation: Operation::Recv, .. }), "{usage:?}");
    let other = srq.recv(foreign.all(), 1).unwrap_err();
    assert!(matches!(other, PostError::OtherPeer { operation: Operation::Recv }), "{other:?}");
    assert_eq!((usage.code(), other.code()), (ErrorCode::InvalidArgument, ErrorCode::InvalidArgument));
}

#[test]
fn what_does_not_go_together_is_refused_and_the_client_rejected() {
    let (peer, other) = (peer(), peer());
    let own_rcq = peer.new_srq(&SrqCfg::new()).unwrap();
    let of_other = other.new_srq(&SrqCfg::new()).unwrap();
    let (endpoint, _) = listen(&peer);
    for (cfg, is_channel) in [(cfg().srq(&own_rcq).shared_channel(true), true), (cfg().srq(&of_other), false)] {
        let refused = |error: &BuildError| {
            let expected =
                if is_channel { matches!(error, BuildError::SrqHasChannel) } else { matches!(error, BuildError::SrqOfOtherPeer) };
            assert!(expected, "{error:?}");
        };
        let error = ConnReq::new(&peer, (addr(), 9), &cfg).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        let ConnReqError::Build(error) = error else { panic!("{error:?}") };
        refused(&error);
        let pending = ConnReq::new(&peer, endpoint.local_addr().unwrap(), &crate::support::cfg()).unwrap().connect(&[]).unwrap();
        let error = endpoint.next_conn_req(&cfg, LIMIT).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        let RequestError::Build(error) = error else { panic!("{error:?}") };
        refused(&error);
        assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
    }
}

#[test]
fn queue_of_an_absurd_size_is_an_error_that_tells_it() {
    let peer = peer();
    let error = peer.new_srq(&SrqCfg::new().rq_size(u32::MAX).rcq_size(0)).unwrap_err();
    assert!(matches!(error, SrqError::Queue { rq_size: u32::MAX, .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
    let error = peer.new_srq(&SrqCfg::new().rcq_size(u32::MAX)).unwrap_err();
    assert!(matches!(error, SrqError::Cq { cqe: i32::MAX, .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
}

#[test]
fn queue_is_full_after_its_size_and_takes_again_what_was_polled() {
    let trio = Trio::new(&SrqCfg::new().rq_size(4).rcq_size(1), &cfg());
    let rcq = trio.srq.rcq().unwrap();
    for round in 0..3 {
        for context in 0..4 {
            trio.recv(context);
        }
        let error = trio.srq.recv(LocalSlice::null(), 4).unwrap_err();
        assert!(matches!(error, PostError::QueueFull { queue: "shared receive", limit: 4 }), "{error:?}");
        assert!(error.to_string().ends_with("(SrqCfg::rq_size is 4)"), "{error}");
        for n in 0..4 {
            trio.send(n % 2, round);
        }
        // They have been taken, and not polled.
        assert!(matches!(trio.srq.recv(LocalSlice::null(), 4), Err(PostError::QueueFull { .. })));
        let contexts: BTreeSet<_> = (0..4).map(|_| received(&rcq).0).collect();
        assert_eq!(contexts, (0..4).collect());
    }
}

#[test]
fn connection_that_ends_flushes_no_receive_of_the_queue_and_the_others_go_on() {
    for srq in [SrqCfg::new(), no_rcq()] {
        let trio = Trio::new(&srq, &cfg());
        trio.recv(1);
        trio.recv(2);
        let [Pair { client, server }, other] = &trio.pairs;
        client.disconnect().unwrap();
        assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        // It had taken none.
        let error = server.cq().wait(LIMIT).unwrap_err();
        assert!(matches!(error, CqError::Drained), "{error:?}");
        let queue = trio.srq.rcq().unwrap_or(other.server.cq());
        assert_eq!(queue.poll().unwrap(), None);
        for n in [1, 2] {
            trio.send(1, n);
            let (context, qp_num, imm) = received(&queue);
            assert!([1, 2].contains(&context));
            assert_eq!((qp_num, imm), (other.server.qp_num(), Some(n)));
        }
        still_works(other);
    }
}

#[test]
fn messages_of_a_connection_that_ended_are_still_there_before_it_is_drained() {
    let trio = Trio::new(&no_rcq(), &cfg());
    trio.recv(1);
    trio.recv(2);
    trio.send(0, 10);
    trio.send(0, 11);
    let [Pair { client, server }, _] = &trio.pairs;
    client.disconnect().unwrap();
    assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    let found: Vec<_> = (0..2).map(|_| received(&server.cq()).2).collect();
    assert_eq!(found, [Some(10), Some(11)]);
    assert!(matches!(server.cq().wait(LIMIT), Err(CqError::Drained)));
}

#[test]
fn completions_in_the_queue_s_own_cq_outlive_the_connection_that_they_are_of() {
    let mut trio = Trio::new(&SrqCfg::new(), &cfg());
    trio.recv(1);
    trio.recv(2);
    trio.send(0, 10);
    trio.send(0, 11);
    let number = trio.pairs[0].server.qp_num();
    trio.pairs[0] = Pair::new();
    let rcq = trio.srq.rcq().unwrap();
    for (context, imm) in [(1, 10), (2, 11)] {
        assert_eq!(received(&rcq), (context, number, Some(imm)));
    }
    assert_eq!(rcq.poll().unwrap(), None);
}

/// Some devices remove them with it.
#[test]
fn completions_are_taken_before_the_queue_pair_that_they_are_of_is_destroyed() {
    for srq in [SrqCfg::new(), no_rcq()] {
        let counting = CountingProvider::new(provider());
        let failing = FailingProvider::new(counting.provider());
        let server = peer_over(&failing.provider());
        let srq = server.new_srq(&srq).unwrap();
        let pair = Pair::connect(&peer(), &cfg(), &server, &cfg().srq(&srq));
        let polls = Arc::new(Mutex::new(None));
        let (seen, counts) = (Arc::clone(&polls), Arc::clone(&counting));
        let before = counting.calls(Call::poll_cq);
        failing.set_hook(Call::rdma_destroy_qp, move |_| *seen.lock().unwrap() = Some(counts.calls(Call::poll_cq)));
        drop(pair);
        let at_the_end = polls.lock().unwrap().expect("the queue pair was destroyed");
        assert!(at_the_end > before, "{at_the_end} polls");
    }
}

#[test]
fn receives_whose_completions_go_with_their_connection_leave_room_for_others() {
    let mut trio = Trio::new(&no_rcq().rq_size(2), &cfg());
    let client = peer();
    for _ in 0..3 {
        trio.recv(1);
        trio.recv(2);
        trio.send(0, 10);
        trio.send(0, 11);
        // Nobody polls them.
        trio.pairs[0] = Pair::connect(&client, &cfg(), trio.srq.peer(), &cfg().srq(&trio.srq));
    }
    trio.recv(1);
    trio.send(1, 12);
    assert_eq!(received(&trio.pairs[1].server.cq()).2, Some(12));
}

#[test]
fn region_that_is_dropped_fails_the_connection_whose_message_meets_it_and_no_other() {
    let trio = Trio::new(&SrqCfg::new(), &cfg());
    let gone = region(trio.srq.peer(), 8, Usage::RECV);
    trio.srq.recv(gone.all(), 1).unwrap();
    drop(gone);
    let [Pair { client, server }, other] = &trio.pairs;
    let message = region(client.peer(), 8, Usage::SEND);
    client.send(message.all(), Signal::Always, 2).unwrap();
    assert!(client.cq().wait(LIMIT).unwrap().result().is_err());
    let completion = trio.srq.rcq().unwrap().wait(LIMIT).unwrap();
    assert_eq!((completion.context(), completion.qp_num()), (1, server.qp_num()));
    assert!(completion.result().is_err());
    trio.recv(3);
    trio.send(1, 4);
    assert_eq!(received(&trio.srq.rcq().unwrap()), (3, other.server.qp_num(), Some(4)));
    still_works(other);
}

#[test]
fn queue_lives_for_as_long_as_anything_uses_it_whatever_is_dropped_first() {
    let counting = CountingProvider::new(provider());
    let connect = |srq: &SrqCfg| {
        let server = peer_over(&counting.provider());
        let srq = server.new_srq(srq).unwrap();
        let cfg_with = cfg().srq(&srq);
        let pair = Pair::connect(&peer(), &cfg(), &server, &cfg_with);
        srq.recv(LocalSlice::null(), 1).unwrap();
        (srq, cfg_with, pair)
    };
    let send = |pair: &Pair| {
        pair.client.send_with_imm(LocalSlice::null(), 9, Signal::Always, 2).unwrap();
        complete(&pair.client, 2);
    };
    // The connection alone holds it.
    let (srq, cfg_with, pair) = connect(&no_rcq());
    drop((srq, cfg_with));
    assert_eq!(counting.live()[Kind::Srq], 1);
    send(&pair);
    assert_eq!(received(&pair.server.cq()).2, Some(9));
    drop(pair);
    counting.nothing_live().unwrap();
    // The CQ's handle alone, behind everything else.
    let (srq, cfg_with, pair) = connect(&SrqCfg::new());
    let rcq = srq.rcq().unwrap();
    drop((srq, cfg_with));
    send(&pair);
    drop(pair);
    assert_eq!(received(&rcq).2, Some(9));
    assert_eq!(counting.live()[Kind::Srq], 1);
    drop(rcq);
    counting.nothing_live().unwrap();
    // The parameters alone: others can still be connected with them.
    let (srq, cfg_with, pair) = connect(&SrqCfg::new());
    drop((srq, pair));
    let srq = cfg_with.get_srq().unwrap();
    let pair = Pair::connect(&peer(), &cfg(), srq.peer(), &cfg_with);
    send(&pair);
    assert_eq!(received(&srq.rcq().unwrap()).0, 1);
    drop(cfg_with);
    // The connection last, with a message that nobody polls.
    drop(pair);
    counting.nothing_live().unwrap();
}

#[test]
fn forgotten_handles_leave_the_queue_usable_by_its_connections() {
    let trio = Trio::new(&SrqCfg::new(), &cfg());
    std::mem::forget((trio.srq.clone(), trio.srq.rcq()));
    trio.recv(1);
    trio.send(0, 2);
    assert_eq!(received(&trio.srq.rcq().unwrap()).2, Some(2));
}

#[test]
fn threads_that_wait_for_the_queue_and_post_to_it_get_every_message_once() {
    const MESSAGES: u32 = 300;
    let trio = Trio::new(&SrqCfg::new(), &cfg());
    for context in 0..20 {
        trio.recv(context);
    }
    in_time(move || {
        let seen = Mutex::new(Vec::new());
        let rcq = trio.srq.rcq().unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let completion = match rcq.wait(Wait::Forever) {
                            Ok(completion) => completion,
                            Err(CqError::Closed) => break,
                            Err(e) => panic!("{e:?}"),
                        };
                        let imm = completion.received().unwrap().unwrap().imm.unwrap();
                        seen.lock().unwrap().push((completion.qp_num(), imm));
                        trio.recv(completion.context());
                    }
                });
            }
            let sending: Vec<_> = (0..2)
                .map(|from| {
                    let trio = &trio;
                    scope.spawn(move || (0..MESSAGES).for_each(|n| trio.send(from, n)))
                })
                .collect();
            sending.into_iter().for_each(|thread| thread.join().unwrap());
            while seen.lock().unwrap().len() < 2 * MESSAGES as usize {
                thread::yield_now();
            }
            trio.srq.close();
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        let mut numbers = [0, 1].map(|n: usize| trio.pairs[n].server.qp_num());
        numbers.sort_unstable();
        let expected: Vec<_> = numbers.into_iter().flat_map(|number| (0..MESSAGES).map(move |n| (number, n))).collect();
        assert_eq!(seen, expected);
        assert!(matches!(rcq.wait(Wait::Forever), Err(CqError::Closed)));
    });
}

#[test]
fn post_that_fails_takes_no_slot_unless_it_may_have_been_taken() {
    let failing = FailingProvider::new(provider());
    let srq = peer_over(&failing.provider()).new_srq(&SrqCfg::new().rq_size(4)).unwrap();
    failing.arm(Plan::every(Call::post_srq_recv, libc::EIO));
    for _ in 0..8 {
        let error = srq.recv(LocalSlice::null(), 1).unwrap_err();
        assert!(matches!(&error, PostError::Provider { source, .. } if source.raw_os_error() == Some(libc::EIO)), "{error:?}");
    }
    failing.arm(Plan::nth_of(Call::post_srq_recv, 0, libc::EINVAL).naming_no_bad_wr());
    let error = srq.recv(LocalSlice::null(), 1).unwrap_err();
    assert!(matches!(error, PostError::PerhapsTaken { .. }), "{error:?}");
    failing.disarm();
    for context in 0..3 {
        srq.recv(LocalSlice::null(), context).unwrap();
    }
    assert!(matches!(srq.recv(LocalSlice::null(), 3), Err(PostError::QueueFull { .. })));
}

#[test]
fn device_without_shared_queues_is_an_error_that_says_so() {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
        failing.arm(Plan::nth_of(Call::ibv_create_srq, 0, errno));
        let error = peer.new_srq(&SrqCfg::new()).unwrap_err();
        assert!(matches!(&error, SrqError::NotSupported { device, .. } if device == peer.device().name()), "{error:?}");
        assert_eq!(error.code(), ErrorCode::Provider);
    }
    failing.arm(Plan::nth_of(Call::ibv_query_port, 0, libc::EIO));
    assert!(matches!(peer.new_srq(&SrqCfg::new()), Err(SrqError::Port(_))));
}

#[test]
fn wait_without_a_message_ends_with_its_time() {
    let trio = Trio::new(&SrqCfg::new(), &cfg());
    trio.recv(1);
    let error = trio.srq.rcq().unwrap().wait(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, CqError::NoCompletion), "{error:?}");
    assert_eq!(error.code(), ErrorCode::NoCompletion);
}

/// Most connections go while their messages arrive, and the queue's completions and events with them.
#[test]
fn connections_that_come_and_go_while_a_thread_waits_leave_the_queue_whole() {
    const ROUNDS: u32 = 20;
    let server = peer();
    let client = peer();
    let srq = server.new_srq(&SrqCfg::new()).unwrap();
    for context in 0..20 {
        srq.recv(LocalSlice::null(), context).unwrap();
    }
    in_time(move || {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut messages = 0;
                loop {
                    match srq.rcq().unwrap().wait(Wait::Forever) {
                        Ok(completion) => {
                            messages += u32::from(completion.result().is_ok());
                            srq.recv(LocalSlice::null(), completion.context()).unwrap();
                        }
                        Err(CqError::Closed) => return messages,
                        Err(e) => panic!("{e:?}"),
                    }
                }
            });
            let with_srq = cfg().srq(&srq);
            for _ in 0..ROUNDS {
                let pair = Pair::connect(&client, &cfg(), &server, &with_srq);
                for n in 0..5 {
                    pair.client.send_with_imm(LocalSlice::null(), 0, Signal::Always, n).unwrap();
                    complete(&pair.client, n);
                }
                // Here the server's end goes, whatever has been polled by now.
            }
            let last = Pair::connect(&client, &cfg(), &server, &with_srq);
            for n in 0..40 {
                last.client.send_with_imm(LocalSlice::null(), 0, Signal::Always, n).unwrap();
                complete(&last.client, n);
            }
            srq.close();
            // Closing comes before what is not polled yet.
            let mut messages = waiting.join().unwrap();
            while let Some(completion) = srq.rcq().unwrap().poll().unwrap() {
                messages += u32::from(completion.result().is_ok());
            }
            assert_eq!(messages, 5 * ROUNDS + 40);
        });
    });
}
