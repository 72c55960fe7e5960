//! Our own library, in a process that has the door loaded, opens no rdma-core: its libraries would call each other through the door.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::env;
use std::process::Command;

use rpma_sys::RdmaCore;

#[test]
fn rdma_core_behind_the_door_is_refused_and_the_error_says_what_to_do() {
    const TEST: &str = "rdma_core_behind_the_door_is_refused_and_the_error_says_what_to_do";
    // This test is a parent without the door, and its own child with it.
    if env::var_os("LD_PRELOAD").is_some() {
        let error = RdmaCore::open().unwrap_err().to_string();
        assert!(error.contains("librpma_soft_preload.so"), "{error}");
        assert!(error.contains("unset LD_PRELOAD") && error.contains("RPMA_PROVIDER=soft"), "{error}");
        return;
    }
    if let Err(error) = RdmaCore::open() {
        assert!(!error.to_string().contains("librpma_soft_preload.so"), "there is no door here: {error}");
    }
    let child =
        Command::new(env::current_exe().unwrap()).args(["--exact", TEST]).env("LD_PRELOAD", support::door()).output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && told.contains("1 passed"), "{told}{}", String::from_utf8_lossy(&child.stderr));
}
