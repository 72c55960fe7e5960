//! Connecting the stream of `rdma_connect(3)`, and trying again at a port on which nobody listens yet.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::{Connection, State};
use crate::cm::StreamEnd;
use crate::driver::{Socket, Stream};
use crate::wire::{CmFrame, ConnectRequest};

/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_millis(5);

/// A connection that is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Knocking {
    request: ConnectRequest,
    /// A refusal after this is one.
    until: Instant,
    /// When it is tried again.
    pub(super) again: Option<Instant>,
}

impl Connection {
    /// Connects `socket`, for a request that the connection manager sends.
    pub(super) fn knock(&self, state: &mut State, socket: Socket, request: ConnectRequest, now: Instant) {
        state.knocking = Some(Knocking { request, until: now + self.device.config.refused_after, again: None });
        self.try_once(state, socket, request.destination, now);
    }

    fn try_once(&self, state: &mut State, socket: Socket, to: SocketAddr, now: Instant) {
        match self.driver.watch(&socket, self.token).and_then(|()| socket.connect(to)) {
            Ok(()) => {
                state.stream = Some(Stream::connecting(socket));
                Self::look_for_life(state, self.device.config.vanished_after);
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => knocked_in_vain(state, now),
            Err(e) => {
                log::info!("{to} cannot be reached: {e}");
                state.cm.stream_ended(now, StreamEnd::Unreachable);
            }
        }
    }

    /// Tries again if that is due, unless the program or the time has ended it.
    pub(super) fn knock_again(&self, state: &mut State, now: Instant) {
        let due = state.knocking.as_mut().filter(|knocking| knocking.again.is_some_and(|at| at <= now));
        let Some(Knocking { request, again, .. }) = due else { return };
        *again = None;
        let (request, from, to) = (*request, request.source, request.destination);
        if !state.cm.is_asking() {
            return;
        }
        // A socket that was refused has lost its port if the kernel had picked that: only a new one is bound to it for sure.
        match Socket::bound(from, None) {
            Ok(socket) => {
                state.options.tos.into_iter().for_each(|tos| socket.set_tos(tos));
                self.try_once(state, socket, to, now);
                // The connection manager's own went with the stream that was refused.
                if let Some(stream) = &mut state.stream {
                    stream.send(CmFrame::ConnectRequest(request));
                }
            }
            Err(e) => {
                log::info!("{to} is not tried again from {from}: {e}");
                state.cm.stream_ended(now, StreamEnd::Refused);
            }
        }
    }
}

/// Nobody listens: it is tried again after a while, or the request is refused.
pub(super) fn knocked_in_vain(state: &mut State, now: Instant) {
    let again = now + PAUSE;
    match &mut state.knocking {
        Some(knocking) if again <= knocking.until && state.cm.is_asking() => knocking.again = Some(again),
        _ => state.cm.stream_ended(now, StreamEnd::Refused),
    }
}
