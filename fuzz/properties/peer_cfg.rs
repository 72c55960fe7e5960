//! What holds for every input to the decoder of peer configurations. Used by the fuzz target and
//! by `rpma-mr/tests/corpus_replay.rs`.

use rpma_mr::{PeerCfg, PeerCfgError};

/// Panics if a property does not hold for `data`.
pub(crate) fn check(data: &[u8]) {
    let decoded = PeerCfg::from_bytes(data);
    let Some(&direct_write) = data.first() else {
        assert_eq!(decoded, Err(PeerCfgError::Empty));
        return;
    };

    let cfg = decoded.expect("every other input decodes");
    assert_eq!(cfg.direct_write_to_pmem(), direct_write != 0);
    assert_eq!(cfg.to_c_bytes(), [u8::from(direct_write != 0)]);

    let encoded = cfg.to_bytes();
    assert_eq!(encoded[0], u8::from(direct_write != 0));
    match data.get(1) {
        Some(&native @ 0..=3) => {
            let ops = cfg.native_ops().expect("no reserved bit is set");
            assert_eq!((ops.flush, ops.atomic_write), (native & 1 != 0, native & 2 != 0));
            assert_eq!(encoded[1..], [native]);
        }
        Some(4..) | None => {
            assert_eq!(cfg.native_ops(), None);
            assert_eq!(encoded.len(), 1);
        }
    }
    assert_eq!(PeerCfg::from_bytes(&encoded), Ok(cfg));
}
