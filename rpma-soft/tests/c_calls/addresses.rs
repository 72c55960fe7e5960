//! `rdma_getaddrinfo(3)`: a table of what librdmacm answers, on soft-RoCE, in Debian 12 and 13.

use std::ffi::c_int;

use rpma_sys::bindings::*;

use crate::info::{AddrInfo, storage};

const RC: ibv_qp_type = IBV_QPT_RC;
const UD: ibv_qp_type = IBV_QPT_UD;
const PASSIVE: u32 = RAI_PASSIVE;
/// netdb.h of glibc; the crate `libc` does not have it.
const EAI_ADDRFAMILY: c_int = -9;
const TCP: rdma_port_space = RDMA_PS_TCP;

/// Hints of flags, family, type of queue pair and port space.
fn hints(flags: u32, family: c_int, qp_type: ibv_qp_type, ps: rdma_port_space) -> Option<rdma_addrinfo> {
    Some(rdma_addrinfo {
        ai_flags: flags.cast_signed(),
        ai_family: family,
        ai_qp_type: qp_type.cast_signed(),
        ai_port_space: ps.cast_signed(),
        ..rdma_addrinfo::default()
    })
}

fn tcp() -> Option<rdma_addrinfo> {
    hints(0, 0, 0, TCP)
}

/// In short: `flags family qp-type port-space source destination`.
fn found(node: Option<&str>, service: Option<&str>, hints: Option<&rdma_addrinfo>) -> String {
    let found = match AddrInfo::get(node, service, hints) {
        Ok(found) => found,
        Err((-1, errno)) => return format!("errno {errno}"),
        Err((code, _)) => return format!("code {code}"),
    };
    let fields = found.fields();
    assert_eq!((fields.ai_route_len, fields.ai_connect_len), (0, 0));
    assert!(fields.ai_src_canonname.is_null() && fields.ai_dst_canonname.is_null() && fields.ai_next.is_null());
    let text = |addr: Option<std::net::SocketAddr>| addr.map_or("-".to_owned(), |addr| addr.to_string());
    let (source, destination) = (text(found.source()), text(found.destination()));
    format!("{} {} {} {:#x} {source} {destination}", fields.ai_flags, fields.ai_family, fields.ai_qp_type, fields.ai_port_space)
}

#[test]
fn hosts_and_services_are_what_librdmacm_finds() {
    let v4 = Some("127.0.0.1");
    let port = Some("7471");
    let (inet, inet6) = (libc::AF_INET, libc::AF_INET6);
    let cases = [
        (v4, port, None, "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        (v4, None, None, "0 2 2 0x106 - 127.0.0.1:0".to_owned()),
        (v4, Some(""), tcp(), "0 2 2 0x106 - 127.0.0.1:0".to_owned()),
        (v4, port, tcp(), "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        (v4, port, hints(PASSIVE, 0, 0, TCP), "1 2 2 0x106 127.0.0.1:7471 -".to_owned()),
        (v4, None, hints(PASSIVE, 0, 0, TCP), "1 2 2 0x106 127.0.0.1:0 -".to_owned()),
        (None, port, hints(PASSIVE, inet, 0, TCP), "1 2 2 0x106 0.0.0.0:7471 -".to_owned()),
        (None, port, hints(PASSIVE, inet6, 0, TCP), "1 10 2 0x106 [::]:7471 -".to_owned()),
        (None, port, hints(0, inet, 0, TCP), "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        (Some("::1"), port, tcp(), "0 10 2 0x106 - [::1]:7471".to_owned()),
        // The loopback interface is the first of every network namespace.
        (Some("fe80::1%lo"), port, tcp(), "0 10 2 0x106 - [fe80::1%1]:7471".to_owned()),
        (Some("fe80::1%7"), port, tcp(), "0 10 2 0x106 - [fe80::1%7]:7471".to_owned()),
        (Some("fe80::1%nosuch"), port, tcp(), format!("code {}", libc::EAI_NONAME)),
        (Some("localhost"), port, hints(0, inet, 0, TCP), "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        (Some("localhost"), port, hints(RAI_NUMERICHOST, 0, 0, TCP), format!("code {}", libc::EAI_NONAME)),
        (Some(""), port, tcp(), format!("code {}", libc::EAI_NONAME)),
        (v4, Some("nonsense"), tcp(), format!("code {}", libc::EAI_SERVICE)),
        (v4, port, hints(0, inet6, 0, TCP), format!("code {}", EAI_ADDRFAMILY)),
        (v4, port, hints(RAI_FAMILY, inet6, 0, TCP), format!("code {}", EAI_ADDRFAMILY)),
        (v4, port, hints(0, 77, 0, TCP), format!("code {}", libc::EAI_FAMILY)),
        (v4, port, hints(0, 0, RC, 0), "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        (v4, port, hints(0, 0, UD, 0), "0 2 4 0x111 - 127.0.0.1:7471".to_owned()),
        (v4, port, hints(0, 0, 0, RDMA_PS_UDP), "0 2 4 0x111 - 127.0.0.1:7471".to_owned()),
        (v4, port, hints(0, 0, RC, RDMA_PS_IB), "0 2 2 0x13f - 127.0.0.1:7471".to_owned()),
        (v4, port, hints(0, 0, UD, TCP), format!("code {}", libc::EAI_SOCKTYPE)),
        (v4, port, hints(0, 0, 0, 0x999), "0 2 2 0x999 - 127.0.0.1:7471".to_owned()),
        // What is not known is not handed on, and is no mistake.
        (v4, port, hints(0x100 | RAI_NOROUTE, 0, 0, TCP), "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        // AF_IB means something with both of these flags only, and that is not here.
        (v4, port, hints(RAI_FAMILY, 27, 0, TCP), "0 2 2 0x106 - 127.0.0.1:7471".to_owned()),
        (Some("::1"), port, hints(RAI_FAMILY | RAI_NUMERICHOST, 27, 0, TCP), format!("code {}", libc::EAI_FAMILY)),
    ];
    for (at, (node, service, hints, answer)) in cases.into_iter().enumerate() {
        assert_eq!(found(node, service, hints.as_ref()), answer, "case {at}: {node:?} {service:?}");
    }
}

#[test]
fn addresses_in_hints_are_copied_where_nothing_was_looked_up() {
    let mut source = storage("127.0.0.1:99".parse().unwrap());
    let mut destination = storage("127.0.0.2:98".parse().unwrap());
    let len_bytes = size_of::<sockaddr_in>().try_into().unwrap();
    let mut with = tcp().unwrap();
    with.ai_src_addr = (&raw mut source).cast();
    with.ai_src_len = len_bytes;
    assert_eq!(found(Some("127.0.0.1"), Some("7471"), Some(&with)), "0 2 2 0x106 127.0.0.1:99 127.0.0.1:7471");
    with.ai_flags = PASSIVE.cast_signed();
    assert_eq!(found(Some("127.0.0.5"), Some("7471"), Some(&with)), "1 2 2 0x106 127.0.0.5:7471 -");
    // Neither host nor service: the hints are the result.
    assert_eq!(found(None, None, Some(&with)), "1 0 0 0x106 127.0.0.1:99 -");
    with.ai_flags = 0x100;
    with.ai_dst_addr = (&raw mut destination).cast();
    with.ai_dst_len = len_bytes;
    assert_eq!(found(None, None, Some(&with)), "256 0 0 0x106 127.0.0.1:99 127.0.0.2:98");
    assert_eq!(found(None, None, Some(&rdma_addrinfo::default())), "0 0 0 0x0 - -");
    assert_eq!(found(None, None, None), format!("errno {}", libc::EINVAL));
}
