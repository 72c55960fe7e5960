//! Runs an example's two sides: both in this process, or one of them.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use clap::{Parser, ValueEnum};
use rpma::prelude::*;

use crate::{Chain, default_address};

/// What an example's side returns: any error will do, and is told with its causes.
pub type SideResult = Result<(), Box<dyn Error + Send + Sync>>;

/// What an example is told. Without arguments both sides run here, over the software provider where there is no RDMA device.
#[derive(Debug, Parser)]
#[command(about = "One of the examples of rpma: see rpma-examples/README.md for what it teaches")]
struct Options {
    /// The address of the server's RDMA device.
    #[arg(long)]
    addr: Option<String>,
    /// The server's port; 0 takes a free one, which is of use where both sides run here.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Which side to run.
    #[arg(long, value_enum, default_value_t)]
    role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Role {
    /// Both sides, the server in a thread.
    #[default]
    Both,
    /// The side that listens.
    Server,
    /// The side that connects.
    Client,
}

/// Runs `server` with an endpoint that listens, and `client` with its own peer and the address to connect to, as the command line says.
pub fn run(server: fn(&Peer, &Endpoint) -> SideResult, client: fn(&Peer, SocketAddr) -> SideResult) -> ExitCode {
    env_logger::init();
    match run_as_told(&Options::parse(), server, client) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {}", Chain(&*e));
            ExitCode::FAILURE
        }
    }
}

fn run_as_told(
    options: &Options,
    server: fn(&Peer, &Endpoint) -> SideResult,
    client: fn(&Peer, SocketAddr) -> SideResult,
) -> SideResult {
    let choice = Provider::from_env_or(Provider::Auto)?;
    let (provider, host) = match &options.addr {
        Some(host) => (choice.open_for(host)?, host.clone()),
        None => {
            let provider = choice.open()?;
            let host = default_address(&provider)?.to_string();
            (provider, host)
        }
    };
    if options.role == Role::Client {
        let device = Device::remote(&provider, &host, Device::RESOLVE_TIMEOUT)?;
        let addr = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), options.port))?.next();
        return client(&Peer::new(&device)?, addr.ok_or("the host has no address")?);
    }
    let device = Device::local(&provider, &host)?;
    let peer = Peer::new(&device)?;
    let endpoint = Endpoint::listen(&peer, (host.as_str(), options.port))?;
    let addr = endpoint.local_addr().ok_or("the address that was taken is not known")?;
    println!("server: listening on {addr}, device {}, provider {}", device.name(), provider.name());
    if options.role == Role::Server {
        return server(&peer, &endpoint);
    }
    let serving = thread::spawn(move || server(&peer, &endpoint));
    // If the client fails, the server may wait for ever for what does not come: the process ends without it.
    client(&Peer::new(&device)?, addr)?;
    serving.join().map_err(|_| "the server panicked")?
}
