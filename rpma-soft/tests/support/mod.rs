//! Connections between two ends of one process, through the boundary that the rest of the workspace uses.
//!
//! On this provider, or on rdma-core if `RPMA_TEST_PROVIDER` says so (then `RPMA_TEST_ADDR` is an address of a device, and tests run one
//! at a time: a process has one stream of asynchronous events).
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "registers memory, and looks into it, as the crates above do")]
#![allow(dead_code, reason = "each test target uses a part of it")]

pub(crate) mod raw;
pub(crate) mod stranger;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpma_soft::wire::{Accept, CmFrame, Frame, MAX_HEADER_BYTES, PREAMBLE_BYTES, Preamble, PrivateData};
use rpma_soft::{Soft, SoftConfig};
use rpma_sys::bindings::*;
use rpma_sys::owned::{
    AsyncEvent, AsyncEvents, CmEvent, CmEventKind, CmId, ConnParam, Context, Cq, EventChannel, Mr, Pd, Qp, QpCap, QpRequest,
    SendOp, SendOptions, Srq, SrqCap,
};
use rpma_sys::{ProviderRef, RdmaCore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Sizes of the queues of tests.
pub(crate) const CAP: QpCap = QpCap { send_wr: 16, recv_wr: 16, send_sge: 1, recv_sge: 1, inline_bytes: 32 };

/// Whether it is this provider.
pub(crate) fn is_soft() -> bool {
    std::env::var("RPMA_TEST_PROVIDER").is_ok_and(|name| name == "rdma-core").eq(&false)
}

/// A device of the test's own, like `change` makes it, where devices can be made.
pub(crate) fn provider_like(change: impl FnOnce(&mut SoftConfig)) -> ProviderRef {
    if !is_soft() {
        return RdmaCore::open().unwrap();
    }
    let mut config = SoftConfig::default();
    change(&mut config);
    Soft::with_config(config).unwrap()
}

/// A device of the test's own, where devices can be made.
pub(crate) fn provider() -> ProviderRef {
    provider_like(|_| {})
}

/// An address of the device.
pub(crate) fn local() -> SocketAddr {
    let ip = if is_soft() { "127.0.0.1".into() } else { std::env::var("RPMA_TEST_ADDR").unwrap() };
    SocketAddr::new(ip.parse().unwrap(), 0)
}

/// Waits until `fd` has something to read.
#[track_caller]
pub(crate) fn wait(fd: &impl AsFd, what: &str) {
    let limit = Timespec::try_from(LIMIT).unwrap();
    assert!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).unwrap() > 0, "no {what}");
}

/// Whether `fd` has something to read now.
pub(crate) fn is_readable(fd: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

/// The next event of the connection manager.
#[track_caller]
pub(crate) fn event(channel: &Arc<EventChannel>) -> CmEvent {
    loop {
        if let Some(event) = channel.get_event().unwrap() {
            return event;
        }
        wait(channel, "event");
    }
}

/// The next asynchronous event.
#[track_caller]
pub(crate) fn async_event(events: &AsyncEvents) -> AsyncEvent {
    loop {
        if let Some(event) = events.take().unwrap() {
            return event;
        }
        wait(events, "asynchronous event");
    }
}

/// The next `count` completions: request and status.
#[track_caller]
pub(crate) fn completions(cq: &Cq, count: usize) -> Vec<(u64, ibv_wc_status)> {
    let mut all = Vec::new();
    let mut wc = [ibv_wc::default()];
    while all.len() < count {
        if cq.poll(&mut wc).unwrap() == 1 {
            all.push((wc[0].wr_id, wc[0].status));
            continue;
        }
        cq.request_notify().unwrap();
        if cq.poll(&mut wc).unwrap() == 1 {
            all.push((wc[0].wr_id, wc[0].status));
            continue;
        }
        wait(cq, "completion");
        cq.take_events().unwrap();
    }
    all
}

/// A device, and what is made with it.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) provider: ProviderRef,
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
}

impl Device {
    pub(crate) fn new() -> Self {
        Self::of(provider())
    }

    pub(crate) fn of(provider: ProviderRef) -> Self {
        let context = Context::list(&provider).unwrap().remove(0);
        let pd = Pd::alloc(&context).unwrap();
        Self { provider, context, pd }
    }

    pub(crate) fn cq(&self) -> Arc<Cq> {
        Cq::create(&self.context, 64, 0).unwrap()
    }

    pub(crate) fn srq(&self, wr: u32) -> Arc<Srq> {
        Srq::create(&self.pd, SrqCap { wr, sge: 1 }).unwrap()
    }

    pub(crate) fn async_events(&self) -> AsyncEvents {
        AsyncEvents::of(&self.context).unwrap()
    }

    /// Memory until the end of the process, registered.
    pub(crate) fn memory(&self, len: usize) -> Memory {
        self.memory_with(len, 0).unwrap()
    }

    /// As [`memory`](Self::memory), with more rights.
    pub(crate) fn memory_with(&self, len: usize, rights: ibv_access_flags) -> std::io::Result<Memory> {
        // Where who looks for leaks finds it.
        static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        let addr = NonNull::from(Box::leak(vec![0_u64; len.div_ceil(8)].into_boxed_slice())).cast::<u8>();
        KEPT.lock().unwrap().push(addr.as_ptr().expose_provenance());
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | rights;
        // SAFETY: it stays until the end of the process, and no reference to it is left.
        let mr = unsafe { Mr::register(&self.pd, addr, len, access) }?;
        Ok(Memory { addr, mr })
    }

    /// Two connected ends, made of these parts.
    #[track_caller]
    pub(crate) fn pair(&self, client: Parts, server: Parts) -> (End, End) {
        Connecting::new(self, client, |_| {}).finish(self, server, param())
    }
}

/// Registered memory.
pub(crate) struct Memory<M = Mr> {
    pub(crate) addr: NonNull<u8>,
    pub(crate) mr: M,
}

impl Memory {
    /// The same, registered no more.
    pub(crate) fn deregister(self) -> Memory<()> {
        drop(self.mr);
        Memory { addr: self.addr, mr: () }
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> ibv_sge {
        ibv_sge { addr: self.address() + offset, length, lkey: self.mr.lkey() }
    }
}

impl<M> Memory<M> {
    pub(crate) fn address(&self) -> u64 {
        self.addr.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn byte(&self, offset: usize) -> u8 {
        // SAFETY: within the region, which tests do not leave.
        let at = unsafe { self.addr.add(offset) };
        // SAFETY: as above.
        unsafe { at.read_volatile() }
    }
}

/// What an end's queue pair is made of.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    /// With native flush, and with native atomic write.
    pub(crate) native: [bool; 2],
}

impl Parts {
    pub(crate) fn new(device: &Device) -> Self {
        Self { send_cq: device.cq(), recv_cq: device.cq(), srq: None, cap: CAP, native: [false; 2] }
    }

    pub(crate) fn with_srq(device: &Device, srq: &Arc<Srq>) -> Self {
        Self { srq: Some(Arc::clone(srq)), ..Self::new(device) }
    }
}

/// An end of a connection.
pub(crate) struct End {
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) qp: Qp,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
}

impl End {
    pub(crate) fn make(device: &Device, id: CmId, channel: Arc<EventChannel>, parts: Parts) -> Self {
        let Parts { send_cq, recv_cq, srq, cap, native: [native_flush, native_atomic_write] } = parts;
        let request = QpRequest { cap, native_flush, native_atomic_write };
        let qp = Qp::create(&Arc::new(id), &device.pd, &send_cq, &recv_cq, srq.as_ref(), request).unwrap();
        Self { channel, qp, send_cq, recv_cq }
    }

    /// Connected to a peer that is no program of ours: it accepts, and says and reads nothing more.
    pub(crate) fn accepted_by_a_stranger(
        device: &Device,
        asked: ConnParam<'_>,
        initiator_depth: u8,
        responder_resources: u8,
    ) -> (Self, TcpStream) {
        let peer = TcpListener::bind(local()).unwrap();
        let channel = EventChannel::create(&device.provider).unwrap();
        let id = CmId::create(&channel).unwrap();
        id.resolve_addr(peer.local_addr().unwrap(), LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
        id.resolve_route(LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
        let client = Self::make(device, id, channel, Parts::new(device));
        client.qp.id().connect(asked).unwrap();
        let (mut stream, _) = peer.accept().unwrap();
        let mut preamble = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut preamble).unwrap();
        let accept = Accept {
            qp_num: 3,
            responder_resources,
            initiator_depth,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            private_data: PrivateData::default(),
        };
        let mut header = [0; MAX_HEADER_BYTES];
        let len = Frame::Cm(CmFrame::Accept(accept)).encode(&mut header).unwrap();
        stream.write_all(&[&Preamble::encode(), &header[..len]].concat()).unwrap();
        assert_eq!(event(&client.channel).kind, CmEventKind::Established);
        (client, stream)
    }

    pub(crate) fn send(&self, wr_id: u64, bytes: &[u8]) {
        self.qp.post_send_inline(SendOp::Send, bytes, SendOptions { wr_id, signaled: true, fence: false }).unwrap();
    }

    pub(crate) fn write(&self, wr_id: u64, bytes: &[u8], remote_addr: u64, rkey: u32) {
        let options = SendOptions { wr_id, signaled: true, fence: false };
        self.qp.post_send_inline(SendOp::Write { remote_addr, rkey }, bytes, options).unwrap();
    }
}

pub(crate) fn param() -> ConnParam<'static> {
    ConnParam { private_data: &[], responder_resources: 4, initiator_depth: 3, retry_count: 7, rnr_retry_count: 7 }
}

/// A client that is about to connect.
pub(crate) struct Connecting {
    pub(crate) listening: Arc<EventChannel>,
    pub(crate) listener: CmId,
    pub(crate) client: End,
}

impl Connecting {
    /// `prepare` is done to the identifier before its address is resolved.
    #[track_caller]
    pub(crate) fn new(device: &Device, parts: Parts, prepare: impl FnOnce(&CmId)) -> Self {
        let listening = EventChannel::create(&device.provider).unwrap();
        let listener = CmId::create(&listening).unwrap();
        listener.bind(local()).unwrap();
        listener.listen(0).unwrap();
        let channel = EventChannel::create(&device.provider).unwrap();
        let id = CmId::create(&channel).unwrap();
        prepare(&id);
        id.resolve_addr(listener.local_addr().unwrap(), LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
        id.resolve_route(LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
        let client = End::make(device, id, channel, parts);
        Self { listening, listener, client }
    }

    /// Connects, and makes the other end of `server`.
    #[track_caller]
    pub(crate) fn finish(self, device: &Device, server: Parts, param: ConnParam<'_>) -> (End, End) {
        let Self { listening, client, .. } = self;
        client.qp.id().connect(param).unwrap();
        let mut id = event(&listening).new_id.unwrap();
        let channel = EventChannel::create(&device.provider).unwrap();
        id.migrate(&channel).unwrap();
        let server = End::make(device, id, channel, server);
        server.qp.id().accept(param).unwrap();
        assert_eq!(event(&client.channel).kind, CmEventKind::Established);
        assert_eq!(event(&server.channel).kind, CmEventKind::Established);
        (client, server)
    }
}
