//! The whole table, state by event, against a checked-in snapshot. `UPDATE_SNAPSHOTS=1 cargo test` writes it anew.

use std::fmt::Write as _;
use std::time::Instant;

use super::memory::{Lease, Mr, SimMemory};
use super::pair::{RETRY_TIME, Setup, inline, remote};
use crate::rc::{Intake, ProtocolError, QpState, RcQp, RecvWr, SendFlags, SendOp, SendWr};
use crate::wire::{Frame, Nak, Request, RequestOp, Response, ResponseOp};

struct Case {
    qp: RcQp<SimMemory>,
    mr: Mr,
    now: Instant,
}

const STATES: [(&str, usize); 6] =
    [("RESET", 0), ("INIT", 1), ("RTR", 2), ("RTS", 3), ("RTS, write sent, receive posted", 4), ("ERR", 5)];

/// A queue pair on its way through the states, `steps` steps from the start.
fn case(steps: usize) -> Case {
    let (setup, memory) = (Setup::default(), SimMemory::default());
    let mr = memory.register(16);
    let mut case = Case { qp: RcQp::new(setup.qp, memory, None), mr, now: Instant::now() };
    if steps >= 1 {
        case.qp.to_init().unwrap();
    }
    if steps >= 2 {
        case.qp.to_ready_to_receive(setup.responder).unwrap();
    }
    if steps >= 3 {
        case.qp.to_ready_to_send(setup.requester).unwrap();
    }
    if steps == 4 {
        case.qp.post_recv(recv()).unwrap();
        case.qp.post_send([write(case.mr)]).unwrap();
        case.qp.poll_transmit(case.now).unwrap();
        case.qp.transmit_done(case.now);
    }
    if steps >= 5 {
        case.qp.move_to_error();
    }
    case
}

fn write(mr: Mr) -> SendWr {
    SendWr { wr_id: 1, op: SendOp::Write { remote: remote(mr, 0) }, data: inline(b"x"), flags: SendFlags::SIGNALED }
}

fn recv() -> RecvWr {
    RecvWr { wr_id: 2, sges: Vec::new() }
}

fn intake(result: Result<Intake<Lease>, ProtocolError>) -> String {
    match result {
        Ok(Intake::None) => "taken".into(),
        Ok(Intake::Fill(_)) => "payload placed".into(),
        Ok(Intake::Discard) => "payload dropped".into(),
        Err(error) => format!("cut: {error}"),
    }
}

fn request(case: &mut Case, op: RequestOp) -> String {
    let has_payload = matches!(op, RequestOp::Write { .. });
    let told = intake(case.qp.handle_request(case.now, Request { msn: 1, solicited: false, op }));
    if has_payload {
        case.qp.payload_done(case.now, Ok(()));
    }
    told
}

fn response(case: &mut Case, op: ResponseOp) -> String {
    intake(case.qp.handle_response(case.now, Response { msn: 1, op }))
}

type Do = fn(&mut Case) -> String;

const EVENTS: [(&str, Do); 19] = [
    ("to INIT", |c| told(c.qp.to_init())),
    ("to RTR", |c| told(c.qp.to_ready_to_receive(Setup::default().responder))),
    ("to RTS", |c| told(c.qp.to_ready_to_send(Setup::default().requester))),
    ("to ERR", |c| {
        c.qp.move_to_error();
        "ok".into()
    }),
    ("to RESET", |c| {
        c.qp.reset();
        "ok".into()
    }),
    ("post send", |c| told(c.qp.post_send([write(c.mr)]).map_err(|e| e.error))),
    ("post receive", |c| told(c.qp.post_recv(recv()))),
    ("request: write", |c| {
        let remote = remote(c.mr, 0);
        request(c, RequestOp::Write { remote, len_bytes: 1 })
    }),
    ("request: send", |c| request(c, RequestOp::Send { len_bytes: 0 })),
    ("request: read", |c| {
        let remote = remote(c.mr, 0);
        request(c, RequestOp::Read { remote, len_bytes: 1 })
    }),
    ("request: bad rkey", |c| {
        let remote = crate::wire::Remote { addr: 0, rkey: 0 };
        request(c, RequestOp::Write { remote, len_bytes: 1 })
    }),
    ("request: out of sequence", |c| {
        let request = Request { msn: 7, solicited: false, op: RequestOp::Send { len_bytes: 0 } };
        intake(c.qp.handle_request(c.now, request))
    }),
    ("response: acknowledgement", |c| response(c, ResponseOp::Ack)),
    ("response: remote access error", |c| response(c, ResponseOp::Nak(Nak::RemoteAccess))),
    ("response: to nothing", |c| intake(c.qp.handle_response(c.now, Response { msn: 9, op: ResponseOp::Ack }))),
    ("retry time over", |c| c.qp.handle_timeout(c.now + RETRY_TIME).map_or_else(|e| format!("tells: {e}"), |()| "ok".into())),
    ("peer gone", |c| {
        c.qp.peer_gone(c.now);
        "ok".into()
    }),
    ("flush ends that nobody waits for", |c| {
        c.qp.flush_done(c.now, 1, Ok(()));
        "ok".into()
    }),
    ("payload ends that nobody waits for", |c| {
        c.qp.payload_done(c.now, Ok(()));
        "ok".into()
    }),
];

fn told<E: std::error::Error>(result: Result<(), E>) -> String {
    result.map_or_else(|e| format!("refused: {e}"), |()| "ok".into())
}

fn name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::ReadyToReceive => "RTR",
        QpState::ReadyToSend => "RTS",
        QpState::Error => "ERR",
    }
}

/// Everything that comes out of a queue pair after an event.
fn effects(case: &mut Case) -> String {
    let mut text = format!(" -> {}", name(case.qp.state()));
    while let Some(completion) = case.qp.poll_completion() {
        write!(text, "; {:?} completes {:?}", completion.side, completion.status).unwrap();
    }
    while let Some(transmit) = case.qp.poll_transmit(case.now) {
        let sent = match transmit.frame {
            Frame::Request(request) => format!("{:?}", request.op).split(' ').next().unwrap().to_owned(),
            Frame::Response(response) => format!("{:?}", response.op).split(" {").next().unwrap().to_owned(),
            Frame::Cm(_) => unreachable!("the queue pair has no part in the connection manager"),
        };
        write!(text, "; sends {sent}").unwrap();
        case.qp.transmit_done(case.now);
    }
    text
}

#[test]
fn state_table_is_as_checked_in() {
    let mut table = String::from("What every event does in every state of a queue pair. Written by the tests; see table.rs.\n");
    for (state, steps) in STATES {
        writeln!(table, "\n{state}").unwrap();
        for (event, run) in EVENTS {
            let mut case = case(steps);
            // What led here is no part of the event.
            while case.qp.poll_completion().is_some() {}
            let told = run(&mut case);
            let effects = effects(&mut case);
            writeln!(table, "  {event:35} {told}{effects}").unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rc/tests/state_table.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    for (line, (expected, found)) in expected.lines().zip(table.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {path}", line + 1);
    }
    assert_eq!(table.len(), expected.len(), "UPDATE_SNAPSHOTS=1 writes {path} anew");
}
