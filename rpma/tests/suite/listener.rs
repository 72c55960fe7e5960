//! Synchronous listening.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;

use rpma::prelude::*;
use rpma::{BuildError, ErrorCode, EstablishError, OpPath, RequestError};

use crate::support::{LIMIT, Pair, addr, cfg, in_time, is_readable, known, peer, still_works};

fn listen(peer: &Peer, cfg: &ConnCfg) -> (Listener, SocketAddr) {
    let listener = Listener::new(peer, (addr(), 0), cfg).unwrap();
    let local = listener.local_addr().unwrap();
    (listener, local)
}

fn ask(peer: &Peer, addr: SocketAddr, private_data: &[u8]) -> PendingConn {
    ConnReq::new(peer, addr, &cfg()).unwrap().connect(private_data).unwrap()
}

#[test]
fn request_comes_with_its_data_and_the_listener_s_queues_native_operations_included() {
    let peer = peer();
    let (listener, addr) = listen(&peer, &cfg().sq_size(33).rq_size(44).rcq_size(44));
    let pending = ask(&peer, addr, b"who I am");
    let request = listener.get_request(LIMIT).unwrap();
    assert_eq!(request.private_data()[..8], *b"who I am");
    assert!(request.rcq().is_some() && request.qp_num() != 0);
    request.recv(LocalSlice::null(), 1).unwrap();
    let accepting = request.connect(b"welcome").unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    assert_eq!(client.private_data()[..7], *b"welcome");
    assert_eq!(server.private_data()[..8], *b"who I am");
    let granted = server.granted();
    assert!(granted.send_wr >= 33 && granted.recv_wr >= 44, "{granted:?}");
    let expected = if known().native_ops { OpPath::Native } else { OpPath::Emulated };
    assert_eq!((server.flush_path(), server.atomic_write_path()), (expected, expected));
    client.send(LocalSlice::null(), Signal::OnError, 2).unwrap();
    assert_eq!(server.rcq().unwrap().wait(LIMIT).unwrap().context(), 1);
    still_works(&Pair { client, server });
}

#[test]
fn wait_for_a_request_ends_with_its_time_and_the_next_one_gets_it() {
    let peer = peer();
    let (listener, addr) = listen(&peer, &cfg());
    for wait in [Wait::Now, Duration::from_millis(20).into()] {
        let error = listener.get_request(wait).unwrap_err();
        assert!(matches!(error, RequestError::NoRequest), "{error:?}");
        assert_eq!(error.code(), ErrorCode::NoEvent);
    }
    assert!(!is_readable(&listener, Duration::ZERO));
    let _pending = ask(&peer, addr, &[]);
    assert!(is_readable(&listener, LIMIT));
    let _accepting = listener.get_request(Wait::Now).unwrap().connect(&[]).unwrap();
}

/// `rdma_get_request`'s requests hold an event of the listener's, and destroying that waits for it for ever.
#[test]
fn listener_is_dropped_at_once_while_its_requests_live_and_they_are_accepted_or_rejected_after_it() {
    let peer = peer();
    let (listener, addr) = listen(&peer, &cfg());
    let asking: Vec<_> = (0..3).map(|_| ask(&peer, addr, b"data")).collect();
    let mut requests: Vec<_> = (0..3).map(|_| listener.get_request(LIMIT).unwrap()).collect();
    in_time(move || drop(listener));
    // In the other order than they came.
    let (third, second, first) = (requests.pop().unwrap(), requests.pop().unwrap(), requests.pop().unwrap());
    assert_eq!(third.private_data()[..4], *b"data");
    third.reject(b"no").unwrap();
    drop(second);
    let accepting = first.connect(&[]).unwrap();
    let mut established = Vec::new();
    let mut rejected = Vec::new();
    for pending in asking {
        match pending.established(LIMIT) {
            Ok(conn) => established.push(conn),
            Err(EstablishError::Rejected(rejection)) => rejected.push(rejection.private_data[..2].to_vec()),
            Err(e) => panic!("{e:?}"),
        }
    }
    rejected.sort_unstable();
    assert_eq!(rejected, [vec![0, 0], b"no".to_vec()]);
    let server = accepting.established(LIMIT).unwrap();
    still_works(&Pair { client: established.pop().unwrap(), server });
}

#[test]
fn listener_outlives_requests_that_were_dropped() {
    let peer = peer();
    let (listener, addr) = listen(&peer, &cfg());
    for _ in 0..3 {
        let pending = ask(&peer, addr, &[]);
        drop(listener.get_request(LIMIT).unwrap());
        assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
    }
    let pending = ask(&peer, addr, &[]);
    let accepting = listener.get_request(LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    still_works(&Pair { client, server: accepting.established(LIMIT).unwrap() });
}

#[test]
fn queues_that_cannot_be_made_reject_the_client_and_the_listener_goes_on() {
    let peer = peer();
    let (listener, addr) = listen(&peer, &cfg().cq_size(u32::MAX));
    for _ in 0..2 {
        let pending = ask(&peer, addr, &[]);
        let error = listener.get_request(LIMIT).unwrap_err();
        assert!(matches!(error, RequestError::Build(BuildError::Cq { .. })), "{error:?}");
        assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
    }
    // With other queues it can be had all the same.
    let pending = ask(&peer, addr, &[]);
    let request = listener.endpoint().next_request(LIMIT).unwrap();
    let accepting = request.prepare(&cfg()).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    still_works(&Pair { client, server: accepting.established(LIMIT).unwrap() });
}

#[test]
fn several_threads_get_each_request_once() {
    const CLIENTS: usize = 8;
    let peer = peer();
    let (listener, addr) = listen(&peer, &cfg());
    let (asked, served) = thread::scope(|scope| {
        let serving: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut served = Vec::new();
                    while let Ok(request) = listener.get_request(Wait::Forever) {
                        let conn = request.connect(&[]).unwrap().established(LIMIT).unwrap();
                        served.push(conn.peer_addr().unwrap());
                        conn.disconnect().unwrap();
                    }
                    served
                })
            })
            .collect();
        let asked: BTreeSet<_> = (0..CLIENTS)
            .map(|_| {
                let conn = ask(&peer, addr, &[]).established(LIMIT).unwrap();
                assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
                conn.local_addr().unwrap()
            })
            .collect();
        listener.close();
        let served: Vec<_> = serving.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (asked, served)
    });
    assert_eq!(served.len(), CLIENTS);
    assert_eq!(served.into_iter().collect::<BTreeSet<_>>(), asked);
    assert!(matches!(listener.get_request(Wait::Forever), Err(RequestError::Closed)));
}
