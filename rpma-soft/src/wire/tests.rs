//! Golden bytes, round trips, and what a decoder refuses.

use proptest::prelude::*;

use super::*;

fn encode(frame: Frame) -> Vec<u8> {
    let mut buf = [0xEE; MAX_HEADER_BYTES];
    let size = frame.encode(&mut buf).unwrap();
    assert_eq!(size, frame.header_bytes());
    buf[..size].to_vec()
}

/// A decoder behind the preamble.
fn decoder() -> Decoder {
    let mut decoder = Decoder::new();
    let preamble = Preamble::encode();
    assert!(matches!(decoder.next(&mut preamble.as_slice()), Ok(Some(Event::Preamble(_)))));
    decoder
}

fn decode(mut bytes: &[u8]) -> Result<Frame, FrameError> {
    match decoder().next(&mut bytes)? {
        Some(Event::Frame(frame)) => Ok(frame),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn golden(frame: Frame, hex: &str) {
    let bytes: Vec<u8> = hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(encode(frame), bytes);
    assert_eq!(decode(&bytes), Ok(frame));
}

const REMOTE: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: 0xAABB_CCDD };
const REMOTE_HEX: &str = "88 77 66 55 44 33 22 11 dd cc bb aa";

fn request(op: RequestOp) -> Frame {
    Frame::Request(Request { msn: 0x0102, solicited: false, op })
}

fn response(op: ResponseOp) -> Frame {
    Frame::Response(Response { msn: 0x0102, op })
}

const MSN_HEX: &str = "02 01 00 00 00 00 00 00";

#[test]
fn requests_have_their_golden_bytes() {
    let solicited = Frame::Request(Request { msn: 0x0102, solicited: true, op: RequestOp::Send { len_bytes: 0x0403 } });
    golden(solicited, &format!("10 01 00 00 03 04 00 00 {MSN_HEX}"));
    let imm = [9, 8, 7, 6];
    golden(
        request(RequestOp::SendImm { len_bytes: 5, imm }),
        &format!("11 00 00 00 05 00 00 00 {MSN_HEX} 09 08 07 06 00 00 00 00"),
    );
    let write = RequestOp::Write { remote: REMOTE, len_bytes: 1 };
    golden(request(write), &format!("12 00 00 00 01 00 00 00 {MSN_HEX} {REMOTE_HEX} 00 00 00 00"));
    let write_imm = RequestOp::WriteImm { remote: REMOTE, len_bytes: 0, imm };
    golden(request(write_imm), &format!("13 00 00 00 00 00 00 00 {MSN_HEX} {REMOTE_HEX} 09 08 07 06"));
    let read = RequestOp::Read { remote: REMOTE, len_bytes: MAX_MESSAGE_BYTES };
    golden(request(read), &format!("14 00 00 00 00 00 00 40 {MSN_HEX} {REMOTE_HEX} 00 00 00 00"));
    let spec = FlushSpec { placement: Placement::PERSISTENT, selectivity: Selectivity::Region, len_bytes: 1 << 40 };
    let flush = RequestOp::Flush { remote: REMOTE, spec };
    golden(request(flush), &format!("15 00 00 00 00 00 00 00 {MSN_HEX} {REMOTE_HEX} 02 01 00 00 00 00 00 00 00 01 00 00"));
    let atomic_write = RequestOp::AtomicWrite { remote: REMOTE, value: *b"8 bytes!" };
    golden(request(atomic_write), &format!("16 00 00 00 00 00 00 00 {MSN_HEX} {REMOTE_HEX} 00 00 00 00 38 20 62 79 74 65 73 21"));
    let compare_swap = RequestOp::CompareSwap { remote: REMOTE, compare: 1, swap: 2 };
    golden(
        request(compare_swap),
        &format!("17 00 00 00 00 00 00 00 {MSN_HEX} {REMOTE_HEX} 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00"),
    );
    let fetch_add = RequestOp::FetchAdd { remote: REMOTE, add: 3 };
    golden(request(fetch_add), &format!("18 00 00 00 00 00 00 00 {MSN_HEX} {REMOTE_HEX} 00 00 00 00 03 00 00 00 00 00 00 00"));
}

#[test]
fn responses_have_their_golden_bytes() {
    golden(response(ResponseOp::Ack), &format!("20 00 00 00 00 00 00 00 {MSN_HEX}"));
    golden(response(ResponseOp::Read { len_bytes: 7 }), &format!("21 00 00 00 07 00 00 00 {MSN_HEX}"));
    golden(response(ResponseOp::Atomic { original: 5 }), &format!("22 00 00 00 00 00 00 00 {MSN_HEX} 05 00 00 00 00 00 00 00"));
    let naks = [
        (Nak::RemoteAccess, "01 00"),
        (Nak::InvalidRequest, "02 00"),
        (Nak::Operational, "03 00"),
        (Nak::ReceiverNotReady(RnrTimer::from_code(12).unwrap()), "04 0c"),
    ];
    for (nak, hex) in naks {
        golden(response(ResponseOp::Nak(nak)), &format!("23 00 00 00 00 00 00 00 {MSN_HEX} {hex} 00 00 00 00 00 00"));
    }
}

#[test]
fn cm_frames_have_their_golden_bytes() {
    let zeros = |n| "00 ".repeat(n);
    golden(
        Frame::Cm(CmFrame::ConnectRequest(ConnectRequest {
            qp_num: 0x0102_0304,
            responder_resources: 5,
            initiator_depth: 6,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 3,
            srq: false,
            source: "10.0.0.1:258".parse().unwrap(),
            destination: "[fe80::1]:513".parse().unwrap(),
            private_data: PrivateData::new(b"hi").unwrap(),
        })),
        &format!(
            "01 00 00 00 04 03 02 01 05 06 01 07 03 00 00 00  04 00 02 01 0a 00 00 01 {} 06 00 01 02 fe 80 {} 01  68 69 {}",
            zeros(12),
            zeros(13),
            zeros(54),
        ),
    );
    golden(
        Frame::Cm(CmFrame::Accept(Accept {
            qp_num: 9,
            responder_resources: 1,
            initiator_depth: 2,
            flow_control: false,
            rnr_retry_count: 7,
            srq: true,
            private_data: PrivateData::new(&[0xFF; 196]).unwrap(),
        })),
        &format!("02 00 00 00 09 00 00 00 01 02 00 07 01 00 00 00 {}", "ff ".repeat(196)),
    );
    let reject = Reject { reason: 28, private_data: PrivateData::new(b"no").unwrap() };
    golden(Frame::Cm(CmFrame::Reject(reject)), &format!("03 00 1c 00 00 00 00 00 6e 6f {}", zeros(146)));
    golden(Frame::Cm(CmFrame::Ready), "04 00 00 00 00 00 00 00");
    golden(Frame::Cm(CmFrame::DisconnectRequest), "05 00 00 00 00 00 00 00");
    golden(Frame::Cm(CmFrame::DisconnectReply), "06 00 00 00 00 00 00 00");
}

#[test]
fn private_data_one_byte_too_long_is_refused() {
    assert!(PrivateData::<56>::new(&[1; 56]).is_ok());
    let error = EncodeError::Value { field: "length of private data", value: 57 };
    assert_eq!(PrivateData::<56>::new(&[1; 57]), Err(error));
}

#[test]
fn unknown_kind_is_named_before_anything_else_arrives() {
    for kind in [0x00, 0x07, 0x0F, 0x19, 0x24, 0xFF] {
        assert_eq!(decode(&[kind]), Err(FrameError::Kind { kind }));
    }
}

/// A header of `kind`, all zero but its number, with one byte changed.
fn spoiled(kind: u8, offset: usize, value: u8) -> Result<Frame, FrameError> {
    let mut bytes = vec![0; Frame::header_bytes_of(kind).unwrap()];
    bytes[0] = kind;
    if (0x10..0x20).contains(&kind) {
        bytes[8] = 1;
    }
    bytes[offset] = value;
    decode(&bytes)
}

#[test]
fn values_without_a_meaning_are_named() {
    let value = |kind, field, value| Err(FrameError::Value { kind, field, value });
    assert_eq!(spoiled(0x01, 10, 2), value(0x01, "flow control", 2));
    assert_eq!(spoiled(0x01, 11, 8), value(0x01, "retry count", 8));
    assert_eq!(spoiled(0x01, 12, 9), value(0x01, "RNR retry count", 9));
    assert_eq!(spoiled(0x01, 16, 5), value(0x01, "address family", 5));
    assert_eq!(spoiled(0x02, 12, 3), value(0x02, "shared receive queue", 3));
    assert_eq!(spoiled(0x10, 8, 0), value(0x10, "message sequence number", 0));
    assert_eq!(spoiled(0x15, 28, 0), value(0x15, "placement", 0));
    assert_eq!(spoiled(0x15, 28, 4), value(0x15, "placement", 4));
    assert_eq!(spoiled(0x23, 16, 9), value(0x23, "code", 9));
    let mut rnr = encode(response(ResponseOp::Nak(Nak::ReceiverNotReady(RnrTimer::from_code(31).unwrap()))));
    rnr[17] = 32;
    assert_eq!(decode(&rnr), value(0x23, "RNR timer", 32));
    let mut flush = vec![0; 40];
    (flush[0], flush[8], flush[28], flush[29]) = (0x15, 1, 1, 2);
    assert_eq!(decode(&flush), value(0x15, "selectivity", 2));
}

#[test]
fn lengths_flags_and_reserved_fields_are_checked() {
    let max_bytes = MAX_MESSAGE_BYTES;
    assert_eq!(spoiled(0x10, 7, 0x80), Err(FrameError::Length { kind: 0x10, len_bytes: 0x8000_0000, max_bytes }));
    assert_eq!(spoiled(0x17, 4, 1), Err(FrameError::Length { kind: 0x17, len_bytes: 1, max_bytes: 0 }));
    assert_eq!(spoiled(0x20, 4, 1), Err(FrameError::Length { kind: 0x20, len_bytes: 1, max_bytes: 0 }));
    assert_eq!(spoiled(0x10, 1, 2), Err(FrameError::Flags { kind: 0x10, flags: 2 }));
    assert_eq!(spoiled(0x12, 1, 1), Err(FrameError::Flags { kind: 0x12, flags: 1 }));
    for (kind, offset) in [(0x04, 7), (0x05, 1), (0x03, 5), (0x10, 2), (0x11, 20), (0x12, 31), (0x16, 28), (0x20, 3)] {
        assert_eq!(spoiled(kind, offset, 1), Err(FrameError::Reserved { kind }));
    }
}

#[test]
fn what_a_decoder_refuses_is_not_encoded() {
    let refused = [
        request(RequestOp::Send { len_bytes: MAX_MESSAGE_BYTES + 1 }),
        response(ResponseOp::Read { len_bytes: u32::MAX }),
        Frame::Request(Request { msn: 0, solicited: false, op: RequestOp::Send { len_bytes: 0 } }),
        Frame::Request(Request { msn: 1, solicited: true, op: RequestOp::Read { remote: REMOTE, len_bytes: 0 } }),
        request(RequestOp::Flush {
            remote: REMOTE,
            spec: FlushSpec { placement: Placement::empty(), selectivity: Selectivity::Range, len_bytes: 0 },
        }),
    ];
    for frame in refused {
        assert!(matches!(frame.encode(&mut [0; MAX_HEADER_BYTES]), Err(EncodeError::Value { .. })), "{frame:?}");
    }
}

#[test]
fn the_first_error_is_final() {
    let mut decoder = decoder();
    assert_eq!(decoder.next(&mut [0xFF].as_slice()), Err(FrameError::Kind { kind: 0xFF }));
    assert_eq!(decoder.next(&mut encode(Frame::Cm(CmFrame::Ready)).as_slice()), Err(FrameError::Kind { kind: 0xFF }));
}

#[test]
fn payload_does_not_go_through_the_decoder() {
    let mut decoder = decoder();
    let mut stream = encode(request(RequestOp::Send { len_bytes: 3 }));
    stream.extend(b"abc");
    stream.extend(encode(Frame::Cm(CmFrame::Ready)));
    let mut input = stream.as_slice();
    assert!(matches!(decoder.next(&mut input), Ok(Some(Event::Frame(Frame::Request(_))))));
    assert_eq!((decoder.payload_left(), &input[..3]), (3, b"abc".as_slice()));
    assert_eq!(decoder.next(&mut input), Ok(None), "payload is due first");
    decoder.payload_taken(2);
    assert_eq!(decoder.payload_left(), 1);
    decoder.payload_taken(1);
    input = &input[3..];
    assert!(decoder.is_between_frames());
    assert_eq!(decoder.next(&mut input), Ok(Some(Event::Frame(Frame::Cm(CmFrame::Ready)))));
}

#[test]
fn bytes_that_are_header_for_certain_end_where_payload_may_begin() {
    let sends = [
        request(RequestOp::Send { len_bytes: 3 }),
        request(RequestOp::SendImm { len_bytes: 3, imm: [0; 4] }),
        request(RequestOp::Write { remote: Remote { addr: 0, rkey: 0 }, len_bytes: 3 }),
        request(RequestOp::WriteImm { remote: Remote { addr: 0, rkey: 0 }, len_bytes: 3, imm: [0; 4] }),
        Frame::Response(Response { msn: 1, op: ResponseOp::Read { len_bytes: 3 } }),
    ];
    for frame in sends {
        let mut decoder = Decoder::new();
        let stream = [Preamble::encode().to_vec(), encode(frame)].concat();
        let mut left = stream.as_slice();
        while decoder.payload_left() == 0 {
            let due = decoder.header_due();
            assert!(due > 0 && due <= left.len(), "{frame:?}: {due} of {}", left.len());
            // In any pieces.
            for size in [1, due - 1] {
                let (mut piece, rest) = left.split_at(size);
                left = rest;
                decoder.next(&mut piece).unwrap();
                assert!(piece.is_empty());
            }
        }
        assert_eq!((left.len(), decoder.header_due()), (0, 0), "{frame:?}");
    }
}

#[test]
fn rnr_timers_are_those_of_the_standard() {
    let micros = |code| RnrTimer::from_code(code).unwrap().duration().as_micros();
    assert_eq!((micros(0), micros(1), micros(12), micros(31)), (655_360, 10, 640, 491_520));
    assert_eq!(RnrTimer::from_code(32), None);
}

fn frames() -> impl Strategy<Value = Frame> {
    let remote = (any::<u64>(), any::<u32>()).prop_map(|(addr, rkey)| Remote { addr, rkey });
    let len = 0..=MAX_MESSAGE_BYTES;
    let spec = (1_u8..4, any::<bool>(), any::<u64>()).prop_map(|(bits, region, len_bytes)| FlushSpec {
        placement: Placement::from_bits_truncate(bits),
        selectivity: if region { Selectivity::Region } else { Selectivity::Range },
        len_bytes,
    });
    let op = prop_oneof![
        len.clone().prop_map(|len_bytes| RequestOp::Send { len_bytes }),
        (len.clone(), any::<[u8; 4]>()).prop_map(|(len_bytes, imm)| RequestOp::SendImm { len_bytes, imm }),
        (remote.clone(), len.clone()).prop_map(|(remote, len_bytes)| RequestOp::Write { remote, len_bytes }),
        (remote.clone(), len.clone(), any::<[u8; 4]>()).prop_map(|(remote, len_bytes, imm)| RequestOp::WriteImm {
            remote,
            len_bytes,
            imm
        }),
        (remote.clone(), len.clone()).prop_map(|(remote, len_bytes)| RequestOp::Read { remote, len_bytes }),
        (remote.clone(), spec).prop_map(|(remote, spec)| RequestOp::Flush { remote, spec }),
        (remote.clone(), any::<[u8; 8]>()).prop_map(|(remote, value)| RequestOp::AtomicWrite { remote, value }),
        (remote.clone(), any::<u64>(), any::<u64>()).prop_map(|(remote, compare, swap)| RequestOp::CompareSwap {
            remote,
            compare,
            swap
        }),
        (remote, any::<u64>()).prop_map(|(remote, add)| RequestOp::FetchAdd { remote, add }),
    ];
    let nak = prop_oneof![
        Just(Nak::RemoteAccess),
        Just(Nak::InvalidRequest),
        Just(Nak::Operational),
        (0_u8..32).prop_map(|code| Nak::ReceiverNotReady(RnrTimer::from_code(code).unwrap())),
    ];
    let answer = prop_oneof![
        Just(ResponseOp::Ack),
        len.prop_map(|len_bytes| ResponseOp::Read { len_bytes }),
        any::<u64>().prop_map(|original| ResponseOp::Atomic { original }),
        nak.prop_map(ResponseOp::Nak),
    ];
    let address = prop_oneof![
        any::<([u8; 4], u16)>().prop_map(std::net::SocketAddr::from),
        any::<([u8; 16], u16)>().prop_map(std::net::SocketAddr::from),
    ];
    let connect = (
        any::<(u32, u8, u8, bool, bool)>(),
        0_u8..8,
        0_u8..8,
        address.clone(),
        address,
        prop::collection::vec(any::<u8>(), 0..=56),
    )
        .prop_map(
            |((qp_num, responder_resources, initiator_depth, flow_control, srq), retry, rnr, source, destination, data)| {
                CmFrame::ConnectRequest(ConnectRequest {
                    qp_num,
                    responder_resources,
                    initiator_depth,
                    flow_control,
                    retry_count: retry,
                    rnr_retry_count: rnr,
                    srq,
                    source,
                    destination,
                    private_data: PrivateData::new(&data).unwrap(),
                })
            },
        );
    let reject = (any::<u16>(), prop::collection::vec(any::<u8>(), 0..=148))
        .prop_map(|(reason, data)| CmFrame::Reject(Reject { reason, private_data: PrivateData::new(&data).unwrap() }));
    let cm = prop_oneof![connect, reject, Just(CmFrame::Ready), Just(CmFrame::DisconnectRequest), Just(CmFrame::DisconnectReply)];
    prop_oneof![
        4 => (1..=u64::MAX, op, any::<bool>()).prop_map(|(msn, op, solicited)| {
            let completes_there = matches!(op, RequestOp::Send { .. } | RequestOp::SendImm { .. } | RequestOp::WriteImm { .. });
            Frame::Request(Request { msn, solicited: solicited && completes_there, op })
        }),
        2 => (any::<u64>(), answer).prop_map(|(msn, op)| Frame::Response(Response { msn, op })),
        1 => cm.prop_map(Frame::Cm),
    ]
}

proptest! {
    #[test]
    fn frames_come_back_from_any_pieces(list in prop::collection::vec(frames(), 1..8), pieces in prop::collection::vec(1_usize..40, 1..20)) {
        let mut stream = Preamble::encode().to_vec();
        for frame in &list {
            stream.extend(encode(*frame));
        }
        let mut decoder = Decoder::new();
        let (mut found, mut piece) = (Vec::new(), pieces.iter().cycle());
        let mut left = stream.as_slice();
        while !left.is_empty() {
            let (mut input, rest) = left.split_at((*piece.next().unwrap()).min(left.len()));
            left = rest;
            while let Some(event) = decoder.next(&mut input).unwrap() {
                if let Event::Frame(frame) = event {
                    found.push(frame);
                    // The payload is left out of this stream.
                    decoder.payload_taken(decoder.payload_left());
                }
            }
            prop_assert!(input.is_empty());
        }
        prop_assert_eq!(found, list);
        prop_assert!(decoder.is_between_frames());
    }
}
