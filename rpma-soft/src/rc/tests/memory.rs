//! Simulated registered memory: regions with keys, rights and a second, durable copy.

use std::cell::RefCell;
use std::rc::Rc;

use crate::rc::{Access, Claim, Denied, Extent, Key, Memory, MemoryFault, PdNumber};

pub(super) const PD: PdNumber = PdNumber(1);

#[derive(Debug)]
struct Region {
    pd: PdNumber,
    addr: u64,
    access: Access,
    bytes: Vec<u8>,
    durable: Vec<u8>,
    registered: bool,
    /// As a mapping whose file was truncated.
    broken: bool,
    leases: usize,
}

/// The memory of one end. Keys are numbers of regions, from 1; an lkey is odd where the rkey is even.
#[derive(Debug, Clone, Default)]
pub(super) struct SimMemory(Rc<RefCell<Vec<Region>>>);

/// One registered region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mr {
    pub(super) addr: u64,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[derive(Debug)]
pub(super) struct Lease {
    memory: SimMemory,
    index: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.0.borrow_mut()[self.index].leases -= 1;
    }
}

impl SimMemory {
    pub(super) fn register_in(&self, pd: PdNumber, len_bytes: usize, access: Access) -> Mr {
        let mut regions = self.0.borrow_mut();
        let index = regions.len();
        // Far apart, so that a range past a region's end is in no other.
        let addr = 0x10_0000 * (index as u64 + 1);
        let (bytes, durable) = (vec![0; len_bytes], vec![0; len_bytes]);
        regions.push(Region { pd, addr, access, bytes, durable, registered: true, broken: false, leases: 0 });
        let key = 2 * u32::try_from(index).unwrap();
        Mr { addr, lkey: key + 1, rkey: key + 2 }
    }

    pub(super) fn register(&self, len_bytes: usize) -> Mr {
        self.register_in(PD, len_bytes, Access::all())
    }

    pub(super) fn deregister(&self, mr: Mr) {
        self.0.borrow_mut()[Self::index(mr.addr)].registered = false;
    }

    pub(super) fn break_region(&self, mr: Mr) {
        self.0.borrow_mut()[Self::index(mr.addr)].broken = true;
    }

    pub(super) fn leases(&self) -> usize {
        self.0.borrow().iter().map(|region| region.leases).sum()
    }

    fn index(addr: u64) -> usize {
        usize::try_from(addr / 0x10_0000 - 1).unwrap()
    }

    /// Reads as the driver does, which has a lease, or as the program does.
    pub(super) fn read(&self, addr: u64, len_bytes: usize) -> Vec<u8> {
        let regions = self.0.borrow();
        let region = &regions[Self::index(addr)];
        let at = usize::try_from(addr - region.addr).unwrap();
        region.bytes[at..at + len_bytes].to_vec()
    }

    pub(super) fn durable(&self, addr: u64, len_bytes: usize) -> Vec<u8> {
        let regions = self.0.borrow();
        let region = &regions[Self::index(addr)];
        let at = usize::try_from(addr - region.addr).unwrap();
        region.durable[at..at + len_bytes].to_vec()
    }

    pub(super) fn write(&self, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let mut regions = self.0.borrow_mut();
        let region = &mut regions[Self::index(addr)];
        if region.broken {
            return Err(MemoryFault);
        }
        let at = usize::try_from(addr - region.addr).unwrap();
        region.bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// What a persistent flush does.
    pub(super) fn persist(&self, lease: &Lease, extent: Extent) -> Result<(), MemoryFault> {
        let mut regions = self.0.borrow_mut();
        let region = &mut regions[lease.index];
        if region.broken {
            return Err(MemoryFault);
        }
        let (at, len) = match extent {
            Extent::Region => (0, region.bytes.len()),
            Extent::Range { addr, len_bytes } => {
                (usize::try_from(addr - region.addr).unwrap(), usize::try_from(len_bytes).unwrap())
            }
        };
        region.durable[at..at + len].copy_from_slice(&region.bytes[at..at + len]);
        Ok(())
    }
}

impl Memory for SimMemory {
    type Lease = Lease;

    fn lease(&self, claim: &Claim) -> Result<Lease, Denied> {
        let (key, is_local) = match claim.key {
            Key::Local(key) => (key, true),
            Key::Remote(key) => (key.wrapping_sub(1), false),
        };
        let index = (key / 2) as usize;
        let mut regions = self.0.borrow_mut();
        let region = regions.get_mut(index).filter(|r| r.registered && r.pd == claim.pd).ok_or(Denied)?;
        if key % 2 == 0 || !region.access.contains(claim.access) || (is_local && claim.extent == Extent::Region) {
            return Err(Denied);
        }
        if let Extent::Range { addr, len_bytes } = claim.extent {
            let end = addr.checked_add(len_bytes).ok_or(Denied)?;
            if addr < region.addr || end > region.addr + region.bytes.len() as u64 {
                return Err(Denied);
            }
        }
        region.leases += 1;
        drop(regions);
        Ok(Lease { memory: self.clone(), index })
    }

    fn compare_swap(&self, _: &Lease, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        let original = u64::from_ne_bytes(self.read(addr, 8).try_into().unwrap());
        self.write(addr, &if original == compare { swap } else { original }.to_ne_bytes())?;
        Ok(original)
    }

    fn fetch_add(&self, _: &Lease, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        let original = u64::from_ne_bytes(self.read(addr, 8).try_into().unwrap());
        self.write(addr, &original.wrapping_add(add).to_ne_bytes())?;
        Ok(original)
    }

    fn atomic_write(&self, _: &Lease, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault> {
        self.write(addr, &value)
    }

    fn store_original(&self, _: &Lease, addr: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.write(addr, bytes)
    }
}
