//! Our ends against ends on the C library librpma, and our descriptors against its own. The C ends are `c/interop.c`, compiled here
//! against the library that is installed: Debian's `librpma-dev`, 1.2.0 on Debian 12 and 1.3.0 on Debian 13.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use rpma::prelude::*;
use rpma::{OpMode, OpPath, PostError, Received};
use tempfile::TempDir;

use crate::support::{LIMIT, addr, bytes, cfg, complete, in_time, known, listen, op_modes, peer, received, region};

/// The compiled program, there for as long as a test uses it.
struct Program {
    dir: TempDir,
}

impl Program {
    fn compiled() -> Arc<Self> {
        static COMPILED: Mutex<Weak<Program>> = Mutex::new(Weak::new());
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = compiled.upgrade() {
            return program;
        }
        let program = Arc::new(Self { dir: tempfile::tempdir().unwrap() });
        let source = program.dir.path().join("interop.c");
        std::fs::write(&source, include_str!("c/interop.c")).unwrap();
        let built = Command::new("gcc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(program.path())
            .arg(source)
            .args(["-lrpma", "-libverbs"])
            .output()
            .expect("gcc is installed");
        assert!(built.status.success(), "are gcc and librpma-dev installed? {}", String::from_utf8_lossy(&built.stderr));
        *compiled = Arc::downgrade(&program);
        program
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("interop")
    }

    fn start(self: &Arc<Self>, arguments: &[&str]) -> Running {
        let child = Command::new(self.path())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running { child: Some(child), _program: Arc::clone(self) }
    }
}

/// The program, running. A test that fails meanwhile ends it, and shows what it said.
struct Running {
    child: Option<Child>,
    _program: Arc<Program>,
}

impl Running {
    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("taken by `ended` and `drop` only")
    }

    /// Waits for its end, which is a successful one, and gives what it wrote and was not read yet.
    fn ended(mut self) -> String {
        let child = self.child.take().expect("taken here and in `drop` only");
        let output = in_time(move || child.wait_with_output()).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "the C program: {}\n{stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended_already = child.kill();
            if let Ok(output) = child.wait_with_output() {
                eprintln!("the C program: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
            }
        }
    }
}

/// What our side tells of a region: the descriptor's 21 bytes, and the two of the peer configuration, of which C takes the first.
fn hello<M: RegionOwner>(region: &LocalMr<M>, cfg: PeerCfg) -> Vec<u8> {
    [region.descriptor().to_bytes().as_slice(), &*cfg.to_bytes()].concat()
}

/// Serves a client in C, which does to the 4096 bytes of `memory` all that can be done, and flushes it in the ways that are granted.
/// Gives the usage that was granted.
pub(crate) fn serve_a_client_in_c<M: RegionOwner>(memory: M, usage: Usage) -> Usage {
    let peer = peer();
    let target = peer.register(memory, usage | Usage::READ_SRC | Usage::WRITE_DST).unwrap();
    let messages = region(&peer, 128, Usage::SEND | Usage::RECV);
    target.write_at(512, b"written by Rust\0").unwrap();
    let (endpoint, SocketAddr::V4(local)) = listen(&peer) else { panic!("an IPv4 address is under test") };
    let granted = |usage| if target.usage().contains(usage) { "yes" } else { "no" };
    let program = Program::compiled();
    let client = program.start(&[
        "client",
        &local.ip().to_string(),
        &local.port().to_string(),
        granted(Usage::FLUSH_TYPE_PERSISTENT),
        granted(Usage::FLUSH_TYPE_VISIBILITY),
    ]);

    let request = endpoint.next_conn_req(&cfg(), LIMIT).unwrap();
    assert_eq!(&request.private_data()[..14], b"a client in C\0");
    request.recv(LocalSlice::null(), 1).unwrap();
    request.recv(messages.slice(0..64).unwrap(), 2).unwrap();
    let told = hello(&target, peer.cfg().with_direct_write_to_pmem(true));
    assert_eq!(told.len(), 23);
    let conn = request.connect(&told).unwrap().established(LIMIT).unwrap();

    assert_eq!(received(&conn, 1), Received { len_bytes: 7, imm: Some(0x0102_0304), by_write: true });
    assert_eq!(bytes(&target, 99, 15), b"\0written by C\0\0");
    assert_eq!(bytes(&target, 255, 10), b"\x008 from C\0");
    assert_eq!(bytes(&target, 299, 9), b"\0written\0");
    assert_eq!(received(&conn, 2), Received { len_bytes: 15, imm: Some(0x0A0B_0C0D), by_write: false });
    assert_eq!(bytes(&messages, 0, 16), b"message from C\0\0");
    messages.write_at(64, b"message from Rust\0").unwrap();
    // The client ends the connection when it has this, maybe before we hear that it has.
    conn.send_with_imm(messages.slice(64..82).unwrap(), 0x1122_3344, Signal::OnError, 3).unwrap();
    assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    drop(conn);
    client.ended();
    target.usage()
}

#[test]
fn client_in_c_writes_flushes_and_messages_to_our_server() {
    let both = Usage::FLUSH_TYPE_VISIBILITY | Usage::FLUSH_TYPE_PERSISTENT;
    let granted = serve_a_client_in_c(AnonPages::new(4096).unwrap(), both).intersection(both);
    assert_eq!(granted, if known().native_ops { Usage::FLUSH_TYPE_VISIBILITY } else { both });
}

/// The region says that it can be flushed to visibility at most, or not at all, and the C library keeps to it.
#[test]
fn client_in_c_is_kept_from_flushes_that_our_region_does_not_take() {
    for flushes in [Usage::FLUSH_TYPE_VISIBILITY, Usage::empty()] {
        let granted = serve_a_client_in_c(AnonPages::new(4096).unwrap(), flushes);
        assert_eq!(granted, flushes | Usage::READ_SRC | Usage::WRITE_DST);
    }
}

/// Our client against a server in C. C servers cannot listen on port 0, so each test brings a port of its own, below those that the
/// connection manager picks.
fn visit_a_server_in_c(port: u16, direct_write: bool, mode: OpMode, path: OpPath) {
    let peer = peer();
    let program = Program::compiled();
    let mut server = program.start(&["server", &addr().to_string(), &port.to_string(), if direct_write { "yes" } else { "no" }]);
    let mut line = String::new();
    BufReader::new(server.child().stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");

    let local = region(&peer, 4096, Usage::READ_DST | Usage::WRITE_SRC | Usage::SEND | Usage::RECV);
    let cfg = cfg().flush_mode(mode).atomic_write_mode(mode);
    let request = ConnReq::new(&peer, (addr(), port), &cfg).unwrap();
    request.recv(local.slice(2048..2112).unwrap(), 1).unwrap();
    let conn = request.connect(b"a client in Rust\0").unwrap().established(LIMIT).unwrap();

    let (descriptor, rest) = conn.private_data().split_at(MrDescriptor::SIZE_BYTES);
    let target = RemoteMr::from_descriptor(descriptor).unwrap();
    assert_eq!(target.len_bytes(), 4096);
    assert_eq!(target.usage(), Usage::READ_SRC | Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY);
    // C wrote one byte.
    let said = PeerCfg::from_bytes(&rest[..1]).unwrap();
    assert_eq!((said.direct_write_to_pmem(), said.native_ops()), (direct_write, None));
    conn.apply_remote_peer_cfg(said);
    assert_eq!(conn.flush_path(), path);

    local.write_at(0, b"written by Rust\0").unwrap();
    let (near, far) = (local.slice(0..16).unwrap(), target.slice(100..116).unwrap());
    conn.write(far, near, Signal::OnError, 2).unwrap();
    conn.flush(far, FlushType::Visibility, Signal::Always, 3).unwrap();
    complete(&conn, 3);
    let refused = conn.flush(far, FlushType::Persistent, Signal::Always, 3).unwrap_err();
    assert!(matches!(refused, PostError::FlushType { .. }), "{refused:?}");
    conn.atomic_write(target.slice(256..264).unwrap(), *b"8 bytes!", Signal::Always, 4).unwrap();
    complete(&conn, 4);
    conn.read(local.slice(512..529).unwrap(), target.slice(512..529).unwrap(), Signal::Always, 5).unwrap();
    complete(&conn, 5);
    assert_eq!(bytes(&local, 512, 17), b"written by C too\0");
    conn.write_with_imm(target.slice(300..307).unwrap(), local.slice(0..7).unwrap(), 0x0102_0304, Signal::Always, 6).unwrap();
    complete(&conn, 6);
    local.write_at(1024, b"message from Rust\0").unwrap();
    conn.send_with_imm(local.slice(1024..1042).unwrap(), 0x0A0B_0C0D, Signal::OnError, 7).unwrap();
    // The answer.
    assert_eq!(received(&conn, 1), Received { len_bytes: 15, imm: Some(0x1122_3344), by_write: false });
    assert_eq!(bytes(&local, 2048, 16), b"message from C\0\0");

    conn.disconnect().unwrap();
    assert_eq!(conn.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    drop(conn);
    server.ended();
}

#[test]
fn our_client_writes_flushes_and_messages_to_a_server_in_c() {
    let own = if known().native_ops { OpPath::Native } else { OpPath::Emulated };
    visit_a_server_in_c(7204, true, OpMode::Automatic, own);
    visit_a_server_in_c(7204, false, OpMode::Automatic, own);
}

#[test]
fn our_client_flushes_a_server_in_c_in_every_way_that_it_can() {
    for &mode in op_modes() {
        let path = if mode == OpMode::Native { OpPath::Native } else { OpPath::Emulated };
        visit_a_server_in_c(7205, true, mode, path);
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    let digits = digits.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn descriptors_that_c_encodes_are_those_that_we_encode_for_the_same_region() {
    let told = Program::compiled().start(&["encode", &addr().to_string()]).ended();
    let (mut regions, mut peer_cfgs) = (0, 0);
    for line in told.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        if let ["peer_cfg", direct, byte] = fields[..] {
            let cfg = PeerCfg::new().with_direct_write_to_pmem(direct == "1");
            assert_eq!(*cfg.to_bytes(), unhex(byte), "{line}");
            peer_cfgs += 1;
            continue;
        }
        let [addr, len, usage, descriptor] = fields[..] else { panic!("{line}") };
        let theirs = unhex(descriptor);
        // The key alone cannot be asked for in C; that it is where we look for it, the transfers above prove.
        let rkey = MrDescriptor::from_bytes(&theirs).unwrap().rkey();
        let usage = Usage::from_bits_retain(usage.parse().unwrap());
        let ours = MrDescriptor::new(addr.parse().unwrap(), len.parse().unwrap(), rkey, usage).unwrap();
        assert_eq!(ours.to_bytes().as_slice(), theirs, "{line}");
        regions += 1;
    }
    assert_eq!((regions, peer_cfgs), (10, 2));
}

#[test]
fn descriptors_that_we_encode_are_understood_by_c() {
    let mut server = Program::compiled().start(&["decode"]);
    let descriptors: Vec<_> = (1..=u8::MAX)
        .map(|mask| {
            MrDescriptor::new(0x7FEF_DEAD_1000, u64::from(mask) << 33 | 5, 0x8BAD_F00D, Usage::from_bits_retain(mask)).unwrap()
        })
        .collect();
    let golden = descriptors[0].to_bytes();
    let no_usage = [&golden[..20], &[0]].concat();
    let long = [golden.as_slice(), &[0xFF; 79]].concat();
    let encoded = descriptors.iter().map(|descriptor| descriptor.to_bytes().to_vec());
    let short = (0..golden.len()).map(|len| golden[..len].to_vec());
    let all: Vec<_> = encoded.chain(short).chain([no_usage, long]).collect();

    let mut input = String::new();
    for bytes in &all {
        for byte in bytes {
            write!(input, "{byte:02x}").unwrap();
        }
        input.push('\n');
    }
    let mut stdin = server.child().stdin.take().unwrap();
    // Beside reading, so that neither side waits for a full pipe.
    let feeding = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let told = server.ended();
    feeding.join().unwrap().unwrap();
    assert_eq!(told.lines().count(), all.len());
    for (bytes, line) in all.iter().zip(told.lines()) {
        let expected = match RemoteMr::from_descriptor(bytes) {
            Ok(remote) => format!("0 {} {}", remote.len_bytes(), remote.flush_types().bits()),
            // RPMA_E_INVAL
            Err(error) => format!("{} 0 0", error.code().as_raw()),
        };
        assert_eq!(line, expected, "{bytes:02x?}");
    }
    let refused = told.lines().filter(|line| line.starts_with("-100004 ")).count();
    // 0 to 20 bytes, and no usage.
    assert_eq!(refused, 22);
}
