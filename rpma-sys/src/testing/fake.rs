//! A provider without a device, for unit tests: real structures and descriptors that move no data. It panics where something is freed
//! that is not live, and answers EBUSY where something is freed that another object still uses.
#![expect(unsafe_code, reason = "plays the part of a C library: makes and frees its structures")]

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Call, Kind};
use crate::bindings::*;
use crate::calls::for_each_call;
use crate::errno;
use crate::provider::{CqOps, Provider, QpExOps, QpOps, SrqOps};

#[derive(Debug)]
pub(crate) struct Fake {
    /// The only device.
    context: usize,
    tables: Mutex<Tables>,
    calls: [AtomicU64; Call::ALL.len()],
}

#[derive(Debug, Default)]
struct Tables {
    live: BTreeMap<usize, Object>,
    cm_events: VecDeque<rdma_cm_event_type>,
    /// The completion queues, in the order of their creation.
    cqs: Vec<usize>,
    /// The queue of each completion event that nobody has taken.
    cq_events: VecDeque<usize>,
    /// How many events of each queue are taken and not acknowledged.
    unacked_cq_events: BTreeMap<usize, u32>,
}

#[derive(Debug)]
struct Object {
    kind: Kind,
    /// What it is made of, and that must outlive it.
    uses: Vec<usize>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        let device = Box::into_raw(Box::new(ibv_device { transport_type: IBV_TRANSPORT_IB, ..Default::default() }));
        let context = Box::into_raw(Box::new(ibv_context { device, async_fd: open_descriptor(), ..Default::default() }));
        Arc::new(Self {
            context: context.expose_provenance(),
            tables: Mutex::default(),
            calls: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        std::ptr::with_exposed_provenance_mut(self.context)
    }

    /// How often `call` of the control path reached this provider.
    pub(super) fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize].load(Ordering::SeqCst)
    }

    /// Makes an event for whoever asks next, on whatever channel.
    pub(super) fn push_cm_event(&self, event: rdma_cm_event_type) {
        self.tables().cm_events.push_back(event);
    }

    /// Makes completion events of the live queue that was made as number `nth`, for whoever asks next, on whatever channel.
    pub(crate) fn push_cq_events(&self, nth: usize, count: u32) {
        let mut tables = self.tables();
        let cq = tables.cqs[nth];
        tables.cq_events.extend((0..count).map(|_| cq));
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make<T>(&self, kind: Kind, uses: &[usize], object: T) -> *mut T {
        let object = Box::into_raw(Box::new(object));
        let replaced = self.tables().live.insert(object.expose_provenance(), Object { kind, uses: uses.to_vec() });
        assert!(replaced.is_none(), "memory of a live object was freed");
        object
    }

    /// # Safety
    ///
    /// `object` is null or was made by `make` with this type.
    unsafe fn free<T>(&self, kind: Kind, object: *mut T) -> c_int {
        let addr = object.addr();
        let mut tables = self.tables();
        assert_eq!(tables.live.get(&addr).map(|object| object.kind), Some(kind), "freed what is not live");
        if tables.live.values().any(|other| other.uses.contains(&addr)) {
            return libc::EBUSY;
        }
        tables.live.remove(&addr);
        // SAFETY: made by `make` as this type (contract above), and live until now, so freed once.
        drop(unsafe { Box::from_raw(object) });
        0
    }
}

fn open_descriptor() -> c_int {
    // SAFETY: the call has no conditions.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    fd
}

fn close_descriptor(fd: c_int) {
    // SAFETY: opened by `open_descriptor`, and closed once: its object is freed.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn minus1(errno: c_int) -> c_int {
    if errno == 0 {
        return 0;
    }
    errno::set(errno);
    -1
}

/// The calls that do more than answer success. Under the contract of the trait: pointers are live and places for results are valid.
macro_rules! fake {
    (ibv_alloc_pd $self:ident $context:ident) => {
        $self.make(Kind::Pd, &[], ibv_pd { context: $context, ..Default::default() })
    };
    (ibv_dealloc_pd $self:ident $pd:ident) => {
        // SAFETY: made by `ibv_alloc_pd`.
        unsafe { $self.free(Kind::Pd, $pd) }
    };
    (ibv_reg_mr_iova2 $self:ident $pd:ident $addr:ident $length:ident $iova:ident $access:ident) => {
        $self.make(Kind::Mr, &[$pd.addr()], ibv_mr { context: $self.context(), pd: $pd, addr: $addr, length: $length, ..Default::default() })
    };
    (ibv_dereg_mr $self:ident $mr:ident) => {
        // SAFETY: made by `ibv_reg_mr_iova2`.
        unsafe { $self.free(Kind::Mr, $mr) }
    };
    (ibv_create_comp_channel $self:ident $context:ident) => {
        $self.make(Kind::CompChannel, &[], ibv_comp_channel { context: $context, fd: open_descriptor(), refcnt: 0 })
    };
    (ibv_destroy_comp_channel $self:ident $channel:ident) => {{
        // SAFETY: live by the contract.
        let fd = unsafe { (*$channel).fd };
        // SAFETY: made by `ibv_create_comp_channel`.
        let rc = unsafe { $self.free(Kind::CompChannel, $channel) };
        if rc == 0 {
            close_descriptor(fd);
        }
        rc
    }};
    (ibv_create_cq $self:ident $context:ident $cqe:ident $cq_context:ident $channel:ident $comp_vector:ident) => {{
        let cq = ibv_cq { context: $context, channel: $channel, cqe: $cqe, ..Default::default() };
        let cq = $self.make(Kind::Cq, &[$channel.addr()], cq);
        $self.tables().cqs.push(cq.addr());
        cq
    }};
    (ibv_destroy_cq $self:ident $cq:ident) => {{
        let addr = $cq.addr();
        assert_eq!($self.tables().unacked_cq_events.get(&addr).copied().unwrap_or(0), 0, "ibv_destroy_cq would wait for ever");
        // SAFETY: made by `ibv_create_cq`.
        let rc = unsafe { $self.free(Kind::Cq, $cq) };
        if rc == 0 {
            let mut tables = $self.tables();
            tables.cqs.retain(|&cq| cq != addr);
            // As the kernel does.
            tables.cq_events.retain(|&cq| cq != addr);
        }
        rc
    }};
    (ibv_get_cq_event $self:ident $channel:ident $cq:ident $cq_context:ident) => {{
        let mut tables = $self.tables();
        match tables.cq_events.pop_front() {
            None => minus1(libc::EAGAIN),
            Some(cq) => {
                *tables.unacked_cq_events.entry(cq).or_default() += 1;
                // SAFETY: a place for the result.
                unsafe { $cq.write(std::ptr::with_exposed_provenance_mut(cq)) };
                0
            }
        }
    }};
    (ibv_ack_cq_events $self:ident $cq:ident $nevents:ident) => {
        *$self.tables().unacked_cq_events.get_mut(&$cq.addr()).expect("events were taken") -= $nevents
    };
    (ibv_create_srq $self:ident $pd:ident $attr:ident) => {
        $self.make(Kind::Srq, &[$pd.addr()], ibv_srq { context: $self.context(), pd: $pd, ..Default::default() })
    };
    (ibv_destroy_srq $self:ident $srq:ident) => {
        // SAFETY: made by `ibv_create_srq`.
        unsafe { $self.free(Kind::Srq, $srq) }
    };
    (ibv_get_async_event $self:ident $context:ident $event:ident) => {
        minus1(libc::EAGAIN)
    };
    (ibv_ack_async_event $self:ident $event:ident) => {
        panic!("no asynchronous event was taken")
    };
    (ibv_get_device_name $self:ident $device:ident) => {
        c"fake0".as_ptr()
    };
    (ibv_wc_status_str $self:ident $status:ident) => {
        c"a status".as_ptr()
    };
    (rdma_get_devices $self:ident $num_devices:ident) => {{
        // SAFETY: a place for the result.
        unsafe { $num_devices.write(1) };
        $self.make(Kind::DeviceList, &[], [$self.context(), null_mut()]).cast::<*mut ibv_context>()
    }};
    (rdma_free_devices $self:ident $list:ident) => {{
        // SAFETY: made by `rdma_get_devices`, as an array of two.
        let rc = unsafe { $self.free(Kind::DeviceList, $list.cast::<[*mut ibv_context; 2]>()) };
        assert_eq!(rc, 0);
    }};
    (rdma_create_event_channel $self:ident) => {
        $self.make(Kind::EventChannel, &[], rdma_event_channel { fd: open_descriptor() })
    };
    (rdma_destroy_event_channel $self:ident $channel:ident) => {{
        // SAFETY: live by the contract.
        let fd = unsafe { (*$channel).fd };
        // SAFETY: made by `rdma_create_event_channel`.
        let rc = unsafe { $self.free(Kind::EventChannel, $channel) };
        assert_eq!(rc, 0, "an identifier is still on the channel");
        close_descriptor(fd);
    }};
    (rdma_create_id $self:ident $channel:ident $id:ident $context:ident $ps:ident) => {{
        let new = rdma_cm_id { verbs: $self.context(), channel: $channel, ..Default::default() };
        let new = $self.make(Kind::Id, &[$channel.addr()], new);
        // SAFETY: a place for the result.
        unsafe { $id.write(new) };
        0
    }};
    (rdma_destroy_id $self:ident $id:ident) => {
        // SAFETY: made by `rdma_create_id` or with a connection request.
        minus1(unsafe { $self.free(Kind::Id, $id) })
    };
    (rdma_migrate_id $self:ident $id:ident $channel:ident) => {{
        // SAFETY: live by the contract.
        unsafe { (*$id).channel = $channel };
        $self.tables().live.get_mut(&$id.addr()).expect("a live identifier").uses = vec![$channel.addr()];
        0
    }};
    (rdma_create_qp_ex $self:ident $id:ident $attr:ident) => {{
        // SAFETY: live by the contract.
        let attr = unsafe { &*$attr };
        let uses = [$id.addr(), attr.pd.addr(), attr.send_cq.addr(), attr.recv_cq.addr(), attr.srq.addr()];
        let qp_base = ibv_qp { context: $self.context(), pd: attr.pd, qp_num: 7, ..Default::default() };
        let qp_ex = $self.make(Kind::Qp, &uses, ibv_qp_ex { qp_base, ..Default::default() });
        // SAFETY: live by the contract.
        unsafe { (*$id).qp = qp_ex.cast() };
        0
    }};
    (rdma_destroy_qp $self:ident $id:ident) => {{
        // SAFETY: live by the contract.
        let qp = unsafe { (*$id).qp };
        // SAFETY: made by `rdma_create_qp_ex`, in the extended form.
        let rc = unsafe { $self.free(Kind::Qp, qp.cast::<ibv_qp_ex>()) };
        assert_eq!(rc, 0);
        // SAFETY: live by the contract.
        unsafe { (*$id).qp = null_mut() };
    }};
    (rdma_get_cm_event $self:ident $channel:ident $event:ident) => {{
        let next = $self.tables().cm_events.pop_front();
        match next {
            None => minus1(libc::EAGAIN),
            Some(event) => {
                let id = if event == RDMA_CM_EVENT_CONNECT_REQUEST {
                    let new = rdma_cm_id { verbs: $self.context(), channel: $channel, ..Default::default() };
                    $self.make(Kind::Id, &[$channel.addr()], new)
                } else {
                    null_mut()
                };
                let new = $self.make(Kind::CmEvent, &[], rdma_cm_event { event, id, ..Default::default() });
                // SAFETY: a place for the result.
                unsafe { $event.write(new) };
                0
            }
        }
    }};
    (rdma_ack_cm_event $self:ident $event:ident) => {
        // SAFETY: made by `rdma_get_cm_event`.
        minus1(unsafe { $self.free(Kind::CmEvent, $event) })
    };
    ($name:ident $self:ident $($arg:ident)*) => {{
        $(let _ = $arg;)*
        0
    }};
}

macro_rules! fake_provider {
    (
        exported { $($(#[$edoc:meta])* $lib:ident $econv:ident fn $ename:ident($($earg:ident: $ety:ty),*) -> $eret:ty;)* }
        inline { $($(#[$idoc:meta])* $iconv:ident fn $iname:ident($($iarg:ident: $ity:ty),*) -> $iret:ty;)* }
    ) => {
        // SAFETY: for tests: objects are live from the call that makes them to the one that frees them, and no memory that is
        // registered is ever touched.
        #[expect(unused_variables, reason = "what a call is about is not looked at where the answer does not depend on it")]
        unsafe impl Provider for Fake {
            fn name(&self) -> &'static str {
                "fake"
            }

            $(unsafe fn $ename(&self, $($earg: $ety),*) -> $eret {
                self.calls[Call::$ename as usize].fetch_add(1, Ordering::SeqCst);
                fake!($ename self $($earg)*)
            })*

            $(unsafe fn $iname(&self, $($iarg: $ity),*) -> $iret {
                self.calls[Call::$iname as usize].fetch_add(1, Ordering::SeqCst);
                fake!($iname self $($iarg)*)
            })*

            unsafe fn qp_ops(&self, qp: *mut ibv_qp, send_ops_flags: u64) -> io::Result<QpOps> {
                let ex = QpExOps { qp_ex: qp.cast(), wr_start, wr_complete, wr_abort, wr_flush: Some(wr_flush), wr_atomic_write: None, builders: None };
                Ok(QpOps { post_send, post_recv, ex: (send_ops_flags != 0).then_some(ex) })
            }

            unsafe fn cq_ops(&self, cq: *mut ibv_cq) -> io::Result<CqOps> {
                Ok(CqOps { poll_cq, req_notify_cq })
            }

            unsafe fn srq_ops(&self, srq: *mut ibv_srq) -> io::Result<SrqOps> {
                Ok(SrqOps { post_srq_recv })
            }
        }

        /// Makes a call with arguments that are all zero or null, and reads its answer in its own convention.
        ///
        /// # Safety
        ///
        /// Nothing that looks into its arguments is reached.
        pub(super) unsafe fn call_with_zeros(provider: &dyn Provider, call: Call) -> io::Result<()> {
            match call {
                $(Call::$ename => {
                    // SAFETY: this function's own contract.
                    let answer = unsafe { provider.$ename($(<$ety as Zero>::ZERO),*) };
                    read!($econv, answer)
                })*
                $(Call::$iname => {
                    // SAFETY: this function's own contract.
                    let answer = unsafe { provider.$iname($(<$ity as Zero>::ZERO),*) };
                    read!($iconv, answer)
                })*
                // SAFETY: this function's own contract.
                Call::qp_ops => unsafe { provider.qp_ops(null_mut(), 0) }.map(drop),
                // SAFETY: this function's own contract.
                Call::cq_ops => unsafe { provider.cq_ops(null_mut()) }.map(drop),
                // SAFETY: this function's own contract.
                Call::srq_ops => unsafe { provider.srq_ops(null_mut()) }.map(drop),
                Call::post_send
                | Call::post_recv
                | Call::post_srq_recv
                | Call::poll_cq
                | Call::req_notify_cq
                | Call::wr_complete => unreachable!("{call} is called through a queue"),
            }
        }
    };
}

macro_rules! read {
    (errno, $answer:expr) => {
        crate::ret::errno_ret($answer)
    };
    (minus1, $answer:expr) => {
        crate::ret::minus1_ret($answer)
    };
    (null, $answer:expr) => {
        if $answer.is_null() { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    (infallible, $answer:expr) => {{
        let _ = $answer;
        Ok(())
    }};
}

for_each_call!(fake_provider);

/// The value of an argument that nobody looks at.
trait Zero {
    const ZERO: Self;
}

impl<T> Zero for *mut T {
    const ZERO: Self = null_mut();
}

impl<T> Zero for *const T {
    const ZERO: Self = null();
}

macro_rules! zero {
    ($($int:ty)*) => {
        $(impl Zero for $int {
            const ZERO: Self = 0;
        })*
    };
}
zero!(u8 u32 i32 u64 usize);

/// Adds 1 to a field that counts.
macro_rules! count {
    ($object:ident.$field:ident) => {{
        // SAFETY: the queue is live by the contract of its functions, and one thread uses it at a time in these tests.
        let field = unsafe { &mut (*$object).$field };
        *field += 1;
        0
    }};
}

/// Counts in `handle`.
unsafe extern "C" fn post_send(qp: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    count!(qp.handle)
}

/// Counts in `events_completed`.
unsafe extern "C" fn post_recv(qp: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    count!(qp.events_completed)
}

/// Counts in `events_completed`.
unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    count!(srq.events_completed)
}

/// Counts in `handle`.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    count!(cq.handle)
}

/// Counts in `comp_events_completed`.
unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    count!(cq.comp_events_completed)
}

/// Counts open batches in `comp_mask`.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    count!(qp.comp_mask);
}

unsafe extern "C" fn wr_flush(_: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the queue pair is live, and one thread uses it at a time.
    unsafe { (*qp).comp_mask -= 1 };
    let qp: *mut ibv_qp = qp.cast();
    count!(qp.handle)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the queue pair is live, and one thread uses it at a time.
    unsafe { (*qp).comp_mask -= 1 };
}
