//! A thousand connections of the software provider in one process, both ends of each: what one of them costs, and that all share the
//! threads of the process.
//!
//! One test, so that all that the process holds is its own.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use rpma::OpPath;
use rpma::prelude::*;
use rpma::soft::Soft;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longer than anything takes on a slow machine that works.
const LIMIT: Duration = Duration::from_secs(60);

const CONNECTIONS: usize = 1_000;
/// One in so many flushes to a file.
const TO_FILE: usize = 4;
/// What a connection writes, to a place of its own.
const RECORD_BYTES: usize = 64;

/// What one end of a connection may cost, with the default queues of 10 requests and everything that `rpma` holds for it. `Soft`'s
/// documentation says about 8 KiB (8,420 bytes, measured), and so many descriptors.
const END_BYTES: usize = 12 * 1024;
const END_DESCRIPTORS: usize = 8;

/// Counts what is allocated and not freed.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands on to the system's allocator what it is given; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the contract of the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the contract of the trait; it came from `alloc` above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the process holds.
#[derive(Debug, Clone, Copy)]
struct Holdings {
    bytes: usize,
    descriptors: usize,
}

fn holdings() -> Holdings {
    let bytes = ALLOCATED.load(Ordering::Relaxed);
    // The directory's own descriptor is among them, each time.
    Holdings { bytes, descriptors: fs::read_dir("/proc/self/fd").unwrap().count() }
}

/// How many threads of this process have the name.
fn threads(name: &str) -> usize {
    let names =
        fs::read_dir("/proc/self/task").unwrap().map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    names.filter(|of| of.trim_end() == name).count()
}

/// Has the kernel allow as many descriptors as this takes.
fn allow_descriptors(count: usize) {
    let count = u64::try_from(count).unwrap();
    let now = getrlimit(Resource::Nofile);
    let allowed = Rlimit { current: Some(count), maximum: Some(now.maximum.unwrap_or(u64::MAX).max(count)) };
    if now.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, allowed)
            .expect("the hard limit of descriptors is lower than this test needs, and it may not be raised");
    }
}

/// The client's end and the server's.
fn connect(peer: &Peer, endpoint: &Endpoint) -> (Conn, Conn) {
    let cfg = ConnCfg::new().timeout(LIMIT);
    let pending = ConnReq::new(peer, endpoint.local_addr().unwrap(), &cfg).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg, LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    // What a platform with direct write to persistent memory would say of itself.
    client.apply_remote_peer_cfg(server.peer().cfg().with_direct_write_to_pmem(true));
    assert_eq!(client.flush_path(), OpPath::Native);
    (client, server)
}

/// What connection `n` writes.
fn record(n: usize) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..].fill(u8::try_from(n % 251).unwrap());
    record
}

#[test]
fn thousand_connections_cost_what_is_documented_and_share_one_progress_thread() {
    allow_descriptors(2 * CONNECTIONS * END_DESCRIPTORS + 100);
    let device = Device::local(&Soft::open().unwrap(), "127.0.0.1").unwrap();
    let peer = Peer::new(&device).unwrap();
    let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0)).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("records");
    let file = MappedFile::create(&path, CONNECTIONS * RECORD_BYTES).unwrap();
    let file = peer.register(file, Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT).unwrap();
    let memory = AnonPages::new(CONNECTIONS * RECORD_BYTES).unwrap();
    let memory = peer.register(memory, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY).unwrap();
    let source = peer.register(AnonPages::new(CONNECTIONS * RECORD_BYTES).unwrap(), Usage::WRITE_SRC).unwrap();
    let remote = |descriptor: MrDescriptor| RemoteMr::from_descriptor(&descriptor.to_bytes()).unwrap();
    let (far_file, far_memory) = (remote(file.descriptor()), remote(memory.descriptor()));

    // All of them have work outstanding at once.
    let write_and_flush = |pairs: &[(Conn, Conn)]| {
        let at = |n: usize| n * RECORD_BYTES..(n + 1) * RECORD_BYTES;
        for (n, (client, _server)) in pairs.iter().enumerate() {
            source.write_at(at(n).start, &record(n)).unwrap();
            let (target, flush) =
                if n.is_multiple_of(TO_FILE) { (far_file, FlushType::Persistent) } else { (far_memory, FlushType::Visibility) };
            let target = target.slice_at(at(n).start as u64, RECORD_BYTES as u64).unwrap();
            client.write(target, source.slice(at(n)).unwrap(), Signal::OnError, 1).unwrap();
            client.flush(target, flush, Signal::Always, 2).unwrap();
        }
        for (n, (client, _server)) in pairs.iter().enumerate() {
            let completion = client.cq().wait(LIMIT).unwrap();
            completion.result().unwrap();
            assert_eq!(completion.context(), 2);
            let mut seen = [0; RECORD_BYTES];
            if n.is_multiple_of(TO_FILE) {
                file.read_at(at(n).start, &mut seen).unwrap();
            } else {
                memory.read_at(at(n).start, &mut seen).unwrap();
            }
            assert_eq!(seen, record(n));
        }
    };

    // Whatever is made once, tables that grow included, is made by the first.
    let connect_all = || (0..CONNECTIONS).map(|_| connect(&peer, &endpoint)).collect::<Vec<_>>();
    let first = connect_all();
    write_and_flush(&first[..TO_FILE]);
    drop(first);
    let before = holdings();
    let pairs = connect_all();
    write_and_flush(&pairs);
    let with_all = holdings();

    let ends = 2 * CONNECTIONS;
    let bytes = (with_all.bytes - before.bytes) / ends;
    let descriptors = (with_all.descriptors - before.descriptors).div_ceil(ends);
    let threads = ["rpma-soft", "rpma-soft-flush"].map(threads);
    println!("one end of a connection: {bytes} bytes, {descriptors} descriptors; threads that move data and flush: {threads:?}");
    assert!(bytes <= END_BYTES, "{bytes} bytes per end");
    assert!(descriptors <= END_DESCRIPTORS, "{descriptors} descriptors per end");
    assert_eq!(threads, [1, 1]);
    let kept = fs::read(&path).unwrap();
    for n in (0..CONNECTIONS).step_by(TO_FILE) {
        assert_eq!(kept[n * RECORD_BYTES..][..RECORD_BYTES], record(n), "record {n} in the file");
    }

    drop((pairs, kept));
    let after = holdings();
    assert_eq!(after.descriptors, before.descriptors);
    // Less than a byte per end: nothing of any is left.
    assert!(after.bytes < before.bytes + ends, "{before:?} before, {after:?} after");
}
