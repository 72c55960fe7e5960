//! Shared receive queues, on connections.

mod support;

use rpma_sys::bindings::*;
use rpma_sys::owned::{AsyncElement, CmEventKind, Srq, SrqCap};
use support::{Connecting, Device, Parts, async_event, completions, event, param};

const OK: ibv_wc_status = IBV_WC_SUCCESS;

#[test]
fn receives_go_in_order_to_whichever_connection_has_a_message_and_complete_on_its_own_queue() {
    let device = Device::new();
    let (srq, memory) = (device.srq(8), device.memory(64));
    let pairs: Vec<_> = (0..2).map(|_| device.pair(Parts::new(&device), Parts::with_srq(&device, &srq))).collect();
    for wr_id in 0..4 {
        srq.post_recv(&[memory.sge(8 * wr_id, 8)], wr_id).unwrap();
    }
    for (wr_id, of) in [1, 0, 0, 1].into_iter().enumerate() {
        let (client, server) = &pairs[of];
        client.send(9, &[u8::try_from(wr_id).unwrap() + 1]);
        assert_eq!(completions(&client.send_cq, 1), [(9, OK)]);
        assert_eq!(completions(&server.recv_cq, 1), [(wr_id as u64, OK)]);
    }
    assert_eq!([0, 8, 16, 24].map(|offset| memory.byte(offset)), [1, 2, 3, 4]);
}

#[test]
fn full_queue_takes_nothing_until_a_completion_is_polled() {
    let device = Device::new();
    let srq = device.srq(4);
    let (client, server) = device.pair(Parts::new(&device), Parts::with_srq(&device, &srq));
    let granted = srq.granted().wr;
    assert!(granted >= 4);
    for wr_id in 0..u64::from(granted) {
        srq.post_recv(&[], wr_id).unwrap();
    }
    let full = srq.post_recv(&[], 99).unwrap_err();
    assert_eq!(full.source.raw_os_error(), Some(libc::ENOMEM));
    client.send(1, b"");
    assert_eq!(completions(&server.recv_cq, 1), [(0, OK)]);
    srq.post_recv(&[], 99).unwrap();
}

#[test]
fn sizes_that_the_device_does_not_have_are_refused() {
    let device = Device::new();
    for cap in [SrqCap { wr: 0, sge: 1 }, SrqCap { wr: 1 << 30, sge: 1 }, SrqCap { wr: 1, sge: 1 << 20 }] {
        let error = Srq::create(&device.pd, cap).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{cap:?}");
    }
    let attr = device.context.query_device().unwrap().orig_attr;
    assert!(attr.max_srq > 0 && attr.max_srq_wr >= 1024 && attr.max_srq_sge >= 1, "{attr:?}");
}

#[test]
fn message_waits_for_a_receive_that_somebody_posts() {
    let device = Device::new();
    let (srq, memory) = (device.srq(8), device.memory(8));
    let (client, server) = device.pair(Parts::new(&device), Parts::with_srq(&device, &srq));
    client.send(1, b"x");
    // Something that follows it shows that the peer has had it; it waits behind the message.
    client.write(2, b"y", memory.address(), memory.mr.rkey());
    srq.post_recv(&[memory.sge(1, 7)], 7).unwrap();
    assert_eq!(completions(&client.send_cq, 2), [(1, OK), (2, OK)]);
    assert_eq!(completions(&server.recv_cq, 1), [(7, OK)]);
    assert_eq!([memory.byte(0), memory.byte(1)], *b"yx");
}

#[test]
fn message_without_receive_fails_where_there_are_no_retries() {
    let device = Device::new();
    let srq = device.srq(8);
    let mut param = param();
    param.rnr_retry_count = 0;
    let connecting = Connecting::new(&device, Parts::new(&device), |_| {});
    let (client, _server) = connecting.finish(&device, Parts::with_srq(&device, &srq), param);
    client.send(1, b"x");
    assert_eq!(completions(&client.send_cq, 1), [(1, IBV_WC_RNR_RETRY_EXC_ERR)]);
}

#[test]
fn queue_pair_with_a_shared_queue_takes_no_receives_of_its_own() {
    let device = Device::new();
    let srq = device.srq(8);
    let (_client, server) = device.pair(Parts::new(&device), Parts::with_srq(&device, &srq));
    let error = server.qp.post_recv(&[], 1).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn end_of_one_connection_leaves_the_receives_to_the_others_and_is_told() {
    let device = Device::new();
    let (srq, events) = (device.srq(8), device.async_events());
    let pairs: Vec<_> = (0..2).map(|_| device.pair(Parts::new(&device), Parts::with_srq(&device, &srq))).collect();
    for wr_id in 0..2 {
        srq.post_recv(&[], wr_id).unwrap();
    }
    let (client, server) = &pairs[0];
    client.qp.id().disconnect().unwrap();
    assert_eq!(event(&server.channel).kind, CmEventKind::Disconnected);
    server.qp.id().disconnect().unwrap();
    let told = async_event(&events);
    assert_eq!((told.kind, told.element), (IBV_EVENT_QP_LAST_WQE_REACHED, AsyncElement::Qp(server.qp.number())));
    let (client, other) = &pairs[1];
    for wr_id in 0..2 {
        client.send(wr_id, b"");
        assert_eq!(completions(&other.recv_cq, 1), [(wr_id, OK)]);
    }
    assert_eq!(server.recv_cq.poll(&mut [ibv_wc::default()]).unwrap(), 0, "nothing of the queue was flushed");
}

#[test]
fn slots_of_a_queue_pair_that_is_gone_are_free() {
    let device = Device::new();
    let srq = device.srq(1);
    let (client, server) = device.pair(Parts::new(&device), Parts::with_srq(&device, &srq));
    let granted = u64::from(srq.granted().wr);
    (0..granted).for_each(|wr_id| srq.post_recv(&[], wr_id).unwrap());
    client.send(1, b"");
    assert_eq!(completions(&client.send_cq, 1), [(1, OK)]);
    drop(server);
    srq.post_recv(&[], granted).unwrap();
}
