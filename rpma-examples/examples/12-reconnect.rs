//! A peer that vanishes: its process is killed in the middle of the work, the client learns of it at once, and connects again when there
//! is a server again.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use rpma::prelude::*;
use rpma_examples::{Chain, default_address};

/// The argument by which this program is a server: what follows is its port.
const SERVE: &str = "serve";

type AnyError = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let mut host = None;
    let mut port = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--addr" => host = arguments.next(),
            SERVE => port = arguments.next().and_then(|port| port.parse().ok()),
            _ => {
                eprintln!("usage: 12-reconnect [--addr ADDRESS-OF-AN-RDMA-DEVICE]");
                return ExitCode::FAILURE;
            }
        }
    }
    let done = match port {
        Some(port) => serve(host, port),
        None => survive(host),
    };
    done.map_or_else(
        |e| {
            eprintln!("error: {}", Chain(&*e));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn open(host: Option<String>) -> Result<(Peer, String), AnyError> {
    let choice = Provider::from_env_or(Provider::Auto)?;
    let provider = host.as_deref().map_or_else(|| choice.open(), |host| choice.open_for(host))?;
    let host = host.map_or_else(|| default_address(&provider).map(|ip| ip.to_string()), Ok)?;
    Ok((Peer::new(&Device::local(&provider, &host)?)?, host))
}

/// The server: a region to write to, until it is killed.
fn serve(host: Option<String>, port: u16) -> Result<(), AnyError> {
    let (peer, host) = open(host)?;
    let region = peer.register(AnonPages::new(4096)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
    let endpoint = Endpoint::listen(&peer, (host.as_str(), port))?;
    println!("{}", endpoint.local_addr().ok_or("the address that was taken is not known")?);
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    let conn = request.connect(&region.descriptor().to_bytes())?.established(Duration::from_secs(5))?;
    conn.next_event(Wait::Forever)?;
    Ok(())
}

/// A server process; dropping it kills it.
struct Server {
    child: Child,
    addr: std::net::SocketAddr,
}

impl Server {
    fn start(host: &str, port: u16) -> Result<Self, AnyError> {
        let mut command = Command::new(env::current_exe()?);
        let mut child = command.args(["--addr", host, SERVE, &port.to_string()]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("the server has no output")?).read_line(&mut line)?;
        let addr = line.trim().parse().map_err(|_| format!("the server said {line:?} in place of its address"))?;
        Ok(Self { child, addr })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // As a crash would: no destructor runs there, nothing says goodbye.
        let killed = self.child.kill().and_then(|()| self.child.wait());
        if let Err(e) = killed {
            eprintln!("the server could not be killed: {e}");
        }
    }
}

/// The client: writes, loses its server, and goes on with the next one.
fn survive(host: Option<String>) -> Result<(), AnyError> {
    env_logger::init();
    let (peer, host) = open(host)?;
    let source = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;

    let first = Server::start(&host, 0)?;
    let addr = first.addr;
    let conn = connect(&peer, addr)?;
    let target = RemoteMr::from_descriptor(conn.private_data())?;
    write_and_flush(&conn, target, &source)?;
    println!("client: written to the first server");

    drop(first);
    // Whatever waits for the connection wakes: this learns of the end within milliseconds.
    let end = conn.next_event(Duration::from_secs(30))?;
    println!("client: the server is gone: {end:?}");
    // What is posted from now on is flushed: it completes with an error that says so, and no more. Why, the event above has told.
    conn.write(target.slice(..64)?, source.slice(..64)?, Signal::Always, 7)?;
    let lost = conn.cq().wait(Duration::from_secs(5))?;
    match lost.result() {
        Err(e) => println!("client: {e}"),
        Ok(_) => return Err("a write to a server that was killed succeeded".into()),
    }
    drop(conn);

    // The same peer and the same registered memory serve the next connection. Until the server is back, requests are rejected.
    match connect(&peer, addr) {
        Ok(_) => return Err("connected to a server that was killed".into()),
        Err(e) => println!("client: not yet: {}", Chain(&*e)),
    }
    let second = Server::start(&host, addr.port())?;
    let conn = connect(&peer, second.addr)?;
    write_and_flush(&conn, RemoteMr::from_descriptor(conn.private_data())?, &source)?;
    println!("client: connected again, and written to the second server");
    conn.disconnect()?;
    Ok(())
}

fn connect(peer: &Peer, addr: std::net::SocketAddr) -> Result<Conn, AnyError> {
    Ok(ConnReq::new(peer, addr, &ConnCfg::new())?.connect(&[])?.established(Duration::from_secs(5))?)
}

fn write_and_flush(conn: &Conn, target: RemoteMr, source: &LocalMr<AnonPages>) -> Result<(), AnyError> {
    conn.write(target.slice(..64)?, source.slice(..64)?, Signal::OnError, 0)?;
    conn.flush(target.slice(..64)?, FlushType::Visibility, Signal::Always, 1)?;
    conn.cq().wait(Duration::from_secs(5))?.result()?;
    Ok(())
}
