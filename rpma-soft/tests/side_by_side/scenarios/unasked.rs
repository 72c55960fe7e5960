//! Asynchronous events, and what a queue pair says of itself.

use std::time::Duration;

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{End, Listener, Pair, Shape, dial};
use crate::verbs::qp::Like;
use crate::verbs::{Cap, Cq, LIMIT, Op, PATIENCE, Param, Pd, Qp, Send, Setup, Srq, told};

pub(super) const ALL: &[Scenario] = &[("query", query), ("asynchronous event", events), ("queue that is too small", overflow)];

fn query(setup: &Setup, seen: &mut Seen) {
    let shape = Shape {
        client: Param { resources: 3, depth: 2, retry: 5, rnr_retry: 6, ..Param::default() },
        server: Param { resources: 1, depth: 3, retry: 4, rnr_retry: 1, ..Param::default() },
        ..Shape::default()
    };
    let (pair, _) = Pair::asking(setup, &shape);
    seen.put("client that has asked", pair.client.qp.state());
    seen.put("server that was asked", pair.server.qp.state());
    pair.server.id.accept(Some(&shape.server)).expect("accepted");
    seen.put("server that has accepted", pair.server.qp.state());
    for (name, end, other) in [("client", &pair.client, &pair.server), ("server", &pair.server, &pair.client)] {
        assert_eq!(end.event().kind, RDMA_CM_EVENT_ESTABLISHED);
        let (attr, init) = end.qp.query().expect("attributes");
        seen.put(format!("{name}, state"), end.qp.state());
        seen.put(format!("{name}, its peer"), attr.dest_qp_num == other.qp.number());
        seen.put(format!("{name}, reads and atomics"), format!("{} out, {} in", attr.max_rd_atomic, attr.max_dest_rd_atomic));
        seen.put(format!("{name}, retries"), format!("{}, not ready {}", attr.retry_cnt, attr.rnr_retry));
        seen.put(format!("{name}, timers"), format!("{}, not ready {}", attr.timeout, attr.min_rnr_timer));
        seen.put(format!("{name}, rights"), format!("{:#x}", attr.qp_access_flags));
        seen.put(format!("{name}, port and key"), format!("{}, {}", attr.port_num, attr.pkey_index));
        seen.put(format!("{name}, path"), format!("migration {}, mtu {}", attr.path_mig_state, attr.path_mtu));
        seen.put(format!("{name}, type"), format!("{}, signals all {}", init.qp_type, init.sq_sig_all));
        let granted = end.qp.granted;
        let cap = Cap {
            send_wr: init.cap.max_send_wr,
            recv_wr: init.cap.max_recv_wr,
            send_sge: init.cap.max_send_sge,
            recv_sge: init.cap.max_recv_sge,
            inline: init.cap.max_inline_data,
        };
        seen.put(
            format!("{name}, sizes"),
            if cap == granted { String::from("as granted") } else { format!("{cap:?}, not {granted:?}") },
        );
        seen.put(format!("{name}, sizes in both answers"), attr.cap.max_send_wr == init.cap.max_send_wr);
    }
    pair.client.id.disconnect().expect("disconnected");
    seen.put("client that has disconnected", pair.client.qp.state());
    assert_eq!(pair.server.event().kind, RDMA_CM_EVENT_DISCONNECTED);
    seen.put("server that knows", pair.server.qp.state());
    pair.server.id.disconnect().expect("disconnected");
    seen.put("server that has disconnected", pair.server.qp.state());
    let (pair, _) = Pair::asking(setup, &Shape::default());
    pair.server.id.reject(&[]).expect("rejected");
    seen.put("server that has rejected", pair.server.qp.state());
    assert_eq!(pair.client.event().kind, RDMA_CM_EVENT_REJECTED);
    seen.put("client that knows", pair.client.qp.state());
    let pair = Pair::new(setup, &Shape::default());
    let (addr, rkey) = pair.remote(0);
    pair.client.done(Send::new(1, Op::Write(addr, rkey ^ 0x5500), &[pair.client.mr.sge(0, 8)]));
    seen.put("client whose request failed", pair.client.qp.state());
    seen.put("server that refused it", pair.server.qp.state());
    let listener = Listener::new(setup, 1);
    let end = End::new(setup, dial(setup, listener.addr), &Shape::default());
    seen.put("new", end.qp.state());
    end.qp.modify(IBV_QPS_RESET).expect("the reset state");
    seen.put("reset", end.qp.state());
}

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
