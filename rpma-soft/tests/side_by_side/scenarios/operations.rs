//! Every operation that goes well: its completions at both ends, and what became of memory.

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{Pair, Shape};
use crate::verbs::memory::{ALL as EVERYTHING, Pages};
use crate::verbs::{Mr, Op, Send, Setup, told};

pub(super) const ALL: &[Scenario] = &[
    ("operation", each),
    ("operation of length 0", empty),
    ("atomic", atomics),
    ("native operation", native),
    ("ranges", ranges),
    ("inline", inline),
    ("signals", signals),
];

fn each(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    let (addr, rkey) = pair.remote(1024);
    client.mr.fill(0, b"sixteen bytes ..");
    let local = [client.mr.sge(0, 16)];
    for (name, op, received) in [
        ("send", Op::Send, true),
        ("send with immediate", Op::SendImm(0x0102_0304), true),
        ("write", Op::Write(addr, rkey), false),
        ("write with immediate", Op::WriteImm(addr, rkey, 0xFFFF_FFFE), true),
    ] {
        server.receive(100, 0, 64);
        seen.put(name, client.done(Send::new(1, op, &local)));
        if received {
            let wc = server.recv_cq.next();
            seen.put(format!("{name}, receive"), wc);
            seen.put(format!("{name}, receive's queue pair"), wc.0.qp_num == server.qp.number());
            seen.put(format!("{name}, receive's other fields"), others(&wc.0, client.qp.number()));
        }
    }
    client.qp.post(Send::new(2, Op::Read(addr, rkey), &[client.mr.sge(64, 16)])).expect("posted");
    let wc = client.send_cq.next();
    seen.put("read", wc);
    seen.put("read, queue pair", wc.0.qp_num == client.qp.number());
    seen.put("read, other fields", others(&wc.0, server.qp.number()));
    seen.put("read what was written", client.mr.read(64, 16) == b"sixteen bytes ..");
    let fenced = Send::new(3, Op::Write(addr, rkey), &local).flags(IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    seen.put("write with a fence", client.done(fenced));
}

fn others(wc: &ibv_wc, peer: u32) -> String {
    let src = if wc.src_qp == 0 {
        "0"
    } else if wc.src_qp == peer {
        "the peer's"
    } else {
        "another"
    };
    format!(
        "vendor_err {}, src_qp {src}, slid {}, sl {}, path bits {}, pkey {}, GRH {}",
        wc.vendor_err,
        wc.slid,
        wc.sl,
        wc.dlid_path_bits,
        wc.pkey_index,
        wc.wc_flags & IBV_WC_GRH != 0
    )
}

fn empty(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    server.qp.receive(100, &[]).expect("a receive without ranges");
    seen.put("send to a receive without ranges", client.done(Send::new(1, Op::Send, &[])));
    seen.put("receive without ranges", server.recv_cq.words(1));
    server.receive(101, 0, 64);
    seen.put("send with immediate", client.done(Send::new(2, Op::SendImm(7), &[])));
    seen.put("receive of immediate", server.recv_cq.words(1));
    // Neither address nor key mean anything (IBTA volume 1, 9.7.4.1.5).
    seen.put("write with no key", client.done(Send::new(3, Op::Write(0, 0), &[])));
    seen.put("read with no key", client.done(Send::new(4, Op::Read(0, 0), &[])));
    server.receive(102, 0, 64);
    seen.put("write with immediate and no key", client.done(Send::new(5, Op::WriteImm(0, 0, 9), &[])));
    seen.put("receive of a write with immediate", server.recv_cq.words(1));
    server.receive(103, 0, 64);
    seen.put("send of a range of length 0", client.done(Send::new(6, Op::Send, &[client.mr.sge(0, 0)])));
    seen.put("receive of a range of length 0", server.recv_cq.words(1));
    let nothing = ibv_sge { addr: 1, length: 0, lkey: 12345 };
    let (addr, rkey) = pair.remote(0);
    seen.put(
        "write of a range of length 0 with a key that is not there",
        client.done(Send::new(7, Op::Write(addr, rkey), &[nothing])),
    );
}

fn atomics(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    let (addr, rkey) = pair.remote(8);
    let value = |end: &crate::pair::End, at| u64::from_ne_bytes(end.mr.read(at, 8).try_into().expect("8 bytes"));
    server.mr.fill(8, &40u64.to_ne_bytes());
    let local = [client.mr.sge(0, 8)];
    for (name, op) in [
        ("compare and swap that matches", Op::CompareSwap(addr, rkey, 40, 50)),
        ("compare and swap that does not", Op::CompareSwap(addr, rkey, 40, 60)),
        ("fetch and add", Op::FetchAdd(addr, rkey, 5)),
        ("fetch and add that wraps", Op::FetchAdd(addr, rkey, u64::MAX)),
    ] {
        seen.put(name, client.done(Send::new(1, op, &local)));
        seen.put(format!("{name}, values"), format!("{} was {}", value(server, 8), value(client, 0)));
    }
    // The original value takes 8 bytes; where there is room for more or fewer, drivers differ.
    seen.put(
        "fetch and add into two ranges",
        client.done(Send::new(2, Op::FetchAdd(addr, rkey, 1), &[client.mr.sge(64, 4), client.mr.sge(72, 4)])),
    );
}

fn native(setup: &Setup, seen: &mut Seen) {
    seen.put("there", setup.has_native());
    if !setup.has_native() {
        return;
    }
    let pair = Pair::new(setup, &Shape { native: true, ..Shape::default() });
    let (client, server) = (&pair.client, &pair.server);
    let pages = Pages::map(1, libc::PROT_READ | libc::PROT_WRITE);
    let region = Mr::register(setup, &server.pd, &pages, 0, 4096, EVERYTHING | IBV_ACCESS_FLUSH_GLOBAL).expect("a region");
    let (addr, rkey) = (region.addr(0), region.rkey);
    let mut flush = |name: &str, len, placement, level| {
        let posted = client.qp.flush(1, addr, rkey, len, placement, level);
        let answer = if posted.is_ok() { client.send_cq.words(1) } else { told(&posted) };
        seen.put(name, answer);
    };
    flush("flush of a range", 64, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
    flush("flush of length 0", 0, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
    flush("flush of a region", 0, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR);
    flush("flush of a region with a length beyond it", 1 << 20, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR);
    let write = client.qp.atomic_write(2, server.mr.addr(16), server.mr.rkey, *b"8 bytes!");
    let answer = if write.is_ok() { client.send_cq.words(1) } else { told(&write) };
    seen.put("atomic write", answer);
    seen.put("atomic write, memory", server.mr.read(16, 8) == b"8 bytes!");
    // Those requests stand in one queue with others.
    seen.put(
        "write in the same queue pair",
        client.done(Send::new(3, Op::Write(server.mr.addr(64), server.mr.rkey), &[client.mr.sge(0, 8)])),
    );
}

fn ranges(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    client.mr.fill(0, b"abcdefghijklmnop");
    let gather = [client.mr.sge(0, 3), client.mr.sge(8, 0), client.mr.sge(10, 6), client.mr.sge(5, 1)];
    server
        .qp
        .receive(1, &[server.mr.sge(0, 4), server.mr.sge(100, 0), server.mr.sge(200, 5), server.mr.sge(300, 50)])
        .expect("a receive");
    seen.put("send", client.done(Send::new(1, Op::Send, &gather)));
    seen.put("receive", server.recv_cq.words(1));
    let text = [server.mr.read(0, 4), server.mr.read(200, 5), server.mr.read(300, 2)].concat();
    seen.put("received", String::from_utf8_lossy(&text).escape_debug());
    let (addr, rkey) = pair.remote(512);
    seen.put("write", client.done(Send::new(2, Op::Write(addr, rkey), &gather)));
    seen.put("written", String::from_utf8_lossy(&server.mr.read(512, 10)).escape_debug());
    seen.put("read", client.done(Send::new(3, Op::Read(addr, rkey), &[client.mr.sge(700, 4), client.mr.sge(800, 6)])));
    let text = [client.mr.read(700, 4), client.mr.read(800, 6)].concat();
    seen.put("what was read", String::from_utf8_lossy(&text).escape_debug());
}

fn inline(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    let data = *b"carried inside";
    // No key: the data is copied when it is posted.
    let sge = |from: usize, len: u32| ibv_sge { addr: (&raw const data[from]).expose_provenance() as u64, length: len, lkey: 0 };
    let inline = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    server.receive(1, 0, 64);
    seen.put("send", client.done(Send::new(1, Op::Send, &[sge(0, 14)]).flags(inline)));
    seen.put("receive", server.recv_cq.words(1));
    let (addr, rkey) = pair.remote(512);
    seen.put("write of two ranges", client.done(Send::new(2, Op::Write(addr, rkey), &[sge(0, 7), sge(8, 6)]).flags(inline)));
    seen.put("written", String::from_utf8_lossy(&server.mr.read(512, 13)).escape_debug());
    server.receive(2, 0, 64);
    seen.put("nothing", client.done(Send::new(3, Op::SendImm(1), &[]).flags(inline)));
    seen.put("receive of nothing", server.recv_cq.words(1));
}

fn signals(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let client = &pair.client;
    let (addr, rkey) = pair.remote(0);
    for wr_id in 1..4 {
        client.qp.post(Send::new(wr_id, Op::Write(addr, rkey), &[client.mr.sge(0, 8)]).flags(0)).expect("posted");
    }
    seen.put("three without and one with", client.done(Send::new(4, Op::Read(addr, rkey), &[client.mr.sge(64, 8)])));
    seen.put("what else there is", client.send_cq.all().len());
    let pair = Pair::new(setup, &Shape { signal_all: true, ..Shape::default() });
    let client = &pair.client;
    let (addr, rkey) = pair.remote(0);
    for wr_id in 1..4 {
        client.qp.post(Send::new(wr_id, Op::Write(addr, rkey), &[client.mr.sge(0, 8)]).flags(0)).expect("posted");
    }
    seen.put("three without, on a queue pair that signals all", client.send_cq.words(3));
}
