//! Listeners, and the requests that wait at them.

mod support;

use rpma_sys::owned::{CmEventKind, EventChannel};
use support::{Connecting, Device, Parts, event, param, wait};

#[test]
fn request_that_waits_while_its_listener_migrates_is_on_the_new_channel_with_all_its_events() {
    let device = Device::new();
    let mut connecting = Connecting::new(&device, Parts::new(&device), |_| {});
    connecting.client.qp.id().connect(param()).unwrap();
    wait(&connecting.listening, "request");
    let new = EventChannel::create(&device.provider).unwrap();
    connecting.listener.migrate(&new).unwrap();
    let child = event(&new).new_id.unwrap();
    child.accept(param()).unwrap();
    assert_eq!(event(&connecting.client.channel).kind, CmEventKind::Established);
    assert_eq!(event(&new).kind, CmEventKind::Established);
    assert!(connecting.listening.get_event().unwrap().is_none());
}
