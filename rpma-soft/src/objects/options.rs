//! Options of identifiers: `rdma_set_option(3)`.
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::time::Duration;

use rpma_sys::bindings::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};

use super::connection::{Connection, State, invalid};
use crate::driver::Socket;

/// The shortest retry time of a connection: processes lose their processor for tens of milliseconds, and a peer that is busy with a flush
/// says so every 50 ms.
const SHORTEST_RETRY_TIME: Duration = Duration::from_millis(200);

/// What was set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    /// The type of service of the connection's packets.
    pub(super) tos: Option<u8>,
    /// The code of the acknowledge time-out; 0: none.
    ack_timeout: Option<u8>,
    /// Whether the IPv6 wildcard address leaves out IPv4; else the system's default holds (`net.ipv6.bindv6only`).
    pub(super) v6only: Option<bool>,
}

impl Options {
    /// The code of the acknowledge time-out, and the time after which a connection with so many tries is given up.
    pub(super) fn retry_time(&self, default: Duration, tries: u32) -> (u8, Option<Duration>) {
        match self.ack_timeout {
            None => (ack_timeout_code(default), Some(default.saturating_mul(tries))),
            Some(0) => (0, None),
            Some(code) => (code, Some(ack_timeout(code).saturating_mul(tries).max(SHORTEST_RETRY_TIME))),
        }
    }
}

/// The code of an acknowledge time-out, rounded up: 4.096 µs times two to the power of it (`ibv_modify_qp(3)`).
fn ack_timeout_code(time: Duration) -> u8 {
    (1..31).find(|code| ack_timeout(*code) >= time).unwrap_or(31)
}

/// The acknowledge time-out with this code.
fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

impl Connection {
    /// `rdma_set_option(3)`, with the errors of the kernel's `ucma_set_option_level`.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
        let unknown = || io::Error::from_raw_os_error(libc::ENOSYS);
        let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| invalid());
        let flag = || <[u8; 4]>::try_from(value).map(|int| c_int::from_ne_bytes(int) != 0).map_err(|_| invalid());
        match (level.cast_unsigned(), name.cast_unsigned()) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => self.set_tos(byte()?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                // Longer than the field of a queue pair is: that would fail when it is made ready.
                let code = byte().ok().filter(|code| *code < 32).ok_or_else(invalid)?;
                self.state().options.ack_timeout = Some(code);
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                let reuse = flag()?;
                let state = self.state();
                // Sockets with a port of the program's choice always allow it.
                if state.local.is_some() && (!reuse || state.listener.is_some()) {
                    return Err(invalid());
                }
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => self.set_v6only(flag()?)?,
            // A path of InfiniBand's subnet administration: there is none here.
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return Err(invalid()),
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn set_tos(&self, tos: u8) {
        let mut state = self.state();
        state.options.tos = Some(tos);
        let State { bound, stream, listener, .. } = &*state;
        let sockets = [bound.as_ref(), stream.as_ref().map(|s| s.socket()), listener.as_ref().map(|l| l.socket())];
        sockets.into_iter().flatten().for_each(|socket| socket.set_tos(tos));
    }

    /// Before or after it is bound, and not later.
    fn set_v6only(&self, v6only: bool) -> io::Result<()> {
        let mut state = self.state();
        if state.peer.is_some() || state.listener.is_some() || !state.cm.is_idle() {
            return Err(invalid());
        }
        let asked = Options { v6only: Some(v6only), ..state.options };
        if let (Some(bound), Some(local)) = (&state.bound, state.local) {
            // A socket that is bound does not change its mind: another one takes its place.
            bound.allow_reuse()?;
            let socket = Socket::bound(local, asked.v6only)?;
            asked.tos.into_iter().for_each(|tos| socket.set_tos(tos));
            state.bound = Some(socket);
        }
        state.options = asked;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_time_out_has_the_code_that_infiniband_has_for_it() {
        assert_eq!(ack_timeout_code(crate::SoftConfig::default().ack_timeout), 19);
        assert_eq!([ack_timeout_code(Duration::ZERO), ack_timeout_code(Duration::MAX)], [1, 31]);
    }

    #[test]
    fn retry_time_is_of_all_tries_and_not_too_short_and_zero_is_for_ever() {
        let with = |ack_timeout| Options { ack_timeout, ..Options::default() }.retry_time(Duration::from_secs(1), 8);
        assert_eq!(with(None), (18, Some(Duration::from_secs(8))));
        assert_eq!(with(Some(0)), (0, None));
        assert_eq!(with(Some(1)), (1, Some(SHORTEST_RETRY_TIME)));
        assert_eq!(with(Some(18)), (18, Some(Duration::from_nanos(4096 << 21))));
        assert_eq!(with(Some(31)), (31, Some(Duration::from_nanos(4096 << 34))));
    }
}
