//! Enumerations in words: `ibv_node_type_str(3)`, `ibv_event_type_str(3)`, `rdma_event_str(3)` and the like. The words are those of
//! rdma-core, since programs print them and people look for them (`tests/names.rs` compares).
#![expect(unsafe_code, reason = "exports C functions of numbers alone")]

use std::ffi::{CStr, c_char, c_int};

/// The word for `value`, of a list that begins with the word for `first`.
fn word(words: &'static [&'static CStr], first: c_int, value: c_int, unknown: &'static CStr) -> *const c_char {
    let known = value.checked_sub(first).and_then(|at| usize::try_from(at).ok()).and_then(|at| words.get(at));
    known.map_or(unknown, |known| known).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(WORDS, 1, node_type, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(port_state: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    word(WORDS, 0, port_state, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(WORDS, 0, event, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    word(WORDS, 0, opcode, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    word(WORDS, 0, event, c"UNKNOWN EVENT")
}
