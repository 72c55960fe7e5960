//! Failures of the provider under who waits without blocking, or for many connections at once: as `failures`, with futures and
//! dispatchers. A task that is not woken after a failure fails too: the executor does not wait for ever.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use futures_core::Stream;
use rpma::prelude::*;
use rpma::sys::ProviderRef;
use rpma::sys::testing::{Call, CountingProvider, Selection};
use rpma::{CqRole, DeviceEventError, DeviceEvents, Dispatched, Dispatcher, EstablishError, RegisterError};

use super::executor::{Async, Resolution, block_on};
use super::failures::{
    Life, Outcome, is_closed, is_one_error_and_leaves_nothing_alive, leaks_its_object_with_what_that_uses_and_nothing_else,
    shared_life, whole_life,
};
use crate::support::{LIMIT, addr, cfg, known, provider, readable};

/// The next item of a stream that goes on.
async fn next<T, E, S>(stream: &mut S) -> Result<T, Box<dyn std::error::Error + Send + Sync>>
where
    S: Stream<Item = Result<T, E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    Ok(poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await.ok_or("the stream has ended")??)
}

fn is_drained<T: std::fmt::Debug>(waited: Result<T, CqError>) -> Outcome {
    match waited {
        Err(CqError::Drained) => Ok(()),
        Err(e) => Err(e.into()),
        Ok(completion) => panic!("{completion:?}"),
    }
}

/// A whole life of both ends that waits by futures alone: every kind of object that can be waited for.
async fn life_of_a_task(provider: &ProviderRef) -> Outcome {
    let peer = Peer::new(&Device::local(provider, &addr().to_string())?)?;
    let source = peer.register(AnonPages::new(8)?, Usage::SEND).map_err(RegisterError::from)?;
    let target = peer.register(AnonPages::new(8)?, Usage::RECV).map_err(RegisterError::from)?;
    let srq = peer.new_srq(&SrqCfg::new())?;
    srq.recv(target.all(), 1)?;
    let mut endpoint = Async::new(Endpoint::listen(&peer, (addr(), 0))?)?;
    let listening = endpoint.local_addr().ok_or("no local address")?;

    let request = Resolution::new(ConnReq::start(&peer, listening, &cfg())?)?.await?;
    let mut rejected = Async::new(request.connect(b"please")?)?;
    endpoint.next_request().await?.reject(b"no")?;
    match rejected.established().await {
        Err(EstablishError::Rejected(_)) => {}
        Err(e) => return Err(e.into()),
        Ok(conn) => panic!("{conn:?} was to be rejected"),
    }
    drop(rejected);

    let client = cfg().rcq_size(4).shared_channel(true);
    let request = Resolution::new(ConnReq::start(&peer, listening, &client)?)?.await?;
    let mut pending = Async::new(request.connect(&[])?)?;
    let mut accepting = Async::new(next(&mut endpoint).await?.prepare(&cfg().srq(&srq))?.connect(&[])?)?;
    let mut client = match pending.next_event().await? {
        PendingEvent::Established(conn) => Async::new(conn)?,
        other => return Err(format!("{other:?} where the connection was to be established").into()),
    };
    let mut server = Async::new(accepting.established().await?)?;

    let mut queues = Async::new(client.shared_queues()?)?;
    let mut arrivals = Async::new(srq.rcq().ok_or("no receive queue")?)?;
    let mut completions = server.completions()?;
    client.recv(LocalSlice::null(), 2)?;
    client.send(source.all(), Signal::Always, 3)?;
    queues.wait().await?.1.result()?;
    arrivals.wait().await?.result()?;
    server.send(LocalSlice::null(), Signal::Always, 4)?;
    next(&mut completions).await?.result()?;
    let (role, completion) = next(&mut queues).await?;
    completion.result()?;
    assert_eq!(role, CqRole::Receive);

    client.disconnect()?;
    task_is_closed(next(&mut server).await?)?;
    server.disconnect()?;
    is_drained(completions.wait().await)?;
    // The answer that the client waits for is in the disconnect, or else in the end of the identifier.
    drop((server, accepting, completions));
    task_is_closed(client.next_event().await?)?;
    is_drained(queues.wait().await)
}

fn task_is_closed(event: ConnEvent) -> Outcome {
    match event {
        ConnEvent::Closed => Ok(()),
        other => Err(format!("{other:?} where the connection was to be closed").into()),
    }
}

fn whole_life_of_a_task(provider: &ProviderRef) -> Outcome {
    block_on(life_of_a_task(provider))
}

/// A life of two connections at one dispatcher, which is waited for by what `waiting` makes of it, and of their device's events.
fn life_at_a_dispatcher<W>(provider: &ProviderRef, waiting: impl FnOnce(&Dispatcher) -> io::Result<W>) -> Outcome
where
    W: FnMut() -> Result<Dispatched, CqError>,
{
    let peer = Peer::new(&Device::local(provider, &addr().to_string())?)?;
    let events = DeviceEvents::of(peer.device())?;
    let dispatcher = Dispatcher::new(&peer)?;
    let mut wait = waiting(&dispatcher)?;
    let endpoint = Endpoint::listen(&peer, (addr(), 0))?;
    let listening = endpoint.local_addr().ok_or("no local address")?;
    let connect = |server: &ConnCfg| -> Result<(Conn, Conn), Box<dyn std::error::Error + Send + Sync>> {
        let pending = ConnReq::new(&peer, listening, &cfg())?.connect(&[])?;
        let accepting = endpoint.next_conn_req(server, LIMIT)?.connect(&[])?;
        Ok((pending.established(LIMIT)?, accepting.established(LIMIT)?))
    };
    let server = cfg().dispatcher(&dispatcher);
    let pairs = [connect(&server)?, connect(&server.rcq_size(4))?];
    for (client, server) in &pairs {
        server.recv(LocalSlice::null(), 1)?;
        client.send(LocalSlice::null(), Signal::Always, 2)?;
        readable(&dispatcher);
        // A failure may be told of either connection.
        let Dispatched { qp_num, found } = wait()?;
        found?.1.result()?;
        assert_eq!(qp_num, server.qp_num());
        client.cq().wait(LIMIT)?.result()?;
    }
    // Other tests of this process may have brought some about.
    match events.next_event(Wait::Now) {
        Ok(_) | Err(DeviceEventError::NoEvent) => {}
        Err(e) => return Err(e.into()),
    }
    for (client, server) in pairs {
        client.disconnect()?;
        let Dispatched { qp_num, found } = wait()?;
        is_drained(found)?;
        assert_eq!(qp_num, server.qp_num());
        is_closed(&server)?;
        server.disconnect()?;
        drop(server);
        is_closed(&client)?;
    }
    Ok(())
}

fn whole_life_at_a_dispatcher(provider: &ProviderRef) -> Outcome {
    life_at_a_dispatcher(provider, |dispatcher| {
        let dispatcher = dispatcher.clone();
        Ok(move || dispatcher.wait(LIMIT))
    })
}

fn whole_life_of_a_task_at_a_dispatcher(provider: &ProviderRef) -> Outcome {
    life_at_a_dispatcher(provider, |dispatcher| {
        let mut waiting = Async::new(dispatcher.clone())?;
        Ok(move || block_on(waiting.wait()))
    })
}

#[test]
fn call_that_fails_under_a_task_is_one_error_and_leaves_nothing_alive() {
    // What lies in the shared queue's own completion queue is set aside when a connection goes: where that fails, it stays there.
    is_one_error_and_leaves_nothing_alive(whole_life_of_a_task, &[Call::poll_cq]);
}

#[test]
fn call_that_fails_under_a_dispatcher_is_one_error_and_leaves_nothing_alive() {
    is_one_error_and_leaves_nothing_alive(whole_life_at_a_dispatcher, &[]);
}

#[test]
fn call_that_fails_under_a_dispatcher_s_task_is_one_error_and_leaves_nothing_alive() {
    is_one_error_and_leaves_nothing_alive(whole_life_of_a_task_at_a_dispatcher, &[]);
}

#[test]
fn call_that_frees_what_a_task_waited_for_and_fails_leaks_that_with_what_it_uses_and_nothing_else() {
    leaks_its_object_with_what_that_uses_and_nothing_else(whole_life_of_a_task);
}

#[test]
fn call_that_frees_what_a_dispatcher_waited_for_and_fails_leaks_that_with_what_it_uses_and_nothing_else() {
    leaks_its_object_with_what_that_uses_and_nothing_else(whole_life_at_a_dispatcher);
}

#[test]
fn lives_make_every_call_that_can_fail() {
    let counting = CountingProvider::new(provider());
    let lives: [Life; 4] = [whole_life, shared_life, whole_life_of_a_task, whole_life_at_a_dispatcher];
    lives.iter().for_each(|life| life(&counting.provider()).unwrap());
    let missing: Vec<_> = Call::ALL
        .iter()
        .filter(|&&call| [Selection::Doing, Selection::Freeing].iter().any(|selection| selection.contains(call)))
        // Without native operations no batch is one start…complete.
        .filter(|&&call| known().native_ops || call != Call::wr_complete)
        .filter(|&&call| counting.calls(call) == 0)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
