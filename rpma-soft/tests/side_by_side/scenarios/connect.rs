//! The way to a connection: addresses, requests, answers, refusals, and calls at the wrong time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{End, Listener, Pair, Shape, dial};
use crate::verbs::{Channel, Id, LIMIT, Param, Setup, told};

pub(super) const ALL: &[Scenario] = &[
    ("bind", bind),
    ("listen", listen),
    ("resolve", resolve),
    ("nobody there", nobody_there),
    ("private data", private_data),
    ("parameters", parameters),
    ("reject", reject),
    ("nobody listens", nobody),
    ("backlog", backlog),
    ("wrong time", wrong_time),
    ("given up", given_up),
    ("migrate", migrate),
];

/// Those that an address makes a difference to.
pub(super) const ABOUT_ADDRESSES: &[Scenario] =
    &[("bind", bind), ("listen", listen), ("resolve", resolve), ("private data", private_data), ("nobody listens", nobody)];

fn new(setup: &Setup) -> Rc<Id> {
    Id::create(&Channel::create(&setup.provider).expect("an event channel")).expect("an identifier")
}

/// The address of every device, of the family of ours.
fn wildcard(setup: &Setup) -> SocketAddr {
    match setup.ip {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn bind(setup: &Setup, seen: &mut Seen) {
    let id = new(setup);
    seen.put("to a port of the system's choice", told(&id.bind(setup.any_port())));
    let addr = id.local().expect("an address");
    seen.put("the port is known then", addr.port() != 0 && addr.ip() == setup.ip);
    seen.put("the device is known then", !id.verbs().is_null());
    seen.put("the port of the device is known then", id.port_num());
    seen.put("again", told(&id.bind(setup.any_port())));
    seen.put("to a port that is bound", told(&new(setup).bind(addr)));
    id.listen(1).expect("a listener");
    seen.put("to a port that is listened on", told(&new(setup).bind(addr)));
    let everywhere = SocketAddr::new(wildcard(setup).ip(), addr.port());
    seen.put("to a port of every address that is listened on at one", told(&new(setup).bind(everywhere)));
    drop(id);
    seen.put("to a port that is free again", told(&new(setup).bind(addr)));
    // A documentation address: RFC 5737.
    seen.put("to an address of no machine", told(&new(setup).bind("192.0.2.77:0".parse().expect("an address"))));
    seen.put("to an IPv6 address of no machine", told(&new(setup).bind("[2001:db8::77]:0".parse().expect("an address"))));
    let id = new(setup);
    seen.put("to every address", told(&id.bind(wildcard(setup))));
    seen.put("no device is known then", id.verbs().is_null());
    seen.put("but a port", id.local().is_some_and(|addr| addr.port() != 0));
}

fn listen(setup: &Setup, seen: &mut Seen) {
    let id = new(setup);
    seen.put("without an address", told(&id.listen(1)));
    seen.put("has a port then", id.local().is_some_and(|addr| addr.port() != 0));
    let id = new(setup);
    id.bind(setup.any_port()).expect("bound");
    seen.put("with backlog 0", told(&id.listen(0)));
    seen.put("twice", told(&id.listen(4)));
    let id = new(setup);
    id.bind(setup.any_port()).expect("bound");
    seen.put("with backlog -1", told(&id.listen(-1)));
    seen.put("and resolve", told(&id.resolve_addr(SocketAddr::new(setup.ip, 9), LIMIT)));
    let id = new(setup);
    id.bind(wildcard(setup)).expect("bound");
    seen.put("on every address", told(&id.listen(1)));
    let addr = SocketAddr::new(setup.ip, id.local().expect("an address").port());
    let client = dial(setup, addr);
    let client = End::new(setup, client, &Shape::default());
    client.id.connect(Some(&Param::default())).expect("asked");
    let mut request = id.channel().next();
    seen.put("a request there", &request);
    let incoming = request.id.take().expect("an identifier");
    seen.put("the request's address is the device's", incoming.local() == Some(addr));
    seen.put("the request's peer is the client", incoming.peer() == client.id.local());
    seen.put("the request's device is known", incoming.verbs() == setup.context);
    seen.put("and on the identifier of a request", told(&incoming.listen(1)));
    seen.put("and on the identifier of a client", told(&client.id.listen(1)));
}

fn resolve(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 1);
    let id = new(setup);
    seen.put("an address of the device", told(&id.resolve_addr(listener.addr, LIMIT)));
    seen.put("event", id.channel().next());
    seen.put("the device is known then", id.verbs() == setup.context);
    seen.put("the port of the device is known then", id.port_num());
    seen.put("the local address is the device's", id.local().is_some_and(|addr| addr.ip() == setup.ip && addr.port() != 0));
    seen.put("again", told(&id.resolve_addr(listener.addr, LIMIT)));
    seen.put("a route", told(&id.resolve_route()));
    seen.put("event of the route", id.channel().next());
    seen.put("a route again", told(&id.resolve_route()));
    seen.put("an address then", told(&id.resolve_addr(listener.addr, LIMIT)));
    let id = new(setup);
    id.bind(setup.any_port()).expect("bound");
    seen.put("a route without an address", told(&id.resolve_route()));
    seen.put("an address when bound", told(&id.resolve_addr(listener.addr, LIMIT)));
    seen.put("event when bound", id.channel().next());
    let id = new(setup);
    id.bind(wildcard(setup)).expect("bound");
    seen.put("an address when bound to every address", told(&id.resolve_addr(listener.addr, LIMIT)));
    seen.put("event when bound to every address", id.channel().next());
    let id = new(setup);
    id.bind(setup.any_port()).expect("bound");
    let other = match setup.ip {
        IpAddr::V4(_) => "[fd00::1]:9",
        IpAddr::V6(_) => "10.0.0.1:9",
    };
    seen.put("an address of the other family when bound", told(&id.resolve_addr(other.parse().expect("an address"), LIMIT)));
    seen.put("port 0", {
        let id = new(setup);
        let answer = told(&id.resolve_addr(setup.any_port(), LIMIT));
        if answer == "ok" { id.channel().next().to_string() } else { answer }
    });
}

fn nobody_there(setup: &Setup, seen: &mut Seen) {
    // An address of the network that guests are on, which nobody has; loopback has it.
    let IpAddr::V4(ip) = setup.ip else { return };
    let other = IpAddr::V4((u32::from(ip) | 0x4D).into());
    let id = new(setup);
    let answer = id.resolve_addr(SocketAddr::new(other, 9), Duration::from_millis(500));
    let event = answer.is_ok().then(|| id.channel().next().to_string());
    seen.put("resolved within half a second", event.unwrap_or_else(|| told(&answer)));
}

fn data(len: usize) -> Vec<u8> {
    vec![b'x'; len]
}

fn private_data(setup: &Setup, seen: &mut Seen) {
    for (asked, answered) in [(0, 0), (5, 7), (56, 196)] {
        let shape = Shape {
            client: Param { data: data(asked), ..Param::default() },
            server: Param { data: data(answered), ..Param::default() },
            ..Shape::default()
        };
        let (pair, request) = Pair::asking(setup, &shape);
        let (client, server) = (&pair.client, &pair.server);
        seen.put(format!("a request with {asked}"), request.whole(client.qp.number()));
        server.id.accept(Some(&shape.server)).expect("accepted");
        seen.put(format!("client after an answer with {answered}"), client.event().whole(server.qp.number()));
        seen.put(format!("server after an answer with {answered}"), server.event().whole(client.qp.number()));
    }
    let listener = Listener::new(setup, 4);
    let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
    for len in [57, 255] {
        seen.put(format!("a request with {len}"), told(&client.id.connect(Some(&Param { data: data(len), ..Param::default() }))));
    }
    seen.put("a request after one that was too long", told(&client.id.connect(Some(&Param::default()))));
    let (_, id) = listener.request();
    let server = End::new(setup, id, &Shape::default());
    seen.put("an answer with 197", told(&server.id.accept(Some(&Param { data: data(197), ..Param::default() }))));
    let told_client = client.event();
    seen.put("client after an answer with 197", format!("{told_client}, data of {}", told_client.len));
    seen.put("an answer after one that was too long", told(&server.id.accept(Some(&Param::default()))));
}

fn parameters(setup: &Setup, seen: &mut Seen) {
    let param = |resources, depth, retry, rnr_retry| Param { data: Vec::new(), resources, depth, retry, rnr_retry };
    let rows = [
        ("all", param(255, 255, 7, 7), param(255, 255, 7, 7)),
        ("few of the client", param(2, 3, 1, 2), param(255, 255, 0, 5)),
        ("few of the server", param(255, 255, 3, 0), param(4, 5, 0, 6)),
        ("none of the client", param(0, 0, 0, 0), param(255, 255, 0, 0)),
        ("none of the server", param(16, 16, 0, 0), param(0, 0, 0, 0)),
        ("counts beyond three bits", param(1, 1, 9, 10), param(1, 1, 9, 11)),
        ("more than the client asked for", param(4, 4, 7, 7), param(16, 16, 7, 7)),
    ];
    for (name, asked, answered) in rows {
        let shape = Shape { client: asked, server: answered, ..Shape::default() };
        let (pair, request) = Pair::asking(setup, &shape);
        let (client, server) = (&pair.client, &pair.server);
        seen.put(format!("{name}, request"), request.whole(client.qp.number()));
        let answer = server.id.accept(Some(&shape.server));
        if answer.is_ok() {
            seen.put(format!("{name}, answer"), client.event().whole(server.qp.number()));
        } else {
            seen.put(format!("{name}, answer"), format!("{}, client {}", told(&answer), client.event()));
        }
    }
    let (pair, _) = Pair::asking(setup, &Shape::default());
    seen.put("no parameters in the answer", told(&pair.server.id.accept(None)));
    seen.put("no parameters in the answer, client", pair.client.event().whole(pair.server.qp.number()));
    let listener = Listener::new(setup, 4);
    let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
    seen.put("129 resources", told(&client.id.connect(Some(&param(129, 1, 7, 7)))));
    seen.put("depth 129", told(&client.id.connect(Some(&param(1, 129, 7, 7)))));
    seen.put("no parameters in the request", told(&client.id.connect(None)));
    seen.put("no parameters in the request, server", listener.request().0.whole(client.qp.number()));
}

fn reject(setup: &Setup, seen: &mut Seen) {
    for len in [0, 9, 148] {
        let (pair, _) = Pair::asking(setup, &Shape::default());
        seen.put(format!("with {len}"), told(&pair.server.id.reject(&data(len))));
        seen.put(format!("client after {len}"), pair.client.event().whole(0));
        seen.put(format!("twice with {len}"), told(&pair.server.id.reject(&data(len))));
        seen.put(format!("accept after {len}"), told(&pair.server.id.accept(Some(&Param::default()))));
        seen.put(format!("connect after a refusal with {len}"), told(&pair.client.id.connect(Some(&Param::default()))));
        seen.put(format!("disconnect after a refusal with {len}"), told(&pair.client.id.disconnect()));
    }
    let (pair, _) = Pair::asking(setup, &Shape::default());
    seen.put("with 149", told(&pair.server.id.reject(&data(149))));
    seen.put("with 255", told(&pair.server.id.reject(&data(255))));
    let Pair { client, server } = pair;
    drop(server);
    seen.put("client of a server that went away without a word", client.event().whole(0));
}

fn nobody(setup: &Setup, seen: &mut Seen) {
    let Listener { id, channel: _channel, addr } = Listener::new(setup, 1);
    drop(id);
    let client = End::new(setup, dial(setup, addr), &Shape::default());
    seen.put("connect", told(&client.id.connect(Some(&Param::default()))));
    seen.put("event", client.event().whole(0));
}

fn backlog(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 1);
    let ask = || {
        let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
        client.id.connect(Some(&Param::default())).expect("asked");
        client
    };
    let first = ask();
    // It has arrived when the event is there.
    let event = listener.channel.next();
    let second = ask();
    let third = ask();
    let one_of = [&second, &third].map(|client| client.id.channel().within(Duration::from_millis(500)));
    let answers = one_of.map(|event| event.map_or_else(|| String::from("nothing"), |event| event.to_string()));
    seen.put("1, one request taken and two not, these are told", answers.join(", "));
    // Whoever found no room is let in when there is some.
    seen.put("the second to be taken", listener.channel.next());
    seen.put("the third to be taken", listener.channel.next());
    drop((event, first));
}

fn wrong_time(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 4);
    let id = new(setup);
    id.resolve_addr(listener.addr, LIMIT).expect("an address");
    assert_eq!(id.channel().next().kind, RDMA_CM_EVENT_ADDR_RESOLVED);
    let client = End::new(setup, id, &Shape::default());
    seen.put("connect before the route", told(&client.id.connect(Some(&Param::default()))));
    seen.put("accept before the route", told(&client.id.accept(Some(&Param::default()))));
    seen.put("reject before the route", told(&client.id.reject(&[])));
    seen.put("disconnect before the route", told(&client.id.disconnect()));
    client.id.resolve_route().expect("a route");
    seen.put("the route's event all the same", client.event());
    seen.put("connect", told(&client.id.connect(Some(&Param::default()))));
    seen.put("connect twice", told(&client.id.connect(Some(&Param::default()))));
    seen.put("accept of what was asked", told(&client.id.accept(Some(&Param::default()))));
    let (_, id) = listener.request();
    let server = End::new(setup, id, &Shape::default());
    seen.put("connect of a request", told(&server.id.connect(Some(&Param::default()))));
    let gone = client.id.channel().within(Duration::from_millis(500));
    seen.put("client then", gone.map_or_else(|| String::from("nothing"), |event| event.to_string()));
    let (pair, _) = Pair::asking(setup, &Shape::default());
    pair.server.id.accept(Some(&Param::default())).expect("accepted");
    seen.put("accept twice", told(&pair.server.id.accept(Some(&Param::default()))));
    let told_client = pair.client.event();
    seen.put("client after accept twice", told_client.to_string());
    let pair = Pair::new(setup, &Shape::default());
    seen.put("connect of a connection", told(&pair.client.id.connect(Some(&Param::default()))));
    seen.put("reject of a connection", told(&pair.server.id.reject(&[])));
    seen.put("bind of a connection", told(&pair.client.id.bind(setup.any_port())));
    seen.put("listen of a connection", told(&pair.client.id.listen(1)));
    seen.put("disconnect of a listener", told(&listener.id.disconnect()));
}

fn given_up(setup: &Setup, seen: &mut Seen) {
    // The client goes away before its request is taken.
    let listener = Listener::new(setup, 4);
    let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
    client.id.connect(Some(&Param::default())).expect("asked");
    let (request, id) = listener.request();
    drop(request);
    drop(client);
    let event = id.channel().within(Duration::from_millis(500));
    seen.put("server whose client went away", event.map_or_else(|| String::from("nothing"), |event| event.to_string()));
    let server = End::try_new(setup, Rc::clone(&id), &Shape::default());
    seen.put("a queue pair then", told(&server));
    seen.put("accept then", told(&id.accept(Some(&Param::default()))));
    // The server goes away with requests that nobody took.
    let listener = Listener::new(setup, 4);
    let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
    client.id.connect(Some(&Param::default())).expect("asked");
    let Listener { id, channel, addr: _ } = listener;
    let untaken = channel.next();
    drop(id);
    drop(untaken);
    seen.put("client whose listener went away", client.event().whole(0));
}

fn migrate(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 4);
    let id = new(setup);
    id.resolve_addr(listener.addr, LIMIT).expect("an address");
    // Its event is there, and not taken.
    let old = id.channel();
    let to = Channel::create(&setup.provider).expect("a channel");
    seen.put("with an event that is not taken", told(&id.migrate(&to)));
    seen.put("the new channel", to.next());
    seen.put("the old channel", told(&old.take()));
    seen.put("to where it is", told(&id.migrate(&to)));
    // A listener with a request that nobody took.
    let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
    client.id.connect(Some(&Param::default())).expect("asked");
    let request = listener.channel.next();
    seen.put("a listener", told(&listener.id.migrate(&to)));
    let incoming = request.id.as_ref().expect("an identifier");
    let own = Channel::create(&setup.provider).expect("a channel");
    seen.put("the identifier of a request", told(&incoming.migrate(&own)));
    let server = End::new(setup, Rc::clone(incoming), &Shape::default());
    server.id.accept(Some(&Param::default())).expect("accepted");
    seen.put("client", client.event());
    seen.put("server, on its own channel", own.next());
    seen.put("the listener's channels then", format!("{}, {}", told(&listener.channel.take()), told(&to.take())));
}
