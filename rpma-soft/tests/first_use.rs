//! When the threads of the provider begin. One test, so that nothing else in the process uses it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;

use rpma_sys::owned::{CmId, EventChannel};
use support::{Device, is_soft};

/// Threads of this process that are the provider's.
fn threads() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap().map(|task| {
        let comm = task.unwrap().path().join("comm");
        fs::read_to_string(comm).unwrap().trim_end().to_owned()
    });
    names.filter(|name| name.starts_with("rpma-soft")).collect()
}

#[test]
fn progress_thread_begins_with_the_first_identifier_and_is_the_only_one() {
    assert!(is_soft(), "about the software provider alone");
    // Opened, asked, with memory, queues and channels: there is nothing to move yet.
    let device = Device::new();
    let memory = device.memory(64);
    let cq = device.cq();
    let channel = EventChannel::create(&device.provider).unwrap();
    assert_eq!(threads(), [""; 0]);
    let first = CmId::create(&channel).unwrap();
    assert_eq!(threads(), ["rpma-soft"]);
    let second = CmId::create(&channel).unwrap();
    assert_eq!(threads(), ["rpma-soft"]);
    drop((first, second, cq, memory));
}
