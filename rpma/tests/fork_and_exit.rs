//! `fork(2)` and `exit(3)` at any instant: while other threads of the process, the software provider's own among them, hold its locks.
//! What a child may do in peace and quiet is in the integration suite (`suite/fork.rs`).
#![expect(unsafe_code, reason = "fork(2), exit(3) and atexit(3)")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use rpma::OpPath;
use rpma::prelude::*;
use rpma::soft::Soft;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal as Kill, WaitOptions, kill_process, pidfd_open, waitpid};

/// Longer than anything takes on a slow machine that works.
const LIMIT: Duration = Duration::from_secs(60);
/// Which test a process is started for.
const CHILD_OF: &str = "RPMA_TEST_CHILD_OF";

/// Two ends of a connection, with a file that one writes and flushes to.
struct Pair {
    client: Conn,
    server: Conn,
    endpoint: Endpoint,
    source: LocalMr<AnonPages>,
    target: LocalMr<MappedFile>,
    _dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        let peer = Peer::new(&Device::local(&Soft::open().unwrap(), "127.0.0.1").unwrap()).unwrap();
        let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0)).unwrap();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let target = MappedFile::create(dir.path().join("file"), 4096).unwrap();
        let target = peer.register(target, Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT).unwrap();
        let source = peer.register(AnonPages::new(4096).unwrap(), Usage::WRITE_SRC).unwrap();
        let (client, server) = connect(&peer, &endpoint);
        Self { client, server, endpoint, source, target, _dir: dir }
    }

    fn write_and_flush(&self) {
        let far = RemoteMr::from_descriptor(&self.target.descriptor().to_bytes()).unwrap();
        self.client.write(far.all(), self.source.all(), Signal::OnError, 1).unwrap();
        self.client.flush(far.all(), FlushType::Persistent, Signal::Always, 2).unwrap();
        self.client.cq().wait(LIMIT).unwrap().result().unwrap();
    }
}

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

/// Keeps all of the provider's locks busy until `stop`: one thread writes and flushes, and one connects and disconnects. Returns when each
/// has done so once.
fn keep_busy(pair: &Arc<Pair>, stop: &Arc<AtomicBool>) -> [thread::JoinHandle<()>; 2] {
    let start = |work: fn(&Pair)| {
        let (done, once) = mpsc::channel();
        let (pair, stop) = (Arc::clone(pair), Arc::clone(stop));
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work(&pair);
                // Only the first is waited for.
                let _ = done.send(());
            }
        });
        once.recv_timeout(LIMIT).unwrap();
        thread
    };
    [
        start(Pair::write_and_flush),
        start(|pair| {
            let ends = connect(pair.server.peer(), &pair.endpoint);
            let region = pair.server.peer().register(AnonPages::new(4096).unwrap(), Usage::RECV).unwrap();
            drop((ends, region));
        }),
    ]
}

/// This program again, for this test.
fn again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD_OF, test).stdin(Stdio::null());
    command
}

fn is_child_of(test: &str) -> bool {
    env::var(CHILD_OF).as_deref() == Ok(test)
}

#[derive(Debug, Clone, Copy)]
enum End {
    /// `_exit(2)`: at once.
    AtOnce,
    /// `exit(3)`, with all that this runs.
    Orderly,
    /// That too, when what the child inherited is dropped.
    Dropped,
}

/// Forks; the child ends as `end` says, and has to come to its end.
fn fork_and_end(end: End, mine: &mut Option<(Conn, Conn, LocalMr<AnonPages>)>) {
    // SAFETY: the child takes no lock of this program's but those of what it drops, which no other thread uses: that it ends is what is
    // tested here. (The C library takes care of its own locks.)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        if let End::Dropped = end {
            drop(mine.take());
        }
        match end {
            // SAFETY: ends the child, and nothing runs behind it.
            End::AtOnce => unsafe { libc::_exit(7) },
            // SAFETY: the child's only thread calls it, once.
            End::Orderly | End::Dropped => unsafe { libc::exit(7) },
        }
    }
    let child = Pid::from_raw(pid).unwrap();
    let ended = pidfd_open(child, PidfdFlags::empty()).unwrap();
    let limit = Timespec::try_from(LIMIT).unwrap();
    if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)).unwrap() == 0 {
        kill_process(child, Kill::KILL).unwrap();
        panic!("the child hangs: {end:?}");
    }
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(7), "{end:?}: {status:?}");
}

#[test]
fn child_forked_while_locks_are_held_ends_and_its_parent_s_connections_go_on() {
    const TEST: &str = "child_forked_while_locks_are_held_ends_and_its_parent_s_connections_go_on";
    const FORKS: usize = 300;
    if !is_child_of(TEST) {
        // In a process in which nothing else runs.
        let output = again(TEST).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && told.contains("1 passed"),
            "{}: {told}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let pair = Arc::new(Pair::new());
    let (client, server) = connect(pair.server.peer(), &pair.endpoint);
    let region = pair.server.peer().register(AnonPages::new(4096).unwrap(), Usage::RECV).unwrap();
    let mut mine = Some((client, server, region));
    let stop = Arc::new(AtomicBool::new(false));
    let threads = keep_busy(&pair, &stop);
    for n in 0..FORKS {
        fork_and_end([End::AtOnce, End::Orderly, End::Dropped][n % 3], &mut mine);
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    pair.write_and_flush();
    let (client, server, region) = mine.unwrap();
    server.recv(region.slice(0..8).unwrap(), 1).unwrap();
    client.send(LocalSlice::null(), Signal::Always, 2).unwrap();
    for (conn, context) in [(&client, 2), (&server, 1)] {
        let completion = conn.cq().wait(LIMIT).unwrap();
        completion.result().unwrap();
        assert_eq!(completion.context(), context);
    }
}

#[test]
fn exit_while_other_threads_use_connections_runs_the_handlers_and_crashes_nothing() {
    const TEST: &str = "exit_while_other_threads_use_connections_runs_the_handlers_and_crashes_nothing";
    const EXITS: usize = 20;
    extern "C" fn handler() {
        println!("the handler ran");
    }
    if is_child_of(TEST) {
        // SAFETY: a function of this program, which unwinds nowhere.
        assert_eq!(unsafe { libc::atexit(handler) }, 0);
        let pair = Arc::new(Pair::new());
        let _threads = keep_busy(&pair, &Arc::new(AtomicBool::new(false)));
        let names =
            fs::read_dir("/proc/self/task").unwrap().map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
        assert_eq!(names.filter(|name| name.starts_with("rpma-soft")).count(), 2, "both threads of the provider live");
        // SAFETY: no other thread calls it.
        unsafe { libc::exit(7) };
    }
    for n in 0..EXITS {
        let output = again(TEST).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.code() == Some(7) && told.contains("the handler ran"),
            "exit {n}: {}, signal {:?}: {told}{}",
            output.status,
            output.status.signal(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
