//! The first bytes of a connection between two nodes of Cassandra 4 or 5, in which the connecting node gives
//! its address.
//!
//! | bytes | |
//! |---|---|
//! | 4 | a constant, `ca 55 2d fa` |
//! | 4 | flags |
//! | 1 | the length of the address and port: 6 or 18 |
//! | 4 or 16 | the node's broadcast address |
//! | 2 | its port |
//!
//! A checksum follows, which the receiving node checks.

use std::{
    io::{Error, ErrorKind, Read, Result},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The first bytes of every connection between two nodes of Cassandra.
const MAGIC: [u8; 4] = [0xca, 0x55, 0x2d, 0xfa];
/// Length up to and including the length byte of the address.
const HEAD: usize = 9;
const PORT: usize = 2;

/// The node that connects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Initiate {
    /// The sender's broadcast address.
    pub(super) from: SocketAddr,
    /// The bytes that were read, to be forwarded to the other node.
    pub(super) bytes: Vec<u8>,
}

impl Initiate {
    /// Reads the first bytes of a connection.
    pub(super) fn read(stream: &mut impl Read) -> Result<Initiate> {
        let mut bytes = vec![0; HEAD];
        stream.read_exact(&mut bytes)?;
        let refused = |why: &str| Err(Error::new(ErrorKind::InvalidData, why.to_owned()));
        if bytes[..MAGIC.len()] != MAGIC {
            return refused("the first bytes of the connection are not those of a node of Cassandra 4 or 5");
        }
        let length = usize::from(bytes[HEAD - 1]);
        if ![4 + PORT, 16 + PORT].contains(&length) {
            return refused(
                "the connecting node gave an address that is neither an IPv4 nor an IPv6 address",
            );
        }
        bytes.resize(HEAD + length, 0);
        stream.read_exact(&mut bytes[HEAD..])?;
        let (address, port) = bytes[HEAD..].split_at(length - PORT);
        let address = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
            (Ok(short), _) => IpAddr::V4(Ipv4Addr::from(short)),
            (_, Ok(long)) => IpAddr::V6(Ipv6Addr::from(long)),
            _ => unreachable!("the address has the length of an IPv4 or of an IPv6 address"),
        };
        let port = u16::from_be_bytes([port[0], port[1]]);
        Ok(Initiate { from: SocketAddr::new(address, port), bytes })
    }

    /// Returns the first bytes of a node with this address.
    #[cfg(test)]
    pub(super) fn of(from: SocketAddr) -> Vec<u8> {
        let address = match from.ip() {
            IpAddr::V4(short) => short.octets().to_vec(),
            IpAddr::V6(long) => long.octets().to_vec(),
        };
        let length = u8::try_from(address.len() + PORT).unwrap();
        [&MAGIC[..], &[0; 4], &[length], &address, &from.port().to_be_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that Cassandra 5.0.9 sends.
    const SENT: [u8; 19] =
        [0xca, 0x55, 0x2d, 0xfa, 0x0c, 0x0c, 0x0a, 0x04, 6, 127, 0, 96, 2, 0x1b, 0x58, 1, 2, 3, 4];

    #[test]
    fn an_initiate_message_names_its_node() {
        let initiate = Initiate::read(&mut &SENT[..]).unwrap();
        assert_eq!((initiate.from, &initiate.bytes[..]), ("127.0.96.2:7000".parse().unwrap(), &SENT[..15]));
        let long: SocketAddr = "[::1]:7000".parse().unwrap();
        assert_eq!(Initiate::read(&mut &Initiate::of(long)[..]).unwrap().from, long);
    }

    #[test]
    fn bytes_other_than_an_initiate_message_are_refused() {
        for length in 0..15 {
            assert!(Initiate::read(&mut &SENT[..length]).is_err());
        }
        for place in [0, 1, 2, 3, 8] {
            for value in (0..=255).filter(|value| *value != SENT[place]) {
                let mut other = SENT;
                other[place] = value;
                assert!(Initiate::read(&mut &other[..]).is_err(), "{other:?}");
            }
        }
    }
}
