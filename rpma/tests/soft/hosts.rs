//! Hosts that are there and say nothing, and this machine's name for itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use rpma::EstablishError;
use rpma::prelude::*;
use rpma::soft::{Soft, SoftConfig};

use crate::support::{LIMIT, Pair, cfg, peer_over, provider, still_works};

/// Connects to a host that stays silent, and is told so; a deadline knows it earlier.
fn is_unreachable(addr: SocketAddr) {
    let mut config = SoftConfig::default();
    config.unreachable_after = Duration::from_secs(2);
    let peer = peer_over(&Soft::with_config(config).unwrap());
    let pending = ConnReq::new(&peer, addr, &cfg()).unwrap().connect(&[]).unwrap();
    let early = pending.established(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(early, EstablishError::TimedOut), "{early:?}");
    let late = pending.established(LIMIT).unwrap_err();
    assert!(matches!(late, EstablishError::Unreachable), "{late:?}");
    pending.disconnect().unwrap();
}

#[test]
fn host_whose_machine_answers_and_whose_program_does_not_is_unreachable() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    is_unreachable(silent.local_addr().unwrap());
}

#[test]
fn host_that_answers_nothing_at_all_is_unreachable() {
    let deaf = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Its queue has room for one, and nobody takes that out: to the next one Linux gives no answer.
    rustix::net::listen(&deaf, 0).unwrap();
    let addr = deaf.local_addr().unwrap();
    let _the_one = TcpStream::connect(addr).unwrap();
    is_unreachable(addr);
}

#[test]
fn host_name_stands_for_its_addresses() {
    const HOST: &str = "localhost";
    let provider = provider();
    for found in [Device::local(&provider, HOST).unwrap(), Device::remote(&provider, HOST, LIMIT).unwrap()] {
        assert_eq!(found.name(), "soft0");
    }
    let peer = peer_over(&provider);
    let endpoint = Endpoint::listen(&peer, (HOST, 0)).unwrap();
    let local = endpoint.local_addr().unwrap();
    assert!(local.ip().is_loopback());
    let pending = ConnReq::new(&peer, (HOST, local.port()), &cfg()).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let (client, server) = (pending.established(LIMIT).unwrap(), accepting.established(LIMIT).unwrap());
    assert_eq!((client.peer_addr(), server.local_addr()), (Some(local), Some(local)));
    still_works(&Pair { client, server });
}
