//! Connecting: requests that are accepted, rejected, dropped, or cannot be made.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rpma::prelude::*;
use rpma::sys::testing::CountingProvider;
use rpma::{
    BuildError, ConnReqError, ConnectError, ErrorCode, EstablishError, MAX_ACCEPT_BYTES, MAX_CONNECT_BYTES, MAX_REJECT_BYTES,
    Rejection, RequestError,
};

use crate::support::{LIMIT, addr, cfg, complete, listen, peer, peer_over, provider, readable, region, remote, request};

/// `rdma_cm_event::status` of a reject over InfiniBand and RoCE: nobody listens (`IB_CM_REJ_INVALID_SERVICE_ID`).
const NOBODY_LISTENS: i32 = 8;
/// The application does not want it (`IB_CM_REJ_CONSUMER_DEFINED`).
const NOT_WANTED: i32 = 28;

/// A port that no test listens on: all take what the connection manager picks, which is never a low one.
fn deserted() -> SocketAddr {
    (addr(), 9).into()
}

fn rejection(pending: &PendingConn) -> Rejection {
    match pending.established(LIMIT) {
        Err(EstablishError::Rejected(rejection)) => rejection,
        other => panic!("{other:?} where a rejection was expected"),
    }
}

/// Accepts the request, and waits until both ends have it.
fn accepted(pending: &PendingConn, request: ConnReq<Incoming>) -> (Conn, Conn) {
    let accepting = request.connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    (client, accepting.established(LIMIT).unwrap())
}

/// Both can transfer.
fn write_goes_through(client: &Conn, server: &Conn) {
    let source = region(client.peer(), 8, Usage::WRITE_SRC);
    let target = region(server.peer(), 8, Usage::WRITE_DST);
    client.write(remote(&target).all(), source.slice(0..8).unwrap(), Signal::Always, 77).unwrap();
    complete(client, 77);
}

#[test]
fn connecting_where_nobody_listens_is_rejected_and_leaves_the_peer_usable() {
    let peer = peer();
    let pending = ConnReq::new(&peer, deserted(), &cfg()).unwrap().connect(&[]).unwrap();
    assert_eq!(rejection(&pending).reason, NOBODY_LISTENS);
    pending.disconnect().unwrap();
    pending.disconnect().unwrap();
    drop(pending);

    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let (client, server) = accepted(&pending, incoming.prepare(&cfg()).unwrap());
    write_goes_through(&client, &server);
}

#[test]
fn dropped_request_rejects_the_client_with_and_without_queues() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    for with_queues in [false, true] {
        let (pending, incoming) = request(&peer, &endpoint, &[]);
        if with_queues {
            drop(incoming.prepare(&cfg()).unwrap());
        } else {
            drop(incoming);
        }
        // Zeros where nothing was sent: the connection manager gives its whole field.
        assert_eq!(rejection(&pending), Rejection { reason: NOT_WANTED, private_data: vec![0; MAX_REJECT_BYTES] });
        pending.disconnect().unwrap();
    }
}

#[test]
fn client_sees_the_private_data_of_its_rejection_with_zeros_behind() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    for (len, with_queues) in [(1, false), (20, true), (MAX_REJECT_BYTES, false), (MAX_REJECT_BYTES, true)] {
        let (pending, incoming) = request(&peer, &endpoint, &[]);
        let reason = vec![0xA5; len];
        if with_queues {
            incoming.prepare(&cfg()).unwrap().reject(&reason).unwrap();
        } else {
            incoming.reject(&reason).unwrap();
        }
        let Rejection { reason: status, private_data } = rejection(&pending);
        assert_eq!(status, NOT_WANTED);
        assert_eq!(private_data[..len], reason);
        assert_eq!(private_data[len..], vec![0; MAX_REJECT_BYTES - len]);
    }
}

#[test]
fn rejection_with_too_much_private_data_is_an_error_here_and_a_bare_rejection_there() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    for len in [MAX_REJECT_BYTES + 1, 255, 256, 4096] {
        let (pending, incoming) = request(&peer, &endpoint, &[]);
        let error = incoming.reject(&vec![0xA5; len]).unwrap_err();
        assert!(
            matches!(error, ConnectError::PrivateData(e) if (e.len_bytes, e.max_bytes) == (len, MAX_REJECT_BYTES)),
            "{error:?}"
        );
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert_eq!(rejection(&pending).private_data, vec![0; MAX_REJECT_BYTES]);
    }
}

#[test]
fn private_data_of_a_request_arrives_up_to_56_bytes_with_zeros_behind() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    for len in [0, 1, 28, MAX_CONNECT_BYTES] {
        let sent: Vec<u8> = (1..).take(len).collect();
        let (_pending, incoming) = request(&peer, &endpoint, &sent);
        let mut whole_field = sent;
        whole_field.resize(MAX_CONNECT_BYTES, 0);
        assert_eq!(incoming.private_data(), whole_field);
        assert_eq!(incoming.prepare(&cfg()).unwrap().private_data(), whole_field);
    }
}

#[test]
fn request_with_more_than_56_bytes_is_refused_here_and_never_reaches_the_server() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    for len in (MAX_CONNECT_BYTES + 1..=256).chain([4096]) {
        let error = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&vec![0xA5; len]).unwrap_err();
        assert!(
            matches!(error, ConnectError::PrivateData(e) if (e.len_bytes, e.max_bytes) == (len, MAX_CONNECT_BYTES)),
            "{error:?}"
        );
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    // What reaches the server first is what was sent last.
    let (_pending, incoming) = request(&peer, &endpoint, &[0x5A; MAX_CONNECT_BYTES]);
    assert_eq!(incoming.private_data(), [0x5A; MAX_CONNECT_BYTES]);
    drop(incoming);
    assert!(matches!(endpoint.next_request(Wait::Now), Err(RequestError::NoRequest)));
}

#[test]
fn each_side_has_the_other_s_private_data_once_established() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    for len in [0, 1, 28, MAX_ACCEPT_BYTES] {
        let (pending, incoming) = request(&peer, &endpoint, b"of the client");
        let of_the_server: Vec<u8> = (1..).take(len).collect();
        let accepting = incoming.prepare(&cfg()).unwrap().connect(&of_the_server).unwrap();
        assert!(pending.private_data().is_empty(), "the client has nothing before the server's answer was read");
        let client = pending.established(LIMIT).unwrap();
        let mut whole_field = of_the_server;
        whole_field.resize(MAX_ACCEPT_BYTES, 0);
        assert_eq!(client.private_data(), whole_field);
        assert_eq!(pending.private_data(), whole_field);

        // The passive side's copy is from before ESTABLISHED, and survives it.
        let before = accepting.private_data().to_vec();
        let server = accepting.established(LIMIT).unwrap();
        assert_eq!(server.private_data(), before);
        assert_eq!(server.private_data()[..13], *b"of the client");
        assert_eq!(server.private_data()[13..], [0; MAX_CONNECT_BYTES - 13]);
    }
}

#[test]
fn accepting_with_more_than_196_bytes_is_an_error_and_rejects_the_client() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    for len in [MAX_ACCEPT_BYTES + 1, 255, 256, 4096] {
        let (pending, incoming) = request(&peer, &endpoint, &[]);
        let error = incoming.prepare(&cfg()).unwrap().connect(&vec![0xA5; len]).unwrap_err();
        assert!(
            matches!(error, ConnectError::PrivateData(e) if (e.len_bytes, e.max_bytes) == (len, MAX_ACCEPT_BYTES)),
            "{error:?}"
        );
        assert_eq!(rejection(&pending).reason, NOT_WANTED);
    }
}

/// Queue sizes that no device has.
fn absurd() -> [ConnCfg; 4] {
    let cfg = cfg();
    [
        cfg.clone().cq_size(u32::MAX),
        cfg.clone().sq_size(u32::MAX),
        cfg.clone().rq_size(u32::MAX),
        cfg.cq_size(u32::MAX).sq_size(u32::MAX).rq_size(u32::MAX),
    ]
}

#[test]
fn absurd_queue_sizes_fail_the_incoming_request_reject_its_client_and_leave_the_endpoint_working() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    for absurd in absurd() {
        let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
        let error = endpoint.next_conn_req(&absurd, LIMIT).unwrap_err();
        assert!(matches!(error, RequestError::Build(BuildError::Cq { .. })), "{error:?}");
        assert_eq!(error.code(), ErrorCode::Provider);
        assert_eq!(rejection(&pending).reason, NOT_WANTED);
    }
    let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
    let (client, server) = accepted(&pending, endpoint.next_conn_req(&cfg(), LIMIT).unwrap());
    write_goes_through(&client, &server);
}

#[test]
fn client_that_gave_up_is_told_of_as_that_and_the_endpoint_goes_on() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    // What the client does is on its way for a while: until it is there before the server's step, the server notices later.
    let start = Instant::now();
    let ask = || {
        assert!(start.elapsed() < LIMIT, "no client was gone in time");
        let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
        readable(&endpoint);
        pending
    };
    loop {
        drop(ask());
        match endpoint.next_conn_req(&cfg(), LIMIT) {
            Ok(request) => drop(request),
            Err(RequestError::PeerGone { peer_addr }) => break assert_eq!(peer_addr.unwrap().ip(), addr.ip()),
            Err(e) => panic!("{e:?}"),
        }
    }
    // After its queues were made.
    loop {
        let pending = ask();
        let request = endpoint.next_conn_req(&cfg(), LIMIT);
        let Ok(request) = request else { continue };
        drop(pending);
        thread::yield_now();
        match request.connect(&[]) {
            Ok(pending) => drop(pending),
            Err(ConnectError::PeerGone { peer_addr }) => break assert_eq!(peer_addr.unwrap().ip(), addr.ip()),
            Err(e) => panic!("{e:?}"),
        }
    }
    let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
    let (client, server) = accepted(&pending, endpoint.next_conn_req(&cfg(), LIMIT).unwrap());
    write_goes_through(&client, &server);
}

#[test]
fn absurd_queue_sizes_fail_the_outgoing_request_with_an_error_that_names_them() {
    let peer = peer();
    for absurd in absurd() {
        let error = ConnReq::new(&peer, deserted(), &absurd).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Provider);
        let ConnReqError::Build(build) = error else { panic!("{error:?}") };
        assert!(build.to_string().contains("2147483647"), "{build}");
    }
}

#[test]
fn requests_pending_on_one_endpoint_are_accepted_in_either_order_without_it() {
    let peer = peer();
    for second_first in [false, true] {
        let (endpoint, _) = listen(&peer);
        let mut pending: Vec<_> = (0..2_u8).map(|n| request(&peer, &endpoint, &[n])).collect();
        drop(endpoint);
        if second_first {
            pending.reverse();
        }
        let conns: Vec<_> =
            pending.into_iter().map(|(pending, incoming)| accepted(&pending, incoming.prepare(&cfg()).unwrap())).collect();
        for (client, server) in &conns {
            write_goes_through(client, server);
        }
    }
}

#[test]
fn request_that_nobody_took_is_rejected_when_the_endpoint_is_dropped() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
    // Once it is readable, the request has arrived.
    readable(&endpoint);
    drop(endpoint);
    rejection(&pending);
}

#[test]
fn connection_outlives_its_endpoint_and_its_peer_handles() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    let (client, server) = accepted(&pending, incoming.prepare(&cfg()).unwrap());
    drop((endpoint, peer, pending));
    write_goes_through(&client, &server);
}

#[test]
fn addresses_of_both_ends_mirror_each_other_and_stay_the_same() {
    let peer = peer();
    let (endpoint, listening) = listen(&peer);
    let (pending, incoming) = request(&peer, &endpoint, &[]);
    assert_eq!(pending.peer_addr(), Some(listening));
    assert_eq!(incoming.local_addr(), Some(listening));
    assert_eq!(incoming.peer_addr(), pending.local_addr());
    assert_eq!(incoming.peer_addr().unwrap().ip(), addr());
    let incoming = incoming.prepare(&cfg()).unwrap();
    assert_eq!((incoming.local_addr(), incoming.peer_addr()), (pending.peer_addr(), pending.local_addr()));
    let (client, server) = accepted(&pending, incoming);
    assert_eq!((client.local_addr(), client.peer_addr()), (pending.local_addr(), Some(listening)));
    assert_eq!((server.local_addr(), server.peer_addr()), (Some(listening), pending.local_addr()));
}

#[test]
fn receive_posted_on_a_request_takes_the_message_sent_right_after_established() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let inbox = |usage| region(&peer, 8, usage);
    let (there, here) = (inbox(Usage::RECV), inbox(Usage::RECV));
    let outbox = inbox(Usage::SEND);
    outbox.write_at(0, b"at once!").unwrap();

    let outgoing = ConnReq::new(&peer, addr, &cfg()).unwrap();
    outgoing.recv(here.slice(0..8).unwrap(), 1).unwrap();
    let pending = outgoing.connect(&[]).unwrap();
    let incoming = endpoint.next_conn_req(&cfg(), LIMIT).unwrap();
    incoming.recv(there.slice(0..8).unwrap(), 2).unwrap();
    let (client, server) = accepted(&pending, incoming);
    for (from, to, inbox, context) in [(&client, &server, &there, 2), (&server, &client, &here, 1)] {
        from.send(outbox.slice(0..8).unwrap(), Signal::OnError, 0).unwrap();
        assert_eq!(complete(to, context).received().unwrap().unwrap().len_bytes, 8);
        let mut seen = [0; 8];
        inbox.read_at(0, &mut seen).unwrap();
        assert_eq!(&seen, b"at once!");
    }
}

#[test]
fn receive_posted_on_a_request_comes_back_as_flushed_when_the_request_is_rejected() {
    let peer = peer();
    let (endpoint, addr) = listen(&peer);
    let inbox = region(&peer, 8, Usage::RECV);
    let outgoing = ConnReq::new(&peer, addr, &cfg()).unwrap();
    outgoing.recv(inbox.slice(0..8).unwrap(), 1).unwrap();
    let pending = outgoing.connect(&[]).unwrap();
    drop(endpoint.next_conn_req(&cfg(), LIMIT).unwrap());
    let error = pending.cq().wait(LIMIT).unwrap().result().unwrap_err();
    assert!(error.is_flushed() && error.context == 1, "{error}");
    assert!(matches!(pending.cq().wait(LIMIT), Err(rpma::CqError::Drained)));
    rejection(&pending);
}

#[test]
fn requests_with_private_data_that_are_dropped_or_accepted_leave_nothing_alive() {
    let counting = CountingProvider::new(provider());
    {
        let peer = peer_over(&counting.provider());
        let (endpoint, _) = listen(&peer);
        for n in 0..4 {
            let (pending, incoming) = request(&peer, &endpoint, &[0xA5; MAX_CONNECT_BYTES]);
            match n {
                0 => drop(incoming),
                1 => drop(incoming.prepare(&cfg()).unwrap()),
                2 => drop(accepted(&pending, incoming.prepare(&cfg()).unwrap())),
                // Accepted, and dropped before it is established.
                _ => drop(incoming.prepare(&cfg()).unwrap().connect(&[0xA5; MAX_ACCEPT_BYTES]).unwrap()),
            }
        }
    }
    counting.nothing_live().unwrap();
}

#[test]
fn client_that_is_there_before_its_server_retries_from_any_thread_until_it_is_accepted() {
    let peer = peer();
    // The address is known before anybody listens there.
    let (endpoint, addr) = listen(&peer);
    drop(endpoint);
    let (attempted, attempts) = mpsc::channel();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let (peer, attempted) = (&peer, attempted.clone());
                scope.spawn(move || {
                    loop {
                        let pending = ConnReq::new(peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
                        match pending.established(LIMIT) {
                            Ok(conn) => return conn,
                            Err(EstablishError::Rejected(rejection)) => assert_eq!(rejection.reason, NOBODY_LISTENS),
                            Err(e) => panic!("{e:?}"),
                        }
                        attempted.send(()).unwrap();
                    }
                })
            })
            .collect();
        // Both threads have failed more than once.
        attempts.iter().take(10).count();
        let endpoint = Endpoint::listen(&peer, addr).unwrap();
        let servers: Vec<_> = (0..2)
            .map(|_| endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap().established(LIMIT).unwrap())
            .collect();
        for client in clients {
            let client = client.join().unwrap();
            let server = servers.iter().find(|server| server.peer_addr() == client.local_addr()).unwrap();
            write_goes_through(&client, server);
        }
    });
}
