//! Completion queues: their sizes and their events.

use std::time::Duration;

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{Pair, Shape};
use crate::verbs::{Cq, Op, Send, Setup, told};

pub(super) const ALL: &[Scenario] =
    &[("completion queue", sizes), ("completion events", events), ("solicited events", solicited), ("error events", of_errors)];

/// How long an event that must not come is waited for.
const SILENCE: Duration = Duration::from_millis(200);

fn sizes(setup: &Setup, seen: &mut Seen) {
    let most = setup.attr.orig_attr.max_cqe;
    for (name, cqe) in [("size -1", -1), ("size 0", 0), ("one more than the device has", most.saturating_add(1))] {
        seen.put(name, told(&Cq::create(setup, cqe, 0)));
    }
    for (name, vector) in [("vector -1", -1), ("vector 1000", 1000)] {
        seen.put(name, told(&Cq::create(setup, 10, vector)));
    }
    let one = Cq::create(setup, 1, 0).expect("a queue");
    seen.put("size 1 is at least 1", one.granted() >= 1);
    let ten = Cq::create(setup, 10, 0).expect("a queue");
    seen.put("size 10 is granted as", ten.granted());
    seen.put("poll of an empty one", ten.poll().map_or_else(|e| e.to_string(), |wc| wc.is_some().to_string()));
    seen.put("event that is not there", told(&ten.events()));
}

/// What is there after `wait`: an event or none.
fn event(cq: &Cq, wait: Duration) -> String {
    let came = cq.event_within(wait);
    match cq.events() {
        Ok(count) => count.to_string(),
        Err(e) if came => e.to_string(),
        Err(_) => String::from("none"),
    }
}

fn events(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    let send = |wr_id| client.qp.post(Send::new(wr_id, Op::Send, &[client.mr.sge(0, 8)])).expect("a send");
    for at in 0..12 {
        server.receive(at, 0, 64);
    }
    send(1);
    client.send_cq.next();
    seen.put("not armed", event(&client.send_cq, SILENCE));
    client.send_cq.arm(false).expect("armed");
    seen.put("armed and nothing happens", event(&client.send_cq, SILENCE));
    send(2);
    seen.put("armed, then a completion", event(&client.send_cq, crate::verbs::LIMIT));
    client.send_cq.next();
    send(3);
    client.send_cq.next();
    seen.put("armed once, and another completion", event(&client.send_cq, SILENCE));
    // Three receives completed and none was polled.
    server.recv_cq.next();
    server.recv_cq.arm(false).expect("armed");
    seen.put("armed over completions that are there", event(&server.recv_cq, SILENCE));
    send(4);
    seen.put("armed over completions, and one more", event(&server.recv_cq, crate::verbs::LIMIT));
    client.send_cq.next();
    client.send_cq.arm(false).expect("armed");
    client.send_cq.arm(false).expect("armed");
    send(5);
    seen.put("armed twice, then a completion", event(&client.send_cq, crate::verbs::LIMIT));
    client.send_cq.next();
    client.send_cq.arm(false).expect("armed");
    for at in 6..9 {
        client.qp.post(Send::new(at, Op::Send, &[]).flags(0)).expect("a send");
    }
    send(9);
    seen.put("armed, then requests of which the last is signaled", event(&client.send_cq, crate::verbs::LIMIT));
    seen.put("completions then", client.send_cq.words(1));
}

fn solicited(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    for at in 0..12 {
        server.receive(at, 0, 64);
    }
    let send = |op, flags: u32| {
        client.qp.post(Send::new(1, op, &[client.mr.sge(0, 8)]).flags(IBV_SEND_SIGNALED | flags)).expect("a send");
        client.send_cq.next();
        server.recv_cq.next();
    };
    let (addr, rkey) = pair.remote(512);
    server.recv_cq.arm(true).expect("armed");
    send(Op::Send, 0);
    seen.put("a send that is not", event(&server.recv_cq, SILENCE));
    send(Op::Send, IBV_SEND_SOLICITED);
    seen.put("a send", event(&server.recv_cq, crate::verbs::LIMIT));
    server.recv_cq.arm(true).expect("armed");
    send(Op::SendImm(1), IBV_SEND_SOLICITED);
    seen.put("a send with immediate", event(&server.recv_cq, crate::verbs::LIMIT));
    server.recv_cq.arm(true).expect("armed");
    send(Op::WriteImm(addr, rkey, 1), IBV_SEND_SOLICITED);
    seen.put("a write with immediate", event(&server.recv_cq, crate::verbs::LIMIT));
    server.recv_cq.arm(false).expect("armed");
    server.recv_cq.arm(true).expect("armed");
    send(Op::Send, 0);
    seen.put("armed for all, then for solicited ones", event(&server.recv_cq, SILENCE));
    server.recv_cq.arm(true).expect("armed");
    server.recv_cq.arm(false).expect("armed");
    send(Op::Send, 0);
    seen.put("armed for solicited ones, then for all", event(&server.recv_cq, SILENCE));
    client.send_cq.arm(true).expect("armed");
    send(Op::Send, IBV_SEND_SOLICITED);
    seen.put("the sender's own queue", event(&client.send_cq, SILENCE));
}

fn of_errors(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let client = &pair.client;
    client.send_cq.arm(true).expect("armed");
    let (addr, rkey) = pair.remote(0);
    client.qp.post(Send::new(1, Op::Write(addr, rkey ^ 0xFF00), &[client.mr.sge(0, 8)])).expect("a write");
    seen.put("armed for solicited ones, a request fails", event(&client.send_cq, crate::verbs::PATIENCE));
    let Pair { client: _client, server } = &Pair::new(setup, &Shape::default());
    server.receive(1, 0, 8);
    server.recv_cq.arm(true).expect("armed");
    server.qp.modify(IBV_QPS_ERR).expect("the error state");
    seen.put("armed for solicited ones, a receive is flushed", event(&server.recv_cq, crate::verbs::PATIENCE));
}
