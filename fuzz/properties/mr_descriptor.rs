//! What holds for every input to the descriptor decoder. Used by the fuzz target and by
//! `rpma-mr/tests/corpus_replay.rs`.
//!
//! The first 21 bytes are the descriptor. Each 17 bytes after them are a range to slice it with:
//! one byte choosing the kind of each bound, then two 64-bit little-endian numbers.

use rpma_mr::{DescriptorError, MrDescriptor, RemoteMr, RemoteSlice};
use std::ops::Bound;

/// Panics if a property does not hold for `data`.
pub(crate) fn check(data: &[u8]) {
    let Some((head, ranges)) = data.split_at_checked(MrDescriptor::SIZE_BYTES) else {
        assert_eq!(
            MrDescriptor::from_bytes(data),
            Err(DescriptorError::TooShort { have_bytes: data.len(), need_bytes: MrDescriptor::SIZE_BYTES })
        );
        return;
    };

    let addr = number(&head[0..8]);
    let len_bytes = number(&head[8..16]);
    let decoded = MrDescriptor::from_bytes(data);
    if head[20] == 0 {
        assert_eq!(decoded, Err(DescriptorError::NoUsage));
        return;
    }
    if u128::from(addr) + u128::from(len_bytes) > u128::from(u64::MAX) {
        assert_eq!(decoded, Err(DescriptorError::Wraps { addr, len_bytes }));
        return;
    }

    let descriptor = decoded.expect("usage is not 0 and the end fits");
    assert_eq!((descriptor.addr(), descriptor.len_bytes()), (addr, len_bytes));
    assert_eq!(u64::from(descriptor.rkey()), number(&head[16..20]));
    assert_eq!(descriptor.usage().bits(), head[20]);
    assert_eq!(descriptor.to_bytes(), head);

    let region = RemoteMr::from_descriptor(data).expect("the descriptor decoded above");
    assert_eq!(region.descriptor(), descriptor);
    let mut slice = region.all();
    for range in ranges.chunks_exact(17) {
        let (a, b) = (number(&range[1..9]), number(&range[9..17]));
        let bounds = (bound(range[0], a), bound(range[0] >> 4, b));
        check_slice(&region, &region.all(), bounds);
        // Deeper at each step, until a range does not fit.
        if let Some(inner) = check_slice(&region, &slice, bounds) {
            slice = inner;
        }

        let fits = u128::from(a) + u128::from(b) <= u128::from(len_bytes);
        assert_eq!(region.slice_at(a, b).is_ok(), fits);
    }
}

/// Slices `outer`, and checks the result against arithmetic that cannot overflow.
fn check_slice(region: &RemoteMr, outer: &RemoteSlice, bounds: (Bound<u64>, Bound<u64>)) -> Option<RemoteSlice> {
    let start = match bounds.0 {
        Bound::Unbounded => 0,
        Bound::Included(start) => u128::from(start),
        Bound::Excluded(before) => u128::from(before) + 1,
    };
    let end = match bounds.1 {
        Bound::Unbounded => u128::from(outer.len_bytes()),
        Bound::Included(last) => u128::from(last) + 1,
        Bound::Excluded(end) => u128::from(end),
    };
    let legal = start <= end && end <= u128::from(outer.len_bytes());
    let slice = outer.slice(bounds);
    assert_eq!(slice.is_ok(), legal, "{bounds:?} of {outer:?}: {slice:?}");

    let slice = slice.ok()?;
    assert_eq!(u128::from(slice.addr()), u128::from(outer.addr()) + start);
    assert_eq!(u128::from(slice.len_bytes()), end - start);
    assert!(slice.addr() >= region.addr());
    assert!(
        u128::from(slice.addr()) + u128::from(slice.len_bytes()) <= u128::from(region.addr()) + u128::from(region.len_bytes())
    );
    assert_eq!(slice.addr() - region.addr(), slice.offset_bytes());
    assert_eq!((slice.region_addr(), slice.region_len_bytes()), (region.addr(), region.len_bytes()));
    assert_eq!((slice.rkey(), slice.usage()), (region.rkey(), region.usage()));
    assert_eq!(slice.is_aligned(8), slice.addr() % 8 == 0);
    assert!(!slice.is_null());
    Some(slice)
}

fn bound(kind: u8, n: u64) -> Bound<u64> {
    match kind & 3 {
        0 | 1 => Bound::Included(n),
        2 => Bound::Excluded(n),
        _ => Bound::Unbounded,
    }
}

/// The little-endian number in `bytes`, which are at most 8.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
}
