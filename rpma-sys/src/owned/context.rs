//! An open RDMA device.
#![expect(unsafe_code, reason = "calls verbs and reads the device's structures")]

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::check;
use super::id::CmId;
use crate::bindings::*;
use crate::fork::ProcessMark;
use crate::inline::NO_INPUT;
use crate::provider::ProviderRef;
use crate::ret::{errno_ret, null_ret};

/// An open device. The connection manager opened it, and keeps it open for as long as this lives.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ibv_context>,
    provider: ProviderRef,
    mark: ProcessMark,
    /// What keeps the device open: read by nobody, dropped last.
    _hold: Hold,
}

#[derive(Debug)]
enum Hold {
    /// An identifier bound to the device.
    Id { _id: CmId },
    /// The list that the device came in.
    List { _list: Arc<DeviceList> },
}

// SAFETY: verbs allow a context to be used from any thread (`ibv_open_device(3)`, and the thread safety that verbs promise).
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

impl Context {
    /// The device that `id` is bound to, or the identifier back if it is bound to none (the wildcard address, for one).
    ///
    /// # Errors
    ///
    /// The identifier, unchanged.
    pub fn of_id(id: CmId) -> Result<Arc<Self>, CmId> {
        match id.verbs() {
            Some(raw) => {
                let provider = Arc::clone(id.provider());
                Ok(Arc::new(Self { raw, provider, mark: ProcessMark::current(), _hold: Hold::Id { _id: id } }))
            }
            None => Err(id),
        }
    }

    /// All devices that the connection manager can use: `rdma_get_devices(3)`. They may be none.
    ///
    /// # Errors
    ///
    /// As `rdma_get_devices(3)`: ENODEV or ENOENT without any RDMA device, EACCES without the permission.
    pub fn list(provider: &ProviderRef) -> io::Result<Vec<Arc<Self>>> {
        let mut count: c_int = 0;
        // SAFETY: `count` is a valid place for the result.
        let raw = null_ret(|| unsafe { provider.rdma_get_devices(&raw mut count) })?;
        let list = Arc::new(DeviceList { raw, provider: Arc::clone(provider), mark: ProcessMark::current() });
        let count = usize::try_from(count).unwrap_or(0);
        Ok((0..count)
            .filter_map(|i| {
                // SAFETY: the array holds `count` entries and a null behind them.
                let entry = unsafe { list.raw.add(i) };
                // SAFETY: as above; entries are pointers, read by copy.
                NonNull::new(unsafe { entry.read() })
            })
            .map(|raw| {
                let hold = Hold::List { _list: Arc::clone(&list) };
                Arc::new(Self { raw, provider: Arc::clone(provider), mark: ProcessMark::current(), _hold: hold })
            })
            .collect())
    }

    /// The device's name: `rxe0`, `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: the context is live and keeps its device.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: the device is live.
        let name = unsafe { self.provider.ibv_get_device_name(device) };
        if name.is_null() {
            return String::from("?");
        }
        // SAFETY: a string inside the device's structure, which lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Whether it speaks iWARP, which asks for other access rights than InfiniBand and RoCE.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: the context is live and keeps its device.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: the device is live.
        let transport = unsafe { (*device).transport_type };
        transport == IBV_TRANSPORT_IWARP
    }

    /// The device's attributes: `ibv_query_device_ex(3)`. What the running library does not know stays 0.
    ///
    /// # Errors
    ///
    /// As `ibv_query_device_ex(3)`.
    pub fn query_device(&self) -> io::Result<ibv_device_attr_ex> {
        check(self.mark)?;
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the context is live, no input is given, `attr` is a valid place for the result.
        errno_ret(unsafe { self.provider.ibv_query_device_ex(self.raw.as_ptr(), NO_INPUT, &raw mut attr) })?;
        Ok(attr)
    }

    /// A port's attributes; ports count from 1: `ibv_query_port(3)`.
    ///
    /// # Errors
    ///
    /// As `ibv_query_port(3)`.
    pub fn query_port(&self, port_num: u8) -> io::Result<ibv_port_attr> {
        check(self.mark)?;
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is live, `attr` is a valid place for the result.
        errno_ret(unsafe { self.provider.ibv_query_port(self.raw.as_ptr(), port_num, &raw mut attr) })?;
        Ok(attr)
    }

    /// How many completion vectors it has, at least 1: a completion queue's events go to one of them (`ibv_create_cq(3)`).
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is live, and the field never changes.
        let vectors = unsafe { (*self.raw.as_ptr()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(0).max(1)
    }

    /// The provider that it belongs to.
    #[must_use]
    pub fn provider(&self) -> &ProviderRef {
        &self.provider
    }

    /// Whether both are the same open device: only then can objects of one be used with the other.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.raw == other.raw
    }

    pub(super) fn raw(&self) -> NonNull<ibv_context> {
        self.raw
    }

    pub(super) fn check(&self) -> io::Result<()> {
        check(self.mark)
    }
}

/// The array of `rdma_get_devices(3)`, which holds each device open until it is freed.
#[derive(Debug)]
struct DeviceList {
    raw: NonNull<*mut ibv_context>,
    provider: ProviderRef,
    mark: ProcessMark,
}

// SAFETY: an array that nobody changes.
unsafe impl Send for DeviceList {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if self.mark.is_current() {
            // SAFETY: from `rdma_get_devices` of this provider, freed once, and every context of it held an `Arc` and is gone.
            unsafe { self.provider.rdma_free_devices(self.raw.as_ptr()) };
        }
    }
}
