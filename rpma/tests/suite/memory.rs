//! Registered memory: what can be registered, what a registered region is for, and who may still touch it when.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rpma::prelude::*;
use rpma::sys::bindings::IBV_WC_SUCCESS;
use rpma::{AccessError, Advice, AdviseError, AdviseFlags, ErrorCode, RegisterError};
use tempfile::TempDir;

use crate::support::{Files, LIMIT, Pair, SetOnDrop, bytes, complete, known, peer, received, region, remote, still_works};

const ALL_TRANSFERS: Usage = Usage::READ_SRC.union(Usage::READ_DST).union(Usage::WRITE_SRC).union(Usage::WRITE_DST);

/// A folder on a file system in memory.
fn on_tmpfs() -> TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // linux/magic.h: TMPFS_MAGIC
    assert_eq!(rustix::fs::statfs(dir.path()).unwrap().f_type, 0x0102_1994);
    dir
}

/// A folder beside this program, where files are ordinary ones: 9p in the virtual machine, the build's file system elsewhere.
fn on_ordinary_files() -> TempDir {
    let program: PathBuf = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    assert_ne!(rustix::fs::statfs(dir.path()).unwrap().f_type, 0x0102_1994, "{}", dir.path().display());
    dir
}

/// The peer writes to a region over `memory` and reads it back; both ends see the same bytes.
fn transfers<M: RegionOwner>(pair: &Pair, target: &LocalMr<M>) {
    let local = region(pair.client.peer(), 4096, ALL_TRANSFERS);
    let there = remote(target).slice(..4096).unwrap();
    local.write_at(0, &[7; 4096]).unwrap();
    pair.client.write(there, local.all(), Signal::Always, 1).unwrap();
    complete(&pair.client, 1);
    local.write_at(0, &[0; 4096]).unwrap();
    pair.client.read(local.all(), there, Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    assert_eq!(bytes(target, 0, 4096), bytes(&local, 0, 4096));
}

#[test]
fn anonymous_pages_of_every_length_are_registered_and_described_as_they_are() {
    let peer = peer();
    for len in [1, 4095, 4096, 4097, 1 << 20] {
        let target = region(&peer, len, Usage::READ_SRC | Usage::WRITE_DST);
        let descriptor = target.descriptor();
        assert_eq!(descriptor.addr(), target.as_ptr().addr() as u64);
        assert_eq!(descriptor.len_bytes(), len as u64);
        assert_eq!(descriptor.usage(), Usage::READ_SRC | Usage::WRITE_DST);
        assert!(!target.is_on_demand() && target.is_writable());
        assert_eq!(RemoteMr::from_descriptor(&descriptor.to_bytes()).unwrap().descriptor(), descriptor);
    }
}

/// Flush aside, which has tests of its own: every mask, and what it grants is what it asks.
#[test]
fn every_usage_but_persistence_is_granted_as_asked() {
    let peer = peer();
    let mut pages = AnonPages::new(4096).unwrap();
    for mask in 1..=u8::MAX {
        let usage = Usage::from_bits_retain(mask);
        let target = peer.register(pages, usage).unwrap();
        if usage.contains(Usage::FLUSH_TYPE_PERSISTENT) && known().native_ops {
            let granted = usage.difference(Usage::FLUSH_TYPE_PERSISTENT) | Usage::FLUSH_TYPE_VISIBILITY;
            assert_eq!((target.usage(), target.requested_usage()), (granted, usage));
        } else {
            assert_eq!((target.usage(), target.requested_usage()), (usage, usage));
        }
        pages = target.deregister().unwrap();
    }
}

#[test]
fn registration_for_no_usage_is_refused_and_gives_the_memory_back() {
    let mut pages = AnonPages::new(4096).unwrap();
    pages.as_mut_slice()[9] = 9;
    let failure = peer().register(pages, Usage::empty()).unwrap_err();
    assert!(matches!(failure.error, RegisterError::NoUsage));
    assert_eq!(failure.owner.as_slice()[9], 9);
}

#[test]
fn file_on_tmpfs_is_registered_and_holds_what_the_peer_writes() {
    let pair = Pair::new();
    for dir in [on_tmpfs(), tempfile::tempdir().unwrap()] {
        let path = dir.path().join("pool");
        let file = MappedFile::create(&path, 8192).unwrap();
        assert!(!file.is_map_sync());
        let target = pair.server.peer().register(file, Usage::READ_SRC | Usage::WRITE_DST).unwrap();
        transfers(&pair, &target);
        drop(target);
        let content = fs::read(&path).unwrap();
        assert_eq!((&content[..4096], &content[4096..]), (&[7; 4096][..], &[0; 4096][..]));
    }
}

#[test]
fn ordinary_file_for_writing_is_registered_or_where_the_kernel_does_not_pin_it_refused_with_the_choices() {
    let pair = Pair::new();
    let dir = on_ordinary_files();
    let path = dir.path().join("pool");
    let file = MappedFile::create(&path, 8192).unwrap();
    let result = pair.server.peer().register(file, Usage::READ_SRC | Usage::WRITE_DST);
    if known().files != Files::ForReading {
        let target = result.unwrap();
        transfers(&pair, &target);
        drop(target);
        assert_eq!(fs::read(&path).unwrap()[..4096], [7; 4096]);
        return;
    }
    let failure = result.unwrap_err();
    assert!(matches!(failure.error, RegisterError::CannotPin { len_bytes: 8192, .. }), "{failure:?}");
    assert_eq!(failure.error.code(), ErrorCode::Provider);
    let text = failure.to_string();
    for choice in ["DAX", "tmpfs", "anonymous memory", "software provider"] {
        assert!(text.contains(choice), "{text}");
    }
    // EFAULT
    let source = failure.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(source.raw_os_error(), Some(14));
    failure.owner.write_at(0, b"still mapped").unwrap();
}

#[test]
fn file_mapped_for_reading_is_registered_to_be_read_and_refused_for_what_writes() {
    let pair = Pair::new();
    let dir = on_ordinary_files();
    let path = dir.path().join("content");
    fs::write(&path, [5; 4096]).unwrap();
    let open = || MappedFile::open_read_only(&path).unwrap();
    let register = |usage| pair.server.peer().register(open(), usage);
    let writing = [Usage::READ_DST, Usage::WRITE_SRC, Usage::WRITE_DST, Usage::RECV, Usage::FLUSH_TYPE_VISIBILITY];
    for usage in writing {
        let failure = register(usage | Usage::READ_SRC).unwrap_err();
        assert!(matches!(failure.error, RegisterError::ReadOnly { refused } if refused == usage), "{failure:?}");
    }

    let registered = register(Usage::READ_SRC | Usage::SEND);
    if known().files == Files::ForWriting {
        let failure = registered.unwrap_err();
        assert!(matches!(failure.error, RegisterError::CannotPinReadOnly { len_bytes: 4096, .. }), "{failure:?}");
        return;
    }
    let source = registered.unwrap();
    assert!(!source.is_writable());
    assert_eq!(source.write_at(0, &[1]), Err(AccessError::ReadOnly));
    let local = region(pair.client.peer(), 4096, Usage::READ_DST | Usage::RECV);
    pair.client.read(local.slice(0..100).unwrap(), remote(&source).slice(0..100).unwrap(), Signal::Always, 1).unwrap();
    complete(&pair.client, 1);
    pair.client.recv(local.slice(100..200).unwrap(), 2).unwrap();
    pair.server.send(source.slice(0..100).unwrap(), Signal::Always, 3).unwrap();
    assert_eq!(received(&pair.client, 2).len_bytes, 100);
    complete(&pair.server, 3);
    assert_eq!(bytes(&local, 0, 201), [[5; 200].as_slice(), &[0]].concat());
}

#[test]
fn file_that_was_truncated_before_its_registration_is_refused() {
    let dir = on_tmpfs();
    let path = dir.path().join("pool");
    let file = MappedFile::create(&path, 8192).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let failure = peer().register(file, Usage::WRITE_DST).unwrap_err();
    assert!(matches!(failure.error, RegisterError::Owner { .. }), "{failure:?}");
    assert_eq!(failure.error.code(), ErrorCode::InvalidArgument);
    let cause = failure.source().unwrap().to_string();
    assert!(cause.contains("truncated"), "{cause}");
}

#[test]
fn advice_is_taken_where_it_reaches_the_memory_and_checked_against_the_region_in_any_case() {
    let target = region(&peer(), 8192, Usage::READ_SRC | Usage::WRITE_DST);
    for advice in [Advice::Prefetch, Advice::PrefetchWrite, Advice::PrefetchNoFault] {
        let result = target.advise(.., advice, AdviseFlags::FLUSH);
        if known().advice {
            result.unwrap();
        } else {
            let error = result.unwrap_err();
            assert!(matches!(error, AdviseError::NotSupported { advice: refused, .. } if refused == advice), "{error:?}");
            assert_eq!(error.code(), ErrorCode::NotSupported);
        }
        let error = target.advise(8000..8193, advice, AdviseFlags::empty()).unwrap_err();
        assert!(matches!(error, AdviseError::BadRange { .. }), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        target.advise(100..100, advice, AdviseFlags::empty()).unwrap();
    }
}

#[test]
fn deregistering_gives_the_memory_back_with_what_the_peer_wrote() {
    let pair = Pair::new();
    let mut pages = AnonPages::new(8192).unwrap();
    pages.as_mut_slice().fill(1);
    let at = pages.as_slice().as_ptr();
    let target = pair.server.peer().register(pages, Usage::READ_SRC | Usage::WRITE_DST).unwrap();
    // Regions move, their memory does not.
    let target = Box::new(target);
    transfers(&pair, &target);
    let mut pages = target.deregister().unwrap();
    assert_eq!(pages.as_slice().as_ptr(), at);
    assert_eq!((&pages.as_slice()[..4096], &pages.as_slice()[4096..]), (&[7; 4096][..], &[1; 4096][..]));
    pages.as_mut_slice().fill(3);
    still_works(&pair);
}

#[test]
fn regions_connections_and_peer_can_be_dropped_in_any_order() {
    for order in 0..6 {
        let peer = peer();
        let pair = Pair::connect(&peer, &crate::support::cfg(), &peer, &crate::support::cfg());
        let target = region(&peer, 4096, Usage::READ_SRC | Usage::WRITE_DST);
        transfers(&pair, &target);
        let (mut pair, mut target, mut peer) = (Some(pair), Some(target), Some(peer));
        let mut drops: [&mut dyn FnMut(); 3] =
            [&mut || drop(pair.take()), &mut || drop(target.take()), &mut || drop(peer.take())];
        drops.swap(0, order % 3);
        drops.swap(1, 1 + order / 3);
        for drop in drops {
            drop();
        }
    }
}

#[test]
fn region_that_is_forgotten_stays_registered_and_outlives_its_peer_object() {
    let pair = Pair::new();
    let there = {
        let target = region(pair.server.peer(), 4096, Usage::WRITE_DST);
        let there = remote(&target).all();
        std::mem::forget(target);
        there
    };
    let source = region(pair.client.peer(), 4096, Usage::WRITE_SRC);
    pair.client.write(there, source.all(), Signal::Always, 1).unwrap();
    complete(&pair.client, 1);
    drop((source, pair));
    still_works(&Pair::new());
}

#[test]
fn region_dropped_under_posted_receives_fails_the_message_and_nothing_else_happens() {
    let pair = Pair::new();
    let Pair { client, server } = &pair;
    let buffer = region(server.peer(), 64, Usage::RECV);
    let message = region(client.peer(), 64, Usage::SEND);
    for context in 0..4 {
        server.recv(buffer.slice(0..16).unwrap(), context).unwrap();
    }
    drop(buffer);
    client.send(message.slice(0..16).unwrap(), Signal::Always, 9).unwrap();
    for context in 0..4 {
        let completion = server.cq().wait(LIMIT).unwrap();
        assert_eq!(completion.context(), context);
        let error = completion.result().expect_err("there is no buffer any more");
        assert_eq!(error.is_flushed(), context > 0, "{error}");
    }
    assert!(client.cq().wait(LIMIT).unwrap().result().is_err());
}

/// The memory is unmapped while the device may be at it: an error or success of each operation, and nothing worse.
#[test]
fn region_dropped_with_work_in_flight_completes_every_operation() {
    const LEN: usize = 1 << 20;
    for signal_round in 0..3 {
        for drops_target in [false, true] {
            let pair = Pair::new();
            let source = region(pair.client.peer(), LEN, Usage::WRITE_SRC | Usage::READ_DST);
            let target = region(pair.server.peer(), LEN, Usage::WRITE_DST | Usage::READ_SRC);
            let there = remote(&target).all();
            for context in 0..10 {
                let posted = if context % 3 == signal_round {
                    pair.client.read(source.all(), there, Signal::Always, context)
                } else {
                    pair.client.write(there, source.all(), Signal::Always, context)
                };
                posted.unwrap();
            }
            if drops_target {
                drop(target)
            } else {
                drop(source)
            }
            let mut causes = 0;
            for context in 0..10 {
                let completion = pair.client.cq().wait(LIMIT).unwrap();
                assert_eq!(completion.context(), context);
                match completion.result() {
                    Ok(_) => assert_eq!(causes, 0, "a success after an error"),
                    Err(error) => {
                        assert_ne!(error.status, IBV_WC_SUCCESS);
                        causes += u32::from(!error.is_flushed());
                    }
                }
            }
            assert!(causes <= 1, "{causes} completions name a cause");
        }
    }
}

#[test]
fn threads_read_a_region_while_the_peer_writes_it_and_see_only_bytes_that_were_written() {
    const LEN: usize = 64 * 1024;
    let pair = Pair::new();
    let source = region(pair.client.peer(), LEN, Usage::WRITE_SRC);
    let target = region(pair.server.peer(), LEN, Usage::WRITE_DST);
    let there = remote(&target).all();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = SetOnDrop(&done);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut copy = vec![0; LEN];
                    let mut last = true;
                    while last {
                        // Once more after the end, when nothing is written any more.
                        last = !done.load(Ordering::Acquire);
                        target.read_at(0, &mut copy).unwrap();
                        // Each round writes a multiple of 16.
                        assert!(copy.iter().all(|byte| byte % 16 == 0));
                    }
                    copy
                })
            })
            .collect();
        for round in 1..=60_u8 {
            source.write_at(0, &[round % 16 * 16; LEN]).unwrap();
            pair.client.write(there, source.all(), Signal::Always, 1).unwrap();
            complete(&pair.client, 1);
        }
        drop(ends);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), [60 % 16 * 16; LEN]);
        }
    });
}

#[test]
fn path_says_what_memory_it_is() {
    let dir = on_tmpfs();
    let memory = PersistentMemory::open(dir.path().join("pool"), 4096).unwrap();
    assert!(matches!(&memory, PersistentMemory::File(_)) && !memory.is_direct());
    assert!(DaxDevice::open(Path::new("/dev/null")).is_err());
}
