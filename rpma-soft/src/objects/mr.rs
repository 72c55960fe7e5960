//! Protection domains and memory regions, as the program sees them.
#![expect(unsafe_code, reason = "makes and frees structures of verbs")]

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rpma_sys::bindings::*;

use super::connection::invalid;
use super::device::Device;
use super::maps::{self, Mapping};
use super::memory::{NewRegion, Region};
use crate::driver::lock;
use crate::rc::{Access, PdNumber};

/// A protection domain.
#[repr(C)]
pub(crate) struct SoftPd {
    raw: ibv_pd,
    device: Arc<Device>,
    number: PdNumber,
    /// What is in it.
    users: AtomicUsize,
}

/// A memory region.
#[repr(C)]
struct SoftMr {
    raw: ibv_mr,
    region: Arc<Region>,
}

/// `ibv_alloc_pd(3)`.
pub(crate) fn alloc_pd(device: &Arc<Device>) -> *mut ibv_pd {
    let number = device.new_pd_number();
    let raw = ibv_pd { context: device.context(), handle: number };
    let pd = SoftPd { raw, device: Arc::clone(device), number: PdNumber(number), users: AtomicUsize::new(0) };
    Box::into_raw(Box::new(pd)).cast()
}

/// `ibv_dealloc_pd(3)`.
///
/// # Safety
///
/// `pd` is live.
pub(crate) unsafe fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: live (contract above).
    let users = unsafe { of_pd(pd) }.users.load(Ordering::Acquire);
    if users != 0 {
        return libc::EBUSY;
    }
    // SAFETY: made by `alloc_pd`, and freed once: the contract says that it is live.
    drop(unsafe { Box::from_raw(pd.cast::<SoftPd>()) });
    0
}

/// A protection domain that identifiers have until they are given another one; librdmacm has one per device too.
#[derive(Debug)]
pub(crate) struct DefaultPd(*mut ibv_pd);

// SAFETY: a protection domain may be used and freed by any thread: what changes of it is atomic.
unsafe impl Send for DefaultPd {}
// SAFETY: as for `Send`.
unsafe impl Sync for DefaultPd {}

impl DefaultPd {
    /// The device's.
    pub(crate) fn of(device: &Arc<Device>) -> Arc<Self> {
        let mut shared = lock(&device.default_pd);
        shared.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Self(alloc_pd(device)));
            *shared = Arc::downgrade(&new);
            new
        })
    }

    /// As the program has it.
    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0
    }
}

impl Drop for DefaultPd {
    fn drop(&mut self) {
        // SAFETY: made by `alloc_pd`, and freed here only. If something is in it still, it stays.
        if unsafe { dealloc_pd(self.0) } != 0 {
            log::warn!("memory is registered with identifiers that are gone: their protection domain stays");
        }
    }
}

/// What is ours of a protection domain.
///
/// # Safety
///
/// `pd` is live, and stays so for as long as the result is used.
pub(crate) unsafe fn of_pd<'a>(pd: *mut ibv_pd) -> &'a SoftPd {
    // SAFETY: made by `alloc_pd`, and live (contract above); what others change of it is atomic.
    unsafe { &*pd.cast::<SoftPd>() }
}

impl SoftPd {
    /// Its number.
    pub(crate) fn number(&self) -> PdNumber {
        self.number
    }

    /// The device that it is of.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Something is in it from now on.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Something is in it no more.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// `ibv_reg_mr(3)`. The memory is not pinned, and need not be: it is reached through this process's own addresses.
///
/// # Safety
///
/// `pd` is live; until deregistration the range stays mapped, and nobody relies on it not to change.
pub(crate) unsafe fn reg_mr(
    device: &Arc<Device>,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> io::Result<*mut ibv_mr> {
    // SAFETY: live (contract above).
    let of = unsafe { of_pd(pd) };
    // System calls are given it as a number, and other threads touch it.
    let host = addr.expose_provenance() as u64;
    let region =
        new_region(device, NewRegion { pd: of.number, iova, host, len_bytes: length as u64, access: Access::empty() }, access)?;
    of.enter();
    let (key, region) = region;
    let raw = ibv_mr { context: device.context(), pd, addr, length, handle: key, lkey: key, rkey: key };
    Ok(Box::into_raw(Box::new(SoftMr { raw, region })).cast())
}

fn new_region(device: &Device, new: NewRegion, access: c_uint) -> io::Result<(u32, Arc<Region>)> {
    // Of the optional ones a device ignores what it does not know: `ibv_reg_mr(3)`. `IBV_ACCESS_OPTIONAL_RANGE` in verbs.h.
    const OPTIONAL: c_uint = 0x3FF0_0000;
    const HINTS: c_uint = IBV_ACCESS_HUGETLB | OPTIONAL;
    let mut rights = access & !HINTS;
    if rights & IBV_ACCESS_ZERO_BASED != 0 {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    if rights & IBV_ACCESS_ON_DEMAND != 0 {
        if !device.config.on_demand_paging {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        rights &= !IBV_ACCESS_ON_DEMAND;
    }
    let rights = Access::from_bits(rights).ok_or_else(invalid)?;
    let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    if rights.intersects(flushes) && !device.config.native_flush {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // `ibv_reg_mr(3)`: who lets the peer write must let us write.
    if rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !rights.contains(Access::LOCAL_WRITE) {
        return Err(invalid());
    }
    // As the kernel's `ib_umem_get`, which counts pages in 32 bits.
    let too_many = new.len_bytes / rustix::param::page_size() as u64 >= u64::from(u32::MAX);
    if new.len_bytes == 0 || too_many || new.iova.checked_add(new.len_bytes).is_none() {
        return Err(invalid());
    }
    let fault = || io::Error::from_raw_os_error(libc::EFAULT);
    let mappings = maps::covering(new.host, new.len_bytes)?.ok_or_else(fault)?;
    let written = rights.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if mappings.iter().any(|mapping| !mapping.readable || (written && !mapping.writable)) {
        return Err(fault());
    }
    // As soft-RoCE: a promise that cannot be kept is not made.
    let durable = if rights.contains(Access::FLUSH_PERSISTENT) {
        let part = |m: &Mapping| m.durability().map(|how| (m.start, m.end, how));
        mappings.iter().map(part).collect::<Option<Vec<_>>>().ok_or_else(invalid)?
    } else {
        Vec::new()
    };
    let can_fault = mappings.iter().any(Mapping::can_fault);
    Ok(device.table.register(NewRegion { access: rights, ..new }, durable, can_fault))
}

/// `ibv_dereg_mr(3)`. When this returns, nothing of ours touches the memory, and nothing will.
///
/// # Safety
///
/// `mr` is live.
pub(crate) unsafe fn dereg_mr(device: &Device, mr: *mut ibv_mr) -> c_int {
    // SAFETY: made by `reg_mr`, and freed once: the contract says that it is live.
    let mr = unsafe { Box::from_raw(mr.cast::<SoftMr>()) };
    device.table.deregister(&mr.region);
    // SAFETY: a region keeps its protection domain from being freed.
    unsafe { of_pd(mr.raw.pd) }.leave();
    0
}

/// `ibv_advise_mr(3)`: everything is always there, so advice is checked and not needed.
///
/// # Safety
///
/// `pd` is live, and `list` holds `count` ranges.
pub(crate) unsafe fn advise_mr(pd: *mut ibv_pd, advice: u32, flags: u32, list: *const ibv_sge, count: u32) -> c_int {
    use crate::rc::{Claim, Extent, Key};
    const LAST_ADVICE: u32 = 2;
    const FLUSH: u32 = 1;
    // SAFETY: live (contract above).
    let pd = unsafe { of_pd(pd) };
    if !pd.device.config.on_demand_paging {
        return libc::EOPNOTSUPP;
    }
    if count == 0 || advice > LAST_ADVICE || flags & !FLUSH != 0 {
        return libc::EINVAL;
    }
    // SAFETY: a list of so many (contract above), which is not empty.
    let ranges = unsafe { std::slice::from_raw_parts(list, count as usize) };
    for range in ranges {
        let extent = Extent::Range { addr: range.addr, len_bytes: range.length.into() };
        // `IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE` is 1.
        let access = if advice == 1 { Access::LOCAL_WRITE } else { Access::empty() };
        if pd.device.table.lease(&Claim { pd: pd.number, key: Key::Local(range.lkey), extent, access }).is_err() {
            return libc::EFAULT;
        }
    }
    0
}
