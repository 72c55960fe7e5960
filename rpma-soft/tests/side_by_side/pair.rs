//! Two ends in this process, and the way to a connection between them step by step.

use std::net::SocketAddr;
use std::rc::Rc;

use rpma_sys::bindings::*;

use crate::verbs::builders::BUILDERS;
use crate::verbs::memory::ALL;
use crate::verbs::qp::{Like, NATIVE};
use crate::verbs::{Answer, Cap, Channel, Cq, Event, Id, LIMIT, Mr, Param, Pd, Qp, Send, Setup, Srq};

/// How a pair is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shape {
    pub(crate) cap: Cap,
    pub(crate) signal_all: bool,
    /// With native flush and atomic write.
    pub(crate) native: bool,
    /// With builders for all else.
    pub(crate) builders: bool,
    /// What the client connects with.
    pub(crate) client: Param,
    /// What the server accepts with.
    pub(crate) server: Param,
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: Rc<Id>,
    pub(crate) channel: Rc<Channel>,
    pub(crate) addr: SocketAddr,
}

impl Listener {
    pub(crate) fn new(setup: &Setup, backlog: i32) -> Self {
        let channel = Channel::create(&setup.provider).expect("an event channel");
        let id = Id::create(&channel).expect("an identifier");
        id.bind(setup.any_port()).expect("an address of the device");
        id.listen(backlog).expect("a listener");
        let addr = id.local().expect("an address");
        Self { id, channel, addr }
    }

    /// The next request, which has to come, with its identifier.
    pub(crate) fn request(&self) -> (Event, Rc<Id>) {
        let mut event = self.channel.next();
        assert_eq!(event.kind, RDMA_CM_EVENT_CONNECT_REQUEST, "{event}");
        let id = event.id.take().expect("a request has an identifier");
        (event, id)
    }
}

/// An identifier that is ready to connect to `addr`.
pub(crate) fn dial(setup: &Setup, addr: SocketAddr) -> Rc<Id> {
    let channel = Channel::create(&setup.provider).expect("an event channel");
    let id = Id::create(&channel).expect("an identifier");
    id.resolve_addr(addr, LIMIT).expect("an address to resolve");
    let event = channel.next();
    assert_eq!(event.kind, RDMA_CM_EVENT_ADDR_RESOLVED, "{event}");
    id.resolve_route().expect("a route to resolve");
    let event = channel.next();
    assert_eq!(event.kind, RDMA_CM_EVENT_ROUTE_RESOLVED, "{event}");
    id
}

/// One end: an identifier with a queue pair, two queues and a page that everybody may do everything with.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) pd: Rc<Pd>,
    pub(crate) send_cq: Rc<Cq>,
    pub(crate) recv_cq: Rc<Cq>,
    pub(crate) id: Rc<Id>,
}

impl End {
    pub(crate) fn new(setup: &Setup, id: Rc<Id>, shape: &Shape) -> Self {
        Self::try_new(setup, id, shape).expect("a queue pair")
    }

    /// With a shared receive queue, and in its domain.
    pub(crate) fn sharing(setup: &Setup, id: Rc<Id>, pd: &Rc<Pd>, srq: &Rc<Srq>) -> Self {
        Self::on(setup, id, &Shape::default(), Rc::clone(pd), Some(srq)).expect("a queue pair")
    }

    /// Where a queue pair may be refused.
    pub(crate) fn try_new(setup: &Setup, id: Rc<Id>, shape: &Shape) -> Answer<Self> {
        Self::on(setup, id, shape, Pd::alloc(setup), None)
    }

    fn on(setup: &Setup, id: Rc<Id>, shape: &Shape, pd: Rc<Pd>, srq: Option<&Rc<Srq>>) -> Answer<Self> {
        let send_cq = Cq::create(setup, 64, 0).expect("a queue");
        let recv_cq = Cq::create(setup, 64, 0).expect("a queue");
        let ops = if shape.native { NATIVE } else { 0 } | if shape.builders { BUILDERS } else { 0 };
        let like = Like { cap: shape.cap, ops, signal_all: shape.signal_all, srq };
        let qp = Qp::create(&id, &pd, [&send_cq, &recv_cq], like)?;
        let mr = Mr::page(setup, &pd, ALL);
        Ok(Self { qp, mr, pd, send_cq, recv_cq, id })
    }

    /// The next event.
    pub(crate) fn event(&self) -> Event {
        self.id.channel().next()
    }

    /// Posts a signaled request, and tells its completion.
    pub(crate) fn done(&self, send: Send) -> String {
        match self.qp.post(send) {
            Ok(()) => self.send_cq.words(1),
            Err(e) => format!("{e} when posted"),
        }
    }

    /// Posts a receive of `len` bytes at `offset`.
    pub(crate) fn receive(&self, wr_id: u64, offset: u64, len: u32) {
        self.qp.receive(wr_id, &[self.mr.sge(offset, len)]).expect("a receive is taken");
    }
}

/// Both ends of a connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client: End,
    pub(crate) server: End,
}

impl Pair {
    /// A client that asks, a server that has not answered, and the request.
    pub(crate) fn asking(setup: &Setup, shape: &Shape) -> (Self, Event) {
        let listener = Listener::new(setup, 8);
        let client = End::new(setup, dial(setup, listener.addr), shape);
        client.id.connect(Some(&shape.client)).expect("a request is sent");
        let (request, id) = listener.request();
        // The listener is done; its channel goes on with the connection.
        let server = End::new(setup, id, shape);
        (Self { client, server }, request)
    }

    /// A connection.
    pub(crate) fn new(setup: &Setup, shape: &Shape) -> Self {
        let (pair, _) = Self::asking(setup, shape);
        pair.server.id.accept(Some(&shape.server)).expect("an answer is sent");
        for end in [&pair.client, &pair.server] {
            let event = end.event();
            assert_eq!(event.kind, RDMA_CM_EVENT_ESTABLISHED, "{event}");
        }
        pair
    }

    /// The server's memory at `offset`, and its key.
    pub(crate) fn remote(&self, offset: u64) -> (u64, u32) {
        (self.server.mr.addr(offset), self.server.mr.rkey)
    }
}
