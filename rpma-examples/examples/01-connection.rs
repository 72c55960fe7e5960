//! Connecting, private data both ways, and the end of a connection.

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(_: &Peer, endpoint: &Endpoint) -> SideResult {
    // A request can be looked at before anything is made for it: who it is, and what it says of itself.
    let request = endpoint.next_request(Wait::Forever)?;
    println!("server: a request with {:?}", text(request.private_data()));
    // Accepting it makes its queues. `request.reject(b"why")` would be the other choice, and dropping it too.
    let pending = request.prepare(&ConnCfg::new())?.connect(b"welcome")?;
    let conn = pending.established(Duration::from_secs(5))?;

    // The side that did not ask learns of the end by an event, and answers it.
    let event = conn.next_event(Wait::Forever)?;
    println!("server: {event:?}");
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    // Resolves address and route, and makes the queues.
    let request = ConnReq::new(peer, server, &ConnCfg::new())?;
    // At most 56 bytes go with a request, and 196 come back.
    let conn = request.connect(b"hello")?.established(Duration::from_secs(5))?;
    println!("client: established, the server says {:?}", text(conn.private_data()));

    conn.disconnect()?;
    println!("client: {:?}", conn.next_event(Duration::from_secs(5))?);
    Ok(())
}

/// The connection manager fills private data up with zeros.
fn text(private_data: &[u8]) -> String {
    String::from_utf8_lossy(private_data).trim_end_matches('\0').to_owned()
}
