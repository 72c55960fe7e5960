//! Persistent memory, as device DAX and as a file on a DAX file system.
//!
//! These tests need a machine with one of the two, so an ordinary run tells them as ignored. `--ignored pmem::devdax` runs those that
//! need the device, and `--ignored pmem::fsdax` those that need the file; where `RPMA_TEST_PMEM_KIND` says that it is not there, they fail.

use std::env;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rpma::prelude::*;
use rpma::{OpMode, OpPath};

use crate::support::{Pair, bytes, cfg, complete, op_modes, peer, region, remote};

const DURABLE: Usage = Usage::READ_SRC.union(Usage::WRITE_DST).union(Usage::FLUSH_TYPE_PERSISTENT);

/// The memory under test, which the tests use one after the other.
struct Place {
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

fn place(kind: &str) -> Place {
    static IN_USE: Mutex<()> = Mutex::new(());
    let there = env::var("RPMA_TEST_PMEM_KIND").unwrap_or_default();
    assert_eq!(there, kind, "RPMA_TEST_PMEM_KIND: this test needs {kind}");
    let path = env::var_os("RPMA_TEST_PMEM").expect("RPMA_TEST_PMEM names the memory").into();
    Place { path, _alone: IN_USE.lock().unwrap_or_else(PoisonError::into_inner) }
}

const PAGE_BYTES: usize = 4096;

/// The peer writes to the region's first pages and flushes them to persistence, a page for each way that there is.
fn written_durably<M: RegionOwner>(target: &LocalMr<M>, target_peer: &Peer, mark: &[u8]) {
    assert_eq!((target.usage(), target.descriptor().usage()), (DURABLE, DURABLE));
    for (n, &mode) in (0..).zip(op_modes()) {
        let pair = Pair::connect(&peer(), &cfg().flush_mode(mode), target_peer, &cfg()).with_direct_write();
        let path = if mode == OpMode::Native { OpPath::Native } else { OpPath::Emulated };
        assert_eq!(pair.client.flush_path(), path);
        let source = region(pair.client.peer(), mark.len(), Usage::WRITE_SRC);
        source.write_at(0, mark).unwrap();
        let there = remote(target).slice_at(n * PAGE_BYTES as u64, mark.len() as u64).unwrap();
        pair.client.write(there, source.all(), Signal::OnError, 1).unwrap();
        pair.client.flush(there, FlushType::Persistent, Signal::Always, 2).unwrap();
        complete(&pair.client, 2);
    }
    for n in 0..op_modes().len() {
        assert_eq!(bytes(target, n * PAGE_BYTES, mark.len()), mark);
    }
}

mod devdax {
    use std::fs;

    use rpma::{ErrorCode, MapError, PostError};

    use super::{DURABLE, place, written_durably};
    use crate::interop::serve_a_client_in_c;
    use crate::support::{Pair, bytes, complete, peer, region, remote, still_works};
    use rpma::prelude::*;

    const LEN: usize = 4 << 20;

    #[test]
    #[ignore = "needs device DAX"]
    fn device_is_as_long_as_its_kernel_says_and_no_longer() {
        let place = place("devdax");
        let name = place.path.file_name().unwrap().to_str().unwrap();
        let size: usize = fs::read_to_string(format!("/sys/bus/dax/devices/{name}/size")).unwrap().trim().parse().unwrap();
        let device = DaxDevice::open(&place.path).unwrap();
        assert_eq!(device.len_bytes(), size);
        assert!(device.align_bytes() >= 4096 && size.is_multiple_of(device.align_bytes()));
        device.write_at(size - 4, b"last").unwrap();
        let mut last = [0; 4];
        device.read_at(size - 4, &mut last).unwrap();
        assert_eq!(&last, b"last");
        let error = DaxDevice::open_with_len(&place.path, size + 1).unwrap_err();
        assert!(matches!(error, MapError::TooLong { available_bytes, .. } if available_bytes == size as u64), "{error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }

    #[test]
    #[ignore = "needs device DAX"]
    fn path_of_a_device_is_mapped_as_one_and_is_the_memory_itself() {
        let place = place("devdax");
        let memory = PersistentMemory::open(&place.path, 4096).unwrap();
        assert!(matches!(&memory, PersistentMemory::Device(_)) && memory.is_direct());
        let error = MappedFile::open(&place.path).unwrap_err();
        assert!(matches!(error, MapError::NotAFile { is_char_device: true, .. }), "{error:?}");
    }

    #[test]
    #[ignore = "needs device DAX"]
    fn persistent_flush_reaches_the_device_and_whoever_maps_it_next_finds_the_bytes() {
        let place = place("devdax");
        let peer = peer();
        let mark = format!("durable, says process {}", std::process::id());
        let target = peer.register(DaxDevice::open_with_len(&place.path, LEN).unwrap(), DURABLE).unwrap();
        assert!(!target.is_on_demand());
        written_durably(&target, &peer, mark.as_bytes());
        drop(target);
        let again = peer.register(DaxDevice::open_with_len(&place.path, LEN).unwrap(), Usage::READ_SRC).unwrap();
        assert_eq!(bytes(&again, 0, mark.len()), mark.as_bytes());
    }

    #[test]
    #[ignore = "needs device DAX"]
    fn persistent_flush_is_refused_without_the_peer_s_word_and_for_visibility_only() {
        let place = place("devdax");
        let pair = Pair::new();
        let target = pair.server.peer().register(DaxDevice::open_with_len(&place.path, LEN).unwrap(), DURABLE).unwrap();
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
    #[ignore = "needs device DAX"]
    fn flush_takes_every_range_of_the_device() {
        let place = place("devdax");
        let pair = Pair::new().with_direct_write();
        let target = pair.server.peer().register(DaxDevice::open_with_len(&place.path, LEN).unwrap(), DURABLE).unwrap();
        let there = remote(&target);
        let end = LEN as u64;
        for (n, range) in (0..).zip([0..end, end - 1..end, end..end, 0..0, 4095..4097]) {
            pair.client.flush(there.slice(range.clone()).unwrap(), FlushType::Persistent, Signal::Always, n).unwrap();
            complete(&pair.client, n);
        }
        // Anonymous memory of the same process beside it is not mistaken for it.
        let dram = region(pair.server.peer(), 4096, DURABLE);
        assert_eq!(dram.usage().contains(Usage::FLUSH_TYPE_PERSISTENT), !crate::support::known().native_ops);
        still_works(&pair);
    }

    #[test]
    #[ignore = "needs device DAX"]
    fn client_in_c_flushes_the_device_to_persistence() {
        let place = place("devdax");
        let device = DaxDevice::open_with_len(&place.path, 4096).unwrap();
        // What earlier tests left there.
        device.write_at(0, &[0; 4096]).unwrap();
        let granted = serve_a_client_in_c(device, Usage::FLUSH_TYPE_PERSISTENT | Usage::FLUSH_TYPE_VISIBILITY);
        assert!(granted.contains(Usage::FLUSH_TYPE_PERSISTENT));
    }
}

mod fsdax {
    use std::error::Error;
    use std::fs;

    use rpma::{ErrorCode, RegisterError};

    use super::{DURABLE, place, written_durably};
    use crate::support::{Pair, bytes, complete, known, peer, region, remote};
    use rpma::prelude::*;

    const LEN: usize = 1 << 20;

    #[test]
    #[ignore = "needs a DAX file system"]
    fn file_on_a_dax_file_system_is_mapped_as_the_memory_itself() {
        let place = place("fsdax");
        assert!(MappedFile::create(&place.path, LEN).unwrap().is_map_sync());
        assert!(MappedFile::open_read_only(&place.path).unwrap().is_map_sync());
        let memory = PersistentMemory::open(&place.path, LEN).unwrap();
        assert!(matches!(&memory, PersistentMemory::File(_)) && memory.is_direct());
        memory.write_at(LEN - 4, b"last").unwrap();
        assert_eq!(&fs::read(&place.path).unwrap()[LEN - 4..], b"last");
    }

    #[test]
    #[ignore = "needs a DAX file system"]
    fn file_is_registered_on_demand_where_the_device_can_and_else_refused_with_the_cause() {
        let place = place("fsdax");
        let peer = peer();
        let registered = peer.register(MappedFile::create(&place.path, LEN).unwrap(), DURABLE);
        if known().on_demand_paging {
            let target = registered.unwrap();
            assert!(target.is_on_demand());
            let mark = format!("durable, says process {}", std::process::id());
            written_durably(&target, &peer, mark.as_bytes());
            drop(target);
            assert_eq!(&fs::read(&place.path).unwrap()[..mark.len()], mark.as_bytes());
        } else {
            let failure = registered.unwrap_err();
            assert!(matches!(failure.error, RegisterError::NeedsOnDemandPaging { len_bytes: LEN, .. }), "{failure:?}");
            assert_eq!(failure.error.code(), ErrorCode::Provider);
            let text = failure.to_string();
            assert!(text.contains("on-demand paging") && text.contains("device DAX"), "{text}");
            let source = failure.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
            assert_eq!(source.kind(), std::io::ErrorKind::Unsupported);
            failure.owner.write_at(0, b"still mapped").unwrap();
        }
    }

    /// A fault of soft-RoCE in Linux 7.3 (`__rxe_odp_mr_copy`): in regions that are on demand, each packet lands at the start of its
    /// page. **If this test fails because the bytes are where they belong**, the kernel is mended: delete it.
    #[test]
    #[ignore = "needs a DAX file system"]
    fn soft_roce_still_loses_the_offset_in_the_page_of_on_demand_regions() {
        let place = place("fsdax");
        let pair = Pair::new();
        let file = MappedFile::create(&place.path, LEN).unwrap();
        if !known().on_demand_paging {
            assert!(matches!(
                pair.server.peer().register(file, DURABLE).unwrap_err().error,
                RegisterError::NeedsOnDemandPaging { .. }
            ));
            return;
        }
        file.write_at(0, &[0; 4096]).unwrap();
        let target = pair.server.peer().register(file, DURABLE).unwrap();
        let source = region(pair.client.peer(), 4, Usage::WRITE_SRC);
        source.write_at(0, b"lost").unwrap();
        pair.client.write(remote(&target).slice(100..104).unwrap(), source.all(), Signal::Always, 1).unwrap();
        complete(&pair.client, 1);
        assert_eq!((bytes(&target, 0, 4), bytes(&target, 100, 4)), (b"lost".to_vec(), b"\0\0\0\0".to_vec()));
    }
}
