//! Holds our bindings against what rdma-sys makes of the installed headers: every structure, field and constant.
//!
//! Ours come from the newest headers, and structures only grow: so they have every field of an older header in the same place and size,
//! and what the older one lacks lies behind all of it (before it in `verbs_context`, which grows at its front).
//!
//! rdma-sys writes some structures with unions by hand (`ibv_send_wr`, `ibv_wc`, `rdma_addr`, `rdma_cm_event` and a few more): for those
//! this is a comparison with a second pair of eyes rather than with the header. The assertions in `bindings.rs` itself, which bindgen
//! made from the headers, hold them too.
#![expect(unsafe_code, reason = "names places inside structures, none of which is read")]

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

use rpma_sys::bindings as ours;

/// One structure in both bindings.
struct Structure {
    name: &'static str,
    size: Pair,
    align: Pair,
    /// Whether it grows at its front, so that places count from its end.
    from_end: bool,
    fields: Vec<Field>,
    /// Fields that rdma-sys or older headers lack.
    lacking: Vec<Lacking>,
}

struct Pair {
    ours: usize,
    theirs: usize,
}

struct Field {
    name: &'static str,
    offset: Pair,
    size: Pair,
}

struct Lacking {
    name: &'static str,
    offset: usize,
    size: usize,
}

/// The size of a field.
macro_rules! field_size {
    ($structure:path, $field:ident) => {{
        fn size_of_pointee<T>(_: *const T) -> usize {
            size_of::<T>()
        }
        let whole = MaybeUninit::<$structure>::uninit();
        // SAFETY: a place inside `whole`, of which only the address is taken.
        size_of_pointee(unsafe { &raw const (*whole.as_ptr()).$field })
    }};
}

/// Whether the structure is marked so.
macro_rules! from_end {
    () => {
        false
    };
    (from_end) => {
        true
    };
}

macro_rules! structures {
    ($(
        $([$grows:ident])? $name:ident = $theirs:path { $($field:ident $(= $their_field:ident)?),* } $(lacking { $($lacking:ident),* })?;
    )*) => {
        fn structures() -> Vec<Structure> {
            vec![$(Structure {
                name: stringify!($name),
                size: Pair { ours: size_of::<ours::$name>(), theirs: size_of::<$theirs>() },
                align: Pair { ours: align_of::<ours::$name>(), theirs: align_of::<$theirs>() },
                from_end: from_end!($($grows)?),
                fields: vec![$(field!($name, $field, $theirs, $field $($their_field)?)),*],
                lacking: vec![$($(Lacking {
                    name: stringify!($lacking),
                    offset: std::mem::offset_of!(ours::$name, $lacking),
                    size: field_size!(ours::$name, $lacking),
                }),*)?],
            }),*]
        }
    };
}

macro_rules! field {
    ($name:ident, $field:ident, $theirs:path, $same:ident) => {
        field!($name, $field, $theirs, $same $same)
    };
    ($name:ident, $field:ident, $theirs:path, $same:ident $their_field:ident) => {
        Field {
            name: stringify!($field),
            offset: Pair { ours: std::mem::offset_of!(ours::$name, $field), theirs: std::mem::offset_of!($theirs, $their_field) },
            size: Pair { ours: field_size!(ours::$name, $field), theirs: field_size!($theirs, $their_field) },
        }
    };
}

#[rustfmt::skip]
structures! {
    ibv_gid = rdma_sys::ibv_gid { raw, global };
    ibv_gid__bindgen_ty_1 = rdma_sys::ibv_gid_global_t { subnet_prefix, interface_id };
    ibv_device_attr = rdma_sys::ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap,
        vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe,
        max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom,
        atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
        max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
        local_ca_ack_delay, phys_port_cnt };
    ibv_query_device_ex_input = rdma_sys::ibv_query_device_ex_input { comp_mask };
    ibv_odp_caps = rdma_sys::ibv_odp_caps { general_caps, per_transport_caps };
    ibv_odp_caps__bindgen_ty_1 = rdma_sys::ibv_odp_caps__bindgen_ty_1 { rc_odp_caps, uc_odp_caps, ud_odp_caps };
    ibv_tso_caps = rdma_sys::ibv_tso_caps { max_tso, supported_qpts };
    ibv_rss_caps = rdma_sys::ibv_rss_caps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
        rx_hash_fields_mask, rx_hash_function };
    ibv_packet_pacing_caps = rdma_sys::ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts };
    ibv_tm_caps = rdma_sys::ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge };
    ibv_cq_moderation_caps = rdma_sys::ibv_cq_moderation_caps { max_cq_count, max_cq_period };
    ibv_pci_atomic_caps = rdma_sys::ibv_pci_atomic_caps { fetch_add, swap, compare_swap };
    ibv_device_attr_ex = rdma_sys::ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask,
        hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps,
        tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex };
    ibv_port_attr = rdma_sys::ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
        bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply,
        active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 } lacking { active_speed_ex };
    ibv_async_event = rdma_sys::ibv_async_event { element, event_type };
    ibv_async_event__bindgen_ty_1 = rdma_sys::ibv_async_event_element_t { cq, qp, srq, wq, port_num };
    ibv_wc = rdma_sys::ibv_wc { wr_id, status, opcode, vendor_err, byte_len, __bindgen_anon_1 =
        imm_data_invalidated_rkey_union, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits };
    ibv_wc__bindgen_ty_1 = rdma_sys::imm_data_invalidated_rkey_union_t { imm_data, invalidated_rkey };
    ibv_mw_bind_info = rdma_sys::ibv_mw_bind_info { mr, addr, length, mw_access_flags };
    ibv_pd = rdma_sys::ibv_pd { context, handle };
    ibv_mr = rdma_sys::ibv_mr { context, pd, addr, length, handle, lkey, rkey };
    ibv_global_route = rdma_sys::ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class };
    ibv_ah_attr = rdma_sys::ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num };
    ibv_qp_cap = rdma_sys::ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    ibv_qp_init_attr = rdma_sys::ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
    ibv_rx_hash_conf = rdma_sys::ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask };
    ibv_qp_init_attr_ex = rdma_sys::ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
        comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags };
    ibv_qp_attr = rdma_sys::ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        alt_port_num, alt_timeout, rate_limit };
    ibv_data_buf = rdma_sys::ibv_data_buf { addr, length };
    ibv_sge = rdma_sys::ibv_sge { addr, length, lkey };
    ibv_send_wr = rdma_sys::ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, __bindgen_anon_1 =
        imm_data_invalidated_rkey_union, wr, qp_type, __bindgen_anon_2 = bind_mw_tso_union };
    ibv_send_wr__bindgen_ty_1 = rdma_sys::imm_data_invalidated_rkey_union_t { imm_data, invalidate_rkey = invalidated_rkey };
    ibv_send_wr__bindgen_ty_2 = rdma_sys::wr_t { rdma, atomic, ud };
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1 = rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 = rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr,
        compare_add, swap, rkey };
    ibv_send_wr__bindgen_ty_2__bindgen_ty_3 = rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn,
        remote_qkey };
    ibv_send_wr__bindgen_ty_3 = rdma_sys::qp_type_t { xrc };
    ibv_send_wr__bindgen_ty_3__bindgen_ty_1 = rdma_sys::ibv_send_wr__bindgen_ty_3__bindgen_ty_1 { remote_srqn };
    ibv_send_wr__bindgen_ty_4 = rdma_sys::bind_mw_tso_union_t { bind_mw, tso };
    ibv_send_wr__bindgen_ty_4__bindgen_ty_1 = rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2 = rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_2 { hdr, hdr_sz, mss };
    ibv_recv_wr = rdma_sys::ibv_recv_wr { wr_id, next, sg_list, num_sge };
    ibv_srq_attr = rdma_sys::ibv_srq_attr { max_wr, max_sge, srq_limit };
    ibv_srq_init_attr = rdma_sys::ibv_srq_init_attr { srq_context, attr };
    ibv_srq = rdma_sys::ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed };
    ibv_qp = rdma_sys::ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
        cond, events_completed };
    ibv_qp_ex = rdma_sys::ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
        wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv,
        wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
        wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write } lacking { wr_flush };
    ibv_comp_channel = rdma_sys::ibv_comp_channel { context, fd, refcnt };
    ibv_cq = rdma_sys::ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed };
    rdma_addrinfo = rdma_sys::rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len,
        ai_src_addr, ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect,
        ai_next };
    _ibv_device_ops = rdma_sys::_ibv_device_ops { _dummy1, _dummy2 };
    ibv_device = rdma_sys::ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path };
    _compat_ibv_port_attr = rdma_sys::_compat_ibv_port_attr {  };
    ibv_context_ops = rdma_sys::ibv_context_ops { _compat_query_device, _compat_query_port, _compat_alloc_pd,
        _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
        _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq,
        _compat_create_srq, _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp,
        _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
        _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event };
    ibv_context = rdma_sys::ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat };
    [from_end] verbs_context = rdma_sys::verbs_context { query_port, advise_mr, alloc_null_mr, read_counters,
        attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm,
        modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
        dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq,
        create_wq, query_rt_values, create_cq_ex, priv_, query_device_ex, ibv_destroy_flow, ABI_placeholder2,
        ibv_create_flow, ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd,
        _ABI_placeholder3, sz, context } lacking { free_buf, alloc_buf, dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah,
        alloc_dmah };
    sockaddr = libc::sockaddr { sa_family, sa_data };
    sockaddr_storage = libc::sockaddr_storage { ss_family } lacking { __ss_padding, __ss_align };
    in_addr = libc::in_addr { s_addr };
    in6_addr = libc::in6_addr { __in6_u = s6_addr };
    sockaddr_in = libc::sockaddr_in { sin_family, sin_port, sin_addr, sin_zero };
    sockaddr_in6 = libc::sockaddr_in6 { sin6_family, sin6_port, sin6_flowinfo, sin6_addr, sin6_scope_id };
    rdma_ib_addr = rdma_sys::rdma_ib_addr { sgid, dgid, pkey };
    rdma_addr = rdma_sys::rdma_addr { __bindgen_anon_1 = src_addr_union, __bindgen_anon_2 = dst_addr_union, addr };
    rdma_addr__bindgen_ty_1 = rdma_sys::src_addr_union_t { src_addr, src_sin, src_sin6, src_storage };
    rdma_addr__bindgen_ty_2 = rdma_sys::dst_addr_union_t { dst_addr, dst_sin, dst_sin6, dst_storage };
    rdma_addr__bindgen_ty_3 = rdma_sys::addr_union_t { ibaddr };
    rdma_route = rdma_sys::rdma_route { addr, path_rec, num_paths };
    rdma_event_channel = rdma_sys::rdma_event_channel { fd };
    rdma_cm_id = rdma_sys::rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
        recv_cq_channel, recv_cq, srq, pd, qp_type };
    rdma_conn_param = rdma_sys::rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth,
        flow_control, retry_count, rnr_retry_count, srq, qp_num };
    rdma_ud_param = rdma_sys::rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey };
    rdma_cm_event = rdma_sys::rdma_cm_event { id, listen_id, event, status, param };
    rdma_cm_event__bindgen_ty_1 = rdma_sys::param_t { conn, ud } lacking { arg };
    verbs_ex_private = rdma_sys::verbs_ex_private { _address };
}

/// Structures that are not compared, and why.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("__BindgenOpaqueArray8", "bindgen's own"),
    ("ibv_buf", "younger than Debian 12's headers, and only ever behind a pointer"),
    ("ibv_ops_wr__bindgen_ty_1", "part of a structure that is opaque to us"),
    ("ibv_ops_wr__bindgen_ty_1__bindgen_ty_1", "part of a structure that is opaque to us"),
    ("in6_addr__bindgen_ty_1", "the ways to see 16 bytes; in6_addr is compared as a whole"),
];

#[test]
fn every_structure_lies_as_in_the_installed_headers() {
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, text: String| {
        if !holds {
            wrong.push(text);
        }
    };
    for Structure { name, size, align, from_end, fields, lacking } in structures() {
        claim(size.ours >= size.theirs, format!("{name} has {} bytes, theirs {}", size.ours, size.theirs));
        claim(size.ours == size.theirs || !lacking.is_empty(), format!("{name} has grown by no field"));
        claim(align.ours == align.theirs, format!("{name} is aligned to {}, theirs to {}", align.ours, align.theirs));
        let grown = if from_end { size.ours - size.theirs } else { 0 };
        for Field { name: field, offset, size } in &fields {
            let moved = offset.theirs + grown;
            claim(offset.ours == moved, format!("{name}.{field} is at {}, theirs at {moved}", offset.ours));
            claim(size.ours == size.theirs, format!("{name}.{field} has {} bytes, theirs {}", size.ours, size.theirs));
        }
        let is_union = fields.len() > 1 && fields.iter().all(|field| field.offset.ours == 0);
        let known_begin = fields.iter().map(|field| field.offset.ours).min().unwrap_or(0);
        let known_end = fields.iter().map(|field| field.offset.ours + field.size.ours).max().unwrap_or(0);
        for Lacking { name: field, offset, size } in lacking {
            let is_outside = if from_end { offset + size <= known_begin } else { offset >= known_end };
            claim(is_outside || is_union, format!("{name}.{field} at {offset} is in the middle of what theirs has"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The structures and unions of our bindings with their fields, read from the source, without those whose fields bindgen left out.
fn structures_in_source() -> Vec<(&'static str, BTreeSet<&'static str>)> {
    let mut found = Vec::new();
    let mut lines = SOURCE.lines();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub union ")) else { continue };
        let name = rest.split([' ', '<', '(']).next().expect("split gives at least one part");
        let fields: BTreeSet<_> = if line.ends_with('{') {
            let body = lines.by_ref().take_while(|line| *line != "}");
            body.filter_map(|line| line.strip_prefix("    pub ")?.split_once(':')).map(|(field, _)| field).collect()
        } else {
            BTreeSet::new()
        };
        if !fields.contains("_bindgen_opaque_blob") {
            found.push((name, fields));
        }
    }
    found
}

const SOURCE: &str = include_str!("../src/bindings.rs");

#[test]
fn no_structure_and_no_field_of_the_bindings_is_left_out() {
    let compared = structures();
    let in_source = structures_in_source();
    assert!(in_source.len() > 60, "the source is no longer read right: {} structures found", in_source.len());
    for (name, fields) in in_source {
        let listed = compared.iter().find(|structure| structure.name == name);
        let excused = NOT_COMPARED.iter().any(|&(excused, _)| excused == name);
        match (listed, excused) {
            (Some(Structure { fields: known, lacking, .. }), false) => {
                let listed: BTreeSet<_> =
                    known.iter().map(|field| field.name).chain(lacking.iter().map(|field| field.name)).collect();
                assert_eq!(listed, fields, "{name}");
            }
            (None, true) => {}
            (None, false) => panic!("{name} is in the bindings and not in this test"),
            (Some(_), true) => panic!("{name} is compared and excused"),
        }
    }
}

/// A constant in both bindings.
struct Constant {
    name: &'static str,
    /// `None` where rdma-sys or older headers lack it.
    values: Option<(i64, i64)>,
}

/// The ways in which rdma-sys writes an enumeration: constants in a module, constants of a bit-field type, a Rust enumeration.
macro_rules! their_constant {
    (module $enumeration:ident $name:ident) => {
        rdma_sys::$enumeration::$name
    };
    (bits $enumeration:ident $name:ident) => {
        rdma_sys::$enumeration::$name.0
    };
    (rust $enumeration:ident $name:ident) => {
        rdma_sys::$enumeration::$name as u32
    };
}

macro_rules! constants {
    ($($form:ident $enumeration:ident { $($name:ident),* } $(lacking { $($lacking:ident),* })?;)*) => {
        fn constants() -> Vec<Constant> {
            vec![
                $($(Constant {
                    name: stringify!($name),
                    values: Some((i64::from(ours::$name), i64::from(their_constant!($form $enumeration $name)))),
                },)*)*
                $($($(Constant { name: { let _ = ours::$lacking; stringify!($lacking) }, values: None },)*)?)*
            ]
        }
    };
}

#[rustfmt::skip]
constants! {
    module ib_uverbs_advise_mr_advice { IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT };
    module ibv_node_type { IBV_NODE_UNKNOWN, IBV_NODE_CA, IBV_NODE_SWITCH, IBV_NODE_ROUTER, IBV_NODE_RNIC, IBV_NODE_USNIC,
        IBV_NODE_USNIC_UDP, IBV_NODE_UNSPECIFIED };
    module ibv_transport_type { IBV_TRANSPORT_UNKNOWN, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_USNIC,
        IBV_TRANSPORT_USNIC_UDP, IBV_TRANSPORT_UNSPECIFIED };
    module ibv_atomic_cap { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };
    bits ibv_odp_general_caps { IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_IMPLICIT };
    bits ibv_odp_transport_cap_bits { IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_WRITE,
        IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_SRQ_RECV } lacking { IBV_ODP_SUPPORT_FLUSH,
        IBV_ODP_SUPPORT_ATOMIC_WRITE };
    module ibv_mtu { IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096 };
    module ibv_port_state { IBV_PORT_NOP, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE,
        IBV_PORT_ACTIVE_DEFER };
    rust ibv_event_type { IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_CLIENT_REREGISTER,
        IBV_EVENT_GID_CHANGE, IBV_EVENT_WQ_FATAL } lacking { IBV_EVENT_DEVICE_SPEED_CHANGE };
    module ibv_wc_status { IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_EEC_OP_ERR,
        IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_LOC_RDD_VIOL_ERR, IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_INV_EECN_ERR,
        IBV_WC_INV_EEC_STATE_ERR, IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR, IBV_WC_TM_ERR,
        IBV_WC_TM_RNDV_INCOMPLETE };
    module ibv_wc_opcode { IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD,
        IBV_WC_BIND_MW, IBV_WC_LOCAL_INV, IBV_WC_TSO, IBV_WC_ATOMIC_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_WC_TM_ADD, IBV_WC_TM_DEL, IBV_WC_TM_SYNC, IBV_WC_TM_RECV, IBV_WC_TM_NO_TAG, IBV_WC_DRIVER1, IBV_WC_DRIVER2,
        IBV_WC_DRIVER3 } lacking { IBV_WC_FLUSH };
    bits ibv_wc_flags { IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_INV, IBV_WC_TM_SYNC_REQ,
        IBV_WC_TM_MATCH, IBV_WC_TM_DATA_VALID };
    bits ibv_access_flags { IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_HUGETLB,
        IBV_ACCESS_RELAXED_ORDERING } lacking { IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT };
    module ibv_mw_type { IBV_MW_TYPE_1, IBV_MW_TYPE_2 };
    module ibv_qp_type { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV,
        IBV_QPT_DRIVER };
    bits ibv_qp_init_attr_mask { IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QP_INIT_ATTR_CREATE_FLAGS,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_RX_HASH,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
    bits ibv_qp_create_send_ops_flags { IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_BIND_MW,
        IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO, IBV_QP_EX_WITH_ATOMIC_WRITE } lacking { IBV_QP_EX_WITH_FLUSH };
    bits ibv_qp_attr_mask { IBV_QP_STATE, IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT,
        IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_ALT_PATH, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_PATH_MIG_STATE, IBV_QP_CAP, IBV_QP_DEST_QPN, IBV_QP_RATE_LIMIT };
    bits ibv_srq_attr_mask { IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT };
    module ibv_qp_state { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR,
        IBV_QPS_UNKNOWN };
    module ibv_mig_state { IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_MIG_ARMED };
    module ibv_wr_opcode { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW,
        IBV_WR_SEND_WITH_INV, IBV_WR_TSO, IBV_WR_DRIVER1, IBV_WR_ATOMIC_WRITE } lacking { IBV_WR_FLUSH };
    bits ibv_send_flags { IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_SEND_IP_CSUM };
    module rdma_cm_event_type { RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ESTABLISHED,
        RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_MULTICAST_JOIN,
        RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT } lacking {
        RDMA_CM_EVENT_ADDRINFO_RESOLVED, RDMA_CM_EVENT_ADDRINFO_ERROR, RDMA_CM_EVENT_USER, RDMA_CM_EVENT_INTERNAL };
    module rdma_port_space { RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB };
}

/// Constants that rdma-sys has in no form: those of enumerations without a name, of macros, and of native flush.
const NO_CONSTANT_THERE: &[&str] = &[
    "IBV_ACCESS_OPTIONAL_FIRST",
    "IBV_FLUSH_GLOBAL",
    "IBV_FLUSH_MR",
    "IBV_FLUSH_PERSISTENT",
    "IBV_FLUSH_RANGE",
    "IBV_LINK_LAYER_ETHERNET",
    "IBV_LINK_LAYER_INFINIBAND",
    "IBV_LINK_LAYER_UNSPECIFIED",
    "IBV_WC_IP_CSUM_OK_SHIFT",
    "IBV_WC_STANDARD_FLAGS",
    "RAI_DNS",
    "RAI_FAMILY",
    "RAI_NOROUTE",
    "RAI_NUMERICHOST",
    "RAI_PASSIVE",
    "RAI_SA",
    "RDMA_MAX_INIT_DEPTH",
    "RDMA_MAX_RESP_RES",
    "RDMA_OPTION_IB",
    "RDMA_OPTION_IB_PATH",
    "RDMA_OPTION_ID",
    "RDMA_OPTION_ID_ACK_TIMEOUT",
    "RDMA_OPTION_ID_AFONLY",
    "RDMA_OPTION_ID_REUSEADDR",
    "RDMA_OPTION_ID_TOS",
];

#[test]
fn every_constant_has_the_value_of_the_installed_headers() {
    for Constant { name, values } in constants() {
        if let Some((ours, theirs)) = values {
            assert_eq!(ours, theirs, "{name}");
        }
    }
}

#[test]
fn no_constant_of_the_bindings_is_left_out() {
    let in_source: BTreeSet<_> =
        SOURCE.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(':')).map(|(name, _)| name).collect();
    assert!(in_source.len() > 200, "the source is no longer read right: {} constants found", in_source.len());
    let listed: BTreeSet<_> = constants().iter().map(|constant| constant.name).chain(NO_CONSTANT_THERE.iter().copied()).collect();
    let difference: Vec<_> = listed.symmetric_difference(&in_source).collect();
    assert!(difference.is_empty(), "only here, or only in the bindings: {difference:?}");
}
