//! What the tests share: the place under test, and two connected ends.

use std::any::type_name;
use std::env;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::panic;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rpma::IncomingRequest;
use rpma::prelude::*;
use rpma::sys::ProviderRef;
use rpma::{CompletionError, OpMode, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than anything takes on a slow machine that works, so that a test that waits for it has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The test target that this is.
const TARGET: &str = env!("CARGO_CRATE_NAME");

/// The address under test. Everything listens there, on ports that the connection manager picks.
pub(crate) fn addr() -> IpAddr {
    variable("RPMA_TEST_ADDR", "127.0.0.1").parse().expect("RPMA_TEST_ADDR is an IP address")
}

/// An IPv6 address of the device under test.
pub(crate) fn addr6() -> Ipv6Addr {
    variable("RPMA_TEST_ADDR6", "::1").parse().expect("RPMA_TEST_ADDR6 is an IPv6 address")
}

/// The provider under test.
pub(crate) fn provider() -> ProviderRef {
    if provider_name() == "door" {
        return door();
    }
    if is_emulated() {
        static PLAIN: OnceLock<ProviderRef> = OnceLock::new();
        let config = rpma::soft::SoftConfig::default().without_native_operations();
        return PLAIN.get_or_init(|| rpma::soft::Soft::with_config(config).unwrap()).clone();
    }
    let chosen: Provider = provider_name().parse().expect("RPMA_TEST_PROVIDER names a provider");
    chosen.open().expect("the provider under test opens")
}

/// What the environment says, or else what is right for the software provider on any machine.
fn variable(name: &str, on_soft: &str) -> String {
    match env::var(name) {
        Ok(value) => value,
        Err(_) if TARGET == "kernel" => panic!("{name} is not set: these tests need a kernel's RDMA device; see CONTRIBUTING.md"),
        Err(_) => on_soft.to_owned(),
    }
}

fn provider_name() -> String {
    variable("RPMA_TEST_PROVIDER", "soft")
}

/// The file whose exported C functions are the provider under test; `None` for the software provider as it is.
pub(crate) fn exported_by() -> Option<String> {
    match provider_name().as_str() {
        "soft" => None,
        "door" => Some(door_file()),
        _ => Some("libibverbs.so.1".to_owned()),
    }
}

fn door_file() -> String {
    env::var("RPMA_TEST_DOOR").expect("RPMA_TEST_DOOR is the file of the door")
}

/// The C functions that the door of the software provider exports, in the file `RPMA_TEST_DOOR`, under test as rdma-core's are.
fn door() -> ProviderRef {
    static DOOR: OnceLock<ProviderRef> = OnceLock::new();
    // The door has ears for its own variable only.
    let plain = env::var_os("RPMA_SOFT_NATIVE").is_some_and(|native| native == "off");
    assert_eq!(plain, is_emulated(), "RPMA_SOFT_NATIVE=off belongs to the target suite_emulated, and to no other");
    DOOR.get_or_init(|| rpma::sys::testing::exported_by("door", &door_file()).expect("RPMA_TEST_DOOR is the door")).clone()
}

/// Whether the software provider is under test, through its door or not.
pub(crate) fn is_soft() -> bool {
    matches!(provider_name().as_str(), "soft" | "door")
}

/// How often something is repeated: a kernel's device is tested in an emulated machine, where it takes up to a hundred times as long.
pub(crate) fn times(on_soft: u64, on_a_kernel: u64) -> u64 {
    if is_soft() { on_soft } else { on_a_kernel }
}

/// Whether a software device without native operations is under test.
fn is_emulated() -> bool {
    let emulated = TARGET == "suite_emulated";
    assert!(!emulated || is_soft(), "{TARGET} is about the software provider, and RPMA_TEST_PROVIDER names another");
    emulated
}

/// The device under test.
pub(crate) fn device(provider: &ProviderRef) -> Device {
    Device::local(provider, &addr().to_string()).expect("RPMA_TEST_ADDR is on an RDMA device")
}

/// A peer on the device under test.
pub(crate) fn peer() -> Peer {
    peer_over(&provider())
}

/// A peer on the device under test, over a provider that stands in front of it.
pub(crate) fn peer_over(provider: &ProviderRef) -> Peer {
    Peer::new(&device(provider)).expect("a peer on the device under test")
}

/// An endpoint on a port that the connection manager picks, and its address.
pub(crate) fn listen(peer: &Peer) -> (Endpoint, SocketAddr) {
    let endpoint = Endpoint::listen(peer, (addr(), 0)).expect("listening on the address under test");
    let local = endpoint.local_addr().expect("a listening endpoint has an address");
    assert_ne!(local.port(), 0);
    (endpoint, local)
}

/// Connection parameters with time enough for a slow machine.
pub(crate) fn cfg() -> ConnCfg {
    ConnCfg::new().timeout(LIMIT)
}

/// Two ends of one connection, in one process.
pub(crate) struct Pair {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
}

impl Pair {
    /// A connection with default parameters.
    pub(crate) fn new() -> Self {
        let peer = peer();
        Self::connect(&peer, &cfg(), &peer, &cfg())
    }

    /// A connection between two peers, each with its own parameters.
    pub(crate) fn connect(client: &Peer, client_cfg: &ConnCfg, server: &Peer, server_cfg: &ConnCfg) -> Self {
        let (endpoint, addr) = listen(server);
        thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let request = endpoint.next_conn_req(server_cfg, LIMIT).unwrap();
                request.connect(&[]).unwrap().established(LIMIT).unwrap()
            });
            let request = ConnReq::new(client, addr, client_cfg).unwrap();
            let client = request.connect(&[]).unwrap().established(LIMIT).unwrap();
            Self { client, server: accepting.join().unwrap() }
        })
    }

    /// Both ends apply what a platform with direct write to persistent memory would say of itself.
    pub(crate) fn with_direct_write(self) -> Self {
        for (conn, other) in [(&self.client, &self.server), (&self.server, &self.client)] {
            conn.apply_remote_peer_cfg(other.peer().cfg().with_direct_write_to_pmem(true));
        }
        self
    }
}

/// The region as its peer knows it, by way of the descriptor's bytes.
pub(crate) fn remote<M: RegionOwner>(region: &LocalMr<M>) -> RemoteMr {
    RemoteMr::from_descriptor(&region.descriptor().to_bytes()).unwrap()
}

/// Waits for the next completion, which is of the request with `context` and successful.
pub(crate) fn complete(conn: &Conn, context: u64) -> Completion {
    let completion = conn.cq().wait(LIMIT).unwrap();
    completion.result().unwrap();
    assert_eq!(completion.context(), context);
    completion
}

/// Listens on `host`, which is `ip`, and connects to it, and both ends say so.
pub(crate) fn takes_connections(host: &str, ip: Ipv6Addr) {
    let provider = provider();
    let peer = Peer::new(&Device::local(&provider, host).unwrap()).unwrap();
    assert!(peer.device().is_same_as(&Device::remote(&provider, host, LIMIT).unwrap()));
    let endpoint = Endpoint::listen(&peer, (host, 0)).unwrap();
    let port = endpoint.local_addr().unwrap().port();
    assert_ne!(port, 0);
    let pending = ConnReq::new(&peer, (host, port), &cfg()).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    let server = accepting.established(LIMIT).unwrap();
    assert_eq!(client.peer_addr().map(|addr| (addr.ip(), addr.port())), Some((ip.into(), port)));
    assert_eq!(server.local_addr().map(|addr| (addr.ip(), addr.port())), Some((ip.into(), port)));
    still_works(&Pair { client, server });
}

/// A client's request that has reached the endpoint, as both sides have it: neither accepted nor rejected.
pub(crate) fn request(client: &Peer, endpoint: &Endpoint, private_data: &[u8]) -> (PendingConn, IncomingRequest) {
    let addr = endpoint.local_addr().expect("a listening endpoint has an address");
    let pending = ConnReq::new(client, addr, &cfg()).unwrap().connect(private_data).unwrap();
    (pending, endpoint.next_request(LIMIT).unwrap())
}

/// Runs `body` on a thread of its own, and fails if it takes longer than anything takes that works: a hang becomes a failure.
pub(crate) fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    in_time_or(String::new, body)
}

/// As [`in_time`], with something to say about the failure.
pub(crate) fn in_time_or<T: Send + 'static>(hint: impl FnOnce() -> String, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let running = thread::spawn(move || done.send(body()));
    match result.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("still running after {LIMIT:?} {}", hint()),
        // The sender is gone without a result: the body panicked.
        Err(RecvTimeoutError::Disconnected) => match running.join() {
            Err(panicked) => panic::resume_unwind(panicked),
            Ok(_) => unreachable!("the body returned, and its result was received"),
        },
    }
}

/// Runs `body`, a closure of the calling test, in a process in which nothing else runs: what it measures or changes about its process
/// is then its own. The process is this program again, told to run this one test.
pub(crate) fn alone<F: FnOnce()>(body: F) {
    alone_by(body, Command::new("env"));
}

/// As [`alone`], by a command that runs the program which its further arguments say.
pub(crate) fn alone_by<F: FnOnce()>(body: F, mut starter: Command) {
    const ALONE: &str = "RPMA_TEST_ALONE";
    let test = name_of::<F>();
    if env::var(ALONE).as_deref() == Ok(test) {
        return body();
    }
    let again = this_test_again(test);
    let output = starter.arg(again.get_program()).args(again.get_args()).env(ALONE, test).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    // A wrong name would run nothing, and succeed.
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{test}, alone: {}\n{told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// This program, told to run one test.
pub(crate) fn this_test_again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    command
}

/// The test that the closure `F` is written in: `target::module::test::{{closure}}` without its ends.
pub(crate) fn name_of<F>() -> &'static str {
    let name = type_name::<F>();
    let name = name.strip_prefix(TARGET).and_then(|name| name.strip_prefix("::")).expect("a closure of this crate");
    name.split("::{{closure}}").next().expect("a split has a first part")
}

/// What the device under test is known to have, by another way than asking it: a wrong answer of [`Device::capabilities`] must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// Native flush and native atomic write.
    pub(crate) native_ops: bool,
    pub(crate) on_demand_paging: bool,
    /// What becomes of files on disks.
    pub(crate) files: Files,
    /// Whether advice on a region reaches the memory.
    pub(crate) advice: bool,
    /// Whether the end of a connection on a shared receive queue is an event of the device.
    pub(crate) last_receive_event: bool,
}

/// How a device takes files that are neither on persistent memory nor on tmpfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    /// Any, for reading and for writing: it pins nothing.
    All,
    /// Those that are mapped for writing: Linux before 6.2 pins for writing, whatever is asked.
    ForWriting,
    /// Those that are only read: since Linux 6.5, pages of a file are not pinned for writing.
    ForReading,
}

/// What the device under test has: the software provider, or the soft-RoCE of the running kernel.
pub(crate) fn known() -> Known {
    if is_soft() {
        let native = !is_emulated();
        return Known {
            native_ops: native,
            on_demand_paging: native,
            files: Files::All,
            advice: native,
            last_receive_event: true,
        };
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    // Soft-RoCE's half in rdma-core passes no advice on, whatever its kernel could do with it.
    let native =
        Known { native_ops: true, on_demand_paging: false, files: Files::ForReading, advice: false, last_receive_event: true };
    match version {
        (6, 1) => Known { native_ops: false, files: Files::ForWriting, last_receive_event: false, ..native },
        (6, 12) => native,
        (7.., _) => Known { on_demand_paging: true, ..native },
        _ => panic!("nobody has said what soft-RoCE has on Linux {}: look, and add it here", release.trim()),
    }
}

/// The devices that there are, sorted.
pub(crate) fn device_names() -> Vec<String> {
    if is_soft() {
        return vec!["soft0".to_owned()];
    }
    let entries = fs::read_dir("/sys/class/infiniband").unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The ways that flushes and atomic writes can be made on the device under test.
pub(crate) fn op_modes() -> &'static [OpMode] {
    if known().native_ops { &[OpMode::Native, OpMode::Emulated] } else { &[OpMode::Emulated] }
}

/// A region of anonymous memory, zeroed.
pub(crate) fn region(peer: &Peer, len_bytes: usize, usage: Usage) -> LocalMr<AnonPages> {
    peer.register(AnonPages::new(len_bytes).unwrap(), usage).unwrap()
}

/// A copy of some bytes of a region.
pub(crate) fn bytes<M: RegionOwner>(region: &LocalMr<M>, offset_bytes: usize, len_bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; len_bytes];
    region.read_at(offset_bytes, &mut copy).unwrap();
    copy
}

/// The region as its descriptor would tell it with another usage: what only our own side's checks look at.
pub(crate) fn with_usage(region: RemoteMr, usage: Usage) -> RemoteMr {
    MrDescriptor::new(region.addr(), region.len_bytes(), region.rkey(), usage).unwrap().into()
}

/// Waits for a receive, which is the one with `context` and successful.
pub(crate) fn received(conn: &Conn, context: u64) -> Received {
    complete(conn, context).received().unwrap().expect("a receive")
}

/// Waits for the next completion, which is of the request with `context` and failed.
pub(crate) fn failed(conn: &Conn, context: u64) -> CompletionError {
    let completion = conn.cq().wait(LIMIT).unwrap();
    assert_eq!(completion.context(), context, "{completion:?}");
    // A failed completion shows no length, to whichever question.
    let error = completion.result().expect_err("a failed completion");
    assert_eq!(completion.received(), Err(error));
    assert_eq!((error.context, error.operation), (context, completion.operation()));
    error
}

/// The connection transfers in both directions: whatever happened before has not hurt it. Nothing else is outstanding.
pub(crate) fn still_works(pair: &Pair) {
    let Pair { client, server } = pair;
    for (from, to) in [(client, server), (server, client)] {
        let source = region(from.peer(), 8, Usage::WRITE_SRC);
        let target = region(to.peer(), 8, Usage::WRITE_DST);
        source.write_at(0, b"it works").unwrap();
        from.write(remote(&target).all(), source.all(), Signal::Always, 0xA11_600D).unwrap();
        complete(from, 0xA11_600D);
        assert_eq!(bytes(&target, 0, 8), b"it works");
        assert_eq!(from.cq().poll().unwrap(), None);
        assert_eq!(to.cq().poll().unwrap(), None);
    }
}

/// Waits until there is something to read from `object`.
pub(crate) fn readable(object: &impl AsFd) {
    assert!(is_readable(object, LIMIT), "nothing to read after {LIMIT:?}");
}

/// Whether there is something to read from `object` within `limit`.
pub(crate) fn is_readable(object: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(object, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

/// Sets its flag when it is dropped, by a panic too: whoever works until then never works for ever.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
