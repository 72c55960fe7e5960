//! Runs programs with the door between two processes, each bounded in time.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

use super::door;

/// Longer than any of them takes on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A TCP port that nobody else gets while this lives: its socket is bound and does not listen, so that only who names the port can have it.
pub(crate) struct Port {
    number: u16,
    _held: OwnedFd,
}

impl Port {
    pub(crate) fn pick() -> Self {
        Self::hold(0).unwrap()
    }

    /// One, and the next behind it.
    pub(crate) fn pick_two() -> [Self; 2] {
        loop {
            let first = Self::pick();
            if let Some(second) = first.number.checked_add(1).and_then(|next| Self::hold(next).ok()) {
                return [first, second];
            }
        }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn hold(number: u16) -> rustix::io::Result<Self> {
        let held = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&held, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, number)))?;
        // The door's socket may be bound beside it only if both agree to that.
        sockopt::set_socket_reuseaddr(&held, true)?;
        let addr = SocketAddr::try_from(getsockname(&held)?)?;
        Ok(Self { number: addr.port(), _held: held })
    }
}

/// What a program said and how it ended.
pub(crate) struct Ended {
    program: String,
    pub(crate) said: String,
    pub(crate) status: ExitStatus,
}

impl Ended {
    /// That it succeeded, as its exit code tells.
    pub(crate) fn succeeded(self) -> String {
        assert!(self.status.success(), "{}: {}\n{}", self.program, self.status, self.said);
        self.said
    }
}

/// A program that runs.
pub(crate) struct Running {
    program: String,
    child: Child,
    said: Receiver<String>,
    deadline: Instant,
}

impl Running {
    /// Starts `line`, a program and its arguments with blanks between, with the door.
    pub(crate) fn start(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env("LD_PRELOAD", door());
        Self::begin(command)
    }

    /// Starts a program.
    pub(crate) fn begin(mut command: Command) -> Self {
        let program = format!("{command:?}");
        // Both outputs into one, as on a terminal; a program that is killed has its lines written all the same.
        let (mut reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap_or_else(|e| {
            panic!(
                "{program}: {e}; these tests need Debian's rdmacm-utils, ibverbs-utils, perftest, librpma-dev and librdmacm-dev"
            )
        });
        // The command holds the writing end too.
        drop(command);
        let (tell, said) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = reader.read_to_end(&mut bytes);
            tell.send(String::from_utf8_lossy(&bytes).into_owned())
        });
        Self { program, child, said, deadline: Instant::now() + LIMIT }
    }

    /// Waits until somebody listens on the port. That it is this program, the port's holder makes sure.
    fn listens_on(&mut self, port: &Port) {
        while !is_listened_on(port.number) {
            if self.child.try_wait().unwrap().is_some() || Instant::now() > self.deadline {
                let _ = self.child.kill();
                panic!("{} does not listen: {}", self.program, self.said.recv().unwrap());
            }
            // The kernel has no event for this; a look costs little.
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it ends. One that takes too long is killed, and fails.
    pub(crate) fn end(mut self) -> Ended {
        let said = self.said.recv_timeout(self.deadline.saturating_duration_since(Instant::now()));
        let timed_out = said == Err(RecvTimeoutError::Timeout);
        if timed_out {
            let _ = self.child.kill();
        }
        let status = self.child.wait().unwrap();
        let said = said.or_else(|_| self.said.recv()).unwrap_or_default();
        assert!(!timed_out, "{} still ran after {LIMIT:?}:\n{said}", self.program);
        Ended { program: std::mem::take(&mut self.program), said, status }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a test that failed. Ended, and waited for, is all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a socket listens on a TCP port: `/proc/net/tcp` (proc(5)), where the state 0A is that.
fn is_listened_on(port: u16) -> bool {
    let listens = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let local_port = fields.next().and_then(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok());
        local_port == Some(port) && fields.nth(1) == Some("0A")
    };
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| fs::read_to_string(table).unwrap_or_default().lines().any(listens))
}

/// What two programs said that succeeded.
pub(crate) struct Said {
    pub(crate) server: String,
    pub(crate) client: String,
}

/// Runs a server, and a client to its end as soon as the server listens. PORT and ADDR in the lines are replaced.
fn begin(server: &str, client: &str) -> (Running, Ended, Port) {
    let port = Port::pick();
    let fill = |line: &str| line.replace("PORT", &port.number.to_string()).replace("ADDR", "127.0.0.1");
    let mut server = Running::start(&fill(server));
    server.listens_on(&port);
    (server, Running::start(&fill(client)).end(), port)
}

/// Runs a server and a client; both end. PORT and ADDR in the lines are replaced.
pub(crate) fn run(server: &str, client: &str) -> Said {
    let (server, client, _port) = begin(server, client);
    let server = server.end();
    // What the server said helps with the client's failure, and the other way round.
    assert!(
        client.status.success() && server.status.success(),
        "{}: {}\n{}\n{}: {}\n{}",
        server.program,
        server.status,
        server.said,
        client.program,
        client.status,
        client.said
    );
    Said { server: server.succeeded(), client: client.succeeded() }
}

/// As [`run`], with a server that does not end: what the client said.
pub(crate) fn run_against(server: &str, client: &str) -> String {
    let (mut server, client, _port) = begin(server, client);
    assert!(server.child.try_wait().unwrap().is_none(), "the server has ended: {}", server.end().said);
    client.succeeded()
}

/// Runs one program that needs no other.
pub(crate) fn run_alone(line: &str) -> String {
    Running::start(line).end().succeeded()
}
