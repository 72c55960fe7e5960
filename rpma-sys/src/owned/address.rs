//! Addresses that the connection manager cannot do anything with.

use std::net::SocketAddr;

/// Whether it is an address of one link without its interface: the connection manager would wait for an answer that never comes.
#[must_use]
pub fn lacks_scope(addr: SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_addresses_need_a_scope() {
        let rows = [("[fe80::1]:1", true), ("[fe80::1%2]:1", false), ("[fd00::1]:1", false), ("10.0.0.1:1", false)];
        for (addr, lacks) in rows {
            assert_eq!(lacks_scope(addr.parse().unwrap()), lacks, "{addr}");
        }
    }
}
