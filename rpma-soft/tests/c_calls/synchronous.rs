//! Identifiers without an event channel: calls that wait.

use std::ffi::c_int;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use rpma_soft::{Soft, SoftConfig};
use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;

use crate::harness::{Channel, Id, attributes};

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn listener(provider: &ProviderRef) -> (Id, SocketAddr) {
    let id = Id::create(provider, RDMA_PS_TCP).unwrap();
    id.bind(any_port()).unwrap();
    id.listen().unwrap();
    let addr = id.local();
    (id, addr)
}

/// A client that has only to connect.
fn client(provider: &ProviderRef, addr: SocketAddr) -> Id {
    let id = Id::create(provider, RDMA_PS_TCP).unwrap();
    id.resolve_addr(None, addr).unwrap();
    id.resolve_route().unwrap();
    id.create_qp(&mut attributes()).unwrap();
    id
}

/// What a client hears that connects with `private_data`, in a thread of its own.
fn connecting(
    provider: &ProviderRef,
    addr: SocketAddr,
    private_data: &'static [u8],
) -> thread::JoinHandle<(Result<(), c_int>, Id)> {
    let id = client(provider, addr);
    thread::spawn(move || (id.connect_with(private_data), id))
}

#[test]
fn each_call_waits_for_its_event_and_leaves_it_in_the_identifier() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let client = Id::create(&provider, RDMA_PS_TCP).unwrap();
    assert!(!client.fields().channel.is_null());
    assert_eq!(client.event(), None);
    client.resolve_addr(None, addr).unwrap();
    assert_eq!(client.kind(), Some(RDMA_CM_EVENT_ADDR_RESOLVED));
    assert_eq!((client.peer(), client.fields().port_num), (addr, 1));
    client.resolve_route().unwrap();
    assert_eq!(client.kind(), Some(RDMA_CM_EVENT_ROUTE_RESOLVED));
    client.create_qp(&mut attributes()).unwrap();
    let client = thread::spawn(move || {
        client.connect_with(b"hello").unwrap();
        client
    });
    let server = listener.get_request().unwrap();
    let request = server.event().unwrap();
    assert_eq!(
        (request.kind, &request.private_data[..6], request.private_data.len()),
        (RDMA_CM_EVENT_CONNECT_REQUEST, &b"hello\0"[..], 56)
    );
    assert_ne!(server.fields().channel, listener.fields().channel);
    assert_eq!(server.local(), addr);
    server.create_qp(&mut attributes()).unwrap();
    server.accept_with(b"welcome").unwrap();
    assert_eq!(server.kind(), Some(RDMA_CM_EVENT_ESTABLISHED));
    let client = client.join().unwrap();
    let told = client.event().unwrap();
    assert_eq!(
        (told.kind, &told.private_data[..8], told.private_data.len()),
        (RDMA_CM_EVENT_ESTABLISHED, &b"welcome\0"[..], 196)
    );
    // The end is agreed on: whoever asks waits for the other one.
    let client = thread::spawn(move || {
        client.disconnect().unwrap();
        assert_eq!(client.kind(), Some(RDMA_CM_EVENT_DISCONNECTED));
    });
    server.disconnect().unwrap();
    assert_eq!(server.kind(), Some(RDMA_CM_EVENT_DISCONNECTED));
    client.join().unwrap();
}

#[test]
fn refusal_is_econnrefused_and_what_came_with_it_can_be_read() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let client = connecting(&provider, addr, b"");
    let server = listener.get_request().unwrap();
    server.reject(b"no").unwrap();
    let (connected, client) = client.join().unwrap();
    assert_eq!(connected, Err(libc::ECONNREFUSED));
    let told = client.event().unwrap();
    assert_eq!((told.kind, told.status, &told.private_data[..3]), (RDMA_CM_EVENT_REJECTED, 28, &b"no\0"[..]));
    assert_eq!(client.connect(), Err(libc::EINVAL), "an identifier connects once");
}

#[test]
fn nobody_listening_is_econnrefused() {
    let provider = Soft::open().unwrap();
    let free = TcpListener::bind(any_port()).unwrap().local_addr().unwrap();
    let client = client(&provider, free);
    assert_eq!(client.connect(), Err(libc::ECONNREFUSED));
    assert_eq!(client.event().map(|told| (told.kind, told.status)), Some((RDMA_CM_EVENT_REJECTED, 8)));
}

#[test]
fn host_that_says_nothing_is_etimedout() {
    let mut config = SoftConfig::default();
    config.unreachable_after = Duration::from_millis(200);
    let provider = Soft::with_config(config).unwrap();
    let silent = TcpListener::bind(any_port()).unwrap();
    let client = client(&provider, silent.local_addr().unwrap());
    assert_eq!(client.connect(), Err(libc::ETIMEDOUT));
    assert_eq!(client.kind(), Some(RDMA_CM_EVENT_UNREACHABLE));
}

#[test]
fn host_that_says_nothing_is_given_up_after_the_5_seconds_of_the_default() {
    let after = SoftConfig::default().unreachable_after;
    assert_eq!(after, Duration::from_secs(5));
    let provider = Soft::open().unwrap();
    let silent = TcpListener::bind(any_port()).unwrap();
    let client = client(&provider, silent.local_addr().unwrap());
    let start = Instant::now();
    assert_eq!(client.connect(), Err(libc::ETIMEDOUT));
    let time = start.elapsed();
    assert!(time >= after && time < after + Duration::from_secs(10), "{time:?}");
}

#[test]
fn client_that_goes_away_with_the_answer_is_an_error_of_the_accept() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let client = Id::create(&provider, RDMA_PS_TCP).unwrap();
    client.resolve_addr(None, addr).unwrap();
    client.resolve_route().unwrap();
    // Without a queue pair it is the program that establishes the connection, and this one does not.
    let client = thread::spawn(move || client.connect_with(b""));
    let server = listener.get_request().unwrap();
    server.create_qp(&mut attributes()).unwrap();
    assert_eq!(server.accept(), Err(libc::ECONNREFUSED));
    assert_eq!(server.kind(), Some(RDMA_CM_EVENT_REJECTED));
    client.join().unwrap().unwrap();
}

#[test]
fn requests_wait_and_each_is_taken_once() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let clients: Vec<_> = [&b"a"[..], b"b", b"c"].into_iter().map(|name| connecting(&provider, addr, name)).collect();
    let servers: Vec<_> = clients.iter().map(|_| listener.get_request().unwrap()).collect();
    let mut names: Vec<_> = servers.iter().map(|server| server.event().unwrap().private_data[0]).collect();
    names.sort_unstable();
    assert_eq!(names, *b"abc");
    // Each echoes its client's name.
    for server in &servers {
        let name = server.event().unwrap().private_data[0];
        server.create_qp(&mut attributes()).unwrap();
        server.accept_with(&[name]).unwrap();
    }
    for (client, name) in clients.into_iter().zip(*b"abc") {
        let (connected, client) = client.join().unwrap();
        connected.unwrap();
        assert_eq!(client.event().unwrap().private_data[0], name);
    }
}

#[test]
fn listener_that_goes_away_refuses_who_waits() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let clients = [connecting(&provider, addr, b""), connecting(&provider, addr, b"")];
    let taken = listener.get_request().unwrap();
    taken.reject(b"").unwrap();
    // Destroying lets go of the event of the request, for which the listener would wait.
    drop(taken);
    drop(listener);
    for client in clients {
        let (connected, client) = client.join().unwrap();
        assert_eq!(connected, Err(libc::ECONNREFUSED));
        assert_eq!(client.kind(), Some(RDMA_CM_EVENT_REJECTED));
    }
}

#[test]
fn identifier_is_synchronous_while_it_is_on_no_channel_of_the_program_s() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    assert_eq!(listener.migrate(None), Err(libc::EINVAL), "it is already");
    let channel = Channel::create(&provider);
    listener.migrate(Some(&channel)).unwrap();
    assert_eq!(listener.fields().channel, channel.raw);
    assert_eq!(listener.get_request().err(), Some(libc::EINVAL));
    let client = connecting(&provider, addr, b"");
    listener.migrate(None).unwrap();
    assert_ne!(listener.fields().channel, channel.raw);
    listener.get_request().unwrap().reject(b"").unwrap();
    assert_eq!(client.join().unwrap().0, Err(libc::ECONNREFUSED));
}

#[test]
fn moving_away_lets_go_of_the_event_and_of_the_channel() {
    let provider = Soft::open().unwrap();
    let (_listener, addr) = listener(&provider);
    let client = client(&provider, addr);
    assert_eq!(client.kind(), Some(RDMA_CM_EVENT_ROUTE_RESOLVED));
    let channel = Channel::create(&provider);
    client.migrate(Some(&channel)).unwrap();
    assert_eq!(client.event(), None);
    drop(client);
}

#[test]
fn signal_ends_the_waiting_and_the_next_call_has_the_event() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let waiting = thread::spawn(move || (listener.get_request().err(), listener));
    crate::harness::interrupt(&waiting);
    let (ended, listener) = waiting.join().unwrap();
    assert_eq!(ended, Some(libc::EINTR));
    let client = connecting(&provider, addr, b"");
    listener.get_request().unwrap().reject(b"").unwrap();
    assert_eq!(client.join().unwrap().0, Err(libc::ECONNREFUSED));
}

#[test]
fn program_with_a_queue_pair_of_its_own_establishes_the_connection_itself() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let client = Id::create(&provider, RDMA_PS_TCP).unwrap();
    client.resolve_addr(None, addr).unwrap();
    client.resolve_route().unwrap();
    assert_eq!(client.connect(), Err(libc::EINVAL), "nothing says which queue pair");
    assert_eq!(client.establish(), Err(libc::EINVAL), "nobody has answered");
    let client = thread::spawn(move || (client.connect_with(b""), client));
    let server = listener.get_request().unwrap();
    assert_eq!(server.accept(), Err(libc::EINVAL), "nothing says which queue pair");
    let server = thread::spawn(move || (server.accept_with(b"yes"), server));
    let (connected, client) = client.join().unwrap();
    connected.unwrap();
    let told = client.event().unwrap();
    assert_eq!((told.kind, told.status, &told.private_data[..4]), (RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &b"yes\0"[..]));
    client.establish().unwrap();
    assert_eq!(client.establish(), Err(libc::EINVAL), "once");
    let (accepted, server) = server.join().unwrap();
    accepted.unwrap();
    assert_eq!(server.kind(), Some(RDMA_CM_EVENT_ESTABLISHED));
    assert_eq!(server.notify(IBV_EVENT_COMM_EST), Err(libc::EISCONN));
    assert_eq!(server.notify(IBV_EVENT_SQ_DRAINED), Err(libc::EINVAL));
}

#[test]
fn accept_that_the_program_knows_to_have_arrived_needs_no_answer() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let channel = Channel::create(&provider);
    let client = Id::create(&provider, RDMA_PS_TCP).unwrap();
    client.resolve_addr(None, addr).unwrap();
    client.resolve_route().unwrap();
    let client = thread::spawn(move || (client.connect_with(b""), client));
    let server = listener.get_request().unwrap();
    assert_eq!(server.notify(IBV_EVENT_COMM_EST), Err(libc::EINVAL), "nothing is accepted");
    server.migrate(Some(&channel)).unwrap();
    server.accept_with(b"").unwrap();
    // The client has not established it, and the server's next event is there all the same.
    let (connected, client) = client.join().unwrap();
    connected.unwrap();
    server.notify(IBV_EVENT_COMM_EST).unwrap();
    server.migrate(None).unwrap();
    client.establish().unwrap();
    let client = thread::spawn(move || client.disconnect());
    server.disconnect().unwrap();
    assert_eq!(server.kind(), Some(RDMA_CM_EVENT_ESTABLISHED), "the event that was there, as with librdmacm");
    server.disconnect().unwrap();
    assert_eq!(server.kind(), Some(RDMA_CM_EVENT_DISCONNECTED));
    client.join().unwrap().unwrap();
}

#[test]
fn calls_out_of_order_are_einval_and_change_nothing() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    assert_eq!(listener.listen(), Err(libc::EINVAL));
    assert_eq!(listener.resolve_addr(None, addr), Err(libc::EINVAL));
    let id = Id::create(&provider, RDMA_PS_TCP).unwrap();
    assert_eq!(id.disconnect(), Err(libc::EINVAL));
    assert_eq!(id.reject(b""), Err(libc::EINVAL));
    assert_eq!(id.notify(IBV_EVENT_COMM_EST), Err(libc::EINVAL));
    assert_eq!(id.resolve_route(), Err(libc::EINVAL));
    assert_eq!(id.create_qp(&mut attributes()), Err(libc::EINVAL), "it is on no device");
    assert_eq!(id.bind_to_family(77), Err(libc::EINVAL));
    id.resolve_addr(None, addr).unwrap();
    assert_eq!(id.resolve_addr(None, addr), Err(libc::EINVAL));
    assert_eq!(id.bind(any_port()), Err(libc::EINVAL));
    assert_eq!(id.connect_with(b""), Err(libc::EINVAL), "there is no route yet");
    id.resolve_route().unwrap();
    assert_eq!(id.resolve_route(), Err(libc::EINVAL));
    // The event of the last call that had one stands.
    assert_eq!(id.kind(), Some(RDMA_CM_EVENT_ROUTE_RESOLVED));
    id.create_qp(&mut attributes()).unwrap();
    assert_eq!(id.establish(), Err(libc::EINVAL), "it has a queue pair");
}

#[test]
fn port_spaces_without_connections_are_not_here_and_others_do_not_exist() {
    let provider = Soft::open().unwrap();
    for ps in [RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB] {
        assert_eq!(Id::create(&provider, ps).err(), Some(libc::EOPNOTSUPP));
    }
    assert_eq!(Id::create(&provider, 0x999).err(), Some(libc::EINVAL));
}

#[test]
fn connection_comes_from_the_address_that_was_asked_for_or_bound() {
    let provider = Soft::open().unwrap();
    let (listener, addr) = listener(&provider);
    let from = |source: Option<SocketAddr>, bound: Option<SocketAddr>| {
        let id = Id::create(&provider, RDMA_PS_TCP).unwrap();
        if let Some(bound) = bound {
            id.bind(bound).unwrap();
        }
        id.resolve_addr(source, addr).unwrap();
        id.resolve_route().unwrap();
        id.create_qp(&mut attributes()).unwrap();
        let local = id.local();
        let client = thread::spawn(move || id.connect());
        let server = listener.get_request().unwrap();
        assert_eq!(server.peer(), local);
        server.reject(b"").unwrap();
        assert_eq!(client.join().unwrap(), Err(libc::ECONNREFUSED));
        local.ip().to_string()
    };
    let given = |text: &str| Some(text.parse().unwrap());
    assert_eq!(from(None, None), "127.0.0.1");
    assert_eq!(from(given("127.0.0.9:0"), None), "127.0.0.9");
    assert_eq!(from(None, given("127.0.0.8:0")), "127.0.0.8");
    assert_eq!(from(given("127.0.0.9:0"), given("127.0.0.8:0")), "127.0.0.8", "bound comes first");
    assert_eq!(from(given("0.0.0.0:0"), None), "127.0.0.1", "any address means the one that leads there");
    assert_eq!(from(None, given("0.0.0.0:0")), "127.0.0.1");
}

#[test]
fn addresses_of_two_families_do_not_go_together() {
    let provider = Soft::open().unwrap();
    let (_listener, addr) = listener(&provider);
    let id = Id::create(&provider, RDMA_PS_TCP).unwrap();
    assert_eq!(id.resolve_addr(Some("[::1]:0".parse().unwrap()), addr), Err(libc::EINVAL));
    id.bind("[::]:0".parse().unwrap()).unwrap();
    assert_eq!(id.resolve_addr(None, addr), Err(libc::EINVAL));
}

#[test]
fn listener_that_was_not_bound_is_on_every_address_of_a_port_of_its_own() {
    let provider = Soft::open().unwrap();
    let listener = Id::create(&provider, RDMA_PS_TCP).unwrap();
    listener.listen().unwrap();
    let local = listener.local();
    assert_eq!(local.ip().to_string(), "0.0.0.0");
    assert_eq!(listener.peer().to_string(), "0.0.0.0:0", "of the same family");
    assert!(listener.fields().verbs.is_null(), "the wildcard address is on no device");
    let client = connecting(&provider, SocketAddr::new([127, 0, 0, 1].into(), local.port()), b"");
    let server = listener.get_request().unwrap();
    assert!(!server.fields().verbs.is_null() && !server.fields().pd.is_null());
    server.reject(b"").unwrap();
    assert_eq!(client.join().unwrap().0, Err(libc::ECONNREFUSED));
}
