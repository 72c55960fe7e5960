//! Receives with a completion queue of their own: one thread waits for what arrives, another for what it has posted.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const MESSAGES: u64 = 5;
const WORD_BYTES: usize = size_of::<u64>();

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let outbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND)?;
    let inbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::RECV)?;
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    request.recv(inbox.all(), 0)?;
    let conn = request.connect(&[])?.established(Duration::from_secs(5))?;
    // The client begins: then its receives are there.
    conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
    for number in 0..MESSAGES {
        outbox.write_at(0, &(number * number).to_le_bytes())?;
        conn.send(outbox.all(), Signal::Always, number)?;
        conn.cq().wait(Duration::from_secs(5))?.result()?;
    }
    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let inbox = peer.register(AnonPages::new(MESSAGES as usize * WORD_BYTES)?, Usage::RECV)?;
    let outbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND)?;
    let cfg = ConnCfg::new().rcq_size(MESSAGES as u32);
    let request = ConnReq::new(peer, server, &cfg)?;
    for (slot, offset) in (0..MESSAGES).zip((0..).step_by(WORD_BYTES)) {
        request.recv(inbox.slice(offset..offset + WORD_BYTES)?, slot)?;
    }
    let conn = request.connect(&[])?.established(Duration::from_secs(5))?;

    // Both queues can be waited for at once: neither thread takes what is the other's.
    let received = conn.rcq().ok_or("the connection was made with a receive CQ")?;
    thread::scope(|scope| {
        let receiving = scope.spawn(move || -> SideResult {
            for _ in 0..MESSAGES {
                let completion = received.wait(Duration::from_secs(5))?;
                completion.received()?.ok_or("only receives complete here")?;
                println!("client: message {} is there", completion.context());
            }
            Ok(())
        });
        conn.send(outbox.all(), Signal::Always, 0)?;
        let sent = conn.cq().wait(Duration::from_secs(5))?;
        println!("client: {} is done", sent.operation());
        sent.result()?;
        receiving.join().map_err(|_| "the receiving thread panicked")?
    })?;

    let mut words = vec![0; MESSAGES as usize * WORD_BYTES];
    inbox.read_at(0, &mut words)?;
    let squares: Vec<_> = words.chunks_exact(WORD_BYTES).map(|word| word[0]).collect();
    println!("client: received {squares:?}");
    conn.disconnect()?;
    Ok(())
}
