//! Socket addresses, from C and back.
#![expect(unsafe_code, reason = "reads and writes sockaddr structures")]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::bindings::*;

/// Reads an address of any alignment; `None` if it is of no family that we know.
///
/// # Safety
///
/// `addr` leads to a whole address of the family that it says.
#[must_use]
pub unsafe fn read(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: every address begins with its family (contract above).
    let family = unsafe { addr.cast::<sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so (contract above).
            let raw = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so (contract above).
            let raw = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            // SAFETY: every member of the union is plain bytes.
            let ip = Ipv6Addr::from(unsafe { raw.sin6_addr.__in6_u.__u6_addr8 });
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The address in C's form.
#[must_use]
pub fn storage(addr: SocketAddr) -> sockaddr_storage {
    let mut storage = sockaddr_storage::default();
    let family = |af: c_int| sa_family_t::try_from(af).expect("address families are small numbers");
    match addr {
        SocketAddr::V4(v4) => {
            let raw = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                ..sockaddr_in::default()
            };
            // SAFETY: a socket address of any family fits the storage, which is aligned for all of them.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(v6) => {
            let raw = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: in6_addr { __in6_u: in6_addr__bindgen_ty_1 { __u6_addr8: v6.ip().octets() } },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as for IPv4.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(raw) };
        }
    }
    storage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in ["10.0.0.1:7204", "0.0.0.0:0", "[fd00::1]:65535", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let storage = storage(addr);
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Some(addr));
        }
        let none = sockaddr_storage::default();
        // SAFETY: a whole address of no family.
        assert_eq!(unsafe { read((&raw const none).cast()) }, None);
    }
}
