//! What the library says, and who decides whether it is heard: the crate `log`, in place of librpma's logging functions.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Mutex;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use rpma::prelude::*;
use rpma::soft::Soft;

/// A program's logger: the counterpart of a function given to `rpma_log_set_function(3)`.
struct Heard(Mutex<Vec<String>>);

static HEARD: Heard = Heard(Mutex::new(Vec::new()));

impl Log for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push(format!("{}: {}", record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// A connection's life, with the first flush, of whose way the library speaks.
fn flush_once() {
    const LIMIT: Duration = Duration::from_secs(60);
    let peer = Peer::new(&Device::local(&Soft::open().unwrap(), "127.0.0.1").unwrap()).unwrap();
    let endpoint = Endpoint::listen(&peer, ("127.0.0.1", 0)).unwrap();
    let region = peer.register(AnonPages::new(8).unwrap(), Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY).unwrap();
    let pending = ConnReq::new(&peer, endpoint.local_addr().unwrap(), &ConnCfg::new()).unwrap().connect(&[]).unwrap();
    let accepted = endpoint.next_conn_req(&ConnCfg::new(), LIMIT).unwrap().connect(&[]).unwrap();
    let (conn, _accepted) = (pending.established(LIMIT).unwrap(), accepted.established(LIMIT).unwrap());
    let target = RemoteMr::from_descriptor(&region.descriptor().to_bytes()).unwrap();
    conn.flush(target.all(), FlushType::Visibility, Signal::Always, 0).unwrap();
    conn.cq().wait(LIMIT).unwrap().result().unwrap();
}

/// The only test of this process: loggers are the process's.
#[test]
fn what_happens_is_told_to_the_program_s_logger_from_its_level_on() {
    log::set_logger(&HEARD).unwrap();
    log::set_max_level(LevelFilter::Info);
    assert_eq!(log::max_level(), LevelFilter::Info);
    flush_once();
    let heard = std::mem::take(&mut *HEARD.0.lock().unwrap());
    assert!(heard.iter().any(|message| message.starts_with("rpma_cm") && message.contains("flush")), "{heard:?}");

    log::set_max_level(LevelFilter::Off);
    flush_once();
    assert!(HEARD.0.lock().unwrap().is_empty());
}
