//! Messages there and back: each needs a receive that was posted before it arrives.

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const ROUNDS: u64 = 10;
const WORD_BYTES: usize = size_of::<u64>();

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let inbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::RECV)?;
    let outbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND)?;
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    // Posted on the request already, so that the client's first message never comes too early.
    request.recv(inbox.all(), 0)?;
    let conn = request.connect(&[])?.established(Duration::from_secs(5))?;

    for _ in 0..ROUNDS {
        let ping = wait_for_word(&conn, &inbox)?;
        // The next receive before the answer: the client sends as soon as it has that.
        conn.recv(inbox.all(), 0)?;
        outbox.write_at(0, &(ping * 2).to_le_bytes())?;
        conn.send(outbox.all(), Signal::OnError, 0)?;
    }
    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let inbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::RECV)?;
    let outbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND)?;
    let request = ConnReq::new(peer, server, &ConnCfg::new())?;
    let conn = request.connect(&[])?.established(Duration::from_secs(5))?;

    for ping in 1..=ROUNDS {
        conn.recv(inbox.all(), 0)?;
        outbox.write_at(0, &ping.to_le_bytes())?;
        conn.send(outbox.all(), Signal::OnError, 0)?;
        let pong = wait_for_word(&conn, &inbox)?;
        println!("client: {ping} came back as {pong}");
        if pong != ping * 2 {
            return Err("the server does not double".into());
        }
    }
    conn.disconnect()?;
    Ok(())
}

/// Waits for a message: sends that succeed leave no completion here, so the next one is a receive's.
fn wait_for_word(conn: &Conn, inbox: &LocalMr<AnonPages>) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let received = conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
    if received.len_bytes as usize != WORD_BYTES {
        return Err(format!("a message of {} bytes where {WORD_BYTES} were expected", received.len_bytes).into());
    }
    let mut word = [0; WORD_BYTES];
    inbox.read_at(0, &mut word)?;
    Ok(u64::from_le_bytes(word))
}
