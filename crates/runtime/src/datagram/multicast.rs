//! The sockets with which a process receives multicasts.
//!
//! Each multicast address has its own socket, at the same port for all processes on all machines. The system
//! delivers a datagram to every socket bound to its address.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
};

use mio::{Interest, Registry, Token, net::UdpSocket};
use quinn_udp::{UdpSockRef, UdpSocketState};
use quorate_protocol::MulticastAddress;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tracing::warn;

/// The addresses to which a process listens.
pub(super) struct MulticastReceivers {
    receivers: Vec<MulticastReceiver>,
    /// The address of the interface; unspecified if the system chooses. An error if this process cannot
    /// multicast.
    interface: io::Result<Ipv4Addr>,
    registry: Registry,
    /// The number of the newest socket. Poll tokens are made from it.
    number: usize,
    /// Whether a failure to listen was already logged. Only the first failure is logged.
    has_failed: bool,
}

pub(super) struct MulticastReceiver {
    address: MulticastAddress,
    token: Token,
    pub(super) socket: UdpSocket,
    pub(super) state: UdpSocketState,
    /// Whether the socket may still contain datagrams that were not read.
    pub(super) readable: bool,
}

impl MulticastReceivers {
    pub(super) fn new(local: IpAddr, registry: Registry) -> MulticastReceivers {
        MulticastReceivers {
            receivers: Vec::new(),
            interface: interface(local),
            registry,
            number: 0,
            has_failed: false,
        }
    }

    pub(super) fn listen(&mut self, address: MulticastAddress) {
        match self.open(address) {
            Ok(receiver) => self.receivers.push(receiver),
            // This process then receives no multicasts, and senders reach it by separate casts.
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    warn!(
                        "this process cannot receive multicasts to {}, so other processes send it separate \
                         datagrams: {error}",
                        socket_address(address)
                    );
                }
            }
        }
    }

    fn open(&mut self, address: MulticastAddress) -> io::Result<MulticastReceiver> {
        let interface =
            self.interface.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        if self.receivers.len() >= RECEIVERS_MAX {
            return Err(io::Error::other(format!(
                "this process already listens to {RECEIVERS_MAX} multicast addresses, and no more are \
                 possible"
            )));
        }
        let socket_address = socket_address(address);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // Other processes on this machine may listen at the same address.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // A smaller buffer only loses more datagrams, so an error here is ignored.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
        rustix::net::bind(&socket, &socket_address)?;
        let socket = std::net::UdpSocket::from(socket);
        socket.join_multicast_v4(socket_address.ip(), interface)?;
        let mut socket = UdpSocket::from_std(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        self.number += 1;
        let token = Token(FIRST.0 + self.number);
        self.registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(MulticastReceiver { address, token, socket, state, readable: false })
    }

    pub(super) fn ignore(&mut self, address: MulticastAddress) {
        // When a socket is dropped, the system closes it, and the poll no longer reports it.
        self.receivers.retain(|receiver| receiver.address != address);
    }

    pub(super) fn attend(&mut self, token: Token) {
        self.receivers
            .iter_mut()
            .filter(|receiver| receiver.token == token)
            .for_each(|receiver| receiver.readable = true);
    }

    pub(super) fn are_readable(&self) -> bool {
        self.receivers.iter().any(|receiver| receiver.readable)
    }

    pub(super) fn readable(&mut self) -> impl Iterator<Item = &mut MulticastReceiver> {
        self.receivers.iter_mut().filter(|receiver| receiver.readable)
    }
}

/// Prepares a socket for multicasts from `local`. They go to the network of that address, and also to other
/// processes on this machine.
pub(super) fn enable_multicast(socket: &UdpSocket, local: IpAddr) -> io::Result<()> {
    let interface = interface(local)?;
    sockopt::set_ip_multicast_if(socket, &interface)?;
    sockopt::set_ip_multicast_loop(socket, true)?;
    // A process that listens on loopback must not send to other machines. Time to live 0 keeps its multicasts
    // on this machine.
    sockopt::set_ip_multicast_ttl(socket, u32::from(!interface.is_loopback()))?;
    Ok(())
}

/// Returns the interface of the address at which a process listens.
fn interface(local: IpAddr) -> io::Result<Ipv4Addr> {
    match local.to_canonical() {
        IpAddr::V4(local) => Ok(local),
        IpAddr::V6(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "multicast needs an IPv4 address, and this process listens on an IPv6 address",
        )),
    }
}

/// Returns the address and port on the network that stand for a multicast address.
pub(super) fn socket_address(address: MulticastAddress) -> SocketAddrV4 {
    SocketAddrV4::new(address.ip(), PORT)
}

/// The port at which all processes receive multicasts.
const PORT: u16 = 24_799;
/// Maximum number of addresses at which a process can listen at once.
const RECEIVERS_MAX: usize = 64;
/// Start of the poll tokens of multicast sockets. The tokens of clients begin at half of the range.
const FIRST: Token = Token(usize::MAX / 4 * 3);

pub(super) const SOCKET_BYTES: usize = 1 << 20;
