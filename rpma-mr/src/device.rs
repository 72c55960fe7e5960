//! RDMA devices, and how they are found.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rpma_sys::ProviderRef;
use rpma_sys::bindings::{IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_WRITE, ibv_device_attr_ex};
use rpma_sys::owned::Context;

use crate::device_error::DeviceError;
use crate::{Transport, resolve};

/// An open RDMA device. Cheap to clone; the device stays open for as long as anything made with it lives.
///
/// ```
/// use rpma_mr::Device;
///
/// # let provider = rpma_soft::Soft::open()?;
/// let device = Device::local(&provider, "127.0.0.1")?; // hardware: rpma_sys::RdmaCore::open()?, and its address
/// assert_eq!(device.name(), "soft0");
/// let same = Device::by_name(&provider, device.name())?;
/// assert!(same.is_same_as(&device));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Arc<Context>,
    name: String,
    transport: Transport,
    capabilities: Capabilities,
    is_soft_roce: bool,
}

/// What a device can do beyond what every RDMA device can, as far as this library makes use of it.
///
/// The bits are the kernel's. The installed library may be older and refuse what the device has.
///
/// ```
/// use rpma_mr::Device;
///
/// # let provider = rpma_soft::Soft::open()?;
/// for device in Device::list(&provider)? {
///     let has = device.capabilities();
///     println!("{}: {has:?}", device.name());
///     assert!(has.native_flush && has.native_atomic_write); // the software provider's does
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Memory can be registered without pinning its pages, and read and written so over reliable connections
    /// (`IBV_ODP_SUPPORT`, `IBV_ODP_SUPPORT_READ` and `_WRITE`).
    #[doc(alias = "rpma_utils_ibv_context_is_odp_capable")]
    pub on_demand_paging: bool,
    /// The flush operation, to both global visibility and persistence (`IB_UVERBS_DEVICE_FLUSH_GLOBAL` and `_PERSISTENT`).
    pub native_flush: bool,
    /// The atomic write operation (`IB_UVERBS_DEVICE_ATOMIC_WRITE`).
    pub native_atomic_write: bool,
}

/// `RXE_VENDOR_ID` of the kernel (drivers/infiniband/sw/rxe/rxe_param.h).
const SOFT_ROCE_VENDOR: u32 = 0xff_ffff;

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL` and `IB_UVERBS_DEVICE_FLUSH_PERSISTENT`: `enum ib_uverbs_device_cap_flags`, bits 38 and 39.
const FLUSH_BITS: u64 = 1 << 38 | 1 << 39;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`, bit 40.
const ATOMIC_WRITE_BIT: u64 = 1 << 40;

impl Capabilities {
    fn of(attr: &ibv_device_attr_ex) -> Self {
        let rc_needs = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_WRITE;
        Self {
            on_demand_paging: attr.odp_caps.general_caps & u64::from(IBV_ODP_SUPPORT) != 0
                && attr.odp_caps.per_transport_caps.rc_odp_caps & rc_needs == rc_needs,
            native_flush: attr.device_cap_flags_ex & FLUSH_BITS == FLUSH_BITS,
            native_atomic_write: attr.device_cap_flags_ex & ATOMIC_WRITE_BIT != 0,
        }
    }
}

impl Device {
    /// How long the C library waits for a remote address to resolve, and what to give to [`Device::remote`] without a better number.
    pub const RESOLVE_TIMEOUT: Duration = Duration::from_millis(1000);

    /// All devices, in the provider's order; never an empty list. (`rdma_get_devices(3)`)
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDevice`], [`DeviceError::Unusable`], [`DeviceError::NotPermitted`] or [`DeviceError::Provider`].
    pub fn list(provider: &ProviderRef) -> Result<Vec<Self>, DeviceError> {
        let contexts = Context::list(provider).map_err(|e| DeviceError::of_start(provider, "list the devices", e))?;
        if contexts.is_empty() {
            return Err(DeviceError::of_no_device(provider, None));
        }
        Ok(contexts.into_iter().map(Self::of_context).collect())
    }

    /// The device of this name: `rxe0`, `mlx5_0`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::UnknownName`] with the names that there are; else as [`Device::list`].
    pub fn by_name(provider: &ProviderRef, name: &str) -> Result<Self, DeviceError> {
        let devices = Self::list(provider)?;
        match devices.iter().find(|device| device.name() == name) {
            Some(device) => Ok(device.clone()),
            None => Err(DeviceError::UnknownName {
                name: name.to_owned(),
                names: devices.iter().map(|device| device.name().to_owned()).collect(),
            }),
        }
    }

    /// The device that an address of this machine is on (`rpma_utils_get_ibv_context` with `RPMA_UTIL_IBV_CONTEXT_LOCAL`).
    ///
    /// `host` is an IPv4 or IPv6 address, a link-local one with its scope (`fe80::1%eth0`), or a name. Every address that the name
    /// stands for is tried, and the first that is on a device counts.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]. If no address will do, the error of the one that came furthest.
    #[doc(alias = "rpma_utils_get_ibv_context")]
    pub fn local(provider: &ProviderRef, host: &str) -> Result<Self, DeviceError> {
        resolve::first(host, |ip| resolve::bind(provider, ip)).map(Self::of_context)
    }

    /// The device that the way to a remote address leads through (`rpma_utils_get_ibv_context` with
    /// `RPMA_UTIL_IBV_CONTEXT_REMOTE`).
    ///
    /// `host` is as for [`Device::local`]. `timeout` is for each address that the name stands for, as the C library's
    /// [`RESOLVE_TIMEOUT`](Self::RESOLVE_TIMEOUT) is; looking up the name takes as long as the system's resolver takes.
    ///
    /// ```
    /// use rpma_mr::Device;
    ///
    /// # let provider = rpma_soft::Soft::open()?;
    /// let device = Device::remote(&provider, "127.0.0.1", Device::RESOLVE_TIMEOUT)?; // the way to a peer
    /// assert!(device.is_same_as(&Device::local(&provider, "127.0.0.1")?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError`]. If no address will do, the error of the one that came furthest.
    #[doc(alias = "rpma_utils_get_ibv_context")]
    pub fn remote(provider: &ProviderRef, host: &str, timeout: Duration) -> Result<Self, DeviceError> {
        resolve::first(host, |ip| resolve::resolve(provider, ip, timeout)).map(Self::of_context)
    }

    /// The device of an open context, which is asked for its capabilities.
    ///
    /// ```
    /// use rpma_mr::Device;
    ///
    /// # let provider = rpma_soft::Soft::open()?;
    /// # let device = Device::local(&provider, "127.0.0.1")?;
    /// let same = Device::of_context(device.context().clone());
    /// assert!(same.is_same_as(&device) && same.capabilities() == device.capabilities());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_context(context: Arc<Context>) -> Self {
        let (capabilities, is_soft_roce) = match context.query_device() {
            Ok(attr) => (Capabilities::of(&attr), attr.orig_attr.vendor_id == SOFT_ROCE_VENDOR),
            Err(error) => {
                log::debug!(
                    "{} cannot be asked for its attributes, so it is used without optional operations: {error}",
                    context.name()
                );
                (Capabilities::default(), false)
            }
        };
        let transport = if context.is_iwarp() { Transport::Iwarp } else { Transport::InfiniBand };
        Self(Arc::new(Inner { name: context.name(), transport, capabilities, is_soft_roce, context }))
    }

    /// Whether it is the kernel's soft-RoCE, whose on-demand regions need a warning.
    pub(crate) fn is_soft_roce(&self) -> bool {
        self.0.is_soft_roce
    }

    /// Its name: `rxe0`, `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What carries its operations.
    ///
    /// ```
    /// use rpma_mr::{Device, Transport};
    ///
    /// # let provider = rpma_soft::Soft::open()?;
    /// let device = Device::local(&provider, "127.0.0.1")?;
    /// assert_eq!(device.transport(), Transport::InfiniBand); // what the software provider's device says
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.0.transport
    }

    /// What it can do. A device that cannot be asked has none of it.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    /// The open context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// The greatest length of one message or transfer in bytes (`ibv_port_attr::max_msg_sz`). Ports count from 1.
    ///
    /// ```
    /// use rpma_mr::Device;
    ///
    /// # let provider = rpma_soft::Soft::open()?;
    /// # let device = Device::local(&provider, "127.0.0.1")?;
    /// assert!(device.max_message_bytes(1)? >= 1 << 20); // ports are counted from 1
    /// assert!(device.max_message_bytes(200).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As `ibv_query_port(3)`: EINVAL if there is no such port.
    pub fn max_message_bytes(&self, port: u8) -> io::Result<u32> {
        Ok(self.0.context.query_port(port)?.max_msg_sz)
    }

    /// Whether both are the same open device: objects of one can be used with the other only then.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.0.context.is_same_as(&other.0.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{self, Fake};

    fn attr(general: u64, rc: u32, flags_ex: u64) -> ibv_device_attr_ex {
        let mut attr = ibv_device_attr_ex::default();
        attr.odp_caps.general_caps = general;
        attr.odp_caps.per_transport_caps.rc_odp_caps = rc;
        attr.device_cap_flags_ex = flags_ex;
        attr
    }

    #[test]
    fn on_demand_paging_needs_the_general_bit_and_both_directions() {
        let rows =
            [(1, 0xC, true), (1, 0xFF, true), (3, 0xC, true), (0, 0xC, false), (2, 0xC, false), (1, 4, false), (1, 8, false)];
        for (general, rc, expected) in rows {
            assert_eq!(Capabilities::of(&attr(general, rc, 0)).on_demand_paging, expected, "{general:#x} {rc:#x}");
        }
    }

    #[test]
    fn native_operations_are_in_the_bits_that_soft_roce_reports() {
        // Measured on soft-RoCE: kernel 6.12 has all three bits.
        let rxe = Capabilities::of(&attr(0, 0, 0x1C0_0122_3C76));
        assert!(rxe.native_flush && rxe.native_atomic_write && !rxe.on_demand_paging);
        for (bits, flush, atomic) in
            [(1 << 38, false, false), (1 << 39, false, false), (3 << 38, true, false), (1 << 40, false, true)]
        {
            let capabilities = Capabilities::of(&attr(0, 0, bits));
            assert_eq!((capabilities.native_flush, capabilities.native_atomic_write), (flush, atomic), "{bits:#x}");
        }
    }

    #[test]
    fn device_that_cannot_be_asked_has_no_capabilities() {
        let fake = Fake::new(&[("fake0", false)]);
        fake.edit(|state| state.query_device = fake::Answer::Errno(95));
        let device = &Device::list(&fake.provider()).unwrap()[0];
        assert_eq!(device.capabilities(), Capabilities::default());
    }

    #[test]
    fn device_tells_its_name_transport_and_capabilities() {
        let fake = Fake::new(&[("fake0", false), ("fake1", true)]);
        fake.edit(|state| state.device_cap_flags_ex = FLUSH_BITS);
        let devices = Device::list(&fake.provider()).unwrap();
        let told: Vec<_> = devices.iter().map(|d| (d.name(), d.transport(), d.capabilities().native_flush)).collect();
        assert_eq!(told, [("fake0", Transport::InfiniBand, true), ("fake1", Transport::Iwarp, true)]);
        assert!(devices[0].is_same_as(&devices[0].clone()));
        assert!(!devices[0].is_same_as(&devices[1]));
        assert_eq!(devices[0].max_message_bytes(1).unwrap(), fake::MAX_MSG_SZ);
        assert!(devices[0].max_message_bytes(2).is_err());
    }

    #[test]
    fn unknown_name_lists_the_names_there_are() {
        let provider = Fake::new(&[("fake0", false), ("fake1", false)]).provider();
        assert_eq!(Device::by_name(&provider, "fake1").unwrap().name(), "fake1");
        let error = Device::by_name(&provider, "fake2").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("fake2") && text.contains("fake0, fake1"), "{text}");
    }

    #[test]
    fn last_use_of_the_list_frees_it_once() {
        let fake = Fake::new(&[("fake0", false), ("fake1", false)]);
        let mut devices = Device::list(&fake.provider()).unwrap();
        assert_eq!(fake.live(), 1);
        let kept = devices.pop().unwrap();
        drop(devices);
        assert_eq!(fake.live(), 1);
        drop(kept);
        assert_eq!(fake.live(), 0);
    }
}
