//! Long random schedules, against a model.

use std::time::Duration;

use proptest::prelude::*;

use super::memory::{Mr, PD};
use super::pair::{A, B, Pair, Setup, inline, local, remote, sge};
use crate::rc::{Access, Data, RecvWr, SendFlags, SendOp, SendWr, Side, WcStatus};
use crate::wire::{FlushSpec, Placement, Remote, Selectivity};

const SIZE: u32 = 256;
/// Receives are that long, and longer messages are a fault.
const RECEIVE: u32 = 40;
const POSTS: usize = 200;

#[derive(Debug, Clone, Copy)]
enum Op {
    Write { at: u8, len: u8, imm: bool, gathered: bool },
    Send { len: u8, imm: bool },
    Read { at: u8, len: u8 },
    FetchAdd(u64),
    CompareSwap(u64, u64),
    AtomicWrite([u8; 8]),
    Flush { persistent: bool, region: bool },
    // ---- faults ----
    BadRkey,
    BadLkey,
    TooLong,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Post {
        end: usize,
        op: Op,
        flags: u32,
    },
    Recv {
        end: usize,
    },
    /// Bytes into the stream, and off it.
    Move {
        end: usize,
        bytes: u16,
    },
    Deliver {
        end: usize,
        bytes: u16,
    },
    EndFlush {
        end: usize,
    },
    Time {
        micros: u32,
    },
    // ---- faults ----
    Corrupt {
        end: usize,
        at: u16,
        flip: u8,
    },
    Cut,
    MoveToError {
        end: usize,
    },
}

/// The regions of one end.
#[derive(Clone, Copy)]
struct Regions {
    /// What it sends and writes; never written.
    source: Mr,
    /// What the peer writes.
    target: Mr,
    /// The peer's word for atomics, and one for atomic writes.
    words: Mr,
    /// Where reads and atomics bring data, 64 bytes for each request.
    results: Mr,
    /// Where receives put messages, 64 bytes for each.
    inbox: Mr,
}

struct Posted {
    op: Op,
    signalled: bool,
}

/// A pair and what was asked of it.
struct Run {
    pair: Pair,
    regions: [Regions; 2],
    posted: [Vec<Posted>; 2],
    receives: [u64; 2],
}

fn pattern(end: usize, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| u8::try_from((i * 7 + end * 101) % 251).unwrap()).collect()
}

impl Run {
    fn new() -> Self {
        let mut setup = Setup::default();
        setup.requester.retry_time = None;
        let mut pair = Pair::with(setup, setup);
        pair.flushes_end = false;
        pair.buffer_bytes = 300;
        let regions = [A, B].map(|i| {
            let memory = &pair.ends[i].memory;
            let source = memory.register_in(PD, SIZE as usize, Access::REMOTE_READ);
            memory.write(source.addr, &pattern(i, 0, SIZE as usize)).unwrap();
            Regions {
                source,
                target: memory.register(SIZE as usize),
                words: memory.register(16),
                results: memory.register(64 * POSTS),
                inbox: memory.register(64 * POSTS),
            }
        });
        Self { pair, regions, posted: [Vec::new(), Vec::new()], receives: [0, 0] }
    }

    fn step(&mut self, step: Step) {
        let pair = &mut self.pair;
        match step {
            Step::Post { end, op, flags } => {
                self.post(end, op, flags);
            }
            Step::Recv { end } => {
                let wr_id = self.receives[end];
                if wr_id < POSTS as u64 {
                    let sges = vec![sge(self.regions[end].inbox, 64 * wr_id, RECEIVE)];
                    self.receives[end] += u64::from(pair.ends[end].qp.post_recv(RecvWr { wr_id, sges }).is_ok());
                }
            }
            Step::Move { end, bytes } => {
                pair.send(end, bytes.into());
            }
            Step::Deliver { end, bytes } => {
                pair.receive(end, bytes.into());
            }
            Step::EndFlush { end } => {
                pair.end_flush(end);
            }
            Step::Time { micros } => {
                pair.now += Duration::from_micros(micros.into());
                for end in &mut pair.ends {
                    end.handle_timeout(pair.now);
                }
            }
            Step::Corrupt { end, at, flip } => {
                let inbound = &mut pair.ends[end].inbound;
                if let Some(byte) = inbound.len().checked_sub(1).and_then(|last| inbound.get_mut(usize::from(at).min(last))) {
                    *byte ^= flip;
                }
            }
            Step::Cut => pair.cut(),
            Step::MoveToError { end } => pair.ends[end].qp.move_to_error(),
        }
        for end in &mut self.pair.ends {
            // 16 and 16 in the queues, 4 resources, and a few answers and receives held back by a flush.
            assert!(end.qp.held() <= 16 + 16 + 16 + 4 + 2, "{} held", end.qp.held());
            end.poll();
        }
    }

    /// Returns whether it was taken.
    fn post(&mut self, end: usize, op: Op, flags: u32) -> bool {
        let index = self.posted[end].len();
        if index == POSTS {
            return false;
        }
        let (mine, peers) = (self.regions[end], self.regions[1 - end]);
        let result = |len: u32| local(mine.results, 64 * index as u64, len);
        let (op_to_post, data) = match op {
            Op::Write { at, len, imm, gathered } => {
                let place = remote(peers.target, at.into());
                let len = u32::from(len);
                let data = match (gathered, len) {
                    (true, _) => {
                        Data::Sges(vec![sge(mine.source, 0, len / 2), sge(mine.source, (len / 2).into(), len - len / 2)])
                    }
                    (false, ..=64) => inline(&pattern(end, 0, len as usize)),
                    (false, _) => local(mine.source, 0, len),
                };
                (if imm { SendOp::WriteImm { remote: place, imm: [at; 4] } } else { SendOp::Write { remote: place } }, data)
            }
            Op::Send { len, imm } => {
                let data = local(mine.source, 0, len.into());
                (if imm { SendOp::SendImm { imm: [len; 4] } } else { SendOp::Send }, data)
            }
            Op::Read { at, len } => (SendOp::Read { remote: remote(peers.source, at.into()) }, result(len.into())),
            Op::FetchAdd(add) => (SendOp::FetchAdd { remote: remote(peers.words, 0), add }, result(8)),
            Op::CompareSwap(compare, swap) => (SendOp::CompareSwap { remote: remote(peers.words, 0), compare, swap }, result(8)),
            Op::AtomicWrite(value) => (SendOp::AtomicWrite { remote: remote(peers.words, 8), value }, Data::default()),
            Op::Flush { persistent, region } => {
                let placement = if persistent { Placement::PERSISTENT } else { Placement::GLOBAL };
                let selectivity = if region { Selectivity::Region } else { Selectivity::Range };
                let spec = FlushSpec { placement, selectivity, len_bytes: SIZE.into() };
                (SendOp::Flush { remote: remote(peers.target, 0), spec }, Data::default())
            }
            Op::BadRkey => (SendOp::Write { remote: Remote { addr: peers.target.addr, rkey: 9999 } }, inline(b"bad")),
            Op::BadLkey => (SendOp::Send, local(Mr { lkey: 9999, ..mine.source }, 0, 8)),
            Op::TooLong => (SendOp::Send, local(mine.source, 0, RECEIVE + 1)),
        };
        let flags = SendFlags::from_bits_truncate(flags);
        let wr = SendWr { wr_id: index as u64, op: op_to_post, data, flags };
        let taken = self.pair.ends[end].qp.post_send([wr]).is_ok();
        if taken {
            self.posted[end].push(Posted { op, signalled: flags.contains(SendFlags::SIGNALED) });
        }
        taken
    }

    /// Runs until everything that was posted is over: receives are posted as long as somebody waits for one.
    fn finish(&mut self) {
        self.pair.flushes_end = true;
        self.pair.buffer_bytes = 1 << 16;
        for _ in 0..2 * POSTS {
            self.pair.pass(Duration::from_millis(2));
            for end in [A, B] {
                self.step(Step::Recv { end });
            }
        }
    }

    fn completions(&self, end: usize, side: Side) -> Vec<crate::rc::Completion> {
        self.pair.ends[end].polled.iter().filter(|c| c.side == side).copied().collect()
    }

    /// Every posted request completed once and in order; successes only if they were signalled; one cause, then flushes.
    fn check_completions(&self, end: usize) {
        let mut completions = self.completions(end, Side::Send).into_iter().peekable();
        let mut failed = false;
        for (wr_id, posted) in self.posted[end].iter().enumerate() {
            let Some(completion) = completions.next_if(|c| c.wr_id == wr_id as u64) else {
                assert!(!posted.signalled && !failed, "request {wr_id} of end {end} did not complete");
                continue;
            };
            match completion.status {
                WcStatus::Success => assert!(posted.signalled && !failed),
                WcStatus::WrFlush => failed = true,
                _ => {
                    assert!(!failed, "a second cause");
                    failed = true;
                }
            }
        }
        assert_eq!(completions.next(), None);
        let receives = self.completions(end, Side::Recv);
        assert!(receives.iter().map(|c| c.wr_id).eq(0..receives.len() as u64), "receives complete in order");
    }

    /// What end `end` did to the other's memory, and what it got back, is what its requests say, one after the other.
    fn check_memory(&self, end: usize, flushed: bool) {
        let other = 1 - end;
        let peer = &self.pair.ends[other];
        let mut target = vec![0; SIZE as usize];
        let (mut word, mut atomic_word, mut messages) = (0_u64, [0; 8], Vec::new());
        for (index, posted) in self.posted[end].iter().enumerate() {
            let result = |len| self.pair.ends[end].memory.read(self.regions[end].results.addr + 64 * index as u64, len);
            match posted.op {
                Op::Write { at, len, imm, .. } => {
                    let (at, len) = (usize::from(at), usize::from(len));
                    target[at..at + len].copy_from_slice(&pattern(end, 0, len));
                    if imm {
                        messages.push((len, Some([at as u8; 4]), None));
                    }
                }
                Op::Send { len, imm } => {
                    let data = pattern(end, 0, len.into());
                    messages.push((len.into(), imm.then_some([len; 4]), Some(data)));
                }
                Op::Read { at, len } => assert_eq!(result(len.into()), pattern(other, at.into(), len.into())),
                Op::FetchAdd(add) => {
                    assert_eq!(result(8), word.to_ne_bytes());
                    word = word.wrapping_add(add);
                }
                Op::CompareSwap(compare, swap) => {
                    assert_eq!(result(8), word.to_ne_bytes());
                    word = if word == compare { swap } else { word };
                }
                Op::AtomicWrite(value) => atomic_word = value,
                Op::Flush { .. } => {}
                Op::BadRkey | Op::BadLkey | Op::TooLong => unreachable!("not in schedules without faults"),
            }
        }
        let theirs = &self.regions[other];
        assert_eq!(peer.memory.read(theirs.target.addr, SIZE as usize), target);
        if flushed {
            assert_eq!(peer.memory.durable(theirs.target.addr, SIZE as usize), target);
        }
        assert_eq!(peer.memory.read(theirs.words.addr, 16), [word.to_ne_bytes(), atomic_word].concat());
        let received = self.completions(other, Side::Recv);
        assert_eq!(received.len(), messages.len());
        for (completion, (len, imm, data)) in received.iter().zip(messages) {
            assert_eq!((completion.status, completion.byte_len as usize, completion.imm), (WcStatus::Success, len, imm));
            if let Some(data) = data {
                assert_eq!(peer.memory.read(theirs.inbox.addr + 64 * completion.wr_id, len), data);
            }
        }
    }
}

fn ops() -> impl Strategy<Value = Op> {
    // Ranges within 256 bytes of which the last 55 are reached by the longest only.
    prop_oneof![
        4 => (0_u8..=200, 0_u8..=55, any::<bool>(), any::<bool>())
            .prop_map(|(at, len, imm, gathered)| Op::Write { at, len, imm: imm && gathered, gathered }),
        3 => (0..=u8::try_from(RECEIVE).unwrap(), any::<bool>()).prop_map(|(len, imm)| Op::Send { len, imm }),
        2 => (0_u8..=200, 0_u8..=55).prop_map(|(at, len)| Op::Read { at, len }),
        1 => any::<u64>().prop_map(Op::FetchAdd),
        1 => (0_u64..3, 0_u64..3).prop_map(|(compare, swap)| Op::CompareSwap(compare, swap)),
        1 => any::<[u8; 8]>().prop_map(Op::AtomicWrite),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(persistent, region)| Op::Flush { persistent, region }),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let end = 0_usize..2;
    prop_oneof![
        4 => (end.clone(), ops(), 0_u32..8).prop_map(|(end, op, flags)| Step::Post { end, op, flags }),
        2 => end.clone().prop_map(|end| Step::Recv { end }),
        6 => (end.clone(), 1_u16..400).prop_map(|(end, bytes)| Step::Move { end, bytes }),
        6 => (end.clone(), 1_u16..400).prop_map(|(end, bytes)| Step::Deliver { end, bytes }),
        1 => end.prop_map(|end| Step::EndFlush { end }),
        1 => (0_u32..2000).prop_map(|micros| Step::Time { micros }),
    ]
}

fn steps_with_faults() -> impl Strategy<Value = Step> {
    let end = 0_usize..2;
    let bad = prop_oneof![Just(Op::BadRkey), Just(Op::BadLkey), Just(Op::TooLong)];
    prop_oneof![
        60 => steps(),
        1 => (end.clone(), bad, 0_u32..8).prop_map(|(end, op, flags)| Step::Post { end, op, flags }),
        1 => (end.clone(), any::<u16>(), 1_u8..).prop_map(|(end, at, flip)| Step::Corrupt { end, at: at % 300, flip }),
        1 => Just(Step::Cut),
        1 => end.prop_map(|end| Step::MoveToError { end }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn without_faults_everything_happens_once_and_in_order(list in prop::collection::vec(steps(), 1..400)) {
        let mut run = Run::new();
        list.into_iter().for_each(|step| run.step(step));
        run.finish();
        // A queue that is full of unsignalled requests stays full, as on hardware.
        let flushed = [A, B].map(|end| run.post(end, Op::Flush { persistent: true, region: true }, SendFlags::SIGNALED.bits()));
        run.finish();
        for end in [A, B] {
            run.check_completions(end);
            prop_assert_eq!(run.pair.ends[end].polled.iter().find(|c| c.status != WcStatus::Success), None);
            run.pair.ends[end].qp.move_to_error();
            // Receives that nobody used.
            run.pair.ends[end].poll();
            run.pair.ends[end].polled.retain(|c| c.status == WcStatus::Success);
        }
        run.check_memory(A, flushed[A]);
        run.check_memory(B, flushed[B]);
        run.pair.assert_empty();
    }

    #[test]
    fn with_faults_everything_completes_once_and_in_order(list in prop::collection::vec(steps_with_faults(), 1..400)) {
        let mut run = Run::new();
        list.into_iter().for_each(|step| run.step(step));
        run.pair.flushes_end = true;
        run.pair.run();
        run.pair.cut();
        for end in [A, B] {
            run.check_completions(end);
        }
        run.pair.assert_empty();
    }
}
