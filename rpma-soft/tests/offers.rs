//! What a client offers is what its peer gets, whatever the peer's answer asks for.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use rpma_sys::bindings::*;
use rpma_sys::owned::ConnParam;
use support::{Device, End, param};

/// How many reads and atomics at once a client's queue pair answers and makes, and whether it may be read, after it connected with `asked`
/// to a peer that wants `initiator_depth` and offers `responder_resources`.
fn agreed(asked: ConnParam<'_>, initiator_depth: u8, responder_resources: u8) -> (u8, u8, bool) {
    let (client, _stranger) = End::accepted_by_a_stranger(&Device::new(), asked, initiator_depth, responder_resources);
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
