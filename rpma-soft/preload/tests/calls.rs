//! Calls that only C programs make, through the exported functions: what the programs of `programs.rs` do not show.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "calls exported functions, by their C signatures")]

mod support;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::mem::offset_of;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::Library;
use rpma_sys::bindings::*;

/// The functions under test, with their C signatures.
macro_rules! functions {
    ($($name:ident: fn($($ty:ty),*) -> $ret:ty;)*) => {
        struct Door {
            $($name: unsafe extern "C" fn($($ty),*) -> $ret,)*
        }

        fn door() -> &'static Door {
            static DOOR: OnceLock<Door> = OnceLock::new();
            DOOR.get_or_init(|| {
                // SAFETY: the door has no initialisers.
                let library = Box::leak(Box::new(unsafe { Library::new(support::door()) }.unwrap()));
                Door {
                    $($name: {
                        // SAFETY: the signatures above are those of the headers, and the library is never closed.
                        *unsafe { library.get(stringify!($name)) }.unwrap()
                    },)*
                }
            })
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_get_device_guid: fn(*mut ibv_device) -> u64;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_get_pkey_index: fn(*mut ibv_context, u8, u16) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut [u8; 16]) -> c_int;
    _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    _ibv_query_gid_table: fn(*mut ibv_context, *mut GidEntry, usize, u32, usize) -> isize;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_rereg_mr: fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_qp_to_qp_ex: fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_fork_init: fn() -> c_int;
    rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space) -> c_int;
    rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
    rdma_create_srq_ex: fn(*mut rdma_cm_id, *mut SrqInitAttrEx) -> c_int;
    rdma_destroy_srq: fn(*mut rdma_cm_id) -> ();
    rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
}

/// `struct ibv_gid_entry` of verbs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct GidEntry {
    gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

/// `struct ibv_srq_init_attr_ex` of verbs.h, up to what is looked at.
#[repr(C)]
struct SrqInitAttrEx {
    basic: ibv_srq_init_attr,
    comp_mask: u32,
    srq_type: c_int,
    pd: *mut ibv_pd,
}

fn errno() -> Option<c_int> {
    io::Error::last_os_error().raw_os_error()
}

/// The device's context, as a program gets it.
fn context() -> *mut ibv_context {
    let door = door();
    // SAFETY: a null pointer says that the number is not asked for.
    let list = unsafe { (door.ibv_get_device_list)(null_mut()) };
    // SAFETY: a list of one device.
    let device = unsafe { list.read() };
    // SAFETY: a device of the list.
    let context = unsafe { (door.ibv_open_device)(device) };
    // SAFETY: the list that was made above.
    unsafe { (door.ibv_free_device_list)(list) };
    assert!(!context.is_null());
    context
}

#[test]
fn device_list_has_the_software_device_and_ends_with_null() {
    let door = door();
    let mut count = 0;
    // SAFETY: a place for the number.
    let list = unsafe { (door.ibv_get_device_list)(&raw mut count) };
    assert_eq!(count, 1);
    // SAFETY: a list of so many.
    let [device, end] = unsafe { list.cast::<[*mut ibv_device; 2]>().read() };
    assert!(end.is_null());
    // SAFETY: a device of the list.
    let name = unsafe { (door.ibv_get_device_name)(device) };
    // SAFETY: a name that ends with 0.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"soft0");
    // SAFETY: as above.
    assert_ne!(unsafe { (door.ibv_get_device_guid)(device) }, 0);
    // SAFETY: the list that was made above.
    unsafe { (door.ibv_free_device_list)(list) };
    // SAFETY: no device is refused.
    assert!(unsafe { (door.ibv_open_device)(null_mut()) }.is_null());
}

#[test]
fn closed_device_stays_open_for_who_else_has_it() {
    let door = door();
    // SAFETY: opened just now, and closed once.
    assert_eq!(unsafe { (door.ibv_close_device)(context()) }, 0);
    let mut attr = ibv_device_attr::default();
    // SAFETY: opened anew, and a place for the answer.
    assert_eq!(unsafe { (door.ibv_query_device)(context(), &raw mut attr) }, 0);
    assert_eq!(attr.phys_port_cnt, 1);
    // SAFETY: no argument.
    assert_eq!(unsafe { (door.ibv_fork_init)() }, 0);
}

#[test]
fn old_query_of_a_port_writes_no_more_than_the_old_structure() {
    let mut attr = ibv_port_attr { port_cap_flags2: 0xABCD, active_speed_ex: 0x1234_5678, ..ibv_port_attr::default() };
    // SAFETY: live, and a place for the answer.
    assert_eq!(unsafe { (door().ibv_query_port)(context(), 1, &raw mut attr) }, 0);
    assert_eq!(attr.state, IBV_PORT_ACTIVE);
    assert_eq!((attr.port_cap_flags2, attr.active_speed_ex), (0xABCD, 0x1234_5678));
    // SAFETY: as above.
    assert_eq!(unsafe { (door().ibv_query_port)(context(), 2, &raw mut attr) }, libc::EINVAL);
}

#[test]
fn only_partition_key_is_found_by_its_place_and_by_its_value() {
    let (door, context) = (door(), context());
    let mut pkey = 0;
    // SAFETY: live, and a place for the answer.
    assert_eq!(unsafe { (door.ibv_query_pkey)(context, 1, 0, &raw mut pkey) }, 0);
    // SAFETY: live.
    assert_eq!(unsafe { (door.ibv_get_pkey_index)(context, 1, pkey) }, 0);
    // SAFETY: live, and a place for an answer.
    assert_eq!(unsafe { (door.ibv_query_pkey)(context, 1, 1, &raw mut pkey) }, -1);
    assert_eq!(errno(), Some(libc::EINVAL));
}

#[test]
fn every_way_to_ask_for_gids_gives_the_addresses_of_the_machine() {
    let (door, context) = (door(), context());
    let mut all = [GidEntry::default(); 64];
    // SAFETY: room for so many.
    let count = unsafe { (door._ibv_query_gid_table)(context, all.as_mut_ptr(), all.len(), 0, size_of::<GidEntry>()) };
    let all = &all[..usize::try_from(count).unwrap()];
    let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let known = all.iter().find(|entry| entry.gid == loopback).unwrap();
    let mut one = GidEntry::default();
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { (door._ibv_query_gid_ex)(context, 1, known.gid_index, &raw mut one, 0, size_of::<GidEntry>()) }, 0);
    assert_eq!(one, *known);
    let mut gid = [0; 16];
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { (door.ibv_query_gid)(context, 1, known.gid_index.cast_signed(), &raw mut gid) }, 0);
    assert_eq!(gid, loopback);
    // SAFETY: a place for an answer, in an entry that is too small.
    assert_eq!(unsafe { (door._ibv_query_gid_ex)(context, 1, 0, &raw mut one, 0, 16) }, libc::EINVAL);
    // SAFETY: a place for an answer.
    assert_eq!(unsafe { (door._ibv_query_gid_ex)(context, 1, 100_000, &raw mut one, 0, size_of::<GidEntry>()) }, libc::ENODATA);
    // SAFETY: as above.
    assert_eq!(unsafe { (door.ibv_query_gid)(context, 1, -1, &raw mut gid) }, -1);
}

#[test]
fn region_that_cannot_be_changed_is_as_it_was() {
    let (door, context) = (door(), context());
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: live.
    let pd = unsafe { (door.ibv_alloc_pd)(context) };
    let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
    // SAFETY: live, and memory that stays until the region is deregistered.
    let mr = unsafe { (door.ibv_reg_mr)(pd, bytes.as_mut_ptr().cast(), bytes.len(), access) };
    // SAFETY: live.
    assert_eq!(unsafe { (door.ibv_rereg_mr)(mr, 4, null_mut(), null_mut(), 0, 0) }, -1);
    assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    // SAFETY: live.
    assert_eq!(unsafe { (door.ibv_dealloc_pd)(pd) }, libc::EBUSY);
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { (door.ibv_dereg_mr)(mr) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { (door.ibv_dealloc_pd)(pd) }, 0);
}

/// A protection domain and a completion queue, for queue pairs.
fn domain() -> (*mut ibv_pd, *mut ibv_cq) {
    // SAFETY: live.
    let pd = unsafe { (door().ibv_alloc_pd)(context()) };
    // SAFETY: live; no channel.
    let cq = unsafe { (door().ibv_create_cq)(context(), 8, null_mut(), null_mut(), 0) };
    assert!(!pd.is_null() && !cq.is_null());
    (pd, cq)
}

/// They go when nothing uses them.
fn free((pd, cq): (*mut ibv_pd, *mut ibv_cq)) {
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { (door().ibv_destroy_cq)(cq) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { (door().ibv_dealloc_pd)(pd) }, 0);
}

#[test]
fn completion_queue_has_the_size_that_was_asked_for_last() {
    let (pd, cq) = domain();
    // SAFETY: live.
    assert_eq!(unsafe { (door().ibv_resize_cq)(cq, 100) }, 0);
    // SAFETY: live.
    assert_eq!(unsafe { (*cq).cqe }, 100);
    // SAFETY: live.
    assert_eq!(unsafe { (door().ibv_resize_cq)(cq, 0) }, libc::EINVAL);
    // SAFETY: live.
    assert_eq!(unsafe { (*cq).cqe }, 100);
    free((pd, cq));
}

#[test]
fn queue_pair_without_an_identifier_begins_in_reset_and_holds_what_it_uses() {
    let door = door();
    let (pd, cq) = domain();
    let cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut attr = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type: IBV_QPT_RC, ..ibv_qp_init_attr::default() };
    // SAFETY: live, with attributes that name live objects.
    let qp = unsafe { (door.ibv_create_qp)(pd, &raw mut attr) };
    assert!(!qp.is_null(), "{}", io::Error::last_os_error());
    // SAFETY: live.
    assert_eq!(unsafe { (*qp).state }, IBV_QPS_RESET);
    // SAFETY: live, and made without the extended form.
    assert!(unsafe { (door.ibv_qp_to_qp_ex)(qp) }.is_null());
    // SAFETY: live, and used.
    assert_eq!(unsafe { (door.ibv_destroy_cq)(cq) }, libc::EBUSY);
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { (door.ibv_destroy_qp)(qp) }, 0);
    free((pd, cq));
}

#[test]
fn queue_pair_that_headers_make_by_way_of_the_context_has_builders() {
    let door = door();
    let (pd, cq) = domain();
    let context = context();
    let extended: *mut verbs_context = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast();
    // SAFETY: an extended context, as its mark says, which nobody changes.
    let create = unsafe { (*extended).create_qp_ex }.unwrap();
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        cap: ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
        qp_type: IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd,
        send_ops_flags: IBV_QP_EX_WITH_SEND.into(),
        ..ibv_qp_init_attr_ex::default()
    };
    // SAFETY: live, with attributes that name live objects.
    let qp = unsafe { create(context, &raw mut attr) };
    assert!(!qp.is_null(), "{}", io::Error::last_os_error());
    // SAFETY: live.
    let qp_ex = unsafe { (door.ibv_qp_to_qp_ex)(qp) };
    // SAFETY: live, in the extended form.
    assert!(unsafe { (*qp_ex).wr_send }.is_some());
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { (door.ibv_destroy_qp)(qp) }, 0);
    attr.pd = null::<ibv_pd>().cast_mut();
    // SAFETY: refused before anything is made.
    assert!(unsafe { create(context, &raw mut attr) }.is_null());
    assert_eq!(errno(), Some(libc::EINVAL));
    free((pd, cq));
}

#[test]
fn shared_receive_queue_of_the_extended_form_is_made_if_it_is_a_basic_one() {
    let door = door();
    let mut id = null_mut();
    // SAFETY: no channel, and a place for the result.
    assert_eq!(unsafe { (door.rdma_create_id)(null_mut(), &raw mut id, null_mut(), RDMA_PS_TCP) }, 0);
    let addr = in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) };
    let mut addr = sockaddr_in { sin_family: libc::AF_INET as sa_family_t, sin_addr: addr, ..sockaddr_in::default() };
    // SAFETY: live, and a whole address.
    assert_eq!(unsafe { (door.rdma_bind_addr)(id, (&raw mut addr).cast()) }, 0);
    // SAFETY: live.
    assert_ne!(unsafe { (door.rdma_get_src_port)(id) }, 0);
    let basic = ibv_srq_init_attr { attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 }, ..ibv_srq_init_attr::default() };
    let mut attr = SrqInitAttrEx { basic, comp_mask: 1, srq_type: 1, pd: null_mut() };
    // SAFETY: live, and whole attributes.
    assert_eq!(unsafe { (door.rdma_create_srq_ex)(id, &raw mut attr) }, -1);
    assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    attr.srq_type = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { (door.rdma_create_srq_ex)(id, &raw mut attr) }, 0);
    // SAFETY: live.
    assert!(!unsafe { (*id).srq }.is_null());
    // SAFETY: live, with a queue that nothing uses.
    unsafe { (door.rdma_destroy_srq)(id) };
    // SAFETY: live.
    assert!(unsafe { (*id).srq }.is_null());
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { (door.rdma_destroy_id)(id) }, 0);
}
