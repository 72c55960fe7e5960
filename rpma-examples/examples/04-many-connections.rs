//! Many connections in one thread: an event loop over the descriptors of the endpoint, the connections and their completion queues.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

const CLIENTS: u64 = 8;

fn main() -> ExitCode {
    sides::run(server, client)
}

/// What a descriptor belongs to, as the number that `epoll(7)` gives back.
const ENDPOINT: u64 = 0;
const fn events_of(client: u64) -> u64 {
    2 * client + 1
}
const fn completions_of(client: u64) -> u64 {
    2 * client + 2
}

/// A client: its connection, before and after it is established, and the region that its messages come into.
struct Client {
    pending: PendingConn,
    conn: Option<Conn>,
    inbox: LocalMr<AnonPages>,
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, endpoint, EventData::new_u64(ENDPOINT), EventFlags::IN)?;
    let mut clients = HashMap::new();
    let (mut accepted, mut gone) = (0, 0);
    let mut ready = Vec::with_capacity(16);
    while gone < CLIENTS {
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut ready), None)?;
        for Event { data, .. } in ready.drain(..) {
            let number = data.u64();
            if number == ENDPOINT {
                let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Now)?;
                let inbox = peer.register(AnonPages::new(64)?, Usage::RECV)?;
                request.recv(inbox.all(), accepted)?;
                let pending = request.connect(&[])?;
                // The descriptors stay the same for the connection's life, so they are watched from now on.
                epoll::add(&epoll, &pending, EventData::new_u64(events_of(accepted)), EventFlags::IN)?;
                epoll::add(&epoll, pending.cq(), EventData::new_u64(completions_of(accepted)), EventFlags::IN)?;
                // A completion queue raises its descriptor once it is armed, and not for what is in it already.
                pending.cq().arm()?;
                clients.insert(accepted, Client { pending, conn: None, inbox });
                accepted += 1;
                continue;
            }
            let client = (number - 1) / 2;
            let Some(state) = clients.get_mut(&client) else { continue };
            if number == completions_of(client) {
                // First armed, then emptied: what comes in between raises the descriptor again.
                state.pending.cq().arm()?;
                while let Some(completion) = state.pending.cq().poll()? {
                    let Some(received) = completion.received()? else { continue };
                    let mut text = vec![0; received.len_bytes as usize];
                    state.inbox.read_at(0, &mut text)?;
                    println!("server: client {client} says {:?}", String::from_utf8_lossy(&text));
                }
                continue;
            }
            match state.pending.next_event(Wait::Now)? {
                // Only this handle can post to the send queue; this server has nothing to send.
                PendingEvent::Established(conn) => state.conn = Some(conn),
                _ => {
                    clients.remove(&client);
                    gone += 1;
                }
            }
        }
    }
    println!("server: {gone} clients came and went");
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let outbox = peer.register(AnonPages::new(64)?, Usage::SEND)?;
    // All at once, one after the other in what they do.
    let conns = (0..CLIENTS)
        .map(|_| {
            let pending = ConnReq::new(peer, server, &ConnCfg::new())?.connect(&[])?;
            Ok(pending.established(Duration::from_secs(5))?)
        })
        .collect::<Result<Vec<_>, Box<dyn std::error::Error + Send + Sync>>>()?;
    for (number, conn) in conns.iter().enumerate() {
        let text = format!("this is connection {number}");
        outbox.write_at(0, text.as_bytes())?;
        conn.send(outbox.slice(..text.len())?, Signal::Always, 0)?;
        conn.cq().wait(Duration::from_secs(5))?.result()?;
    }
    for conn in conns {
        conn.disconnect()?;
    }
    Ok(())
}
