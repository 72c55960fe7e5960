//! A peer that is gone, and a program that never reads the event that says so. On soft-RoCE (Linux 6.12) nothing of this completes within
//! a minute, measured with these tests; adapters give up after the retry time.

mod support;

use std::time::{Duration, Instant};

use rpma_sys::bindings::*;
use support::{Connecting, Device, End, Parts, completions, param, provider_like};

/// Of one try; a connection of [`param`] tries 8 times.
const ACK_TIMEOUT: Duration = Duration::from_millis(25);

fn pair(parts: impl Fn(&Device) -> Parts) -> (Device, End, End) {
    let device = Device::of(provider_like(|config| config.ack_timeout = ACK_TIMEOUT));
    let client = Connecting::new(&device, Parts::new(&device), |_| {});
    let (client, server) = client.finish(&device, parts(&device), param());
    (device, client, server)
}

#[test]
fn work_posted_and_not_sent_completes_for_a_program_that_only_polls() {
    let (_device, client, server) = pair(Parts::new);
    // Nobody receives them, so that one is tried and the others wait behind it.
    for wr_id in 0..3 {
        client.send(wr_id, b"x");
    }
    drop(server);
    let done = completions(&client.send_cq, 3);
    assert_eq!(done, [(0, IBV_WC_RETRY_EXC_ERR), (1, IBV_WC_WR_FLUSH_ERR), (2, IBV_WC_WR_FLUSH_ERR)]);
}

#[test]
fn work_posted_after_the_end_completes_within_the_retry_time() {
    let (_device, client, server) = pair(Parts::new);
    drop(server);
    // The event is there, so the end is known here, and nobody takes it.
    support::wait(&client.channel, "event");
    let start = Instant::now();
    client.send(7, b"x");
    assert_eq!(completions(&client.send_cq, 1), [(7, IBV_WC_RETRY_EXC_ERR)]);
    let time = start.elapsed();
    assert!(time >= 8 * ACK_TIMEOUT && time < 8 * ACK_TIMEOUT + Duration::from_secs(10), "{time:?}");
}
