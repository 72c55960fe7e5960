//! Waiting on tokio: the feature `tokio`.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::Stream;
use rpma::prelude::*;
use rpma::sys::testing::{Call, FailingProvider, Plan};
use rpma::tokio::{Async, start};
use rpma::{CqError, DeviceEventError, DeviceEvents, Dispatcher, Operation};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::death::{fill, requested_by_a_process};
use super::device_events::{connections, end, ended, take_all};
use super::executor::polled_once;
use crate::support::{LIMIT, Pair, alone, cfg, complete, in_time, known, listen, peer, peer_over, provider, readable};

/// A runtime of one thread, and one of several.
fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()].map(|mut builder| builder.enable_all().build().unwrap())
}

/// Runs `body` on both runtimes, and fails if it takes longer than anything takes that works.
fn on_both<F: Future<Output = ()>>(body: impl Fn() -> F) {
    for runtime in runtimes() {
        runtime.block_on(async { timeout(LIMIT, body()).await.expect("in time") });
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// Answers each message with its number plus one, until the client has gone.
async fn serve(request: ConnReq<Incoming>) {
    for _ in 0..cfg().get_rq_size() {
        request.recv(LocalSlice::null(), 0).unwrap();
    }
    let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
    let conn = Async::new(pending.established().await.unwrap()).unwrap();
    let mut completions = conn.completions().unwrap();
    while let Some(completion) = next(&mut completions).await {
        let completion = completion.unwrap();
        if let Ok(Some(received)) = completion.received() {
            conn.recv(LocalSlice::null(), 0).unwrap();
            conn.send_with_imm(LocalSlice::null(), received.imm.unwrap() + 1, Signal::Always, 0).unwrap();
        }
    }
    conn.disconnect().unwrap();
}

/// Sends `messages` numbers, and expects the next one back each time.
async fn play(peer: Peer, addr: String, messages: u32) {
    let request = start(&peer, addr, &cfg()).await.unwrap();
    let mut pending = Async::new(request.connect(&[]).unwrap()).unwrap();
    let mut conn = Async::new(pending.established().await.unwrap()).unwrap();
    let mut completions = conn.completions().unwrap();
    for n in 0..messages {
        conn.recv(LocalSlice::null(), 0).unwrap();
        conn.send_with_imm(LocalSlice::null(), n, Signal::Always, 0).unwrap();
        let mut answers = Vec::new();
        for _ in 0..2 {
            let completion = completions.wait().await.unwrap();
            completion.result().unwrap();
            answers.extend(completion.received().unwrap().map(|received| received.imm));
        }
        assert_eq!(answers, [Some(n + 1)]);
    }
    conn.disconnect().unwrap();
    assert!(next(&mut completions).await.is_none());
    assert_eq!(conn.next_event().await.unwrap(), ConnEvent::Closed);
}

#[test]
fn many_connections_are_served_at_once_by_one_thread_and_by_several() {
    const CLIENTS: usize = 16;
    on_both(|| async {
        let peer = peer();
        let (endpoint, addr) = listen(&peer);
        let mut endpoint = Async::new(endpoint).unwrap();
        let serving = tokio::spawn(async move {
            let mut served = Vec::new();
            for _ in 0..CLIENTS {
                served.push(tokio::spawn(serve(endpoint.next_conn_req(&cfg()).await.unwrap())));
            }
            for task in served {
                task.await.unwrap();
            }
        });
        let playing: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(play(peer.clone(), addr.to_string(), 50))).collect();
        for task in playing {
            task.await.unwrap();
        }
        serving.await.unwrap();
    });
}

#[test]
fn killed_peer_wakes_every_task() {
    requested_by_a_process(|request, mut other| {
        let conn = request.connect(&[]).unwrap().established(LIMIT).unwrap();
        let outstanding = fill(&conn);
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let mut completions = Async::new(conn.cq()).unwrap();
                    tokio::spawn(async move {
                        let mut failed = 0;
                        while let Some(completion) = next(&mut completions).await {
                            assert!(completion.unwrap().result().is_err());
                            failed += 1;
                        }
                        failed
                    })
                })
                .collect();
            // Each of them waits, before the peer is killed.
            tokio::task::yield_now().await;
            other.kill();
            let mut failed = 0;
            for task in waiting {
                failed += timeout(LIMIT, task).await.expect("in time").unwrap();
            }
            assert_eq!(failed, outstanding.count);
            assert_eq!(Async::new(conn.clone()).unwrap().next_event().await.unwrap(), ConnEvent::Closed);
        });
    });
}

#[test]
fn dispatcher_s_task_is_told_what_lies_behind_the_events_of_many_connections() {
    // They need many descriptors.
    alone(|| {
        const CLIENTS: usize = 70;
        let peer = peer();
        let dispatcher = Dispatcher::new(&peer).unwrap();
        let server_cfg = cfg().dispatcher(&dispatcher);
        let Pair { client, server } = Pair::connect(&peer, &cfg(), &peer, &server_cfg);
        server.recv(LocalSlice::null(), 7).unwrap();
        let (endpoint, addr) = listen(&peer);
        let asking: Vec<_> = (0..CLIENTS).map(|_| ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap()).collect();
        let requests: Vec<_> = (0..CLIENTS).map(|_| endpoint.next_conn_req(&server_cfg, LIMIT).unwrap()).collect();
        let [runtime, _] = runtimes();
        let _entered = runtime.enter();
        let mut waiting = Async::new(dispatcher).unwrap();
        assert!(polled_once(waiting.wait()).is_pending());
        // Of each its ESTABLISHED, which nobody has read: nothing that a task is told.
        let accepted: Vec<_> = requests.into_iter().map(|request| request.connect(&[]).unwrap()).collect();
        let clients: Vec<_> = asking.iter().map(|asking| asking.established(LIMIT).unwrap()).collect();
        accepted.iter().for_each(readable);
        client.send(LocalSlice::null(), Signal::Always, 1).unwrap();
        complete(&client, 1);
        let dispatched = runtime.block_on(async { timeout(LIMIT, waiting.wait()).await }).expect("in time").unwrap();
        assert_eq!((dispatched.qp_num, dispatched.found.unwrap().1.context()), (server.qp_num(), 7));
        drop(clients);
    });
}

#[test]
fn failure_to_read_what_woke_a_task_is_an_error_and_loses_nothing() {
    for call in [Call::ibv_get_cq_event, Call::rdma_get_cm_event] {
        on_both(|| async {
            let failing = FailingProvider::new(provider());
            let Pair { client, server } = Pair::connect(&peer(), &cfg(), &peer_over(&failing.provider()), &cfg());
            let mut completions = Async::new(server.cq()).unwrap();
            assert!(polled_once(completions.wait()).is_pending());
            failing.arm(Plan::nth_of(call, 0, libc::EIO));
            // Nothing is outstanding that would wake it once more.
            client.disconnect().unwrap();
            let error = completions.wait().await.unwrap_err();
            assert!(matches!(&error, CqError::Wait(e) if e.raw_os_error() == Some(libc::EIO)), "{error:?}");
            assert_eq!(failing.fired(), [call]);
            assert!(matches!(completions.wait().await, Err(CqError::Drained)));
        });
    }
}

#[test]
fn failure_to_read_what_woke_a_dispatcher_s_task_is_told_and_loses_nothing() {
    for call in [Call::ibv_get_cq_event, Call::rdma_get_cm_event] {
        on_both(|| async {
            let failing = FailingProvider::new(provider());
            let peer_that_fails = peer_over(&failing.provider());
            let dispatcher = Dispatcher::new(&peer_that_fails).unwrap();
            let Pair { client, server } = Pair::connect(&peer(), &cfg(), &peer_that_fails, &cfg().dispatcher(&dispatcher));
            let mut waiting = Async::new(dispatcher).unwrap();
            server.recv(LocalSlice::null(), 5).unwrap();
            assert!(polled_once(waiting.wait()).is_pending());
            failing.arm(Plan::nth_of(call, 0, libc::EIO));
            if call == Call::ibv_get_cq_event {
                client.send(LocalSlice::null(), Signal::Always, 1).unwrap();
                complete(&client, 1);
                // Of the channel of all connections.
                let error = waiting.wait().await.unwrap_err();
                assert!(matches!(&error, CqError::Wait(e) if e.raw_os_error() == Some(libc::EIO)), "{error:?}");
            } else {
                client.disconnect().unwrap();
                let told = waiting.wait().await.unwrap();
                assert_eq!(told.qp_num, server.qp_num());
                assert!(matches!(&told.found, Err(CqError::Wait(e)) if e.raw_os_error() == Some(libc::EIO)), "{told:?}");
            }
            assert_eq!(failing.fired(), [call]);
            let told = waiting.wait().await.unwrap();
            assert_eq!((told.qp_num, told.found.unwrap().1.context()), (server.qp_num(), 5));
        });
    }
}

#[test]
fn each_event_of_a_device_reaches_one_of_several_tasks_and_closing_ends_all() {
    alone(|| {
        on_both(|| async {
            let peer = peer();
            let events = DeviceEvents::of(peer.device()).unwrap();
            let told = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let (mut events, told) = (Async::new(events.clone()).unwrap(), Arc::clone(&told));
                    tokio::spawn(async move {
                        while let Some(event) = next(&mut events).await {
                            told.lock().unwrap().extend(ended(event.unwrap()));
                        }
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            let (pairs, mut expected) = connections(&peer, 5);
            end(&pairs);
            if !known().last_receive_event {
                expected.clear();
            }
            while told.lock().unwrap().len() < expected.len() {
                tokio::task::yield_now().await;
            }
            events.close();
            for task in tasks {
                task.await.unwrap();
            }
            let mut told = told.lock().unwrap().clone();
            told.sort_unstable();
            assert_eq!(told, Vec::from_iter(expected));
        });
    });
}

#[test]
fn failure_to_read_the_event_of_a_device_that_woke_a_task_is_an_error_and_loses_nothing() {
    alone(|| {
        on_both(|| async {
            let failing = FailingProvider::new(provider());
            let peer = peer_over(&failing.provider());
            let mut events = Async::new(DeviceEvents::of(peer.device()).unwrap()).unwrap();
            let (pairs, expected) = connections(&peer, 1);
            take_all(&events);
            assert!(polled_once(events.next_event()).is_pending());
            failing.arm(Plan::nth_of(Call::ibv_get_async_event, 0, libc::EIO));
            end(&pairs);
            let error = events.next_event().await.unwrap_err();
            assert!(matches!(&error, DeviceEventError::Provider(e) if e.raw_os_error() == Some(libc::EIO)), "{error:?}");
            assert_eq!(failing.fired(), [Call::ibv_get_async_event]);
            if !known().last_receive_event {
                return assert!(polled_once(events.next_event()).is_pending());
            }
            let number = loop {
                if let Some(number) = ended(events.next_event().await.unwrap()) {
                    break number;
                }
            };
            assert!(expected.contains(&number));
        });
    });
}

#[test]
fn waiting_that_runs_out_of_time_again_and_again_loses_nothing() {
    on_both(|| async {
        const MESSAGES: u32 = 300;
        let Pair { client, server } = Pair::new();
        for _ in 0..cfg().get_rq_size() {
            server.recv(LocalSlice::null(), 0).unwrap();
        }
        let sending = tokio::task::spawn_blocking(move || {
            for n in 0..MESSAGES {
                client.send_with_imm(LocalSlice::null(), n, Signal::Always, n.into()).unwrap();
                complete(&client, n.into());
            }
            client
        });
        let mut completions = Async::new(server.cq()).unwrap();
        for n in 0..MESSAGES {
            let completion = loop {
                // Between the times another task runs, so that the future is dropped in every state.
                match timeout(Duration::from_micros(u64::from(n % 3)), completions.wait()).await {
                    Ok(completion) => break completion.unwrap(),
                    Err(_over) => tokio::task::yield_now().await,
                }
            };
            assert_eq!((completion.operation(), completion.received().unwrap().unwrap().imm), (Operation::Recv, Some(n)));
            server.recv(LocalSlice::null(), 0).unwrap();
        }
        drop(sending.await.unwrap());
    });
}

#[test]
fn task_that_is_aborted_leaves_its_connection_to_the_other_handles() {
    let Pair { client, server } = Pair::new();
    let [runtime, _] = runtimes();
    client.recv(LocalSlice::null(), 1).unwrap();
    runtime.block_on(async {
        let mut completions = Async::new(client.cq()).unwrap();
        let task = tokio::spawn(async move { completions.wait().await });
        tokio::task::yield_now().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    });
    drop(runtime);
    server.send(LocalSlice::null(), Signal::Always, 2).unwrap();
    complete(&server, 2);
    complete(&client, 1);
}

#[test]
fn runtime_that_was_dropped_ends_the_waiting_with_an_error() {
    let Pair { client, server: _server } = Pair::new();
    let [runtime, other] = runtimes();
    let mut completions = {
        let _entered = runtime.enter();
        Async::new(client.cq()).unwrap()
    };
    drop(runtime);
    let error = in_time(move || other.block_on(completions.wait()).unwrap_err());
    assert!(matches!(error, CqError::Wait(_)), "{error:?}");
}

#[test]
fn object_is_not_watched_where_there_is_no_runtime() {
    let Pair { client, server: _server } = Pair::new();
    assert!(Async::new(client.cq()).is_err());
}
