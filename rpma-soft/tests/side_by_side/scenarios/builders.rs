//! Requests that `ibv_wr_start(3)` and what follows it build, alone and in batches.

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{Pair, Shape};
use crate::verbs::builders::Batch;
use crate::verbs::{Answer, Cap, Setup, told};

pub(super) const ALL: &[Scenario] = &[
    ("builder", each),
    ("builder of atomics", atomics),
    ("builder of inline data", inline),
    ("builder of ranges", ranges),
    ("batch", batches),
    ("batch that does not fit", full),
];

const SIGNALED: u32 = IBV_SEND_SIGNALED;
/// Soft-RoCE wants to be told by the flag too.
const INLINE: u32 = IBV_SEND_SIGNALED | IBV_SEND_INLINE;

fn pair(setup: &Setup) -> Pair {
    Pair::new(setup, &Shape { builders: true, ..Shape::default() })
}

/// What became of a batch whose last request is the `count`th signaled one.
fn done(pair: &Pair, posted: Answer, count: usize) -> String {
    if posted.is_ok() { pair.client.send_cq.words(count) } else { told(&posted) }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}

fn each(setup: &Setup, seen: &mut Seen) {
    let pair = pair(setup);
    let (client, server) = (&pair.client, &pair.server);
    client.mr.fill(0, b"sixteen bytes ..");
    let (local, remote) = (client.mr.sge(0, 16), pair.remote(512));
    (0..4).for_each(|wr_id| server.receive(wr_id, 64 * wr_id, 64));
    let batch = || Batch::start(&client.qp);
    seen.put("send", done(&pair, batch().send(1, SIGNALED).set_sge(local).complete(), 1));
    seen.put("send, receive", server.recv_cq.words(1));
    seen.put("send with immediate, receive", {
        batch().send_imm(2, 0x0102_0304).set_sge(local).complete().expect("posted");
        client.send_cq.next();
        server.recv_cq.words(1)
    });
    seen.put("write", done(&pair, batch().write(3, remote, SIGNALED).set_sge(local).complete(), 1));
    seen.put("write, memory", text(&server.mr.read(512, 16)));
    seen.put("write with immediate, receive", {
        batch().write_imm(4, remote, 5).set_sge(local).complete().expect("posted");
        client.send_cq.next();
        server.recv_cq.words(1)
    });
    seen.put("read", done(&pair, batch().read(5, remote).set_sge(client.mr.sge(64, 16)).complete(), 1));
    seen.put("read, memory", text(&client.mr.read(64, 16)));
    seen.put("send without data", done(&pair, batch().send(6, SIGNALED).complete(), 1));
    seen.put("send without data, receive", server.recv_cq.words(1));
}

fn atomics(setup: &Setup, seen: &mut Seen) {
    let pair = pair(setup);
    let (client, server) = (&pair.client, &pair.server);
    let remote = pair.remote(8);
    let value = |end: &crate::pair::End, at| u64::from_ne_bytes(end.mr.read(at, 8).try_into().expect("8 bytes"));
    server.mr.fill(8, &40u64.to_ne_bytes());
    let local = client.mr.sge(0, 8);
    for (name, compare, swap) in [("compare and swap that matches", 40, 50), ("compare and swap that does not", 40, 60)] {
        let posted = Batch::start(&client.qp).compare_swap(1, remote, compare, swap).set_sge(local).complete();
        seen.put(name, done(&pair, posted, 1));
        seen.put(format!("{name}, values"), format!("{} was {}", value(server, 8), value(client, 0)));
    }
    let posted = Batch::start(&client.qp).fetch_add(2, remote, u64::MAX).set_sge(local).complete();
    seen.put("fetch and add that wraps", done(&pair, posted, 1));
    seen.put("fetch and add that wraps, values", format!("{} was {}", value(server, 8), value(client, 0)));
}

fn inline(setup: &Setup, seen: &mut Seen) {
    let pair = pair(setup);
    let (client, server) = (&pair.client, &pair.server);
    let remote = pair.remote(512);
    let mut data = *b"carried inside";
    let batch = Batch::start(&client.qp);
    batch.write(1, remote, INLINE).set_inline_data(&data);
    // It is copied when it is set.
    data.fill(b'-');
    seen.put("write", done(&pair, batch.complete(), 1));
    seen.put("write, memory", text(&server.mr.read(512, 14)));
    let posted = Batch::start(&client.qp).write(2, remote, INLINE).set_inline_data_list(&[b"two", b"", b" parts"]).complete();
    seen.put("write of a list", done(&pair, posted, 1));
    seen.put("write of a list, memory", text(&server.mr.read(512, 14)));
    server.receive(1, 0, 64);
    let posted = Batch::start(&client.qp).send(3, INLINE).set_inline_data(&[]).complete();
    seen.put("send of nothing", done(&pair, posted, 1));
    seen.put("send of nothing, receive", server.recv_cq.words(1));
    // Of one piece alone: soft-RoCE takes a list of any length, and copies it to where there is no room.
    let too_much = vec![1; client.qp.granted.inline as usize + 1];
    let posted = Batch::start(&client.qp).write(4, remote, INLINE).set_inline_data(&too_much).complete();
    seen.put("write of more than fits", done(&pair, posted, 1));
    let posted = Batch::start(&client.qp).write(6, remote, INLINE).set_inline_data(b"behind").complete();
    seen.put("write behind that", done(&pair, posted, 1));
    let posted = Batch::start(&client.qp).write(7, remote, SIGNALED).set_inline_data(b"no flag").complete();
    seen.put("write without the flag", done(&pair, posted, 1));
}

fn ranges(setup: &Setup, seen: &mut Seen) {
    let pair = pair(setup);
    let (client, server) = (&pair.client, &pair.server);
    client.mr.fill(0, b"abcdefghijklmnop");
    let remote = pair.remote(512);
    let mut write = |name: &str, list: &[ibv_sge]| {
        server.mr.fill(512, &[b'.'; 16]);
        let posted = Batch::start(&client.qp).write(1, remote, SIGNALED).set_sge_list(list).complete();
        seen.put(name, done(&pair, posted, 1));
        seen.put(format!("{name}, memory"), text(&server.mr.read(512, 16)));
    };
    write("two of one length", &[client.mr.sge(0, 4), client.mr.sge(8, 4)]);
    write("none", &[]);
    write("two of different lengths", &[client.mr.sge(0, 3), client.mr.sge(10, 6)]);
    let most = vec![client.mr.sge(0, 2); client.qp.granted.send_sge as usize];
    write("as many as are granted", &most);
    let more = [most, vec![client.mr.sge(0, 2)]].concat();
    let posted = Batch::start(&client.qp).write(2, remote, SIGNALED).set_sge_list(&more).complete();
    seen.put("one more", done(&pair, posted, 1));
}

fn batches(setup: &Setup, seen: &mut Seen) {
    let pair = pair(setup);
    let (client, server) = (&pair.client, &pair.server);
    let (local, remote) = (client.mr.sge(0, 8), pair.remote(512));
    let batch = Batch::start(&client.qp);
    batch.write(1, remote, INLINE).set_inline_data(b"of three").read(2, remote).set_sge(local);
    batch.fetch_add(3, pair.remote(8), 1).set_sge(client.mr.sge(64, 8));
    seen.put("of three kinds", done(&pair, batch.complete(), 3));
    seen.put("of three kinds, what was read", text(&client.mr.read(0, 8)));
    server.qp.receive(1, &[]).expect("a receive");
    server.qp.receive(2, &[]).expect("a receive");
    let posted = Batch::start(&client.qp).send(4, 0).send(5, SIGNALED).complete();
    seen.put("of one without a signal and one with", done(&pair, posted, 1));
    seen.put("of nothing", told(&Batch::start(&client.qp).complete()));
    let batch = Batch::start(&client.qp);
    batch.write(6, remote, INLINE).set_inline_data(b"given up");
    batch.abort();
    let posted = Batch::start(&client.qp).write(7, pair.remote(600), INLINE).set_inline_data(b"behind").complete();
    seen.put("behind one that was given up", done(&pair, posted, 1));
    seen.put("that was given up, memory", text(&server.mr.read(512, 8)));
    client.qp.modify(IBV_QPS_ERR).expect("to the error state");
    let posted = Batch::start(&client.qp).write(8, remote, SIGNALED).send(9, SIGNALED).complete();
    seen.put("in the error state", done(&pair, posted, 2));
}

fn full(setup: &Setup, seen: &mut Seen) {
    let cap = Cap { send_wr: 4, ..Cap::default() };
    let pair = Pair::new(setup, &Shape { cap, builders: true, ..Shape::default() });
    let client = &pair.client;
    let room = client.qp.granted.send_wr;
    let of = |count: u32| {
        let batch = Batch::start(&client.qp);
        for wr_id in 0..count {
            batch.write(wr_id.into(), (0, 0), SIGNALED);
        }
        batch.complete()
    };
    // Grants are rounded up, and say too little on kernel 6.1: this is more than any rounding.
    seen.put("much more than there is room for", told(&of(4 * room + 64)));
    seen.put("behind it", done(&pair, of(1), 1));
    seen.put("as much as there is room for", done(&pair, of(room), 4));
}
