//! Batches: what is posted together, how many doorbells that takes, and what is known of one that fails.

use std::sync::Arc;

use rpma::prelude::*;
use rpma::sys::testing::{Call, CountingProvider, FailingProvider, Plan};
use rpma::{BatchError, CqError, ErrorCode};

use crate::support::{
    LIMIT, Pair, bytes, cfg, complete, failed, in_time, op_modes, peer_over, provider, received, region, remote, still_works,
    with_usage,
};

/// A connection whose client's calls are counted and can fail, with a send queue for 8 requests.
struct Watched {
    failing: Arc<FailingProvider>,
    counting: Arc<CountingProvider>,
    pair: Pair,
}

impl Watched {
    fn new(mode: OpMode) -> Self {
        let counting = CountingProvider::new(provider());
        let failing = FailingProvider::new(counting.provider());
        let cfg = cfg().sq_size(8).send_sge(2).inline_bytes(16).flush_mode(mode).atomic_write_mode(mode);
        let pair = Pair::connect(&peer_over(&failing.provider()), &cfg, &crate::support::peer(), &cfg);
        Self { failing, counting, pair }
    }

    /// Doorbells that the client has rung: those of linked lists, and those of batches.
    fn doorbells(&self) -> (u64, u64) {
        (self.counting.calls(Call::post_send), self.counting.calls(Call::wr_complete))
    }

    /// The call that rings the client's doorbell for a batch.
    fn doorbell(&self) -> Call {
        match self.pair.client.flush_path() {
            OpPath::Native => Call::wr_complete,
            OpPath::Emulated => Call::post_send,
        }
    }
}

const TARGET: Usage = Usage::WRITE_DST.union(Usage::READ_SRC).union(Usage::FLUSH_TYPE_VISIBILITY);

#[test]
fn batch_across_operations_takes_one_doorbell_and_does_what_single_posts_do() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let here = region(client.peer(), 64, Usage::WRITE_SRC | Usage::READ_DST | Usage::SEND);
        let target = region(server.peer(), 64, TARGET);
        let inbox = region(server.peer(), 64, Usage::RECV);
        let there = remote(&target);
        here.write_at(0, b"sixteen bytes...").unwrap();
        server.recv(LocalSlice::null(), 11).unwrap();
        server.recv(inbox.slice(0..32).unwrap(), 12).unwrap();
        server.recv(inbox.slice(32..64).unwrap(), 13).unwrap();

        let before = watched.doorbells();
        let mut batch = client.batch();
        batch.write(there.slice(0..16).unwrap(), here.slice(0..16).unwrap(), Signal::Always, 0).unwrap();
        batch.write(there.slice(16..24).unwrap(), Inline(b"inline, "), Signal::Always, 1).unwrap();
        let equal = [here.slice(0..4).unwrap(), here.slice(8..12).unwrap()];
        batch.write_with_imm(there.slice(24..32).unwrap(), &equal, 77, Signal::Always, 2).unwrap();
        batch.flush(there.slice(0..32).unwrap(), FlushType::Visibility, Signal::Always, 3).unwrap();
        batch.atomic_write(there.slice(32..40).unwrap(), *b"at once.", Signal::Always, 4).unwrap();
        batch.read(here.slice(16..56).unwrap(), there.slice(0..40).unwrap(), Signal::Always, 5).unwrap();
        batch.send(Inline(b"told"), Signal::Always, 6).unwrap();
        batch.send_with_imm(here.slice(0..16).unwrap(), 78, Signal::Always, 7).unwrap();
        assert_eq!((batch.len(), watched.doorbells()), (8, before), "nothing is posted before it is");
        batch.post().unwrap();
        assert!(batch.is_empty());
        let expected = if mode == OpMode::Native { (before.0, before.1 + 1) } else { (before.0 + 1, before.1) };
        assert_eq!(watched.doorbells(), expected, "{mode:?}");

        let operations: Vec<_> = (0..8).map(|n| complete(client, n).operation()).collect();
        use Operation::{AtomicWrite, Flush, Read, Send, SendWithImm, Write, WriteWithImm};
        assert_eq!(operations, [Write, Write, WriteWithImm, Flush, AtomicWrite, Read, Send, SendWithImm]);
        let numbers: Vec<_> = (11..14).map(|n| received(server, n)).map(|got| (got.len_bytes, got.imm, got.by_write)).collect();
        assert_eq!(numbers, [(8, Some(77), true), (4, None, false), (16, Some(78), false)]);
        assert_eq!((bytes(&inbox, 0, 4), bytes(&inbox, 32, 16)), (b"told".to_vec(), b"sixteen bytes...".to_vec()));
        assert_eq!(bytes(&target, 0, 40), b"sixteen bytes...inline, sixtbyteat once.");
        assert_eq!(bytes(&here, 16, 32), bytes(&target, 0, 32), "the read is behind the writes");
        drop(batch);
        still_works(&watched.pair);
    }
}

#[test]
fn flush_at_the_end_of_a_batch_is_its_only_completion() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let here = region(client.peer(), 64, Usage::WRITE_SRC);
        let target = region(server.peer(), 64, TARGET);
        let there = remote(&target);
        // More of them than fit into the queue together.
        for round in 0..20_u8 {
            here.write_at(0, &[round; 56]).unwrap();
            let mut batch = client.batch();
            for n in 0..7 {
                let at = 8 * n;
                let part = here.slice(at as usize..at as usize + 8).unwrap();
                batch.write(there.slice(at..at + 8).unwrap(), part, Signal::OnError, n).unwrap();
            }
            batch.flush(there.slice(0..56).unwrap(), FlushType::Visibility, Signal::Always, 7).unwrap().post().unwrap();
            assert_eq!(complete(client, 7).operation(), Operation::Flush);
            assert_eq!(client.cq().poll().unwrap(), None);
            assert_eq!(bytes(&target, 0, 56), [round; 56]);
        }
    }
}

#[test]
fn ranges_of_different_lengths_beside_native_operations_arrive_whole() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let here = region(client.peer(), 64, Usage::WRITE_SRC);
        let target = region(server.peer(), 64, TARGET);
        let there = remote(&target);
        here.write_at(0, b"abcdefghijkl").unwrap();
        let unequal = [here.slice(9..12).unwrap(), here.slice(0..9).unwrap()];
        let before = watched.doorbells();
        let mut batch = client.batch();
        batch.write(there.slice(0..12).unwrap(), &unequal, Signal::OnError, 1).unwrap();
        batch.flush(there.slice(0..12).unwrap(), FlushType::Visibility, Signal::OnError, 2).unwrap();
        batch.write(there.slice(12..24).unwrap(), &unequal, Signal::Always, 3).unwrap();
        batch.post().unwrap();
        let expected = if mode == OpMode::Native { (before.0 + 2, before.1 + 1) } else { (before.0 + 1, before.1) };
        assert_eq!(watched.doorbells(), expected, "{mode:?}");
        complete(client, 3);
        assert_eq!(bytes(&target, 0, 24), b"jklabcdefghijklabcdefghi");
    }
}

#[test]
fn batch_that_does_not_fit_posts_nothing_and_fits_when_there_is_room() {
    let watched = Watched::new(OpMode::Automatic);
    let Pair { client, server } = &watched.pair;
    let target = region(server.peer(), 64, TARGET);
    let there = remote(&target);
    let mut batch = client.batch();
    for n in 0..7 {
        batch.write(there.slice(n..n + 1).unwrap(), Inline(b"x"), Signal::Always, n).unwrap();
    }
    for n in 7..9 {
        client.write(there.slice(n..n + 1).unwrap(), Inline(b"y"), Signal::Always, n).unwrap();
    }
    let before = watched.doorbells();
    let error = batch.post().unwrap_err();
    assert!(matches!(error, BatchError::QueueFull { requests: 7, outstanding: 2, limit: 8 }), "{error:?}");
    assert!(error.to_string().contains("ConnCfg::sq_size is 8"), "{error}");
    assert_eq!((error.code(), watched.doorbells(), batch.len()), (ErrorCode::Provider, before, 7));
    complete(client, 7);
    batch.post().unwrap();
    (0..8).map(|n| (n + 8) % 9).for_each(|n| _ = complete(client, n));
    assert_eq!(bytes(&target, 0, 10), b"xxxxxxxyy\0");

    // It could never fit.
    for n in 0..9 {
        batch.write(there.slice(n..n + 1).unwrap(), Inline(b"z"), Signal::Always, n).unwrap();
    }
    let error = batch.post().unwrap_err();
    assert!(matches!(error, BatchError::TooLarge { requests: 9, limit: 8 }), "{error:?}");
    assert!(error.to_string().ends_with("(ConnCfg::sq_size is 8)"), "{error}");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    drop(batch);
    still_works(&watched.pair);
}

#[test]
fn empty_batch_rings_no_doorbell() {
    let watched = Watched::new(OpMode::Automatic);
    let before = watched.doorbells();
    watched.pair.client.batch().post().unwrap();
    assert_eq!(watched.doorbells(), before);
}

#[test]
fn request_that_is_refused_leaves_the_batch_as_it_was() {
    let watched = Watched::new(OpMode::Automatic);
    let Pair { client, server } = &watched.pair;
    let target = region(server.peer(), 64, TARGET);
    let there = remote(&target);
    let mut batch = client.batch();
    batch.write(there.slice(0..4).unwrap(), Inline(b"good"), Signal::Always, 1).unwrap();
    let long = vec![0; client.granted().inline_bytes as usize + 1];
    let errors = [
        batch.write(there.slice(0..5).unwrap(), Inline(b"good"), Signal::Always, 2).unwrap_err(),
        batch.send(Inline(&long), Signal::Always, 3).unwrap_err(),
        batch.atomic_write(there.slice(4..12).unwrap(), [0; 8], Signal::Always, 4).unwrap_err(),
        batch.flush(there.all(), FlushType::Persistent, Signal::Always, 5).unwrap_err(),
        batch.read(LocalSlice::null(), there.slice(0..1).unwrap(), Signal::Always, 6).unwrap_err(),
    ];
    assert_eq!(errors.map(|e| e.code() == ErrorCode::NotSupported), [false, false, false, true, false]);
    assert_eq!(batch.len(), 1);
    batch.post().unwrap();
    complete(client, 1);
    drop(batch);
    still_works(&watched.pair);
}

#[test]
fn batch_that_the_provider_refuses_is_kept_and_can_be_posted_again() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let target = region(server.peer(), 64, TARGET);
        let there = remote(&target);
        let mut batch = client.batch();
        for n in 0..6 {
            batch.write(there.slice(n..n + 1).unwrap(), Inline(b"x"), Signal::OnError, n).unwrap();
        }
        batch.flush(there.all(), FlushType::Visibility, Signal::Always, 6).unwrap();
        // What a full queue is to either call: nothing of the batch was taken.
        let (call, errno) = match mode {
            OpMode::Native => (Call::wr_complete, libc::ENOSPC),
            _ => (Call::post_send, libc::ENOMEM),
        };
        assert_eq!(call, watched.doorbell());
        watched.failing.arm(Plan::nth_of(call, 0, errno));
        let BatchError::Provider { requests: 7, taken: 0, source } = batch.post().unwrap_err() else { panic!("{mode:?}") };
        assert_eq!((source.raw_os_error(), batch.len()), (Some(errno), 7));
        // Its slots are free: it would not fit beside itself.
        batch.post().unwrap();
        complete(client, 6);
        assert_eq!(bytes(&target, 0, 7), b"xxxxxx\0");
        drop(batch);
        still_works(&watched.pair);
    }
}

#[test]
fn batch_of_which_a_part_was_taken_keeps_the_rest() {
    let watched = Watched::new(OpMode::Emulated);
    let Pair { client, server } = &watched.pair;
    let target = region(server.peer(), 64, TARGET);
    let there = remote(&target);
    let mut batch = client.batch();
    for n in 0..6 {
        batch.write(there.slice(n..n + 1).unwrap(), Inline(&[b'a' + n as u8]), Signal::Always, n).unwrap();
    }
    watched.failing.arm(Plan::nth_of(Call::post_send, 0, libc::ENOMEM).taking_first(2));
    let error = batch.post().unwrap_err();
    assert!(matches!(error, BatchError::Provider { requests: 6, taken: 2, .. }), "{error:?}");
    assert_eq!(batch.len(), 4);
    (0..2).for_each(|n| _ = complete(client, n));
    assert_eq!((bytes(&target, 0, 6), client.cq().poll().unwrap()), (b"ab\0\0\0\0".to_vec(), None));
    batch.post().unwrap();
    (2..6).for_each(|n| _ = complete(client, n));
    assert_eq!(bytes(&target, 0, 6), b"abcdef");
    drop(batch);
    still_works(&watched.pair);
}

#[test]
fn batch_of_which_nobody_knows_keeps_its_slots_until_a_later_completion() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let target = region(server.peer(), 64, TARGET);
        let there = remote(&target);
        let post = |count: u64| {
            let mut batch = client.batch();
            for n in 0..count {
                batch.write(there.slice(n..n + 1).unwrap(), Inline(b"x"), Signal::Always, n).unwrap();
            }
            batch.flush(there.all(), FlushType::Visibility, Signal::Always, count).unwrap();
            let posted = batch.post();
            (posted, batch.len())
        };
        watched.failing.arm(Plan::nth_of(watched.doorbell(), 0, libc::EIO).naming_no_bad_wr());
        let (posted, left) = post(5);
        assert!(matches!(posted, Err(BatchError::PerhapsTaken { requests: 6, taken: 0, .. })), "{posted:?}");
        assert_eq!(left, 0);
        // Two slots are left.
        assert!(matches!(post(2).0, Err(BatchError::QueueFull { requests: 3, outstanding: 6, limit: 8 })));
        assert!(post(1).0.is_ok());
        (0..2).for_each(|n| _ = complete(client, n));
        // In fact none was taken; what completed behind them says that they are done, in whichever way.
        let (posted, _) = post(7);
        posted.unwrap();
        (0..8).for_each(|n| _ = complete(client, n));
        still_works(&watched.pair);
    }
}

#[test]
fn batches_without_completions_never_fill_the_queue_for_good() {
    in_time(|| {
        for &mode in op_modes() {
            let watched = Watched::new(mode);
            let Pair { client, server } = &watched.pair;
            let target = region(server.peer(), 64, TARGET);
            let there = remote(&target);
            for round in 0..50_u64 {
                let mut batch = client.batch();
                for n in 0..=round % 8 {
                    batch.write(there.slice(n..n + 1).unwrap(), Inline(b"x"), Signal::OnError, n).unwrap();
                }
                while let Err(e) = batch.post() {
                    assert!(matches!(e, BatchError::QueueFull { .. }), "{e:?}");
                    assert_eq!(client.cq().poll().unwrap(), None);
                }
            }
        }
    });
}

#[test]
fn batch_that_fails_in_the_middle_completes_with_the_cause_and_the_rest_flushed() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let target = region(server.peer(), 64, TARGET);
        let read_only = region(server.peer(), 64, Usage::READ_SRC);
        let (there, lies) = (remote(&target), with_usage(remote(&read_only), Usage::WRITE_DST));
        let mut batch = client.batch();
        batch.write(there.slice(0..1).unwrap(), Inline(b"x"), Signal::Always, 0).unwrap();
        batch.write(lies.slice(0..1).unwrap(), Inline(b"x"), Signal::OnError, 1).unwrap();
        batch.write(there.slice(1..2).unwrap(), Inline(b"x"), Signal::OnError, 2).unwrap();
        batch.flush(there.all(), FlushType::Visibility, Signal::Always, 3).unwrap().post().unwrap();
        complete(client, 0);
        assert!(!failed(client, 1).is_flushed());
        assert!(failed(client, 2).is_flushed() && failed(client, 3).is_flushed());
        assert_eq!(bytes(&target, 0, 2), b"x\0");
    }
}

#[test]
fn batch_after_the_end_completes_with_errors_and_then_all_is_drained() {
    for &mode in op_modes() {
        let watched = Watched::new(mode);
        let Pair { client, server } = &watched.pair;
        let target = region(server.peer(), 64, TARGET);
        let there = remote(&target);
        client.disconnect().unwrap();
        let mut batch = client.batch();
        for n in 0..3 {
            batch.write(there.slice(n..n + 1).unwrap(), Inline(b"x"), Signal::OnError, n).unwrap();
        }
        batch.flush(there.all(), FlushType::Visibility, Signal::OnError, 3).unwrap().post().unwrap();
        (0..4).for_each(|n| assert!(failed(client, n).is_flushed()));
        assert!(matches!(client.cq().wait(LIMIT), Err(CqError::Drained)));
    }
}

#[test]
fn batches_of_several_threads_each_stay_together() {
    let watched = Watched::new(OpMode::Automatic);
    let Pair { client, server } = &watched.pair;
    let target = region(server.peer(), 64, TARGET);
    let there = remote(&target);
    in_scope(client, there);
    assert_eq!(client.cq().poll().unwrap(), None);
    still_works(&watched.pair);
}

/// Four threads post 25 batches of three each, and this one polls: the three contexts of a batch come one behind the other.
fn in_scope(client: &Conn, there: RemoteMr) {
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for round in 0..25 {
                    let mut batch = client.batch();
                    for part in 0..3 {
                        let context = (thread * 25 + round) * 3 + part;
                        batch.write(there.slice(thread..=thread).unwrap(), Inline(b"x"), Signal::Always, context).unwrap();
                    }
                    while let Err(e) = batch.post() {
                        assert!(matches!(e, BatchError::QueueFull { .. }), "{e:?}");
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..100 {
            let first = client.cq().wait(LIMIT).unwrap().context();
            assert_eq!(first % 3, 0, "a batch begins");
            (1..3).for_each(|n| _ = complete(client, first + n));
        }
    });
}
