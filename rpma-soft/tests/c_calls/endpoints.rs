//! Endpoints and the queues that come with them, as `rdma_server` and `rdma_client` of librdmacm use them.

use std::thread;

use rpma_soft::Soft;
use rpma_sys::ProviderRef;
use rpma_sys::bindings::*;

use crate::harness::{Cq, Id, attributes};
use crate::info::AddrInfo;

fn info(node: &str, port: u16, flags: u32) -> AddrInfo {
    let hints =
        rdma_addrinfo { ai_flags: flags.cast_signed(), ai_port_space: RDMA_PS_TCP.cast_signed(), ..rdma_addrinfo::default() };
    AddrInfo::get(Some(node), Some(&port.to_string()), Some(&hints)).unwrap()
}

fn passive(provider: &ProviderRef, node: &str) -> Id {
    let id = Id::endpoint(provider, &mut info(node, 0, RAI_PASSIVE).fields(), Some(&mut attributes())).unwrap();
    id.listen().unwrap();
    id
}

/// What `rdma_server` does: one message in, one out.
fn serve(listener: &Id) -> [u8; 16] {
    let mut memory = [0; 16];
    let id = listener.get_request().unwrap();
    let mr = id.reg_msgs(&mut memory);
    id.post_recv(&mr, 1).unwrap();
    id.accept().unwrap();
    let wc = id.recv_completion();
    assert_eq!((wc.status, wc.byte_len, wc.wr_id), (IBV_WC_SUCCESS, 16, 1));
    id.post_send(b"from the server.", 2).unwrap();
    assert_eq!(id.send_completion().status, IBV_WC_SUCCESS);
    id.disconnect().unwrap();
    drop(mr);
    drop(id);
    memory
}

/// What `rdma_client` does: one message out, one in.
fn ask(provider: &ProviderRef, node: &str, port: u16) -> [u8; 16] {
    let mut attr = attributes();
    let id = Id::endpoint(provider, &mut info(node, port, 0).fields(), Some(&mut attr)).unwrap();
    assert!(attr.cap.max_inline_data >= 16);
    let mut memory = [0; 16];
    let mr = id.reg_msgs(&mut memory);
    id.post_recv(&mr, 3).unwrap();
    id.connect().unwrap();
    id.post_send(b"from the client.", 4).unwrap();
    assert_eq!(id.send_completion().status, IBV_WC_SUCCESS);
    let wc = id.recv_completion();
    assert_eq!((wc.status, wc.byte_len, wc.wr_id), (IBV_WC_SUCCESS, 16, 3));
    id.disconnect().unwrap();
    drop(mr);
    drop(id);
    memory
}

#[test]
fn server_and_client_of_librdmacm_s_examples_exchange_their_messages() {
    for node in ["127.0.0.1", "::1"] {
        let provider = Soft::open().unwrap();
        let listener = passive(&provider, node);
        let port = listener.local().port();
        let server = thread::spawn(move || [serve(&listener), serve(&listener)]);
        for _ in 0..2 {
            assert_eq!(&ask(&provider, node, port), b"from the server.");
        }
        assert_eq!(server.join().unwrap(), [*b"from the client."; 2]);
    }
}

#[test]
fn request_of_an_endpoint_with_attributes_has_a_queue_pair_and_of_one_without_has_none() {
    let provider = Soft::open().unwrap();
    for with in [true, false] {
        let mut attr = attributes();
        let attr = with.then_some(&mut attr);
        let listener = Id::endpoint(&provider, &mut info("127.0.0.1", 0, RAI_PASSIVE).fields(), attr).unwrap();
        assert!(listener.fields().qp.is_null() && listener.event().is_none());
        listener.listen().unwrap();
        let port = listener.local().port();
        let client = Id::endpoint(&provider, &mut info("127.0.0.1", port, 0).fields(), Some(&mut attributes())).unwrap();
        assert_eq!(client.kind(), Some(RDMA_CM_EVENT_ROUTE_RESOLVED));
        let client = thread::spawn(move || client.connect());
        let server = listener.get_request().unwrap();
        let fields = server.fields();
        assert_eq!((!fields.qp.is_null(), !fields.send_cq.is_null(), !fields.recv_cq_channel.is_null()), (with, with, with));
        drop(server);
        assert_eq!(client.join().unwrap(), Err(libc::ECONNREFUSED));
    }
}

#[test]
fn request_from_a_channel_that_does_not_block_is_eagain_until_somebody_asks() {
    let provider = Soft::open().unwrap();
    let listener = passive(&provider, "127.0.0.1");
    listener.do_not_block();
    for _ in 0..2 {
        assert_eq!(listener.get_request().err(), Some(libc::EAGAIN));
    }
    let port = listener.local().port();
    let client = Id::endpoint(&provider, &mut info("127.0.0.1", port, 0).fields(), Some(&mut attributes())).unwrap();
    let client = thread::spawn(move || client.connect());
    listener.wait();
    let request = listener.get_request().unwrap();
    assert_eq!(request.kind(), Some(RDMA_CM_EVENT_CONNECT_REQUEST));
    assert_eq!(listener.get_request().err(), Some(libc::EAGAIN));
    request.reject(b"").unwrap();
    assert_eq!(client.join().unwrap(), Err(libc::ECONNREFUSED));
}

#[test]
fn queue_pair_that_the_listener_s_attributes_do_not_allow_leaves_the_request_with_the_listener() {
    let provider = Soft::open().unwrap();
    let mut attr = attributes();
    attr.cap.max_send_wr = u32::MAX;
    let listener = Id::endpoint(&provider, &mut info("127.0.0.1", 0, RAI_PASSIVE).fields(), Some(&mut attr)).unwrap();
    listener.listen().unwrap();
    let port = listener.local().port();
    let client = Id::endpoint(&provider, &mut info("127.0.0.1", port, 0).fields(), Some(&mut attributes())).unwrap();
    let client = thread::spawn(move || client.connect());
    assert_eq!(listener.get_request().err(), Some(libc::EINVAL));
    // As with librdmacm, the identifier of the request is found there only.
    let rejected = listener.take_request();
    assert!(rejected.fields().qp.is_null());
    rejected.reject(b"").unwrap();
    assert_eq!(client.join().unwrap(), Err(libc::ECONNREFUSED));
}

#[test]
fn private_data_of_the_address_go_before_the_program_s() {
    let provider = Soft::open().unwrap();
    let listener = passive(&provider, "127.0.0.1");
    let found = info("127.0.0.1", listener.local().port(), 0);
    let mut front = *b"front ";
    let mut with = rdma_addrinfo { ai_connect: front.as_mut_ptr().cast(), ai_connect_len: front.len(), ..found.fields() };
    let client = Id::endpoint(&provider, &mut with, Some(&mut attributes())).unwrap();
    let client = thread::spawn(move || client.connect_with(b"and back"));
    let server = listener.get_request().unwrap();
    assert!(server.event().unwrap().private_data.starts_with(b"front and back\0"));
    server.reject(b"").unwrap();
    assert_eq!(client.join().unwrap(), Err(libc::ECONNREFUSED));
}

#[test]
fn endpoints_that_cannot_be_made_leave_nothing_behind() {
    let provider = Soft::open().unwrap();
    let listener = passive(&provider, "127.0.0.1");
    let addr = listener.local();
    let endpoint = |change: &dyn Fn(&mut rdma_addrinfo), flags| {
        let found = info("127.0.0.1", addr.port(), flags);
        let mut changed = found.fields();
        change(&mut changed);
        Id::endpoint(&provider, &mut changed, Some(&mut attributes())).err()
    };
    assert_eq!(endpoint(&|_| {}, RAI_PASSIVE), Some(libc::EADDRINUSE));
    assert_eq!(endpoint(&|info| info.ai_src_addr = std::ptr::null_mut(), RAI_PASSIVE), Some(libc::EINVAL));
    assert_eq!(endpoint(&|info| info.ai_dst_addr = std::ptr::null_mut(), 0), Some(libc::EINVAL));
    assert_eq!(endpoint(&|info| info.ai_port_space = 0x999, 0), Some(libc::EINVAL));
    assert_eq!(endpoint(&|info| info.ai_port_space = RDMA_PS_UDP.cast_signed(), 0), Some(libc::EOPNOTSUPP));
    assert_eq!(endpoint(&|info| info.ai_qp_type = IBV_QPT_UD.cast_signed(), 0), Some(libc::EOPNOTSUPP));
    // The port is free as soon as its endpoint is gone.
    drop(listener);
    assert_eq!(endpoint(&|_| {}, RAI_PASSIVE), None);
}

/// A client that is on a device.
fn resolved(provider: &ProviderRef) -> Id {
    let id = Id::create(provider, RDMA_PS_TCP).unwrap();
    id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap()).unwrap();
    id
}

#[test]
fn completion_queues_that_are_not_given_come_and_go_with_the_queue_pair() {
    let provider = Soft::open().unwrap();
    let id = resolved(&provider);
    let mut attr = attributes();
    attr.cap.max_recv_wr = 3;
    id.create_qp(&mut attr).unwrap();
    let has = id.fields();
    assert_eq!((attr.send_cq, attr.recv_cq), (has.send_cq, has.recv_cq));
    assert_ne!(has.send_cq, has.recv_cq);
    assert!(!has.send_cq_channel.is_null() && !has.recv_cq_channel.is_null() && has.send_cq_channel != has.recv_cq_channel);
    assert_eq!([has.send_cq, has.recv_cq].map(Cq::lengths_of), [1, 3]);
    assert_eq!(id.create_qp(&mut attributes()), Err(libc::EINVAL), "it has one");
    id.destroy_qp();
    let has = id.fields();
    assert!(has.qp.is_null() && has.send_cq.is_null() && has.recv_cq.is_null());
    assert!(has.send_cq_channel.is_null() && has.recv_cq_channel.is_null());
    id.create_qp(&mut attributes()).unwrap();
}

#[test]
fn completion_queues_that_are_given_stay_the_program_s() {
    let provider = Soft::open().unwrap();
    let id = resolved(&provider);
    let cq = Cq::create(&id);
    let mut both = ibv_qp_init_attr { send_cq: cq.raw, recv_cq: cq.raw, ..attributes() };
    id.create_qp(&mut both).unwrap();
    let has = id.fields();
    assert!(has.send_cq.is_null() && has.recv_cq.is_null() && has.send_cq_channel.is_null());
    id.destroy_qp();
    let mut one = ibv_qp_init_attr { send_cq: cq.raw, ..attributes() };
    id.create_qp(&mut one).unwrap();
    let has = id.fields();
    assert!(has.send_cq.is_null() && !has.recv_cq.is_null() && !has.recv_cq_channel.is_null());
    assert_eq!((one.send_cq, one.recv_cq), (cq.raw, has.recv_cq));
    id.destroy_qp();
    // Dropping it asserts that it is there and free.
    drop(cq);
}

#[test]
fn queue_pair_that_cannot_be_made_leaves_no_queues() {
    let provider = Soft::open().unwrap();
    let id = resolved(&provider);
    let mut attr = ibv_qp_init_attr { qp_type: IBV_QPT_UD, ..attributes() };
    assert_eq!(id.create_qp(&mut attr), Err(libc::EOPNOTSUPP));
    let mut no_length = attributes();
    no_length.cap.max_recv_wr = 0;
    assert_eq!(id.create_qp(&mut no_length), Err(libc::EINVAL), "no completion queue has length 0");
    let has = id.fields();
    assert!(has.qp.is_null() && has.send_cq.is_null() && has.recv_cq.is_null());
    assert!(has.send_cq_channel.is_null() && has.recv_cq_channel.is_null());
    assert!(attr.send_cq.is_null() && no_length.send_cq.is_null());
}

#[test]
fn identifiers_of_a_device_share_a_protection_domain_until_they_are_given_another() {
    let provider = Soft::open().unwrap();
    let [one, two] = [resolved(&provider), resolved(&provider)];
    assert!(!one.fields().pd.is_null());
    assert_eq!(one.fields().pd, two.fields().pd);
    one.create_qp(&mut attributes()).unwrap();
    assert_eq!(one.fields().pd, two.fields().pd);
}

#[test]
fn inline_data_as_long_as_the_list_of_ranges_is_granted_unasked() {
    let provider = Soft::open().unwrap();
    let id = resolved(&provider);
    for (asked, ranges, granted) in [(0, 1, 16), (0, 3, 48), (20, 1, 20), (0, 0, 0)] {
        let mut attr = attributes();
        attr.cap.max_inline_data = asked;
        attr.cap.max_send_sge = ranges;
        id.create_qp(&mut attr).unwrap();
        assert_eq!(attr.cap.max_inline_data, granted);
        id.destroy_qp();
    }
}

#[test]
fn queue_pair_takes_its_receives_from_the_shared_queue_of_its_identifier() {
    let provider = Soft::open().unwrap();
    let listener = Id::endpoint(&provider, &mut info("127.0.0.1", 0, RAI_PASSIVE).fields(), None).unwrap();
    listener.listen().unwrap();
    assert_eq!(resolved(&provider).create_srq(0), Err(libc::EINVAL));
    let port = listener.local().port();
    let client = Id::endpoint(&provider, &mut info("127.0.0.1", port, 0).fields(), Some(&mut attributes())).unwrap();
    let client = thread::spawn(move || {
        client.connect().unwrap();
        client.post_send(b"to whoever has room", 1).unwrap_err();
        client.post_send(b"from the client.", 2).unwrap();
        assert_eq!(client.send_completion().status, IBV_WC_SUCCESS);
        client
    });
    let mut memory = [0; 16];
    let server = listener.get_request().unwrap();
    server.create_srq(1).unwrap();
    assert_eq!(server.create_srq(1), Err(libc::EINVAL), "it has one");
    let mr = server.reg_msgs(&mut memory);
    // Before there is a queue pair.
    server.post_recv(&mr, 7).unwrap();
    let mut attr = attributes();
    server.create_qp(&mut attr).unwrap();
    assert_eq!(attr.srq, server.fields().srq);
    server.accept().unwrap();
    assert_eq!((server.recv_completion().wr_id, server.post_recv(&mr, 8)), (7, Ok(())));
    drop(client.join().unwrap());
    server.destroy_qp();
    server.destroy_srq();
    assert!(server.fields().srq.is_null());
    drop(mr);
    assert_eq!(&memory, b"from the client.");
}
