//! What a device says of itself.

use super::{Scenario, Seen};
use crate::verbs::{Setup, told};

pub(super) const ALL: &[Scenario] = &[("device", device), ("port", port)];

fn device(setup: &Setup, seen: &mut Seen) {
    let (node, transport) = setup.kind();
    seen.put("node type", node);
    seen.put("transport", transport);
    let attr = &setup.attr;
    let orig = &attr.orig_attr;
    seen.put("max_mr_size", format!("{:#x}", orig.max_mr_size));
    seen.put("page_size_cap", format!("{:#x}", orig.page_size_cap));
    seen.put("max_qp_wr", orig.max_qp_wr);
    seen.put("max_sge", orig.max_sge);
    seen.put("max_sge_rd", orig.max_sge_rd);
    seen.put("max_cqe", orig.max_cqe);
    seen.put("max_qp_rd_atom", orig.max_qp_rd_atom);
    seen.put("max_qp_init_rd_atom", orig.max_qp_init_rd_atom);
    seen.put("max_res_rd_atom", orig.max_res_rd_atom);
    seen.put("atomic_cap", orig.atomic_cap);
    seen.put("phys_port_cnt", orig.phys_port_cnt);
    seen.put("max_srq", orig.max_srq);
    seen.put("max_srq_wr", orig.max_srq_wr);
    seen.put("max_srq_sge", orig.max_srq_sge);
    seen.put("max_mw", orig.max_mw);
    seen.put("max_pkeys", orig.max_pkeys);
    seen.put("local_ca_ack_delay", orig.local_ca_ack_delay);
    seen.put("device_cap_flags", format!("{:#x}", orig.device_cap_flags));
    // Bits 38 to 40 are flush and atomic write.
    seen.put("flush and atomic write", format!("{:#x}", attr.device_cap_flags_ex >> 38));
    seen.put("on-demand paging", attr.odp_caps.general_caps);
    seen.put("on-demand paging of a connection", format!("{:#x}", attr.odp_caps.per_transport_caps.rc_odp_caps));
    seen.put("phys_port_cnt_ex", attr.phys_port_cnt_ex);
}

fn port(setup: &Setup, seen: &mut Seen) {
    for number in [0, 2] {
        seen.put(format!("query of port {number}"), told(&setup.port(number)));
    }
    let port = setup.port(1).expect("the first port");
    seen.put("state", port.state);
    seen.put("max_mtu", port.max_mtu);
    seen.put("active_mtu", port.active_mtu);
    // How many depends on the machine's addresses, or on the driver's table.
    seen.put("there are GIDs", port.gid_tbl_len > 0);
    seen.put("port_cap_flags", format!("{:#x}", port.port_cap_flags));
    seen.put("max_msg_sz", format!("{:#x}", port.max_msg_sz));
    seen.put("pkey_tbl_len", port.pkey_tbl_len);
    seen.put("lid, sm_lid, lmc", format!("{}, {}, {}", port.lid, port.sm_lid, port.lmc));
    seen.put("max_vl_num", port.max_vl_num);
    seen.put("subnet_timeout", port.subnet_timeout);
    seen.put("active_width", port.active_width);
    seen.put("active_speed", port.active_speed);
    seen.put("phys_state", port.phys_state);
    seen.put("link_layer", port.link_layer);
    seen.put("flags", port.flags);
}
