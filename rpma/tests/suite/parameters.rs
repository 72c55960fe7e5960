//! Connection parameters beside the sizes of queues: retries, time-outs, depths, completion vectors, type of service, backlog.

use std::time::Duration;

use rpma::prelude::*;
use rpma::sys::bindings::IBV_WC_RNR_RETRY_EXC_ERR;
use rpma::sys::testing::{Call, FailingProvider, Plan};
use rpma::{BuildError, ConnReqError, ErrorCode, EstablishError, Negotiated, ParameterError};
use rustix::io::Errno;

use crate::support::{
    LIMIT, Pair, addr, cfg, complete, failed, listen, peer, peer_over, provider, received, region, remote, still_works,
};

#[test]
fn parameters_asked_for_are_those_of_the_connection() {
    let peer = peer();
    let client = cfg().ack_timeout(15).unwrap().retry_count(3).unwrap().rnr_retry_count(2).unwrap();
    let client = client.responder_resources(4).unwrap().initiator_depth(3).unwrap().type_of_service(0x20);
    let client = client.min_rnr_timer(Duration::from_micros(11)).unwrap();
    let server = cfg().ack_timeout(16).unwrap().retry_count(1).unwrap().rnr_retry_count(5).unwrap();
    let server = server.responder_resources(2).unwrap().initiator_depth(16).unwrap();
    let server = server.min_rnr_timer(Duration::from_millis(400)).unwrap();
    let pair = Pair::connect(&peer, &client, &peer, &server);
    // The client's number of retries counts for both; how often a message without a receive is sent again, the receiver says. The
    // server offers 2 of the 3 reads at once that the client asks for, and makes use of all 4 that the client offers.
    let here = Negotiated {
        ack_timeout: 15,
        retry_count: 3,
        rnr_retry_count: 5,
        min_rnr_timer: Duration::from_micros(20),
        responder_resources: 4,
        initiator_depth: 2,
    };
    let there = Negotiated {
        ack_timeout: 16,
        rnr_retry_count: 2,
        min_rnr_timer: Duration::from_micros(491_520),
        responder_resources: 2,
        initiator_depth: 4,
        ..here
    };
    assert_eq!((pair.client.negotiated().unwrap(), pair.server.negotiated().unwrap()), (here, there));
    assert_eq!(here.detection_time(), client.detection_time());
    assert_eq!(client.detection_time(), Some(Duration::from_nanos(4096 << 15) * 4));
    still_works(&pair);
}

#[test]
fn parameters_not_asked_for_are_chosen_and_told() {
    let pair = Pair::new();
    for end in [&pair.client, &pair.server] {
        let told = end.negotiated().unwrap();
        assert_eq!((told.retry_count, told.rnr_retry_count), (7, 7));
        assert_eq!(told.min_rnr_timer, Duration::from_micros(655_360));
        assert!(told.responder_resources > 0 && told.initiator_depth > 0, "{told:?}");
        assert!(told.detection_time() > Some(Duration::ZERO), "{told:?}");
    }
}

#[test]
fn one_read_at_a_time_is_enough_for_many() {
    let peer = peer();
    let one = cfg().initiator_depth(1).unwrap().responder_resources(1).unwrap();
    let pair = Pair::connect(&peer, &one, &peer, &one);
    let source = region(&peer, 8, Usage::READ_SRC);
    let target = region(&peer, 8, Usage::READ_DST);
    source.write_at(0, b"one each").unwrap();
    for n in 0..10 {
        pair.client.read(target.slice(0..8).unwrap(), remote(&source).all(), Signal::Always, n).unwrap();
    }
    (0..10).for_each(|n| _ = complete(&pair.client, n));
    assert_eq!(crate::support::bytes(&target, 0, 8), b"one each");
}

#[test]
fn message_without_a_receive_fails_when_the_receiver_allows_no_retry() {
    let peer = peer();
    let pair = Pair::connect(&peer, &cfg(), &peer, &cfg().rnr_retry_count(0).unwrap());
    let message = region(&peer, 8, Usage::SEND);
    pair.client.send(message.all(), Signal::Always, 1).unwrap();
    assert_eq!(failed(&pair.client, 1).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

/// Six retries at the default are 4 s, and at 1.28 ms they are over at once.
#[test]
fn message_without_a_receive_is_sent_again_after_the_time_that_the_receiver_chose() {
    let peer = peer();
    let six = cfg().rnr_retry_count(6).unwrap();
    let slow = Pair::connect(&peer, &cfg(), &peer, &six);
    let quick = Pair::connect(&peer, &cfg(), &peer, &six.min_rnr_timer(Duration::from_millis(1)).unwrap());
    let message = region(&peer, 8, Usage::SEND);
    for pair in [&slow, &quick] {
        pair.client.send(message.all(), Signal::Always, 1).unwrap();
    }
    assert_eq!(failed(&quick.client, 1).status, IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(slow.client.cq().poll().unwrap(), None);
    let inbox = region(&peer, 8, Usage::RECV);
    slow.server.recv(inbox.all(), 2).unwrap();
    assert_eq!(received(&slow.server, 2).len_bytes, 8);
    complete(&slow.client, 1);
}

#[test]
fn receiver_not_ready_timer_that_the_provider_refuses_leaves_the_default_and_a_connection_that_works() {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    failing.arm(Plan::every(Call::ibv_modify_qp, Errno::INVAL.raw_os_error()));
    let pair = Pair::connect(&peer, &cfg().min_rnr_timer(Duration::from_millis(1)).unwrap(), &peer, &cfg());
    assert_eq!(failing.fired(), [Call::ibv_modify_qp]);
    failing.arm(Plan::never());
    assert_eq!(pair.client.negotiated().unwrap().min_rnr_timer, Duration::from_micros(655_360));
    still_works(&pair);
}

#[test]
fn sender_s_own_number_of_retries_leaves_its_messages_alone() {
    let peer = peer();
    let pair = Pair::connect(&peer, &cfg().rnr_retry_count(0).unwrap(), &peer, &cfg());
    let message = region(&peer, 8, Usage::SEND);
    pair.client.send(message.all(), Signal::Always, 1).unwrap();
    let inbox = region(&peer, 8, Usage::RECV);
    pair.server.recv(inbox.all(), 2).unwrap();
    assert_eq!(received(&pair.server, 2).len_bytes, 8);
    complete(&pair.client, 1);
}

#[test]
fn parameter_that_the_device_does_not_have_is_refused_by_name() {
    let peer = peer();
    let (endpoint, there) = listen(&peer);
    let rows = [
        (cfg().responder_resources(254).unwrap(), "responder_resources", 254),
        (cfg().initiator_depth(253).unwrap(), "initiator_depth", 253),
        (cfg().completion_vector(u32::MAX), "completion_vector", u32::MAX),
    ];
    for (cfg, name, value) in rows {
        let error = ConnReq::new(&peer, there, &cfg).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        let ConnReqError::Build(BuildError::Parameter(out)) = error else { panic!("{error:?}") };
        assert_eq!((out.name, out.value), (name, value));
        assert!(out.max < value, "{out}");
    }
    // The same for who accepts; and the endpoint goes on.
    let (pending, request) = crate::support::request(&peer, &endpoint, &[]);
    let refused = request.prepare(&cfg().completion_vector(u32::MAX)).unwrap_err();
    assert!(matches!(refused, BuildError::Parameter(ParameterError { name: "completion_vector", min: 0, .. })), "{refused:?}");
    assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
}

#[test]
fn last_completion_vector_of_the_device_works() {
    let peer = peer();
    let last = peer.device().context().completion_vectors() - 1;
    let cfg = cfg().completion_vector(last).rcq_size(4);
    let pair = Pair::connect(&peer, &cfg, &peer, &cfg);
    let message = region(&peer, 8, Usage::SEND);
    let inbox = region(&peer, 8, Usage::RECV);
    pair.server.recv(inbox.all(), 1).unwrap();
    pair.client.send(message.all(), Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    assert_eq!(pair.server.rcq().unwrap().wait(LIMIT).unwrap().context(), 1);
}

#[test]
fn option_that_is_refused_is_an_error_that_names_it() {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    let (_endpoint, there) = listen(&peer);
    let refused = |cfg: ConnCfg| {
        failing.arm(Plan::every(Call::rdma_set_option, Errno::NOSYS.raw_os_error()));
        let error = ConnReq::new(&peer, there, &cfg).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Provider);
        error
    };
    let error = refused(cfg().type_of_service(0x20));
    assert!(matches!(error, ConnReqError::TypeOfService { value: 0x20, .. }), "{error:?}");
    let error = refused(cfg().ack_timeout(14).unwrap());
    assert!(matches!(error, ConnReqError::Build(BuildError::AckTimeout { code: 14, .. })), "{error:?}");
}

#[test]
fn request_beyond_the_backlog_waits_until_those_before_it_are_served() {
    let peer = peer();
    let endpoint = Endpoint::listen_with_backlog(&peer, (addr(), 0), 1).unwrap();
    let there = endpoint.local_addr().unwrap();
    let listener = Listener::on(endpoint, &cfg());
    let ask = || ConnReq::new(&peer, there, &cfg()).unwrap().connect(&[]).unwrap();
    let serve = |client: PendingConn| {
        let server = listener.get_request(LIMIT).unwrap().connect(&[]).unwrap();
        Pair { client: client.established(LIMIT).unwrap(), server: server.established(LIMIT).unwrap() }
    };
    let first = ask();
    crate::support::readable(&listener);
    let second = ask();
    // Nobody answers it meanwhile: the kernel drops it, and the client's asks again after four seconds; the software provider keeps it.
    let answer = second.established(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(answer, EstablishError::TimedOut), "{answer:?}");
    still_works(&serve(first));
    // There is room again.
    still_works(&serve(second));
}
