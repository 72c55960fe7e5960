//! What holds for a whole connection, from the request to the end, whatever its two programs, the stream and the time do: two ends, each
//! with a connection manager and a queue pair, as the driver puts them together. Used by the fuzz target and by
//! `rpma-soft/tests/corpus_replay.rs`.
//!
//! The input is a byte of [`Setup`], and steps of one byte and its numbers; see [`Session::step`]. As long as nothing but the two ends
//! speaks on the stream, neither may find a fault with what the other sends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::soft_region::{Lease, Region, request, sges};
use rpma_soft::cm::{self, Kind, Machine, Output, StreamEnd};
use rpma_soft::rc::{
    Completion, FlushJob, Intake, MemoryFault, Payload, PdNumber, QpCapacity, QpConfig, QpState, RcQp, RecvWr, RequesterConfig,
    ResponderConfig, SendFlags, SendWr, SharedReceives, Side,
};
use rpma_soft::wire::{
    Accept, CmFrame, ConnectRequest, Decoder, Event, Frame, MAX_HEADER_BYTES, Preamble, PrivateData, RnrTimer,
};

const QUEUE: u32 = 4;
const RESOURCES: u8 = 2;
const LIMITS: cm::Limits = cm::Limits {
    unreachable_after: Duration::from_secs(5),
    answer_after: Duration::from_secs(60),
    time_wait: Duration::from_millis(100),
};
/// The end that asks; 1 is the end that is asked.
const A: usize = 0;

/// Panics if a property does not hold for `data`.
pub(crate) fn check(data: &[u8]) {
    let mut input = Input(data);
    let mut session = Session::new(Setup(input.number()));
    while let Some(step) = input.next() {
        session.step(step, &mut input);
        session.check();
    }
    session.end();
}

/// What the fuzzer says.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// 0 where nothing is left.
    fn number(&mut self) -> u8 {
        self.next().unwrap_or_default()
    }

    fn bytes(&mut self, count: u8) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(usize::from(count).min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Bits: A has a shared receive queue, B has one, it is the same one; messages without a receive are sent again for ever.
#[derive(Clone, Copy)]
struct Setup(u8);

impl Setup {
    fn ready(self, qp: &mut RcQp<Region>) -> bool {
        let rnr_timer = RnrTimer::from_code(1).expect("a code");
        let responder = ResponderConfig { resources: RESOURCES, rnr_timer };
        qp.to_ready_to_receive(responder).is_ok() && qp.to_ready_to_send(self.requester()).is_ok()
    }

    fn shared(self) -> [Option<Arc<Queue>>; 2] {
        let one = Arc::new(Queue::default());
        let other = if self.0 & 4 != 0 { Arc::clone(&one) } else { Arc::default() };
        [(self.0 & 1 != 0).then_some(one), (self.0 & 2 != 0).then_some(other)]
    }

    fn requester(self) -> RequesterConfig {
        let rnr_retry = if self.0 & 8 != 0 { 7 } else { 1 };
        RequesterConfig { depth: RESOURCES, rnr_retry, retry_time: Some(Duration::from_secs(1)) }
    }
}

/// A shared receive queue: what is posted, and how many of those that were taken are not polled yet.
#[derive(Debug, Default)]
struct Queue(Mutex<(VecDeque<RecvWr>, u32)>);

impl Queue {
    fn post(&self, wr: RecvWr) -> bool {
        let mut queue = self.0.lock().expect("nobody panics with it");
        let fits = queue.0.len() + (queue.1 as usize) < QUEUE as usize;
        if fits {
            queue.0.push_back(wr);
        }
        fits
    }
}

impl SharedReceives for Queue {
    fn take(&self) -> Option<RecvWr> {
        let mut queue = self.0.lock().expect("nobody panics with it");
        let wr = queue.0.pop_front()?;
        queue.1 += 1;
        Some(wr)
    }

    fn release(&self, slots: u32) {
        let used = &mut self.0.lock().expect("nobody panics with it").1;
        *used = used.checked_sub(slots).expect("no more than was taken");
    }

    fn pd(&self) -> PdNumber {
        PdNumber(1)
    }
}

/// What a program was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Answer,
    Established,
    Disconnected,
    /// Nothing comes any more.
    Last,
}

impl Told {
    /// The next event, in an order that programs know.
    fn then(self, kind: Kind) -> Self {
        match (self, kind) {
            (Self::Nothing, Kind::ConnectResponse) => Self::Answer,
            (Self::Nothing, Kind::Established) => Self::Established,
            (Self::Nothing, Kind::Rejected | Kind::Unreachable) => Self::Last,
            // Whoever is called established by its own program can still be refused.
            (Self::Answer | Self::Established, Kind::Disconnected) | (Self::Established, Kind::Rejected) => Self::Disconnected,
            (Self::Disconnected, Kind::TimewaitExit) => Self::Last,
            (told, kind) => panic!("{kind:?} after {told:?}"),
        }
    }
}

/// A frame on its way into the stream.
struct Sending {
    bytes: VecDeque<u8>,
    /// Memory that it is sent from, if it is the queue pair's.
    payload: Option<Payload<Lease>>,
}

/// Payload that is due.
struct Filling {
    _memory: Intake<Lease>,
    /// The queue pair has its memory back.
    told: bool,
}

struct End {
    /// B has none until it is asked.
    cm: Option<Machine>,
    qp: RcQp<Region>,
    region: Region,
    shared: Option<Arc<Queue>>,
    stream: bool,
    inbound: VecDeque<u8>,
    /// The other end sends nothing behind that.
    other_closed: bool,
    decoder: Decoder,
    frames: VecDeque<CmFrame>,
    sending: Option<Sending>,
    filling: Option<Filling>,
    job: Option<FlushJob<Lease>>,
    told_gone: bool,
    told: Told,
    destroyed: bool,
    sends: u64,
    completed: [u64; 2],
}

impl End {
    fn new(cm: Option<Machine>, shared: Option<Arc<Queue>>) -> Self {
        let config = QpConfig {
            pd: PdNumber(1),
            capacity: QpCapacity { send_wr: QUEUE, recv_wr: QUEUE, send_sge: 2, recv_sge: 2, inline_bytes: 8 },
            signal_all: true,
            native_flush: true,
            native_atomic_write: true,
        };
        let region = Region::default();
        let receives = shared.clone().map(|queue| queue as Arc<dyn SharedReceives>);
        let mut qp = RcQp::new(config, region.clone(), receives);
        qp.to_init().expect("from reset");
        Self {
            cm,
            qp,
            region,
            shared,
            stream: false,
            inbound: Preamble::encode().into(),
            other_closed: false,
            decoder: Decoder::new(),
            frames: VecDeque::new(),
            sending: None,
            filling: None,
            job: None,
            told_gone: false,
            told: Told::Nothing,
            destroyed: false,
            sends: 0,
            completed: [0, 0],
        }
    }

    /// Completions come once, and in order.
    fn poll(&mut self, all: bool) {
        while let Some(completion) = self.qp.poll_completion() {
            self.qp.release(&completion);
            let Completion { wr_id, side, .. } = completion;
            let next = &mut self.completed[usize::from(side == Side::Recv)];
            // Another queue pair may have what is missing in between.
            let in_order = if side == Side::Recv && self.shared.is_some() { wr_id >= *next } else { wr_id == *next };
            assert!(in_order, "{side:?} {wr_id} completes, and the next was {next}");
            *next = wr_id + 1;
            if !all {
                break;
            }
        }
    }
}

struct Session {
    ends: [End; 2],
    setup: Setup,
    now: Instant,
    /// Receives that were posted; numbers are of both ends, since they may share a queue.
    receives: [u64; 2],
    /// Nobody else has spoken on the stream.
    honest: bool,
}

impl Session {
    fn new(setup: Setup) -> Self {
        let [a, b] = setup.shared();
        let ends = [End::new(Some(Machine::new(LIMITS)), a), End::new(None, b)];
        Self { ends, setup, now: Instant::now(), receives: [0, 0], honest: true }
    }

    /// The highest bit says which end's program, stream or network does something.
    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        let i = usize::from(step >> 7);
        match step & 0x7F {
            0..=5 => self.program(i, step & 0x7F),
            6 => self.send(i, usize::MAX),
            7 => self.send(i, input.number().into()),
            8 => self.receive(i, usize::MAX),
            9 => self.receive(i, input.number().into()),
            which @ 10..=21 => self.post(i, which - 10),
            22 => self.post_receive(i, false),
            23 => self.post_receive(i, true),
            24 => self.ends[i].poll(false),
            25 => self.ends[i].poll(true),
            26 => self.flush(i, Ok(())),
            27 => self.flush(i, Err(MemoryFault)),
            28 => {
                let end = &mut self.ends[i];
                end.job = end.job.take().or_else(|| end.qp.poll_flush_job());
            }
            which @ 29..=32 => self.pass([10, 60_000, 1_000_000, 61_000_000][usize::from(which - 29)]),
            33 => self.ends[i].qp.move_to_error(),
            34 => (0..8).for_each(|_| (0..2).for_each(|i| (self.send(i, usize::MAX), self.receive(i, usize::MAX)).1)),
            35 => {
                let count = input.number();
                self.ends[i].inbound.extend(input.bytes(count));
                self.honest = false;
            }
            36 => {
                let (at, change) = (usize::from(input.number()), input.number());
                if let Some(byte) = self.ends[i].inbound.get_mut(at) {
                    *byte ^= change;
                    self.honest = false;
                }
            }
            37 => self.end_stream(i, StreamEnd::Closed),
            38 => self.end_stream(i, StreamEnd::Unreachable),
            _ => {}
        }
        (0..2).for_each(|i| self.settle(i));
    }

    /// A call of the connection manager.
    fn program(&mut self, i: usize, call: u8) {
        let (now, setup) = (self.now, self.setup);
        let end = &mut self.ends[i];
        if call == 5 {
            return self.destroy(i);
        }
        let Some(cm) = end.cm.as_mut().filter(|_| !end.destroyed) else { return };
        match call {
            0 if i == A => {
                let asks = cm.connect(now, connect_request()).is_ok();
                self.ends.iter_mut().for_each(|end| end.stream |= asks);
            }
            0 if cm.request().is_some() && setup.ready(&mut end.qp) => {
                cm.accept(now, accept()).expect("a request is there");
            }
            1 => drop(cm.reject(PrivateData::default())),
            // The program takes the answer, perhaps when the connection is over again.
            2 if i == A && end.told != Told::Nothing && end.qp.state() == QpState::Init && setup.ready(&mut end.qp) => {
                cm.establish();
            }
            3 => drop(cm.notify_established()),
            4 => {
                end.qp.move_to_error();
                cm.disconnect(now);
            }
            _ => {}
        }
    }

    fn destroy(&mut self, i: usize) {
        let end = &mut self.ends[i];
        if let Some(cm) = &mut end.cm {
            cm.destroy();
        }
        end.destroyed = true;
        self.settle(i);
        self.close(i);
        self.settle(i);
    }

    fn post(&mut self, i: usize, which: u8) {
        let end = &mut self.ends[i];
        let (op, data) = request(which);
        let flags = if which & 1 == 0 { SendFlags::empty() } else { SendFlags::FENCE };
        end.sends += u64::from(end.qp.post_send([SendWr { wr_id: end.sends, op, data, flags }]).is_ok());
    }

    fn post_receive(&mut self, i: usize, bad_key: bool) {
        // One queue has one sequence of numbers.
        let count = if self.setup.0 & 7 == 7 { &mut self.receives[A] } else { &mut self.receives[i] };
        let end = &mut self.ends[i];
        let wr = RecvWr { wr_id: *count, sges: sges(bad_key) };
        let posted = match &end.shared {
            Some(queue) => queue.post(wr),
            None => end.qp.post_recv(wr).is_ok(),
        };
        *count += u64::from(posted);
    }

    fn flush(&mut self, i: usize, result: Result<(), MemoryFault>) {
        let end = &mut self.ends[i];
        if let Some(FlushJob { id, lease, .. }) = end.job.take().or_else(|| end.qp.poll_flush_job()) {
            drop(lease);
            end.qp.flush_done(self.now, id, result);
        }
    }

    fn pass(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        for i in 0..2 {
            let end = &mut self.ends[i];
            if end.qp.handle_timeout(self.now).is_err() {
                self.end_stream(i, StreamEnd::Unreachable);
                self.ends[i].told_gone = true;
                self.ends[i].qp.peer_gone(self.now);
            }
            let end = &mut self.ends[i];
            if let Some(cm) = end.cm.as_mut().filter(|_| !end.destroyed) {
                cm.handle_timeout(self.now);
            }
            // What is half sent is given up, or nothing of the queue pair completes.
            let is_stuck = end.qp.state() == QpState::Error && end.sending.as_ref().is_some_and(|s| s.payload.is_some());
            if is_stuck && micros >= 1_000_000 {
                self.end_stream(i, StreamEnd::Closed);
            }
        }
    }

    /// Moves up to `max` bytes into the stream.
    fn send(&mut self, i: usize, max: usize) {
        let now = self.now;
        let [a, b] = &mut self.ends;
        let (end, other) = if i == A { (a, b) } else { (b, a) };
        if !end.stream || end.cm.is_none() {
            return;
        }
        if end.sending.is_none() {
            end.sending = match end.frames.pop_front() {
                Some(frame) => Some(Sending { bytes: encoded(Frame::Cm(frame)).into(), payload: None }),
                None => end.qp.poll_transmit(now).map(|transmit| {
                    let mut bytes = VecDeque::from(encoded(transmit.frame));
                    bytes.resize(bytes.len() + transmit.frame.payload_bytes() as usize, 0);
                    Sending { bytes, payload: Some(transmit.payload) }
                }),
            };
        }
        let Some(sending) = &mut end.sending else { return };
        let moved = sending.bytes.drain(..max.min(sending.bytes.len()));
        if other.stream {
            other.inbound.extend(moved);
        } else {
            drop(moved);
        }
        if sending.bytes.is_empty() && end.sending.take().is_some_and(|sent| sent.payload.is_some()) {
            end.qp.transmit_done(now);
        }
    }

    /// Handles up to `max` bytes from the stream, and its end if there is nothing before it.
    fn receive(&mut self, i: usize, max: usize) {
        let end = &mut self.ends[i];
        if !end.stream {
            return;
        }
        let piece: Vec<u8> = end.inbound.drain(..max.min(end.inbound.len())).collect();
        if let Err(end) = self.arrive(i, &piece) {
            assert!(!self.honest || end != StreamEnd::Violation, "two ends of ours do not understand each other");
            self.end_stream(i, end);
        }
        self.settle(i);
        let end = &self.ends[i];
        let waits = end.cm.as_ref().is_some_and(Machine::is_answered);
        if end.stream && end.other_closed && end.inbound.is_empty() && !waits {
            self.end_stream(i, StreamEnd::Closed);
        }
    }

    fn arrive(&mut self, i: usize, mut piece: &[u8]) -> Result<(), StreamEnd> {
        while !piece.is_empty() && self.ends[i].stream {
            let (now, end) = (self.now, &mut self.ends[i]);
            // What is behind the accept waits until the program has seen that.
            if end.cm.as_ref().is_some_and(Machine::is_answered) {
                piece.iter().rev().for_each(|&byte| end.inbound.push_front(byte));
                return Ok(());
            }
            let due = end.decoder.payload_left();
            if due != 0 {
                let taken = piece.len().min(due as usize);
                piece = &piece[taken..];
                end.decoder.payload_taken(u32::try_from(taken).expect("at most what is due"));
                if end.decoder.payload_left() == 0 && end.filling.take().is_some_and(|filling| !filling.told) {
                    end.qp.payload_done(now, Ok(()));
                }
                continue;
            }
            let event = end.decoder.next(&mut piece);
            let frame = match (event, &mut end.cm) {
                (Ok(Some(Event::Frame(Frame::Cm(CmFrame::ConnectRequest(request))))), cm @ None) => {
                    *cm = Some(Machine::requested(LIMITS, request));
                    continue;
                }
                // A stranger.
                (Ok(Some(Event::Frame(_))), None) => return Err(StreamEnd::Violation),
                (Ok(Some(Event::Frame(frame))), Some(_)) => frame,
                (Ok(Some(Event::Preamble(_))), Some(cm)) => {
                    cm.greeted(now);
                    continue;
                }
                (Ok(_), _) => continue,
                (Err(_), _) => {
                    end.qp.move_to_error();
                    return Err(StreamEnd::Violation);
                }
            };
            let intake = match frame {
                Frame::Cm(frame) => {
                    let cm = end.cm.as_mut().expect("as above");
                    if cm.handle_frame(now, frame).is_err() {
                        end.qp.move_to_error();
                        return Err(StreamEnd::Violation);
                    }
                    self.settle(i);
                    continue;
                }
                Frame::Request(request) => end.qp.handle_request(now, request),
                Frame::Response(response) => end.qp.handle_response(now, response),
            };
            match intake {
                Ok(Intake::None) => assert_eq!(frame.payload_bytes(), 0),
                Ok(memory) => {
                    assert_ne!(frame.payload_bytes(), 0);
                    end.filling = Some(Filling { _memory: memory, told: false });
                }
                Err(_) => return Err(StreamEnd::Violation),
            }
            self.settle(i);
        }
        Ok(())
    }

    fn end_stream(&mut self, i: usize, how: StreamEnd) {
        let had_one = self.forget_stream(i);
        let (now, end) = (self.now, &mut self.ends[i]);
        if let (true, false, Some(cm)) = (had_one, end.destroyed, &mut end.cm) {
            cm.stream_ended(now, how);
        }
    }

    /// Sends what there is to send, and ends the stream.
    fn close(&mut self, i: usize) {
        let [a, b] = &mut self.ends;
        let (end, other) = if i == A { (a, b) } else { (b, a) };
        if end.stream && other.stream {
            other.inbound.extend(end.sending.take().map(|sending| sending.bytes).unwrap_or_default());
            other.inbound.extend(end.frames.drain(..).flat_map(|frame| encoded(Frame::Cm(frame))));
        }
        self.forget_stream(i);
    }

    /// Returns whether there was one.
    fn forget_stream(&mut self, i: usize) -> bool {
        if !std::mem::take(&mut self.ends[i].stream) {
            return false;
        }
        self.ends[1 - i].other_closed = true;
        let end = &mut self.ends[i];
        (end.sending, end.filling) = (None, None);
        end.inbound.clear();
        end.frames.clear();
        true
    }

    /// Hands out what came out of the queue pair and the connection manager, as the driver does after everything.
    fn settle(&mut self, i: usize) {
        let now = self.now;
        let end = &mut self.ends[i];
        while let Some(output) = end.cm.as_mut().and_then(Machine::poll) {
            match output {
                Output::Send(frame) if end.stream => end.frames.push_back(frame),
                Output::Send(_) => {}
                Output::Event(event) => {
                    assert!(!end.destroyed, "{event:?} after the end");
                    end.told = end.told.then(event.kind);
                }
                Output::Close => {
                    self.close(i);
                    return self.settle(i);
                }
            }
        }
        let in_error = end.qp.state() == QpState::Error;
        match (&mut end.filling, end.stream) {
            (Some(filling), true) if in_error && !filling.told => {
                filling.told = true;
                filling._memory = Intake::Discard;
                end.qp.payload_done(now, Err(MemoryFault));
            }
            (_, false) if in_error && !end.told_gone => {
                end.told_gone = true;
                end.qp.peer_gone(now);
            }
            (_, false) if end.qp.state() == QpState::ReadyToSend => end.qp.transmit_to_nobody(now),
            _ => {}
        }
        while end.qp.poll_event().is_some() {}
    }

    /// What holds after each step.
    fn check(&self) {
        for end in &self.ends {
            // As for `soft_session`.
            assert!(end.qp.held() <= 3 * QUEUE as usize + usize::from(RESOURCES) + 2, "{} held", end.qp.held());
            // Each is said once in the life of a connection.
            assert!(end.frames.len() <= 5, "{:?}", end.frames);
            assert!(end.stream || end.frames.is_empty() && end.sending.is_none() && end.filling.is_none());
        }
    }

    /// Both programs take everything down: nothing is left.
    fn end(mut self) {
        for i in 0..2 {
            self.destroy(i);
            let end = &mut self.ends[i];
            end.qp.move_to_error();
            end.job = None;
            self.settle(i);
            self.ends[i].poll(true);
        }
        for (end, receives) in self.ends.iter_mut().zip(self.receives) {
            assert_eq!(end.completed[0], end.sends);
            match &end.shared {
                Some(queue) => assert_eq!(queue.0.lock().expect("nobody panics with it").1, 0, "slots that nobody gives back"),
                None => assert_eq!(end.completed[1], receives),
            }
            assert_eq!(end.qp.held(), 0);
            assert_eq!(end.region.leases(), 0);
            assert!(end.qp.poll_transmit(self.now).is_none() && end.qp.poll_flush_job().is_none());
            assert_eq!(end.qp.next_timeout(), None);
            if let Some(cm) = &mut end.cm {
                assert!(cm.is_over() && cm.poll().is_none());
                assert_eq!(cm.deadline(), None);
            }
        }
    }
}

fn encoded(frame: Frame) -> Vec<u8> {
    let mut header = [0; MAX_HEADER_BYTES];
    let size = frame.encode(&mut header).expect("a frame of ours");
    header[..size].into()
}

fn connect_request() -> ConnectRequest {
    let address = |last| ([10, 0, 0, last], 7471).into();
    ConnectRequest {
        qp_num: 1,
        responder_resources: RESOURCES,
        initiator_depth: RESOURCES,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        source: address(1),
        destination: address(2),
        private_data: PrivateData::default(),
    }
}

fn accept() -> Accept {
    Accept {
        qp_num: 2,
        responder_resources: RESOURCES,
        initiator_depth: RESOURCES,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        private_data: PrivateData::default(),
    }
}
