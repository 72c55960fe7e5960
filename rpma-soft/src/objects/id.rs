//! Identifiers and event channels of the connection manager, as the program sees them: what librdmacm does in this process.
#![expect(unsafe_code, reason = "makes, fills and frees structures of the connection manager")]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rpma_sys::bindings::*;

use super::address;
use super::connection::{Connection, invalid};
use super::device::{Device, limit};
use super::event_channel::EventChannel;
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
struct SoftId {
    raw: rdma_cm_id,
    shared: Arc<Connection>,
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

/// Makes an identifier.
pub(super) fn new_id(shared: Arc<Connection>, raw: rdma_cm_id) -> *mut rdma_cm_id {
    let id = Box::into_raw(Box::new(SoftId { raw, shared }));
    // SAFETY: just made.
    let shared = unsafe { &(*id).shared };
    shared.handle.store(id.expose_provenance(), Ordering::Release);
    id.cast()
}

/// `rdma_create_id(3)`.
///
/// # Safety
///
/// `channel` is live.
pub(crate) unsafe fn create_id(
    device: &Arc<Device>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
) -> io::Result<*mut rdma_cm_id> {
    if ps != RDMA_PS_TCP || channel.is_null() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // SAFETY: live (contract above).
    let on = unsafe { of_channel(channel) };
    let shared = Connection::new(Arc::clone(device), on)?;
    Ok(new_id(shared, rdma_cm_id { channel, context, ps, qp_type: IBV_QPT_RC, ..rdma_cm_id::default() }))
}

/// `rdma_destroy_id(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn destroy_id(id: *mut rdma_cm_id) {
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.destroy();
    // SAFETY: made by `new_id`, and freed once: the contract says that it is live, and no event of it is left.
    drop(unsafe { Box::from_raw(id.cast::<SoftId>()) });
}

/// `rdma_migrate_id(3)`.
///
/// # Safety
///
/// `id` and `channel` are live.
pub(crate) unsafe fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> io::Result<()> {
    if channel.is_null() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // SAFETY: live (contract above).
    let to = unsafe { of_channel(channel) };
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.migrate(to);
    // SAFETY: live (contract above); its fields are changed by calls about it only.
    unsafe { (*id).channel = channel };
    Ok(())
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
        let storage = address::storage(local);
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
    if let Some(peer) = peer {
        let storage = address::storage(peer);
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
    let addr = unsafe { address::read(addr) }.ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
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
        let socket = Socket::bound(addr)?;
        state.local = Some(with_scope_of(socket.local()?, addr));
        state.bound = Some(socket);
        Ok(())
    }

    fn resolve(&self, source: Option<SocketAddr>, to: SocketAddr) -> io::Result<()> {
        // A machine's wildcard address is the machine itself.
        let to = if is_any(&to) { loopback(to) } else { to };
        let local = self.state().local;
        match local {
            None => self.bind(match source {
                Some(source) => source,
                None => source_for(to)?,
            })?,
            // Bound to a port of every address: now one of them is chosen.
            Some(local) if is_any(&local) => {
                let mut chosen = source_for(to)?;
                chosen.set_port(local.port());
                self.state().local = Some(chosen);
            }
            Some(_) => {}
        }
        let mut state = self.state();
        if state.peer.is_some() || state.listener.is_some() {
            return Err(invalid());
        }
        state.peer = Some(to);
        drop(state);
        self.announce(Kind::AddrResolved);
        Ok(())
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
    let family = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
    let source = if source.is_null() {
        None
    } else {
        // SAFETY: a whole address (contract above).
        Some(unsafe { address::read(source) }.ok_or_else(family)?)
    };
    // SAFETY: a whole address (contract above).
    let to = unsafe { address::read(to) }.ok_or_else(family)?;
    // SAFETY: live (contract above).
    unsafe { of_id(id) }.resolve(source, to)?;
    // SAFETY: as above.
    unsafe { show_addresses(id) };
    Ok(())
}

/// `rdma_resolve_route(3)`.
///
/// # Safety
///
/// `id` is live.
pub(crate) unsafe fn resolve_route(id: *mut rdma_cm_id) -> io::Result<()> {
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    if shared.state().peer.is_none() {
        return Err(invalid());
    }
    shared.announce(Kind::RouteResolved);
    Ok(())
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

/// The number of the identifier's queue pair and whether it has a shared receive queue; as the program says where it makes its own.
///
/// # Safety
///
/// `qp` is null or live.
unsafe fn number_and_srq(qp: *const ibv_qp, param: &rdma_conn_param) -> (u32, bool) {
    if qp.is_null() {
        return (param.qp_num, param.srq != 0);
    }
    // SAFETY: live (contract above); its number never changes.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: as above.
    (number, !unsafe { (*qp).srq }.is_null())
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
    let (Some(source), Some(destination)) = (state.local, state.peer) else { return Err(invalid()) };
    drop(state);
    // SAFETY: live (contract above).
    let qp = unsafe { (*id).qp };
    // SAFETY: a queue pair in an identifier is live.
    let (qp_num, srq) = unsafe { number_and_srq(qp, &raw) };
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
        private_data: PrivateData::new(private_data).map_err(|_| invalid())?,
    })
}

/// `rdma_accept(3)`. What cannot be accepted is rejected, as in the kernel.
///
/// # Safety
///
/// `id` is live; `param` is null, or the program's, with its private data.
pub(crate) unsafe fn accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> io::Result<()> {
    // SAFETY: the contract of this function.
    let param = unsafe { read_param(param) };
    // SAFETY: live (contract above).
    let shared = unsafe { of_id(id) };
    // SAFETY: live (contract above).
    let qp = unsafe { (*id).qp };
    // SAFETY: a queue pair in an identifier is live.
    let (qp_num, srq) = unsafe { number_and_srq(qp, &param.raw) };
    let accepted = answer(shared, &param, qp_num, srq).and_then(|accept| shared.accept(accept));
    if accepted.is_err() {
        // If there was nothing to reject, that is why it failed.
        let _ = shared.reject(PrivateData::default());
    }
    accepted
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
    unsafe { of_id(id) }.disconnect()
}
