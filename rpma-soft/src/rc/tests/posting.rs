//! What can be posted when, and how much.

use super::pair::{A, B, Pair, Setup, inline, local, remote, sge};
use crate::rc::{Data, PostError, QpState, RcQp, RecvWr, SendFlags, SendOp, SendWr, TransitionError, WcStatus};
use crate::wire::{MAX_MESSAGE_BYTES, Remote};

use WcStatus::{Success, WrFlush};

const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };

fn wr(op: SendOp, data: Data) -> SendWr {
    SendWr { wr_id: 0, op, data, flags: SendFlags::SIGNALED }
}

#[test]
fn full_send_queue_takes_nothing_until_a_completion_is_polled() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    let write = || wr(SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
    pair.ends[A].releases = false;
    pair.ends[A].qp.post_send((0..16).map(|_| write())).unwrap();
    let full = |pair: &mut Pair| pair.ends[A].qp.post_send([write()]).unwrap_err().error;
    assert_eq!(full(&mut pair), PostError::QueueFull { capacity: 16 });
    pair.run();
    assert_eq!(full(&mut pair), PostError::QueueFull { capacity: 16 }, "done is not enough: nobody polled");
    let completion = pair.ends[A].polled[0];
    pair.ends[A].qp.release(&completion);
    pair.ends[A].qp.post_send([write()]).unwrap();
    assert_eq!(full(&mut pair), PostError::QueueFull { capacity: 16 });
}

#[test]
fn full_receive_queue_takes_nothing_until_a_completion_is_polled() {
    let mut pair = Pair::new();
    let recv = || RecvWr { wr_id: 0, sges: Vec::new() };
    pair.ends[B].releases = false;
    for _ in 0..16 {
        pair.ends[B].qp.post_recv(recv()).unwrap();
    }
    assert_eq!(pair.ends[B].qp.post_recv(recv()), Err(PostError::QueueFull { capacity: 16 }));
    pair.ends[A].post(1, SendOp::Send, Data::default());
    pair.run();
    assert_eq!(pair.ends[B].qp.post_recv(recv()), Err(PostError::QueueFull { capacity: 16 }));
    let completion = pair.ends[B].polled[0];
    pair.ends[B].qp.release(&completion);
    assert_eq!(pair.ends[B].qp.post_recv(recv()), Ok(()));
}

#[test]
fn requests_that_exceed_what_was_granted_are_refused() {
    let mut pair = Pair::new();
    let mr = pair.ends[A].memory.register(16);
    let mut refused = |op, data| pair.ends[A].qp.post_send([wr(op, data)]).unwrap_err().error;
    let sges = |n| Data::Sges(vec![sge(mr, 0, 1); n]);
    assert_eq!(refused(SendOp::Send, sges(4)), PostError::Sges { sges: 4, max: 3 });
    assert_eq!(refused(SendOp::Send, inline(&[0; 65])), PostError::Inline { len_bytes: 65, max_bytes: 64 });
    assert_eq!(refused(SendOp::Read { remote: NOWHERE }, inline(b"")), PostError::Data);
    let halves = Data::Sges(vec![sge(mr, 0, MAX_MESSAGE_BYTES), sge(mr, 0, 1)]);
    let too_long = PostError::Length { len_bytes: u64::from(MAX_MESSAGE_BYTES) + 1, max_bytes: MAX_MESSAGE_BYTES };
    assert_eq!(refused(SendOp::Send, halves), too_long);
    let three_times_max = Data::Sges(vec![sge(mr, 0, u32::MAX); 3]);
    assert!(matches!(refused(SendOp::Write { remote: NOWHERE }, three_times_max), PostError::Length { .. }));
    for data in [Data::default(), local(mr, 0, 7), inline(b"12345678")] {
        assert_eq!(refused(SendOp::FetchAdd { remote: NOWHERE, add: 1 }, data), PostError::Data);
    }
    assert_eq!(refused(SendOp::AtomicWrite { remote: NOWHERE, value: [0; 8] }, local(mr, 0, 8)), PostError::Data);
    let nothing = super::flush::spec(crate::wire::Placement::empty(), 8);
    assert_eq!(refused(SendOp::Flush { remote: NOWHERE, spec: nothing }, Data::default()), PostError::Data);
    let recv = RecvWr { wr_id: 1, sges: vec![sge(mr, 0, 1); 4] };
    assert_eq!(pair.ends[A].qp.post_recv(recv), Err(PostError::Sges { sges: 4, max: 3 }));
    assert_eq!(pair.ends[A].qp.held(), 0, "nothing was taken");
}

#[test]
fn posts_in_the_error_state_complete_as_flushed_in_order() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post_with(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"), SendFlags::empty());
    pair.ends[A].post_recv(2, dst, 0);
    pair.ends[A].qp.move_to_error();
    pair.ends[A].post_with(3, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"), SendFlags::empty());
    pair.ends[A].post_recv(4, dst, 0);
    assert_eq!(pair.ends[A].take(), [(1, WrFlush), (2, WrFlush), (3, WrFlush), (4, WrFlush)]);
    pair.run();
    assert_eq!(pair.ends[B].memory.read(dst.addr, 1), [0], "nothing was sent");
    pair.assert_empty();
}

#[test]
fn error_completions_free_all_slots() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    let unsignalled = || SendWr { flags: SendFlags::empty(), ..wr(SendOp::Write { remote: remote(dst, 0) }, inline(b"x")) };
    pair.ends[A].qp.post_send((0..5).map(|_| unsignalled())).unwrap();
    pair.run();
    pair.ends[A].qp.post_send((0..11).map(|_| unsignalled())).unwrap();
    pair.ends[A].qp.move_to_error();
    pair.ends[A].poll();
    assert_eq!(pair.ends[A].polled.iter().map(|c| c.slots).sum::<u32>(), 16);
    pair.ends[A].qp.post_send((0..16).map(|_| unsignalled())).unwrap();
}

#[test]
fn reset_forgets_everything_and_starts_again() {
    let mut pair = Pair::new();
    let mr = pair.ends[A].memory.register(16);
    pair.ends[A].post(1, SendOp::Send, inline(b"x"));
    pair.ends[A].post_recv(2, mr, 16);
    pair.ends[A].qp.move_to_error();
    pair.ends[A].qp.reset();
    assert_eq!((pair.ends[A].qp.state(), pair.ends[A].qp.held()), (QpState::Reset, 0));
    assert_eq!(pair.ends[A].take(), []);
    pair.ends[B].qp.reset();
    let setup = Setup::default();
    for end in &mut pair.ends {
        end.qp.to_init().unwrap();
        end.qp.to_ready_to_receive(setup.responder).unwrap();
        end.qp.to_ready_to_send(setup.requester).unwrap();
    }
    pair.ends[B].post_recv(3, mr, 0);
    pair.ends[A].post(4, SendOp::Send, Data::default());
    pair.run();
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![(4, Success)], vec![(3, Success)]));
}

#[test]
fn steps_out_of_order_are_refused_and_change_nothing() {
    let setup = Setup::default();
    let mut qp = RcQp::new(setup.qp, super::memory::SimMemory::default(), None);
    let refused = |from, to| Err(TransitionError { from, to });
    assert_eq!(qp.to_ready_to_send(setup.requester), refused(QpState::Reset, QpState::ReadyToSend));
    qp.to_init().unwrap();
    assert_eq!(qp.to_ready_to_send(setup.requester), refused(QpState::Init, QpState::ReadyToSend));
    qp.move_to_error();
    assert_eq!(qp.to_init(), refused(QpState::Error, QpState::Init));
    assert_eq!(qp.state(), QpState::Error);
}
