//! C's calls with results: what is `-1` and `errno` there is `Err(errno)` here.
#![expect(unsafe_code, reason = "makes C's calls, and does what C's headers do inline")]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use rpma_soft::door::cm;
use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::info::{read, storage};

fn checked(rc: c_int) -> Result<(), c_int> {
    match rc {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap()),
        other => panic!("{other} is no result of the connection manager"),
    }
}

/// What `rdma_server` and `rdma_client` ask for: one request in either direction, 16 bytes of it inline.
pub(crate) fn attributes() -> ibv_qp_init_attr {
    let cap = ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    ibv_qp_init_attr { cap, qp_type: IBV_QPT_RC, sq_sig_all: 1, ..ibv_qp_init_attr::default() }
}

/// An identifier. It is destroyed as an endpoint.
pub(crate) struct Id {
    raw: *mut rdma_cm_id,
    provider: ProviderRef,
}

// SAFETY: calls about an identifier may come from any thread; the tests make them from one at a time.
unsafe impl Send for Id {}

/// An event, copied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) private_data: Vec<u8>,
}

impl Id {
    /// `rdma_create_id(3)` without a channel.
    pub(crate) fn create(provider: &ProviderRef, ps: rdma_port_space) -> Result<Self, c_int> {
        let mut raw = null_mut();
        // SAFETY: a place for the result.
        checked(unsafe { provider.rdma_create_id(null_mut(), &raw mut raw, null_mut(), ps) })?;
        Ok(Self { raw, provider: provider.clone() })
    }

    /// `rdma_create_ep(3)`.
    pub(crate) fn endpoint(
        provider: &ProviderRef,
        info: &mut rdma_addrinfo,
        attr: Option<&mut ibv_qp_init_attr>,
    ) -> Result<Self, c_int> {
        let mut raw = null_mut();
        let attr = attr.map_or(null_mut(), |attr| &raw mut *attr);
        // SAFETY: whole structures, and a place for the result.
        checked(unsafe { cm::rdma_create_ep(&**provider, &raw mut raw, info, null_mut(), attr) })?;
        Ok(Self { raw, provider: provider.clone() })
    }

    /// The fields that the program sees.
    pub(crate) fn fields(&self) -> rdma_cm_id {
        // SAFETY: live, and no call about it is under way.
        unsafe { self.raw.read() }
    }

    /// The event that the last call left.
    pub(crate) fn event(&self) -> Option<Told> {
        let event = self.fields().event;
        if event.is_null() {
            return None;
        }
        // SAFETY: live until the next call.
        let event = unsafe { event.read() };
        assert_eq!(event.id, self.raw);
        // SAFETY: every event of these tests is of a connection.
        let conn = unsafe { event.param.conn };
        let private_data = if conn.private_data.is_null() {
            Vec::new()
        } else {
            // SAFETY: so many bytes are there until the next call.
            unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) }.to_vec()
        };
        Some(Told { kind: event.event, status: event.status, private_data })
    }

    /// The kind of the event that the last call left.
    pub(crate) fn kind(&self) -> Option<rdma_cm_event_type> {
        self.event().map(|told| told.kind)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        let fields = self.fields();
        // SAFETY: a whole address.
        unsafe { read((&raw const fields.route.addr.__bindgen_anon_1).cast()) }.unwrap()
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        let fields = self.fields();
        // SAFETY: a whole address.
        unsafe { read((&raw const fields.route.addr.__bindgen_anon_2).cast()) }.unwrap()
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), c_int> {
        let mut addr = storage(addr);
        // SAFETY: live, and a whole address.
        checked(unsafe { self.provider.rdma_bind_addr(self.raw, (&raw mut addr).cast()) })
    }

    pub(crate) fn bind_to_family(&self, family: u16) -> Result<(), c_int> {
        let mut addr = sockaddr_storage { ss_family: family, ..sockaddr_storage::default() };
        // SAFETY: live, and as much as any address has.
        checked(unsafe { self.provider.rdma_bind_addr(self.raw, (&raw mut addr).cast()) })
    }

    pub(crate) fn listen(&self) -> Result<(), c_int> {
        // SAFETY: live.
        checked(unsafe { self.provider.rdma_listen(self.raw, 0) })
    }

    pub(crate) fn resolve_addr(&self, source: Option<SocketAddr>, to: SocketAddr) -> Result<(), c_int> {
        let mut source = source.map(storage);
        let source = source.as_mut().map_or(null_mut(), |source| &raw mut *source);
        let mut to = storage(to);
        // SAFETY: live, and whole addresses.
        checked(unsafe { self.provider.rdma_resolve_addr(self.raw, source.cast(), (&raw mut to).cast(), 2000) })
    }

    pub(crate) fn resolve_route(&self) -> Result<(), c_int> {
        // SAFETY: live.
        checked(unsafe { self.provider.rdma_resolve_route(self.raw, 2000) })
    }

    /// Without parameters, as C programs do that want the usual.
    pub(crate) fn connect(&self) -> Result<(), c_int> {
        // SAFETY: live; null stands for the usual.
        checked(unsafe { self.provider.rdma_connect(self.raw, null_mut()) })
    }

    pub(crate) fn connect_with(&self, private_data: &[u8]) -> Result<(), c_int> {
        let mut param = param(private_data);
        // SAFETY: live, and the private data are there.
        checked(unsafe { self.provider.rdma_connect(self.raw, &raw mut param) })
    }

    pub(crate) fn accept(&self) -> Result<(), c_int> {
        // SAFETY: live; null stands for the usual.
        checked(unsafe { self.provider.rdma_accept(self.raw, null_mut()) })
    }

    pub(crate) fn accept_with(&self, private_data: &[u8]) -> Result<(), c_int> {
        let mut param = param(private_data);
        // SAFETY: live, and the private data are there.
        checked(unsafe { self.provider.rdma_accept(self.raw, &raw mut param) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), c_int> {
        let len = private_data.len().try_into().unwrap();
        // SAFETY: live, and the private data are there.
        checked(unsafe { self.provider.rdma_reject(self.raw, private_data.as_ptr().cast(), len) })
    }

    pub(crate) fn disconnect(&self) -> Result<(), c_int> {
        // SAFETY: live.
        checked(unsafe { self.provider.rdma_disconnect(self.raw) })
    }

    pub(crate) fn establish(&self) -> Result<(), c_int> {
        // SAFETY: live.
        checked(unsafe { cm::rdma_establish(self.raw) })
    }

    pub(crate) fn notify(&self, event: ibv_event_type) -> Result<(), c_int> {
        // SAFETY: live.
        checked(unsafe { cm::rdma_notify(self.raw, event) })
    }

    pub(crate) fn get_request(&self) -> Result<Self, c_int> {
        let mut raw = null_mut();
        // SAFETY: live, and a place for the result.
        checked(unsafe { cm::rdma_get_request(self.raw, &raw mut raw) })?;
        Ok(Self { raw, provider: self.provider.clone() })
    }

    /// The descriptor of its event channel.
    fn channel_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the identifier is live, and has its channel for as long.
        let fd = unsafe { (*self.fields().channel).fd };
        // SAFETY: the channel's, which stays open while the identifier is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Makes its event channel non-blocking.
    pub(crate) fn do_not_block(&self) {
        let flags = fcntl_getfl(self.channel_fd()).unwrap();
        fcntl_setfl(self.channel_fd(), flags | OFlags::NONBLOCK).unwrap();
    }

    /// Waits until its event channel has something.
    pub(crate) fn wait(&self) {
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert!(poll(&mut [PollFd::new(&self.channel_fd(), PollFlags::IN)], Some(&limit)).unwrap() > 0, "no event");
    }

    /// The identifier of a request that `rdma_get_request(3)` left in the listener's event.
    pub(crate) fn take_request(&self) -> Self {
        let event = self.fields().event;
        // SAFETY: live until the listener's next call.
        let raw = unsafe { (*event).id };
        Self { raw, provider: self.provider.clone() }
    }

    pub(crate) fn migrate(&self, channel: Option<&Channel>) -> Result<(), c_int> {
        let channel = channel.map_or(null_mut(), |channel| channel.raw);
        // SAFETY: both live.
        checked(unsafe { self.provider.rdma_migrate_id(self.raw, channel) })
    }

    pub(crate) fn create_qp(&self, attr: &mut ibv_qp_init_attr) -> Result<(), c_int> {
        // SAFETY: live, and what the attributes name is.
        checked(unsafe { cm::rdma_create_qp(self.raw, null_mut(), attr) })
    }

    /// `rdma_create_srq(3)`.
    pub(crate) fn create_srq(&self, max_wr: u32) -> Result<(), c_int> {
        let attr = ibv_srq_attr { max_wr, max_sge: 1, ..ibv_srq_attr::default() };
        let mut attr = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
        // SAFETY: live, and of this provider.
        checked(unsafe { cm::rdma_create_srq(&*self.provider, self.raw, null_mut(), &raw mut attr) })
    }

    /// `rdma_destroy_srq(3)`.
    pub(crate) fn destroy_srq(&self) {
        // SAFETY: live, and of this provider; the tests destroy the queue pair before.
        unsafe { cm::rdma_destroy_srq(&*self.provider, self.raw) };
    }

    pub(crate) fn destroy_qp(&self) {
        // SAFETY: live.
        unsafe { self.provider.rdma_destroy_qp(self.raw) };
    }

    // ---- what rdma_verbs.h does inline ----

    /// `rdma_reg_msgs(3)`.
    pub(crate) fn reg_msgs(&self, memory: &mut [u8]) -> Mr {
        let (pd, addr) = (self.fields().pd, memory.as_mut_ptr());
        let access = IBV_ACCESS_LOCAL_WRITE;
        let iova = addr.expose_provenance() as u64;
        // SAFETY: live, and the memory outlives the region: the tests hold it longer.
        let raw = unsafe { self.provider.ibv_reg_mr_iova2(pd, addr.cast(), memory.len(), iova, access) };
        assert!(!raw.is_null());
        Mr { raw, provider: self.provider.clone() }
    }

    /// `rdma_post_recv(3)`, of the whole region: to the shared receive queue, if there is one.
    pub(crate) fn post_recv(&self, mr: &Mr, wr_id: u64) -> Result<(), c_int> {
        let (qp, srq) = (self.fields().qp, self.fields().srq);
        let mut sge = mr.sge();
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut sge, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = null_mut();
        let ops = self.ops();
        let rc = if srq.is_null() {
            let post = ops.post_recv.unwrap();
            // SAFETY: live; one whole request.
            unsafe { post(qp, &raw mut wr, &raw mut bad) }
        } else {
            let post = ops.post_srq_recv.unwrap();
            // SAFETY: as above.
            unsafe { post(srq, &raw mut wr, &raw mut bad) }
        };
        if rc == 0 { Ok(()) } else { Err(rc) }
    }

    /// `rdma_post_send(3)`, inline.
    pub(crate) fn post_send(&self, data: &[u8], wr_id: u64) -> Result<(), c_int> {
        let qp = self.fields().qp;
        let addr = data.as_ptr().expose_provenance() as u64;
        let mut sge = ibv_sge { addr, length: data.len().try_into().unwrap(), lkey: 0 };
        let mut wr = ibv_send_wr {
            wr_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_INLINE,
            ..ibv_send_wr::default()
        };
        let mut bad = null_mut();
        let post = self.ops().post_send.unwrap();
        // SAFETY: live; one whole request, with its data.
        match unsafe { post(qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// `rdma_get_send_comp(3)`.
    pub(crate) fn send_completion(&self) -> ibv_wc {
        let fields = self.fields();
        self.completion(fields.send_cq, fields.send_cq_channel)
    }

    /// `rdma_get_recv_comp(3)`.
    pub(crate) fn recv_completion(&self) -> ibv_wc {
        let fields = self.fields();
        self.completion(fields.recv_cq, fields.recv_cq_channel)
    }

    fn completion(&self, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) -> ibv_wc {
        let ops = self.ops();
        let (poll, notify) = (ops.poll_cq.unwrap(), ops.req_notify_cq.unwrap());
        let polled = || {
            let mut wc = ibv_wc::default();
            // SAFETY: live, and a place for one.
            let count = unsafe { poll(cq, 1, &raw mut wc) };
            assert!(count >= 0);
            (count == 1).then_some(wc)
        };
        loop {
            if let Some(wc) = polled() {
                return wc;
            }
            // SAFETY: live.
            assert_eq!(unsafe { notify(cq, 0) }, 0);
            if let Some(wc) = polled() {
                return wc;
            }
            let (mut of, mut context): (_, *mut c_void) = (null_mut(), null_mut());
            // SAFETY: live, and places for the results.
            checked(unsafe { self.provider.ibv_get_cq_event(channel, &raw mut of, &raw mut context) }).unwrap();
            assert_eq!((of, context), (cq, self.raw.cast()));
            // SAFETY: live.
            unsafe { self.provider.ibv_ack_cq_events(cq, 1) };
        }
    }

    fn ops(&self) -> ibv_context_ops {
        // SAFETY: the context of an identifier lives as long as the provider.
        unsafe { (*self.fields().verbs).ops }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: live, and its owner.
        unsafe { cm::rdma_destroy_ep(&*self.provider, self.raw) };
    }
}

/// A memory region.
pub(crate) struct Mr {
    raw: *mut ibv_mr,
    provider: ProviderRef,
}

impl Mr {
    fn sge(&self) -> ibv_sge {
        // SAFETY: live.
        let mr = unsafe { self.raw.read() };
        ibv_sge { addr: mr.addr.expose_provenance() as u64, length: mr.length.try_into().unwrap(), lkey: mr.lkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: live, and its owner.
        assert_eq!(unsafe { self.provider.ibv_dereg_mr(self.raw) }, 0);
    }
}

/// A completion queue without a channel.
pub(crate) struct Cq {
    pub(crate) raw: *mut ibv_cq,
    provider: ProviderRef,
}

impl Cq {
    pub(crate) fn create(id: &Id) -> Self {
        // SAFETY: the context is live.
        let raw = unsafe { id.provider.ibv_create_cq(id.fields().verbs, 8, null_mut(), null_mut(), 0) };
        assert!(!raw.is_null());
        Self { raw, provider: id.provider.clone() }
    }

    pub(crate) fn lengths_of(cq: *mut ibv_cq) -> c_int {
        // SAFETY: the tests ask for the queues of live identifiers.
        unsafe { (*cq).cqe }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: live, and its owner.
        assert_eq!(unsafe { self.provider.ibv_destroy_cq(self.raw) }, 0, "a queue pair is on it");
    }
}

/// An event channel.
pub(crate) struct Channel {
    pub(crate) raw: *mut rdma_event_channel,
    provider: ProviderRef,
}

impl Channel {
    pub(crate) fn create(provider: &ProviderRef) -> Self {
        // SAFETY: the call has no conditions.
        let raw = unsafe { provider.rdma_create_event_channel() };
        assert!(!raw.is_null());
        Self { raw, provider: provider.clone() }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: live, and its owner; the tests move identifiers away before.
        unsafe { self.provider.rdma_destroy_event_channel(self.raw) };
    }
}

fn param(private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len().try_into().unwrap(),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..rdma_conn_param::default()
    }
}

/// Interrupts whatever `thread` waits for, again and again until it has ended.
pub(crate) fn interrupt<T>(thread: &std::thread::JoinHandle<T>) {
    use std::os::unix::thread::JoinHandleExt;

    extern "C" fn nothing(_: c_int) {}
    // SAFETY: plain bits: no flags, so that calls are not restarted, and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = (nothing as extern "C" fn(c_int)) as usize;
    // SAFETY: a whole action; the old one is not asked for. Nobody else in this process uses the signal.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()) }, 0);
    while !thread.is_finished() {
        // SAFETY: the thread is not joined yet, so its number is still its own.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        std::thread::yield_now();
    }
}
