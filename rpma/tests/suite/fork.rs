//! A child of a process with connections and regions: it may do what it likes, and its parent notices nothing.
#![expect(unsafe_code, reason = "fork(2), which no safe wrapper can offer")]

use std::fs::File;
use std::io::{Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rpma::prelude::*;
use rpma::tokio::Async;
use rpma::{
    AccessError, CqError, DeregisterError, DeviceEventError, DeviceEvents, Dispatcher, EventError, PostError, RegisterError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal as Kill, WaitOptions, kill_process, pidfd_open, waitpid};
use tokio::time::timeout;

use super::device_events::{connections, end, ended, take_all};
use super::executor::polled_once;
use crate::support::{
    LIMIT, Pair, SetOnDrop, alone, cfg, complete, is_readable, known, listen, peer, readable, received, region, remote,
    still_works,
};

/// Forks, runs `body` in the child, and fails with what it says if it panics. The child ends as a process does that returns from main:
/// by `exit(3)`, with all that this runs.
fn in_a_child(body: impl FnOnce()) {
    let (told, tells) = rustix::pipe::pipe().unwrap();
    // SAFETY: the caller runs `alone`: no other thread of this process holds a lock that the child would miss, or none but those of which
    // the test is that the child takes none. (The C library takes care of its own.)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let panicked = panic::catch_unwind(AssertUnwindSafe(body)).err();
        if let Some(panicked) = &panicked {
            let text = panicked.downcast_ref::<String>().map(String::as_str).or(panicked.downcast_ref::<&str>().copied());
            let _parent_sees_the_status = File::from(tells).write_all(text.unwrap_or("a panic").as_bytes());
        }
        std::process::exit(i32::from(panicked.is_some()));
    }
    drop(tells);
    let child = Pid::from_raw(pid).unwrap();
    let ended = pidfd_open(child, PidfdFlags::empty()).unwrap();
    let limit = Timespec::try_from(LIMIT).unwrap();
    if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)).unwrap() == 0 {
        kill_process(child, Kill::KILL).unwrap();
        panic!("the child hangs");
    }
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    let mut text = String::new();
    File::from(told).read_to_string(&mut text).unwrap();
    assert_eq!(status.exit_status(), Some(0), "the child: {status:?}: {text}");
}

const USAGE: Usage =
    Usage::READ_SRC.union(Usage::READ_DST).union(Usage::WRITE_SRC).union(Usage::WRITE_DST).union(Usage::SEND).union(Usage::RECV);

#[test]
fn child_that_drops_everything_and_allocates_changes_nothing_for_its_parent() {
    alone(|| {
        let pair = Pair::new();
        let (here, there) = (region(pair.client.peer(), 4096, USAGE), region(pair.server.peer(), 4096, USAGE));
        let (endpoint, addr) = listen(pair.server.peer());
        let (near, far) = (here.slice(0..8).unwrap(), remote(&there).slice(0..8).unwrap());
        pair.server.recv(there.slice(8..16).unwrap(), 1).unwrap();

        let mut all = Some((pair, endpoint));
        in_a_child(|| {
            drop(all.take());
            let memory = vec![1_u8; 8 << 20];
            assert_eq!(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 8 << 20);
        });
        let (pair, endpoint) = all.unwrap();
        here.write_at(0, b"parent's").unwrap();
        pair.client.write(far, near, Signal::Always, 2).unwrap();
        complete(&pair.client, 2);
        pair.client.send(near, Signal::Always, 3).unwrap();
        complete(&pair.client, 3);
        assert_eq!(received(&pair.server, 1).len_bytes, 8);
        assert_eq!(crate::support::bytes(&there, 0, 16), b"parent'sparent's");
        still_works(&pair);
        let _another = ConnReq::new(pair.client.peer(), addr, &cfg()).unwrap().connect(&[]).unwrap();
        drop(endpoint.next_conn_req(&cfg(), LIMIT).unwrap());
    });
}

#[test]
fn child_that_drops_what_a_task_of_its_parent_waits_for_leaves_it_waiting() {
    alone(|| {
        let peer = peer();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dispatcher = Dispatcher::new(&peer).unwrap();
        let alone = Pair::connect(&peer, &cfg(), &peer, &cfg());
        let dispatched = Pair::connect(&peer, &cfg(), &peer, &cfg().dispatcher(&dispatcher));
        let _entered = runtime.enter();
        let mut waiting = (Async::new(alone.server.cq()).unwrap(), Async::new(dispatcher).unwrap());
        assert!(polled_once(waiting.0.wait()).is_pending() && polled_once(waiting.1.wait()).is_pending());
        let mut all = Some((alone, dispatched, waiting));
        in_a_child(|| {
            let (alone, dispatched, waiting) = all.take().unwrap();
            assert!(matches!(Dispatcher::wait(&waiting.1, Wait::Now), Err(CqError::Provider(_))));
            drop((alone, dispatched, waiting));
        });
        let (alone, dispatched, mut waiting) = all.unwrap();
        for Pair { client, server } in [&alone, &dispatched] {
            server.recv(LocalSlice::null(), 1).unwrap();
            client.send(LocalSlice::null(), Signal::Always, 2).unwrap();
            complete(client, 2);
        }
        runtime.block_on(async {
            assert_eq!(timeout(LIMIT, waiting.0.wait()).await.unwrap().unwrap().context(), 1);
            assert_eq!(timeout(LIMIT, waiting.1.wait()).await.unwrap().unwrap().found.unwrap().1.context(), 1);
            // The end comes by the connection's events, which the dispatcher watches itself.
            dispatched.client.disconnect().unwrap();
            let end = timeout(LIMIT, waiting.1.wait()).await.unwrap().unwrap();
            assert!(matches!(end.found, Err(CqError::Drained)), "{end:?}");
        });
    });
}

#[test]
fn regions_dropped_in_a_child_stay_registered_in_its_parent() {
    alone(|| {
        let pair = Pair::new();
        let there = region(pair.server.peer(), 4096, USAGE);
        let far = remote(&there).slice(0..8).unwrap();
        let here = region(pair.client.peer(), 4096, USAGE);
        let mut regions = Some((here, there));
        in_a_child(|| drop(regions.take()));
        let (here, _there) = regions.unwrap();
        pair.client.write(far, here.slice(0..8).unwrap(), Signal::Always, 1).unwrap();
        complete(&pair.client, 1);
    });
}

#[test]
fn calls_in_a_child_are_errors_and_its_parent_notices_none_of_them() {
    alone(|| {
        let pair = Pair::new();
        let Pair { client, server } = &pair;
        let (here, there) = (region(client.peer(), 4096, USAGE), region(server.peer(), 4096, USAGE));
        let (endpoint, addr) = listen(server.peer());
        let mut lost = Some(region(client.peer(), 4096, USAGE));
        in_a_child(|| {
            let (near, far) = (here.slice(0..8).unwrap(), remote(&there).slice(0..8).unwrap());
            for refusal in [
                client.write(far, near, Signal::Always, 1),
                client.read(near, far, Signal::Always, 1),
                client.atomic_write(far, [0; 8], Signal::Always, 1),
                client.send(near, Signal::Always, 1),
                client.recv(near, 1),
            ] {
                assert!(matches!(refusal.unwrap_err(), PostError::Provider { .. }));
            }
            assert!(client.cq().poll().is_err() && client.cq().wait(Wait::Now).is_err() && client.cq().arm().is_err());
            assert!(matches!(client.next_event(Wait::Now), Err(EventError::Provider(_))));
            assert!(client.disconnect().is_err());
            assert!(endpoint.next_request(Wait::Now).is_err());
            assert!(Endpoint::listen(client.peer(), addr).is_err());
            assert!(ConnReq::new(client.peer(), addr, &cfg()).is_err());
            assert_eq!(here.read_at(0, &mut [0; 8]), Err(AccessError::OtherProcess));
            assert_eq!(here.write_at(0, &[0; 8]), Err(AccessError::OtherProcess));
            assert!(matches!(lost.take().unwrap().deregister(), Err(DeregisterError::OtherProcess)));
            let refused = client.peer().register(AnonPages::new(4096).unwrap(), Usage::SEND).unwrap_err();
            assert!(matches!(refused.error, RegisterError::Provider { .. }), "{refused:?}");
            client.close();
            endpoint.close();
        });
        // Not a wake-up too many, not an event.
        for conn in [client, server] {
            let mut fds = [PollFd::new(conn, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0);
            assert!(matches!(conn.next_event(Wait::Now), Err(EventError::NoEvent)));
        }
        assert!(matches!(endpoint.next_request(Wait::Now), Err(rpma::RequestError::NoRequest)));
        lost.take().unwrap().deregister().unwrap();
        still_works(&pair);
    });
}

#[test]
fn events_of_a_device_are_errors_in_a_child_and_its_parent_is_told_them_all_the_same() {
    alone(|| {
        let peer = peer();
        let events = DeviceEvents::of(peer.device()).unwrap();
        let (pairs, mut expected) = connections(&peer, 1);
        take_all(&events);
        end(&pairs);
        if known().last_receive_event {
            readable(&events);
        } else {
            expected.clear();
        }
        let mut all = Some(events);
        in_a_child(|| {
            let events = all.take().unwrap();
            let error = events.next_event(Wait::Forever).unwrap_err();
            assert!(matches!(error, DeviceEventError::Provider(_)), "{error:?}");
            assert!(matches!(DeviceEvents::of(peer.device()), Err(DeviceEventError::Provider(_))));
            events.close();
            assert!(matches!(events.next_event(Wait::Now), Err(DeviceEventError::Closed)));
        });
        let events = all.unwrap();
        while !expected.is_empty() {
            if let Some(number) = ended(events.next_event(LIMIT).unwrap()) {
                assert!(expected.remove(&number), "told twice, or another's: {number}");
            }
        }
        take_all(&events);
        // Closed in the child alone.
        assert!(!is_readable(&events, Duration::ZERO));
        assert!(matches!(events.next_event(Wait::Now), Err(DeviceEventError::NoEvent)));
    });
}

#[test]
fn child_of_a_busy_parent_meets_no_lock_of_its_threads() {
    alone(|| {
        let peer = peer();
        let dispatcher = Dispatcher::new(&peer).unwrap();
        let Pair { client, server } = Pair::connect(&peer, &cfg(), &peer, &cfg().dispatcher(&dispatcher));
        let there = RemoteSlice::NULL;
        let over = AtomicBool::new(false);
        let until_over = |body: &dyn Fn()| {
            while !over.load(Ordering::Relaxed) {
                body();
            }
        };
        thread::scope(|scope| {
            let _over = SetOnDrop(&over);
            // They take what a child must not wait for, again and again.
            scope.spawn(|| until_over(&|| drop(client.cq().wait(Wait::Now).unwrap_err())));
            scope.spawn(|| until_over(&|| drop(client.next_event(Wait::Now).unwrap_err())));
            scope.spawn(|| until_over(&|| client.apply_remote_peer_cfg(PeerCfg::new())));
            scope.spawn(|| until_over(&|| drop(dispatcher.wait(Wait::Now).unwrap_err())));
            for _ in 0..20 {
                in_a_child(|| {
                    assert!(client.cq().wait(Wait::Now).is_err() && client.next_event(Wait::Now).is_err());
                    let _path = (client.flush_path(), client.atomic_write_path());
                    assert!(client.flush(there, FlushType::Visibility, Signal::Always, 1).is_err());
                    client.close();
                    assert!(dispatcher.wait(Wait::Now).is_err());
                    server.close();
                    dispatcher.close();
                });
            }
        });
    });
}

#[test]
fn process_forked_before_it_used_rdma_can_use_it() {
    alone(|| in_a_child(|| still_works(&Pair::new())));
}

#[test]
fn objects_of_the_parent_work_after_a_child_that_used_rdma_itself() {
    alone(|| {
        let peer = peer();
        let target = region(&peer, 4096, USAGE);
        in_a_child(|| {
            let own = region(&crate::support::peer(), 4096, USAGE);
            own.write_at(0, &[1]).unwrap();
            drop(own);
        });
        target.write_at(0, &[2]).unwrap();
        target.deregister().unwrap();
    });
}

#[test]
fn shared_queues_dropped_in_a_child_still_serve_their_parent() {
    alone(|| {
        let (client, server) = (peer(), peer());
        let srq = server.new_srq(&SrqCfg::new()).unwrap();
        srq.recv(LocalSlice::null(), 1).unwrap();
        let pair = Pair::connect(&client, &cfg().rcq_size(1).shared_channel(true), &server, &cfg().srq(&srq));
        let mut all = Some((pair, srq));
        in_a_child(|| {
            let (pair, srq) = all.as_ref().unwrap();
            assert!(matches!(srq.recv(LocalSlice::null(), 2), Err(PostError::Provider { .. })));
            assert!(srq.rcq().unwrap().wait(Wait::Now).is_err());
            assert!(matches!(pair.client.wait(Wait::Now), Err(CqError::Provider(_))));
            assert!(matches!(pair.client.arm(), Err(CqError::Provider(_))));
            drop(all.take());
        });
        let (Pair { client, server }, srq) = all.unwrap();
        client.send(LocalSlice::null(), Signal::Always, 3).unwrap();
        assert_eq!(client.wait(LIMIT).unwrap().1.context(), 3);
        let completion = srq.rcq().unwrap().wait(LIMIT).unwrap();
        assert_eq!((completion.context(), completion.qp_num()), (1, server.qp_num()));
        completion.result().unwrap();
    });
}
