//! Atomic writes, native and emulated.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rpma::prelude::*;
use rpma::{AccessError, ErrorCode, NativeOps, OpMode, Operation, PostError};

use crate::support::{Pair, SetOnDrop, bytes, cfg, complete, op_modes, peer, region, remote, still_works};

const TARGET: Usage = Usage::WRITE_DST.union(Usage::FLUSH_TYPE_VISIBILITY);

/// A connection whose client writes atomically, and flushes, in these ways.
fn pair(atomic_write: OpMode, flush: OpMode) -> Pair {
    let peer = peer();
    let pair = Pair::connect(&peer, &cfg().atomic_write_mode(atomic_write).flush_mode(flush).sq_size(64), &peer, &cfg());
    assert!(pair.client.granted().inline_bytes >= 8);
    pair
}

/// Every way to write atomically with every way to flush.
fn pairs() -> impl Iterator<Item = (String, Pair)> {
    op_modes().iter().flat_map(|&atomic_write| {
        op_modes().iter().map(move |&flush| (format!("{atomic_write:?} behind {flush:?} flush"), pair(atomic_write, flush)))
    })
}

#[test]
fn atomic_write_puts_its_8_bytes_there_and_no_others() {
    for &mode in op_modes() {
        let pair = pair(mode, OpMode::Automatic);
        let target = region(pair.server.peer(), 64, TARGET);
        let there = remote(&target);
        for at in [0, 8, 56] {
            target.write_at(0, &[1; 64]).unwrap();
            pair.client.atomic_write(there.slice_at(at, 8).unwrap(), *b"8 bytes!", Signal::Always, at).unwrap();
            assert_eq!(complete(&pair.client, at).operation(), Operation::AtomicWrite);
            let mut expected = [1; 64];
            let at = usize::try_from(at).unwrap();
            expected[at..at + 8].copy_from_slice(b"8 bytes!");
            assert_eq!(bytes(&target, 0, 64), expected, "{mode:?}");
        }
    }
}

#[test]
fn value_is_taken_at_the_call_and_may_be_changed_right_after_it() {
    for &mode in op_modes() {
        let pair = pair(mode, OpMode::Automatic);
        let target = region(pair.server.peer(), 512, TARGET);
        let there = remote(&target);
        let mut value = [0; 8];
        // Many at once, so that most are still to be carried out when the value changes.
        for n in 0..64_u8 {
            value.fill(n + 1);
            let signal = if n == 63 { Signal::Always } else { Signal::OnError };
            pair.client.atomic_write(there.slice_at(u64::from(n) * 8, 8).unwrap(), value, signal, u64::from(n)).unwrap();
            value.fill(0xEE);
        }
        complete(&pair.client, 63);
        let expected: Vec<u8> = (0..64).flat_map(|n| [n + 1; 8]).collect();
        assert_eq!(bytes(&target, 0, 512), expected, "{mode:?}");
    }
}

#[test]
fn atomic_write_that_asks_for_a_completion_on_error_leaves_none_on_success() {
    for &mode in op_modes() {
        let pair = pair(mode, OpMode::Automatic);
        let target = region(pair.server.peer(), 8, TARGET);
        let there = remote(&target).all();
        pair.client.atomic_write(there, [1; 8], Signal::OnError, 1).unwrap();
        pair.client.atomic_write(there, [2; 8], Signal::Always, 2).unwrap();
        complete(&pair.client, 2);
        assert_eq!(pair.client.cq().poll().unwrap(), None, "{mode:?}");
    }
}

#[test]
fn atomic_write_needs_8_bytes_at_an_address_that_is_a_multiple_of_8() {
    for &mode in op_modes() {
        let pair = pair(mode, OpMode::Automatic);
        let target = region(pair.server.peer(), 64, TARGET);
        let aligned = remote(&target);
        // A region whose base is on no boundary, as the peer may have registered it: now other offsets are right.
        let odd = MrDescriptor::new(aligned.addr() + 4, 60, aligned.rkey(), TARGET).unwrap();
        let odd = RemoteMr::from(odd);
        let refused = [
            aligned.slice(1..9).unwrap(),
            aligned.slice(4..12).unwrap(),
            aligned.slice(0..7).unwrap(),
            aligned.slice(0..16).unwrap(),
            aligned.slice(8..8).unwrap(),
            odd.slice(0..8).unwrap(),
            odd.slice(8..16).unwrap(),
            RemoteSlice::NULL,
        ];
        for there in refused {
            let error = pair.client.atomic_write(there, [9; 8], Signal::Always, 1).unwrap_err();
            assert!(
                matches!(error, PostError::Misaligned { addr, len_bytes } if (addr, len_bytes) == (there.addr(), there.len_bytes())),
                "{error:?}"
            );
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
        }
        pair.client.atomic_write(odd.slice(4..12).unwrap(), *b"aligned.", Signal::Always, 2).unwrap();
        complete(&pair.client, 2);
        assert_eq!(bytes(&target, 8, 8), b"aligned.", "{mode:?}");
        assert_eq!(bytes(&target, 0, 8), [0; 8]);
        still_works(&pair);
    }
}

#[test]
fn automatic_atomic_write_arrives_whatever_the_peer_says_of_its_device() {
    let pair = Pair::new();
    let target = region(pair.server.peer(), 8, TARGET);
    for (n, said) in [Some(true), Some(false), None].into_iter().enumerate() {
        let ops = said.map(|atomic_write| NativeOps { flush: true, atomic_write });
        pair.client.apply_remote_peer_cfg(PeerCfg::new().with_native_ops(ops));
        let value = [u8::try_from(n + 1).unwrap(); 8];
        pair.client.atomic_write(remote(&target).all(), value, Signal::Always, 1).unwrap();
        complete(&pair.client, 1);
        assert_eq!(bytes(&target, 0, 8), value);
    }
}

/// The target's own thread watches the word: whenever it shows `n`, everything that was written and flushed before it must be there.
#[test]
fn atomic_write_is_never_seen_before_what_was_flushed_before_it() {
    const ROUNDS: u64 = 100;
    const LEN: usize = 16 * 1024;
    for (how, pair) in pairs() {
        let source = region(pair.client.peer(), LEN, Usage::WRITE_SRC);
        let data = region(pair.server.peer(), LEN, TARGET);
        let word = region(pair.server.peer(), 8, TARGET);
        let (data_there, word_there) = (remote(&data).all(), remote(&word).all());
        let (seen, done) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let watching = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let now = word.load_u64(0, Ordering::Acquire).unwrap();
                    if now == seen.load(Ordering::Relaxed) {
                        thread::yield_now();
                        continue;
                    }
                    let stale = bytes(&data, 0, LEN).into_iter().position(|byte| u64::from(byte) != now);
                    assert_eq!(stale, None, "{how}: the word says {now}");
                    seen.store(now, Ordering::Relaxed);
                }
            });
            let _ends_the_watch = SetOnDrop(&done);
            for n in 1..=ROUNDS {
                source.write_at(0, &[u8::try_from(n).unwrap(); LEN]).unwrap();
                pair.client.write(data_there, source.all(), Signal::OnError, 1).unwrap();
                pair.client.flush(data_there, FlushType::Visibility, Signal::OnError, 2).unwrap();
                pair.client.atomic_write(word_there, n.to_ne_bytes(), Signal::Always, 3).unwrap();
                complete(&pair.client, 3);
                while seen.load(Ordering::Relaxed) < n && !watching.is_finished() {
                    thread::yield_now();
                }
            }
        });
    }
}

#[test]
fn reader_of_the_word_sees_all_or_nothing_of_each_value() {
    for &mode in op_modes() {
        let pair = pair(mode, OpMode::Automatic);
        let word = region(pair.server.peer(), 8, TARGET);
        let there = remote(&word).all();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watching = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let value = word.load_u64(0, Ordering::Relaxed).unwrap();
                    let first = value & 0xFF;
                    assert_eq!(value, first * 0x0101_0101_0101_0101, "{mode:?}: {value:#x} is torn");
                }
            });
            let _ends_the_watch = SetOnDrop(&done);
            for n in 0..2000_u64 {
                let signal = if n % 32 == 31 { Signal::Always } else { Signal::OnError };
                pair.client.atomic_write(there, [n.to_le_bytes()[0]; 8], signal, n).unwrap();
                if signal == Signal::Always {
                    complete(&pair.client, n);
                }
                if watching.is_finished() {
                    break;
                }
            }
        });
    }
}

/// The older name.
#[test]
fn write_of_8_bytes_of_a_region_takes_them_at_the_call_from_any_place_in_it() {
    for &mode in op_modes() {
        let pair = pair(mode, OpMode::Automatic);
        let client = &pair.client;
        let target = region(pair.server.peer(), 24, TARGET);
        let source = region(client.peer(), 24, Usage::WRITE_SRC);
        let there = remote(&target);
        // The last one's address is no multiple of 8 here; there it is one.
        for (n, from) in [(0, 0), (1, 16), (2, 5)] {
            source.write_at(from, b"8 bytes!").unwrap();
            client.write_atomic(there.slice_at(8 * n, 8).unwrap(), &source, from, Signal::Always, n).unwrap();
            source.write_at(from, &[0xEE; 8]).unwrap();
            assert_eq!(complete(client, n).operation(), Operation::AtomicWrite);
        }
        assert_eq!(bytes(&target, 0, 24), *b"8 bytes!8 bytes!8 bytes!", "{mode:?}");
    }
}

#[test]
fn write_of_8_bytes_of_a_region_checks_that_region_before_anything_is_posted() {
    let pair = Pair::new();
    let target = region(pair.server.peer(), 16, TARGET);
    let there = remote(&target).slice_at(0, 8).unwrap();
    let write = |source: &LocalMr<AnonPages>, from| pair.client.write_atomic(there, source, from, Signal::Always, 1).unwrap_err();
    let source = region(pair.client.peer(), 16, Usage::WRITE_SRC);
    for from in [9, usize::MAX] {
        let error = write(&source, from);
        assert!(matches!(error, PostError::Source(AccessError::OutOfRange { .. })), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    let error = write(&region(pair.client.peer(), 8, Usage::SEND), 0);
    assert!(matches!(error, PostError::LocalUsage { needs: Usage::WRITE_SRC, .. }), "{error:?}");
    let error = write(&region(&peer(), 8, Usage::WRITE_SRC), 0);
    assert!(matches!(error, PostError::OtherPeer { operation: Operation::AtomicWrite }), "{error:?}");
    let misaligned = remote(&target).slice_at(4, 8).unwrap();
    let error = pair.client.write_atomic(misaligned, &source, 0, Signal::Always, 1).unwrap_err();
    assert!(matches!(error, PostError::Misaligned { .. }), "{error:?}");
    still_works(&pair);
}
