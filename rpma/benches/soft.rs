//! What the software provider moves between two connections of one process: messages one at a time, many at once, and long ones.
//! Both ends share two processors or more with the kernel's TCP, so numbers of different runs differ; compare builds side by side.
//!
//! ```text
//! cargo bench -p rpma --bench soft
//! ```
#![expect(clippy::unwrap_used, reason = "a benchmark")]
#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::thread;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rpma::prelude::*;
use rpma::soft::Soft;

const LIMIT: Duration = Duration::from_secs(10);
/// How many are under way at once.
const MANY: u64 = 64;
const REGION_BYTES: usize = 1 << 20;

struct Bench {
    conn: Conn,
    _there: Conn,
    near: LocalMr<AnonPages>,
    far: RemoteMr,
    _far: LocalMr<AnonPages>,
}

impl Bench {
    fn new() -> Self {
        let peer = Peer::new(&Device::local(&Soft::open().unwrap(), "127.0.0.1").unwrap()).unwrap();
        let near = peer.register(AnonPages::new(REGION_BYTES).unwrap(), Usage::WRITE_SRC | Usage::READ_DST).unwrap();
        let there = peer.register(AnonPages::new(REGION_BYTES).unwrap(), Usage::WRITE_DST | Usage::READ_SRC).unwrap();
        near.write_at(0, &vec![0xA5; REGION_BYTES]).unwrap();
        there.write_at(0, &vec![0x5A; REGION_BYTES]).unwrap();
        let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0)).unwrap();
        let addr = endpoint.local_addr().unwrap();
        let cfg = ConnCfg::new().timeout(LIMIT).sq_size(2 * MANY as u32).cq_size(4 * MANY as u32);
        let descriptor = there.descriptor().to_bytes();
        let (conn, other) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let request = endpoint.next_conn_req(&cfg, LIMIT).unwrap();
                request.connect(&descriptor).unwrap().established(LIMIT).unwrap()
            });
            let conn = ConnReq::new(&peer, addr, &cfg).unwrap().connect(&[]).unwrap().established(LIMIT).unwrap();
            (conn, other.join().unwrap())
        });
        let far = RemoteMr::from_descriptor(conn.private_data()).unwrap();
        Self { conn, _there: other, near, far, _far: there }
    }

    fn write(&self, len: usize, signal: Signal, context: u64) {
        let there = self.far.slice_at(0, len as u64).unwrap();
        self.conn.write(there, self.near.slice(0..len).unwrap(), signal, context).unwrap();
    }

    fn read(&self, len: usize, context: u64) {
        let there = self.far.slice_at(0, len as u64).unwrap();
        self.conn.read(self.near.slice(0..len).unwrap(), there, Signal::Always, context).unwrap();
    }

    fn wait(&self, count: u64) {
        for _ in 0..count {
            self.conn.cq().wait(LIMIT).unwrap().result().unwrap();
        }
    }
}

fn messages(c: &mut Criterion) {
    let bench = Bench::new();
    for len in [8, 64, 512, 64 << 10, 1 << 20] {
        let mut group = c.benchmark_group(format!("{len} bytes"));
        let many = if len > 512 { 8 } else { MANY };
        group.throughput(Throughput::Elements(1));
        group.bench_function("write, one at a time", |b| {
            b.iter(|| {
                bench.write(len, Signal::Always, 0);
                bench.wait(1);
            });
        });
        group.bench_function("read, one at a time", |b| {
            b.iter(|| {
                bench.read(len, 0);
                bench.wait(1);
            });
        });
        group.throughput(Throughput::Elements(many));
        group.bench_function(format!("write, {many} in flight"), |b| {
            b.iter(|| {
                (0..many).for_each(|n| bench.write(len, Signal::Always, n));
                bench.wait(many);
            });
        });
        group.bench_function(format!("write, {many} in one batch"), |b| {
            b.iter(|| {
                let mut batch = bench.conn.batch();
                for n in 0..many {
                    let there = bench.far.slice_at(0, len as u64).unwrap();
                    batch.write(there, bench.near.slice(0..len).unwrap(), Signal::Always, n).unwrap();
                }
                batch.post().unwrap();
                bench.wait(many);
            });
        });
        group.bench_function(format!("read, {many} in flight"), |b| {
            b.iter(|| {
                (0..many).for_each(|n| bench.read(len, n));
                bench.wait(many);
            });
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).without_plots();
    targets = messages
}
criterion_main!(benches);
