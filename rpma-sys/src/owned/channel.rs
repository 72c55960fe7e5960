//! The connection manager's event channel, and its events as plain values.
#![expect(unsafe_code, reason = "reads the event structures that the connection manager hands out")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fd::{readable_while, set_nonblocking};
use super::id::CmId;
use super::{check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::provider::ProviderRef;
use crate::ret::{minus1_ret, null_ret};

/// What an event of the connection manager says: `rdma_get_cm_event(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the man page")]
pub enum CmEventKind {
    AddrResolved,
    AddrError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectResponse,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    /// An event of another kind, with its number.
    Other(u32),
}

impl CmEventKind {
    fn from_raw(raw: rdma_cm_event_type) -> Self {
        match raw {
            RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddrResolved,
            RDMA_CM_EVENT_ADDR_ERROR => Self::AddrError,
            RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError,
            RDMA_CM_EVENT_CONNECT_REQUEST => Self::ConnectRequest,
            RDMA_CM_EVENT_CONNECT_RESPONSE => Self::ConnectResponse,
            RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError,
            RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable,
            RDMA_CM_EVENT_REJECTED => Self::Rejected,
            RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            RDMA_CM_EVENT_ADDR_CHANGE => Self::AddrChange,
            RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            other => Self::Other(other),
        }
    }

    /// Whether `rdma_cm_event::param` is a `rdma_conn_param` in events of this kind.
    fn has_conn_param(self) -> bool {
        matches!(self, Self::ConnectRequest | Self::ConnectResponse | Self::Rejected | Self::Established)
    }
}

/// An event, copied out and already acknowledged: nothing of the connection manager waits for it.
#[derive(Debug)]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative errno, or the transport's reject reason.
    pub status: i32,
    /// The peer's private data: the connection manager's whole field, with zeros where the peer sent less.
    pub private_data: Vec<u8>,
    /// How many reads and atomics the peer wants to have outstanding here.
    pub responder_resources: u8,
    /// How many reads and atomics the peer takes at once.
    pub initiator_depth: u8,
    /// The identifier of the new connection, in a [`CmEventKind::ConnectRequest`]; still on this channel.
    pub new_id: Option<CmId>,
}

impl CmEvent {
    /// The error in the status of an event that tells one.
    ///
    /// The status is a negative errno there. librdmacm also reports -1 with `errno` set elsewhere when a query of its own fails, and 0
    /// with a device that was removed: neither names a cause.
    #[must_use]
    pub fn error(&self) -> io::Error {
        match self.status {
            0 | -1 => io::Error::other(format!("{:?} with status {}, which names no cause", self.kind, self.status)),
            status => io::Error::from_raw_os_error(status.saturating_abs()),
        }
    }
}

/// An event channel: `rdma_create_event_channel(3)`. Its descriptor is non-blocking.
#[derive(Debug)]
pub struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    /// What is lent in place of the channel's own descriptor.
    readable: OwnedFd,
    provider: ProviderRef,
    /// `rdma_get_cm_event` changes the identifier that the event is about, so whatever reads or changes an identifier of this
    /// channel holds this lock. Never held while waiting.
    ids: Mutex<()>,
    mark: ProcessMark,
}

// SAFETY: librdmacm's channel is a file descriptor; its calls may come from any thread, and what they change is under `ids`.
unsafe impl Send for EventChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// As `rdma_create_event_channel(3)`: ENODEV or ENOENT without any RDMA device, EACCES without the permission to use one.
    pub fn create(provider: &ProviderRef) -> io::Result<Arc<Self>> {
        // SAFETY: the call has no conditions.
        let raw = null_ret(|| unsafe { provider.rdma_create_event_channel() })?;
        match Self::prepare(raw) {
            Ok(readable) => {
                let provider = Arc::clone(provider);
                Ok(Arc::new(Self { raw, readable, provider, ids: Mutex::new(()), mark: ProcessMark::current() }))
            }
            Err(e) => {
                // SAFETY: live, and used by nobody yet.
                unsafe { provider.rdma_destroy_event_channel(raw.as_ptr()) };
                Err(e)
            }
        }
    }

    fn prepare(raw: NonNull<rdma_event_channel>) -> io::Result<OwnedFd> {
        // SAFETY: the channel is live, and its `fd` never changes.
        let fd = unsafe { (*raw.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        set_nonblocking(fd)?;
        readable_while(fd)
    }

    /// Takes an event, or `None` if there is none now.
    ///
    /// On the active side this is also what moves a connection forward: the queue pair becomes ready to send inside it.
    ///
    /// # Errors
    ///
    /// As `rdma_get_cm_event(3)`.
    pub fn get_event(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        check(self.mark)?;
        let _ids = self.lock_ids();
        let mut raw = null_mut();
        loop {
            // SAFETY: the channel is live, `raw` is a valid place for the result.
            let rc = unsafe { self.provider.rdma_get_cm_event(self.raw.as_ptr(), &raw mut raw) };
            match minus1_ret(rc) {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // librdmacm says EAGAIN; ENODATA is what librpma expected there.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::ENODATA) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::other("the provider reported an event and gave none"))?;
        // SAFETY: the call succeeded, so the event is live until it is acknowledged below.
        let event = unsafe { raw.as_ref() };
        let copy = self.copy(event);
        // SAFETY: the event came from this provider and is acknowledged here, once; `event` is not used afterwards.
        let rc = unsafe { self.provider.rdma_ack_cm_event(raw.as_ptr()) };
        if let Err(e) = minus1_ret(rc) {
            // The event itself is told all the same: it may be a connection's end, or own an identifier.
            leaked("an event of the connection manager", &e);
        }
        Ok(Some(copy))
    }

    fn copy(self: &Arc<Self>, event: &rdma_cm_event) -> CmEvent {
        let kind = CmEventKind::from_raw(event.event);
        let mut copy = CmEvent {
            kind,
            status: event.status,
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
            new_id: None,
        };
        if kind.has_conn_param() {
            // SAFETY: in events of these kinds the connection manager fills the `conn` member (`rdma_get_cm_event(3)`).
            let conn = unsafe { event.param.conn };
            copy.responder_resources = conn.responder_resources;
            copy.initiator_depth = conn.initiator_depth;
            if !conn.private_data.is_null() && conn.private_data_len > 0 {
                let len = usize::from(conn.private_data_len);
                // SAFETY: the pointer leads to `private_data_len` bytes inside the event, which lives through this function.
                let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
                copy.private_data = bytes.to_vec();
            }
        }
        if kind == CmEventKind::ConnectRequest
            && let Some(id) = NonNull::new(event.id)
        {
            // SAFETY: in a connect request `id` is new and the receiver's to destroy, and it is on this channel.
            copy.new_id = Some(unsafe { CmId::from_raw(id, self) });
        }
        copy
    }

    /// Keeps other threads from reading events of this channel, which would change its identifiers.
    pub(super) fn lock_ids(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data of ours that a panic could have left half-changed.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn provider(&self) -> &ProviderRef {
        &self.provider
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }
}

impl AsFd for EventChannel {
    /// Readable while there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if self.mark.is_current() {
            // SAFETY: live, and every identifier on it held an `Arc` of it and is gone.
            unsafe { self.provider.rdma_destroy_event_channel(self.raw.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_status(status: i32) -> CmEvent {
        let kind = CmEventKind::AddrError;
        CmEvent { kind, status, private_data: Vec::new(), responder_resources: 0, initiator_depth: 0, new_id: None }
    }

    #[test]
    fn status_that_names_no_cause_is_not_told_as_success_or_eperm() {
        for status in [0, -1] {
            assert!(with_status(status).error().to_string().contains("names no cause"), "{status}");
        }
        assert_eq!(with_status(-libc::ETIMEDOUT).error().raw_os_error(), Some(libc::ETIMEDOUT));
        assert_eq!(with_status(libc::ETIMEDOUT).error().raw_os_error(), Some(libc::ETIMEDOUT));
    }
}
