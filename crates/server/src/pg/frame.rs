//! Messages off the wire.
//!
//! pgwire decodes bodies and trusts their shape, so every body is walked first: one whose counts and lengths do not add
//! up to its own length is refused, and nothing from outside can make the decoder read past its end. A statement that
//! is too long is skipped, not kept, so that the connection stays usable.

use std::io;

use bytes::{Buf, BytesMut};
use pgwire::messages::{
    DecodeContext, Message as _, PgWireFrontendMessage, ProtocolVersion, cancel::CancelRequest, startup,
};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::sql::parse::STATEMENT_BYTES_MAX;

/// Longest message that is not a statement: parameters of a Bind, a piece of COPY data.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Longest first packet, as in PostgreSQL.
const STARTUP_BYTES_MAX: usize = 10_000;

/// Read at a time, from a client that sends little and from one that sends much.
const READ_BYTES: usize = 8 << 10;
const READ_BYTES_MAX: usize = 64 << 10;

/// An emptied buffer that is larger goes: one long message is no reason to hold its room as long as the connection lasts.
const KEPT_BYTES: usize = 256 << 10;

/// A message, or what is wrong with it.
#[derive(Debug)]
pub enum Frame {
    /// As it should be.
    Message(PgWireFrontendMessage),
    /// Its kind is known and its length is too much; it was skipped.
    TooLong {
        /// The kind.
        kind: u8,
        /// The length.
        bytes: usize,
    },
    /// Not a message: the connection cannot go on.
    Malformed(String),
    /// The client is gone.
    Closed,
}

/// The first packet of a connection.
#[derive(Debug)]
pub enum Opening {
    /// TLS or GSS encryption is wanted; `N` refuses, and another opening follows.
    Encryption,
    /// Another connection's statement is to be cancelled.
    Cancel(CancelRequest),
    /// A session is wanted.
    Startup(startup::Startup),
    /// Not an opening.
    Malformed(String),
    /// The client is gone.
    Closed,
}

/// Cuts a byte stream into messages.
pub struct Frames<R> {
    stream: R,
    buffer: BytesMut,
    /// How much is read next.
    ahead: usize,
    skip: usize,
    context: DecodeContext,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// Messages of this stream.
    pub fn new(stream: R) -> Self {
        let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_0);
        context.awaiting_frontend_ssl = false;
        context.awaiting_frontend_startup = false;
        Frames { stream, buffer: BytesMut::new(), ahead: READ_BYTES, skip: 0, context }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES {
            self.buffer = BytesMut::new();
        }
        self.buffer.reserve(self.ahead);
        let read = self.stream.read_buf(&mut self.buffer).await?;
        let full = self.buffer.len() == self.buffer.capacity();
        self.ahead = if full { READ_BYTES_MAX.min(2 * self.ahead) } else { READ_BYTES };
        Ok(read > 0)
    }

    /// The first packet.
    pub async fn opening(&mut self) -> io::Result<Opening> {
        while self.buffer.len() < 8 {
            if !self.fill().await? {
                return Ok(Opening::Closed);
            }
        }
        let length = (&self.buffer[..4]).get_i32();
        let Some(length) = usize::try_from(length).ok().filter(|n| (8..=STARTUP_BYTES_MAX).contains(n))
        else {
            return Ok(Opening::Malformed(format!("a first packet of {length} bytes")));
        };
        while self.buffer.len() < length {
            if !self.fill().await? {
                return Ok(Opening::Closed);
            }
        }
        let mut packet = self.buffer.split_to(length);
        if startup::SslRequest::is_ssl_request_packet(&packet)
            || startup::GssEncRequest::is_gss_enc_request_packet(&packet)
        {
            return Ok(Opening::Encryption);
        }
        let opening = if CancelRequest::is_cancel_request_packet(&packet) {
            CancelRequest::decode(&mut packet, &self.context).map(|request| request.map(Opening::Cancel))
        } else {
            startup::Startup::decode(&mut packet, &self.context).map(|packet| packet.map(Opening::Startup))
        };
        Ok(match opening {
            Ok(Some(opening)) => opening,
            Ok(None) => Opening::Malformed("a first packet that ends early".to_owned()),
            Err(error) => Opening::Malformed(error.to_string()),
        })
    }

    /// Whether a whole message is here already.
    pub fn is_ready(&self) -> bool {
        self.skip == 0
            && self.buffer.len() >= 5
            && ((&self.buffer[1..5]).get_i32() as usize) < self.buffer.len()
    }

    /// The next message.
    pub async fn next(&mut self) -> io::Result<Frame> {
        loop {
            let skipped = self.skip.min(self.buffer.len());
            self.buffer.advance(skipped);
            self.skip -= skipped;
            if self.skip == 0 && self.buffer.len() >= 5 {
                break;
            }
            if !self.fill().await? {
                return Ok(Frame::Closed);
            }
        }
        let kind = self.buffer[0];
        let length = (&self.buffer[1..5]).get_i32();
        let Some(length) = usize::try_from(length).ok().filter(|length| *length >= 4) else {
            return Ok(Frame::Malformed(format!("a message of {length} bytes")));
        };
        if !is_kind(kind) {
            return Ok(Frame::Malformed(format!("a message of unknown kind 0x{kind:02x}")));
        }
        let most = if matches!(kind, b'Q' | b'P') { STATEMENT_BYTES_MAX + 1024 } else { MESSAGE_BYTES_MAX };
        if length > most {
            self.skip = length + 1;
            return Ok(Frame::TooLong { kind, bytes: length });
        }
        while self.buffer.len() < length + 1 {
            if !self.fill().await? {
                return Ok(Frame::Closed);
            }
        }
        let mut message = self.buffer.split_to(length + 1);
        if !is_well_formed(kind, &message[5..]) {
            return Ok(Frame::Malformed(format!("a malformed message of kind '{}'", kind as char)));
        }
        Ok(match PgWireFrontendMessage::decode(&mut message, &self.context) {
            Ok(Some(message)) => Frame::Message(message),
            Ok(None) => Frame::Malformed("a message that ends early".to_owned()),
            Err(error) => Frame::Malformed(error.to_string()),
        })
    }
}

fn is_kind(kind: u8) -> bool {
    b"QPBDCEHSXdcfp".contains(&kind)
}

/// Walks a body as its decoder will.
fn is_well_formed(kind: u8, body: &[u8]) -> bool {
    let mut walk = Walk(body);
    let walked = match kind {
        b'Q' | b'f' => walk.string(),
        b'P' => walk.string().and_then(|()| walk.string()).and_then(|()| {
            let types = walk.count()?;
            walk.bytes(4 * types)
        }),
        b'B' => walk.bind(),
        b'D' | b'C' => walk.bytes(1).and_then(|()| walk.string()),
        b'E' => walk.string().and_then(|()| walk.bytes(4)),
        b'H' | b'S' | b'X' | b'c' => Some(()),
        b'd' | b'p' => return true,
        _ => None,
    };
    walked.is_some() && walk.0.is_empty()
}

struct Walk<'a>(&'a [u8]);

impl Walk<'_> {
    fn string(&mut self) -> Option<()> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&self.0[..end]).ok()?;
        self.0 = &self.0[end + 1..];
        Some(())
    }

    fn count(&mut self) -> Option<usize> {
        let (count, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(usize::from(u16::from_be_bytes(*count)))
    }

    fn bytes(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }

    fn bind(&mut self) -> Option<()> {
        self.string()?;
        self.string()?;
        let formats = self.count()?;
        self.bytes(2 * formats)?;
        for _ in 0..self.count()? {
            let (length, rest) = self.0.split_first_chunk::<4>()?;
            self.0 = rest;
            if let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) {
                self.bytes(length)?;
            }
        }
        let formats = self.count()?;
        self.bytes(2 * formats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use pgwire::messages::extendedquery::Bind;

    async fn read(bytes: &[u8]) -> Frame {
        Frames::new(bytes).next().await.unwrap()
    }

    /// Every cut and every flipped byte of a good message is a message or refused; none panics.
    #[tokio::test]
    async fn damaged_messages_are_refused() {
        let bind = Bind::new(
            Some("portal".to_owned()),
            None,
            vec![0, 1],
            vec![Some(Bytes::from_static(b"12")), None],
            vec![1],
        );
        let mut good = BytesMut::new();
        bind.encode(&mut good).unwrap();
        assert!(matches!(read(&good).await, Frame::Message(PgWireFrontendMessage::Bind(_))));
        for kind in 0..=u8::MAX {
            for at in 0..good.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bad = good.to_vec();
                    bad[0] = kind;
                    bad[at] = value;
                    read(&bad).await;
                    read(&bad[..at]).await;
                }
            }
        }
    }

    #[tokio::test]
    async fn a_message_too_long_is_skipped() {
        let mut stream = vec![b'Q'];
        let length = STATEMENT_BYTES_MAX + 2048;
        stream.extend((length as i32).to_be_bytes());
        stream.resize(length + 1, b'x');
        stream.extend(b"S\0\0\0\x04");
        let mut frames = Frames::new(stream.as_slice());
        assert!(matches!(frames.next().await.unwrap(), Frame::TooLong { kind: b'Q', .. }));
        assert!(matches!(frames.next().await.unwrap(), Frame::Message(PgWireFrontendMessage::Sync(_))));
    }
}
