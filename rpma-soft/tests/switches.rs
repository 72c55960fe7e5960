//! Native flush, native atomic write and on-demand paging, each switched off alone: that is gone, and the others are there.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use rpma_soft::SoftConfig;
use rpma_sys::bindings::*;
use rpma_sys::owned::{CmId, EventChannel, Qp, QpRequest, SendOptions};
use support::{CAP, Device, Parts, completions, is_soft, local, provider_like};

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `_FLUSH_PERSISTENT` and `_ATOMIC_WRITE` of the kernel's `ib_user_verbs.h`.
const FLUSH: u64 = 1 << 38 | 1 << 39;
const ATOMIC_WRITE: u64 = 1 << 40;
/// `IBV_FLUSH_GLOBAL`, as a builder takes it.
const GLOBAL: u8 = 1;

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Has {
    flush: bool,
    atomic_write: bool,
    on_demand: bool,
}

const ALL: Has = Has { flush: true, atomic_write: true, on_demand: true };

/// What the device says.
fn told(device: &Device) -> Has {
    let attr = device.context.query_device().unwrap();
    let (flush, atomic_write) = (attr.device_cap_flags_ex & FLUSH, attr.device_cap_flags_ex & ATOMIC_WRITE != 0);
    assert!(flush == FLUSH || flush == 0, "both placements, or none");
    let (flush, on_demand) = (flush != 0, attr.odp_caps.general_caps != 0);
    let paged = attr.odp_caps.per_transport_caps.rc_odp_caps;
    assert_eq!(paged & IBV_ODP_SUPPORT_FLUSH != 0, on_demand && flush);
    assert_eq!(paged & IBV_ODP_SUPPORT_ATOMIC_WRITE != 0, on_demand && atomic_write);
    Has { flush, atomic_write, on_demand }
}

/// Whether it is there; what is not is EOPNOTSUPP.
fn there<T>(made: std::io::Result<T>) -> bool {
    made.map_err(|e| assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP))).is_ok()
}

/// What a program gets.
fn given(device: &Device) -> Has {
    let has_qp = |native_flush, native_atomic_write| {
        let id = CmId::create(&EventChannel::create(&device.provider).unwrap()).unwrap();
        id.bind(local()).unwrap();
        let request = QpRequest { cap: CAP, native_flush, native_atomic_write };
        there(Qp::create(&Arc::new(id), &device.pd, &device.cq(), &device.cq(), None, request))
    };
    let (flush, atomic_write) = (has_qp(true, false), has_qp(false, true));
    assert_eq!(there(device.memory_with(64, IBV_ACCESS_FLUSH_GLOBAL)), flush);
    assert_eq!(has_qp(true, true), flush && atomic_write);
    Has { flush, atomic_write, on_demand: there(device.memory_with(64, IBV_ACCESS_ON_DEMAND)) }
}

/// Carries out what is there.
fn works(device: &Device, has: Has) {
    let parts = || Parts { native: [has.flush, has.atomic_write], ..Parts::new(device) };
    let (client, server) = device.pair(parts(), parts());
    let rights = [(has.flush, IBV_ACCESS_FLUSH_GLOBAL), (has.on_demand, IBV_ACCESS_ON_DEMAND)];
    let rights = rights.iter().filter(|(has, _)| *has).fold(0, |all, (_, right)| all | right);
    let memory = device.memory_with(64, rights).unwrap();
    let (addr, rkey) = (memory.address(), memory.mr.rkey());
    let options = |wr_id| SendOptions { wr_id, signaled: true, fence: false };
    client.write(1, b"written", addr + 8, rkey);
    let flushed = client.qp.post_flush(addr, rkey, 64, false, GLOBAL, options(2));
    assert_eq!(flushed.is_ok(), has.flush);
    let written = client.qp.post_atomic_write(addr, rkey, *b"8 bytes!", options(3));
    assert_eq!(written.is_ok(), has.atomic_write);
    let posted: Vec<_> = [(1, true), (2, has.flush), (3, has.atomic_write)].into_iter().filter(|(_, posted)| *posted).collect();
    let done: Vec<_> = posted.iter().map(|&(wr_id, _)| (wr_id, IBV_WC_SUCCESS)).collect();
    assert_eq!(completions(&client.send_cq, done.len()), done);
    let first = if has.atomic_write { b'8' } else { 0 };
    assert_eq!((memory.byte(0), memory.byte(8)), (first, b'w'));
    drop(server);
}

#[track_caller]
fn is_like(change: fn(&mut SoftConfig), has: Has) {
    assert!(is_soft(), "about the software provider alone");
    let device = Device::of(provider_like(change));
    assert_eq!((told(&device), given(&device)), (has, has));
    works(&device, has);
}

#[test]
fn device_has_everything_unless_it_is_told_otherwise() {
    is_like(|_| {}, ALL);
}

#[test]
fn device_without_native_flush_has_the_rest() {
    is_like(|config| config.native_flush = false, Has { flush: false, ..ALL });
}

#[test]
fn device_without_native_atomic_write_has_the_rest() {
    is_like(|config| config.native_atomic_write = false, Has { atomic_write: false, ..ALL });
}

#[test]
fn device_without_on_demand_paging_has_the_rest() {
    is_like(|config| config.on_demand_paging = false, Has { on_demand: false, ..ALL });
}
