//! A message that finds no receive, and a peer that does not answer.

use std::time::Duration;

use super::pair::{A, B, Pair, RETRY_TIME, RNR_TIME, Setup, inline, local, remote};
use crate::rc::{Data, PeerVanished, ProtocolError, QpState, SendOp, WcStatus};
use crate::wire::{Frame, Nak, Request, RequestOp, Response, ResponseOp};

use WcStatus::{RetryExceeded, RnrRetryExceeded, Success, WrFlush};

fn with_rnr_retry(rnr_retry: u8) -> Pair {
    let mut setup = Setup::default();
    setup.requester.rnr_retry = rnr_retry;
    Pair::with(setup, Setup::default())
}

fn not_ready_answers(pair: &Pair) -> usize {
    let is_rnr =
        |frame: &&Frame| matches!(frame, Frame::Response(Response { op: ResponseOp::Nak(Nak::ReceiverNotReady(_)), .. }));
    pair.ends[A].frames.iter().filter(is_rnr).count()
}

#[test]
fn send_without_receive_fails_after_exactly_its_retries() {
    for retries in [0, 1, 6] {
        let mut pair = with_rnr_retry(retries);
        pair.ends[A].post(1, SendOp::Send, inline(b"anyone?"));
        pair.ends[A].post(2, SendOp::Send, inline(b"hello?"));
        if retries > 0 {
            pair.pass(u32::from(retries) * RNR_TIME - Duration::from_micros(1));
            assert_eq!(pair.ends[A].take(), []);
        }
        pair.pass(Duration::from_micros(1));
        assert_eq!(pair.ends[A].take(), [(1, RnrRetryExceeded), (2, WrFlush)]);
        assert_eq!(not_ready_answers(&pair), usize::from(retries) + 1);
        // Not ready is no fault of the responder's.
        pair.assert_states(QpState::Error, QpState::ReadyToSend);
        pair.assert_empty();
    }
}

#[test]
fn seven_retries_are_for_ever() {
    let mut pair = with_rnr_retry(7);
    pair.ends[A].post(1, SendOp::Send, inline(b"anyone?"));
    pair.pass(1000 * RNR_TIME);
    assert_eq!(pair.ends[A].take(), []);
    assert!(not_ready_answers(&pair) > 900);
    let buf = pair.ends[B].memory.register(16);
    pair.ends[B].post_recv(9, buf, 16);
    pair.pass(RNR_TIME);
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![(1, Success)], vec![(9, Success)]));
    pair.assert_empty();
}

#[test]
fn everything_behind_an_unready_message_is_carried_out_again_in_order_and_once() {
    let mut pair = with_rnr_retry(1);
    let (mr, dst) = (pair.ends[A].memory.register(64), pair.ends[B].memory.register(64));
    let buf = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"first"));
    pair.ends[A].post(2, SendOp::Send, inline(b"unready"));
    pair.ends[A].post(3, SendOp::FetchAdd { remote: remote(dst, 8), add: 1 }, local(mr, 0, 8));
    pair.ends[A].post(4, SendOp::Send, inline(b"last"));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)], "what is before it is acknowledged");
    assert_eq!(pair.ends[B].memory.read(dst.addr + 8, 8), [0; 8], "what is behind it is dropped");
    pair.ends[B].post_recv(8, buf, 16);
    pair.ends[B].post_recv(9, buf, 16);
    pair.pass(RNR_TIME);
    assert_eq!(pair.ends[A].take(), [(2, Success), (3, Success), (4, Success)]);
    assert_eq!(pair.ends[B].take(), [(8, Success), (9, Success)]);
    assert_eq!(pair.ends[B].memory.read(dst.addr + 8, 8), 1_u64.to_ne_bytes());
    pair.assert_empty();
}

#[test]
fn an_answer_reloads_the_retries() {
    let mut pair = with_rnr_retry(1);
    let buf = pair.ends[B].memory.register(16);
    for wr_id in 1..=3 {
        pair.ends[A].post(wr_id, SendOp::Send, inline(b"x"));
    }
    for wr_id in 1..=3 {
        pair.run();
        pair.ends[B].post_recv(wr_id, buf, 16);
        pair.pass(RNR_TIME);
        assert_eq!(pair.ends[A].take(), [(wr_id, Success)]);
    }
    pair.assert_empty();
}

#[test]
fn after_not_ready_one_request_at_a_time_is_tried() {
    let mut pair = with_rnr_retry(7);
    for wr_id in 1..=8 {
        pair.ends[A].post(wr_id, SendOp::Send, inline(b"x"));
    }
    pair.run();
    let before = pair.ends[B].frames.len();
    pair.pass(3 * RNR_TIME);
    assert_eq!(pair.ends[B].frames.len() - before, 3);
}

#[test]
fn write_with_immediate_without_receive_leaves_memory_alone_until_there_is_one() {
    let mut pair = with_rnr_retry(7);
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::WriteImm { remote: remote(dst, 0), imm: [1; 4] }, inline(b"data"));
    pair.run();
    assert_eq!(pair.ends[B].memory.read(dst.addr, 4), [0; 4]);
    pair.ends[B].post_recv(5, dst, 0);
    pair.pass(RNR_TIME);
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![(1, Success)], vec![(5, Success)]));
    assert_eq!(pair.ends[B].memory.read(dst.addr, 4), b"data");
}

#[test]
fn not_ready_while_a_later_message_is_being_sent() {
    let mut pair = with_rnr_retry(7);
    let (src, buf) = (pair.ends[A].memory.register(1000), pair.ends[B].memory.register(1000));
    pair.ends[A].memory.write(src.addr, &[3; 1000]).unwrap();
    pair.ends[A].post(1, SendOp::Send, inline(b"small"));
    pair.ends[A].post(2, SendOp::Send, local(src, 0, 1000));
    // The second is half on the stream when the first turns out to be unready.
    pair.send(A, usize::MAX);
    pair.send(A, 300);
    while pair.receive(B, usize::MAX) | pair.send(B, usize::MAX) | pair.receive(A, usize::MAX) {}
    assert_eq!(not_ready_answers(&pair), 1);
    pair.ends[B].post_recv(8, buf, 1000);
    pair.ends[B].post_recv(9, buf, 1000);
    pair.pass(RNR_TIME);
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success)]);
    assert_eq!(pair.ends[B].take(), [(8, Success), (9, Success)]);
    assert_eq!(pair.ends[B].memory.read(buf.addr, 1000), [3; 1000]);
    pair.assert_empty();
}

#[test]
fn unsendable_request_behind_an_unready_one_fails_in_its_turn() {
    let mut pair = with_rnr_retry(7);
    let buf = pair.ends[B].memory.register(16);
    let mut bad = local(buf, 0, 8);
    if let Data::Sges(sges) = &mut bad {
        sges[0].lkey = 999;
    }
    pair.ends[A].post(1, SendOp::Send, inline(b"x"));
    pair.ends[A].post(2, SendOp::Send, bad);
    pair.run();
    assert_eq!(pair.ends[A].take(), []);
    pair.ends[B].post_recv(9, buf, 16);
    pair.pass(RNR_TIME);
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, WcStatus::LocalProtection)]);
}

#[test]
fn repeating_before_being_told_is_a_fault() {
    let mut pair = Pair::new();
    let request = Request { msn: 1, solicited: false, op: RequestOp::Send { len_bytes: 0 } };
    let now = pair.now;
    let qp = &mut pair.ends[B].qp;
    assert!(qp.handle_request(now, request).is_ok());
    assert_eq!(qp.handle_request(now, request).unwrap_err(), ProtocolError::Sequence { expected: 1, found: 1 });
    assert!(qp.held() <= 1);
}

#[test]
fn silent_peer_is_given_up_after_the_retry_time() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    for wr_id in 1..=3 {
        pair.ends[A].post(wr_id, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
    }
    while pair.send(A, usize::MAX) {}
    // B's process does not run.
    let due = pair.ends[A].qp.next_timeout().unwrap();
    assert_eq!(due, pair.now + RETRY_TIME);
    let qp = &mut pair.ends[A].qp;
    assert_eq!(qp.handle_timeout(due - Duration::from_nanos(1)), Ok(()));
    // The program is told of the end first.
    assert_eq!(qp.handle_timeout(due), Err(PeerVanished));
    assert_eq!((qp.state(), qp.poll_completion()), (QpState::ReadyToSend, None));
    qp.peer_gone(due);
    assert_eq!(pair.ends[A].take(), [(1, RetryExceeded), (2, WrFlush), (3, WrFlush)]);
    assert_eq!(pair.ends[A].qp.next_timeout(), None);
}

#[test]
fn stream_that_stands_still_in_the_middle_of_a_message_is_given_up() {
    let mut pair = Pair::new();
    let (src, dst) = (pair.ends[A].memory.register(1000), pair.ends[B].memory.register(1000));
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, local(src, 0, 1000));
    pair.send(A, 500);
    let due = pair.ends[A].qp.next_timeout().unwrap();
    assert_eq!(pair.ends[A].take(), []);
    pair.ends[A].handle_timeout(due);
    assert_eq!(pair.ends[A].take(), [(1, RetryExceeded)]);
    pair.cut();
    pair.assert_empty();
}

#[test]
fn long_message_is_no_silence() {
    let mut pair = Pair::new();
    let (src, dst) = (pair.ends[A].memory.register(1000), pair.ends[B].memory.register(1000));
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, local(src, 0, 1000));
    for _ in 0..20 {
        pair.send(A, 50);
        pair.receive(B, 50);
        pair.now += RETRY_TIME / 2;
        pair.ends[A].handle_timeout(pair.now);
    }
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
}

#[test]
fn no_retry_time_waits_for_ever() {
    let mut setup = Setup::default();
    setup.requester.retry_time = None;
    let mut pair = Pair::with(setup, setup);
    pair.ends[A].post(1, SendOp::Send, inline(b"x"));
    while pair.send(A, usize::MAX) {}
    assert_eq!(pair.ends[A].qp.next_timeout(), None);
}

#[test]
fn idle_queue_pair_has_no_deadline() {
    let mut pair = Pair::new();
    assert_eq!(pair.ends[A].qp.next_timeout(), None);
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
    pair.run();
    assert_eq!(pair.ends[A].qp.next_timeout(), None);
    assert_eq!(pair.ends[B].qp.next_timeout(), None);
}

#[test]
fn vanished_peer_completes_everything_and_one_completion_names_the_cause() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    let buf = pair.ends[A].memory.register(16);
    pair.ends[A].post_recv(7, buf, 16);
    for wr_id in 1..=3 {
        pair.ends[A].post(wr_id, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
    }
    pair.send(A, usize::MAX);
    pair.cut();
    assert_eq!(pair.ends[A].take_side(crate::rc::Side::Send), [(1, RetryExceeded), (2, WrFlush), (3, WrFlush)]);
    assert_eq!(pair.ends[A].take(), [(7, WrFlush)]);
    pair.assert_empty();
    // What was never sent names no cause.
    let mut pair = Pair::new();
    pair.ends[A].post(1, SendOp::Send, inline(b"x"));
    pair.cut();
    assert_eq!(pair.ends[A].take(), [(1, WrFlush)]);
}

// ---- a stream that is over, while the program does not know ----

/// The stream ends, and nobody moves the queue pairs to the error state.
fn end_stream(pair: &mut Pair) {
    pair.is_cut = true;
    pair.ends[A].inbound.clear();
    pair.ends[A].qp.transmit_to_nobody(pair.now);
}

/// Time passes, and A's driver does what is due.
fn pass_alone(pair: &mut Pair, time: Duration) {
    pair.now += time;
    pair.ends[A].handle_timeout(pair.now);
    pair.ends[A].qp.transmit_to_nobody(pair.now);
}

#[test]
fn work_that_was_not_sent_when_the_stream_ended_fails_after_the_retry_time() {
    let mut pair = with_rnr_retry(7);
    // The second waits behind the first, which waits for a receive.
    pair.ends[A].post(1, SendOp::Send, inline(b"1"));
    pair.run();
    pair.ends[A].post(2, SendOp::Send, inline(b"2"));
    end_stream(&mut pair);
    pass_alone(&mut pair, RNR_TIME);
    pass_alone(&mut pair, RETRY_TIME - Duration::from_micros(1));
    assert_eq!(pair.ends[A].take(), []);
    pass_alone(&mut pair, Duration::from_micros(1));
    assert_eq!(pair.ends[A].take(), [(1, RetryExceeded), (2, WrFlush)]);
    assert_eq!(pair.ends[A].qp.state(), QpState::Error);
}

#[test]
fn work_posted_after_the_end_of_the_stream_fails_after_the_retry_time_and_more_of_it_puts_nothing_off() {
    let mut pair = Pair::new();
    let mr = pair.ends[A].memory.register(16);
    end_stream(&mut pair);
    pass_alone(&mut pair, 10 * RETRY_TIME);
    assert_eq!(pair.ends[A].qp.state(), QpState::ReadyToSend, "nothing was posted");
    for wr_id in 0..8 {
        pair.ends[A].post(wr_id, SendOp::Read { remote: remote(mr, 0) }, local(mr, 0, 8));
        pair.ends[A].qp.transmit_to_nobody(pair.now);
        assert_eq!(pair.ends[A].take(), []);
        pass_alone(&mut pair, RETRY_TIME / 8);
    }
    let statuses: Vec<_> = pair.ends[A].take().into_iter().map(|(_, status)| status).collect();
    assert_eq!((statuses[0], &statuses[1..]), (RetryExceeded, &[WrFlush; 7][..]));
    assert_eq!((pair.ends[A].memory.leases(), pair.ends[A].qp.held()), (0, 0));
}

#[test]
fn message_that_was_half_sent_when_the_stream_ended_fails_too_and_holds_no_memory() {
    let mut pair = Pair::new();
    let src = pair.ends[A].memory.register(1000);
    pair.ends[A].post(1, SendOp::Send, local(src, 0, 1000));
    pair.send(A, 100);
    pair.cut_at_sender();
    end_stream(&mut pair);
    assert_eq!(pair.ends[A].memory.leases(), 0);
    pass_alone(&mut pair, RETRY_TIME);
    assert_eq!(pair.ends[A].take(), [(1, RetryExceeded)]);
}
