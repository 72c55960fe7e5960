//! What happens to a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use rpma_mr::ErrorCode;
use rpma_mr::sys::owned::{CmEvent, CmEventKind};

/// Why a peer does not want the connection.
///
/// ```
/// use rpma::{PendingEvent, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
/// # let addr = endpoint.local_addr().ok_or("listening")?;
/// let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
/// # endpoint.next_request(Duration::from_secs(10))?.reject(b"no room")?; // the peer's answer
/// let PendingEvent::Rejected(rejection) = client.next_event(Duration::from_secs(10))? else { panic!("rejected") };
/// assert_eq!(rejection.reason, 28);
/// assert!(rejection.private_data.starts_with(b"no room"));
///
/// drop(endpoint); // nobody listens there any more
/// let client = ConnReq::new(&peer, addr, &ConnCfg::new())?.connect(&[])?;
/// let PendingEvent::Rejected(rejection) = client.next_event(Duration::from_secs(10))? else { panic!("rejected") };
/// assert_eq!(rejection.reason, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The transport's reason, `rdma_cm_event::status`: over InfiniBand and RoCE 8 if nobody listens on the port, 28 if the
    /// application rejects.
    pub reason: i32,
    /// What the peer said. The connection manager gives its whole field: 148 bytes over RoCE and InfiniBand, with zeros where nothing
    /// was sent; "nothing" cannot be told from zeros.
    pub private_data: Vec<u8>,
}

impl Rejection {
    /// The reasons that people meet (InfiniBand architecture, volume 1, table 104; the kernel's `enum ib_cm_rej_reason`).
    pub(crate) fn in_words(&self) -> &'static str {
        match self.reason {
            8 => ": nobody listens on that port",
            28 => ": the application there does not want it",
            _ => "",
        }
    }
}

impl fmt::Debug for Rejection {
    /// Without the zeros that the connection manager puts behind the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.private_data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        f.debug_struct("Rejection")
            .field("reason", &self.reason)
            .field("private_data", &format_args!("\"{}\"", self.private_data[..len].escape_ascii()))
            .finish()
    }
}

/// What happened to a connection: `rpma_conn_next_event(3)`.
///
/// ```
/// use rpma::prelude::*;
///
/// # let (conn, peer) = rpma::testing::pair()?;
/// # peer.disconnect()?; // the peer ends it
/// match conn.next_event(Duration::from_secs(10))? {
///     ConnEvent::Closed => conn.disconnect()?, // answers
///     ConnEvent::Lost => panic!("the device is gone"),
///     ConnEvent::Established | ConnEvent::Rejected(_) | ConnEvent::Unreachable => unreachable!("it is established"),
/// }
/// assert_eq!(peer.next_event(Duration::from_secs(10))?, ConnEvent::Closed); // the other side has the answer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rpma_utils_conn_event_2str")]
#[doc(alias = "rpma_conn_next_event")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnEvent {
    /// It is established: both sides can post.
    Established,
    /// The peer disconnected, or answered our own disconnect; a second one can follow when the transport's time-wait is over, and it
    /// can come without [`Established`](Self::Established). Everything posted completes with an error.
    Closed,
    /// The connection manager could not bring the connection up, or the device is gone. Everything posted completes with an error.
    ///
    /// An operation that fails is told by its completion, and not by an event: after one, the connection takes no more, and whoever reads
    /// that ends it with `disconnect`, which the other side then reads.
    Lost,
    /// The peer does not want the connection, or nobody listens there.
    Rejected(Rejection),
    /// The peer does not answer.
    Unreachable,
}

/// Why no event could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// There was none within the time given.
    #[error("no connection event within the time given")]
    NoEvent,
    /// The connection was closed from another thread.
    #[error("the connection was closed while waiting for its events")]
    Closed,
    /// The connection manager reported something that means nothing to a connection. It is acknowledged; the connection goes on.
    #[error("the connection manager reported {kind:?} (status {status}), which means nothing to a connection; it goes on")]
    #[expect(missing_docs, reason = "the message explains its fields")]
    Unexpected { kind: CmEventKind, status: i32 },
    /// The connection manager refused.
    #[error("the connection manager gives no event")]
    Provider(#[source] io::Error),
}

impl EventError {
    /// The code that librpma gives for this: `rpma_conn_next_event(3)`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoEvent | Self::Closed => ErrorCode::NoEvent,
            Self::Unexpected { .. } => ErrorCode::Unknown,
            Self::Provider(_) => ErrorCode::Provider,
        }
    }
}

/// For messages: an address behind whose it is, if it is known.
pub(crate) fn shown(addr: &Option<SocketAddr>) -> String {
    addr.map_or_else(String::new, |addr| format!(" {addr}"))
}

/// An event as it waits to be read.
#[derive(Debug)]
pub(crate) enum Queued {
    Event(ConnEvent),
    Unexpected { kind: CmEventKind, status: i32 },
}

impl Queued {
    pub(crate) fn from_cm(event: &CmEvent) -> Self {
        Self::Event(match event.kind {
            CmEventKind::Established => ConnEvent::Established,
            CmEventKind::ConnectError | CmEventKind::DeviceRemoval => ConnEvent::Lost,
            CmEventKind::Disconnected | CmEventKind::TimewaitExit => ConnEvent::Closed,
            CmEventKind::Rejected => {
                ConnEvent::Rejected(Rejection { reason: event.status, private_data: event.private_data.clone() })
            }
            CmEventKind::Unreachable => ConnEvent::Unreachable,
            kind @ (CmEventKind::AddrResolved
            | CmEventKind::AddrError
            | CmEventKind::RouteResolved
            | CmEventKind::RouteError
            | CmEventKind::ConnectRequest
            | CmEventKind::ConnectResponse
            | CmEventKind::AddrChange
            | CmEventKind::Other(_)) => return Self::Unexpected { kind, status: event.status },
        })
    }

    pub(crate) fn into_result(self) -> Result<ConnEvent, EventError> {
        match self {
            Self::Event(event) => Ok(event),
            Self::Unexpected { kind, status } => Err(EventError::Unexpected { kind, status }),
        }
    }
}

/// Whether nothing can be transferred any more after an event of this kind. On soft-RoCE nothing completes by itself then, whatever the
/// retry settings (none in 170 s, measured), so reading it must move the queue pair to the error state.
pub(crate) fn ends_the_connection(kind: CmEventKind) -> bool {
    matches!(
        kind,
        CmEventKind::Disconnected
            | CmEventKind::Rejected
            | CmEventKind::ConnectError
            | CmEventKind::Unreachable
            | CmEventKind::DeviceRemoval
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(kind: CmEventKind) -> Result<ConnEvent, EventError> {
        let event = CmEvent { kind, status: -7, private_data: vec![1], responder_resources: 0, initiator_depth: 0, new_id: None };
        Queued::from_cm(&event).into_result()
    }

    /// The table of spec §5, one row per event of the connection manager.
    #[test]
    fn connection_manager_s_events_translate_as_in_librpma() {
        use CmEventKind as Cm;
        assert_eq!(translated(Cm::Established).unwrap(), ConnEvent::Established);
        for kind in [Cm::ConnectError, Cm::DeviceRemoval] {
            assert_eq!(translated(kind).unwrap(), ConnEvent::Lost);
        }
        for kind in [Cm::Disconnected, Cm::TimewaitExit] {
            assert_eq!(translated(kind).unwrap(), ConnEvent::Closed);
        }
        assert_eq!(translated(Cm::Rejected).unwrap(), ConnEvent::Rejected(Rejection { reason: -7, private_data: vec![1] }));
        assert_eq!(translated(Cm::Unreachable).unwrap(), ConnEvent::Unreachable);
        for kind in [
            Cm::AddrResolved,
            Cm::AddrError,
            Cm::RouteResolved,
            Cm::RouteError,
            Cm::ConnectRequest,
            Cm::ConnectResponse,
            Cm::AddrChange,
            Cm::Other(18),
        ] {
            let error = translated(kind).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Unknown);
            assert!(error.to_string().contains("status -7"));
        }
    }

    #[test]
    fn each_event_is_printed_by_its_name() {
        let rejected = ConnEvent::Rejected(Rejection { reason: 28, private_data: vec![1] });
        for (event, text) in [
            (ConnEvent::Established, "Established"),
            (ConnEvent::Closed, "Closed"),
            (ConnEvent::Lost, "Lost"),
            (rejected, "Rejected(Rejection { reason: 28, private_data: \"\\x01\" })"),
            (ConnEvent::Unreachable, "Unreachable"),
        ] {
            assert_eq!(format!("{event:?}"), text);
        }
    }
}
