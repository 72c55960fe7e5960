//! The device and its context, as the program sees them.
#![expect(unsafe_code, reason = "fills and hands out structures of verbs")]

use std::ffi::{c_char, c_int};
use std::io;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rpma_sys::bindings::*;

use super::async_events::AsyncEvents;
use super::memory::Table;
use super::mr::{self, DefaultPd};
use super::{cq_calls, loose_qp, post, srq_calls};
use crate::SoftConfig;
use crate::driver::caught;
use crate::wire::MAX_MESSAGE_BYTES;

/// Limits that the device reports.
pub(crate) mod limit {
    /// Requests in a queue.
    pub(crate) const QP_WR: u32 = 32_768;
    /// Ranges in a request.
    pub(crate) const SGE: u32 = 32;
    /// Bytes inside a request.
    pub(crate) const INLINE_BYTES: u32 = 4096;
    /// Completions in a queue.
    pub(crate) const CQE: u32 = 4_194_303;
    /// Reads and atomics at once.
    pub(crate) const RD_ATOMIC: u8 = 128;
}

/// Not a number of any vendor that the IEEE knows: locally administered, "soft" without its vowel.
const VENDOR_ID: u32 = 0x02_5F_74;

/// An EUI-64 of that vendor: programs take 0 for a device that is not there.
const GUID: u64 = (VENDOR_ID as u64) << 40 | 0xFF_FE00_0001;

/// A device, and all that is made with it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) config: SoftConfig,
    pub(crate) table: Arc<Table>,
    /// Behind the context's descriptor for them.
    pub(crate) events: Arc<AsyncEvents>,
    /// The protection domain of identifiers that were given none, while there are any.
    pub(super) default_pd: Mutex<Weak<DefaultPd>>,
    context: *mut SoftContext,
    next_pd: AtomicU32,
    next_qp: AtomicU32,
}

// SAFETY: the context is written when it is made, and only read until it is freed.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

#[repr(C)]
struct SoftContext {
    verbs: verbs_context,
    device: ibv_device,
    config: SoftConfig,
}

impl Device {
    /// A device.
    pub(crate) fn new(config: SoftConfig) -> io::Result<Self> {
        let events = Arc::new(AsyncEvents::new()?);
        let mut device = ibv_device { node_type: IBV_NODE_CA, transport_type: IBV_TRANSPORT_IB, ..ibv_device::default() };
        write_name(&mut device.name, b"soft0");
        write_name(&mut device.dev_name, b"soft0");
        let mut verbs = verbs_context {
            sz: size_of::<verbs_context>(),
            query_port: Some(query_port),
            query_device_ex: Some(query_device_ex),
            advise_mr: Some(advise_mr),
            create_qp_ex: Some(loose_qp::create_qp_ex),
            ..verbs_context::default()
        };
        let context = &mut verbs.context;
        context.ops.poll_cq = Some(cq_calls::poll_cq);
        context.ops.req_notify_cq = Some(cq_calls::req_notify_cq);
        context.ops.post_send = Some(post::post_send);
        context.ops.post_recv = Some(post::post_recv);
        context.ops.post_srq_recv = Some(srq_calls::post_srq_recv);
        context.cmd_fd = -1;
        context.async_fd = events.fd();
        context.num_comp_vectors = 1;
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        // `__VERBS_ABI_IS_EXTENDED`
        context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        let boxed = Box::new(SoftContext { verbs, device, config });
        let context = Box::into_raw(boxed);
        // SAFETY: just made, and nobody else's.
        let place = unsafe { &raw mut (*context).device };
        // SAFETY: as above.
        unsafe { (*context).verbs.context.device = place };
        Ok(Self {
            config,
            table: Arc::new(Table::new()),
            default_pd: Mutex::default(),
            events,
            context,
            next_pd: AtomicU32::new(1),
            next_qp: AtomicU32::new(0x11),
        })
    }

    /// Its context, as the program has it.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context.cast::<u8>().wrapping_add(offset_of!(SoftContext, verbs) + offset_of!(verbs_context, context)).cast()
    }

    /// A number that no protection domain has.
    pub(crate) fn new_pd_number(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a queue pair: 24 bits, not soon used again.
    pub(crate) fn new_qp_number(&self) -> u32 {
        loop {
            let number = self.next_qp.fetch_add(1, Ordering::Relaxed) & 0xFF_FFFF;
            // 0 and 1 are special on InfiniBand.
            if number > 1 {
                return number;
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `new`, and freed here only: everything that is made with the device holds it.
        drop(unsafe { Box::from_raw(self.context) });
    }
}

fn write_name(field: &mut [c_char], name: &[u8]) {
    for (to, from) in field.iter_mut().zip(name) {
        *to = from.cast_signed() as c_char;
    }
}

/// The limits of the device: `ibv_query_device_ex(3)`.
pub(crate) fn attributes(config: &SoftConfig) -> ibv_device_attr_ex {
    let int = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    let rd_atomic = c_int::from(limit::RD_ATOMIC);
    let orig_attr = ibv_device_attr {
        node_guid: GUID.to_be(),
        sys_image_guid: GUID.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        vendor_id: VENDOR_ID,
        max_qp: 0xFF_FFFF,
        max_qp_wr: int(limit::QP_WR),
        device_cap_flags: RC_RNR_NAK_GEN,
        max_sge: int(limit::SGE),
        max_sge_rd: int(limit::SGE),
        max_cq: 0xFF_FFFF,
        max_cqe: int(limit::CQE),
        max_mr: 0xFF_FFFF,
        max_pd: 0xFF_FFFF,
        max_qp_rd_atom: rd_atomic,
        max_res_rd_atom: c_int::MAX,
        max_qp_init_rd_atom: rd_atomic,
        atomic_cap: IBV_ATOMIC_HCA,
        max_srq: 0xFF_FFFF,
        max_srq_wr: int(limit::QP_WR),
        max_srq_sge: int(limit::SGE),
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    let mut attr = ibv_device_attr_ex { orig_attr, phys_port_cnt_ex: 1, ..ibv_device_attr_ex::default() };
    if config.native_flush {
        attr.device_cap_flags_ex |= FLUSH_BITS;
    }
    if config.native_atomic_write {
        attr.device_cap_flags_ex |= ATOMIC_WRITE_BIT;
    }
    if config.on_demand_paging {
        attr.odp_caps.general_caps = IBV_ODP_SUPPORT.into();
        attr.odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_SEND
            | IBV_ODP_SUPPORT_RECV
            | IBV_ODP_SUPPORT_WRITE
            | IBV_ODP_SUPPORT_READ
            | IBV_ODP_SUPPORT_ATOMIC
            | IBV_ODP_SUPPORT_SRQ_RECV;
        if config.native_flush {
            attr.odp_caps.per_transport_caps.rc_odp_caps |= IBV_ODP_SUPPORT_FLUSH;
        }
        if config.native_atomic_write {
            attr.odp_caps.per_transport_caps.rc_odp_caps |= IBV_ODP_SUPPORT_ATOMIC_WRITE;
        }
    }
    attr
}

/// `IBV_DEVICE_RC_RNR_NAK_GEN`.
const RC_RNR_NAK_GEN: u32 = 1 << 12;
/// `IBV_PORT_CM_SUP`.
const PORT_CM_SUP: u32 = 1 << 16;
/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL` and `IB_UVERBS_DEVICE_FLUSH_PERSISTENT`.
const FLUSH_BITS: u64 = 1 << 38 | 1 << 39;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
const ATOMIC_WRITE_BIT: u64 = 1 << 40;

/// The attributes of the only port: `ibv_query_port(3)`.
pub(crate) fn port_attributes() -> ibv_port_attr {
    ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: super::gids::table().map_or(0, |all| c_int::try_from(all.len()).unwrap_or(c_int::MAX)),
        port_cap_flags: PORT_CM_SUP,
        max_msg_sz: MAX_MESSAGE_BYTES,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: 1,
        active_speed: 1,
        // "LinkUp"
        phys_state: 5,
        link_layer: u8::try_from(IBV_LINK_LAYER_ETHERNET).unwrap_or(0),
        ..ibv_port_attr::default()
    }
}

/// Copies the front of `from`, as far as a caller with an older header has room; where one with a newer header has more, that is 0, which is
/// what a field that is not there says.
///
/// # Safety
///
/// `to` leads to `size` bytes that are the caller's.
unsafe fn copy_front<T: Copy>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    let (from, to): (*const u8, *mut u8) = ((&raw const *from).cast(), to.cast());
    // SAFETY: `from` is a whole `T`, `to` has room (contract above), and a fresh local does not overlap a caller's buffer.
    unsafe { std::ptr::copy_nonoverlapping(from, to, known) };
    // SAFETY: within the caller's `size` bytes, or at their end.
    let rest = unsafe { to.add(known) };
    // SAFETY: so many of them are left.
    unsafe { rest.write_bytes(0, size - known) };
}

/// The answer to a program in C, into which no panic may go.
fn no_panic(answer: impl FnOnce() -> c_int) -> c_int {
    caught(answer).unwrap_or(libc::EFAULT)
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let context = context.cast::<u8>().wrapping_sub(offset_of!(SoftContext, verbs) + offset_of!(verbs_context, context));
    let context: *const SoftContext = context.cast_const().cast();
    // SAFETY: the context is live (contract of the call), and is a part of a `SoftContext`.
    let config = unsafe { (*context).config };
    no_panic(|| {
        // SAFETY: `attr` leads to `size` bytes (contract of the call).
        unsafe { copy_front(&attributes(&config), attr, size) };
        0
    })
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    no_panic(|| {
        // SAFETY: `attr` leads to `size` bytes (contract of the call).
        unsafe { copy_front(&port_attributes(), attr, size) };
        0
    })
}

unsafe extern "C" fn advise_mr(pd: *mut ibv_pd, advice: u32, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int {
    no_panic(|| {
        // SAFETY: live, with so many ranges (contract of the call).
        unsafe { mr::advise_mr(pd, advice, flags, sg_list, num_sge) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_answers_through_its_extended_operations_as_headers_call_them() {
        let device = Device::new(SoftConfig::default()).unwrap();
        let context = device.context();
        // SAFETY: live.
        let abi_compat = unsafe { (*context).abi_compat };
        assert_eq!(abi_compat.addr(), usize::MAX);
        let extended: *mut verbs_context = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast();
        // SAFETY: an extended context, as the assertion above says, which nobody changes.
        let extended = unsafe { &*extended };
        let (query, port) = (extended.query_device_ex, extended.query_port);
        assert_eq!(extended.sz, size_of::<verbs_context>());
        let mut attr = ibv_device_attr_ex::default();
        // Who was built with an older header has less room, and nothing behind it is written.
        let old = offset_of!(ibv_device_attr_ex, tso_caps);
        // SAFETY: live, with room for more than is told.
        assert_eq!(unsafe { query.unwrap()(context, std::ptr::null(), &raw mut attr, old) }, 0);
        assert_eq!((attr.device_cap_flags_ex >> 38, attr.orig_attr.max_cqe, attr.phys_port_cnt_ex), (7, 4_194_303, 0));
        // Who was built with a newer header has more, which would be whatever was there.
        let mut longer = (ibv_device_attr_ex::default(), [0xEE_u8; 16]);
        let (place, size) = ((&raw mut longer).cast(), size_of_val(&longer));
        // SAFETY: live, with room.
        assert_eq!(unsafe { query.unwrap()(context, std::ptr::null(), place, size) }, 0);
        assert_eq!((longer.0.phys_port_cnt_ex, longer.1), (1, [0; 16]));
        let mut attr = ibv_port_attr::default();
        // SAFETY: live, with room.
        assert_eq!(unsafe { port.unwrap()(context, 1, &raw mut attr, size_of::<ibv_port_attr>()) }, 0);
        assert_eq!(attr.state, IBV_PORT_ACTIVE);
        // SAFETY: as above.
        assert_eq!(unsafe { port.unwrap()(context, 2, &raw mut attr, size_of::<ibv_port_attr>()) }, libc::EINVAL);
    }

    #[test]
    fn queue_pair_numbers_are_none_of_the_special_ones_and_fit_24_bits() {
        let device = Device::new(SoftConfig::default()).unwrap();
        device.next_qp.store(0xFF_FFFF, Ordering::Relaxed);
        assert_eq!([device.new_qp_number(), device.new_qp_number()], [0xFF_FFFF, 2]);
    }
}
