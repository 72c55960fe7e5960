//! Words and numbers of enumerations are those of rdma-core.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "calls exported functions, by their C signatures")]

mod support;

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;

/// More than any of the enumerations has, at both ends.
const VALUES: std::ops::Range<c_int> = -2..64;

fn words(library: &Library, name: &str) -> Vec<String> {
    // SAFETY: the functions asked for here take the value of an enumeration, and return a constant string.
    let word = unsafe { library.get::<extern "C" fn(c_int) -> *const c_char>(name) }.unwrap();
    let read = |value| {
        // SAFETY: a constant string (see above).
        unsafe { CStr::from_ptr(word(value)) }.to_str().unwrap().to_owned()
    };
    VALUES.map(read).collect()
}

fn numbers(library: &Library, name: &str, values: impl IntoIterator<Item = c_int>) -> Vec<c_int> {
    // SAFETY: the functions asked for here take a number and return one.
    let number = unsafe { library.get::<extern "C" fn(c_int) -> c_int>(name) }.unwrap();
    values.into_iter().map(|value| number(value)).collect()
}

fn open(name: impl libloading::AsFilename) -> Library {
    // SAFETY: the initialisers of these libraries may run at any time.
    unsafe { Library::new(name) }.unwrap()
}

#[test]
#[ignore = "needs Debian's libibverbs1 and librdmacm1"]
fn words_and_rates_are_those_of_the_installed_libraries() {
    let door = open(support::door());
    let verbs = open("libibverbs.so.1");
    let cm = open("librdmacm.so.1");
    for name in ["ibv_node_type_str", "ibv_port_state_str", "ibv_event_type_str", "ibv_wc_status_str"] {
        assert_eq!(words(&door, name), words(&verbs, name), "{name}");
    }
    assert_eq!(words(&door, "rdma_event_str"), words(&cm, "rdma_event_str"));
    for name in ["ibv_rate_to_mult", "ibv_rate_to_mbps"] {
        assert_eq!(numbers(&door, name, VALUES), numbers(&verbs, name, VALUES), "{name}");
    }
    let mults = || 0..1000;
    assert_eq!(numbers(&door, "mult_to_ibv_rate", mults()), numbers(&verbs, "mult_to_ibv_rate", mults()));
    let mbps = || numbers(&verbs, "ibv_rate_to_mbps", VALUES).into_iter().chain([0, 1, 9_999]);
    assert_eq!(numbers(&door, "mbps_to_ibv_rate", mbps()), numbers(&verbs, "mbps_to_ibv_rate", mbps()));
}
