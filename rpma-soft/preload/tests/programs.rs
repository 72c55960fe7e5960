//! Programs that no one here wrote, unchanged, on the door, between two processes: those of Debian's rdmacm-utils, ibverbs-utils and
//! perftest, and its C librpma under a program of ours; and a program of ours on verbs themselves. What is not installed fails its test.
//! docs/soft-preload.md lists what cannot be had.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use support::programs::{Port, Running, run, run_against, run_alone};

// ---- librdmacm's own ----

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn rping_verifies_a_thousand_rounds_of_data() {
    let said = run("rping -s -a ADDR -p PORT -C 1000 -V", "rping -c -a ADDR -p PORT -C 1000 -V");
    assert!(said.server.contains("server DISCONNECT EVENT"), "{}", said.server);
    assert!(!said.client.contains("mismatch"), "{}", said.client);
}

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn rping_shows_the_data_that_comes_back() {
    let said = run("rping -s -a ADDR -p PORT -C 20 -S 256", "rping -c -a ADDR -p PORT -C 20 -v -V -S 256");
    let rounds = said.client.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count();
    assert_eq!(rounds, 20, "{}", said.client);
}

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn ucmatose_connects_a_hundred_times_and_transfers_both_ways() {
    let said = run("ucmatose -c 100 -p PORT", "ucmatose -c 100 -s ADDR -p PORT");
    for end in [&said.server, &said.client] {
        assert!(end.contains("data transfers complete") && end.contains("return status 0"), "{end}");
    }
}

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn rdma_server_and_client_meet_through_endpoints() {
    let said = run("rdma_server -p PORT", "rdma_client -s ADDR -p PORT");
    assert!(said.server.contains("rdma_server: end 0"), "{}", said.server);
    assert!(said.client.contains("rdma_client: end 0"), "{}", said.client);
}

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn rdma_xserver_and_xclient_meet_over_reliable_connections() {
    let said = run("rdma_xserver -p PORT -c r", "rdma_xclient -s ADDR -p PORT -c r");
    assert!(said.server.contains("rdma_xserver: end 0"), "{}", said.server);
    assert!(said.client.contains("rdma_xclient: end 0"), "{}", said.client);
}

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn cmtime_makes_and_ends_a_hundred_connections_at_once() {
    // Its server goes on for ever.
    let said = run_against("cmtime -c 100 -p PORT", "cmtime -c 100 -p PORT -s ADDR");
    for step in ["create qp", "connect", "disconnect", "destroy"] {
        let line =
            said.lines().find(|line| line.starts_with(step) && line.contains(':')).unwrap_or_else(|| panic!("{step}\n{said}"));
        let total_ms: f64 = line.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        assert!(total_ms > 0.0, "{line}");
    }
}

// ---- libibverbs' own ----

#[test]
#[ignore = "needs Debian's ibverbs-utils"]
fn ibv_devices_lists_the_software_device_alone() {
    let said = run_alone("ibv_devices");
    let devices: Vec<&str> = said.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(devices, ["soft0"], "{said}");
}

#[test]
#[ignore = "needs Debian's ibverbs-utils"]
fn ibv_devinfo_shows_an_active_port_and_the_addresses_as_gids() {
    let said = run_alone("ibv_devinfo -v");
    for expected in ["hca_id:\tsoft0", "PORT_ACTIVE (4)", "link_layer:\t\tEthernet", "::ffff:127.0.0.1", "ODP_SUPPORT"] {
        assert!(said.contains(expected), "{expected}\n{said}");
    }
}

// ---- perftest ----

/// Two at once would leave each other no processor: ends that wait for memory to change never stop looking.
static MEASURING: Mutex<()> = Mutex::new(());

/// Runs a test of perftest on both ends, and reads the table that each prints: lines of numbers.
fn perftest(program: &str, options: &str) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let server = format!("{program} -R -n 1000 -p PORT {options}");
    let said = run(&server, &format!("{server} ADDR"));
    (table(&said.server), table(&said.client))
}

fn table(said: &str) -> Vec<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let lines = said.lines().filter_map(numbers).filter(|line| line.len() >= 5);
    lines.collect()
}

/// One line with the message's size, the number of iterations, and times that can be.
fn assert_latency(table: &[Vec<f64>], bytes: f64) {
    let [line] = table else { panic!("{table:?}") };
    let [size, iterations, t_min, t_max, t_typical, t_avg, ..] = line[..] else { panic!("{line:?}") };
    assert_eq!((size, iterations), (bytes, 1000.0));
    // On a busy machine perftest may fail to measure the processor's clock, and then all times are infinite.
    if t_avg.is_finite() {
        assert!(t_min > 0.0 && t_min <= t_typical && t_typical <= t_max && t_min <= t_avg && t_avg <= t_max, "{line:?}");
    }
}

/// One line with perftest's usual size of messages, the number of iterations, and a rate.
fn assert_bandwidth(table: &[Vec<f64>], iterations: f64) {
    assert_bandwidth_of(table, 65_536.0, iterations);
}

/// The same for messages of this size. The rate is 0 where perftest fails to measure the clock.
fn assert_bandwidth_of(table: &[Vec<f64>], bytes: f64, iterations: f64) {
    let [line] = table else { panic!("{table:?}") };
    let [size, count, _peak, average, rate] = line[..] else { panic!("{line:?}") };
    assert_eq!((size, count), (bytes, iterations));
    assert!(average >= 0.0 && rate >= 0.0, "{line:?}");
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_write_lat_measures_on_both_ends() {
    let (server, client) = perftest("ib_write_lat", "");
    assert_latency(&server, 2.0);
    assert_latency(&client, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_write_lat_measures_with_inline_data() {
    let (server, client) = perftest("ib_write_lat", "-I 64");
    assert_latency(&server, 2.0);
    assert_latency(&client, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_read_lat_measures() {
    let (_, client) = perftest("ib_read_lat", "");
    assert_latency(&client, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_read_lat_measures_with_completion_events() {
    assert_latency(&perftest("ib_read_lat", "-e").1, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_lat_measures_on_both_ends() {
    let (server, client) = perftest("ib_send_lat", "");
    assert_latency(&server, 2.0);
    assert_latency(&client, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_lat_measures_with_inline_data() {
    let (server, client) = perftest("ib_send_lat", "-I 64");
    assert_latency(&server, 2.0);
    assert_latency(&client, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_lat_measures_with_completion_events() {
    let (server, client) = perftest("ib_send_lat", "-e");
    assert_latency(&server, 2.0);
    assert_latency(&client, 2.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_atomic_lat_measures() {
    let (_, client) = perftest("ib_atomic_lat", "");
    assert_latency(&client, 8.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_write_bw_measures() {
    assert_bandwidth(&perftest("ib_write_bw", "").1, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_write_bw_measures_on_four_queue_pairs() {
    assert_bandwidth(&perftest("ib_write_bw", "-q 4").1, 4000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_write_bw_measures_in_both_directions() {
    assert_bandwidth(&perftest("ib_write_bw", "-b").1, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_write_bw_measures_with_inline_data() {
    assert_bandwidth_of(&perftest("ib_write_bw", "-I 64 -s 64").1, 64.0, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_read_bw_measures_on_four_queue_pairs() {
    assert_bandwidth(&perftest("ib_read_bw", "-q 4").1, 4000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_read_bw_measures() {
    assert_bandwidth(&perftest("ib_read_bw", "").1, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_read_bw_measures_with_completion_events() {
    assert_bandwidth(&perftest("ib_read_bw", "-e").1, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_bw_measures_on_both_ends() {
    let (server, client) = perftest("ib_send_bw", "");
    assert_bandwidth(&server, 1000.0);
    assert_bandwidth(&client, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_bw_measures_with_completion_events() {
    assert_bandwidth(&perftest("ib_send_bw", "-e").1, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_bw_measures_with_inline_data() {
    assert_bandwidth_of(&perftest("ib_send_bw", "-I 64 -s 64").1, 64.0, 1000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_bw_measures_on_four_queue_pairs() {
    assert_bandwidth(&perftest("ib_send_bw", "-q 4").1, 4000.0);
}

#[test]
#[ignore = "needs Debian's perftest"]
fn ib_send_bw_measures_over_a_shared_receive_queue() {
    assert_bandwidth(&perftest("ib_send_bw", "-q 4 --use-srq").1, 4000.0);
}

// ---- what cannot be had ----

/// Runs a program that asks for what there is not: it says that, and ends with an exit code of its own choice.
fn fails(line: &str, says: &str) {
    let port = Port::pick();
    let ended = Running::start(&line.replace("PORT", &port.number().to_string())).end();
    // Who is killed by a signal has no code.
    assert!(ended.status.code().is_some_and(|code| code != 0), "{line}: {}\n{}", ended.status, ended.said);
    assert!(ended.said.contains(says), "{line}: {}", ended.said);
}

#[test]
#[ignore = "needs Debian's rdmacm-utils"]
fn program_that_wants_what_cannot_be_had_is_told_so_and_ends() {
    const UNSUPPORTED: &str = "Operation not supported";
    fails("rdma_xserver -p PORT -c x", UNSUPPORTED);
    fails("rdma_xclient -s 127.0.0.1 -p PORT -c x", UNSUPPORTED);
    fails("rstream -s 127.0.0.1 -p PORT", UNSUPPORTED);
    // These do not say why.
    fails("udaddy -s 127.0.0.1 -p PORT", "");
    fails("mckey -m 239.0.0.1 -b 127.0.0.1", "");
}

// ---- C programs of ours ----

/// Runs a program in `c/` by its script, which compares what it says with what the kernel's soft-RoCE makes it say.
fn says_the_same(script: &str, configure: impl Fn(&mut Command)) {
    let [port, _next] = Port::pick_two();
    let mut run = Command::new(format!("{}/tests/c/{script}", env!("CARGO_MANIFEST_DIR")));
    run.env("RPMA_PRELOAD", support::door());
    configure(&mut run);
    run.args(["127.0.0.1", &port.number().to_string(), concat!(env!("CARGO_TARGET_TMPDIR"), "/steps")]);
    let said = Running::begin(run).end().succeeded();
    assert!(said.contains("as expected"), "{said}");
}

#[test]
#[ignore = "needs Debian's librpma-dev, and gcc"]
fn c_librpma_says_the_same_as_on_soft_roce() {
    says_the_same("run", |_| {});
}

#[test]
#[ignore = "needs Debian's librpma-dev, and gcc"]
fn c_librpma_says_the_same_as_on_soft_roce_without_native_operations() {
    says_the_same("run", |run| {
        run.args(["--way", "emulated"]).env("RPMA_SOFT_NATIVE", "off");
    });
}

/// `cq->mutex`, `cq->cond` and what they guard, `async_fd`, what headers compile in, and what is not supported.
#[test]
#[ignore = "needs Debian's libibverbs-dev and librdmacm-dev, and gcc"]
fn c_program_finds_in_the_structures_of_verbs_what_it_finds_on_soft_roce() {
    says_the_same("run-verbs", |_| {});
}
