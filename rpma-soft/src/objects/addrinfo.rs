//! Names and addresses for endpoints: `rdma_getaddrinfo(3)`.
#![expect(unsafe_code, reason = "calls getaddrinfo(3), and fills structures that the program frees by malloc's rules")]

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::ptr::{null, null_mut};

use rpma_sys::bindings::*;

/// `AF_IB`, which `libc` does not have.
const AF_IB: c_int = 27;

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A code of `getaddrinfo(3)`.
    Lookup(c_int),
    /// An errno.
    System(io::Error),
}

fn system(errno: c_int) -> Failure {
    Failure::System(io::Error::from_raw_os_error(errno))
}

/// `rdma_getaddrinfo(3)`.
///
/// # Safety
///
/// `node` and `service` are null or strings; the addresses in `hints` have their lengths.
pub(crate) unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, Failure> {
    let found = if node.is_null() && service.is_null() {
        let hints = hints.ok_or_else(|| system(libc::EINVAL))?;
        // SAFETY: the contract of this function.
        unsafe { repeated(hints) }?
    } else {
        // SAFETY: the contract of this function.
        unsafe { looked_up(node, service, hints) }?
    };
    let Some(hints) = hints else { return Ok(found) };
    // SAFETY: just made.
    let has_source = unsafe { (*found).ai_src_len } != 0;
    if !has_source && hints.ai_src_len != 0 {
        // SAFETY: the address has its length (contract above).
        match unsafe { copied(hints.ai_src_addr, hints.ai_src_len) } {
            Ok(source) => {
                // SAFETY: just made.
                unsafe { (*found).ai_src_addr = source };
                // SAFETY: as above.
                unsafe { (*found).ai_src_len = hints.ai_src_len };
            }
            Err(e) => {
                // SAFETY: just made, and nobody else's.
                unsafe { free(found) };
                return Err(e);
            }
        }
    }
    Ok(found)
}

/// Neither host nor service: the hints are the result.
///
/// # Safety
///
/// The addresses in `hints` have their lengths.
unsafe fn repeated(hints: &rdma_addrinfo) -> Result<*mut rdma_addrinfo, Failure> {
    let mut info = rdma_addrinfo {
        ai_flags: hints.ai_flags,
        ai_family: hints.ai_family,
        ai_qp_type: hints.ai_qp_type,
        ai_port_space: hints.ai_port_space,
        ..rdma_addrinfo::default()
    };
    if hints.ai_dst_len != 0 {
        // SAFETY: the address has its length (contract above).
        info.ai_dst_addr = unsafe { copied(hints.ai_dst_addr, hints.ai_dst_len) }?;
        info.ai_dst_len = hints.ai_dst_len;
    }
    boxed(info)
}

/// The first that `getaddrinfo(3)` finds.
///
/// # Safety
///
/// `node` and `service` are null or strings.
unsafe fn looked_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, Failure> {
    let family_is_ib = |hints: &rdma_addrinfo| hints.ai_family == AF_IB;
    let flags = |hints: &rdma_addrinfo| hints.ai_flags.cast_unsigned();
    if hints
        .is_some_and(|hints| family_is_ib(hints) && flags(hints) & (RAI_FAMILY | RAI_NUMERICHOST) == RAI_FAMILY | RAI_NUMERICHOST)
    {
        return Err(Failure::Lookup(libc::EAI_FAMILY));
    }
    let asked = hints.map(for_libc);
    let asked = asked.as_ref().map_or(null(), |asked| &raw const *asked);
    let mut list = null_mut();
    // SAFETY: null or strings (contract above); null or hints without pointers; a place for the result.
    let rc = unsafe { libc::getaddrinfo(node, service, asked, &raw mut list) };
    if rc != 0 {
        return Err(Failure::Lookup(rc));
    }
    // SAFETY: a list that was found has an element, and nobody changes it.
    let first = unsafe { &*list };
    // SAFETY: an element of a list by getaddrinfo.
    let info = unsafe { from_libc(first, hints) };
    // SAFETY: by getaddrinfo, and freed once. `first` is not used any more.
    unsafe { libc::freeaddrinfo(list) };
    info
}

/// The hints in libc's form.
fn for_libc(hints: &rdma_addrinfo) -> libc::addrinfo {
    let flags = hints.ai_flags.cast_unsigned();
    let flag = |ours: u32, theirs: c_int| if flags & ours == 0 { 0 } else { theirs };
    let qp_type = hints.ai_qp_type.cast_unsigned();
    let ai_socktype = match qp_type {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    let ai_protocol = match (hints.ai_port_space.cast_unsigned(), ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    libc::addrinfo {
        ai_flags: flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST),
        ai_family: if hints.ai_family == AF_IB { libc::AF_UNSPEC } else { hints.ai_family },
        ai_socktype,
        ai_protocol,
        ai_addrlen: 0,
        ai_addr: null_mut(),
        ai_canonname: null_mut(),
        ai_next: null_mut(),
    }
}

/// What was found, in the form of the connection manager.
///
/// # Safety
///
/// `ai` is an element of a list by `getaddrinfo(3)`.
unsafe fn from_libc(ai: &libc::addrinfo, hints: Option<&rdma_addrinfo>) -> Result<*mut rdma_addrinfo, Failure> {
    let number = |number: u32| number.cast_signed();
    let qp_type = match ai.ai_socktype {
        libc::SOCK_STREAM => number(IBV_QPT_RC),
        libc::SOCK_DGRAM => number(IBV_QPT_UD),
        _ => 0,
    };
    let port_space = match ai.ai_protocol {
        libc::IPPROTO_TCP => number(RDMA_PS_TCP),
        libc::IPPROTO_UDP => number(RDMA_PS_UDP),
        _ => 0,
    };
    let wanted = |wanted: Option<c_int>, found| wanted.filter(|&wanted| wanted != 0).unwrap_or(found);
    let mut info = rdma_addrinfo {
        ai_family: ai.ai_family,
        ai_qp_type: wanted(hints.map(|hints| hints.ai_qp_type), qp_type),
        ai_port_space: wanted(hints.map(|hints| hints.ai_port_space), port_space),
        ..rdma_addrinfo::default()
    };
    // SAFETY: an address of an element has its length.
    let addr = unsafe { copied(ai.ai_addr.cast(), ai.ai_addrlen) }?;
    if ai.ai_flags & libc::AI_PASSIVE == 0 {
        info.ai_dst_addr = addr;
        info.ai_dst_len = ai.ai_addrlen;
    } else {
        info.ai_flags = number(RAI_PASSIVE);
        info.ai_src_addr = addr;
        info.ai_src_len = ai.ai_addrlen;
    }
    boxed(info)
}

/// A copy of an address that `free(3)` frees.
///
/// # Safety
///
/// `addr` leads to `len_bytes` bytes.
unsafe fn copied(addr: *const sockaddr, len_bytes: libc::socklen_t) -> Result<*mut sockaddr, Failure> {
    if addr.is_null() {
        return Err(system(libc::EINVAL));
    }
    let len_bytes = len_bytes as usize;
    // SAFETY: any size may be asked for.
    let copy = unsafe { libc::malloc(len_bytes) };
    if copy.is_null() {
        return Err(system(libc::ENOMEM));
    }
    // SAFETY: so many bytes are at either place (contract above, and just allocated), and new memory overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), copy.cast(), len_bytes) };
    Ok(copy.cast())
}

/// The structure, in memory that `free(3)` frees.
fn boxed(info: rdma_addrinfo) -> Result<*mut rdma_addrinfo, Failure> {
    // SAFETY: any size may be asked for.
    let place = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
    if place.is_null() {
        for addr in [info.ai_src_addr, info.ai_dst_addr] {
            // SAFETY: null, or by `copied`, and nobody else's.
            unsafe { libc::free(addr.cast()) };
        }
        return Err(system(libc::ENOMEM));
    }
    // SAFETY: just allocated, as large as it is, and aligned for everything.
    unsafe { place.write(info) };
    Ok(place)
}

/// `rdma_freeaddrinfo(3)`.
///
/// # Safety
///
/// `info` is null or leads to a list of ours, whose pointers are null or came from `malloc(3)`.
pub(crate) unsafe fn free(mut info: *mut rdma_addrinfo) {
    while !info.is_null() {
        // SAFETY: live (contract above), and plain bytes.
        let had = unsafe { info.read() };
        let parts: [*mut c_void; 7] = [
            had.ai_connect,
            had.ai_route,
            had.ai_src_canonname.cast(),
            had.ai_dst_canonname.cast(),
            had.ai_src_addr.cast(),
            had.ai_dst_addr.cast(),
            info.cast(),
        ];
        for part in parts {
            // SAFETY: null, or by malloc (contract above), and freed once.
            unsafe { libc::free(part) };
        }
        info = had.ai_next;
    }
}
