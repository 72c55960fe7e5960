//! The two ways to reach rdma-core, side by side in one process.
#![expect(unsafe_code, reason = "calls the provider's functions, which are those of C")]

use std::ffi::CStr;
use std::io;

use rpma_sys::owned::{Context, EventChannel};
use rpma_sys::{ProviderRef, RdmaCore, RdmaCoreLinked, bindings};

fn both() -> [ProviderRef; 2] {
    [RdmaCore::open().expect("rdma-core is installed: this program is linked with it"), RdmaCoreLinked::open()]
}

#[test]
fn opened_and_linked_provider_are_two_with_names_of_their_own() {
    let [opened, linked] = both();
    assert_eq!((opened.name(), linked.name()), ("rdma-core", "rdma-core-linked"));
}

#[test]
fn opened_and_linked_provider_name_every_status_alike() {
    let statuses = || (0..=bindings::IBV_WC_TM_RNDV_INCOMPLETE + 1).chain([u32::MAX]);
    let [opened, linked] = both().map(|provider| {
        statuses()
            .map(|status| {
                // SAFETY: the call takes any number.
                let text = unsafe { provider.ibv_wc_status_str(status) };
                assert!(!text.is_null());
                // SAFETY: a constant string of the library, which is never unloaded.
                unsafe { CStr::from_ptr(text) }.to_str().unwrap()
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(opened, linked);
    assert_eq!(opened[0], "success");
}

/// Whether the kernel offers the connection manager here.
fn kernel_has_cm() -> bool {
    std::path::Path::new("/dev/infiniband/rdma_cm").exists()
}

#[test]
fn event_channel_without_a_device_is_an_errno() {
    for provider in both() {
        match EventChannel::create(&provider) {
            Ok(_) => assert!(kernel_has_cm(), "{}: a channel without a kernel behind it", provider.name()),
            Err(e) => {
                let known = [libc::ENODEV, libc::ENOENT, libc::EACCES, libc::EPERM];
                assert!(e.raw_os_error().is_some_and(|errno| known.contains(&errno)), "{}: {e:?}", provider.name());
            }
        }
    }
}

#[test]
fn device_list_is_the_same_from_both_or_the_same_errno() {
    let names = |result: io::Result<Vec<std::sync::Arc<Context>>>| {
        result.map(|list| list.iter().map(|device| device.name()).collect::<Vec<_>>()).map_err(|e| e.raw_os_error())
    };
    let [opened, linked] = both().map(|provider| names(Context::list(&provider)));
    assert_eq!(opened, linked);
    assert_ne!(opened, Err(None), "a failure without an errno");
}
