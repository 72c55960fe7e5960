//! What the tests of the door share.

use std::env;
use std::path::PathBuf;

#[allow(dead_code, reason = "not every test file runs programs")]
pub(crate) mod programs;

/// The door, as cargo has built it for this test: beside it, in the same folder.
pub(crate) fn door() -> PathBuf {
    let test = env::current_exe().unwrap();
    let door = test.with_file_name("librpma_soft_preload.so");
    assert!(door.exists(), "cargo has built no {}", door.display());
    door
}
