//! Receives from a shared queue, and what is told besides completions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::memory::{PD, SimMemory};
use super::pair::{A, B, End, Pair, RNR_TIME, Setup, inline, local, remote, sge};
use crate::rc::{
    Access, PdNumber, PostError, QpEvent, QpState, RecvWr, SendFlags, SendOp, SendWr, SharedReceives, Side, WcStatus,
};
use crate::wire::Remote;

use WcStatus::{RemoteAccess, RemoteInvalidRequest, RemoteOperation, Success, WrFlush};

/// A shared queue that counts what it gave away.
#[derive(Debug, Default)]
struct Queue(Mutex<(VecDeque<RecvWr>, u32)>, Option<PdNumber>);

impl SharedReceives for Queue {
    fn take(&self) -> Option<RecvWr> {
        let mut queue = self.0.lock().unwrap();
        let wr = queue.0.pop_front()?;
        queue.1 += 1;
        Some(wr)
    }

    fn release(&self, slots: u32) {
        self.0.lock().unwrap().1 -= slots;
    }

    fn pd(&self) -> PdNumber {
        self.1.unwrap_or(PD)
    }
}

impl Queue {
    fn post(&self, wr_id: u64, sges: Vec<crate::rc::Sge>) {
        self.0.lock().unwrap().0.push_back(RecvWr { wr_id, sges });
    }

    /// How many receives are posted, and how many are taken and not given back.
    fn counts(&self) -> (usize, u32) {
        let queue = self.0.lock().unwrap();
        (queue.0.len(), queue.1)
    }
}

/// A pair whose end B takes its receives from `queue`.
fn pair(queue: &Arc<Queue>, memory: &SimMemory) -> Pair {
    let mut pair = Pair::new();
    pair.ends[B] = End::new(Setup::default(), memory.clone(), Some(Arc::clone(queue) as Arc<dyn SharedReceives>));
    pair
}

fn events(end: &mut End) -> Vec<QpEvent> {
    std::iter::from_fn(|| end.qp.poll_event()).collect()
}

#[test]
fn shared_receives_go_to_whoever_gets_a_message_first() {
    let (queue, memory) = (Arc::new(Queue::default()), SimMemory::default());
    let mut pairs = [pair(&queue, &memory), pair(&queue, &memory)];
    let buf = memory.register(64);
    (0..4).for_each(|wr_id| queue.post(wr_id, vec![sge(buf, 16 * wr_id, 16)]));
    for (pair, message) in [(1, b"first "), (0, b"second"), (0, b"third "), (1, b"fourth")] {
        pairs[pair].ends[A].post(9, SendOp::Send, inline(message));
        pairs[pair].run();
    }
    assert_eq!(pairs[0].ends[B].take(), [(1, Success), (2, Success)]);
    assert_eq!(pairs[1].ends[B].take(), [(0, Success), (3, Success)]);
    assert_eq!((memory.read(buf.addr, 6), memory.read(buf.addr + 48, 6)), (b"first ".to_vec(), b"fourth".to_vec()));
    assert_eq!(queue.counts(), (0, 0));
}

#[test]
fn queue_pair_with_a_shared_queue_has_no_receive_queue() {
    let queue = Arc::new(Queue::default());
    let mut pair = pair(&queue, &SimMemory::default());
    let own = pair.ends[B].qp.post_recv(RecvWr { wr_id: 1, sges: Vec::new() });
    assert_eq!(own, Err(PostError::SharedReceives));
}

#[test]
fn message_that_finds_the_shared_queue_empty_is_sent_again_and_gets_what_is_posted_meanwhile() {
    let queue = Arc::new(Queue::default());
    let mut pair = pair(&queue, &SimMemory::default());
    pair.ends[A].post(1, SendOp::Send, inline(b""));
    pair.pass(3 * RNR_TIME);
    assert_eq!(pair.ends[A].take(), []);
    queue.post(7, Vec::new());
    pair.pass(RNR_TIME);
    assert_eq!((pair.ends[A].take(), pair.ends[B].take()), (vec![(1, Success)], vec![(7, Success)]));
    pair.assert_empty();
}

#[test]
fn slot_of_a_shared_queue_is_free_when_its_completion_is_polled() {
    let queue = Arc::new(Queue::default());
    let mut pair = pair(&queue, &SimMemory::default());
    pair.ends[B].releases = false;
    queue.post(7, Vec::new());
    pair.ends[A].post(1, SendOp::Send, inline(b""));
    pair.run();
    assert_eq!(queue.counts(), (0, 1), "done is not enough: nobody polled");
    let completion = pair.ends[B].polled[0];
    pair.ends[B].qp.release(&completion);
    assert_eq!(queue.counts(), (0, 0));
}

#[test]
fn slots_whose_completions_nobody_polls_are_free_when_the_queue_pair_is_reset_or_gone() {
    for reset in [true, false] {
        let queue = Arc::new(Queue::default());
        let mut pair = pair(&queue, &SimMemory::default());
        pair.ends[B].releases = false;
        queue.post(7, Vec::new());
        queue.post(8, Vec::new());
        pair.ends[A].post(1, SendOp::Send, inline(b""));
        pair.run();
        assert_eq!(queue.counts(), (1, 1));
        if reset {
            pair.ends[B].qp.reset();
        } else {
            drop(pair);
        }
        assert_eq!(queue.counts(), (1, 0));
    }
}

#[test]
fn memory_of_a_shared_receive_is_in_the_protection_domain_of_its_queue() {
    let other = PdNumber(PD.0 + 1);
    for (of_queue, of_memory, expected) in [(other, other, Success), (other, PD, WcStatus::LocalProtection)] {
        let queue = Arc::new(Queue(Mutex::default(), Some(of_queue)));
        let memory = SimMemory::default();
        let mut pair = pair(&queue, &memory);
        let buf = memory.register_in(of_memory, 16, Access::all());
        queue.post(7, vec![sge(buf, 0, 16)]);
        pair.ends[A].post(1, SendOp::Send, inline(b"x"));
        pair.run();
        assert_eq!(pair.ends[B].take(), [(7, expected)]);
    }
}

#[test]
fn end_of_a_queue_pair_leaves_the_shared_queue_alone_and_is_told_once() {
    let queue = Arc::new(Queue::default());
    let mut pair = pair(&queue, &SimMemory::default());
    queue.post(7, Vec::new());
    assert_eq!(events(&mut pair.ends[B]), []);
    pair.ends[B].qp.move_to_error();
    pair.ends[B].qp.post_send([SendWr { wr_id: 1, op: SendOp::Send, data: inline(b""), flags: SendFlags::SIGNALED }]).unwrap();
    pair.ends[B].qp.peer_gone(pair.now);
    assert_eq!(pair.ends[B].take(), [(1, WrFlush)]);
    assert_eq!(events(&mut pair.ends[B]), [QpEvent::LastReceive]);
    assert_eq!(queue.counts(), (1, 0));
}

#[test]
fn last_receive_is_told_of_behind_the_completion_of_the_one_that_is_being_filled() {
    let (queue, memory) = (Arc::new(Queue::default()), SimMemory::default());
    let mut pair = pair(&queue, &memory);
    let (src, dst) = (pair.ends[A].memory.register(1000), memory.register(1000));
    queue.post(7, vec![sge(dst, 0, 1000)]);
    queue.post(8, vec![sge(dst, 0, 1000)]);
    pair.ends[A].post(1, SendOp::Send, local(src, 0, 1000));
    pair.send(A, usize::MAX);
    pair.receive(B, 100);
    pair.ends[B].qp.move_to_error();
    assert_eq!((pair.ends[B].take_side(Side::Recv), events(&mut pair.ends[B])), (vec![], vec![]));
    pair.run();
    assert_eq!(pair.ends[B].take_side(Side::Recv), [(7, WrFlush)]);
    assert_eq!(events(&mut pair.ends[B]), [QpEvent::LastReceive]);
    assert_eq!(queue.counts(), (1, 0));
}

#[test]
fn queue_pair_with_receives_of_its_own_does_not_tell_of_the_last() {
    let mut pair = Pair::new();
    pair.ends[B].qp.move_to_error();
    assert_eq!(events(&mut pair.ends[B]), []);
}

#[test]
fn refusal_is_told_by_the_receive_that_it_took_and_else_by_an_event() {
    type Case = (SendOp, bool, WcStatus, Option<QpEvent>);
    const NOWHERE: Remote = Remote { addr: 0, rkey: 999 };
    let cases: [fn(&SimMemory) -> Case; 6] = [
        |_| (SendOp::Write { remote: NOWHERE }, false, RemoteAccess, Some(QpEvent::AccessViolation)),
        |_| (SendOp::Read { remote: NOWHERE }, false, RemoteAccess, Some(QpEvent::AccessViolation)),
        |_| (SendOp::WriteImm { remote: NOWHERE, imm: [0; 4] }, true, RemoteAccess, None),
        |_| (SendOp::Send, true, RemoteInvalidRequest, None),
        |memory| {
            let mr = memory.register(16);
            let place = Remote { addr: remote(mr, 0).addr + 1, ..remote(mr, 0) };
            (SendOp::FetchAdd { remote: place, add: 1 }, false, RemoteInvalidRequest, Some(QpEvent::InvalidRequest))
        },
        |memory| {
            let mr = memory.register(16);
            memory.break_region(mr);
            (SendOp::AtomicWrite { remote: remote(mr, 0), value: [1; 8] }, false, RemoteOperation, Some(QpEvent::Fatal))
        },
    ];
    for case in cases {
        let mut pair = Pair::new();
        let (op, takes, status, event) = case(&pair.ends[B].memory);
        pair.ends[B].qp.post_recv(RecvWr { wr_id: 7, sges: Vec::new() }).unwrap();
        let result = pair.ends[A].memory.register(16);
        let data = match op {
            SendOp::Read { .. } | SendOp::FetchAdd { .. } => local(result, 0, 8),
            SendOp::AtomicWrite { .. } => crate::rc::Data::default(),
            _ => inline(b"x"),
        };
        pair.ends[A].post(1, op, data);
        pair.run();
        assert_eq!(pair.ends[A].take(), [(1, status)], "{op:?}");
        let (wr_id, told) = pair.ends[B].take()[0];
        assert_eq!((wr_id, told == WrFlush), (7, !takes), "{op:?}");
        assert_eq!(events(&mut pair.ends[B]), Vec::from_iter(event), "{op:?}");
        assert_eq!(events(&mut pair.ends[A]), [], "{op:?}");
    }
}

#[test]
fn read_that_lost_its_memory_is_told_of() {
    let mut pair = Pair::new();
    let (dst, src) = (pair.ends[A].memory.register(16), pair.ends[B].memory.register(16));
    pair.ends[A].post(1, SendOp::Read { remote: remote(src, 0) }, local(dst, 0, 8));
    while pair.send(A, usize::MAX) | pair.receive(B, usize::MAX) {}
    pair.ends[B].memory.deregister(src);
    pair.run();
    assert_eq!(events(&mut pair.ends[B]), [QpEvent::AccessViolation]);
}

#[test]
fn first_request_before_ready_to_send_is_told_of_once() {
    let setup = Setup::default();
    let mut pair = Pair::new();
    let mut qp = crate::rc::RcQp::new(setup.qp, pair.ends[B].memory.clone(), None);
    qp.to_init().unwrap();
    qp.to_ready_to_receive(setup.responder).unwrap();
    pair.ends[B].qp = qp;
    let dst = pair.ends[B].memory.register(8);
    for wr_id in [1, 2] {
        pair.ends[A].post(wr_id, SendOp::Write { remote: remote(dst, 0) }, inline(b"x"));
        pair.run();
    }
    assert_eq!(events(&mut pair.ends[B]), [QpEvent::CommunicationEstablished]);
    pair.assert_states(QpState::ReadyToSend, QpState::ReadyToReceive);
}
