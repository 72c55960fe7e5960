//! Addresses, names and devices: what is found, and the messages when it is not.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rpma::prelude::*;
use rpma::{ConnReqError, DeviceError, ErrorCode, ListenError};

use crate::support::{
    LIMIT, Pair, addr, addr6, cfg, device, device_names, is_soft, listen, peer, provider, still_works, takes_connections,
};

/// Of a network for documentation (RFC 5737): nobody has this address.
const NOBODY: &str = "203.0.113.199";

/// An address that nobody connects to: soft-RoCE has no loopback address, and TCP no broadcasts.
fn useless() -> IpAddr {
    if is_soft() { Ipv4Addr::BROADCAST } else { Ipv4Addr::LOCALHOST }.into()
}

#[test]
fn devices_are_found_in_the_list_by_name_and_by_both_kinds_of_address() {
    let provider = provider();
    let mut names: Vec<_> = Device::list(&provider).unwrap().iter().map(|device| device.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, device_names());

    let local = device(&provider);
    assert!(names.iter().any(|name| name == local.name()));
    let same = |device: &Device| device.name() == local.name() && device.is_same_as(&local);
    assert!(same(&Device::by_name(&provider, local.name()).unwrap()));
    // Our own address is remote too.
    assert!(same(&Device::remote(&provider, &addr().to_string(), LIMIT).unwrap()));
}

#[test]
fn device_found_in_the_list_takes_connections() {
    let provider = provider();
    let named = Peer::new(&Device::by_name(&provider, device(&provider).name()).unwrap()).unwrap();
    still_works(&Pair::connect(&named, &cfg(), &peer(), &cfg()));
    still_works(&Pair::connect(&peer(), &cfg(), &named, &cfg()));
}

#[test]
fn unknown_name_of_a_device_is_an_error_that_lists_the_known_ones() {
    let error = Device::by_name(&provider(), "mlx5_99").unwrap_err();
    assert!(matches!(error, DeviceError::UnknownName { .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    let text = error.to_string();
    assert!(text.contains("mlx5_99") && device_names().iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn listening_on_the_wildcard_address_takes_connections_of_the_peer_s_device() {
    let peer = peer();
    let endpoint = Endpoint::listen(&peer, ("0.0.0.0", 0)).unwrap();
    let port = endpoint.local_addr().unwrap().port();
    let pending = ConnReq::new(&peer, (addr(), port), &cfg()).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    assert_eq!(server.local_addr(), Some((addr(), port).into()));
    still_works(&Pair { client, server });
}

#[test]
fn unknown_host_is_told_in_the_resolver_s_words() {
    const HOST: &str = "no such host";
    let provider = provider();
    let peer = peer();
    let errors: [Box<dyn Error>; 4] = [
        Box::new(Device::local(&provider, HOST).unwrap_err()),
        Box::new(Device::remote(&provider, HOST, LIMIT).unwrap_err()),
        Box::new(Endpoint::listen(&peer, (HOST, 0)).unwrap_err()),
        Box::new(ConnReq::new(&peer, (HOST, 7), &cfg()).unwrap_err()),
    ];
    for error in errors {
        let resolver_s = error.source().expect("the resolver's message").to_string();
        // What getaddrinfo(3) says of EAI_NONAME, and not what errno happens to be.
        assert!(resolver_s.contains("Name or service not known"), "{error}: {resolver_s}");
        assert!(error.to_string().contains("looked up") || error.to_string().contains("look up"), "{error}");
    }
}

#[test]
fn address_that_this_machine_does_not_have_is_an_error_at_once() {
    let error = Device::local(&provider(), NOBODY).unwrap_err();
    assert!(matches!(error, DeviceError::NotLocal { .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
    let error = Endpoint::listen(&peer(), (NOBODY, 0)).unwrap_err();
    assert!(matches!(error, ListenError::NotLocal { .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
}

#[test]
fn no_time_to_resolve_is_allowed_and_is_over_at_once() {
    let error = ConnReq::new(&peer(), (addr(), 7), &cfg().timeout(Duration::ZERO)).unwrap_err();
    assert!(matches!(error, ConnReqError::TimedOut { timeout: Duration::ZERO, .. }), "{error:?}");
}

#[test]
fn every_address_of_a_host_is_tried() {
    let peer = peer();
    let (endpoint, right) = listen(&peer);
    let wrong = SocketAddr::from((useless(), right.port()));
    let pending = ConnReq::new(&peer, &[wrong, right][..], &cfg()).unwrap().connect(&[]).unwrap();
    assert_eq!(pending.peer_addr(), Some(right));
    drop(endpoint.next_request(LIMIT).unwrap());
    let nobody: IpAddr = NOBODY.parse().unwrap();
    let endpoint = Endpoint::listen(&peer, &[(nobody, 0).into(), SocketAddr::from((addr(), 0))][..]).unwrap();
    assert_eq!(endpoint.local_addr().unwrap().ip(), addr());

    // Of several that fail, the last one is told.
    let last = SocketAddr::from((useless(), 7));
    let error = ConnReq::new(&peer, &[wrong, last][..], &cfg()).unwrap_err();
    assert!(error.to_string().contains(&last.to_string()), "{error}");
    let none: &[SocketAddr] = &[];
    assert!(matches!(ConnReq::new(&peer, none, &cfg()), Err(ConnReqError::NoAddress)));
    assert!(matches!(Endpoint::listen(&peer, none), Err(ListenError::NoAddress)));
}

#[test]
fn ipv6_address_takes_connections() {
    takes_connections(&addr6().to_string(), addr6());
}

#[test]
fn link_local_address_without_its_interface_is_refused() {
    let bare = "fe80::1";
    let provider = provider();
    for error in [Device::local(&provider, bare).unwrap_err(), Device::remote(&provider, bare, LIMIT).unwrap_err()] {
        assert!(matches!(error, DeviceError::NoScope { .. }), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    let error = Endpoint::listen(&peer(), (bare, 0)).unwrap_err();
    assert!(matches!(error, ListenError::NoScope { .. }) && error.code() == ErrorCode::InvalidArgument, "{error:?}");
    let error = ConnReq::new(&peer(), (bare, 7), &cfg()).unwrap_err();
    assert!(matches!(error, ConnReqError::NoScope { .. }) && error.code() == ErrorCode::InvalidArgument, "{error:?}");
}

#[test]
fn port_that_is_taken_is_an_error_that_names_it_until_it_is_free() {
    let peer = peer();
    let (endpoint, taken) = listen(&peer);
    let (other, other_addr) = listen(&peer);
    assert_ne!(taken, other_addr, "port 0 takes a free one");
    let error = Endpoint::listen(&peer, taken).unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }) && error.to_string().contains(&taken.port().to_string()), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
    drop((endpoint, other));
    assert_eq!(Endpoint::listen(&peer, taken).unwrap().local_addr(), Some(taken));
}
