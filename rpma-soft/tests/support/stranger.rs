//! A peer that is no program of ours: what it says, byte by byte.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rpma_soft::wire::{Accept, CmFrame, ConnectRequest, Decoder, Event, Frame, MAX_HEADER_BYTES, Preamble, PrivateData};

const LIMIT: Duration = Duration::from_secs(20);

/// Connected, and silent.
pub(crate) fn silent(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Connected, and has asked for a connection.
pub(crate) fn ask(to: SocketAddr) -> TcpStream {
    let mut stream = silent(to);
    let request = request(stream.local_addr().unwrap(), to);
    stream.write_all(&Preamble::encode()).unwrap();
    send(&mut stream, CmFrame::ConnectRequest(request));
    stream
}

/// What it asks with.
pub(crate) fn request(source: SocketAddr, destination: SocketAddr) -> ConnectRequest {
    ConnectRequest {
        qp_num: 0x33,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        source,
        destination,
        private_data: PrivateData::new(b"stranger").unwrap(),
    }
}

pub(crate) fn encoded(frame: Frame) -> Vec<u8> {
    let mut header = [0; MAX_HEADER_BYTES];
    let size = frame.encode(&mut header).unwrap();
    header[..size].to_vec()
}

pub(crate) fn send(stream: &mut TcpStream, frame: CmFrame) {
    stream.write_all(&encoded(Frame::Cm(frame))).unwrap();
}

/// Reads up to the next frame; the preamble may come before it; `None` if the stream ends before it.
pub(crate) fn next_frame(stream: &mut TcpStream, decoder: &mut Decoder) -> Option<Frame> {
    loop {
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => return None,
            Err(e) => panic!("{e}"),
        }
        match decoder.next(&mut &byte[..]).unwrap() {
            Some(Event::Frame(frame)) => return Some(frame),
            Some(Event::Preamble(_)) | None => {}
        }
    }
}

/// Reads up to the answer.
pub(crate) fn accepted(stream: &mut TcpStream) -> Accept {
    accepted_with(stream, &mut Decoder::new())
}

/// As [`accepted`], for who reads on.
pub(crate) fn accepted_with(stream: &mut TcpStream, decoder: &mut Decoder) -> Accept {
    match next_frame(stream, decoder) {
        Some(Frame::Cm(CmFrame::Accept(accept))) => accept,
        other => panic!("{other:?}"),
    }
}
