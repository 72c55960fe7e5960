//! A peer that is connected, and says nothing more.

mod support;

use std::time::{Duration, Instant};

use rpma_sys::bindings::*;
use rpma_sys::owned::CmEventKind;
use support::{Device, End, completions, event, is_readable, param, provider_like};

/// Of one try; a connection of [`param`] tries 8 times.
const ACK_TIMEOUT: Duration = Duration::from_millis(25);

#[test]
fn silent_peer_is_told_of_as_disconnected_and_then_its_work_fails_within_the_retry_time() {
    let device = Device::of(provider_like(|config| config.ack_timeout = ACK_TIMEOUT));
    let (client, _silent) = End::accepted_by_a_stranger(&device, param(), 4, 4);
    let start = Instant::now();
    for wr_id in 0..3 {
        client.send(wr_id, b"x");
    }
    assert_eq!(completions(&client.send_cq, 1), [(0, IBV_WC_RETRY_EXC_ERR)]);
    assert!(is_readable(&client.channel), "work failed before the program could know why");
    let time = start.elapsed();
    assert!(time >= 8 * ACK_TIMEOUT && time < 8 * ACK_TIMEOUT + Duration::from_secs(10), "{time:?}");
    assert_eq!(completions(&client.send_cq, 2), [(1, IBV_WC_WR_FLUSH_ERR), (2, IBV_WC_WR_FLUSH_ERR)]);
    let event = event(&client.channel);
    assert_eq!((event.kind, event.status), (CmEventKind::Disconnected, 0));
}
