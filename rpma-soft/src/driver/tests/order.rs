//! Requests take effect in their order, however their bytes come: writes, operations on 8 bytes and messages, in one small place.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wire::{FlushSpec, Frame, MAX_HEADER_BYTES, Placement, Preamble, Request, RequestOp, Selectivity};

const WORDS: usize = 4;
const PERSISTENT: FlushSpec = FlushSpec { placement: Placement::PERSISTENT, selectivity: Selectivity::Range, len_bytes: 8 };

/// A peer that writes bytes, and an end of ours.
fn raw_pair() -> (TcpStream, End) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let active = Socket::bound((Ipv4Addr::LOCALHOST, 0).into(), None).unwrap();
    active.connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_nodelay(true).unwrap();
    (peer, End::new(active))
}

fn encoded(msn: u64, op: RequestOp) -> Vec<u8> {
    let mut header = [0; MAX_HEADER_BYTES];
    let size = Frame::Request(Request { msn, solicited: false, op }).encode(&mut header).unwrap();
    header[..size].into()
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        word: usize,
        len_bytes: usize,
    },
    AtomicWrite {
        word: usize,
    },
    FetchAdd {
        word: usize,
    },
    CompareSwap {
        word: usize,
    },
    /// Into the same place.
    Send {
        word: usize,
    },
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let word = 0..WORDS;
    prop_oneof![
        4 => (word.clone(), 0..8 * WORDS).prop_map(|(word, len)| Step::Write { word, len_bytes: len.min(8 * (WORDS - word)) }),
        2 => word.clone().prop_map(|word| Step::AtomicWrite { word }),
        1 => word.clone().prop_map(|word| Step::FetchAdd { word }),
        1 => word.clone().prop_map(|word| Step::CompareSwap { word }),
        1 => word.prop_map(|word| Step::Send { word }),
        1 => Just(Step::Flush),
    ]
}

/// The stream of `steps`, and what memory is after each of them one after the other. Receives are posted on the way.
fn stream_of(steps: &[Step], end: &mut End, mr: &Mr, model: &mut [u64; WORDS]) -> Vec<u8> {
    let mut stream = Preamble::encode().to_vec();
    for (msn, step) in (1..).zip(steps) {
        let fill = msn * 0x0101_0101_0101_0101;
        let remote = |word: usize| Remote { addr: mr.addr + 8 * word as u64, rkey: mr.key };
        match *step {
            Step::Write { word, len_bytes } => {
                let len = u32::try_from(len_bytes).unwrap();
                stream.extend(encoded(msn, RequestOp::Write { remote: remote(word), len_bytes: len }));
                stream.extend(&vec![fill.to_ne_bytes()[0]; len_bytes]);
                let mut bytes: Vec<u8> = model.iter().flat_map(|word| word.to_ne_bytes()).collect();
                bytes[8 * word..8 * word + len_bytes].fill(fill.to_ne_bytes()[0]);
                for (word, bytes) in model.iter_mut().zip(bytes.chunks_exact(8)) {
                    *word = u64::from_ne_bytes(bytes.try_into().unwrap());
                }
            }
            Step::AtomicWrite { word } => {
                stream.extend(encoded(msn, RequestOp::AtomicWrite { remote: remote(word), value: fill.to_ne_bytes() }));
                model[word] = fill;
            }
            Step::FetchAdd { word } => {
                stream.extend(encoded(msn, RequestOp::FetchAdd { remote: remote(word), add: 5 }));
                model[word] = model[word].wrapping_add(5);
            }
            Step::CompareSwap { word } => {
                stream.extend(encoded(msn, RequestOp::CompareSwap { remote: remote(word), compare: model[word], swap: fill }));
                model[word] = fill;
            }
            Step::Send { word } => {
                let sges = vec![Sge { addr: remote(word).addr, len_bytes: 8, lkey: mr.key }];
                end.qp.post_recv(RecvWr { wr_id: msn, sges }).unwrap();
                stream.extend(encoded(msn, RequestOp::Send { len_bytes: 8 }));
                stream.extend(fill.to_ne_bytes());
                model[word] = fill;
            }
            Step::Flush => stream.extend(encoded(msn, RequestOp::Flush { remote: remote(0), spec: PERSISTENT })),
        }
    }
    stream
}

/// Runs `end` until it has taken in all that was sent, ending its flushes meanwhile.
fn take_in(end: &mut End, answers: &mut TcpStream) {
    let start = Instant::now();
    loop {
        while end.run().unwrap() == Moved::More {}
        let job = end.qp.poll_flush_job();
        if job.is_none() && rustix::io::ioctl_fionread(end.stream.socket().as_fd()).unwrap() == 0 {
            break;
        }
        if let Some(job) = job {
            end.qp.flush_done(Instant::now(), job.id, Ok(()));
        }
        assert!(start.elapsed() < LIMIT, "idle, and something is there");
    }
    // For who answers, a peer that reads nothing is one whose requests wait.
    answers.set_nonblocking(true).unwrap();
    while answers.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {}
    answers.set_nonblocking(false).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn requests_take_effect_in_order_however_their_bytes_come(steps in vec(step(), 1..15), cuts in vec(1..60_usize, 1..30)) {
        let (mut peer, mut end) = raw_pair();
        let mut memory = [0_u64; WORDS];
        let mr = end.register(memory.as_mut_ptr().expose_provenance() as u64, 8 * WORDS as u64);
        let mut model = [0; WORDS];
        let stream = stream_of(&steps, &mut end, &mr, &mut model);
        let mut rest = &stream[..];
        for cut in cuts.into_iter().chain([stream.len()]) {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            rest = behind;
            peer.write_all(piece).unwrap();
            end.await_bytes(piece.len() as u64);
            take_in(&mut end, &mut peer);
        }
        drop(end);
        prop_assert_eq!(memory, model);
    }
}

#[test]
fn write_behind_an_atomic_operation_is_placed_behind_it() {
    for atomic in [Step::AtomicWrite { word: 1 }, Step::FetchAdd { word: 1 }, Step::CompareSwap { word: 1 }] {
        // What is due when the atomic operation comes: payload, a flush, or nothing.
        for first in [Step::Write { word: 0, len_bytes: 8 }, Step::Flush, Step::Write { word: 0, len_bytes: 0 }] {
            let (mut peer, mut end) = raw_pair();
            let mut memory = [0_u64; WORDS];
            let mr = end.register(memory.as_mut_ptr().expose_provenance() as u64, 8 * WORDS as u64);
            let mut model = [0; WORDS];
            let steps = [first.clone(), atomic.clone(), Step::Write { word: 1, len_bytes: 8 }];
            let stream = stream_of(&steps, &mut end, &mr, &mut model);
            peer.write_all(&stream).unwrap();
            end.await_bytes(stream.len() as u64);
            take_in(&mut end, &mut peer);
            drop(end);
            assert_eq!(memory, model, "{steps:?}");
        }
    }
}
