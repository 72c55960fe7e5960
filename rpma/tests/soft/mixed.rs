//! A device with native flush and atomic write, and one without, at the two ends of a connection: how a flush is made concerns both.

use rpma::prelude::*;
use rpma::soft::{Soft, SoftConfig};
use rpma::sys::bindings::IBV_WC_REM_INV_REQ_ERR;

use crate::support::{Pair, bytes, cfg, complete, failed, peer_over, region, remote, still_works};

const TARGET: Usage = Usage::WRITE_DST.union(Usage::READ_SRC).union(Usage::FLUSH_TYPE_VISIBILITY);

/// One with native operations, and one without.
fn peers() -> [Peer; 2] {
    let plain = SoftConfig::default().without_native_operations();
    [SoftConfig::default(), plain].map(|config| peer_over(&Soft::with_config(config).unwrap()))
}

#[test]
fn flush_and_atomic_write_are_emulated_in_both_directions_where_one_end_has_none() {
    let [native, plain] = peers();
    for (client, server) in [(&native, &plain), (&plain, &native)] {
        let pair = Pair::connect(client, &cfg(), server, &cfg()).with_direct_write();
        for (here, there) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            assert_eq!((here.flush_path(), here.atomic_write_path()), (OpPath::Emulated, OpPath::Emulated));
            let source = region(here.peer(), 8, Usage::WRITE_SRC);
            let target = region(there.peer(), 16, TARGET);
            let far = remote(&target);
            source.write_at(0, b"flushed.").unwrap();
            here.write(far.slice(0..8).unwrap(), source.all(), Signal::OnError, 1).unwrap();
            here.flush(far.all(), FlushType::Visibility, Signal::Always, 2).unwrap();
            assert_eq!(complete(here, 2).operation(), Operation::Flush);
            here.atomic_write(far.slice(8..16).unwrap(), *b"at once.", Signal::Always, 3).unwrap();
            assert_eq!(complete(here, 3).operation(), Operation::AtomicWrite);
            assert_eq!(bytes(&target, 0, 16), b"flushed.at once.");
        }
        still_works(&pair);
    }
}

#[test]
fn native_flush_that_was_insisted_on_fails_where_the_target_has_none() {
    let [native, plain] = peers();
    let pair = Pair::connect(&native, &cfg().flush_mode(OpMode::Native), &plain, &cfg()).with_direct_write();
    assert_eq!(pair.client.flush_path(), OpPath::Native);
    let target = region(&plain, 8, TARGET);
    pair.client.flush(remote(&target).all(), FlushType::Visibility, Signal::Always, 1).unwrap();
    assert_eq!(failed(&pair.client, 1).status, IBV_WC_REM_INV_REQ_ERR);
    still_works(&Pair::connect(&native, &cfg(), &plain, &cfg()));
}
