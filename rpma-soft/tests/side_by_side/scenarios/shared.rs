//! Shared receive queues.

use std::rc::Rc;
use std::time::Duration;

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{End, Listener, Shape, dial};
use crate::verbs::{Op, Param, Pd, Send, Setup, Srq, told};

pub(super) const ALL: &[Scenario] = &[("shared receive queue", sizes), ("sharing", sharing)];

fn sizes(setup: &Setup, seen: &mut Seen) {
    let orig = &setup.attr.orig_attr;
    let (most_wr, most_sge) = (orig.max_srq_wr.unsigned_abs(), orig.max_srq_sge.unsigned_abs());
    seen.put("there", most_wr > 0);
    let pd = Pd::alloc(setup);
    for (name, wr, sge) in [
        ("no receives", 0, 1),
        ("no ranges", 1, 0),
        ("the most ranges", 1, most_sge),
        ("a receive too many", most_wr + 1, 1),
        ("a range too many", 1, most_sge + 1),
        ("sizes beyond all reason", u32::MAX, u32::MAX),
    ] {
        seen.put(name, told(&Srq::create(setup, &pd, wr, sge)));
    }
    let srq = Srq::create(setup, &pd, 5, 3).expect("a queue");
    seen.put("5 receives are granted as", srq.granted.0);
    seen.put("3 ranges are granted as", srq.granted.1);
    let range = ibv_sge { addr: 4096, length: 1, lkey: 1 };
    seen.put("a range too many in a receive", told(&srq.receive(1, &vec![range; srq.granted.1 as usize + 1])));
    let taken = (0..srq.granted.0 + 8).take_while(|&at| srq.receive(at.into(), &[]).is_ok()).count();
    seen.put(
        "receives that are taken",
        if taken == srq.granted.0 as usize { String::from("as granted") } else { taken.to_string() },
    );
    seen.put("a receive more", told(&srq.receive(99, &[])));
    seen.put("its domain", told(&pd.free()));
    seen.put("with receives in it", told(&srq.free()));
    seen.put("its domain then", told(&pd.free()));
}

fn sharing(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 4);
    let pd = Pd::alloc(setup);
    let srq = Srq::create(setup, &pd, 8, 2).expect("a queue");
    let mut connect = |name: &str, server_param: &Param| {
        let client = End::new(setup, dial(setup, listener.addr), &Shape::default());
        client.id.connect(Some(&Param { rnr_retry: 0, ..Param::default() })).expect("asked");
        let (_, id) = listener.request();
        let server = End::sharing(setup, id, &pd, &srq);
        server.id.accept(Some(server_param)).expect("accepted");
        seen.put(format!("{name}, client"), client.event().whole(server.qp.number()));
        assert_eq!(server.event().kind, RDMA_CM_EVENT_ESTABLISHED);
        (client, server)
    };
    let not_ready = Param { rnr_retry: 0, ..Param::default() };
    let (first, one) = connect("first", &Param::default());
    let (second, two) = connect("second", &Param::default());
    let (third, three) = connect("third", &not_ready);
    seen.put("receives of its own are granted as", one.qp.granted.recv_wr);
    seen.put("a receive of its own", told(&one.qp.receive(1, &[])));
    seen.put("the queue with queue pairs", told(&srq.free()));
    for wr_id in 1..6 {
        srq.receive(wr_id, &[one.mr.sge(wr_id * 64, 32)]).expect("a receive");
    }
    let mut send = |name: &str, from: &End, to: &End, len| {
        let answer = from.done(Send::new(1, Op::Send, &[from.mr.sge(0, len)]));
        let wc = to.recv_cq.within(Duration::from_secs(1));
        let number = wc.is_none_or(|wc| wc.0.qp_num == to.qp.number());
        let received = wc.map_or_else(|| String::from("nothing"), |wc| wc.to_string());
        seen.put(name, format!("{answer}; {received}{}", if number { "" } else { ", of another queue pair" }));
    };
    send("the first sends", &first, &one, 8);
    send("the second sends", &second, &two, 8);
    send("the first sends again", &first, &one, 32);
    send("the second sends too much", &second, &two, 33);
    // One receive is left.
    send("the third sends", &third, &three, 1);
    send("the third sends and there is no receive", &third, &three, 1);
    srq.receive(7, &[one.mr.sge(0, 32)]).expect("a receive");
    one.qp.modify(IBV_QPS_ERR).expect("the error state");
    let flushed = one.recv_cq.within(Duration::from_millis(100));
    seen.put("receives when a queue pair is in error", flushed.map_or_else(|| String::from("nothing"), |wc| wc.to_string()));
    drop((one, two, three, first, second, third));
    seen.put("the queue without queue pairs", told(&srq.free()));
    drop((Rc::clone(&pd), listener));
}
