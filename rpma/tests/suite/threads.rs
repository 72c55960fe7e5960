//! Many threads on one object: accepting, waiting, posting, closing.

use std::collections::BTreeSet;
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use rpma::prelude::*;
use rpma::sys::testing::{Call, FailingProvider};
use rpma::{CqError, EstablishError, EventError, PostError, RequestError};

use crate::support::{LIMIT, Pair, SetOnDrop, cfg, complete, in_time, listen, peer, peer_over, provider, region, remote, times};

#[test]
fn thread_that_waits_for_requests_takes_no_event_of_connections_that_another_thread_accepts() {
    let connections = times(1_000, 200);
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let (taken, requests) = mpsc::channel();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Every processor is busy, so that whoever is woken waits for its turn, each time for another while.
        let _ends_the_spinning = SetOnDrop(&done);
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    hint::spin_loop();
                }
            });
        }
        // One takes requests and waits for the next, all the time; another accepts; two more connect.
        scope.spawn(|| {
            // Owned here: the channel ends when this thread does.
            let taken = taken;
            for _ in 0..connections {
                taken.send(endpoint.next_request(LIMIT).unwrap()).unwrap();
            }
            assert!(matches!(endpoint.next_request(Wait::Now), Err(RequestError::NoRequest)));
        });
        let accepting = scope.spawn(move || {
            let accept = |incoming: rpma::IncomingRequest| incoming.prepare(&cfg()).unwrap().connect(&[]).unwrap();
            requests
                .iter()
                .map(|incoming| {
                    let conn = accept(incoming).established(LIMIT).unwrap();
                    conn.disconnect().unwrap();
                    conn.peer_addr().unwrap()
                })
                .collect::<BTreeSet<_>>()
        });
        let connecting: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    (0..connections / 2)
                        .map(|_| {
                            let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
                            let conn = pending.established(LIMIT).unwrap();
                            // The server ends it: one that ends here at once may be closed for the server before it is established.
                            assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
                            conn.local_addr().unwrap()
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let connected: BTreeSet<_> = connecting.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(accepting.join().unwrap(), connected);
    });
}

#[test]
fn threads_that_set_up_and_tear_down_at_once_do_not_disturb_each_other() {
    let peer = peer();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..10 {
                    let Pair { client, server } = Pair::connect(&peer, &cfg(), &peer, &cfg());
                    let source = region(&peer, 8, Usage::WRITE_SRC);
                    let target = region(&peer, 8, Usage::WRITE_DST);
                    let there = remote(&target);
                    client.write(there.slice(0..8).unwrap(), source.slice(0..8).unwrap(), Signal::Always, n).unwrap();
                    complete(&client, n);
                    client.disconnect().unwrap();
                    assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
                }
            });
        }
    });
}

#[test]
fn every_completion_reaches_one_of_several_waiting_threads_and_none_sleeps_for_ever() {
    const MESSAGES: u32 = 1_000;
    let Pair { client, server } = Pair::new();
    let receives = cfg().get_rq_size();
    // Says that a receive is posted. A message that found none would be sent again after 655 ms: no business of this test, and what
    // most of its time went to on a busy machine.
    let (posted, receive_is_there) = mpsc::channel();
    for _ in 0..receives {
        client.recv(LocalSlice::null(), 0).unwrap();
        posted.send(()).unwrap();
    }
    let seen = Mutex::new(Vec::new());
    in_time(move || {
        thread::scope(|scope| {
            for _ in 0..4 {
                let (client, seen, posted) = (&client, &seen, posted.clone());
                scope.spawn(move || {
                    loop {
                        let completion = match client.cq().wait(Wait::Forever) {
                            Ok(completion) => completion,
                            Err(CqError::Drained) => break,
                            Err(e) => panic!("{e:?}"),
                        };
                        // What is flushed at the end brings nothing.
                        if let Ok(received) = completion.received() {
                            seen.lock().unwrap().push(received.unwrap().imm.unwrap());
                            client.recv(LocalSlice::null(), 0).unwrap();
                            // Nobody wants to know once all are sent.
                            let _ = posted.send(());
                        }
                    }
                });
            }
            for n in 0..MESSAGES {
                receive_is_there.recv().unwrap();
                server.send_with_imm(LocalSlice::null(), n, Signal::Always, n.into()).unwrap();
                complete(&server, n.into());
            }
            // The server's completion says that the client's device has the message; its completion is there for whoever waits.
            client.disconnect().unwrap();
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
    });
}

#[test]
fn threads_that_post_to_one_connection_have_all_they_posted_completed_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 250;
    let Pair { client, server } = Pair::new();
    let source = region(client.peer(), 8, Usage::WRITE_SRC);
    let target = region(server.peer(), 8, Usage::WRITE_DST);
    let there = remote(&target);
    let mut completed = Vec::new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, source) = (&client, &source);
            scope.spawn(move || {
                for n in 0..EACH {
                    let (dst, src) = (there.slice(0..8).unwrap(), source.slice(0..8).unwrap());
                    loop {
                        match client.write(dst, src, Signal::Always, thread * EACH + n) {
                            Ok(()) => break,
                            Err(PostError::QueueFull { .. }) => thread::yield_now(),
                            Err(e) => panic!("{e:?}"),
                        }
                    }
                }
            });
        }
        for _ in 0..THREADS * EACH {
            let completion = client.cq().wait(LIMIT).unwrap();
            completion.result().unwrap();
            completed.push(completion.context());
        }
    });
    // Each thread's own operations complete in its order.
    for thread in 0..THREADS {
        let of_thread: Vec<_> = completed.iter().filter(|&context| context / EACH == thread).copied().collect();
        assert_eq!(of_thread, (thread * EACH..(thread + 1) * EACH).collect::<Vec<_>>());
    }
    assert!(client.cq().poll().unwrap().is_none());
}

#[test]
fn completion_that_comes_between_the_last_look_and_the_arming_is_delivered() {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    let Pair { client, server } = Pair::connect(&peer, &cfg(), &peer, &cfg());
    client.recv(LocalSlice::null(), 7).unwrap();
    // Runs when the first look has found nothing, just before the queue is armed. The message has been taken when its sender hears of
    // it, so its completion is there before the arming, and raises no event.
    let sent = Arc::new(Mutex::new(None));
    let (done, once) = (Arc::clone(&sent), AtomicBool::new(false));
    failing.set_hook(Call::req_notify_cq, move |_| {
        if !once.swap(true, Ordering::SeqCst) {
            let posted = server.send(LocalSlice::null(), Signal::Always, 8);
            // No panic below C: what went wrong is looked at later.
            *done.lock().unwrap() = Some((posted, server.cq().wait(LIMIT)));
        }
    });
    let received = client.cq().wait(LIMIT);
    let (posted, completion) = sent.lock().unwrap().take().expect("the queue was armed");
    posted.unwrap();
    completion.unwrap().result().unwrap();
    assert_eq!(received.unwrap().context(), 7);
    failing.remove_hook(Call::req_notify_cq);
}

#[test]
fn closing_wakes_all_that_wait_and_all_that_come_later() {
    const WAITERS: usize = 3;
    let Pair { client, server: _server } = Pair::new();
    let (endpoint, addr) = listen(client.peer());
    let pending = ConnReq::new(client.peer(), addr, &cfg()).unwrap().connect(&[]).unwrap();
    let _unanswered = endpoint.next_request(LIMIT).unwrap();
    in_time(move || {
        let started = Barrier::new(4 * WAITERS + 1);
        thread::scope(|scope| {
            for _ in 0..WAITERS {
                scope.spawn(|| {
                    started.wait();
                    assert!(matches!(endpoint.next_request(Wait::Forever), Err(RequestError::Closed)));
                });
                scope.spawn(|| {
                    started.wait();
                    assert!(matches!(client.next_event(Wait::Forever), Err(EventError::Closed)));
                });
                scope.spawn(|| {
                    started.wait();
                    assert!(matches!(client.cq().wait(Wait::Forever), Err(CqError::Closed)));
                });
                scope.spawn(|| {
                    started.wait();
                    assert!(matches!(pending.established(Wait::Forever), Err(EstablishError::Event(EventError::Closed))));
                });
            }
            started.wait();
            endpoint.close();
            client.close();
            pending.close();
        });
        assert!(matches!(endpoint.next_conn_req(&cfg(), Wait::Forever), Err(RequestError::Closed)));
        assert!(matches!(client.next_event(Wait::Forever), Err(EventError::Closed)));
        assert!(matches!(client.cq().wait(Wait::Forever), Err(CqError::Closed)));
    });
}

#[test]
fn closed_connection_still_gives_the_completions_that_are_there() {
    let Pair { client, server: _server } = Pair::new();
    client.recv(LocalSlice::null(), 1).unwrap();
    client.disconnect().unwrap();
    // Flushed, and not polled yet.
    client.close();
    let completion = loop {
        match client.cq().wait(LIMIT) {
            Ok(completion) => break completion,
            // Closed comes before what is not there yet.
            Err(CqError::Closed) => thread::yield_now(),
            Err(e) => panic!("{e:?}"),
        }
    };
    assert!(completion.result().unwrap_err().is_flushed());
}
