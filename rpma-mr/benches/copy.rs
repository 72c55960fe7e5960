//! What the copying of registered memory costs: the routine behind `read_at` and `write_at` against `ptr::copy_nonoverlapping`, which
//! must not be used there. Same memory, same run; read the results as ratios.
//!
//! ```text
//! cargo bench -p rpma-mr --bench copy
//! ```
#![expect(unsafe_code, reason = "calls what the routine is compared with")]
#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rpma_mr::AnonPages;

const LENGTHS: [usize; 6] = [8, 64, 256, 1024, 4096, 1 << 20];

fn copies(c: &mut Criterion) {
    for len in LENGTHS {
        let mut pages = AnonPages::new(len).expect("memory for the benchmark");
        let mut private = vec![0x5A_u8; len];
        let mut group = c.benchmark_group(format!("{len} bytes"));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function("write_at", |b| b.iter(|| pages.write_at(black_box(0), black_box(&private))));
        group.bench_function("copy_nonoverlapping in", |b| {
            let dst = pages.as_mut_slice().as_mut_ptr();
            // SAFETY: both are `len` bytes long, and they do not overlap.
            b.iter(|| unsafe { std::ptr::copy_nonoverlapping(black_box(private.as_ptr()), black_box(dst), black_box(len)) });
        });
        group.bench_function("read_at", |b| b.iter(|| pages.read_at(black_box(0), black_box(&mut private))));
        group.bench_function("copy_nonoverlapping out", |b| {
            let src = pages.as_slice().as_ptr();
            let dst = private.as_mut_ptr();
            // SAFETY: both are `len` bytes long, and they do not overlap.
            b.iter(|| unsafe { std::ptr::copy_nonoverlapping(black_box(src), black_box(dst), black_box(len)) });
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).without_plots();
    targets = copies
}
criterion_main!(benches);
