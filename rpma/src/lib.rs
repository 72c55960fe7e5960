//! Remote persistent memory access: write into another machine's memory over RDMA, and know when it is durable.
//!
//! This crate is the object model of librpma, the C library for this job (discontinued in 2023), in safe Rust on rdma-core. It speaks the
//! same wire formats, so either side of a connection may still be a C program. Whoever has the C manual finds the calls under their names:
//! [`Peer`], [`Endpoint`], [`ConnReq`], [`Conn`], [`CompletionQueue`], [`LocalMr`], [`RemoteMr`]. [`librpma_map`] has a row for each of its
//! functions.
//!
//! # The main job
//!
//! One side owns persistent memory, the *target*. It registers it, and hands its descriptor to whoever connects. The other side, the
//! *writer*, connects, writes, and flushes. When the flush has completed, the bytes are durable. Both sides in one program:
//!
//! ```
//! use rpma::prelude::*;
//! use std::error::Error;
//! use std::{fs, net::SocketAddr, path::Path, thread};
//!
//! type Done = Result<(), Box<dyn Error + Send + Sync>>;
//!
//! /// The target. `path` is that of a DAX device, or of a file.
//! fn target(peer: &Peer, endpoint: &Endpoint, path: &Path) -> Done {
//!     let memory = PersistentMemory::open(path, 1 << 20)?;
//!     let is_direct = memory.is_direct(); // and the platform writes to it directly: your promise
//!     let region = peer.register(memory, Usage::WRITE_DST | Usage::FLUSH_TYPE_PERSISTENT)?;
//!     // A device with native flush knows by itself what it can make durable; with the software provider that is any file on a disk.
//!     let knows = peer.capabilities().native_flush && region.usage().contains(Usage::FLUSH_TYPE_PERSISTENT);
//!     let direct = is_direct || knows;
//!
//!     let request = endpoint.next_conn_req(&ConnCfg::new(), Wait::Forever)?;
//!     let mut hello = region.descriptor().to_bytes().to_vec();
//!     hello.extend(&*peer.cfg().with_direct_write_to_pmem(direct).to_bytes());
//!     let conn = request.connect(&hello)?.established(Wait::Forever)?;
//!     while !matches!(conn.next_event(Wait::Forever)?, ConnEvent::Closed | ConnEvent::Lost) {}
//!     Ok(())
//! }
//!
//! /// The writer.
//! fn writer(peer: &Peer, target: SocketAddr) -> Done {
//!     let source = peer.register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
//!     let request = ConnReq::new(peer, target, &ConnCfg::new())?;
//!     let conn = request.connect(&[])?.established(Duration::from_secs(5))?;
//!
//!     let hello = conn.private_data().to_vec();
//!     let target = RemoteMr::from_descriptor(&hello)?;
//!     let cfg = hello.get(MrDescriptor::SIZE_BYTES..MrDescriptor::SIZE_BYTES + PeerCfg::MAX_SIZE_BYTES);
//!     conn.apply_remote_peer_cfg(PeerCfg::from_bytes(cfg.ok_or("the target sent no configuration")?)?);
//!
//!     source.write_at(0, b"durable at last")?;
//!     conn.write(target.slice(0..15)?, source.slice(0..15)?, Signal::OnError, 0)?;
//!     conn.flush(target.slice(0..15)?, FlushType::Persistent, Signal::Always, 1)?;
//!     conn.cq().wait(Duration::from_secs(5))?.result()?;
//!     Ok(())
//! }
//!
//! fn main() -> Done {
//!     // With hardware: Provider::from_env()?.open()?, and the address of the target's device; at the writer, Device::remote.
//!     let peer = Peer::new(&Device::local(&Provider::Soft.open()?, "127.0.0.1")?)?;
//!     let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
//!     let addr = endpoint.local_addr().ok_or("the endpoint has no address")?;
//! #     let file = tempfile::NamedTempFile::new_in("/var/tmp")?; // a disk; /tmp may be none
//! #     let path = file.path().to_owned();
//! #     let file = path.clone();
//!     let serving = thread::spawn({
//!         let peer = peer.clone();
//!         move || target(&peer, &endpoint, &path)
//!     });
//!     writer(&peer, addr)?;
//!     serving.join().map_err(|_| "the target panicked")??;
//!     assert!(fs::read(&file)?.starts_with(b"durable at last"));
//!     Ok(())
//! }
//! ```
//!
//! # What is safe, and why
//!
//! The library owns what is registered ([`RegionOwner`]) and lends no reference into it while a peer or the device may write it: bytes
//! are copied in and out ([`LocalMr::read_at`], [`LocalMr::write_at`]). A region that is dropped is deregistered first and freed after
//! that, and the device refuses what still refers to it. So posting is safe code: a stale buffer gives an error completion, never
//! undefined behaviour.
//!
//! Lengths, bounds, usage and alignment are checked on this side before anything is posted, because most of these mistakes end the
//! connection when the other side finds them.
//!
//! # Waiting
//!
//! Every waiting call takes a [`Wait`]: a duration, an instant, now or for ever. Every waiting object has a descriptor for event loops
//! ([`AsFd`](std::os::fd::AsFd)).
//!
//! When a peer's process dies, everything that waits for it wakes at once: reading the connection's event, which waiting for completions
//! does too, makes all outstanding operations complete with errors. A machine or a cable that dies says nothing. It is noticed by whoever
//! has a write, read or flush outstanding, when the transport's retries are used up; who only listens needs a time limit and a heartbeat.
//!
//! What the device tells that belongs to no connection, a port that went down for one, comes from [`DeviceEvents`].
//!
//! # Many at once
//!
//! Operations are carried out in the order of posting, so a batch of writes takes one flush behind them, and one completion.
//! [`ConnCfg::sq_size`] says how many may be posted and not yet polled; the next one is [`PostError::QueueFull`], nothing is lost, and
//! polling makes room. That holds for operations with [`Signal::OnError`] too: their slots come free when something behind them was polled.
//! In a long stream of requests, [`Signals`] says which of them need a completion so that the queue never fills.
//!
//! ```
//! use rpma::prelude::*;
//!
//! # let (conn, _server) = rpma::testing::pair()?;
//! # let file = tempfile::NamedTempFile::new_in("/var/tmp")?; // a disk; /tmp may be none
//! # let (memory, there) = rpma::testing::persistent_target(&conn, file.path())?;
//! let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
//! for n in 0..8_u64 {
//!     let here = here.slice_at(256 * n as usize, 256)?;
//!     conn.write(there.slice_at(256 * n, 256)?, here, Signal::OnError, n)?;
//! }
//! conn.flush(there.slice_at(0, 8 * 256)?, FlushType::Persistent, Signal::Always, 8)?;
//! let done = conn.cq().wait(Duration::from_secs(5))?;
//! done.result()?; // the flush; or the write that failed, which `context` names
//! assert_eq!(done.context(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each post rings the device's doorbell. A [`Batch`] rings it once for all of its requests, and is posted whole or not at all where the
//! queue has no room for it:
//!
//! ```
//! use rpma::prelude::*;
//!
//! # let (conn, _server) = rpma::testing::pair()?;
//! # let file = tempfile::NamedTempFile::new_in("/var/tmp")?; // a disk; /tmp may be none
//! # let (memory, there) = rpma::testing::persistent_target(&conn, file.path())?;
//! # let here = conn.peer().register(AnonPages::new(4096)?, Usage::WRITE_SRC)?;
//! let mut batch = conn.batch();
//! for n in 0..8_u64 {
//!     let here = here.slice_at(256 * n as usize, 256)?;
//!     batch.write(there.slice_at(256 * n, 256)?, here, Signal::OnError, n)?;
//! }
//! batch.flush(there.slice_at(0, 8 * 256)?, FlushType::Persistent, Signal::Always, 8)?;
//! batch.post()?;
//! assert_eq!(conn.cq().wait(Duration::from_secs(5))?.context(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Messages
//!
//! A message needs a receive that was posted before it arrives: a sender that finds none asks again after 655 ms (the
//! connection manager's time; [`ConnCfg::min_rnr_timer`] of the receiver makes it shorter), and for ever unless the receiver's [`ConnCfg::rnr_retry_count`] says otherwise, so post as many receives as can be under way. Receives can be posted on a request already, so that the first message
//! never comes too early. [`Conn::write_with_imm`] completes a receive too, once its bytes are there.
//!
//! ```
//! use rpma::prelude::*;
//!
//! # let peer = rpma::testing::peer()?;
//! # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
//! # let addr = endpoint.local_addr().ok_or("listening")?;
//! # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
//! # let request = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(5))?;
//! let inbox = peer.register(AnonPages::new(4096)?, Usage::RECV)?;
//! request.recv(inbox.slice(0..512)?, 7)?;
//! let pending = request.connect(&[])?;
//! # let client = client.established(Duration::from_secs(5))?;
//! # client.send(Inline(b"hello"), Signal::OnError, 0)?;
//! let conn = pending.established(Duration::from_secs(5))?;
//! let completion = conn.cq().wait(Wait::Forever)?; // the client says hello
//! let received = completion.received()?.ok_or("a receive")?;
//! let mut message = vec![0; received.len_bytes as usize];
//! inbox.read_at(0, &mut message)?; // a copy: look at it, not at the region
//! assert_eq!((completion.context(), &*message), (7, &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Many clients
//!
//! A server with many clients need not post receives for each: connections made with [`ConnCfg::srq`] take theirs from one [`Srq`], and
//! [`Completion::qp_num`] says at which of them a message arrived. The queue has a completion queue of its own, so that one thread serves
//! all of them; made with [`SrqCfg::rcq_size`] 0 it has none, and each connection's messages complete at that connection.
//!
//! ```
//! use rpma::prelude::*;
//! use std::collections::HashMap;
//!
//! # let peer = rpma::testing::peer()?;
//! let srq = peer.new_srq(&SrqCfg::new().rq_size(64))?;
//! let inboxes = peer.register(AnonPages::new(64 * 512)?, Usage::RECV)?;
//! for n in 0..64 {
//!     srq.recv(inboxes.slice(512 * n..512 * (n + 1))?, n as u64)?;
//! }
//! let listener = Listener::new(&peer, ("127.0.0.1", 0), &ConnCfg::new().srq(&srq))?;
//! # let addr = listener.local_addr().ok_or("listening")?;
//! # let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
//! let mut clients = HashMap::new();
//! let pending = listener.get_request(Wait::Forever)?.connect(&[])?;
//! # let client = client.established(Duration::from_secs(5))?;
//! # client.send(Inline(b"hello"), Signal::OnError, 0)?;
//! let conn = pending.established(Duration::from_secs(5))?;
//! clients.insert(conn.qp_num(), conn); // and so on
//!
//! let completion = srq.rcq().ok_or("made with rcq_size 0")?.wait(Wait::Forever)?;
//! let received = completion.received()?.ok_or("a receive")?;
//! let inbox = completion.context() as usize;
//! println!("{} bytes from {:?} in inbox {inbox}", received.len_bytes, clients[&completion.qp_num()].peer_addr());
//! srq.recv(inboxes.slice(512 * inbox..512 * (inbox + 1))?, inbox as u64)?; // once it was looked at
//! # assert_eq!((received.len_bytes, clients[&completion.qp_num()].peer_addr()), (5, client.local_addr()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Dispatcher`] waits for all completions of many connections, sends and receives, which are on one completion channel then.
//!
//! [`Listener`] is an [`Endpoint`] whose requests come with their queues made, for those who know `rdma_get_request(3)`.
//!
//! Apart from that, [`ConnCfg::rcq_size`] gives a connection a completion queue for its receives alone ([`Conn::rcq`]), so that one thread
//! serves what it sends and another what it gets. With [`ConnCfg::shared_channel`] both are on one channel, and [`Conn::wait`] waits for
//! either and says which it was.
//!
//! # Event loops
//!
//! Watch the descriptors of the connection and of its completion queue for reading, and ask with [`Wait::Now`] when they are readable. The
//! completion queue raises its descriptor only after it was armed, and not for what is in it already: arm first, then poll until it is
//! empty.
//!
//! ```
//! use rpma::prelude::*;
//! use rustix::event::{PollFd, PollFlags, poll};
//!
//! # let (conn, server) = rpma::testing::pair()?;
//! # server.recv(LocalSlice::null(), 0)?;
//! # conn.cq().arm()?;
//! # conn.send(LocalSlice::null(), Signal::Always, 1)?;
//! # poll(&mut [PollFd::new(&conn.cq(), PollFlags::IN)], None)?;
//! # server.disconnect()?;
//! let (cq, mut done) = (conn.cq(), Vec::new());
//! loop {
//!     cq.arm()?;
//!     while let Some(completion) = cq.poll()? {
//!         completion.result()?;
//!         done.push(completion.context());
//!     }
//!     poll(&mut [PollFd::new(&cq, PollFlags::IN), PollFd::new(&conn, PollFlags::IN)], None)?; // or epoll(7), with many others
//!     match conn.next_event(Wait::Now) {
//!         Ok(ConnEvent::Closed) => break conn.disconnect()?, // answers the peer's; what is outstanding completes with errors
//!         Ok(event) => println!("{event:?}"),
//!         Err(_) => {} // no event: it was the completion queue's descriptor
//!     }
//! }
//! assert_eq!(done, [1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Futures
//!
//! [`Async`] makes the waiting calls of endpoints, connections and completion queues futures, and each of them a stream, on any runtime that
//! can wait for a descriptor ([`Readiness`]). A [`Dispatcher`] and the events of a device ([`DeviceEvents`]) are waited for the same way. The feature `tokio` has that for tokio: the module `rpma::tokio`, with an example (`cargo doc -p rpma --features
//! tokio` shows it). Dropping a
//! future loses nothing.
//!
//! # The end
//!
//! [`Conn::disconnect`] ends a connection; the other side reads [`ConnEvent::Closed`], and this side when that has answered. What is
//! outstanding completes with errors, and then waiting says [`CqError::Drained`]. [`Conn::close`] only wakes who waits. Dropping the last
//! handle, the completion queue's included, ends a connection too. Regions, endpoints and peers may be dropped in any order.
//!
//! # Flush, native and emulated
//!
//! A device with the RDMA FLUSH operation makes a flush by it; others make it by a READ behind the writes, as librpma does. That concerns
//! both ends: exchange [`Peer::cfg`] and apply it with [`Conn::apply_remote_peer_cfg`], and the way that both can go is chosen.
//! [`Conn::flush_path`] tells which, [`ConnCfg::flush_mode`] overrides it.
//!
//! A C program's configuration is one byte. Give [`PeerCfg::from_bytes`] that one alone: the zeros that the connection manager puts behind
//! it would be read as a device without native operations.
//!
//! The emulation reaches persistence only on a platform that writes directly to persistent memory (no caching of what the network card
//! writes, or power for the caches to be written back), and only who runs the target knows that: its [`PeerCfg`] is that person's
//! promise. A device without native flush cannot tell what memory it is given, so nothing there corrects a promise that is wrong.
//!
//! # Which provider
//!
//! [`Provider::from_env`] takes the provider from `RPMA_PROVIDER`, and `rdma-core` without it: rdma-core's libraries, opened at run time.
//! Version 28 or newer must be installed where a program runs; nothing of it is needed to build one.
//!
//! `soft` is RDMA in user space over TCP (the feature of that name, on by default; [`soft::Soft`] says what it has and where it differs
//! from hardware): for tests, laptops and CI. `auto` is rdma-core where that has a device for the job, and `soft` elsewhere. No program
//! falls to TCP unasked.
//!
//! # Errors and logs
//!
//! What is odd and not an error (a region that was granted less than was asked for, a connection that could not be ended in order) goes
//! to the crate `log`, as do the first flush's way and what the connection manager says.
//!
//! An error's message says what failed, with which values, and what to do; its cause is its `source`. Print it with `{}` and its sources, or
//! with a crate for that: a `main` that returns an error prints its `Debug` form, which has the values and no advice.
//!
//! Each operation has its own error type, whose variants carry the values that failed, and whose `code()` is librpma's number for it
//! ([`ErrorCode`]).
// Without the feature there is no such type, and the link leads to the section that it stands in.
#![cfg_attr(not(feature = "soft"), doc = "", doc = "[`soft::Soft`]: #which-provider")]
#![forbid(unsafe_code)]

mod provider;
#[cfg(all(feature = "testing", feature = "soft"))]
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use provider::{PROVIDER_VARIABLE, Provider, ProviderError};
pub use rpma_cm::*;
pub use rpma_mr::sys::owned::CmEventKind;
pub use rpma_mr::sys::{LoadError, ProviderRef};
pub use rpma_mr::*;
/// The software provider: RDMA in user space over TCP.
#[cfg(feature = "soft")]
pub use rpma_soft as soft;

#[cfg(doc)]
#[doc = include_str!("../librpma-map.md")]
pub mod librpma_map {}

/// What most programs need: `use rpma::prelude::*`.
///
/// Import this, and not `rpma::*`: that has a module `tokio` (with the feature of this name), and then `tokio::spawn` is ambiguous in a
/// program that uses the crate.
pub mod prelude {
    pub use std::time::Duration;

    pub use crate::{
        AnonPages, Async, Batch, Completion, CompletionQueue, Conn, ConnCfg, ConnEvent, ConnReq, CqError, DaxDevice, Device,
        Dispatcher, Endpoint, ErrorCode, EstablishError, FlushType, Incoming, Inline, Listener, LocalMr, LocalSlice, MappedFile,
        MrDescriptor, OpMode, OpPath, Operation, Outcome, Outgoing, Peer, PeerCfg, PendingConn, PendingEvent, PersistentMemory,
        PostError, Provider, ProviderRef, RegionOwner, RemoteMr, RemoteSlice, Signal, Signals, Srq, SrqCfg, Usage, Wait,
    };
}
