//! Datagrams: casts of protocols, over UDP next to the links.
//!
//! **Promise.** A cast to a linked peer may arrive, in one datagram with other casts of the same turn to that
//! peer. Nothing is resent and nothing waits: a datagram that the system does not take at once is lost, and
//! counted.
//!
//! **The socket** has the address and port of the first listener. If that port is taken, the process runs
//! without a socket: its hellos name no port, and casts between the process and its peers travel over links.
//! Casts between two processes with the same address, that is, on one machine, also travel over links: there
//! the system copies large pieces of a stream at once, and would cut them up for datagrams. Three members of
//! a group on one machine were slower by datagrams than by links: by a fifth with a thousand soft updates
//! under way at each member, and by two fifths with one.
//!
//! **Accepted senders.** A greeting names the port at which its sender receives datagrams, and the *token*
//! that they must carry: 64 bits made for this greeting, and so for this session of the link. A datagram is
//! its token, followed by messages. A process refuses a whole datagram whose token belongs to no present
//! link. So the sender's domain, process, incarnation and policy are those that the link has checked. A token
//! is no signature: an attacker who can read the links can also forge datagrams.
//!
//! **Multicast** (`multicast`). All multicasts of a process carry one token, which its greetings announce to
//! all its peers. A receiver accepts that token only if it has a link to that sender. So peers could forge
//! such a multicast, but no other process could. A datagram whose token no link has announced is meant for
//! other processes, or the sender's link is broken: it is *unwanted*, counted and dropped. Multicasts go to
//! the network of the address at which this process listens and no further; with a loopback address they stay
//! on this machine.
//!
//! ```text
//! ┌───────────┬───────────┬───────────┬───
//! │ token u64 │ message…  │ message…  │ …
//! └───────────┴───────────┴───────────┴───
//! ```
//!
//! **Bounds.** A turn reads at most [`READS_PER_TURN`] times, each time as much as the system hands over at
//! once. It writes early when [`UNSENT_BYTES_MAX`] bytes of casts have gathered. So a flood holds the thread
//! no longer than links do.

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

use self::multicast::MulticastReceivers;
use crate::{counters::Counters, frame::Encoded};

use multicast::SOCKET_BYTES;

mod multicast;

/// The address at which a peer receives datagrams, and the token that they must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramAddress {
    pub(crate) address: SocketAddr,
    pub(crate) token: u64,
}

/// The datagram socket of a process, and the casts that wait for the end of the turn.
pub(crate) struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
    counters: Counters,
    local: SocketAddr,
    /// Length of the longest datagram, in bytes.
    bytes_max: usize,
    /// Whether the socket may still contain datagrams that were not read.
    readable: bool,
    /// Receive buffers; empty until the first read.
    room: Vec<u8>,
    receivers: MulticastReceivers,
    /// The token of this process's multicasts; `None` if it cannot multicast.
    multicast_token: Option<u64>,
    /// Whether the system has already refused a multicast. Only the first refusal is logged.
    has_failed: bool,
    /// Casts of this turn, by peer. A list suffices, because the peers are few.
    pending: Vec<PendingDatagram>,
    unsent: usize,
}

/// A datagram that casts of this turn still join.
struct PendingDatagram {
    to: DatagramAddress,
    bytes: BytesMut,
}

impl Datagrams {
    /// Opens a socket at this address, for datagrams of at most `bytes_max` bytes. The poll reports it under
    /// [`TOKEN`]. Multicasts will carry the token `multicast_token`.
    pub(crate) fn bind(
        (address, bytes_max): (SocketAddr, usize),
        registry: &Registry,
        counters: Counters,
        multicast_token: u64,
    ) -> io::Result<Self> {
        let mut socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if address.is_ipv4() {
            // Short datagrams are packed so that they need no fragments, but a long datagram would be lost if
            // fragments were forbidden.
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        }
        // A smaller buffer only loses more datagrams, so an error here is ignored.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES);
        registry.register(&mut socket, TOKEN, Interest::READABLE)?;
        let (readable, room, pending) = (false, Vec::new(), Vec::new());
        let local = socket.local_addr()?;
        let multicast_token = match multicast::enable_multicast(&socket, local.ip()) {
            Ok(()) => Some(multicast_token),
            Err(error) => {
                info!(
                    "this process cannot multicast from {local}, so it sends each receiver a separate \
                     datagram: {error}"
                );
                None
            }
        };
        let receivers = MulticastReceivers::new(local.ip(), registry.try_clone()?);
        let (unsent, has_failed) = (0, false);
        Ok(Datagrams {
            socket,
            state,
            counters,
            local,
            bytes_max,
            readable,
            room,
            receivers,
            multicast_token,
            has_failed,
            pending,
            unsent,
        })
    }

    /// Returns the port at which this process receives datagrams.
    pub(crate) fn port(&self) -> u16 {
        self.local.port()
    }

    /// Returns the token of this process's multicasts; 0 if it cannot multicast.
    pub(crate) fn multicast_token(&self) -> u64 {
        self.multicast_token.unwrap_or_default()
    }

    /// Whether [`Datagrams::read`] may find datagrams.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable || self.receivers.are_readable()
    }

    /// Starts to receive multicasts to this address, if the system permits.
    pub(crate) fn listen(&mut self, address: MulticastAddress) {
        self.receivers.listen(address);
    }

    /// Stops receiving multicasts to this address.
    pub(crate) fn ignore(&mut self, address: MulticastAddress) {
        self.receivers.ignore(address);
    }

    /// Notes which sockets the poll has reported as readable.
    pub(crate) fn attend<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        for event in events {
            self.readable |= event.token() == TOKEN;
            self.receivers.attend(event.token());
        }
    }

    /// Reads a bounded number of datagrams. Passes to `take`, for each datagram, its token, the bytes after
    /// the token, and whether the datagram was multicast.
    pub(crate) fn read(&mut self, mut take: impl FnMut(u64, Bytes, bool)) {
        if self.room.is_empty() {
            self.room = vec![0; BUFFERS * BUFFER_BYTES];
        }
        let Datagrams { socket, state, counters, room, readable, .. } = self;
        if *readable {
            *readable = drain((socket, state), counters, room, |token, bytes| take(token, bytes, false));
        }
        let multicast_token = self.multicast_token;
        for receiver in self.receivers.readable() {
            receiver.readable = drain((&receiver.socket, &receiver.state), counters, room, |token, bytes| {
                // The system delivers a process's own multicasts to it as well, and these are skipped.
                if Some(token) != multicast_token {
                    take(token, bytes, true);
                }
            });
        }
    }

    /// Multicasts a message to all who listen at `address`. The message leaves at the end of the turn.
    /// Returns `false` if this process cannot multicast, or the message is too long.
    pub(crate) fn multicast(&mut self, address: MulticastAddress, message: &Encoded) -> bool {
        let Some(token) = self.multicast_token else { return false };
        self.cast(DatagramAddress { address: multicast::socket_address(address).into(), token }, message)
    }

    /// Casts a message. It leaves at the end of the turn, together with other casts to the same peer. Returns
    /// `false` if the message is too long for a datagram.
    pub(crate) fn cast(&mut self, to: DatagramAddress, message: &Encoded) -> bool {
        let length = message.len();
        if TOKEN_BYTES + length > self.bytes_max {
            return false;
        }
        let at = match self.pending.iter().position(|pack| pack.to == to) {
            Some(at) => at,
            None => {
                self.pending.push(PendingDatagram { to, bytes: BytesMut::new() });
                self.pending.len() - 1
            }
        };
        // A datagram that is longer than one frame of the network is sent in fragments, and the loss of any
        // fragment loses the datagram. Within one machine there are no fragments.
        let is_near = to.address.ip().is_loopback() || self.local.ip().is_loopback();
        let most = if is_near { self.bytes_max } else { PACK_BYTES.min(self.bytes_max) };
        if !self.pending[at].bytes.is_empty() && self.pending[at].bytes.len() + length > most {
            self.send(at);
        }
        let pack = &mut self.pending[at].bytes;
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

    /// Sends all casts that wait.
    pub(crate) fn flush(&mut self) {
        for at in 0..self.pending.len() {
            self.send(at);
        }
        self.pending.clear();
        self.unsent = 0;
    }

    fn send(&mut self, at: usize) {
        let PendingDatagram { to, bytes } = &mut self.pending[at];
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
            // The system has no room or no route, so the datagram is lost, as may happen anywhere on its way.
            Err(error) => {
                self.counters.datagrams_unsent.inc();
                if to.address.ip().is_multicast() && !std::mem::replace(&mut self.has_failed, true) {
                    warn!(
                        "the system refuses to send multicasts to {}, so they are lost: {error}",
                        to.address
                    );
                }
            }
        }
        bytes.clear();
    }
}

/// Reads datagrams from a socket, at most [`READS_PER_TURN`] times. Returns whether there may be more.
fn drain(
    (socket, state): (&UdpSocket, &UdpSocketState),
    counters: &Counters,
    room: &mut [u8],
    mut take: impl FnMut(u64, Bytes),
) -> bool {
    for _ in 0..READS_PER_TURN {
        let mut metas = [RecvMeta::default(); BUFFERS];
        let mut buffers = room.chunks_exact_mut(BUFFER_BYTES).map(IoSliceMut::new);
        let mut buffers: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| {
            buffers.next().expect("the buffer has room for all datagrams of a batch")
        });
        match state.recv(UdpSockRef::from(socket), &mut buffers, &mut metas) {
            Ok(count) => {
                for (meta, buffer) in metas.iter().zip(&buffers).take(count) {
                    counters.datagram_bytes_received.inc_by(meta.len as u64);
                    // The system may join several datagrams of one sender. All but the last of them are
                    // `stride` bytes long.
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
            // The system reports that some peer's port is closed. The error is ignored, because datagrams may
            // be lost.
            Err(_) => {}
        }
    }
    true
}

/// Returns `address` in a form to which a socket at `local` can send.
fn reached_from(local: SocketAddr, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if local.is_ipv6() => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        ip => SocketAddr::new(if local.is_ipv4() { ip.to_canonical() } else { ip }, address.port()),
    }
}

/// The poll's token for the datagram socket. The waker's token is the next larger one.
pub(crate) const TOKEN: Token = Token(usize::MAX - 1);
const TOKEN_BYTES: usize = size_of::<u64>();
/// Length of a datagram that fits one Ethernet frame, with room for the headers of tunnels.
const PACK_BYTES: usize = 1_400;
/// Number of buffers of one read. Each takes a datagram, or a run of datagrams of one sender that the system
/// joined.
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 64 << 10;
const READS_PER_TURN: usize = 4;
const UNSENT_BYTES_MAX: usize = 256 << 10;
