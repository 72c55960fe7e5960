//! Reading, writing and flushing to persistent memory: when the flush has completed, the bytes are durable.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{self, ExitCode};

use rpma::prelude::*;
use rpma_examples::sides::{self, SideResult};

const REGION_BYTES: usize = 1 << 20;
const FLUSHES: Usage = Usage::FLUSH_TYPE_VISIBILITY.union(Usage::FLUSH_TYPE_PERSISTENT);
const GREETING: &[u8] = b"Hello, durable world";

fn main() -> ExitCode {
    sides::run(server, client)
}

fn server(peer: &Peer, endpoint: &Endpoint) -> SideResult {
    // A DAX device, or a file on any file system; `EXAMPLE_PMEM` names it. The software provider makes a file on a disk durable too; the
    // directory for temporary files may be memory, which keeps nothing.
    let (path, is_ours) = match env::var_os("EXAMPLE_PMEM") {
        Some(path) => (path.into(), false),
        None => (Path::new("/var/tmp").join(format!("rpma-example-{}", process::id())), true),
    };
    let memory = PersistentMemory::open(&path, REGION_BYTES)?;
    let is_direct = memory.is_direct();
    let region = peer.register(memory, Usage::READ_SRC | Usage::WRITE_DST | FLUSHES)?;
    // A device with native flush grants persistence only to memory that it can make durable. For other devices it is a promise of
    // whoever runs this machine: that the memory is persistent, and that what the device writes goes straight to it.
    let knows = peer.capabilities().native_flush && region.usage().contains(Usage::FLUSH_TYPE_PERSISTENT);
    let direct = is_direct || knows;

    let mut hello = region.descriptor().to_bytes().to_vec();
    hello.extend(&*peer.cfg().with_direct_write_to_pmem(direct).to_bytes());
    let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
    let conn = request.connect(&hello)?.established(Duration::from_secs(5))?;

    conn.next_event(Wait::Forever)?;
    conn.disconnect()?;

    // What was flushed is in the file for whoever opens it next.
    drop(region);
    if is_ours {
        let begins = std::fs::read(&path)?.starts_with(GREETING);
        std::fs::remove_file(&path)?;
        println!("server: the file {}", if begins { "begins with what the client wrote" } else { "lacks what was written" });
        if !begins {
            return Err("a flush completed, and its bytes are not there".into());
        }
    }
    Ok(())
}

fn client(peer: &Peer, server: SocketAddr) -> SideResult {
    let conn = ConnReq::new(peer, server, &ConnCfg::new())?.connect(&[])?.established(Duration::from_secs(5))?;
    let hello = conn.private_data().to_vec();
    let target = RemoteMr::from_descriptor(&hello)?;
    let cfg = hello.get(MrDescriptor::SIZE_BYTES..MrDescriptor::SIZE_BYTES + PeerCfg::MAX_SIZE_BYTES);
    let cfg = PeerCfg::from_bytes(cfg.ok_or("the server sent no configuration")?)?;
    conn.apply_remote_peer_cfg(cfg);
    // Memory that keeps nothing can be flushed to where others see it, and no further.
    let is_persistent = cfg.direct_write_to_pmem() && target.flush_types().contains(Usage::FLUSH_TYPE_PERSISTENT);
    let flush_type = if is_persistent { FlushType::Persistent } else { FlushType::Visibility };

    let memory = peer.register(AnonPages::new(4096)?, Usage::READ_DST | Usage::WRITE_SRC)?;
    let (here, there) = (memory.slice(..GREETING.len())?, target.slice(..GREETING.len() as u64)?);

    conn.read(here, there, Signal::Always, 0)?;
    conn.cq().wait(Duration::from_secs(5))?.result()?;
    let mut before = vec![0; GREETING.len()];
    memory.read_at(0, &mut before)?;
    println!("client: the region {}", if before == GREETING { "has our greeting already" } else { "has no greeting yet" });

    // One completion for both: the flush's says that everything before it is durable (or visible). A write that fails completes all the same.
    memory.write_at(0, GREETING)?;
    conn.write(there, here, Signal::OnError, 1)?;
    conn.flush(there, flush_type, Signal::Always, 2)?;
    conn.cq().wait(Duration::from_secs(5))?.result()?;
    println!("client: written and flushed: {flush_type:?}, {:?}", conn.flush_path());
    conn.disconnect()?;
    Ok(())
}
