//! Which address of this machine is on an RDMA device.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rpma::sys::ProviderRef;
use rpma::{Device, DeviceError};

/// Why no address of this machine can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum AddressError {
    /// The kernel does not tell the machine's addresses.
    #[error("the addresses of this machine cannot be listed: give one")]
    List(#[source] io::Error),
    /// There is none to try.
    #[error(
        "this machine has no address but loopback and link-local ones, which RDMA cannot use: give an interface one (`ip addr add`)"
    )]
    NoAddress,
    /// None of them is on a device.
    #[error("no address of this machine is on an RDMA device (tried: {})", list(tried))]
    NoDevice { tried: Vec<IpAddr>, source: DeviceError },
}

fn list(tried: &[IpAddr]) -> String {
    tried.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// The first address of this machine that is on a device of the provider; IPv4 before IPv6. The software provider serves the loopback
/// address, and with it nothing leaves the machine.
///
/// # Errors
///
/// [`AddressError`]; its source is why the last address that was tried will not do.
pub fn default_address(provider: &ProviderRef) -> Result<IpAddr, AddressError> {
    if provider.name() == "soft" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let mut tried = candidates().map_err(|e| AddressError::List(e.into()))?;
    // Stable, so the kernel's order is kept among those of one kind.
    tried.sort_by_key(IpAddr::is_ipv6);
    let mut last = None;
    for ip in &tried {
        match Device::local(provider, &ip.to_string()) {
            Ok(_) => return Ok(*ip),
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or(AddressError::NoAddress, |source| AddressError::NoDevice { tried, source }))
}

/// Addresses of interfaces that are up. Loopback is on no RDMA device, and a link-local address needs its interface beside it.
fn candidates() -> Result<Vec<IpAddr>, Errno> {
    let up = getifaddrs()?.filter(|interface| {
        interface.flags.contains(InterfaceFlags::IFF_UP) && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    });
    let addresses = up.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addresses.filter(is_candidate).collect())
}

fn is_candidate(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_need_an_interface_beside_them_are_no_candidates() {
        for (ip, expected) in [("10.0.0.1", true), ("fd00::1", true), ("169.254.0.1", false), ("fe80::1", false)] {
            assert_eq!(is_candidate(&ip.parse().unwrap()), expected, "{ip}");
        }
    }

    #[test]
    fn message_names_every_address_that_was_tried() {
        let tried = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let error = AddressError::NoDevice { tried, source: DeviceError::NoDevice { source: None } };
        assert_eq!(error.to_string(), "no address of this machine is on an RDMA device (tried: 10.0.0.1, fd00::1)");
    }
}
