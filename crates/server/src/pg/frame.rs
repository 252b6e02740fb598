//! Messages off the wire.
//!
//! What comes with every execution, Bind and Execute, is read where it lies. All else pgwire decodes, which trusts the shape of
//! bodies, so every body is walked first: one whose counts and lengths do not add
//! up to its own length is refused, and nothing from outside can make the decoder read past its end. A statement that
//! is too long is skipped, not kept, so that the connection stays usable.

use std::io;

use bytes::{Buf, BytesMut};
use pgwire::messages::{
    DecodeContext, Message as _, PgWireFrontendMessage, ProtocolVersion, cancel::CancelRequest,
    extendedquery::Sync, startup,
};
use quorate_sql::statement::parse::STATEMENT_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt};

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
    /// As it should be, and neither of the next two.
    Message(PgWireFrontendMessage),
    /// A Bind, which every execution begins with: its parts are read where they lie.
    Bind(BindBody),
    /// An Execute.
    Execute(Execute),
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

    /// Messages of a stream of which something was read before: of that, what is no whole message yet, and how much of what comes
    /// next is to be skipped.
    pub fn resumed(stream: R, unread: &[u8], skip: usize) -> Self {
        Frames { buffer: BytesMut::from(unread), skip, ..Frames::new(stream) }
    }

    /// The stream, and what [`Frames::resumed`] needs.
    pub fn into_parts(self) -> (R, BytesMut, usize) {
        (self.stream, self.buffer, self.skip)
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
        // What is short and comes with every execution is not cut off the buffer for being read.
        let body = &self.buffer[5..length + 1];
        let whole = match kind {
            b'E' => Some(Execute::of(body).map_or_else(|| malformed(kind), Frame::Execute)),
            b'S' if body.is_empty() => Some(Frame::Message(PgWireFrontendMessage::Sync(Sync::new()))),
            _ => None,
        };
        if let Some(frame) = whole {
            self.buffer.advance(length + 1);
            return Ok(frame);
        }
        let mut message = self.buffer.split_to(length + 1);
        if kind == b'B' {
            let well_formed = Bind::of(&message[5..]).is_some();
            return Ok(if well_formed { Frame::Bind(BindBody(message)) } else { malformed(kind) });
        }
        if !is_well_formed(kind, &message[5..]) {
            return Ok(malformed(kind));
        }
        Ok(match PgWireFrontendMessage::decode(&mut message, &self.context) {
            Ok(Some(message)) => Frame::Message(message),
            Ok(None) => Frame::Malformed("a message that ends early".to_owned()),
            Err(error) => Frame::Malformed(error.to_string()),
        })
    }
}

fn malformed(kind: u8) -> Frame {
    Frame::Malformed(format!("a malformed message of kind '{}'", kind as char))
}

/// A Bind's body, well formed.
#[derive(Debug)]
pub struct BindBody(BytesMut);

impl BindBody {
    /// What it says.
    pub fn bind(&self) -> Bind<'_> {
        Bind::of(&self.0[5..]).expect("it was well formed when it came")
    }
}

/// What a Bind says.
#[derive(Clone, Copy, Debug)]
pub struct Bind<'a> {
    /// The portal to be made; empty is the unnamed one.
    pub portal: &'a str,
    /// The statement to be bound.
    pub statement: &'a str,
    /// In which formats the arguments are.
    pub formats: Formats<'a>,
    /// How many arguments there are.
    pub count: usize,
    arguments: &'a [u8],
    /// In which formats the result is wanted.
    pub result_formats: Formats<'a>,
}

/// Codes of formats.
#[derive(Clone, Copy, Debug)]
pub struct Formats<'a>(&'a [u8]);

impl Formats<'_> {
    /// The codes.
    pub fn codes(&self) -> impl ExactSizeIterator<Item = i16> {
        self.0.chunks_exact(2).map(|code| i16::from_be_bytes([code[0], code[1]]))
    }
}

impl<'a> Bind<'a> {
    fn of(body: &'a [u8]) -> Option<Bind<'a>> {
        let mut walk = Walk(body);
        let (portal, statement) = (walk.string()?, walk.string()?);
        let formats = walk.formats()?;
        let count = walk.count()?;
        let arguments = walk.0;
        for _ in 0..count {
            walk.argument()?;
        }
        let result_formats = walk.formats()?;
        let bind = Bind { portal, statement, formats, count, arguments, result_formats };
        walk.0.is_empty().then_some(bind)
    }

    /// The arguments' bytes; `None` for NULL.
    pub fn arguments(&self) -> impl Iterator<Item = Option<&'a [u8]>> {
        let mut walk = Walk(self.arguments);
        (0..self.count).map(move |_| walk.argument().expect("they were walked before"))
    }
}

/// What an Execute says.
#[derive(Debug)]
pub struct Execute {
    /// The portal to be executed; empty is the unnamed one.
    pub portal: String,
    /// At most so many rows; 0 and less are all.
    pub rows_max: i32,
}

impl Execute {
    fn of(body: &[u8]) -> Option<Execute> {
        let mut walk = Walk(body);
        let portal = walk.string()?.to_owned();
        let rows_max = i32::from_be_bytes(walk.0.try_into().ok()?);
        Some(Execute { portal, rows_max })
    }
}

fn is_kind(kind: u8) -> bool {
    b"QPBDCEHSXdcfp".contains(&kind)
}

/// Walks a body as its decoder will.
fn is_well_formed(kind: u8, body: &[u8]) -> bool {
    let mut walk = Walk(body);
    let walked = match kind {
        b'Q' | b'f' => walk.string().map(drop),
        b'P' => walk.string().and_then(|_| walk.string()).and_then(|_| {
            let types = walk.count()?;
            walk.bytes(4 * types).map(drop)
        }),
        b'D' | b'C' => walk.bytes(1).and_then(|_| walk.string()).map(drop),
        b'H' | b'S' | b'X' | b'c' => Some(()),
        b'd' | b'p' => return true,
        _ => None,
    };
    walked.is_some() && walk.0.is_empty()
}

struct Walk<'a>(&'a [u8]);

impl<'a> Walk<'a> {
    fn string(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&self.0[..end]).ok()?;
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    fn count(&mut self) -> Option<usize> {
        let (count, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(usize::from(u16::from_be_bytes(*count)))
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn formats(&mut self) -> Option<Formats<'a>> {
        let count = self.count()?;
        self.bytes(2 * count).map(Formats)
    }

    fn argument(&mut self) -> Option<Option<&'a [u8]>> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) => self.bytes(length).map(Some),
            Err(_) => Some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use pgwire::messages::extendedquery;

    async fn read(bytes: &[u8]) -> Frame {
        Frames::new(bytes).next().await.unwrap()
    }

    /// Every cut and every flipped byte of a good message is a message or refused; none panics.
    #[tokio::test]
    async fn damaged_messages_are_refused() {
        let bind = extendedquery::Bind::new(
            Some("portal".to_owned()),
            None,
            vec![0, 1],
            vec![Some(Bytes::from_static(b"12")), None],
            vec![1],
        );
        let mut good = BytesMut::new();
        bind.encode(&mut good).unwrap();
        let Frame::Bind(body) = read(&good).await else { panic!("it is a Bind") };
        let bind = body.bind();
        assert_eq!((bind.portal, bind.statement, bind.count), ("portal", "", 2));
        assert_eq!(bind.arguments().collect::<Vec<_>>(), [Some(&b"12"[..]), None]);
        assert_eq!(bind.formats.codes().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(bind.result_formats.codes().collect::<Vec<_>>(), [1]);
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
