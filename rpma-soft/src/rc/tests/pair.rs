//! Two queue pairs, the stream between them, and the clock: everything that a driver would be, simulated.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::memory::{Lease, Mr, PD, SimMemory};
use crate::rc::{
    Completion, Data, Extent, FlushJob, Intake, MemoryFault, Payload, QpCapacity, QpConfig, QpState, Range, RcQp, RecvWr,
    RequesterConfig, ResponderConfig, SendFlags, SendOp, SendWr, Sge, Side, WcStatus,
};
use crate::wire::{Decoder, Event, Frame, MAX_HEADER_BYTES, Preamble, Remote, Request, RnrTimer};

pub(super) const RETRY_TIME: Duration = Duration::from_secs(4);
/// The time that [`RNR_TIMER`] says.
pub(super) const RNR_TIME: Duration = Duration::from_micros(640);
pub(super) const RNR_TIMER: u8 = 12;

/// The end that asks, in most tests, and the end that is asked.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) qp: QpConfig,
    pub(super) responder: ResponderConfig,
    pub(super) requester: RequesterConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp: QpConfig {
                pd: PD,
                capacity: QpCapacity { send_wr: 16, recv_wr: 16, send_sge: 3, recv_sge: 3, inline_bytes: 64 },
                signal_all: false,
                native_flush: true,
                native_atomic_write: true,
            },
            responder: ResponderConfig { resources: 4, rnr_timer: RnrTimer::from_code(RNR_TIMER).unwrap() },
            requester: RequesterConfig { depth: 4, rnr_retry: 7, retry_time: Some(RETRY_TIME) },
        }
    }
}

pub(super) struct End {
    pub(super) qp: RcQp<SimMemory>,
    pub(super) memory: SimMemory,
    /// What is under way to this end.
    pub(super) inbound: VecDeque<u8>,
    decoder: Decoder,
    /// A request that has to wait, with all that is behind it.
    held: Option<Request>,
    sending: VecDeque<Sending>,
    filling: VecDeque<Filling>,
    /// Flushes that were started and not ended.
    pub(super) jobs: VecDeque<FlushJob<Lease>>,
    /// What the program polled.
    pub(super) polled: Vec<Completion>,
    /// Frames that arrived.
    pub(super) frames: Vec<Frame>,
    /// Whether the program gives slots back as it polls.
    pub(super) releases: bool,
}

struct Sending {
    is_request: bool,
    begun: bool,
    bytes: VecDeque<u8>,
    ranges: VecDeque<(Range<Lease>, u32)>,
}

/// Payload goes there once the headers behind it were looked at.
struct Filling {
    ranges: Option<VecDeque<(Range<Lease>, u32)>>,
    data: Vec<u8>,
    is_whole: bool,
    placed: Result<(), MemoryFault>,
}

/// How many frames are taken from a queue pair before the first of them is in the stream.
const FRAMES_AT_ONCE: usize = 3;

pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Instant,
    pub(super) is_cut: bool,
    /// As a socket's buffer: how much may be under way in one direction.
    pub(super) buffer_bytes: usize,
    /// Whether flushes end at once.
    pub(super) flushes_end: bool,
}

impl End {
    pub(super) fn new(setup: Setup, memory: SimMemory, shared: Option<std::sync::Arc<dyn crate::rc::SharedReceives>>) -> Self {
        let mut qp = RcQp::new(setup.qp, memory.clone(), shared);
        qp.to_init().unwrap();
        qp.to_ready_to_receive(setup.responder).unwrap();
        qp.to_ready_to_send(setup.requester).unwrap();
        Self {
            qp,
            memory,
            inbound: Preamble::encode().into(),
            decoder: Decoder::new(),
            held: None,
            sending: VecDeque::new(),
            filling: VecDeque::new(),
            jobs: VecDeque::new(),
            polled: Vec::new(),
            frames: Vec::new(),
            releases: true,
        }
    }

    pub(super) fn poll(&mut self) {
        while let Some(completion) = self.qp.poll_completion() {
            if self.releases {
                self.qp.release(&completion);
            }
            self.polled.push(completion);
        }
    }

    /// What was polled since the last call: request and status.
    pub(super) fn take(&mut self) -> Vec<(u64, WcStatus)> {
        self.poll();
        self.polled.drain(..).map(|c| (c.wr_id, c.status)).collect()
    }

    pub(super) fn take_side(&mut self, side: Side) -> Vec<(u64, WcStatus)> {
        self.poll();
        self.polled.extract_if(.., |c| c.side == side).map(|c| (c.wr_id, c.status)).collect()
    }

    pub(super) fn post(&mut self, wr_id: u64, op: SendOp, data: Data) {
        self.post_with(wr_id, op, data, SendFlags::SIGNALED);
    }

    pub(super) fn post_with(&mut self, wr_id: u64, op: SendOp, data: Data, flags: SendFlags) {
        self.qp.post_send([SendWr { wr_id, op, data, flags }]).unwrap();
    }

    pub(super) fn post_recv(&mut self, wr_id: u64, mr: Mr, len_bytes: u32) {
        self.qp.post_recv(RecvWr { wr_id, sges: vec![sge(mr, 0, len_bytes)] }).unwrap();
    }
}

pub(super) fn sge(mr: Mr, offset: u64, len_bytes: u32) -> Sge {
    Sge { addr: mr.addr + offset, len_bytes, lkey: mr.lkey }
}

pub(super) fn local(mr: Mr, offset: u64, len_bytes: u32) -> Data {
    Data::Sges(vec![sge(mr, offset, len_bytes)])
}

pub(super) fn inline(bytes: &[u8]) -> Data {
    Data::Inline(bytes.into())
}

pub(super) fn remote(mr: Mr, offset: u64) -> Remote {
    Remote { addr: mr.addr + offset, rkey: mr.rkey }
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(Setup::default(), Setup::default())
    }

    pub(super) fn with(a: Setup, b: Setup) -> Self {
        let end = |setup| End::new(setup, SimMemory::default(), None);
        Self { ends: [end(a), end(b)], now: Instant::now(), is_cut: false, buffer_bytes: 1 << 16, flushes_end: true }
    }

    /// Moves up to `max` bytes from end `i` into the stream. Returns whether anything happened.
    pub(super) fn send(&mut self, i: usize, max: usize) -> bool {
        if self.is_cut {
            return false;
        }
        let room = self.buffer_bytes.saturating_sub(self.ends[1 - i].inbound.len()).min(max);
        let [first, second] = &mut self.ends;
        let (end, other) = if i == A { (first, second) } else { (second, first) };
        end.withdraw();
        while end.sending.len() < FRAMES_AT_ONCE {
            let Some(transmit) = end.qp.poll_transmit(self.now) else { break };
            let mut header = [0; MAX_HEADER_BYTES];
            let size = transmit.frame.encode(&mut header).unwrap();
            let mut bytes: VecDeque<u8> = header[..size].to_vec().into();
            let mut ranges = VecDeque::new();
            let payload = match transmit.payload {
                Payload::None => 0,
                Payload::Inline(data) => {
                    bytes.extend(&*data);
                    data.len()
                }
                Payload::Memory(list) => {
                    ranges = list.into_iter().map(|range| (range, 0)).collect();
                    ranges.iter().map(|(range, _): &(Range<Lease>, u32)| range.len_bytes as usize).sum()
                }
            };
            assert_eq!(payload, transmit.frame.payload_bytes() as usize);
            let is_request = matches!(transmit.frame, Frame::Request(_));
            end.sending.push_back(Sending { is_request, begun: false, bytes, ranges });
        }
        let Some(sending) = end.sending.front_mut() else { return false };
        let mut left = room;
        while left > 0 {
            if !sending.bytes.is_empty() {
                let n = sending.bytes.len().min(left);
                other.inbound.extend(sending.bytes.drain(..n));
                left -= n;
            } else if let Some((range, done)) = sending.ranges.front_mut() {
                let n = (range.len_bytes - *done).min(u32::try_from(left).unwrap());
                other.inbound.extend(end.memory.read(range.addr + u64::from(*done), n as usize));
                *done += n;
                left -= n as usize;
                if *done == range.len_bytes {
                    sending.ranges.pop_front();
                }
            } else {
                break;
            }
        }
        if left < room {
            sending.begun = true;
            end.qp.note_progress(self.now);
        }
        if sending.bytes.is_empty() && sending.ranges.is_empty() {
            end.sending.pop_front();
            end.qp.transmit_done(self.now);
            return true;
        }
        left < room
    }

    /// Handles up to `max` bytes that are under way to end `i`. Returns whether anything happened.
    pub(super) fn receive(&mut self, i: usize, max: usize) -> bool {
        let end = &mut self.ends[i];
        let mut piece: Vec<u8> = {
            let n = end.inbound.len().min(max);
            end.inbound.drain(..n).collect()
        };
        if piece.is_empty() && end.held.is_none() {
            return false;
        }
        end.qp.note_progress(self.now);
        let mut moved = false;
        let mut input = std::mem::take(&mut piece);
        let mut input = input.as_mut_slice() as &[u8];
        while !input.is_empty() || end.held.is_some() {
            if let Some(request) = end.held {
                end.place(self.now);
                if end.qp.holds_back(&request) {
                    // It stays where it is, with all that is behind it.
                    input.iter().rev().for_each(|&byte| end.inbound.push_front(byte));
                    return moved;
                }
            } else if end.decoder.payload_left() != 0 {
                let n = input.len().min(end.decoder.payload_left() as usize);
                let (data, rest) = input.split_at(n);
                input = rest;
                end.decoder.payload_taken(u32::try_from(n).unwrap());
                let filling = end.filling.back_mut().unwrap();
                filling.data.extend_from_slice(data);
                filling.is_whole = end.decoder.payload_left() == 0;
                moved = true;
                continue;
            }
            let held = end.held.take().map(|request| Ok(Some(Event::Frame(Frame::Request(request)))));
            let frame = match held.unwrap_or_else(|| end.decoder.next(&mut input)) {
                Ok(Some(Event::Frame(Frame::Request(request)))) if end.qp.holds_back(&request) => {
                    end.held = Some(request);
                    moved = true;
                    continue;
                }
                Ok(Some(Event::Frame(frame))) => frame,
                Ok(_) => continue,
                Err(_) => {
                    self.cut();
                    return true;
                }
            };
            moved = true;
            end.frames.push(frame);
            if !matches!(frame, Frame::Request(_)) {
                end.place(self.now);
            }
            let intake = match frame {
                Frame::Request(request) => end.qp.handle_request(self.now, request),
                Frame::Response(response) => end.qp.handle_response(self.now, response),
                Frame::Cm(_) => Ok(Intake::None),
            };
            let ranges = match intake {
                Ok(Intake::None) => continue,
                Ok(Intake::Fill(ranges)) => Some(ranges.into_iter().map(|range| (range, 0)).collect()),
                Ok(Intake::Discard) => None,
                Err(_) => {
                    self.cut();
                    return true;
                }
            };
            end.filling.push_back(Filling { ranges, data: Vec::new(), is_whole: false, placed: Ok(()) });
        }
        end.place(self.now);
        true
    }

    /// Ends the oldest flush that runs at end `i`.
    pub(super) fn end_flush(&mut self, i: usize) -> bool {
        let end = &mut self.ends[i];
        end.jobs.extend(end.qp.poll_flush_job());
        let Some(FlushJob { id, lease, extent, .. }) = end.jobs.pop_front() else { return false };
        let result = end.memory.persist(&lease, extent);
        end.qp.flush_done(self.now, id, result);
        true
    }

    /// Moves bytes until nothing moves any more. Time stands still.
    pub(super) fn run(&mut self) {
        loop {
            let mut moved = false;
            for i in [A, B] {
                moved |= self.send(i, usize::MAX) | self.receive(i, usize::MAX);
                moved |= self.flushes_end && self.end_flush(i);
                self.ends[i].poll();
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass, stopping at every deadline on the way.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while let Some(next) = self.ends.iter().filter_map(|end| end.qp.next_timeout()).min().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
            self.run();
        }
        self.now = end;
    }

    /// The cable is pulled, and both ends notice.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        for end in &mut self.ends {
            end.inbound.clear();
            end.sending.clear();
            end.filling.clear();
            end.held = None;
            end.qp.peer_gone(self.now);
            end.poll();
        }
    }

    /// A's driver drops what it was sending.
    pub(super) fn cut_at_sender(&mut self) {
        self.ends[A].sending.clear();
    }

    /// Everything that was posted is over, and nothing is kept.
    #[track_caller]
    pub(super) fn assert_empty(&mut self) {
        for end in &mut self.ends {
            end.jobs.clear();
            end.poll();
            assert_eq!(end.qp.held(), 0);
            assert!(end.qp.poll_flush_job().is_none());
            assert_eq!(end.memory.leases(), 0);
        }
    }

    #[track_caller]
    pub(super) fn assert_states(&self, a: QpState, b: QpState) {
        assert_eq!((self.ends[A].qp.state(), self.ends[B].qp.state()), (a, b));
    }
}

impl End {
    /// Does what is due. If the peer has vanished, drops what is under way, as a driver does.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.qp.handle_timeout(now).is_err() {
            self.sending.clear();
            self.filling.clear();
            self.qp.peer_gone(now);
        }
    }

    /// Puts the payload that is here where it goes, in order, and tells of what is whole. Behind a fault nothing is placed.
    fn place(&mut self, now: Instant) {
        let mut fault = Ok(());
        while let Some(filling) = self.filling.front_mut() {
            filling.placed = filling.placed.and(fault);
            filling.fill(&self.memory);
            fault = filling.placed;
            if !filling.is_whole {
                return;
            }
            let filling = self.filling.pop_front().unwrap();
            let all_used = filling.ranges.is_none_or(|ranges| ranges.is_empty());
            assert!(all_used || filling.placed.is_err(), "ranges and payload differ");
            self.qp.payload_done(now, filling.placed);
        }
    }

    /// In the error state, takes back the requests of which nothing is in the stream.
    fn withdraw(&mut self) {
        if self.qp.state() == QpState::Error {
            let before = self.sending.len();
            self.sending.retain(|sending| sending.begun || !sending.is_request);
            self.qp.requests_withdrawn(before - self.sending.len());
        }
    }
}

impl Filling {
    fn fill(&mut self, memory: &SimMemory) {
        let data = std::mem::take(&mut self.data);
        let (mut data, Some(ranges)) = (data.as_slice(), &mut self.ranges) else { return };
        while !data.is_empty() && self.placed.is_ok() {
            let (range, done) = ranges.front_mut().expect("the ranges are as long as the payload");
            let n = data.len().min((range.len_bytes - *done) as usize);
            self.placed = memory.write(range.addr + u64::from(*done), &data[..n]);
            data = &data[n..];
            *done += u32::try_from(n).unwrap();
            if *done == range.len_bytes {
                ranges.pop_front();
            }
        }
    }
}

/// The whole of a region of `len_bytes` bytes, as a flush job has it.
pub(super) fn range(mr: Mr, len_bytes: u64) -> Extent {
    Extent::Range { addr: mr.addr, len_bytes }
}
