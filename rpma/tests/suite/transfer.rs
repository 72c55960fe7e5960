//! Reads, writes and messages: what arrives where, what completes, and what is refused before anything is posted.

use rpma::prelude::*;
use rpma::sys::bindings::{IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR};
use rpma::{Operation, PostError, Received, SliceError};

use crate::support::{
    LIMIT, Pair, bytes, cfg, complete, failed, listen, peer, received, region, remote, still_works, with_usage,
};

/// All usages that no flush needs.
const TRANSFERS: Usage =
    Usage::READ_SRC.union(Usage::READ_DST).union(Usage::WRITE_SRC).union(Usage::WRITE_DST).union(Usage::SEND).union(Usage::RECV);

/// Two regions for everything, the client's filled with ones and the server's with twos.
fn regions(pair: &Pair) -> (LocalMr<AnonPages>, LocalMr<AnonPages>) {
    let here = region(pair.client.peer(), 4096, TRANSFERS);
    let there = region(pair.server.peer(), 4096, TRANSFERS);
    here.write_at(0, &[1; 4096]).unwrap();
    there.write_at(0, &[2; 4096]).unwrap();
    (here, there)
}

#[test]
fn read_brings_the_bytes_asked_for_and_touches_no_others() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    there.write_at(100, b"from the server").unwrap();
    pair.client.read(here.slice(200..215).unwrap(), remote(&there).slice(100..115).unwrap(), Signal::Always, 7).unwrap();
    let completion = complete(&pair.client, 7);
    assert_eq!((completion.operation(), completion.qp_num()), (Operation::Read, pair.client.qp_num()));
    assert_eq!(bytes(&here, 199, 17), b"\x01from the server\x01");
}

#[test]
fn write_brings_the_bytes_asked_for_and_touches_no_others() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    here.write_at(100, b"from the client").unwrap();
    pair.client.write(remote(&there).slice(200..215).unwrap(), here.slice(100..115).unwrap(), Signal::Always, 8).unwrap();
    let completion = complete(&pair.client, 8);
    assert_eq!((completion.operation(), completion.received()), (Operation::Write, Ok(None)));
    assert_eq!(bytes(&there, 199, 17), b"\x02from the client\x02");
}

#[test]
fn write_with_imm_gives_the_number_in_host_order_and_puts_the_bytes_where_the_writer_said() {
    let pair = Pair::new();
    for (writer, target) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let source = region(writer.peer(), 64, TRANSFERS);
        let memory = region(target.peer(), 64, TRANSFERS);
        source.write_at(0, b"written").unwrap();
        target.recv(LocalSlice::null(), 1).unwrap();
        let there = remote(&memory).slice(10..17).unwrap();
        writer.write_with_imm(there, source.slice(0..7).unwrap(), 0x0102_0304, Signal::Always, 2).unwrap();
        assert_eq!(received(target, 1), Received { len_bytes: 7, imm: Some(0x0102_0304), by_write: true });
        assert_eq!(bytes(&memory, 9, 9), b"\0written\0");
        assert_eq!(complete(writer, 2).operation(), Operation::WriteWithImm);
    }
}

#[test]
fn message_arrives_with_and_without_a_number_in_both_directions() {
    let pair = Pair::new();
    for (sender, receiver) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let message = region(sender.peer(), 64, Usage::SEND);
        let buffer = region(receiver.peer(), 64, Usage::RECV);
        message.write_at(0, b"hello").unwrap();
        receiver.recv(buffer.slice(0..20).unwrap(), 10).unwrap();
        receiver.recv(buffer.slice(20..25).unwrap(), 11).unwrap();
        sender.send(message.slice(0..5).unwrap(), Signal::Always, 1).unwrap();
        sender.send_with_imm(message.slice(1..3).unwrap(), 0xFFFF_FFFE, Signal::Always, 2).unwrap();
        assert_eq!(received(receiver, 10), Received { len_bytes: 5, imm: None, by_write: false });
        assert_eq!(received(receiver, 11), Received { len_bytes: 2, imm: Some(0xFFFF_FFFE), by_write: false });
        assert_eq!(bytes(&buffer, 0, 25), b"hello\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0el\0\0\0");
        assert_eq!(complete(sender, 1).operation(), Operation::Send);
        assert_eq!(complete(sender, 2).operation(), Operation::SendWithImm);
    }
}

#[test]
fn receives_posted_on_request_pending_connection_and_connection_are_filled_in_that_order() {
    let peer = peer();
    let buffers = [region(&peer, 3, Usage::RECV), region(&peer, 3, Usage::RECV)];
    let (endpoint, addr) = listen(&peer);
    let post = |side: usize, n: usize, recv: &dyn Fn(LocalSlice<'_>, u64)| {
        recv(buffers[side].slice(n..=n).unwrap(), n as u64);
    };
    let request = ConnReq::new(&peer, addr, &cfg()).unwrap();
    post(0, 0, &|slice, context| request.recv(slice, context).unwrap());
    let client = request.connect(&[]).unwrap();
    post(0, 1, &|slice, context| client.recv(slice, context).unwrap());
    let request = endpoint.next_conn_req(&cfg(), LIMIT).unwrap();
    post(1, 0, &|slice, context| request.recv(slice, context).unwrap());
    let server = request.connect(&[]).unwrap();
    post(1, 1, &|slice, context| server.recv(slice, context).unwrap());
    // Reading the client's event is what establishes both.
    let pair = Pair { client: client.established(LIMIT).unwrap(), server: server.established(LIMIT).unwrap() };
    post(0, 2, &|slice, context| pair.client.recv(slice, context).unwrap());
    post(1, 2, &|slice, context| pair.server.recv(slice, context).unwrap());

    let message = region(&peer, 3, Usage::SEND);
    message.write_at(0, b"abc").unwrap();
    for (sender, receiver, buffer) in [(&pair.client, &pair.server, &buffers[1]), (&pair.server, &pair.client, &buffers[0])] {
        for n in 0..3 {
            sender.send(message.slice(n..=n).unwrap(), Signal::Always, 100).unwrap();
            complete(sender, 100);
            assert_eq!(received(receiver, n as u64).len_bytes, 1);
        }
        assert_eq!(bytes(buffer, 0, 3), b"abc");
    }
}

#[test]
fn operation_of_no_bytes_needs_no_memory_and_completes() {
    let pair = Pair::new();
    let Pair { client, server } = &pair;
    let nothing = LocalSlice::null();
    for context in 0..3 {
        server.recv(nothing, context).unwrap();
    }
    client.read(nothing, RemoteSlice::NULL, Signal::Always, 1).unwrap();
    client.write(RemoteSlice::NULL, nothing, Signal::Always, 2).unwrap();
    client.write_with_imm(RemoteSlice::NULL, nothing, 3, Signal::Always, 3).unwrap();
    client.send(nothing, Signal::Always, 4).unwrap();
    client.send_with_imm(nothing, 5, Signal::Always, 5).unwrap();
    for context in 1..=5 {
        complete(client, context);
    }
    assert_eq!(received(server, 0), Received { len_bytes: 0, imm: Some(3), by_write: true });
    assert_eq!(received(server, 1), Received { len_bytes: 0, imm: None, by_write: false });
    assert_eq!(received(server, 2), Received { len_bytes: 0, imm: Some(5), by_write: false });
    still_works(&pair);
}

#[test]
fn operation_on_empty_slices_of_regions_completes_and_moves_nothing() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    let far = remote(&there);
    // At the start, within, and at the very end.
    for (n, at) in [(10, 0), (20, 77), (30, 4096)] {
        let (local, distant) = (here.slice(at..at).unwrap(), far.slice_at(at as u64, 0).unwrap());
        pair.server.recv(there.slice(at..at).unwrap(), n).unwrap();
        pair.client.read(local, distant, Signal::Always, n).unwrap();
        pair.client.write(distant, local, Signal::Always, n + 1).unwrap();
        pair.client.send(local, Signal::Always, n + 2).unwrap();
        for context in n..n + 3 {
            complete(&pair.client, context);
        }
        assert_eq!(received(&pair.server, n).len_bytes, 0);
    }
    assert_eq!(bytes(&here, 0, 4096), [1; 4096]);
    assert_eq!(bytes(&there, 0, 4096), [2; 4096]);
}

#[test]
fn operation_that_asks_for_a_completion_on_error_leaves_none_on_success() {
    let pair = Pair::new();
    let Pair { client, server } = &pair;
    let (here, there) = regions(&pair);
    let (local, distant) = (here.slice(0..8).unwrap(), remote(&there).slice(0..8).unwrap());
    for context in 0..3 {
        server.recv(there.slice(8..16).unwrap(), context).unwrap();
    }
    let quiet = Signal::OnError;
    client.read(local, distant, quiet, 1).unwrap();
    client.write(distant, local, quiet, 2).unwrap();
    client.write_with_imm(distant, local, 3, quiet, 3).unwrap();
    client.send(local, quiet, 4).unwrap();
    client.send_with_imm(local, 5, quiet, 5).unwrap();
    client.atomic_write(distant, *b"8 bytes.", quiet, 6).unwrap();
    // Completions come in order: this is the first one, so those before it left none.
    client.write(distant, local, Signal::Always, 7).unwrap();
    complete(client, 7);
    assert_eq!(client.cq().poll().unwrap(), None);
    for context in 0..3 {
        received(server, context);
    }
    still_works(&pair);
}

#[test]
fn range_outside_of_a_region_is_refused_before_there_is_anything_to_post() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    let far = remote(&there);
    assert!(matches!(here.slice(4090..4097), Err(SliceError::OutOfBounds { .. })));
    assert!(matches!(here.slice(5000..), Err(SliceError::OutOfBounds { .. })));
    assert!(matches!(here.slice(0..=usize::MAX), Err(SliceError::Overflow { .. })));
    assert!(matches!(far.slice(4090..4097), Err(SliceError::OutOfBounds { .. })));
    assert!(matches!(far.slice_at(4097, 0), Err(SliceError::OutOfBounds { .. })));
    assert!(matches!(far.slice_at(u64::MAX, 2), Err(SliceError::Overflow { .. })));
    still_works(&pair);
}

#[test]
fn usage_that_is_lacking_here_or_there_is_refused_before_the_post() {
    let pair = Pair::new();
    let client = &pair.client;
    let without = |usage| region(client.peer(), 8, TRANSFERS.difference(usage));
    let (here, there) = regions(&pair);
    let (local, far) = (here.slice(0..8).unwrap(), remote(&there));
    let distant = far.slice(0..8).unwrap();
    let far_without = |usage| with_usage(far, TRANSFERS.difference(usage)).slice(0..8).unwrap();
    let signal = Signal::Always;

    let refusals = [
        (Usage::READ_DST, client.read(without(Usage::READ_DST).all(), distant, signal, 1)),
        (Usage::WRITE_SRC, client.write(distant, without(Usage::WRITE_SRC).all(), signal, 2)),
        (Usage::WRITE_SRC, client.write_with_imm(distant, without(Usage::WRITE_SRC).all(), 3, signal, 3)),
        (Usage::SEND, client.send(without(Usage::SEND).all(), signal, 4)),
        (Usage::SEND, client.send_with_imm(without(Usage::SEND).all(), 5, signal, 5)),
        (Usage::RECV, client.recv(without(Usage::RECV).all(), 6)),
    ];
    for (lacking, refusal) in refusals {
        let error = refusal.unwrap_err();
        assert!(matches!(error, PostError::LocalUsage { needs, .. } if needs == lacking), "{lacking:?}: {error:?}");
        assert_eq!(error.code(), rpma::ErrorCode::InvalidArgument);
    }
    let refusals = [
        (Usage::READ_SRC, client.read(local, far_without(Usage::READ_SRC), signal, 1)),
        (Usage::WRITE_DST, client.write(far_without(Usage::WRITE_DST), local, signal, 2)),
        (Usage::WRITE_DST, client.write_with_imm(far_without(Usage::WRITE_DST), local, 3, signal, 3)),
        (Usage::WRITE_DST, client.atomic_write(far_without(Usage::WRITE_DST), [0; 8], signal, 4)),
    ];
    for (lacking, refusal) in refusals {
        let error = refusal.unwrap_err();
        assert!(matches!(error, PostError::RemoteUsage { needs, .. } if needs == lacking), "{lacking:?}: {error:?}");
        assert_eq!(error.code(), rpma::ErrorCode::InvalidArgument);
    }
    still_works(&pair);
}

#[test]
fn lengths_that_differ_are_refused_and_never_cut_to_32_bits() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    let far = remote(&there);
    // 8 bytes more than 32 bits can tell: cut, they would be the 8 of the local side.
    let huge = RemoteMr::from(MrDescriptor::new(far.addr(), 1 << 40, far.rkey(), far.usage()).unwrap());
    let (local, signal) = (here.slice(0..8).unwrap(), Signal::Always);
    for distant in [far.slice(0..7).unwrap(), far.slice(0..9).unwrap(), RemoteSlice::NULL, huge.slice(0..(1 << 32) + 8).unwrap()]
    {
        for refusal in [
            pair.client.read(local, distant, signal, 1),
            pair.client.write(distant, local, signal, 2),
            pair.client.write_with_imm(distant, local, 3, signal, 3),
        ] {
            let error = refusal.unwrap_err();
            assert!(
                matches!(error, PostError::LengthMismatch { local_bytes: 8, remote_bytes, .. } if remote_bytes == distant.len_bytes()),
                "{error:?}"
            );
            assert_eq!(error.code(), rpma::ErrorCode::InvalidArgument);
        }
    }
    still_works(&pair);
}

#[test]
fn region_of_another_peer_object_is_refused_before_the_post() {
    let pair = Pair::new();
    let stranger = peer();
    let theirs = region(&stranger, 8, TRANSFERS);
    let there = region(pair.server.peer(), 8, TRANSFERS);
    let (local, distant, signal) = (theirs.all(), remote(&there).all(), Signal::Always);
    let refusals = [
        pair.client.read(local, distant, signal, 1),
        pair.client.write(distant, local, signal, 2),
        pair.client.write_with_imm(distant, local, 3, signal, 3),
        pair.client.send(local, signal, 4),
        pair.client.send_with_imm(local, 5, signal, 5),
        pair.client.recv(local, 6),
    ];
    for refusal in refusals {
        assert!(matches!(refusal.unwrap_err(), PostError::OtherPeer { .. }));
    }
    still_works(&pair);
}

/// Of the keys of soft-RoCE, the low byte is a variant beside the region's index: with another one no region answers.
#[test]
fn wrong_key_completes_as_remote_access_error_without_length_and_the_rest_as_flushed() {
    type Post = fn(&Conn, LocalSlice<'_>, RemoteSlice) -> Result<(), PostError>;
    let posts: [(Operation, Post); 3] = [
        (Operation::Read, |conn, local, distant| conn.read(local, distant, Signal::OnError, 1)),
        (Operation::Write, |conn, local, distant| conn.write(distant, local, Signal::OnError, 1)),
        (Operation::AtomicWrite, |conn, _, distant| conn.atomic_write(distant, [7; 8], Signal::OnError, 1)),
    ];
    for (operation, post) in posts {
        let pair = Pair::new();
        let (here, there) = regions(&pair);
        let far = remote(&there);
        let wrong = RemoteMr::from(MrDescriptor::new(far.addr(), far.len_bytes(), far.rkey() ^ 0x55, far.usage()).unwrap());
        let local = here.slice(0..8).unwrap();
        post(&pair.client, local, wrong.slice(0..8).unwrap()).unwrap();
        pair.client.write(far.slice(0..8).unwrap(), local, Signal::Always, 2).unwrap();
        let error = failed(&pair.client, 1);
        assert_eq!((error.operation, error.status), (operation, IBV_WC_REM_ACCESS_ERR), "{error}");
        assert!(!error.is_flushed() && error.to_string().contains("descriptor"), "{error}");
        assert!(failed(&pair.client, 2).is_flushed());
        assert_eq!(bytes(&there, 0, 8), [2; 8]);
    }
}

#[test]
fn region_that_its_owner_deregistered_completes_as_remote_access_error() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    let stale = remote(&there).slice(0..8).unwrap();
    let memory = there.deregister().unwrap();
    pair.client.write(stale, here.slice(0..8).unwrap(), Signal::OnError, 1).unwrap();
    let error = failed(&pair.client, 1);
    assert_eq!(error.status, IBV_WC_REM_ACCESS_ERR, "{error}");
    assert_eq!(memory.as_slice(), [2; 4096]);
}

#[test]
fn message_longer_than_the_receive_fails_on_both_sides() {
    let pair = Pair::new();
    let (here, there) = regions(&pair);
    pair.server.recv(there.slice(0..10).unwrap(), 1).unwrap();
    pair.client.send(here.slice(0..11).unwrap(), Signal::OnError, 2).unwrap();
    let error = failed(&pair.server, 1);
    assert!(!error.is_flushed(), "{error}");
    let error = failed(&pair.client, 2);
    // The InfiniBand specification says "invalid request"; soft-RoCE says "operation error".
    assert!([IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR].contains(&error.status), "{error}");
    assert_eq!(bytes(&there, 10, 1), [2]);
}
