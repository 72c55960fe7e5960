//! Registered memory: the table of keys, and what the protocol core asks of it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::maps::Durability;
use super::touch;
use crate::rc::{Access, Claim, Denied, Extent, Key, Memory, MemoryFault, PdNumber};

/// A registered range.
#[derive(Debug)]
pub(crate) struct Region {
    pd: PdNumber,
    key: u32,
    /// Where it is for work requests and peers.
    iova: u64,
    /// Where it is in this process.
    host: u64,
    len_bytes: u64,
    access: Access,
    /// Whether its pages can go away.
    can_fault: bool,
    /// The parts of it that can be made durable, in order; without holes where `FLUSH_PERSISTENT` was granted.
    durable: Vec<Durable>,
    /// Writing back has failed. The kernel tells such an error once, and counts the pages as clean then: no later flush may succeed.
    failed: AtomicBool,
    revoked: AtomicBool,
    /// Held for reading while memory is touched. Deregistration takes it for writing.
    touched: RwLock<()>,
}

/// A part of a region that can be made durable: from where, to where in this process, and how.
pub(super) type Durable = (u64, u64, Durability);

/// What a region is made from.
#[derive(Debug)]
pub(crate) struct NewRegion {
    /// Its protection domain.
    pub(crate) pd: PdNumber,
    /// Where it is for work requests and peers.
    pub(crate) iova: u64,
    /// Where it is in this process.
    pub(crate) host: u64,
    /// How long it is.
    pub(crate) len_bytes: u64,
    /// What may be done with it.
    pub(crate) access: Access,
}

/// Keeps a region's claim checked. Memory is touched under a [`Touch`], which deregistration can refuse.
#[derive(Debug, Clone)]
pub(crate) struct Lease(Arc<Region>);

/// While it lives, the region stays registered: so it is held for one system call or one access.
#[derive(Debug)]
pub(crate) struct Touch<'a> {
    region: &'a Region,
    _guard: RwLockReadGuard<'a, ()>,
}

impl Region {
    /// Sets its memory aside for our own use, unless it is deregistered.
    pub(crate) fn touch(&self) -> Result<Touch<'_>, MemoryFault> {
        // Never waits: the only one who holds it for writing is deregistration.
        let guard = match self.touched.try_read() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return Err(MemoryFault),
        };
        if self.revoked.load(Ordering::Acquire) {
            return Err(MemoryFault);
        }
        Ok(Touch { region: self, _guard: guard })
    }

    /// Ends its registration. When this returns, nothing of ours touches the memory, and nothing will.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        drop(self.touched.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Lease {
    /// The region.
    pub(crate) fn region(&self) -> &Region {
        &self.0
    }

    /// Makes a part of the region durable.
    pub(crate) fn persist(&self, extent: Extent) -> Result<(), MemoryFault> {
        let region = &self.0;
        let (addr, len_bytes) = match extent {
            Extent::Region => (region.iova, region.len_bytes),
            Extent::Range { addr, len_bytes } => (addr, len_bytes),
        };
        if region.failed.load(Ordering::Acquire) {
            return Err(MemoryFault);
        }
        let touch = region.touch()?;
        let start = touch.host(addr);
        let end = start + len_bytes;
        let mut reached = start;
        for (from, to, how) in &region.durable {
            let (from, to) = (start.max(*from), end.min(*to));
            if from >= to {
                continue;
            }
            if from > reached {
                return Err(MemoryFault);
            }
            reached = to;
            if !how.still_has(to) {
                return Err(MemoryFault);
            }
            match how {
                Durability::CacheLines => touch::write_back(&touch, from, to - from),
                Durability::File { .. } => {
                    touch::sync(&touch, from, to - from).inspect_err(|_| region.failed.store(true, Ordering::Release))?;
                }
            }
        }
        if reached < end { Err(MemoryFault) } else { Ok(()) }
    }
}

impl Touch<'_> {
    /// Where `addr`, an address as work requests and peers have it, is in this process.
    pub(crate) fn host(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.region.iova).wrapping_add(self.region.host)
    }

    /// Whether it is `region` that stays registered.
    pub(crate) fn is_of(&self, region: &Region) -> bool {
        std::ptr::eq(self.region, region)
    }

    /// Whether a plain access could raise SIGBUS.
    pub(crate) fn can_fault(&self) -> bool {
        self.region.can_fault
    }
}

/// The regions of a device, by key.
pub(crate) struct Table {
    regions: RwLock<HashMap<u32, Arc<Region>>>,
    random: RandomState,
    counter: AtomicU64,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl Table {
    /// No regions.
    pub(crate) fn new() -> Self {
        Self { regions: RwLock::default(), random: RandomState::new(), counter: AtomicU64::new(0) }
    }

    /// Registers a region, and returns its key. `durable` covers it if its access has `FLUSH_PERSISTENT`; `can_fault`: its pages can go
    /// away.
    ///
    /// Keys look random, so that a peer cannot guess one and a key of the past opens nothing: one in 2^32.
    pub(super) fn register(&self, new: NewRegion, durable: Vec<Durable>, can_fault: bool) -> (u32, Arc<Region>) {
        let NewRegion { pd, iova, host, len_bytes, access } = new;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let key = loop {
            #[expect(clippy::cast_possible_truncation, reason = "half of the hash is enough")]
            let key = self.random.hash_one(self.counter.fetch_add(1, Ordering::Relaxed)) as u32;
            if key != 0 && !regions.contains_key(&key) {
                break key;
            }
        };
        let region = Arc::new(Region {
            pd,
            key,
            iova,
            host,
            len_bytes,
            access,
            can_fault,
            durable,
            failed: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            touched: RwLock::new(()),
        });
        regions.insert(key, Arc::clone(&region));
        (key, region)
    }

    /// Registers memory that is never made durable.
    #[cfg(test)]
    pub(crate) fn register_plain(&self, new: NewRegion) -> (u32, Arc<Region>) {
        self.register(new, Vec::new(), false)
    }

    /// Deregisters. When this returns, nothing of ours touches the memory, and nothing will.
    pub(crate) fn deregister(&self, region: &Region) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&region.key);
        region.revoke();
    }

    /// The region behind `claim`, if the claim holds.
    pub(crate) fn lease(&self, claim: &Claim) -> Result<Lease, Denied> {
        let (Key::Local(key) | Key::Remote(key)) = claim.key;
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let region = regions.get(&key).filter(|region| region.pd == claim.pd && region.access.contains(claim.access));
        let region = region.ok_or(Denied)?;
        if let Extent::Range { addr, len_bytes } = claim.extent {
            let offset = addr.checked_sub(region.iova).ok_or(Denied)?;
            let end = offset.checked_add(len_bytes).ok_or(Denied)?;
            if end > region.len_bytes {
                return Err(Denied);
            }
        }
        Ok(Lease(Arc::clone(region)))
    }
}

/// The registered memory of a device, as its queue pairs use it.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMemory(pub(crate) Arc<Table>);

impl Memory for DeviceMemory {
    type Lease = Lease;

    fn lease(&self, claim: &Claim) -> Result<Lease, Denied> {
        self.0.lease(claim)
    }

    fn compare_swap(&self, lease: &Lease, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        touch::compare_swap(&lease.region().touch()?, addr, compare, swap)
    }

    fn fetch_add(&self, lease: &Lease, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        touch::fetch_add(&lease.region().touch()?, addr, add)
    }

    fn atomic_write(&self, lease: &Lease, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault> {
        touch::store(&lease.region().touch()?, addr, value)
    }

    fn store_original(&self, lease: &Lease, addr: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        touch::store_original(&lease.region().touch()?, addr, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const PD: PdNumber = PdNumber(3);

    fn region(table: &Table, bytes: &mut [u8], access: Access) -> (u32, Arc<Region>) {
        let host = bytes.as_mut_ptr().expose_provenance() as u64;
        table.register(NewRegion { pd: PD, iova: 0x1000, host, len_bytes: bytes.len() as u64, access }, Vec::new(), false)
    }

    fn claim(key: u32, addr: u64, len_bytes: u64, access: Access) -> Claim {
        Claim { pd: PD, key: Key::Remote(key), extent: Extent::Range { addr, len_bytes }, access }
    }

    #[test]
    fn claims_hold_within_bounds_rights_and_domain_only() {
        let table = Table::new();
        let mut bytes = [0; 64];
        let (key, _region) = region(&table, &mut bytes, Access::REMOTE_READ);
        let read = Access::REMOTE_READ;
        assert!(table.lease(&claim(key, 0x1000, 64, read)).is_ok());
        assert!(table.lease(&claim(key, 0x1040, 0, read)).is_ok());
        for (addr, len) in [(0xFFF, 1), (0x1000, 65), (0x1041, 0), (u64::MAX, 2), (0x1001, u64::MAX)] {
            assert!(table.lease(&claim(key, addr, len, read)).is_err(), "{addr:#x} {len}");
        }
        assert!(table.lease(&claim(key, 0x1000, 1, Access::REMOTE_WRITE)).is_err());
        assert!(table.lease(&claim(key.wrapping_add(1), 0x1000, 1, read)).is_err());
        assert!(table.lease(&Claim { pd: PdNumber(4), ..claim(key, 0x1000, 1, read) }).is_err());
        assert!(table.lease(&Claim { extent: Extent::Region, ..claim(key, 0, 0, read) }).is_ok());
    }

    #[test]
    fn flush_of_what_no_durable_part_covers_fails_and_once_failed_it_stays_so() {
        let table = Table::new();
        let mut bytes = [0; 64];
        let host = bytes.as_mut_ptr().expose_provenance() as u64;
        let new = NewRegion { pd: PD, iova: 0x1000, host, len_bytes: 64, access: Access::FLUSH_PERSISTENT };
        let (key, of) = table.register(new, vec![(host, host + 32, Durability::CacheLines)], false);
        let lease = table.lease(&claim(key, 0x1000, 64, Access::FLUSH_PERSISTENT)).unwrap();
        let flush = |addr, len_bytes| lease.persist(Extent::Range { addr, len_bytes });
        assert_eq!(flush(0x1000, 32), Ok(()));
        assert_eq!(flush(0x1010, 17), Err(MemoryFault));
        assert_eq!(lease.persist(Extent::Region), Err(MemoryFault));
        of.failed.store(true, Ordering::Release);
        assert_eq!(flush(0x1000, 32), Err(MemoryFault));
    }

    #[test]
    fn key_of_the_past_opens_nothing_and_its_lease_touches_nothing() {
        let table = Table::new();
        let mut bytes = [0; 64];
        let (key, of) = region(&table, &mut bytes, Access::all());
        let lease = table.lease(&claim(key, 0x1000, 8, Access::REMOTE_WRITE)).unwrap();
        table.deregister(&of);
        assert!(lease.region().touch().is_err());
        assert!(table.lease(&claim(key, 0x1000, 8, Access::REMOTE_WRITE)).is_err());
        let (again, _of) = region(&table, &mut bytes, Access::all());
        assert_ne!(again, key);
    }

    #[test]
    fn deregistration_waits_for_whoever_touches() {
        let table = Table::new();
        let mut bytes = [0; 64];
        let (_, of) = region(&table, &mut bytes, Access::all());
        let touch = of.touch().unwrap();
        let released = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                table.deregister(&of);
                assert!(released.load(Ordering::Acquire), "deregistered while memory is touched");
            });
            // A lock that is held for reading refuses another reader once somebody waits to write, and not before.
            while of.touched.try_read().is_ok() {
                assert!(!waiting.is_finished(), "nobody waited");
                thread::yield_now();
            }
            released.store(true, Ordering::Release);
            drop(touch);
        });
    }

    #[test]
    fn small_operations_reach_the_memory_behind_another_address() {
        let table = Arc::new(Table::new());
        #[repr(align(8))]
        struct Aligned([u8; 64]);
        let mut bytes = Aligned([0; 64]);
        let (key, _of) = region(&table, &mut bytes.0, Access::all());
        let memory = DeviceMemory(table);
        let lease = memory.lease(&claim(key, 0x1008, 8, Access::REMOTE_ATOMIC)).unwrap();
        assert_eq!(memory.fetch_add(&lease, 0x1008, 5), Ok(0));
        assert_eq!(memory.compare_swap(&lease, 0x1008, 4, 9), Ok(5));
        assert_eq!(memory.compare_swap(&lease, 0x1008, 5, 9), Ok(5));
        assert_eq!(memory.fetch_add(&lease, 0x1008, 0), Ok(9));
        memory.atomic_write(&lease, 0x1010, *b"12345678").unwrap();
        memory.store_original(&lease, 0x1018, b"ab").unwrap();
        assert_eq!(&bytes.0[0x10..0x1A], b"12345678ab");
    }
}
