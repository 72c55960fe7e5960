//! From a region's usage to the access rights that it is registered with.

use crate::Usage;
use bitflags::bitflags;

bitflags! {
    /// Access rights of a registered region. The numbers are those of `enum ibv_access_flags`
    /// (`ibv_reg_mr(3)`).
    ///
    /// ```
    /// use rpma_mr::{Access, Transport, Usage};
    ///
    /// let target = Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY;
    /// let rights = Access::for_usage(target, Transport::InfiniBand, true);
    /// assert_eq!(rights, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL);
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Our own device may write the region (`IBV_ACCESS_LOCAL_WRITE`). Reading it locally
        /// needs no right.
        const LOCAL_WRITE = 1;
        /// A peer may write the region (`IBV_ACCESS_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read the region (`IBV_ACCESS_REMOTE_READ`).
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomic operations on the region (`IBV_ACCESS_REMOTE_ATOMIC`). No usage
        /// asks for it: an atomic write is a write.
        const REMOTE_ATOMIC = 1 << 3;
        /// Pages are brought in when they are touched (`IBV_ACCESS_ON_DEMAND`). No usage asks for
        /// it: it is for registrations that cannot pin their pages.
        const ON_DEMAND = 1 << 6;
        /// A peer may flush to global visibility natively (`IBV_ACCESS_FLUSH_GLOBAL`).
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to persistence natively (`IBV_ACCESS_FLUSH_PERSISTENT`).
        const FLUSH_PERSISTENT = 1 << 9;
    }
}

/// What carries the operations, as far as access rights depend on it
/// (`ibv_device::transport_type`).
///
/// ```
/// use rpma_mr::{Access, Transport, Usage};
///
/// // The peer's answer to a read is a write on iWARP.
/// let rights = |transport| Access::for_usage(Usage::READ_DST, transport, false);
/// assert!(!rights(Transport::InfiniBand).contains(Access::REMOTE_WRITE));
/// assert!(rights(Transport::Iwarp).contains(Access::REMOTE_WRITE));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand, and RoCE, which is InfiniBand's transport over Ethernet.
    InfiniBand,
    /// iWARP: RDMA over TCP.
    Iwarp,
}

impl Access {
    /// The access rights that a region of this `usage` needs on a device of this `transport`.
    ///
    /// `native_flush` says that the device has the native flush operation; rights for it are
    /// asked for only then, because other devices refuse them. An empty usage needs no rights.
    #[must_use]
    pub fn for_usage(usage: Usage, transport: Transport, native_flush: bool) -> Self {
        let mut access = Self::empty();

        // The flush types give remote read on every device: a peer without native flush flushes
        // by reading, and a read without this right ends its connection. (The C library omits it
        // on devices that have native flush.)
        if usage.intersects(Usage::READ_SRC.union(Usage::FLUSH_TYPES)) {
            access |= Self::REMOTE_READ;
        }
        if usage.intersects(Usage::READ_DST | Usage::WRITE_SRC | Usage::WRITE_DST | Usage::RECV) {
            access |= Self::LOCAL_WRITE;
        }
        // The response to a read is a write by the peer on iWARP (RFC 5040, RDMA Read Response).
        if usage.contains(Usage::WRITE_DST) || (usage.contains(Usage::READ_DST) && transport == Transport::Iwarp) {
            access |= Self::REMOTE_WRITE;
        }
        if native_flush && usage.contains(Usage::FLUSH_TYPE_VISIBILITY) {
            access |= Self::FLUSH_GLOBAL;
        }
        if native_flush && usage.contains(Usage::FLUSH_TYPE_PERSISTENT) {
            access |= Self::FLUSH_PERSISTENT;
        }
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSPORTS: [Transport; 2] = [Transport::InfiniBand, Transport::Iwarp];

    /// What each usage bit contributes, in the numbers of `ibv_access_flags` and written down
    /// independently of the code: InfiniBand, InfiniBand with native flush, iWARP, iWARP with
    /// native flush. Rows are in the order of the usage bits.
    const CONTRIBUTIONS: [[u32; 4]; 8] = [
        [0x004, 0x004, 0x004, 0x004], // READ_SRC: remote read
        [0x001, 0x001, 0x003, 0x003], // READ_DST: local write, on iWARP remote write too
        [0x001, 0x001, 0x001, 0x001], // WRITE_SRC: local write
        [0x003, 0x003, 0x003, 0x003], // WRITE_DST: local and remote write
        [0x004, 0x104, 0x004, 0x104], // FLUSH_TYPE_VISIBILITY: remote read, flush global
        [0x004, 0x204, 0x004, 0x204], // FLUSH_TYPE_PERSISTENT: remote read, flush persistent
        [0x000, 0x000, 0x000, 0x000], // SEND: nothing
        [0x001, 0x001, 0x001, 0x001], // RECV: local write
    ];

    fn column(transport: Transport, native_flush: bool) -> usize {
        match (transport, native_flush) {
            (Transport::InfiniBand, false) => 0,
            (Transport::InfiniBand, true) => 1,
            (Transport::Iwarp, false) => 2,
            (Transport::Iwarp, true) => 3,
        }
    }

    #[test]
    fn every_usage_gets_the_sum_of_what_its_bits_contribute() {
        for mask in 0..=u8::MAX {
            for transport in TRANSPORTS {
                for native_flush in [false, true] {
                    let expected = (0..8)
                        .filter(|bit| mask >> bit & 1 == 1)
                        .map(|bit| CONTRIBUTIONS[bit][column(transport, native_flush)])
                        .fold(0, |sum, rights| sum | rights);
                    let usage = Usage::from_bits_retain(mask);
                    assert_eq!(
                        Access::for_usage(usage, transport, native_flush).bits(),
                        expected,
                        "{usage:?}, {transport:?}, native flush {native_flush}"
                    );
                }
            }
        }
    }

    #[test]
    fn access_of_typical_usages_matches_rows_worked_out_by_hand() {
        use Transport::{InfiniBand, Iwarp};
        let rows = [
            // A target that peers write and flush to persistence.
            (0x28, InfiniBand, false, 0x007),
            (0x28, InfiniBand, true, 0x207),
            // The same, also flushed to visibility and read.
            (0x39, InfiniBand, true, 0x307),
            (0x39, Iwarp, false, 0x007),
            // A buffer that both reads and writes start from.
            (0x06, InfiniBand, false, 0x001),
            (0x06, Iwarp, false, 0x003),
            // Message buffers.
            (0x40, InfiniBand, true, 0x000),
            (0xC0, Iwarp, true, 0x001),
            // Everything.
            (0xFF, InfiniBand, false, 0x007),
            (0xFF, Iwarp, true, 0x307),
            // Flush alone.
            (0x10, InfiniBand, true, 0x104),
            (0x20, Iwarp, false, 0x004),
            // Nothing.
            (0x00, InfiniBand, true, 0x000),
        ];
        for (mask, transport, native_flush, expected) in rows {
            assert_eq!(
                Access::for_usage(Usage::from_bits_retain(mask), transport, native_flush).bits(),
                expected,
                "usage {mask:#04x}, {transport:?}, native flush {native_flush}"
            );
        }
    }

    #[test]
    fn remote_write_never_comes_without_local_write() {
        // The kernel refuses such a registration (`ib_check_mr_access`).
        for mask in 0..=u8::MAX {
            for transport in TRANSPORTS {
                let access = Access::for_usage(Usage::from_bits_retain(mask), transport, true);
                assert!(
                    !access.contains(Access::REMOTE_WRITE) || access.contains(Access::LOCAL_WRITE),
                    "usage {mask:#04x}, {transport:?}: {access:?}"
                );
            }
        }
    }

    #[test]
    fn access_numbers_are_those_of_verbs() {
        let numbers = [
            (Access::LOCAL_WRITE, 1),
            (Access::REMOTE_WRITE, 2),
            (Access::REMOTE_READ, 4),
            (Access::REMOTE_ATOMIC, 8),
            (Access::ON_DEMAND, 64),
            (Access::FLUSH_GLOBAL, 256),
            (Access::FLUSH_PERSISTENT, 512),
        ];
        for (access, number) in numbers {
            assert_eq!(access.bits(), number, "{access:?}");
        }
    }
}
