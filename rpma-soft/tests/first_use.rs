//! When the threads of the provider begin. One test, so that nothing else in the process uses it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;

use rpma_sys::owned::{CmId, EventChannel};
use support::{Device, is_soft};

/// How many threads this process has. The harness starts none while its one test runs.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn progress_thread_begins_with_the_first_identifier_and_is_the_only_one() {
    assert!(is_soft(), "about the software provider alone");
    let before = threads();
    // Opened, asked, with memory, queues and channels: there is nothing to move yet.
    let device = Device::new();
    let memory = device.memory(64);
    let cq = device.cq();
    let channel = EventChannel::create(&device.provider).unwrap();
    assert_eq!(threads(), before);
    let first = CmId::create(&channel).unwrap();
    assert_eq!(threads(), before + 1);
    let second = CmId::create(&channel).unwrap();
    assert_eq!(threads(), before + 1);
    drop((first, second, cq, memory));
}
