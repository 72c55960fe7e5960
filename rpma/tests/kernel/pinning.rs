//! What the kernel says to the pinning of memory.

use rpma::RegisterError;
use rpma::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::support::{alone, peer};

/// The limit holds only for those without the capability, which the suite's user has: it is given away, in a process of its own.
#[test]
fn registration_over_the_limit_on_locked_memory_names_the_limit() {
    alone(|| {
        let peer = peer();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), maximum: getrlimit(Resource::Memlock).maximum }).unwrap();

        let failure = peer.register(AnonPages::new(4 << 20).unwrap(), Usage::WRITE_DST).unwrap_err();
        let RegisterError::NoMemory { len_bytes, memlock_bytes, .. } = failure.error else { panic!("{failure:?}") };
        assert_eq!((len_bytes, memlock_bytes), (4 << 20, Some(1 << 20)));
        let text = failure.to_string();
        assert!(text.contains("4194304") && text.contains("1048576") && text.contains("ulimit -l"), "{text}");
        // What is within the limit still goes.
        peer.register(AnonPages::new(4096).unwrap(), Usage::WRITE_DST).unwrap();
    });
}
