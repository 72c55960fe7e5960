//! The extended way to post, as a C program does it: `ibv_wr_start(3)`, builders, and what ends a batch.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![expect(unsafe_code, reason = "calls what the headers of verbs call inline")]

mod support;

use std::ffi::c_int;
use std::ptr::NonNull;

use rpma_soft::Soft;
use rpma_sys::bindings::*;
use support::provider;
use support::raw::{RawEnd, ask};

/// `ibv_wr_start(3)`, and an empty message for each of `wr_ids`.
fn start(end: &RawEnd, wr_ids: impl IntoIterator<Item = u64>) -> *mut ibv_qp_ex {
    let qp = end.qp().cast::<ibv_qp_ex>();
    // SAFETY: live, and made with builders.
    let start = unsafe { (*qp).wr_start }.unwrap();
    // SAFETY: as above.
    let send = unsafe { (*qp).wr_send }.unwrap();
    // SAFETY: live; no other batch is being built.
    unsafe { start(qp) };
    for wr_id in wr_ids {
        // SAFETY: live, and this thread builds.
        unsafe { (*qp).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = IBV_SEND_SIGNALED };
        // SAFETY: as above.
        unsafe { send(qp) };
    }
    qp
}

/// `ibv_wr_complete(3)`.
fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: live, and a batch is being built.
    let complete = unsafe { (*qp).wr_complete }.unwrap();
    // SAFETY: as above.
    unsafe { complete(qp) }
}

fn pair_of_four_receives(provider: &rpma_sys::ProviderRef) -> (RawEnd, RawEnd) {
    let (client, server, _) = ask(provider, false, false).accept();
    (0..4).for_each(|wr_id| assert_eq!(server.post_recv(wr_id), 0));
    (client, server)
}

fn four(end: &RawEnd) -> [(u64, ibv_wc_status); 4] {
    std::array::from_fn(|_| end.completion())
}

#[test]
fn batch_that_is_given_up_leaves_nothing_posted_and_takes_no_room() {
    let (client, server) = pair_of_four_receives(&provider());
    // The queue has room for four.
    let qp = start(&client, 100..104);
    // SAFETY: live, and a batch is being built.
    let abort = unsafe { (*qp).wr_abort }.unwrap();
    // SAFETY: as above.
    unsafe { abort(qp) };
    assert_eq!(complete(start(&client, 0..4)), 0);
    let all = [0, 1, 2, 3].map(|wr_id| (wr_id, IBV_WC_SUCCESS));
    assert_eq!((four(&client), four(&server)), (all, all));
    assert_eq!((client.poll(), server.poll()), (None, None));
}

#[test]
fn builder_that_panics_fails_its_batch_and_neither_the_program_nor_the_next_one() {
    let (client, server) = pair_of_four_receives(&Soft::open().unwrap());
    let qp = start(&client, [100]);
    // SAFETY: live, and a batch is being built.
    let set_list = unsafe { (*qp).wr_set_sge_list }.unwrap();
    // SAFETY: as above. No list is so long, and none is read: there is not that much memory to keep it in.
    unsafe { set_list(qp, usize::MAX, NonNull::dangling().as_ptr()) };
    assert_eq!(complete(qp), libc::EFAULT);
    assert_eq!(complete(start(&client, 0..4)), 0);
    let all = [0, 1, 2, 3].map(|wr_id| (wr_id, IBV_WC_SUCCESS));
    assert_eq!((four(&client), four(&server)), (all, all));
}
