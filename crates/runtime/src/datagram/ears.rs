//! Ears: the sockets by which a process hears what is multicast.
//!
//! Each address has a socket of its own, at the same port for all processes of all machines: the system hands a datagram to every socket
//! that is at its address.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
};

use mio::{Interest, Registry, Token, net::UdpSocket};
use quinn_udp::{UdpSockRef, UdpSocketState};
use quorate_protocol::MulticastAddress;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tracing::warn;

use super::SOCKET_BYTES;

/// The addresses to which a process listens.
pub(super) struct Ears {
    ears: Vec<Ear>,
    /// The address of the interface; none for the one that the system chooses. An error where there can be no multicast.
    interface: io::Result<Ipv4Addr>,
    registry: Registry,
    /// The number of the last one.
    number: usize,
    /// That one could not be heard was said.
    has_failed: bool,
}

pub(super) struct Ear {
    address: MulticastAddress,
    token: Token,
    pub(super) socket: UdpSocket,
    pub(super) state: UdpSocketState,
    /// The system may have more.
    pub(super) readable: bool,
}

impl Ears {
    pub(super) fn new(local: IpAddr, registry: Registry) -> Ears {
        Ears { ears: Vec::new(), interface: interface(local), registry, number: 0, has_failed: false }
    }

    pub(super) fn listen(&mut self, address: MulticastAddress) {
        match self.open(address) {
            Ok(ear) => self.ears.push(ear),
            // Casts come to this process alone then.
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    warn!("this process does not hear what is multicast to {}: {error}", place(address));
                }
            }
        }
    }

    fn open(&mut self, address: MulticastAddress) -> io::Result<Ear> {
        let interface =
            self.interface.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        if self.ears.len() >= EARS_MAX {
            return Err(io::Error::other(format!("it listens to {EARS_MAX} addresses already")));
        }
        let place = place(address);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // Other processes of this machine hear it, too.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Datagrams that do not fit are lost, so more room is only a wish.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
        rustix::net::bind(&socket, &place)?;
        let socket = std::net::UdpSocket::from(socket);
        socket.join_multicast_v4(place.ip(), interface)?;
        let mut socket = UdpSocket::from_std(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        self.number += 1;
        let token = Token(FIRST.0 + self.number);
        self.registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(Ear { address, token, socket, state, readable: false })
    }

    pub(super) fn ignore(&mut self, address: MulticastAddress) {
        // Closed, it is told of by no poll.
        self.ears.retain(|ear| ear.address != address);
    }

    pub(super) fn attend(&mut self, token: Token) {
        self.ears.iter_mut().filter(|ear| ear.token == token).for_each(|ear| ear.readable = true);
    }

    pub(super) fn are_readable(&self) -> bool {
        self.ears.iter().any(|ear| ear.readable)
    }

    pub(super) fn readable(&mut self) -> impl Iterator<Item = &mut Ear> {
        self.ears.iter_mut().filter(|ear| ear.readable)
    }
}

/// Prepares a socket at `local` for multicast: into the network of that address, and heard on this machine, too.
pub(super) fn speak(socket: &UdpSocket, local: IpAddr) -> io::Result<()> {
    let interface = interface(local)?;
    sockopt::set_ip_multicast_if(socket, &interface)?;
    sockopt::set_ip_multicast_loop(socket, true)?;
    // Links to other machines are not allowed where links are not: with 0 nothing leaves this one.
    sockopt::set_ip_multicast_ttl(socket, u32::from(!interface.is_loopback()))?;
    Ok(())
}

/// The interface of an address at which a process listens.
fn interface(local: IpAddr) -> io::Result<Ipv4Addr> {
    match local.to_canonical() {
        IpAddr::V4(local) => Ok(local),
        IpAddr::V6(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "multicast is of IPv4 here")),
    }
}

/// The address and port of the network.
pub(super) fn place(address: MulticastAddress) -> SocketAddrV4 {
    SocketAddrV4::new(address.ip(), PORT)
}

/// The port at which all processes hear multicasts.
const PORT: u16 = 24_799;
/// No process listens to more addresses.
const EARS_MAX: usize = 64;
/// The poll's names for them; those of clients begin at half.
const FIRST: Token = Token(usize::MAX / 4 * 3);
