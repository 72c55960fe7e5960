//! Asynchronous events about queues: a completion queue that overflows, and a shared receive queue that runs low. Nothing in the API
//! brings either about, so the provider in front of the device does. A process has one stream of these events per device, so each test
//! is alone in its process.
#![expect(unsafe_code, reason = "calls ibv_modify_srq, which no provider has")]

use std::ffi::c_int;

use rpma::prelude::*;
use rpma::sys::bindings::{IBV_SRQ_LIMIT, ibv_srq, ibv_srq_attr};
use rpma::sys::testing::FailingProvider;
use rpma::{DeviceEvent, DeviceEventError, DeviceEventKind, DeviceEventSubject, DeviceEvents};

use crate::support::{LIMIT, Pair, alone, cfg, complete, exported_by, in_time, is_soft, peer, peer_over, provider, still_works};

/// Takes events until one of this kind, and returns it.
fn next_of(events: &DeviceEvents, kind: DeviceEventKind) -> DeviceEvent {
    loop {
        let event = events.next_event(LIMIT).unwrap();
        if event.kind() == kind {
            return event;
        }
    }
}

#[test]
fn overflow_of_a_completion_queue_is_told_of_that_queue() {
    alone(|| {
        let failing = FailingProvider::new(provider());
        let here = peer_over(&failing.provider());
        let events = DeviceEvents::of(here.device()).unwrap();
        let other = Pair::connect(&here, &cfg(), &here, &cfg());
        failing.set_cq_entries(1);
        let Pair { client, server } = Pair::connect(&here, &cfg(), &peer(), &cfg());
        let room = client.cq().capacity();
        assert!(room < cfg().get_sq_size(), "{room} entries");
        for context in 0..=u64::from(room) {
            client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context).unwrap();
        }
        let told = next_of(&events, DeviceEventKind::CqError);
        assert_eq!(told.subject(), DeviceEventSubject::CompletionQueue);
        assert!(told.is_about_cq(&client.cq()));
        assert!(!told.is_about_cq(&other.client.cq()));
        if is_soft() {
            // As hardware does; soft-RoCE leaves the queue pair as it was.
            let fatal = next_of(&events, DeviceEventKind::QpFatal);
            assert_eq!(fatal.subject(), DeviceEventSubject::Qp(client.qp_num()));
            assert!(!fatal.is_about_cq(&client.cq()));
        }
        // What completed first is there, the rest is lost, and that holds nobody up.
        assert_eq!(client.cq().wait(LIMIT).unwrap().context(), 0);
        in_time(move || drop((client, server)));
        still_works(&other);
    });
}

/// `ibv_modify_srq(3)` of the provider under test.
fn set_limit(srq: *mut ibv_srq, limit: u32) {
    type Modify = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
    let mask = IBV_SRQ_LIMIT.cast_signed();
    let rc = match exported_by() {
        // SAFETY: the caller's queue is live, and of this provider.
        None => unsafe { rpma::soft::door::verbs::modify_srq(srq, &attr, mask) },
        Some(file) => {
            // SAFETY: the file of the provider under test, which is open already: loading it again runs nothing.
            let library = unsafe { libloading::Library::new(&file) }.unwrap();
            // SAFETY: the function of that name has this signature (`ibv_modify_srq(3)`).
            let modify = unsafe { library.get::<Modify>(b"ibv_modify_srq") }.unwrap();
            // SAFETY: the caller's queue is live, and of this provider; the attributes are a valid structure.
            unsafe { modify(srq, &raw mut attr, mask) }
        }
    };
    assert_eq!(rc, 0);
}

#[test]
fn shared_queue_with_fewer_receives_than_its_limit_is_told_of_once() {
    alone(|| {
        let failing = FailingProvider::new(provider());
        let here = peer_over(&failing.provider());
        let events = DeviceEvents::of(here.device()).unwrap();
        let other = here.new_srq(&SrqCfg::new()).unwrap();
        let srq = here.new_srq(&SrqCfg::new()).unwrap();
        let Pair { client, server } = Pair::connect(&peer(), &cfg(), &here, &cfg().srq(&srq));
        for context in 0..4 {
            srq.recv(LocalSlice::null(), context).unwrap();
        }
        set_limit(failing.last_srq(), 3);
        let message = |context| {
            client.send(LocalSlice::null(), Signal::Always, context).unwrap();
            complete(&client, context);
            assert_eq!(srq.rcq().unwrap().wait(LIMIT).unwrap().context(), context);
        };
        message(0);
        assert!(matches!(events.next_event(Wait::Now), Err(DeviceEventError::NoEvent)), "three are left");
        message(1);
        let told = next_of(&events, DeviceEventKind::SrqLimitReached);
        assert_eq!(told.subject(), DeviceEventSubject::SharedReceiveQueue);
        assert!(told.is_about_srq(&srq) && !told.is_about_srq(&other) && !told.is_about_cq(&server.cq()));
        message(2);
        assert!(matches!(events.next_event(Duration::from_millis(20)), Err(DeviceEventError::NoEvent)), "once");
        // Set again, and what it was about dropped with the event untaken.
        set_limit(failing.last_srq(), 2);
        message(3);
        in_time(move || drop((client, server, srq, events)));
    });
}
