//! What soft-RoCE puts on the network, and what it does when nothing comes back.

use std::fs;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::process::Command;
use std::thread;
use std::time::Instant;

use rpma::prelude::*;
use rpma::sys::bindings::IBV_WC_RETRY_EXC_ERR;
use rpma::{DeviceEventKind, DeviceEventSubject, DeviceEvents};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use crate::environment::{interface_of, silent_neighbour};
use crate::support::{LIMIT, Pair, addr, addr6, cfg, failed, in_time, is_readable, peer, provider, takes_connections};

/// An address of the device under test, beside its own, for as long as this lives.
struct SecondAddress {
    address: &'static str,
    interface: String,
}

impl SecondAddress {
    fn add(address: &'static str) -> Self {
        let interface = interface_of(&addr().to_string());
        let added = Self { address, interface };
        added.ip("add");
        added
    }

    fn ip(&self, what: &str) {
        let args = ["addr", what, &format!("{}/24", self.address), "dev", &self.interface];
        assert!(Command::new("ip").args(args).status().unwrap().success(), "ip {args:?}");
    }

    /// From now on nothing can be sent from it. What is sent to it still arrives.
    fn take_away(self) {
        self.ip("del");
    }

    /// The device knows of the address a moment later.
    fn listen(&self, peer: &Peer) -> Endpoint {
        let start = Instant::now();
        loop {
            match Endpoint::listen(peer, (self.address, 0)) {
                Ok(endpoint) => return endpoint,
                Err(e) => assert!(start.elapsed() < LIMIT, "{e:?}"),
            }
            thread::yield_now();
        }
    }
}

/// A connection whose server can no longer answer.
fn with_a_silent_server(address: &'static str, client: &ConnCfg) -> Pair {
    let second = SecondAddress::add(address);
    let peer = peer();
    let endpoint = second.listen(&peer);
    let pending = ConnReq::new(&peer, endpoint.local_addr().unwrap(), client).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    assert_ne!(client.local_addr().unwrap().ip(), server.local_addr().unwrap().ip());
    second.take_away();
    Pair { client, server }
}

#[test]
fn work_fails_within_the_time_told_when_the_peer_vanishes() {
    let asked = cfg().ack_timeout(16).unwrap().retry_count(3).unwrap();
    let told = asked.detection_time().unwrap();
    let pair = with_a_silent_server("10.0.0.77", &asked);
    assert_eq!(pair.client.negotiated().unwrap().detection_time(), Some(told));
    let start = Instant::now();
    pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 1).unwrap();
    assert_eq!(failed(&pair.client, 1).status, IBV_WC_RETRY_EXC_ERR);
    let took = start.elapsed();
    // A timer may run already when the request is posted; and a device may take four times as long, and an emulated one longer.
    assert!(took > told / 2 && took < told * 4 + LIMIT / 4, "{took:?}, and told were {told:?}");
    in_time(move || drop(pair));
}

#[test]
fn seven_retries_are_without_end() {
    let asked = cfg().ack_timeout(12).unwrap();
    let told = asked.detection_time().unwrap();
    let pair = with_a_silent_server("10.0.0.78", &asked);
    pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 1).unwrap();
    // Ten times as long as all tries together.
    let waited = pair.client.cq().wait(told * 10);
    assert!(matches!(waited, Err(CqError::NoCompletion)), "{waited:?}");
    pair.client.disconnect().unwrap();
    assert!(failed(&pair.client, 1).is_flushed());
    in_time(move || drop(pair));
}

/// The type of service of the first packet of RoCE (UDP port 4791) to `host`, as the network card is given it.
fn type_of_service_to(host: [u8; 4], request: impl FnOnce()) -> u8 {
    const ETH_P_ALL: u16 = 3;
    const UDP: u8 = 17;
    const ROCE: [u8; 2] = 4791_u16.to_be_bytes();
    let all = Protocol::from_raw(NonZeroU32::new(ETH_P_ALL.to_be().into()).unwrap());
    // Gives packets without the header of the link.
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(all)).unwrap();
    request();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT && is_readable(&socket, LIMIT), "no packet of RoCE to {host:?}");
        let mut packet = [0; 64];
        let (len, _) = recv(&socket, &mut packet[..], RecvFlags::TRUNC).unwrap();
        if len > 28 && packet[0] == 0x45 && packet[9] == UDP && packet[16..20] == host && packet[22..24] == ROCE {
            return packet[1];
        }
    }
}

#[test]
fn packets_carry_the_type_of_service_that_was_asked_for() {
    let peer = peer();
    // Each to a host of its own, of which nothing is heard: what is sent is the request, again and again.
    for (asked, host) in [(0x20, [10, 0, 0, 196]), (0x68, [10, 0, 0, 197])] {
        let there = Ipv4Addr::from(host);
        silent_neighbour(&there.to_string(), &format!("02:00:00:00:00:{:02x}", host[3]));
        let mut pending = None;
        let told = type_of_service_to(host, || {
            let request = ConnReq::new(&peer, (there.to_string(), 7204), &cfg().type_of_service(asked)).unwrap();
            pending = Some(request.connect(&[]).unwrap());
        });
        assert_eq!(told, asked);
    }
}

/// The interface of the address under test, which a test takes down; it is up again when this goes.
struct Link {
    interface: String,
    /// Whether the kernel kept IPv6 addresses of an interface that is down, and where that is set.
    kept: String,
    setting: String,
    addresses: Vec<String>,
}

impl Link {
    fn of_the_device() -> Self {
        let interface = interface_of(&addr().to_string());
        // Others on this machine use it.
        assert_ne!(interface, "lo", "the address under test is on a device of its own");
        let setting = format!("/proc/sys/net/ipv6/conf/{interface}/keep_addr_on_down");
        let kept = fs::read_to_string(&setting).unwrap();
        fs::write(&setting, "1").unwrap();
        let addresses = addresses_of(&interface);
        Self { interface, kept, setting, addresses }
    }

    fn set(&self, state: &str) {
        assert!(Command::new("ip").args(["link", "set", &self.interface, state]).status().unwrap().success(), "{state}");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set("up");
        // The kernel makes the link-local address again, a moment later.
        let start = Instant::now();
        while addresses_of(&self.interface) != self.addresses && start.elapsed() < LIMIT {
            thread::yield_now();
        }
        fs::write(&self.setting, &self.kept).unwrap();
        if !thread::panicking() {
            assert_eq!(addresses_of(&self.interface), self.addresses);
        }
    }
}

/// The addresses of an interface, without what is about their time.
fn addresses_of(interface: &str) -> Vec<String> {
    let output = Command::new("ip").args(["-o", "addr", "show", "dev", interface]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // "2: eth0    inet 10.0.0.1/24 …"
    let mut addresses: Vec<_> = text.lines().map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")).collect();
    addresses.sort();
    addresses
}

#[test]
#[ignore = "takes the network card down, so nothing else may run: target/suite/kernel --ignored network::port"]
fn port_whose_link_goes_down_and_comes_back_is_told_both_with_its_number() {
    let peer = peer();
    let events = DeviceEvents::of(peer.device()).unwrap();
    while events.next_event(Wait::Now).is_ok() {}
    {
        let link = Link::of_the_device();
        for (state, kind) in [("down", DeviceEventKind::PortError), ("up", DeviceEventKind::PortActive)] {
            link.set(state);
            // Its addresses come and go with it, which are other events.
            let event = loop {
                let event = events.next_event(LIMIT).unwrap();
                if event.kind() == kind {
                    break event;
                }
            };
            assert_eq!(event.subject(), DeviceEventSubject::Port(1), "{state}");
        }
    }
    // As it was: the device has both addresses again, a moment after the interface.
    let start = Instant::now();
    for address in [addr().to_string(), addr6().to_string()] {
        while let Err(e) = Device::local(&provider(), &address) {
            assert!(start.elapsed() < LIMIT, "{address}: {e:?}");
            thread::yield_now();
        }
    }
    takes_connections(&addr6().to_string(), addr6());
}
