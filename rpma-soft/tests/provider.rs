//! The provider, through the boundary that the rest of the workspace uses: what the integration suite of `rpma` does not show.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpma_soft::{Soft, SoftConfig};
use rpma_sys::ProviderRef;
use rpma_sys::owned::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LIMIT: Duration = Duration::from_secs(20);
const LOCAL: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

fn quick() -> ProviderRef {
    let mut config = SoftConfig::default();
    config.unreachable_after = Duration::from_millis(300);
    Soft::with_config(config).unwrap()
}

fn event(channel: &Arc<EventChannel>) -> CmEvent {
    loop {
        if let Some(event) = channel.get_event().unwrap() {
            return event;
        }
        let limit = Timespec::try_from(LIMIT).unwrap();
        assert!(poll(&mut [PollFd::new(&channel.as_fd(), PollFlags::IN)], Some(&limit)).unwrap() > 0, "no event");
    }
}

fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam { private_data, responder_resources: 255, initiator_depth: 255, retry_count: 7, rnr_retry_count: 7 }
}

fn listener(provider: &ProviderRef) -> (Arc<EventChannel>, CmId, SocketAddr) {
    let channel = EventChannel::create(provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.bind(LOCAL.into()).unwrap();
    id.listen(0).unwrap();
    let addr = id.local_addr().unwrap();
    (channel, id, addr)
}

/// A client that has asked for a connection.
fn asking(provider: &ProviderRef, addr: SocketAddr) -> (Arc<EventChannel>, CmId) {
    let channel = EventChannel::create(provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.resolve_addr(addr, LIMIT).unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
    id.resolve_route(LIMIT).unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
    id.connect(param(b"hello")).unwrap();
    (channel, id)
}

#[test]
fn nobody_listening_is_told_as_a_refusal_for_the_wrong_service() {
    let provider = quick();
    let free = TcpListener::bind(SocketAddr::from(LOCAL)).unwrap().local_addr().unwrap();
    let (channel, _id) = asking(&provider, free);
    let told = event(&channel);
    assert_eq!((told.kind, told.status, told.private_data.len()), (CmEventKind::Rejected, 8, 148));
}

#[test]
fn client_that_may_wait_for_a_listener_is_rejected_when_none_has_come() {
    let mut config = SoftConfig::default();
    config.refused_after = Duration::from_millis(200);
    let provider = Soft::with_config(config).unwrap();
    let free = TcpListener::bind(SocketAddr::from(LOCAL)).unwrap().local_addr().unwrap();
    let before = Instant::now();
    let (channel, _id) = asking(&provider, free);
    let told = event(&channel);
    assert_eq!((told.kind, told.status), (CmEventKind::Rejected, 8));
    assert!(before.elapsed() >= Duration::from_millis(190), "{:?}", before.elapsed());
}

#[test]
fn client_that_may_wait_for_a_listener_reaches_one_that_comes_later() {
    let mut config = SoftConfig::default();
    config.refused_after = LIMIT;
    let provider = Soft::with_config(config).unwrap();
    // Bound, so that nobody else gets the port, and nobody listens: a first try is refused.
    let channel = EventChannel::create(&provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.bind(LOCAL.into()).unwrap();
    let (client_channel, client) = asking(&provider, id.local_addr().unwrap());
    assert!(client_channel.get_event().unwrap().is_none(), "a refusal would be told already");
    id.listen(0).unwrap();
    let told = event(&channel);
    assert_eq!((told.kind, &told.private_data[..5]), (CmEventKind::ConnectRequest, &b"hello"[..]));
    // One that gives up while it waits tells nobody.
    drop(client);
}

#[test]
fn host_that_takes_the_connection_and_says_nothing_is_unreachable_after_the_limit() {
    let provider = quick();
    let silent = TcpListener::bind(SocketAddr::from(LOCAL)).unwrap();
    let before = Instant::now();
    let (channel, _id) = asking(&provider, silent.local_addr().unwrap());
    let told = event(&channel);
    assert_eq!((told.kind, told.status), (CmEventKind::Unreachable, -libc::ETIMEDOUT));
    assert!(before.elapsed() >= Duration::from_millis(300) && before.elapsed() < Duration::from_secs(5));
}

#[test]
fn server_that_speaks_another_protocol_is_told_as_a_refusal() {
    let provider = quick();
    let other = TcpListener::bind(SocketAddr::from(LOCAL)).unwrap();
    let (channel, _id) = asking(&provider, other.local_addr().unwrap());
    let mut stream = other.accept().unwrap().0;
    stream.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::Rejected);
}

#[test]
fn stranger_who_says_something_else_is_cut_and_the_listener_goes_on() {
    let provider = quick();
    let (channel, _id, addr) = listener(&provider);
    let mut stranger = TcpStream::connect(addr).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap();
    stranger.set_read_timeout(Some(LIMIT)).unwrap();
    // The preamble, perhaps, and then the end.
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.len() <= 16, "{answer:?}");
    let _client = asking(&provider, addr);
    assert_eq!(event(&channel).kind, CmEventKind::ConnectRequest);
}

#[test]
fn listener_that_goes_away_rejects_the_requests_that_nobody_took() {
    let provider = quick();
    let (channel, id, addr) = listener(&provider);
    let (client_channel, _client) = asking(&provider, addr);
    let limit = Timespec::try_from(LIMIT).unwrap();
    assert!(poll(&mut [PollFd::new(&channel.as_fd(), PollFlags::IN)], Some(&limit)).unwrap() > 0);
    drop(id);
    let told = event(&client_channel);
    assert_eq!((told.kind, told.status), (CmEventKind::Rejected, 28));
}

#[test]
fn requests_beyond_the_backlog_come_in_when_others_were_taken() {
    let provider = quick();
    let channel = EventChannel::create(&provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.bind(LOCAL.into()).unwrap();
    id.listen(2).unwrap();
    let addr = id.local_addr().unwrap();
    let _clients: Vec<_> = (0..5).map(|_| asking(&provider, addr)).collect();
    for _ in 0..5 {
        assert_eq!(event(&channel).kind, CmEventKind::ConnectRequest);
    }
}

#[test]
fn requests_beyond_the_backlog_are_rejected_with_their_listener() {
    let provider = quick();
    let channel = EventChannel::create(&provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.bind(LOCAL.into()).unwrap();
    id.listen(1).unwrap();
    let addr = id.local_addr().unwrap();
    let clients: Vec<_> = (0..3).map(|_| asking(&provider, addr)).collect();
    let limit = Timespec::try_from(LIMIT).unwrap();
    assert!(poll(&mut [PollFd::new(&channel.as_fd(), PollFlags::IN)], Some(&limit)).unwrap() > 0);
    drop(id);
    for (channel, _id) in &clients {
        assert_eq!(event(channel).kind, CmEventKind::Rejected);
    }
}

#[test]
fn device_without_native_operations_says_so() {
    let plain = Soft::with_config(SoftConfig::default().without_native_operations()).unwrap();
    for (provider, has) in [(Soft::open().unwrap(), true), (plain, false)] {
        let contexts = rpma_sys::owned::Context::list(&provider).unwrap();
        let attr = contexts[0].query_device().unwrap();
        assert_eq!(attr.device_cap_flags_ex != 0, has);
        assert_eq!(attr.odp_caps.general_caps != 0, has);
        assert_eq!(contexts[0].name(), "soft0");
        let port = contexts[0].query_port(1).unwrap();
        assert_eq!((port.state, port.max_msg_sz), (rpma_sys::bindings::IBV_PORT_ACTIVE, 1 << 30));
        assert!(contexts[0].query_port(2).is_err());
    }
}

#[test]
fn port_that_is_listened_on_cannot_be_bound_again() {
    let provider = quick();
    let (_channel, _id, addr) = listener(&provider);
    let channel = EventChannel::create(&provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    assert_eq!(id.bind(addr).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
    assert_eq!(id.bind("192.0.2.77:0".parse().unwrap()).unwrap_err().raw_os_error(), Some(libc::EADDRNOTAVAIL));
}
