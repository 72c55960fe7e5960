//! Addresses, devices, and what the process may do: what is found, and the messages when it is not.

use std::error::Error;
use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::Instant;

use rpma::prelude::*;
use rpma::{ConnReqError, DeviceError, ErrorCode, EstablishError, ListenError, ProviderError};

use crate::support::{LIMIT, Pair, addr, alone_after, cfg, device, listen, peer, provider, still_works, variable};

/// Nobody has this address: it is on the network of the guest that has the address under test.
const NOBODY: &str = "10.0.0.199";

/// Nobody has this one either, but the neighbour table says where it is: it resolves, and never answers.
const SILENT: &str = "10.0.0.198";

/// The names of the kernel's devices.
fn devices_of_the_kernel() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/infiniband").unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn devices_are_found_in_the_list_by_name_and_by_both_kinds_of_address() {
    let provider = provider();
    let mut names: Vec<_> = Device::list(&provider).unwrap().iter().map(|device| device.name().to_owned()).collect();
    names.sort();
    let mut known = devices_of_the_kernel();
    known.sort();
    assert_eq!(names, known);

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
    assert!(text.contains("mlx5_99") && devices_of_the_kernel().iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn wildcard_and_loopback_addresses_are_on_no_device() {
    let provider = provider();
    for host in ["0.0.0.0", "::", "127.0.0.1", "::1"] {
        let error = Device::local(&provider, host).unwrap_err();
        assert!(matches!(error, DeviceError::NotOnDevice { .. }), "{host}: {error:?}");
        assert_eq!(error.code(), ErrorCode::Provider);
    }
}

#[test]
fn listening_on_or_connecting_to_a_loopback_address_says_that_it_is_on_no_device() {
    let peer = peer();
    for host in ["127.0.0.1", "::1"] {
        let error = Endpoint::listen(&peer, (host, 0)).unwrap_err();
        assert!(matches!(error, ListenError::NotOnDevice { .. }), "{host}: {error:?}");
        let error = ConnReq::new(&peer, (host, 7), &cfg()).unwrap_err();
        assert!(matches!(error, ConnReqError::NotOnDevice { .. }), "{host}: {error:?}");
        assert_eq!(error.code(), ErrorCode::Provider);
    }
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
fn host_that_is_not_there_is_an_error_within_the_time_given() {
    let timeout = Duration::from_millis(300);
    // Our own wait ends a little later than the connection manager's; the rest is for a slow machine.
    let in_time = |start: Instant| assert!(start.elapsed() < LIMIT / 4);

    let start = Instant::now();
    let error = ConnReq::new(&peer(), (NOBODY, 7), &cfg().timeout(timeout)).unwrap_err();
    in_time(start);
    assert!(matches!(error, ConnReqError::TimedOut { timeout: told, .. } if told == timeout), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);

    let start = Instant::now();
    let error = Device::remote(&provider(), NOBODY, timeout).unwrap_err();
    in_time(start);
    assert!(matches!(error, DeviceError::TimedOut { timeout: told, .. } if told == timeout), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
}

#[test]
fn no_time_to_resolve_is_allowed_and_is_over_at_once() {
    let error = ConnReq::new(&peer(), (NOBODY, 7), &cfg().timeout(Duration::ZERO)).unwrap_err();
    assert!(matches!(error, ConnReqError::TimedOut { timeout: Duration::ZERO, .. }), "{error:?}");
}

#[test]
fn network_without_a_route_is_an_error_that_names_the_address() {
    // 192.0.2.0/24 is for documentation, and the guest has no default route.
    let error = ConnReq::new(&peer(), ("192.0.2.1", 7), &cfg()).unwrap_err();
    assert!(matches!(error, ConnReqError::Address { .. }) && error.to_string().contains("192.0.2.1:7"), "{error:?}");
    let error = Device::remote(&provider(), "192.0.2.1", LIMIT).unwrap_err();
    assert!(matches!(error, DeviceError::Unreachable { .. }), "{error:?}");
}

#[test]
fn every_address_of_a_host_is_tried() {
    let peer = peer();
    let (endpoint, right) = listen(&peer);
    let loopback: SocketAddr = ([127, 0, 0, 1], right.port()).into();
    let pending = ConnReq::new(&peer, &[loopback, right][..], &cfg()).unwrap().connect(&[]).unwrap();
    assert_eq!(pending.peer_addr(), Some(right));
    drop(endpoint.next_request(LIMIT).unwrap());
    let endpoint = Endpoint::listen(&peer, &[([127, 0, 0, 1], 0).into(), SocketAddr::from((addr(), 0))][..]).unwrap();
    assert_eq!(endpoint.local_addr().unwrap().ip(), addr());

    // Of several that fail, the last one is told.
    let error = ConnReq::new(&peer, &[right, loopback][1..], &cfg()).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    let none: &[SocketAddr] = &[];
    assert!(matches!(ConnReq::new(&peer, none, &cfg()), Err(ConnReqError::NoAddress)));
    assert!(matches!(Endpoint::listen(&peer, none), Err(ListenError::NoAddress)));
}

#[test]
fn host_name_stands_for_its_addresses() {
    // The name is known to this one process alone; there must be a file to mount the list over.
    let hosts = format!("printf '%s rpma-test-host\\n' 127.0.0.1 {} >/tmp/hosts.$$", addr());
    alone_after(&format!("{hosts}\n[ -e /etc/hosts ] || : >/etc/hosts\nmount --bind /tmp/hosts.$$ /etc/hosts"), || {
        const HOST: &str = "rpma-test-host";
        let provider = provider();
        for found in [Device::local(&provider, HOST).unwrap(), Device::remote(&provider, HOST, LIMIT).unwrap()] {
            assert_eq!(found.name(), device(&provider).name());
        }
        let peer = peer();
        let endpoint = Endpoint::listen(&peer, (HOST, 0)).unwrap();
        let port = endpoint.local_addr().unwrap().port();
        let _pending = ConnReq::new(&peer, (HOST, port), &cfg()).unwrap().connect(&[]).unwrap();
        assert_eq!(endpoint.next_request(LIMIT).unwrap().local_addr(), Some((addr(), port).into()));
    });
}

/// Listens on `host` and connects to it, and both ends say so.
fn takes_connections(host: &str, ip: Ipv6Addr) {
    let provider = provider();
    let peer = Peer::new(&Device::local(&provider, host).unwrap()).unwrap();
    assert!(peer.device().is_same_as(&Device::remote(&provider, host, LIMIT).unwrap()));
    let endpoint = Endpoint::listen(&peer, (host, 0)).unwrap();
    let port = endpoint.local_addr().unwrap().port();
    assert_ne!(port, 0);
    let pending = ConnReq::new(&peer, (host, port), &cfg()).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    assert_eq!(client.peer_addr().map(|addr| (addr.ip(), addr.port())), Some((ip.into(), port)));
    assert_eq!(server.local_addr().map(|addr| (addr.ip(), addr.port())), Some((ip.into(), port)));
    still_works(&Pair { client, server });
}

#[test]
fn ipv6_address_takes_connections() {
    let host = variable("RPMA_TEST_ADDR6");
    takes_connections(&host, host.parse().unwrap());
}

#[test]
fn link_local_address_takes_connections_with_its_interface_and_is_refused_without() {
    let (ip, interface) = link_local();
    takes_connections(&format!("{ip}%{interface}"), ip);

    let bare = ip.to_string();
    let provider = provider();
    for error in [Device::local(&provider, &bare).unwrap_err(), Device::remote(&provider, &bare, LIMIT).unwrap_err()] {
        assert!(matches!(error, DeviceError::NoScope { .. }), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    let error = Endpoint::listen(&peer(), (&*bare, 0)).unwrap_err();
    assert!(matches!(error, ListenError::NoScope { .. }) && error.code() == ErrorCode::InvalidArgument, "{error:?}");
    let error = ConnReq::new(&peer(), (&*bare, 7), &cfg()).unwrap_err();
    assert!(matches!(error, ConnReqError::NoScope { .. }) && error.code() == ErrorCode::InvalidArgument, "{error:?}");
}

/// The link-local address of the interface that has `RPMA_TEST_ADDR6`, and its name: `/proc/net/if_inet6` lists both.
fn link_local() -> (Ipv6Addr, String) {
    let listed = fs::read_to_string("/proc/net/if_inet6").unwrap();
    let addresses: Vec<(Ipv6Addr, &str)> = listed
        .lines()
        .map(|line| {
            let mut columns = line.split_whitespace();
            let ip = u128::from_str_radix(columns.next().unwrap(), 16).unwrap().into();
            (ip, columns.next_back().unwrap())
        })
        .collect();
    let global: Ipv6Addr = variable("RPMA_TEST_ADDR6").parse().unwrap();
    let (_, interface) = addresses.iter().find(|(ip, _)| *ip == global).expect("RPMA_TEST_ADDR6 is an address of this machine");
    let found = addresses.iter().find(|(ip, on)| ip.is_unicast_link_local() && on == interface);
    let (ip, interface) = found.expect("its interface has a link-local address");
    (*ip, (*interface).to_owned())
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

/// Gives the process RDMA device files of its own, and takes the others away.
const OWN_DEVICE_FILES: &str = "cp -a /dev/infiniband /tmp/infiniband.$$; mount --bind /tmp/infiniband.$$ /dev/infiniband";

/// Goes on as nobody.
const AS_NOBODY: &str = "set -- setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all -- \"$@\"";

#[test]
fn process_that_may_not_open_the_connection_manager_is_told_so() {
    alone_after(&format!("{OWN_DEVICE_FILES}\nchmod 600 /dev/infiniband/rdma_cm\n{AS_NOBODY}"), || {
        let host = addr().to_string();
        for error in [Device::local(&provider(), &host).unwrap_err(), Device::remote(&provider(), &host, LIMIT).unwrap_err()] {
            assert!(matches!(error, DeviceError::NotPermitted { .. }), "{error:?}");
            assert_eq!(error.code(), ErrorCode::Provider);
        }
    });
}

#[test]
fn process_that_may_not_open_any_device_is_told_so() {
    alone_after(&format!("{OWN_DEVICE_FILES}\nchmod 600 /dev/infiniband/uverbs*\n{AS_NOBODY}"), || {
        let host = addr().to_string();
        let errors = [
            Device::list(&provider()).unwrap_err(),
            Device::local(&provider(), &host).unwrap_err(),
            Device::remote(&provider(), &host, LIMIT).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, DeviceError::NotPermitted { .. }), "{error:?}");
        }
    });
}

#[test]
fn devices_that_cannot_be_opened_are_named_and_are_not_said_to_be_absent() {
    alone_after(&format!("{OWN_DEVICE_FILES}; rm /dev/infiniband/uverbs*"), || {
        let errors = [Device::list(&provider()).unwrap_err(), Device::local(&provider(), &addr().to_string()).unwrap_err()];
        for error in errors {
            assert!(matches!(error, DeviceError::Unusable { .. }), "{error:?}");
            let text = error.to_string();
            assert!(devices_of_the_kernel().iter().all(|name| text.contains(name)), "{text}");
        }
    });
}

#[test]
fn kernel_without_the_connection_manager_is_told_so() {
    alone_after(&format!("{OWN_DEVICE_FILES}; rm /dev/infiniband/rdma_cm"), || {
        let error = Device::local(&provider(), &addr().to_string()).unwrap_err();
        assert!(matches!(error, DeviceError::Unusable { .. }) && error.to_string().contains("rdma_ucm"), "{error:?}");
    });
}

#[test]
fn missing_rdma_core_is_an_error_that_says_what_to_install() {
    // In place of the library is an empty file, as far as this process sees.
    let setup = "library=$(readlink -f \"$(ldconfig -p | sed -n 's/.*librdmacm\\.so\\.1 .*=> //p' | head -n 1)\")\nmount --bind /dev/null \"$library\"";
    alone_after(setup, || {
        let error = Provider::RdmaCore.open().unwrap_err();
        assert!(matches!(error, ProviderError::Load(_)), "{error:?}");
        assert_eq!(error.code(), ErrorCode::Provider);
        let text = error.to_string();
        assert!(text.contains("librdmacm") && text.contains("install"), "{text}");
    });
}

#[test]
fn host_that_does_not_answer_the_connection_manager_is_unreachable_and_a_deadline_knows_it_earlier() {
    // The connection manager asks 16 times, at intervals of 4.3 s (RoCE's packet life time): more than a minute.
    const GIVES_UP_WITHIN: Duration = Duration::from_secs(180);
    let interface = interface_of(&addr().to_string());
    let neighbour = ["neigh", "replace", SILENT, "lladdr", "02:00:00:00:00:c6", "nud", "permanent", "dev", &interface];
    assert!(Command::new("ip").args(neighbour).status().unwrap().success());

    let request = ConnReq::new(&peer(), (SILENT, 7204), &cfg()).unwrap();
    let pending = request.connect(&[]).unwrap();
    let early = pending.established(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(early, EstablishError::TimedOut), "{early:?}");
    let late = pending.established(GIVES_UP_WITHIN).unwrap_err();
    assert!(matches!(late, EstablishError::Unreachable), "{late:?}");
    pending.disconnect().unwrap();
}

/// The interface that has an address of this machine.
fn interface_of(addr: &str) -> String {
    let output = Command::new("ip").args(["-o", "addr", "show", "to", addr]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // "2: eth0    inet 10.0.0.1/24 …"
    text.split_whitespace().nth(1).unwrap().to_owned()
}
