//! The target: owns the region, tells it to one writer, and takes no part in what follows.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::process;

use rpma::{
    AccessError, BuildError, ConnCfg, ConnEvent, ConnectError, Device, DeviceError, Endpoint, EstablishError, EventError,
    FlushType, ListenError, LocalMr, MapError, Peer, PeerError, PersistentMemory, ProviderError, RegionOwner, RegisterError,
    RequestError, Usage, Wait,
};
use rpma_examples::{AddressError, default_address};

use crate::hello::{self, Hello, Made};
use crate::layout::{Layout, TooLarge};
use crate::lines::Line;
use crate::options::{Region, Target};
use crate::output::{self, OutputError};
use crate::record::RunId;

/// Why the target could not do its part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("there is no RDMA provider to work with")]
    Provider(#[from] ProviderError),
    #[error("there is no address to listen on: give one with --addr")]
    Address(#[from] AddressError),
    #[error("{host} cannot be listened on")]
    Device { host: String, source: DeviceError },
    #[error("the RDMA device {device} cannot be used")]
    Peer { device: String, source: PeerError },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("there is no region for {} records of {} bytes", .layout.records, .layout.record_bytes)]
    Map { layout: Layout, source: MapError },
    #[error("the region's header cannot be written")]
    Header(#[from] AccessError),
    #[error("the region {} cannot be registered", .path.display())]
    Register { path: PathBuf, source: RegisterError },
    #[error(
        "{} ({made}) takes no persistent flush: {}; give persistent memory with --pmem, or --flush visibility",
        .path.display(),
        .made.why_not_persistent()
    )]
    NotPersistent { path: PathBuf, made: Made },
    #[error("{host} cannot be listened on")]
    Listen { host: String, source: ListenError },
    #[error("the address that was taken is not known")]
    NoLocalAddress,
    #[error("no connection request can be had")]
    Request(#[from] RequestError),
    #[error("a writer's connection cannot be made")]
    Build(#[from] BuildError),
    #[error("a writer cannot be accepted")]
    Accept(#[from] ConnectError),
    #[error("a writer asked for a connection, and it was not established")]
    Establish(#[from] EstablishError),
    #[error("the connection's events cannot be had")]
    Event(#[from] EventError),
    #[error("the connection failed")]
    Lost,
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Does the target's part; returns when the writer has disconnected.
pub(crate) fn run(options: &Target) -> Result<(), TargetError> {
    let provider = match &options.addr {
        Some(host) => options.provider.open_for(host)?,
        None => options.provider.open()?,
    };
    let host = match &options.addr {
        Some(host) => host.clone(),
        None => default_address(&provider)?.to_string(),
    };
    let device = Device::local(&provider, &host).map_err(|source| TargetError::Device { host: host.clone(), source })?;
    let peer = Peer::new(&device).map_err(|source| TargetError::Peer { device: device.name().to_owned(), source })?;

    let run = RunId(random());
    let path = match &options.region {
        Region::At(path) => path.clone(),
        Region::NewFile => new_file(),
    };
    let (region, hello) = make_region(&peer, &path, options.layout, run)?;
    if options.flush == Some(FlushType::Persistent) && hello.why_not_persistent().is_some() {
        return Err(TargetError::NotPersistent { path, made: hello.made });
    }

    let endpoint =
        Endpoint::listen(&peer, (host.as_str(), options.port)).map_err(|source| TargetError::Listen { host, source })?;
    let addr = endpoint.local_addr().ok_or(TargetError::NoLocalAddress)?;
    output::line(format_args!("target: region {hello}, {} bytes; run {run}", region.len_bytes()))?;
    if hello.layout.slot_bytes != hello.layout.record_bytes {
        output::line("target: each record has a page of its own, because soft-RoCE misplaces others in memory on demand")?;
    }
    output::line(format_args!("target: listening on {addr}, device {}", device.name()))?;
    if options.orchestrated_by.is_some() {
        output::line(Line::Listening { addr, run })?;
    }
    serve(&endpoint, &hello, options)?;
    output::line("target: the writer has disconnected")?;
    Ok(())
}

/// Maps the region, writes the log's header into it, and registers it.
fn make_region(peer: &Peer, path: &Path, layout: Layout, run: RunId) -> Result<(LocalMr<PersistentMemory>, Hello), TargetError> {
    let map = |layout: Layout| {
        let memory =
            PersistentMemory::open(path, layout.region_bytes()?).map_err(|source| TargetError::Map { layout, source })?;
        let made = Made::of(memory.backing(), is_on_tmpfs(path));
        Ok::<_, TargetError>((memory, made))
    };
    let (mut memory, made) = map(layout)?;
    let mut layout = layout;
    if made == Made::DaxFile {
        // Such a file is registered with on-demand paging or not at all, and soft-RoCE then puts each packet at the beginning of its
        // page, wherever in the page it belongs (`__rxe_odp_mr_copy`, drivers/infiniband/sw/rxe/rxe_odp.c: the page's address is
        // taken without the offset; seen on Linux 7.3, and the same in the source since on-demand paging came to it). A record that
        // begins a page, and fits a packet, arrives where it belongs.
        layout = layout.on_own_pages();
        (memory, _) = map(layout)?;
    }
    memory.write_at(0, &layout.encode_header(run))?;

    // A device without native flush cannot tell what memory it is, and takes every region for persistent: it is for us to say so only
    // of memory that is. One with native flush knows what it can make durable: the software provider a file on a disk, too.
    let device_knows = peer.capabilities().native_flush;
    let mut usage = Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY;
    usage.set(Usage::FLUSH_TYPE_PERSISTENT, made.is_persistent() || device_knows && made == Made::File);
    let registered = peer.register(memory, usage);
    let region = registered.map_err(|failure| TargetError::Register { path: path.to_owned(), source: failure.error })?;
    if region.is_on_demand() && layout.record_bytes > SOFT_ROCE_MTU_BYTES {
        log::warn!(
            "the region is registered with on-demand paging: soft-RoCE (Linux 7.3, for one) damages records longer than a packet there, \
             {SOFT_ROCE_MTU_BYTES} bytes on ordinary Ethernet"
        );
    }
    let is_durable = made.is_persistent() || device_knows && region.usage().contains(Usage::FLUSH_TYPE_PERSISTENT);
    let hello = Hello {
        made,
        is_on_demand: region.is_on_demand(),
        peer_cfg: peer.cfg().with_direct_write_to_pmem(is_durable),
        region: region.descriptor(),
        layout,
        run,
        path: hello::shown(path),
    };
    Ok((region, hello))
}

/// The path MTU of soft-RoCE over Ethernet frames of 1500 bytes (`rxe_param.h`, `eth_mtu_int_to_enum`).
const SOFT_ROCE_MTU_BYTES: u32 = 1024;

/// Accepts the first writer, and stays until it is gone.
fn serve(endpoint: &Endpoint, hello: &Hello, options: &Target) -> Result<(), TargetError> {
    // Who started us kills us if no writer comes; alone, we wait until somebody does.
    let request = loop {
        let request = endpoint.next_request(Wait::Forever)?;
        if hello::is_request(request.private_data()) {
            break request;
        }
        output::line(format_args!("target: rejecting {:?}, which is no writer of rpma-demo", request.peer_addr()))?;
        request.reject(&[])?;
    };
    let pending = request.prepare(&ConnCfg::new())?.connect(&hello.encode())?;
    let conn = pending.established(options.timeout)?;
    loop {
        match conn.next_event(Wait::Forever)? {
            ConnEvent::Closed => return Ok(()),
            ConnEvent::Lost | ConnEvent::Unreachable | ConnEvent::Rejected(_) => return Err(TargetError::Lost),
            ConnEvent::Established => {}
        }
    }
}

/// A path for a new region: in memory where the system has a place for that.
pub(crate) fn new_file() -> PathBuf {
    let shared_memory = Path::new("/dev/shm");
    let folder = if shared_memory.is_dir() { shared_memory.to_owned() } else { env::temp_dir() };
    folder.join(format!("rpma-demo-{}-{:016x}", process::id(), random()))
}

/// A number that nobody had before: the standard library's hash keys are random.
fn random() -> u64 {
    RandomState::new().hash_one(process::id())
}

/// `f_type` of `statfs(2)`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

fn is_on_tmpfs(path: &Path) -> bool {
    #[expect(clippy::allow_attributes, reason = "the type of the field differs by architecture")]
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type as i64 == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_differ_and_lie_in_a_folder_that_is_there() {
        let (a, b) = (new_file(), new_file());
        assert_ne!(a, b);
        assert!(a.parent().is_some_and(Path::is_dir));
    }

    #[test]
    fn path_that_is_not_there_is_not_on_tmpfs() {
        assert!(!is_on_tmpfs(Path::new("/no/such/path")));
    }
}
