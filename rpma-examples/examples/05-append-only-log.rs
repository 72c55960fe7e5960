//! An append-only log: records are flushed first, and the word that says how many there are is written atomically behind them.

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

/// The log: the number of bytes in use, and the records behind it.
const HEADER_BYTES: u64 = 8;
const RECORDS: [&str; 3] = ["first record; ", "second record; ", "third record"];

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let log = peer.register(AnonPages::new(4096)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
    let mut hello = log.descriptor().to_bytes().to_vec();
    hello.extend(&*peer.cfg().to_bytes());
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    let conn = request.connect(&hello)?.established(Duration::from_secs(5))?;

    // A reader that follows the log while it grows: the word is whole at any time, and what it counts is there.
    let (mut seen, mut text) = (0, Vec::new());
    let all: usize = RECORDS.iter().map(|record| record.len()).sum();
    while seen < all {
        let used = usize::try_from(log.load_u64(0, std::sync::atomic::Ordering::Acquire)?)?;
        if used > seen {
            let mut new = vec![0; used - seen];
            log.read_at(HEADER_BYTES as usize + seen, &mut new)?;
            text.extend(new);
            seen = used;
        }
    }
    let text = String::from_utf8(text)?;
    println!("server: the log reads {text:?}");
    if text != RECORDS.concat() {
        return Err("the reader saw what was not yet there".into());
    }
    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let conn = ConnReq::new(peer, server, &ConnCfg::new())?.connect(&[])?.established(Duration::from_secs(5))?;
    let hello = conn.private_data().to_vec();
    let log = RemoteMr::from_descriptor(&hello)?;
    let cfg = hello.get(MrDescriptor::SIZE_BYTES..MrDescriptor::SIZE_BYTES + PeerCfg::MAX_SIZE_BYTES);
    conn.apply_remote_peer_cfg(PeerCfg::from_bytes(cfg.ok_or("the server sent no configuration")?)?);

    let source = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
    let mut used = 0_u64;
    for record in RECORDS {
        let len = record.len() as u64;
        source.write_at(0, record.as_bytes())?;
        let place = log.slice_at(HEADER_BYTES + used, len)?;
        conn.write(place, source.slice(..record.len())?, Signal::OnError, 0)?;
        conn.flush(place, FlushType::Visibility, Signal::OnError, 0)?;
        // Never passes the flush before it; the value is copied at the call. Native byte order, as the reader's processor loads it.
        used += len;
        conn.atomic_write(log.slice(..HEADER_BYTES)?, used.to_ne_bytes(), Signal::OnError, 0)?;
        conn.flush(log.slice(..HEADER_BYTES)?, FlushType::Visibility, Signal::Always, used)?;
        // The source may be used again once what reads it has completed.
        conn.cq().wait(Duration::from_secs(5))?.result()?;
        println!("client: appended {record:?}, {used} bytes in use");
    }
    conn.disconnect()?;
    Ok(())
}
