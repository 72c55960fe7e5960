//! The connection identifier, `rdma_cm_id`: the connection manager's end of a listener or of a connection.
#![expect(unsafe_code, reason = "calls the connection manager and reads the identifier's fields")]

use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

use super::channel::EventChannel;
use super::{check, leaked};
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::provider::ProviderRef;
use crate::ret::minus1_ret;
use crate::socket_address;

/// What goes into a connect or an accept: `rdma_connect(3)`, `rdma_accept(3)`.
#[derive(Debug, Clone, Copy)]
pub struct ConnParam<'a> {
    /// At most 255 bytes; how many the transport takes is the caller's to know.
    pub private_data: &'a [u8],
    /// How many reads and atomics the peer may have outstanding here; 255: as many as the device can.
    pub responder_resources: u8,
    /// How many reads and atomics we may have outstanding at the peer; 255: as many as the device can.
    pub initiator_depth: u8,
    /// How often an unanswered request is sent again, 0 to 7. Ignored when accepting.
    pub retry_count: u8,
    /// How often a request that found no receive is sent again, 0 to 7; 7: for ever.
    pub rnr_retry_count: u8,
}

/// An option of an identifier: `rdma_set_option(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdOption {
    /// The type of service of the connection's packets; before the route is resolved.
    TypeOfService(u8),
    /// How long an answer is waited for: 4.096 µs times two to this power; before connecting.
    AckTimeout(u8),
    /// Whether to bind to an address that is in use.
    ReuseAddr(bool),
    /// Whether the IPv6 wildcard address leaves out IPv4.
    AddressFamilyOnly(bool),
}

impl ConnParam<'_> {
    fn to_raw(self) -> io::Result<rdma_conn_param> {
        let private_data_len = u8::try_from(self.private_data.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("private data of {} bytes: at most 255 can be told", self.private_data.len()),
            )
        })?;
        Ok(rdma_conn_param {
            private_data: if private_data_len == 0 { std::ptr::null() } else { self.private_data.as_ptr().cast() },
            private_data_len,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ..rdma_conn_param::default()
        })
    }
}

/// A connection identifier for reliable connections over IP (`RDMA_PS_TCP`): `rdma_create_id(3)`.
#[derive(Debug)]
pub struct CmId {
    raw: NonNull<rdma_cm_id>,
    /// Its events go there. The identifier's fields are read and changed under the channel's lock.
    channel: ManuallyDrop<Arc<EventChannel>>,
    mark: ProcessMark,
}

// SAFETY: the connection manager's calls may come from any thread; fields are read under the channel's lock, which whatever
// changes them holds too.
unsafe impl Send for CmId {}
// SAFETY: as for `Send`.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an identifier whose events go to `channel`.
    ///
    /// # Errors
    ///
    /// As `rdma_create_id(3)`.
    pub fn create(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = null_mut();
        let port_space = RDMA_PS_TCP;
        // SAFETY: the channel is live, `raw` is a valid place for the result, and we keep nothing in the user context.
        let rc = unsafe { channel.provider().rdma_create_id(channel.as_ptr(), &raw mut raw, null_mut(), port_space) };
        minus1_ret(rc)?;
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::other("the provider created an identifier and gave none"))?;
        // SAFETY: new, ours alone, and on this channel.
        Ok(unsafe { Self::from_raw(raw, channel) })
    }

    /// Takes over an identifier.
    ///
    /// # Safety
    ///
    /// `raw` is live, belongs to nobody else, and its events go to `channel`.
    pub(super) unsafe fn from_raw(raw: NonNull<rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, channel: ManuallyDrop::new(Arc::clone(channel)), mark: ProcessMark::current() }
    }

    /// Binds to a local address; port 0 takes a free one. The wildcard address binds to no device.
    ///
    /// # Errors
    ///
    /// As `rdma_bind_addr(3)`: EADDRNOTAVAIL or ENODEV if the address is not on this machine or on no RDMA device, EADDRINUSE.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        check(self.mark)?;
        let mut addr = socket_address::storage(addr);
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, `addr` is a whole socket address of its family.
        minus1_ret(unsafe { self.provider().rdma_bind_addr(self.as_ptr(), (&raw mut addr).cast()) })
    }

    /// Listens; 0 is the provider's default backlog.
    ///
    /// # Errors
    ///
    /// As `rdma_listen(3)`.
    pub fn listen(&self, backlog: c_int) -> io::Result<()> {
        check(self.mark)?;
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live.
        minus1_ret(unsafe { self.provider().rdma_listen(self.as_ptr(), backlog) })
    }

    /// Sets an option: `rdma_set_option(3)`.
    ///
    /// # Errors
    ///
    /// As `rdma_set_option(3)`: EINVAL for an option that comes too late, ENOSYS for one that the kernel does not know.
    pub fn set_option(&self, option: IdOption) -> io::Result<()> {
        check(self.mark)?;
        let (name, mut value, size) = match option {
            IdOption::TypeOfService(value) => (RDMA_OPTION_ID_TOS, [value, 0, 0, 0], 1),
            IdOption::AckTimeout(value) => (RDMA_OPTION_ID_ACK_TIMEOUT, [value, 0, 0, 0], 1),
            IdOption::ReuseAddr(value) => (RDMA_OPTION_ID_REUSEADDR, c_int::from(value).to_ne_bytes(), size_of::<c_int>()),
            IdOption::AddressFamilyOnly(value) => (RDMA_OPTION_ID_AFONLY, c_int::from(value).to_ne_bytes(), size_of::<c_int>()),
        };
        let (level, name) = (RDMA_OPTION_ID.cast_signed(), name.cast_signed());
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, and `value` holds `size` bytes that outlive the call.
        minus1_ret(unsafe { self.provider().rdma_set_option(self.as_ptr(), level, name, value.as_mut_ptr().cast(), size) })
    }

    /// Starts resolving the peer's address; the answer is an event. Whole milliseconds count, rounded up.
    ///
    /// # Errors
    ///
    /// As `rdma_resolve_addr(3)`.
    pub fn resolve_addr(&self, addr: SocketAddr, timeout: Duration) -> io::Result<()> {
        check(self.mark)?;
        let mut addr = socket_address::storage(addr);
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, no source address is given, `addr` is a whole socket address of its family.
        let rc =
            unsafe { self.provider().rdma_resolve_addr(self.as_ptr(), null_mut(), (&raw mut addr).cast(), whole_ms(timeout)) };
        minus1_ret(rc)
    }

    /// Starts resolving the route; the answer is an event. Whole milliseconds count, rounded up.
    ///
    /// # Errors
    ///
    /// As `rdma_resolve_route(3)`.
    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        self.check_device()?;
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live.
        minus1_ret(unsafe { self.provider().rdma_resolve_route(self.as_ptr(), whole_ms(timeout)) })
    }

    /// Asks the peer for a connection; the answer is an event.
    ///
    /// # Errors
    ///
    /// As `rdma_connect(3)`; private data over 255 bytes is `InvalidInput`.
    pub fn connect(&self, param: ConnParam<'_>) -> io::Result<()> {
        self.check_device()?;
        let mut raw = param.to_raw()?;
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live; `raw` points to private data that outlives the call, with its length.
        minus1_ret(unsafe { self.provider().rdma_connect(self.as_ptr(), &raw mut raw) })
    }

    /// Accepts the connection that this identifier was made for.
    ///
    /// # Errors
    ///
    /// As `rdma_accept(3)`, which has then rejected the peer already; private data over 255 bytes is `InvalidInput`, and nothing is sent.
    pub fn accept(&self, param: ConnParam<'_>) -> io::Result<()> {
        self.check_device()?;
        let mut raw = param.to_raw()?;
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live; `raw` points to private data that outlives the call, with its length.
        minus1_ret(unsafe { self.provider().rdma_accept(self.as_ptr(), &raw mut raw) })
    }

    /// Rejects the connection that this identifier was made for.
    ///
    /// # Errors
    ///
    /// As `rdma_reject(3)`; private data over 255 bytes is `InvalidInput`.
    pub fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        check(self.mark)?;
        let len = u8::try_from(private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let data = if len == 0 { std::ptr::null() } else { private_data.as_ptr().cast() };
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live; `data` is null or leads to `len` bytes that outlive the call.
        minus1_ret(unsafe { self.provider().rdma_reject(self.as_ptr(), data, len) })
    }

    /// Disconnects, which also moves the queue pair to the error state.
    ///
    /// # Errors
    ///
    /// As `rdma_disconnect(3)`.
    pub fn disconnect(&self) -> io::Result<()> {
        self.check_device()?;
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live.
        minus1_ret(unsafe { self.provider().rdma_disconnect(self.as_ptr()) })
    }

    /// Moves the identifier to a channel of its own. It keeps its old channel if that fails.
    ///
    /// # Errors
    ///
    /// As `rdma_migrate_id(3)`.
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        check(self.mark)?;
        if !Arc::ptr_eq(self.provider(), channel.provider()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "identifier and channel are of different providers"));
        }
        {
            // Every event is acknowledged under these locks, so the call, which waits for acknowledgements, does not wait for another
            // thread. The order of addresses keeps two threads from waiting for each other.
            let old_first = Arc::as_ptr(&self.channel) < Arc::as_ptr(channel);
            let (first, second) = if old_first { (&*self.channel, channel) } else { (channel, &*self.channel) };
            let _first = first.lock_ids();
            let _second = (!Arc::ptr_eq(first, second)).then(|| second.lock_ids());
            // SAFETY: identifier and channel are live and of one provider (checked above).
            minus1_ret(unsafe { self.provider().rdma_migrate_id(self.as_ptr(), channel.as_ptr()) })?;
        }
        *self.channel = Arc::clone(channel);
        Ok(())
    }

    /// The local address, once bound or resolved.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, and its fields do not change while the lock is held.
        let addr = unsafe { (*self.as_ptr()).route.addr };
        // SAFETY: every member of the union is plain bytes, and this one is all of them.
        let storage = unsafe { addr.__bindgen_anon_1.src_storage };
        // SAFETY: the storage is whole, and large enough for every family.
        unsafe { socket_address::read((&raw const storage).cast()) }
    }

    /// The peer's address, once resolved, or from the request.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, and its fields do not change while the lock is held.
        let addr = unsafe { (*self.as_ptr()).route.addr };
        // SAFETY: every member of the union is plain bytes, and this one is all of them.
        let storage = unsafe { addr.__bindgen_anon_2.dst_storage };
        // SAFETY: the storage is whole, and large enough for every family.
        unsafe { socket_address::read((&raw const storage).cast()) }
    }

    /// The context of the device that it is bound to; `None` for the wildcard address and before binding.
    pub(super) fn verbs(&self) -> Option<NonNull<ibv_context>> {
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, and its fields do not change while the lock is held.
        NonNull::new(unsafe { (*self.as_ptr()).verbs })
    }

    /// Whether the identifier is bound to a device at all.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.verbs().is_some()
    }

    /// Whether the identifier is on the device of `context`: only then can they be used together.
    #[must_use]
    pub fn is_on(&self, context: &super::Context) -> bool {
        self.verbs() == Some(context.raw())
    }

    /// The device's port that it is bound to, counted from 1; 0 before binding.
    #[must_use]
    pub fn port_num(&self) -> u8 {
        let _ids = self.channel.lock_ids();
        // SAFETY: the identifier is live, and its fields do not change while the lock is held.
        unsafe { (*self.as_ptr()).port_num }
    }

    /// The channel that its events go to.
    #[must_use]
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    pub(super) fn provider(&self) -> &ProviderRef {
        self.channel.provider()
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(super) fn check(&self) -> io::Result<()> {
        check(self.mark)
    }

    /// librdmacm takes it for granted in some calls that the identifier is on a device, and follows a null pointer else.
    fn check_device(&self) -> io::Result<()> {
        self.check()?;
        self.verbs().map(|_| ()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if !self.mark.is_current() {
            return;
        }
        // Without the channel's lock: this waits for an event that another thread is just taking, until it is acknowledged.
        // SAFETY: live, and its queue pair held an `Arc` of it and is gone.
        let rc = unsafe { self.provider().rdma_destroy_id(self.as_ptr()) };
        match minus1_ret(rc) {
            // SAFETY: not used again; the field is dropped here only.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.channel) },
            Err(e) => leaked("a connection identifier", &e),
        }
    }
}

/// `timeout` in the connection manager's unit: rounded up, so that a short one does not become none.
fn whole_ms(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_timeouts_do_not_become_none() {
        assert_eq!(whole_ms(Duration::from_micros(1)), 1);
        assert_eq!(whole_ms(Duration::ZERO), 0);
        assert_eq!(whole_ms(Duration::from_millis(1000)), 1000);
        assert_eq!(whole_ms(Duration::MAX), c_int::MAX);
    }

    #[test]
    fn private_data_over_one_length_byte_is_refused() {
        let param = |private_data| ConnParam {
            private_data,
            responder_resources: 255,
            initiator_depth: 255,
            retry_count: 7,
            rnr_retry_count: 7,
        };
        assert_eq!(param(&[0; 256]).to_raw().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(param(&[0; 255]).to_raw().unwrap().private_data_len, 255);
        assert!(param(&[]).to_raw().unwrap().private_data.is_null());
    }
}
