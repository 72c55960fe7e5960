//! Requests of several ranges, and with inline bytes.

use rpma::prelude::*;
use rpma::{BuildError, ConnReqError, ErrorCode, Inline, SliceError};

use crate::support::{Pair, bytes, cfg, complete, listen, peer, received, region, remote, still_works};

/// A connection whose requests may have three ranges and carry 48 bytes.
fn pair() -> Pair {
    let peer = peer();
    let cfg = cfg().send_sge(3).recv_sge(3).inline_bytes(48);
    Pair::connect(&peer, &cfg, &peer, &cfg)
}

/// Three slices of different lengths, in another order than that of their addresses: 5, 16 and 1 bytes.
fn apart<M: RegionOwner>(region: &LocalMr<M>) -> Result<[LocalSlice<'_>; 3], SliceError> {
    Ok([region.slice(100..105)?, region.slice(0..16)?, region.slice(50..51)?])
}

const BYTES: &[u8; 22] = b"five.sixteen bytes...!";

/// Puts [`BYTES`] into the three slices of [`apart`].
fn fill<M: RegionOwner>(region: &LocalMr<M>) {
    for (offset, part) in [(100, &BYTES[..5]), (0, &BYTES[5..21]), (50, &BYTES[21..])] {
        region.write_at(offset, part).unwrap();
    }
}

fn collected<M: RegionOwner>(region: &LocalMr<M>) -> Vec<u8> {
    [bytes(region, 100, 5), bytes(region, 0, 16), bytes(region, 50, 1)].concat()
}

#[test]
fn granted_ranges_and_inline_bytes_are_those_asked_for_or_more() {
    let pair = pair();
    for granted in [pair.client.granted(), pair.server.granted()] {
        assert!(granted.send_sge >= 3 && granted.recv_sge >= 3 && granted.inline_bytes >= 48, "{granted:?}");
    }
}

#[test]
fn write_gathers_its_ranges_in_the_order_given() {
    let pair = pair();
    let source = region(pair.client.peer(), 128, Usage::WRITE_SRC);
    let target = region(pair.server.peer(), 64, Usage::WRITE_DST);
    fill(&source);
    pair.client.write(remote(&target).slice(8..30).unwrap(), &apart(&source).unwrap(), Signal::Always, 1).unwrap();
    complete(&pair.client, 1);
    assert_eq!(bytes(&target, 8, 22), BYTES);
    assert_eq!((bytes(&target, 0, 8), bytes(&target, 30, 34)), (vec![0; 8], vec![0; 34]));
}

#[test]
fn read_fills_its_ranges_in_the_order_given() {
    let pair = pair();
    let source = region(pair.server.peer(), 22, Usage::READ_SRC);
    let target = region(pair.client.peer(), 128, Usage::READ_DST);
    source.write_at(0, BYTES).unwrap();
    pair.client.read(&apart(&target).unwrap(), remote(&source).all(), Signal::Always, 1).unwrap();
    complete(&pair.client, 1);
    assert_eq!(collected(&target), BYTES);
}

#[test]
fn message_is_gathered_from_its_ranges_and_spread_over_those_of_the_receive() {
    let pair = pair();
    let source = region(pair.client.peer(), 128, Usage::SEND);
    let inbox = region(pair.server.peer(), 128, Usage::RECV);
    fill(&source);
    let outbox =
        [source.slice(100..105).unwrap(), LocalSlice::null(), source.slice(0..16).unwrap(), source.slice(50..51).unwrap()];
    pair.server.recv(&apart(&inbox).unwrap(), 1).unwrap();
    // Null slices add nothing and do not count.
    pair.client.send_with_imm(&outbox, 7, Signal::Always, 2).unwrap();
    let got = received(&pair.server, 1);
    assert_eq!((got.len_bytes, got.imm, collected(&inbox)), (22, Some(7), BYTES.to_vec()));
    complete(&pair.client, 2);
}

#[test]
fn message_is_spread_over_the_ranges_of_a_shared_receive() {
    let peer = peer();
    let srq = peer.new_srq(&SrqCfg::new().recv_sge(3)).unwrap();
    assert!(srq.granted().sge >= 3);
    let pair = Pair::connect(&peer, &cfg().inline_bytes(22), &peer, &cfg().srq(&srq));
    let inbox = region(&peer, 128, Usage::RECV);
    srq.recv(&apart(&inbox).unwrap(), 1).unwrap();
    pair.client.send(Inline(BYTES), Signal::Always, 2).unwrap();
    let completion = srq.rcq().unwrap().wait(crate::support::LIMIT).unwrap();
    assert_eq!(completion.received().unwrap().map(|got| got.len_bytes), Some(22));
    assert_eq!(collected(&inbox), BYTES);
}

#[test]
fn inline_bytes_are_copied_by_the_post() {
    let pair = pair();
    let target = region(pair.server.peer(), 64, Usage::WRITE_DST);
    let inbox = region(pair.server.peer(), 64, Usage::RECV);
    pair.server.recv(inbox.all(), 1).unwrap();
    pair.server.recv(LocalSlice::null(), 2).unwrap();
    let mut changing = *b"a message, or a write, of 48 bytes that is inline";
    pair.client.send(Inline(&changing[..48]), Signal::Always, 3).unwrap();
    changing[..1].copy_from_slice(b"A");
    let there = remote(&target);
    pair.client.write_with_imm(there.slice(0..48).unwrap(), Inline(&changing[..48]), 9, Signal::Always, 4).unwrap();
    changing.fill(0);
    pair.client.write(there.slice(60..64).unwrap(), Inline(b"last"), Signal::Always, 5).unwrap();
    (3..6).for_each(|n| _ = complete(&pair.client, n));
    assert_eq!(received(&pair.server, 1).len_bytes, 48);
    assert_eq!(received(&pair.server, 2).imm, Some(9));
    assert_eq!(bytes(&inbox, 0, 48), b"a message, or a write, of 48 bytes that is inlin");
    assert_eq!(bytes(&target, 0, 48), b"A message, or a write, of 48 bytes that is inlin");
    assert_eq!(bytes(&target, 60, 4), b"last");
}

#[test]
fn nothing_at_all_is_a_transfer_of_no_bytes() {
    let pair = pair();
    let target = region(pair.server.peer(), 8, Usage::WRITE_DST);
    pair.server.recv(LocalSlice::null(), 1).unwrap();
    pair.client.send(Inline(b""), Signal::Always, 2).unwrap();
    pair.client.write(remote(&target).slice(8..8).unwrap(), &[], Signal::Always, 3).unwrap();
    assert_eq!(received(&pair.server, 1).len_bytes, 0);
    (2..4).for_each(|n| _ = complete(&pair.client, n));
}

#[test]
fn more_than_was_granted_is_refused_and_leaves_the_connection_as_it_was() {
    let pair = pair();
    let granted = pair.client.granted();
    let source = region(pair.client.peer(), 4096, Usage::all());
    let there = remote(&source);
    let too_many = vec![source.slice(0..1).unwrap(); granted.send_sge.max(granted.recv_sge) as usize + 1];
    let range = there.slice(0..too_many.len() as u64).unwrap();
    let errors = [
        pair.client.write(range, &too_many[..], Signal::Always, 1).unwrap_err(),
        pair.client.read(&too_many[..], range, Signal::Always, 1).unwrap_err(),
        pair.client.send(&too_many[..], Signal::Always, 1).unwrap_err(),
        pair.client.recv(&too_many[..], 1).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, PostError::TooManyRanges { ranges, .. } if ranges == too_many.len()), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    let too_long = vec![0; granted.inline_bytes as usize + 1];
    let range = there.slice(0..too_long.len() as u64).unwrap();
    for error in [
        pair.client.write(range, Inline(&too_long), Signal::Always, 1).unwrap_err(),
        pair.client.send(Inline(&too_long), Signal::Always, 1).unwrap_err(),
    ] {
        let PostError::InlineTooLong { len_bytes, granted_bytes, .. } = error else { panic!("{error:?}") };
        assert_eq!((len_bytes, granted_bytes), (too_long.len(), granted.inline_bytes));
    }
    still_works(&pair);
}

#[test]
fn what_does_not_fit_together_is_refused_for_several_ranges_too() {
    let pair = pair();
    let (source, other) = (region(pair.client.peer(), 64, Usage::WRITE_SRC), region(pair.client.peer(), 64, Usage::SEND));
    let stranger = region(&peer(), 64, Usage::WRITE_SRC);
    let target = region(pair.server.peer(), 64, Usage::WRITE_DST);
    let write = |parts: &[LocalSlice<'_>; 2], len| {
        pair.client.write(remote(&target).slice(0..len).unwrap(), parts, Signal::Always, 1).unwrap_err()
    };
    let part = source.slice(0..8).unwrap();
    assert!(matches!(write(&[part, part], 15), PostError::LengthMismatch { local_bytes: 16, remote_bytes: 15, .. }));
    assert!(matches!(write(&[part, other.slice(0..8).unwrap()], 16), PostError::LocalUsage { .. }));
    assert!(matches!(write(&[part, stranger.slice(0..8).unwrap()], 16), PostError::OtherPeer { .. }));
    still_works(&pair);
}

#[test]
fn sizes_that_no_device_has_are_an_error_that_tells_them() {
    let peer = peer();
    let (_endpoint, there) = listen(&peer);
    let error = ConnReq::new(&peer, there, &cfg().send_sge(100_000).inline_bytes(1 << 20)).unwrap_err();
    let ConnReqError::Build(BuildError::Qp { asked, .. }) = error else { panic!("{error:?}") };
    assert_eq!((asked.send_sge, asked.recv_sge, asked.inline_bytes), (100_000, 1, 1 << 20));
}
