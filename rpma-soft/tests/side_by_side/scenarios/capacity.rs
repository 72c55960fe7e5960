//! Sizes of queue pairs: what is refused, and what is granted.

use super::{Scenario, Seen};
use crate::pair::{Listener, dial};
use crate::verbs::qp::{Like, NATIVE};
use crate::verbs::{Cap, Cq, Pd, Qp, Setup, told};

pub(super) const ALL: &[Scenario] = &[("queue pair", sizes)];

fn sizes(setup: &Setup, seen: &mut Seen) {
    let listener = Listener::new(setup, 1);
    let pd = Pd::alloc(setup);
    let cq = Cq::create(setup, 16, 0).expect("a queue");
    let create = |cap, ops| {
        let id = dial(setup, listener.addr);
        Qp::create(&id, &pd, [&cq, &cq], Like { cap, ops, ..Like::default() })
    };
    let orig = &setup.attr.orig_attr;
    let (wr, sge) = (orig.max_qp_wr.unsigned_abs(), orig.max_sge.unsigned_abs());
    let small = Cap { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline: 0 };
    let mut with = |name: &str, cap| seen.put(name, told(&create(cap, 0)));
    with("nothing of everything", Cap { send_wr: 0, recv_wr: 0, send_sge: 0, recv_sge: 0, inline: 0 });
    with("no sends", Cap { send_wr: 0, send_sge: 0, ..small });
    with("no receives", Cap { recv_wr: 0, recv_sge: 0, ..small });
    with("the most ranges", Cap { send_sge: sge, recv_sge: sge, ..small });
    with("a range too many in sends", Cap { send_sge: sge + 1, ..small });
    with("a range too many in receives", Cap { recv_sge: sge + 1, ..small });
    with("a send too many", Cap { send_wr: wr + 1, ..small });
    with("a receive too many", Cap { recv_wr: wr + 1, ..small });
    with("inline data of 64 KiB", Cap { inline: 65536, ..small });
    with(
        "sizes beyond all reason",
        Cap { send_wr: u32::MAX, recv_wr: u32::MAX, send_sge: u32::MAX, recv_sge: u32::MAX, inline: u32::MAX },
    );
    let granted = create(Cap { send_wr: 5, recv_wr: 5, send_sge: 3, recv_sge: 3, inline: 20 }, 0).expect("a queue pair").granted;
    seen.put("5 sends are granted as", granted.send_wr);
    seen.put("5 receives are granted as", granted.recv_wr);
    seen.put("3 ranges in sends and 20 bytes inline are granted as", format!("{} and {}", granted.send_sge, granted.inline));
    seen.put("3 ranges in receives are granted as", granted.recv_sge);
    seen.put("with native flush and atomic write", told(&create(small, NATIVE)));
    seen.put("with an operation that nobody knows", told(&create(small, 1 << 40)));
    let id = dial(setup, listener.addr);
    let first = Qp::create(&id, &pd, [&cq, &cq], Like { cap: small, ..Like::default() });
    seen.put("the first of an identifier", told(&first));
    // Never dropped: librdmacm would destroy the identifier's one queue pair twice.
    let second = std::mem::ManuallyDrop::new(Qp::create(&id, &pd, [&cq, &cq], Like { cap: small, ..Like::default() }));
    seen.put("the second of an identifier", told(&second));
}
