//! What many attempts leave behind in the process and in the kernel: nothing. Each test measures in a process of its own.

use std::fs;
use std::process::Command;

use rpma::prelude::*;
use rpma::{EstablishError, MAX_REJECT_BYTES};

use crate::support::{LIMIT, addr, alone, cfg, listen, peer, request};

/// What the process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    /// The kernel's RDMA objects of this process, as `rdma resource show` (iproute2) lists them.
    rdma_objects: Vec<(&'static str, usize)>,
}

fn holdings() -> Holdings {
    // The directory's own descriptor is among them, each time.
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let rdma_objects = ["cm_id", "qp", "cq", "pd", "mr"].map(|kind| (kind, rdma_objects(kind))).to_vec();
    Holdings { descriptors, rdma_objects }
}

fn rdma_objects(kind: &str) -> usize {
    let shown = Command::new("rdma").args(["resource", "show", kind]).output().expect("the tool `rdma` of iproute2 is installed");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    // The kernel notes the thread that made an object, and calls it a process.
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let mine: Vec<_> = threads.map(|thread| format!(" pid {} ", thread.unwrap().file_name().display())).collect();
    String::from_utf8(shown.stdout).unwrap().lines().filter(|line| mine.iter().any(|pid| line.contains(pid))).count()
}

/// Resident memory in pages: the second number in `/proc/self/statm`.
fn resident_pages() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Repeats `attempt` until whatever is made once is made, then measures over many more.
fn leaves_nothing(attempts: usize, attempt: impl Fn()) {
    const WARM_UP: usize = 50;
    (0..WARM_UP).for_each(|_| attempt());
    let (before, pages) = (holdings(), resident_pages());
    // The peer's own: the tool sees this process.
    for kind in ["cm_id", "pd", "mr"] {
        assert!(before.rdma_objects.iter().any(|&(shown, count)| shown == kind && count > 0), "no {kind} in {before:?}");
    }
    (WARM_UP..attempts).for_each(|_| attempt());
    assert_eq!(holdings(), before);
    let grown = resident_pages().saturating_sub(pages);
    assert!(grown < 32, "{grown} more pages resident after {attempts} attempts");
}

#[test]
fn thousand_attempts_where_nobody_listens_leave_nothing() {
    alone(|| {
        let peer = peer();
        leaves_nothing(1_000, || {
            let pending = ConnReq::new(&peer, (addr(), 9), &cfg()).unwrap().connect(&[]).unwrap();
            assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
            pending.disconnect().unwrap();
        });
    });
}

#[test]
fn thousand_rejections_leave_nothing_and_each_client_sees_its_own() {
    alone(|| {
        let peer = peer();
        let (endpoint, _) = listen(&peer);
        let number = std::cell::Cell::new(0_u32);
        leaves_nothing(1_000, || {
            number.set(number.get() + 1);
            let reason = number.get().to_le_bytes();
            let (pending, incoming) = request(&peer, &endpoint, &[]);
            // With queues and without, in turn.
            if number.get().is_multiple_of(2) {
                incoming.reject(&reason).unwrap();
            } else {
                incoming.prepare(&cfg()).unwrap().reject(&reason).unwrap();
            }
            let Err(EstablishError::Rejected(rejection)) = pending.established(LIMIT) else { panic!("not rejected") };
            assert_eq!((rejection.reason, rejection.private_data.len()), (28, MAX_REJECT_BYTES));
            assert_eq!(rejection.private_data[..4], reason);
        });
    });
}

#[test]
fn two_hundred_connections_that_were_used_and_closed_leave_nothing() {
    alone(|| {
        let peer = peer();
        let (endpoint, _) = listen(&peer);
        leaves_nothing(200, || {
            let (pending, incoming) = request(&peer, &endpoint, b"hello");
            let accepting = incoming.prepare(&cfg()).unwrap().connect(b"welcome").unwrap();
            let client = pending.established(LIMIT).unwrap();
            let server = accepting.established(LIMIT).unwrap();
            client.disconnect().unwrap();
            assert_eq!(server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
        });
    });
}
