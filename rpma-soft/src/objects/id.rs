//! Identifiers and event channels of the connection manager, as the program sees them: what librdmacm does in this process.
//!
//! `synchronous` has what is different for identifiers without an event channel of the program's, `id_qp` their queue pairs.
#![expect(unsafe_code, reason = "makes, fills and frees structures of the connection manager")]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rpma_sys::bindings::*;
use rpma_sys::socket_address;

use super::connection::{Connection, invalid};
use super::device::{Device, limit};
use super::event_channel::EventChannel;
use super::qp;
use super::synchronous::{acknowledge, complete};
use crate::cm::Kind;
use crate::driver::{Socket, is_any, source_for};
use crate::wire::{Accept, ConnectRequest, PrivateData, Reject};

/// An event channel.
#[repr(C)]
struct SoftEventChannel {
    raw: rdma_event_channel,
    shared: Arc<EventChannel>,
}

/// An identifier.
#[repr(C)]
pub(super) struct SoftId {
    raw: rdma_cm_id,
    shared: Arc<Connection>,
    pub(super) own: Own,
}

/// What librdmacm keeps of an identifier beside the program's structure. Like that, it is changed by calls about the identifier only.
#[derive(Default)]
pub(super) struct Own {
    /// Its event channel is its own, and calls wait there for their events.
    pub(super) synchronous: bool,
    /// By what the identifiers of requests get their queue pairs.
    pub(super) qp_attr: Option<Box<ibv_qp_init_attr>>,
    /// What goes before the program's private data in the first request.
    pub(super) connect_data: Vec<u8>,
}

// ---- event channels ----

/// `rdma_create_event_channel(3)`.
pub(crate) fn create_event_channel() -> io::Result<*mut rdma_event_channel> {
    let shared = Arc::new(EventChannel::new()?);
    let raw = rdma_event_channel { fd: shared.fd() };
    Ok(Box::into_raw(Box::new(SoftEventChannel { raw, shared })).cast())
}

/// What our threads share of an event channel.
///
/// # Safety
///
/// `channel` is live.
pub(super) unsafe fn of_channel(channel: *mut rdma_event_channel) -> Arc<EventChannel> {
    let channel = channel.cast::<SoftEventChannel>();
    // SAFETY: made by `create_event_channel`, and live (contract above); nobody changes it.
    Arc::clone(unsafe { &(*channel).shared })
}

/// `rdma_destroy_event_channel(3)`.
///
/// # Safety
///
/// `channel` is live, and no identifier is on it.
pub(crate) unsafe fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: made by `create_event_channel`, and freed once: the contract says that it is live.
    drop(unsafe { Box::from_raw(channel.cast::<SoftEventChannel>()) });
}

// ---- identifiers ----

/// # Safety
///
/// `id` is live, and stays so for as long as the result is used.
pub(super) unsafe fn of_id<'a>(id: *mut rdma_cm_id) -> &'a Arc<Connection> {
    let id = id.cast::<SoftId>();
    // SAFETY: made by `new_id`, and live (contract above); nobody changes this field.
    unsafe { &(*id).shared }
}

/// What is ours of an identifier, for one look or change at a time.
pub(super) fn own_of(id: *mut rdma_cm_id) -> *mut Own {
    let id = id.cast::<SoftId>();
    id.wrapping_byte_add(std::mem::offset_of!(SoftId, own)).cast()
}

/// Makes an identifier.
pub(super) fn new_id(shared: Arc<Connection>, raw: rdma_cm_id, own: Own) -> *mut rdma_cm_id {
    let id = Box::into_raw(Box::new(SoftId { raw, shared, own }));
    // SAFETY: just made.
    let shared = unsafe { &(*id).shared };
    shared.handle.store(id.expose_provenance(), Ordering::Release);
    id.cast()
}

/// `rdma_create_id(3)`.
///
/// # Safety
///
/// `channel` is null or live.
pub(crate) unsafe fn create_id(
    device: &Arc<Device>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
) -> io::Result<*mut rdma_cm_id> {
    match ps {
        RDMA_PS_TCP => {}
        RDMA_PS_UDP | RDMA_PS_IPOIB | RDMA_PS_IB => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        _ => return Err(invalid()),
    }
    let synchronous = channel.is_null();
    let channel = if synchronous { create_event_channel()? } else { channel };
    // SAFETY: live (contract above), or just made.
    let on = unsafe { of_channel(channel) };
    match Connection::new(Arc::clone(device), on) {
        Ok(shared) => {
            let raw = rdma_cm_id { channel, context, ps, qp_type: IBV_QPT_RC, ..rdma_cm_id::default() };
            Ok(new_id(shared, raw, Own { synchronous, ..Own::default() }))
        }
        Err(e) => {
            if synchronous {
                // SAFETY: just made, and nobody else knows of it.
                unsafe { destroy_event_channel(channel) };
            }
            Err(e)
        }
    }
}

/// `rdma_destroy_id(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn destroy_id(id: *mut rdma_cm_id) {
    // SAFETY: live (contract above).
    unsafe { acknowledge(id) };
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.destroy();
    // SAFETY: made by `new_id`, and freed once: the contract says that it is live, and no event of it is left.
    let id = unsafe { Box::from_raw(id.cast::<SoftId>()) };
    if id.own.synchronous {
        // SAFETY: the identifier's own, so no other is on it.
        unsafe { destroy_event_channel(id.raw.channel) };
    }
}

/// Tells the program the addresses, and the device that they are on: every address of this machine is on ours.
///
/// # Safety
///
/// `id` is live.
pub(super) unsafe fn show_addresses(id: *mut rdma_cm_id) {
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    let state = shared.state();
    let (local, peer) = (state.local, state.peer);
    drop(state);
    if let Some(local) = local {
        let storage = socket_address::storage(local);
        // SAFETY: live (contract above); its fields are changed by calls about it only.
        let addr = unsafe { &mut (*id).route.addr };
        addr.__bindgen_anon_1.src_storage = storage;
        // SAFETY: as above.
        if !is_any(&local) && unsafe { (*id).verbs }.is_null() {
            // SAFETY: as above.
            unsafe { (*id).verbs = shared.device.context() };
            // SAFETY: as above.
            unsafe { (*id).pd = shared.default_pd() };
            // SAFETY: as above.
            unsafe { (*id).port_num = 1 };
        }
    }
    // The peer's address has the family of ours from the beginning.
    if let Some(peer) = peer.or(local.map(unspecified)) {
        let storage = socket_address::storage(peer);
        // SAFETY: live (contract above); its fields are changed by calls about it only.
        let addr = unsafe { &mut (*id).route.addr };
        addr.__bindgen_anon_2.dst_storage = storage;
    }
}

/// `rdma_bind_addr(3)`.
///
/// # Safety
///
/// `id` is live, and `addr` a whole address.
pub(crate) unsafe fn bind_addr(id: *mut rdma_cm_id, addr: *const sockaddr) -> io::Result<()> {
    // SAFETY: a whole address (contract above).
    let addr = unsafe { socket_address::read(addr) }.ok_or_else(invalid)?;
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.bind(addr)?;
    // SAFETY: as above.
    unsafe { show_addresses(id) };
    Ok(())
}

impl Connection {
    fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        if state.local.is_some() {
            return Err(invalid());
        }
        let socket = Socket::bound(addr, state.options.v6only)?;
        state.options.tos.into_iter().for_each(|tos| socket.set_tos(tos));
        state.local = Some(with_scope_of(socket.local()?, addr));
        state.bound = Some(socket);
        Ok(())
    }

    fn resolve(&self, source: Option<SocketAddr>, to: SocketAddr) -> io::Result<()> {
        // A machine's wildcard address is the machine itself.
        let to = if is_any(&to) { loopback(to) } else { to };
        let state = self.state();
        let local = state.local;
        // An address to come from counts only where none is bound.
        let other_family = local.or(source).is_some_and(|from| from.is_ipv4() != to.is_ipv4());
        if state.peer.is_some() || state.listener.is_some() || other_family {
            return Err(invalid());
        }
        drop(state);
        if local.is_none() {
            self.bind(match source {
                Some(source) => source,
                None => source_for(to)?,
            })?;
        }
        let mut state = self.state();
        // Bound to a port of every address: now one of them is chosen.
        if let Some(local) = state.local.filter(is_any) {
            let mut chosen = source_for(to)?;
            chosen.set_port(local.port());
            state.local = Some(chosen);
        }
        if state.peer.is_some() || state.listener.is_some() {
            return Err(invalid());
        }
        state.peer = Some(to);
        Ok(())
    }

    fn route(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.peer.is_none() || state.routed {
            return Err(invalid());
        }
        state.routed = true;
        drop(state);
        self.announce(Kind::RouteResolved);
        Ok(())
    }
}

fn unspecified(of: SocketAddr) -> SocketAddr {
    match of {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn loopback(of: SocketAddr) -> SocketAddr {
    let ip = match of {
        SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, of.port())
}

fn with_scope_of(addr: SocketAddr, asked: SocketAddr) -> SocketAddr {
    match (addr, asked) {
        (SocketAddr::V6(mut addr), SocketAddr::V6(asked)) => {
            addr.set_scope_id(asked.scope_id());
            addr.into()
        }
        (addr, _) => addr,
    }
}

/// `rdma_set_option(3)`.
///
/// # Safety
///
/// `id` is live, and `value` leads to `len` bytes.
pub(crate) unsafe fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> io::Result<()> {
    // None of them is longer; what is too long is refused for its length.
    let len = u8::try_from(len).unwrap_or(u8::MAX);
    // SAFETY: the contract of this function.
    let value = unsafe { bytes(value, len) };
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.set_option(level, name, value)
}

/// `rdma_listen(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn listen(id: *mut rdma_cm_id, backlog: c_int) -> io::Result<()> {
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    let unbound = shared.state().local.is_none();
    if unbound {
        shared.bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
        // SAFETY: as above.
        unsafe { show_addresses(id) };
    }
    shared.listen(backlog)
}

/// `rdma_resolve_addr(3)`. This machine's routes answer at once; whether the other one is there turns out when it is connected to.
///
/// # Safety
///
/// `id` is live, `source` null or a whole address, `to` a whole address.
pub(crate) unsafe fn resolve_addr(id: *mut rdma_cm_id, source: *const sockaddr, to: *const sockaddr) -> io::Result<()> {
    let source = if source.is_null() {
        None
    } else {
        // SAFETY: a whole address (contract above).
        Some(unsafe { socket_address::read(source) }.ok_or_else(invalid)?)
    };
    // SAFETY: a whole address (contract above).
    let to = unsafe { socket_address::read(to) }.ok_or_else(invalid)?;
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    shared.resolve(source, to)?;
    // SAFETY: as above.
    unsafe { show_addresses(id) };
    // Whoever takes the event, perhaps in another thread, finds the device and the addresses in the identifier.
    shared.announce(Kind::AddrResolved);
    // SAFETY: as above.
    unsafe { complete(id) }
}

/// `rdma_resolve_route(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn resolve_route(id: *mut rdma_cm_id) -> io::Result<()> {
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.route()?;
    // SAFETY: as above.
    unsafe { complete(id) }
}

// ---- connections ----

/// A program's parameters, with their private data.
struct Param<'a> {
    raw: rdma_conn_param,
    private_data: &'a [u8],
}

/// # Safety
///
/// `param` is null, or the program's, with its private data.
unsafe fn read_param<'a>(param: *const rdma_conn_param) -> Param<'a> {
    if param.is_null() {
        // What librdmacm takes then: all that there is.
        let most = u8::MAX;
        let raw = rdma_conn_param {
            responder_resources: most,
            initiator_depth: most,
            retry_count: 7,
            rnr_retry_count: 7,
            ..rdma_conn_param::default()
        };
        return Param { raw, private_data: &[] };
    }
    // SAFETY: the contract of this function.
    let raw = unsafe { param.read() };
    // SAFETY: the contract of this function.
    let private_data = unsafe { bytes(raw.private_data, raw.private_data_len) };
    Param { raw, private_data }
}

/// # Safety
///
/// `data` is null, or leads to `len` bytes.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the contract of this function.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }
}

/// A number of reads and atomics at once: `RDMA_MAX_RESP_RES` is all that there are.
fn resources(asked: u8, most: u8) -> io::Result<u8> {
    match asked {
        u8::MAX => Ok(most),
        asked if asked <= limit::RD_ATOMIC => Ok(asked),
        _ => Err(invalid()),
    }
}

/// `rdma_connect(3)`.
///
/// # Safety
///
/// `id` is live; `param` is null, or the program's, with its private data.
pub(crate) unsafe fn connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> io::Result<()> {
    // SAFETY: the contract of this function.
    let Param { raw, private_data } = unsafe { read_param(param) };
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    let state = shared.state();
    let (Some(source), Some(destination), true) = (state.local, state.peer, state.routed) else { return Err(invalid()) };
    drop(state);
    // SAFETY: live (contract above).
    let (qp_num, srq) = unsafe { number_and_srq(id, param, &raw) }?;
    let own = own_of(id);
    // SAFETY: live (contract above); what is ours of it is changed by calls about it only.
    let data = [unsafe { (*own).connect_data.clone() }.as_slice(), private_data].concat();
    shared.connect(ConnectRequest {
        qp_num,
        responder_resources: resources(raw.responder_resources, limit::RD_ATOMIC)?,
        initiator_depth: resources(raw.initiator_depth, limit::RD_ATOMIC)?,
        flow_control: raw.flow_control != 0,
        // Fields of 3 bits.
        retry_count: raw.retry_count.min(7),
        rnr_retry_count: raw.rnr_retry_count.min(7),
        srq,
        source,
        destination,
        private_data: PrivateData::new(&data).map_err(|_| invalid())?,
    })?;
    // SAFETY: as above.
    unsafe { (*own).connect_data = Vec::new() };
    // SAFETY: live (contract above).
    unsafe { complete(id) }
}

/// The number of the queue pair that is connected, that of the identifier or else the program's, and whether it shares its receives.
///
/// # Safety
///
/// `id` is live.
unsafe fn number_and_srq(id: *mut rdma_cm_id, param: *const rdma_conn_param, raw: &rdma_conn_param) -> io::Result<(u32, bool)> {
    // SAFETY: live (contract above).
    let qp = unsafe { (*id).qp };
    if qp.is_null() {
        return if param.is_null() { Err(invalid()) } else { Ok((raw.qp_num, raw.srq != 0)) };
    }
    // SAFETY: a queue pair in an identifier is live; its number never changes.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: as above.
    Ok((number, !unsafe { (*qp).srq }.is_null()))
}

/// `rdma_accept(3)`. What cannot be accepted is rejected, as in the kernel.
///
/// # Safety
///
/// `id` is live; `param` is null, or the program's, with its private data.
pub(crate) unsafe fn accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> io::Result<()> {
    // SAFETY: the contract of this function.
    let read = unsafe { read_param(param) };
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    // SAFETY: live (contract above).
    let (qp_num, srq) = unsafe { number_and_srq(id, param, &read.raw) }?;
    let accepted = answer(shared, &read, qp_num, srq).and_then(|accept| shared.accept(accept));
    if accepted.is_err() {
        // If there was nothing to reject, that is why it failed.
        let _ = shared.reject(PrivateData::default());
    } else {
        // SAFETY: live (contract above).
        unsafe { show_state(id, IBV_QPS_RTS) };
    }
    accepted?;
    // SAFETY: live (contract above).
    unsafe { complete(id) }
}

fn answer(shared: &Connection, param: &Param<'_>, qp_num: u32, srq: bool) -> io::Result<Accept> {
    let raw = &param.raw;
    let request = shared.state().cm.request().copied().ok_or_else(invalid)?;
    // "All" means as much as the other end can use.
    let most = |theirs: u8| theirs.min(limit::RD_ATOMIC);
    Ok(Accept {
        qp_num,
        responder_resources: resources(raw.responder_resources, most(request.initiator_depth))?,
        initiator_depth: resources(raw.initiator_depth, most(request.responder_resources))?.min(request.responder_resources),
        flow_control: raw.flow_control != 0,
        rnr_retry_count: raw.rnr_retry_count.min(7),
        srq,
        private_data: PrivateData::new(param.private_data).map_err(|_| invalid())?,
    })
}

/// `rdma_reject(3)`.
///
/// # Safety
///
/// `id` is live; `data` is null, or leads to `len` bytes.
pub(crate) unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> io::Result<()> {
    // SAFETY: the contract of this function.
    let data = unsafe { bytes(data, len) };
    let data: PrivateData<{ Reject::PRIVATE_DATA_BYTES }> = PrivateData::new(data).map_err(|_| invalid())?;
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.reject(data)
}

/// `rdma_disconnect(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn disconnect(id: *mut rdma_cm_id) -> io::Result<()> {
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.disconnect()?;
    // SAFETY: live (contract above), and so is a queue pair in it.
    unsafe { show_state(id, IBV_QPS_ERR) };
    // SAFETY: live (contract above).
    unsafe { complete(id) }
}

/// Shows the program a state of the identifier's queue pair, if it has one.
///
/// # Safety
///
/// `id` is null or live.
pub(super) unsafe fn show_state(id: *mut rdma_cm_id, state: ibv_qp_state) {
    if !id.is_null() {
        // SAFETY: live (contract above); its fields are changed by calls about it only.
        let qp = unsafe { (*id).qp };
        // SAFETY: a queue pair in an identifier is live.
        unsafe { qp::set_state(qp, state) };
    }
}
