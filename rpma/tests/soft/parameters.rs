//! Connection parameters that are something else on each provider: the type of service is the socket's, and a peer is silent whose
//! process is stopped.
#![expect(unsafe_code, reason = "looks at sockets of this process")]

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::process::{Child, Stdio};
use std::time::Instant;

use rpma::EventError;
use rpma::prelude::*;
use rpma::sys::bindings::IBV_WC_RETRY_EXC_ERR;
use rustix::net::{getpeername, getsockname, sockopt};
use rustix::process::{Pid, Signal as ProcessSignal, WaitOptions, kill_process, waitpid};

use crate::support::{LIMIT, Pair, cfg, failed, listen, name_of, peer, this_test_again};

/// The type of service of this process's socket with these two ends.
fn type_of_service(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    fs::read_dir("/proc/self/fd").unwrap().find_map(|entry| {
        let fd = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // SAFETY: a number of an open descriptor; if it was closed meanwhile, the calls fail or tell of another socket.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let ends = (SocketAddr::try_from(getsockname(fd).ok()?).ok()?, SocketAddr::try_from(getpeername(fd).ok()??).ok()?);
        let tos = || if local.is_ipv4() { sockopt::ip_tos(fd).ok().map(u32::from) } else { sockopt::ipv6_tclass(fd).ok() };
        if ends == (local, peer) { tos() } else { None }
    })
}

#[test]
fn type_of_service_is_that_of_the_client_s_socket_and_the_server_s_is_the_system_s() {
    for host in ["127.0.0.1", "::1"] {
        let peer = peer();
        let endpoint = Endpoint::listen(&peer, (host, 0)).unwrap();
        let connect = |client: &ConnCfg, server: &ConnCfg| {
            let request = ConnReq::new(&peer, endpoint.local_addr().unwrap(), client).unwrap();
            let pending = request.connect(&[]).unwrap();
            let accepting = endpoint.next_conn_req(server, LIMIT).unwrap().connect(&[]).unwrap();
            Pair { client: pending.established(LIMIT).unwrap(), server: accepting.established(LIMIT).unwrap() }
        };
        let of = |conn: &Conn| type_of_service(conn.local_addr().unwrap(), conn.peer_addr().unwrap());
        let plain = connect(&cfg(), &cfg());
        let system = of(&plain.client);
        assert!(system.is_some() && of(&plain.server) == system, "{host}: {system:?}");
        let asked = connect(&cfg().type_of_service(0x28), &cfg().type_of_service(0x48));
        assert_eq!((of(&asked.client), of(&asked.server)), (Some(0x28), system), "{host}");
    }
}

/// A process that holds the other ends of connections, and is stopped.
struct Stopped(Child);

impl Stopped {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Returns when it does nothing any more.
    fn stop(&self) {
        kill_process(self.pid(), ProcessSignal::STOP).unwrap();
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two connections to a process that is this program again, told to run the same test.
fn two_connections_to_a_process<F: FnOnce([Conn; 2], Stopped)>(client: &ConnCfg, server: &ConnCfg, body: F) {
    const OTHER_END: &str = "RPMA_TEST_SILENT_END";
    let peer = peer();
    if let Ok(addr) = env::var(OTHER_END) {
        let connect = || ConnReq::new(&peer, addr.as_str(), client).unwrap().connect(&[]).unwrap().established(LIMIT).unwrap();
        let conns = [connect(), connect()];
        let event = conns[0].next_event(Wait::Forever);
        panic!("{event:?} came to a process that was to be killed");
    }
    let (endpoint, addr) = listen(&peer);
    let mut other = this_test_again(name_of::<F>());
    other.env(OTHER_END, addr.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    let other = Stopped(other.spawn().unwrap());
    let accept = || endpoint.next_conn_req(server, LIMIT).unwrap().connect(&[]).unwrap().established(LIMIT).unwrap();
    body([accept(), accept()], other);
}

#[test]
fn work_fails_within_the_time_told_when_the_peer_is_silent_and_an_idle_connection_stays() {
    // The client's number of retries counts for both ends, and each has its own time-out.
    let client = cfg().retry_count(3).unwrap();
    let server = cfg().ack_timeout(16).unwrap();
    two_connections_to_a_process(&client, &server, |[busy, idle], other| {
        let told = busy.negotiated().unwrap().detection_time().unwrap();
        assert_eq!(Some(told), client.clone().ack_timeout(16).unwrap().detection_time());
        other.stop();
        let start = Instant::now();
        busy.write(RemoteSlice::NULL, LocalSlice::null(), Signal::Always, 1).unwrap();
        assert_eq!(failed(&busy, 1).status, IBV_WC_RETRY_EXC_ERR);
        let took = start.elapsed();
        // Four times as long is allowed; the rest is for a slow machine.
        assert!(took >= told && took < told * 4 + LIMIT / 4, "{took:?}, and told were {told:?}");
        assert!(matches!(idle.next_event(Wait::Now), Err(EventError::NoEvent)));
    });
}
