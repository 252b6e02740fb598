//! Entry points of the fuzz targets: they decode bytes as a link decodes a peer's bytes.

use std::io::Read;

use bytes::Bytes;
use quorate_protocol::wire::{FRAME_BYTES_MAX, PROTOCOL_VERSIONS};

use crate::{
    frame::{FrameReader, Frames, HEADER_BYTES, ReadOutcome},
    hello::Greeting,
};

/// Decodes a frame as a greeting. A greeting that decodes must encode to bytes that decode to the same
/// greeting.
pub fn greeting(frame: &[u8]) {
    let Ok(greeting) = Greeting::decode(Bytes::copy_from_slice(frame), &PROTOCOL_VERSIONS) else { return };
    let mut again = greeting.encode();
    let again = again.split_off(HEADER_BYTES);
    assert_eq!(Greeting::decode(again, &PROTOCOL_VERSIONS), Ok(greeting));
}

/// Reads a stream of frames. The first byte of the input is the number of bytes that each read returns.
pub fn stream(input: &[u8]) {
    let Some((piece_bytes, mut rest)) = input.split_first() else { return };
    let mut reader = FrameReader::default();
    loop {
        let mut piece = (&mut rest).take(u64::from(*piece_bytes).max(1));
        if reader.read(&mut piece).expect("reading from memory does not fail") == ReadOutcome::End {
            return;
        }
        match reader.frames(FRAME_BYTES_MAX) {
            Ok(frames) => Frames::new(frames).for_each(|frame| assert!(!frame.is_empty())),
            Err(_) => return,
        }
    }
}
