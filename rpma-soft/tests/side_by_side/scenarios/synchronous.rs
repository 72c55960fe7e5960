//! Synchronous identifiers, and addresses by name.

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::verbs::endpoint::{Endpoint, Manager};
use crate::verbs::{Answer, Param, Setup, told};

pub(super) const ALL: &[Scenario] = &[("address by name", names), ("endpoint", endpoints), ("synchronous", connections)];

const TCP: u32 = RDMA_PS_TCP;

fn names(setup: &Setup, seen: &mut Seen) {
    let manager = Manager::new(setup);
    let ip = setup.ip.to_string();
    let node = Some(ip.as_str());
    let mut ask = |name: &str, node, service, flags, family, ps| {
        let found = manager.find(node, service, flags, family, ps);
        seen.put(name, found.map_or_else(|e| e, |found| found.words()));
    };
    ask("node and service", node, Some("7204"), 0, 0, TCP);
    ask("node", node, None, 0, 0, TCP);
    ask("passive node and service", node, Some("7204"), RAI_PASSIVE, 0, TCP);
    ask("passive service", None, Some("7204"), RAI_PASSIVE, 0, TCP);
    ask("nothing", None, None, 0, 0, TCP);
    ask("passive nothing", None, None, RAI_PASSIVE, 0, TCP);
    ask("a number of a host that is a name", Some("localhost"), Some("7204"), RAI_NUMERICHOST, 0, TCP);
    ask("a service that is none", node, Some("no-such-service"), 0, 0, TCP);
    ask("a port that is none", node, Some("70000"), 0, 0, TCP);
    ask("without routes", node, Some("7204"), RAI_NOROUTE, 0, TCP);
    ask("the other family", node, Some("7204"), RAI_NUMERICHOST | RAI_FAMILY, libc::AF_INET6, TCP);
    ask("a family that is none", node, Some("7204"), RAI_FAMILY, 77, TCP);
    ask("datagrams", node, Some("7204"), 0, 0, RDMA_PS_UDP);
    ask("a port space that is none", node, Some("7204"), 0, 0, 0x7777);
    ask("no port space", node, Some("7204"), 0, 0, 0);
}

/// A listener without a queue pair of its own: each request has one.
fn listener(manager: &Manager, setup: &Setup) -> Endpoint {
    let found = manager.find(Some(&setup.ip.to_string()), None, RAI_PASSIVE, 0, TCP).expect("our own address");
    let listener = manager.endpoint(&found, true).expect("an endpoint");
    listener.listen().expect("a listener");
    listener
}

fn dial(manager: &Manager, setup: &Setup, port: u16, with_qp: bool) -> Answer<Endpoint> {
    let found = manager.find(Some(&setup.ip.to_string()), Some(&port.to_string()), 0, 0, TCP).expect("our own address");
    manager.endpoint(&found, with_qp)
}

fn endpoints(setup: &Setup, seen: &mut Seen) {
    let manager = Manager::new(setup);
    let ip = setup.ip.to_string();
    let passive =
        |node, service, with_qp| manager.find(node, service, RAI_PASSIVE, 0, TCP).map(|found| manager.endpoint(&found, with_qp));
    let mut put = |name: &str, made: Result<Answer<Endpoint>, String>| {
        let words = match &made {
            Err(e) => e.clone(),
            Ok(Err(e)) => e.to_string(),
            Ok(Ok(endpoint)) => endpoint.words(),
        };
        seen.put(name, words);
        made
    };
    drop(put("passive", passive(Some(&ip), None, false)));
    drop(put("passive with attributes", passive(Some(&ip), None, true)));
    let listening = listener(&manager, setup);
    let taken = listening.port().to_string();
    drop(put("passive at a port that is taken", passive(Some(&ip), Some(&taken), false)));
    drop(put("active", Ok(dial(&manager, setup, listening.port(), false))));
    drop(put("active with attributes", Ok(dial(&manager, setup, listening.port(), true))));
    seen.put("listen twice", told(&listening.listen()));
}

/// Both at once, since each waits for the other: the client's answer and the server's.
fn meet(client: &Endpoint, server: impl FnOnce() -> Answer, param: &Param) -> (Answer, Answer) {
    let lent = client.lend();
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || lent.get().connect(param));
        let answer = server();
        (asking.join().expect("a thread that does not panic"), answer)
    })
}

fn connections(setup: &Setup, seen: &mut Seen) {
    let manager = Manager::new(setup);
    let listening = listener(&manager, setup);
    let param = Param::default();
    let client = dial(&manager, setup, listening.port(), true).expect("an endpoint");
    let mut server = None;
    let accept = || {
        let request = server.insert(listening.request()?);
        request.accept(&Param { rnr_retry: 5, ..Param::default() })
    };
    let (asked, accepted) = meet(&client, accept, &param);
    seen.put("connect", told(&asked));
    seen.put("accept", told(&accepted));
    seen.put("client then", client.words());
    let server = server.expect("a request");
    seen.put("server then", server.words());
    seen.put("connect again", told(&client.connect(&param)));
    let lent = client.lend();
    let (ended, other) = std::thread::scope(|scope| {
        let ending = scope.spawn(move || lent.get().disconnect());
        let other = server.disconnect();
        (ending.join().expect("a thread that does not panic"), other)
    });
    seen.put("disconnect", format!("{}, {}", told(&ended), told(&other)));
    seen.put("client at the end", client.words());
    drop((client, server));
    let client = dial(&manager, setup, listening.port(), true).expect("an endpoint");
    let (asked, rejected) = meet(&client, || listening.request()?.reject(b"no"), &param);
    seen.put("connect that is rejected", told(&asked));
    seen.put("reject", told(&rejected));
    seen.put("client that was rejected", client.words());
    let port = listening.port();
    drop(listening);
    let client = dial(&manager, setup, port, true).expect("an endpoint");
    seen.put("connect where nobody listens", told(&client.connect(&param)));
    seen.put("client that nobody heard", client.words());
}
