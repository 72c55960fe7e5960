//! Asynchronous events of a device. A process has one stream of them per device, so each test that takes some is alone in its process.

use std::thread;

use rpma::prelude::*;
use rpma::sys::testing::{Call, FailingProvider, Plan};
use rpma::{DeviceEvent, DeviceEventError, DeviceEventKind, DeviceEventSubject, DeviceEvents, ErrorCode};

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
fn take_all(events: &DeviceEvents) {
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
