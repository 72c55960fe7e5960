//! What the tests share: the place under test, and two connected ends.

use std::any::type_name;
use std::env;
use std::fs;
use std::net::{IpAddr, SocketAddr};
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

/// The address under test. Everything listens there, on ports that the connection manager picks.
pub(crate) fn addr() -> IpAddr {
    variable("RPMA_TEST_ADDR").parse().expect("RPMA_TEST_ADDR is an IP address")
}

/// The provider under test.
pub(crate) fn provider() -> ProviderRef {
    if is_door() {
        return door();
    }
    if is_soft() && !soft_has_native_operations() {
        static PLAIN: OnceLock<ProviderRef> = OnceLock::new();
        let config = rpma::soft::SoftConfig::default().without_native_operations();
        return PLAIN.get_or_init(|| rpma::soft::Soft::with_config(config).unwrap()).clone();
    }
    let chosen: Provider = variable("RPMA_TEST_PROVIDER").parse().expect("RPMA_TEST_PROVIDER names a provider");
    chosen.open().expect("the provider under test opens")
}

pub(crate) fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: this suite needs a device; see CONTRIBUTING.md"))
}

/// The C functions that the door of the software provider exports, in the file `RPMA_TEST_DOOR`, under test as rdma-core's are.
fn door() -> ProviderRef {
    static DOOR: OnceLock<ProviderRef> = OnceLock::new();
    // The door has ears for its own variable only.
    let plain = env::var_os("RPMA_SOFT_NATIVE").is_some_and(|native| native == "off");
    assert_eq!(plain, !soft_has_native_operations(), "RPMA_SOFT_NATIVE says another thing than RPMA_TEST_NATIVE");
    let open = || rpma::sys::testing::exported_by("door", &variable("RPMA_TEST_DOOR")).expect("RPMA_TEST_DOOR is the door");
    DOOR.get_or_init(open).clone()
}

/// Whether that is what `RPMA_TEST_PROVIDER` says.
fn is_door() -> bool {
    variable("RPMA_TEST_PROVIDER") == "door"
}

/// Whether the software provider is under test, through its door or not.
pub(crate) fn is_soft() -> bool {
    variable("RPMA_TEST_PROVIDER") == "soft" || is_door()
}

/// `RPMA_TEST_NATIVE=off` tests the emulations on the software provider.
fn soft_has_native_operations() -> bool {
    env::var_os("RPMA_TEST_NATIVE").is_none_or(|native| native != "off")
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

/// As [`alone`], after `setup`, a shell script that may mount what it likes: nobody else sees it. That takes root.
pub(crate) fn alone_after<F: FnOnce()>(setup: &str, body: F) {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--", "sh", "-euc"]).arg(format!("{setup}\nexec \"$@\"")).arg("sh");
    alone_by(body, unshare);
}

/// `starter` runs the program that its further arguments say.
fn alone_by<F: FnOnce()>(body: F, mut starter: Command) {
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

/// The test that the closure `F` is written in: `suite::module::test::{{closure}}` without its ends.
pub(crate) fn name_of<F>() -> &'static str {
    let name = type_name::<F>();
    let name = name.strip_prefix("suite::").expect("a closure of this crate");
    name.split("::{{closure}}").next().expect("a split has a first part")
}

/// What the device under test is known to have, by another way than asking it: a wrong answer of [`Device::capabilities`] must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// Native flush and native atomic write.
    pub(crate) native_ops: bool,
    pub(crate) on_demand_paging: bool,
}

/// What the device under test has: the software provider, or the soft-RoCE of the running kernel.
pub(crate) fn known() -> Known {
    if is_soft() {
        let native = soft_has_native_operations();
        return Known { native_ops: native, on_demand_paging: native };
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    match version {
        (6, 1) => Known { native_ops: false, on_demand_paging: false },
        (6, 12) => Known { native_ops: true, on_demand_paging: false },
        (7.., _) => Known { native_ops: true, on_demand_paging: true },
        _ => panic!("nobody has said what soft-RoCE has on Linux {}: look, and add it here", release.trim()),
    }
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
