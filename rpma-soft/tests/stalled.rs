//! A peer that stops in the middle of what it sends does not hold back the memory that it was sending to.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Write;
use std::time::Instant;

use rpma_soft::wire::{CmFrame, Decoder, Frame, Remote, Request, RequestOp, Response};
use rpma_sys::owned::{CmEventKind, CmId, EventChannel};
use support::stranger::{accepted_with, ask, encoded, next_frame, send};
use support::{Device, End, LIMIT, Parts, event, local, param};

/// A server's end, and a peer that is connected to it.
fn connected(device: &Device) -> (End, std::net::TcpStream, Decoder) {
    let listening = EventChannel::create(&device.provider).unwrap();
    let listener = CmId::create(&listening).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(0).unwrap();
    let mut peer = ask(listener.local_addr().unwrap());
    let mut id = event(&listening).new_id.unwrap();
    let channel = EventChannel::create(&device.provider).unwrap();
    id.migrate(&channel).unwrap();
    let server = End::make(device, id, channel, Parts::new(device));
    server.qp.id().accept(param()).unwrap();
    let mut decoder = Decoder::new();
    accepted_with(&mut peer, &mut decoder);
    send(&mut peer, CmFrame::Ready);
    assert_eq!(event(&server.channel).kind, CmEventKind::Established);
    (server, peer, decoder)
}

#[test]
fn memory_that_a_stalled_peer_writes_to_is_deregistered_at_once_and_written_to_no_more() {
    const LEN: usize = 4096;
    let device = Device::new();
    let (server, mut peer, mut decoder) = connected(&device);
    let memory = device.memory(LEN);
    let remote = Remote { addr: memory.address(), rkey: memory.mr.rkey() };
    let write = Request { msn: 1, solicited: false, op: RequestOp::Write { remote, len_bytes: LEN as u32 } };
    peer.write_all(&encoded(Frame::Request(write))).unwrap();
    peer.write_all(&[0x55; LEN / 2]).unwrap();
    let start = Instant::now();
    while memory.byte(LEN / 2 - 1) != 0x55 {
        assert!(start.elapsed() < LIMIT, "the first half is not placed");
        std::thread::yield_now();
    }
    // The peer is stuck here, and sends on only when this has returned.
    let memory = memory.deregister();
    peer.write_all(&[0xAA; LEN / 2]).unwrap();
    match next_frame(&mut peer, &mut decoder) {
        Some(Frame::Response(Response { msn: 1, op })) => assert!(format!("{op:?}").starts_with("Nak"), "{op:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((memory.byte(LEN / 2 - 1), memory.byte(LEN / 2)), (0x55, 0));
    drop(server);
}
