//! What a software device is like.

use std::time::Duration;

/// Properties of a software device: [`Soft::with_config`](crate::Soft::with_config).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftConfig {
    /// Whether it has native flush. Without, users flush by reading.
    pub native_flush: bool,
    /// Whether it has native atomic write. Without, users write 8 bytes.
    pub native_atomic_write: bool,
    /// Whether it says that it has on-demand paging. It pins no memory either way.
    pub on_demand_paging: bool,
    /// How long a host may show no sign of life when it is connected to. The kernel's connection manager takes about a minute.
    pub unreachable_after: Duration,
    /// How long a port on which nobody listens is tried again before the request counts as rejected. None: it is tried once.
    pub refused_after: Duration,
    /// How long the other end's program may take to answer a request, an accept or a disconnect.
    pub answer_after: Duration,
    /// How long a peer may make no progress at all, per retry of the connection's retry count and one more: the acknowledge time-out.
    /// With work outstanding the connection is over then: DISCONNECTED, and the work fails. Work whose connection is gone already fails
    /// after that too, whether or not the program reads the event that tells of the end.
    pub ack_timeout: Duration,
    /// How long the peer's machine may show no sign of life before the connection counts as over without work outstanding: DISCONNECTED. TCP asks for one four times in that time, in whole seconds. 2 s are the least; if the acknowledge time-out times the
    /// tries is longer, that counts. A peer whose program is stopped, and whose machine is not, is alive.
    pub vanished_after: Duration,
    /// How long after a connection's end the event `TIMEWAIT_EXIT` comes.
    pub time_wait: Duration,
}

impl Default for SoftConfig {
    /// Everything that the device can do. Times: 5 s until a host counts as unreachable, none until a port without a listener counts as
    /// refused, 2 minutes for answers (the kernel's accepting side asks for 68 s), 2.1 s acknowledge time-out (code 19 of InfiniBand's),
    /// 20 s until a peer counts as vanished (the 8 acknowledge time-outs of a connection with 7 retries are 17 s), 100 ms time-wait.
    fn default() -> Self {
        Self {
            native_flush: true,
            native_atomic_write: true,
            on_demand_paging: true,
            unreachable_after: Duration::from_secs(5),
            refused_after: Duration::ZERO,
            answer_after: Duration::from_secs(120),
            ack_timeout: Duration::from_millis(2_147),
            vanished_after: Duration::from_secs(20),
            time_wait: Duration::from_millis(100),
        }
    }
}

/// Longer is for ever, and no clock reaches that.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl SoftConfig {
    /// With times that can be added to an instant.
    pub(crate) fn within_what_clocks_reach(self) -> Self {
        Self {
            unreachable_after: self.unreachable_after.min(LONGEST),
            refused_after: self.refused_after.min(LONGEST),
            answer_after: self.answer_after.min(LONGEST),
            ack_timeout: self.ack_timeout.min(LONGEST),
            vanished_after: self.vanished_after.min(LONGEST),
            time_wait: self.time_wait.min(LONGEST),
            ..self
        }
    }

    /// Without native flush, native atomic write and on-demand paging: what users then emulate is emulated.
    #[must_use]
    pub fn without_native_operations(self) -> Self {
        Self { native_flush: false, native_atomic_write: false, on_demand_paging: false, ..self }
    }
}
