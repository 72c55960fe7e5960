//! The software provider between two machines: two processes, each in a network namespace of its own, with a cable (a pair of veth
//! devices) between them that is pulled out in the middle of the work. And on a machine with two cables, on which addresses are the same.
//!
//! Making namespaces takes root and iproute2, so an ordinary run tells this test as ignored; with `--ignored` and without them it fails.
//! A namespace goes away with the processes in it, and the cable with the namespace; the processes end when whoever started them does.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

use rpma::prelude::*;
use rpma::soft::{Soft, SoftConfig};
use rpma::sys::bindings::IBV_WC_RETRY_EXC_ERR;
use rpma::{CompletionError, EventError, OpPath};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;

const CABLE_OUT: &str = "cable_pulled_out_ends_both_sides_in_time_and_leaves_nothing";
const LINK_LOCAL: &str = "link_local_addresses_connect_through_the_interface_of_their_scope";
/// Which machine a process is.
const MACHINE: &str = "RPMA_TEST_MACHINE";

/// Longer than anything takes on a slow machine that works.
const LIMIT: Duration = Duration::from_secs(30);
/// What a slow machine may be late by.
const LATE: Duration = Duration::from_secs(2);

const ACK_TIMEOUT: Duration = Duration::from_millis(250);
/// `SoftConfig::ack_timeout`: for each of the 7 retries that `rpma` asks for, and once more.
const RETRY_TIME: Duration = Duration::from_millis(250 * 8);
/// `SoftConfig::vanished_after`.
const VANISHED_AFTER: Duration = Duration::from_secs(3);

const WRITES: u64 = 1_000;
/// So large that all of them together take a second or so, and the cable is out long before.
const WRITE_BYTES: usize = 4 << 20;
const RECORD: &[u8] = b"flushed by another machine";

const NEAR: &str = "10.77.0.1";
const FAR: &str = "10.77.0.2";

fn peer(addr: &str) -> Peer {
    let mut config = SoftConfig::default();
    config.ack_timeout = ACK_TIMEOUT;
    config.vanished_after = VANISHED_AFTER;
    Peer::new(&Device::local(&Soft::with_config(config).unwrap(), addr).unwrap()).unwrap()
}

fn cfg() -> ConnCfg {
    ConnCfg::new().timeout(LIMIT).sq_size(u32::try_from(WRITES).unwrap()).cq_size(u32::try_from(WRITES).unwrap() + 1)
}

fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().expect("`ip` of iproute2 is installed");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What a process holds: descriptors, threads, and resident memory that is of no file.
#[derive(Debug, Clone, Copy)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    anonymous_kib: usize,
}

impl Holdings {
    fn now() -> Self {
        let count = |dir: &str| fs::read_dir(dir).unwrap().count();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("`proc(5)` has it");
        let anonymous_kib = anonymous.split_whitespace().next().unwrap().parse().unwrap();
        Self { descriptors: count("/proc/self/fd"), threads: count("/proc/self/task"), anonymous_kib }
    }

    /// Fails if the process holds more than before. Memory comes and goes a little, and a thread that was waited for is in the list for
    /// a moment more.
    fn are_again(before: Self) {
        let start = Instant::now();
        loop {
            let now = Self::now();
            let objects = |holdings: Self| (holdings.descriptors, holdings.threads);
            if objects(now) == objects(before) && now.anonymous_kib < before.anonymous_kib + 512 {
                return;
            }
            assert!(start.elapsed() < LATE, "{before:?} before, {now:?} now");
            thread::yield_now();
        }
    }
}

/// This program, told to run `test` as `machine`, in a network namespace of its own. It ends when it is left alone.
fn machine(test: &str, machine: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--kill-child", "--"]).arg(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env(MACHINE, machine);
    command
}

// ---- the target ----

/// Takes two connections at a time, and tells of the end of each: which of the two, in the order that they were asked for.
fn target() {
    println!("@{}", std::process::id());
    let mut told = std::io::stdin().lines();
    let mut next = move || told.next().expect("the other machine lives").unwrap();
    assert_eq!(next(), "plugged in");
    ip(&format!("addr add {FAR}/24 dev far"));
    ip("link set far up");
    let peer = peer(FAR);
    let path = next();
    let file = peer.register(MappedFile::open(&path).unwrap(), Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT).unwrap();
    let endpoint = Endpoint::listen(&peer, (FAR, 0)).unwrap();
    println!("@{}", endpoint.local_addr().unwrap().port());
    let descriptor = file.descriptor().to_bytes();
    let mut before = None;
    for _ in Round::ALL {
        let accept = || endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&descriptor).unwrap().established(LIMIT).unwrap();
        let conns = [accept(), accept()];
        tell_of_the_ends(&conns);
        drop(conns);
        Holdings::are_again(*before.get_or_insert_with(Holdings::now));
        println!("@gone");
    }
    assert_eq!(next(), "done");
}

fn tell_of_the_ends(conns: &[Conn; 2]) {
    let limit = Timespec::try_from(LIMIT).unwrap();
    let mut open = vec![0, 1];
    while !open.is_empty() {
        let mut fds: Vec<_> = open.iter().map(|&n| PollFd::new(&conns[n], PollFlags::IN)).collect();
        assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "{open:?} did not end");
        open.retain(|&n| match conns[n].next_event(Wait::Now) {
            Ok(ConnEvent::Closed) => {
                println!("@{n}");
                false
            }
            Err(EventError::NoEvent) => true,
            other => panic!("{other:?} on connection {n}"),
        });
    }
}

/// The target, as the initiator has it.
struct Target {
    process: Child,
    told: BufReader<ChildStdout>,
    tell: ChildStdin,
}

impl Target {
    fn start() -> Self {
        let mut process = machine(CABLE_OUT, "target").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(process.stdout.take().unwrap());
        let tell = process.stdin.take().unwrap();
        Self { process, told, tell }
    }

    /// What it says next. The harness of tests says other things.
    fn next(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.told.read_line(&mut line).unwrap(), 0, "the target is gone");
            if let Some((_, said)) = line.trim_end().split_once('@') {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self, text: &str) {
        writeln!(self.tell, "{text}").unwrap();
    }

    /// Waits until it says that both its connections ended, and that nothing is left of them. Returns when each ended.
    fn both_ended(&mut self) -> [Instant; 2] {
        let ended = [(); 2].map(|()| (self.next(), Instant::now()));
        assert_eq!(self.next(), "gone");
        let of = |n: &str| ended.iter().find(|(said, _)| said == n).unwrap_or_else(|| panic!("{ended:?} without {n}")).1;
        [of("0"), of("1")]
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _ = self.process.wait();
    }
}

// ---- the initiator ----

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Makes whatever is made once.
    First,
    CableOut,
    CableInAgain,
}

impl Round {
    const ALL: [Self; 3] = [Self::First, Self::CableOut, Self::CableInAgain];
}

/// The near end of the cable.
struct Cable {
    /// A running `ip`, so that the cable is out within a moment.
    process: Child,
    commands: ChildStdin,
    shown: BufReader<ChildStdout>,
}

impl Cable {
    fn plug_in(target_pid: &str) -> Self {
        ip(&format!("link add near type veth peer name far netns {target_pid}"));
        ip(&format!("addr add {NEAR}/24 dev near"));
        ip("link set near up");
        let mut ip = Command::new("ip");
        let mut process = ip.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = process.stdin.take().unwrap();
        let shown = BufReader::new(process.stdout.take().unwrap());
        Self { process, commands, shown }
    }

    fn pull_out(&mut self) {
        writeln!(self.commands, "link set near down").unwrap();
    }

    fn plug_in_again(&mut self) {
        writeln!(self.commands, "link set near up").unwrap();
        // Done when the next is: one after the other.
        writeln!(self.commands, "addr show dev near").unwrap();
        let mut shown = String::new();
        while !shown.contains(NEAR) {
            assert_ne!(self.shown.read_line(&mut shown).unwrap(), 0, "`ip` has ended: {shown}");
        }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Initiator {
    peer: Peer,
    source: LocalMr<AnonPages>,
    port: u16,
}

impl Initiator {
    fn connect(&self) -> (Conn, RemoteMr) {
        let request = ConnReq::new(&self.peer, (FAR, self.port), &cfg()).unwrap();
        let conn = request.connect(&[]).unwrap().established(LIMIT).unwrap();
        // What a platform with direct write to persistent memory would say of itself.
        conn.apply_remote_peer_cfg(self.peer.cfg().with_direct_write_to_pmem(true));
        assert_eq!(conn.flush_path(), OpPath::Native);
        let far = RemoteMr::from_descriptor(conn.private_data()).unwrap();
        (conn, far)
    }

    /// Writes and flushes a record, and finds it in the target's file.
    fn write_and_flush(&self, conn: &Conn, far: RemoteMr, path: &str, mark: u8) {
        let record = [RECORD, &[mark]].concat();
        self.source.write_at(0, &record).unwrap();
        let there = far.slice_at(0, record.len() as u64).unwrap();
        conn.write(there, self.source.slice(0..record.len()).unwrap(), Signal::OnError, 1).unwrap();
        conn.flush(there, FlushType::Persistent, Signal::Always, 2).unwrap();
        let completion = conn.cq().wait(LIMIT).unwrap();
        completion.result().unwrap();
        assert_eq!(completion.context(), 2);
        assert_eq!(fs::read(path).unwrap()[..record.len()], record);
    }
}

fn initiator() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("memory").into_os_string().into_string().unwrap();
    drop(MappedFile::create(&path, WRITE_BYTES).unwrap());
    let mut target = Target::start();
    let mut cable = Cable::plug_in(&target.next());
    target.tell("plugged in");
    target.tell(&path);
    let port = target.next().parse().unwrap();
    let peer = peer(NEAR);
    let source = peer.register(AnonPages::new(WRITE_BYTES).unwrap(), Usage::WRITE_SRC).unwrap();
    // All of its pages are there from now on.
    source.write_at(0, &vec![0xA5; WRITE_BYTES]).unwrap();
    let initiator = Initiator { peer, source, port };

    let mut before = None;
    for (mark, round) in (b'0'..).zip(Round::ALL) {
        // The first of the two has nothing under way.
        let (idle, _) = initiator.connect();
        let (busy, far) = initiator.connect();
        initiator.write_and_flush(&busy, far, &path, mark);
        if round == Round::First {
            let event = idle.next_event(VANISHED_AFTER + ACK_TIMEOUT);
            assert!(matches!(event, Err(EventError::NoEvent)), "{event:?}, and the other machine lives");
        }
        if round == Round::CableOut {
            cut_in_the_middle(&initiator, &mut cable, &mut target, [&idle, &busy], far);
            cable.plug_in_again();
            drop((idle, busy));
        } else {
            drop((idle, busy));
            target.both_ended();
        }
        Holdings::are_again(*before.get_or_insert_with(Holdings::now));
    }
    target.tell("done");
    assert!(target.process.wait().unwrap().success(), "the target failed");
}

fn cut_in_the_middle(initiator: &Initiator, cable: &mut Cable, target: &mut Target, conns: [&Conn; 2], far: RemoteMr) {
    let [idle, busy] = conns;
    for n in 0..WRITES {
        busy.write(far.all(), initiator.source.all(), Signal::Always, n).unwrap();
    }
    busy.cq().wait(LIMIT).unwrap().result().unwrap();
    let cut = Instant::now();
    cable.pull_out();
    let within = |what: &str, ended: Instant, limit: Duration| {
        let took = ended.duration_since(cut);
        println!("{what}: {took:?} after the cable was out");
        assert!(took < limit + LATE, "{what}: {took:?} is over {limit:?}");
    };

    thread::scope(|scope| {
        // Whoever waits for nothing but the end.
        let idle = scope.spawn(|| (idle.next_event(LIMIT).unwrap(), Instant::now()));
        let mut rest = Vec::new();
        while rest.last().is_none_or(|completion: &Completion| completion.result().is_ok()) {
            rest.push(busy.cq().wait(LIMIT).unwrap());
        }
        // Before the first of them failed, and not a moment later.
        assert_eq!(busy.next_event(Wait::Now).unwrap(), ConnEvent::Closed);
        within("end of the busy connection, here", Instant::now(), RETRY_TIME);
        while (rest.len() as u64) < WRITES - 1 {
            rest.push(busy.cq().wait(LIMIT).unwrap());
        }
        let completed = Instant::now();
        let (done, failed): (Vec<&Completion>, Vec<&Completion>) =
            rest.iter().partition(|completion| completion.result().is_ok());
        println!("{} writes completed, {} failed", done.len() + 1, failed.len());
        assert!(failed.len() as u64 > WRITES / 2, "the cable was out too late");
        assert!(rest.iter().map(Completion::context).eq(1..WRITES), "in order");
        let errors: Vec<_> = failed.iter().map(|completion| completion.result().unwrap_err()).collect();
        assert_eq!(errors[0].status, IBV_WC_RETRY_EXC_ERR, "{}", errors[0].text);
        assert!(errors[1..].iter().all(CompletionError::is_flushed));
        within("error completions", completed, RETRY_TIME);
        assert!(completed.duration_since(cut) > RETRY_TIME / 2, "the retries were in vain, and nothing else ended it");
        let (event, ended) = idle.join().unwrap();
        assert_eq!(event, ConnEvent::Closed);
        within("end of the idle connection, here", ended, VANISHED_AFTER);
    });
    let [idle, busy] = target.both_ended();
    within("end of the idle connection, there", idle, VANISHED_AFTER);
    within("end of the busy connection, there", busy, VANISHED_AFTER);
}

#[test]
#[ignore = "needs root and iproute2: makes network namespaces"]
fn cable_pulled_out_ends_both_sides_in_time_and_leaves_nothing() {
    match env::var(MACHINE).as_deref() {
        Ok("initiator") => initiator(),
        Ok("target") => target(),
        _ => run_in_a_machine(CABLE_OUT, "initiator"),
    }
}

/// Runs `test` as `name` to its end.
fn run_in_a_machine(test: &str, name: &str) {
    // No wait in there is longer than `LIMIT`; this is for what hangs elsewhere.
    let mut bounded = Command::new("timeout");
    let machine = machine(test, name);
    bounded.args(["--kill-after=5", "120"]).arg(machine.get_program()).args(machine.get_args()).env(MACHINE, name);
    let output = bounded.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    // A wrong name would run nothing, and succeed.
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{}: {told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "needs root and iproute2: makes network namespaces"]
fn link_local_addresses_connect_through_the_interface_of_their_scope() {
    if env::var(MACHINE).is_err() {
        return run_in_a_machine(LINK_LOCAL, "both");
    }
    // What a machine sends itself goes through it.
    ip("link set lo up");
    // The same network on two cables: the address alone does not tell which.
    for (near, far) in [("near", "far"), ("near2", "far2")] {
        ip(&format!("link add {near} type veth peer name {far}"));
        for end in [near, far] {
            ip(&format!("link set {end} up addrgenmode none"));
        }
    }
    ip("addr add fe80::1/64 dev near nodad");
    ip("addr add fe80::2/64 dev near2 nodad");
    let peer = peer("fe80::1%near");
    let endpoint = Endpoint::listen(&peer, ("fe80::1%near", 0)).unwrap();
    let listening = endpoint.local_addr().unwrap();
    let SocketAddr::V6(v6) = listening else { panic!("{listening}") };
    assert_eq!(v6.scope_id(), name_to_index(TcpListener::bind("[::]:0").unwrap(), "near").unwrap());
    let pending = ConnReq::new(&peer, ("fe80::1%near", listening.port()), &cfg()).unwrap().connect(&[]).unwrap();
    let accepting = endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let (client, server) = (pending.established(LIMIT).unwrap(), accepting.established(LIMIT).unwrap());
    assert_eq!((client.peer_addr(), server.local_addr()), (Some(listening), Some(listening)));
    let target = peer.register(AnonPages::new(4096).unwrap(), Usage::WRITE_DST).unwrap();
    let source = peer.register(AnonPages::new(4096).unwrap(), Usage::WRITE_SRC).unwrap();
    source.write_at(0, RECORD).unwrap();
    let there = RemoteMr::from_descriptor(&target.descriptor().to_bytes()).unwrap();
    client.write(there.all(), source.all(), Signal::Always, 1).unwrap();
    client.cq().wait(LIMIT).unwrap().result().unwrap();
    let mut copy = [0; RECORD.len()];
    target.read_at(0, &mut copy).unwrap();
    assert_eq!(copy, RECORD);
    // On the other cable nobody has this address.
    let error = Device::local(&Soft::open().unwrap(), "fe80::1%near2").unwrap_err();
    assert!(error.to_string().contains("fe80::1"), "{error}");
}
