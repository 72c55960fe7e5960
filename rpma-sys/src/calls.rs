//! The one table of control-path calls. The provider trait, the providers and the test providers are generated from it, so that a call
//! is declared once: its library, how it reports failure, its C signature.
//!
//! A row is `LIBRARY CONVENTION fn NAME(ARGUMENTS) -> RESULT;`. The convention says how the C function tells that it failed:
//!
//! | convention | failure |
//! |---|---|
//! | `errno` | the errno is returned (most of verbs) |
//! | `minus1` | -1 is returned and `errno` set (the connection manager, `ibv_get_cq_event`) |
//! | `null` | null is returned and `errno` set |
//! | `infallible` | it cannot fail |
//!
//! `exported` calls are symbols of rdma-core's libraries; `inline` calls exist only as inline functions of its headers and are written
//! out in `inline.rs`.

/// Invokes `$with!` with the whole table. Exported for the C door of `rpma-soft`, which exports the same functions; no interface for others.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_call {
    ($with:ident) => {
        $with! {
            exported {
                /// Allocates a protection domain: `ibv_alloc_pd(3)`.
                verbs null fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
                /// Frees a protection domain: `ibv_alloc_pd(3)`.
                verbs errno fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
                /// Registers memory. `ibv_reg_mr(3)` with access flags that are no compile-time constant is this symbol.
                verbs null fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
                /// Deregisters memory: `ibv_reg_mr(3)`.
                verbs errno fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
                /// Creates a completion channel: `ibv_create_comp_channel(3)`.
                verbs null fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
                /// Destroys a completion channel: `ibv_create_comp_channel(3)`.
                verbs errno fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
                /// Creates a completion queue: `ibv_create_cq(3)`.
                verbs null fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
                /// Destroys a completion queue; waits for ever for an event that is not acknowledged: `ibv_create_cq(3)`.
                verbs errno fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
                /// Takes a completion event: `ibv_get_cq_event(3)`.
                verbs minus1 fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
                /// Acknowledges completion events: `ibv_get_cq_event(3)`.
                verbs infallible fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) -> ();
                /// Creates a shared receive queue: `ibv_create_srq(3)`.
                verbs null fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
                /// Destroys a shared receive queue that no queue pair uses: `ibv_create_srq(3)`.
                verbs errno fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
                /// Changes a queue pair's state: `ibv_modify_qp(3)`.
                verbs errno fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
                /// A queue pair's attributes: `ibv_query_qp(3)`.
                verbs errno fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
                /// Takes an asynchronous event of the device or of what was made with it: `ibv_get_async_event(3)`.
                verbs minus1 fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
                /// Acknowledges an asynchronous event; what it is about cannot be destroyed before: `ibv_get_async_event(3)`.
                verbs infallible fn ibv_ack_async_event(event: *mut ibv_async_event) -> ();
                /// A device's name: `ibv_get_device_name(3)`.
                verbs infallible fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
                /// A completion status in words: `ibv_wc_status_str(3)`.
                verbs infallible fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
                /// The devices that the connection manager knows: `rdma_get_devices(3)`.
                cm null fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;
                /// Frees the list of devices: `rdma_get_devices(3)`.
                cm infallible fn rdma_free_devices(list: *mut *mut ibv_context) -> ();
                /// Opens an event channel: `rdma_create_event_channel(3)`.
                cm null fn rdma_create_event_channel() -> *mut rdma_event_channel;
                /// Closes an event channel: `rdma_create_event_channel(3)`.
                cm infallible fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> ();
                /// Creates a connection identifier: `rdma_create_id(3)`.
                cm minus1 fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
                /// Destroys a connection identifier; waits for the acknowledgement of its events: `rdma_destroy_id(3)`.
                cm minus1 fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
                /// Moves an identifier to another event channel: `rdma_migrate_id(3)`.
                cm minus1 fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
                /// Binds to a local address: `rdma_bind_addr(3)`.
                cm minus1 fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
                /// Listens: `rdma_listen(3)`.
                cm minus1 fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
                /// Sets an option of an identifier: `rdma_set_option(3)`.
                cm minus1 fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize) -> c_int;
                /// Starts resolving an address: `rdma_resolve_addr(3)`.
                cm minus1 fn rdma_resolve_addr(id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int;
                /// Starts resolving a route: `rdma_resolve_route(3)`.
                cm minus1 fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
                /// Makes the identifier's queue pair: `rdma_create_qp(3)`.
                cm minus1 fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int;
                /// Destroys the identifier's queue pair: `rdma_create_qp(3)`.
                cm infallible fn rdma_destroy_qp(id: *mut rdma_cm_id) -> ();
                /// Asks for a connection: `rdma_connect(3)`.
                cm minus1 fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
                /// Accepts a request: `rdma_accept(3)`.
                cm minus1 fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
                /// Rejects a request: `rdma_reject(3)`.
                cm minus1 fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
                /// Disconnects: `rdma_disconnect(3)`.
                cm minus1 fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
                /// Takes an event: `rdma_get_cm_event(3)`.
                cm minus1 fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
                /// Acknowledges an event, which frees it: `rdma_get_cm_event(3)`.
                cm minus1 fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
            }
            inline {
                /// A device's attributes, the extended ones included: `ibv_query_device_ex(3)`.
                errno fn ibv_query_device_ex(context: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex) -> c_int;
                /// A port's attributes: `ibv_query_port(3)`.
                errno fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int;
                /// Gives advice about registered memory: `ibv_advise_mr(3)`.
                errno fn ibv_advise_mr(pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int;
            }
        }
    };
}
pub(crate) use for_each_call;
