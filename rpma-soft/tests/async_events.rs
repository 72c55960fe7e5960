//! Asynchronous events.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use rpma_sys::bindings::*;
use rpma_sys::owned::{AsyncElement, Cq, SendOp, SendOptions};
use support::{Device, Parts, async_event, completions};

#[test]
fn device_to_which_nothing_happens_has_no_events() {
    let device = Device::new();
    let events = device.async_events();
    let (client, server) = device.pair(Parts::new(&device), Parts::new(&device));
    server.qp.post_recv(&[], 1).unwrap();
    client.send(1, b"");
    completions(&server.recv_cq, 1);
    drop((client, server));
    assert_eq!(events.take().unwrap(), None);
}

#[test]
fn overflow_of_a_completion_queue_is_an_error_of_it_and_of_its_queue_pairs() {
    let device = Device::new();
    let events = device.async_events();
    let small = Cq::create(&device.context, 1, 0).unwrap();
    let parts = |recv_cq: &Arc<Cq>| Parts { recv_cq: Arc::clone(recv_cq), ..Parts::new(&device) };
    let pairs: Vec<_> = (0..2).map(|_| device.pair(Parts::new(&device), parts(&small))).collect();
    let (client, server) = &pairs[0];
    let room = small.capacity();
    for wr_id in 0..=u64::from(room) {
        server.qp.post_recv(&[], wr_id).unwrap();
        client.send(wr_id, b"");
    }
    let told = async_event(&events);
    assert_eq!((told.kind, told.is_about_cq(&small)), (IBV_EVENT_CQ_ERR, true));
    assert!(support::is_soft(), "about the software provider alone");
    let fatal: BTreeSet<_> = (0..2)
        .map(|_| {
            let told = async_event(&events);
            let AsyncElement::Qp(number) = told.element else { panic!("{told:?}") };
            assert_eq!(told.kind, IBV_EVENT_QP_FATAL);
            number
        })
        .collect();
    assert_eq!(fatal, pairs.iter().map(|(_, server)| server.qp.number()).collect());
    // What fits is there, and what came too late is lost.
    let mut wc = vec![ibv_wc::default(); 8];
    assert_eq!(small.poll(&mut wc).unwrap(), room as usize);
    for (_, server) in &pairs {
        assert_eq!(server.qp.query(IBV_QP_STATE).unwrap().0.qp_state, IBV_QPS_ERR);
    }
    assert_eq!(events.take().unwrap(), None);
}

#[test]
fn request_that_is_refused_is_told_where_no_receive_tells_it() {
    let device = Device::new();
    let events = device.async_events();
    let memory = device.memory(16);
    let wrong = memory.mr.rkey().wrapping_add(77);
    let post_read = |client: &support::End| {
        let options = SendOptions { wr_id: 1, signaled: true, fence: false };
        let read = SendOp::Read { remote_addr: memory.address(), rkey: wrong };
        client.qp.post_send(read, &[memory.sge(0, 8)], options).unwrap();
    };
    for read in [false, true] {
        let (client, server) = device.pair(Parts::new(&device), Parts::new(&device));
        if read {
            post_read(&client);
        } else {
            client.write(1, b"x", memory.address(), wrong);
        }
        assert_eq!(completions(&client.send_cq, 1), [(1, IBV_WC_REM_ACCESS_ERR)]);
        if support::is_soft() {
            let told = async_event(&events);
            assert_eq!((told.kind, told.element), (IBV_EVENT_QP_ACCESS_ERR, AsyncElement::Qp(server.qp.number())));
        }
        assert_eq!(events.take().unwrap(), None);
    }
}

#[test]
fn refusal_that_a_receive_tells_is_no_event() {
    let device = Device::new();
    let events = device.async_events();
    let memory = device.memory(16);
    let (client, server) = device.pair(Parts::new(&device), Parts::new(&device));
    server.qp.post_recv(&[memory.sge(0, 1)], 7).unwrap();
    client.send(1, b"too long");
    let refused = if support::is_soft() { IBV_WC_REM_INV_REQ_ERR } else { IBV_WC_REM_OP_ERR };
    assert_eq!(completions(&client.send_cq, 1), [(1, refused)]);
    let (wr_id, status) = completions(&server.recv_cq, 1)[0];
    assert_eq!((wr_id, status == IBV_WC_SUCCESS), (7, false));
    assert_eq!(events.take().unwrap(), None);
}

#[test]
fn events_that_nobody_took_go_with_their_objects() {
    let device = Device::new();
    let events = device.async_events();
    let memory = device.memory(16);
    let small = Cq::create(&device.context, 1, 0).unwrap();
    let (client, server) = device.pair(Parts::new(&device), Parts { recv_cq: Arc::clone(&small), ..Parts::new(&device) });
    for wr_id in 0..=u64::from(small.capacity()) {
        server.qp.post_recv(&[], wr_id).unwrap();
        client.send(wr_id, b"");
    }
    support::wait(&events, "asynchronous event");
    client.write(9, b"x", memory.address(), memory.mr.rkey());
    drop((server, small));
    assert_eq!(events.take().unwrap(), None);
}
