//! The general-purpose way to durability: the client asks by a message, and the server flushes its own memory and answers.
//!
//! It is for servers whose platform does not write directly to persistent memory, and whose device has no native flush: there the
//! server's processor has to take part.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{self, ExitCode};

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const REGION_BYTES: usize = 4096;
const DATA: &[u8] = b"flushed by whoever owns the memory";
/// A request to flush: offset and length.
const REQUEST_BYTES: usize = 16;

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    // On a disk: the directory for temporary files may be memory, which keeps nothing.
    let path = Path::new("/var/tmp").join(format!("rpma-example-{}", process::id()));
    // Memory that the client writes to, and the file that is to keep it.
    let region = peer.register(AnonPages::new(REGION_BYTES)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    let messages = peer.register(AnonPages::new(REQUEST_BYTES)?, Usage::RECV)?;

    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    request.recv(messages.all(), 0)?;
    let conn = request.connect(&region.descriptor().to_bytes())?.established(Duration::from_secs(5))?;

    conn.cq().wait(Duration::from_secs(5))?.received()?.ok_or("this is no receive")?;
    let mut words = [0; REQUEST_BYTES];
    messages.read_at(0, &mut words)?;
    let (offset, len) = words.split_at(size_of::<u64>());
    let offset = usize::try_from(u64::from_le_bytes(offset.try_into()?))?;
    let len = usize::try_from(u64::from_le_bytes(len.try_into()?))?;
    // A peer's numbers: checked before anything is allocated for them.
    if len > REGION_BYTES {
        return Err(format!("a request to flush {len} bytes of {REGION_BYTES}").into());
    }
    let mut bytes = vec![0; len];
    region.read_at(offset, &mut bytes)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, offset as u64)?;
    file.sync_data()?;
    println!("server: {len} bytes at {offset} are durable");
    // The answer has no bytes of its own: that it comes is all.
    conn.send(LocalSlice::null(), Signal::OnError, 0)?;

    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;
    let kept = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    if kept.ends_with(DATA) { Ok(()) } else { Err("the file lacks what was written".into()) }
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let source = peer.register(AnonPages::new(REGION_BYTES)?, Usage::WRITE_SRC | Usage::SEND)?;
    let conn = ConnReq::new(peer, server, &ConnCfg::new())?.connect(&[])?.established(Duration::from_secs(5))?;
    let target = RemoteMr::from_descriptor(conn.private_data())?;

    let offset = 128_u64;
    source.write_at(0, DATA)?;
    source.write_at(1024, &[offset.to_le_bytes(), (DATA.len() as u64).to_le_bytes()].concat())?;

    // A message is handed over after the writes that were posted before it, so the request never comes before the bytes.
    conn.recv(LocalSlice::null(), 1)?;
    conn.write(target.slice_at(offset, DATA.len() as u64)?, source.slice(..DATA.len())?, Signal::OnError, 0)?;
    conn.send(source.slice(1024..1024 + REQUEST_BYTES)?, Signal::OnError, 0)?;
    let answer = conn.cq().wait(Duration::from_secs(5))?;
    answer.received()?.ok_or("this is no receive")?;
    println!("client: the server says that {} bytes are durable", DATA.len());
    conn.disconnect()?;
    Ok(())
}
