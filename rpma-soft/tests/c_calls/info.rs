//! Addresses in C's form, and what `rdma_getaddrinfo(3)` answers.
#![expect(unsafe_code, reason = "makes C's calls, and reads and writes its addresses")]

use std::ffi::{CString, c_int};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::{null, null_mut};

use rpma_soft::door::cm;
use rpma_sys::bindings::*;

/// Answers of `rdma_getaddrinfo(3)`.
#[derive(Debug)]
pub(crate) struct AddrInfo(*mut rdma_addrinfo);

impl AddrInfo {
    /// `Err` has the code and, if that is -1, the errno.
    pub(crate) fn get(node: Option<&str>, service: Option<&str>, hints: Option<&rdma_addrinfo>) -> Result<Self, (c_int, c_int)> {
        let [node, service] = [node, service].map(|text| text.map(|text| CString::new(text).unwrap()));
        let text = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        let hints = hints.map_or(null(), |hints| &raw const *hints);
        let mut found = null_mut();
        // SAFETY: null or strings; null or whole; a place for the result.
        match unsafe { cm::rdma_getaddrinfo(text(&node), text(&service), hints, &raw mut found) } {
            0 => Ok(Self(found)),
            -1 => Err((-1, io::Error::last_os_error().raw_os_error().unwrap())),
            code => Err((code, 0)),
        }
    }

    pub(crate) fn fields(&self) -> rdma_addrinfo {
        // SAFETY: live.
        unsafe { self.0.read() }
    }

    pub(crate) fn source(&self) -> Option<SocketAddr> {
        let fields = self.fields();
        addr(fields.ai_src_addr, fields.ai_src_len)
    }

    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        let fields = self.fields();
        addr(fields.ai_dst_addr, fields.ai_dst_len)
    }
}

impl Drop for AddrInfo {
    fn drop(&mut self) {
        // SAFETY: by `rdma_getaddrinfo`, and its owner.
        unsafe { cm::rdma_freeaddrinfo(self.0) };
    }
}

fn addr(addr: *mut sockaddr, len_bytes: u32) -> Option<SocketAddr> {
    assert_eq!(addr.is_null(), len_bytes == 0);
    if addr.is_null() {
        return None;
    }
    // SAFETY: a whole address.
    let addr = unsafe { read(addr) }.unwrap();
    let whole = if addr.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
    assert_eq!(len_bytes as usize, whole);
    Some(addr)
}

/// The address in C's form.
pub(crate) fn storage(addr: SocketAddr) -> sockaddr_storage {
    let mut storage = sockaddr_storage::default();
    match addr {
        SocketAddr::V4(addr) => {
            let raw = sockaddr_in {
                sin_family: libc::AF_INET.try_into().unwrap(),
                sin_port: addr.port().to_be(),
                sin_addr: in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                ..sockaddr_in::default()
            };
            // SAFETY: it fits.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(addr) => {
            let raw = sockaddr_in6 {
                sin6_family: libc::AF_INET6.try_into().unwrap(),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: in6_addr { __in6_u: in6_addr__bindgen_ty_1 { __u6_addr8: addr.ip().octets() } },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: it fits.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(raw) };
        }
    }
    storage
}

/// Reads an address.
///
/// # Safety
///
/// `addr` leads to a whole address.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: every address begins with its family.
    match c_int::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let raw = unsafe { addr.cast::<sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let raw = unsafe { addr.cast::<sockaddr_in6>().read() };
            // SAFETY: every member of the union is plain bytes.
            let ip = Ipv6Addr::from(unsafe { raw.sin6_addr.__in6_u.__u6_addr8 });
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}
