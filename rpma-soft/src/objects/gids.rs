//! Global identifiers: the addresses of this machine, as RoCE makes identifiers of them.
#![expect(unsafe_code, reason = "walks the list of getifaddrs(3)")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;

use rpma_sys::socket_address;

/// A global identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// An IPv6 address, or an IPv4 address mapped to one.
    pub bytes: [u8; 16],
    /// The index of the network interface that has the address; 0 if it has gone.
    pub interface: u32,
}

/// More are not told: a bound for the table, as devices have one (soft-RoCE's is 1024).
const MOST: usize = 1024;

/// One identifier for each address of this machine.
pub(crate) fn table() -> io::Result<Vec<Gid>> {
    let mut list = null_mut();
    // SAFETY: a place for the list.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut gids = Vec::new();
    let mut next = list;
    while !next.is_null() && gids.len() < MOST {
        // SAFETY: an entry of the list, which is not freed yet.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: a whole address of the family that it says (getifaddrs(3)).
        let Some(addr) = (unsafe { socket_address::read(entry.ifa_addr.cast_const().cast()) }) else { continue };
        // SAFETY: a name that ends with 0 (getifaddrs(3)).
        let interface = unsafe { libc::if_nametoindex(entry.ifa_name) };
        gids.push(Gid { bytes: of(addr), interface });
    }
    // SAFETY: the list that was made above, freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(gids)
}

/// The identifier of an address.
pub(crate) fn of(addr: SocketAddr) -> [u8; 16] {
    match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_address_is_in_the_table_with_its_interface() {
        let loopback = of("127.0.0.1:0".parse().unwrap());
        assert_eq!(loopback[10..], [0xFF, 0xFF, 127, 0, 0, 1]);
        let found = table().unwrap().into_iter().find(|gid| gid.bytes == loopback).unwrap();
        assert_ne!(found.interface, 0);
    }
}
