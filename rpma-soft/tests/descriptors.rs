//! What a process without a free descriptor sees of this provider.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "sets a limit of the process")]

mod support;

use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use log::{Log, Metadata, Record};
use rpma_soft::wire::PREAMBLE_BYTES;
use rpma_soft::{Soft, SoftConfig};
use rpma_sys::owned::{CmId, EventChannel};
use support::{LIMIT, local};

/// Counts what is said of somebody who cannot be let in.
struct Warnings(AtomicUsize);

static WARNINGS: Warnings = Warnings(AtomicUsize::new(0));

impl Log for Warnings {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().contains("cannot be let in") {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

/// The limit is the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes every descriptor that is left, until it is dropped.
struct NoneLeft {
    _taken: Vec<File>,
    before: libc::rlimit,
}

impl NoneLeft {
    fn take() -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a place for the result.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
        // So that there are not too many to take.
        set(&libc::rlimit { rlim_cur: before.rlim_cur.min(256), ..before });
        let mut taken = Vec::new();
        let error = loop {
            match File::open("/dev/null") {
                Ok(file) => taken.push(file),
                Err(e) => break e,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        Self { _taken: taken, before }
    }
}

impl Drop for NoneLeft {
    fn drop(&mut self) {
        set(&self.before);
    }
}

fn set(limit: &libc::rlimit) {
    // SAFETY: a whole limit, not above the hard one.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

/// A socket that connects later, when no descriptor is left for a new one.
fn prepared() -> impl FnOnce(SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    move |to| {
        connect(&socket, &to).unwrap();
        socket.into()
    }
}

#[test]
fn listener_without_descriptors_says_so_once_and_lets_everybody_in_when_there_are_some() {
    let _alone = alone();
    log::set_logger(&WARNINGS).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let provider = Soft::with_config(SoftConfig::default()).unwrap();
    let channel = EventChannel::create(&provider).unwrap();
    let listener = CmId::create(&channel).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap();
    let strangers: Vec<_> = (0..32).map(|_| prepared()).collect();
    let none_left = NoneLeft::take();
    // Each is let into the kernel's queue, and tells the listener.
    let mut strangers: Vec<_> = strangers.into_iter().map(|connect| connect(addr)).collect();
    while WARNINGS.0.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(none_left);
    for stranger in &mut strangers {
        // Whoever is let in is greeted.
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        stranger.read_exact(&mut [0; PREAMBLE_BYTES]).unwrap();
    }
    assert_eq!(WARNINGS.0.load(Ordering::SeqCst), 1);
}

#[test]
fn provider_that_finds_no_descriptor_is_an_error_and_opens_when_there_is_one() {
    let _alone = alone();
    let none_left = NoneLeft::take();
    let refused = Soft::open();
    drop(none_left);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EMFILE));
    let opened = Soft::open().unwrap();
    assert!(std::sync::Arc::ptr_eq(&opened, &Soft::open().unwrap()), "one per process");
}
