//! Two streams over a socket of the kernel's, each with a queue pair.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::stream::{Moved, Qp, Stream};
use super::{Socket, unmapped};
use crate::cm::{Limits, Machine, StreamEnd};
use crate::objects::memory::{DeviceMemory, NewRegion, Region, Table};
use crate::objects::touch::calls;
use crate::rc::{
    Access, Data, PdNumber, QpCapacity, QpConfig, QpState, RcQp, RecvWr, RequesterConfig, ResponderConfig, SendFlags, SendOp,
    SendWr, Sge, Side, WcStatus,
};
use crate::wire::{PREAMBLE_BYTES, Remote, RnrTimer};

use WcStatus::*;

const LIMIT: Duration = Duration::from_secs(20);
const PD: PdNumber = PdNumber(1);
/// Where nothing is mapped.
const NOWHERE: u64 = 0x1000;
const HEADER_BYTES: u64 = 32;

/// Memory as it is registered.
#[derive(Clone)]
struct Mr {
    addr: u64,
    key: u32,
    region: Arc<Region>,
}

struct End {
    stream: Stream,
    qp: Qp,
    cm: Machine,
    table: Arc<Table>,
}

impl End {
    fn new(socket: Socket) -> Self {
        let table = Arc::new(Table::new());
        let config = QpConfig {
            pd: PD,
            capacity: QpCapacity { send_wr: 512, recv_wr: 512, send_sge: 4, recv_sge: 4, inline_bytes: 64 },
            signal_all: true,
            native_flush: true,
            native_atomic_write: true,
        };
        let mut qp = RcQp::new(config, DeviceMemory(Arc::clone(&table)), None);
        qp.to_init().unwrap();
        let rnr_timer = RnrTimer::from_code(1).unwrap();
        qp.to_ready_to_receive(ResponderConfig { resources: 16, rnr_timer }).unwrap();
        qp.to_ready_to_send(RequesterConfig { depth: 16, rnr_retry: 7, retry_time: None }).unwrap();
        let cm = Machine::new(Limits { unreachable_after: LIMIT, answer_after: LIMIT, time_wait: LIMIT });
        Self { stream: Stream::accepted(socket), qp, cm, table }
    }

    fn register(&self, host: u64, len_bytes: u64) -> Mr {
        let access = Access::all();
        let (key, region) = self.table.register_plain(NewRegion { pd: PD, iova: host, host, len_bytes, access });
        Mr { addr: host, key, region }
    }

    fn register_bytes(&self, bytes: &mut [u8]) -> Mr {
        self.register(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64)
    }

    fn run(&mut self) -> Result<Moved, StreamEnd> {
        let moved = self.stream.run(Some(&mut self.qp), &mut self.cm, Instant::now());
        if self.qp.state() == QpState::Error {
            self.stream.give_back(&mut self.qp, Instant::now());
        }
        moved
    }

    /// Waits until so many bytes are in the socket.
    fn await_bytes(&self, bytes: u64) {
        let start = Instant::now();
        while rustix::io::ioctl_fionread(self.stream.socket().as_fd()).unwrap() < bytes {
            assert!(start.elapsed() < LIMIT, "{bytes} bytes did not come");
            thread::yield_now();
        }
    }

    fn post(&mut self, op: SendOp, mr: &Mr, at: u64, len_bytes: u32) {
        let data = Data::Sges(vec![Sge { addr: mr.addr + at, len_bytes, lkey: mr.key }]);
        self.qp.post_send([SendWr { wr_id: at, op, data, flags: SendFlags::empty() }]).unwrap();
    }

    fn statuses(&mut self, side: Side) -> Vec<WcStatus> {
        let mut statuses = Vec::new();
        while let Some(completion) = self.qp.poll_completion() {
            assert_eq!(completion.side, side);
            statuses.push(completion.status);
        }
        statuses
    }
}

/// Two ends that have greeted each other.
fn pair() -> [End; 2] {
    let listening = Socket::bound((Ipv4Addr::LOCALHOST, 0).into(), None).unwrap();
    listening.listen(1).unwrap();
    let active = Socket::bound((Ipv4Addr::LOCALHOST, 0).into(), None).unwrap();
    active.connect(unmapped(listening.local().unwrap())).unwrap();
    let start = Instant::now();
    let passive = loop {
        if let Some(passive) = listening.accept().unwrap() {
            break passive;
        }
        assert!(start.elapsed() < LIMIT, "nobody connected");
        thread::yield_now();
    };
    let mut ends = [End::new(active), End::new(passive)];
    for end in &mut ends {
        end.stream.run_out(&mut end.qp, Instant::now()).unwrap();
    }
    for end in &mut ends {
        end.await_bytes(PREAMBLE_BYTES as u64);
        end.run().unwrap();
    }
    calls::made();
    ends
}

fn write(to: &Mr, at: u64) -> SendOp {
    SendOp::Write { remote: Remote { addr: to.addr + at, rkey: to.key } }
}

#[test]
fn many_short_writes_take_one_call_to_send_and_two_to_receive() {
    const COUNT: u64 = 64;
    const BYTES: u64 = 64;
    let [mut a, mut b] = pair();
    let mut source: Vec<u8> = (0..COUNT * BYTES).map(|i| (i % 251) as u8).collect();
    let mut target = vec![0; source.len()];
    let (from, to) = (a.register_bytes(&mut source), b.register_bytes(&mut target));
    for at in (0..COUNT * BYTES).step_by(BYTES as usize) {
        a.post(write(&to, at), &from, at, BYTES as u32);
    }
    a.stream.run_out(&mut a.qp, Instant::now()).unwrap();
    assert_eq!(calls::made(), 1, "64 headers and payloads from where they lie");

    b.await_bytes(COUNT * (HEADER_BYTES + BYTES));
    b.run().unwrap();
    assert_eq!(calls::made(), 3, "a look, the payloads to where they belong, and the answer");
    assert_eq!(target, source);

    a.await_bytes(1);
    a.run().unwrap();
    assert_eq!(calls::made(), 2);
    assert_eq!(a.statuses(Side::Send), [Success; COUNT as usize]);
}

#[test]
fn long_writes_arrive_whole() {
    const BYTES: u64 = 1 << 20;
    let [mut a, mut b] = pair();
    let mut source: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let mut target = vec![0; source.len()];
    let (from, to) = (a.register_bytes(&mut source), b.register_bytes(&mut target));
    for _ in 0..3 {
        a.post(write(&to, 0), &from, 0, BYTES as u32);
    }
    let start = Instant::now();
    let mut done = Vec::new();
    while done.len() < 3 {
        a.run().unwrap();
        b.run().unwrap();
        done.extend(a.statuses(Side::Send));
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(done, [Success; 3]);
    assert_eq!(target, source);
}

#[test]
fn message_behind_another_goes_where_its_receive_says_and_completes_in_order() {
    let [mut a, mut b] = pair();
    let (mut source, mut target) = (*b"first, second", [0; 16]);
    let (from, to) = (a.register_bytes(&mut source), b.register_bytes(&mut target));
    for (wr_id, addr, len_bytes) in [(0, to.addr + 8, 8), (1, to.addr, 8)] {
        b.qp.post_recv(RecvWr { wr_id, sges: vec![Sge { addr, len_bytes, lkey: to.key }] }).unwrap();
    }
    a.post(SendOp::Send, &from, 0, 5);
    a.post(SendOp::Send, &from, 7, 6);
    a.run().unwrap();
    b.await_bytes(2 * 16 + 11);
    b.run().unwrap();
    assert_eq!(&target, b"second\0\0first\0\0\0");
    let received: Vec<_> = std::iter::from_fn(|| b.qp.poll_completion()).map(|c| (c.wr_id, c.byte_len)).collect();
    assert_eq!(received, [(0, 5), (1, 6)]);
}

#[test]
fn payload_whose_memory_is_gone_fails_its_request_and_nothing_behind_it_is_placed() {
    // Not there any more, or deregistered between the look at its header and the call that fills it.
    for deregistered in [false, true] {
        let [mut a, mut b] = pair();
        let (mut source, mut target) = ([7; 24], [0; 24]);
        let (from, to) = (a.register_bytes(&mut source), b.register_bytes(&mut target));
        let mut spare = [0; 8];
        let bad = if deregistered { b.register_bytes(&mut spare) } else { b.register(NOWHERE, 8) };
        a.post(write(&to, 0), &from, 0, 8);
        a.post(write(&bad, 0), &from, 8, 8);
        a.post(write(&to, 16), &from, 16, 8);
        a.run().unwrap();
        b.await_bytes(3 * (HEADER_BYTES + 8));
        if deregistered {
            bad.region.revoke();
        }
        while b.qp.state() != QpState::Error {
            b.run().unwrap();
        }
        b.run().unwrap();
        assert_eq!((&target[..8], &target[8..]), ([7; 8].as_slice(), [0; 16].as_slice()));
        a.await_bytes(1);
        a.run().unwrap();
        assert_eq!(a.statuses(Side::Send), [Success, RemoteOperation, WrFlush]);
        assert_eq!(b.qp.held(), 0);
    }
}

#[test]
fn source_whose_memory_is_gone_ends_the_stream_behind_what_was_posted_before() {
    let [mut a, mut b] = pair();
    let (mut source, mut target) = ([7; 24], [0; 24]);
    let (from, to) = (a.register_bytes(&mut source), b.register_bytes(&mut target));
    let bad = a.register(NOWHERE, 24);
    a.post(write(&to, 0), &from, 0, 8);
    a.post(write(&to, 8), &bad, 8, 8);
    a.post(write(&to, 16), &from, 16, 8);
    assert_eq!(a.run(), Err(StreamEnd::Closed));
    a.qp.peer_gone(Instant::now());
    assert_eq!(a.statuses(Side::Send), [WrFlush; 3]);
    drop(a);
    b.await_bytes(HEADER_BYTES + 8);
    while b.run() != Err(StreamEnd::Closed) {}
    assert_eq!((&target[..8], &target[8..]), ([7; 8].as_slice(), [0; 16].as_slice()));
}

#[test]
fn requests_behind_one_that_is_half_sent_are_not_sent_in_the_error_state() {
    const BYTES: u32 = 1 << 20;
    let [mut a, mut b] = pair();
    let mut source = vec![7; BYTES as usize];
    let (from, to) = (a.register_bytes(&mut source), b.register(NOWHERE, BYTES.into()));
    for _ in 0..64 {
        a.post(write(&to, 0), &from, 0, BYTES);
    }
    // Nobody receives, and the kernel holds less than all that.
    while a.run().unwrap() != Moved::Idle {}
    a.qp.move_to_error();
    assert!(a.stream.holds_work(), "one is half sent");
    let start = Instant::now();
    loop {
        a.run().unwrap();
        if !a.stream.holds_work() {
            break;
        }
        assert_eq!(a.statuses(Side::Send), []);
        // It throws away what comes.
        let _ = b.run();
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(a.statuses(Side::Send), [WrFlush; 64]);
}

mod order;
