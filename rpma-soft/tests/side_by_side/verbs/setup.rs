//! A provider's device at an address.
#![expect(unsafe_code, reason = "calls a provider")]

use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::null;
use std::rc::Rc;
use std::time::Duration;

use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;
use rpma_sys::ret::{errno_ret, minus1_ret};

use super::{Answer, Channel, Id, readable};

/// Where scenarios run.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) provider: ProviderRef,
    pub(crate) context: *mut ibv_context,
    /// An address on the device.
    pub(crate) ip: IpAddr,
    /// What the device says of itself.
    pub(crate) attr: ibv_device_attr_ex,
    /// Keeps the device open.
    _id: Rc<Id>,
}

impl Setup {
    /// The device that has `ip`.
    pub(crate) fn new(provider: ProviderRef, ip: IpAddr) -> Self {
        let channel = Channel::create(&provider).expect("an event channel");
        let id = Id::create(&channel).expect("an identifier");
        id.bind(SocketAddr::new(ip, 0)).expect("an address on a device of the provider");
        let context = id.verbs();
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the context is live, and `attr` a place for the result.
        let rc = unsafe { provider.ibv_query_device_ex(context, null(), &raw mut attr) };
        errno_ret(rc).expect("the device's attributes");
        Self { provider, context, ip, attr, _id: id }
    }

    /// The address, with a free port.
    pub(crate) fn any_port(&self) -> SocketAddr {
        SocketAddr::new(self.ip, 0)
    }

    /// Whether the device has native flush and native atomic write: `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
    pub(crate) fn has_native(&self) -> bool {
        const BITS: u64 = 1 << 38 | 1 << 40;
        self.attr.device_cap_flags_ex & BITS == BITS
    }

    /// A port's attributes.
    pub(crate) fn port(&self, number: u8) -> Answer<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is live, and `attr` a place for the result.
        let rc = unsafe { self.provider.ibv_query_port(self.context, number, &raw mut attr) };
        errno_ret(rc)?;
        Ok(attr)
    }

    /// The descriptor of asynchronous events.
    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is live; the descriptor never changes.
        let fd = unsafe { (*self.context).async_fd };
        // SAFETY: open for as long as the context is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The next asynchronous event within `limit`: its name in C and what it is about.
    pub(crate) fn async_event(&self, limit: Duration) -> Option<(&'static str, *mut c_void)> {
        if !readable(self.async_fd(), limit) {
            return None;
        }
        let mut event = ibv_async_event::default();
        // SAFETY: the context is live, and `event` a place for the result.
        minus1_ret(unsafe { self.provider.ibv_get_async_event(self.context, &raw mut event) }).expect("an event");
        // SAFETY: each member of the union is a pointer, or a port's number that does not matter here.
        let about = unsafe { event.element.cq }.cast();
        // SAFETY: taken just now.
        unsafe { self.provider.ibv_ack_async_event(&raw mut event) };
        Some((event_name(event.event_type), about))
    }

    /// What is answered where there is no asynchronous event.
    pub(crate) fn no_async_event(&self) -> Answer {
        rustix::io::ioctl_fionbio(self.async_fd(), true).expect("a non-blocking descriptor");
        let mut event = ibv_async_event::default();
        // SAFETY: the context is live, and `event` a place for the result.
        let taken = minus1_ret(unsafe { self.provider.ibv_get_async_event(self.context, &raw mut event) });
        if taken.is_ok() {
            // SAFETY: taken just now.
            unsafe { self.provider.ibv_ack_async_event(&raw mut event) };
        }
        Ok(taken?)
    }

    /// The device's kind of node and its transport.
    pub(crate) fn kind(&self) -> (ibv_node_type, ibv_transport_type) {
        // SAFETY: the context is live, and keeps its device.
        let device = unsafe { (*self.context).device };
        // SAFETY: live, and never changed.
        let device = unsafe { &*device };
        (device.node_type, device.transport_type)
    }
}

fn event_name(event: ibv_event_type) -> &'static str {
    match event {
        IBV_EVENT_CQ_ERR => "CQ_ERR",
        IBV_EVENT_QP_FATAL => "QP_FATAL",
        IBV_EVENT_QP_REQ_ERR => "QP_REQ_ERR",
        IBV_EVENT_QP_ACCESS_ERR => "QP_ACCESS_ERR",
        IBV_EVENT_COMM_EST => "COMM_EST",
        IBV_EVENT_SQ_DRAINED => "SQ_DRAINED",
        IBV_EVENT_SRQ_ERR => "SRQ_ERR",
        IBV_EVENT_SRQ_LIMIT_REACHED => "SRQ_LIMIT_REACHED",
        IBV_EVENT_QP_LAST_WQE_REACHED => "QP_LAST_WQE_REACHED",
        _ => "another event",
    }
}
