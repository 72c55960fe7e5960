//! What is told about a queue pair besides completions.

/// Something happened to the queue pair that no completion tells: an affiliated asynchronous event of IBTA volume 1, 11.6.3, and of
/// `ibv_get_async_event(3)`.
///
/// Soft-RoCE knows the last of these only. What a peer's request does here is told as adapters tell it: by the completion of the receive
/// that the request took, or, where it took none, by an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpEvent {
    /// A request arrived before the queue pair was [ready to send](super::QpState::ReadyToSend): `IBV_EVENT_COMM_EST`.
    CommunicationEstablished,
    /// The peer asked for what it may not ask for: `IBV_EVENT_QP_REQ_ERR`.
    InvalidRequest,
    /// The peer named memory that its key does not open: `IBV_EVENT_QP_ACCESS_ERR`.
    AccessViolation,
    /// A request of the peer's failed through no fault of its own: `IBV_EVENT_QP_FATAL`.
    Fatal,
    /// The queue pair takes no more receives of its shared queue, and all that it took are completed: `IBV_EVENT_QP_LAST_WQE_REACHED`.
    LastReceive,
}
