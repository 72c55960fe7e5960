//! Event channels, identifiers and events of the connection manager.
#![expect(unsafe_code, reason = "calls a provider")]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut};
use std::rc::Rc;
use std::time::Duration;

use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;
use rpma_sys::ret::{minus1_ret, null_ret};

use super::{Answer, Errno, LIMIT, PATIENCE, readable};

/// An event channel, non-blocking.
#[derive(Debug)]
pub(crate) struct Channel {
    provider: ProviderRef,
    raw: NonNull<rdma_event_channel>,
}

impl Channel {
    pub(crate) fn create(provider: &ProviderRef) -> Answer<Rc<Self>> {
        // SAFETY: no conditions.
        let raw = null_ret(|| unsafe { provider.rdma_create_event_channel() })?;
        let channel = Rc::new(Self { provider: provider.clone(), raw });
        rustix::io::ioctl_fionbio(channel.fd(), true).expect("a non-blocking channel");
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: live; the descriptor never changes.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: open for as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// An event, if there is one now.
    pub(crate) fn take(self: &Rc<Self>) -> Answer<Event> {
        let mut raw = null_mut();
        // SAFETY: live, and `raw` is a place for the result.
        minus1_ret(unsafe { self.provider.rdma_get_cm_event(self.raw.as_ptr(), &raw mut raw) })?;
        // SAFETY: the call succeeded: live until it is acknowledged.
        let told = unsafe { &*raw };
        let mut event = Event { kind: told.event, status: told.status, ..Event::default() };
        let says_much =
            [RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED];
        if says_much.contains(&told.event) {
            // SAFETY: filled in events of these kinds.
            let conn = unsafe { told.param.conn };
            if !conn.private_data.is_null() {
                // SAFETY: so many bytes of the event's.
                let data = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) };
                event.data = data.to_vec();
            }
            event.len = conn.private_data_len;
            event.has_data = !conn.private_data.is_null();
            event.param = conn;
        }
        event.listener = !told.listen_id.is_null();
        if told.event == RDMA_CM_EVENT_CONNECT_REQUEST {
            event.id = NonNull::new(told.id).map(|raw| Id::from_raw(raw, self));
        }
        // SAFETY: acknowledged once, and not used afterwards.
        minus1_ret(unsafe { self.provider.rdma_ack_cm_event(raw) })?;
        Ok(event)
    }

    /// The next event within `limit`.
    pub(crate) fn within(self: &Rc<Self>, limit: Duration) -> Option<Event> {
        let ready = readable(self.fd(), limit);
        ready.then(|| self.take().expect("an event behind a readable descriptor"))
    }

    /// The next event, which has to come.
    pub(crate) fn next(self: &Rc<Self>) -> Event {
        self.within(LIMIT).expect("an event")
    }

    /// Events up to the last one that an ended connection has, in words.
    pub(crate) fn to_the_end(self: &Rc<Self>) -> String {
        let mut words = Vec::new();
        loop {
            match self.within(PATIENCE) {
                Some(event) => {
                    words.push(event.to_string());
                    if event.kind == RDMA_CM_EVENT_TIMEWAIT_EXIT {
                        break;
                    }
                }
                None => {
                    words.push(String::from("nothing more"));
                    break;
                }
            }
        }
        words.join(", ")
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: live, and every identifier on it held an `Rc` of it.
        unsafe { self.provider.rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// An event, copied and acknowledged. In words: what it says beyond what everybody knows.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: i32,
    pub(crate) data: Vec<u8>,
    pub(crate) has_data: bool,
    pub(crate) len: u8,
    pub(crate) listener: bool,
    pub(crate) param: rdma_conn_param,
    /// The new identifier of a request.
    pub(crate) id: Option<Rc<Id>>,
}

impl Event {
    /// The event with its private data and its parameters; `number` is the other end's queue pair.
    pub(crate) fn whole(&self, number: u32) -> String {
        let spoken = self.data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let conn = &self.param;
        let qp_num = if conn.qp_num == number {
            "its number"
        } else if conn.qp_num == 0 {
            "0"
        } else {
            "another number"
        };
        format!(
            "{self}, data {spoken} of {}{}, resources {}, depth {}, flow control {}, retry {}, rnr retry {}, srq {}, qp {qp_num}, listener {}",
            self.len,
            if self.has_data { "" } else { " (null)" },
            conn.responder_resources,
            conn.initiator_depth,
            conn.flow_control,
            conn.retry_count,
            conn.rnr_retry_count,
            conn.srq,
            self.listener,
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => "ADDR_RESOLVED",
            RDMA_CM_EVENT_ADDR_ERROR => "ADDR_ERROR",
            RDMA_CM_EVENT_ROUTE_RESOLVED => "ROUTE_RESOLVED",
            RDMA_CM_EVENT_ROUTE_ERROR => "ROUTE_ERROR",
            RDMA_CM_EVENT_CONNECT_REQUEST => "CONNECT_REQUEST",
            RDMA_CM_EVENT_CONNECT_RESPONSE => "CONNECT_RESPONSE",
            RDMA_CM_EVENT_CONNECT_ERROR => "CONNECT_ERROR",
            RDMA_CM_EVENT_UNREACHABLE => "UNREACHABLE",
            RDMA_CM_EVENT_REJECTED => "REJECTED",
            RDMA_CM_EVENT_ESTABLISHED => "ESTABLISHED",
            RDMA_CM_EVENT_DISCONNECTED => "DISCONNECTED",
            RDMA_CM_EVENT_DEVICE_REMOVAL => "DEVICE_REMOVAL",
            RDMA_CM_EVENT_ADDR_CHANGE => "ADDR_CHANGE",
            RDMA_CM_EVENT_TIMEWAIT_EXIT => "TIMEWAIT_EXIT",
            _ => "another event",
        };
        f.write_str(name)?;
        match self.status {
            0 => Ok(()),
            status if status < 0 => write!(f, " {}", Errno(-status)),
            status => write!(f, " {status}"),
        }
    }
}

/// What goes into a connect or an accept.
#[derive(Debug, Clone)]
pub(crate) struct Param {
    pub(crate) data: Vec<u8>,
    pub(crate) resources: u8,
    pub(crate) depth: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
}

impl Default for Param {
    fn default() -> Self {
        Self { data: Vec::new(), resources: 16, depth: 16, retry: 7, rnr_retry: 7 }
    }
}

impl Param {
    pub(super) fn raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: if self.data.is_empty() { null() } else { self.data.as_ptr().cast() },
            private_data_len: u8::try_from(self.data.len()).expect("no more than a byte tells"),
            responder_resources: self.resources,
            initiator_depth: self.depth,
            flow_control: 1,
            retry_count: self.retry,
            rnr_retry_count: self.rnr_retry,
            ..rdma_conn_param::default()
        }
    }
}

/// A connection identifier.
#[derive(Debug)]
pub(crate) struct Id {
    raw: Cell<*mut rdma_cm_id>,
    channel: RefCell<Rc<Channel>>,
}

impl Id {
    pub(crate) fn create(channel: &Rc<Channel>) -> Answer<Rc<Self>> {
        let mut raw = null_mut();
        // SAFETY: the channel is live, and `raw` a place for the result.
        let rc = unsafe { channel.provider.rdma_create_id(channel.raw.as_ptr(), &raw mut raw, null_mut(), RDMA_PS_TCP) };
        minus1_ret(rc)?;
        Ok(Self::from_raw(NonNull::new(raw).expect("an identifier"), channel))
    }

    fn from_raw(raw: NonNull<rdma_cm_id>, channel: &Rc<Channel>) -> Rc<Self> {
        Rc::new(Self { raw: Cell::new(raw.as_ptr()), channel: RefCell::new(Rc::clone(channel)) })
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.get()
    }

    pub(crate) fn provider(&self) -> ProviderRef {
        self.channel.borrow().provider.clone()
    }

    /// Its device.
    pub(crate) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: live; calls about it are made by this thread alone.
        unsafe { (*self.raw.get()).verbs }
    }

    /// Its device's port.
    pub(crate) fn port_num(&self) -> u8 {
        // SAFETY: as above.
        unsafe { (*self.raw.get()).port_num }
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Answer {
        let mut addr = storage(addr);
        // SAFETY: live, and a whole address.
        Ok(minus1_ret(unsafe { self.provider().rdma_bind_addr(self.raw.get(), (&raw mut addr).cast()) })?)
    }

    pub(crate) fn listen(&self, backlog: i32) -> Answer {
        // SAFETY: live.
        Ok(minus1_ret(unsafe { self.provider().rdma_listen(self.raw.get(), backlog) })?)
    }

    pub(crate) fn resolve_addr(&self, to: SocketAddr, limit: Duration) -> Answer {
        let mut to = storage(to);
        let ms = i32::try_from(limit.as_millis()).expect("a short limit");
        // SAFETY: live, and a whole address.
        Ok(minus1_ret(unsafe { self.provider().rdma_resolve_addr(self.raw.get(), null_mut(), (&raw mut to).cast(), ms) })?)
    }

    pub(crate) fn resolve_route(&self) -> Answer {
        assert!(!self.verbs().is_null(), "librdmacm follows the null pointer");
        // SAFETY: live, and on a device.
        Ok(minus1_ret(unsafe { self.provider().rdma_resolve_route(self.raw.get(), 2000) })?)
    }

    pub(crate) fn connect(&self, param: Option<&Param>) -> Answer {
        assert!(!self.verbs().is_null(), "librdmacm follows the null pointer");
        let mut raw = param.map(Param::raw);
        let raw = raw.as_mut().map_or(null_mut(), |raw| raw);
        // SAFETY: live, and on a device; parameters and private data outlive the call.
        Ok(minus1_ret(unsafe { self.provider().rdma_connect(self.raw.get(), raw) })?)
    }

    pub(crate) fn accept(&self, param: Option<&Param>) -> Answer {
        assert!(!self.verbs().is_null(), "librdmacm follows the null pointer");
        let mut raw = param.map(Param::raw);
        let raw = raw.as_mut().map_or(null_mut(), |raw| raw);
        // SAFETY: live, and on a device; parameters and private data outlive the call.
        Ok(minus1_ret(unsafe { self.provider().rdma_accept(self.raw.get(), raw) })?)
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Answer {
        let len = u8::try_from(data.len()).expect("no more than a byte tells");
        // SAFETY: live; the data outlives the call.
        Ok(minus1_ret(unsafe { self.provider().rdma_reject(self.raw.get(), data.as_ptr().cast(), len) })?)
    }

    pub(crate) fn disconnect(&self) -> Answer {
        assert!(!self.verbs().is_null(), "librdmacm follows the null pointer");
        // SAFETY: live, and on a device.
        Ok(minus1_ret(unsafe { self.provider().rdma_disconnect(self.raw.get()) })?)
    }

    pub(crate) fn migrate(&self, to: &Rc<Channel>) -> Answer {
        // SAFETY: live, and of one provider.
        minus1_ret(unsafe { self.provider().rdma_migrate_id(self.raw.get(), to.raw.as_ptr()) })?;
        *self.channel.borrow_mut() = Rc::clone(to);
        Ok(())
    }

    /// The channel that its events go to.
    pub(crate) fn channel(&self) -> Rc<Channel> {
        Rc::clone(&self.channel.borrow())
    }

    /// The local address.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: live; calls about it are made by this thread alone.
        let addr = unsafe { (*self.raw.get()).route.addr };
        // SAFETY: plain bytes, whichever was written.
        read(&unsafe { addr.__bindgen_anon_1.src_storage })
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        let addr = unsafe { (*self.raw.get()).route.addr };
        // SAFETY: as above.
        read(&unsafe { addr.__bindgen_anon_2.dst_storage })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: live, its events are acknowledged, and its queue pair held an `Rc` of it.
        let rc = unsafe { self.provider().rdma_destroy_id(self.raw.get()) };
        assert_eq!(rc, 0, "an identifier is destroyed: {}", std::io::Error::last_os_error());
    }
}

fn storage(addr: SocketAddr) -> sockaddr_storage {
    let mut storage = sockaddr_storage::default();
    match addr {
        SocketAddr::V4(v4) => {
            let raw = sockaddr_in {
                sin_family: libc::AF_INET as sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                ..sockaddr_in::default()
            };
            // SAFETY: an address of any family fits.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(v6) => {
            let raw = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_addr: in6_addr { __in6_u: in6_addr__bindgen_ty_1 { __u6_addr8: v6.ip().octets() } },
                sin6_scope_id: v6.scope_id(),
                ..sockaddr_in6::default()
            };
            // SAFETY: an address of any family fits.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(raw) };
        }
    }
    storage
}

fn read(storage: &sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what it holds.
            let raw = unsafe { (&raw const *storage).cast::<sockaddr_in>().read() };
            Some(SocketAddr::new(Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes()).into(), u16::from_be(raw.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { (&raw const *storage).cast::<sockaddr_in6>().read() };
            // SAFETY: plain bytes.
            let ip = Ipv6Addr::from(unsafe { raw.sin6_addr.__in6_u.__u6_addr8 });
            Some(SocketAddr::new(ip.into(), u16::from_be(raw.sin6_port)))
        }
        _ => None,
    }
}
