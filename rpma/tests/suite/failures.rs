//! Failures of the provider: every call that can fail fails once, in every place where it is made.

use std::error::Error;
use std::sync::Arc;

use rpma::prelude::*;
use rpma::sys::ProviderRef;
use rpma::sys::testing::{Call, CountingProvider, Counts, Effect, FailingProvider, Kind, Plan, Selection};
use rpma::{
    Advice, AdviseError, AdviseFlags, BuildError, ConnReqError, ConnectError, CqError, CqRole, ErrorCode, EstablishError,
    EventError, ListenError, OpPath, PostError, RegisterError, RequestError,
};
use rustix::io::Errno;

use crate::support::{
    LIMIT, Pair, addr, cfg, complete, in_time_or, listen, peer, peer_over, provider, readable, region, remote, still_works,
};

pub(super) type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// A whole life of both ends over one provider, in one thread, so that the calls come in one order.
pub(super) fn whole_life(provider: &ProviderRef) -> Outcome {
    let device = Device::local(provider, &addr().to_string())?;
    assert!(Device::list(provider)?.iter().any(|listed| listed.is_same_as(&device)));
    let peer = Peer::new(&device)?;
    let source = peer.register(AnonPages::new(8)?, Usage::WRITE_SRC | Usage::SEND).map_err(RegisterError::from)?;
    let target = peer.register(AnonPages::new(8)?, Usage::WRITE_DST | Usage::FLUSH_TYPE_VISIBILITY | Usage::RECV);
    let target = target.map_err(RegisterError::from)?;
    match target.advise(.., Advice::Prefetch, AdviseFlags::empty()) {
        Ok(()) | Err(AdviseError::NotSupported { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    let there = RemoteMr::from_descriptor(&target.descriptor().to_bytes())?;
    let endpoint = Endpoint::listen(&peer, (addr(), 0))?;
    let listening = endpoint.local_addr().ok_or("no local address")?;

    let rejected = ConnReq::new(&peer, listening, &cfg())?.connect(b"please")?;
    endpoint.next_request(LIMIT)?.reject(b"no")?;
    match rejected.established(LIMIT) {
        Err(EstablishError::Rejected(rejection)) => assert_eq!(rejection.private_data[..2], *b"no"),
        Err(e) => return Err(e.into()),
        Ok(conn) => panic!("{conn:?} was to be rejected"),
    }
    drop(rejected);

    let asking = cfg().type_of_service(8).ack_timeout(18)?;
    let pending = ConnReq::new(&peer, listening, &asking)?.connect(b"please")?;
    let incoming = endpoint.next_conn_req(&cfg(), LIMIT)?;
    incoming.recv(target.all(), 1)?;
    let accepting = incoming.connect(b"welcome")?;
    let client = pending.established(LIMIT)?;
    let server = accepting.established(LIMIT)?;
    assert_eq!(client.negotiated()?.ack_timeout, 18);

    // As an event loop does, so that there is an event in every life.
    client.cq().arm()?;
    client.write(there.all(), source.all(), Signal::Always, 2)?;
    readable(&client.cq());
    client.cq().arm()?;
    let completion = client.cq().poll()?.ok_or("an event, and no completion")?;
    completion.result()?;
    client.write(there.all(), source.all(), Signal::OnError, 2)?;
    client.flush(there.all(), FlushType::Visibility, Signal::Always, 3)?;
    client.cq().wait(LIMIT)?.result()?;
    client.atomic_write(there.all(), [5; 8], Signal::Always, 4)?;
    client.cq().wait(LIMIT)?.result()?;
    client.send(source.all(), Signal::Always, 5)?;
    server.cq().wait(LIMIT)?.result()?;
    client.cq().wait(LIMIT)?.result()?;
    let mut batch = client.batch();
    batch.write(there.all(), source.all(), Signal::OnError, 7)?;
    batch.flush(there.all(), FlushType::Visibility, Signal::Always, 8)?.post()?;
    client.cq().wait(LIMIT)?.result()?;
    server.recv(target.all(), 6)?;

    client.disconnect()?;
    is_closed(&server)?;
    server.disconnect()?;
    assert!(server.cq().wait(LIMIT)?.result().is_err(), "the last receive");
    is_drained(&server)?;
    // The answer that the client waits for is in the disconnect, or else in the end of the identifier.
    drop((server, accepting));
    is_closed(&client)?;
    is_drained(&client)
}

/// As [`whole_life`], of what [`whole_life`] has not: a listener, a shared receive queue on one side, a shared channel on the other.
pub(super) fn shared_life(provider: &ProviderRef) -> Outcome {
    let peer = Peer::new(&Device::local(provider, &addr().to_string())?)?;
    let source = peer.register(AnonPages::new(8)?, Usage::WRITE_SRC | Usage::SEND).map_err(RegisterError::from)?;
    let target = peer.register(AnonPages::new(8)?, Usage::WRITE_DST | Usage::RECV).map_err(RegisterError::from)?;
    let there = RemoteMr::from_descriptor(&target.descriptor().to_bytes())?;
    let srq = peer.new_srq(&SrqCfg::new())?;
    srq.recv(target.all(), 1)?;
    let listener = Listener::new(&peer, (addr(), 0), &cfg().srq(&srq))?;
    let listening = listener.local_addr().ok_or("no local address")?;

    let request = ConnReq::new(&peer, listening, &cfg().rcq_size(4).shared_channel(true))?;
    request.recv(LocalSlice::null(), 2)?;
    let pending = request.connect(&[])?;
    let accepting = listener.get_request(LIMIT)?.connect(&[])?;
    let client = pending.established(LIMIT)?;
    let server = accepting.established(LIMIT)?;

    client.arm()?;
    client.send(source.all(), Signal::Always, 3)?;
    readable(&client.compl_fd()?);
    assert!(client.arm()?.main, "an event of the main queue");
    client.wait(LIMIT)?.1.result()?;
    let rcq = srq.rcq().ok_or("no receive queue")?;
    rcq.arm()?;
    rcq.wait(LIMIT)?.result()?;
    server.send(LocalSlice::null(), Signal::Always, 4)?;
    server.cq().wait(LIMIT)?.result()?;
    assert_eq!(client.wait(LIMIT)?.0, CqRole::Receive);
    client.write_atomic(there.all(), &source, 0, Signal::Always, 5)?;
    client.wait(LIMIT)?.1.result()?;

    srq.recv(LocalSlice::null(), 6)?;
    client.disconnect()?;
    is_closed(&server)?;
    server.disconnect()?;
    is_drained(&server)?;
    drop((server, accepting));
    is_closed(&client)?;
    match client.wait(LIMIT) {
        Err(CqError::Drained) => Ok(()),
        Err(e) => Err(e.into()),
        Ok(completion) => panic!("{completion:?}"),
    }
}

fn is_drained(conn: &Conn) -> Outcome {
    match conn.cq().wait(LIMIT) {
        Err(CqError::Drained) => Ok(()),
        Err(e) => Err(e.into()),
        Ok(completion) => panic!("{completion:?}"),
    }
}

pub(super) fn is_closed(conn: &Conn) -> Outcome {
    match conn.next_event(LIMIT)? {
        ConnEvent::Closed => Ok(()),
        other => Err(format!("{other:?} where the connection was to be closed").into()),
    }
}

pub(super) type Life = fn(&ProviderRef) -> Outcome;

/// Lives a life again and again, each time with another one of the selected calls failing, until all have failed once.
/// `check` is told the call, what came of it, and what is still alive. Returns how many there were.
fn fail_each(life: Life, selection: &Selection, errno: Errno, check: impl Fn(Call, Outcome, Counts)) -> u64 {
    let mut n = 0;
    loop {
        let counting = CountingProvider::new(provider());
        let failing = FailingProvider::new(counting.provider());
        failing.arm(Plan::nth(n, errno.raw_os_error()).among(selection.clone()));
        let provider = failing.provider();
        let hint = || format!("though nothing failed but {:?}, alive is {}", failing.fired(), counting.live());
        let outcome = in_time_or(hint, move || life(&provider));
        match failing.fired()[..] {
            [] => {
                // There is no such call any more: all have had their turn.
                outcome.unwrap();
                counting.nothing_live().unwrap();
                return n;
            }
            [call] => check(call, outcome, counting.live()),
            ref more => panic!("one call was to fail, and {more:?} did"),
        }
        n += 1;
    }
}

#[test]
fn call_that_fails_anywhere_is_one_error_and_leaves_nothing_alive() {
    is_one_error_and_leaves_nothing_alive(whole_life, &[]);
}

#[test]
fn call_that_fails_anywhere_with_shared_queues_is_one_error_and_leaves_nothing_alive() {
    // What lies in the shared queue's own completion queue is set aside when a connection goes: where that fails, it stays there.
    is_one_error_and_leaves_nothing_alive(shared_life, &[Call::poll_cq]);
}

pub(super) fn is_one_error_and_leaves_nothing_alive(life: Life, also_recovers: &[Call]) {
    let calls = fail_each(life, &Selection::Doing, Errno::NOMEM, |call, outcome, live| {
        assert!(live.is_nothing(), "{call} failed ({outcome:?}), and alive is {live}");
        // A device that cannot be asked has no optional operations, and a queue pair that cannot be made with them is made without. One
        // that cannot be moved to the error state at the end is moved by whoever waits for completions. Whoever disconnects after the
        // other side did has nothing to lose. A completion event that cannot be taken behind one that was is the next call's.
        let recovers = [
            Call::ibv_query_device_ex,
            Call::rdma_create_qp_ex,
            Call::qp_ops,
            Call::ibv_modify_qp,
            Call::rdma_disconnect,
            Call::ibv_get_cq_event,
        ];
        match outcome {
            Ok(()) => {
                assert!(recovers.contains(&call) || also_recovers.contains(&call), "nobody noticed that {call} failed");
            }
            // The cause is the errno in the convention of the call, at the end of the chain.
            Err(error) => assert_eq!(errno_of(&*error), Some(Errno::NOMEM), "{call} failed: {error:?}"),
        }
    });
    assert!(calls > 60, "a whole life has {calls} calls that can fail");
}

/// The errno at the end of the chain of causes.
fn errno_of(error: &(dyn Error + 'static)) -> Option<Errno> {
    match error.source() {
        Some(source) => errno_of(source),
        None => error.downcast_ref().and_then(Errno::from_io_error),
    }
}

#[test]
fn call_that_frees_and_fails_leaks_its_object_with_what_that_uses_and_nothing_else() {
    leaks_its_object_with_what_that_uses_and_nothing_else(whole_life);
}

#[test]
fn call_that_frees_shared_queues_and_fails_leaks_its_object_with_what_that_uses_and_nothing_else() {
    leaks_its_object_with_what_that_uses_and_nothing_else(shared_life);
}

pub(super) fn leaks_its_object_with_what_that_uses_and_nothing_else(life: Life) {
    let calls = fail_each(life, &Selection::Freeing, Errno::BUSY, |call, outcome, live| {
        outcome.unwrap();
        let Effect::Frees(kind) = call.effect() else { panic!("{call} frees nothing") };
        // A device is held open by an identifier of its own, which is on a channel.
        let device: &[_] = &[Kind::Id, Kind::EventChannel];
        let expected: Vec<Kind> = match kind {
            Kind::Id => device.to_vec(),
            Kind::Mr => [&[Kind::Mr, Kind::Pd], device].concat(),
            Kind::Cq => [&[Kind::Cq, Kind::CompChannel], device].concat(),
            Kind::Srq => [&[Kind::Srq, Kind::Pd], device].concat(),
            other => [&[other], device].concat(),
        };
        for &kind in Kind::ALL {
            assert_eq!(live[kind], i64::from(expected.contains(&kind)), "{call} failed; of {}: alive is {live}", kind.name());
        }
    });
    assert!(calls > 10, "a whole life has {calls} calls that free something");
}

/// A client that asks, over the provider under test, a server whose provider fails calls.
struct Asked {
    failing: Arc<FailingProvider>,
    counting: Arc<CountingProvider>,
    endpoint: Endpoint,
    client: Peer,
}

impl Asked {
    fn new() -> Self {
        let counting = CountingProvider::new(provider());
        let failing = FailingProvider::new(counting.provider());
        let (endpoint, _) = listen(&peer_over(&failing.provider()));
        Self { failing, counting, endpoint, client: peer() }
    }

    fn ask(&self) -> PendingConn {
        ConnReq::new(&self.client, self.endpoint.local_addr().unwrap(), &cfg()).unwrap().connect(&[]).unwrap()
    }
}

#[test]
fn server_that_fails_at_any_step_of_accepting_rejects_its_client_and_goes_on() {
    let asked = Asked::new();
    let before = asked.counting.live();
    for call in [
        Call::rdma_create_event_channel,
        Call::rdma_migrate_id,
        Call::ibv_query_port,
        Call::ibv_create_comp_channel,
        Call::ibv_create_cq,
        Call::cq_ops,
        Call::rdma_create_qp_ex,
        Call::qp_ops,
        Call::rdma_accept,
    ] {
        let pending = asked.ask();
        asked.failing.arm(Plan::every(call, libc::ENOMEM));
        let code = match asked.endpoint.next_conn_req(&cfg(), LIMIT) {
            Ok(request) => request.connect(&[]).unwrap_err().code(),
            Err(e) => e.code(),
        };
        assert!(asked.failing.fired().contains(&call));
        asked.failing.disarm();
        assert_eq!(code, ErrorCode::Provider, "{call}");
        let answer = pending.established(LIMIT);
        assert!(matches!(answer, Err(EstablishError::Rejected(_))), "{call}: {answer:?}");
        assert_eq!(asked.counting.live(), before, "{call}");
    }
    let pending = asked.ask();
    let server = asked.endpoint.next_conn_req(&cfg(), LIMIT).unwrap().connect(&[]).unwrap();
    let client = pending.established(LIMIT).unwrap();
    still_works(&Pair { client, server: server.established(LIMIT).unwrap() });
}

#[test]
fn endpoint_whose_event_cannot_be_read_gives_an_error_and_then_the_request() {
    let asked = Asked::new();
    let _pending = asked.ask();
    asked.failing.arm(Plan::nth_of(Call::rdma_get_cm_event, 0, libc::EIO));
    let error = asked.endpoint.next_request(LIMIT).unwrap_err();
    assert!(matches!(&error, RequestError::Provider(e) if e.raw_os_error() == Some(libc::EIO)), "{error:?}");
    drop(asked.endpoint.next_request(LIMIT).unwrap());
}

#[test]
fn rejection_that_fails_is_an_error_and_is_tried_once_more() {
    let asked = Asked::new();
    let pending = asked.ask();
    let incoming = asked.endpoint.next_request(LIMIT).unwrap();
    asked.failing.arm(Plan::nth_of(Call::rdma_reject, 0, libc::EIO));
    let error = incoming.reject(b"no").unwrap_err();
    assert!(matches!(error, ConnectError::Provider(_)), "{error:?}");
    assert!(matches!(pending.established(LIMIT), Err(EstablishError::Rejected(_))));
}

#[test]
fn interrupted_and_untimely_calls_are_made_again() {
    for (call, errno) in [
        (Call::rdma_get_cm_event, Errno::INTR),
        (Call::rdma_get_cm_event, Errno::AGAIN),
        (Call::rdma_get_cm_event, Errno::NODATA),
        (Call::ibv_get_cq_event, Errno::INTR),
        (Call::ibv_get_cq_event, Errno::AGAIN),
    ] {
        let calls = fail_each(whole_life, &Selection::Of(vec![call]), errno, |_, outcome, live| {
            outcome.unwrap();
            assert!(live.is_nothing(), "{call}, {errno}: alive is {live}");
        });
        assert!(calls > 0, "a whole life has no {call}");
    }
}

#[test]
fn errors_carry_the_errno_in_each_of_the_three_conventions() {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    let outgoing = || match ConnReq::new(&peer, (addr(), 9), &cfg().sq_size(7).rq_size(5)).unwrap_err() {
        ConnReqError::Build(error) => error,
        error => panic!("{error:?}"),
    };
    // Returned.
    failing.arm(Plan::nth_of(Call::ibv_query_port, 0, libc::EACCES));
    let error = outgoing();
    assert!(
        matches!(&error, BuildError::Port { port_num: 1, source } if source.raw_os_error() == Some(libc::EACCES)),
        "{error:?}"
    );
    // In `errno`, behind null.
    failing.arm(Plan::nth_of(Call::ibv_create_cq, 0, libc::EDQUOT));
    let error = outgoing();
    assert!(matches!(&error, BuildError::Cq { source, .. } if source.raw_os_error() == Some(libc::EDQUOT)), "{error:?}");
    // In `errno`, behind -1.
    failing.arm(Plan::every(Call::rdma_create_qp_ex, libc::EDQUOT));
    let error = outgoing();
    assert_eq!(
        error.to_string(),
        "the device gives no queue pair for 7 sends of 1 ranges or 8 inline bytes, and 5 receives of 1 ranges: ask for less"
    );
    assert_eq!(errno_of(&error), Some(Errno::DQUOT));

    failing.arm(Plan::nth_of(Call::rdma_listen, 0, libc::EADDRINUSE));
    let error = Endpoint::listen(&peer, (addr(), 0)).unwrap_err();
    assert!(matches!(&error, ListenError::Listen { source, .. } if source.raw_os_error() == Some(libc::EADDRINUSE)), "{error:?}");
}

#[test]
fn native_operations_that_rdma_core_refuses_are_emulated() {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    let native = peer.capabilities().native_flush;
    // Older versions of librdmacm make ENOMEM of every cause.
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOMEM] {
        failing.arm(Plan::nth_of(Call::rdma_create_qp_ex, 0, errno));
        let made = ConnReq::new(&peer, (addr(), 9), &cfg());
        assert_eq!(failing.fired(), [Call::rdma_create_qp_ex]);
        // Without native operations there was nothing to do without.
        assert_eq!(made.is_ok(), native, "{made:?}");
    }
    if native {
        failing.arm_all([
            Plan::nth_of(Call::rdma_create_qp_ex, 0, libc::EOPNOTSUPP),
            Plan::nth_of(Call::rdma_create_qp_ex, 2, libc::EOPNOTSUPP),
        ]);
        let pair = Pair::connect(&peer, &cfg(), &peer, &cfg());
        assert_eq!(pair.client.flush_path(), OpPath::Emulated);
        assert_eq!(pair.server.flush_path(), OpPath::Emulated);
        still_works(&pair);
    }
}

/// A pair over a provider that fails calls.
fn failing_pair() -> (Arc<FailingProvider>, Pair) {
    let failing = FailingProvider::new(provider());
    let peer = peer_over(&failing.provider());
    let pair = Pair::connect(&peer, &cfg(), &peer, &cfg());
    (failing, pair)
}

#[test]
fn post_that_fails_takes_no_slot_and_leaves_the_connection_intact() {
    let (failing, pair) = failing_pair();
    let post = |context| pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context);
    failing.arm(Plan::every(Call::post_send, libc::EIO));
    for _ in 0..2 * cfg().get_sq_size() {
        let error = post(0).unwrap_err();
        assert!(matches!(&error, PostError::Provider { source, .. } if source.raw_os_error() == Some(libc::EIO)), "{error:?}");
        assert_eq!(error.code(), ErrorCode::Provider);
    }
    failing.arm(Plan::every(Call::post_recv, libc::ENOMEM));
    for _ in 0..2 * cfg().get_rq_size() {
        assert!(matches!(pair.client.recv(LocalSlice::null(), 0), Err(PostError::Provider { .. })));
    }
    failing.disarm();
    for context in 0..u64::from(cfg().get_sq_size()) {
        post(context).unwrap();
    }
    for context in 0..u64::from(cfg().get_sq_size()) {
        complete(&pair.client, context);
    }
    still_works(&pair);
}

/// Soft-RoCE answers so before ESTABLISHED, and runs the request later.
#[test]
fn failed_post_that_names_no_bad_request_keeps_its_slot_until_a_later_completion() {
    let (failing, pair) = failing_pair();
    failing.arm(Plan::nth_of(Call::post_send, 0, libc::EINVAL).naming_no_bad_wr());
    let error = pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 1).unwrap_err();
    assert!(matches!(error, PostError::PerhapsTaken { .. }), "{error:?}");
    for context in 2..=u64::from(cfg().get_sq_size()) {
        pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, context).unwrap();
    }
    let full = pair.client.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 0).unwrap_err();
    assert!(matches!(full, PostError::QueueFull { .. }), "{full:?}");
    for context in 2..=u64::from(cfg().get_sq_size()) {
        complete(&pair.client, context);
    }
    still_works(&pair);
}

#[test]
fn native_operation_whose_batch_fails_takes_no_slot_and_leaves_the_connection_intact() {
    let (failing, pair) = failing_pair();
    let target = region(pair.server.peer(), 8, Usage::FLUSH_TYPE_VISIBILITY);
    let there = remote(&target);
    failing.arm_all([Plan::every(Call::wr_complete, libc::ENOSPC), Plan::every(Call::post_send, libc::ENOSPC)]);
    for _ in 0..2 * cfg().get_sq_size() {
        let error = pair.client.flush(there.all(), FlushType::Visibility, Signal::Always, 1).unwrap_err();
        assert!(matches!(&error, PostError::Provider { source, .. } if source.raw_os_error() == Some(libc::ENOSPC)), "{error:?}");
    }
    failing.disarm();
    pair.client.flush(there.all(), FlushType::Visibility, Signal::Always, 2).unwrap();
    complete(&pair.client, 2);
    still_works(&pair);
}

#[test]
fn failure_to_look_for_completions_is_an_error_and_loses_none() {
    for call in [Call::poll_cq, Call::req_notify_cq] {
        let (failing, Pair { client, server }) = failing_pair();
        client.recv(LocalSlice::null(), 1).unwrap();
        failing.arm(Plan::nth_of(call, 0, libc::EIO));
        let error = client.cq().wait(LIMIT).unwrap_err();
        assert_eq!(failing.fired(), [call]);
        assert_eq!(errno_of(&error), Some(Errno::IO), "{error:?}");
        // A failed wait is "no completion" in C, whatever the cause.
        let code = if call == Call::poll_cq { ErrorCode::Provider } else { ErrorCode::NoCompletion };
        assert_eq!(error.code(), code);
        server.send(LocalSlice::null(), Signal::OnError, 2).unwrap();
        complete(&client, 1);
    }
}

#[test]
fn failure_to_read_what_woke_a_waiting_thread_is_an_error_and_loses_nothing() {
    for call in [Call::ibv_get_cq_event, Call::rdma_get_cm_event] {
        let (failing, Pair { client, server }) = failing_pair();
        client.recv(LocalSlice::null(), 1).unwrap();
        failing.arm(Plan::nth_of(call, 0, libc::EIO));
        // The end of the connection wakes the thread, which then looks for events of both kinds.
        server.disconnect().unwrap();
        let error = client.cq().wait(LIMIT).unwrap_err();
        assert_eq!(failing.fired(), [call]);
        assert_eq!((errno_of(&error), error.code()), (Some(Errno::IO), ErrorCode::NoCompletion), "{error:?}");
        assert!(client.cq().wait(LIMIT).unwrap().result().unwrap_err().is_flushed());
        assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    }
}

#[test]
fn connection_event_that_cannot_be_read_is_an_error_and_then_the_event() {
    let (failing, Pair { client, server }) = failing_pair();
    failing.arm(Plan::nth_of(Call::rdma_get_cm_event, 0, libc::EIO));
    let error = client.next_event(LIMIT).unwrap_err();
    assert!(matches!(&error, EventError::Provider(e) if e.raw_os_error() == Some(libc::EIO)), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Provider);
    server.disconnect().unwrap();
    assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
}

#[test]
fn disconnect_that_fails_is_an_error_and_leaves_the_connection_as_it_was() {
    let (failing, pair) = failing_pair();
    failing.arm(Plan::nth_of(Call::rdma_disconnect, 0, libc::EIO));
    let error = pair.client.disconnect().unwrap_err();
    assert_eq!((error.code(), errno_of(&error)), (ErrorCode::Provider, Some(Errno::IO)));
    still_works(&pair);
    pair.client.disconnect().unwrap();
    assert_eq!(pair.server.next_event(LIMIT).unwrap(), ConnEvent::Closed);
}

#[test]
fn queue_pair_that_cannot_be_moved_to_the_error_state_at_the_end_is_moved_by_whoever_waits() {
    let (failing, Pair { client, server }) = failing_pair();
    client.recv(LocalSlice::null(), 1).unwrap();
    failing.arm(Plan::nth_of(Call::ibv_modify_qp, 0, libc::EIO));
    server.disconnect().unwrap();
    assert_eq!(client.next_event(LIMIT).unwrap(), ConnEvent::Closed);
    assert_eq!(failing.fired(), [Call::ibv_modify_qp]);
    assert!(client.cq().wait(LIMIT).unwrap().result().unwrap_err().is_flushed());
}
