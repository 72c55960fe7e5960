//! Requests that fail: with which status at which end, and what becomes of both.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use rpma_sys::bindings::*;
use rustix::param::page_size;

use super::{Scenario, Seen};
use crate::pair::{End, Pair, Shape};
use crate::verbs::memory::{ALL as EVERYTHING, Pages};
use crate::verbs::{Mr, Op, PATIENCE, Param, Pd, Send, Setup};

pub(super) const ALL: &[Scenario] = &[
    ("remote fault", remote),
    ("remote fault of a native operation", native),
    ("local fault", local),
    ("receive's fault", receives),
    ("no receive", not_ready),
    ("resources", resources),
    ("after a fault", aftermath),
];

const LEN: u32 = 16;

/// The operations that name a remote place, with 8 bytes for atomics.
fn remote_ops(addr: u64, rkey: u32) -> [(&'static str, Op, u32); 5] {
    [
        ("write", Op::Write(addr, rkey), LEN),
        ("write with immediate", Op::WriteImm(addr, rkey, 1), LEN),
        ("read", Op::Read(addr, rkey), LEN),
        ("compare and swap", Op::CompareSwap(addr, rkey, 0, 0), 8),
        ("fetch and add", Op::FetchAdd(addr, rkey, 0), 8),
    ]
}

/// What both ends are told, after one request of the client's. The server has one receive, and tells whether it completed: the client's
/// answer comes after the server's own completion.
fn both(pair: &Pair, send: Send) -> String {
    let Pair { client, server } = pair;
    server.receive(50, 2048, 64);
    if let Err(e) = client.qp.post(send) {
        return format!("{e} when posted");
    }
    let at_client = client.send_cq.words(1);
    let at_server = receives_of(server, &at_client);
    let states = [state_after(client, &at_client, ""), state_after(server, &at_server, &at_client)];
    format!("{at_client}, {}; server: {at_server}, {}", states[0], states[1])
}

/// The state of an end that was told `here` while the other was told `there`. Soft-RoCE tells of a failure first, and the state follows a
/// moment later.
fn state_after(end: &End, here: &str, there: &str) -> &'static str {
    let failed = here.contains("_ERR") || there.contains("REM_");
    let start = Instant::now();
    loop {
        let state = end.qp.state();
        if state == "ERR" || !failed || start.elapsed() > PATIENCE {
            return state;
        }
        thread::yield_now();
    }
}

/// The completions of the receives of an end whose last one is number 50, after the other end was told `answer`. A remote error leaves
/// none of them.
fn receives_of(end: &End, answer: &str) -> String {
    let limit = if answer.contains("REM_") { PATIENCE } else { Duration::from_millis(100) };
    let mut words = Vec::new();
    while let Some(wc) = end.recv_cq.within(limit) {
        words.push(wc.to_string());
        if wc.0.wr_id == 50 {
            break;
        }
    }
    if words.is_empty() { String::from("nothing") } else { words.join(", ") }
}

fn remote(setup: &Setup, seen: &mut Seen) {
    let shape = Shape::default();
    let size = page_size() as u64;
    for at in 0..5 {
        let mut with = |fault: &str, place: fn(&Setup, &Pair) -> (u64, u32, Option<Mr>)| {
            let pair = Pair::new(setup, &shape);
            let (addr, rkey, _held) = place(setup, &pair);
            let (name, op, len) = remote_ops(addr, rkey)[at];
            let send = Send::new(1, op, &[pair.client.mr.sge(0, len)]);
            seen.put(format!("{name}, {fault}"), both(&pair, send));
        };
        with("a key that is not there", |_, pair| {
            let (addr, rkey) = pair.remote(0);
            (addr, rkey ^ 0x5500, None)
        });
        with("a key whose low byte is wrong", |_, pair| {
            let (addr, rkey) = pair.remote(0);
            (addr, rkey ^ 1, None)
        });
        with("8 bytes before its region", |_, pair| {
            let (addr, rkey) = pair.remote(0);
            (addr - 8, rkey, None)
        });
        with("8 bytes beyond its region", |_, pair| {
            let (addr, rkey) = pair.remote(page_size() as u64);
            (addr + 8, rkey, None)
        });
        with("a region of another domain", |setup, _| {
            let mr = Mr::page(setup, &Pd::alloc(setup), EVERYTHING);
            (mr.addr(0), mr.rkey, Some(mr))
        });
        with("a region that is gone", |setup, pair| {
            let mr = Mr::page(setup, &pair.server.pd, EVERYTHING);
            mr.deregister().expect("gone");
            (mr.addr(0), mr.rkey, Some(mr))
        });
        with("a region without remote rights", |setup, pair| {
            let mr = Mr::page(setup, &pair.server.pd, IBV_ACCESS_LOCAL_WRITE);
            (mr.addr(0), mr.rkey, Some(mr))
        });
        let (name, right) = match at {
            0 | 1 => ("write", IBV_ACCESS_REMOTE_WRITE),
            2 => ("read", IBV_ACCESS_REMOTE_READ),
            _ => ("atomics", IBV_ACCESS_REMOTE_ATOMIC),
        };
        let pair = Pair::new(setup, &shape);
        let mr = Mr::page(setup, &pair.server.pd, EVERYTHING & !right);
        let (op, remote, len) = remote_ops(mr.addr(0), mr.rkey)[at];
        seen.put(
            format!("{op}, all rights but that to {name}"),
            both(&pair, Send::new(1, remote, &[pair.client.mr.sge(0, len)])),
        );
    }
    // One byte too many, and one at the border.
    for (name, op) in [("write", Op::Write as fn(u64, u32) -> Op), ("read", Op::Read)] {
        for (fault, offset) in [("up to the last byte", size - u64::from(LEN)), ("one byte too far", size - u64::from(LEN) + 1)] {
            let pair = Pair::new(setup, &shape);
            let (addr, rkey) = pair.remote(offset);
            seen.put(format!("{name}, {fault}"), both(&pair, Send::new(1, op(addr, rkey), &[pair.client.mr.sge(0, LEN)])));
        }
    }
    for at in 3..5 {
        let pair = Pair::new(setup, &shape);
        let (addr, rkey) = pair.remote(4);
        let (name, op, _) = remote_ops(addr, rkey)[at];
        seen.put(format!("{name}, not aligned"), both(&pair, Send::new(1, op, &[pair.client.mr.sge(0, 8)])));
    }
    let pair = Pair::new(setup, &shape);
    let (addr, rkey) = pair.remote(0);
    let send = Send::new(1, Op::Write(addr.wrapping_neg(), rkey), &[pair.client.mr.sge(0, LEN)]);
    seen.put("write, an address whose end wraps", both(&pair, send));
}

fn native(setup: &Setup, seen: &mut Seen) {
    seen.put("there", setup.has_native());
    if !setup.has_native() {
        return;
    }
    let shape = Shape { native: true, ..Shape::default() };
    let kept = RefCell::new(Vec::new());
    let with = |name: &str, seen: &mut Seen, post: &dyn Fn(&Pair, &Mr)| {
        let pair = Pair::new(setup, &shape);
        let pages = Pages::map(1, libc::PROT_READ | libc::PROT_WRITE);
        let region =
            Mr::register(setup, &pair.server.pd, &pages, 0, page_size(), EVERYTHING | IBV_ACCESS_FLUSH_GLOBAL).expect("a region");
        pair.server.receive(50, 2048, 64);
        post(&pair, &region);
        let at_client = pair.client.send_cq.words(1);
        let at_server = receives_of(&pair.server, &at_client);
        let states = [state_after(&pair.client, &at_client, ""), state_after(&pair.server, &at_server, &at_client)];
        seen.put(name, format!("{at_client}, {}; server: {at_server}, {}", states[0], states[1]));
    };
    let size = page_size();
    let flush = |pair: &Pair, addr, rkey, len, placement, level| {
        pair.client.qp.flush(1, addr, rkey, len, placement, level).expect("posted");
    };
    with("flush, a key that is not there", seen, &|pair, mr| {
        flush(pair, mr.addr(0), mr.rkey ^ 0x5500, 8, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE)
    });
    with("flush, one byte too far", seen, &|pair, mr| flush(pair, mr.addr(1), mr.rkey, size, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE));
    with("flush, length 0 beyond its region", seen, &|pair, mr| {
        flush(pair, mr.addr(size as u64 + 8), mr.rkey, 0, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE)
    });
    with("flush of a region, an address beyond it", seen, &|pair, mr| {
        flush(pair, mr.addr(size as u64 + 8), mr.rkey, 8, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR)
    });
    with("flush, a region without the right", seen, &|pair, _| {
        flush(pair, pair.server.mr.addr(0), pair.server.mr.rkey, 8, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE)
    });
    with("flush, persistently without the right", seen, &|pair, mr| {
        flush(pair, mr.addr(0), mr.rkey, 8, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE)
    });
    let write = |pair: &Pair, addr, rkey| pair.client.qp.atomic_write(1, addr, rkey, [1; 8]).expect("posted");
    with("atomic write, a key that is not there", seen, &|pair, mr| write(pair, mr.addr(0), mr.rkey ^ 0x5500));
    with("atomic write, one byte too far", seen, &|pair, mr| write(pair, mr.addr(size as u64 - 7), mr.rkey));
    with("atomic write, 8 bytes too far", seen, &|pair, mr| write(pair, mr.addr(size as u64), mr.rkey));
    with("atomic write, not aligned", seen, &|pair, mr| write(pair, mr.addr(4), mr.rkey));
    with("atomic write, a region without the right", seen, &|pair, _| {
        let mr = Mr::page(setup, &pair.server.pd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        write(pair, mr.addr(0), mr.rkey);
        // It has to be there until the answer is.
        kept.borrow_mut().push(mr);
    });
}

fn local(setup: &Setup, seen: &mut Seen) {
    let shape = Shape::default();
    let size = page_size() as u64;
    let ops = |addr, rkey| {
        [
            ("send", Op::Send),
            ("write", Op::Write(addr, rkey)),
            ("read", Op::Read(addr, rkey)),
            ("fetch and add", Op::FetchAdd(addr, rkey, 0)),
        ]
    };
    for at in 0..4 {
        let mut with = |fault: &str, place: &dyn Fn(&Pair) -> (ibv_sge, Option<Mr>)| {
            let pair = Pair::new(setup, &shape);
            let (addr, rkey) = pair.remote(0);
            let (name, op) = ops(addr, rkey)[at];
            let (sge, _held) = place(&pair);
            seen.put(format!("{name}, {fault}"), both(&pair, Send::new(1, op, &[sge])));
        };
        with("a key that is not there", &|pair| {
            (ibv_sge { lkey: pair.client.mr.lkey ^ 0x5500, ..pair.client.mr.sge(0, 8) }, None)
        });
        with("one byte too far", &|pair| (pair.client.mr.sge(size - 7, 8), None));
        with("a region of another domain", &|_| {
            let mr = Mr::page(setup, &Pd::alloc(setup), EVERYTHING);
            (mr.sge(0, 8), Some(mr))
        });
        with("a region that is gone", &|pair| {
            let mr = Mr::page(setup, &pair.client.pd, EVERYTHING);
            mr.deregister().expect("gone");
            (mr.sge(0, 8), Some(mr))
        });
        with("a region without local write", &|pair| {
            let mr = Mr::page(setup, &pair.client.pd, IBV_ACCESS_REMOTE_READ);
            (mr.sge(0, 8), Some(mr))
        });
    }
    let pair = Pair::new(setup, &shape);
    let (addr, rkey) = pair.remote(0);
    let bad = ibv_sge { lkey: pair.client.mr.lkey ^ 0x5500, ..pair.client.mr.sge(0, 8) };
    seen.put(
        "write, the second range's key is not there",
        both(&pair, Send::new(1, Op::Write(addr, rkey), &[pair.client.mr.sge(0, 8), bad])),
    );
    for (name, len) in [("4", 4), ("16", 16)] {
        let pair = Pair::new(setup, &shape);
        let (addr, rkey) = pair.remote(0);
        let send = Send::new(1, Op::FetchAdd(addr, rkey, 0), &[pair.client.mr.sge(0, len)]);
        seen.put(format!("fetch and add with room for {name} bytes"), both(&pair, send));
    }
    let pair = Pair::new(setup, &shape);
    let (addr, rkey) = pair.remote(0);
    seen.put("fetch and add with no room", both(&pair, Send::new(1, Op::FetchAdd(addr, rkey, 0), &[])));
}

/// Ranges of a receive, and a region that has to be there.
type Receive<'a> = &'a dyn Fn(&Pair) -> (Vec<ibv_sge>, Option<Mr>);

/// A receive that cannot take what is sent.
fn receives(setup: &Setup, seen: &mut Seen) {
    let size = page_size() as u64;
    let mut with = |name: &str, len, receive: Receive| {
        let pair = Pair::new(setup, &Shape::default());
        let (sges, _held) = receive(&pair);
        pair.server.qp.receive(49, &sges).expect("a receive is taken");
        seen.put(name, both(&pair, Send::new(1, Op::Send, &[pair.client.mr.sge(0, len)])));
    };
    with("a message as long as it", 8, &|pair| (vec![pair.server.mr.sge(0, 8)], None));
    with("a message one byte longer", 9, &|pair| (vec![pair.server.mr.sge(0, 8)], None));
    with("a message that is longer than its two ranges", 17, &|pair| {
        (vec![pair.server.mr.sge(0, 8), pair.server.mr.sge(8, 8)], None)
    });
    with("a byte to a receive without ranges", 1, &|_| (Vec::new(), None));
    with("a key that is not there", 8, &|pair| {
        (vec![ibv_sge { lkey: pair.server.mr.lkey ^ 0x5500, ..pair.server.mr.sge(0, 8) }], None)
    });
    with("one byte too far", 8, &|pair| (vec![pair.server.mr.sge(size - 7, 8)], None));
    with("one byte too far, not needed", 7, &|pair| (vec![pair.server.mr.sge(size - 7, 8)], None));
    with("a second range whose key is not there, not needed", 8, &|pair| {
        let bad = ibv_sge { lkey: pair.server.mr.lkey ^ 0x5500, ..pair.server.mr.sge(0, 8) };
        (vec![pair.server.mr.sge(0, 8), bad], None)
    });
    with("a region without local write", 8, &|pair| {
        let mr = Mr::page(setup, &pair.server.pd, IBV_ACCESS_REMOTE_READ);
        (vec![mr.sge(0, 8)], Some(mr))
    });
    with("a region that is gone", 8, &|pair| {
        let mr = Mr::page(setup, &pair.server.pd, EVERYTHING);
        mr.deregister().expect("gone");
        (vec![mr.sge(0, 8)], Some(mr))
    });
    with("a region of another domain", 8, &|_| {
        let mr = Mr::page(setup, &Pd::alloc(setup), EVERYTHING);
        (vec![mr.sge(0, 8)], Some(mr))
    });
}

fn not_ready(setup: &Setup, seen: &mut Seen) {
    let param = |rnr_retry| Param { rnr_retry, ..Param::default() };
    for count in [0, 1] {
        let pair = Pair::new(setup, &Shape { client: param(count), server: param(count), ..Shape::default() });
        let client = &pair.client;
        client.qp.post(Send::new(1, Op::Send, &[client.mr.sge(0, 8)])).expect("posted");
        seen.put(format!("send, count {count}"), client.send_cq.words(1));
    }
    let pair = Pair::new(setup, &Shape { client: param(0), server: param(0), ..Shape::default() });
    let (addr, rkey) = pair.remote(0);
    pair.client.qp.post(Send::new(1, Op::WriteImm(addr, rkey, 1), &[pair.client.mr.sge(0, 8)])).expect("posted");
    seen.put("write with immediate, count 0", pair.client.send_cq.words(1));
    let pair = Pair::new(setup, &Shape::default());
    let (client, server) = (&pair.client, &pair.server);
    client.qp.post(Send::new(1, Op::Send, &[client.mr.sge(0, 8)])).expect("posted");
    client.qp.post(Send::new(2, Op::Send, &[client.mr.sge(0, 8)])).expect("posted");
    seen.put("send, for ever, and no receive", client.send_cq.within(Duration::from_millis(100)).is_none());
    server.receive(7, 0, 64);
    server.receive(8, 0, 64);
    seen.put("send, for ever, and receives at last", client.send_cq.words(2));
    seen.put("the receives", server.recv_cq.words(2));
    // Whose count holds: the sender's is what the receiver's end asked for.
    for (name, client_s, server_s) in [("client asks 0, server 7", 0, 7), ("client asks 7, server 0", 7, 0)] {
        let pair = Pair::new(setup, &Shape { client: param(client_s), server: param(server_s), ..Shape::default() });
        for (end, from) in [("client", &pair.client), ("server", &pair.server)] {
            from.qp.post(Send::new(1, Op::Send, &[from.mr.sge(0, 8)])).expect("posted");
            let answer = from.send_cq.within(Duration::from_millis(400));
            seen.put(format!("{name}, the {end} sends"), answer.map_or_else(|| String::from("nothing"), |wc| wc.to_string()));
        }
    }
}

fn resources(setup: &Setup, seen: &mut Seen) {
    // None at the server: reads and atomics cannot be answered.
    let param = |resources, depth| Param { resources, depth, ..Param::default() };
    let pair = Pair::new(setup, &Shape { client: param(0, 0), server: param(0, 0), ..Shape::default() });
    let (addr, rkey) = pair.remote(0);
    pair.server.receive(1, 0, 8);
    let posted = pair.client.qp.post(Send::new(1, Op::Read(addr, rkey), &[pair.client.mr.sge(0, 8)]));
    let answer = match posted {
        Ok(()) => pair.client.send_cq.within(Duration::from_secs(2)).map_or_else(|| String::from("nothing"), |wc| wc.to_string()),
        Err(e) => e.to_string(),
    };
    seen.put("a read where none was agreed on", answer);
    // One at a time: the others wait.
    let pair = Pair::new(setup, &Shape { client: param(1, 1), server: param(1, 1), ..Shape::default() });
    let (addr, rkey) = pair.remote(0);
    for wr_id in 1..9 {
        pair.client.qp.post(Send::new(wr_id, Op::Read(addr, rkey), &[pair.client.mr.sge(0, 8)])).expect("posted");
    }
    seen.put("eight reads where one was agreed on", pair.client.send_cq.words(8));
}

fn aftermath(setup: &Setup, seen: &mut Seen) {
    let pair = Pair::new(setup, &Shape::default());
    let Pair { client, server } = &pair;
    let (addr, rkey) = pair.remote(0);
    server.receive(50, 0, 64);
    client.receive(2, 0, 64);
    let local = [client.mr.sge(0, 8)];
    let list = [
        Send::new(1, Op::Write(addr, rkey), &local),
        Send::new(2, Op::Write(addr, rkey), &local).flags(0),
        Send::new(3, Op::Write(addr, rkey ^ 0x5500), &local).flags(0),
        Send::new(4, Op::Write(addr, rkey), &local),
        Send::new(5, Op::Write(addr, rkey), &local).flags(0),
        Send::new(6, Op::Send, &local),
    ];
    client.qp.post_list(&list).expect("posted");
    seen.put("six requests of which the third fails, unsignaled", client.send_cq.words(5));
    seen.put("receive of the end that failed", client.recv_cq.words(1));
    seen.put("a request after that", {
        client.qp.post(Send::new(7, Op::Send, &local)).expect("posted");
        client.send_cq.words(1)
    });
    seen.put("the other end", receives_of(server, "REM_"));
    server.qp.post(Send::new(8, Op::Send, &[server.mr.sge(0, 8)])).expect("posted");
    seen.put("a send of the other end", server.send_cq.words(1));
    seen.put("event of the end that failed", client.id.channel().within(Duration::from_millis(100)).is_some());
    seen.put("event of the other end", server.id.channel().within(Duration::from_millis(100)).is_some());
}
