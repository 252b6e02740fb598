//! Host names under which a process answers HTTP requests.
//!
//! A web page may make the name of its own server point to this machine's address (DNS rebinding). A browser
//! then takes this process's answers for answers of the page's server, and passes them to the page. Only the
//! name in the `Host` header reveals the deception, because the page cannot choose that name. So a door
//! answers only to IP addresses, which are not names, and to names that nobody else can register.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a door may answer a request with this `Host`. A door may answer to an IP address, to a name
/// without a dot (`localhost`, a machine or a container of the same network), and to a name under a domain
/// that nobody can register (`.localhost`, `.local`, `.internal`). It may also answer to each of `names`,
/// which the operator has given. A port may follow.
pub fn is_own(host: &str, names: &[String]) -> bool {
    let name = without_port(host);
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.parse::<Ipv4Addr>().is_ok() || names.iter().any(|own| is(without_port(own))) {
        return true;
    }
    match name.rsplit_once('.') {
        None => !name.is_empty() && name.bytes().all(plain),
        Some((_, last)) => RESERVED.iter().any(|reserved| last.eq_ignore_ascii_case(reserved)),
    }
}

/// Domains reserved for private use: RFC 6761, RFC 6762, and ICANN's resolution of 29 July 2024.
const RESERVED: [&str; 3] = ["localhost", "local", "internal"];

/// Returns a host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => match name.contains(':') {
            // With several colons, the host is an IPv6 address, and its last part is a port only if brackets
            // end before that part.
            true if !name.ends_with(']') => host,
            _ => name,
        },
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_no_stranger_can_own_are_accepted() {
        let names = [String::from("metrics.example.org:9100"), String::from("quorate.example.net")];
        for own in [
            "127.0.0.1:24702",
            "10.1.2.3",
            "[::1]:24702",
            "[fd00::7]",
            "localhost:24702",
            "LOCALHOST",
            "gateway-1:24720",
            "my_container",
            "a.localhost:1",
            "printer.local",
            "db.corp.internal:80",
            "Metrics.Example.org:24702",
            "quorate.example.net",
        ] {
            assert!(is_own(own, &names), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:24702",
            "127.0.0.1.evil.example:24702",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "evil.example.",
            "localhost.",
            "",
            ":24702",
            "[evil.example]:1",
            "example.org",
            "local.com",
            "a b",
            "::1",
        ] {
            assert!(!is_own(foreign, &names), "{foreign}");
        }
    }
}
