//! The memory of the fuzz targets' queue pairs, and what is posted there: one region of 64 bytes at [`ADDR`], with 1 for both keys.

use std::cell::Cell;
use std::rc::Rc;

use rpma_soft::rc::{Access, Claim, Data, Denied, Extent, Key, Memory, MemoryFault, SendOp, Sge};
use rpma_soft::wire::{FlushSpec, Placement, Remote, Selectivity};

const ADDR: u64 = 0x1000;
const LEN_BYTES: u64 = 64;

/// Counts leases; the bytes themselves do not matter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Region(Rc<Cell<usize>>);

#[derive(Debug)]
pub(crate) struct Lease(Rc<Cell<usize>>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Region {
    /// How many leases there are.
    pub(crate) fn leases(&self) -> usize {
        self.0.get()
    }

    /// Whether it has all of the range.
    pub(crate) fn check(addr: u64, len_bytes: u64) -> bool {
        addr >= ADDR && addr.checked_add(len_bytes).is_some_and(|end| end <= ADDR + LEN_BYTES)
    }
}

impl Memory for Region {
    type Lease = Lease;

    fn lease(&self, claim: &Claim) -> Result<Lease, Denied> {
        let key_fits = matches!(claim.key, Key::Local(1) | Key::Remote(1)) && Access::all().contains(claim.access);
        let range_fits = match claim.extent {
            Extent::Range { addr, len_bytes } => Self::check(addr, len_bytes),
            Extent::Region => true,
        };
        if !key_fits || !range_fits {
            return Err(Denied);
        }
        self.0.set(self.0.get() + 1);
        Ok(Lease(self.0.clone()))
    }

    fn compare_swap(&self, _: &Lease, addr: u64, compare: u64, _: u64) -> Result<u64, MemoryFault> {
        assert!(Self::check(addr, 8) && addr.is_multiple_of(8));
        Ok(compare)
    }

    fn fetch_add(&self, _: &Lease, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        assert!(Self::check(addr, 8) && addr.is_multiple_of(8));
        if add == 0xFF { Err(MemoryFault) } else { Ok(add) }
    }

    fn atomic_write(&self, _: &Lease, addr: u64, _: [u8; 8]) -> Result<(), MemoryFault> {
        assert!(Self::check(addr, 8) && addr.is_multiple_of(8));
        Ok(())
    }

    fn store_original(&self, _: &Lease, addr: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        assert!(Self::check(addr, bytes.len() as u64));
        Ok(())
    }
}

/// All of the region, in two ranges; the second may have a key that is nobody's.
pub(crate) fn sges(bad_key: bool) -> Vec<Sge> {
    let sge = |addr, len_bytes, lkey| Sge { addr, len_bytes, lkey };
    vec![sge(ADDR, 8, 1), sge(ADDR + 8, 56, if bad_key { 2 } else { 1 })]
}

/// The request of that number.
pub(crate) fn request(which: u8) -> (SendOp, Data) {
    let remote = Remote { addr: ADDR, rkey: 1 };
    let spec = FlushSpec { placement: Placement::PERSISTENT, selectivity: Selectivity::Region, len_bytes: 0 };
    match which {
        0 => (SendOp::Send, Data::Sges(sges(false))),
        1 => (SendOp::SendImm { imm: [1; 4] }, Data::Inline([1; 8].into())),
        2 => (SendOp::Write { remote }, Data::Sges(sges(false))),
        3 => (SendOp::WriteImm { remote, imm: [2; 4] }, Data::default()),
        4 => (SendOp::Read { remote }, Data::Sges(sges(false))),
        5 => (SendOp::Read { remote }, Data::default()),
        6 => (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, Data::Sges(sges(false))),
        7 => (SendOp::FetchAdd { remote, add: 1 }, Data::Sges(sges(false))),
        8 => (SendOp::AtomicWrite { remote, value: [3; 8] }, Data::default()),
        9 => (SendOp::Flush { remote, spec }, Data::default()),
        10 => (SendOp::Read { remote }, Data::Sges(sges(true))),
        _ => (SendOp::Send, Data::Sges(sges(true))),
    }
}
