//! The kernel's addresses and device files, and what the process may do with them: what is found, and the messages when it is not.

use std::fs;
use std::net::Ipv6Addr;
use std::process::Command;
use std::time::Instant;

use rpma::prelude::*;
use rpma::{ConnReqError, DeviceError, ErrorCode, EstablishError, ListenError, ProviderError};

use crate::support::{LIMIT, addr, addr6, alone_by, cfg, device, device_names, peer, provider, takes_connections};

/// Nobody has this address: it is on the network of the guest that has the address under test.
const NOBODY: &str = "10.0.0.199";

/// Nobody has this one either, but the neighbour table says where it is: it resolves, and never answers.
const SILENT: &str = "10.0.0.198";

/// As `support::alone`, after `setup`, a shell script that may mount what it likes: nobody else sees it. That takes root.
fn alone_after<F: FnOnce()>(setup: &str, body: F) {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--", "sh", "-euc"]).arg(format!("{setup}\nexec \"$@\"")).arg("sh");
    alone_by(body, unshare);
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
fn network_without_a_route_is_an_error_that_names_the_address() {
    // 192.0.2.0/24 is for documentation, and the guest has no default route.
    let error = ConnReq::new(&peer(), ("192.0.2.1", 7), &cfg()).unwrap_err();
    assert!(matches!(error, ConnReqError::Address { .. }) && error.to_string().contains("192.0.2.1:7"), "{error:?}");
    let error = Device::remote(&provider(), "192.0.2.1", LIMIT).unwrap_err();
    assert!(matches!(error, DeviceError::Unreachable { .. }), "{error:?}");
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

#[test]
fn link_local_address_takes_connections_with_its_interface() {
    let (ip, interface) = link_local();
    takes_connections(&format!("{ip}%{interface}"), ip);
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
    let (_, interface) = addresses.iter().find(|(ip, _)| *ip == addr6()).expect("RPMA_TEST_ADDR6 is an address of this machine");
    let found = addresses.iter().find(|(ip, on)| ip.is_unicast_link_local() && on == interface);
    let (ip, interface) = found.expect("its interface has a link-local address");
    (*ip, (*interface).to_owned())
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
            assert!(device_names().iter().all(|name| text.contains(name)), "{text}");
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
    silent_neighbour(SILENT, "02:00:00:00:00:c6");
    let request = ConnReq::new(&peer(), (SILENT, 7204), &cfg()).unwrap();
    let pending = request.connect(&[]).unwrap();
    let early = pending.established(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(early, EstablishError::TimedOut), "{early:?}");
    let late = pending.established(GIVES_UP_WITHIN).unwrap_err();
    assert!(matches!(late, EstablishError::Unreachable), "{late:?}");
    pending.disconnect().unwrap();
}

/// Tells this machine where `ip` is: at a network card that is not there.
pub(crate) fn silent_neighbour(ip: &str, card: &str) {
    let interface = interface_of(&addr().to_string());
    // There the entry would be that of every address, and nothing on this machine could talk to itself any more.
    assert_ne!(interface, "lo", "the address under test is on a device of its own");
    let neighbour = ["neigh", "replace", ip, "lladdr", card, "nud", "permanent", "dev", &interface];
    assert!(Command::new("ip").args(neighbour).status().unwrap().success());
}

/// The interface that has an address of this machine.
pub(crate) fn interface_of(addr: &str) -> String {
    let output = Command::new("ip").args(["-o", "addr", "show", "to", addr]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // "2: eth0    inet 10.0.0.1/24 …"
    text.split_whitespace().nth(1).unwrap().to_owned()
}
