//! A bug of ours, which is a panic: the connection that it happens on is over, and everything else goes on. What panics here is the log,
//! at a message that is written deep inside, while a connection is handled.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/stranger.rs"]
mod stranger;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use rpma_soft::Soft;
use rpma_soft::wire::CmFrame;
use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;
use rpma_sys::owned::{
    CmEvent, CmEventKind, CmId, ConnParam, Context, Cq, EventChannel, Pd, Qp, QpCap, QpRequest, SendOp, SendOptions,
};
use stranger::{accepted, ask, send};

const LIMIT: Duration = Duration::from_secs(20);

/// Panics when it is told of a damaged stream or of a queue that overflowed, and counts what it is told of bugs.
struct Fragile {
    bugs: AtomicUsize,
}

static LOG: Fragile = Fragile { bugs: AtomicUsize::new(0) };

impl Log for Fragile {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        assert!(!text.contains("stream is damaged") && !text.contains("overflowed"), "as a bug of ours would");
        if record.level() == Level::Error && text.contains("as a bug of ours would") {
            self.bugs.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

/// Until there is something.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "no {what}");
        std::thread::yield_now();
    }
}

fn event(channel: &Arc<EventChannel>) -> CmEvent {
    until("event", || channel.get_event().unwrap())
}

const PARAM: ConnParam<'_> =
    ConnParam { private_data: &[], responder_resources: 255, initiator_depth: 255, retry_count: 7, rnr_retry_count: 7 };

/// One end of a connection, with a queue of its own.
struct End {
    channel: Arc<EventChannel>,
    qp: Qp,
    cq: Arc<Cq>,
}

impl End {
    fn new(context: &Arc<Context>, id: CmId, channel: Arc<EventChannel>, cqe: i32) -> Self {
        let pd = Pd::alloc(context).unwrap();
        let cq = Cq::create(context, cqe, 0).unwrap();
        let cap = QpCap { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
        let request = QpRequest { cap, native_flush: false, native_atomic_write: false };
        let qp = Qp::create(&Arc::new(id), &pd, &cq, &cq, None, request).unwrap();
        Self { channel, qp, cq }
    }

    /// Takes a request.
    fn requested(context: &Arc<Context>, listening: &Arc<EventChannel>, provider: &ProviderRef, cqe: i32) -> Self {
        let mut id = event(listening).new_id.unwrap();
        let channel = EventChannel::create(provider).unwrap();
        id.migrate(&channel).unwrap();
        Self::new(context, id, channel, cqe)
    }

    /// The number and the status of the next completion.
    fn completion(&self) -> (u64, u32) {
        let mut wc = [ibv_wc::default()];
        until("completion", || (self.cq.poll(&mut wc).unwrap() == 1).then_some((wc[0].wr_id, wc[0].status)))
    }
}

/// Both ends of a connection on which nothing goes wrong.
struct Good {
    client: End,
    server: End,
}

impl Good {
    fn exchange(&self, wr_id: u64) {
        let Self { client, server } = self;
        server.qp.post_recv(&[], wr_id).unwrap();
        client.qp.post_send(SendOp::Send, &[], SendOptions { wr_id, signaled: true, fence: false }).unwrap();
        assert_eq!(client.completion(), (wr_id, IBV_WC_SUCCESS));
        assert_eq!(server.completion(), (wr_id, IBV_WC_SUCCESS));
    }
}

/// A listener, and a good connection to it.
struct Scene {
    provider: ProviderRef,
    context: Arc<Context>,
    listening: Arc<EventChannel>,
    _listener: CmId,
    addr: SocketAddr,
    good: Good,
}

impl Scene {
    fn new() -> Self {
        let provider = Soft::open().unwrap();
        let context = Context::list(&provider).unwrap().remove(0);
        let listening = EventChannel::create(&provider).unwrap();
        let listener = CmId::create(&listening).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap();
        let channel = EventChannel::create(&provider).unwrap();
        let id = CmId::create(&channel).unwrap();
        id.resolve_addr(addr, LIMIT).unwrap();
        event(&channel);
        id.resolve_route(LIMIT).unwrap();
        event(&channel);
        let client = End::new(&context, id, channel, 16);
        client.qp.id().connect(PARAM).unwrap();
        let server = End::requested(&context, &listening, &provider, 16);
        server.qp.id().accept(PARAM).unwrap();
        assert_eq!(event(&client.channel).kind, CmEventKind::Established);
        assert_eq!(event(&server.channel).kind, CmEventKind::Established);
        Self { provider, context, listening, _listener: listener, addr, good: Good { client, server } }
    }

    /// An end with the receives 10 and 11 posted, and its peer, whose stream is damaged just now.
    fn struck(&self, cqe: i32) -> (End, TcpStream) {
        let mut stranger = ask(self.addr);
        let struck = End::requested(&self.context, &self.listening, &self.provider, cqe);
        struck.qp.post_recv(&[], 10).unwrap();
        struck.qp.post_recv(&[], 11).unwrap();
        struck.qp.id().accept(PARAM).unwrap();
        accepted(&mut stranger);
        send(&mut stranger, CmFrame::Ready);
        assert_eq!(event(&struck.channel).kind, CmEventKind::Established);
        // No frame begins so.
        stranger.write_all(&[0xEE; 300]).unwrap();
        (struck, stranger)
    }
}

/// One test at a time, with the log that panics.
fn with_fragile_log() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&LOG).unwrap();
        log::set_max_level(LevelFilter::Trace);
    });
    let guard = ONE.lock().unwrap();
    LOG.bugs.store(0, Ordering::SeqCst);
    guard
}

#[test]
fn panic_on_one_connection_ends_that_one_and_no_other() {
    let _alone = with_fragile_log();
    let scene = Scene::new();
    scene.good.exchange(1);
    for round in 1..=3 {
        let (struck, mut stranger) = scene.struck(16);
        assert_eq!(event(&struck.channel).kind, CmEventKind::Disconnected);
        assert_eq!([struck.completion(), struck.completion()], [(10, IBV_WC_WR_FLUSH_ERR), (11, IBV_WC_WR_FLUSH_ERR)]);
        assert_eq!(LOG.bugs.load(Ordering::SeqCst), round, "told as a bug, once");
        // The other end learns it from the end of the stream.
        let _ = stranger.read_to_end(&mut Vec::new());
        scene.good.exchange(2);
    }
}

#[test]
fn second_panic_while_the_work_is_flushed_loses_that_work_and_nothing_else() {
    let _alone = with_fragile_log();
    let scene = Scene::new();
    // With room for one completion: the second makes it overflow, and the log panics once more.
    let (struck, _stranger) = scene.struck(1);
    assert_eq!(event(&struck.channel).kind, CmEventKind::Disconnected);
    assert_eq!(struck.completion(), (10, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(struck.cq.poll(&mut [ibv_wc::default()]).unwrap(), 0);
    assert!(struck.qp.post_recv(&[], 12).is_err());
    assert_eq!(LOG.bugs.load(Ordering::SeqCst), 2);
    drop(struck);
    scene.good.exchange(1);
}
