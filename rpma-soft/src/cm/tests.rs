//! The whole table, state by input, and the order of events of connections from start to end.

use std::fmt::Write;
use std::time::{Duration, Instant};

use super::{Kind, Limits, Machine, Output, StreamEnd};
use crate::wire::{Accept, CmFrame, ConnectRequest, PrivateData, Reject};

const LIMITS: Limits = Limits {
    unreachable_after: Duration::from_secs(5),
    answer_after: Duration::from_secs(60),
    time_wait: Duration::from_millis(100),
};

fn request() -> ConnectRequest {
    ConnectRequest {
        qp_num: 1,
        responder_resources: 4,
        initiator_depth: 4,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        source: "10.0.0.1:1".parse().unwrap(),
        destination: "10.0.0.2:2".parse().unwrap(),
        private_data: PrivateData::default(),
    }
}

fn accept() -> Accept {
    Accept {
        qp_num: 2,
        responder_resources: 4,
        initiator_depth: 4,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        private_data: PrivateData::default(),
    }
}

fn reject() -> Reject {
    Reject { reason: 28, private_data: PrivateData::default() }
}

/// A machine in each state, with nothing left to poll.
fn states(now: Instant) -> Vec<(&'static str, Machine)> {
    let client = |steps: &dyn Fn(&mut Machine)| {
        let mut cm = Machine::new(LIMITS);
        cm.connect(now, request()).unwrap();
        steps(&mut cm);
        cm
    };
    let server = |steps: &dyn Fn(&mut Machine)| {
        let mut cm = Machine::requested(LIMITS, request());
        steps(&mut cm);
        cm
    };
    let answered = |cm: &mut Machine| {
        cm.greeted(now);
        cm.handle_frame(now, CmFrame::Accept(accept())).unwrap();
    };
    let established = |cm: &mut Machine| {
        answered(cm);
        cm.establish();
    };
    let mut all = vec![
        ("idle", Machine::new(LIMITS)),
        ("asked", client(&|_| {})),
        ("greeted", client(&|cm| cm.greeted(now))),
        ("answered", client(&answered)),
        ("requested", server(&|_| {})),
        ("accepted", server(&|cm| cm.accept(now, accept()).unwrap())),
        ("established", client(&established)),
        ("end asked", {
            client(&|cm| {
                established(cm);
                cm.disconnect(now);
            })
        }),
        ("end requested", {
            client(&|cm| {
                established(cm);
                cm.handle_frame(now, CmFrame::DisconnectRequest).unwrap();
            })
        }),
        ("time-wait", {
            client(&|cm| {
                established(cm);
                cm.stream_ended(now, StreamEnd::Closed);
            })
        }),
        ("over", client(&|cm| cm.stream_ended(now, StreamEnd::Refused))),
    ];
    for (_, cm) in &mut all {
        while cm.poll().is_some() {}
    }
    all
}

fn outputs(cm: &mut Machine) -> Vec<String> {
    std::iter::from_fn(|| cm.poll())
        .map(|output| match output {
            Output::Close => "close".to_owned(),
            Output::Event(event) => format!("{:?}({})", event.kind, event.status),
            Output::Send(frame) => {
                let text = format!("{frame:?}");
                let name = text.split(['(', ' ']).next().unwrap_or_default().to_owned();
                format!("send {name}")
            }
        })
        .collect()
}

type Input = (&'static str, fn(&mut Machine, Instant) -> bool);

const INPUTS: &[Input] = &[
    ("connect", |cm, now| cm.connect(now, request()).is_ok()),
    ("accept", |cm, now| cm.accept(now, accept()).is_ok()),
    ("reject", |cm, _| cm.reject(PrivateData::default()).is_ok()),
    ("establish", |cm, _| {
        cm.establish();
        true
    }),
    ("notify", |cm, _| cm.notify_established().is_ok()),
    ("disconnect", |cm, now| {
        cm.disconnect(now);
        true
    }),
    ("destroy", |cm, _| {
        cm.destroy();
        true
    }),
    ("< request", |cm, now| cm.handle_frame(now, CmFrame::ConnectRequest(request())).is_ok()),
    ("< accept", |cm, now| cm.handle_frame(now, CmFrame::Accept(accept())).is_ok()),
    ("< reject", |cm, now| cm.handle_frame(now, CmFrame::Reject(reject())).is_ok()),
    ("< ready", |cm, now| cm.handle_frame(now, CmFrame::Ready).is_ok()),
    ("< end?", |cm, now| cm.handle_frame(now, CmFrame::DisconnectRequest).is_ok()),
    ("< end!", |cm, now| cm.handle_frame(now, CmFrame::DisconnectReply).is_ok()),
    ("closed", |cm, now| {
        cm.stream_ended(now, StreamEnd::Closed);
        true
    }),
    ("refused", |cm, now| {
        cm.stream_ended(now, StreamEnd::Refused);
        true
    }),
    ("vanished", |cm, now| {
        cm.stream_ended(now, StreamEnd::Unreachable);
        true
    }),
    ("timeout", |cm, now| {
        cm.handle_timeout(now + Duration::from_secs(61));
        true
    }),
];

#[test]
fn table_of_states_by_inputs_is_the_one_that_was_checked() {
    let now = Instant::now();
    let mut table = String::new();
    for (input, apply) in INPUTS {
        for (state, mut cm) in states(now) {
            let taken = apply(&mut cm, now);
            let outputs = outputs(&mut cm);
            if !taken {
                // What is refused changes nothing.
                assert_eq!(outputs, Vec::<String>::new());
                writeln!(table, "{input:<10} {state:<13} refused").unwrap();
            } else if !outputs.is_empty() {
                writeln!(table, "{input:<10} {state:<13} {}", outputs.join(", ")).unwrap();
            }
        }
    }
    let checked = include_str!("table.txt");
    assert!(table == checked, "the table is now\n{table}");
}

#[test]
fn side_that_asks_for_the_end_is_told_after_the_other_has_answered() {
    let now = Instant::now();
    let mut client = Machine::new(LIMITS);
    client.connect(now, request()).unwrap();
    let mut server = Machine::requested(LIMITS, request());
    server.accept(now, accept()).unwrap();
    client.greeted(now);
    pass(&mut server, &mut client, now);
    client.establish();
    pass(&mut client, &mut server, now);
    assert_eq!(pass(&mut server, &mut client, now), [Kind::Established]);
    client.disconnect(now);
    assert_eq!(pass(&mut client, &mut server, now), []);
    assert_eq!(pass(&mut server, &mut client, now), [Kind::Disconnected]);
    server.disconnect(now);
    assert_eq!(pass(&mut server, &mut client, now), []);
    assert_eq!(pass(&mut client, &mut server, now), [Kind::Disconnected]);
    for cm in [&mut client, &mut server] {
        assert_eq!(cm.deadline(), Some(now + LIMITS.time_wait));
        cm.handle_timeout(now + LIMITS.time_wait);
        assert_eq!(outputs(cm), ["TimewaitExit(0)"]);
        assert_eq!(cm.deadline(), None);
    }
}

#[test]
fn connection_that_the_program_called_established_takes_the_late_frame_once() {
    let now = Instant::now();
    let mut server = Machine::requested(LIMITS, request());
    server.accept(now, accept()).unwrap();
    server.notify_established().unwrap();
    assert_eq!(outputs(&mut server), ["send Accept", "Established(0)"]);
    assert_eq!(server.deadline(), None);
    server.handle_frame(now, CmFrame::Ready).unwrap();
    assert_eq!(outputs(&mut server), Vec::<String>::new());
    assert!(server.handle_frame(now, CmFrame::Ready).is_err());
}

#[test]
fn connection_that_the_program_called_established_can_still_be_refused_by_the_other_end() {
    for end_asked in [false, true] {
        let now = Instant::now();
        let mut server = Machine::requested(LIMITS, request());
        server.accept(now, accept()).unwrap();
        server.notify_established().unwrap();
        if end_asked {
            server.disconnect(now);
        }
        outputs(&mut server);
        server.handle_frame(now, CmFrame::Reject(reject())).unwrap();
        assert_eq!(outputs(&mut server), ["Rejected(28)", "close"]);
        server.handle_timeout(now + LIMITS.time_wait);
        assert_eq!(outputs(&mut server), ["TimewaitExit(0)"]);
    }
}

/// Hands frames on and returns what the sender's program is told.
fn pass(from: &mut Machine, to: &mut Machine, now: Instant) -> Vec<Kind> {
    let mut told = Vec::new();
    while let Some(output) = from.poll() {
        match output {
            Output::Send(CmFrame::ConnectRequest(_)) | Output::Close => {}
            Output::Send(frame) => to.handle_frame(now, frame).unwrap(),
            Output::Event(event) => told.push(event.kind),
        }
    }
    told
}
