//! Each fault, as hardware gives it: what completes how at either end, and which state follows.

use super::memory::{Mr, PD, SimMemory};
use super::pair::{A, B, Pair, Setup, inline, local, remote, sge};
use crate::rc::{Access, Data, Intake, PdNumber, ProtocolError, QpState, RcQp, RecvWr, SendFlags, SendOp, Side, WcStatus};
use crate::wire::{Nak, Remote, Request, RequestOp, Response, ResponseOp};

use WcStatus::*;

/// Carries out `op` on B's `target` between a good write and a good one behind, with receives posted; returns how A's three requests
/// and B's two receives complete.
fn outcome(pair: &mut Pair, op: SendOp, data: Data) -> (Vec<WcStatus>, Vec<WcStatus>) {
    let good = pair.ends[B].memory.register(16);
    let buf = pair.ends[B].memory.register(16);
    for wr_id in [8, 9] {
        pair.ends[B].post_recv(wr_id, buf, 16);
    }
    pair.ends[A].post(1, SendOp::Write { remote: remote(good, 0) }, inline(b"good"));
    // A failure completes though nobody asked for a completion.
    pair.ends[A].post_with(2, op, data, SendFlags::empty());
    pair.ends[A].post_with(3, SendOp::Write { remote: remote(good, 0) }, inline(b"not!"), SendFlags::empty());
    pair.run();
    assert_eq!(pair.ends[B].memory.read(good.addr, 4), b"good", "nothing behind a failed request happens");
    let [a, b] = [A, B].map(|i| pair.ends[i].take());
    if b.is_empty() {
        // It did not hear of the failure.
        assert_eq!(pair.ends[B].qp.held(), 2);
        pair.ends[B].qp.reset();
        pair.ends[B].qp.move_to_error();
    }
    pair.assert_empty();
    assert_eq!(a.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(b.iter().map(|(id, _)| *id).collect::<Vec<_>>(), if b.is_empty() { vec![] } else { vec![8, 9] });
    (a.into_iter().map(|(_, status)| status).collect(), b.into_iter().map(|(_, status)| status).collect())
}

/// Every operation that names memory of the peer's.
fn remote_ops(remote: Remote, result: Mr) -> [(&'static str, SendOp, Data); 6] {
    let spec = super::flush::spec(crate::wire::Placement::PERSISTENT, 8);
    [
        ("write", SendOp::Write { remote }, inline(b"12345678")),
        ("read", SendOp::Read { remote }, local(result, 0, 8)),
        ("compare and swap", SendOp::CompareSwap { remote, compare: 0, swap: 1 }, local(result, 0, 8)),
        ("fetch and add", SendOp::FetchAdd { remote, add: 1 }, local(result, 0, 8)),
        ("atomic write", SendOp::AtomicWrite { remote, value: [1; 8] }, Data::default()),
        ("flush", SendOp::Flush { remote, spec }, Data::default()),
    ]
}

#[track_caller]
fn remote_access_fails(make: impl Fn(&SimMemory) -> Remote) {
    for index in 0..6 {
        let mut pair = Pair::new();
        let result = pair.ends[A].memory.register(16);
        let place = make(&pair.ends[B].memory);
        let (name, op, data) = remote_ops(place, result)[index].clone();
        let (asked, received) = outcome(&mut pair, op, data);
        assert_eq!(asked, [Success, RemoteAccess, WrFlush], "{name}");
        assert_eq!(received, [WrFlush, WrFlush], "{name}");
        pair.assert_states(QpState::Error, QpState::Error);
    }
}

#[test]
fn unknown_rkey_is_a_remote_access_error() {
    remote_access_fails(|memory| Remote { rkey: 0x7777_7777, ..remote(memory.register(16), 0) });
}

#[test]
fn lkey_used_as_rkey_is_a_remote_access_error() {
    remote_access_fails(|memory| {
        let mr = memory.register(16);
        Remote { addr: mr.addr, rkey: mr.lkey }
    });
}

#[test]
fn deregistered_memory_is_a_remote_access_error() {
    remote_access_fails(|memory| {
        let mr = memory.register(16);
        memory.deregister(mr);
        remote(mr, 0)
    });
}

#[test]
fn one_byte_past_the_end_is_a_remote_access_error() {
    remote_access_fails(|memory| remote(memory.register(15), 8));
}

#[test]
fn before_the_beginning_and_around_the_address_space_are_remote_access_errors() {
    remote_access_fails(|memory| {
        let mr = memory.register(16);
        Remote { addr: mr.addr - 8, rkey: mr.rkey }
    });
    remote_access_fails(|memory| Remote { addr: u64::MAX - 7, rkey: memory.register(16).rkey });
}

#[test]
fn missing_rights_are_a_remote_access_error() {
    remote_access_fails(|memory| remote(memory.register_in(PD, 16, Access::LOCAL_WRITE), 0));
}

#[test]
fn other_protection_domain_is_a_remote_access_error() {
    remote_access_fails(|memory| remote(memory.register_in(PdNumber(2), 16, Access::all()), 0));
}

#[test]
fn read_of_memory_deregistered_before_its_response_is_a_remote_access_error() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(16));
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    pair.ends[A].post(2, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    while pair.send(A, usize::MAX) | pair.receive(B, usize::MAX) {}
    pair.ends[B].memory.deregister(src);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, RemoteAccess), (2, WrFlush)]);
    pair.assert_states(QpState::Error, QpState::Error);
    pair.assert_empty();
}

#[test]
fn nothing_is_answered_behind_a_read_that_lost_its_memory() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(16));
    let kept = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    pair.ends[A].post(2, SendOp::Read { remote: remote(kept, 0) }, local(dst, 0, 8));
    pair.ends[A].post(3, SendOp::Write { remote: Remote { rkey: 999, ..remote(src, 0) } }, inline(b"x"));
    while pair.send(A, usize::MAX) | pair.receive(B, usize::MAX) {}
    assert_eq!(pair.ends[B].qp.state(), QpState::Error, "the write was refused");
    pair.ends[B].memory.deregister(src);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, RemoteAccess), (2, WrFlush), (3, WrFlush)]);
    assert_eq!(pair.ends[A].frames.len(), 1, "{:?}", pair.ends[A].frames);
    pair.assert_empty();
}

#[test]
fn misaligned_atomic_is_an_invalid_request() {
    for index in 2..5 {
        let mut pair = Pair::new();
        let result = pair.ends[A].memory.register(16);
        let place = remote(pair.ends[B].memory.register(32), 4);
        let (name, op, data) = remote_ops(place, result)[index].clone();
        let (asked, received) = outcome(&mut pair, op, data);
        assert_eq!(asked, [Success, RemoteInvalidRequest, WrFlush], "{name}");
        assert_eq!(received, [WrFlush, WrFlush], "{name}");
    }
}

#[test]
fn message_longer_than_its_receive_is_a_length_error_there_and_an_invalid_request_here() {
    let mut pair = Pair::new();
    let outcome = outcome(&mut pair, SendOp::Send, inline(&[1; 17]));
    assert_eq!(outcome, (vec![Success, RemoteInvalidRequest, WrFlush], vec![LocalLength, WrFlush]));
    pair.assert_states(QpState::Error, QpState::Error);
}

#[test]
fn receive_with_a_bad_key_is_a_protection_error_there_and_an_operational_error_here() {
    let mut pair = Pair::new();
    let good = pair.ends[B].memory.register(16);
    let read_only = pair.ends[B].memory.register_in(PD, 16, Access::empty());
    // The first range is not enough for the message, the second may not be written.
    pair.ends[B].qp.post_recv(RecvWr { wr_id: 7, sges: vec![sge(good, 0, 4), sge(read_only, 0, 4)] }).unwrap();
    pair.ends[A].post(1, SendOp::Send, inline(b"12345"));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, RemoteOperation)]);
    assert_eq!(pair.ends[B].take(), [(7, LocalProtection)]);
    assert_eq!(pair.ends[B].memory.read(good.addr, 4), [0; 4]);
    pair.assert_empty();
}

#[test]
fn receive_range_that_the_message_does_not_reach_is_not_checked() {
    let mut pair = Pair::new();
    let good = pair.ends[B].memory.register(16);
    let bad = Mr { lkey: 999, ..good };
    pair.ends[B].qp.post_recv(RecvWr { wr_id: 7, sges: vec![sge(good, 0, 4), sge(bad, 0, 4)] }).unwrap();
    pair.ends[A].post(1, SendOp::Send, inline(b"1234"));
    pair.run();
    assert_eq!(pair.ends[B].take(), [(7, Success)]);
}

#[test]
fn write_with_immediate_to_bad_memory_is_a_local_access_error_there() {
    let mut pair = Pair::new();
    let place = Remote { addr: 0x10_0000, rkey: 999 };
    let outcome = outcome(&mut pair, SendOp::WriteImm { remote: place, imm: [0; 4] }, inline(b"x"));
    assert_eq!(outcome, (vec![Success, RemoteAccess, WrFlush], vec![LocalAccess, WrFlush]));
}

#[test]
fn source_with_a_bad_key_is_a_local_protection_error_and_nothing_is_sent() {
    for (pd, deregister) in [(PdNumber(2), false), (PD, true)] {
        let mut pair = Pair::new();
        let src = pair.ends[A].memory.register_in(pd, 16, Access::all());
        if deregister {
            pair.ends[A].memory.deregister(src);
        }
        let (asked, received) = outcome(&mut pair, SendOp::Send, local(src, 0, 8));
        assert_eq!(asked, [Success, LocalProtection, WrFlush]);
        // The peer does not hear of it.
        assert_eq!(received, []);
        assert_eq!(pair.ends[A].qp.state(), QpState::Error);
    }
}

impl Pair {
    /// A's request 1 brings data to memory that may not be written.
    fn brings_data_to_read_only_memory(op: impl Fn(Remote) -> SendOp) -> Vec<(u64, WcStatus)> {
        let mut pair = Pair::new();
        let dst = pair.ends[A].memory.register_in(PD, 16, Access::REMOTE_READ);
        let src = pair.ends[B].memory.register(16);
        pair.ends[B].memory.write(src.addr, &[1; 16]).unwrap();
        pair.ends[A].post(1, op(remote(src, 0)), local(dst, 0, 8));
        pair.ends[A].post(2, SendOp::Write { remote: remote(src, 0) }, inline(b"x"));
        pair.run();
        assert_eq!(pair.ends[A].memory.read(dst.addr, 16), [0; 16]);
        let taken = pair.ends[A].take();
        pair.assert_empty();
        taken
    }
}

#[test]
fn data_that_comes_back_to_memory_that_may_not_be_written_is_a_local_protection_error() {
    let expected = [(1, LocalProtection), (2, WrFlush)];
    assert_eq!(Pair::brings_data_to_read_only_memory(|remote| SendOp::Read { remote }), expected);
    assert_eq!(Pair::brings_data_to_read_only_memory(|remote| SendOp::FetchAdd { remote, add: 1 }), expected);
}

#[test]
fn request_that_the_queue_pair_does_not_allow_is_an_invalid_one_and_changes_nothing() {
    let needed = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_WRITE,
        Access::FLUSH_PERSISTENT,
    ];
    for (index, needed) in needed.into_iter().enumerate() {
        for (allowed, expected) in [(needed, Success), (!needed, RemoteInvalidRequest)] {
            let mut pair = Pair::new();
            let result = pair.ends[A].memory.register(16);
            let place = remote(pair.ends[B].memory.register(16), 0);
            pair.ends[B].qp.allow(allowed);
            let (name, op, data) = remote_ops(place, result)[index].clone();
            pair.ends[A].post(1, op, data);
            pair.run();
            assert_eq!(pair.ends[A].take(), [(1, expected)], "{name}");
            let changed = pair.ends[B].memory.read(place.addr, 8) != [0; 8];
            assert!(expected == Success || !changed, "{name}");
        }
    }
}

#[test]
fn write_with_immediate_that_is_not_allowed_takes_no_receive() {
    let mut pair = Pair::new();
    let place = pair.ends[B].memory.register(16);
    pair.ends[B].post_recv(7, place, 16);
    pair.ends[B].qp.allow(!Access::REMOTE_WRITE);
    pair.ends[A].post(1, SendOp::WriteImm { remote: remote(place, 0), imm: [0; 4] }, inline(b"x"));
    pair.run();
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![(1, RemoteInvalidRequest)], vec![(7, WrFlush)]));
}

#[test]
fn reads_and_atomics_at_a_peer_without_resources_are_invalid_requests() {
    let mut without = Setup::default();
    without.responder.resources = 0;
    // The connection manager gives the other end depth 0 then.
    let mut other = Setup::default();
    other.requester.depth = 0;
    for index in 1..6 {
        let mut pair = Pair::with(other, without);
        let result = pair.ends[A].memory.register(16);
        let place = remote(pair.ends[B].memory.register(16), 0);
        let (name, op, data) = remote_ops(place, result)[index].clone();
        let (asked, _) = outcome(&mut pair, op, data);
        assert_eq!(asked, [Success, RemoteInvalidRequest, WrFlush], "{name}");
        assert_eq!(pair.ends[B].memory.read(place.addr, 8), [0; 8]);
    }
}

#[test]
fn more_reads_at_once_than_agreed_are_an_invalid_request() {
    let mut greedy = Setup::default();
    greedy.requester.depth = 5;
    let mut pair = Pair::with(greedy, Setup::default());
    let (dst, src) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(16));
    for wr_id in 1..=5 {
        pair.ends[A].post(wr_id, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    }
    while pair.send(A, usize::MAX) | pair.receive(B, usize::MAX) {}
    assert_eq!(pair.ends[B].qp.held(), 5);
    pair.run();
    let expected = [(1, Success), (2, Success), (3, Success), (4, Success), (5, RemoteInvalidRequest)];
    assert_eq!(pair.ends[A].take(), expected, "what came before is still answered");
}

#[test]
fn memory_that_cannot_be_reached_is_an_operational_error() {
    let broken = |pair: &Pair| {
        let mr = pair.ends[B].memory.register(16);
        pair.ends[B].memory.break_region(mr);
        mr
    };
    for index in [0, 2, 3, 4] {
        let mut pair = Pair::new();
        let result = pair.ends[A].memory.register(16);
        let place = remote(broken(&pair), 0);
        let (name, op, data) = remote_ops(place, result)[index].clone();
        let (asked, received) = outcome(&mut pair, op, data);
        assert_eq!((asked, received), (vec![Success, RemoteOperation, WrFlush], vec![WrFlush, WrFlush]), "{name}");
    }
    let mut pair = Pair::new();
    let mr = broken(&pair);
    pair.ends[B].post_recv(7, mr, 16);
    pair.ends[A].post(1, SendOp::Send, inline(b"x"));
    pair.run();
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![(1, RemoteOperation)], vec![(7, LocalProtection)]));
}

#[test]
fn own_read_destination_that_cannot_be_reached_is_a_local_protection_error() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(16));
    pair.ends[A].memory.break_region(dst);
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, LocalProtection)]);
}

#[test]
fn what_was_asked_before_a_refused_request_is_answered_first() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(16));
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    pair.ends[A].post(2, SendOp::FetchAdd { remote: remote(src, 0), add: 1 }, local(dst, 8, 8));
    pair.ends[A].post(3, SendOp::Write { remote: Remote { addr: 0, rkey: 0 } }, inline(b"x"));
    while pair.send(A, usize::MAX) | pair.receive(B, usize::MAX) {}
    assert_eq!(pair.ends[B].qp.state(), QpState::Error);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success), (3, RemoteAccess)]);
    pair.assert_empty();
}

#[test]
fn error_completions_wait_while_the_memory_of_a_send_is_in_use() {
    let mut pair = Pair::new();
    let (src, dst) = (pair.ends[A].memory.register(1000), pair.ends[B].memory.register(1000));
    pair.ends[A].post_recv(9, src, 16);
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, local(src, 0, 1000));
    pair.send(A, 100);
    pair.ends[A].qp.move_to_error();
    assert_eq!(pair.ends[A].take(), [(9, WrFlush)], "the receive queue has no part in it");
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, WrFlush)]);
    pair.assert_empty();
}

#[test]
fn error_completions_wait_while_the_memory_of_a_read_or_receive_is_in_use() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(1000), pair.ends[B].memory.register(1000));
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 1000));
    while pair.send(A, usize::MAX) | pair.receive(B, usize::MAX) {}
    pair.send(B, usize::MAX);
    pair.receive(A, 100);
    pair.ends[A].qp.move_to_error();
    assert_eq!(pair.ends[A].take(), []);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, WrFlush)]);
    pair.assert_empty();

    let mut pair = Pair::new();
    let (src, dst) = (pair.ends[A].memory.register(1000), pair.ends[B].memory.register(1000));
    pair.ends[B].post_recv(8, dst, 1000);
    pair.ends[B].post_recv(9, dst, 1000);
    pair.ends[B].post(1, SendOp::Send, inline(b"x"));
    pair.ends[A].post(1, SendOp::Send, local(src, 0, 1000));
    pair.send(A, usize::MAX);
    pair.receive(B, 100);
    pair.ends[B].qp.move_to_error();
    assert_eq!(pair.ends[B].take_side(Side::Recv), []);
    assert_eq!(pair.ends[B].take_side(Side::Send), [(1, WrFlush)], "the send queue has no part in it");
    pair.run();
    assert_eq!(pair.ends[B].take(), [(8, WrFlush), (9, WrFlush)]);
}

// ---- a peer that breaks the protocol ----

/// A's queue pair with one read of 8 bytes and one write sent.
fn asked() -> (RcQp<SimMemory>, std::time::Instant) {
    let mut pair = Pair::new();
    let mr = pair.ends[A].memory.register(16);
    let nowhere = Remote { addr: 0, rkey: 0 };
    pair.ends[A].post(1, SendOp::Read { remote: nowhere }, local(mr, 0, 8));
    pair.ends[A].post(2, SendOp::Write { remote: nowhere }, inline(b"x"));
    while pair.send(A, usize::MAX) {}
    let [a, _] = pair.ends;
    (a.qp, pair.now)
}

#[test]
fn responses_that_fit_nothing_end_the_connection() {
    let wrong = ProtocolError::WrongResponse { msn: 1 };
    for (msn, op, error) in [
        (1, ResponseOp::Ack, wrong),
        (2, ResponseOp::Ack, wrong),
        (1, ResponseOp::Read { len_bytes: 9 }, wrong),
        (1, ResponseOp::Read { len_bytes: 0 }, wrong),
        (1, ResponseOp::Atomic { original: 1 }, wrong),
        (1, ResponseOp::Nak(Nak::ReceiverNotReady(crate::wire::RnrTimer::from_code(1).unwrap())), wrong),
        (0, ResponseOp::Nak(Nak::RemoteAccess), ProtocolError::UnexpectedResponse { msn: 0 }),
        (3, ResponseOp::Ack, ProtocolError::UnexpectedResponse { msn: 3 }),
        (u64::MAX, ResponseOp::Read { len_bytes: 8 }, ProtocolError::UnexpectedResponse { msn: u64::MAX }),
    ] {
        let (mut qp, now) = asked();
        assert_eq!(qp.handle_response(now, Response { msn, op }).unwrap_err(), error, "{op:?}");
        let statuses: Vec<_> = std::iter::from_fn(|| qp.poll_completion()).map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(statuses, [(1, BadResponse), (2, WrFlush)], "{op:?}");
        assert_eq!(qp.held(), 0);
    }
}

#[test]
fn request_out_of_sequence_ends_the_connection() {
    for found in [0_u64.wrapping_add(2), u64::MAX] {
        let mut pair = Pair::new();
        let request = Request { msn: found, solicited: false, op: RequestOp::Send { len_bytes: 0 } };
        let error = pair.ends[B].qp.handle_request(pair.now, request).unwrap_err();
        assert_eq!(error, ProtocolError::Sequence { expected: 1, found });
        assert_eq!(pair.ends[B].qp.state(), QpState::Error);
    }
}

#[test]
fn response_before_the_payload_of_the_last_frame_is_refused() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    let request = |msn| Request { msn, solicited: false, op: RequestOp::Write { remote: remote(dst, 0), len_bytes: 4 } };
    let now = pair.now;
    let qp = &mut pair.ends[B].qp;
    assert!(matches!(qp.handle_request(now, request(1)), Ok(Intake::Fill(_))));
    assert!(matches!(qp.handle_request(now, request(2)), Ok(Intake::Fill(_))), "a request is taken");
    let response = Response { msn: 1, op: ResponseOp::Ack };
    assert_eq!(qp.handle_response(now, response).unwrap_err(), ProtocolError::PayloadDue);
    qp.payload_done(now, Ok(()));
    assert_eq!(qp.handle_response(now, response).unwrap_err(), ProtocolError::PayloadDue);
}
