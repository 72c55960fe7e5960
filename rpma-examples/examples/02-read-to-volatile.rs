//! Reading from the memory of another machine, whose processor takes no part.

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const TEXT: &[u8] = b"the server's memory, read without its help";

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    // The region is made from memory that it owns, and for one usage: others may read from it, and do nothing else.
    let region = peer.register(AnonPages::new(4096)?, Usage::READ_SRC)?;
    region.write_at(0, TEXT)?;

    // The descriptor tells address, length, key and usage: whoever has it can read. It fits into private data.
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    let conn = request.connect(&region.descriptor().to_bytes())?.established(Duration::from_secs(5))?;

    // Nothing else to do: the client reads, and says when it is done.
    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let conn = ConnReq::new(peer, server, &ConnCfg::new())?.connect(&[])?.established(Duration::from_secs(5))?;
    let source = RemoteMr::from_descriptor(conn.private_data())?;

    let destination = peer.register(AnonPages::new(4096)?, Usage::READ_DST)?;
    let len = TEXT.len();
    conn.read(destination.slice(..len)?, source.slice(..len as u64)?, Signal::Always, 0)?;
    conn.cq().wait(Duration::from_secs(5))?.result()?;

    let mut read = vec![0; len];
    destination.read_at(0, &mut read)?;
    println!("client: read {:?}", String::from_utf8_lossy(&read));
    if read != TEXT {
        return Err("these are not the server's bytes".into());
    }
    conn.disconnect()?;
    Ok(())
}
