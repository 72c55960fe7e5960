//! What is done with both providers. A scenario puts down what it saw, each answer under a name of its own.

mod builders;
mod capacity;
mod connect;
mod device;
mod end;
mod faults;
mod memory;
mod operations;
mod order;
mod posting;
mod queues;
mod shared;
mod states;
mod synchronous;
mod unasked;

use std::fmt::Display;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rpma_sys::ProviderRef;

use crate::verbs::Setup;

/// What a scenario saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    scenario: String,
    /// Names and answers, in the order in which they were seen.
    pub(crate) answers: Vec<(String, String)>,
}

impl Seen {
    /// Puts an answer down.
    pub(crate) fn put(&mut self, name: impl Display, answer: impl Display) {
        let name = format!("{}: {name}", self.scenario);
        assert!(self.answers.iter().all(|(known, _)| *known != name), "two answers are named {name}");
        self.answers.push((name, answer.to_string()));
    }
}

type Scenario = (&'static str, fn(&Setup, &mut Seen));

const ALL: &[&[Scenario]] = &[
    device::ALL,
    memory::ALL,
    queues::ALL,
    capacity::ALL,
    order::ALL,
    connect::ALL,
    end::ALL,
    operations::ALL,
    faults::ALL,
    posting::ALL,
    builders::ALL,
    states::ALL,
    shared::ALL,
    unasked::ALL,
    synchronous::ALL,
];

/// The name of an answer that is always wrong: the others are seen all the same.
pub(crate) const PANICKED: &str = "panicked";

/// Runs everything, and once more over IPv6 what is about addresses.
pub(crate) fn run(provider: &ProviderRef, ip: IpAddr, ip6: IpAddr) -> Vec<(String, String)> {
    let mut seen = Seen::default();
    let setup = Setup::new(provider.clone(), ip);
    for (name, scenario) in ALL.iter().copied().flatten() {
        run_one(&setup, &mut seen, String::from(*name), *scenario);
    }
    let setup = Setup::new(provider.clone(), ip6);
    for (name, scenario) in connect::ABOUT_ADDRESSES {
        run_one(&setup, &mut seen, format!("IPv6, {name}"), *scenario);
    }
    seen.answers
}

fn run_one(setup: &Setup, seen: &mut Seen, name: String, scenario: fn(&Setup, &mut Seen)) {
    let before = Instant::now();
    seen.scenario = name;
    let done = catch_unwind(AssertUnwindSafe(|| scenario(setup, seen)));
    if let Err(why) = done {
        let words = why.downcast_ref::<String>().cloned().or_else(|| why.downcast_ref::<&str>().map(ToString::to_string));
        seen.put(PANICKED, words.unwrap_or_default().replace('\n', " "));
    }
    if before.elapsed() > Duration::from_secs(1) {
        println!("{}: {} took {:?}", setup.provider.name(), seen.scenario, before.elapsed());
    }
}
