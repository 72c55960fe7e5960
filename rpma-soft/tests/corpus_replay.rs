//! Replays the committed fuzz corpora through the properties that the fuzz targets check.

#[path = "../../fuzz/properties/soft_connection.rs"]
mod soft_connection;
#[path = "../../fuzz/properties/soft_frames.rs"]
mod soft_frames;
#[path = "../../fuzz/properties/soft_region.rs"]
mod soft_region;
#[path = "../../fuzz/properties/soft_session.rs"]
mod soft_session;

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
fn every_stream_of_the_corpus_keeps_the_properties() {
    replay("soft_frames", soft_frames::check);
}

#[test]
fn every_session_of_the_corpus_keeps_the_properties() {
    replay("soft_session", soft_session::check);
}

#[test]
fn every_connection_of_the_corpus_keeps_the_properties() {
    replay("soft_connection", soft_connection::check);
}
