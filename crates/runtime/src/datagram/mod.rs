//! Datagrams: what protocols cast, over UDP beside the links.
//!
//! **Promise.** What is cast to a peer with whom a link stands may arrive there, in one datagram with what else was cast to it in the turn.
//! Nothing is resent and nothing waits: what the system does not take at once is lost, and counted.
//!
//! **The socket** is at the address and the port of the first listener. If that port is taken, the process goes on without: its hellos say
//! so, its peers cast to it over links, and it to them. So do processes of one machine, which are at the same address: there the system copies
//! long rows of bytes from one to the other, and cuts them up for datagrams. Three members of a group on one machine did a fifth less by datagrams
//! than by links with a thousand soft updates under way each, and two fifths less with one.
//!
//! **Who is heard.** A greeting says at which port its sender takes datagrams, and which *token* they must bear: 64 bits that are made
//! for this greeting, and so for this session of the link. A datagram is its token, and messages one behind the other. A token
//! that no link which stands was made with is refused, with all that is in the datagram: so domain, process, incarnation and policy are
//! those of the link. A token is no seal: who can read what goes over links can also forge datagrams.
//!
//! **Multicast** (`ears`). A datagram to many bears one token, which its sender tells all its peers in greetings: that of its voice. It is heard from those
//! to whom a link stands. So any of them could forge it, and no one else. A datagram whose token nobody told here is not meant for this process, or
//! its sender's links to it are broken: it is *unwanted*, counted and dropped. It goes to the network of the address at which this process listens, no
//! further than one network, and where that address is of loopback not beyond this machine.
//!
//! ```text
//! ┌───────────┬───────────┬───────────┬───
//! │ token u64 │ message…  │ message…  │ …
//! └───────────┴───────────┴───────────┴───
//! ```
//!
//! **Bounds.** A turn reads [`READS_PER_TURN`] times what the system hands over at once, and writes what was cast once
//! [`UNSENT_BYTES_MAX`] of it have gathered, so a flood holds the thread no longer than links do.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
};

use bytes::{BufMut, Bytes, BytesMut};
use mio::{Interest, Registry, Token, event::Event, net::UdpSocket};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use quorate_protocol::{MulticastAddress, wire};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};
use tracing::{info, warn};

use self::ears::Ears;
use crate::{counters::Counters, frame::Encoded};

mod ears;

/// The address at which a peer takes datagrams, and the token that they bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mouth {
    pub(crate) address: SocketAddr,
    pub(crate) token: u64,
}

/// The socket of a process, and what is to leave by it.
pub(crate) struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
    counters: Counters,
    local: SocketAddr,
    /// Bytes of a datagram at most.
    bytes_max: usize,
    /// The system may have more.
    readable: bool,
    /// Room for what it hands over at once; none before the first time.
    room: Vec<u8>,
    ears: Ears,
    /// The token of what is multicast here; none where that is not possible.
    voice: Option<u64>,
    /// A multicast was not taken by the system, and that was said.
    has_failed: bool,
    /// Casts of this turn by peer: peers are few, so they are looked through.
    packs: Vec<Pack>,
    unsent: usize,
}

/// A datagram that is being put together.
struct Pack {
    to: Mouth,
    bytes: BytesMut,
}

impl Datagrams {
    /// A socket at this address, told of by the poll under [`TOKEN`], for datagrams of so many bytes at most. What it multicasts bears the
    /// token `voice`.
    pub(crate) fn bind(
        (address, bytes_max): (SocketAddr, usize),
        registry: &Registry,
        counters: Counters,
        voice: u64,
    ) -> io::Result<Self> {
        let mut socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if address.is_ipv4() {
            // Short ones are packed so that they need no fragments, and a long one is lost if it may have none.
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        }
        // Datagrams that do not fit are lost, so more room is only a wish.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES);
        registry.register(&mut socket, TOKEN, Interest::READABLE)?;
        let (readable, room, packs) = (false, Vec::new(), Vec::new());
        let local = socket.local_addr()?;
        let voice = match ears::speak(&socket, local.ip()) {
            Ok(()) => Some(voice),
            Err(error) => {
                info!("no multicast from {local}, what is cast to many goes a copy to each: {error}");
                None
            }
        };
        let ears = Ears::new(local.ip(), registry.try_clone()?);
        let (unsent, has_failed) = (0, false);
        Ok(Datagrams {
            socket,
            state,
            counters,
            local,
            bytes_max,
            readable,
            room,
            ears,
            voice,
            has_failed,
            packs,
            unsent,
        })
    }

    /// The port at which it takes datagrams.
    pub(crate) fn port(&self) -> u16 {
        self.local.port()
    }

    /// The token of what it multicasts; 0 where that is not possible.
    pub(crate) fn voice(&self) -> u64 {
        self.voice.unwrap_or_default()
    }

    /// Whether [`Datagrams::read`] may find something.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable || self.ears.are_readable()
    }

    /// Hears multicasts to this address from now on, if the system lets it.
    pub(crate) fn listen(&mut self, address: MulticastAddress) {
        self.ears.listen(address);
    }

    /// It is heard no more.
    pub(crate) fn ignore(&mut self, address: MulticastAddress) {
        self.ears.ignore(address);
    }

    /// Takes note of what the poll tells.
    pub(crate) fn attend<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        for event in events {
            self.readable |= event.token() == TOKEN;
            self.ears.attend(event.token());
        }
    }

    /// Reads what has arrived, or a part of much, and hands over each datagram's token, what is behind it, and whether it was multicast.
    pub(crate) fn read(&mut self, mut take: impl FnMut(u64, Bytes, bool)) {
        if self.room.is_empty() {
            self.room = vec![0; BUFFERS * BUFFER_BYTES];
        }
        let Datagrams { socket, state, counters, room, readable, .. } = self;
        if *readable {
            *readable = drain((socket, state), counters, room, |token, bytes| take(token, bytes, false));
        }
        let voice = self.voice;
        for ear in self.ears.readable() {
            ear.readable = drain((&ear.socket, &ear.state), counters, room, |token, bytes| {
                // It hears itself, too.
                if Some(token) != voice {
                    take(token, bytes, true);
                }
            });
        }
    }

    /// Casts a message to all who listen to an address, as [`Datagrams::cast`] does to one. False if that is not possible here.
    pub(crate) fn multicast(&mut self, address: MulticastAddress, message: &Encoded) -> bool {
        let Some(token) = self.voice else { return false };
        self.cast(Mouth { address: ears::place(address).into(), token }, message)
    }

    /// Casts a message; it leaves at the end of the turn with others to the same peer. False if it is too long for that.
    pub(crate) fn cast(&mut self, to: Mouth, message: &Encoded) -> bool {
        let length = message.len();
        if TOKEN_BYTES + length > self.bytes_max {
            return false;
        }
        let at = match self.packs.iter().position(|pack| pack.to == to) {
            Some(at) => at,
            None => {
                self.packs.push(Pack { to, bytes: BytesMut::new() });
                self.packs.len() - 1
            }
        };
        // More than a frame of the network would be lost with any part of it.
        let is_near = to.address.ip().is_loopback() || self.local.ip().is_loopback();
        let most = if is_near { self.bytes_max } else { PACK_BYTES.min(self.bytes_max) };
        if !self.packs[at].bytes.is_empty() && self.packs[at].bytes.len() + length > most {
            self.send(at);
        }
        let pack = &mut self.packs[at].bytes;
        if pack.is_empty() {
            pack.put_u64_le(to.token);
        }
        let before = pack.len();
        pack.put_slice(&message.head);
        pack.put_slice(message.payload.as_deref().unwrap_or_default());
        self.unsent += pack.len() - before;
        if self.unsent > UNSENT_BYTES_MAX {
            self.flush();
        }
        true
    }

    /// Sends what was cast.
    pub(crate) fn flush(&mut self) {
        for at in 0..self.packs.len() {
            self.send(at);
        }
        self.packs.clear();
        self.unsent = 0;
    }

    fn send(&mut self, at: usize) {
        let Pack { to, bytes } = &mut self.packs[at];
        if bytes.is_empty() {
            return;
        }
        let destination = reached_from(self.local, to.address);
        let transmit = Transmit { destination, ecn: None, contents: bytes, segment_size: None, src_ip: None };
        match self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
            Ok(()) => {
                self.counters.datagrams_sent.inc();
                self.counters.datagram_bytes_sent.inc_by(bytes.len() as u64);
            }
            // The system has no room, or no way there: lost, as on any way.
            Err(error) => {
                self.counters.datagrams_unsent.inc();
                if to.address.ip().is_multicast() && !std::mem::replace(&mut self.has_failed, true) {
                    warn!(
                        "multicast to {} was not taken, and is cast to each where that goes on: {error}",
                        to.address
                    );
                }
            }
        }
        bytes.clear();
    }
}

/// Reads from a socket what has arrived, or a part of much. Whether there may be more.
fn drain(
    (socket, state): (&UdpSocket, &UdpSocketState),
    counters: &Counters,
    room: &mut [u8],
    mut take: impl FnMut(u64, Bytes),
) -> bool {
    for _ in 0..READS_PER_TURN {
        let mut metas = [RecvMeta::default(); BUFFERS];
        let mut buffers = room.chunks_exact_mut(BUFFER_BYTES).map(IoSliceMut::new);
        let mut buffers: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| buffers.next().expect("there is room for all"));
        match state.recv(UdpSockRef::from(socket), &mut buffers, &mut metas) {
            Ok(count) => {
                for (meta, buffer) in metas.iter().zip(&buffers).take(count) {
                    counters.datagram_bytes_received.inc_by(meta.len as u64);
                    // Several of one sender may have come as one piece: each of them has this length, but the last.
                    let mut rest = Bytes::copy_from_slice(&buffer[..meta.len.min(BUFFER_BYTES)]);
                    while !rest.is_empty() {
                        let mut datagram = rest.split_to(meta.stride.clamp(1, rest.len()));
                        counters.datagrams_received.inc();
                        match wire::take_u64(&mut datagram) {
                            Ok(token) => take(token, datagram),
                            Err(_) => {
                                counters.datagrams_refused.inc();
                            }
                        }
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return false;
            }
            // A peer's port that is closed, as the system was told: of no account here.
            Err(_) => {}
        }
    }
    true
}

/// The address as a socket at `local` writes it.
fn reached_from(local: SocketAddr, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if local.is_ipv6() => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        ip => SocketAddr::new(if local.is_ipv4() { ip.to_canonical() } else { ip }, address.port()),
    }
}

/// The poll's name for the socket; the waker's is the one behind it.
pub(crate) const TOKEN: Token = Token(usize::MAX - 1);
const TOKEN_BYTES: usize = size_of::<u64>();
/// So many bytes go as one frame of an Ethernet, tunnels allowed for.
const PACK_BYTES: usize = 1_400;
/// As many datagrams, or rows of datagrams of one sender, are handed over at once, each at most so long.
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 64 << 10;
const READS_PER_TURN: usize = 4;
const UNSENT_BYTES_MAX: usize = 256 << 10;
const SOCKET_BYTES: usize = 1 << 20;
