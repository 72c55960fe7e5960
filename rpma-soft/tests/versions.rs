//! Two versions of the protocol meet: each end says so, and neither takes the other's bytes for its own.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;

use log::{LevelFilter, Log, Metadata, Record};
use rpma_soft::wire::{CmFrame, Frame, PREAMBLE_BYTES, Preamble};
use rpma_sys::owned::{CmEventKind, CmId, EventChannel};
use support::stranger::{encoded, request, silent};
use support::{Device, LIMIT, event, local, param};

/// What is logged.
struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// How often both versions were named.
fn named() -> usize {
    let words = format!("speaks version 7 of the protocol, this end version {}", Preamble::VERSION);
    LINES.0.lock().unwrap().iter().filter(|line| line.contains(&words)).count()
}

/// What an end of version 7 says first.
fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = Preamble::encode();
    preamble[8..10].copy_from_slice(&7_u16.to_le_bytes());
    preamble
}

/// A client with this destination that has asked.
fn asking(device: &Device, to: SocketAddr) -> (std::sync::Arc<EventChannel>, CmId) {
    let channel = EventChannel::create(&device.provider).unwrap();
    let id = CmId::create(&channel).unwrap();
    id.resolve_addr(to, LIMIT).unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::AddrResolved);
    id.resolve_route(LIMIT).unwrap();
    assert_eq!(event(&channel).kind, CmEventKind::RouteResolved);
    id.connect(param()).unwrap();
    (channel, id)
}

#[test]
fn ends_of_different_versions_refuse_each_other_and_name_both() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let device = Device::new();

    // The server is of another version: its client is told as where nobody listens for it.
    let server = TcpListener::bind(local()).unwrap();
    let (channel, _client) = asking(&device, server.local_addr().unwrap());
    let mut stream = server.accept().unwrap().0;
    stream.write_all(&preamble()).unwrap();
    let told = event(&channel);
    assert_eq!((told.kind, told.status), (CmEventKind::Rejected, 8));
    assert_eq!(named(), 1);

    // The client is.
    let listening = EventChannel::create(&device.provider).unwrap();
    let listener = CmId::create(&listening).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(0).unwrap();
    let to = listener.local_addr().unwrap();
    let mut stream = silent(to);
    let asked = encoded(Frame::Cm(CmFrame::ConnectRequest(request(stream.local_addr().unwrap(), to))));
    stream.write_all(&[&preamble()[..], &asked].concat()).unwrap();
    // It hears the version that it could speak, and the end.
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert_eq!(heard, Preamble::encode());
    assert_eq!(named(), 2);

    // Nobody was told of that one: the next request is one of this version.
    let (_channel, client) = asking(&device, to);
    let told = event(&listening);
    assert_eq!(told.kind, CmEventKind::ConnectRequest);
    assert_eq!(told.new_id.unwrap().peer_addr(), client.local_addr());
}
