//! Asynchronous events of a device.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma_mr::sys::bindings::*;
use rpma_mr::sys::owned::{AsyncElement, AsyncEvent, AsyncEvents};
use rpma_mr::{Device, ErrorCode};

use crate::cq::CompletionQueue;
use crate::srq::Srq;
use crate::wait::{Flag, Wait, any_of, until_readable};

/// What happened, by `ibv_get_async_event(3)`.
///
/// ```
/// use rpma::{DeviceEventError, DeviceEventKind, DeviceEvents, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// let events = DeviceEvents::of(peer.device())?;
/// // Whether the device failed, as far as was told until now.
/// let failed = loop {
///     match events.next_event(Wait::Now) {
///         Ok(event) if event.kind() == DeviceEventKind::DeviceFatal => break true,
///         Ok(event) => println!("{event:?}"),
///         Err(DeviceEventError::NoEvent) => break false,
///         Err(e) => return Err(e.into()),
///     }
/// };
/// assert!(!failed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceEventKind {
    /// A queue pair failed and is in the error state.
    QpFatal,
    /// The peer sent something invalid; the queue pair is in the error state.
    QpRequestError,
    /// The peer asked for what it may not access; the queue pair is in the error state.
    QpAccessError,
    /// Something arrived on a connection before its ESTABLISHED did.
    CommunicationEstablished,
    /// The send queue that was to be drained is.
    SendQueueDrained,
    /// A connection goes by its alternate path.
    PathMigrated,
    /// A connection could not go by its alternate path.
    PathMigrationError,
    /// A queue pair in the error state takes no more receives from its shared queue, and has completed all that it took.
    /// (The soft-RoCE of Linux 6.1 never says so, that of 6.12 does.)
    LastReceive,
    /// A completion queue overflowed or failed, and can no longer be used; nor can its queue pairs.
    CqError,
    /// A shared receive queue failed.
    SrqError,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached,
    /// A port works.
    PortActive,
    /// A port does not work.
    PortError,
    /// A port's local identifier changed.
    LidChange,
    /// A port's partition keys changed.
    PkeyChange,
    /// A port has another subnet manager.
    SubnetManagerChange,
    /// A port's subnet manager asks for all subscriptions again.
    ClientReregister,
    /// A port's addresses changed.
    GidChange,
    /// The device failed: all that was made with it is lost.
    DeviceFatal,
    /// Another one, with its number.
    Other(u32),
}

impl DeviceEventKind {
    fn of(raw: ibv_event_type) -> Self {
        match raw {
            IBV_EVENT_QP_FATAL => Self::QpFatal,
            IBV_EVENT_QP_REQ_ERR => Self::QpRequestError,
            IBV_EVENT_QP_ACCESS_ERR => Self::QpAccessError,
            IBV_EVENT_COMM_EST => Self::CommunicationEstablished,
            IBV_EVENT_SQ_DRAINED => Self::SendQueueDrained,
            IBV_EVENT_PATH_MIG => Self::PathMigrated,
            IBV_EVENT_PATH_MIG_ERR => Self::PathMigrationError,
            IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastReceive,
            IBV_EVENT_CQ_ERR => Self::CqError,
            IBV_EVENT_SRQ_ERR => Self::SrqError,
            IBV_EVENT_SRQ_LIMIT_REACHED => Self::SrqLimitReached,
            IBV_EVENT_PORT_ACTIVE => Self::PortActive,
            IBV_EVENT_PORT_ERR => Self::PortError,
            IBV_EVENT_LID_CHANGE => Self::LidChange,
            IBV_EVENT_PKEY_CHANGE => Self::PkeyChange,
            IBV_EVENT_SM_CHANGE => Self::SubnetManagerChange,
            IBV_EVENT_CLIENT_REREGISTER => Self::ClientReregister,
            IBV_EVENT_GID_CHANGE => Self::GidChange,
            IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            other => Self::Other(other),
        }
    }
}

/// What an event is about.
///
/// ```
/// use rpma::{DeviceEventKind, DeviceEventSubject, DeviceEvents, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let srq = peer.new_srq(&SrqCfg::new())?;
/// # let cfg = ConnCfg::new().srq(&srq);
/// # let (client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
/// # let events = DeviceEvents::of(peer.device())?;
/// # client.disconnect()?;
/// # conn.next_event(Duration::from_secs(10))?;
/// // A connection on a shared receive queue ends.
/// let event = events.next_event(Duration::from_secs(10))?;
/// assert_eq!(event.kind(), DeviceEventKind::LastReceive);
/// assert_eq!(event.subject(), DeviceEventSubject::Qp(conn.qp_num()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceEventSubject {
    /// The queue pair of this number: [`Conn::qp_num`](crate::Conn::qp_num) of a connection, if it is one of ours.
    Qp(u32),
    /// A completion queue: [`DeviceEvent::is_about_cq`] says which.
    CompletionQueue,
    /// A shared receive queue: [`DeviceEvent::is_about_srq`] says which.
    SharedReceiveQueue,
    /// The port of this number, counted from 1.
    Port(u32),
    /// The device, or something that this library does not make.
    Device,
}

/// An event of a device. It is acknowledged already: what it is about can be dropped at any time.
///
/// ```
/// use rpma::{DeviceEventSubject, DeviceEvents, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let srq = peer.new_srq(&SrqCfg::new())?;
/// # let cfg = ConnCfg::new().srq(&srq);
/// # let (client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
/// # let events = DeviceEvents::of(peer.device())?;
/// # client.disconnect()?;
/// # conn.next_event(Duration::from_secs(10))?;
/// let event = events.next_event(Duration::from_secs(10))?;
/// println!("{:?} of {:?}", event.kind(), event.subject());
/// // Which queue it is about, if it is about one.
/// assert!(!event.is_about_srq(&srq) && !event.is_about_cq(&conn.cq()));
/// assert!(matches!(event.subject(), DeviceEventSubject::Qp(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceEvent(AsyncEvent);

impl DeviceEvent {
    /// What happened.
    #[must_use]
    pub fn kind(&self) -> DeviceEventKind {
        DeviceEventKind::of(self.0.kind)
    }

    /// What it is about.
    #[must_use]
    pub fn subject(&self) -> DeviceEventSubject {
        match self.0.element {
            AsyncElement::Qp(number) => DeviceEventSubject::Qp(number),
            AsyncElement::Cq => DeviceEventSubject::CompletionQueue,
            AsyncElement::Srq => DeviceEventSubject::SharedReceiveQueue,
            AsyncElement::Port(number) => DeviceEventSubject::Port(number),
            AsyncElement::Device => DeviceEventSubject::Device,
        }
    }

    /// Whether it is about this completion queue, which must have been there when the event was taken.
    #[must_use]
    pub fn is_about_cq(&self, cq: &CompletionQueue) -> bool {
        self.0.is_about_cq(cq.raw())
    }

    /// Whether it is about this shared receive queue, which must have been there when the event was taken.
    #[must_use]
    pub fn is_about_srq(&self, srq: &Srq) -> bool {
        self.0.is_about_srq(srq.raw())
    }
}

/// Why no event of a device could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceEventError {
    /// There was none within the time given.
    #[error("no event of the device within the time given")]
    NoEvent,
    /// The stream was closed from another thread.
    #[error("the device's events were closed while waiting for one")]
    Closed,
    /// The provider refused, or no descriptor is left.
    #[error("the device gives no events")]
    Provider(#[source] io::Error),
}

impl DeviceEventError {
    /// The code that librpma gives for a wait that fails like this. (C's librpma has no such events.)
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoEvent | Self::Closed => ErrorCode::NoEvent,
            Self::Provider(_) => ErrorCode::Provider,
        }
    }
}

/// The asynchronous events of a device: what it tells that belongs to no completion and no connection, such as a port that went down or a
/// queue that failed. `ibv_get_async_event(3)`.
///
/// **A process has one stream of them per device**: if there are several of these for one device, each event is told to one of them, and so
/// is one that is taken by other code in the process. Make one, and tell who wants to know.
///
/// Nothing depends on reading them: what connections need to know of, their own events and completions say too.
///
/// Cloning is cheap and gives another handle on the same stream. [`Async`](crate::Async) makes waiting for the next event a future.
///
/// ```
/// use rpma::{DeviceEventKind, DeviceEventSubject, DeviceEvents, prelude::*};
///
/// # let peer = rpma::testing::peer()?;
/// # let srq = peer.new_srq(&SrqCfg::new())?;
/// # let cfg = ConnCfg::new().srq(&srq);
/// # let (client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
/// let events = DeviceEvents::of(peer.device())?;
/// # client.disconnect()?;
/// # conn.next_event(Duration::from_secs(10))?;
/// // A connection on a shared receive queue ends.
/// loop {
///     let event = events.next_event(Duration::from_secs(10))?;
///     match (event.kind(), event.subject()) {
///         (DeviceEventKind::PortError, DeviceEventSubject::Port(port)) => println!("port {port} is down"),
///         (DeviceEventKind::LastReceive, DeviceEventSubject::Qp(number)) => break assert_eq!(number, conn.qp_num()),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DeviceEvents(Arc<Inner>);

struct Inner {
    events: AsyncEvents,
    /// Set when the stream is closed.
    over: Flag,
    /// Readable while there is an event, and for ever once it is closed.
    readable: OwnedFd,
    closed: AtomicBool,
    device: Device,
}

impl DeviceEvents {
    /// The events of `device`.
    ///
    /// # Errors
    ///
    /// [`DeviceEventError::Provider`] if the process has no descriptor left.
    pub fn of(device: &Device) -> Result<Self, DeviceEventError> {
        let events = AsyncEvents::of(device.context()).map_err(DeviceEventError::Provider)?;
        let over = Flag::new().map_err(DeviceEventError::Provider)?;
        let readable = any_of(&[events.as_fd(), over.as_fd()]).map_err(DeviceEventError::Provider)?;
        Ok(Self(Arc::new(Inner { events, over, readable, closed: AtomicBool::new(false), device: device.clone() })))
    }

    /// Waits for the next event. Several threads may wait; each event is told to one of them.
    ///
    /// # Errors
    ///
    /// [`DeviceEventError`].
    pub fn next_event(&self, wait: impl Into<Wait>) -> Result<DeviceEvent, DeviceEventError> {
        let wait = wait.into();
        loop {
            if self.0.closed.load(Ordering::SeqCst) {
                return Err(DeviceEventError::Closed);
            }
            if let Some(event) = self.0.events.take().map_err(DeviceEventError::Provider)? {
                return Ok(DeviceEvent(event));
            }
            if !until_readable(&[self.as_fd()], wait).map_err(DeviceEventError::Provider)? {
                return Err(DeviceEventError::NoEvent);
            }
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Wakes every thread and task that waits for an event, now and from now on.
    ///
    /// ```
    /// use rpma::{DeviceEventError, DeviceEvents, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let events = DeviceEvents::of(peer.device())?;
    /// let waiting = std::thread::spawn({
    ///     let events = events.clone();
    ///     move || events.next_event(Wait::Forever)
    /// });
    /// events.close();
    /// assert!(matches!(waiting.join(), Ok(Err(DeviceEventError::Closed))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.over.set();
    }
}

impl AsFd for DeviceEvents {
    /// Readable while there is an event, and once the stream is closed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

impl fmt::Debug for DeviceEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEvents").field("device", &self.0.device.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_verbs_have_has_a_name_of_its_own() {
        let kinds: Vec<_> = (IBV_EVENT_CQ_ERR..=IBV_EVENT_GID_CHANGE).map(DeviceEventKind::of).collect();
        assert_eq!(kinds.len(), 19);
        let mut distinct = std::collections::HashSet::new();
        for kind in kinds {
            assert!(!matches!(kind, DeviceEventKind::Other(_)) && distinct.insert(kind), "{kind:?}");
        }
        assert_eq!(DeviceEventKind::of(77), DeviceEventKind::Other(77));
    }
}
