//! Flush: by both ways that it can be made, and what is refused.

use rpma::prelude::*;
use rpma::sys::bindings::IBV_WC_REM_ACCESS_ERR;
use rpma::{BuildError, ConnReqError, ErrorCode, NativeOps, OpMode, OpPath, Operation, PostError};

use crate::support::{
    Pair, bytes, cfg, complete, failed, known, listen, op_modes, peer, region, remote, still_works, with_usage,
};

const TARGET: Usage = Usage::WRITE_DST.union(Usage::FLUSH_TYPE_VISIBILITY);
const VISIBLE: FlushType = FlushType::Visibility;

/// A connection whose client flushes in this way.
fn pair(mode: OpMode) -> Pair {
    sized_pair(mode, 10)
}

fn sized_pair(mode: OpMode, sq_size: u32) -> Pair {
    let peer = peer();
    let pair = Pair::connect(&peer, &cfg().flush_mode(mode).sq_size(sq_size), &peer, &cfg());
    let path = if mode == OpMode::Emulated { OpPath::Emulated } else { OpPath::Native };
    assert_eq!(pair.client.flush_path(), path);
    pair
}

#[test]
fn device_says_of_itself_what_its_kernel_is_known_to_have() {
    let known = known();
    let told = peer().capabilities();
    assert_eq!((told.native_flush, told.native_atomic_write), (known.native_ops, known.native_ops));
    assert_eq!(told.on_demand_paging, known.on_demand_paging);
}

#[test]
fn native_mode_is_granted_where_the_kernel_has_it_and_refused_by_name_elsewhere() {
    let peer = peer();
    let (_endpoint, addr) = listen(&peer);
    for (cfg, operation) in
        [(cfg().flush_mode(OpMode::Native), "flush"), (cfg().atomic_write_mode(OpMode::Native), "atomic write")]
    {
        let request = ConnReq::new(&peer, addr, &cfg);
        if known().native_ops {
            drop(request.unwrap());
        } else {
            let error = request.unwrap_err();
            let ConnReqError::Build(build @ BuildError::NoNative { operation: named, .. }) = &error else { panic!("{error:?}") };
            assert_eq!(*named, operation);
            assert!(build.to_string().contains("emulated"), "{build}");
            assert_eq!(error.code(), ErrorCode::Provider);
        }
    }
}

#[test]
fn native_mode_of_a_server_without_it_is_an_error_and_the_client_is_rejected() {
    let peer = peer();
    let (endpoint, _) = listen(&peer);
    let (client, incoming) = crate::support::request(&peer, &endpoint, &[]);
    let prepared = incoming.prepare(&cfg().flush_mode(OpMode::Native));
    if known().native_ops {
        drop(prepared.unwrap());
    } else {
        assert!(matches!(prepared.unwrap_err(), BuildError::NoNative { operation: "flush", .. }));
    }
    // In both cases the request is gone by now.
    let error = client.established(crate::support::LIMIT).unwrap_err();
    assert!(matches!(error, rpma::EstablishError::Rejected(_)), "{error:?}");
}

#[test]
fn automatic_flush_is_native_where_both_ends_have_it_and_the_last_word_of_the_peer_counts() {
    let pair = Pair::new().with_direct_write();
    let client = &pair.client;
    let target = region(pair.server.peer(), 64, TARGET);
    let there = remote(&target).all();
    let own = if known().native_ops { OpPath::Native } else { OpPath::Emulated };
    let said = |flush| PeerCfg::new().with_native_ops(Some(NativeOps { flush, atomic_write: true }));
    // What our own kind says of this device, by way of the two bytes.
    let by_bytes = |cfg: PeerCfg| PeerCfg::from_bytes(&cfg.to_bytes()).unwrap();
    let words = [
        (by_bytes(pair.server.peer().cfg()), own),
        (by_bytes(said(false)), OpPath::Emulated),
        (by_bytes(said(true)), own),
        // A C peer says nothing of this.
        (PeerCfg::from_bytes(&[0]).unwrap(), own),
    ];
    for (cfg, path) in words {
        client.apply_remote_peer_cfg(cfg);
        assert_eq!(client.flush_path(), path, "{cfg:?}");
        client.flush(there, VISIBLE, Signal::Always, 1).unwrap();
        assert_eq!(complete(client, 1).operation(), Operation::Flush);
    }
}

#[test]
fn chosen_flush_mode_does_not_depend_on_the_peer_s_word() {
    for &mode in op_modes() {
        let pair = pair(mode);
        let path = pair.client.flush_path();
        for flush in [false, true] {
            pair.client.apply_remote_peer_cfg(PeerCfg::new().with_native_ops(Some(NativeOps { flush, atomic_write: flush })));
            assert_eq!(pair.client.flush_path(), path);
        }
    }
}

#[test]
fn flush_that_has_completed_is_behind_all_writes_before_it_whatever_range_it_names() {
    const LEN: usize = 1 << 20;
    for &mode in op_modes() {
        let pair = pair(mode);
        let source = region(pair.client.peer(), LEN, Usage::WRITE_SRC);
        let target = region(pair.server.peer(), LEN, TARGET);
        let elsewhere = region(pair.server.peer(), 8, TARGET);
        let there = remote(&target);
        for (round, flushed) in [there.all(), there.slice(0..8).unwrap(), remote(&elsewhere).all()].into_iter().enumerate() {
            let mark = u8::try_from(round + 1).unwrap();
            source.write_at(0, &vec![mark; LEN]).unwrap();
            pair.client.write(there.all(), source.all(), Signal::OnError, 1).unwrap();
            pair.client.flush(flushed, VISIBLE, Signal::Always, 2).unwrap();
            complete(&pair.client, 2);
            assert!(bytes(&target, 0, LEN).iter().all(|byte| *byte == mark), "{mode:?}, round {round}");
        }
    }
}

#[test]
fn flush_takes_every_range_of_a_region() {
    for &mode in op_modes() {
        let pair = pair(mode);
        let large = region(pair.server.peer(), 8192, TARGET);
        let small = region(pair.server.peer(), 4, TARGET);
        let (large, small) = (remote(&large), remote(&small));
        let ranges = [
            ("the whole region", large.all()),
            ("its last byte", large.slice(8191..8192).unwrap()),
            ("no byte, at its start", large.slice(0..0).unwrap()),
            ("no byte, at its end", large.slice(8192..8192).unwrap()),
            ("bytes on no boundary", large.slice(4093..4100).unwrap()),
            ("a region of 4 bytes", small.all()),
            ("the last byte of a region of 4 bytes", small.slice(3..4).unwrap()),
            ("no byte of a region of 4 bytes", small.slice(4..4).unwrap()),
        ];
        for (what, range) in ranges {
            pair.client.flush(range, VISIBLE, Signal::Always, 1).unwrap();
            let completion = pair.client.cq().wait(crate::support::LIMIT).unwrap();
            assert!(completion.result().is_ok(), "{mode:?}, {what}: {completion:?}");
        }
        still_works(&pair);
    }
}

#[test]
fn flush_of_a_length_over_32_bits_completes() {
    for &mode in op_modes() {
        let pair = pair(mode);
        let target = region(pair.server.peer(), 8192, TARGET);
        // Only the length is made up: a region of that length does not fit this machine.
        let there = MrDescriptor::new(remote(&target).addr(), 5 << 30, remote(&target).rkey(), TARGET).unwrap();
        pair.client.flush(RemoteMr::from(there).all(), VISIBLE, Signal::Always, 1).unwrap();
        complete(&pair.client, 1);
    }
}

#[test]
fn sixty_four_flushes_in_flight_all_complete_in_order() {
    for &mode in op_modes() {
        let pair = sized_pair(mode, 64);
        let target = region(pair.server.peer(), 4096, TARGET);
        let there = remote(&target);
        for n in 0..64 {
            pair.client.flush(there.slice_at(n * 64, 64).unwrap(), VISIBLE, Signal::Always, n).unwrap();
        }
        for n in 0..64 {
            assert_eq!(complete(&pair.client, n).operation(), Operation::Flush);
        }
        still_works(&pair);
    }
}

#[test]
fn flush_that_asks_for_a_completion_on_error_leaves_none_on_success() {
    for &mode in op_modes() {
        let pair = pair(mode);
        let target = region(pair.server.peer(), 64, TARGET);
        let there = remote(&target).all();
        for context in 1..4 {
            pair.client.flush(there, VISIBLE, Signal::OnError, context).unwrap();
        }
        pair.client.flush(there, VISIBLE, Signal::Always, 4).unwrap();
        complete(&pair.client, 4);
        assert_eq!(pair.client.cq().poll().unwrap(), None, "{mode:?}");
    }
}

#[test]
fn flush_of_a_region_that_is_gone_completes_as_remote_access_error() {
    for &mode in op_modes() {
        let pair = pair(mode);
        let target = region(pair.server.peer(), 64, TARGET);
        let there = remote(&target).all();
        drop(target);
        pair.client.flush(there, VISIBLE, Signal::OnError, 1).unwrap();
        let error = failed(&pair.client, 1);
        assert_eq!((error.operation, error.status), (Operation::Flush, IBV_WC_REM_ACCESS_ERR), "{mode:?}: {error}");
    }
}

/// What can be flushed natively has remote-read as well, so a peer without the native operation can flush it too (C gives it none).
#[test]
fn region_that_is_only_flushed_takes_flushes_of_both_kinds() {
    let peer = peer();
    let target = region(&peer, 64, Usage::FLUSH_TYPE_VISIBILITY);
    for &mode in op_modes() {
        let pair = Pair::connect(&peer, &cfg().flush_mode(mode), &peer, &cfg());
        pair.client.flush(remote(&target).all(), VISIBLE, Signal::Always, 1).unwrap();
        complete(&pair.client, 1);
    }
}

#[test]
fn persistent_flush_without_the_peer_s_word_on_direct_write_is_refused() {
    for &mode in op_modes() {
        let pair = pair(mode);
        let target = region(pair.server.peer(), 64, TARGET);
        let there = with_usage(remote(&target), Usage::FLUSH_TYPE_PERSISTENT).all();
        let flush = || pair.client.flush(there, FlushType::Persistent, Signal::Always, 1);
        let refused = || {
            let error = flush().unwrap_err();
            assert!(matches!(error, PostError::NoDirectWrite { .. }), "{error:?}");
            assert_eq!(error.code(), ErrorCode::NotSupported);
        };
        refused();
        pair.client.apply_remote_peer_cfg(PeerCfg::new().with_direct_write_to_pmem(false));
        refused();
        // Said, and taken back.
        pair.client.apply_remote_peer_cfg(PeerCfg::new().with_direct_write_to_pmem(true));
        pair.client.apply_remote_peer_cfg(PeerCfg::from_bytes(&[0]).unwrap());
        refused();
        still_works(&pair);
    }
}

#[test]
fn flush_type_that_the_region_lacks_is_refused_by_that_name_whatever_the_peer_said_of_direct_write() {
    for pair in [Pair::new(), Pair::new().with_direct_write()] {
        let target = region(pair.server.peer(), 64, TARGET | Usage::READ_SRC);
        let there = remote(&target);
        let cases = [
            (FlushType::Persistent, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY),
            (FlushType::Visibility, Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT),
            (FlushType::Persistent, Usage::READ_SRC | Usage::WRITE_DST),
            (FlushType::Visibility, Usage::READ_SRC | Usage::WRITE_DST),
        ];
        for (asked, usage) in cases {
            let error = pair.client.flush(with_usage(there, usage).all(), asked, Signal::Always, 1).unwrap_err();
            assert!(
                matches!(error, PostError::FlushType { flush_type, has, needs } if (flush_type, has, needs) == (asked, usage, asked.required_usage())),
                "{error:?}"
            );
            assert_eq!(error.code(), ErrorCode::NotSupported);
        }
        let error = pair.client.flush(RemoteSlice::NULL, VISIBLE, Signal::Always, 1).unwrap_err();
        assert!(matches!(error, PostError::FlushType { .. }), "{error:?}");
        still_works(&pair);
    }
}

/// Soft-RoCE with native flush tells DRAM from persistent memory; without, nobody can.
#[test]
fn descriptor_of_dram_registered_for_persistence_tells_the_truth_where_the_device_knows_it() {
    let pair = Pair::new().with_direct_write();
    let asked = Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT;
    let target = region(pair.server.peer(), 4096, asked);
    let granted = if known().native_ops { TARGET } else { asked };
    assert_eq!((target.requested_usage(), target.usage()), (asked, granted));
    assert_eq!(target.descriptor().usage(), granted);
    let there = remote(&target);
    assert_eq!(there.flush_types(), granted.difference(Usage::WRITE_DST));

    let flush = pair.client.flush(there.all(), FlushType::Persistent, Signal::Always, 1);
    if known().native_ops {
        let error = flush.unwrap_err();
        assert!(matches!(error, PostError::FlushType { .. }), "{error:?}");
        assert_eq!(error.code(), ErrorCode::NotSupported);
        pair.client.flush(there.all(), VISIBLE, Signal::Always, 1).unwrap();
    } else {
        flush.unwrap();
    }
    complete(&pair.client, 1);
    still_works(&pair);
}

#[test]
fn dram_registered_for_both_kinds_of_flush_keeps_visibility() {
    let both = Usage::FLUSH_TYPE_VISIBILITY | Usage::FLUSH_TYPE_PERSISTENT;
    let target = region(&peer(), 4096, both);
    assert_eq!(target.usage(), if known().native_ops { Usage::FLUSH_TYPE_VISIBILITY } else { both });
}
