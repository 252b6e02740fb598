//! Addresses of processes: the address at which a process listens, the address that it gives to other
//! processes, and the search for the domain of a cluster.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use quorate_protocol::DomainId;
use quorate_runtime::discover;

use crate::error::Error;

/// Returns the domain of the routers at these addresses. Asks again until one answers or `patience` is over.
pub(crate) fn ask_domain(routers: &[String], patience: Duration) -> Result<DomainId, Error> {
    let began = Instant::now();
    loop {
        let mut last = String::from("no router is named: give the address of at least one router");
        for address in routers {
            match discover::domain(address, ASK_PATIENCE) {
                Ok(domain) => return Ok(domain),
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        if routers.is_empty() {
            return Err(Error::start(last));
        }
        if began.elapsed() >= patience {
            let (all, waited) = (routers.join(", "), patience.as_millis());
            return Err(Error::start(format!(
                "no router of a cluster answers within {waited} ms at {all} (last error: {last}): `quorate \
                 status` shows where the routers listen"
            )));
        }
        thread::sleep(ASK_PAUSE);
    }
}

/// Time that a router may take to answer.
pub(crate) const ASK_PATIENCE: Duration = Duration::from_millis(500);

pub(crate) const ASK_PAUSE: Duration = Duration::from_millis(20);

/// Refuses the address of `what` unless it has the form `host:port`.
pub(crate) fn check(what: &str, address: &str) -> Result<(), Error> {
    let is_place = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
    match address.rsplit_once(':').is_some_and(is_place) {
        true => Ok(()),
        false => {
            Err(Error::invalid(format!("the address of {what} must be host:port, and \"{address}\" is not")))
        }
    }
}

/// Opens the socket for other processes. The socket exists before the process starts, and each life of the
/// process listens there.
pub(crate) fn bind(address: &str) -> Result<(Arc<TcpListener>, SocketAddr), Error> {
    let failed = |error: io::Error| Error::start(format!("cannot listen on {address}: {error}"));
    let place = address.to_socket_addrs().map_err(failed)?.next();
    let place = place
        .ok_or_else(|| Error::start(format!("the address {address} does not resolve to an IP address")))?;
    let listener = TcpListener::bind(place).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((Arc::new(listener), bound))
}

/// Returns the address that other processes use.
pub(crate) fn advertised(advertise: Option<&str>, listen: SocketAddr) -> String {
    match advertise.and_then(|advertise| advertise.rsplit_once(':')) {
        None => listen.to_string(),
        Some((host, "0")) => format!("{host}:{}", listen.port()),
        Some((host, port)) => format!("{host}:{port}"),
    }
}

/// Returns the address at which a further process listens: the same host, at a port that the system chooses.
/// Also returns the address that other processes use for it, if that address differs.
#[cfg(any(feature = "tables", feature = "groups", feature = "services"))]
pub(crate) fn further_addresses(advertise: Option<&str>, address: SocketAddr) -> (String, Option<String>) {
    let host = advertise.and_then(|host_port| host_port.rsplit_once(':'));
    (SocketAddr::new(address.ip(), 0).to_string(), host.map(|(host, _)| format!("{host}:0")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_port_of_zero_becomes_the_listening_port() {
        let listen: SocketAddr = "0.0.0.0:7400".parse().unwrap();
        assert_eq!(advertised(None, listen), "0.0.0.0:7400");
        assert_eq!(advertised(Some("router-1:0"), listen), "router-1:7400");
        assert_eq!(advertised(Some("[::1]:80"), listen), "[::1]:80");
    }
}
