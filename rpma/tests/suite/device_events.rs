//! Asynchronous events of a device. A process has one stream of them per device, so each test that takes some is alone in its process.

use std::collections::BTreeSet;
use std::thread;

use rpma::prelude::*;
use rpma::sys::testing::{Call, FailingProvider, Plan};
use rpma::{DeviceEvent, DeviceEventError, DeviceEventKind, DeviceEventSubject, DeviceEvents, ErrorCode};

use super::executor::{Async, block_on, block_on_dropped, polled_once};
use super::futures::next;
use crate::support::{LIMIT, Pair, alone, cfg, is_readable, known, peer, peer_over, provider, readable, region, still_works};

/// Takes events until one of this kind, and returns it.
fn next_of(events: &DeviceEvents, kind: DeviceEventKind) -> DeviceEvent {
    loop {
        let event = events.next_event(LIMIT).unwrap();
        if event.kind() == kind {
            return event;
        }
    }
}

/// Takes all events that are there.
pub(crate) fn take_all(events: &DeviceEvents) {
    while events.next_event(Wait::Now).is_ok() {}
}

#[test]
fn end_of_a_connection_on_a_shared_queue_is_told_with_its_number_where_the_device_tells_it() {
    alone(|| {
        let peer = peer();
        let events = DeviceEvents::of(peer.device()).unwrap();
        let srq = peer.new_srq(&SrqCfg::new()).unwrap();
        let (ends, stays) =
            (Pair::connect(&peer, &cfg(), &peer, &cfg().srq(&srq)), Pair::connect(&peer, &cfg(), &peer, &cfg().srq(&srq)));
        let inbox = region(&peer, 8, Usage::RECV);
        srq.recv(inbox.all(), 1).unwrap();
        take_all(&events);

        ends.client.disconnect().unwrap();
        assert_eq!(ends.server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        if !known().last_receive_event {
            // Pinned, so that it is noticed when a kernel begins to tell it.
            let more = std::iter::from_fn(|| events.next_event(Duration::from_secs(1)).ok());
            assert_eq!(more.filter(|event| event.kind() == DeviceEventKind::LastReceive).count(), 0);
            return still_works(&stays);
        }
        readable(&events);
        let last = next_of(&events, DeviceEventKind::LastReceive);
        assert_eq!(last.subject(), DeviceEventSubject::Qp(ends.server.qp_num()));
        assert!(!last.is_about_srq(&srq) && !last.is_about_cq(&ends.server.cq()));
        still_works(&stays);
        // What it was about can be dropped, whether or not more of its events are there.
        drop(ends);
        drop(events);
        still_works(&stays);
    });
}

#[test]
fn no_event_is_told_as_such_and_the_descriptor_is_quiet() {
    alone(|| {
        let peer = peer();
        let events = DeviceEvents::of(peer.device()).unwrap();
        assert!(events.device().is_same_as(peer.device()));
        take_all(&events);
        let error = events.next_event(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, DeviceEventError::NoEvent), "{error:?}");
        assert_eq!(error.code(), ErrorCode::NoEvent);
        assert!(!is_readable(&events, Duration::ZERO));
    });
}

#[test]
fn event_that_the_provider_refuses_is_an_error_with_its_errno_and_the_stream_goes_on() {
    alone(|| {
        let failing = FailingProvider::new(provider());
        let peer = peer_over(&failing.provider());
        let events = DeviceEvents::of(peer.device()).unwrap();
        take_all(&events);
        failing.arm(Plan::nth_of(Call::ibv_get_async_event, 0, libc::EIO));
        let error = events.next_event(Wait::Forever).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Provider);
        let DeviceEventError::Provider(source) = error else { panic!("{error:?}") };
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        assert!(matches!(events.next_event(Wait::Now), Err(DeviceEventError::NoEvent)));
    });
}

#[test]
fn closing_wakes_who_waits_for_events() {
    alone(|| {
        let events = DeviceEvents::of(peer().device()).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    if let Err(e) = events.next_event(Wait::Forever) {
                        return e;
                    }
                }
            });
            events.close();
            assert!(matches!(waiting.join().unwrap(), DeviceEventError::Closed));
        });
        readable(&events);
        assert!(matches!(events.next_event(Wait::Now), Err(DeviceEventError::Closed)));
    });
}

/// Connections of `peer` whose ends are events of its device, where the device tells them, and their numbers.
pub(crate) fn connections(peer: &Peer, count: usize) -> (Vec<Pair>, BTreeSet<u32>) {
    let srq = peer.new_srq(&SrqCfg::new()).unwrap();
    let pairs: Vec<_> = (0..count).map(|_| Pair::connect(peer, &cfg(), peer, &cfg().srq(&srq))).collect();
    let numbers = pairs.iter().map(|pair| pair.server.qp_num()).collect();
    (pairs, numbers)
}

/// Ends connections of [`connections`].
pub(crate) fn end(pairs: &[Pair]) {
    for Pair { client, server } in pairs {
        client.disconnect().unwrap();
        assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    }
}

/// Whose end an event tells.
pub(crate) fn ended(event: DeviceEvent) -> Option<u32> {
    match (event.kind(), event.subject()) {
        (DeviceEventKind::LastReceive, DeviceEventSubject::Qp(number)) => Some(number),
        _ => None,
    }
}

#[test]
fn task_is_told_every_event_although_each_future_is_dropped_after_one_poll() {
    alone(|| {
        let peer = peer();
        let mut events = Async::new(DeviceEvents::of(peer.device()).unwrap()).unwrap();
        let (pairs, mut expected) = connections(&peer, 3);
        take_all(&events);
        assert!(polled_once(events.next_event()).is_pending());
        end(&pairs);
        if !known().last_receive_event {
            expected.clear();
        }
        while !expected.is_empty() {
            let event = block_on_dropped(async || events.next_event().await).unwrap();
            if let Some(number) = ended(event) {
                assert!(expected.remove(&number), "told twice, or another's: {number}");
            }
        }
        take_all(&events);
        assert!(polled_once(events.next_event()).is_pending());
    });
}

#[test]
fn closing_wakes_tasks_and_threads_that_wait_for_events_by_handles_of_their_own() {
    alone(|| {
        let events = DeviceEvents::of(peer().device()).unwrap();
        let mut first = Async::new(events.clone()).unwrap();
        assert!(polled_once(first.next_event()).is_pending());
        thread::scope(|scope| {
            let task = scope.spawn(|| {
                let mut events = Async::new(events.clone()).unwrap();
                block_on(next(&mut events)).is_none()
            });
            let waiting = events.clone();
            let thread = scope.spawn(move || matches!(waiting.next_event(Wait::Forever), Err(DeviceEventError::Closed)));
            events.close();
            assert!(task.join().unwrap() && thread.join().unwrap());
        });
        assert!(matches!(block_on(first.next_event()), Err(DeviceEventError::Closed)));
    });
}
