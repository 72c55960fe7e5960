//! What a client offers is what its peer gets, whatever the peer's answer asks for.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;

use rpma_soft::wire::{Accept, CmFrame, Frame, MAX_HEADER_BYTES, PREAMBLE_BYTES, Preamble, PrivateData};
use rpma_sys::bindings::*;
use rpma_sys::owned::{CmEventKind, CmId, ConnParam, EventChannel};
use support::{Device, End, LIMIT, Parts, event, param};

/// How many reads and atomics at once a client's queue pair answers and makes, and whether it may be read, after it connected with `asked`
/// to a peer that wants `initiator_depth` and offers `responder_resources`.
fn agreed(asked: ConnParam<'_>, initiator_depth: u8, responder_resources: u8) -> (u8, u8, bool) {
    let peer = TcpListener::bind(support::local()).unwrap();
    let device = Device::new();
    let channel = EventChannel::create(&device.provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.resolve_addr(peer.local_addr().unwrap(), LIMIT).unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
    id.resolve_route(LIMIT).unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
    let client = End::make(&device, id, channel, Parts::new(&device));
    client.qp.id().connect(asked).unwrap();
    let (mut stream, _) = peer.accept().unwrap();
    let mut request = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut request).unwrap();
    let accept = Accept {
        qp_num: 3,
        responder_resources,
        initiator_depth,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        private_data: PrivateData::default(),
    };
    let mut header = [0; MAX_HEADER_BYTES];
    let len = Frame::Cm(CmFrame::Accept(accept)).encode(&mut header).unwrap();
    stream.write_all(&[&Preamble::encode(), &header[..len]].concat()).unwrap();
    assert_eq!(event(&client.channel).kind, CmEventKind::Established);
    let (attr, _) = client.qp.query(IBV_QP_STATE).unwrap();
    (attr.max_dest_rd_atomic, attr.max_rd_atomic, attr.qp_access_flags & IBV_ACCESS_REMOTE_READ != 0)
}

#[test]
fn peer_that_was_offered_no_reads_gets_none_whatever_it_asks_for() {
    let nothing = ConnParam { responder_resources: 0, initiator_depth: 0, ..param() };
    assert_eq!(agreed(nothing, 255, 0), (0, 0, false));
}

#[test]
fn peer_gets_no_more_reads_at_once_than_it_was_offered_and_fewer_if_it_asks_for_fewer() {
    assert_eq!(agreed(param(), 255, 255), (4, 128, true), "four were offered, and no device makes more than 128");
    assert_eq!(agreed(param(), 2, 1), (2, 1, true));
}
