//! The address of a cluster, and options of its clients.

use std::{str::FromStr, time::Duration};

use thiserror::Error;

/// The address of a cluster, and options of its clients.
///
/// The text form is
/// `cassandra://HOST:PORT,HOST:PORT/KEYSPACE?coordinators=pinned&timestamps=server&copies=3`. Only the first
/// node is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Addresses of the nodes for CQL, as `HOST:PORT`. At least one.
    pub nodes: Vec<String>,
    /// Keyspace of all tables.
    pub keyspace: String,
    /// Number of replicas of each key in each data centre, used when the keyspace is created.
    pub copies: u8,
    /// Nodes that coordinate operations.
    pub coordinators: Coordinators,
    /// Origin of the timestamps that order writes.
    pub timestamps: Timestamps,
    /// Longest time that an operation may take. By default Cassandra itself gives up a write after 2 s and a
    /// read after 5 s.
    pub patience: Duration,
}

/// The nodes that coordinate a client's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordinators {
    /// For each operation a random replica of its key.
    #[default]
    Replicas,
    /// One node for all operations of a client. Clients take turns among [`Options::nodes`].
    Pinned,
}

/// The origin of the timestamps that order writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// The program of the clients. It assigns ascending timestamps, in microseconds, to the writes of all its
    /// clients.
    #[default]
    Client,
    /// The coordinator of each write.
    Server,
}

/// The reason why a text names no cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// The text does not have the form of an address.
    #[error("'{0}' names no cluster: write cassandra://HOST:PORT,HOST:PORT/KEYSPACE")]
    Form(String),
    /// The name is not valid for a keyspace or a table.
    #[error(
        "'{0}' is no name of a keyspace or table: a name is a letter, then up to 47 letters, digits and underscores"
    )]
    Name(String),
    /// The option does not exist, or its value is not valid.
    #[error(
        "'{0}' is no option of a cluster: the options are coordinators=replicas|pinned, timestamps=client|server and copies=1 to 255"
    )]
    Option(String),
}

impl Options {
    /// Returns the defaults for these nodes: keyspace `quorate` with three copies, timestamps from the
    /// client, replicas as coordinators, and 10 s of patience.
    pub fn new(nodes: Vec<String>) -> Options {
        Options {
            nodes,
            keyspace: "quorate".to_owned(),
            copies: 3,
            coordinators: Coordinators::default(),
            timestamps: Timestamps::default(),
            patience: Duration::from_secs(10),
        }
    }

    fn set(&mut self, option: &str) -> Result<(), OptionsError> {
        let unknown = || OptionsError::Option(option.to_owned());
        match option.split_once('=').ok_or_else(unknown)? {
            ("coordinators", "replicas") => self.coordinators = Coordinators::Replicas,
            ("coordinators", "pinned") => self.coordinators = Coordinators::Pinned,
            ("timestamps", "client") => self.timestamps = Timestamps::Client,
            ("timestamps", "server") => self.timestamps = Timestamps::Server,
            ("copies", count) => {
                self.copies = count.parse().ok().filter(|count| *count > 0).ok_or_else(unknown)?;
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Options, OptionsError> {
        let form = || OptionsError::Form(text.to_owned());
        let rest = text.strip_prefix("cassandra://").ok_or_else(form)?;
        let (rest, set) = rest.split_once('?').map_or((rest, None), |(rest, set)| (rest, Some(set)));
        let (nodes, keyspace) =
            rest.split_once('/').map_or((rest, None), |(nodes, name)| (nodes, Some(name)));
        let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
        let is_node = |node: &String| {
            let parts = node.rsplit_once(':');
            parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if !nodes.iter().all(is_node) {
            return Err(form());
        }
        let mut options = Options::new(nodes);
        if let Some(keyspace) = keyspace {
            options.keyspace = checked_name(keyspace)?.to_owned();
        }
        for option in set.into_iter().flat_map(|set| set.split('&')) {
            options.set(option)?;
        }
        Ok(options)
    }
}

/// Checks that a name is safe to insert into a statement, because CQL has no parameters for names.
pub(crate) fn checked_name(name: &str) -> Result<&str, OptionsError> {
    let has_valid_bytes = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let begins_with_letter = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    if begins_with_letter && has_valid_bytes && name.len() <= NAME_BYTES_MAX {
        Ok(name)
    } else {
        Err(OptionsError::Name(name.to_owned()))
    }
}

/// Longest name that Cassandra accepts, in bytes.
const NAME_BYTES_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_options_is_parsed() {
        let options: Options =
            "cassandra://10.0.0.1:9042,db-2:19042/shop?coordinators=pinned&timestamps=server&copies=5"
                .parse()
                .unwrap();
        assert_eq!(
            options,
            Options {
                keyspace: "shop".to_owned(),
                copies: 5,
                coordinators: Coordinators::Pinned,
                timestamps: Timestamps::Server,
                ..Options::new(vec!["10.0.0.1:9042".to_owned(), "db-2:19042".to_owned()])
            }
        );
        let short: Options = "cassandra://[::1]:9042".parse().unwrap();
        assert_eq!(short, Options::new(vec!["[::1]:9042".to_owned()]));
    }

    #[test]
    fn a_malformed_address_is_refused() {
        let refused = |text: &str| text.parse::<Options>().unwrap_err();
        for text in [
            "quorate://a:1",
            "cassandra://",
            "cassandra://a",
            "cassandra://a:0",
            "cassandra://a:1,",
            "cassandra://:1",
        ] {
            assert_eq!(refused(text), OptionsError::Form(text.to_owned()));
        }
        for name in ["", "1a", "a b", "a;drop", "a\"", "ü", &"a".repeat(49)] {
            assert_eq!(refused(&format!("cassandra://a:1/{name}")), OptionsError::Name(name.to_owned()));
        }
        for option in ["", "copies", "copies=0", "copies=256", "timestamps=mine", "level=one"] {
            assert_eq!(
                refused(&format!("cassandra://a:1/k?{option}")),
                OptionsError::Option(option.to_owned())
            );
        }
    }
}
