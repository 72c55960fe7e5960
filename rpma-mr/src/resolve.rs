//! From a host's name to the device that its address is on.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpma_sys::ProviderRef;
use rpma_sys::owned::{CmEventKind, CmId, Context, EventChannel, lacks_scope};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::device_error::DeviceError;

/// The connection manager ends its own wait at the time-out; ours ends this much later, for the case that it never does.
const GRACE: Duration = Duration::from_millis(100);

/// Tries the addresses that `host` stands for, in the resolver's order, until `attempt` succeeds with one.
///
/// Names are looked up with `getaddrinfo(3)`, which gives all of them and understands `fe80::1%eth0`; `rdma_getaddrinfo(3)` keeps
/// only the first.
pub(crate) fn first<T>(host: &str, attempt: impl FnMut(SocketAddr) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    let unknown = |source| DeviceError::UnknownHost { host: host.to_owned(), source };
    let addrs = (host, 0).to_socket_addrs().map_err(unknown)?;
    first_of(addrs, attempt)?.ok_or_else(|| unknown(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// The first success, or the error of the address that came furthest; `None` if there was no address.
fn first_of<T>(
    addrs: impl IntoIterator<Item = SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> Result<T, DeviceError>,
) -> Result<Option<T>, DeviceError> {
    let mut worst: Option<DeviceError> = None;
    for addr in addrs {
        match attempt(addr) {
            Ok(found) => return Ok(Some(found)),
            Err(error) if error.concerns_every_address() => return Err(error),
            Err(error) => {
                log::debug!("{}: {error}", addr.ip());
                if worst.as_ref().is_none_or(|w| error.progress() > w.progress()) {
                    worst = Some(error);
                }
            }
        }
    }
    worst.map_or(Ok(None), Err)
}

/// The device that a local address is on.
///
/// The identifier stays bound for as long as the device is used, and so holds a port: one that the kernel chose.
pub(crate) fn bind(provider: &ProviderRef, addr: SocketAddr) -> Result<Arc<Context>, DeviceError> {
    let (_channel, id) = start(provider, addr)?;
    id.bind(addr).map_err(|e| DeviceError::of_bind(addr.ip(), e).unless_forbidden(provider))?;
    // The wildcard and loopback addresses bind to every device, which is none.
    Context::of_id(id).map_err(|_| DeviceError::NotOnDevice { ip: addr.ip(), source: None })
}

/// The device that the way to a remote address leads through.
pub(crate) fn resolve(provider: &ProviderRef, addr: SocketAddr, timeout: Duration) -> Result<Arc<Context>, DeviceError> {
    let ip = addr.ip();
    let (channel, id) = start(provider, addr)?;
    // Later than every clock: no deadline of ours.
    let deadline = Instant::now().checked_add(timeout.saturating_add(GRACE));
    id.resolve_addr(addr, timeout).map_err(|e| DeviceError::of_resolve(ip, timeout, e).unless_forbidden(provider))?;
    loop {
        let broken = |source| DeviceError::Provider { doing: "resolve the address", source };
        match channel.get_event().map_err(broken)? {
            None => {
                if !wait_readable(&channel, deadline).map_err(broken)? {
                    return Err(DeviceError::TimedOut { ip, timeout });
                }
            }
            Some(event) => match event.kind {
                CmEventKind::AddrResolved => {
                    return Context::of_id(id).map_err(|_| DeviceError::NotOnDevice { ip, source: None });
                }
                CmEventKind::AddrError => {
                    return Err(DeviceError::of_resolve(ip, timeout, event.error()).unless_forbidden(provider));
                }
                other => {
                    return Err(broken(io::Error::other(format!("an event {other:?} came in place of the answer"))));
                }
            },
        }
    }
}

fn start(provider: &ProviderRef, addr: SocketAddr) -> Result<(Arc<EventChannel>, CmId), DeviceError> {
    if lacks_scope(addr) {
        return Err(DeviceError::NoScope { ip: addr.ip() });
    }
    let channel = EventChannel::create(provider).map_err(|e| DeviceError::of_start(provider, "open an event channel", e))?;
    let id = CmId::create(&channel).map_err(|e| DeviceError::of_start(provider, "make a connection identifier", e))?;
    Ok((channel, id))
}

/// Waits until there is an event; `false` if the deadline came first.
fn wait_readable(channel: &EventChannel, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        // What does not fit lasts longer than any machine.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(channel, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::fake::{Answer, Fake, Reply};
    use std::net::IpAddr;

    fn not_on_device(ip: IpAddr) -> DeviceError {
        DeviceError::NotOnDevice { ip, source: None }
    }

    fn addrs(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect()
    }

    #[test]
    fn every_address_is_tried_until_one_will_do() {
        let mut tried = Vec::new();
        let found = first_of(addrs(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]), |addr| {
            tried.push(addr.ip().to_string());
            if tried.len() == 2 { Ok(addr.ip()) } else { Err(not_on_device(addr.ip())) }
        });
        assert_eq!(found.unwrap().unwrap().to_string(), "10.0.0.2");
        assert_eq!(tried, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn error_told_is_that_of_the_address_that_came_furthest() {
        let error = first_of(addrs(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]), |addr| -> Result<(), _> {
            Err(if addr.ip().to_string() == "10.0.0.2" {
                DeviceError::TimedOut { ip: addr.ip(), timeout: Duration::ZERO }
            } else {
                not_on_device(addr.ip())
            })
        });
        assert!(error.unwrap_err().to_string().contains("10.0.0.2"));
    }

    #[test]
    fn error_that_concerns_every_address_ends_the_search() {
        let mut tries = 0;
        let error = first_of(addrs(&["10.0.0.1", "10.0.0.2"]), |_| -> Result<(), _> {
            tries += 1;
            Err(DeviceError::NoDevice { source: None })
        });
        assert!(matches!(error, Err(DeviceError::NoDevice { .. })));
        assert_eq!(tries, 1);
    }

    #[test]
    fn unknown_host_keeps_the_resolvers_message() {
        let provider = Fake::new(&[("fake0", false)]).provider();
        let error = Device::local(&provider, "no such host").unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(matches!(&error, DeviceError::UnknownHost { host, .. } if host == "no such host"));
        assert!(!source.is_empty() && !error.to_string().contains(&source), "{error}: {source}");
    }

    #[test]
    fn local_address_gives_its_device_and_holds_it() {
        let fake = Fake::new(&[("fake0", false), ("fake1", false)]);
        fake.edit(|state| state.bind = Answer::Device(1));
        let device = Device::local(&fake.provider(), "10.0.0.1").unwrap();
        assert_eq!(device.name(), "fake1");
        // The identifier that keeps the device, and the identifier's channel.
        assert_eq!(fake.live(), 2);
        drop(device);
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn address_that_binds_to_no_device_is_an_error() {
        let fake = Fake::new(&[("fake0", false)]);
        for (answer, host) in [(Answer::Unbound, "0.0.0.0"), (Answer::Unbound, "::1"), (Answer::Errno(19), "10.0.0.1")] {
            fake.edit(|state| state.bind = answer);
            let error = Device::local(&fake.provider(), host).unwrap_err();
            assert!(matches!(error, DeviceError::NotOnDevice { .. }), "{host}: {error:?}");
        }
        fake.edit(|state| state.bind = Answer::Errno(99));
        assert!(matches!(Device::local(&fake.provider(), "10.9.9.9"), Err(DeviceError::NotLocal { .. })));
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn link_local_address_without_its_interface_is_refused_before_the_provider_is_asked() {
        let provider = Fake::new(&[("fake0", false)]).provider();
        let error = Device::local(&provider, "fe80::1").unwrap_err();
        assert!(error.to_string().contains("fe80::1%eth0"), "{error}");
    }

    #[test]
    fn scope_of_an_ipv6_address_reaches_the_provider() {
        let fake = Fake::new(&[("fake0", false)]);
        fake.edit(|state| state.bind = Answer::Device(0));
        // Interface 1 is the loopback interface on every Linux machine.
        Device::local(&fake.provider(), "fe80::1%1").unwrap();
        assert_eq!(fake.edit(|state| state.bound_scope), Some(1));
    }

    #[test]
    fn remote_address_resolves_when_its_event_comes() {
        let fake = Fake::new(&[("fake0", false)]);
        fake.edit(|state| state.resolve = Reply::After(Duration::from_millis(20), Answer::Device(0)));
        let device = Device::remote(&fake.provider(), "10.0.0.2", Device::RESOLVE_TIMEOUT).unwrap();
        assert_eq!(device.name(), "fake0");
        drop(device);
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn remote_address_that_fails_tells_why() {
        let fake = Fake::new(&[("fake0", false)]);
        let attempt = |reply| {
            fake.edit(|state| state.resolve = reply);
            Device::remote(&fake.provider(), "10.0.0.2", Duration::from_millis(1)).unwrap_err()
        };
        assert!(matches!(attempt(Reply::Now(Answer::Errno(101))), DeviceError::Unreachable { .. }));
        assert!(matches!(attempt(Reply::After(Duration::ZERO, Answer::Errno(110))), DeviceError::TimedOut { .. }));
        assert!(matches!(attempt(Reply::After(Duration::ZERO, Answer::Errno(19))), DeviceError::NotOnDevice { .. }));
        assert!(matches!(attempt(Reply::After(Duration::ZERO, Answer::Unbound)), DeviceError::NotOnDevice { .. }));
        assert!(matches!(attempt(Reply::Never), DeviceError::TimedOut { .. }));
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn without_devices_every_way_in_says_so() {
        for errno in [19, 2] {
            let fake = Fake::new(&[]);
            fake.edit(|state| state.start = Some(errno));
            let provider = fake.provider();
            let errors = [
                Device::list(&provider).unwrap_err(),
                Device::by_name(&provider, "fake0").unwrap_err(),
                Device::local(&provider, "10.0.0.1").unwrap_err(),
                Device::remote(&provider, "10.0.0.1", Device::RESOLVE_TIMEOUT).unwrap_err(),
            ];
            for error in errors {
                assert!(matches!(error, DeviceError::NoDevice { source: Some(_) }), "{error:?}");
            }
        }
        // An empty list is no success either.
        assert!(matches!(Device::list(&Fake::new(&[]).provider()), Err(DeviceError::NoDevice { source: None })));
    }
}
