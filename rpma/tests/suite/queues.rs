//! Queues: when they are full, that nothing is lost, and waiting for completions.

use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

use rpma::prelude::*;
use rpma::{CqError, ErrorCode, PostError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{LIMIT, Pair, bytes, cfg, complete, in_time, peer, received, region, remote, still_works, times};

fn pair_of_sizes(cq: u32, sq: u32, rq: u32) -> Pair {
    let peer = peer();
    let small = cfg().cq_size(cq).sq_size(sq).rq_size(rq);
    Pair::connect(&peer, &small, &peer, &small)
}

/// Whether a descriptor is readable within the time given.
fn readable(fd: impl AsFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::try_from(limit).unwrap())).unwrap() == 1
}

/// On soft-RoCE a slot is free as soon as the work is done, so the device would take all 40 and lose 33 completions.
#[test]
fn send_queue_is_full_after_its_size_and_every_accepted_post_completes() {
    let pair = pair_of_sizes(4, 4, 4);
    let client = &pair.client;
    let source = region(client.peer(), 40, Usage::WRITE_SRC);
    let target = region(pair.server.peer(), 40, Usage::WRITE_DST);
    let there = remote(&target);
    source.write_at(0, &(1..=40).collect::<Vec<u8>>()).unwrap();
    let post = |n: u64| {
        let at = usize::try_from(n).unwrap();
        client.write(there.slice_at(n, 1).unwrap(), source.slice(at..=at).unwrap(), Signal::Always, n)
    };
    for round in (0..40).step_by(4) {
        for n in round..round + 4 {
            post(n).unwrap();
        }
        let error = post(round).unwrap_err();
        assert!(matches!(error, PostError::QueueFull { queue: "send", limit: 4 }), "{error:?}");
        assert!(error.to_string().ends_with("(ConnCfg::sq_size is 4)"), "{error}");
        assert_eq!(error.code(), ErrorCode::Provider);
        for n in round..round + 4 {
            complete(client, n);
        }
        assert_eq!(client.cq().poll().unwrap(), None);
    }
    assert_eq!(bytes(&target, 0, 40), bytes(&source, 0, 40));
}

#[test]
fn receive_queue_is_full_after_its_size_and_takes_again_what_was_polled() {
    let pair = pair_of_sizes(4, 10, 4);
    let Pair { client, server } = &pair;
    let buffer = region(server.peer(), 8, Usage::RECV);
    let message = region(client.peer(), 8, Usage::SEND);
    message.write_at(0, b"messages").unwrap();
    for round in [0, 4] {
        for n in round..round + 4 {
            server.recv(buffer.slice(n..=n).unwrap(), n as u64).unwrap();
        }
        let error = server.recv(buffer.all(), 99).unwrap_err();
        assert!(matches!(error, PostError::QueueFull { queue: "receive", limit: 4 }), "{error:?}");
        assert!(error.to_string().ends_with("(ConnCfg::rq_size is 4)"), "{error}");
        for n in round..round + 4 {
            client.send(message.slice(n..=n).unwrap(), Signal::Always, 1).unwrap();
            complete(client, 1);
        }
        for n in round..round + 4 {
            assert_eq!(received(server, n as u64).len_bytes, 1);
        }
    }
    assert_eq!(bytes(&buffer, 0, 8), b"messages");
}

#[test]
fn full_receive_queue_leaves_room_to_send_and_the_other_way_round() {
    let pair = pair_of_sizes(1, 2, 2);
    let Pair { client, server } = &pair;
    for n in 0..2 {
        client.recv(LocalSlice::null(), 10 + n).unwrap();
        server.recv(LocalSlice::null(), 20 + n).unwrap();
    }
    // Now all that can complete at once does: two sends and two receives into one completion queue.
    for n in 0..2 {
        client.send(LocalSlice::null(), Signal::Always, n).unwrap();
        server.send(LocalSlice::null(), Signal::Always, n).unwrap();
    }
    for (conn, receives) in [(client, 10), (server, 20)] {
        let mut contexts: Vec<u64> = (0..4).map(|_| conn.cq().wait(LIMIT).unwrap().context()).collect();
        contexts.sort_unstable();
        assert_eq!(contexts, [0, 1, receives, receives + 1]);
    }
    assert!(client.cq().capacity() >= 4);
    still_works(&pair);
}

#[test]
fn completion_of_one_post_frees_the_slots_of_the_unsignalled_ones_before_it() {
    let pair = pair_of_sizes(4, 4, 1);
    let client = &pair.client;
    let nothing = LocalSlice::null();
    for round in 0..5 {
        for _ in 0..3 {
            client.write(RemoteSlice::NULL, nothing, Signal::OnError, 1000).unwrap();
        }
        client.write(RemoteSlice::NULL, nothing, Signal::Always, round).unwrap();
        assert!(matches!(client.write(RemoteSlice::NULL, nothing, Signal::Always, 1000), Err(PostError::QueueFull { .. })));
        complete(client, round);
    }
    still_works(&pair);
}

#[test]
fn long_stream_with_selective_signalling_never_fills_the_queue_and_completes_twice_per_queue() {
    const POSTS: u64 = 4_000;
    let Pair { client, server } = &pair_of_sizes(20, 8, 8);
    let inbox = region(client.peer(), 8, Usage::RECV);
    let counter = region(client.peer(), 8, Usage::WRITE_SRC);
    let target = region(server.peer(), 8, Usage::WRITE_DST);
    let there = remote(&target).all();
    for n in 0..8 {
        client.recv(inbox.all(), n).unwrap();
        server.send(LocalSlice::null(), Signal::Always, n).unwrap();
        complete(server, n);
    }
    let mut signals = Signals::of(client);
    let (mut sent, mut messages) = (0, 0);
    let mut take = |signals: &mut Signals| {
        let completion = client.cq().wait(LIMIT).unwrap();
        signals.completed(&completion);
        // Messages are in the same queue, and count for nothing.
        match completion.received().unwrap() {
            Some(_) => messages += 1,
            None => sent += 1,
        }
    };
    for n in 1..=POSTS {
        while signals.is_full() {
            take(&mut signals);
        }
        let post = |signal| client.write(there, counter.all(), signal, n);
        if n < POSTS {
            signals.post(post).unwrap();
        } else {
            counter.write_at(0, b"the last").unwrap();
            signals.post_signaled(post).unwrap();
        }
    }
    while signals.is_owed() {
        take(&mut signals);
    }
    assert_eq!((sent, messages), (POSTS / 4, 8));
    assert_eq!(bytes(&target, 0, 8), b"the last");
}

/// The other's are before, between and behind, and have the same contexts: none of them says that the flush is done.
#[test]
fn selective_signalling_beside_others_counts_its_own_completions_alone() {
    let Pair { client, server } = &pair_of_sizes(20, 8, 8);
    let target = region(server.peer(), 8, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY);
    let there = remote(&target).all();
    let (mut signals, mut others) = (Signals::with_room(client, 4), Signals::with_room(client, 2));
    let write = |signal| client.write(RemoteSlice::NULL, LocalSlice::null(), signal, 7);
    for _ in 0..50 {
        signals.post(write).unwrap();
        write(Signal::Always).unwrap();
        others.post_signaled(write).unwrap();
        signals.post_signaled(|signal| client.flush(there, FlushType::Visibility, signal, 7)).unwrap();
        write(Signal::Always).unwrap();
        for (operation, are_owed) in
            [(Operation::Write, (true, true)), (Operation::Write, (true, false)), (Operation::Flush, (false, false))]
        {
            assert!(signals.is_owed());
            let completion = complete(client, 7);
            for signals in [&mut signals, &mut others] {
                signals.completed(&completion);
            }
            assert_eq!((completion.operation(), (signals.is_owed(), others.is_owed())), (operation, are_owed));
        }
        signals.completed(&complete(client, 7));
        assert!(!signals.is_full() && !others.is_full());
    }
    // No more room than the queue has.
    let mut all = Signals::with_room(client, 1_000);
    for _ in 0..8 {
        assert!(!all.is_full());
        all.post(write).unwrap();
    }
    assert!(all.is_full() && matches!(write(Signal::OnError), Err(PostError::QueueFull { .. })));
}

#[test]
fn granted_sizes_are_those_asked_for_or_more() {
    let pair = pair_of_sizes(3, 5, 7);
    let granted = pair.client.granted();
    assert!(granted.send_wr >= 5 && granted.recv_wr >= 7 && granted.inline_bytes >= 8, "{granted:?}");
    assert!(pair.client.cq().capacity() >= 12);
}

/// What a program does that wants no completions: it posts, and polls now and then.
#[test]
fn posts_without_completions_never_fill_the_queue_for_good_and_all_of_them_complete() {
    const POLL_EVERY: u64 = 7;
    let posts = times(100_000, 20_000);
    let Pair { client, server } = Pair::new();
    let source = region(client.peer(), 8, Usage::WRITE_SRC);
    let target = region(server.peer(), 8, Usage::WRITE_DST);
    let there = remote(&target);
    let mut full = 0;
    for n in 0..=posts {
        // Read when the write is carried out, so it may be a later one's.
        source.write_at(0, &n.to_ne_bytes()).unwrap();
        // The last one tells of all before it.
        let signal = if n == posts { Signal::Always } else { Signal::OnError };
        let start = Instant::now();
        while let Err(e) = client.write(there.all(), source.all(), signal, n) {
            assert!(matches!(e, PostError::QueueFull { .. }) && start.elapsed() < LIMIT, "post {n}: {e:?}");
            assert_eq!(client.cq().poll().unwrap(), None);
            full += 1;
            thread::yield_now();
        }
        if n < posts && n.is_multiple_of(POLL_EVERY) {
            assert_eq!(client.cq().poll().unwrap(), None);
        }
    }
    complete(&client, posts);
    assert!(full > 0, "the queue was never full");
    assert_eq!(bytes(&target, 0, 8), posts.to_ne_bytes());
    still_works(&Pair { client, server });
}

#[test]
fn completion_is_reachable_without_any_event() {
    let pair = Pair::new();
    let cq = pair.client.cq();
    pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 1).unwrap();
    let completion = in_time({
        let cq = cq.clone();
        move || loop {
            match cq.poll().unwrap() {
                Some(completion) => break completion,
                None => thread::yield_now(),
            }
        }
    });
    assert_eq!(completion.context(), 1);
    // The queue was never armed, so nothing was ever announced.
    assert!(!readable(&cq, Duration::ZERO));
    // And the first wait is for what comes next.
    pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    assert_eq!(cq.poll().unwrap(), None);
}

#[test]
fn two_completions_drained_at_once_leave_an_event_behind_which_is_no_error() {
    let pair = Pair::new();
    let cq = pair.client.cq();
    let mut taken = Vec::new();
    cq.arm().unwrap();
    for context in [1, 2] {
        pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context).unwrap();
    }
    assert!(readable(&cq, LIMIT));
    // As an event loop does, with the events taken late: the second completion may raise one of its own after this.
    while taken.len() < 2 {
        cq.arm().unwrap();
        cq.poll_batch(&mut taken, 16).unwrap();
    }
    assert_eq!(taken.iter().map(Completion::context).collect::<Vec<_>>(), [1, 2]);
    cq.arm().unwrap();
    assert_eq!(cq.poll_batch(&mut taken, 16).unwrap(), 0);
    assert!(matches!(cq.wait(Wait::Now), Err(CqError::NoCompletion)));
    still_works(&pair);
}

#[test]
fn armed_queue_announces_the_next_completion_on_its_descriptor() {
    let pair = Pair::new();
    let cq = pair.client.cq();
    for context in 0..20 {
        cq.arm().unwrap();
        assert_eq!(cq.poll().unwrap(), None);
        assert!(!readable(&cq, Duration::ZERO));
        pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context).unwrap();
        assert!(readable(&cq, LIMIT));
        cq.arm().unwrap();
        assert_eq!(cq.poll().unwrap().unwrap().context(), context);
    }
}

#[test]
fn wait_without_work_ends_with_its_time_and_says_that_there_was_nothing() {
    let pair = Pair::new();
    let error = pair.client.cq().wait(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, CqError::NoCompletion), "{error:?}");
    assert_eq!(error.code(), ErrorCode::NoCompletion);
    still_works(&pair);
}

/// Each side waits for the other's message, so that most completions come while it is between polling and sleeping.
#[test]
fn completion_that_comes_between_polling_and_arming_is_never_missed() {
    const ROUNDS: u64 = 3000;
    let Pair { client, server } = Pair::new();
    let play = |conn: &Conn, serves: bool| {
        conn.recv(LocalSlice::null(), 1).unwrap();
        if serves {
            conn.send(LocalSlice::null(), Signal::Always, 2).unwrap();
        }
        let (mut sent, mut got) = (0, 0);
        while got < ROUNDS || sent < ROUNDS {
            match conn.cq().wait(LIMIT).unwrap().context() {
                1 => {
                    got += 1;
                    conn.recv(LocalSlice::null(), 1).unwrap();
                    if got < ROUNDS || !serves {
                        conn.send(LocalSlice::null(), Signal::Always, 2).unwrap();
                    }
                }
                _ => sent += 1,
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&server, false));
        play(&client, true);
    });
}

/// One event that is not acknowledged would keep the queue's destruction waiting for ever.
#[test]
fn connection_that_waited_a_hundred_thousand_times_is_dropped_at_once() {
    let waits = times(100_000, 20_000);
    let Pair { client, server } = Pair::new();
    let cq = client.cq();
    let wait = |context| {
        cq.arm().unwrap();
        client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context).unwrap();
        assert!(readable(&cq, LIMIT), "no event for completion {context}");
        cq.poll().unwrap().expect("the completion of the event")
    };
    for context in 0..5_000 {
        wait(context).result().unwrap();
    }
    // The rest without the other side, which takes most of the time: what is posted after the end completes here, with an event each.
    client.disconnect().unwrap();
    for context in 5_000..waits {
        let completion = wait(context);
        assert!(completion.result().unwrap_err().is_flushed() && completion.context() == context, "{completion:?}");
    }
    in_time(|| drop((client, server, cq)));
}
