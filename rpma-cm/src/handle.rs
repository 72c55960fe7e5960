//! What both handles on a connection have, established or not.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::QpCap;

use crate::completion::Completion;
use crate::conn::Conn;
use crate::cq::{self, CompletionQueue, CqError, CqRole, Fired};
use crate::peer::Peer;
use crate::pending::PendingConn;
use crate::wait::Wait;

/// The connection could not be ended in an orderly way.
#[derive(Debug, thiserror::Error)]
#[error("the connection manager refused to disconnect")]
pub struct DisconnectError(#[source] io::Error);

impl DisconnectError {
    /// The code that librpma gives for this: `rpma_conn_disconnect(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        ErrorCode::Provider
    }
}

/// The calls that both handles have.
macro_rules! common_calls {
    ($handle:ident) => {
        impl $handle {
            /// The completion queue: `rpma_conn_get_cq(3)`.
            ///
            /// ```
            /// use rpma::prelude::*;
            ///
            /// # let (conn, server) = rpma::testing::pair()?;
            /// # server.recv(LocalSlice::null(), 1)?;
            /// conn.send(LocalSlice::null(), Signal::Always, 2)?;
            /// let completion = conn.cq().wait(Duration::from_secs(10))?;
            /// assert_eq!((completion.context(), completion.result()), (2, Ok(Outcome::Done)));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[doc(alias = "rpma_conn_get_cq")]
            #[must_use]
            pub fn cq(&self) -> CompletionQueue {
                CompletionQueue::main(&self.0)
            }

            /// The receive CQ: `rpma_conn_get_rcq(3)`. `None` if the connection has none ([`ConnCfg::rcq_size`](crate::ConnCfg::rcq_size)
            /// is 0), and if its shared receive queue has a CQ of its own.
            ///
            /// ```
            /// use rpma::prelude::*;
            ///
            /// # let peer = rpma::testing::peer()?;
            /// # let connect = |cfg: &ConnCfg| rpma::testing::pair_with(&peer, &ConnCfg::new(), cfg);
            /// let (client, conn) = connect(&ConnCfg::new().rcq_size(10))?;
            /// let rcq = conn.rcq().ok_or("has one")?;
            /// // One thread takes what arrives, whatever the other one sends.
            /// let receiver = std::thread::spawn(move || rcq.wait(Duration::from_secs(10)).map(|got| got.context()));
            /// conn.recv(LocalSlice::null(), 7)?;
            /// client.send(LocalSlice::null(), Signal::OnError, 1)?;
            /// assert_eq!(receiver.join().map_err(|_| "panicked")??, 7);
            /// assert!(connect(&ConnCfg::new())?.1.rcq().is_none()); // by default
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[doc(alias = "rpma_conn_get_rcq")]
            #[must_use]
            pub fn rcq(&self) -> Option<CompletionQueue> {
                CompletionQueue::receive(&self.0)
            }

            /// Waits for a completion in the main or the receive CQ, which share their channel, takes it, and says where it was:
            /// `rpma_conn_wait(3)` and `rpma_cq_get_wc(3)` in one. Where there is something in both, they take turns.
            ///
            /// Watches the connection as [`CompletionQueue::wait`] does.
            ///
            /// ```
            /// use rpma::{CqRole, prelude::*};
            ///
            /// # let peer = rpma::testing::peer()?;
            /// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
            /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
            /// # server.recv(LocalSlice::null(), 0)?;
            /// conn.send(LocalSlice::null(), Signal::Always, 1)?;
            /// let (role, completion) = conn.wait(Duration::from_secs(10))?;
            /// assert_eq!((role, completion.context()), (CqRole::Main, 1));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            ///
            /// [`CqError::NotSharedChannel`] without [`ConnCfg::shared_channel`](crate::ConnCfg::shared_channel); else as
            /// [`CompletionQueue::wait`].
            #[doc(alias = "rpma_conn_wait")]
            pub fn wait(&self, wait: impl Into<Wait>) -> Result<(CqRole, Completion), CqError> {
                cq::wait_any(&self.0, wait.into())
            }

            /// For event loops, where the queues share their channel: takes the events that are there, says which queues they were of,
            /// and asks for one on the next completion of each: `rpma_conn_wait(3)`. Poll those queues until nothing is left after this,
            /// and both after the first time.
            ///
            /// ```
            /// use rpma::{Fired, prelude::*};
            /// use rustix::event::{PollFd, PollFlags, poll};
            ///
            /// # let peer = rpma::testing::peer()?;
            /// # let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
            /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
            /// let rcq = conn.rcq().ok_or("has one")?;
            /// conn.recv(LocalSlice::null(), 1)?;
            /// assert_eq!(conn.arm()?, Fired { main: false, receive: false }); // the first time: nothing yet
            /// assert_eq!((conn.cq().poll()?, rcq.poll()?), (None, None));
            /// # server.send(LocalSlice::null(), Signal::Always, 0)?; // the peer's message
            /// # server.cq().wait(Duration::from_secs(10))?.result()?;
            /// poll(&mut [PollFd::from_borrowed_fd(conn.compl_fd()?, PollFlags::IN)], None)?; // or the event loop's call
            /// assert_eq!(conn.arm()?, Fired { main: false, receive: true });
            /// assert_eq!(rcq.poll()?.map(|got| got.context()), Some(1));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            ///
            /// [`CqError::NotSharedChannel`] as for [`wait`](Self::wait), [`CqError::Provider`].
            #[doc(alias = "rpma_conn_wait")]
            pub fn arm(&self) -> Result<Fired, CqError> {
                cq::arm_all(&self.0)
            }

            /// The descriptor of the shared completion channel: `rpma_conn_get_compl_fd(3)`. Readable after a completion in any of the
            /// queues, if [`arm`](Self::arm) was called before it.
            ///
            /// ```
            /// use std::os::fd::AsRawFd;
            /// use rpma::{CqError, prelude::*};
            ///
            /// # let peer = rpma::testing::peer()?;
            /// let cfg = ConnCfg::new().rcq_size(10).shared_channel(true);
            /// # let (conn, other) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
            /// let number = conn.compl_fd()?.as_raw_fd(); // for an event loop
            /// assert!(number >= 0);
            /// assert!(matches!(other.compl_fd(), Err(CqError::NotSharedChannel))); // made without
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            ///
            /// [`CqError::NotSharedChannel`] as for [`wait`](Self::wait).
            #[doc(alias = "rpma_conn_get_compl_fd")]
            pub fn compl_fd(&self) -> Result<BorrowedFd<'_>, CqError> {
                cq::shares_channel(&self.0)?;
                Ok(self.0.main.cq.as_fd())
            }

            /// Ends the connection: `rpma_conn_disconnect(3)`. What is posted completes with errors;
            /// [`ConnEvent::Closed`](crate::ConnEvent::Closed) follows when the other side has answered. After the other side has ended it
            /// this succeeds and does nothing.
            ///
            /// ```
            /// use rpma::{CqError, prelude::*};
            ///
            /// # let (conn, server) = rpma::testing::pair()?;
            /// conn.recv(LocalSlice::null(), 1)?;
            /// conn.disconnect()?;
            /// # assert_eq!(server.next_event(Duration::from_secs(10))?, ConnEvent::Closed);
            /// # server.disconnect()?; // the other side's answer
            /// assert_eq!(conn.next_event(Duration::from_secs(10))?, ConnEvent::Closed);
            /// let outstanding = conn.cq().wait(Duration::from_secs(10))?;
            /// assert!(outstanding.result().is_err_and(|e| e.is_flushed()));
            /// assert!(matches!(conn.cq().wait(Wait::Forever), Err(CqError::Drained))); // none will come
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            ///
            /// [`DisconnectError`].
            #[doc(alias = "rpma_conn_disconnect")]
            pub fn disconnect(&self) -> Result<(), DisconnectError> {
                self.0.disconnect().map_err(DisconnectError)
            }

            /// What the peer sent when it asked or accepted: `rpma_conn_get_private_data(3)`. On the client's side it is there once the
            /// connection is established. The connection manager's whole field (56 or 196 bytes over RoCE and InfiniBand), with zeros
            /// where the peer sent less.
            ///
            /// ```
            /// use rpma::prelude::*;
            ///
            /// # let peer = rpma::testing::peer()?;
            /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
            /// # let addr = endpoint.local_addr().ok_or("listening")?;
            /// # let region = peer.register(AnonPages::new(4096)?, Usage::WRITE_DST)?;
            /// # let pending = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
            /// # let server = endpoint.next_conn_req(&ConnCfg::new(), Duration::from_secs(10))?.connect(&region.descriptor().to_bytes())?;
            /// let conn = pending.established(Duration::from_secs(10))?;
            /// let target = RemoteMr::from_descriptor(conn.private_data())?; // what the peer accepted with
            /// assert_eq!(target.len_bytes(), 4096);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[doc(alias = "rpma_conn_get_private_data")]
            #[must_use]
            pub fn private_data(&self) -> &[u8] {
                self.0.private_data()
            }

            /// The local address.
            #[must_use]
            pub fn local_addr(&self) -> Option<SocketAddr> {
                self.0.local_addr
            }

            /// The peer's address.
            #[must_use]
            pub fn peer_addr(&self) -> Option<SocketAddr> {
                self.0.peer_addr
            }

            /// The number of the queue pair: `rpma_conn_get_qp_num(3)`.
            ///
            /// ```
            /// use rpma::prelude::*;
            ///
            /// # let (conn, server) = rpma::testing::pair()?;
            /// # server.recv(LocalSlice::null(), 0)?;
            /// conn.send(LocalSlice::null(), Signal::Always, 1)?;
            /// let completion = conn.cq().wait(Duration::from_secs(10))?;
            /// assert_eq!(completion.qp_num(), conn.qp_num()); // whose it is, where several share a queue
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[doc(alias = "rpma_conn_get_qp_num")]
            #[must_use]
            pub fn qp_num(&self) -> u32 {
                self.0.qp.number()
            }

            /// The sizes that the device granted, which are what was asked for or more.
            ///
            /// ```
            /// use rpma::prelude::*;
            ///
            /// # let peer = rpma::testing::peer()?;
            /// let cfg = ConnCfg::new().sq_size(100).recv_sge(2).inline_bytes(16);
            /// # let (conn, _) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
            /// let granted = conn.granted();
            /// assert!(granted.send_wr >= 100 && granted.recv_wr >= 10);
            /// assert!(granted.send_sge >= 1 && granted.recv_sge >= 2 && granted.inline_bytes >= 16);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            #[must_use]
            pub fn granted(&self) -> QpCap {
                self.0.qp.granted()
            }

            /// The peer object that the connection was made from.
            #[must_use]
            pub fn peer(&self) -> &Peer {
                &self.0.peer
            }

            /// Wakes every thread that waits for events or completions of this connection, now and from now on. Does not disconnect: it
            /// ends when the last handle is dropped. Its dispatcher, if it has one, goes on with it until then.
            ///
            /// ```
            /// use rpma::{CqError, prelude::*};
            ///
            /// # let (conn, _server) = rpma::testing::pair()?;
            /// let cq = conn.cq();
            /// let waiting = std::thread::spawn(move || cq.wait(Wait::Forever));
            /// conn.close();
            /// assert!(matches!(waiting.join(), Ok(Err(CqError::Closed))));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn close(&self) {
                self.0.close();
            }
        }

        impl AsFd for $handle {
            /// Readable while there is an event: `rpma_conn_get_event_fd(3)`. The same descriptor before and after the connection is
            /// established.
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.readable()
            }
        }

        impl fmt::Debug for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($handle))
                    .field("local_addr", &self.0.local_addr)
                    .field("peer_addr", &self.0.peer_addr)
                    .field("qp_num", &self.0.qp.number())
                    .finish_non_exhaustive()
            }
        }
    };
}

common_calls!(PendingConn);
common_calls!(Conn);
