//! TCP sockets.
#![expect(unsafe_code, reason = "blocks signals in a thread of ours, and asks for what rustix does not have")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// A TCP socket, non-blocking.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

fn family(addr: &SocketAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

impl Socket {
    /// A socket that is bound to `addr`; port 0 is one that the kernel picks. `v6only`: the IPv6 wildcard address leaves out IPv4.
    pub(crate) fn bound(addr: SocketAddr, v6only: Option<bool>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family(&addr), SocketType::STREAM, flags, None)?;
        // A port of a connection that just ended can be listened on again. With port 0 it would let two sockets have the same one.
        sockopt::set_socket_reuseaddr(&socket, addr.port() != 0)?;
        if let (SocketAddr::V6(_), Some(v6only)) = (addr, v6only) {
            sockopt::set_ipv6_v6only(&socket, v6only)?;
        }
        net::bind(&socket, &addr)?;
        Ok(Self(socket))
    }

    /// Lets another socket be bound to its address.
    pub(crate) fn allow_reuse(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseaddr(&self.0, true)?)
    }

    /// Sets the type of service of its packets, as far as it can be: an IPv6 socket carries IPv4 too.
    pub(crate) fn set_tos(&self, tos: u8) {
        let v4 = sockopt::set_ip_tos(&self.0, tos);
        let v6 = sockopt::set_ipv6_tclass(&self.0, tos.into());
        if let (Err(e), Err(_)) = (v4, v6) {
            log::warn!("packets go without the type of service {tos:#x}: {e}");
        }
    }

    /// Its address.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(net::getsockname(&self.0)?)?)
    }

    /// The other end's.
    pub(crate) fn peer(&self) -> io::Result<SocketAddr> {
        let addr = net::getpeername(&self.0)?.ok_or(Errno::NOTCONN)?;
        Ok(SocketAddr::try_from(addr)?)
    }

    /// Listens.
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        // Also where the kernel picked the port: what is accepted inherits this, and a server that starts again on the port of one that
        // was killed must not wait for the old connections' minute to be over.
        sockopt::set_socket_reuseaddr(&self.0, true)?;
        Ok(net::listen(&self.0, backlog)?)
    }

    /// The next who connected, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<Self>> {
        match net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                Ok(Some(Self(socket)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Starts to connect.
    pub(crate) fn connect(&self, addr: SocketAddr) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        match net::connect(&self.0, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Has the kernel ask the other end's machine for a sign of life whenever nothing is under way, every `pause`, in whole seconds.
    pub(crate) fn ask_for_life(&self, pause: Duration) -> io::Result<()> {
        // `tcp(7)`: 32,767 s at most.
        let pause = Duration::from_secs(pause.as_secs().clamp(1, 32_767));
        sockopt::set_tcp_keepidle(&self.0, pause)?;
        sockopt::set_tcp_keepintvl(&self.0, pause)?;
        Ok(sockopt::set_socket_keepalive(&self.0, true)?)
    }

    /// For how long nothing came from the other end's machine: no data, no acknowledgement, no sign of life that it was asked for.
    pub(crate) fn silence(&self) -> io::Result<Duration> {
        // SAFETY: plain numbers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).expect("a structure of some 100 bytes");
        let place: *mut libc::tcp_info = &raw mut info;
        // SAFETY: a place of `len` bytes for the result, which is plain numbers; an older kernel fills less of it, and leaves zeros.
        if unsafe { libc::getsockopt(self.0.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place.cast(), &raw mut len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Duration::from_millis(info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv).into()))
    }

    /// Has closing reset the connection, which leaves the port free at once: otherwise it is taken for a minute more, and a machine has
    /// some 28,000 of them. The other end still reads what arrived before; if the last frame is lost on the way, the reset tells the same.
    pub(crate) fn reset_on_close(&self) {
        let _ = sockopt::set_socket_linger(&self.0, Some(Duration::ZERO));
    }

    /// Whether it is connected. Errors are those of connecting.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        sockopt::socket_error(&self.0)??;
        match net::getpeername(&self.0) {
            Ok(_) => Ok(true),
            Err(Errno::NOTCONN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The address of this machine that reaches `to`. Nothing is sent.
pub(crate) fn source_for(to: SocketAddr) -> io::Result<SocketAddr> {
    let socket = net::socket_with(family(&to), SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Port 0 cannot be connected to.
    let asked = if to.port() == 0 { SocketAddr::new(to.ip(), 1) } else { to };
    net::connect(&socket, &with_scope(asked, to))?;
    let mut addr = SocketAddr::try_from(net::getsockname(&socket)?)?;
    addr.set_port(0);
    Ok(addr)
}

/// `SocketAddr::new` loses the scope.
fn with_scope(addr: SocketAddr, of: SocketAddr) -> SocketAddr {
    match (addr, of) {
        (SocketAddr::V6(mut addr), SocketAddr::V6(of)) => {
            addr.set_scope_id(of.scope_id());
            addr.into()
        }
        (addr, _) => addr,
    }
}

/// An IPv4 address that came in at an IPv6 socket, as IPv4.
pub(crate) fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(addr, |ip| SocketAddr::new(ip.into(), addr.port())),
        IpAddr::V4(_) => addr,
    }
}

/// Whether every address of the machine is meant.
pub(crate) fn is_any(addr: &SocketAddr) -> bool {
    addr.ip() == IpAddr::from(Ipv4Addr::UNSPECIFIED) || addr.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED)
}

/// Leaves all signals to the program's threads.
pub(crate) fn block_signals() {
    // SAFETY: plain bits, which the next call sets.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the result.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: `all` is a set; the old one is not asked for. The calling thread is ours.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn port_whose_server_went_first_can_be_listened_on_at_once() {
        let listening = Socket::bound((Ipv4Addr::LOCALHOST, 0).into(), None).unwrap();
        let addr = listening.local().unwrap();
        listening.listen(1).unwrap();
        let client = TcpStream::connect(addr).unwrap();
        let start = Instant::now();
        let accepted = loop {
            if let Some(accepted) = listening.accept().unwrap() {
                break accepted;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "the connection is there, and was not accepted");
        };
        // As the kernel does when a process is killed: the server's end waits for the client's, and keeps the port.
        drop((accepted, listening));
        Socket::bound(addr, None).unwrap().listen(1).unwrap();
        drop(client);
    }
}
