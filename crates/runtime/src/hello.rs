//! The handshake's greetings: each end introduces itself, or one end refuses with a reason.
//!
//! ```text
//! dialler                    acceptor
//!    │ Hello ──────────────────▶ │   who I am, whom I want, my link number
//!    │ ◀───────────────── Welcome │   the same from the other side: the link is up at both ends
//!    │ ◀───────────────── Refusal │   or why not, and the connection closes
//! ```
//!
//! A hello and a welcome carry:
//!
//! - the sender's domains, of which the two ends must share one;
//! - the sender's pass, which the other end judges ([`Policy`](quorate_protocol::Policy));
//! - the sender's port for datagrams, the token of this link's datagrams, and the token of the sender's
//!   multicasts ([`datagram`](crate::datagram));
//! - the extent of both journals, as far as the sender knows it, so that an older copy of a journal is
//!   detected ([`RemoteDurability`](quorate_protocol::journal::RemoteDurability)).
//!
//! Each greeting is a frame that begins with the magic, the protocol version and a kind. That prefix, and the
//! form of a refusal because of the version, never change. So processes of any two versions can tell each
//! other what is wrong.
//!
//! **Versions.** A hello has the newest version that its sender speaks. A process that does not speak this
//! version refuses the hello and names its own newest version. The dialler tries again with that version, if
//! the dialler speaks it. The welcome and the link's messages have the hello's version. So two processes talk
//! in the newest version that both speak, provided that each speaks all versions between its oldest and its
//! newest.

use std::{fmt, ops::RangeInclusive};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    DomainId, ProcessId, Session,
    journal::DurabilityReport,
    wire::{self, Wire, WireError},
};
use thiserror::Error;

/// First bytes of every greeting. Read as a frame's length, they exceed every limit. So a greeting without
/// its length is never taken for a frame, and a frame never for a greeting.
const MAGIC: [u8; 8] = *b"QUORATE\n";
/// Length of the longest greeting, in bytes.
pub(crate) const GREETING_BYTES_MAX: usize = 1024;
/// Maximum number of domains that a process can belong to.
pub(crate) const DOMAINS_MAX: usize = 16;
/// Length of the longest address in a hello, in bytes.
pub(crate) const ADDRESS_BYTES_MAX: usize = 512;

/// The introduction of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The protocol version of the hello.
    pub(crate) version: u16,
    /// The domains of `process`.
    pub(crate) domains: Vec<DomainId>,
    /// The pass of `process`.
    pub(crate) pass: Bytes,
    pub(crate) process: ProcessId,
    /// The process with which the sender wants a link.
    pub(crate) wanted: ProcessId,
    /// The number of this greeting among the hellos and welcomes of `process`: greetings sent later have
    /// larger numbers.
    pub(crate) number: u32,
    /// The extent of the sender's journal; the default if the sender has no disk.
    pub(crate) durable: DurabilityReport,
    /// The extent of `wanted`'s journal, as `wanted` last announced it to the sender; the default if there
    /// was no announcement.
    pub(crate) known: DurabilityReport,
    /// The sender's address.
    pub(crate) address: String,
    /// The port at which the sender receives datagrams, or 0 if it receives none.
    pub(crate) port: u16,
    /// The token that datagrams to the sender must carry.
    pub(crate) token: u64,
    /// The token that all multicasts of the sender carry, or 0 if the sender cannot multicast.
    pub(crate) multicast_token: u64,
}

/// The reason why a hello was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// The refusing process does not speak the hello's protocol version.
    Version = 0,
    /// The two processes share no domain.
    Domain = 1,
    /// A process other than the wanted one listens here now.
    WrongProcess = 2,
    /// A later connection between the same two processes is already a link.
    Redundant = 3,
    /// The policy of the refusing process does not admit the other's pass.
    Policy = 4,
    /// Answer to a hello that wants no process and only asks: the process belongs to no domain yet.
    Joining = 5,
    /// Answer to a hello that only asks: the process knows no leader with a majority.
    Leaderless = 6,
    /// Answer to a hello that only asks: the process does its work.
    Settled = 7,
}

/// The refusal of a hello, with the identity of the refusing process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HelloRefusal {
    pub(crate) reason: Reason,
    pub(crate) version: u16,
    pub(crate) domain: DomainId,
    pub(crate) process: ProcessId,
    /// The pass of the refusing process; empty if the versions differ.
    pub(crate) pass: Bytes,
}

/// A frame of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Hello(Hello),
    Welcome(Hello),
    Refusal(HelloRefusal),
}

/// The reason why a frame is no valid greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NoGreeting {
    #[error("the peer speaks protocol version {0}, which this process does not speak")]
    Version(u16),
    #[error("the peer does not speak Quorate's protocol")]
    Magic,
    #[error("the peer sent a malformed greeting: {0}")]
    Malformed(#[from] WireError),
}

impl Greeting {
    /// Encodes the frame, its length included.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        out.put_u32_le(0);
        out.put_slice(&MAGIC);
        let (version, kind) = match self {
            Greeting::Hello(hello) => (hello.version, HELLO),
            Greeting::Welcome(hello) => (hello.version, WELCOME),
            Greeting::Refusal(refusal) => (refusal.version, REFUSAL),
        };
        out.put_u16_le(version);
        out.put_u8(kind);
        match self {
            Greeting::Hello(hello) | Greeting::Welcome(hello) => {
                out.put_u8(hello.domains.len() as u8);
                hello.domains.iter().for_each(|domain| out.put_u128_le(domain.0));
                wire::put_pass(&mut out, &hello.pass);
                wire::put_process(&mut out, hello.process);
                wire::put_process(&mut out, hello.wanted);
                out.put_u32_le(hello.number);
                hello.durable.encode(&mut out);
                hello.known.encode(&mut out);
                wire::put_bytes(&mut out, hello.address.as_bytes());
                out.put_u16_le(hello.port);
                out.put_u64_le(hello.token);
                out.put_u64_le(hello.multicast_token);
            }
            Greeting::Refusal(refusal) => {
                out.put_u8(refusal.reason as u8);
                out.put_u128_le(refusal.domain.0);
                out.put_bytes(0, RESERVED_BYTES);
                wire::put_process(&mut out, refusal.process);
                if refusal.reason != Reason::Version {
                    wire::put_pass(&mut out, &refusal.pass);
                }
            }
        }
        let length = out.len() - crate::frame::HEADER_BYTES;
        assert!(length <= GREETING_BYTES_MAX, "addresses are bounded at start");
        out[..crate::frame::HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        out.freeze()
    }

    /// Decodes a frame without its length. A hello or welcome must have one of these versions.
    pub(crate) fn decode(mut frame: Bytes, versions: &RangeInclusive<u16>) -> Result<Greeting, NoGreeting> {
        let input = &mut frame;
        if wire::need(input, MAGIC.len()).is_err() || input.split_to(MAGIC.len()) != MAGIC[..] {
            return Err(NoGreeting::Magic);
        }
        wire::need(input, 3)?;
        let version = input.get_u16_le();
        let kind = input.get_u8();
        let greeting = match kind {
            REFUSAL => Greeting::Refusal(HelloRefusal::decode(version, input)?),
            _ if !versions.contains(&version) => return Err(NoGreeting::Version(version)),
            HELLO => Greeting::Hello(Hello::decode(version, input)?),
            WELCOME => Greeting::Welcome(Hello::decode(version, input)?),
            other => return Err(WireError::Tag(other).into()),
        };
        if !input.is_empty() {
            return Err(WireError::Trailing(input.len()).into());
        }
        Ok(greeting)
    }
}

impl HelloRefusal {
    fn decode(version: u16, input: &mut Bytes) -> Result<HelloRefusal, WireError> {
        let reason = match wire::take_u8(input)? {
            0 => Reason::Version,
            1 => Reason::Domain,
            2 => Reason::WrongProcess,
            3 => Reason::Redundant,
            4 => Reason::Policy,
            5 => Reason::Joining,
            6 => Reason::Leaderless,
            7 => Reason::Settled,
            other => return Err(WireError::Tag(other)),
        };
        Ok(HelloRefusal {
            version,
            reason,
            domain: DomainId(wire::take_u128(input)?),
            process: take_reserved(input).and_then(|()| wire::take_process(input))?,
            pass: if reason == Reason::Version { Bytes::new() } else { wire::take_pass(input)? },
        })
    }
}

impl Hello {
    fn decode(version: u16, input: &mut Bytes) -> Result<Hello, WireError> {
        Ok(Hello {
            version,
            domains: take_domains(input)?,
            pass: wire::take_pass(input)?,
            process: wire::take_process(input)?,
            wanted: wire::take_process(input)?,
            number: wire::take_u32(input)?,
            durable: DurabilityReport::decode(input)?,
            known: DurabilityReport::decode(input)?,
            address: String::from_utf8(wire::take_bytes(input)?.to_vec()).map_err(|_| WireError::Body)?,
            port: take_port(input)?,
            token: wire::take_u64(input)?,
            multicast_token: wire::take_u64(input)?,
        })
    }

    /// Computes the session of a link from the numbers of both ends, in the order of their ids. So both ends
    /// compute the same session, and no two links of the same processes share it.
    pub(crate) fn session(&self, me: ProcessId, number: u32) -> Session {
        let (low, high) = if me < self.process { (number, self.number) } else { (self.number, number) };
        Session(u64::from(low) << 32 | u64::from(high))
    }
}

impl fmt::Display for HelloRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::Version => {
                write!(
                    f,
                    "the peer speaks protocol version {}, which this process does not speak",
                    self.version
                )
            }
            Reason::Domain => write!(f, "the peer belongs to another domain, {}", self.domain),
            Reason::WrongProcess => write!(f, "another process, {}, listens at this address", self.process),
            Reason::Joining | Reason::Leaderless | Reason::Settled => {
                write!(
                    f,
                    "process {} listens at this address, and the greeting asked for no certain process",
                    self.process
                )
            }
            Reason::Redundant => f.write_str("the peer already has a link to this process"),
            Reason::Policy => f.write_str("the peer does not admit the pass that this process shows"),
        }
    }
}

fn take_port(input: &mut Bytes) -> Result<u16, WireError> {
    wire::need(input, 2)?;
    Ok(input.get_u16_le())
}

fn take_domains(input: &mut Bytes) -> Result<Vec<DomainId>, WireError> {
    let count = wire::take_u8(input)?.into();
    if count > DOMAINS_MAX {
        return Err(WireError::Length { length: count as u64, limit: DOMAINS_MAX as u64 });
    }
    (0..count).map(|_| wire::take_u128(input).map(DomainId)).collect()
}

/// Skips the bytes that held the generation of the process up to protocol version 5.
fn take_reserved(input: &mut Bytes) -> Result<(), WireError> {
    wire::need(input, RESERVED_BYTES)?;
    input.advance(RESERVED_BYTES);
    Ok(())
}

const RESERVED_BYTES: usize = 20;
const HELLO: u8 = 0;
const WELCOME: u8 = 1;
const REFUSAL: u8 = 2;

#[cfg(test)]
mod tests {
    use quorate_protocol::{Incarnation, Ticket, seam::PASS_BYTES_MAX};

    use super::*;

    fn hello() -> Hello {
        Hello {
            version: 10,
            domains: vec![DomainId(0x1111), DomainId(0x2222)],
            pass: Bytes::from_static(b"pass"),
            process: ProcessId { node: 3, incarnation: Incarnation(0x33) },
            wanted: ProcessId { node: 4, incarnation: Incarnation(0x44) },
            number: 5,
            durable: DurabilityReport { start: 0x51, mark: 0x52, durable: Ticket(0x53) },
            known: DurabilityReport { start: 0x61, mark: 0x62, durable: Ticket(0x63) },
            address: "h:1".to_owned(),
            port: 0x71,
            token: 0x72,
            multicast_token: 0x73,
        }
    }

    fn refusal() -> HelloRefusal {
        let Hello { domains, process, pass, .. } = hello();
        HelloRefusal { reason: Reason::Domain, version: 2, domain: domains[0], process, pass }
    }

    fn decode(frame: Bytes) -> Result<Greeting, NoGreeting> {
        Greeting::decode(frame, &(9..=10))
    }

    fn of_version(version: u16) -> HelloRefusal {
        HelloRefusal { reason: Reason::Version, version, pass: Bytes::new(), ..refusal() }
    }

    #[test]
    fn the_byte_form_is_pinned() {
        let magic = "51554f524154450a";
        let domain = "11110000000000000000000000000000";
        let three = "030000000000000033000000000000000000000000000000";
        let four = "040000000000000044000000000000000000000000000000";
        let (pass, reserved) = ("0400000070617373", "00".repeat(20));
        let encoded = |ten: char| format!("{ten}1000000{ten}200000000000000{ten}300000000000000");
        let tickets = format!("{}{}", encoded('5'), encoded('6'));
        let domains = format!("02{domain}22220000000000000000000000000000");
        let pinned = format!(
            "a9000000{magic}0a0000{domains}{pass}{three}{four}05000000{tickets}03000000683a3171007200000000000000\
             7300000000000000"
        );
        assert_eq!(hex(&Greeting::Hello(hello()).encode()), pinned);
        let pinned = format!("50000000{magic}02000201{domain}{reserved}{three}{pass}");
        assert_eq!(hex(&Greeting::Refusal(refusal()).encode()), pinned);
        // The form of such a refusal is fixed for all versions since version 5.
        let pinned = format!("48000000{magic}02000200{domain}{reserved}{three}");
        assert_eq!(hex(&Greeting::Refusal(of_version(2)).encode()), pinned);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn greetings_survive_the_wire_and_no_prefix_or_change_of_them_panics() {
        let refusals = [refusal(), of_version(2)].map(Greeting::Refusal);
        for greeting in [Greeting::Hello(hello()), Greeting::Welcome(hello())].into_iter().chain(refusals) {
            let frame = greeting.encode().slice(crate::frame::HEADER_BYTES..);
            assert_eq!(decode(frame.clone()), Ok(greeting));
            for end in 0..frame.len() {
                decode(frame.slice(..end)).expect_err("a prefix is not whole");
                let mut changed = frame.to_vec();
                changed[end] ^= 0xff;
                let _ = decode(changed.into());
            }
        }
    }

    #[test]
    fn the_longest_hello_fits_and_one_of_more_domains_is_refused() {
        let full = Hello {
            domains: vec![DomainId(u128::MAX); DOMAINS_MAX],
            pass: vec![7; PASS_BYTES_MAX].into(),
            address: "h".repeat(ADDRESS_BYTES_MAX),
            ..hello()
        };
        let frame = Greeting::Hello(full.clone()).encode().slice(crate::frame::HEADER_BYTES..);
        assert!(frame.len() <= GREETING_BYTES_MAX);
        let mut more = frame.to_vec();
        more[11] += 1;
        assert_eq!(decode(frame), Ok(Greeting::Hello(full)));
        let refused = NoGreeting::Malformed(WireError::Length { length: 17, limit: 16 });
        assert_eq!(decode(more.into()), Err(refused));
    }

    #[test]
    fn other_versions_are_named() {
        let mut frame = BytesMut::from(&Greeting::Hello(hello()).encode()[crate::frame::HEADER_BYTES..]);
        for version in [8, 11] {
            frame[8] = version;
            assert_eq!(decode(frame.clone().freeze()), Err(NoGreeting::Version(version.into())));
        }
        frame[8] = 9;
        assert_eq!(decode(frame.freeze()), Ok(Greeting::Hello(Hello { version: 9, ..hello() })));
        let frame = Greeting::Refusal(HelloRefusal { version: 11, ..refusal() }).encode();
        let decoded = decode(frame.slice(crate::frame::HEADER_BYTES..));
        assert_eq!(decoded, Ok(Greeting::Refusal(HelloRefusal { version: 11, ..refusal() })));
    }

    #[test]
    fn both_ends_name_a_session_alike() {
        let (ours, theirs) = (hello(), Hello { process: hello().wanted, number: 8, ..hello() });
        assert_eq!(theirs.session(ours.process, ours.number), ours.session(theirs.process, theirs.number));
    }
}
