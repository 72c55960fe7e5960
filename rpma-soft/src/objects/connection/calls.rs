//! The connection manager's calls on a connection, and what they do to its queue pair.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rpma_sys::bindings::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, ibv_access_flags,
};

use super::{Asked, Connection, State, invalid};
use crate::cm::{Kind, StreamEnd};
use crate::config::LONGEST;
use crate::driver::lock;
use crate::objects::device::{Device, limit};
use crate::objects::qp_state::Agreed;
use crate::rc::{RequesterConfig, ResponderConfig};
use crate::wire::{Accept, ConnectRequest, PrivateData, Reject, RnrTimer};

impl Connection {
    /// Tells the program something that needs no other end.
    pub(crate) fn announce(&self, kind: Kind) {
        let mut state = self.state();
        state.cm.tell(kind);
        self.run(&mut state);
    }

    /// `rdma_connect(3)`.
    pub(crate) fn connect(&self, request: ConnectRequest) -> io::Result<()> {
        let mut state = self.state();
        let now = Instant::now();
        let Some(socket) = state.bound.take() else { return Err(invalid()) };
        if state.cm.connect(now, request).is_err() {
            state.bound = Some(socket);
            return Err(invalid());
        }
        state.asked = Asked { retry: request.retry_count, resources: request.responder_resources };
        // TCP could connect a socket to itself.
        if request.source == request.destination {
            state.cm.stream_ended(now, StreamEnd::Refused);
        } else {
            self.knock(&mut state, socket, request, now);
        }
        self.run(&mut state);
        Ok(())
    }

    /// `rdma_accept(3)`, of a request.
    pub(crate) fn accept(&self, accept: Accept) -> io::Result<()> {
        let mut state = self.state();
        let Some(&request) = state.cm.request() else { return Err(invalid()) };
        let agreed = Agreed {
            peer: Some(request.qp_num),
            resources: accept.responder_resources,
            depth: accept.initiator_depth,
            rnr_retry: request.rnr_retry_count,
            retry: request.retry_count,
            ..Agreed::default()
        };
        self.ready_qp(&mut state, agreed)?;
        state.cm.accept(Instant::now(), accept).map_err(|_| invalid())?;
        self.told_of.store(true, Ordering::Release);
        self.run(&mut state);
        Ok(())
    }

    /// `rdma_reject(3)`.
    pub(crate) fn reject(&self, private_data: PrivateData<{ Reject::PRIVATE_DATA_BYTES }>) -> io::Result<()> {
        let mut state = self.state();
        state.cm.reject(private_data).map_err(|_| invalid())?;
        self.run(&mut state);
        Ok(())
    }

    /// `rdma_disconnect(3)`.
    pub(crate) fn disconnect(&self) -> io::Result<()> {
        let mut state = self.state();
        // Of a listener there is nothing to end, and that is no error in the kernel.
        if state.cm.is_idle() && state.listener.is_none() {
            return Err(invalid());
        }
        let state = &mut *state;
        if let Some(qp) = &mut state.qp {
            qp.core.move_to_error();
        }
        state.cm.disconnect(Instant::now());
        self.run(state);
        Ok(())
    }

    /// The program takes the answer to its request: its queue pair becomes ready, and the other end is told.
    pub(crate) fn establish(&self, accept: &Accept) -> io::Result<()> {
        let mut state = self.state();
        let asked = state.asked;
        let agreed = Agreed {
            peer: Some(accept.qp_num),
            // The peer cannot give itself what it was not offered: without resources it has no right to read.
            resources: accept.initiator_depth.min(asked.resources),
            // It may answer more than was wanted, as with soft-RoCE.
            depth: accept.responder_resources.min(limit::RD_ATOMIC),
            rnr_retry: accept.rnr_retry_count,
            retry: asked.retry,
            ..Agreed::default()
        };
        let ready = self.ready_qp(&mut state, agreed);
        match &ready {
            Ok(()) => state.cm.establish(),
            // Nothing else can be done with it; the other end is told.
            Err(_) => drop(state.cm.reject(PrivateData::default())),
        }
        self.run(&mut state);
        ready
    }

    /// The program has taken the answer to its request, and made a queue pair of its own ready: `rdma_establish(3)`.
    pub(crate) fn establish_without_qp(&self) -> io::Result<()> {
        let mut state = self.state();
        if !state.cm.is_answered() {
            return Err(invalid());
        }
        state.cm.establish();
        self.run(&mut state);
        Ok(())
    }

    /// The program knows before we do that the other end has seen the accept: `rdma_notify(3)`.
    pub(crate) fn notify_established(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.cm.is_established() {
            return Err(io::Error::from_raw_os_error(libc::EISCONN));
        }
        state.cm.notify_established().map_err(|_| invalid())?;
        self.run(&mut state);
        Ok(())
    }

    /// The connection did not come to be: the queue pair is of no use (`ucma_modify_qp_err` in librdmacm).
    pub(crate) fn qp_to_error(&self) {
        let mut state = self.state();
        if let Some(qp) = &mut state.qp {
            qp.core.move_to_error();
        }
        self.run(&mut state);
    }

    fn ready_qp(&self, state: &mut State, agreed: Agreed) -> io::Result<()> {
        let Some(qp) = &mut state.qp else { return Ok(()) };
        let config = &self.device.config;
        let tries = u32::from(agreed.retry) + 1;
        let (timeout, retry_time) = state.options.retry_time(config.ack_timeout, tries);
        let rnr_timer = RnrTimer::from_code(RNR_TIMER).expect("0 is a code");
        qp.core.to_ready_to_receive(ResponderConfig { resources: agreed.resources, rnr_timer }).map_err(|_| invalid())?;
        let requester = RequesterConfig { depth: agreed.depth, rnr_retry: agreed.rnr_retry, retry_time };
        qp.core.to_ready_to_send(requester).map_err(|_| invalid())?;
        qp.agreed = Agreed { timeout, rnr_timer: RNR_TIMER, ..agreed };
        qp.allow(allowed(&self.device, agreed.resources));
        // Work fails as a retry that was in vain, and not before.
        Self::look_for_life(state, config.vanished_after.max(retry_time.unwrap_or(LONGEST)));
        Ok(())
    }

    /// Ends the connection when its peer's machine shows no sign of life for `limit`.
    pub(in crate::objects) fn look_for_life(state: &mut State, limit: Duration) {
        let Some(stream) = &state.stream else { return };
        // TCP asks once a second at most.
        let limit = limit.max(Duration::from_secs(2));
        if let Err(e) = stream.socket().ask_for_life(limit / 4) {
            log::warn!("the other end's machine cannot be asked for signs of life: {e}");
            return;
        }
        state.vanished_after = limit;
        state.look_at = Some(Instant::now() + limit);
    }

    /// `rdma_destroy_id(3)`: the other end is told, no event comes any more, and those that the program took are acknowledged.
    pub(crate) fn destroy(&self) {
        self.gone.store(true, Ordering::Release);
        {
            let mut state = self.state();
            state.cm.destroy();
            self.run(&mut state);
            let (stream, listener) = (state.stream.take(), state.listener.take());
            state.bound = None;
            state.knocking = None;
            drop(state);
            if let Some(stream) = stream {
                stream.close();
            }
            drop(listener);
        }
        let channel = lock(&self.channel).take();
        let unread = channel.map(|channel| channel.remove(self));
        for request in unread.into_iter().flatten().filter_map(|waiting| waiting.child) {
            request.destroy();
        }
        self.driver.leave(self.token);
        self.events.wait();
    }
}

/// As the kernel's connection manager: 655 ms. `ibv_modify_qp(3)` has the table.
const RNR_TIMER: u8 = 0;

/// What the peer may ask for, as the kernel's connection manager sets it: `cm_init_qp_init_attr` in cm.c.
fn allowed(device: &Device, resources: u8) -> ibv_access_flags {
    let mut access = IBV_ACCESS_REMOTE_WRITE;
    if resources != 0 {
        access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        if device.config.native_flush {
            access |= IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;
        }
    }
    access
}
