//! Persistent flushes: what accepts them, and what becomes of a file that is truncated under its mapping.
#![expect(unsafe_code, reason = "maps files and registers them, as the crates above do")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rpma_soft::Soft;
use rpma_sys::bindings::*;
use rpma_sys::owned::{CmEventKind, CmId, ConnParam, Context, Cq, EventChannel, Mr, Pd, Qp, QpCap, QpRequest, SendOptions};
use support::{LIMIT, completions, event};
use tempfile::NamedTempFile;

const PERSISTENT: u8 = 2;
const FLUSHED: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_FLUSH_PERSISTENT;

/// A mapping, until the process ends.
fn map(file: Option<&File>, len: usize) -> NonNull<u8> {
    let (flags, fd) = file.map_or((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1), |file| (libc::MAP_SHARED, file.as_raw_fd()));
    // SAFETY: a new mapping, of our choosing in nothing but its length.
    let addr = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    NonNull::new(addr.cast()).unwrap()
}

/// A file where tests are built, which has to be on a disk: a memory file system keeps nothing.
fn file(len: u64) -> NamedTempFile {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(len).unwrap();
    file
}

struct End {
    channel: Arc<EventChannel>,
    qp: Qp,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
}

fn prepare(context: &Arc<Context>, id: CmId, channel: Arc<EventChannel>) -> End {
    let id = Arc::new(id);
    let pd = Pd::alloc(context).unwrap();
    let cq = Cq::create(context, 16, 0).unwrap();
    let cap = QpCap { send_wr: 8, recv_wr: 8, send_sge: 1, recv_sge: 1, inline_bytes: 8 };
    let request = QpRequest { cap, native_flush: true, native_atomic_write: true };
    let qp = Qp::create(&id, &pd, &cq, &cq, None, request).unwrap();
    End { channel, qp, cq, pd }
}

fn pair() -> (End, End) {
    let provider = Soft::open().unwrap();
    let context = Context::list(&provider).unwrap().remove(0);
    let listening = EventChannel::create(&provider).unwrap();
    let listener = CmId::create(&listening).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let channel = EventChannel::create(&provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.resolve_addr(listener.local_addr().unwrap(), LIMIT).unwrap();
    event(&channel);
    id.resolve_route(LIMIT).unwrap();
    event(&channel);
    let client = prepare(&context, id, channel);
    let param =
        ConnParam { private_data: &[], responder_resources: 255, initiator_depth: 255, retry_count: 7, rnr_retry_count: 7 };
    client.qp.id().connect(param).unwrap();
    let mut id = event(&listening).new_id.unwrap();
    let channel = EventChannel::create(&provider).unwrap();
    id.migrate(&channel).unwrap();
    let server = prepare(&context, id, channel);
    server.qp.id().accept(param).unwrap();
    assert_eq!(event(&client.channel).kind, CmEventKind::Established);
    assert_eq!(event(&server.channel).kind, CmEventKind::Established);
    (client, server)
}

fn register(pd: &Arc<Pd>, addr: NonNull<u8>, len: usize, access: u32) -> std::io::Result<Mr> {
    // SAFETY: mapped for the life of the process, and no reference into it exists.
    unsafe { Mr::register(pd, addr, len, access) }
}

fn flush(client: &End, addr: NonNull<u8>, mr: &Mr, len: usize) -> u32 {
    let options = SendOptions { wr_id: 1, signaled: true, fence: false };
    client.qp.post_flush(addr.addr().get() as u64, mr.rkey(), len, false, PERSISTENT, options).unwrap();
    completions(&client.cq, 1)[0].1
}

#[test]
fn memory_that_keeps_nothing_does_not_accept_persistent_flush() {
    let context = Context::list(&Soft::open().unwrap()).unwrap().remove(0);
    let pd = Pd::alloc(&context).unwrap();
    let anonymous = map(None, 4096);
    assert_eq!(register(&pd, anonymous, 4096, FLUSHED).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let volatile = tempfile::tempfile_in("/dev/shm").unwrap();
    volatile.set_len(4096).unwrap();
    assert_eq!(register(&pd, map(Some(&volatile), 4096), 4096, FLUSHED).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    register(&pd, anonymous, 4096, FLUSHED & !IBV_ACCESS_FLUSH_PERSISTENT).unwrap();
}

#[test]
fn file_accepts_persistent_flush_and_is_still_read_by_others() {
    let (client, server) = pair();
    let file = file(3 * 4096);
    let addr = map(Some(file.as_file()), 3 * 4096);
    let mr = register(&server.pd, addr, 3 * 4096, FLUSHED).unwrap();
    let options = SendOptions { wr_id: 2, ..SendOptions::default() };
    let there = addr.addr().get() as u64 + 5000;
    client.qp.post_atomic_write(there & !7, mr.rkey(), *b"durable!", options).unwrap();
    assert_eq!(flush(&client, addr, &mr, 3 * 4096), IBV_WC_SUCCESS);
    let mut bytes = Vec::new();
    file.as_file().read_to_end(&mut bytes).unwrap();
    assert_eq!(&bytes[5000..5008], b"durable!");
}

#[test]
fn flush_of_a_file_that_was_truncated_fails_and_kills_nobody() {
    let (client, server) = pair();
    let file = file(2 * 4096);
    let addr = map(Some(file.as_file()), 2 * 4096);
    let mr = register(&server.pd, addr, 2 * 4096, FLUSHED).unwrap();
    assert_eq!(flush(&client, addr, &mr, 2 * 4096), IBV_WC_SUCCESS);
    file.as_file().set_len(4096).unwrap();
    assert_eq!(flush(&client, addr, &mr, 4096), IBV_WC_SUCCESS);
    assert_eq!(flush(&client, addr, &mr, 4097), IBV_WC_REM_OP_ERR);
}

#[test]
fn atomic_write_to_a_file_that_was_truncated_fails_and_kills_nobody() {
    let (client, server) = pair();
    let file = file(4096);
    let addr = map(Some(file.as_file()), 4096);
    let mr = register(&server.pd, addr, 4096, FLUSHED).unwrap();
    file.as_file().set_len(0).unwrap();
    let options = SendOptions { wr_id: 3, signaled: true, fence: false };
    client.qp.post_atomic_write(addr.addr().get() as u64, mr.rkey(), [1; 8], options).unwrap();
    assert_eq!(completions(&client.cq, 1), [(3, IBV_WC_REM_OP_ERR)]);
}
