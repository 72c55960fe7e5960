//! One completion channel for both queues of a connection.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::thread;

use rpma::prelude::*;
use rpma::{CqError, CqRole, ErrorCode, Fired};

use crate::support::{LIMIT, Pair, cfg, in_time, is_readable, listen, peer, request, still_works};

fn pair_of(cfg: &ConnCfg) -> Pair {
    let peer = peer();
    Pair::connect(&peer, cfg, &peer, cfg)
}

/// A connection whose ends both have a receive CQ, on the channel of the main one.
fn pair() -> Pair {
    pair_of(&cfg().rcq_size(10).shared_channel(true))
}

fn nothing(conn: &Conn, context: u64) {
    conn.send(LocalSlice::null(), Signal::Always, context).unwrap();
}

#[test]
fn queue_on_a_shared_channel_cannot_be_waited_for_alone_and_can_be_polled() {
    let pair = pair();
    let Pair { client, server } = &pair;
    for queue in [client.cq(), client.rcq().unwrap()] {
        for error in [queue.wait(Wait::Now).unwrap_err(), queue.wait(LIMIT).unwrap_err(), queue.arm().unwrap_err()] {
            assert!(matches!(error, CqError::SharedChannel), "{error:?}");
            assert_eq!(error.code(), ErrorCode::SharedChannel);
        }
        assert_eq!(queue.poll().unwrap(), None);
    }
    client.recv(LocalSlice::null(), 1).unwrap();
    nothing(server, 2);
    assert_eq!(server.wait(LIMIT).unwrap().1.context(), 2);
    // The sender's completion says that the message is there.
    let rcq = client.rcq().unwrap();
    assert_eq!(
        in_time(move || loop {
            match rcq.poll().unwrap() {
                Some(completion) => break completion.context(),
                None => thread::yield_now(),
            }
        }),
        1
    );
}

#[test]
fn connection_without_a_shared_channel_is_waited_for_by_its_queues() {
    for cfg in [cfg(), cfg().rcq_size(10)] {
        let pair = pair_of(&cfg);
        let client = &pair.client;
        let errors = [client.wait(LIMIT).unwrap_err(), client.arm().unwrap_err(), client.compl_fd().unwrap_err()];
        for error in errors {
            assert!(matches!(error, CqError::NotSharedChannel), "{error:?}");
            assert_eq!(error.code(), ErrorCode::NotSharedChannel);
        }
        still_works(&pair);
    }
}

#[test]
fn pending_connection_is_told_the_same() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, _incoming) = request(&peer, &endpoint, &[]);
    assert!(matches!(pending.wait(LIMIT), Err(CqError::NotSharedChannel)));
    let cfg = cfg().shared_channel(true);
    let pending = ConnReq::new(&peer, endpoint.local_addr().unwrap(), &cfg).unwrap().connect(&[]).unwrap();
    assert!(matches!(pending.wait(Wait::Now), Err(CqError::NoCompletion)));
    assert!(matches!(pending.cq().wait(LIMIT), Err(CqError::SharedChannel)));
}

#[test]
fn wait_tells_in_which_queue_the_completion_was() {
    let Pair { client, server } = pair();
    client.recv(LocalSlice::null(), 1).unwrap();
    server.recv(LocalSlice::null(), 2).unwrap();
    nothing(&server, 3);
    assert_eq!(client.wait(LIMIT).map(|(role, completion)| (role, completion.context())).unwrap(), (CqRole::Receive, 1));
    nothing(&client, 4);
    assert_eq!(client.wait(LIMIT).map(|(role, completion)| (role, completion.context())).unwrap(), (CqRole::Main, 4));
    let both: BTreeSet<_> = (0..2)
        .map(|_| {
            let (role, completion) = server.wait(LIMIT).unwrap();
            completion.result().unwrap();
            (role == CqRole::Receive, completion.context())
        })
        .collect();
    assert_eq!(both, BTreeSet::from([(true, 2), (false, 3)]));
    let error = client.wait(Duration::from_millis(20)).unwrap_err();
    assert_eq!((matches!(error, CqError::NoCompletion), error.code()), (true, ErrorCode::NoCompletion));
}

#[test]
fn channel_of_a_connection_without_a_receive_cq_tells_of_its_only_queue() {
    let Pair { client, server } = pair_of(&cfg().shared_channel(true));
    assert!(client.rcq().is_none());
    client.recv(LocalSlice::null(), 1).unwrap();
    nothing(&server, 2);
    assert_eq!(client.wait(LIMIT).map(|(role, completion)| (role, completion.context())).unwrap(), (CqRole::Main, 1));
    assert!(matches!(client.cq().wait(LIMIT), Err(CqError::SharedChannel)));
}

#[test]
fn receive_cq_that_is_never_empty_does_not_keep_the_main_one_s_completion_back() {
    let Pair { client, server } = pair();
    // The server's completion says that the client's device has the message.
    let send = move || {
        nothing(&server, 0);
        server.wait(LIMIT).unwrap().1.result().unwrap();
    };
    for _ in 0..4 {
        client.recv(LocalSlice::null(), 1).unwrap();
        send();
    }
    client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 2).unwrap();
    in_time(move || {
        while client.wait(LIMIT).unwrap().0 == CqRole::Receive {
            client.recv(LocalSlice::null(), 1).unwrap();
            send();
        }
    });
}

#[test]
fn armed_channel_is_readable_after_a_completion_in_either_queue_and_tells_which() {
    let Pair { client, server } = pair();
    let channel = client.compl_fd().unwrap();
    assert_eq!(channel.as_raw_fd(), std::os::fd::AsFd::as_fd(&client.cq()).as_raw_fd());
    assert_eq!(client.arm().unwrap(), Fired::default());
    for n in 0..20 {
        assert!(!is_readable(&channel, Duration::ZERO));
        if n % 2 == 0 {
            client.recv(LocalSlice::null(), n).unwrap();
            nothing(&server, n);
            assert!(is_readable(&channel, LIMIT));
            assert_eq!(client.arm().unwrap(), Fired { main: false, receive: true });
            assert_eq!(client.rcq().unwrap().poll().unwrap().unwrap().context(), n);
        } else {
            client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, n).unwrap();
            assert!(is_readable(&channel, LIMIT));
            assert_eq!(client.arm().unwrap(), Fired { main: true, receive: false });
            assert_eq!(client.cq().poll().unwrap().unwrap().context(), n);
        }
    }
}

/// Each side waits for the other's message, so that most completions come while it is between polling and sleeping.
#[test]
fn completion_of_either_queue_that_comes_between_polling_and_arming_is_never_missed() {
    const ROUNDS: u64 = 2_000;
    let Pair { client, server } = pair();
    let play = |conn: &Conn, serves: bool| {
        conn.recv(LocalSlice::null(), 1).unwrap();
        if serves {
            nothing(conn, 2);
        }
        let (mut sent, mut got) = (0, 0);
        while got < ROUNDS || sent < ROUNDS {
            let (role, completion) = conn.wait(LIMIT).unwrap();
            completion.result().unwrap();
            match role {
                CqRole::Receive => {
                    got += 1;
                    conn.recv(LocalSlice::null(), 1).unwrap();
                    if got < ROUNDS || !serves {
                        nothing(conn, 2);
                    }
                }
                CqRole::Main => sent += 1,
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&server, false));
        play(&client, true);
    });
    // The events of both queues are acknowledged, or this would not end.
    in_time(|| drop((client, server)));
}

#[test]
fn every_completion_reaches_one_of_several_threads_that_wait_and_the_end_reaches_all() {
    const MESSAGES: u32 = 500;
    let Pair { client, server } = pair();
    for _ in 0..cfg().get_rq_size() {
        client.recv(LocalSlice::null(), 0).unwrap();
    }
    let seen = Mutex::new(Vec::new());
    in_time(move || {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let (role, completion) = match client.wait(Wait::Forever) {
                            Ok(found) => found,
                            Err(CqError::Drained) => break,
                            Err(e) => panic!("{e:?}"),
                        };
                        assert_eq!(role, CqRole::Receive);
                        if let Ok(received) = completion.received() {
                            seen.lock().unwrap().push(received.unwrap().imm.unwrap());
                            client.recv(LocalSlice::null(), 0).unwrap();
                        }
                    }
                });
            }
            for n in 0..MESSAGES {
                server.send_with_imm(LocalSlice::null(), n, Signal::Always, n.into()).unwrap();
                assert_eq!(server.wait(LIMIT).unwrap().1.context(), n.into());
            }
            server.disconnect().unwrap();
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
    });
}

#[test]
fn closing_wakes_who_waits_for_the_channel() {
    let pair = pair();
    in_time(move || {
        let client = &pair.client;
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| client.wait(Wait::Forever))).collect();
            client.close();
            for waiting in waiting {
                assert!(matches!(waiting.join().unwrap(), Err(CqError::Closed)));
            }
        });
    });
}
