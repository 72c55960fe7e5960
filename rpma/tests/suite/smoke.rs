//! The shortest way through everything: connect, write, flush, read back.

use rpma::prelude::*;

use crate::support::{Pair, complete, remote};

#[test]
fn written_and_flushed_bytes_are_in_the_target_s_memory() {
    let Pair { client, server } = Pair::new();
    let source = client.peer().register(AnonPages::new(4096).unwrap(), Usage::WRITE_SRC).unwrap();
    let target = server.peer().register(AnonPages::new(4096).unwrap(), Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY).unwrap();
    let there = remote(&target);

    source.write_at(0, b"durable at last").unwrap();
    client.write(there.slice(100..115).unwrap(), source.slice(0..15).unwrap(), Signal::OnError, 1).unwrap();
    client.flush(there.slice(100..115).unwrap(), FlushType::Visibility, Signal::Always, 2).unwrap();
    complete(&client, 2);

    let mut seen = [0; 15];
    target.read_at(100, &mut seen).unwrap();
    assert_eq!(&seen, b"durable at last");
}
