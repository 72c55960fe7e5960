//! States and attributes of queue pairs and of shared receive queues, as a C program sees them: each test agrees with soft-RoCE where it
//! does not say otherwise.
#![expect(unsafe_code, reason = "reads structures and makes calls as C programs do")]

mod support;

use std::time::{Duration, Instant};

use rpma_soft::door;
use rpma_sys::bindings::*;
use support::raw::{RawEnd, ask};
use support::{Device, Parts, is_soft, provider, provider_like};

const FLUSHED: ibv_wc_status = IBV_WC_WR_FLUSH_ERR;

fn pair() -> (RawEnd, RawEnd) {
    let (client, server, _) = ask(&provider(), false, false).accept();
    (client, server)
}

/// The state in the structure, and the one that is asked for.
fn states(end: &RawEnd) -> (ibv_qp_state, ibv_qp_state) {
    let shown = end.state();
    (shown, end.query().0.qp_state)
}

fn to_init() -> (ibv_qp_attr, ibv_qp_attr_mask) {
    let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
    (attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS)
}

#[test]
fn structure_shows_the_states_that_calls_bring_about() {
    let asked = ask(&provider(), false, false);
    assert_eq!((states(&asked.client), states(&asked.server)), ((IBV_QPS_INIT, IBV_QPS_INIT), (IBV_QPS_INIT, IBV_QPS_INIT)));
    let (client, server, _) = asked.accept();
    assert_eq!((client.state(), server.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
    server.disconnect();
    assert_eq!(server.state(), IBV_QPS_ERR);
    assert_eq!(client.event().0, RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(states(&client), (IBV_QPS_RTS, IBV_QPS_RTS), "nobody has called anything");
    client.disconnect();
    assert_eq!(states(&client), (IBV_QPS_ERR, IBV_QPS_ERR));
}

#[test]
fn threads_that_ask_for_a_state_at_once_are_each_answered() {
    let device = Device::new();
    let (client, _server) = device.pair(Parts::new(&device), Parts::new(&device));
    // What one of them did wrong ThreadSanitizer sees: each answer is shown in the program's structure too.
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..100 {
                    assert_eq!(client.qp.query(IBV_QP_STATE).unwrap().0.qp_state, IBV_QPS_RTS);
                }
            });
        }
    });
}

#[test]
fn structure_of_a_client_that_is_rejected_shows_the_error() {
    let asked = ask(&provider(), false, false);
    asked.server.reject();
    assert_eq!(asked.client.event().0, RDMA_CM_EVENT_REJECTED);
    assert_eq!(states(&asked.client), (IBV_QPS_ERR, IBV_QPS_ERR));
}

#[test]
fn failure_is_seen_by_asking_only() {
    let (client, server) = pair();
    assert_eq!(server.post_recv(1), 0);
    // A receive without room, so that the server fails by itself.
    assert_eq!(client.post_send_bytes(1, b"x"), 0);
    assert_ne!(client.completion().1, IBV_WC_SUCCESS);
    server.completion();
    assert_eq!(server.state(), IBV_QPS_RTS);
    assert_eq!(states(&server), (IBV_QPS_RTS, IBV_QPS_ERR));
    assert_eq!(server.state(), IBV_QPS_ERR, "asking for the state shows it");
}

#[test]
fn attributes_are_those_that_the_connection_manager_agreed_on() {
    let asked = ask(&provider(), false, true);
    let (before, _) = asked.client.query();
    assert_eq!((before.cur_qp_state, before.dest_qp_num, before.port_num, before.path_mtu), (IBV_QPS_INIT, 0, 1, IBV_MTU_256));
    let (client, server, _) = asked.accept();
    let numbers = |end: &RawEnd| end.number();
    for (end, other, depth, resources) in [(&client, &server, 4, 3), (&server, &client, 3, 4)] {
        let (attr, init) = end.query();
        assert_eq!((attr.dest_qp_num, attr.port_num, attr.pkey_index), (numbers(other), 1, 0));
        assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (5, 6, 0));
        assert_eq!(attr.path_mig_state, IBV_MIG_MIGRATED);
        assert!(attr.timeout > 0 && attr.path_mtu >= IBV_MTU_256);
        // Soft-RoCE rounds up to powers of two.
        assert!(attr.max_rd_atomic >= depth && attr.max_dest_rd_atomic >= resources);
        let rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        assert_eq!(attr.qp_access_flags & rights, rights);
        assert_eq!((init.send_cq, init.recv_cq, init.srq), (end.cq, end.cq, end.srq));
        assert_eq!((init.qp_type, init.sq_sig_all), (IBV_QPT_RC, 0));
        assert!(attr.cap.max_send_wr >= 4 && attr.cap.max_send_sge >= 2 && attr.cap.max_inline_data >= 16);
        assert_eq!((init.cap.max_send_wr, init.cap.max_recv_wr), (attr.cap.max_send_wr, attr.cap.max_recv_wr));
        if end.srq.is_null() {
            assert!(attr.cap.max_recv_wr >= 5 && attr.cap.max_recv_sge >= 3);
        } else {
            assert_eq!((attr.cap.max_recv_wr, attr.cap.max_recv_sge), (0, 0));
        }
        if is_soft() {
            assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.timeout), (depth, resources, 19));
            assert_eq!((attr.rq_psn, attr.sq_psn), (0, 0));
        }
    }
}

#[test]
fn steps_that_do_not_exist_are_refused_and_change_nothing() {
    let asked = ask(&provider(), false, false);
    for state in [IBV_QPS_RTS, IBV_QPS_RTR, IBV_QPS_SQD, IBV_QPS_SQE, 99] {
        assert_eq!(asked.client.modify_state(state), libc::EINVAL, "{state}");
    }
    let port = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 2, ..ibv_qp_attr::default() };
    assert_eq!(asked.client.modify(port, IBV_QP_STATE | IBV_QP_PORT), libc::EINVAL);
    assert_eq!(asked.client.modify_state(IBV_QPS_INIT), 0);
    let (client, _server, _) = asked.accept();
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_SQE, 99] {
        assert_eq!(client.modify_state(state), libc::EINVAL, "{state}");
    }
    let wrong = ibv_qp_attr { qp_state: IBV_QPS_RTS, cur_qp_state: IBV_QPS_RTR, ..ibv_qp_attr::default() };
    assert_eq!(client.modify(wrong, IBV_QP_STATE | IBV_QP_CUR_STATE), libc::EINVAL);
    let right = ibv_qp_attr { cur_qp_state: IBV_QPS_RTS, ..wrong };
    assert_eq!(client.modify(right, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
    assert_eq!(states(&client), (IBV_QPS_RTS, IBV_QPS_RTS));
}

#[test]
fn way_to_a_connection_is_the_connection_managers() {
    assert!(is_soft(), "about the software provider alone");
    let asked = ask(&provider(), false, false);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_1024, dest_qp_num: 7, ..ibv_qp_attr::default() };
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    assert_eq!(asked.client.modify(attr, mask), libc::EOPNOTSUPP);
    let (client, _server, _) = asked.accept();
    assert_eq!(client.modify_state(IBV_QPS_SQD), libc::EOPNOTSUPP);
    assert_eq!(states(&client), (IBV_QPS_RTS, IBV_QPS_RTS));
}

#[test]
fn step_to_the_error_state_flushes_what_is_posted() {
    let (client, server) = pair();
    assert_eq!((client.post_recv(1), client.post_recv(2)), (0, 0));
    assert_eq!(client.modify_state(IBV_QPS_ERR), 0);
    assert_eq!([client.completion(), client.completion()], [(1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(client.post_send(3), 0);
    assert_eq!(client.completion(), (3, FLUSHED));
    assert_eq!(client.modify_state(IBV_QPS_ERR), 0);
    assert_eq!(client.modify_state(IBV_QPS_INIT), libc::EINVAL);
    assert_eq!(states(&server), (IBV_QPS_RTS, IBV_QPS_RTS));
}

#[test]
fn reset_forgets_everything_and_begins_again() {
    let (client, server) = pair();
    assert_eq!((server.post_recv(1), server.post_recv(2)), (0, 0));
    assert_eq!(client.post_send(1), 0);
    assert_eq!(client.completion(), (1, IBV_WC_SUCCESS));
    assert_eq!(server.modify_state(IBV_QPS_RESET), 0);
    assert_eq!(states(&server), (IBV_QPS_RESET, IBV_QPS_RESET));
    if is_soft() {
        // As adapters; soft-RoCE leaves the completion of a receive that was used.
        assert_eq!(server.poll(), None);
    }
    assert_eq!((server.post_recv(3), server.post_send(4)), (libc::EINVAL, libc::EINVAL));
    assert_eq!(server.modify_state(IBV_QPS_ERR), libc::EINVAL);
    assert_eq!(server.modify_state(IBV_QPS_INIT), libc::EINVAL, "without its attributes");
    assert_eq!(server.modify_state(IBV_QPS_RESET), 0);
    let (attr, mask) = to_init();
    assert_eq!(server.modify(attr, mask), 0);
    assert_eq!(states(&server), (IBV_QPS_INIT, IBV_QPS_INIT));
    assert_eq!((server.post_recv(5), server.post_send(6)), (0, libc::EINVAL));
    assert_eq!(server.modify_state(IBV_QPS_ERR), 0);
    let (wr_id, status) = server.completion();
    // Soft-RoCE's left one.
    let (wr_id, status) = if wr_id == 1 { server.completion() } else { (wr_id, status) };
    assert_eq!((wr_id, status), (5, FLUSHED));
}

#[test]
fn peer_of_a_queue_pair_that_was_reset_hears_nothing_and_gives_up() {
    // On soft-RoCE this takes its own time-outs.
    let provider = provider_like(|config| config.ack_timeout = Duration::from_millis(50));
    let (client, server, _) = ask(&provider, false, false).accept();
    assert_eq!(server.modify_state(IBV_QPS_RESET), 0);
    assert_eq!(client.post_send(1), 0);
    assert_eq!(client.completion(), (1, IBV_WC_RETRY_EXC_ERR));
    assert_eq!(client.query().0.qp_state, IBV_QPS_ERR);
}

#[test]
fn time_that_a_peer_waits_for_a_receive_can_be_changed() {
    let asked = ask(&provider(), false, false);
    let (client, server, _) = asked.accept();
    // 10 µs instead of 655 ms.
    let attr = ibv_qp_attr { min_rnr_timer: 1, ..ibv_qp_attr::default() };
    assert_eq!(server.modify(attr, IBV_QP_MIN_RNR_TIMER), 0);
    assert_eq!(server.query().0.min_rnr_timer, 1);
    let start = Instant::now();
    assert_eq!(client.post_send(1), 0);
    assert_eq!(client.completion(), (1, IBV_WC_RNR_RETRY_EXC_ERR));
    // It tries six times more.
    assert!(start.elapsed() < Duration::from_millis(655), "{:?}", start.elapsed());
    if is_soft() {
        let attr = ibv_qp_attr { min_rnr_timer: 32, ..ibv_qp_attr::default() };
        assert_eq!(server.modify(attr, IBV_QP_MIN_RNR_TIMER), libc::EINVAL);
    }
}

#[test]
fn what_a_queue_pair_does_not_allow_is_refused() {
    let (client, server) = pair();
    let attr = ibv_qp_attr { qp_access_flags: IBV_ACCESS_REMOTE_READ, ..ibv_qp_attr::default() };
    assert_eq!(server.modify(attr, IBV_QP_ACCESS_FLAGS), 0);
    assert_eq!(server.query().0.qp_access_flags, IBV_ACCESS_REMOTE_READ);
    assert_eq!(client.post_write(1, b"x", 0, 0), 0);
    assert_eq!(client.completion(), (1, IBV_WC_REM_INV_REQ_ERR));
}

#[test]
fn each_end_is_told_whether_the_other_has_a_shared_receive_queue() {
    for (client_srq, server_srq) in [(false, true), (true, false)] {
        let asked = ask(&provider(), client_srq, server_srq);
        assert_eq!(asked.request.srq != 0, client_srq);
        assert_eq!(asked.request.qp_num, asked.client.number());
        let (_client, server, answer) = asked.accept();
        assert_eq!(answer.srq != 0, server_srq);
        assert_eq!(answer.qp_num, server.number());
    }
}

#[test]
fn shared_receive_queue_is_filled_through_the_context_and_stays_while_a_queue_pair_uses_it() {
    let (client, server, _) = ask(&provider(), false, true).accept();
    // SAFETY: live.
    assert_eq!(unsafe { (*server.qp()).srq }, server.srq);
    assert_eq!(server.post_srq_recv(7), 0);
    assert_eq!(client.post_send(1), 0);
    assert_eq!(server.completion(), (7, IBV_WC_SUCCESS));
    assert_eq!(server.destroy_srq(), libc::EBUSY);
    server.destroy_qp();
    assert_eq!(server.destroy_srq(), 0);
}

#[test]
fn limit_of_a_shared_receive_queue_is_told_of_once_each_time_that_it_is_set() {
    assert!(is_soft(), "about the software provider alone");
    let (client, server, _) = ask(&provider(), false, true).accept();
    let modify = |max_wr, srq_limit, mask: ibv_srq_attr_mask| {
        // SAFETY: live, and of this provider.
        unsafe { door::verbs::modify_srq(server.srq, &ibv_srq_attr { max_wr, max_sge: 0, srq_limit }, mask.cast_signed()) }
    };
    let query = || {
        // SAFETY: live, and of this provider.
        let attr = unsafe { door::verbs::query_srq(server.srq) };
        (attr.max_wr, attr.max_sge, attr.srq_limit)
    };
    assert_eq!(query(), (8, 1, 0));
    assert_eq!(modify(0, 9, IBV_SRQ_LIMIT), libc::EINVAL);
    assert_eq!(modify(0, 0, IBV_SRQ_MAX_WR), libc::EINVAL);
    assert_eq!(modify(8, 0, 1 << 7), libc::EINVAL);
    assert_eq!(modify(16, 2, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0);
    assert_eq!(query(), (16, 1, 2));
    for wr_id in 0..16 {
        assert_eq!(server.post_srq_recv(wr_id), 0);
    }
    assert_eq!(server.post_srq_recv(16), libc::ENOMEM);
    for wr_id in 0..16 {
        assert_eq!(client.post_send(wr_id), 0);
        assert_eq!((client.completion().1, server.completion().1), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
        if wr_id == 14 {
            let event = server.async_event();
            assert_eq!(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
            // SAFETY: with this kind it is the member that was set.
            assert_eq!(unsafe { event.element.srq }, server.srq);
            server.ack(event);
            assert_eq!(query(), (16, 1, 0));
            assert_eq!(modify(0, 1, IBV_SRQ_LIMIT), 0);
        }
    }
    let event = server.async_event();
    assert_eq!(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    server.ack(event);
}
