//! Posts that are refused, and what of a list is taken before.

use std::time::{Duration, Instant};

use rpma_sys::bindings::*;

use super::{Scenario, Seen};
use crate::pair::{Pair, Shape};
use crate::verbs::{Cap, Op, Refused, Send, Setup, told};

pub(super) const ALL: &[Scenario] = &[("full queue", full), ("post", refused)];

fn answer(posted: Result<(), Refused>) -> String {
    posted.map_or_else(|refused| refused.to_string(), |()| String::from("ok"))
}

fn full(setup: &Setup, seen: &mut Seen) {
    let cap = Cap { send_wr: 4, recv_wr: 4, ..Cap::default() };
    let shape = Shape { cap, ..Shape::default() };
    let pair = Pair::new(setup, &shape);
    let (client, server) = (&pair.client, &pair.server);
    // Sends that nobody receives stay in the queue.
    let granted = client.qp.granted;
    let sent = (0..granted.send_wr + 8).take_while(|&at| client.qp.post(Send::new(at.into(), Op::Send, &[])).is_ok()).count();
    seen.put(
        "sends that are taken",
        if sent == granted.send_wr as usize { String::from("as granted") } else { format!("{sent} of {}", granted.send_wr) },
    );
    seen.put("one more", answer(client.qp.post_list(&[Send::new(98, Op::Send, &[])])));
    seen.put("two more", answer(client.qp.post_list(&[Send::new(98, Op::Send, &[]), Send::new(99, Op::Send, &[])])));
    let received = (0..granted.recv_wr + 8).take_while(|&at| client.qp.receive(at.into(), &[]).is_ok()).count();
    seen.put(
        "receives that are taken",
        if received == granted.recv_wr as usize {
            String::from("as granted")
        } else {
            format!("{received} of {}", granted.recv_wr)
        },
    );
    seen.put("a receive more", told(&client.qp.receive(98, &[])));
    // All are received now, and none is polled at the client.
    let (mut posted, mut done) = (0, 0);
    while done < sent {
        if posted < sent && server.qp.receive(posted as u64, &[]).is_ok() {
            posted += 1;
        } else {
            server.recv_cq.next();
            done += 1;
        }
    }
    // The client hears of it a little later.
    let until = Instant::now() + Duration::from_millis(500);
    let mut answered = client.qp.post(Send::new(100, Op::Write(0, 0), &[]).flags(0));
    while answered.is_err() && Instant::now() < until {
        std::thread::yield_now();
        answered = client.qp.post(Send::new(100, Op::Write(0, 0), &[]).flags(0));
    }
    seen.put("all done and none polled, one more", told(&answered));
    client.send_cq.next();
    seen.put("one polled, one more", told(&client.qp.post(Send::new(101, Op::Write(0, 0), &[]))));
    let mut last = 0;
    while last != 101 {
        last = client.send_cq.next().0.wr_id;
    }
    // Unsignaled ones free their places when a later one is polled.
    for at in 0..u64::from(granted.send_wr) - 1 {
        client.qp.post(Send::new(at, Op::Write(0, 0), &[]).flags(0)).expect("a place");
    }
    client.qp.post(Send::new(102, Op::Write(0, 0), &[])).expect("a place");
    client.send_cq.next();
    let sent = (0..granted.send_wr + 8).take_while(|&at| client.qp.post(Send::new(at.into(), Op::Send, &[])).is_ok()).count();
    seen.put(
        "places after unsignaled ones and a polled one",
        if sent == granted.send_wr as usize { String::from("as granted") } else { format!("{sent} of {}", granted.send_wr) },
    );
}

fn refused(setup: &Setup, seen: &mut Seen) {
    // A queue pair of its own for each: some are taken, and fail.
    let mut post = |name: &str, send: &dyn Fn(&Pair) -> Send| {
        let pair = Pair::new(setup, &Shape::default());
        seen.put(name, pair.client.done(send(&pair)));
    };
    let inline = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    let write = |pair: &Pair, sges: &[ibv_sge]| {
        let (addr, rkey) = pair.remote(0);
        Send::new(1, Op::Write(addr, rkey), sges)
    };
    let ranges = |pair: &Pair, count: u32| vec![pair.client.mr.sge(0, 1); count as usize];
    post("a range too many", &|pair| write(pair, &ranges(pair, pair.client.qp.granted.send_sge + 1)));
    post("inline data that is too long", &|pair| {
        write(pair, &[pair.client.mr.sge(0, pair.client.qp.granted.inline + 1)]).flags(inline)
    });
    post("an inline read", &|pair| {
        let (addr, rkey) = pair.remote(0);
        Send::new(1, Op::Read(addr, rkey), &[pair.client.mr.sge(0, 8)]).flags(inline)
    });
    post("more than the longest message", &|pair| write(pair, &[ibv_sge { length: 0x8000_0000, ..pair.client.mr.sge(0, 8) }]));
    post("a flag that nobody knows", &|pair| write(pair, &[pair.client.mr.sge(0, 8)]).flags(IBV_SEND_SIGNALED | 1 << 20));
    post("flush without a builder", &|_| Send::new(1, Op::Raw(IBV_WR_FLUSH), &[]));
    post("atomic write without a builder", &|pair| Send::new(1, Op::Raw(IBV_WR_ATOMIC_WRITE), &[pair.client.mr.sge(0, 8)]));
    for (name, opcode) in [
        ("invalidation of a key", IBV_WR_LOCAL_INV),
        ("segmentation", IBV_WR_TSO),
        ("a driver's own", IBV_WR_DRIVER1),
        ("an opcode that nobody knows", 77),
    ] {
        let pair = Pair::new(setup, &Shape::default());
        seen.put(name, pair.client.done(Send::new(1, Op::Raw(opcode), &[])));
    }
    let pair = Pair::new(setup, &Shape::default());
    let client = &pair.client;
    let (addr, rkey) = pair.remote(0);
    let good = |wr_id| Send::new(wr_id, Op::Write(addr, rkey), &[client.mr.sge(0, 8)]);
    let bad = Send::new(12, Op::Write(addr, rkey), &ranges(&pair, client.qp.granted.send_sge + 1));
    seen.put("a list whose third is refused", answer(client.qp.post_list(&[good(10), good(11), bad, good(13)])));
    seen.put("what was taken of it", client.send_cq.words(2));
    seen.put("and no more", {
        client.qp.post(good(14)).expect("posted");
        client.send_cq.words(1)
    });
    let ranges = vec![client.mr.sge(0, 1); client.qp.granted.recv_sge as usize + 1];
    seen.put("a range too many in a receive", told(&client.qp.receive(1, &ranges)));
}
