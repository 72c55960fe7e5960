//! What holds for a queue pair whatever its peer sends and whenever. Used by the fuzz target and by
//! `rpma-soft/tests/corpus_replay.rs`.
//!
//! The input is a list of steps, one byte each; see [`Session::step`]. Frames of the connection
//! manager mean nothing to a queue pair: `soft_connection` has them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::soft_region::{Lease, Region, request, sges};
use rpma_soft::rc::{
    Completion, FlushJob, Intake, MemoryFault, Payload, PdNumber, QpCapacity, QpConfig, QpState, RcQp, RecvWr, RequesterConfig,
    ResponderConfig, SendFlags, SendWr, Side,
};
use rpma_soft::wire::{Decoder, Event, Frame, Preamble, RnrTimer};

const QUEUE: u32 = 8;
const RESOURCES: u8 = 3;
/// How many frames the driver takes before the first of them is in the stream.
const FRAMES_AT_ONCE: usize = 3;

/// Panics if a property does not hold for `data`.
pub(crate) fn check(data: &[u8]) {
    let mut session = Session::new();
    let mut left = data;
    while let Some((&byte, rest)) = left.split_first() {
        left = rest;
        if !session.step(byte, &mut left) {
            break;
        }
    }
    session.end();
}

struct Session {
    qp: RcQp<Region>,
    region: Region,
    decoder: Decoder,
    now: Instant,
    job: Option<FlushJob<Lease>>,
    /// Payload that is due, or here and not told of: the driver looks at headers ahead.
    filling: VecDeque<Intake<Lease>>,
    sending: VecDeque<Payload<Lease>>,
    sends: u64,
    receives: u64,
    completed: [u64; 2],
    failed: bool,
}

impl Session {
    fn new() -> Self {
        let config = QpConfig {
            pd: PdNumber(1),
            capacity: QpCapacity { send_wr: QUEUE, recv_wr: QUEUE, send_sge: 2, recv_sge: 2, inline_bytes: 8 },
            signal_all: true,
            native_flush: true,
            native_atomic_write: true,
        };
        let region = Region::default();
        let mut qp = RcQp::new(config, region.clone(), None);
        let rnr_timer = RnrTimer::from_code(1).expect("a code");
        qp.to_init().expect("from reset");
        qp.to_ready_to_receive(ResponderConfig { resources: RESOURCES, rnr_timer }).expect("from init");
        let requester = RequesterConfig { depth: 2, rnr_retry: 2, retry_time: Some(Duration::from_secs(1)) };
        qp.to_ready_to_send(requester).expect("from ready to receive");
        let mut decoder = Decoder::new();
        let preamble = Preamble::encode();
        assert!(matches!(decoder.next(&mut preamble.as_slice()), Ok(Some(Event::Preamble(_)))));
        Self {
            qp,
            region,
            decoder,
            now: Instant::now(),
            job: None,
            filling: VecDeque::new(),
            sending: VecDeque::new(),
            sends: 0,
            receives: 0,
            completed: [0, 0],
            failed: false,
        }
    }

    /// Up to 0xDF: so many bytes arrive from the input. The rest are what a driver and a program do meanwhile. Returns whether the
    /// connection goes on.
    fn step(&mut self, byte: u8, input: &mut &[u8]) -> bool {
        let goes_on = match byte {
            0..=0xDF => {
                let (piece, rest) = input.split_at(usize::from(byte).min(input.len()));
                *input = rest;
                self.arrive(piece)
            }
            0xE0..=0xEF => {
                self.post(byte & 0xF);
                true
            }
            0xF0 | 0xF1 => {
                self.receives += u64::from(self.qp.post_recv(RecvWr { wr_id: self.receives, sges: sges(byte == 0xF1) }).is_ok());
                true
            }
            0xF2..=0xF5 => {
                self.transmit();
                true
            }
            0xF6 | 0xF7 => {
                self.job = self.job.take().or_else(|| self.qp.poll_flush_job());
                if let Some(FlushJob { id, lease, .. }) = self.job.take() {
                    drop(lease);
                    let result = if byte == 0xF6 { Ok(()) } else { Err(MemoryFault) };
                    self.qp.flush_done(self.now, id, result);
                }
                true
            }
            0xF8 => {
                self.job = self.job.take().or_else(|| self.qp.poll_flush_job());
                true
            }
            0xF9..=0xFC => {
                self.now += [Duration::from_micros(10), Duration::from_millis(60), Duration::from_secs(1), Duration::ZERO]
                    [usize::from(byte - 0xF9)];
                self.qp.handle_timeout(self.now).is_ok()
            }
            0xFD => {
                // The program polls late.
                self.poll();
                true
            }
            0xFE => {
                self.qp.move_to_error();
                self.failed = true;
                true
            }
            0xFF => false,
        };
        // Each queue, what its receives hold back behind a flush, resources, one refusal, one payload.
        assert!(self.qp.held() <= 3 * QUEUE as usize + usize::from(RESOURCES) + 2, "{} held", self.qp.held());
        assert!(!self.failed || self.qp.state() == QpState::Error);
        goes_on
    }

    fn arrive(&mut self, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            let due = self.decoder.payload_left();
            if due != 0 {
                let taken = piece.len().min(due as usize);
                piece = &piece[taken..];
                self.decoder.payload_taken(u32::try_from(taken).expect("at most what is due"));
                continue;
            }
            let frame = match self.decoder.next(&mut piece) {
                Ok(Some(Event::Frame(frame))) => frame,
                Ok(_) => continue,
                Err(_) => return false,
            };
            // Payload before it is here: its header is.
            if !matches!(frame, Frame::Request(_)) {
                self.fill(0);
            }
            let intake = match frame {
                Frame::Cm(_) => continue,
                Frame::Request(request) => self.qp.handle_request(self.now, request),
                Frame::Response(response) => self.qp.handle_response(self.now, response),
            };
            match intake {
                Ok(Intake::None) => assert_eq!(frame.payload_bytes(), 0),
                Ok(Intake::Discard) => {
                    assert_ne!(frame.payload_bytes(), 0);
                    self.filling.push_back(Intake::Discard);
                }
                Ok(Intake::Fill(ranges)) => {
                    assert!(ranges.iter().all(|range| Region::check(range.addr, range.len_bytes.into())));
                    assert_eq!(ranges.iter().map(|range| range.len_bytes).sum::<u32>(), frame.payload_bytes());
                    self.filling.push_back(Intake::Fill(ranges));
                }
                Err(_) => {
                    assert_eq!(self.qp.state(), QpState::Error);
                    return false;
                }
            }
        }
        self.fill(usize::from(self.decoder.payload_left() != 0));
        true
    }

    /// Tells of the payload that is here: all but the last `due`.
    fn fill(&mut self, due: usize) {
        while self.filling.len() > due {
            self.filling.pop_front();
            self.qp.payload_done(self.now, Ok(()));
        }
    }

    /// Begins to send frames, or ends the first.
    fn transmit(&mut self) {
        if self.sending.len() == FRAMES_AT_ONCE {
            self.sending.pop_front();
            self.qp.transmit_done(self.now);
        } else if let Some(transmit) = self.qp.poll_transmit(self.now) {
            let payload = match &transmit.payload {
                Payload::None => 0,
                Payload::Inline(bytes) => bytes.len(),
                Payload::Memory(ranges) => ranges.iter().map(|range| range.len_bytes as usize).sum(),
            };
            assert_eq!(payload, transmit.frame.payload_bytes() as usize);
            assert!(transmit.frame.encode(&mut [0; rpma_soft::wire::MAX_HEADER_BYTES]).is_ok());
            self.sending.push_back(transmit.payload);
        } else if self.sending.pop_front().is_some() {
            self.qp.transmit_done(self.now);
        }
    }

    fn post(&mut self, which: u8) {
        let (op, data) = request(which);
        let flags = if which & 1 == 0 { SendFlags::empty() } else { SendFlags::FENCE };
        self.sends += u64::from(self.qp.post_send([SendWr { wr_id: self.sends, op, data, flags }]).is_ok());
    }

    fn poll(&mut self) {
        while let Some(completion) = self.qp.poll_completion() {
            self.qp.release(&completion);
            let Completion { wr_id, side, .. } = completion;
            let next = &mut self.completed[usize::from(side == Side::Recv)];
            assert_eq!(wr_id, *next, "{side:?} completions come once, and in order");
            *next += 1;
        }
    }

    fn end(mut self) {
        self.filling.clear();
        self.sending.clear();
        self.job = None;
        self.qp.peer_gone(self.now);
        self.poll();
        assert_eq!(self.completed, [self.sends, self.receives]);
        assert_eq!(self.qp.held(), 0);
        assert_eq!(self.region.leases(), 0, "leases left");
        assert!(self.qp.poll_transmit(self.now).is_none() && self.qp.poll_flush_job().is_none());
        assert_eq!(self.qp.next_timeout(), None);
    }
}
