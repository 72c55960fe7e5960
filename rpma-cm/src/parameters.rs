//! What the transport and the connection manager are told about a connection, besides the sizes of its queues.

use std::io;
use std::time::Duration;

use rpma_mr::ErrorCode;
use rpma_mr::sys::bindings::{
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_TIMEOUT,
};
use rpma_mr::sys::owned::{Context, Qp};

use crate::conn_cfg::ConnCfg;

/// A parameter of a connection is outside its range: that of its field, or that of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} {value} is out of range: from {min} to {max}")]
#[expect(missing_docs, reason = "the message explains its fields")]
pub struct ParameterError {
    pub name: &'static str,
    pub value: u32,
    pub min: u32,
    pub max: u32,
}

impl ParameterError {
    /// The code that librpma gives for an argument out of range.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidArgument
    }

    fn check(name: &'static str, value: u32, min: u32, max: u32) -> Result<(), Self> {
        if (min..=max).contains(&value) { Ok(()) } else { Err(Self { name, value, min, max }) }
    }
}

/// As many reads and atomics at once as the device can; the connection manager negotiates (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const MOST: u8 = 255;
/// The transport has three bits for either number of retries. 7 receiver-not-ready retries are without end.
const MAX_RETRIES: u8 = 7;
/// The transport has five bits for it.
const MAX_ACK_TIMEOUT: u8 = 31;

/// The time in microseconds that each code of the receiver-not-ready timer stands for: `ibv_modify_qp(3)`. They rise from code 1 on; code
/// 0 is the longest, and what the connection manager sets.
const RNR_TIMER_MICROS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680, 10_240, 15_360,
    20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];

fn rnr_timer(code: u8) -> Duration {
    let micros = RNR_TIMER_MICROS[usize::from(code) % RNR_TIMER_MICROS.len()];
    Duration::from_micros(micros.into())
}

/// Each is within the range of its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) ack_timeout: Option<u8>,
    /// A code.
    pub(crate) min_rnr_timer: Option<u8>,
    pub(crate) type_of_service: Option<u8>,
    pub(crate) completion_vector: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            retry_count: MAX_RETRIES,
            rnr_retry_count: MAX_RETRIES,
            responder_resources: MOST,
            initiator_depth: MOST,
            ack_timeout: None,
            min_rnr_timer: None,
            type_of_service: None,
            completion_vector: 0,
        }
    }
}

impl Parameters {
    /// Checks them against what the device has.
    pub(crate) fn check(&self, context: &Context) -> Result<(), ParameterError> {
        let vectors = context.completion_vectors();
        ParameterError::check("completion_vector", self.completion_vector, 0, vectors.saturating_sub(1))?;
        if self.responder_resources == MOST && self.initiator_depth == MOST {
            return Ok(());
        }
        // A device that cannot be asked is asked by the connection manager, which then refuses to connect.
        let Ok(attr) = context.query_device() else { return Ok(()) };
        let depth = |name, asked: u8, device: i32| match u32::try_from(device) {
            Ok(max) if asked != MOST => ParameterError::check(name, asked.into(), 1, max),
            _ => Ok(()),
        };
        depth("responder_resources", self.responder_resources, attr.orig_attr.max_qp_rd_atom)?;
        depth("initiator_depth", self.initiator_depth, attr.orig_attr.max_qp_init_rd_atom)
    }

    /// The initiator depth for accepting a peer that takes `peer_takes` at once: an explicit one is sent as it is.
    pub(crate) fn initiator_depth_towards(&self, peer_takes: u8) -> u8 {
        if self.initiator_depth == MOST { MOST } else { self.initiator_depth.min(peer_takes) }
    }
}

impl ConnCfg {
    /// How often a request that the peer's device does not answer is sent again, 0 to 7; 7 by default. The client's counts for both
    /// sides, and accepting ignores it. Soft-RoCE sends again without end with 7.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().retry_count(3)?;
    /// assert_eq!((cfg.get_retry_count(), ConnCfg::new().get_retry_count()), (3, 7));
    /// # let (client, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// // The client's counts for both.
    /// assert_eq!((client.negotiated()?.retry_count, server.negotiated()?.retry_count), (3, 3));
    /// assert!(ConnCfg::new().retry_count(8).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParameterError`] over 7.
    pub fn retry_count(mut self, retries: u8) -> Result<Self, ParameterError> {
        ParameterError::check("retry_count", retries.into(), 0, MAX_RETRIES.into())?;
        self.parameters.retry_count = retries;
        Ok(self)
    }

    /// How often the **peer** sends a message again that found no receive here, 0 to 6; 7, the default, is for ever. When they are used
    /// up, the peer's send fails (receiver not ready), and with it the connection.
    ///
    /// Each side says this to the other (`rnr_retry_count` in `rdma_connect(3)` and `rdma_accept(3)`).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let impatient = ConnCfg::new().rnr_retry_count(0)?;
    /// assert_eq!((impatient.get_rnr_retry_count(), ConnCfg::new().get_rnr_retry_count()), (0, 7));
    /// # let (sender, receiver) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &impatient)?;
    /// assert_eq!(sender.negotiated()?.rnr_retry_count, 0); // the receiver said so
    /// sender.send(LocalSlice::null(), Signal::Always, 1)?; // and has posted no receive
    /// let failed = sender.cq().wait(Duration::from_secs(10))?.result();
    /// assert!(failed.is_err_and(|e| e.to_string().contains("the peer has no receive posted")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParameterError`] over 7.
    pub fn rnr_retry_count(mut self, retries: u8) -> Result<Self, ParameterError> {
        ParameterError::check("rnr_retry_count", retries.into(), 0, MAX_RETRIES.into())?;
        self.parameters.rnr_retry_count = retries;
        Ok(self)
    }

    /// How long the **peer** waits before it sends a message again that found no receive here. 655 ms by default: the connection manager's
    /// choice, and the longest there is. The transport has 31 shorter times, from 10 µs on, each up to twice the one before; `at_least` is
    /// rounded up to one of them.
    ///
    /// It holds from the moment at which this side has accepted, or learns that it was accepted; a message that comes before that and finds
    /// no receive is told the default. A device that refuses it goes on with the default, and a warning is logged:
    /// [`Negotiated::min_rnr_timer`] tells what holds.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let server = ConnCfg::new().min_rnr_timer(Duration::from_millis(1))?;
    /// assert_eq!(server.get_min_rnr_timer(), Some(Duration::from_micros(1_280)));
    /// # let (_client, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &server)?;
    /// assert_eq!(conn.negotiated()?.min_rnr_timer, Duration::from_micros(1_280));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParameterError`] over 655.36 ms, in microseconds.
    pub fn min_rnr_timer(mut self, at_least: Duration) -> Result<Self, ParameterError> {
        let micros = u32::try_from(at_least.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX);
        ParameterError::check("min_rnr_timer_us", micros, 0, RNR_TIMER_MICROS[0])?;
        let code = (1..).zip(&RNR_TIMER_MICROS[1..]).find(|(_, time)| micros <= **time).map_or(0, |(code, _)| code);
        self.parameters.min_rnr_timer = Some(code);
        Ok(self)
    }

    /// How long a request of this side waits for the device at the other end before it is sent again, as a code: 4.096 µs times two to
    /// the power of `code`, and for ever with 0. 14 is 67 ms, 18 is 1.1 s, 31 is two and a half hours. By default the connection manager
    /// chooses, by the route.
    ///
    /// With [`retry_count`](Self::retry_count) it says how fast a peer is noticed that vanished: [`detection_time`](Self::detection_time).
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().ack_timeout(14)?.retry_count(3)?; // four times 67 ms
    /// assert_eq!((cfg.get_ack_timeout(), ConnCfg::new().get_ack_timeout()), (Some(14), None));
    /// assert_eq!(cfg.detection_time().map(|time| time.as_millis()), Some(268));
    /// # let (conn, _) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// assert_eq!(conn.negotiated()?.ack_timeout, 14);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParameterError`] over 31. A kernel before 5.1 refuses it when the request is made: [`BuildError::AckTimeout`](crate::BuildError).
    pub fn ack_timeout(mut self, code: u8) -> Result<Self, ParameterError> {
        ParameterError::check("ack_timeout", code.into(), 0, MAX_ACK_TIMEOUT.into())?;
        self.parameters.ack_timeout = Some(code);
        Ok(self)
    }

    /// How long it takes until a request fails whose answer does not come: the acknowledge time-out, once for the request and once for
    /// each of the [retries](Self::retry_count). `None` if no time-out was set, since the connection manager then chooses it
    /// ([`Negotiated::detection_time`] tells), and with code 0, since it then never fails.
    ///
    /// It is the shortest: a device may wait up to four times as long each time (InfiniBand specification, transport timer), and takes
    /// a time-out below its own shortest as that. Soft-RoCE takes 7 retries, the default, as retries without end (Linux 6.1 to 7.3,
    /// measured), so no such request fails there; fewer are counted.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// assert_eq!(ConnCfg::new().detection_time(), None); // the connection manager chooses
    /// let cfg = ConnCfg::new().ack_timeout(18)?.retry_count(0)?;
    /// assert_eq!(cfg.detection_time().map(|time| time.as_millis()), Some(1073));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn detection_time(&self) -> Option<Duration> {
        detection_time(self.parameters.ack_timeout?, self.parameters.retry_count)
    }

    /// How many reads and atomics of the peer are taken here at once, flushes by a READ among them; 255, the default, is as many as the
    /// device can. The connection manager negotiates: the peer's [initiator depth](Self::initiator_depth) is no more.
    ///
    /// More than the device has is an error when the request is made.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().responder_resources(4)?;
    /// assert_eq!((cfg.get_responder_resources(), ConnCfg::new().get_responder_resources()), (4, 255));
    /// # let (reader, conn) = rpma::testing::pair_with(&peer, &ConnCfg::new(), &cfg)?;
    /// assert_eq!(conn.negotiated()?.responder_resources, 4);
    /// assert_eq!(reader.negotiated()?.initiator_depth, 4); // the other side of the same
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParameterError`] for 0, which would forbid the peer to read and flush.
    pub fn responder_resources(mut self, resources: u8) -> Result<Self, ParameterError> {
        ParameterError::check("responder_resources", resources.into(), 1, MOST.into())?;
        self.parameters.responder_resources = resources;
        Ok(self)
    }

    /// How many reads and atomics of this side are under way at once, flushes by a READ among them; more wait in the send queue. 255, the
    /// default, is as many as the device can. The peer's [responder resources](Self::responder_resources) are the limit.
    ///
    /// More than the device has is an error when the request is made.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// let cfg = ConnCfg::new().initiator_depth(1)?; // reads one by one
    /// assert_eq!((cfg.get_initiator_depth(), ConnCfg::new().get_initiator_depth()), (1, 255));
    /// # let (conn, server) = rpma::testing::pair_with(&peer, &cfg, &ConnCfg::new())?;
    /// # let (memory, there) = rpma::testing::target(&server, Usage::READ_SRC)?;
    /// # let here = peer.register(AnonPages::new(4096)?, Usage::READ_DST)?;
    /// assert_eq!(conn.negotiated()?.initiator_depth, 1);
    /// conn.read(here.slice(0..8)?, there.slice(0..8)?, Signal::OnError, 1)?;
    /// conn.read(here.slice(8..16)?, there.slice(8..16)?, Signal::Always, 2)?; // waits for the first
    /// assert_eq!(conn.cq().wait(Duration::from_secs(10))?.context(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParameterError`] for 0, with which no read would ever begin.
    pub fn initiator_depth(mut self, depth: u8) -> Result<Self, ParameterError> {
        ParameterError::check("initiator_depth", depth.into(), 1, MOST.into())?;
        self.parameters.initiator_depth = depth;
        Ok(self)
    }

    /// Which of the device's completion vectors, and so which interrupt and processor, the events of the completion queues go to; 0 by
    /// default. [`Context::completion_vectors`](rpma_mr::sys::owned::Context::completion_vectors) tells how many there are; one that the
    /// device has not is an error when the request is made.
    ///
    /// ```
    /// use rpma::{BuildError, ConnReqError, prelude::*};
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let vectors = peer.device().context().completion_vectors();
    /// let last = ConnCfg::new().completion_vector(vectors - 1);
    /// assert_eq!((last.get_completion_vector(), ConnCfg::new().get_completion_vector()), (vectors - 1, 0));
    /// let request = ConnReq::new(&peer, addr, &last)?;
    /// let refused = ConnReq::new(&peer, addr, &ConnCfg::new().completion_vector(vectors));
    /// assert!(matches!(refused, Err(ConnReqError::Build(BuildError::Parameter(_)))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn completion_vector(mut self, vector: u32) -> Self {
        self.parameters.completion_vector = vector;
        self
    }

    /// The type of service of the packets of an outgoing connection: the byte in the IP header, six bits of class and two of congestion
    /// (`RDMA_OPTION_ID_TOS` in `rdma_set_option(3)`). By default the system's. Accepting ignores it.
    ///
    /// ```
    /// use rpma::prelude::*;
    ///
    /// # let peer = rpma::testing::peer()?;
    /// # let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0))?;
    /// # let addr = endpoint.local_addr().ok_or("listening")?;
    /// let cfg = ConnCfg::new().type_of_service(8 << 2); // class selector 1: what may wait
    /// assert_eq!(cfg.get_type_of_service(), Some(0x20));
    /// let request = ConnReq::new(&peer, addr, &cfg)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn type_of_service(mut self, value: u8) -> Self {
        self.parameters.type_of_service = Some(value);
        self
    }

    /// What was set, or 7.
    #[must_use]
    pub fn get_retry_count(&self) -> u8 {
        self.parameters.retry_count
    }

    /// What was set, or 7.
    #[must_use]
    pub fn get_rnr_retry_count(&self) -> u8 {
        self.parameters.rnr_retry_count
    }

    /// The code that was set.
    #[must_use]
    pub fn get_ack_timeout(&self) -> Option<u8> {
        self.parameters.ack_timeout
    }

    /// What was set, rounded up to what there is.
    #[must_use]
    pub fn get_min_rnr_timer(&self) -> Option<Duration> {
        self.parameters.min_rnr_timer.map(rnr_timer)
    }

    /// What was set, or 255.
    #[must_use]
    pub fn get_responder_resources(&self) -> u8 {
        self.parameters.responder_resources
    }

    /// What was set, or 255.
    #[must_use]
    pub fn get_initiator_depth(&self) -> u8 {
        self.parameters.initiator_depth
    }

    /// What was set, or 0.
    #[must_use]
    pub fn get_completion_vector(&self) -> u32 {
        self.parameters.completion_vector
    }

    /// What was set.
    #[must_use]
    pub fn get_type_of_service(&self) -> Option<u8> {
        self.parameters.type_of_service
    }
}

/// What holds on an established connection, seen from this side: [`Conn::negotiated`](crate::Conn::negotiated).
///
/// ```
/// use rpma::prelude::*;
///
/// # let peer = rpma::testing::peer()?;
/// let client = ConnCfg::new().ack_timeout(15)?.retry_count(3)?.initiator_depth(8)?;
/// let server = ConnCfg::new().responder_resources(2)?;
/// # let (conn, _server) = rpma::testing::pair_with(&peer, &client, &server)?;
/// let agreed = conn.negotiated()?;
/// assert_eq!((agreed.ack_timeout, agreed.retry_count), (15, 3));
/// assert_eq!(agreed.initiator_depth, 2); // the server takes no more at once
/// assert_eq!(agreed.detection_time(), client.detection_time());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The code of the acknowledge time-out: [`ConnCfg::ack_timeout`].
    pub ack_timeout: u8,
    /// How often an unanswered request is sent again.
    pub retry_count: u8,
    /// How often a message is sent again that found no receive at the peer; 7 is for ever. The peer said so.
    pub rnr_retry_count: u8,
    /// How long the peer waits before it sends a message again that found no receive here: [`ConnCfg::min_rnr_timer`].
    pub min_rnr_timer: Duration,
    /// Reads and atomics of the peer that are taken here at once.
    pub responder_resources: u8,
    /// Reads and atomics of this side that are under way at once.
    pub initiator_depth: u8,
}

impl Negotiated {
    pub(crate) fn of(qp: &Qp) -> io::Result<Self> {
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER;
        let mask = retries | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC;
        let (attr, _) = qp.query(mask)?;
        Ok(Self {
            ack_timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry_count: attr.rnr_retry,
            min_rnr_timer: rnr_timer(attr.min_rnr_timer),
            responder_resources: attr.max_dest_rd_atomic,
            initiator_depth: attr.max_rd_atomic,
        })
    }

    /// How long it takes at least until a request fails whose answer does not come; `None` if it never does. As
    /// [`ConnCfg::detection_time`].
    #[must_use]
    pub fn detection_time(&self) -> Option<Duration> {
        detection_time(self.ack_timeout, self.retry_count)
    }
}

/// `ibv_modify_qp(3)`: 4.096 µs times two to the power of the code, for the first time and for each retry; 0 waits for ever.
fn detection_time(code: u8, retry_count: u8) -> Option<Duration> {
    let tries = u32::from(retry_count) + 1;
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(MAX_ACK_TIMEOUT)) * tries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_outside_its_field_is_refused_by_name() {
        let rows = [
            (ConnCfg::new().retry_count(8), "retry_count 8 is out of range: from 0 to 7"),
            (ConnCfg::new().rnr_retry_count(255), "rnr_retry_count 255 is out of range: from 0 to 7"),
            (ConnCfg::new().ack_timeout(32), "ack_timeout 32 is out of range: from 0 to 31"),
            (
                ConnCfg::new().min_rnr_timer(Duration::from_nanos(655_360_001)),
                "min_rnr_timer_us 655361 is out of range: from 0 to 655360",
            ),
            (ConnCfg::new().min_rnr_timer(Duration::MAX), "min_rnr_timer_us 4294967295 is out of range: from 0 to 655360"),
            (ConnCfg::new().responder_resources(0), "responder_resources 0 is out of range: from 1 to 255"),
            (ConnCfg::new().initiator_depth(0), "initiator_depth 0 is out of range: from 1 to 255"),
        ];
        for (result, expected) in rows {
            let error = result.unwrap_err();
            assert_eq!((error.to_string().as_str(), error.code()), (expected, ErrorCode::InvalidArgument));
        }
    }

    #[test]
    fn values_at_the_ends_of_their_ranges_are_kept() {
        let kept = |cfg: Result<ConnCfg, ParameterError>| {
            let p = cfg.unwrap().parameters;
            (p.retry_count, p.rnr_retry_count, p.ack_timeout, p.responder_resources, p.initiator_depth)
        };
        assert_eq!(kept(Ok(ConnCfg::new())), (7, 7, None, 255, 255));
        assert_eq!(kept(ConnCfg::new().retry_count(0).and_then(|cfg| cfg.rnr_retry_count(0))), (0, 0, None, 255, 255));
        assert_eq!(kept(ConnCfg::new().ack_timeout(0)), (7, 7, Some(0), 255, 255));
        assert_eq!(kept(ConnCfg::new().ack_timeout(31)), (7, 7, Some(31), 255, 255));
        let least = ConnCfg::new().responder_resources(1).and_then(|cfg| cfg.initiator_depth(1));
        assert_eq!(kept(least), (7, 7, None, 1, 1));
    }

    #[test]
    fn receiver_not_ready_timer_is_rounded_up_to_one_that_the_transport_has() {
        let code = |micros| ConnCfg::new().min_rnr_timer(Duration::from_micros(micros)).unwrap().parameters.min_rnr_timer;
        assert_eq!([0, 10, 11, 20, 640, 641, 491_520, 491_521, 655_360].map(code), [1, 1, 2, 2, 12, 13, 31, 0, 0].map(Some));
        for (number, micros) in (0..).zip(RNR_TIMER_MICROS) {
            assert_eq!(code(micros.into()), Some(number));
            assert_eq!(rnr_timer(number), Duration::from_micros(micros.into()));
        }
        assert_eq!(ConnCfg::new().get_min_rnr_timer(), None);
    }

    #[test]
    fn detection_time_is_the_time_out_once_for_each_try() {
        assert_eq!(detection_time(1, 0), Some(Duration::from_nanos(8192)));
        assert_eq!(detection_time(14, 7), Some(Duration::from_nanos(67_108_864 * 8)));
        assert_eq!(detection_time(31, 7).map(|time| time.as_secs()), Some(70_368));
        assert_eq!(detection_time(0, 7), None);
        assert_eq!(ConnCfg::new().detection_time(), None);
        assert_eq!(ConnCfg::new().ack_timeout(0).unwrap().detection_time(), None);
    }

    #[test]
    fn explicit_initiator_depth_never_exceeds_what_the_peer_takes() {
        let depth = |asked| Parameters { initiator_depth: asked, ..Parameters::default() };
        assert_eq!(depth(16).initiator_depth_towards(4), 4);
        assert_eq!(depth(2).initiator_depth_towards(4), 2);
        // The connection manager knows what the device and the peer can.
        assert_eq!(depth(255).initiator_depth_towards(4), 255);
    }
}
