//! The bytes of one relayed session, in both directions: messages in frames, frames in pieces, pieces against
//! credit.
//!
//! A frame holds whole messages, as many as one turn produced. A frame is cut into pieces, so that a large
//! message does not delay other relayed traffic. At most [`WINDOW_BYTES`] are in transit in each direction,
//! so the relay holds no more than that.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::{
    seam::Ticket,
    wire::{FRAME_BYTES_MAX, Wire},
};

/// Maximum size of a piece in bytes.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes that are sent and not yet processed by the other end.
pub(super) const WINDOW_BYTES: u64 = 1 << 20;
/// Maximum number of bytes that wait for credit. It equals the limit for a neighbour that does not read.
pub(super) const QUEUE_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Size in bytes at which an open frame is closed.
const FRAME_BYTES_FULL: usize = 256 << 10;

/// The error that ends a session: the other end breaks the rules, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// One end of a session.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Messages of the open frame.
    tail: BytesMut,
    /// The last record that must be durable before the messages of the open frame may leave.
    after: Option<Ticket>,
    queue: VecDeque<Piece>,
    queued: usize,
    sent: u64,
    taken: u64,
    /// Bytes of the frame that is arriving.
    incoming: BytesMut,
    received: u64,
    reported: u64,
}

/// A piece of a frame that waits to be sent to the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) last: bool,
    pub(super) bytes: Bytes,
    pub(super) after: Option<Ticket>,
}

impl Stream {
    /// Appends a message to the open frame.
    ///
    /// # Errors
    ///
    /// The queue is full, because the other end does not read.
    pub(super) fn push(&mut self, message: &impl Wire, after: Option<Ticket>) -> Result<(), Broken> {
        message.encode(&mut self.tail);
        self.after = self.after.max(after);
        if self.tail.len() >= FRAME_BYTES_FULL {
            self.seal();
        }
        if self.queued > QUEUE_BYTES_MAX { Err(Broken) } else { Ok(()) }
    }

    /// Closes the open frame.
    pub(super) fn seal(&mut self) {
        let mut frame = self.tail.split().freeze();
        let after = self.after.take();
        while !frame.is_empty() {
            let bytes = frame.split_to(frame.len().min(PIECE_BYTES_MAX));
            self.queued += bytes.len();
            self.queue.push_back(Piece { at: 0, last: frame.is_empty(), bytes, after });
        }
    }

    /// Returns the next piece, if the window permits another piece.
    pub(super) fn next(&mut self) -> Option<Piece> {
        if self.sent - self.taken >= WINDOW_BYTES {
            return None;
        }
        let mut piece = self.queue.pop_front()?;
        piece.at = self.sent;
        self.queued -= piece.bytes.len();
        self.sent += piece.bytes.len() as u64;
        Some(piece)
    }

    /// Records that the other end has processed `bytes` bytes in total.
    pub(super) fn credit(&mut self, bytes: u64) -> Result<(), Broken> {
        if bytes < self.taken || bytes > self.sent {
            return Err(Broken);
        }
        self.taken = bytes;
        Ok(())
    }

    /// Adds a piece of the arriving frame. Returns the frame if this piece completes it.
    pub(super) fn take(&mut self, at: u64, last: bool, bytes: &Bytes) -> Result<Option<Bytes>, Broken> {
        let gap = at != self.received;
        let long = bytes.len() > PIECE_BYTES_MAX
            || self.incoming.len() + bytes.len() > FRAME_BYTES_MAX + FRAME_BYTES_FULL;
        if gap || long || bytes.is_empty() {
            return Err(Broken);
        }
        self.received += bytes.len() as u64;
        if last && self.incoming.is_empty() {
            return Ok(Some(bytes.clone()));
        }
        self.incoming.extend_from_slice(bytes);
        Ok(last.then(|| self.incoming.split().freeze()))
    }

    /// Returns the number of bytes processed, if it has grown enough to be worth a message.
    pub(super) fn taken(&mut self) -> Option<u64> {
        if self.received - self.reported < WINDOW_BYTES / 4 {
            return None;
        }
        self.reported = self.received;
        Some(self.reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{WireError, take_bytes};

    #[derive(Clone, Debug, PartialEq)]
    struct TextMessage(Bytes);

    impl Wire for TextMessage {
        fn encode(&self, out: &mut BytesMut) {
            crate::wire::put_bytes(out, &self.0);
        }

        fn decode(input: &mut Bytes) -> Result<Self, WireError> {
            take_bytes(input).map(TextMessage)
        }
    }

    /// Moves the pieces that credit permits from one end to the other.
    fn pump(from: &mut Stream, to: &mut Stream, found: &mut Vec<TextMessage>) -> usize {
        let mut moved = 0;
        while let Some(piece) = from.next() {
            moved += piece.bytes.len();
            if let Some(mut frame) = to.take(piece.at, piece.last, &piece.bytes).unwrap() {
                while !frame.is_empty() {
                    found.push(TextMessage::decode(&mut frame).unwrap());
                }
            }
        }
        moved
    }

    #[test]
    fn messages_of_any_size_arrive_in_order_and_the_window_bounds_what_is_under_way() {
        let texts: Vec<TextMessage> = [1, 70_000, 5_000_000, 3, 300_000]
            .map(|size| TextMessage(Bytes::from(vec![size as u8; size])))
            .into();
        let (mut one, mut other, mut found) = (Stream::default(), Stream::default(), Vec::new());
        for text in &texts {
            one.push(text, None).unwrap();
        }
        one.seal();
        while found.len() < texts.len() {
            let moved = pump(&mut one, &mut other, &mut found);
            assert!(moved > 0 && moved as u64 <= WINDOW_BYTES + PIECE_BYTES_MAX as u64, "{moved}");
            let taken = other.taken();
            assert!(taken.is_some() || found.len() == texts.len(), "a window is worth a message");
            taken.map_or(Ok(()), |bytes| one.credit(bytes)).unwrap();
        }
        assert_eq!(found, texts);
    }

    #[test]
    fn a_gap_a_repetition_and_false_credit_end_the_session() {
        let mut one = Stream::default();
        one.push(&TextMessage(Bytes::from_static(b"abc")), None).unwrap();
        one.seal();
        let piece = one.next().unwrap();
        let mut other = Stream::default();
        assert_eq!(other.take(1, true, &piece.bytes), Err(Broken));
        assert!(other.take(0, true, &piece.bytes).unwrap().is_some());
        assert_eq!(other.take(0, true, &piece.bytes), Err(Broken));
        assert_eq!(other.take(7, true, &Bytes::new()), Err(Broken));
        assert_eq!(one.credit(8), Err(Broken));
        one.credit(7).unwrap();
        assert_eq!(one.credit(6), Err(Broken));
    }

    #[test]
    fn a_receiver_that_does_not_read_ends_the_session() {
        let mut one = Stream::default();
        let large = TextMessage(Bytes::from(vec![0; 8 << 20]));
        let pushed = (0..100).find(|_| one.push(&large, None).is_err()).expect("the queue is bounded");
        assert_eq!(pushed + 1, QUEUE_BYTES_MAX / (8 << 20));
    }
}
