//! What a server sends as soon as it has accepted.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use rpma_sys::bindings::*;
use rpma_sys::owned::{CmEventKind, EventChannel};
use support::{Connecting, Device, End, Parts, completions, event, param, wait};

/// One connection whose server sends twice before its client looks.
fn connect_and_send_early(device: &Device) {
    let Connecting { listening, listener: _listener, client } = Connecting::new(device, Parts::new(device), |_| {});
    client.qp.post_recv(&[], 1).unwrap();
    client.qp.post_recv(&[], 2).unwrap();
    client.qp.id().connect(param()).unwrap();
    let mut id = event(&listening).new_id.unwrap();
    let channel = EventChannel::create(&device.provider).unwrap();
    id.migrate(&channel).unwrap();
    let server = End::make(device, id, channel, Parts::new(device));
    server.qp.id().accept(param()).unwrap();
    // It is here, and the client's program does not look yet, except for completions, which moves data.
    wait(&client.channel, "answer");
    server.send(11, b"");
    server.send(12, b"");
    for _ in 0..100 {
        assert_eq!(client.recv_cq.poll(&mut [ibv_wc::default()]).unwrap(), 0);
    }
    assert_eq!(event(&client.channel).kind, CmEventKind::Established);
    assert_eq!(completions(&client.recv_cq, 2), [(1, IBV_WC_SUCCESS), (2, IBV_WC_SUCCESS)]);
    assert_eq!(completions(&server.send_cq, 2), [(11, IBV_WC_SUCCESS), (12, IBV_WC_SUCCESS)]);
    assert_eq!(event(&server.channel).kind, CmEventKind::Established);
}

#[test]
fn messages_that_come_before_the_program_has_seen_the_accept_are_received_when_it_has() {
    let device = Device::new();
    // When bytes arrive is the kernel's to say: a second connection finds what the first one missed.
    for _ in 0..10 {
        connect_and_send_early(&device);
    }
}
