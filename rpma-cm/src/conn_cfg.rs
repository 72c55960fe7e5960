//! Connection parameters.

use std::time::Duration;

/// How flushes, or atomic writes, are made on a connection.
///
/// What is right concerns both ends: a native FLUSH needs a target device that knows it, the emulation by a READ a target region with
/// remote-read (spec: librpma 1.3.0 chooses by its own end alone).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpMode {
    /// Native where our queue pair has it and the peer's configuration does not say that its device has none.
    #[default]
    Automatic,
    /// Native always; a queue pair without it is an error when the connection is made.
    Native,
    /// Emulated always: a flush by an RDMA READ, an atomic write by an inline RDMA WRITE of 8 bytes.
    Emulated,
}

/// Parameters of a connection: `rpma_conn_cfg_new(3)`. It is read when a request is made, and may be dropped or used again after that.
///
/// Queue sizes are minima: providers round up, and the sizes that were granted can be asked for. Any size can be set; one that the
/// device cannot give is an error when the request is made.
///
/// ```
/// use std::time::Duration;
/// use rpma_cm::ConnCfg;
///
/// let cfg = ConnCfg::new().sq_size(64).timeout(Duration::from_secs(5));
/// assert_eq!(cfg.get_sq_size(), 64);
/// assert_eq!(cfg.get_rq_size(), 10);
/// ```
#[doc(alias = "rpma_conn_cfg_new")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnCfg {
    timeout: Duration,
    cq_size: u32,
    sq_size: u32,
    rq_size: u32,
    flush_mode: OpMode,
    atomic_write_mode: OpMode,
}

impl Default for ConnCfg {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            cq_size: 10,
            sq_size: 10,
            rq_size: 10,
            flush_mode: OpMode::Automatic,
            atomic_write_mode: OpMode::Automatic,
        }
    }
}

impl ConnCfg {
    /// The defaults of librpma: 1 s, and 10 entries for each queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long resolving the peer's address and the route to it may take, together: `rpma_conn_cfg_set_timeout(3)`.
    #[doc(alias = "rpma_conn_cfg_set_timeout")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Completions that the completion queue holds: `rpma_conn_cfg_set_cq_size(3)`.
    ///
    /// The queue is made larger where this is less than what can complete into it at once (send queue plus receive queue): a completion
    /// queue that overflows takes its connection with it.
    #[doc(alias = "rpma_conn_cfg_set_cq_size")]
    #[must_use]
    pub fn cq_size(mut self, cq_size: u32) -> Self {
        self.cq_size = cq_size;
        self
    }

    /// Requests that can be posted to the send queue and not yet polled: `rpma_conn_cfg_set_sq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_set_sq_size")]
    #[must_use]
    pub fn sq_size(mut self, sq_size: u32) -> Self {
        self.sq_size = sq_size;
        self
    }

    /// Receives that can be posted and not yet polled: `rpma_conn_cfg_set_rq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_set_rq_size")]
    #[must_use]
    pub fn rq_size(mut self, rq_size: u32) -> Self {
        self.rq_size = rq_size;
        self
    }

    /// How flushes are made.
    #[must_use]
    pub fn flush_mode(mut self, mode: OpMode) -> Self {
        self.flush_mode = mode;
        self
    }

    /// How atomic writes are made.
    #[must_use]
    pub fn atomic_write_mode(mut self, mode: OpMode) -> Self {
        self.atomic_write_mode = mode;
        self
    }

    /// `rpma_conn_cfg_get_timeout(3)`.
    #[doc(alias = "rpma_conn_cfg_get_timeout")]
    #[must_use]
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }

    /// What was set: `rpma_conn_cfg_get_cq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_cq_size")]
    #[must_use]
    pub fn get_cq_size(&self) -> u32 {
        self.cq_size
    }

    /// What was set: `rpma_conn_cfg_get_sq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_sq_size")]
    #[must_use]
    pub fn get_sq_size(&self) -> u32 {
        self.sq_size
    }

    /// What was set: `rpma_conn_cfg_get_rq_size(3)`.
    #[doc(alias = "rpma_conn_cfg_get_rq_size")]
    #[must_use]
    pub fn get_rq_size(&self) -> u32 {
        self.rq_size
    }

    /// How flushes are made.
    #[must_use]
    pub fn get_flush_mode(&self) -> OpMode {
        self.flush_mode
    }

    /// How atomic writes are made.
    #[must_use]
    pub fn get_atomic_write_mode(&self) -> OpMode {
        self.atomic_write_mode
    }

    /// Room for everything that can complete at once (our marker behind the last request included), or what was asked for if that is
    /// more; verbs count in a signed int.
    pub(crate) fn cqe(&self) -> i32 {
        let needed = self.sq_size.saturating_add(self.rq_size).saturating_add(1).max(self.cq_size);
        i32::try_from(needed).unwrap_or(i32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_librpma() {
        let cfg = ConnCfg::new();
        assert_eq!(cfg.get_timeout(), Duration::from_millis(1000));
        assert_eq!((cfg.get_cq_size(), cfg.get_sq_size(), cfg.get_rq_size()), (10, 10, 10));
    }

    #[test]
    fn completion_queue_has_room_for_all_that_can_complete_at_once() {
        assert_eq!(ConnCfg::new().cqe(), 21);
        assert_eq!(ConnCfg::new().cq_size(1).sq_size(4).rq_size(0).cqe(), 5);
        assert_eq!(ConnCfg::new().cq_size(100).cqe(), 100);
    }

    #[test]
    fn sizes_over_int_max_are_passed_as_int_max() {
        assert_eq!(ConnCfg::new().cq_size(u32::MAX).cqe(), i32::MAX);
        assert_eq!(ConnCfg::new().sq_size(u32::MAX).rq_size(u32::MAX).cqe(), i32::MAX);
        assert_eq!(ConnCfg::new().cq_size(u32::MAX).get_cq_size(), u32::MAX);
    }
}
