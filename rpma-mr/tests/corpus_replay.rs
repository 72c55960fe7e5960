//! Replays the committed fuzz corpora through the properties that the fuzz targets check.

#[path = "../../fuzz/properties/mr_descriptor.rs"]
mod mr_descriptor;
#[path = "../../fuzz/properties/peer_cfg.rs"]
mod peer_cfg;

use std::fs;
use std::path::Path;

/// Checks every file of the corpus of `target`; panics if there is none.
fn replay(target: &str, check: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("readable directory").path();
        // Shown by the test harness if a property fails.
        println!("{}", path.display());
        check(&fs::read(&path).expect("readable file"));
        files += 1;
    }
    assert_ne!(files, 0, "{} is empty", dir.display());
}

#[test]
fn every_descriptor_of_the_corpus_keeps_the_properties() {
    replay("mr_descriptor", mr_descriptor::check);
}

#[test]
fn every_peer_configuration_of_the_corpus_keeps_the_properties() {
    replay("peer_cfg", peer_cfg::check);
}
