//! The end of a connection, as the connection manager tells it. (On soft-RoCE, whether TIMEWAIT_EXIT follows is not always the same.)

mod support;

use std::time::{Duration, Instant};

use rpma_sys::owned::CmEventKind::{Disconnected, TimewaitExit};
use support::{Connecting, Device, Parts, event, param, provider_like};

const TIME_WAIT: Duration = Duration::from_millis(50);

#[test]
fn both_ends_are_told_of_the_disconnect_and_of_the_time_wait_s_end() {
    let device = Device::of(provider_like(|config| config.time_wait = TIME_WAIT));
    let client = Connecting::new(&device, Parts::new(&device), |_| {});
    let (client, server) = client.finish(&device, Parts::new(&device), param());
    let start = Instant::now();
    client.qp.id().disconnect().unwrap();
    assert_eq!(event(&server.channel).kind, Disconnected);
    server.qp.id().disconnect().unwrap();
    assert_eq!(event(&client.channel).kind, Disconnected);
    for end in [&client, &server] {
        assert_eq!(event(&end.channel).kind, TimewaitExit);
        assert!(start.elapsed() >= TIME_WAIT);
    }
}
