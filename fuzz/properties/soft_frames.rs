//! What holds for every stream of bytes. Used by the fuzz target and by `rpma-soft/tests/corpus_replay.rs`.
//!
//! The first byte says in what pieces the rest arrives. Payload is left out of the stream.

use rpma_soft::wire::{Decoder, EncodeError, Event, Frame, FrameError, MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, Preamble};

/// Panics if a property does not hold for `data`.
pub(crate) fn check(data: &[u8]) {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = decode(stream, stream.len().max(1));
    let pieces = decode(stream, usize::from(piece).max(1));
    assert_eq!(whole, pieces, "the pieces in which bytes arrive make a difference");

    // What decodes encodes to the same bytes.
    let (events, error) = whole;
    let mut bytes = stream;
    for event in events {
        let mut header = [0; MAX_HEADER_BYTES];
        let encoded = match event {
            Event::Preamble(_) => Preamble::encode().to_vec(),
            Event::Frame(frame) => {
                assert!(frame.payload_bytes() <= MAX_MESSAGE_BYTES);
                let size = frame.encode(&mut header).expect("what was decoded is legal");
                let short = frame.encode(&mut header[..size - 1]);
                assert_eq!(short, Err(EncodeError::Buffer { need_bytes: size, have_bytes: size - 1 }));
                header[..size].to_vec()
            }
        };
        let (head, rest) = bytes.split_at(encoded.len());
        assert_eq!(encoded, head);
        bytes = rest;
    }
    assert!(error.is_some() || bytes.len() < MAX_HEADER_BYTES, "a whole header was not decoded");
}

/// Decodes `stream` in pieces of `piece_bytes`.
fn decode(stream: &[u8], piece_bytes: usize) -> (Vec<Event>, Option<FrameError>) {
    let mut decoder = Decoder::new();
    let mut events = Vec::new();
    for mut piece in stream.chunks(piece_bytes) {
        loop {
            let before = piece.len();
            match decoder.next(&mut piece) {
                Ok(Some(event)) => {
                    if let Event::Frame(frame) = &event {
                        assert_eq!(decoder.payload_left(), frame.payload_bytes());
                        assert!(matches!(frame, Frame::Cm(_)) <= (frame.payload_bytes() == 0));
                        if decoder.payload_left() != 0 {
                            assert_eq!(decoder.next(&mut piece), Ok(None), "payload is due");
                        }
                        decoder.payload_taken(decoder.payload_left());
                    }
                    events.push(event);
                }
                Ok(None) => {
                    assert!(piece.is_empty(), "bytes are left, and nothing is due");
                    break;
                }
                Err(error) => {
                    assert_eq!(decoder.next(&mut piece), Err(error), "an error is final");
                    assert!(piece.len() <= before);
                    return (events, Some(error));
                }
            }
        }
    }
    (events, None)
}
