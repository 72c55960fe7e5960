//! Flush and atomic write: durability, and what waits for it.

use std::time::Duration;

use super::memory::PD;
use super::pair::{A, B, Pair, RETRY_TIME, Setup, inline, local, range, remote};
use crate::rc::{Access, Data, PostError, QpState, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use crate::wire::{FlushSpec, Placement, Selectivity};

use WcStatus::{RemoteAccess, RemoteInvalidRequest, RemoteOperation, Success, WrFlush};

pub(super) fn spec(placement: Placement, len_bytes: u64) -> FlushSpec {
    FlushSpec { placement, selectivity: Selectivity::Range, len_bytes }
}

const PERSISTENT: Placement = Placement::PERSISTENT;

#[test]
fn persistent_flush_makes_what_was_written_before_durable() {
    let mut pair = Pair::new();
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Write { remote: remote(dst, 0) }, inline(b"12345678"));
    pair.run();
    assert_eq!(pair.ends[B].memory.durable(dst.addr, 8), [0; 8], "a write alone is not durable");
    pair.ends[A].post(2, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 4) }, Data::default());
    pair.run();
    assert_eq!(pair.ends[A].polled[1].opcode, WcOpcode::Flush);
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, Success)]);
    assert_eq!(pair.ends[B].memory.durable(dst.addr, 8), b"1234\0\0\0\0");
    let region = FlushSpec { placement: PERSISTENT, selectivity: Selectivity::Region, len_bytes: 0 };
    pair.ends[A].post(3, SendOp::Flush { remote: remote(dst, 0), spec: region }, Data::default());
    pair.run();
    assert_eq!(pair.ends[A].take(), [(3, Success)]);
    assert_eq!(pair.ends[B].memory.durable(dst.addr, 8), b"12345678");
    pair.assert_empty();
}

#[test]
fn flush_does_not_complete_before_its_job() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 16) }, Data::default());
    pair.run();
    assert_eq!(pair.ends[A].take(), []);
    let job = pair.ends[B].qp.poll_flush_job().unwrap();
    assert_eq!((job.extent, job.placement), (range(dst, 16), PERSISTENT));
    pair.ends[B].jobs.push_back(job);
    assert_eq!(pair.ends[B].memory.leases(), 1, "the region stays registered meanwhile");
    pair.end_flush(B);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    pair.assert_empty();
}

#[test]
fn global_flush_needs_no_job() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(Placement::GLOBAL, 16) }, Data::default());
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    assert!(pair.ends[B].qp.poll_flush_job().is_none());
}

#[test]
fn behind_a_flush_data_is_placed_and_nothing_is_known_and_atomics_wait_with_what_is_behind_them() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let (mr, dst) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(64));
    let buf = pair.ends[B].memory.register(16);
    pair.ends[B].post_recv(1, buf, 16);
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 8) }, Data::default());
    pair.ends[A].post(2, SendOp::Write { remote: remote(dst, 0) }, inline(b"written"));
    pair.ends[A].post(3, SendOp::AtomicWrite { remote: remote(dst, 8), value: [1; 8] }, Data::default());
    pair.ends[A].post(4, SendOp::FetchAdd { remote: remote(dst, 16), add: 1 }, local(mr, 0, 8));
    pair.ends[A].post(5, SendOp::Send, inline(b"message"));
    pair.run();
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![], vec![]));
    assert_eq!(pair.ends[B].memory.read(dst.addr, 7), b"written");
    assert_eq!(pair.ends[B].memory.read(buf.addr, 7), [0; 7], "nothing passes an atomic");
    assert_eq!(pair.ends[B].memory.read(dst.addr + 8, 16), [0; 16], "atomics do not pass a flush");
    pair.end_flush(B);
    pair.run();
    assert_eq!(pair.ends[A].take(), [1, 2, 3, 4, 5].map(|id| (id, Success)));
    assert_eq!(pair.ends[B].take(), [(1, Success)]);
    assert_eq!(pair.ends[B].memory.read(buf.addr, 7), b"message");
    assert_eq!(pair.ends[B].memory.read(dst.addr + 8, 8), [1; 8]);
    pair.assert_empty();
}

#[test]
fn flushes_of_a_connection_run_one_after_the_other() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    for wr_id in 1..=3 {
        pair.ends[A].post(wr_id, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, wr_id) }, Data::default());
    }
    for wr_id in 1..=3 {
        pair.run();
        let job = pair.ends[B].qp.poll_flush_job().unwrap();
        assert_eq!(job.extent, range(dst, wr_id));
        assert!(pair.ends[B].qp.poll_flush_job().is_none());
        pair.ends[B].jobs.push_back(job);
        pair.end_flush(B);
    }
    pair.run();
    assert_eq!(pair.ends[A].take(), [1, 2, 3].map(|id| (id, Success)));
    pair.assert_empty();
}

#[test]
fn flush_that_takes_longer_than_the_retry_time_is_waited_for() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 16) }, Data::default());
    pair.pass(10 * RETRY_TIME);
    assert_eq!(pair.ends[A].take(), []);
    pair.end_flush(B);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
    pair.assert_empty();
}

#[test]
fn flush_that_fails_is_an_operational_error_and_nothing_behind_it_counts() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    let buf = pair.ends[B].memory.register(16);
    pair.ends[B].post_recv(1, buf, 16);
    pair.ends[B].post_recv(2, buf, 16);
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 16) }, Data::default());
    pair.ends[A].post(2, SendOp::Send, inline(b"durable!"));
    pair.run();
    pair.ends[B].memory.break_region(dst);
    pair.end_flush(B);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, RemoteOperation), (2, WrFlush)]);
    assert_eq!(pair.ends[B].take(), [(1, WrFlush), (2, WrFlush)]);
    pair.assert_states(QpState::Error, QpState::Error);
    pair.assert_empty();
}

#[test]
fn flush_needs_the_right_of_each_placement() {
    for (access, placement, status) in [
        (Access::FLUSH_GLOBAL, PERSISTENT, RemoteAccess),
        (Access::FLUSH_PERSISTENT, Placement::GLOBAL, RemoteAccess),
        (Access::FLUSH_GLOBAL, Placement::all(), RemoteAccess),
        (Access::FLUSH_PERSISTENT, PERSISTENT, Success),
        (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT, Placement::all(), Success),
    ] {
        let mut pair = Pair::new();
        let dst = pair.ends[B].memory.register_in(PD, 16, access);
        pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(placement, 16) }, Data::default());
        pair.run();
        assert_eq!(pair.ends[A].take(), [(1, status)], "{access:?} {placement:?}");
        pair.assert_empty();
    }
}

#[test]
fn flush_is_checked_even_if_it_is_empty() {
    for (offset, len_bytes, status) in [(0, 0, Success), (16, 0, Success), (17, 0, RemoteAccess), (15, 2, RemoteAccess)] {
        let mut pair = Pair::new();
        let dst = pair.ends[B].memory.register(16);
        let op = SendOp::Flush { remote: remote(dst, offset), spec: spec(PERSISTENT, len_bytes) };
        pair.ends[A].post(1, op, Data::default());
        pair.run();
        assert_eq!(pair.ends[A].take(), [(1, status)], "{len_bytes} bytes at {offset}");
    }
}

#[test]
fn switched_off_operations_are_refused_at_the_post_and_at_the_peer() {
    let mut without = Setup::default();
    (without.qp.native_flush, without.qp.native_atomic_write) = (false, false);
    for atomic_write in [false, true] {
        let mut pair = Pair::with(Setup::default(), without);
        let dst = pair.ends[B].memory.register(16);
        let remote = remote(dst, 0);
        let op = if atomic_write {
            SendOp::AtomicWrite { remote, value: [1; 8] }
        } else {
            SendOp::Flush { remote, spec: spec(PERSISTENT, 8) }
        };
        let wr = SendWr { wr_id: 1, op, data: Data::default(), flags: SendFlags::SIGNALED };
        let refused = pair.ends[B].qp.post_send([wr.clone()]).unwrap_err();
        assert_eq!(refused.error, PostError::NotSupported);
        pair.ends[A].qp.post_send([wr]).unwrap();
        pair.run();
        assert_eq!(pair.ends[A].take(), [(1, RemoteInvalidRequest)]);
        assert_eq!(pair.ends[B].memory.read(dst.addr, 8), [0; 8]);
        pair.assert_states(QpState::Error, QpState::Error);
    }
}

#[test]
fn sixty_four_flushes_in_flight_all_complete() {
    let mut setup = Setup::default();
    setup.qp.capacity.send_wr = 64;
    let mut pair = Pair::with(setup, setup);
    let dst = pair.ends[B].memory.register(64);
    for wr_id in 0..64 {
        pair.ends[A].post(wr_id, SendOp::Flush { remote: remote(dst, wr_id), spec: spec(PERSISTENT, 1) }, Data::default());
    }
    pair.run();
    assert_eq!(pair.ends[A].take(), (0..64).map(|id| (id, Success)).collect::<Vec<_>>());
    pair.assert_empty();
}

#[test]
fn job_that_ends_after_the_queue_pair_is_ignored() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 16) }, Data::default());
    pair.run();
    let job = pair.ends[B].qp.poll_flush_job().unwrap();
    pair.ends[B].jobs.push_back(job);
    pair.ends[B].qp.move_to_error();
    pair.end_flush(B);
    pair.pass(Duration::from_millis(200));
    assert_eq!(pair.ends[A].take(), [], "nobody said that it is durable");
    pair.pass(RETRY_TIME);
    assert_eq!(pair.ends[A].take(), [(1, WcStatus::RetryExceeded)]);
    pair.assert_empty();
}

#[test]
fn refusal_behind_a_flush_waits_for_it_and_nothing_behind_the_refusal_happens() {
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let dst = pair.ends[B].memory.register(16);
    let bad = crate::wire::Remote { addr: dst.addr, rkey: 999 };
    pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 16) }, Data::default());
    pair.ends[A].post(2, SendOp::Write { remote: bad }, inline(b"bad"));
    pair.ends[A].post(3, SendOp::Write { remote: remote(dst, 0) }, inline(b"behind"));
    pair.run();
    pair.assert_states(QpState::ReadyToSend, QpState::ReadyToSend);
    pair.end_flush(B);
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success), (2, RemoteAccess), (3, WrFlush)]);
    assert_eq!(pair.ends[B].memory.read(dst.addr, 6), [0; 6]);
    assert!(!pair.is_cut);
    pair.assert_empty();
}

#[test]
fn job_from_before_a_reset_does_not_end_a_flush_from_after_it() {
    let setup = Setup::default();
    let flush = |pair: &mut Pair| {
        let dst = pair.ends[B].memory.register(16);
        pair.ends[A].post(1, SendOp::Flush { remote: remote(dst, 0), spec: spec(PERSISTENT, 16) }, Data::default());
        pair.run();
        pair.ends[B].qp.poll_flush_job().unwrap()
    };
    let mut pair = Pair::new();
    pair.flushes_end = false;
    let old = flush(&mut pair).id;
    for end in &mut pair.ends {
        end.qp.reset();
        end.qp.to_init().unwrap();
        end.qp.to_ready_to_receive(setup.responder).unwrap();
        end.qp.to_ready_to_send(setup.requester).unwrap();
    }
    let new = flush(&mut pair).id;
    pair.ends[B].qp.flush_done(pair.now, old, Ok(()));
    pair.run();
    assert_eq!(pair.ends[A].take(), []);
    pair.ends[B].qp.flush_done(pair.now, new, Ok(()));
    pair.run();
    assert_eq!(pair.ends[A].take(), [(1, Success)]);
}
