//! States of a queue pair: what can be posted in which, which changes are refused, and what a change does to work that is posted.

use std::time::Duration;

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{End, Listener, Pair, Shape, dial};
use crate::verbs::{Answer, Op, PATIENCE, Send, Setup, told};

pub(super) const ALL: &[Scenario] = &[("state", posts), ("change of state", changes), ("flush", flushed)];

fn end(setup: &Setup, listener: &Listener) -> End {
    End::new(setup, dial(setup, listener.addr), &Shape::default())
}

fn send(end: &End) -> Answer {
    end.qp.post(Send::new(1, Op::Send, &[end.mr.sge(0, 8)]))
}

fn receive(end: &End) -> Answer {
    end.qp.receive(2, &[end.mr.sge(0, 8)])
}

fn posts(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 4);
    let new = end(setup, &listener);
    seen.put("INIT, a receive", told(&receive(&new)));
    seen.put("INIT, a send", told(&send(&new)));
    let new = end(setup, &listener);
    new.qp.modify(IBV_QPS_RESET).expect("the reset state");
    seen.put("RESET, a receive", told(&receive(&new)));
    seen.put("RESET, a send", told(&send(&new)));
    let new = end(setup, &listener);
    receive(&new).expect("a receive");
    new.qp.modify(IBV_QPS_ERR).expect("the error state");
    seen.put("INIT to ERR, the receive before", new.recv_cq.words(1));
    // Soft-RoCE may flush more while it is at it.
    assert!(new.recv_cq.within(Duration::from_millis(100)).is_none());
    seen.put("ERR, a receive", told(&receive(&new)));
    seen.put("ERR, its completion", new.recv_cq.words(1));
    seen.put("ERR, a send", told(&send(&new)));
    seen.put("ERR, the send's completion", new.send_cq.words(1));
    seen.put("ERR, a send without a signal", {
        new.qp.post(Send::new(3, Op::Send, &[]).flags(0)).expect("posted");
        new.send_cq.words(1)
    });
    let new = end(setup, &listener);
    receive(&new).expect("a receive");
    new.qp.modify(IBV_QPS_RESET).expect("the reset state");
    let flushed = new.recv_cq.within(Duration::from_millis(100));
    seen.put("INIT to RESET, the receive before", flushed.map_or_else(|| String::from("nothing"), |wc| wc.to_string()));
}

fn changes(setup: &Setup, seen: &mut Seen) {
    const NAMES: [(&str, ibv_qp_state); 6] = [
        ("RESET", IBV_QPS_RESET),
        ("INIT", IBV_QPS_INIT),
        ("RTR", IBV_QPS_RTR),
        ("RTS", IBV_QPS_RTS),
        ("SQD", IBV_QPS_SQD),
        ("ERR", IBV_QPS_ERR),
    ];
    // With the state alone: what other attributes a change needs is not there.
    let listener = Listener::new(setup, 4);
    let mut from = |name: &str, change: &dyn Fn(ibv_qp_state) -> Answer| {
        for (to, state) in NAMES {
            seen.put(format!("{name} to {to}"), told(&change(state)));
        }
    };
    from("RESET", &|state| {
        let new = end(setup, &listener);
        new.qp.modify(IBV_QPS_RESET).expect("the reset state");
        new.qp.modify(state)
    });
    from("INIT", &|state| end(setup, &listener).qp.modify(state));
    from("RTS", &|state| Pair::new(setup, &Shape::default()).client.qp.modify(state));
    from("ERR", &|state| {
        let new = end(setup, &listener);
        new.qp.modify(IBV_QPS_ERR).expect("the error state");
        new.qp.modify(state)
    });
    let new = end(setup, &listener);
    let mut attr = ibv_qp_attr { qp_state: 9, ..ibv_qp_attr::default() };
    seen.put("to a state that is none", told(&new.qp.modify_with(&mut attr, IBV_QP_STATE)));
    let mut attr = ibv_qp_attr::default();
    seen.put("of nothing", told(&new.qp.modify_with(&mut attr, 0)));
    let mut attr =
        ibv_qp_attr { qp_access_flags: IBV_ACCESS_REMOTE_WRITE, port_num: 1, qp_state: IBV_QPS_INIT, ..ibv_qp_attr::default() };
    let init = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_PKEY_INDEX;
    seen.put("INIT to INIT with all that it needs", told(&new.qp.modify_with(&mut attr, init)));
    attr.port_num = 2;
    seen.put("INIT to INIT at a port that is not there", told(&new.qp.modify_with(&mut attr, init)));
    new.qp.modify(IBV_QPS_RESET).expect("the reset state");
    attr.port_num = 1;
    seen.put("RESET to INIT with all that it needs", told(&new.qp.modify_with(&mut attr, init)));
    seen.put("a receive then", told(&receive(&new)));
    let pair = Pair::new(setup, &Shape::default());
    let mut attr = ibv_qp_attr { min_rnr_timer: 12, ..ibv_qp_attr::default() };
    seen.put(
        "RTS, another timer for receives that are not there",
        told(&pair.client.qp.modify_with(&mut attr, IBV_QP_MIN_RNR_TIMER)),
    );
    attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, min_rnr_timer: 12, ..attr };
    seen.put("RTS to RTS with that timer", told(&pair.client.qp.modify_with(&mut attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER)));
}

fn flushed(setup: &Setup, seen: &mut Seen) {
    // Sends that cannot be received are under way, and behind them is more.
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    let local = [client.mr.sge(0, 8)];
    let (addr, rkey) = pair.remote(0);
    for at in 1..4 {
        client.receive(100 + at, 0, 8);
    }
    let list = [
        Send::new(1, Op::Send, &local),
        Send::new(2, Op::Write(addr, rkey), &local).flags(0),
        Send::new(3, Op::Read(addr, rkey), &local),
        Send::new(4, Op::FetchAdd(addr, rkey, 1), &local),
    ];
    client.qp.post_list(&list).expect("posted");
    client.qp.modify(IBV_QPS_ERR).expect("the error state");
    seen.put("sends, signaled or not", client.send_cq.words(4));
    seen.put("receives", client.recv_cq.words(3));
    let event = client.id.channel().within(Duration::from_millis(100));
    seen.put("event of the connection manager", event.map_or_else(|| String::from("nothing"), |event| event.to_string()));
    // The other end hears nothing of it.
    server.receive(1, 0, 8);
    server.qp.post(Send::new(9, Op::Send, &[])).expect("posted");
    server.id.disconnect().expect("disconnected");
    seen.put(
        "a send to an end in error, after a disconnect",
        server.send_cq.within(PATIENCE).map_or_else(|| String::from("nothing"), |wc| wc.to_string()),
    );
}
