//! Two ends as a C program has them: structures, and calls through the provider.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "what a C program does")]

use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::ptr::{null, null_mut};

use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;

/// A call of the `minus1` convention.
#[track_caller]
pub(crate) fn done(rc: c_int) {
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
}

/// What a C program makes for one end.
pub(crate) struct RawEnd {
    provider: ProviderRef,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    srq_is_gone: Cell<bool>,
    /// The server's: what its request came to, on the same channel.
    listener: *mut rdma_cm_id,
}

impl RawEnd {
    /// An end whose identifier is on a device.
    fn of(
        provider: &ProviderRef,
        channel: *mut rdma_event_channel,
        id: *mut rdma_cm_id,
        listener: *mut rdma_cm_id,
        with_srq: bool,
    ) -> Self {
        // SAFETY: live.
        let context = unsafe { (*id).verbs };
        // SAFETY: live.
        let pd = unsafe { provider.ibv_alloc_pd(context) };
        // SAFETY: live.
        let cq = unsafe { provider.ibv_create_cq(context, 32, null_mut(), null_mut(), 0) };
        assert!(!pd.is_null() && !cq.is_null());
        let mut srq = null_mut();
        if with_srq {
            let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
            let mut init = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
            // SAFETY: live.
            srq = unsafe { provider.ibv_create_srq(pd, &raw mut init) };
            assert!(!srq.is_null());
        }
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            srq,
            pd,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags: IBV_QP_EX_WITH_SEND.into(),
            qp_type: IBV_QPT_RC,
            cap: ibv_qp_cap { max_send_wr: 4, max_recv_wr: 5, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 16 },
            ..ibv_qp_init_attr_ex::default()
        };
        // SAFETY: live.
        done(unsafe { provider.rdma_create_qp_ex(id, &raw mut attr) });
        Self { provider: provider.clone(), channel, id, pd, cq, srq, srq_is_gone: Cell::new(!with_srq), listener }
    }

    pub(crate) fn qp(&self) -> *mut ibv_qp {
        // SAFETY: live, and nobody changes it meanwhile.
        unsafe { (*self.id).qp }
    }

    /// `ibv_qp::state`, as a C program reads it.
    pub(crate) fn state(&self) -> ibv_qp_state {
        // SAFETY: live.
        unsafe { (*self.qp()).state }
    }

    /// `ibv_modify_qp(3)`: the errno.
    pub(crate) fn modify(&self, attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> c_int {
        let mut attr = attr;
        // SAFETY: live.
        unsafe { self.provider.ibv_modify_qp(self.qp(), &raw mut attr, mask.cast_signed()) }
    }

    /// To a state, with nothing else.
    pub(crate) fn modify_state(&self, qp_state: ibv_qp_state) -> c_int {
        self.modify(ibv_qp_attr { qp_state, ..ibv_qp_attr::default() }, IBV_QP_STATE)
    }

    /// `ibv_query_qp(3)`.
    pub(crate) fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let mask = IBV_QP_STATE | IBV_QP_CAP;
        // SAFETY: live, and places for the results.
        let rc = unsafe { self.provider.ibv_query_qp(self.qp(), &raw mut attr, mask.cast_signed(), &raw mut init) };
        assert_eq!(rc, 0);
        (attr, init)
    }

    /// Waits for an event, and returns it with its parameters.
    #[track_caller]
    pub(crate) fn event(&self) -> (rdma_cm_event_type, rdma_conn_param) {
        let (kind, param, _) = next_event(&self.provider, self.channel);
        (kind, param)
    }

    /// A completion, if there is one: request and status.
    pub(crate) fn poll(&self) -> Option<(u64, ibv_wc_status)> {
        // SAFETY: live.
        let ops = unsafe { self.provider.cq_ops(self.cq) }.unwrap();
        let mut wc = ibv_wc::default();
        // SAFETY: live, with room for one.
        let rc = unsafe { (ops.poll_cq)(self.cq, 1, &raw mut wc) };
        assert!(rc >= 0, "ibv_poll_cq: {rc}");
        (rc == 1).then_some((wc.wr_id, wc.status))
    }

    /// The next completion.
    pub(crate) fn completion(&self) -> (u64, ibv_wc_status) {
        let start = std::time::Instant::now();
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(start.elapsed() < super::LIMIT, "no completion");
            std::thread::yield_now();
        }
    }

    /// The next asynchronous event, which is waited for.
    pub(crate) fn async_event(&self) -> ibv_async_event {
        let mut event = ibv_async_event::default();
        // SAFETY: live.
        let context = unsafe { (*self.id).verbs };
        // SAFETY: live, and a place for the result.
        done(unsafe { self.provider.ibv_get_async_event(context, &raw mut event) });
        event
    }

    pub(crate) fn ack(&self, event: ibv_async_event) {
        let mut event = event;
        // SAFETY: just taken.
        unsafe { self.provider.ibv_ack_async_event(&raw mut event) };
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: live.
        unsafe { (*self.qp()).qp_num }
    }

    pub(crate) fn reject(&self) {
        // SAFETY: live.
        done(unsafe { self.provider.rdma_reject(self.id, null(), 0) });
    }

    pub(crate) fn post_recv(&self, wr_id: u64) -> c_int {
        // SAFETY: live.
        let ops = unsafe { self.provider.qp_ops(self.qp(), 0) }.unwrap();
        let mut wr = ibv_recv_wr { wr_id, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        // SAFETY: live, and a list of one.
        unsafe { (ops.post_recv)(self.qp(), &raw mut wr, &raw mut bad) }
    }

    /// Posts as `ibv_post_srq_recv` of the headers does: through the context.
    pub(crate) fn post_srq_recv(&self, wr_id: u64) -> c_int {
        // SAFETY: live.
        let context = unsafe { (*self.srq).context };
        // SAFETY: live.
        let post = unsafe { (*context).ops.post_srq_recv }.unwrap();
        let mut wr = ibv_recv_wr { wr_id, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        // SAFETY: live, and a list of one.
        unsafe { post(self.srq, &raw mut wr, &raw mut bad) }
    }

    /// Posts an empty message.
    pub(crate) fn post_send(&self, wr_id: u64) -> c_int {
        self.post(ibv_send_wr { wr_id, opcode: IBV_WR_SEND, ..ibv_send_wr::default() })
    }

    /// Posts a message.
    pub(crate) fn post_send_bytes(&self, wr_id: u64, bytes: &[u8]) -> c_int {
        let mut sge = inline(bytes);
        let (sg_list, send_flags) = (&raw mut sge, IBV_SEND_INLINE);
        self.post(ibv_send_wr { wr_id, opcode: IBV_WR_SEND, send_flags, sg_list, num_sge: 1, ..ibv_send_wr::default() })
    }

    /// Posts a write.
    pub(crate) fn post_write(&self, wr_id: u64, bytes: &[u8], remote_addr: u64, rkey: u32) -> c_int {
        let mut sge = inline(bytes);
        let (sg_list, send_flags) = (&raw mut sge, IBV_SEND_INLINE);
        let wr = ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } };
        let opcode = IBV_WR_RDMA_WRITE;
        self.post(ibv_send_wr { wr_id, opcode, send_flags, sg_list, num_sge: 1, wr, ..ibv_send_wr::default() })
    }

    fn post(&self, mut wr: ibv_send_wr) -> c_int {
        // SAFETY: live.
        let ops = unsafe { self.provider.qp_ops(self.qp(), 0) }.unwrap();
        wr.send_flags |= IBV_SEND_SIGNALED;
        let mut bad = null_mut();
        // SAFETY: live, and a list of one, whose range outlives the call.
        unsafe { (ops.post_send)(self.qp(), &raw mut wr, &raw mut bad) }
    }

    pub(crate) fn disconnect(&self) {
        // SAFETY: live.
        done(unsafe { self.provider.rdma_disconnect(self.id) });
    }

    pub(crate) fn destroy_qp(&self) {
        // SAFETY: live, and not used any more.
        unsafe { self.provider.rdma_destroy_qp(self.id) };
    }

    pub(crate) fn destroy_srq(&self) -> c_int {
        // SAFETY: live, and if this succeeds not used any more.
        let rc = unsafe { self.provider.ibv_destroy_srq(self.srq) };
        self.srq_is_gone.set(rc == 0);
        rc
    }
}

impl Drop for RawEnd {
    /// As a program ends: the queue pair first, the channel last. A failed test says more than what its end leaves behind.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if !self.qp().is_null() {
            self.destroy_qp();
        }
        if !self.srq_is_gone.get() {
            assert_eq!(self.destroy_srq(), 0);
        }
        // SAFETY: live, and no queue pair is on it any more.
        assert_eq!(unsafe { self.provider.ibv_destroy_cq(self.cq) }, 0);
        // SAFETY: live, and nothing is in it any more.
        assert_eq!(unsafe { self.provider.ibv_dealloc_pd(self.pd) }, 0);
        // SAFETY: live, and all its events are acknowledged.
        done(unsafe { self.provider.rdma_destroy_id(self.id) });
        if !self.listener.is_null() {
            // SAFETY: as above.
            done(unsafe { self.provider.rdma_destroy_id(self.listener) });
        }
        // SAFETY: live, and no identifier is on it any more.
        unsafe { self.provider.rdma_destroy_event_channel(self.channel) };
    }
}

fn inline(bytes: &[u8]) -> ibv_sge {
    let length = u32::try_from(bytes.len()).unwrap();
    ibv_sge { addr: bytes.as_ptr().expose_provenance() as u64, length, lkey: 0 }
}

#[track_caller]
fn next_event(
    provider: &ProviderRef,
    channel: *mut rdma_event_channel,
) -> (rdma_cm_event_type, rdma_conn_param, *mut rdma_cm_id) {
    let mut event = null_mut();
    // SAFETY: live, and a place for the result.
    done(unsafe { provider.rdma_get_cm_event(channel, &raw mut event) });
    // SAFETY: live until it is acknowledged.
    let raw = unsafe { event.read() };
    // SAFETY: plain bytes, whichever member was set.
    let param = unsafe { raw.param.conn };
    // SAFETY: just taken.
    done(unsafe { provider.rdma_ack_cm_event(event) });
    (raw.event, param, raw.id)
}

fn new_id(provider: &ProviderRef) -> (*mut rdma_event_channel, *mut rdma_cm_id) {
    // SAFETY: no condition.
    let channel = unsafe { provider.rdma_create_event_channel() };
    let mut id = null_mut();
    // SAFETY: live, and a place for the result.
    done(unsafe { provider.rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP) });
    (channel, id)
}

fn sockaddr() -> sockaddr_in {
    let std::net::SocketAddr::V4(addr) = super::local() else { panic!("an IPv4 address") };
    let s_addr = u32::from_ne_bytes(addr.ip().octets());
    let sin_family = sa_family_t::try_from(libc::AF_INET).unwrap();
    sockaddr_in { sin_family, sin_addr: in_addr { s_addr }, ..sockaddr_in::default() }
}

pub(crate) fn conn_param() -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 5,
        rnr_retry_count: 6,
        ..rdma_conn_param::default()
    }
}

/// A client and a server that has its request, with queue pairs and not connected.
pub(crate) struct Asked {
    pub(crate) provider: ProviderRef,
    pub(crate) client: RawEnd,
    pub(crate) server: RawEnd,
    /// What the server was told with the request.
    pub(crate) request: rdma_conn_param,
}

/// With an option of the client's identifier.
pub(crate) fn ask_with(provider: &ProviderRef, name: u32, value: &[u8]) -> Asked {
    ask_prepared(provider, false, false, |id| assert_eq!(set_on(provider, id, RDMA_OPTION_ID, name, value), 0))
}

/// `rdma_set_option(3)` on a new identifier: the errno.
pub(crate) fn set_option(provider: &ProviderRef, level: u32, name: u32, value: &[u8]) -> c_int {
    let (channel, id) = new_id(provider);
    let errno = set_on(provider, id, level, name, value);
    // SAFETY: live, and not used any more.
    done(unsafe { provider.rdma_destroy_id(id) });
    // SAFETY: live, and not used any more.
    unsafe { provider.rdma_destroy_event_channel(channel) };
    errno
}

fn set_on(provider: &ProviderRef, id: *mut rdma_cm_id, level: u32, name: u32, value: &[u8]) -> c_int {
    let (level, name) = (level.cast_signed(), name.cast_signed());
    // SAFETY: live, and so many bytes, which the call only reads.
    let rc = unsafe { provider.rdma_set_option(id, level, name, value.as_ptr().cast_mut().cast(), value.len()) };
    if rc == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap() }
}

pub(crate) fn ask(provider: &ProviderRef, client_srq: bool, server_srq: bool) -> Asked {
    ask_prepared(provider, client_srq, server_srq, |_| {})
}

fn ask_prepared(provider: &ProviderRef, client_srq: bool, server_srq: bool, prepare: impl FnOnce(*mut rdma_cm_id)) -> Asked {
    let (listening, listener) = new_id(provider);
    let mut addr = sockaddr();
    // SAFETY: live, and a whole address.
    done(unsafe { provider.rdma_bind_addr(listener, (&raw mut addr).cast()) });
    // SAFETY: live.
    done(unsafe { provider.rdma_listen(listener, 0) });
    // SAFETY: live.
    let bound = unsafe { (*listener).route.addr };
    // SAFETY: bound to an address of this kind.
    addr.sin_port = unsafe { bound.__bindgen_anon_1.src_sin.sin_port };
    let (channel, id) = new_id(provider);
    prepare(id);
    // SAFETY: live, and a whole address.
    done(unsafe { provider.rdma_resolve_addr(id, null_mut(), (&raw mut addr).cast(), 10_000) });
    assert_eq!(next_event(provider, channel).0, RDMA_CM_EVENT_ADDR_RESOLVED);
    // SAFETY: live.
    done(unsafe { provider.rdma_resolve_route(id, 10_000) });
    assert_eq!(next_event(provider, channel).0, RDMA_CM_EVENT_ROUTE_RESOLVED);
    let client = RawEnd::of(provider, channel, id, null_mut(), client_srq);
    let mut param = conn_param();
    // SAFETY: live.
    done(unsafe { provider.rdma_connect(id, &raw mut param) });
    let (kind, request, id) = next_event(provider, listening);
    assert_eq!(kind, RDMA_CM_EVENT_CONNECT_REQUEST);
    let server = RawEnd::of(provider, listening, id, listener, server_srq);
    Asked { provider: provider.clone(), client, server, request }
}

impl Asked {
    /// Connects; returns what the client was told with the answer.
    pub(crate) fn accept(self) -> (RawEnd, RawEnd, rdma_conn_param) {
        let mut param = conn_param();
        // SAFETY: live.
        done(unsafe { self.provider.rdma_accept(self.server.id, &raw mut param) });
        let (kind, answer) = self.client.event();
        assert_eq!(kind, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(self.server.event().0, RDMA_CM_EVENT_ESTABLISHED);
        (self.client, self.server, answer)
    }
}
