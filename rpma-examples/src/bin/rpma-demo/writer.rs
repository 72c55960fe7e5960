//! The writer: appends records to the target's region, and flushes each.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rpma::{
    AccessError, AnonPages, CompletionError, Conn, ConnCfg, ConnEvent, ConnReq, ConnReqError, ConnectError, CqError, Device,
    DeviceError, DisconnectError, EstablishError, EventError, FlushType, LocalMr, MapError, OpPath, Operation, Peer, PeerError,
    PostError, ProviderError, RegisterError, RemoteMr, Signal, SliceError, Usage,
};

use crate::hello::{Hello, HelloError, REQUEST};
use crate::lines::Line;
use crate::options::Writer;
use crate::output::{self, OutputError};
use crate::record;

/// Why the writer could not do its part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriterError {
    #[error("there is no RDMA provider to work with")]
    Provider(#[from] ProviderError),
    #[error("there is no RDMA device to reach {host} with")]
    Device { host: String, source: DeviceError },
    #[error("the RDMA device {device} cannot be used")]
    Peer { device: String, source: PeerError },
    #[error("no connection to {host} port {port} can be asked for")]
    Request { host: String, port: u16, source: ConnReqError },
    #[error("the connection cannot be asked for")]
    Connect(#[from] ConnectError),
    #[error("no connection to {host} port {port}: is the target there, and has no other writer?")]
    Establish { host: String, port: u16, source: EstablishError },
    #[error("the target's answer cannot be used")]
    Hello(#[from] HelloError),
    #[error("the target has room for {room} records: {wanted} (--records) do not fit; give the target a greater --records")]
    TooMany { wanted: u64, room: u64 },
    #[error("the target has room for records of {room} bytes: --size {wanted} cannot be had; give both ends the same")]
    OtherSize { wanted: u32, room: u32 },
    #[error("the target's region, {hello}, takes no persistent flush: {reason}; use --flush visibility, or persistent memory")]
    NotPersistent { hello: Box<Hello>, reason: &'static str },
    #[error("no memory for a record")]
    Map(#[from] MapError),
    #[error("the memory of a record cannot be registered")]
    Register(#[from] RegisterError),
    #[error("a record of {record_bytes} bytes cannot be timed")]
    Timing { record_bytes: u32, source: hdrhistogram::CreationError },
    #[error("record {sequence} is not acknowledged; the {sequence} before it are")]
    Append { sequence: u64, source: AppendError },
    #[error("the connection's events cannot be had")]
    Event(#[source] EventError),
    #[error("all records are acknowledged, and the connection cannot be ended")]
    Disconnect(#[from] DisconnectError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Why a record could not be appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    #[error("it cannot be put into local memory")]
    Local(#[from] AccessError),
    #[error("it is not within the region")]
    Slice(#[from] SliceError),
    #[error("it cannot be posted")]
    Post(#[from] PostError),
    #[error("its flush did not complete")]
    Wait(#[from] CqError),
    #[error("it was not carried out")]
    Failed(#[from] CompletionError),
    #[error("a completion of {operation} {context} came in its place")]
    Stray { operation: Operation, context: u64 },
    #[error("nobody can be told")]
    Output(#[from] OutputError),
}

/// Does the writer's part.
pub(crate) fn run(options: &Writer) -> Result<(), WriterError> {
    let (host, port) = (options.addr.as_str(), options.port);
    let provider = options.provider.open_for(host)?;
    let device = Device::remote(&provider, host, options.timeout)
        .map_err(|source| WriterError::Device { host: host.to_owned(), source })?;
    let peer = Peer::new(&device).map_err(|source| WriterError::Peer { device: device.name().to_owned(), source })?;

    let cfg = ConnCfg::new().timeout(options.timeout);
    let request = ConnReq::new(&peer, (host, port), &cfg);
    let request = request.map_err(|source| WriterError::Request { host: host.to_owned(), port, source })?;
    let established = request.connect(&REQUEST)?.established(options.timeout);
    let conn = established.map_err(|source| WriterError::Establish { host: host.to_owned(), port, source })?;

    let hello = Hello::decode(conn.private_data())?;
    conn.apply_remote_peer_cfg(hello.peer_cfg);
    let plan = Plan::make(&conn, hello, options)?;
    output::line(format_args!("writer: connected to {host} port {port}, device {}", device.name()))?;
    output::line(&plan)?;
    append_all(&peer, &conn, &plan, options)?;

    if options.orchestrated_by.is_some() {
        output::line(Line::Finished)?;
        wait_for_the_end(&conn, options.timeout)
    } else {
        conn.disconnect()?;
        Ok(())
    }
}

/// What is written, and how.
struct Plan {
    hello: Hello,
    records: u64,
    flush: FlushType,
    path: OpPath,
    /// Why it is no persistent flush, where the region does not take one.
    not_persistent: Option<&'static str>,
}

impl Plan {
    fn make(conn: &Conn, hello: Hello, options: &Writer) -> Result<Self, WriterError> {
        let room = hello.layout;
        let records = options.records.unwrap_or(room.records);
        if records > room.records {
            return Err(WriterError::TooMany { wanted: records, room: room.records });
        }
        if let Some(wanted) = options.record_bytes.filter(|wanted| *wanted != room.record_bytes) {
            return Err(WriterError::OtherSize { wanted, room: room.record_bytes });
        }
        let not_persistent = hello.why_not_persistent();
        let flush = match (options.flush, not_persistent) {
            (Some(FlushType::Persistent), Some(reason)) => {
                return Err(WriterError::NotPersistent { hello: Box::new(hello), reason });
            }
            (Some(flush), _) => flush,
            (None, None) => FlushType::Persistent,
            (None, Some(_)) => FlushType::Visibility,
        };
        Ok(Self { hello, records, flush, path: conn.flush_path(), not_persistent })
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = match self.path {
            OpPath::Native => "native",
            OpPath::Emulated => "emulated",
        };
        write!(f, "flush: {path}, ")?;
        match (self.flush, self.not_persistent) {
            (FlushType::Persistent, _) => f.write_str("persistent")?,
            (FlushType::Visibility, None) => f.write_str("visibility (though the region takes persistent ones)")?,
            (FlushType::Visibility, Some(reason)) => write!(f, "visibility (not persistent: {reason})")?,
        }
        write!(f, "; region: {}", self.hello)
    }
}

/// Appends all records, and tells how it went, also if it ended early.
fn append_all(peer: &Peer, conn: &Conn, plan: &Plan, options: &Writer) -> Result<(), WriterError> {
    let record_bytes = plan.hello.layout.record_bytes;
    let pages = AnonPages::new(record_bytes as usize)?;
    let source = peer.register(pages, Usage::WRITE_SRC).map_err(RegisterError::from)?;
    let latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3);
    let latencies = latencies.map_err(|source| WriterError::Timing { record_bytes, source })?;
    let mut log = Log { conn, plan, source, target: plan.hello.region.into(), record: vec![0; record_bytes as usize], latencies };

    let started = Instant::now();
    let mut acknowledged = 0;
    let mut outcome = Ok(());
    while acknowledged < plan.records {
        let appended = log.append(acknowledged, options.timeout).and_then(|()| {
            acknowledged += 1;
            Ok(tell_progress(acknowledged, plan.records, options.orchestrated_by.is_some())?)
        });
        if let Err(source) = appended {
            outcome = Err(WriterError::Append { sequence: acknowledged, source });
            break;
        }
    }
    if acknowledged > 0 {
        let told = tell_result(acknowledged, started.elapsed(), plan, &log.latencies, options.orchestrated_by.is_some());
        // The first failure is the one to tell.
        outcome = outcome.and(told.map_err(WriterError::Output));
    }
    outcome
}

/// Longer latencies are counted as this long: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

struct Log<'a> {
    conn: &'a Conn,
    plan: &'a Plan,
    source: LocalMr<AnonPages>,
    target: RemoteMr,
    record: Vec<u8>,
    latencies: Histogram<u64>,
}

impl Log<'_> {
    /// Writes one record and flushes it; returns when the flush has completed.
    fn append(&mut self, sequence: u64, timeout: Duration) -> Result<(), AppendError> {
        let layout = self.plan.hello.layout;
        record::encode(self.plan.hello.run, sequence, &mut self.record);
        self.source.write_at(0, &self.record)?;
        let dst = self.target.slice_at(layout.offset_bytes(sequence), layout.record_bytes.into())?;

        let started = Instant::now();
        self.conn.write(dst, self.source.all(), Signal::OnError, sequence)?;
        self.conn.flush(dst, self.plan.flush, Signal::Always, sequence)?;
        let completion = self.conn.cq().wait(timeout)?;
        let latency = started.elapsed();

        completion.result()?;
        let (operation, context) = (completion.operation(), completion.context());
        if (operation, context) != (Operation::Flush, sequence) {
            return Err(AppendError::Stray { operation, context });
        }
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    }
}

/// Tells who started us of each record, and people of each tenth of them.
fn tell_progress(acknowledged: u64, records: u64, orchestrated: bool) -> Result<(), OutputError> {
    if orchestrated {
        output::line(Line::Acknowledged(acknowledged))?;
    }
    if is_progress(acknowledged, records) {
        output::line(format_args!("writing: {acknowledged}/{records} records acknowledged"))?;
    }
    Ok(())
}

/// Whether another tenth is done.
fn is_progress(done: u64, all: u64) -> bool {
    let tenths = |done: u64| u128::from(done) * 10 / u128::from(all);
    tenths(done) > tenths(done - 1)
}

fn tell_result(
    acknowledged: u64,
    elapsed: Duration,
    plan: &Plan,
    latencies: &Histogram<u64>,
    orchestrated: bool,
) -> Result<(), OutputError> {
    let seconds = elapsed.as_secs_f64();
    output::line(format_args!(
        "wrote: {acknowledged} records of {} bytes in {seconds:.2} s, {:.0} records/s",
        plan.hello.layout.record_bytes,
        acknowledged as f64 / seconds.max(f64::MIN_POSITIVE),
    ))?;
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |quantile| ms(latencies.value_at_quantile(quantile));
    output::line(format_args!(
        "latency of write and flush, one at a time: p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, max {:.3} ms",
        at(0.5),
        at(0.99),
        at(0.999),
        ms(latencies.max()),
    ))?;
    if !orchestrated {
        let path = if plan.hello.path.is_empty() { "PATH" } else { &plan.hello.path };
        output::line("to check the records, on the target's machine and once the target is gone:")?;
        output::line(format_args!(
            "  rpma-demo --role verify --pmem {path} --acknowledged {acknowledged} --run-id {}",
            plan.hello.run
        ))?;
    }
    Ok(())
}

/// Waits until the connection ends, because the target is killed.
fn wait_for_the_end(conn: &Conn, timeout: Duration) -> Result<(), WriterError> {
    let deadline = Instant::now() + timeout;
    loop {
        match conn.next_event(deadline) {
            Ok(ConnEvent::Established) => {}
            Ok(ConnEvent::Closed | ConnEvent::Lost | ConnEvent::Unreachable | ConnEvent::Rejected(_)) => {
                return Ok(output::line("writer: the connection ended from the target's side")?);
            }
            // Nothing about the records: they are acknowledged. A machine that dies says nothing, a process that is killed does.
            Err(EventError::NoEvent) => {
                return Ok(output::line(format_args!("writer: the connection has not ended within {} s", timeout.as_secs()))?);
            }
            Err(e) => return Err(WriterError::Event(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_ten_times_or_once_for_each_record_if_they_are_fewer() {
        for (all, expected) in [(1, 1), (3, 3), (10, 10), (15, 10), (10_000, 10)] {
            assert_eq!((1..=all).filter(|done| is_progress(*done, all)).count(), expected, "{all}");
            assert!(is_progress(all, all), "{all}");
        }
        assert!(is_progress(u64::MAX, u64::MAX));
    }
}
