//! The end of a connection: who is told what, in which order, and what becomes of work that is posted.

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{Pair, Shape};
use crate::verbs::{Op, Param, Send, Setup, told};

pub(super) const ALL: &[Scenario] = &[
    ("client disconnects", by_client),
    ("server disconnects", by_server),
    ("both disconnect", by_both),
    ("one end is destroyed", by_destroying),
    ("a queue pair is destroyed", by_destroying_qp),
];

/// Two receives at each end.
fn pair(setup: &Setup) -> Pair {
    let pair = Pair::new(setup, &Shape::default());
    for end in [&pair.client, &pair.server] {
        end.receive(1, 0, 64);
        end.receive(2, 64, 64);
    }
    pair
}

fn by_client(setup: &Setup, seen: &mut Seen) {
    let Pair { client, server } = pair(setup);
    seen.put("call", told(&client.id.disconnect()));
    seen.put("its receives", client.recv_cq.words(2));
    seen.put("call again", told(&client.id.disconnect()));
    seen.put("server's event", server.event());
    // The server's queue pair is as it was: whoever reads the event ends it.
    server.receive(3, 0, 64);
    seen.put("server's call", told(&server.id.disconnect()));
    seen.put("server's receives", server.recv_cq.words(3));
    seen.put("server's call again", told(&server.id.disconnect()));
    seen.put("client's events", client.id.channel().to_the_end());
    seen.put("server's events", server.id.channel().to_the_end());
    seen.put("client's call after the end", told(&client.id.disconnect()));
    seen.put("client's connect after the end", told(&client.id.connect(Some(&Param::default()))));
    seen.put("a receive after the end", told(&client.qp.receive(4, &[client.mr.sge(0, 8)])));
    seen.put("a send after the end", told(&client.qp.post(Send::new(5, Op::Send, &[client.mr.sge(0, 8)]))));
    seen.put("the send's completion", client.send_cq.words(1));
}

fn by_server(setup: &Setup, seen: &mut Seen) {
    let Pair { client, server } = pair(setup);
    seen.put("call", told(&server.id.disconnect()));
    seen.put("its receives", server.recv_cq.words(2));
    seen.put("client's event", client.event());
    seen.put("client's call", told(&client.id.disconnect()));
    seen.put("client's receives", client.recv_cq.words(2));
    seen.put("server's events", server.id.channel().to_the_end());
    seen.put("client's events", client.id.channel().to_the_end());
}

fn by_both(setup: &Setup, seen: &mut Seen) {
    let Pair { client, server } = pair(setup);
    seen.put("client's call", told(&client.id.disconnect()));
    seen.put("server's call", told(&server.id.disconnect()));
    seen.put("client's receives", client.recv_cq.words(2));
    seen.put("server's receives", server.recv_cq.words(2));
    seen.put("client's event", client.event());
    // Whether TIMEWAIT_EXIT follows is not always the same on soft-RoCE.
    seen.put("server's event", server.event());
}

fn by_destroying(setup: &Setup, seen: &mut Seen) {
    let Pair { client, server } = pair(setup);
    drop(client);
    seen.put("server's event", server.event());
    seen.put("server's send then", told(&server.qp.post(Send::new(7, Op::Send, &[server.mr.sge(0, 8)]))));
    seen.put("server's call", told(&server.id.disconnect()));
    seen.put("the send's completion", server.send_cq.words(1));
    seen.put("server's receives", server.recv_cq.words(2));
    seen.put("server's events", server.id.channel().to_the_end());
}

fn by_destroying_qp(setup: &Setup, seen: &mut Seen) {
    let Pair { client, server } = pair(setup);
    let crate::pair::End { qp, mr: _mr, pd: _pd, send_cq: _send_cq, recv_cq, id } = client;
    drop(qp);
    seen.put("its receives that nobody polled", recv_cq.all().len());
    seen.put("connection manager's call", told(&id.disconnect()));
    seen.put("server's event", server.event());
    seen.put("server's call", told(&server.id.disconnect()));
    seen.put("client's events", id.channel().to_the_end());
    // What was flushed and not polled before a queue pair is destroyed.
    let Pair { client, server: _server } = pair(setup);
    client.qp.modify(IBV_QPS_ERR).expect("the error state");
    let crate::pair::End { qp, mr: _mr, pd: _pd, send_cq: _send_cq, recv_cq, id: _id } = client;
    recv_cq.next();
    drop(qp);
    seen.put("its flushed receives that nobody polled", recv_cq.all().len());
}
