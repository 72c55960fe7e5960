//! What refuses to go because something else needs it.

use super::{Scenario, Seen};
use crate::pair::{End, Listener, Shape, dial};
use crate::verbs::memory::ALL as EVERYTHING;
use crate::verbs::{Cq, Mr, Pd, Setup, told};

pub(super) const ALL: &[Scenario] = &[("freeing", freeing)];

fn freeing(setup: &Setup, seen: &mut Seen) {
    let pd = Pd::alloc(setup);
    let mr = Mr::page(setup, &pd, EVERYTHING);
    seen.put("a domain with a region", told(&pd.free()));
    drop(mr);
    seen.put("a domain whose region is gone", told(&pd.free()));
    let cq = Cq::create(setup, 4, 0).expect("a queue");
    seen.put("a channel with a queue", told(&cq.channel.free()));
    let listener = Listener::new(setup, 1);
    let end = End::new(setup, dial(setup, listener.addr), &Shape::default());
    seen.put("a domain with a queue pair", told(&end.pd.free()));
    seen.put("a queue of sends with a queue pair", told(&end.send_cq.free()));
    seen.put("a queue of receives with a queue pair", told(&end.recv_cq.free()));
    seen.put("a region that receives wait for", {
        end.receive(1, 0, 64);
        told(&end.mr.deregister())
    });
    let End { qp, mr: _mr, pd, send_cq, recv_cq, id: _id } = end;
    drop(qp);
    seen.put("a queue of sends without its queue pair", told(&send_cq.free()));
    seen.put("a queue of receives without its queue pair", told(&recv_cq.free()));
    seen.put("a domain without its queue pair", told(&pd.free()));
}
