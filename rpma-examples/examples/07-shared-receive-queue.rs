//! Ping-pong of several connections over one queue of receives: the server posts receives once, for whoever sends next.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma::{Srq, SrqCfg};
use rpma_examples::sides::{self, SideResult};

const CLIENTS: usize = 3;
const ROUNDS: u64 = 5;
const WORD_BYTES: usize = size_of::<u64>();
/// Receives that are posted at any time: enough for every client's next message.
const RECEIVES: usize = 4;

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let inbox = peer.register(AnonPages::new(RECEIVES * WORD_BYTES)?, Usage::RECV)?;
    let outbox = peer.register(AnonPages::new(CLIENTS * WORD_BYTES)?, Usage::SEND)?;
    let srq = peer.new_srq(&SrqCfg::new())?;
    for slot in 0..RECEIVES {
        post(&srq, &inbox, slot)?;
    }

    let cfg = ConnCfg::new().srq(&srq);
    let mut conns = HashMap::new();
    for number in 0..CLIENTS {
        let conn = endpoint.next_conn_req(&cfg, Wait::Forever)?.connect(&[])?.established(Duration::from_secs(5))?;
        // A completion says by the queue pair's number whose message it is.
        conns.insert(conn.qp_num(), (conn, number));
    }
    let received = srq.rcq().ok_or("a queue made with the defaults has its own CQ")?;
    for _ in 0..CLIENTS as u64 * ROUNDS {
        let completion = received.wait(Duration::from_secs(5))?;
        completion.received()?.ok_or("this is no receive")?;
        let slot = usize::try_from(completion.context())?;
        let mut ping = [0; WORD_BYTES];
        inbox.read_at(slot * WORD_BYTES, &mut ping)?;
        // The slot is free again, for any of the clients.
        post(&srq, &inbox, slot)?;

        let (conn, number) = conns.get(&completion.qp_num()).ok_or("a message of a connection that is not ours")?;
        let place = number * WORD_BYTES..(number + 1) * WORD_BYTES;
        outbox.write_at(place.start, &(u64::from_le_bytes(ping) + 100).to_le_bytes())?;
        conn.send(outbox.slice(place)?, Signal::OnError, 0)?;
    }
    println!("server: answered {CLIENTS} clients out of one queue of {RECEIVES} receives");
    for (conn, _) in conns.values() {
        conn.next_event(Wait::Forever)?;
    }
    Ok(())
}

/// The receive's number tells its place in the inbox.
fn post(srq: &Srq, inbox: &LocalMr<AnonPages>, slot: usize) -> SideResult {
    srq.recv(inbox.slice(slot * WORD_BYTES..(slot + 1) * WORD_BYTES)?, slot as u64)?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let inbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::RECV)?;
    let outbox = peer.register(AnonPages::new(WORD_BYTES)?, Usage::SEND)?;
    let mut conns = Vec::new();
    for _ in 0..CLIENTS {
        let request = ConnReq::new(peer, server, &ConnCfg::new())?;
        conns.push(request.connect(&[])?.established(Duration::from_secs(5))?);
    }
    for round in 0..ROUNDS {
        for (number, conn) in conns.iter().enumerate() {
            let ping = round * 10 + number as u64;
            conn.recv(inbox.all(), 0)?;
            outbox.write_at(0, &ping.to_le_bytes())?;
            conn.send(outbox.all(), Signal::OnError, 0)?;
            conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
            let mut pong = [0; WORD_BYTES];
            inbox.read_at(0, &mut pong)?;
            let pong = u64::from_le_bytes(pong);
            println!("client {number}: {ping} came back as {pong}");
            if pong != ping + 100 {
                return Err("this is another client's answer".into());
            }
        }
    }
    for conn in conns {
        conn.disconnect()?;
    }
    Ok(())
}
