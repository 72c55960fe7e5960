//! Calls of verbs that only C programs make: devices, the old forms of queries, registering with fewer arguments.
#![expect(unsafe_code, reason = "exports C functions, which make, read and fill structures of verbs")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use rpma_soft::door::verbs::{self as door, Gid};
use rpma_sys::bindings::*;

use crate::answer::{self, guarded};
use crate::provider::{self, Opened};

/// Runs a call that needs the provider.
fn with<R>(failed: impl Fn(c_int) -> R, body: impl FnOnce(&'static Opened) -> R) -> R {
    guarded(&failed, || match provider::get() {
        Ok(opened) => body(opened),
        Err(errno) => failed(errno),
    })
}

// ---- devices ----

/// A list of devices as C has it: its end is a null pointer.
type DeviceList = [*mut ibv_device; 2];

/// `ibv_get_device_list(3)`: the software device, and no other.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    with(answer::null, |opened| {
        // SAFETY: live as long as the process, and its device never changes.
        let device = unsafe { (*opened.context).device };
        if !num_devices.is_null() {
            // SAFETY: a place for the number (contract of the call).
            unsafe { num_devices.write(1) };
        }
        Box::into_raw(Box::new([device, null_mut()] as DeviceList)).cast()
    })
}

/// `ibv_free_device_list(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: made by `ibv_get_device_list`, and freed once (contract of the call).
        drop(unsafe { Box::from_raw(list.cast::<DeviceList>()) });
    }
}

/// `ibv_get_device_guid(3)`, in network order.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    with(|_| 0, |opened| device_attributes(opened).map_or(0, |attr| attr.orig_attr.node_guid))
}

/// `ibv_get_device_index(3)`: the kernel has given it none.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_open_device(3)`. There is one device, with one context.
#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    with(answer::null, |opened| {
        // SAFETY: live as long as the process, and its device never changes.
        if device == unsafe { (*opened.context).device } { opened.context } else { answer::null(libc::EINVAL) }
    })
}

/// `ibv_close_device(3)`. The context stays, for who else has it.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(_: *mut ibv_context) -> c_int {
    0
}

/// `ibv_get_sysfs_path`: where the kernel's file system of devices is.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: the device has no files there.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_sysfs_file(_: *const c_char, _: *const c_char, _: *mut c_char, _: usize) -> c_int {
    answer::minus1(libc::ENOENT)
}

/// As [`ibv_read_sysfs_file`]; variadic in C, and no argument is looked at.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file() -> c_int {
    answer::minus1(libc::ENOENT)
}

// ---- fork ----

/// `ibv_fork_init(3)`: memory is not pinned, so a child's copy of it does not disturb anybody.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`: `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_dontfork_range`: nothing is to be done.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

/// `ibv_dofork_range`: nothing is to be done.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

// ---- queries ----

fn device_attributes(opened: &Opened) -> Result<ibv_device_attr_ex, c_int> {
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the provider's own context, no input, and a place for the answer.
    match unsafe { opened.provider.ibv_query_device_ex(opened.context, std::ptr::null(), &raw mut attr) } {
        0 => Ok(attr),
        errno => Err(errno),
    }
}

/// `ibv_query_device(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    if attr.is_null() {
        return libc::EINVAL;
    }
    with(answer::errno, |opened| match device_attributes(opened) {
        Ok(answer) => {
            // SAFETY: a place for the answer (contract of the call).
            unsafe { attr.write(answer.orig_attr) };
            0
        }
        Err(errno) => errno,
    })
}

/// `ibv_query_port`, the exported function, whose structure ends before what newer headers have at its end. They call it only for a
/// context without the operation that ours has.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
    if context.is_null() || attr.is_null() {
        return libc::EINVAL;
    }
    with(answer::errno, |opened| {
        let mut answer = ibv_port_attr::default();
        // SAFETY: a live context (contract of the call), and a place for the answer.
        let rc = unsafe { opened.provider.ibv_query_port(context, port_num, &raw mut answer) };
        if rc == 0 {
            let front_bytes = offset_of!(ibv_port_attr, port_cap_flags2);
            let from: *const u8 = (&raw const answer).cast();
            // SAFETY: the front of a whole structure, to a place for as much (contract of the call).
            unsafe { std::ptr::copy_nonoverlapping(from, attr.cast::<u8>(), front_bytes) };
        }
        rc
    })
}

/// The only partition key, which every port has: full member of the default partition.
const DEFAULT_PKEY: u16 = 0xFFFF;

/// `ibv_query_pkey(3)`, in network order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(_: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int {
    if port_num != 1 || index != 0 || pkey.is_null() {
        return answer::minus1(libc::EINVAL);
    }
    // SAFETY: a place for the answer (contract of the call).
    unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
    0
}

/// `ibv_get_pkey_index(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    if port_num == 1 && pkey == DEFAULT_PKEY.to_be() { 0 } else { answer::minus1(libc::ENOENT) }
}

// ---- global identifiers ----

/// `struct ibv_gid_entry` of verbs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct GidEntry {
    gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2`: the same, in the numbers of the older call.
const SYSFS_ROCE_V2: c_int = 1;

/// The identifier at a place of the table. The errno tells why there is none.
fn gid(port_num: u32, index: u32) -> Result<Gid, c_int> {
    if port_num != 1 {
        return Err(libc::EINVAL);
    }
    let all = door::gids().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    all.get(index as usize).copied().ok_or(libc::ENODATA)
}

fn entry(gid: Gid, index: u32) -> GidEntry {
    GidEntry { gid: gid.bytes, gid_index: index, port_num: 1, gid_type: ROCE_V2, ndev_ifindex: gid.interface }
}

/// `ibv_query_gid(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(_: *mut ibv_context, port_num: u8, index: c_int, to: *mut [u8; 16]) -> c_int {
    guarded(answer::minus1, || match u32::try_from(index).map_err(|_| libc::EINVAL).and_then(|at| gid(port_num.into(), at)) {
        Ok(gid) if !to.is_null() => {
            // SAFETY: a place for the answer (contract of the call).
            unsafe { to.write_unaligned(gid.bytes) };
            0
        }
        Ok(_) => answer::minus1(libc::EINVAL),
        Err(errno) => answer::minus1(errno),
    })
}

/// `ibv_query_gid_type`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(_: *mut ibv_context, port_num: u8, index: c_uint, to: *mut c_int) -> c_int {
    guarded(answer::minus1, || match gid(port_num.into(), index) {
        Ok(_) if !to.is_null() => {
            // SAFETY: a place for the answer (contract of the call).
            unsafe { to.write(SYSFS_ROCE_V2) };
            0
        }
        Ok(_) => answer::minus1(libc::EINVAL),
        Err(errno) => answer::minus1(errno),
    })
}

/// `ibv_query_gid_ex(3)`, which is an inline function over this one.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    _: *mut ibv_context,
    port_num: u32,
    index: u32,
    to: *mut GidEntry,
    flags: u32,
    entry_bytes: usize,
) -> c_int {
    if to.is_null() || flags != 0 || entry_bytes < size_of::<GidEntry>() {
        return libc::EINVAL;
    }
    guarded(answer::errno, || match gid(port_num, index) {
        Ok(gid) => {
            // SAFETY: a place for the answer, not smaller than it (contract of the call, and the check above).
            unsafe { to.write(entry(gid, index)) };
            0
        }
        Err(errno) => errno,
    })
}

/// `ibv_query_gid_table(3)`, which is an inline function over this one: the number of entries, or a negative errno.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    _: *mut ibv_context,
    to: *mut GidEntry,
    max: usize,
    flags: u32,
    entry_bytes: usize,
) -> isize {
    let failed = |errno: c_int| -(errno as isize);
    if to.is_null() || flags != 0 || entry_bytes < size_of::<GidEntry>() {
        return failed(libc::EINVAL);
    }
    guarded(failed, || {
        let gids = match door::gids() {
            Ok(gids) => gids,
            Err(e) => return failed(e.raw_os_error().unwrap_or(libc::EIO)),
        };
        let mut count = 0;
        for (index, gid) in (0_u32..).zip(gids).take(max) {
            let place = to.wrapping_byte_add(index as usize * entry_bytes);
            // SAFETY: there is room for `max` entries of this size (contract of the call), which is not smaller than ours.
            unsafe { place.write(entry(gid, index)) };
            count += 1;
        }
        count
    })
}

// ---- memory ----

/// `ibv_reg_mr(3)`, as headers call it with rights that are constant and need no optional one.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the contract of the call.
    unsafe { ibv_reg_mr_iova(pd, addr, length, addr.expose_provenance() as u64, access) }
}

/// `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr {
    if pd.is_null() {
        return answer::null(libc::EINVAL);
    }
    with(answer::null, |opened| {
        let access: c_uint = access.cast_unsigned();
        // SAFETY: the contract of the call.
        unsafe { opened.provider.ibv_reg_mr_iova2(pd, addr, length, iova, access) }
    })
}

/// `ibv_rereg_mr(3)`: not supported, and the region is as it was. Of this call's numbers -1 says that.
#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(_: *mut ibv_mr, _: c_int, _: *mut ibv_pd, _: *mut c_void, _: usize, _: c_int) -> c_int {
    answer::minus1(libc::EOPNOTSUPP)
}

// ---- completion queues ----

/// `ibv_resize_cq(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    if cq.is_null() {
        return libc::EINVAL;
    }
    guarded(answer::errno, || {
        // SAFETY: live, and the program's to resize (contract of the call).
        match unsafe { door::resize_cq(cq, cqe) } {
            Ok(()) => 0,
            Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
        }
    })
}

// ---- shared receive queues ----

/// `ibv_modify_srq(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    if srq.is_null() || attr.is_null() {
        return libc::EINVAL;
    }
    guarded(answer::errno, || {
        // SAFETY: the program's attributes (contract of the call).
        let attr = unsafe { attr.read() };
        // SAFETY: live (contract of the call).
        unsafe { door::modify_srq(srq, &attr, mask) }
    })
}

/// `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    if srq.is_null() || attr.is_null() {
        return libc::EINVAL;
    }
    guarded(answer::errno, || {
        // SAFETY: live (contract of the call).
        let answer = unsafe { door::query_srq(srq) };
        // SAFETY: a place for the answer (contract of the call).
        unsafe { attr.write(answer) };
        0
    })
}

// ---- queue pairs ----

/// `ibv_create_qp(3)`: a queue pair without an identifier.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if pd.is_null() || attr.is_null() {
        return answer::null(libc::EINVAL);
    }
    guarded(answer::null, || {
        // SAFETY: the program's attributes (contract of the call).
        let asked = unsafe { attr.read() };
        let mut extended = extended(&asked, pd);
        // SAFETY: what the attributes name is live (contract of the call), and the attributes are ours.
        match unsafe { door::create_qp(&mut extended) } {
            Ok(qp) => {
                // SAFETY: the program's attributes, which the man page says are written.
                unsafe { (*attr).cap = extended.cap };
                qp
            }
            Err(e) => answer::null(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    })
}

/// The same attributes in the form of `ibv_create_qp_ex(3)`.
fn extended(asked: &ibv_qp_init_attr, pd: *mut ibv_pd) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: asked.qp_context,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        cap: asked.cap,
        qp_type: asked.qp_type,
        sq_sig_all: asked.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..ibv_qp_init_attr_ex::default()
    }
}

/// `ibv_destroy_qp(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    if qp.is_null() {
        return libc::EINVAL;
    }
    guarded(answer::errno, || {
        // SAFETY: live (contract of the call).
        unsafe { door::destroy_qp(qp) };
        0
    })
}

/// `ibv_qp_to_qp_ex(3)`: null unless it was made for the extended builders.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    if qp.is_null() {
        return null_mut();
    }
    let extended: *mut ibv_qp_ex = qp.cast();
    // SAFETY: a live queue pair (contract of the call), of which each of ours is in the extended form.
    if unsafe { (*extended).wr_start }.is_some() { extended } else { null_mut() }
}

/// `ibv_query_qp_data_in_order(3)`: no promise is made in what order bytes of one message become visible.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_int, _: u32) -> c_int {
    0
}
