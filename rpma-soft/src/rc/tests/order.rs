//! What arrives, in which order, and what the completions say.

use std::time::Duration;

use super::pair::{A, B, Pair, Setup, inline, local, remote, sge};
use crate::rc::{Completion, Data, QpState, RecvWr, SendFlags, SendOp, SendWr, Side, WcOpcode, WcStatus};
use crate::wire::{Frame, Request, RequestOp, Response, ResponseOp};

use WcStatus::Success;

#[test]
fn write_is_in_place_when_it_completes() {
    let mut pair = Pair::new();
    let (src, dst) = (pair.ends[A].memory.register(100), pair.ends[B].memory.register(100));
    pair.ends[A].memory.write(src.addr, &[7; 100]).unwrap();
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 10) }, local(src, 0, 90));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    assert_eq!(pair.ends[B].memory.read(dst.addr, 100), [[0; 10].as_slice(), &[7; 90]].concat());
    assert_eq!(pair.ends[B].take(), []);
    pair.assert_empty();
}

#[test]
fn read_brings_the_data() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(64), pair.ends[B].memory.register(64));
    pair.ends[B].memory.write(src.addr, &[9; 64]).unwrap();
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 4) }, local(dst, 8, 32));
    pair.run();
    let polled = std::mem::take(&mut pair.ends[A].polled);
    assert_eq!((polled.len(), polled[0].opcode, polled[0].byte_len), (1, WcOpcode::Read, 32));
    assert_eq!(pair.ends[A].memory.read(dst.addr, 44), [[0; 8].as_slice(), &[9; 32], &[0; 4]].concat());
    pair.assert_empty();
}

#[test]
fn send_gathers_and_scatters_and_skips_empty_ranges() {
    let mut pair = Pair::new();
    let (src, dst) = (pair.ends[A].memory.register(32), pair.ends[B].memory.register(32));
    pair.ends[A].memory.write(src.addr, b"0123456789").unwrap();
    let empty_with_any_key = crate::rc::Sge { addr: 1, len_bytes: 0, lkey: 999 };
    pair.ends[B].qp.post_recv(RecvWr { wr_id: 5, sges: vec![sge(dst, 0, 3), empty_with_any_key, sge(dst, 16, 16)] }).unwrap();
    pair.ends[A].post(1, SendOp::Send, Data::Sges(vec![sge(src, 6, 4), empty_with_any_key, sge(src, 0, 2)]));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    assert_eq!(pair.ends[B].polled[0].byte_len, 6);
    assert_eq!(pair.ends[B].take(), [(5, Success)]);
    assert_eq!(pair.ends[B].memory.read(dst.addr, 3), b"678");
    assert_eq!(pair.ends[B].memory.read(dst.addr + 16, 4), b"901\0");
    pair.assert_empty();
}

#[test]
fn immediate_data_length_and_solicited_come_with_the_receive() {
    let mut pair = Pair::new();
    let (dst, buf) = (pair.ends[B].memory.register(16), pair.ends[B].memory.register(16));
    for wr_id in 1..=3 {
        pair.ends[B].post_recv(wr_id, buf, 16);
    }
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let imm = *b"imm!";
    pair.ends[A].post_with(1, SendOp::SendImm { imm }, inline(b"abc"), flags);
    pair.ends[A].post(2, SendOp::WriteImm { remote: remote(dst, 0), imm }, inline(b"written"));
    // A plain write completes nowhere, so that its flag says nothing.
    pair.ends[A].post_with(3, SendOp::Write { remote: remote(dst, 8) }, inline(b"8"), flags);
    pair.ends[A].post(4, SendOp::Send, inline(b""));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success), (3, Success), (4, Success)]);
    let expected = |wr_id, opcode, byte_len, imm, solicited| Completion {
        wr_id,
        status: Success,
        opcode,
        byte_len,
        imm,
        side: Side::Recv,
        solicited,
        slots: 1,
    };
    assert_eq!(
        pair.ends[B].polled,
        [
            expected(1, WcOpcode::Recv, 3, Some(imm), true),
            expected(2, WcOpcode::RecvWriteImm, 7, Some(imm), false),
            expected(3, WcOpcode::Recv, 0, None, false),
        ]
    );
    assert_eq!(pair.ends[B].memory.read(buf.addr, 3), b"abc", "a write with immediate leaves the receive's memory alone");
    assert_eq!(pair.ends[B].memory.read(dst.addr, 9), b"written\08");
    pair.assert_empty();
}

#[test]
fn written_data_is_placed_before_the_next_message_is_seen() {
    let mut pair = Pair::new();
    let (dst, buf) = (pair.ends[B].memory.register(16), pair.ends[B].memory.register(16));
    pair.ends[B].post_recv(1, buf, 16);
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"data"));
    pair.ends[A].post(2, SendOp::Send, inline(b"go"));
    // Byte by byte: at the moment the receive completes, the write must be there.
    loop {
        pair.send(A, 1);
        pair.receive(B, 1);
        if pair.ends[B].take() == [(1, Success)] {
            break;
        }
    }
    assert_eq!(pair.ends[B].memory.read(dst.addr, 4), b"data");
    assert_eq!(pair.ends[B].memory.read(buf.addr, 2), b"go");
    pair.run();
    pair.assert_empty();
}

#[test]
fn atomics_return_what_they_found() {
    let mut pair = Pair::new();
    let (result, target) = (pair.ends[A].memory.register(32), pair.ends[B].memory.register(16));
    pair.ends[B].memory.write(target.addr + 8, &5_u64.to_ne_bytes()).unwrap();
    let place = remote(target, 8);
    pair.ends[A].post(1, SendOp::FetchAdd { remote: place, add: u64::MAX }, local(result, 0, 8));
    pair.ends[A].post(2, SendOp::CompareSwap { remote: place, compare: 4, swap: 77 }, local(result, 8, 8));
    pair.ends[A].post(3, SendOp::CompareSwap { remote: place, compare: 4, swap: 78 }, local(result, 16, 8));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success), (3, Success)]);
    let found: Vec<u8> = [5_u64, 4, 77].iter().flat_map(|n| n.to_ne_bytes()).collect();
    assert_eq!(pair.ends[A].memory.read(result.addr, 24), found);
    assert_eq!(pair.ends[B].memory.read(target.addr + 8, 8), 77_u64.to_ne_bytes());
    pair.assert_empty();
}

#[test]
fn atomic_write_stores_its_value() {
    let mut pair = Pair::new();
    let target = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::AtomicWrite { remote: remote(target, 8), value: *b"8 bytes!" }, Data::default());
    pair.run();
    assert_eq!(pair.ends[A].polled[0].opcode, WcOpcode::AtomicWrite);
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    assert_eq!(pair.ends[B].memory.read(target.addr, 16), b"\0\0\0\0\0\0\0\08 bytes!");
    pair.assert_empty();
}

#[test]
fn empty_messages_complete_and_need_no_valid_key() {
    let mut pair = Pair::new();
    let nowhere = crate::wire::Remote { addr: u64::MAX, rkey: 0xDEAD };
    pair.ends[B].qp.post_recv(RecvWr { wr_id: 1, sges: Vec::new() }).unwrap();
    pair.ends[B].qp.post_recv(RecvWr { wr_id: 2, sges: Vec::new() }).unwrap();
    pair.ends[A].post(1, SendOp::Write { remote: nowhere }, Data::default());
    pair.ends[A].post(2, SendOp::Read { remote: nowhere }, Data::default());
    pair.ends[A].post(3, SendOp::Send, Data::default());
    pair.ends[A].post(4, SendOp::WriteImm { remote: nowhere, imm: [1; 4] }, Data::default());
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success), (3, Success), (4, Success)]);
    assert_eq!(pair.ends[B].take(), [(1, Success), (2, Success)]);
    pair.assert_empty();
}

#[test]
fn inline_data_is_that_of_the_post() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(8);
    let mut bytes = *b"before";
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, inline(&bytes));
    bytes.fill(0);
    pair.run();
    assert_eq!(pair.ends[B].memory.read(dst.addr, 6), b"before");
}

#[test]
fn unsignalled_success_is_silent_and_its_slot_comes_with_the_next_completion() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(8);
    let write = SendOp::Write { remote: remote(dst, 0) };
    pair.ends[A].post_with(1, write, inline(b"1"), SendFlags::empty());
    pair.ends[A].post_with(2, write, inline(b"2"), SendFlags::empty());
    pair.run();
    assert_eq!(pair.ends[A].polled, []);
    pair.ends[A].post(3, write, inline(b"3"));
    pair.run();
    assert_eq!(pair.ends[A].polled[0].slots, 3);
    assert_eq!(pair.ends[A].take(), [(3, Success)]);
}

#[test]
fn everything_completes_on_a_queue_pair_that_signals_all() {
    let mut setup = Setup::default();
    setup.qp.signal_all = true;
    let mut pair = Pair::with(setup, setup);
    let dst = pair.ends[B].memory.register(8);
    pair.ends[A].post_with(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"1"), SendFlags::empty());
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
}

/// How many requests A sends before it hears anything from B, which has them all.
fn sent_requests(pair: &mut Pair) -> usize {
    while pair.send(A, usize::MAX) {}
    while pair.receive(B, usize::MAX) {}
    pair.ends[B].frames.iter().filter(|frame| matches!(frame, Frame::Request(_))).count()
}

#[test]
fn reads_outstanding_are_limited_by_the_initiator_depth() {
    let mut setup = Setup::default();
    setup.requester.depth = 2;
    let mut pair = Pair::with(setup, setup);
    let (dst, src) = (pair.ends[A].memory.register(64), pair.ends[B].memory.register(64));
    for wr_id in 1..=5 {
        pair.ends[A].post(wr_id, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    }
    assert_eq!(sent_requests(&mut pair), 2);
    pair.run();
    assert_eq!(pair.ends[A].take(), [1, 2, 3, 4, 5].map(|id| (id, Success)));
    pair.assert_empty();
}

#[test]
fn fence_waits_for_reads_atomics_flushes_and_atomic_writes_and_for_nothing_else() {
    let place = |pair: &Pair| pair.ends[B].memory.register(64);
    let spec = super::flush::spec(crate::wire::Placement::GLOBAL, 8);
    let fenced = SendFlags::FENCE | SendFlags::SIGNALED;
    for (op, waits) in [(0, true), (1, true), (2, true), (3, true), (4, true), (5, false)] {
        let mut pair = Pair::new();
        let (mr, dst) = (pair.ends[A].memory.register(64), place(&pair));
        let remote = remote(dst, 0);
        match op {
            0 => pair.ends[A].post(1, SendOp::Read { remote }, local(mr, 0, 8)),
            1 => pair.ends[A].post(1, SendOp::FetchAdd { remote, add: 1 }, local(mr, 0, 8)),
            2 => pair.ends[A].post(1, SendOp::CompareSwap { remote, compare: 1, swap: 1 }, local(mr, 0, 8)),
            3 => pair.ends[A].post(1, SendOp::Flush { remote, spec }, Data::default()),
            4 => pair.ends[A].post(1, SendOp::AtomicWrite { remote, value: [0; 8] }, Data::default()),
            _ => pair.ends[A].post(1, SendOp::Write { remote }, inline(b"1")),
        }
        pair.ends[A].post_with(2, SendOp::Write { remote }, inline(b"2"), fenced);
        assert_eq!(sent_requests(&mut pair), if waits { 1 } else { 2 }, "case {op}");
        pair.run();
        assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success)], "case {op}");
        pair.assert_empty();
    }
}

#[test]
fn acknowledgements_are_cumulative() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(8);
    for wr_id in 1..=10 {
        pair.ends[A].post(wr_id, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
    }
    assert_eq!(sent_requests(&mut pair), 10);
    pair.run();
    assert_eq!(pair.ends[A].take().len(), 10);
    assert_eq!(pair.ends[A].frames, [Frame::Response(Response { msn: 10, op: ResponseOp::Ack })]);
}

#[test]
fn answers_and_requests_take_turns() {
    let mut pair = Pair::new();
    let mrs = [A, B].map(|i| pair.ends[i].memory.register(64));
    for wr_id in 1..=3 {
        pair.ends[A].post(wr_id, SendOp::Read { remote: remote(mrs[B], 0) }, local(mrs[A], 0, 8));
        pair.ends[B].post(wr_id, SendOp::Write { remote: remote(mrs[A], 0) }, inline(b"x"));
    }
    sent_requests(&mut pair);
    while pair.send(B, usize::MAX) | pair.receive(A, usize::MAX) {}
    let is_request: Vec<_> = pair.ends[A].frames.iter().map(|frame| matches!(frame, Frame::Request(_))).collect();
    assert_eq!(is_request, [false, true, false, true, false, true]);
    pair.run();
    pair.assert_empty();
}

#[test]
fn both_ends_ask_and_answer_at_once() {
    let mut pair = Pair::new();
    let mrs = [A, B].map(|i| pair.ends[i].memory.register(4096));
    // Small buffers, so that every frame is cut to pieces and both directions are always full.
    pair.buffer_bytes = 100;
    for i in [A, B] {
        for wr_id in 1..=4 {
            let remote = remote(mrs[1 - i], 2048);
            pair.ends[i].post(wr_id, SendOp::Read { remote }, local(mrs[i], 0, 1000));
            pair.ends[i].post(wr_id + 10, SendOp::Write { remote }, local(mrs[i], 0, 1000));
        }
    }
    pair.run();
    for i in [A, B] {
        assert_eq!(pair.ends[i].take(), [1, 11, 2, 12, 3, 13, 4, 14].map(|id| (id, Success)));
    }
    pair.assert_empty();
}

#[test]
fn ready_to_receive_serves_and_does_not_send() {
    let setup = Setup::default();
    let mut pair = Pair::new();
    let mut qp = crate::rc::RcQp::new(setup.qp, pair.ends[B].memory.clone(), None);
    qp.to_init().unwrap();
    qp.to_ready_to_receive(setup.responder).unwrap();
    pair.ends[B].qp = qp;
    let dst = pair.ends[B].memory.register(8);
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    pair.assert_states(QpState::ReadyToSend, QpState::ReadyToReceive);
}

#[test]
fn request_before_ready_to_receive_is_dropped_and_its_payload_too() {
    let setup = Setup::default();
    let mut pair = Pair::new();
    let mut qp = crate::rc::RcQp::new(setup.qp, pair.ends[B].memory.clone(), None);
    qp.to_init().unwrap();
    pair.ends[B].qp = qp;
    pair.ends[A].post(1, SendOp::Send, inline(b"too early"));
    pair.pass(Duration::from_secs(1));
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![], vec![]));
    let request = Request { msn: 1, solicited: false, op: RequestOp::Send { len_bytes: 9 } };
    assert_eq!(pair.ends[B].frames, [Frame::Request(request)]);
    assert!(!pair.is_cut);
}

#[test]
fn list_is_posted_up_to_the_first_request_that_cannot_be() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(8);
    let wr = |wr_id, data| SendWr { wr_id, op: SendOp::Write { remote: remote(dst, 0) }, data, flags: SendFlags::SIGNALED };
    let list = vec![wr(1, inline(b"1")), wr(2, inline(&[0; 65])), wr(3, inline(b"3"))];
    let error = pair.ends[A].qp.post_send(list.clone()).unwrap_err();
    assert_eq!((error.index, error.error), (1, crate::rc::PostError::Inline { len_bytes: 65, max_bytes: 64 }));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    let error = pair.ends[A].qp.post_send_batch(list).unwrap_err();
    assert_eq!(error.index, 1);
    pair.run();
    assert_eq!(pair.ends[A].take(), [], "a batch is posted as a whole or not at all");
}
