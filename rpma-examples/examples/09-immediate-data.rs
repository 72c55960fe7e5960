//! Immediate data: a number beside a message, and a write that announces itself.

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const NEWS: &[u8] = b"written where the client chose";

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    let region = peer.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
    let inbox = peer.register(AnonPages::new(64)?, Usage::RECV)?;
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    request.recv(inbox.all(), 0)?;
    // A write's bytes go where the writer says, so this receive needs no memory.
    request.recv(LocalSlice::null(), 1)?;
    let conn = request.connect(&region.descriptor().to_bytes())?.established(Duration::from_secs(5))?;

    let message = conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
    let mut text = vec![0; message.len_bytes as usize];
    inbox.read_at(0, &mut text)?;
    println!("server: message {:?}, beside it {:?}", String::from_utf8_lossy(&text), message.imm);

    let write = conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
    let offset = write.imm.ok_or("a write without a number completes no receive")? as usize;
    let mut text = vec![0; write.len_bytes as usize];
    region.read_at(offset, &mut text)?;
    println!("server: {:?} was written at {offset}", String::from_utf8_lossy(&text));
    if !(write.by_write && text == NEWS) {
        return Err("this is not what was written".into());
    }
    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let source = peer.register(AnonPages::new(4096)?, Usage::SEND | Usage::WRITE_SRC)?;
    let conn = ConnReq::new(peer, server, &ConnCfg::new())?.connect(&[])?.established(Duration::from_secs(5))?;
    let target = RemoteMr::from_descriptor(conn.private_data())?;

    source.write_at(0, b"hello")?;
    conn.send_with_imm(source.slice(..5)?, 2026, Signal::OnError, 0)?;

    source.write_at(512, NEWS)?;
    let (here, there) = (source.slice(512..512 + NEWS.len())?, target.slice_at(1000, NEWS.len() as u64)?);
    conn.write_with_imm(there, here, 1000, Signal::Always, 1)?;
    conn.cq().wait(Duration::from_secs(5))?.result()?;
    println!("client: sent and written");
    conn.disconnect()?;
    Ok(())
}
