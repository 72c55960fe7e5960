//! Asynchronous events.

use std::time::Duration;

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{End, Listener, Pair, Shape, dial};
use crate::verbs::qp::Like;
use crate::verbs::{Cap, Cq, LIMIT, Op, PATIENCE, Param, Pd, Qp, Send, Setup, Srq, told};

pub(super) const ALL: &[Scenario] = &[("asynchronous event", events), ("queue that is too small", overflow)];

/// Events for `end`, up to a moment of silence.
fn of(setup: &Setup, end: &End) -> String {
    let mut words = Vec::new();
    let mut limit = Duration::from_millis(500);
    while let Some((name, about)) = setup.async_event(limit) {
        let whose = if about == end.qp.as_ptr().cast() { "" } else { " of another" };
        words.push(format!("{name}{whose}"));
        limit = Duration::from_millis(50);
    }
    if words.is_empty() { String::from("nothing") } else { words.join(", ") }
}

fn events(setup: &Setup, seen: &mut Seen) {
    seen.put("that is not there", told(&setup.no_async_event()));
    let pair = Pair::new(setup, &Shape::default());
    let (addr, rkey) = pair.remote(0);
    pair.client.done(Send::new(1, Op::Write(addr, rkey ^ 0x5500), &[pair.client.mr.sge(0, 8)]));
    seen.put("after a request that was refused", of(setup, &pair.server));
    let pair = Pair::new(setup, &Shape::default());
    pair.server.receive(1, 0, 4);
    pair.client.done(Send::new(1, Op::Send, &[pair.client.mr.sge(0, 8)]));
    seen.put("after a message that was too long", of(setup, &pair.server));
    let pair = Pair::new(setup, &Shape::default());
    pair.client.qp.modify(IBV_QPS_ERR).expect("the error state");
    seen.put("after the error state", of(setup, &pair.client));
    // A queue pair that shares its receives has taken its last one when it is in error.
    let listener = Listener::new(setup, 1);
    let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
    client.id.connect(Some(&Param::default())).expect("asked");
    let (_, id) = listener.request();
    let pd = Pd::alloc(setup);
    let srq = Srq::create(setup, &pd, 4, 1).expect("a queue");
    let server = End::sharing(setup, id, &pd, &srq);
    server.id.accept(Some(&Param::default())).expect("accepted");
    assert_eq!(client.event().kind, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(server.event().kind, RDMA_CM_EVENT_ESTABLISHED);
    server.qp.modify(IBV_QPS_ERR).expect("the error state");
    seen.put("after the error state of one that shares its receives", of(setup, &server));
}

fn overflow(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 1);
    let id = dial(setup, listener.addr);
    let pd = Pd::alloc(setup);
    let small = Cq::create(setup, 1, 0).expect("a queue");
    let other = Cq::create(setup, 64, 0).expect("a queue");
    let cap = Cap { send_wr: 64, ..Cap::default() };
    let qp = Qp::create(&id, &pd, [&small, &other], Like { cap, ..Like::default() }).expect("a queue pair");
    id.connect(Some(&Param::default())).expect("asked");
    let (_, request) = listener.request();
    let server = End::new(setup, request, &Shape::default());
    server.id.accept(Some(&Param::default())).expect("accepted");
    assert_eq!(id.channel().next().kind, RDMA_CM_EVENT_ESTABLISHED);
    small.arm(false).expect("armed");
    for wr_id in 0..64 {
        qp.post(Send::new(wr_id, Op::Write(0, 0), &[])).expect("posted");
    }
    let mut events: Vec<(&str, usize)> = Vec::new();
    let mut limit = PATIENCE;
    while let Some((name, _)) = setup.async_event(limit) {
        match events.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => events.push((name, 1)),
        }
        limit = Duration::from_millis(200);
    }
    let words = |(name, count): &(&str, usize)| format!("{name} {}", if *count == 1 { "once" } else { "again and again" });
    seen.put("events", events.iter().map(words).collect::<Vec<_>>().join(", "));
    seen.put("completion event", small.event_within(LIMIT));
    let first = small.poll();
    seen.put(
        "first completion",
        first.map_or_else(|e| e.to_string(), |wc| wc.map_or_else(|| String::from("nothing"), |wc| wc.to_string())),
    );
    while small.events().is_ok() {}
    drop(qp);
}
