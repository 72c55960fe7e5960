//! A provider for tests: devices that do nothing, calls that answer what the test says, and a count of what is alive.
#![expect(unsafe_code, reason = "stands in for rdma-core: makes and frees the C structures that it hands out")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one proof for all: every pointer is one that this file boxed, and lives")]
#![expect(clippy::unwrap_used, reason = "for tests only")]

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpma_sys::bindings::*;
use rpma_sys::{CqOps, Provider, ProviderRef, QpOps, SrqOps, errno};

/// The greatest message of port 1, the only port.
pub(crate) const MAX_MSG_SZ: u32 = 1 << 30;

/// What a call answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// The device of this index.
    Device(usize),
    /// Success, with no device.
    Unbound,
    /// This errno.
    Errno(i32),
}

/// When an address is resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    /// The call itself answers; an errno only.
    Now(Answer),
    /// An event answers.
    After(Duration, Answer),
    /// Nothing answers.
    Never,
}

/// Addresses and lengths.
type Ranges = Vec<(u64, u32)>;

/// What the test says, and what it can see.
#[derive(Debug)]
pub(crate) struct State {
    /// The errno of opening a channel and of listing devices.
    pub(crate) start: Option<i32>,
    pub(crate) query_device: Answer,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) on_demand_paging: bool,
    pub(crate) alloc_pd: Option<i32>,
    pub(crate) bind: Answer,
    /// The scope of the last IPv6 address bound to.
    pub(crate) bound_scope: Option<u32>,
    pub(crate) resolve: Reply,
    /// The errnos of the next registrations; when there are no more, they succeed.
    pub(crate) reg_errnos: VecDeque<i32>,
    /// The rights that each registration asked for.
    pub(crate) reg_access: Vec<u32>,
    pub(crate) dereg: Option<i32>,
    pub(crate) advise: Option<i32>,
    /// Each call's advice, flags, and ranges.
    pub(crate) advised: Vec<(u32, u32, Ranges)>,
    live: usize,
}

/// The test's end of the provider.
#[derive(Debug)]
pub(crate) struct Fake(Arc<FakeProvider>);

#[derive(Debug)]
struct FakeProvider {
    state: Mutex<State>,
    contexts: Vec<*mut ibv_context>,
}

// SAFETY: the pointers lead to boxes of this value that nobody changes.
unsafe impl Send for FakeProvider {}
// SAFETY: as for `Send`.
unsafe impl Sync for FakeProvider {}

#[repr(C)]
struct Channel {
    raw: rdma_event_channel,
    ours: UnixStream,
    theirs: UnixStream,
    pending: Mutex<VecDeque<(*mut rdma_cm_id, Answer)>>,
}

impl Fake {
    /// A provider with these devices: name, and whether it is iWARP.
    pub(crate) fn new(devices: &[(&str, bool)]) -> Self {
        let contexts = devices.iter().map(|(name, iwarp)| context(name, *iwarp)).collect();
        let state = State {
            start: None,
            query_device: Answer::Unbound,
            device_cap_flags_ex: 0,
            on_demand_paging: false,
            alloc_pd: None,
            bind: Answer::Unbound,
            bound_scope: None,
            resolve: Reply::Never,
            reg_errnos: VecDeque::new(),
            reg_access: Vec::new(),
            dereg: None,
            advise: None,
            advised: Vec::new(),
            live: 0,
        };
        Self(Arc::new(FakeProvider { state: Mutex::new(state), contexts }))
    }

    pub(crate) fn provider(&self) -> ProviderRef {
        Arc::clone(&self.0) as ProviderRef
    }

    pub(crate) fn edit<R>(&self, edit: impl FnOnce(&mut State) -> R) -> R {
        self.0.edit(edit)
    }

    /// How many objects are alive: lists, channels, identifiers, protection domains, regions.
    pub(crate) fn live(&self) -> usize {
        self.edit(|state| state.live)
    }
}

fn context(name: &str, iwarp: bool) -> *mut ibv_context {
    let mut device = Box::new(ibv_device::default());
    device.transport_type = if iwarp { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB };
    for (to, from) in device.name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Box::into_raw(Box::new(ibv_context { device: Box::into_raw(device), ..Default::default() }))
}

impl Drop for FakeProvider {
    fn drop(&mut self) {
        for context in &self.contexts {
            let context = unsafe { Box::from_raw(*context) };
            drop(unsafe { Box::from_raw(context.device) });
        }
    }
}

/// Fails as the connection manager does.
fn minus1(e: i32) -> c_int {
    errno::set(e);
    -1
}

/// Fails as calls do that return pointers.
fn null<T>(e: i32) -> *mut T {
    errno::set(e);
    null_mut()
}

impl FakeProvider {
    fn edit<R>(&self, edit: impl FnOnce(&mut State) -> R) -> R {
        edit(&mut self.state.lock().unwrap())
    }

    fn made<T>(&self, object: T) -> *mut T {
        self.edit(|state| state.live += 1);
        Box::into_raw(Box::new(object))
    }

    /// # Safety
    ///
    /// `object` came from `made`.
    unsafe fn freed<T>(&self, object: *mut T) {
        self.edit(|state| state.live -= 1);
        drop(unsafe { Box::from_raw(object) });
    }

    /// The device of an identifier that gets this answer; the errno if it is one.
    fn device(&self, answer: Answer) -> Result<*mut ibv_context, i32> {
        match answer {
            Answer::Device(i) => Ok(self.contexts[i]),
            Answer::Unbound => Ok(null_mut()),
            Answer::Errno(e) => Err(e),
        }
    }
}

// SAFETY: what is handed out is boxed here and freed by the call for it, and no registered memory is ever touched.
unsafe impl Provider for FakeProvider {
    fn name(&self) -> &'static str {
        "fake"
    }

    unsafe fn ibv_alloc_pd(&self, context: *mut ibv_context) -> *mut ibv_pd {
        match self.edit(|state| state.alloc_pd) {
            Some(e) => null(e),
            None => self.made(ibv_pd { context, handle: 1 }),
        }
    }
    unsafe fn ibv_dealloc_pd(&self, pd: *mut ibv_pd) -> c_int {
        unsafe { self.freed(pd) };
        0
    }
    unsafe fn ibv_reg_mr_iova2(&self, pd: *mut ibv_pd, addr: *mut c_void, length: usize, _: u64, access: c_uint) -> *mut ibv_mr {
        let refused = self.edit(|state| {
            state.reg_access.push(access);
            state.reg_errnos.pop_front()
        });
        match refused {
            Some(e) => null(e),
            None => {
                let context = unsafe { (*pd).context };
                self.made(ibv_mr { context, pd, addr, length, handle: 2, lkey: 0x11, rkey: 0x22 })
            }
        }
    }
    unsafe fn ibv_dereg_mr(&self, mr: *mut ibv_mr) -> c_int {
        match self.edit(|state| state.dereg) {
            Some(e) => e,
            None => {
                unsafe { self.freed(mr) };
                0
            }
        }
    }
    unsafe fn ibv_get_device_name(&self, device: *mut ibv_device) -> *const c_char {
        unsafe { (&raw const (*device).name).cast() }
    }
    unsafe fn rdma_get_devices(&self, num_devices: *mut c_int) -> *mut *mut ibv_context {
        if let Some(e) = self.edit(|state| state.start) {
            return null(e);
        }
        self.edit(|state| state.live += 1);
        unsafe { num_devices.write(self.contexts.len() as c_int) };
        let mut list = self.contexts.clone();
        list.push(null_mut());
        Box::into_raw(list.into_boxed_slice()).cast()
    }
    unsafe fn rdma_free_devices(&self, list: *mut *mut ibv_context) {
        self.edit(|state| state.live -= 1);
        let list = std::ptr::slice_from_raw_parts_mut(list, self.contexts.len() + 1);
        drop(unsafe { Box::from_raw(list) });
    }
    unsafe fn rdma_create_event_channel(&self) -> *mut rdma_event_channel {
        if let Some(e) = self.edit(|state| state.start) {
            return null(e);
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let raw = rdma_event_channel { fd: ours.as_raw_fd() };
        self.made(Channel { raw, ours, theirs, pending: Mutex::default() }).cast()
    }
    unsafe fn rdma_destroy_event_channel(&self, channel: *mut rdma_event_channel) {
        unsafe { self.freed(channel.cast::<Channel>()) };
    }
    unsafe fn rdma_create_id(
        &self,
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        _: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int {
        let made = self.made(rdma_cm_id { channel, ps, ..Default::default() });
        unsafe { id.write(made) };
        0
    }
    unsafe fn rdma_destroy_id(&self, id: *mut rdma_cm_id) -> c_int {
        unsafe { self.freed(id) };
        0
    }
    unsafe fn rdma_bind_addr(&self, id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
        // AF_INET6
        if unsafe { (*addr).sa_family } == 10 {
            let scope = unsafe { (*addr.cast::<sockaddr_in6>()).sin6_scope_id };
            self.edit(|state| state.bound_scope = Some(scope));
        }
        match self.device(self.edit(|state| state.bind)) {
            Ok(context) => {
                unsafe { (*id).verbs = context };
                0
            }
            Err(e) => minus1(e),
        }
    }
    unsafe fn rdma_resolve_addr(&self, id: *mut rdma_cm_id, _: *mut sockaddr, _: *mut sockaddr, _: c_int) -> c_int {
        match self.edit(|state| state.resolve) {
            Reply::Now(Answer::Errno(e)) => return minus1(e),
            Reply::Now(_) => panic!("an address is resolved by an event"),
            Reply::Never => {}
            Reply::After(delay, answer) => {
                let channel = unsafe { (*id).channel }.cast::<Channel>();
                let channel = unsafe { &*channel };
                channel.pending.lock().unwrap().push_back((id, answer));
                let mut theirs = channel.theirs.try_clone().unwrap();
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    theirs.write_all(&[1]).unwrap();
                });
            }
        }
        0
    }
    unsafe fn rdma_get_cm_event(&self, channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
        let channel = unsafe { &*channel.cast::<Channel>() };
        if let Err(e) = (&channel.ours).read_exact(&mut [0]) {
            return minus1(e.raw_os_error().unwrap());
        }
        let (id, answer) = channel.pending.lock().unwrap().pop_front().unwrap();
        let mut made = rdma_cm_event { id, ..Default::default() };
        match self.device(answer) {
            Ok(context) => {
                made.event = RDMA_CM_EVENT_ADDR_RESOLVED;
                unsafe { (*id).verbs = context };
            }
            Err(e) => {
                made.event = RDMA_CM_EVENT_ADDR_ERROR;
                made.status = -e;
            }
        }
        let made = self.made(made);
        unsafe { event.write(made) };
        0
    }
    unsafe fn rdma_ack_cm_event(&self, event: *mut rdma_cm_event) -> c_int {
        unsafe { self.freed(event) };
        0
    }
    unsafe fn ibv_query_device_ex(
        &self,
        _: *mut ibv_context,
        _: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        self.edit(|state| {
            if let Answer::Errno(e) = state.query_device {
                return e;
            }
            let attr = unsafe { &mut *attr };
            attr.device_cap_flags_ex = state.device_cap_flags_ex;
            if state.on_demand_paging {
                attr.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT);
                attr.odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_WRITE;
            }
            0
        })
    }
    unsafe fn ibv_query_port(&self, _: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
        if port_num != 1 {
            return 22;
        }
        unsafe { (*attr).max_msg_sz = MAX_MSG_SZ };
        0
    }
    unsafe fn ibv_advise_mr(&self, _: *mut ibv_pd, advice: c_uint, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int {
        let list = unsafe { std::slice::from_raw_parts(sg_list, num_sge as usize) };
        self.edit(|state| {
            state.advised.push((advice, flags, list.iter().map(|sge| (sge.addr, sge.length)).collect()));
            state.advise.unwrap_or(0)
        })
    }

    // What this crate does not call.

    unsafe fn ibv_create_comp_channel(&self, _: *mut ibv_context) -> *mut ibv_comp_channel {
        unimplemented!()
    }
    unsafe fn ibv_destroy_comp_channel(&self, _: *mut ibv_comp_channel) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_create_cq(
        &self,
        _: *mut ibv_context,
        _: c_int,
        _: *mut c_void,
        _: *mut ibv_comp_channel,
        _: c_int,
    ) -> *mut ibv_cq {
        unimplemented!()
    }
    unsafe fn ibv_destroy_cq(&self, _: *mut ibv_cq) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_get_cq_event(&self, _: *mut ibv_comp_channel, _: *mut *mut ibv_cq, _: *mut *mut c_void) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_ack_cq_events(&self, _: *mut ibv_cq, _: c_uint) {
        unimplemented!()
    }
    unsafe fn ibv_create_srq(&self, _: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        unimplemented!()
    }
    unsafe fn ibv_destroy_srq(&self, _: *mut ibv_srq) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_query_qp(&self, _: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int, _: *mut ibv_qp_init_attr) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_get_async_event(&self, _: *mut ibv_context, _: *mut ibv_async_event) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_ack_async_event(&self, _: *mut ibv_async_event) {
        unimplemented!()
    }
    unsafe fn rdma_set_option(&self, _: *mut rdma_cm_id, _: c_int, _: c_int, _: *mut c_void, _: usize) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_modify_qp(&self, _: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
        unimplemented!()
    }
    unsafe fn ibv_wc_status_str(&self, _: ibv_wc_status) -> *const c_char {
        unimplemented!()
    }
    unsafe fn rdma_migrate_id(&self, _: *mut rdma_cm_id, _: *mut rdma_event_channel) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_listen(&self, _: *mut rdma_cm_id, _: c_int) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_resolve_route(&self, _: *mut rdma_cm_id, _: c_int) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_create_qp_ex(&self, _: *mut rdma_cm_id, _: *mut ibv_qp_init_attr_ex) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_destroy_qp(&self, _: *mut rdma_cm_id) {
        unimplemented!()
    }
    unsafe fn rdma_connect(&self, _: *mut rdma_cm_id, _: *mut rdma_conn_param) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_accept(&self, _: *mut rdma_cm_id, _: *mut rdma_conn_param) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_reject(&self, _: *mut rdma_cm_id, _: *const c_void, _: u8) -> c_int {
        unimplemented!()
    }
    unsafe fn rdma_disconnect(&self, _: *mut rdma_cm_id) -> c_int {
        unimplemented!()
    }
    unsafe fn qp_ops(&self, _: *mut ibv_qp, _: u64) -> io::Result<QpOps> {
        unimplemented!()
    }
    unsafe fn cq_ops(&self, _: *mut ibv_cq) -> io::Result<CqOps> {
        unimplemented!()
    }
    unsafe fn srq_ops(&self, _: *mut ibv_srq) -> io::Result<SrqOps> {
        unimplemented!()
    }
}
