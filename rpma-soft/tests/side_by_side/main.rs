//! The software provider beside soft-RoCE, at the level of verbs: the same scenarios run on both, and every answer is the same, or the
//! difference is listed in `known.rs` and explained in the documentation of `Soft`.
//!
//! In a guest (`RPMA_TEST_PROVIDER=rdma-core`, `RPMA_TEST_ADDR`, `RPMA_TEST_ADDR6`) both run side by side. Elsewhere what soft-RoCE answered is read from
//! `recorded/`, a file per kernel, which a guest writes with `RPMA_TEST_RECORD=1` and otherwise checks. `--nocapture` prints the table.
#![expect(clippy::unwrap_used, reason = "tests")]

mod known;
mod pair;
mod scenarios;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use rpma_soft::{Soft, SoftConfig};
use rpma_sys::{ProviderRef, RdmaCore};

use known::{DIFFERENCES, Kernel};

type Answers = Vec<(String, String)>;

impl Kernel {
    const ALL: [Self; 3] = [Self::Bookworm, Self::Trixie, Self::Backports];

    /// The kernel that runs.
    fn running() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        match release.split('.').take(2).collect::<Vec<_>>()[..] {
            ["6", "1"] => Self::Bookworm,
            ["6", "12"] => Self::Trixie,
            ["7", _] => Self::Backports,
            _ => panic!("no answers of soft-RoCE are recorded for {release}"),
        }
    }

    fn file(self) -> PathBuf {
        let name = match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "trixie-backports",
        };
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/side_by_side/recorded/{name}.txt"))
    }

    /// A software device with what soft-RoCE has there.
    fn soft(self) -> ProviderRef {
        let mut config = match self {
            Self::Bookworm => SoftConfig::default().without_native_operations(),
            Self::Trixie | Self::Backports => SoftConfig::default(),
        };
        config.on_demand_paging = self == Self::Backports;
        config.unreachable_after = Duration::from_millis(500);
        Soft::with_config(config).unwrap()
    }
}

/// A line for each answer.
fn to_text(answers: &Answers) -> String {
    answers.iter().fold(String::new(), |mut text, (name, answer)| {
        writeln!(text, "{name} => {answer}").unwrap();
        text
    })
}

fn recorded(kernel: Kernel) -> Answers {
    let file = kernel.file();
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.lines().map(|line| line.split_once(" => ").unwrap()).map(|(name, answer)| (name.into(), answer.into())).collect()
}

/// The table, and what is wrong with it.
fn compare(kernel: Kernel, soft: &Answers, rxe: &Answers) -> (String, Vec<String>) {
    let listed: BTreeMap<_, _> = DIFFERENCES
        .iter()
        .flat_map(|difference| difference.answers.iter().map(move |answer| (difference.title, answer)))
        .filter(|(_, (kernels, ..))| kernels.contains(&kernel))
        .map(|(title, &(_, name, answer))| (name, (title, answer)))
        .collect();
    let of_soft: BTreeMap<_, _> = soft.iter().map(|(name, answer)| (name.as_str(), answer.as_str())).collect();
    let mut table = format!("{kernel:?}\nanswer | soft | soft-RoCE | same, or why not\n");
    let mut wrong = Vec::new();
    for (name, theirs) in rxe {
        let ours = of_soft.get(name.as_str()).copied().unwrap_or("not asked");
        let verdict = match listed.get(name.as_str()) {
            None if ours == theirs => "same",
            None => {
                wrong.push(format!(
                    "{kernel:?}, {name}\n    soft:      {ours}\n    soft-RoCE: {theirs}\n    and it is not listed"
                ));
                "DIFFERS, AND IS NOT LISTED"
            }
            Some(_) if ours == theirs => {
                wrong.push(format!("{kernel:?}, {name}: listed as a difference, and both say {ours}"));
                "SAME, AND LISTED"
            }
            Some((title, answer)) if *answer == ours => title,
            Some((_, answer)) => {
                wrong.push(format!("{kernel:?}, {name}: soft says {ours}, and the list has {answer}"));
                "LISTED WITH ANOTHER ANSWER"
            }
        };
        writeln!(table, "{name} | {ours} | {theirs} | {verdict}").unwrap();
    }
    let panicked = soft.iter().chain(rxe).filter(|(name, _)| name.ends_with(scenarios::PANICKED));
    wrong.extend(panicked.map(|(name, why)| format!("{kernel:?}, {name}: {why}")));
    let names: BTreeSet<_> = rxe.iter().map(|(name, _)| name.as_str()).collect();
    wrong.extend(
        of_soft.keys().filter(|name| !names.contains(*name)).map(|name| format!("{kernel:?}, {name}: only soft was asked")),
    );
    wrong.extend(
        listed.keys().filter(|name| !names.contains(*name)).map(|name| format!("{kernel:?}, {name}: listed, and never asked")),
    );
    (table, wrong)
}

fn live() -> (String, Vec<String>) {
    let address = |name| env::var(name).unwrap_or_else(|e| panic!("{name}: {e}")).parse::<IpAddr>().unwrap();
    let (ip, ip6) = (address("RPMA_TEST_ADDR"), address("RPMA_TEST_ADDR6"));
    let kernel = Kernel::running();
    let rxe = scenarios::run(&RdmaCore::open().unwrap(), ip, ip6);
    if env::var_os("RPMA_TEST_RECORD").is_some() {
        fs::write(kernel.file(), to_text(&rxe)).unwrap();
    }
    let soft = scenarios::run(&kernel.soft(), ip, ip6);
    let (table, mut wrong) = compare(kernel, &soft, &rxe);
    let known: BTreeSet<_> = recorded(kernel).into_iter().collect();
    let now: BTreeSet<_> = rxe.into_iter().collect();
    wrong.extend(known.symmetric_difference(&now).map(|(name, answer)| {
        let which = if now.contains(&(name.clone(), answer.clone())) { "is not recorded" } else { "was recorded" };
        format!("{kernel:?}, {name}: soft-RoCE's answer {which}: {answer} (RPMA_TEST_RECORD=1 records)")
    }));
    (table, wrong)
}

fn against_the_record() -> (String, Vec<String>) {
    let columns = Kernel::ALL.map(|kernel| {
        std::thread::spawn(move || {
            let soft = scenarios::run(&kernel.soft(), Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
            compare(kernel, &soft, &recorded(kernel))
        })
    });
    let (tables, wrong): (Vec<_>, Vec<_>) = columns.into_iter().map(|column| column.join().unwrap()).unzip();
    (tables.join("\n"), wrong.concat())
}

#[test]
fn soft_answers_as_soft_roce_does_or_the_difference_is_listed() {
    let on_a_device = env::var("RPMA_TEST_PROVIDER").is_ok_and(|provider| provider == "rdma-core");
    let (table, wrong) = if on_a_device { live() } else { against_the_record() };
    println!("{table}");
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn documentation_and_list_have_the_same_differences() {
    let text = include_str!("../../src/differences.md");
    let told: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**")).map(|(title, _)| title).collect();
    let listed: Vec<_> = DIFFERENCES.iter().map(|difference| difference.title).collect();
    assert_eq!(told, listed, "in one order");
    assert!(DIFFERENCES.iter().all(|difference| !difference.answers.is_empty()));
}
