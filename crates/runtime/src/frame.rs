//! Bytes of a stream as frames, in both directions.
//!
//! A frame is its length in four bytes, little-endian, followed by that many bytes. The [`FrameReader`] reads
//! into one large buffer and hands out complete frames that *share* its memory, so that an incoming payload
//! is never copied. The [`FrameWriter`] gathers messages into frames and writes all frames with one system
//! call. A frame holds all messages of one turn of the loop, which share the cost of a frame, of a read and
//! of a write.
//!
//! **Notices.** A length of zero announces a *notice* of eight bytes instead of a frame: the last record up
//! to which the sender's journal is durable. Links exchange notices; protocols do not see them.
//!
//! **Large messages.** A message of many MiB is neither copied on its way out nor cut into pieces. Its
//! payload is the end of a frame, by reference. One read or write moves a bounded part of it, and between two
//! parts the process does its other work. Later messages of the sender wait behind the large one, including
//! the sender's signs of life. So each arriving part of a frame counts as a sign of life
//! ([`Input::Progress`](quorate_protocol::Input)). Only the protocol thread writes: after a process stops,
//! only the few MiB in the buffers of the two systems still arrive, and then the process is silent. (Cut into
//! pieces, large messages could be overtaken by small ones. But each kind of message that may overtake would
//! need its own proof that order does not matter.)

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Read, Write},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Ticket,
    wire::{PAYLOAD_BYTES_SHARED, Wire},
};

/// Length of a notice after its header, in bytes. The header holds a length of zero.
const NOTICE_BYTES: usize = 8;
/// Length of a frame's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 4;

/// Size of a read buffer, unless a frame needs more.
const BUFFER_BYTES: usize = 256 << 10;
/// Maximum number of bytes of one read.
const READ_BYTES_MAX: usize = 1 << 20;
/// Space in bytes below which the buffer is enlarged or replaced before a read.
const SPACE_BYTES_MIN: usize = 64 << 10;
/// Size in bytes from which a frame takes no further messages.
const FRAME_BYTES_FULL: usize = 256 << 10;
/// Capacity in bytes up to which an empty output buffer is kept.
const TAIL_BYTES_KEPT: usize = 4 << 20;
/// Maximum number of pieces in one gathering write.
const PIECES: usize = 64;
/// Number of bytes after which one call of [`FrameWriter::write`] ends.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Largest ratio of a buffer's size to the number of bytes of a large frame that have arrived.
const GROWTH: usize = 4;

/// The error for a frame that exceeds the limit. The peer announced it, or this process would have to send
/// it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Oversized {
    pub(crate) length: usize,
}

/// The result of one read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// The read returned fewer bytes than there was space for, so probably no bytes are waiting now.
    Some,
    /// The read filled the space, so more bytes may wait.
    Full,
    /// The peer closed its side.
    End,
}

/// The receiving side of a stream.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    /// The read buffer. It is initialised throughout, so that safe reads can fill it. Its first `filled`
    /// bytes are from the peer.
    buffer: BytesMut,
    filled: usize,
    /// Size of the buffer's allocation, in bytes.
    allocated: usize,
}

impl FrameReader {
    /// Reads once from `source`.
    pub(crate) fn read(&mut self, source: &mut impl Read) -> io::Result<ReadOutcome> {
        self.make_space();
        let end = self.buffer.len().min(self.filled + READ_BYTES_MAX);
        let space = &mut self.buffer[self.filled..end];
        let count = source.read(space)?;
        let full = count == space.len();
        self.filled += count;
        Ok(match count {
            0 => ReadOutcome::End,
            _ if full => ReadOutcome::Full,
            _ => ReadOutcome::Some,
        })
    }

    /// Returns the number of bytes from the peer that were not yet taken as frames.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Removes and returns the first frame, without its header, if it is complete.
    pub(crate) fn frame(&mut self, length_max: usize) -> Result<Option<Bytes>, Oversized> {
        let Some(length) = self.length_at(0, length_max)? else { return Ok(None) };
        if self.filled - HEADER_BYTES < length {
            return Ok(None);
        }
        let mut frame = self.take(HEADER_BYTES + length);
        frame.advance(HEADER_BYTES);
        Ok(Some(frame))
    }

    /// Removes and returns all complete frames, headers included, as one piece for [`Frames`]. An oversized
    /// frame ends the piece, and the next call reports it.
    pub(crate) fn frames(&mut self, length_max: usize) -> Result<Bytes, Oversized> {
        let mut end = 0;
        loop {
            match self.length_at(end, length_max) {
                Ok(Some(0)) if self.filled - end - HEADER_BYTES >= NOTICE_BYTES => {
                    end += HEADER_BYTES + NOTICE_BYTES
                }
                Ok(Some(length)) if length > 0 && self.filled - end - HEADER_BYTES >= length => {
                    end += HEADER_BYTES + length
                }
                Ok(_) => return Ok(self.take(end)),
                Err(oversized) if end == 0 => return Err(oversized),
                Err(_) => return Ok(self.take(end)),
            }
        }
    }

    fn length_at(&self, start: usize, length_max: usize) -> Result<Option<usize>, Oversized> {
        let Some(header) = self.buffer[start..self.filled].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > length_max { Err(Oversized { length }) } else { Ok(Some(length)) }
    }

    fn take(&mut self, count: usize) -> Bytes {
        if count == 0 {
            return Bytes::new();
        }
        self.filled -= count;
        self.buffer.split_to(count).freeze()
    }

    /// Makes space for a read. Moves the bytes of an incomplete frame to the front of a buffer that is just
    /// large enough for the frame, but at most four times as large as those bytes. So a forged length alone
    /// reserves no memory.
    fn make_space(&mut self) {
        // The first frame may be a small greeting, so its length does not limit the buffer: further frames
        // may follow it.
        let frame = self.buffer[..self.filled]
            .first_chunk::<HEADER_BYTES>()
            .map_or(0, |header| HEADER_BYTES + u32::from_le_bytes(*header) as usize);
        let space = self.buffer.len() - self.filled;
        if space >= SPACE_BYTES_MIN || space > 0 && self.buffer.len() == frame {
            return;
        }
        let wanted = BUFFER_BYTES.max(frame.min(GROWTH * self.filled));
        self.buffer.truncate(self.filled);
        // The old allocation is reused if no frame still shares it.
        if self.allocated == wanted && self.buffer.try_reclaim(wanted - self.filled) {
            self.buffer.resize(wanted, 0);
        } else {
            let mut fresh = BytesMut::zeroed(wanted);
            fresh[..self.filled].copy_from_slice(&self.buffer);
            self.buffer = fresh;
            self.allocated = wanted;
        }
    }
}

/// The frames of a piece from a [`FrameReader`], each without its header.
pub(crate) struct Frames {
    bytes: Bytes,
    /// The last notice that the iterator has passed so far.
    pub(crate) notice: Option<Ticket>,
}

impl Frames {
    pub(crate) fn new(bytes: Bytes) -> Frames {
        Frames { bytes, notice: None }
    }
}

impl Iterator for Frames {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while !self.bytes.is_empty() {
            let length = self.bytes.get_u32_le() as usize;
            if length == 0 {
                self.notice = Some(Ticket(self.bytes.get_u64_le()));
                continue;
            }
            if self.bytes.len() == length {
                return Some(std::mem::take(&mut self.bytes));
            }
            return Some(self.bytes.split_to(length));
        }
        None
    }
}

/// A message that is encoded once for several peers.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) head: Bytes,
    pub(crate) payload: Option<Bytes>,
}

impl Encoded {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, Bytes::len)
    }
}

/// The state after a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// Nothing is left to write.
    Empty,
    /// Output is left, and the socket takes no more bytes now.
    Blocked,
    /// Output is left, and this link has used its share of the turn.
    Interrupted,
}

/// The sending side of a stream: output that is not written yet.
#[derive(Debug, Default)]
pub(crate) struct FrameWriter {
    sealed: VecDeque<Bytes>,
    sealed_bytes: usize,
    tail: BytesMut,
    /// Position of the open frame's header in `tail`.
    open: Option<usize>,
    frames: u64,
}

impl FrameWriter {
    /// Returns the number of bytes that are not written yet.
    pub(crate) fn bytes(&self) -> usize {
        self.sealed_bytes + self.tail.len()
    }

    /// Returns the number of frames that were closed since the last call.
    pub(crate) fn take_frames(&mut self) -> u64 {
        std::mem::take(&mut self.frames)
    }

    /// Appends a message. It is encoded straight into the buffer, and a large payload is kept by reference. A
    /// message over the limit is not appended. Then the caller must end the link, because the peer would miss
    /// the message.
    pub(crate) fn push(&mut self, message: &impl Wire, length_max: usize) -> Result<(), Oversized> {
        let opened = self.open_frame();
        let start = self.tail.len();
        let payload = message.encode_head(&mut self.tail);
        let length = self.tail.len() - start + payload.as_ref().map_or(0, Bytes::len);
        if length > length_max {
            self.tail.truncate(start);
            return Err(Oversized { length });
        }
        match payload {
            Some(payload) => {
                let head = self.tail.split_off(start).freeze();
                self.push_alone([head, payload]);
            }
            None => self.pushed(opened, start),
        }
        Ok(())
    }

    fn pushed(&mut self, opened: usize, start: usize) {
        assert!(self.tail.len() > start, "a message without bytes cannot be distinguished from no message");
        let frame = self.tail.len() - opened - HEADER_BYTES;
        if frame >= FRAME_BYTES_FULL && start > opened + HEADER_BYTES {
            // The message would make a shared frame too large, so it gets a frame of its own.
            let message = self.tail.split_off(start).freeze();
            self.push_alone([message]);
        } else if frame >= FRAME_BYTES_FULL {
            self.close_frame();
        }
    }

    /// Appends a message whose bytes are shared with other links, like [`FrameWriter::push`].
    pub(crate) fn push_shared(&mut self, message: &Encoded, length_max: usize) -> Result<(), Oversized> {
        let Encoded { head, payload } = message;
        let length = message.len();
        if length > length_max {
            return Err(Oversized { length });
        }
        match payload {
            Some(payload) => self.push_alone([head.clone(), payload.clone()]),
            None if head.len() >= PAYLOAD_BYTES_SHARED => self.push_alone([head.clone()]),
            None => {
                let opened = self.open_frame();
                let start = self.tail.len();
                self.tail.put_slice(head);
                self.pushed(opened, start);
            }
        }
        Ok(())
    }

    /// Appends a notice, after all earlier messages.
    pub(crate) fn push_notice(&mut self, durable: Ticket) {
        self.close_frame();
        self.tail.put_u32_le(0);
        self.tail.put_u64_le(durable.0);
    }

    /// Writes as many bytes as `target` takes, but at most [`WRITE_BYTES_MAX`].
    pub(crate) fn write(&mut self, target: &mut impl Write) -> io::Result<WriteOutcome> {
        self.close_frame();
        let mut share = WRITE_BYTES_MAX;
        while self.bytes() > 0 {
            if share == 0 {
                return Ok(WriteOutcome::Interrupted);
            }
            let written = if self.sealed.is_empty() {
                target.write(&self.tail[..share.min(self.tail.len())])
            } else {
                let mut pieces = [IoSlice::new(&[]); PIECES];
                let sealed = self.sealed.iter().map(|piece| &piece[..]);
                let (mut count, mut left) = (0, share);
                for (piece, bytes) in pieces.iter_mut().zip(sealed.chain([&self.tail[..]])) {
                    let part = &bytes[..left.min(bytes.len())];
                    *piece = IoSlice::new(part);
                    left -= part.len();
                    count += 1;
                }
                target.write_vectored(&pieces[..count])
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.advance(count);
                    share -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(WriteOutcome::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.tail.capacity() > TAIL_BYTES_KEPT {
            self.tail = BytesMut::new();
        }
        Ok(WriteOutcome::Empty)
    }

    fn open_frame(&mut self) -> usize {
        *self.open.get_or_insert_with(|| {
            self.tail.put_u32_le(0);
            self.tail.len() - HEADER_BYTES
        })
    }

    fn close_frame(&mut self) {
        if let Some(opened) = self.open.take() {
            let length = self.tail.len() - opened - HEADER_BYTES;
            if length == 0 {
                return self.tail.truncate(opened);
            }
            // The length fits into four bytes: a frame holds one message alone, or less than
            // `FRAME_BYTES_FULL` and one message.
            self.tail[opened..][..HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
            self.frames += 1;
        }
    }

    /// Queues a frame that contains only this message, by reference.
    fn push_alone<const PIECES: usize>(&mut self, message: [Bytes; PIECES]) {
        self.close_frame();
        let length: usize = message.iter().map(Bytes::len).sum();
        self.tail.put_u32_le(length as u32);
        let before = self.tail.split().freeze();
        self.sealed_bytes += before.len() + length;
        self.sealed.push_back(before);
        self.sealed.extend(message);
        self.frames += 1;
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.sealed.front_mut() {
            if count < piece.len() {
                piece.advance(count);
                self.sealed_bytes -= count;
                return;
            }
            count -= piece.len();
            self.sealed_bytes -= piece.len();
            self.sealed.pop_front();
        }
        if count == self.tail.len() {
            self.tail.clear();
        } else {
            self.tail.advance(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::wire::{FRAME_BYTES_MAX, WireError};
    use rand::{RngExt as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    /// A stream that accepts and returns bytes in pieces of random size.
    struct Pipe {
        bytes: VecDeque<u8>,
        random: Pcg64Mcg,
        piece_max: usize,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.random.random_range(0..=self.piece_max.min(bytes.len()));
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.bytes.extend(&bytes[..count]);
            Ok(count)
        }

        fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            self.write(&all)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Pipe {
        fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
            let most = self.piece_max.min(space.len()).min(self.bytes.len());
            if most == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = self.random.random_range(1..=most);
            for (place, byte) in space.iter_mut().zip(self.bytes.drain(..count)) {
                *place = byte;
            }
            Ok(count)
        }
    }

    /// A message of raw bytes. Of a large message, all but the first eight bytes can be shared.
    struct Raw(Bytes);

    impl Wire for Raw {
        fn encode(&self, out: &mut BytesMut) {
            out.put_slice(&self.0);
        }

        fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
            let split = if self.0.len() < PAYLOAD_BYTES_SHARED { self.0.len() } else { 8 };
            out.put_slice(&self.0[..split]);
            (split < self.0.len()).then(|| self.0.slice(split..))
        }

        fn decode(input: &mut Bytes) -> Result<Raw, WireError> {
            Ok(Raw(std::mem::take(input)))
        }
    }

    /// Sends messages of these sizes through a pipe, and expects them on the other side, unchanged and in
    /// order. Every third message is shared. The first bytes of a message hold its length.
    fn check(seed: u64, sizes: &[usize], piece_max: usize, keep: bool) {
        let mut pipe = Pipe { bytes: VecDeque::new(), random: Pcg64Mcg::seed_from_u64(seed), piece_max };
        let (mut writer, mut reader) = (FrameWriter::default(), FrameReader::default());
        let messages: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(number, size)| {
                let mut message = vec![number as u8; *size + 8];
                message[..8].copy_from_slice(&(*size as u64 + 8).to_le_bytes());
                message
            })
            .collect();
        let (mut unsent, mut received, mut kept) = (messages.iter().enumerate(), Vec::new(), Vec::new());
        loop {
            for (number, message) in unsent.by_ref().take(5) {
                let message = Raw(Bytes::copy_from_slice(message));
                if number % 3 == 0 {
                    let mut head = BytesMut::new();
                    let payload = message.encode_head(&mut head);
                    let message = Encoded { head: head.freeze(), payload };
                    writer.push_shared(&message, FRAME_BYTES_MAX).unwrap();
                } else {
                    writer.push(&message, FRAME_BYTES_MAX).unwrap();
                }
            }
            let flow = writer.write(&mut pipe).unwrap();
            assert_eq!(flow == WriteOutcome::Empty, writer.bytes() == 0);
            while reader.read(&mut pipe).is_ok() {
                for mut frame in Frames::new(reader.frames(FRAME_BYTES_MAX).unwrap()) {
                    while !frame.is_empty() {
                        let size = u64::from_le_bytes(*frame.first_chunk().unwrap()) as usize;
                        let message = frame.split_to(size);
                        received.push(message.to_vec());
                        if keep {
                            kept.push(message);
                        }
                    }
                }
            }
            if unsent.len() == 0 && flow == WriteOutcome::Empty && pipe.bytes.is_empty() {
                break;
            }
        }
        assert!(
            received == messages,
            "seed {seed}: {} of {} messages, or changed",
            received.len(),
            messages.len()
        );
        assert!(kept.iter().zip(&messages).all(|(kept, message)| kept == message), "kept payloads changed");
    }

    #[test]
    fn messages_of_any_size_survive_streams_that_take_and_give_in_pieces() {
        for seed in 0..60 {
            let mut random = Pcg64Mcg::seed_from_u64(seed ^ 0x5eed);
            let sizes: Vec<usize> = (0..random.random_range(1..200))
                .map(|_| match random.random_range(0..20) {
                    0 => random.random_range(0..600_000) * if random.random_range(0..8) == 0 { 8 } else { 1 },
                    1..4 => random.random_range(0..40_000),
                    _ => random.random_range(0..300),
                })
                .collect();
            check(seed, &sizes, [100_000, 1 << 20, 37_000][seed as usize % 3], seed % 2 == 0);
        }
    }

    #[test]
    fn frames_arrive_byte_by_byte() {
        check(1, &[0, 1, 100, 0, 3000], 1, true);
    }

    #[test]
    fn messages_gather_in_one_frame_and_large_ones_stand_alone() {
        let lengths = |sizes: &[usize]| {
            let mut writer = FrameWriter::default();
            for size in sizes {
                writer.push(&Raw(vec![7; *size].into()), FRAME_BYTES_MAX).unwrap();
            }
            let mut bytes = Vec::new();
            while writer.write(&mut bytes).unwrap() == WriteOutcome::Interrupted {}
            Frames::new(bytes.into()).map(|frame| frame.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[10, 20, 30]), [60]);
        assert_eq!(lengths(&[10, FRAME_BYTES_FULL, 30]), [10, FRAME_BYTES_FULL, 30]);
        assert_eq!(lengths(&[FRAME_BYTES_MAX, FRAME_BYTES_MAX]), [FRAME_BYTES_MAX, FRAME_BYTES_MAX]);
    }

    #[test]
    fn a_message_over_the_limit_is_not_sent_and_those_before_it_are() {
        for size in [PAYLOAD_BYTES_SHARED - 1, 2 * PAYLOAD_BYTES_SHARED] {
            let (mut writer, mut written) = (FrameWriter::default(), Vec::new());
            let large = Raw(vec![7; size].into());
            writer.push(&Raw(vec![1; 10].into()), size - 1).unwrap();
            assert_eq!(writer.push(&large, size - 1), Err(Oversized { length: size }));
            let shared = Encoded { head: large.0.clone(), payload: None };
            assert_eq!(writer.push_shared(&shared, size - 1), Err(Oversized { length: size }));
            writer.push(&Raw(vec![2; 20].into()), size - 1).unwrap();
            writer.write(&mut written).unwrap();
            assert_eq!(Frames::new(written.into()).map(|frame| frame.len()).collect::<Vec<_>>(), [30]);
        }
    }

    #[test]
    fn large_payloads_move_in_parts_without_a_copy() {
        let payload = Bytes::from(vec![7; 15 << 20]);
        let mut writer = FrameWriter::default();
        writer.push(&Raw(payload.clone()), FRAME_BYTES_MAX).unwrap();
        assert!(writer.tail.capacity() < PAYLOAD_BYTES_SHARED, "the payload lies where it lay");
        let (mut reader, mut buffers, mut frame) =
            (FrameReader::default(), std::collections::BTreeSet::new(), None);
        while frame.is_none() {
            let mut bytes = Vec::new();
            writer.write(&mut bytes).unwrap();
            assert!(!bytes.is_empty() && bytes.len() <= WRITE_BYTES_MAX);
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                reader.read(&mut bytes).unwrap();
                buffers.insert(reader.allocated);
            }
            frame = reader.frame(FRAME_BYTES_MAX).unwrap();
        }
        assert_eq!(frame.unwrap(), payload);
        assert_eq!(buffers.last(), Some(&(payload.len() + HEADER_BYTES)), "just large enough");
        assert!(buffers.len() <= 4, "what is here moves seldom: {buffers:?}");
    }

    #[test]
    fn a_forged_length_is_reported_and_allocates_nothing() {
        let mut reader = FrameReader::default();
        let mut bytes: &[u8] = &[2, 0, 0, 0, 8, 9, 0xff, 0xff, 0xff, 0xff, 1];
        reader.read(&mut bytes).unwrap();
        assert_eq!(Frames::new(reader.frames(100).unwrap()).collect::<Vec<_>>(), [&[8, 9][..]]);
        assert_eq!(reader.frames(100), Err(Oversized { length: u32::MAX as usize }));
        assert_eq!(reader.allocated, BUFFER_BYTES);
    }

    /// A notice arrives between the same frames between which it was sent, completely or not at all, and is
    /// not taken for a frame.
    #[test]
    fn notices_come_between_frames() {
        let mut writer = FrameWriter::default();
        let message = |byte: u8| Raw(vec![byte; 3].into());
        writer.push(&message(1), FRAME_BYTES_MAX).unwrap();
        writer.push_notice(Ticket(5));
        writer.push(&message(2), FRAME_BYTES_MAX).unwrap();
        writer.push_notice(Ticket(6));
        let mut bytes = Vec::new();
        assert_eq!(writer.write(&mut bytes).unwrap(), WriteOutcome::Empty);
        assert_eq!(writer.take_frames(), 2);
        for end in 0..=bytes.len() {
            let (mut reader, mut frames, mut notice) = (FrameReader::default(), Vec::new(), None);
            for mut part in [&bytes[..end], &bytes[end..]] {
                if part.is_empty() {
                    continue;
                }
                reader.read(&mut part).unwrap();
                let mut piece = Frames::new(reader.frames(FRAME_BYTES_MAX).unwrap());
                frames.extend(piece.by_ref());
                notice = piece.notice.or(notice);
            }
            assert_eq!(frames, [&[1; 3][..], &[2; 3][..]], "cut at {end}");
            assert_eq!(notice, Some(Ticket(6)), "cut at {end}");
            assert_eq!(reader.filled(), 0);
        }
    }

    #[test]
    fn the_read_buffer_is_reused_once_no_frame_refers_to_it() {
        let mut reader = FrameReader::default();
        let mut places = std::collections::BTreeSet::new();
        let frame = [&1000_u32.to_le_bytes()[..], &[5; 1000]].concat();
        for _ in 0..2000 {
            reader.read(&mut &frame[..]).unwrap();
            places.insert(reader.frames(1000).unwrap().as_ptr() as usize / BUFFER_BYTES);
        }
        assert!(places.len() <= 2, "{} places", places.len());
    }
}
