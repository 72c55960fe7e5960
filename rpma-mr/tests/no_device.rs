//! What a user sees where there is no RDMA: no rdma-core, or no device. On a machine that has both, the opposite is checked.
#![cfg(feature = "device")]

use std::error::Error;

use rpma_mr::{Device, DeviceError};
use rpma_sys::RdmaCore;

/// Whether the kernel knows any RDMA device.
fn kernel_has_devices() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some())
}

#[test]
fn every_way_in_says_what_to_do_where_there_is_no_device() {
    let provider = match RdmaCore::open() {
        Ok(provider) => provider,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("install") || text.contains("28 or newer"), "{text}");
            return;
        }
    };
    let has_devices = kernel_has_devices();
    let attempts = [
        ("list", Device::list(&provider).map(|_| ())),
        ("by name", Device::by_name(&provider, "no-such-device").map(|_| ())),
        ("local", Device::local(&provider, "0.0.0.0").map(|_| ())),
        ("remote", Device::remote(&provider, "192.0.2.1", Device::RESOLVE_TIMEOUT).map(|_| ())),
    ];
    for (way, result) in attempts {
        match result {
            Ok(()) => assert!(has_devices, "{way}: found a device where the kernel has none"),
            Err(DeviceError::NoDevice { .. }) => assert!(!has_devices, "{way}: said that there is no device, and there is"),
            Err(error) => assert!(has_devices, "{way}: {error}: {:?}", error.source().map(ToString::to_string)),
        }
    }
}
