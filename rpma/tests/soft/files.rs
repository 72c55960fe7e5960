//! Files on a disk as persistent memory: a persistent flush brings what was written to the disk.

use std::fs;
use std::ops::Range;
use std::thread;
use std::time::Instant;

use rpma::prelude::*;
use rpma::sys::bindings::IBV_WC_REM_OP_ERR;
use rpma::{OpPath, PostError};
use tempfile::TempDir;

use crate::support::{LIMIT, Pair, bytes, complete, failed, region, remote, still_works};

const DURABLE: Usage = Usage::READ_SRC.union(Usage::WRITE_DST).union(Usage::FLUSH_TYPE_PERSISTENT);
const LEN: usize = 64 * 1024;

/// A folder where tests are built, which has to be on a disk: a memory file system keeps nothing.
fn on_a_disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file in `dir`, registered for persistent flushes of `pair`'s client.
fn registered(pair: &Pair, dir: &TempDir) -> LocalMr<PersistentMemory> {
    let memory = PersistentMemory::open(dir.path().join("pool"), LEN).unwrap();
    assert!(matches!(&memory, PersistentMemory::File(_)) && !memory.is_direct());
    let target = pair.server.peer().register(memory, DURABLE).unwrap();
    assert_eq!((target.usage(), target.descriptor().usage()), (DURABLE, DURABLE));
    target
}

/// How much of the region's mapping is not on the disk yet, in KiB: what `/proc/self/smaps` counts as dirty.
fn dirty_kib(target: &LocalMr<PersistentMemory>) -> usize {
    let at = target.as_ptr().addr();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    // "7f0000000000-7f0000010000 rw-s …", and then a line for each number.
    let starts_it = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let range = range.and_then(|(from, to)| Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?));
        range.is_some_and(|range: Range<usize>| range.contains(&at))
    };
    let numbers = smaps.lines().skip_while(|line| !starts_it(line)).take_while(|line| !line.starts_with("VmFlags:"));
    let dirty = numbers.filter(|line| line.starts_with("Shared_Dirty:") || line.starts_with("Private_Dirty:"));
    let kib: Vec<usize> = dirty.map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(kib.len(), 2, "a mapping at {at:#x}");
    kib.iter().sum()
}

#[test]
fn persistent_flush_leaves_nothing_that_is_not_on_the_disk() {
    let dir = on_a_disk();
    let pair = Pair::new().with_direct_write();
    assert_eq!(pair.client.flush_path(), OpPath::Native);
    let target = registered(&pair, &dir);
    let source = region(pair.client.peer(), LEN, Usage::WRITE_SRC);
    source.write_at(0, &[7; LEN]).unwrap();
    let there = remote(&target).all();
    // The kernel writes files back when it likes; a moment in which it has not shows that the flush had something to do.
    let start = Instant::now();
    loop {
        pair.client.write(there, source.all(), Signal::Always, 1).unwrap();
        complete(&pair.client, 1);
        if dirty_kib(&target) > 0 {
            break;
        }
        assert!(start.elapsed() < LIMIT, "what is written is on the disk at once");
        thread::yield_now();
    }
    pair.client.flush(there, FlushType::Persistent, Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    assert_eq!(dirty_kib(&target), 0);
}

#[test]
fn whoever_opens_the_file_next_finds_the_bytes() {
    let dir = on_a_disk();
    let pair = Pair::new().with_direct_write();
    let target = registered(&pair, &dir);
    let source = region(pair.client.peer(), 7, Usage::WRITE_SRC);
    source.write_at(0, b"durable").unwrap();
    let there = remote(&target).slice(5000..5007).unwrap();
    pair.client.write(there, source.all(), Signal::OnError, 1).unwrap();
    pair.client.flush(there, FlushType::Persistent, Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    drop(target);
    let again = registered(&pair, &dir);
    assert_eq!(bytes(&again, 4999, 9), b"\0durable\0");
    assert_eq!(fs::read(dir.path().join("pool")).unwrap()[5000..5007], *b"durable");
}

#[test]
fn persistent_flush_is_refused_without_the_peer_s_word_and_for_visibility_only() {
    let dir = on_a_disk();
    let pair = Pair::new();
    let target = registered(&pair, &dir);
    let there = remote(&target).all();
    let flush = |flush_type| pair.client.flush(there, flush_type, Signal::Always, 1);
    assert!(matches!(flush(FlushType::Persistent), Err(PostError::NoDirectWrite { .. })));
    assert!(matches!(flush(FlushType::Visibility), Err(PostError::FlushType { .. })));
    let pair = pair.with_direct_write();
    pair.client.flush(there, FlushType::Persistent, Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    still_works(&pair);
}

#[test]
fn flush_takes_every_range_of_the_file() {
    let dir = on_a_disk();
    let pair = Pair::new().with_direct_write();
    let target = registered(&pair, &dir);
    let there = remote(&target);
    let end = LEN as u64;
    for (n, range) in (0..).zip([0..end, end - 1..end, end..end, 0..0, 4095..4097]) {
        pair.client.flush(there.slice(range).unwrap(), FlushType::Persistent, Signal::Always, n).unwrap();
        complete(&pair.client, n);
    }
    // Anonymous memory of the same process beside it is not mistaken for it.
    let dram = region(pair.server.peer(), 4096, DURABLE);
    assert!(!dram.usage().contains(Usage::FLUSH_TYPE_PERSISTENT));
    still_works(&pair);
}

#[test]
fn file_that_is_truncated_under_its_mapping_ends_the_writer_s_connection_and_nobody_s_process() {
    let dir = on_a_disk();
    let pair = Pair::new().with_direct_write();
    let target = registered(&pair, &dir);
    let (kept, gone) = (remote(&target).slice(0..4096).unwrap(), remote(&target).slice(4096..8192).unwrap());
    let source = region(pair.client.peer(), 4096, Usage::WRITE_SRC);
    fs::File::options().write(true).open(dir.path().join("pool")).unwrap().set_len(4096).unwrap();

    pair.client.write(kept, source.all(), Signal::OnError, 1).unwrap();
    pair.client.flush(kept, FlushType::Persistent, Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    pair.client.flush(gone, FlushType::Persistent, Signal::OnError, 3).unwrap();
    assert_eq!(failed(&pair.client, 3).status, IBV_WC_REM_OP_ERR);

    let pair = Pair::connect(pair.client.peer(), &crate::support::cfg(), pair.server.peer(), &crate::support::cfg());
    pair.client.write(gone, source.all(), Signal::OnError, 4).unwrap();
    assert_eq!(failed(&pair.client, 4).status, IBV_WC_REM_OP_ERR);
    still_works(&Pair::new());
}
