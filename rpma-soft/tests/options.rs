//! Options of identifiers: `rdma_set_option(3)`.
#![expect(unsafe_code, reason = "makes calls as C programs do, and looks at sockets of this process")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rpma_sys::bindings::*;
use rpma_sys::owned::{CmEventKind, CmId, EventChannel, IdOption};
use rustix::net::{getsockname, sockopt};
use support::raw::{ask_with, set_option};
use support::{Connecting, Device, LIMIT, Parts, event, is_soft, local, param, provider};

const INT: &[u8] = &[1, 0, 0, 0];

fn id() -> CmId {
    CmId::create(&EventChannel::create(&provider()).unwrap()).unwrap()
}

#[track_caller]
fn refused(id: &CmId, option: IdOption) {
    assert_eq!(id.set_option(option).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{option:?}");
}

#[test]
fn wrong_sizes_are_invalid_and_what_nobody_knows_is_not_there() {
    let provider = provider();
    let (id_level, ib_level) = (RDMA_OPTION_ID, RDMA_OPTION_IB);
    let cases: [(u32, u32, &[u8], c_int); 12] = [
        (id_level, RDMA_OPTION_ID_TOS, &[8], 0),
        (id_level, RDMA_OPTION_ID_TOS, INT, libc::EINVAL),
        (id_level, RDMA_OPTION_ID_ACK_TIMEOUT, &[14], 0),
        (id_level, RDMA_OPTION_ID_ACK_TIMEOUT, INT, libc::EINVAL),
        (id_level, RDMA_OPTION_ID_REUSEADDR, INT, 0),
        (id_level, RDMA_OPTION_ID_REUSEADDR, &[1], libc::EINVAL),
        (id_level, RDMA_OPTION_ID_AFONLY, INT, 0),
        (id_level, RDMA_OPTION_ID_AFONLY, &[0; 300], libc::EINVAL),
        (id_level, 99, INT, libc::ENOSYS),
        (ib_level, 99, INT, libc::ENOSYS),
        (ib_level, RDMA_OPTION_IB_PATH, INT, libc::EINVAL),
        (7, RDMA_OPTION_ID_TOS, &[8], libc::ENOSYS),
    ];
    for (level, name, value, errno) in cases {
        assert_eq!(set_option(&provider, level, name, value), errno, "level {level} option {name} of {} bytes", value.len());
    }
}

#[test]
fn options_that_come_too_late_are_invalid() {
    let bound = id();
    bound.bind(local()).unwrap();
    bound.set_option(IdOption::ReuseAddr(true)).unwrap();
    refused(&bound, IdOption::ReuseAddr(false));
    bound.set_option(IdOption::AddressFamilyOnly(true)).unwrap();
    bound.listen(0).unwrap();
    refused(&bound, IdOption::ReuseAddr(true));
    refused(&bound, IdOption::AddressFamilyOnly(true));
    // These never do.
    bound.set_option(IdOption::TypeOfService(4)).unwrap();
    bound.set_option(IdOption::AckTimeout(4)).unwrap();
}

#[test]
fn acknowledge_time_out_is_the_queue_pairs() {
    let device = Device::new();
    let set = |id: &CmId| id.set_option(IdOption::AckTimeout(15)).unwrap();
    let (client, server) = Connecting::new(&device, Parts::new(&device), set).finish(&device, Parts::new(&device), param());
    let timeout = |end: &support::End| end.qp.query(IBV_QP_TIMEOUT).unwrap().0.timeout;
    assert_eq!(timeout(&client), 15);
    assert_ne!(timeout(&server), 15, "each end has its own");
}

#[test]
fn acknowledge_time_out_is_how_long_a_silent_peer_is_waited_for() {
    // 4.096 µs times 2^12, at each of six tries: about 100 ms, and what is given where that is short.
    let (client, server, _) = ask_with(&provider(), RDMA_OPTION_ID_ACK_TIMEOUT, &[12]).accept();
    assert_eq!(server.modify_state(IBV_QPS_RESET), 0);
    let start = Instant::now();
    assert_eq!(client.post_send(1), 0);
    assert_eq!(client.completion(), (1, IBV_WC_RETRY_EXC_ERR));
    let time = start.elapsed();
    assert!(time > Duration::from_millis(80) && time < Duration::from_secs(8), "{time:?}");
}

/// The type of service of this process's socket that is bound to `addr`.
fn type_of_service(addr: SocketAddr) -> Option<u32> {
    std::fs::read_dir("/proc/self/fd").unwrap().find_map(|entry| {
        let fd = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // SAFETY: a number of an open descriptor; if it was closed meanwhile, the calls fail or tell of another socket.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let bound = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
        let tos = || if addr.is_ipv4() { sockopt::ip_tos(fd).ok().map(u32::from) } else { sockopt::ipv6_tclass(fd).ok() };
        if bound == addr { tos() } else { None }
    })
}

#[test]
fn type_of_service_is_the_sockets_whenever_it_is_set() {
    assert!(is_soft(), "about the software provider alone");
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (before, after) = (id(), id());
        before.set_option(IdOption::TypeOfService(0x20)).unwrap();
        before.bind(address.parse().unwrap()).unwrap();
        after.bind(address.parse().unwrap()).unwrap();
        after.set_option(IdOption::TypeOfService(0x40)).unwrap();
        let tos = |id: &CmId| type_of_service(id.local_addr().unwrap());
        assert_eq!((tos(&before), tos(&after)), (Some(0x20), Some(0x40)), "{address}");
        before.listen(0).unwrap();
        before.set_option(IdOption::TypeOfService(0x60)).unwrap();
        assert_eq!(tos(&before), Some(0x60));
    }
}

#[test]
fn ipv6_wildcard_leaves_out_ipv4_if_it_is_told_to() {
    assert!(is_soft(), "about the software provider alone");
    // Before it is bound, and after.
    for (v6only, early) in [(false, true), (true, true), (false, false), (true, false)] {
        let provider = provider();
        let listening = EventChannel::create(&provider).unwrap();
        let listener = CmId::create(&listening).unwrap();
        let option = IdOption::AddressFamilyOnly(v6only);
        if early {
            listener.set_option(option).unwrap();
        }
        listener.bind("[::]:0".parse().unwrap()).unwrap();
        if !early {
            listener.set_option(option).unwrap();
        }
        listener.listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let channel = EventChannel::create(&provider).unwrap();
        let client = CmId::create(&channel).unwrap();
        client.resolve_addr(SocketAddr::from(([127, 0, 0, 1], port)), LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
        client.resolve_route(LIMIT).unwrap();
        assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
        client.connect(param()).unwrap();
        if v6only {
            assert_eq!(event(&channel).kind, CmEventKind::Rejected, "early: {early}");
        } else {
            assert_eq!(event(&listening).kind, CmEventKind::ConnectRequest, "early: {early}");
        }
    }
}
