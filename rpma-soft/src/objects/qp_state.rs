//! States and attributes of a queue pair: `ibv_modify_qp(3)` and `ibv_query_qp(3)`.
#![forbid(unsafe_code)]

use std::ffi::c_int;

use rpma_sys::bindings::*;

use super::connection::{Connection, QpSlot};
use crate::rc::{Access, QpState};
use crate::wire::RnrTimer;

/// What the connection manager agreed on for a queue pair, and what `ibv_modify_qp(3)` set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Agreed {
    /// The other end's queue pair; `None` before there is a connection.
    pub(super) peer: Option<u32>,
    pub(super) resources: u8,
    pub(super) depth: u8,
    pub(super) rnr_retry: u8,
    pub(super) retry: u8,
    /// The acknowledge time-out's code.
    pub(super) timeout: u8,
    pub(super) rnr_timer: u8,
    pub(super) access: ibv_access_flags,
}

/// What a step may be given, besides the state: (from, to, has to be there, may be there). The table of `ib_modify_qp_is_ok` in the
/// kernel, for the states that there are here; IBTA volume 1, table 91.
const STEPS: [(QpState, ibv_qp_state, ibv_qp_attr_mask, ibv_qp_attr_mask); 12] = {
    use QpState::{Error, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset};
    const IDENTITY: ibv_qp_attr_mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    const TO_RTR: ibv_qp_attr_mask =
        IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    const TO_RTS: ibv_qp_attr_mask =
        IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    const AT_RTS: ibv_qp_attr_mask =
        IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
    [
        (Reset, IBV_QPS_INIT, IDENTITY, 0),
        (Init, IBV_QPS_INIT, 0, IDENTITY),
        (Init, IBV_QPS_RTR, TO_RTR, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX),
        (Rtr, IBV_QPS_RTS, TO_RTS, AT_RTS),
        (Rts, IBV_QPS_RTS, 0, AT_RTS),
        (Rts, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Init, IBV_QPS_ERR, 0, 0),
        (Rtr, IBV_QPS_ERR, 0, 0),
        (Rts, IBV_QPS_ERR, 0, 0),
        (Error, IBV_QPS_ERR, 0, 0),
        (Rtr, IBV_QPS_RTR, 0, 0),
        (Reset, IBV_QPS_RESET, 0, 0),
    ]
};

/// Whether there is such a step, with such attributes.
fn is_legal(from: QpState, to: ibv_qp_state, mask: ibv_qp_attr_mask) -> bool {
    let given = mask & !IBV_QP_STATE;
    let fits = |(of, next, needed, allowed): &(_, _, _, _)| {
        (*of, *next) == (from, to) && given & needed == *needed && given & !(needed | allowed) == 0
    };
    // Back to RESET leads a way from everywhere.
    (to == IBV_QPS_RESET && given == 0) || STEPS.iter().any(fits)
}

/// The number of verbs for a state.
pub(super) fn number(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::ReadyToReceive => IBV_QPS_RTR,
        QpState::ReadyToSend => IBV_QPS_RTS,
        QpState::Error => IBV_QPS_ERR,
    }
}

/// `ibv_modify_qp(3)`: the errno.
///
/// What leads to a connection (RTR, RTS) is the connection manager's: without it there is no peer to send to.
pub(super) fn modify(connection: &Connection, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> c_int {
    let reset = mask == IBV_QP_STATE && attr.qp_state == IBV_QPS_RESET;
    if reset {
        return if connection.reset_qp() { 0 } else { libc::EINVAL };
    }
    connection.with_qp(|qp| modify_slot(qp, attr, mask).err().unwrap_or(0)).unwrap_or(libc::EINVAL)
}

fn modify_slot(qp: &mut QpSlot, attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), c_int> {
    let has = |bit: ibv_qp_attr_mask| mask & bit != 0;
    let from = qp.core.state();
    let to = if has(IBV_QP_STATE) { attr.qp_state } else { number(from) };
    if !is_legal(from, to, mask) || (has(IBV_QP_CUR_STATE) && attr.cur_qp_state != number(from)) {
        return Err(libc::EINVAL);
    }
    // One port, one partition.
    if (has(IBV_QP_PORT) && attr.port_num != 1) || (has(IBV_QP_PKEY_INDEX) && attr.pkey_index != 0) {
        return Err(libc::EINVAL);
    }
    let rnr_timer = RnrTimer::from_code(attr.min_rnr_timer).filter(|_| has(IBV_QP_MIN_RNR_TIMER));
    if has(IBV_QP_MIN_RNR_TIMER) && rnr_timer.is_none() {
        return Err(libc::EINVAL);
    }
    let elsewhere = mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE) != 0;
    match to {
        _ if elsewhere => return Err(libc::EOPNOTSUPP),
        IBV_QPS_ERR => qp.core.move_to_error(),
        IBV_QPS_INIT => qp.core.to_init().map_err(|_| libc::EINVAL)?,
        _ if to == number(from) => {}
        _ => return Err(libc::EOPNOTSUPP),
    }
    if has(IBV_QP_ACCESS_FLAGS) {
        qp.allow(attr.qp_access_flags);
    }
    if let Some(timer) = rnr_timer {
        qp.agreed.rnr_timer = timer.code();
        qp.core.set_rnr_timer(timer);
    }
    Ok(())
}

impl QpSlot {
    /// Sets what the peer may ask for.
    pub(super) fn allow(&mut self, access: ibv_access_flags) {
        self.agreed.access = access;
        self.core.allow(Access::from_bits_truncate(access));
    }

    /// `ibv_query_qp(3)`; what the program's structure has is its own to tell. Everything is told, whatever is asked for.
    pub(super) fn query(&self) -> ibv_qp_attr {
        let state = number(self.core.state());
        let Agreed { peer, resources, depth, rnr_retry, retry, timeout, rnr_timer, access } = self.agreed;
        ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            // As soft-RoCE: the smallest, before there is a path.
            path_mtu: if peer.is_some() { IBV_MTU_4096 } else { IBV_MTU_256 },
            path_mig_state: IBV_MIG_MIGRATED,
            dest_qp_num: peer.unwrap_or(0),
            qp_access_flags: access,
            cap: self.cap(),
            max_rd_atomic: depth,
            max_dest_rd_atomic: resources,
            min_rnr_timer: rnr_timer,
            port_num: 1,
            timeout,
            retry_cnt: retry,
            rnr_retry,
            ..ibv_qp_attr::default()
        }
    }

    /// The sizes, as granted.
    pub(super) fn cap(&self) -> ibv_qp_cap {
        let capacity = self.core.config().capacity;
        ibv_qp_cap {
            max_send_wr: capacity.send_wr,
            max_recv_wr: capacity.recv_wr,
            max_send_sge: capacity.send_sge,
            max_recv_sge: capacity.recv_sge,
            max_inline_data: capacity.inline_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpState; 5] = [QpState::Reset, QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend, QpState::Error];

    #[test]
    fn every_state_can_be_reset_and_all_but_reset_can_be_in_error() {
        for from in ALL {
            assert!(is_legal(from, IBV_QPS_RESET, IBV_QP_STATE), "{from:?}");
            assert_eq!(is_legal(from, IBV_QPS_ERR, IBV_QP_STATE), from != QpState::Reset, "{from:?}");
            assert!(!is_legal(from, IBV_QPS_ERR, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS), "{from:?}");
        }
    }

    #[test]
    fn only_one_way_leads_up_and_only_with_its_attributes() {
        let identity = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        for from in ALL {
            assert_eq!(is_legal(from, IBV_QPS_INIT, identity), matches!(from, QpState::Reset | QpState::Init), "{from:?}");
            assert_eq!(is_legal(from, IBV_QPS_INIT, IBV_QP_STATE), from == QpState::Init, "{from:?}");
            assert!(!is_legal(from, IBV_QPS_INIT, identity | IBV_QP_QKEY), "{from:?}");
            assert_eq!(is_legal(from, IBV_QPS_RTS, IBV_QP_STATE), from == QpState::ReadyToSend, "{from:?}");
            assert!(!is_legal(from, IBV_QPS_SQE, IBV_QP_STATE), "{from:?}");
            assert!(!is_legal(from, 99, IBV_QP_STATE), "{from:?}");
        }
        let to_rtr = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        assert!(is_legal(QpState::Init, IBV_QPS_RTR, to_rtr));
        for bit in [IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MIN_RNR_TIMER] {
            assert!(!is_legal(QpState::Init, IBV_QPS_RTR, to_rtr & !bit), "{bit}");
        }
    }
}
