//! What the examples of the documentation do not show, because their readers have it already: a peer on the software provider, two
//! connected ends, and memory that the other side knows.
//!
//! No part of the interface: it is there with the feature `testing` alone, and changes as the examples need.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use crate::{AnonPages, Conn, ConnCfg, ConnReq, Device, Endpoint, LocalMr, MappedFile, Peer, Provider, RemoteMr, Usage};

/// Longer than anything takes on a slow machine that works.
const LIMIT: Duration = Duration::from_secs(60);

/// A peer on the software provider.
pub fn peer() -> Result<Peer, Box<dyn Error>> {
    Ok(Peer::new(&Device::local(&Provider::Soft.open()?, "127.0.0.1")?)?)
}

/// The two ends of a connection with default parameters: who asked, and who accepted. Both are of one peer.
pub fn pair() -> Result<(Conn, Conn), Box<dyn Error>> {
    pair_with(&peer()?, &ConnCfg::new(), &ConnCfg::new())
}

/// As [`pair`], with parameters for who asks and for who accepts.
pub fn pair_with(peer: &Peer, asks: &ConnCfg, accepts: &ConnCfg) -> Result<(Conn, Conn), Box<dyn Error>> {
    let endpoint = Endpoint::listen(peer, ("127.0.0.1", 0))?;
    let addr = endpoint.local_addr().ok_or("the endpoint does not know its address")?;
    let client = ConnReq::new(peer, addr, &asks.clone().timeout(LIMIT))?.connect(&[])?;
    let server = endpoint.next_conn_req(accepts, LIMIT)?.connect(&[])?;
    Ok((client.established(LIMIT)?, server.established(LIMIT)?))
}

/// 4096 bytes at the other side of `conn`, which is of the same peer: as that side has them, and as this one knows them.
pub fn target(conn: &Conn, usage: Usage) -> Result<(LocalMr<AnonPages>, RemoteMr), Box<dyn Error>> {
    let region = conn.peer().register(AnonPages::new(4096)?, usage)?;
    let known = RemoteMr::from_descriptor(&region.descriptor().to_bytes())?;
    Ok((region, known))
}

/// As [`target`], in the file at `path`, which is on a disk; and `conn` knows that flushes to it reach the disk.
pub fn persistent_target(conn: &Conn, path: &Path) -> Result<(LocalMr<MappedFile>, RemoteMr), Box<dyn Error>> {
    let usage = Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT;
    let region = conn.peer().register(MappedFile::create(path, 4096)?, usage)?;
    let known = RemoteMr::from_descriptor(&region.descriptor().to_bytes())?;
    conn.apply_remote_peer_cfg(conn.peer().cfg().with_direct_write_to_pmem(true));
    Ok((region, known))
}
