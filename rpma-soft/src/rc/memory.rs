//! What the core asks of registered memory. It never touches any itself.

use crate::wire::Placement;

bitflags::bitflags! {
    /// Rights of a region, as `IBV_ACCESS_*` (`ibv_reg_mr(3)`). Local reading needs none.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Receives and read responses may be placed there.
        const LOCAL_WRITE = 1;
        /// The peer may write.
        const REMOTE_WRITE = 2;
        /// The peer may read.
        const REMOTE_READ = 4;
        /// The peer may compare and swap, fetch and add.
        const REMOTE_ATOMIC = 8;
        /// The peer may make data visible.
        const FLUSH_GLOBAL = 256;
        /// The peer may make data durable.
        const FLUSH_PERSISTENT = 512;
    }
}

impl From<Placement> for Access {
    /// The right that each placement type needs: IBTA annex A19, oA19-13.
    fn from(placement: Placement) -> Self {
        let mut access = Self::empty();
        access.set(Self::FLUSH_GLOBAL, placement.contains(Placement::GLOBAL));
        access.set(Self::FLUSH_PERSISTENT, placement.contains(Placement::PERSISTENT));
        access
    }
}

/// A protection domain, by number: a key opens only what is registered in the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PdNumber(pub u32);

/// The key of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// An lkey, used by a work request of this end.
    Local(u32),
    /// An rkey, used by a request of the peer.
    Remote(u32),
}

/// Which part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A range, which may be empty and may not wrap.
    Range {
        /// Where it begins.
        addr: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// All of it.
    Region,
}

/// A claim to use registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The queue pair's protection domain.
    pub pd: PdNumber,
    /// The region.
    pub key: Key,
    /// The part of it.
    pub extent: Extent,
    /// Every right that is needed.
    pub access: Access,
}

/// A claim is refused: no such key, another protection domain, a right that is missing, or bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key does not open this memory")]
pub struct Denied;

/// Memory that is registered cannot be reached all the same: its file was truncated, for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("registered memory cannot be reached")]
pub struct MemoryFault;

/// The registered memory of a device.
///
/// A claim that holds becomes a lease: the proof that it held. It does not keep the memory registered: memory that is deregistered while
/// there is a lease is a [`MemoryFault`] to whoever reaches for it then. The core keeps leases only where a check that was made need not be
/// made again: behind a flush that is still running. All others it hands to the driver with what is to be moved.
///
/// The operations below are small and happen at once; bulk data is the driver's, between socket and memory.
pub trait Memory {
    /// A claim that held when it was checked.
    type Lease;

    /// Checks a claim, as [`Denied`] says.
    ///
    /// # Errors
    ///
    /// [`Denied`].
    fn lease(&self, claim: &Claim) -> Result<Self::Lease, Denied>;

    /// Replaces the 8 bytes at `addr` by `swap` if they are `compare`, at once, and returns what they were. `addr` is a multiple of 8
    /// within the lease. The integers are the host's.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`].
    fn compare_swap(&self, lease: &Self::Lease, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault>;

    /// Adds `add` to the 8 bytes at `addr`, wrapping, at once, and returns what they were. As for
    /// [`compare_swap`](Self::compare_swap).
    ///
    /// # Errors
    ///
    /// [`MemoryFault`].
    fn fetch_add(&self, lease: &Self::Lease, addr: u64, add: u64) -> Result<u64, MemoryFault>;

    /// Stores 8 bytes at `addr`, a multiple of 8 within the lease, at once, with everything placed before visible before them.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`].
    fn atomic_write(&self, lease: &Self::Lease, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault>;

    /// Stores `bytes` at `addr` within the lease: the value that an atomic operation found, 8 bytes, or a part of it.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`].
    fn store_original(&self, lease: &Self::Lease, addr: u64, bytes: &[u8]) -> Result<(), MemoryFault>;
}

/// A piece of registered memory that the driver reads or fills.
#[derive(Debug)]
pub struct Range<L> {
    /// Leads to it, as long as it is registered.
    pub lease: L,
    /// Where it begins.
    pub addr: u64,
    /// How long it is; not 0.
    pub len_bytes: u32,
}

/// Checks the first `len_bytes` bytes of a scatter or gather list. Ranges of length 0 are skipped, whatever their key, as adapters do.
///
/// The list is at least that long: its caller compared.
pub(super) fn lease_list<M: Memory>(
    memory: &M,
    pd: PdNumber,
    list: &[super::Sge],
    len_bytes: u32,
    access: Access,
) -> Result<Vec<Range<M::Lease>>, Denied> {
    let mut ranges = Vec::with_capacity(list.len());
    let mut left = len_bytes;
    for sge in list {
        let len_bytes = sge.len_bytes.min(left);
        if len_bytes == 0 {
            continue;
        }
        let extent = Extent::Range { addr: sge.addr, len_bytes: len_bytes.into() };
        let lease = memory.lease(&Claim { pd, key: Key::Local(sge.lkey), extent, access })?;
        ranges.push(Range { lease, addr: sge.addr, len_bytes });
        left -= len_bytes;
    }
    Ok(ranges)
}
