//! Why no device was found, kept apart by what to do about it.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use rpma_sys::ProviderRef;
use rustix::io::Errno;

use crate::ErrorCode;

/// Why there is no device to use. Each message says what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum DeviceError {
    /// The machine has no RDMA device that the kernel knows.
    #[error(
        "there is no RDMA device on this machine: `rdma link show` lists them, and `rdma link add rxe0 type rxe netdev eth0` makes one \
         of an Ethernet interface (as root, with the kernel module rdma_rxe); the software provider (RPMA_PROVIDER=soft) needs none"
    )]
    NoDevice { source: Option<io::Error> },
    /// The kernel knows devices, and rdma-core can open none of them.
    #[error(
        "the RDMA devices {} are there but none can be used: look whether their drivers for user space are installed (Debian, Ubuntu: \
         apt-get install ibverbs-providers; Fedora, RHEL: dnf install libibverbs), whether this process may open /dev/infiniband/uverbs*, \
         and whether the kernel module rdma_ucm is loaded (`modprobe rdma_ucm`)",
        .names.join(", ")
    )]
    Unusable { names: Vec<String>, source: Option<io::Error> },
    /// The process may not open the device files.
    #[error(
        "not permitted to use RDMA devices: this process must be able to open /dev/infiniband/rdma_cm and /dev/infiniband/uverbs* for \
         reading and writing (`ls -l /dev/infiniband` shows who may; a container must be given these devices)"
    )]
    NotPermitted { source: io::Error },
    /// The host's name or address could not be looked up. The source is the resolver's message.
    #[error("cannot look up the host {host:?}: check its spelling, and that `getent ahosts` finds it")]
    UnknownHost { host: String, source: io::Error },
    /// No device has this name.
    #[error("there is no RDMA device {name:?}: there are {}", .names.join(", "))]
    UnknownName { name: String, names: Vec<String> },
    /// A link-local address without its interface.
    #[error("{ip} is valid on one link only: say on which interface it is, as in {ip}%eth0")]
    NoScope { ip: IpAddr },
    /// A local address that this machine does not have.
    #[error("{ip} is no address of this machine: `ip addr` lists those that are")]
    NotLocal { ip: IpAddr, source: io::Error },
    /// An address that no device serves, the wildcard and loopback addresses among them.
    #[error(
        "{ip} is on no RDMA device: use the address of an interface that `rdma link show` lists (the wildcard and loopback addresses are \
         on none), or the software provider (RPMA_PROVIDER=soft)"
    )]
    NotOnDevice { ip: IpAddr, source: Option<io::Error> },
    /// The network has no way to the address.
    #[error("{ip} cannot be reached: `ip route get {ip}` shows the way that was tried")]
    Unreachable { ip: IpAddr, source: io::Error },
    /// The address did not answer.
    #[error("{ip} did not answer within {} ms: is the host up, and on the same network as the RDMA device?", .timeout.as_millis())]
    TimedOut { ip: IpAddr, timeout: Duration },
    /// The provider failed in a way that none of the above describes.
    #[error("the provider could not {doing}")]
    Provider { doing: &'static str, source: io::Error },
}

impl DeviceError {
    /// The C library's code for this error.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownName { .. } | Self::NoScope { .. } => ErrorCode::InvalidArgument,
            Self::NoDevice { .. }
            | Self::Unusable { .. }
            | Self::NotPermitted { .. }
            | Self::UnknownHost { .. }
            | Self::NotLocal { .. }
            | Self::NotOnDevice { .. }
            | Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Provider { .. } => ErrorCode::Provider,
        }
    }

    /// The error of opening an event channel or the list of devices, before any address comes into play.
    ///
    /// librdmacm answers ENODEV if libibverbs finds no device, and the errno of opening `/dev/infiniband/rdma_cm` else: ENOENT
    /// without the module rdma_ucm, ENXIO if only the file is there, EACCES by its mode, EPERM by a container's device rules (EPERM
    /// too if library and kernel do not understand each other: `ucma_init`, librdmacm/cma.c).
    pub(crate) fn of_start(provider: &ProviderRef, doing: &'static str, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::NODEV | Errno::NOENT | Errno::NXIO | Errno::NOSYS) => Self::of_no_device(provider, Some(source)),
            Some(Errno::ACCESS | Errno::PERM) => Self::NotPermitted { source },
            _ => Self::Provider { doing, source },
        }
    }

    /// No device was given. The kernel may still know some: libibverbs hides devices that it has no driver for, and librdmacm says
    /// ENODEV for those that it may not open. It also says ENOENT where it may not open its own device file, since it then looks for
    /// that under other names (`open_cdev`, librdmacm 56). So the files are tried here.
    pub(crate) fn of_no_device(provider: &ProviderRef, source: Option<io::Error>) -> Self {
        let names = if provider.name().starts_with("rdma-core") {
            kernel_devices(Path::new("/sys/class/infiniband"))
        } else {
            Vec::new()
        };
        if names.is_empty() {
            Self::NoDevice { source }
        } else if let Some(source) = forbidden(Path::new(DEVICE_FILES)) {
            Self::NotPermitted { source }
        } else {
            Self::Unusable { names, source }
        }
    }

    /// Where the process may open no device, librdmacm has an address on none (ENODEV), or cannot resolve it and names no cause.
    pub(crate) fn unless_forbidden(self, provider: &ProviderRef) -> Self {
        let may_be = match &self {
            Self::NotOnDevice { source, .. } => source.is_some(),
            Self::Provider { source, .. } => source.raw_os_error().is_none(),
            _ => false,
        };
        if may_be && provider.name().starts_with("rdma-core") {
            forbidden(Path::new(DEVICE_FILES)).map_or(self, |source| Self::NotPermitted { source })
        } else {
            self
        }
    }

    /// The error of binding to a local address.
    ///
    /// The kernel answers EADDRNOTAVAIL if no interface has the address (`rdma_translate_ip`) and ENODEV if the interface is no RDMA
    /// device (`cma_acquire_dev_by_src_ip`); librdmacm adds ENODEV for a device that it cannot open.
    pub(crate) fn of_bind(ip: IpAddr, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::ADDRNOTAVAIL) => Self::NotLocal { ip, source },
            Some(Errno::NODEV) => Self::NotOnDevice { ip, source: Some(source) },
            Some(Errno::ACCESS | Errno::PERM) => Self::NotPermitted { source },
            _ => Self::Provider { doing: "bind to the address", source },
        }
    }

    /// The error of resolving a remote address: of the call itself, or the status of its event.
    pub(crate) fn of_resolve(ip: IpAddr, timeout: Duration, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::TIMEDOUT) => Self::TimedOut { ip, timeout },
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN) => Self::Unreachable { ip, source },
            Some(Errno::NODEV) => Self::NotOnDevice { ip, source: Some(source) },
            Some(Errno::ACCESS | Errno::PERM) => Self::NotPermitted { source },
            _ => Self::Provider { doing: "resolve the address", source },
        }
    }

    /// Whether another address cannot change anything about it.
    pub(crate) const fn concerns_every_address(&self) -> bool {
        matches!(
            self,
            Self::NoDevice { .. }
                | Self::Unusable { .. }
                | Self::NotPermitted { .. }
                | Self::UnknownHost { .. }
                | Self::UnknownName { .. }
        )
    }

    /// How far an address came: of several, the error of the one that came furthest is told.
    pub(crate) const fn progress(&self) -> u8 {
        match self {
            Self::NoDevice { .. }
            | Self::Unusable { .. }
            | Self::NotPermitted { .. }
            | Self::UnknownHost { .. }
            | Self::UnknownName { .. } => 0,
            Self::NoScope { .. } | Self::NotLocal { .. } => 1,
            Self::NotOnDevice { .. } => 2,
            Self::Unreachable { .. } => 3,
            Self::TimedOut { .. } => 4,
            Self::Provider { .. } => 5,
        }
    }
}

/// Where rdma-core finds the device files.
const DEVICE_FILES: &str = "/dev/infiniband";

/// The names of the devices that the kernel knows; none if it cannot be asked.
fn kernel_devices(class: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(class) else { return Vec::new() };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The error of opening the device files, if the connection manager's or all devices' are there and may not be opened: EACCES by their
/// mode, EPERM by a container's device rules.
fn forbidden(dir: &Path) -> Option<io::Error> {
    // As rdma-core opens them; nothing happens by that alone.
    let open = |path: &Path| std::fs::OpenOptions::new().read(true).write(true).open(path).map(drop);
    let is_forbidden = |e: &io::Error| matches!(Errno::from_io_error(e), Some(Errno::ACCESS | Errno::PERM));
    if let Err(e) = open(&dir.join("rdma_cm"))
        && is_forbidden(&e)
    {
        return Some(e);
    }
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let devices = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs"));
    let mut first = None;
    for device in devices {
        let e = open(&device.path()).err()?;
        first = first.or_else(|| Some(e).filter(is_forbidden));
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn errno(e: Errno) -> io::Error {
        e.into()
    }

    #[test]
    fn errno_of_the_start_decides_between_absent_forbidden_and_broken() {
        let provider = Fake::new(&[]).provider();
        for e in [Errno::NODEV, Errno::NOENT, Errno::NXIO, Errno::NOSYS] {
            assert!(
                matches!(DeviceError::of_start(&provider, "x", errno(e)), DeviceError::NoDevice { source: Some(_) }),
                "{e:?}"
            );
        }
        for e in [Errno::ACCESS, Errno::PERM] {
            assert!(matches!(DeviceError::of_start(&provider, "x", errno(e)), DeviceError::NotPermitted { .. }), "{e:?}");
        }
        assert!(matches!(DeviceError::of_start(&provider, "x", errno(Errno::MFILE)), DeviceError::Provider { doing: "x", .. }));
    }

    #[test]
    fn errno_of_a_local_address_tells_foreign_from_served_by_no_device() {
        assert!(matches!(DeviceError::of_bind(IP, errno(Errno::ADDRNOTAVAIL)), DeviceError::NotLocal { .. }));
        assert!(matches!(DeviceError::of_bind(IP, errno(Errno::NODEV)), DeviceError::NotOnDevice { .. }));
        assert!(matches!(DeviceError::of_bind(IP, errno(Errno::ADDRINUSE)), DeviceError::Provider { .. }));
    }

    #[test]
    fn errno_of_a_remote_address_tells_silent_from_unreachable() {
        let of = |e| DeviceError::of_resolve(IP, Duration::from_millis(250), errno(e));
        assert!(of(Errno::TIMEDOUT).to_string().contains("10.0.0.1 did not answer within 250 ms"));
        assert!(matches!(of(Errno::NETUNREACH), DeviceError::Unreachable { .. }));
        assert!(matches!(of(Errno::HOSTUNREACH), DeviceError::Unreachable { .. }));
        assert!(matches!(of(Errno::NODEV), DeviceError::NotOnDevice { .. }));
        assert!(matches!(of(Errno::INVAL), DeviceError::Provider { .. }));
    }

    #[test]
    fn device_files_that_are_absent_or_can_be_opened_are_not_forbidden() {
        let dir = tempfile::tempdir().unwrap();
        assert!(forbidden(&dir.path().join("none")).is_none());
        assert!(forbidden(dir.path()).is_none());
        std::fs::write(dir.path().join("rdma_cm"), []).unwrap();
        std::fs::write(dir.path().join("uverbs0"), []).unwrap();
        assert!(forbidden(dir.path()).is_none());
    }

    #[test]
    fn devices_of_the_kernel_are_listed_by_name() {
        let class = tempfile::tempdir().unwrap();
        assert!(kernel_devices(&class.path().join("none")).is_empty());
        for name in ["rxe0", "mlx5_1"] {
            std::fs::create_dir(class.path().join(name)).unwrap();
        }
        assert_eq!(kernel_devices(class.path()), ["mlx5_1", "rxe0"]);
    }

    #[test]
    fn messages_of_the_four_kinds_of_absence_differ_and_say_what_to_do() {
        let messages = [
            DeviceError::NoDevice { source: None }.to_string(),
            DeviceError::Unusable { names: vec!["mlx5_0".into()], source: None }.to_string(),
            DeviceError::NotPermitted { source: errno(Errno::ACCESS) }.to_string(),
            DeviceError::NotOnDevice { ip: IP, source: None }.to_string(),
        ];
        let hints = ["rdma link add", "ibverbs-providers", "ls -l /dev/infiniband", "rdma link show"];
        for (i, (message, hint)) in messages.iter().zip(hints).enumerate() {
            assert!(message.contains(hint), "{message}");
            assert!(messages[i + 1..].iter().all(|other| other != message));
        }
    }
}
