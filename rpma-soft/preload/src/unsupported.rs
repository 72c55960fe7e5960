//! What is not supported, as one table: each call answers EOPNOTSUPP by its own convention, so that nothing of the program's reaches
//! rdma-core with structures of ours.
//!
//! A row is `CONVENTION fn NAME(ARGUMENTS) -> RESULT;`, with the conventions of `rpma-sys/src/calls.rs`. Arguments are not looked at, so
//! their pointers have no types here.
#![expect(unsafe_code, reason = "exports C functions, which do nothing")]

use std::ffi::{c_int, c_uint, c_void};

use crate::answer;

/// A pointer that nobody follows.
type Ptr = *mut c_void;

macro_rules! unsupported {
    ($($convention:ident fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $ty),*) -> $ret {
                answer::$convention(libc::EOPNOTSUPP)
            }
        )*

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn every_call_tells_that_it_is_not_supported_by_its_convention() {
                $({
                    rpma_sys::errno::set(0);
                    let answer = Answer::from($name($(<$ty as Nothing>::NOTHING),*));
                    let errno = std::io::Error::last_os_error().raw_os_error();
                    let expected = match stringify!($convention) {
                        "errno" => (Answer::Number(libc::EOPNOTSUPP.into()), Some(0)),
                        "minus1" => (Answer::Number(-1), Some(libc::EOPNOTSUPP)),
                        "null" => (Answer::Null, Some(libc::EOPNOTSUPP)),
                        "infallible" => (Answer::Nothing, Some(0)),
                        other => panic!("no convention {other}"),
                    };
                    assert_eq!((answer, errno), expected, "{}", stringify!($name));
                })*
            }

            #[derive(Debug, PartialEq)]
            enum Answer {
                Number(i64),
                Null,
                Pointer,
                Nothing,
            }

            impl From<c_int> for Answer {
                fn from(number: c_int) -> Self {
                    Self::Number(number.into())
                }
            }

            impl From<isize> for Answer {
                fn from(number: isize) -> Self {
                    Self::Number(number as i64)
                }
            }

            impl From<Ptr> for Answer {
                fn from(pointer: Ptr) -> Self {
                    if pointer.is_null() { Self::Null } else { Self::Pointer }
                }
            }

            impl From<()> for Answer {
                fn from((): ()) -> Self {
                    Self::Nothing
                }
            }

            trait Nothing {
                const NOTHING: Self;
            }

            macro_rules! nothing {
                ($number:ty) => {
                    impl Nothing for $number {
                        const NOTHING: Self = 0;
                    }
                };
            }
            nothing!(u8);
            nothing!(u16);
            nothing!(u32);
            nothing!(u64);
            nothing!(i32);
            nothing!(usize);
            nothing!(isize);

            impl Nothing for Ptr {
                const NOTHING: Self = std::ptr::null_mut();
            }
        }
    };
}

unsupported! {
    // ---- verbs ----

    // Objects of other processes.
    null fn ibv_import_device(cmd_fd: c_int) -> Ptr;
    null fn ibv_import_pd(context: Ptr, handle: u32) -> Ptr;
    infallible fn ibv_unimport_pd(pd: Ptr) -> ();
    null fn ibv_import_mr(pd: Ptr, handle: u32) -> Ptr;
    infallible fn ibv_unimport_mr(mr: Ptr) -> ();
    null fn ibv_import_dm(context: Ptr, handle: u32) -> Ptr;
    infallible fn ibv_unimport_dm(dm: Ptr) -> ();
    // Memory of other devices.
    null fn ibv_reg_dmabuf_mr(pd: Ptr, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> Ptr;
    // Datagrams, and their addresses.
    null fn ibv_create_ah(pd: Ptr, attr: Ptr) -> Ptr;
    null fn ibv_create_ah_from_wc(pd: Ptr, wc: Ptr, grh: Ptr, port: u8) -> Ptr;
    minus1 fn ibv_init_ah_from_wc(context: Ptr, port: u8, wc: Ptr, grh: Ptr, attr: Ptr) -> c_int;
    errno fn ibv_destroy_ah(ah: Ptr) -> c_int;
    errno fn ibv_attach_mcast(qp: Ptr, gid: Ptr, lid: u16) -> c_int;
    errno fn ibv_detach_mcast(qp: Ptr, gid: Ptr, lid: u16) -> c_int;
    errno fn ibv_resolve_eth_l2_from_gid(context: Ptr, attr: Ptr, mac: Ptr, vid: Ptr) -> c_int;
    // Enhanced connection establishment, which is between devices of one vendor.
    errno fn ibv_set_ece(qp: Ptr, ece: Ptr) -> c_int;
    errno fn ibv_query_ece(qp: Ptr, ece: Ptr) -> c_int;


    // ---- the connection manager ----

    // Connecting a queue pair that the program moves through its states itself.
    minus1 fn rdma_init_qp_attr(id: Ptr, attr: Ptr, mask: Ptr) -> c_int;
    minus1 fn rdma_set_local_ece(id: Ptr, ece: Ptr) -> c_int;
    minus1 fn rdma_get_remote_ece(id: Ptr, ece: Ptr) -> c_int;
    minus1 fn rdma_reject_ece(id: Ptr, private_data: Ptr, len: u8) -> c_int;
    minus1 fn rdma_join_multicast(id: Ptr, addr: Ptr, context: Ptr) -> c_int;
    minus1 fn rdma_join_multicast_ex(id: Ptr, attr: Ptr, context: Ptr) -> c_int;
    minus1 fn rdma_leave_multicast(id: Ptr, addr: Ptr) -> c_int;
    // Newer than Debian 13's: names by way of InfiniBand's subnet administrator, and events of the program's own.
    minus1 fn rdma_query_addrinfo(id: Ptr, info: Ptr) -> c_int;
    minus1 fn rdma_resolve_addrinfo(id: Ptr, node: Ptr, service: Ptr, hints: Ptr) -> c_int;
    minus1 fn rdma_write_cm_event(id: Ptr, event: c_int, status: c_int, arg: u64) -> c_int;

    // ---- rsockets: sockets over RDMA, here they would be sockets over RDMA over sockets ----

    minus1 fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    minus1 fn rbind(socket: c_int, addr: Ptr, len: u32) -> c_int;
    minus1 fn rlisten(socket: c_int, backlog: c_int) -> c_int;
    minus1 fn raccept(socket: c_int, addr: Ptr, len: Ptr) -> c_int;
    minus1 fn rconnect(socket: c_int, addr: Ptr, len: u32) -> c_int;
    minus1 fn rshutdown(socket: c_int, how: c_int) -> c_int;
    minus1 fn rclose(socket: c_int) -> c_int;
    minus1 fn rrecv(socket: c_int, buf: Ptr, len: usize, flags: c_int) -> isize;
    minus1 fn rrecvfrom(socket: c_int, buf: Ptr, len: usize, flags: c_int, addr: Ptr, addr_len: Ptr) -> isize;
    minus1 fn rrecvmsg(socket: c_int, msg: Ptr, flags: c_int) -> isize;
    minus1 fn rsend(socket: c_int, buf: Ptr, len: usize, flags: c_int) -> isize;
    minus1 fn rsendto(socket: c_int, buf: Ptr, len: usize, flags: c_int, addr: Ptr, addr_len: u32) -> isize;
    minus1 fn rsendmsg(socket: c_int, msg: Ptr, flags: c_int) -> isize;
    minus1 fn rread(socket: c_int, buf: Ptr, count: usize) -> isize;
    minus1 fn rreadv(socket: c_int, iov: Ptr, count: c_int) -> isize;
    minus1 fn rwrite(socket: c_int, buf: Ptr, count: usize) -> isize;
    minus1 fn rwritev(socket: c_int, iov: Ptr, count: c_int) -> isize;
    minus1 fn rpoll(fds: Ptr, count: usize, timeout: c_int) -> c_int;
    minus1 fn rselect(count: c_int, read: Ptr, write: Ptr, except: Ptr, timeout: Ptr) -> c_int;
    minus1 fn rgetpeername(socket: c_int, addr: Ptr, len: Ptr) -> c_int;
    minus1 fn rgetsockname(socket: c_int, addr: Ptr, len: Ptr) -> c_int;
    minus1 fn rsetsockopt(socket: c_int, level: c_int, name: c_int, value: Ptr, len: u32) -> c_int;
    minus1 fn rgetsockopt(socket: c_int, level: c_int, name: c_int, value: Ptr, len: Ptr) -> c_int;
    // Variadic in C: the third argument is nothing, or of this size.
    minus1 fn rfcntl(socket: c_int, command: c_int, arg: usize) -> c_int;
    minus1 fn riomap(socket: c_int, buf: Ptr, len: usize, prot: c_int, flags: c_int, offset: isize) -> isize;
    minus1 fn riounmap(socket: c_int, buf: Ptr, len: usize) -> c_int;
    minus1 fn riowrite(socket: c_int, buf: Ptr, count: usize, offset: isize, flags: c_int) -> isize;

    // ---- between libibverbs, librdmacm and the device drivers ----
    //
    // Programs do not call these, and no driver has a device here. Drivers that a program is linked to (mlx5, efa) register themselves
    // when they are loaded, and are not listened to. Their arguments are not declared: a C function may be given more than it looks at.

    infallible fn verbs_register_driver_34() -> ();
    infallible fn ibv_register_driver() -> ();
    infallible fn __verbs_log() -> ();
    errno fn execute_ioctl() -> c_int;
    null fn _verbs_init_and_alloc_context() -> Ptr;
    null fn verbs_open_device() -> Ptr;
    infallible fn verbs_set_ops() -> ();
    infallible fn verbs_init_cq() -> ();
    infallible fn verbs_uninit_context() -> ();
    infallible fn ibv_copy_ah_attr_from_kern() -> ();
    infallible fn ibv_copy_path_rec_from_kern() -> ();
    infallible fn ibv_copy_path_rec_to_kern() -> ();
    infallible fn ibv_copy_qp_attr_from_kern() -> ();
    errno fn ibv_cmd_advise_mr() -> c_int;
    errno fn ibv_cmd_alloc_dm() -> c_int;
    errno fn ibv_cmd_alloc_dmah() -> c_int;
    errno fn ibv_cmd_alloc_mw() -> c_int;
    errno fn ibv_cmd_alloc_pd() -> c_int;
    errno fn ibv_cmd_attach_mcast() -> c_int;
    errno fn ibv_cmd_close_xrcd() -> c_int;
    errno fn ibv_cmd_create_ah() -> c_int;
    errno fn ibv_cmd_create_counters() -> c_int;
    errno fn ibv_cmd_create_cq() -> c_int;
    errno fn ibv_cmd_create_cq_ex() -> c_int;
    errno fn ibv_cmd_create_cq_ex2() -> c_int;
    errno fn ibv_cmd_create_flow() -> c_int;
    errno fn ibv_cmd_create_flow_action_esp() -> c_int;
    errno fn ibv_cmd_create_qp() -> c_int;
    errno fn ibv_cmd_create_qp_ex() -> c_int;
    errno fn ibv_cmd_create_qp_ex2() -> c_int;
    errno fn ibv_cmd_create_rwq_ind_table() -> c_int;
    errno fn ibv_cmd_create_srq() -> c_int;
    errno fn ibv_cmd_create_srq_ex() -> c_int;
    errno fn ibv_cmd_create_wq() -> c_int;
    errno fn ibv_cmd_dealloc_mw() -> c_int;
    errno fn ibv_cmd_dealloc_pd() -> c_int;
    errno fn ibv_cmd_dereg_mr() -> c_int;
    errno fn ibv_cmd_destroy_ah() -> c_int;
    errno fn ibv_cmd_destroy_counters() -> c_int;
    errno fn ibv_cmd_destroy_cq() -> c_int;
    errno fn ibv_cmd_destroy_flow() -> c_int;
    errno fn ibv_cmd_destroy_flow_action() -> c_int;
    errno fn ibv_cmd_destroy_qp() -> c_int;
    errno fn ibv_cmd_destroy_rwq_ind_table() -> c_int;
    errno fn ibv_cmd_destroy_srq() -> c_int;
    errno fn ibv_cmd_destroy_wq() -> c_int;
    errno fn ibv_cmd_detach_mcast() -> c_int;
    errno fn ibv_cmd_free_dm() -> c_int;
    errno fn ibv_cmd_free_dmah() -> c_int;
    errno fn ibv_cmd_get_context() -> c_int;
    errno fn ibv_cmd_modify_cq() -> c_int;
    errno fn ibv_cmd_modify_flow_action_esp() -> c_int;
    errno fn ibv_cmd_modify_qp() -> c_int;
    errno fn ibv_cmd_modify_qp_ex() -> c_int;
    errno fn ibv_cmd_modify_srq() -> c_int;
    errno fn ibv_cmd_modify_wq() -> c_int;
    errno fn ibv_cmd_open_qp() -> c_int;
    errno fn ibv_cmd_open_xrcd() -> c_int;
    errno fn ibv_cmd_poll_cq() -> c_int;
    errno fn ibv_cmd_post_recv() -> c_int;
    errno fn ibv_cmd_post_send() -> c_int;
    errno fn ibv_cmd_post_srq_recv() -> c_int;
    errno fn ibv_cmd_query_context() -> c_int;
    errno fn ibv_cmd_query_device_any() -> c_int;
    errno fn ibv_cmd_query_mr() -> c_int;
    errno fn ibv_cmd_query_port() -> c_int;
    errno fn ibv_cmd_query_qp() -> c_int;
    errno fn ibv_cmd_query_srq() -> c_int;
    errno fn ibv_cmd_read_counters() -> c_int;
    errno fn ibv_cmd_reg_dm_mr() -> c_int;
    errno fn ibv_cmd_reg_dmabuf_mr() -> c_int;
    errno fn ibv_cmd_reg_mr() -> c_int;
    errno fn ibv_cmd_reg_mr_ex() -> c_int;
    errno fn ibv_cmd_req_notify_cq() -> c_int;
    errno fn ibv_cmd_rereg_mr() -> c_int;
    errno fn ibv_cmd_resize_cq() -> c_int;
}

/// How many attributes a driver's command has; none is ever sent.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs(_: c_uint, _: Ptr) -> c_uint {
    0
}
