//! One completion channel for both of a connection's queues: one wait, and the answer says which of them it was.

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::CqRole;
use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const WORD_BYTES: usize = size_of::<u64>();

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let memory = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND | Usage::RECV)?;
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    request.recv(memory.all(), 0)?;
    let conn = request.connect(&[])?.established(Duration::from_secs(5))?;
    conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
    conn.send(memory.all(), Signal::OnError, 0)?;
    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let inbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::RECV)?;
    let outbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND)?;
    // Two queues, and one descriptor to wait on.
    let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
    let request = ConnReq::new(peer, server, &cfg)?;
    request.recv(inbox.all(), 1)?;
    let conn = request.connect(&[])?.established(Duration::from_secs(5))?;

    outbox.write_at(0, b"an echo?")?;
    conn.send(outbox.all(), Signal::Always, 2)?;
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        let (queue, completion) = conn.wait(Duration::from_secs(5))?;
        completion.result()?;
        println!("client: {} in the {queue:?} queue", completion.operation());
        match queue {
            CqRole::Main => sent = true,
            CqRole::Receive => received = true,
        }
    }
    let mut echo = [0; WORD_BYTES];
    inbox.read_at(0, &mut echo)?;
    println!("client: {:?} came back", String::from_utf8_lossy(&echo));
    if &echo != b"an echo?" {
        return Err("this is no echo".into());
    }
    conn.disconnect()?;
    Ok(())
}
