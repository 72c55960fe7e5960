//! Synchronous identifiers, and addresses by name: what librdmacm makes of its own calls, and is in no provider's table.
#![expect(unsafe_code, reason = "calls librdmacm, and its counterpart")]

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr::{null, null_mut};
use std::rc::Rc;

use libloading::Library;
use rpma_soft::door::cm;
use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;
use rpma_sys::ret::minus1_ret;

use super::{Answer, Cap, Param, Setup};

type GetAddrInfo = unsafe extern "C" fn(*const c_char, *const c_char, *const rdma_addrinfo, *mut *mut rdma_addrinfo) -> c_int;
type FreeAddrInfo = unsafe extern "C" fn(*mut rdma_addrinfo);
type CreateEp = unsafe extern "C" fn(*mut *mut rdma_cm_id, *mut rdma_addrinfo, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
type DestroyEp = unsafe extern "C" fn(*mut rdma_cm_id);
type GetRequest = unsafe extern "C" fn(*mut rdma_cm_id, *mut *mut rdma_cm_id) -> c_int;

/// Where the calls are.
#[derive(Debug)]
enum Calls {
    Ours(ProviderRef),
    Librdmacm(Library),
}

/// The calls of a provider's connection manager.
#[derive(Debug, Clone)]
pub(crate) struct Manager {
    provider: ProviderRef,
    calls: Rc<Calls>,
}

impl Calls {
    /// A function of librdmacm.
    ///
    /// # Safety
    ///
    /// `T` is its type.
    unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> T {
        // SAFETY: the contract of this function.
        *unsafe { library.get(name) }.unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Manager {
    pub(crate) fn new(setup: &Setup) -> Self {
        let provider = setup.provider.clone();
        let calls = if provider.name() == "soft" {
            Calls::Ours(provider.clone())
        } else {
            // SAFETY: the library is loaded already, and its initialisers have no conditions.
            Calls::Librdmacm(unsafe { Library::new("librdmacm.so.1") }.expect("librdmacm"))
        };
        Self { provider, calls: Rc::new(calls) }
    }

    /// `rdma_getaddrinfo(3)`; `Err` has the code, or the errno.
    pub(crate) fn find(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        flags: u32,
        family: c_int,
        ps: u32,
    ) -> Result<Found, String> {
        let [node, service] = [node, service].map(|text| text.map(|text| CString::new(text).expect("no zero in it")));
        let text = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        let hints = rdma_addrinfo {
            ai_flags: flags.cast_signed(),
            ai_family: family,
            ai_port_space: ps.cast_signed(),
            ..rdma_addrinfo::default()
        };
        let mut found = null_mut();
        let place = &raw mut found;
        let rc = match &*self.calls {
            // SAFETY: null or strings, whole hints, and a place for the result.
            Calls::Ours(_) => unsafe { cm::rdma_getaddrinfo(text(&node), text(&service), &raw const hints, place) },
            Calls::Librdmacm(library) => {
                // SAFETY: its type.
                let call: GetAddrInfo = unsafe { Calls::symbol(library, "rdma_getaddrinfo") };
                // SAFETY: as above.
                unsafe { call(text(&node), text(&service), &raw const hints, place) }
            }
        };
        match rc {
            0 => Ok(Found { raw: found, manager: self.clone() }),
            -1 => Err(super::Errno::from(io::Error::last_os_error()).to_string()),
            code => Err(format!("code {code}")),
        }
    }

    /// `rdma_create_ep(3)`, with a queue pair if `with_qp`.
    pub(crate) fn endpoint(&self, found: &Found, with_qp: bool) -> Answer<Endpoint> {
        let cap = Cap::default();
        let cap = ibv_qp_cap {
            max_send_wr: cap.send_wr,
            max_recv_wr: cap.recv_wr,
            max_send_sge: cap.send_sge,
            max_recv_sge: cap.recv_sge,
            max_inline_data: cap.inline,
        };
        let mut attr = ibv_qp_init_attr { cap, qp_type: IBV_QPT_RC, ..ibv_qp_init_attr::default() };
        let attr = if with_qp { &raw mut attr } else { null_mut() };
        let mut raw = null_mut();
        let place = &raw mut raw;
        let rc = match &*self.calls {
            // SAFETY: a place for the result, what `rdma_getaddrinfo` found, no domain, and whole attributes or none.
            Calls::Ours(provider) => unsafe { cm::rdma_create_ep(&**provider, place, found.raw, null_mut(), attr) },
            Calls::Librdmacm(library) => {
                // SAFETY: its type.
                let call: CreateEp = unsafe { Calls::symbol(library, "rdma_create_ep") };
                // SAFETY: as above.
                unsafe { call(place, found.raw, null_mut(), attr) }
            }
        };
        minus1_ret(rc)?;
        Ok(Endpoint { raw, manager: self.clone() })
    }
}

/// What `rdma_getaddrinfo(3)` found.
#[derive(Debug)]
pub(crate) struct Found {
    raw: *mut rdma_addrinfo,
    manager: Manager,
}

impl Found {
    /// In words: what is the same wherever it is asked.
    pub(crate) fn words(&self) -> String {
        // SAFETY: live, and nobody changes it.
        let info = unsafe { &*self.raw };
        format!(
            "family {}, type {}, port space {:#x}, flags {:#x}, source {}, destination {}, names {}, {}, route {}, more {}",
            info.ai_family,
            info.ai_qp_type,
            info.ai_port_space,
            info.ai_flags,
            info.ai_src_len,
            info.ai_dst_len,
            !info.ai_src_canonname.is_null(),
            !info.ai_dst_canonname.is_null(),
            info.ai_route_len,
            !info.ai_next.is_null(),
        )
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        match &*self.manager.calls {
            // SAFETY: found by the call of the same library, and freed once.
            Calls::Ours(_) => unsafe { cm::rdma_freeaddrinfo(self.raw) },
            Calls::Librdmacm(library) => {
                // SAFETY: its type.
                let call: FreeAddrInfo = unsafe { Calls::symbol(library, "rdma_freeaddrinfo") };
                // SAFETY: as above.
                unsafe { call(self.raw) }
            }
        }
    }
}

/// A synchronous identifier, with what it made for itself.
#[derive(Debug)]
pub(crate) struct Endpoint {
    raw: *mut rdma_cm_id,
    manager: Manager,
}

/// An endpoint that another thread has for the time of a call. That is what calls which wait for each other take.
#[derive(Debug)]
pub(crate) struct Lent<'a>(&'a Endpoint);

// SAFETY: the connection manager's calls may come from any thread, and the lender waits for the other thread.
unsafe impl Send for Lent<'_> {}

impl Lent<'_> {
    pub(crate) fn get(&self) -> &Endpoint {
        self.0
    }
}

impl Endpoint {
    pub(crate) fn lend(&self) -> Lent<'_> {
        Lent(self)
    }

    pub(crate) fn listen(&self) -> Answer {
        // SAFETY: live.
        Ok(minus1_ret(unsafe { self.manager.provider.rdma_listen(self.raw, 4) })?)
    }

    pub(crate) fn connect(&self, param: &Param) -> Answer {
        let mut raw = param.raw();
        // SAFETY: live; parameters and private data outlive the call.
        Ok(minus1_ret(unsafe { self.manager.provider.rdma_connect(self.raw, &raw mut raw) })?)
    }

    pub(crate) fn accept(&self, param: &Param) -> Answer {
        let mut raw = param.raw();
        // SAFETY: live; parameters and private data outlive the call.
        Ok(minus1_ret(unsafe { self.manager.provider.rdma_accept(self.raw, &raw mut raw) })?)
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Answer {
        let len = u8::try_from(data.len()).expect("no more than a byte tells");
        // SAFETY: live; the data outlives the call.
        Ok(minus1_ret(unsafe { self.manager.provider.rdma_reject(self.raw, data.as_ptr().cast(), len) })?)
    }

    pub(crate) fn disconnect(&self) -> Answer {
        // SAFETY: live.
        Ok(minus1_ret(unsafe { self.manager.provider.rdma_disconnect(self.raw) })?)
    }

    /// `rdma_get_request(3)`.
    pub(crate) fn request(&self) -> Answer<Endpoint> {
        let mut raw = null_mut();
        let rc = match &*self.manager.calls {
            // SAFETY: live, and a place for the result.
            Calls::Ours(_) => unsafe { cm::rdma_get_request(self.raw, &raw mut raw) },
            Calls::Librdmacm(library) => {
                // SAFETY: its type.
                let call: GetRequest = unsafe { Calls::symbol(library, "rdma_get_request") };
                // SAFETY: as above.
                unsafe { call(self.raw, &raw mut raw) }
            }
        };
        minus1_ret(rc)?;
        Ok(Self { raw, manager: self.manager.clone() })
    }

    /// What stands in the identifier: the event that its last call waited for, and what it made for itself.
    pub(crate) fn words(&self) -> String {
        // SAFETY: live, and no call about it is under way.
        let id = unsafe { &*self.raw };
        let event = if id.event.is_null() {
            String::from("no event")
        } else {
            // SAFETY: the event stays until the identifier's next call.
            let event = unsafe { &*id.event };
            format!("event {} status {}", event.event, event.status)
        };
        let made = [
            ("device", !id.verbs.is_null()),
            ("domain", !id.pd.is_null()),
            ("queue pair", !id.qp.is_null()),
            ("send queue", !id.send_cq.is_null()),
            ("its channel", !id.send_cq_channel.is_null()),
            ("receive queue", !id.recv_cq.is_null()),
            ("its channel", !id.recv_cq_channel.is_null()),
            ("event channel", !id.channel.is_null()),
        ];
        let made: Vec<_> = made.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
        format!("{event}; {}", made.join(", "))
    }

    /// The port that it is bound to.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: live.
        let addr = unsafe { (*self.raw).route.addr };
        // SAFETY: plain bytes; the port is at the same place in both families.
        let source = unsafe { addr.__bindgen_anon_1.src_sin };
        u16::from_be(source.sin_port)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        match &*self.manager.calls {
            // SAFETY: live, of this provider, and destroyed once.
            Calls::Ours(provider) => unsafe { cm::rdma_destroy_ep(&**provider, self.raw) },
            Calls::Librdmacm(library) => {
                // SAFETY: its type.
                let call: DestroyEp = unsafe { Calls::symbol(library, "rdma_destroy_ep") };
                // SAFETY: as above.
                unsafe { call(self.raw) }
            }
        }
    }
}
