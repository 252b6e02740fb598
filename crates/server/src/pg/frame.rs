//! Cuts the bytes of a connection into messages.
//!
//! Bind and Execute come with every execution, so they are read in place. pgwire decodes all other messages
//! and trusts the shape of their bodies. So each body is walked first: a body is refused if its counts and
//! lengths do not add up to its own length. Thus no client can make the decoder read past the end of a body.
//! A message that is too long is skipped and not kept in memory, so that the connection stays usable.

use std::io;

use bytes::{Buf, BytesMut};
use pgwire::messages::{
    DecodeContext, Message as _, PgWireFrontendMessage, ProtocolVersion, cancel::CancelRequest,
    extendedquery::Sync, startup,
};
use quorate_sql::{
    budget::{Account, MemoryReservation},
    encode,
    error::SqlError,
    statement::parse::STATEMENT_BYTES_MAX,
};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest message that is not a statement, such as a Bind with its arguments or a piece of COPY data, in
/// bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Longest message whose memory is not counted, in bytes. Such a message fits into the buffer that every
/// connection keeps.
const COUNTED_BYTES: usize = KEPT_BYTES;

/// Longest first packet in bytes, as in PostgreSQL.
const STARTUP_BYTES_MAX: usize = 10_000;

/// Space that is made for the first read, in bytes. The space doubles while reads fill the buffer.
const READ_BYTES: usize = 8 << 10;
const READ_BYTES_MAX: usize = 64 << 10;

/// Largest buffer that is kept when it is empty, in bytes. A larger buffer is freed, so that one long message
/// does not cost memory for the rest of the connection.
const KEPT_BYTES: usize = 256 << 10;

/// A message, or the reason why there is no message.
#[derive(Debug)]
pub enum Frame {
    /// A well-formed message that is neither Bind nor Execute.
    Message(PgWireFrontendMessage),
    /// A Bind, with which every execution begins. Its parts are read in place.
    Bind(BindBody),
    /// An Execute.
    Execute(Execute),
    /// A message of known kind that is too long and was skipped.
    TooLong {
        /// The message's kind.
        kind: u8,
        /// The message's length in bytes.
        bytes: usize,
    },
    /// A message of known kind that is refused, because a text in it is not UTF-8, or because there is no
    /// memory for it.
    Refused {
        /// The message's kind.
        kind: u8,
        /// The reason for the refusal.
        error: SqlError,
    },
    /// Bytes that are no message. The connection cannot continue.
    Malformed(String),
    /// The client closed the connection.
    Closed,
}

/// The first packet of a connection.
#[derive(Debug)]
pub enum Opening {
    /// The client wants TLS or GSS encryption. The answer `N` declines, after which the client sends its
    /// first packet again without encryption.
    Encryption,
    /// The client wants to cancel a statement of another connection.
    Cancel(CancelRequest),
    /// The client wants a session.
    Startup(startup::Startup),
    /// Bytes that are no first packet.
    Malformed(String),
    /// The client closed the connection.
    Closed,
}

/// Cuts a byte stream into messages.
pub struct Frames<R> {
    stream: R,
    buffer: BytesMut,
    /// Space that the next read makes in the buffer, in bytes.
    ahead: usize,
    skip: usize,
    /// The session's memory account; `None` before the session begins.
    account: Option<Account>,
    /// The counted memory of the latest message.
    hold: MemoryReservation,
    context: DecodeContext,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// Reads messages from `stream`.
    pub fn new(stream: R) -> Self {
        let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_0);
        context.awaiting_frontend_ssl = false;
        context.awaiting_frontend_startup = false;
        Frames {
            stream,
            buffer: BytesMut::new(),
            ahead: READ_BYTES,
            skip: 0,
            account: None,
            hold: MemoryReservation::default(),
            context,
        }
    }

    /// Continues a stream of which another process read the beginning. `unread` has the bytes that are no
    /// whole message yet. `skip` is the number of bytes to skip next.
    pub fn resumed(stream: R, unread: &[u8], skip: usize) -> Self {
        Frames { buffer: BytesMut::from(unread), skip, ..Frames::new(stream) }
    }

    /// Returns the stream, and the two other values that [`Frames::resumed`] takes.
    pub fn into_parts(self) -> (R, BytesMut, usize) {
        (self.stream, self.buffer, self.skip)
    }

    /// Counts the memory of long messages for this session from now on.
    pub fn count_into(&mut self, account: &Account) {
        self.account = Some(account.clone());
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

    /// Reads the first packet.
    pub async fn opening(&mut self) -> io::Result<Opening> {
        while self.buffer.len() < 8 {
            if !self.fill().await? {
                return Ok(Opening::Closed);
            }
        }
        let length = (&self.buffer[..4]).get_i32();
        let Some(length) = usize::try_from(length).ok().filter(|n| (8..=STARTUP_BYTES_MAX).contains(n))
        else {
            return Ok(Opening::Malformed(format!(
                "the client declared a first packet of {length} bytes; the packet must have 8 to {STARTUP_BYTES_MAX} bytes"
            )));
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
            Ok(None) => Opening::Malformed("the first packet of the client ends early".to_owned()),
            Err(error) => Opening::Malformed(error.to_string()),
        })
    }

    /// Whether a whole message has arrived.
    pub fn is_ready(&self) -> bool {
        self.skip == 0
            && self.buffer.len() >= 5
            && ((&self.buffer[1..5]).get_i32() as usize) < self.buffer.len()
    }

    /// Returns the kind of the next message that closes neither a statement nor a portal. `None` if no such
    /// message has begun to arrive.
    pub fn following(&self) -> Option<u8> {
        let mut rest = self.buffer.get(self.skip..)?;
        while let [b'C', head @ ..] = rest {
            let length = head.first_chunk::<4>().map(|length| i32::from_be_bytes(*length))?;
            // A length that no message has is left for `next`, which refuses it.
            let Some(length) = usize::try_from(length).ok().filter(|length| *length >= 4) else { break };
            rest = rest.get(length + 1..)?;
        }
        rest.first().copied()
    }

    /// Returns the number of bytes that have arrived and were not read.
    pub fn unread(&self) -> usize {
        self.buffer.len()
    }

    /// Waits for more bytes. Returns whether any have arrived; otherwise the stream has ended.
    pub async fn arrives(&mut self) -> io::Result<bool> {
        self.fill().await
    }

    /// Reads the next message.
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
            return Ok(Frame::Malformed(format!(
                "the client declared a message of {length} bytes, and no message is shorter than 4 bytes"
            )));
        };
        if !is_kind(kind) {
            return Ok(Frame::Malformed(format!("the client sent a message of unknown kind 0x{kind:02x}")));
        }
        let most = if matches!(kind, b'Q' | b'P') { STATEMENT_BYTES_MAX + 1024 } else { MESSAGE_BYTES_MAX };
        if length > most {
            self.skip = length + 1;
            return Ok(Frame::TooLong { kind, bytes: length });
        }
        if self.hold.bytes() > 0 {
            self.hold = MemoryReservation::default();
        }
        if length > COUNTED_BYTES
            && let Some(account) = &self.account
        {
            let mut hold = account.hold();
            if let Err(error) = hold.grow(length) {
                self.skip = length + 1;
                return Ok(Frame::Refused { kind, error });
            }
            self.hold = hold;
        }
        while self.buffer.len() < length + 1 {
            if !self.fill().await? {
                return Ok(Frame::Closed);
            }
        }
        // Execute and Sync are short and come with every execution, so they are read without splitting the
        // buffer.
        let body = &self.buffer[5..length + 1];
        let whole = match kind {
            b'E' => Some(Execute::of(body).map_or_else(|| malformed(kind, body), Frame::Execute)),
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
            return Ok(if well_formed {
                Frame::Bind(BindBody(message))
            } else {
                malformed(kind, &message[5..])
            });
        }
        if !is_well_formed(kind, &message[5..]) {
            return Ok(malformed(kind, &message[5..]));
        }
        Ok(match PgWireFrontendMessage::decode(&mut message, &self.context) {
            Ok(Some(message)) => Frame::Message(message),
            Ok(None) => Frame::Malformed("the client sent a message that ends early".to_owned()),
            Err(error) => Frame::Malformed(error.to_string()),
        })
    }
}

/// Returns the frame for a body that could not be read. A text that is not UTF-8 gives an error; any other
/// cause ends the connection.
fn malformed(kind: u8, body: &[u8]) -> Frame {
    match not_text(kind, body) {
        Some(error) => Frame::Refused { kind, error },
        None => Frame::Malformed(format!("the client sent a malformed message of kind '{}'", kind as char)),
    }
}

/// Returns the error for the first text of a body that is not UTF-8. In all kinds of bodies the texts precede
/// the other parts.
fn not_text(kind: u8, body: &[u8]) -> Option<SqlError> {
    let (skipped, texts) = match kind {
        b'Q' | b'f' | b'E' => (0, 1),
        b'P' | b'B' => (0, 2),
        b'D' | b'C' => (1, 1),
        _ => return None,
    };
    let mut rest = body.get(skipped..)?;
    for _ in 0..texts {
        let end = rest.iter().position(|byte| *byte == 0)?;
        if let Err(error) = encode::utf8(&rest[..end]) {
            return Some(error);
        }
        rest = &rest[end + 1..];
    }
    None
}

/// The body of a Bind, known to be well formed.
#[derive(Debug)]
pub struct BindBody(BytesMut);

impl BindBody {
    /// Returns the parts of the Bind.
    pub fn bind(&self) -> Bind<'_> {
        Bind::of(&self.0[5..]).expect("a Bind is checked when it arrives")
    }
}

/// The parts of a Bind.
#[derive(Clone, Copy, Debug)]
pub struct Bind<'a> {
    /// The name of the new portal. The empty name means the unnamed portal.
    pub portal: &'a str,
    /// The name of the statement to bind.
    pub statement: &'a str,
    /// The formats of the arguments.
    pub formats: Formats<'a>,
    /// The number of arguments.
    pub count: usize,
    arguments: &'a [u8],
    /// The formats that the client wants for the result.
    pub result_formats: Formats<'a>,
}

/// Format codes, as on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Formats<'a>(&'a [u8]);

impl Formats<'_> {
    /// Returns the codes: 0 is text, 1 is binary.
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

    /// Returns the arguments' bytes, `None` for NULL.
    pub fn arguments(&self) -> impl Iterator<Item = Option<&'a [u8]>> {
        let mut walk = Walk(self.arguments);
        (0..self.count)
            .map(move |_| walk.argument().expect("the arguments of a Bind are checked when the Bind arrives"))
    }
}

/// The parts of an Execute.
#[derive(Debug)]
pub struct Execute {
    /// The name of the portal to execute. The empty name means the unnamed portal.
    pub portal: String,
    /// Maximum number of rows to send; 0 or less means all.
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

/// Whether a body has the shape that its decoder expects.
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
        match i32::from_be_bytes(*length) {
            -1 => Some(None),
            length => self.bytes(usize::try_from(length).ok()?).map(Some),
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

    /// Damages a good message by every cut and every changed byte. Each damaged message gives a message or a
    /// refusal, and never a panic.
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
    async fn a_too_long_message_is_skipped() {
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
